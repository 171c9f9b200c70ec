"""A GPU engine under guard: compared with the cpu engine where a run begins, replaced if it fails.

All engines are exact, so two of them must agree on every integer, at a run's own shapes as well as
in the small trial that lets the engine run at all. Letters: P members, N = P/2 pairs, T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines.base import Engine
from eggroll.engines.gpu.engine import StagedEngine
from eggroll.engines.gpu.launch import matrix_macs
from eggroll.engines.trial import sentence
from eggroll.errors import EngineError, EngineWarning
from eggroll.spec.backward import Backward
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Weights

COMPARED_MACS = 1 << 40  # multiply-adds that the cpu engine repeats at most: a second or some
SIZES = "all leaves, the sums of their credit"  # among the votes
LEAST = 128  # members that are compared at least: more than the largest threadgroup has
T = TypeVar("T")

# Engine -> why this process does without it from now on. The default device of MLX is the CPU then,
# and no kernel of a GPU can be launched.
given_up: dict[str, str] = {}


class Prepared:
    """Weights, in the layout of every engine that asks for it."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._layouts: dict[str, Any] = {}

    def of(self, engine: Engine) -> Any:
        if engine.name not in self._layouts:
            self._layouts[engine.name] = engine.prepare(self.weights)
        return self._layouts[engine.name]


class Result(NamedTuple):
    """The arrays of a call, named: those with a row for every member, and votes per leaf."""

    members: dict[str, mx.array]
    votes: dict[str, mx.array] = {}  # noqa: RUF012


# Method of an engine -> the names of what it returns.
RESULTS: dict[str, Callable[[Any], Result]] = {
    "evaluate": lambda found: Result({"scores": found[0], "state": found[1]}),
    "outputs": lambda found: Result({**found[0], "state": found[1]}),
    "votes": lambda found: Result({}, found),
    "credit": lambda found: Result({"scores": found[0], "state": found[1]}, found[2]),
    "learn": lambda found: Result(
        {"scores": found.scores, "state": found.state}, {**found.votes, SIZES: found.sizes}
    ),
    "likelihoods": lambda found: Result(
        {"totals": found[0], "target logits": found[1], "state": found[2]}
    ),
    "logits": lambda found: Result({"logits": found[0], "state": found[1]}),
}


class Subset:
    """Selects the same pairs from every argument of a call.

    pairs: their numbers, None for all; P: members of the whole call.
    """

    def __init__(self, P: int, pairs: NDArray[np.int32] | None = None) -> None:
        self._pairs = self._members = None
        self.P = self.count = P
        if pairs is not None:
            members = (2 * pairs[:, None] + np.arange(2)).reshape(-1)
            members = members[members < P]
            self.count, self._pairs = len(members), mx.array(pairs)
            self._members = mx.array(members)

    def members(self, a: mx.array) -> mx.array:
        """Their rows of an array that has one for every member."""
        return a if self._members is None else mx.take(a, self._members, axis=0)

    def pairs(self, a: mx.array, axis: int = 0) -> mx.array:
        """The same of an array that has one for every pair."""
        return a if self._pairs is None else mx.take(a, self._pairs, axis=axis)

    def of(self, argument: Any) -> Any:
        """Their part of an argument; one that belongs to no member stays as it is."""
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


class Call(NamedTuple):
    """A call of an engine: the method, its arguments, and the names of the last of them."""

    method: str
    arguments: tuple[Any, ...]
    names: tuple[str, ...] = ()

    def on(self, engine: Engine, subset: Subset) -> Any:
        """What an engine returns for some of the pairs."""
        own = (a.of(engine) if isinstance(a, Prepared) else a for a in self.arguments)
        arguments = [subset.of(a) for a in own]
        first = len(arguments) - len(self.names)
        named = dict(zip(self.names, arguments[first:], strict=True))
        return getattr(engine, self.method)(*arguments[:first], **named)

    def results(self, found: Any) -> Result:
        return RESULTS[self.method](found)

    def _first(self, kind: type[Any]) -> Any:
        return next((a for a in self.arguments if isinstance(a, kind)), None)

    @property
    def size(self) -> tuple[int, int]:
        """P and T."""
        batch = self._first(Batch)
        return batch.size if batch else (2 * self._first(mx.array).size, 1)

    @property
    def rank(self) -> int:
        """That of the noise, 0 without."""
        noise = self._first(Slices)
        return noise.rank if noise else 0

    @property
    def together(self) -> int:
        """Pairs whose members are compared with each other, N being a multiple."""
        crediting = self._first(Crediting)
        return max(crediting.group // 2, 1) if crediting else 1

    @property
    def kind(self) -> tuple[object, ...]:
        """What else decides which kernels run."""
        return tuple(map(kind_of, self.arguments))


def kind_of(argument: Any) -> object:
    match argument:
        case Crediting():
            return argument.nodes, argument.group
        case Backward():
            return frozenset(argument.matrices)
        case bool():
            return argument
    return argument is None


def guarded(method: str) -> Callable[..., Any]:
    """A method of an engine, compared and replaced as `Guarded._call` does it."""

    def call(self: Guarded, *arguments: Any, **named: Any) -> Any:
        return self._call(Call(method, (*arguments, *named.values()), tuple(named)))

    return call


class Guarded(Engine):
    """An engine of a GPU, and the one that is right if it is wrong.

    engine: of the GPU, then the spare one if that took over; spare: the cpu engine; goes_on:
    whether the spare one takes over with a warning, or EngineError is raised.
    """

    def __init__(self, engine: StagedEngine, spare: Engine, *, goes_on: bool) -> None:
        super().__init__(engine.program, engine.threads, engine.block_tokens)
        self.engine: Engine = engine
        self.spare, self.goes_on, self.name = spare, goes_on, engine.name
        self._on_gpu: StagedEngine | None = engine
        self._compared: set[tuple[object, ...]] = set()

    @property
    def description(self) -> str:
        return self.engine.description

    def prepare(self, weights: Weights) -> Prepared:
        return Prepared(weights)

    evaluate = guarded("evaluate")
    outputs = guarded("outputs")
    votes = guarded("votes")
    credit = guarded("credit")
    learn = guarded("learn")
    likelihoods = guarded("likelihoods")
    logits = guarded("logits")

    def guarding(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is done again by the spare engine if MLX fails within it."""
        if self._on_gpu is None:
            return work()
        if why := given_up.get(self.name):
            self._failed(why)
            return work()
        try:
            return work()
        except NotImplementedError:
            raise
        except RuntimeError as error:  # MLX's: of a compiler, a launch, or one before it
            if self._on_gpu is not None:  # else it failed within, and so did what came before that
                self._failed(f"failed ({sentence(str(error))})")
        return work()

    def _call(self, call: Call) -> Any:
        """The result of a call, computed when it returns, so that what fails fails here."""
        everyone = Subset(call.size[0])

        def compared() -> Any:
            gpu = self._on_gpu
            if gpu is None:
                return call.on(self.engine, everyone)
            kernels = gpu.kernels_made
            found = call.on(gpu, everyone)
            mx.async_eval(found)  # type: ignore[no-untyped-call]
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile:
                meanwhile()
            mx.eval(found)
            key = self._key(gpu, call)
            if key in self._compared and gpu.kernels_made == kernels:
                return found
            self._compared.discard(key)  # until all of it is looked at, and right
            if wrong := self._wrong(gpu, call, found):
                self._failed(f"gives other integers than engine {self.spare.name!r} ({wrong})")
                return call.on(self.engine, everyone)
            self._compared.add(key)
            return found

        return self.guarding(compared)

    def _key(self, gpu: StagedEngine, call: Call) -> tuple[object, ...]:
        """The kind of a call, and the size of its threadgroups: what is compared once.

        So is every call that makes kernels, as its launches may have smaller threadgroups.
        """
        (P, _), rank = call.size, call.rank
        sizes = gpu.group_members(P, rank), gpu.group_members(P, 0)
        return call.method, rank, call.kind, *sizes

    def _wrong(self, gpu: StagedEngine, call: Call, found: Any) -> str:
        """The first difference from the spare engine; empty if there is none.

        Looked for in all that was found, or in as many pairs as the other engine does in a second
        or some.
        """
        (P, T), rank, results = call.size, call.rank, call.results(found)
        budget = COMPARED_MACS // (matrix_macs(self.program) * T * max(rank, 1))
        if max(budget, LEAST) >= P:
            want = call.results(call.on(self.spare, Subset(P)))
            return difference(call.method, results, want)
        group = 2 * call.together
        groups = spread(-(-P // group), max(max(budget, LEAST) // group, 1))
        pairs = groups[:, None] * call.together + np.arange(call.together)
        few = Subset(P, pairs.reshape(-1).astype(np.int32))
        for r in (0, rank):
            gpu.take_groups_of(P, few.count, r)
        want = call.results(call.on(self.spare, few))
        theirs = {name: few.members(a) for name, a in results.members.items()}
        return difference(call.method, call.results(call.on(gpu, few)), want) or difference(
            call.method, Result(theirs, want.votes), want
        )

    def _failed(self, why: str) -> None:
        """Goes on with the spare engine and says so, or raises EngineError."""
        said = f"engine {self.name!r} {why}"
        remedy = self._on_gpu.remedy if self._on_gpu else ""
        report = f"{remedy}`make verify-{self.name}` writes a report"
        if not self.goes_on:
            raise EngineError(
                f"{said}: take --engine {self.spare.name}, which gives the same bits; {report}.",
                self.spare.name,
            )
        self.engine, self._on_gpu = self.spare, None
        given_up.setdefault(self.name, f"is not used again, as it {why}")
        mx.set_default_device(mx.cpu)  # nothing else runs on a GPU that fails
        warnings.warn(
            f"{said}: engine {self.spare.name!r} goes on, with the same bits; {report}.",
            EngineWarning, stacklevel=2,
        )  # fmt: skip


def spread(N: int, count: int) -> NDArray[np.int32]:
    """Numbers of about `count` of N pairs: half of them the first ones, half up to the last.

    Or of N groups.
    """
    half = count // 2
    rest = np.linspace(half, N - 1, count - half).round()
    return np.unique(np.concatenate([np.arange(half), rest])).astype(np.int32)


def difference(method: str, found: Result, want: Result) -> str:
    """Names the first element that differs; empty if none does."""
    of_members: Sequence[tuple[str, mx.array, mx.array]] = [
        (name, a, want.members[name]) for name, a in found.members.items()
    ]
    of_votes = [(f"votes of {name}", a, want.votes[name]) for name, a in found.votes.items()]
    for name, one, other in [*of_members, *of_votes]:
        a, b = np.array(one), np.array(other)
        if a.shape != b.shape:
            return f"{method}: {name} of shape {list(a.shape)} instead of {list(b.shape)}"
        if not np.array_equal(a, b):
            at = tuple(int(i) for i in np.argwhere(a != b)[0])
            return f"{method}: {name}{list(at)} is {a[at]} instead of {b[at]}"
    return ""
