"""A GPU engine under guard: compared with the cpu engine again and again, replaced if it fails.

Engines are exact, so two of them must agree on every integer, at a run's own shapes as well as in
the small trial that lets the engine run at all, and in the last update as in the first. Letters: P
members, N = P/2 pairs, T tokens.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import WeakSet

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines.base import (
    Engine,
    RuleArrays,
    RuleLeaves,
    arrays_of_members,
    check_process,
)
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.gpu.plan import matrix_macs
from eggroll.engines.trial import sentence
from eggroll.errors import EngineError, EngineWarning
from eggroll.spec.backward import Backward
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Noise, Slices
from eggroll.spec.program import Batch, Program, Weights

COMPARED_MACS = 1 << 40  # multiply-adds that the cpu engine repeats at most: a second or some
MIN_COMPARED = 128  # members that are compared at least: more than the largest threadgroup has
SHARE = 0.01  # of the time of a kind of calls, for which some of them are repeated in part
GOLDEN = (5**0.5 - 1) / 2
MOST_RANGES = 4  # of members, that a difference names
SIZES = "all leaves, the sums of their credit"  # the name of `Learnt.sizes` among the votes
T = TypeVar("T")

# Engine -> why this process does without it from now on. MLX's default device is the CPU then, and
# no kernel of a GPU can be launched.
failed_engines: dict[str, str] = {}


class WrongIntegers(RuntimeError):
    """The engine that gave them is replaced, and the work that took them is to be done again."""


def guarded(method: str) -> Callable[..., Any]:
    """A method of an engine, compared and replaced as `Guarded._call` does it."""

    def call(self: Guarded, *arguments: Any, **named: Any) -> Any:
        return self._call(Call(method, (*arguments, *named.values()), tuple(named)))

    return call


class Guarded(Engine):
    """An engine of a GPU, and the spare one that takes over from it.

    engine: the one in use; spare: the cpu engine, which is right where the two differ; replaceable:
    whether it takes over with a warning, or EngineError is raised.
    """

    def __init__(self, engine: GpuEngine, spare: Engine, *, replaceable: bool) -> None:
        super().__init__(engine.program, engine.threads, engine.block_tokens)
        self.engine: Engine = engine
        self.spare, self.replaceable, self.name = spare, replaceable, engine.name
        self.rules = tuple(name for name in engine.rules if name in spare.rules)
        self._gpu: GpuEngine | None = engine
        self._inspections: dict[tuple[object, ...], Inspection] = {}
        self._clock: Callable[[], float] = time.perf_counter
        self._depth = 0  # of work within work
        self._drawn = WeakSet[Noise]()  # noise of which the GPU has drawn slices

    @property
    def description(self) -> str:
        return self.engine.description

    def prepare(self, weights: Weights) -> Prepared:
        return Prepared(weights)

    def repeated(self, shared: NDArray[Any], times: int) -> mx.array:
        return self.engine.repeated(shared, times)

    def starts(self, noise: Noise, epoch: int, first_pair: int, pairs: int) -> mx.array:
        """Compared in the first call and in some later ones, as calls are that take them."""

        def drawn(engine: Engine) -> mx.array:
            if engine is self._gpu:
                self._drawn.add(noise)
            return engine.starts(noise, epoch, first_pair, pairs)

        if self._gpu and not self._gpu.draws_starts:
            return self._gpu.starts(noise, epoch, first_pair, pairs)
        return self._whole("starts", drawn, "slices of the noise begin elsewhere")

    def adam(self, leaves: RuleLeaves, factor: int) -> RuleArrays:
        return self._rule("adam", "adam", leaves, factor)

    def master(self, leaves: RuleLeaves) -> RuleArrays:
        return self._rule("master", "master", leaves)

    def whitened(self, leaves: RuleLeaves, learns: bool) -> RuleArrays:
        return self._rule("whitened", f"whitened {learns}", leaves, learns)

    def _rule(self, name: str, kind: str, *given: Any) -> RuleArrays:
        """An update by a rule, compared as `starts` are. kind: which kernels run."""

        def moved(engine: Engine) -> RuleArrays:
            found: RuleArrays = getattr(engine, name)(*given)
            computed(found[0])
            return found

        return self._whole(kind, moved, f"rule {name} leaves other numbers")

    def _whole(self, kind: str, work: Callable[[Engine], T], wrong: str) -> T:
        """A result of no members, compared in the first call and in some later ones."""

        def compared() -> T:
            gpu = self._gpu
            if gpu is None:
                return work(self.engine)
            began = self._clock()
            found = work(gpu)
            inspection = self._inspections.setdefault((kind,), Inspection())
            inspection.seconds += self._clock() - began  # of starts without the wait for them
            if inspection.looks < 0 or inspection.due:
                began = self._clock()
                if not same(found, work(self.spare)):
                    self._differs(inspection.update, wrong)
                inspection.looked(self._clock() - began, self._update, 1.0)
            return found

        return self.run_guarded(compared)

    evaluate = guarded("evaluate")
    outputs = guarded("outputs")
    votes = guarded("votes")
    credit = guarded("credit")
    learn = guarded("learn")
    likelihoods = guarded("likelihoods")
    logits = guarded("logits")

    def run_guarded(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is done again by the spare engine if MLX fails within it."""
        check_process()
        if self._gpu is None:
            return work()
        if why := failed_engines.get(self.name):
            self._replace(why)
            return work()
        self._depth += 1
        try:
            return work()
        except NotImplementedError:
            raise
        except RuntimeError as error:  # MLX's: of a compiler, a launch, or one before it
            if self._gpu is not None:  # else a call within has replaced the engine already
                self._replace(f"failed ({sentence(str(error))})")
            elif isinstance(error, WrongIntegers) and self._depth > 1:
                raise  # so that all of an update is made again
        finally:
            self._depth -= 1
        return work()

    def _call(self, call: Call) -> Any:
        """The result of a call, computed when it returns, so that what fails fails here."""
        all_pairs = Subset(call.size[0])

        def compared() -> Any:
            gpu = self._gpu
            if gpu is None:
                return call.on(self.engine, all_pairs)
            kernels, began = gpu.kernel_count, self._clock()
            returned = call.on(gpu, all_pairs)
            computed(returned, wait=False)
            host_work, self.host_work = self.host_work, None
            if host_work:
                host_work()
            computed(returned)
            key, seconds = self._key(gpu, call), self._clock() - began
            inspection = self._inspections.get(key)
            if inspection and gpu.kernel_count == kernels:
                inspection.seconds += seconds
                if not inspection.due:
                    return returned
                sample = self._block(gpu, call, inspection.looks)
            else:
                sample, inspection = self._sample(call), Inspection()
            self._inspections.pop(key, None)  # until all of it is looked at, and right
            began = self._clock()
            if wrong := self._difference(gpu, call, returned, sample, inspection.looks < 0):
                self._differs(inspection.update, wrong)
            inspection.looked(
                self._clock() - began, self._update, self._block_part(gpu, call, sample)
            )
            self._inspections[key] = inspection
            return returned

        return self.run_guarded(compared)

    def _differs(self, right: int | None, wrong: str) -> NoReturn:
        """Goes on with the spare engine, as this one gives other integers; see `_replace`."""
        why = f"gives other integers than engine {self.spare.name!r} ({wrong})"
        self._replace(why, right)
        raise WrongIntegers

    @property
    def _update(self) -> int | None:
        """The number of the update that calls belong to."""
        return None if self.step is None else self.step + 1

    def _key(self, gpu: GpuEngine, call: Call) -> tuple[object, ...]:
        """The kind of a call and the size of its threadgroups.

        Each is compared once at length, and so is every call that makes kernels, as its launches
        may have smaller threadgroups.
        """
        (P, _), rank = call.size, call.rank
        sizes = gpu.group_members(P, rank), gpu.group_members(P, 0)
        return call.method, rank, call.kernel_key, *sizes

    def _affordable(self, call: Call) -> int:
        """Members that the spare engine runs in about a second."""
        macs = matrix_macs(self.program) * call.size[1] * max(call.rank, 1)
        return max(COMPARED_MACS // macs, MIN_COMPARED)

    def _sample(self, call: Call) -> Subset:
        """All members, or as many as are affordable: the first ones, and some up to the last."""
        (P, _), group = call.size, 2 * call.group_pairs
        if self._affordable(call) >= P:
            return Subset(P)
        groups = spread(-(-P // group), max(self._affordable(call) // group, 1))
        pairs = groups[:, None] * call.group_pairs + np.arange(call.group_pairs)
        return Subset(P, pairs.reshape(-1).astype(np.int32))

    def _block(self, gpu: GpuEngine, call: Call, turn: int) -> Subset:
        """The members of a threadgroup, or of whole groups, another block at every turn.

        Votes of a call that does nothing else are cheap, so all of them are counted if they are
        affordable.
        """
        P = call.size[0]
        if call.method == "votes" and self._affordable(call) >= P:
            return Subset(P)
        pairs = self._block_pairs(gpu, call)
        all_pairs = -(-P // 2)
        first = pairs * in_turn(turn, -(-all_pairs // pairs))
        return Subset(P, np.arange(first, min(first + pairs, all_pairs), dtype=np.int32))

    def _block_pairs(self, gpu: GpuEngine, call: Call) -> int:
        group = call.group_pairs
        return max(gpu.group_members(call.size[0], call.rank) // 2 // group, 1) * group

    def _block_part(self, gpu: GpuEngine, call: Call, sample: Subset) -> float:
        """The part that the next block is of a sample, at most all of it."""
        whole = call.method == "votes" and sample.count == sample.P
        return 1.0 if whole else min(2 * self._block_pairs(gpu, call) / sample.count, 1.0)

    def _difference(
        self, gpu: GpuEngine, call: Call, returned: Any, sample: Subset, first: bool
    ) -> str:
        """Names the first difference from the spare engine; empty if there is none.

        Looks at what was returned of a sample, and at what the GPU makes of the sample alone: the
        first time, and where a sum of all members was returned.
        """
        results = call.results(returned)
        expected = call.results(call.on(self.spare, sample))
        wrong, part = "", sample.count < sample.P
        if part and (first or results.votes):
            for r in (0, call.rank):
                gpu.reuse_groups_of(sample.P, sample.count, r)
            again = call.results(call.on(gpu, sample))
            wrong = difference(self.program, again, expected, sample)
        if part:
            rows = {name: sample.members(a) for name, a in results.members.items()}
            results = CallResult(rows, {})
        wrong = wrong or difference(self.program, results, expected, sample)
        update = "" if self._update is None else f"update {self._update}, "
        return wrong and f"{update}{call.method}: {wrong}"

    def _replace(self, why: str, right: int | None = None) -> None:
        """Goes on with the spare engine and says so, or raises EngineError.

        right: an earlier update whose like was compared last, None if there is none.
        """
        text = f"engine {self.name!r} {why}"
        remedy = self._gpu.remedy if self._gpu else ""
        report = f"{remedy}`make verify-{self.name}` writes a report"
        late = (
            f"such calls were last compared in update {right}, and `eggroll verify` tells what of "
            "the run since then is wrong; "
            if right is not None
            else ""
        )
        if not self.replaceable:
            raise EngineError(
                f"{text}: take --engine {self.spare.name}, which gives the same bits; {late}"
                f"{report}.",
                self.spare.name,
            )
        self.engine, self._gpu = self.spare, None
        for noise in self._drawn:
            noise.forget()
        failed_engines.setdefault(self.name, f"is not used again, as it {why}")
        mx.set_default_device(mx.cpu)  # nothing else runs on a GPU that fails
        same = "" if late else ", with the same bits"
        warnings.warn(
            f"{text}: engine {self.spare.name!r} goes on{same}; {late}{report}.",
            EngineWarning, stacklevel=2,
        )  # fmt: skip


@dataclass
class Inspection:
    """A kind of calls: the seconds that they took, and those for which some were repeated.

    A look is paid for before it is taken: by half of what the last one cost, or three halves, so
    that in the long run all chunks of a population have their turn.
    """

    seconds: float = 0.0  # of calls since the first was compared
    spent: float = 0.0  # of looks at them
    cost: float = 0.0  # of the next look, about
    looks: int = -1  # after the first
    update: int | None = None  # of the last look

    @property
    def due(self) -> bool:
        ahead = 0.5 + self.looks * GOLDEN % 1
        return SHARE * self.seconds >= self.spent + ahead * self.cost

    def looked(self, seconds: float, update: int | None, part: float) -> None:
        """Tells that a look took so many seconds; part: that the next one has of its members."""
        self.spent += seconds * (self.looks >= 0)
        self.cost, self.update = seconds * part, update
        self.looks += 1


def in_turn(turn: int, count: int) -> int:
    """One of `count` blocks, each once in `count` turns, far from the one before."""
    stride = next(n for n in range(max(int(GOLDEN * count), 1), count + 2) if gcd(n, count) == 1)
    return turn * stride % count


class Call(NamedTuple):
    """A call of an engine: the method, its arguments, and the names of the last of them."""

    method: str
    arguments: tuple[Any, ...]
    names: tuple[str, ...] = ()

    def on(self, engine: Engine, subset: Subset) -> Any:
        """The arrays that an engine returns for a subset of the pairs."""
        arguments = [
            a.of(engine) if isinstance(a, Prepared) else subset.of(a) for a in self.arguments
        ]
        first = len(arguments) - len(self.names)
        named = dict(zip(self.names, arguments[first:], strict=True))
        return getattr(engine, self.method)(*arguments[:first], **named)

    def results(self, returned: Any) -> CallResult:
        return NAMED_RESULTS[self.method](returned)

    def _argument(self, kind: type[Any]) -> Any:
        """The first argument of a type."""
        return next((a for a in self.arguments if isinstance(a, kind)), None)

    @property
    def size(self) -> tuple[int, int]:
        """P and T."""
        batch = self._argument(Batch)
        return batch.size if batch else (2 * self._argument(mx.array).size, 1)

    @property
    def rank(self) -> int:
        """The rank of the noise, 0 without."""
        noise = self._argument(Slices)
        return noise.rank if noise else 0

    @property
    def group_pairs(self) -> int:
        """Pairs of a group whose members are compared with each other; N is a multiple."""
        crediting = self._argument(Crediting)
        return max(crediting.group // 2, 1) if crediting else 1

    @property
    def kernel_key(self) -> tuple[object, ...]:
        """All else that decides which kernels run."""
        return tuple(map(_kernel_key, self.arguments))


def _kernel_key(argument: Any) -> object:
    match argument:
        case Crediting():
            return argument.nodes, argument.group
        case Backward():
            return frozenset(argument.matrices), argument.losses
        case Batch():
            return argument.errors is None
        case bool():
            return argument
    return argument is None


class Subset:
    """Selects the same pairs from every argument of a call of P members.

    pairs: their numbers, int32 [pairs]; None for all. numbers: of their members.
    """

    def __init__(self, P: int, pairs: NDArray[np.int32] | None = None) -> None:
        self._pairs = self._members = None
        self.P, self.numbers = P, np.arange(P)
        if pairs is not None:
            members = (2 * pairs[:, None] + np.arange(2)).reshape(-1)
            self.numbers = members[members < P]
            self._pairs, self._members = mx.array(pairs), mx.array(self.numbers)
        self.count = len(self.numbers)

    def members(self, a: mx.array) -> mx.array:
        """Rows of an array that has one for every member."""
        return a if self._members is None else mx.take(a, self._members, axis=0)

    def pairs(self, a: mx.array, axis: int = 0) -> mx.array:
        """Rows of an array that has one for every pair."""
        return a if self._pairs is None else mx.take(a, self._pairs, axis=axis)

    def of(self, argument: Any) -> Any:
        """The subset's part of an argument; one that belongs to no member stays as it is."""
        match argument:
            case Batch():
                return argument.each(self.members)
            case Slices():
                return argument._replace(starts=self.pairs(argument.starts, 1))
            case CreditNoise():
                return CreditNoise(self.pairs(argument.signs, 1), self.pairs(argument.draws))
            case mx.array():
                return (self.members if len(argument) == self.P else self.pairs)(argument)
        return argument


class Prepared:
    """Weights, in the layout of every engine that asks for it."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._layouts: dict[str, Any] = {}

    def of(self, engine: Engine) -> Any:
        if engine.name not in self._layouts:
            self._layouts[engine.name] = engine.prepare(self.weights)
        return self._layouts[engine.name]


class CallResult(NamedTuple):
    """The arrays that a call returns, by name."""

    members: dict[str, mx.array]  # [P, ..]
    votes: dict[str, mx.array] = {}  # noqa: RUF012  # per leaf


# Method of an engine -> its arrays, named.
NAMED_RESULTS: dict[str, Callable[[Any], CallResult]] = {
    "evaluate": lambda out: CallResult({"scores": out[0], "state": out[1]}),
    "outputs": lambda out: CallResult({**out[0], "state": out[1]}),
    "votes": lambda out: CallResult({}, out),
    "credit": lambda out: CallResult({"scores": out[0], "state": out[1]}, out[2]),
    "learn": lambda out: CallResult(arrays_of_members(out), {**out.votes, SIZES: out.sizes}),
    "likelihoods": lambda out: CallResult(
        {"totals": out[0], "target logits": out[1], "state": out[2]}
    ),
    "logits": lambda out: CallResult({"logits": out[0], "state": out[1]}),
}


def computed(arrays: Any, wait: bool = True) -> None:
    """Computes arrays.

    Raises:
        RuntimeError: MLX cannot, also where it finds fault with a value: with a threadgroup that is
            larger than a kernel's registers allow, say, of which no caller knows.
    """
    try:
        (mx.eval if wait else mx.async_eval)(arrays)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def same(one: Any, other: Any) -> bool:
    """True if two arrays are equal, or lists and tuples of such."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(np.array(one), np.array(other))


def spread(N: int, count: int) -> NDArray[np.int32]:
    """Numbers of about `count` of N pairs or groups: half the first ones, half up to the last."""
    half = count // 2
    rest = np.linspace(half, N - 1, count - half).round()
    return np.unique(np.concatenate([np.arange(half), rest])).astype(np.int32)


def difference(program: Program, results: CallResult, expected: CallResult, sample: Subset) -> str:
    """Names the first element that differs, its stage and its members; empty if none does."""
    wrong = next(differences(results, expected, sample.numbers), None)
    if wrong is None:
        return ""
    name, text, columns, members = wrong
    stage = stage_of(program, name, columns)
    place = f", stage {stage + 1} of {len(program.stages)}" if stage >= 0 else ""
    if len(members) == 0 and sample.count < sample.P:
        members = sample.numbers
    return text + place + (f", of members {ranges_of(members)}" if len(members) else "")


def differences(
    results: CallResult, expected: CallResult, numbers: NDArray[np.int_]
) -> Iterator[tuple[str, str, NDArray[np.int_], NDArray[np.int_]]]:
    """Every array that differs: its name, its first difference, the columns and members of all.

    States come first, as they tell the stage. numbers: of the members whose rows these are.
    """
    names = sorted(results.members, key=lambda name: name != "state")
    arrays = [(name, name, results.members[name], expected.members[name]) for name in names]
    arrays += [(f"votes of {k}", k, a, expected.votes[k]) for k, a in results.votes.items()]
    nobody = np.zeros(0, int)
    for shown, name, one, other in arrays:
        a, b, of_members = np.array(one), np.array(other), shown == name
        if a.shape != b.shape:
            text = f"{shown} of shape {list(a.shape)} instead of {list(b.shape)}"
            yield name, text, nobody, nobody
        elif not np.array_equal(a, b):
            places = np.argwhere(a != b)
            at = tuple(int(i) for i in places[0])
            of = [int(numbers[at[0]]), *at[1:]] if of_members else list(at)
            columns = places[:, -1] if places.shape[1] > 1 else nobody
            members = numbers[np.unique(places[:, 0])] if of_members else nobody
            yield name, f"{shown}{of} is {a[at]} instead of {b[at]}", columns, members


def stage_of(program: Program, name: str, columns: NDArray[np.int_]) -> int:
    """The stage that an array is of, by its columns if it is the state; -1 if it is unknown."""
    leaves = [leaf.name for leaf in program.leaves]
    for i, stage in enumerate(program.stages):
        of_state = (stage.state <= columns) & (columns < stage.state + program.width)
        if name == "state" and stage.state >= 0 and of_state.any():
            return i
        if any(op.leaf >= 0 and leaves[op.leaf] == name for op in stage.ops):
            return i
    return len(program.stages) - 1 if name in ("scores", "logits", "totals") else -1


def ranges_of(numbers: NDArray[np.int_]) -> str:
    """Ascending numbers as a reader takes them in: "3, 5 to 9 and 40 more"."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    shown = [f"{p[0]}" if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts[:MOST_RANGES]]
    more = sum(map(len, parts[MOST_RANGES:]))
    return ", ".join(shown) + (f" and {more} more" if more else "")
