"""A GPU engine under guard: compared with the cpu engine where a run begins, replaced if it fails.

Engines are exact, so two of them must agree on every integer, at a run's own shapes as well as in
the small trial that lets the engine run at all. Letters: P members, N = P/2 pairs, T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines.base import Engine
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.gpu.plan import matrix_macs
from eggroll.engines.trial import sentence
from eggroll.errors import EngineError, EngineWarning
from eggroll.spec.backward import Backward
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Weights

COMPARED_MACS = 1 << 40  # multiply-adds that the cpu engine repeats at most: a second or some
MIN_COMPARED = 128  # members that are compared at least: more than the largest threadgroup has
SIZES = "all leaves, the sums of their credit"  # the name of `Learnt.sizes` among the votes
T = TypeVar("T")

# Engine -> why this process does without it from now on. MLX's default device is the CPU then, and
# no kernel of a GPU can be launched.
failed_engines: dict[str, str] = {}


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
        self._gpu: GpuEngine | None = engine
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

    def run_guarded(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is done again by the spare engine if MLX fails within it."""
        if self._gpu is None:
            return work()
        if why := failed_engines.get(self.name):
            self._replace(why)
            return work()
        try:
            return work()
        except NotImplementedError:
            raise
        except RuntimeError as error:  # MLX's: of a compiler, a launch, or one before it
            if self._gpu is not None:  # else a call within has replaced the engine already
                self._replace(f"failed ({sentence(str(error))})")
        return work()

    def _call(self, call: Call) -> Any:
        """The result of a call, computed when it returns, so that what fails fails here."""
        all_pairs = Subset(call.size[0])

        def compared() -> Any:
            gpu = self._gpu
            if gpu is None:
                return call.on(self.engine, all_pairs)
            kernels = gpu.kernel_count
            returned = call.on(gpu, all_pairs)
            mx.async_eval(returned)  # type: ignore[no-untyped-call]
            host_work, self.host_work = self.host_work, None
            if host_work:
                host_work()
            mx.eval(returned)
            key = self._key(gpu, call)
            if key in self._compared and gpu.kernel_count == kernels:
                return returned
            self._compared.discard(key)  # until all of it is looked at, and right
            if wrong := self._difference(gpu, call, returned):
                self._replace(f"gives other integers than engine {self.spare.name!r} ({wrong})")
                return call.on(self.engine, all_pairs)
            self._compared.add(key)
            return returned

        return self.run_guarded(compared)

    def _key(self, gpu: GpuEngine, call: Call) -> tuple[object, ...]:
        """The kind of a call and the size of its threadgroups: each is compared once.

        So is every call that makes kernels, as its launches may have smaller threadgroups.
        """
        (P, _), rank = call.size, call.rank
        sizes = gpu.group_members(P, rank), gpu.group_members(P, 0)
        return call.method, rank, call.kernel_key, *sizes

    def _difference(self, gpu: GpuEngine, call: Call, returned: Any) -> str:
        """The first difference from the spare engine; empty if there is none.

        Compares all results, or those of as many pairs as the spare engine runs in about a second.
        """
        (P, T), rank, results = call.size, call.rank, call.results(returned)
        budget = COMPARED_MACS // (matrix_macs(self.program) * T * max(rank, 1))
        if max(budget, MIN_COMPARED) >= P:
            expected = call.results(call.on(self.spare, Subset(P)))
            return difference(call.method, results, expected)
        group = 2 * call.group_pairs
        groups = spread(-(-P // group), max(max(budget, MIN_COMPARED) // group, 1))
        pairs = groups[:, None] * call.group_pairs + np.arange(call.group_pairs)
        sample = Subset(P, pairs.reshape(-1).astype(np.int32))
        for r in (0, rank):
            gpu.reuse_groups_of(P, sample.count, r)
        expected = call.results(call.on(self.spare, sample))
        again = call.results(call.on(gpu, sample))
        rows = {name: sample.members(a) for name, a in results.members.items()}
        return difference(call.method, again, expected) or difference(
            call.method, CallResult(rows, expected.votes), expected
        )

    def _replace(self, why: str) -> None:
        """Goes on with the spare engine and says so, or raises EngineError."""
        text = f"engine {self.name!r} {why}"
        remedy = self._gpu.remedy if self._gpu else ""
        report = f"{remedy}`make verify-{self.name}` writes a report"
        if not self.replaceable:
            raise EngineError(
                f"{text}: take --engine {self.spare.name}, which gives the same bits; {report}.",
                self.spare.name,
            )
        self.engine, self._gpu = self.spare, None
        failed_engines.setdefault(self.name, f"is not used again, as it {why}")
        mx.set_default_device(mx.cpu)  # nothing else runs on a GPU that fails
        warnings.warn(
            f"{text}: engine {self.spare.name!r} goes on, with the same bits; {report}.",
            EngineWarning, stacklevel=2,
        )  # fmt: skip


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
            return frozenset(argument.matrices)
        case bool():
            return argument
    return argument is None


class Subset:
    """Selects the same pairs from every argument of a call of P members.

    pairs: their numbers, int32 [pairs]; None for all.
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
    "learn": lambda out: CallResult(
        {"scores": out.scores, "state": out.state}, {**out.votes, SIZES: out.sizes}
    ),
    "likelihoods": lambda out: CallResult(
        {"totals": out[0], "target logits": out[1], "state": out[2]}
    ),
    "logits": lambda out: CallResult({"logits": out[0], "state": out[1]}),
}


def spread(N: int, count: int) -> NDArray[np.int32]:
    """Numbers of about `count` of N pairs or groups: half the first ones, half up to the last."""
    half = count // 2
    rest = np.linspace(half, N - 1, count - half).round()
    return np.unique(np.concatenate([np.arange(half), rest])).astype(np.int32)


def difference(method: str, results: CallResult, expected: CallResult) -> str:
    """Names the first element that differs; empty if none does."""
    arrays: list[tuple[str, mx.array, mx.array]] = [
        *((name, a, expected.members[name]) for name, a in results.members.items()),
        *((f"votes of {name}", a, expected.votes[name]) for name, a in results.votes.items()),
    ]
    for name, one, other in arrays:
        a, b = np.array(one), np.array(other)
        if a.shape != b.shape:
            return f"{method}: {name} of shape {list(a.shape)} instead of {list(b.shape)}"
        if not np.array_equal(a, b):
            at = tuple(int(i) for i in np.argwhere(a != b)[0])
            return f"{method}: {name}{list(at)} is {a[at]} instead of {b[at]}"
    return ""
