"""Environments that step together, here or in processes; those whose episode ended rest.

Vector environments of Gymnasium step what has ended, too, until the longest episode ends: most of
the work where one lasts ten times another. And its AsyncVectorEnv has a process per environment.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.cli import command as cli
from eggroll.errors import InputError, shown
from eggroll.library.pool import ending_of, words_of

CLOSING = 2.0  # seconds that environments have to close
Makers = Sequence[Callable[[], Any]]
# Observations, rewards, and whether episodes terminated or were truncated, as of a vector
# environment; of those that rest what was seen last, and zeros.
Stepped = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class Lockstep:
    """Environments of one kind, in this process."""

    def __init__(self, makers: Makers) -> None:
        self._envs = [make() for make in makers]
        first = self._envs[0]
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        for env in self._envs:
            if (env.observation_space, env.action_space) != (
                self.single_observation_space, self.single_action_space
            ):  # fmt: skip
                raise InputError(f"{shown(env)} has other spaces than the first that was made.")
        self._seen = list[Any]()
        self._rest = np.ones(len(self._envs), np.bool_)

    def reset(self, *, seed: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        """Begins all episodes anew: what is seen, and no infos."""
        self._seen = [env.reset(seed=s)[0] for env, s in zip(self._envs, seed, strict=True)]
        self._rest[:] = False
        return self._observations(), {}

    def step(self, actions: Any) -> Stepped:
        """A step of all whose episode has not ended."""
        return self.step_each(_each(self.single_action_space, len(self._envs), actions))

    def step_each(self, actions: Iterable[Any]) -> Stepped:
        """The same, by single actions."""
        n = len(self._envs)
        rewards, ended = np.zeros(n), np.zeros((2, n), np.bool_)
        for i, action in enumerate(actions):
            if not self._rest[i]:
                found = self._envs[i].step(action)
                if len(found) != 5:
                    raise InputError(
                        f"an environment's step gave {len(found)} values: observation, reward, "
                        "terminated, truncated and info are needed."
                    )
                self._seen[i], rewards[i], *ended[:, i], _ = found
        self._rest |= ended.any(axis=0)
        return self._observations(), rewards, ended[0], ended[1], {}

    def rest(self, which: Sequence[bool] | NDArray[np.bool_]) -> None:
        """Ends the episodes of those of all environments [n] that are true."""
        self._rest |= which

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _observations(self) -> Any:
        utils, space = _utils(), self.single_observation_space
        room = utils.create_empty_array(space, len(self._seen))
        return utils.concatenate(space, self._seen, room)


class Processes:
    """The same in as many processes as cores, at most, each with some of the environments."""

    def __init__(self, makers: Makers) -> None:
        """
        Raises:
            InputError: an environment cannot be sent or made.
        """
        count = min(len(makers), cli.usable_cores())
        self._firsts = [len(makers) * k // count for k in range(count + 1)]
        self._workers = list[tuple[Any, Any]]()
        self._makers, self._count, self._closed = makers, len(makers), False
        self._begin()

    def _begin(self) -> None:
        """Starts the processes."""
        makers, context = self._makers, multiprocessing.get_context("spawn")
        self._end = weakref.finalize(self, _end, self._workers)
        try:
            for first, last in zip(self._firsts, self._firsts[1:], strict=False):
                pipe, other = context.Pipe()
                task = _utils().CloudpickleWrapper(makers[first:last])
                process = context.Process(target=_serve, args=(other, task), daemon=True)
                self._workers.append((process, pipe))
                process.start()
                other.close()
            spaces = self._answers()
        except InputError:
            self.close()
            raise
        except Exception as error:  # whatever others' objects raise
            self.close()
            raise InputError(
                'mode is "async", and the environments cannot be sent to processes '
                f"({words_of(error)}): define what makes them at the top of a module, or leave "
                "mode out."
            ) from None
        self.single_observation_space, self.single_action_space = spaces[0]

    def reset(self, *, seed: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        """As Lockstep's."""
        return joined(self._asked("reset", list(seed))), {}

    def step(self, actions: Any) -> Stepped:
        """As Lockstep's."""
        each = list(_each(self.single_action_space, self._count, actions))
        parts = list(zip(*self._asked("step", each), strict=True))
        rewards, terminated, truncated = (np.concatenate(part) for part in parts[1:4])
        return joined(parts[0]), rewards, terminated, truncated, {}

    def rest(self, which: NDArray[np.bool_]) -> None:
        """As Lockstep's."""
        self._asked("rest", which.tolist())

    def close(self) -> None:
        """Closes the environments and ends the processes."""
        self._closed = True
        self._end()

    def _asked(self, what: str, each: list[Any]) -> list[Any]:
        """The answers of all processes, each of which is given its part of a list."""
        if not self._workers and what == "reset" and not self._closed:
            self._begin()  # after an interrupt
        if not self._workers:
            raise InputError("the environments are closed: make them anew.")
        cuts = zip(self._firsts, self._firsts[1:], strict=False)
        try:
            for (_, pipe), (first, last) in zip(self._workers, cuts, strict=True):
                with suppress(OSError):  # it has ended, as its answer tells
                    pipe.send((what, each[first:last]))
            return self._answers()
        except BaseException:  # nothing may answer later what was asked now
            self._end()
            raise

    def _answers(self) -> list[Any]:
        """
        Raises:
            InputError: an environment raised, or a process ended.
        """
        answers = list[Any]()
        for process, pipe in self._workers:
            try:
                fault, answer = pipe.recv()
            except (EOFError, OSError):
                process.join()
                fault = (
                    f"its process ended with {ending_of(process)}. Put what the script does under "
                    "`if __name__ == '__main__':`"
                )
            if fault:
                self.close()
                raise InputError(f"an environment failed: {fault}.")
            answers.append(answer)
        return answers


def _each(space: Any, n: int, actions: Any) -> Any:
    """Single actions of n stacked ones."""
    return _utils().iterate(_utils().batch_space(space, n), actions)


def _utils() -> Any:
    return import_module("gymnasium.vector.utils")


def joined(parts: Sequence[Any]) -> Any:
    """Stacked observations of parts as one: arrays, or dictionaries or tuples of such."""
    if isinstance(parts[0], dict):
        return {name: joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(joined(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def _end(workers: list[tuple[Any, Any]]) -> None:
    """Lets processes close their environments, and ends those that take longer."""
    until = time.monotonic() + CLOSING
    for _, pipe in workers:
        with suppress(OSError):
            pipe.send(("close", None))
    for process, pipe in workers:
        if process.pid is not None:
            process.join(max(until - time.monotonic(), 0))
            process.kill()
            process.join()
        pipe.close()
    workers.clear()


def _serve(pipe: Any, task: Any) -> None:
    """Answers with (what is wrong, what was asked for) until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends it
    try:
        envs = Lockstep(task.fn)
        answer: Any = envs.single_observation_space, envs.single_action_space
        while True:
            pipe.send(("", answer))
            what, each = pipe.recv()
            if what == "close":
                return envs.close()
            if what == "reset":
                answer, _ = envs.reset(seed=each)
            elif what == "rest":
                answer = None
                envs.rest(each)
            else:
                answer = envs.step_each(each)
    except (EOFError, OSError):
        return
    except BaseException as error:  # whatever others' code raises
        pipe.send((words_of(error), None))
