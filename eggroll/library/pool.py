"""A fitness in plain Python over worker processes, which survives what crashes it.

A worker makes a Model of a member's weights and calls the fitness. Processes are spawned, as a
forked one may hold locks of threads that it does not have.
"""

from __future__ import annotations

import math
import multiprocessing
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.cli import command as cli
from eggroll.engines import choose
from eggroll.errors import InputError, shown, whole_number
from eggroll.library.members import Model, Whole
from eggroll.spec.program import Program, program_of

BEGIN = 60.0  # seconds in which a worker must have begun
MOST_PROCESSES = 1024

WeightsOf = Callable[[int], dict[str, NDArray[np.int8]]]


class Worker:
    """A process, and the pipe to it.

    begun: whether it can work; member: its work, -1 for none; since: when that was given.
    """

    def __init__(self, task: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, task), daemon=True)
        self.begun, self.member, self.since = False, -1, time.monotonic()
        try:
            self.process.start()
        except RuntimeError:  # a script without its guard, in a worker
            raise InputError(
                "map was called while a worker process imports the script: put what the script "
                "does under `if __name__ == '__main__':`."
            ) from None
        other.close()

    def give(self, member: int, weights: Any, key: int) -> None:
        self.member, self.since = member, time.monotonic()
        self.pipe.send((weights, key))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Crash(NamedTuple):
    """A member whose fitness gave no number, and why."""

    member: int
    why: str


class Pool:
    """Worker processes for one fitness."""

    def __init__(
        self, fitness: Callable[..., float], processes: Whole, program: Program, engine: str
    ) -> None:
        """processes: 0 for as many as cores.

        Raises:
            InputError: the fitness cannot be sent, or the number is out of range.
        """
        self._processes = whole_number("processes", processes, 0, MOST_PROCESSES)
        self._fitness = fitness
        declared = program.declaration(), program.score_bits, engine
        try:
            # As multiprocessing sends what a process begins with.
            self._task = bytes(ForkingPickler.dumps((fitness, declared)))
        except Exception as error:  # whatever others' objects raise
            raise InputError(
                f"fitness {shown(fitness)} cannot be sent to other processes ({error}): define it "
                "at the top of a module."
            ) from None
        self._workers: list[Worker] = []
        weakref.finalize(self, _end, self._workers)

    def serves(self, fitness: Callable[..., float], processes: Whole) -> bool:
        """True if it is of this fitness and number of processes."""
        return self._fitness is fitness and self._processes == processes

    def close(self) -> None:
        """Ends the processes."""
        _end(self._workers)

    def values(
        self, weights_of: WeightsOf, members: int, key: int, timeout: float
    ) -> NDArray[np.float64]:
        """The fitness of every member, float64 [P]; of crashed ones the least of the others.

        Raises:
            InputError: workers do not begin, or every member crashed.
        """
        values, crashes = np.full(members, np.nan), list[Crash]()
        try:
            self._run(weights_of, values, crashes, key, timeout)
        except BaseException:  # nothing may answer later what was asked now
            self.close()
            raise
        if not crashes:
            return values
        first = min(crashes)
        about = f"the fitness of member {first.member} crashed: {first.why}"
        if len(crashes) == members:
            raise InputError(f"{about}; so did all {members}.")
        more = f", and {len(crashes) - 1} more" if len(crashes) > 1 else ""
        warnings.warn(f"{about}{more}; it counts as the worst of the others.", stacklevel=3)
        values[[crash.member for crash in crashes]] = np.nanmin(values)
        return values

    def _run(
        self, weights_of: WeightsOf, values: NDArray[np.float64], crashes: list[Crash], key: int,
        timeout: float,
    ) -> None:  # fmt: skip
        """Gives members to idle workers until all have a value or crashed."""
        count = min(self._processes or cli.usable_cores(), len(values))
        todo = list(range(len(values)))[::-1]
        ready, left = [w for w in self._workers if w.begun], len(values)  # all of these are idle
        while len(self._workers) < count:
            self._workers.append(Worker(self._task))
        while left:
            while ready and todo:
                worker = ready.pop()
                try:
                    worker.give(todo[-1], weights_of(todo[-1]), key)
                except OSError:  # it ended while it had nothing to do: another has the member
                    self._replace(worker)
                else:
                    todo.pop()
            waiting = [w for w in self._workers if w not in ready]
            answered = connection.wait([w.pipe for w in waiting], 0.1 if timeout else BEGIN)
            for worker in waiting:
                limit = timeout if worker.member >= 0 else BEGIN
                late = bool(limit) and time.monotonic() - worker.since > limit
                if worker.pipe in answered:
                    left -= self._take(worker, values, crashes, ready)
                elif late:
                    crashes.append(Crash(worker.member, f"it took more than {limit:g} s"))
                    left -= self._replace(worker)

    def _take(
        self, worker: Worker, values: NDArray[np.float64], crashes: list[Crash], ready: list[Worker]
    ) -> int:
        """Takes what a worker says; how many members are done by that, 0 or 1."""
        member = worker.member
        try:
            kind, said = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            crashes.append(Crash(member, f"its process ended with {ending_of(worker.process)}"))
            return self._replace(worker)
        if kind == "broken":
            raise InputError(f"a worker process cannot import the fitness: {said}.")
        worker.begun, worker.member = True, -1
        ready.append(worker)
        if kind == "ready":
            return 0
        if kind == "value":
            values[member] = said
        else:
            crashes.append(Crash(member, said))
        return 1

    def _replace(self, worker: Worker) -> int:
        """Ends a worker and starts another in its place; 1, the member that is done by that.

        Raises:
            InputError: it had not even begun.
        """
        worker.end()
        if worker.member < 0:
            raise InputError(
                f"a worker process did not begin ({ending_of(worker.process)}): put what the "
                "script does under `if __name__ == '__main__':`, and define the fitness in a file."
            )
        self._workers[self._workers.index(worker)] = Worker(self._task)
        return 1


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.end()
    workers.clear()


def ending_of(process: Any) -> str:
    """The exit code of a process that ended, or its signal."""
    code = process.exitcode
    return f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"


def _work(pipe: Any, task: bytes) -> None:
    """Answers with the fitness of one member after another."""
    try:
        fitness, (declaration, score_bits, name) = ForkingPickler.loads(task)
        engine, _ = choose(name, program_of(declaration, score_bits), 1)
    except BaseException as error:
        pipe.send(("broken", words_of(error)))
        return
    pipe.send(("ready", None))
    while True:
        try:
            weights, key = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            model = Model(engine, {name: mx.array(leaf) for name, leaf in weights.items()})
            value = float(fitness(model, key))
            said = ("value", value) if math.isfinite(value) else ("crash", f"it gave {value}")
        except KeyboardInterrupt:
            return
        except BaseException as error:  # whatever others' code raises
            said = "crash", words_of(error)
        pipe.send(said)


def words_of(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
