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

from eggroll.backward import Backward, Learnt
from eggroll.credit import Crediting, CreditNoise
from eggroll.engines.base import Engine
from eggroll.engines.failure import sentence
from eggroll.engines.gpu.counts import matrix_macs
from eggroll.engines.gpu.engine import StagedEngine
from eggroll.errors import EngineError, EngineWarning
from eggroll.noise import Slices
from eggroll.program import NO_ROWS, Rows, Weights

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
    """What a call returns: arrays of a row per member by name, and votes per leaf."""

    members: dict[str, mx.array]
    votes: dict[str, mx.array] = {}  # noqa: RUF012


class Some:
    """Some pairs of a call, or all of them; gives of every array what is theirs.

    pairs: their numbers, None for all; P: members of the whole call.
    """

    def __init__(self, P: int, pairs: NDArray[np.int32] | None = None) -> None:
        self._pairs = self._members = None
        self.count = P
        if pairs is not None:
            members = (2 * pairs[:, None] + np.arange(2)).reshape(-1)
            members = members[members < P]
            self.count, self._pairs = len(members), mx.array(pairs)
            self._members = mx.array(members)

    def pairs(self, a: mx.array, axis: int = 0) -> mx.array:
        return a if self._pairs is None else mx.take(a, self._pairs, axis=axis)

    def members(self, a: mx.array) -> mx.array:
        return a if self._members is None else mx.take(a, self._members, axis=0)

    def noise(self, noise: Slices) -> Slices:
        return noise._replace(starts=self.pairs(noise.starts, 1))

    def signs(self, noise: CreditNoise) -> CreditNoise:
        return CreditNoise(self.pairs(noise.signs, 1), self.pairs(noise.draws))

    def rows(self, rows: Rows) -> Rows:
        return Rows(*(None if a is None else self.members(a) for a in rows))


Work = Callable[[Engine, Some], Result]  # a call, on an engine and for some of the pairs


class Call(NamedTuple):
    """A call of an engine: its name, sizes, the rank of its noise (0: none), what else it is of.

    together: pairs whose members are compared with each other, N being a multiple.
    """

    name: str
    members: int
    tokens: int
    rank: int = 0
    kind: tuple[object, ...] = ()
    together: int = 1


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

    def evaluate(
        self,
        prepared: Prepared,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        def work(engine: Engine, some: Some) -> Result:
            scores, after = engine.evaluate(
                prepared.of(engine), noise and some.noise(noise), some.members(tokens),
                some.members(targets), some.members(state), some.rows(rows),
            )  # fmt: skip
            return Result({"scores": scores, "state": after})

        call = Call("evaluate", *sizes(tokens), noise.rank if noise else 0)
        found = self._do(call, work).members
        return found["scores"], found["state"]

    def outputs(
        self,
        prepared: Prepared,
        noise: Slices | None,
        tokens: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
        credit_noise: CreditNoise | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[dict[str, mx.array], mx.array]:
        def work(engine: Engine, some: Some) -> Result:
            found, after = engine.outputs(
                prepared.of(engine), noise and some.noise(noise), some.members(tokens),
                some.members(state), some.rows(rows), credit_noise and some.signs(credit_noise),
                crediting,
            )  # fmt: skip
            return Result({**found, "state": after})

        kind = (crediting and crediting.nodes,)
        call = Call("outputs", *sizes(tokens), noise.rank if noise else 0, kind)
        found = dict(self._do(call, work).members)
        return found, found.pop("state")

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        def work(engine: Engine, some: Some) -> Result:
            return Result({}, engine.votes(some.pairs(fitness), some.noise(noise), clt))

        return self._do(Call("votes", 2 * fitness.size, 1, noise.rank, (clt,)), work).votes

    def credit(
        self,
        prepared: Prepared,
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        def work(engine: Engine, some: Some) -> Result:
            scores, after, Z = engine.credit(
                prepared.of(engine), some.noise(noise), some.signs(credit_noise), crediting,
                some.members(tokens), some.members(targets), some.members(state), some.rows(rows),
                None if values is None else some.pairs(values),
            )  # fmt: skip
            return Result({"scores": scores, "state": after}, Z)

        kind = (crediting.nodes, values is None, crediting.group)
        call = Call("credit", *sizes(tokens), noise.rank, kind, max(crediting.group // 2, 1))
        members, votes = self._do(call, work)
        return members["scores"], members["state"], votes

    def learn(
        self,
        prepared: Prepared,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        words: mx.array,
        back: Backward,
        rows: Rows = NO_ROWS,
    ) -> Learnt:
        def work(engine: Engine, some: Some) -> Result:
            scores, after, Z, sizes = engine.learn(
                prepared.of(engine), some.members(tokens), some.members(targets),
                some.members(state), some.members(words), back, some.rows(rows),
            )  # fmt: skip
            return Result({"scores": scores, "state": after}, {**Z, SIZES: sizes})

        call = Call("learn", *sizes(tokens), kind=(frozenset(back.matrices),))
        members, votes = self._do(call, work)
        votes = dict(votes)
        return Learnt(members["scores"], members["state"], votes, votes.pop(SIZES))

    def likelihoods(
        self,
        prepared: Prepared,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, mx.array]:
        def work(engine: Engine, some: Some) -> Result:
            totals, hits, after = engine.likelihoods(
                prepared.of(engine), some.members(tokens), some.members(targets),
                some.members(state), some.rows(rows),
            )  # fmt: skip
            return Result({"totals": totals, "target logits": hits, "state": after})

        found = self._do(Call("likelihoods", *sizes(tokens)), work).members
        return found["totals"], found["target logits"], found["state"]

    def logits(
        self, prepared: Prepared, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        def work(engine: Engine, some: Some) -> Result:
            logits, after = engine.logits(
                prepared.of(engine), some.members(tokens), some.members(state), some.rows(rows)
            )
            return Result({"logits": logits, "state": after})

        found = self._do(Call("logits", tokens.size, 1), work).members
        return found["logits"], found["state"]

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

    def _do(self, call: Call, work: Work) -> Result:
        """The result of a call, computed when it returns, so that what fails fails here."""

        def done() -> Result:
            gpu, everyone = self._on_gpu, Some(call.members)
            if gpu is None:
                return work(self.engine, everyone)
            kernels = gpu.kernels_made
            found = work(gpu, everyone)
            mx.async_eval(found)  # type: ignore[no-untyped-call]
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile:
                meanwhile()
            mx.eval(found)
            key = self._key(gpu, call)
            if key in self._compared and gpu.kernels_made == kernels:
                return found
            self._compared.discard(key)  # until all of it is looked at, and right
            if wrong := self._wrong(gpu, call, work, found):
                self._failed(f"gives other integers than engine {self.spare.name!r} ({wrong})")
                return work(self.engine, everyone)
            self._compared.add(key)
            return found

        return self.guarding(done)

    def _key(self, gpu: StagedEngine, call: Call) -> tuple[object, ...]:
        """The kind of a call, and the size of its threadgroups: what is compared once.

        So is every call that makes kernels, as its launches may have smaller threadgroups.
        """
        P, rank = call.members, call.rank
        return call.name, rank, call.kind, gpu.group_members(P, rank), gpu.group_members(P, 0)

    def _wrong(self, gpu: StagedEngine, call: Call, work: Work, found: Result) -> str:
        """The first difference from the spare engine; empty if there is none.

        Looked for in all that was found, or in as many pairs as the other engine does in a second
        or some.
        """
        P, rank = call.members, call.rank
        budget = COMPARED_MACS // (matrix_macs(self.program) * call.tokens * max(rank, 1))
        if max(budget, LEAST) >= P:
            return difference(call, found, work(self.spare, Some(P)))
        group = 2 * call.together
        groups = spread(-(-P // group), max(max(budget, LEAST) // group, 1))
        pairs = groups[:, None] * call.together + np.arange(call.together)
        few = Some(P, pairs.reshape(-1).astype(np.int32))
        for r in (0, rank):
            gpu.take_groups_of(P, few.count, r)
        want, theirs = work(self.spare, few), {k: few.members(a) for k, a in found.members.items()}
        return difference(call, work(gpu, few), want) or difference(
            call, Result(theirs, want.votes), want
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


def sizes(tokens: mx.array) -> tuple[int, int]:
    """P and T."""
    P, length = tokens.shape
    return P, length


def spread(N: int, count: int) -> NDArray[np.int32]:
    """Numbers of about `count` of N pairs: half of them the first ones, half up to the last.

    Or of N groups.
    """
    half = count // 2
    rest = np.linspace(half, N - 1, count - half).round()
    return np.unique(np.concatenate([np.arange(half), rest])).astype(np.int32)


def difference(call: Call, found: Result, want: Result) -> str:
    """Names the first element that differs; empty if none does."""
    of_members: Sequence[tuple[str, mx.array, mx.array]] = [
        (name, a, want.members[name]) for name, a in found.members.items()
    ]
    of_votes = [(f"votes of {name}", a, want.votes[name]) for name, a in found.votes.items()]
    for name, one, other in [*of_members, *of_votes]:
        a, b = np.array(one), np.array(other)
        if a.shape != b.shape:
            return f"{call.name}: {name} of shape {list(a.shape)} instead of {list(b.shape)}"
        if not np.array_equal(a, b):
            at = tuple(int(i) for i in np.argwhere(a != b)[0])
            return f"{call.name}: {name}{list(at)} is {a[at]} instead of {b[at]}"
    return ""
