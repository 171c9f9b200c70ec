"""Update rules: votes -> new int8 weights. RULES has them by name; adding one needs no other file.

Letters: P members, N = P/2 pairs, r rank, Z votes (int32, one array per leaf), O outputs and K
inputs of a matrix; a vector is one row, an embedding has one row per token. Engines form the votes;
the arithmetic is docs/estimators.md's. A rule's memory is what it keeps between updates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, lru_cache
from itertools import groupby
from math import erfc, isqrt, sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines.base import Engine
from eggroll.engines.cpu import rule_by_extension
from eggroll.errors import InputError
from eggroll.evolution import whitening
from eggroll.evolution.whitening import ONE, TOP, Whole
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.flat import FlatLeaves, flat_order, shapes_of, whole_of
from eggroll.spec.program import Leaves, Program
from eggroll.spec.rng import native_module

# The options of a run, as training/config.py declares them, or those of library/trainer.py. Their
# choices are made of the classes here, so importing them would close a circle.
RunOptions = Any


class VoteScale(Protocol):
    """The properties of an estimator that rules must know.

    known_scale: the size of its votes follows from N and the rank alone; feedback: it has matrices
    that learn beside the weights; perturbs: its members have noise.
    """

    known_scale: ClassVar[bool]
    feedback: ClassVar[bool]
    perturbs: ClassVar[bool]

    def floors(self) -> Mapping[str, int]: ...


class MovedWeights(NamedTuple):
    """The weights and the memory after an update."""

    weights: Leaves  # int8
    memory: Leaves  # of the rule
    rate: float  # share of the weights that moved


class UpdateRule(ABC):
    """Turns votes into weights.

    summary: the rule in a line of --help; reads: the options of a run that belong to it alone;
    bytes_per_parameter: votes and what the rule makes of them, for estimates of memory.
    """

    summary: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    bytes_per_parameter: ClassVar[int] = 24
    by_steps: bool = True  # whether its steps depend on how many updates a run has
    fitness: ClassVar[tuple[str, ...]] = ()  # those it takes besides "sign"; empty for all
    of_trainers: ClassVar[tuple[str, ...]] = ()  # options that a Trainer alone has, and it reads

    @classmethod
    def check(cls, options: RunOptions, scale: type[VoteScale]) -> None:
        """Raises InputError where the rule cannot use such votes."""
        return

    @classmethod
    @abstractmethod
    def make(cls, options: RunOptions, program: Program, scale: VoteScale) -> Self:
        """The rule of a run."""

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays it keeps between updates, int32, by name."""
        return {}

    def use(self, engine: Engine) -> None:  # noqa: B027 - most rules are the host's
        """Lets an engine make the updates, where arrays lie, if it follows this rule."""

    def start(self, weights: Leaves) -> Leaves:
        """Its memory before the first update."""
        return {}

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        """For the record of update `step`: (threshold of matrices' |Z|, rate), None for none."""
        return None, None

    @classmethod
    def impossible(cls, weights: Leaves, memory: Leaves, start: Leaves, step: int) -> str:
        """Names what this rule cannot have left after `step` updates, from weights `start`.

        Empty if all is possible. Shapes and types fit.
        """
        differs = (name for name in weights if not step and unlike(weights[name], start[name]))
        return next(
            (f"update 0 has other weights in {name!r} than its seed" for name in differs), ""
        )

    @abstractmethod
    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> MovedWeights:
        """Makes update `step`. decided: pairs that did not tie, if pairs have a fitness, or
        the sum of its squares."""


# The paper's rule.


class SignRule(UpdateRule):
    """The paper's rule: a weight moves by sign(Z) where |Z| passes the z-test's threshold.

    measured: the votes' deviation is not the noise's own but that of the leaf's votes, sqrt(pi / 2)
    times their mean size; so it is with token credit, where no vote means no move. Either way it
    grows with sqrt(N). Pairs that tie add no noise, so once most do, N is the number of the others:
    against all pairs the few that still differ could not pass, and learning would stop short.
    """

    summary = "a weight moves by one bit where its votes pass a z-test (the paper's)"
    reads = ("alpha", "alpha_decay")
    bytes_per_parameter = 12
    by_steps = False

    def __init__(
        self, *, alpha: float, decay: int, pairs: int, rank: int, clt: bool,
        measured: bool = False, threads: int = 1,
    ) -> None:  # fmt: skip
        self.alpha, self.decay, self.pairs, self.rank, self.clt = alpha, decay, pairs, rank, clt
        self.measured, self.threads = measured, threads

    @classmethod
    def check(cls, options: RunOptions, scale: type[VoteScale]) -> None:
        if scale.feedback:
            raise InputError(
                f"--rule sign has no finer copies, by which the matrices of --estimator "
                f"{options.estimator} would learn: use --rule adam or whitened."
            )

    @classmethod
    def make(cls, options: RunOptions, program: Program, scale: VoteScale) -> Self:
        return cls(
            alpha=options.alpha, decay=options.alpha_decay, pairs=options.pop // 2,
            rank=options.rank, clt=options.clt, measured=not scale.known_scale,
            threads=options.threads,
        )  # fmt: skip

    @classmethod
    def impossible(cls, weights: Leaves, memory: Leaves, start: Leaves, step: int) -> str:
        """A weight moves by one at most in an update."""
        for name, leaf in weights.items():
            moved = np.asarray(leaf).astype(np.int16) - np.asarray(start[name])
            if (most := int(abs(moved).max(initial=0))) > step:
                return f"a weight of {name!r} is {most} from its start after {step} updates"
        return ""

    def z_q4(self, step: int) -> int:
        return z_threshold_q4(alpha_at(self.alpha, step, self.decay))

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        rate = alpha_at(self.alpha, step, self.decay)
        if self.measured:  # by each leaf's own votes
            return None, rate
        voters = self.voters(decided)
        return vote_threshold(self.z_q4(step), voters, self.rank, self.clt), rate

    def voters(self, decided: int | None) -> int:
        """N: all pairs, or those that decided where these are the fewer half, or more than all."""
        if decided is None or self.pairs <= 2 * decided <= 2 * self.pairs:
            return self.pairs
        return max(decided, 1)

    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> MovedWeights:
        xp, view = arrays()
        size = sum(w.size for w in weights.values())
        z_q4, voters = self.z_q4(step), self.voters(decided)
        ranks = [self.rank if w.ndim == 2 else 1 for w in weights.values()]
        leaves = {
            k: (votes[k], w, *self.limits(xp, view(votes[k]), rank, z_q4, voters))
            for (k, w), rank in zip(weights.items(), ranks, strict=True)
        }
        if xp is np and (native := native_module()):
            leaves_after, moved = native.sign([*leaves.values()], self.threads)
            return MovedWeights(dict(zip(weights, leaves_after, strict=True)), {}, moved / size)
        shapes = shapes_of(weights)
        all_votes, all_weights = view(whole_of(votes, shapes)), view(whole_of(weights, shapes))
        after, moved, first = list[Any](), 0, 0
        for count, (least, most) in self.runs({k: (w, *leaves[k][2:]) for k, w in weights.items()}):
            z, w = (whole[first : first + count] for whole in (all_votes, all_weights))
            up, down = (z >= least) & (w != LIMIT), (z <= -most) & (w != -LIMIT)  # |-2^31| wraps
            moved = moved + (up | down).sum()
            after.append(w + up.view(xp.int8) - down.view(xp.int8))
            first += count
        whole = after[0] if len(after) == 1 else xp.concatenate(after)
        whole = mx.array(whole) if xp is np else whole
        mx.eval(whole, moved)
        return MovedWeights(FlatLeaves(whole, shapes), {}, int(moved) / size)

    def runs(self, leaves: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[int, tuple[Any, Any]]]:
        """Numbers of weights in flat_order that have the same limits: each run is a few launches.

        leaves: weights and their limits, by name.
        """
        ordered = (leaves[k] for k in flat_order({k: w.shape for k, (w, *_) in leaves.items()}))
        if self.measured:
            yield from ((w.size, (least, most)) for w, least, most in ordered)
            return
        for limits, some in groupby(ordered, key=lambda leaf: leaf[1:]):
            yield sum(w.size for w, *_ in some), limits

    def limits(self, xp: Any, z: Any, rank: int, z_q4: int, voters: int) -> tuple[Any, Any]:
        """The least votes Z that move a weight up, and the least -Z that move one down.

        Whole numbers, or arrays on a GPU, where what is measured stays. Z = 0 moves a weight down
        where no vote is needed, as in the reference.
        """
        if not self.measured:
            threshold = vote_threshold(z_q4, voters, rank, self.clt)
            return max(threshold, 1), threshold
        # 321 / 256 = sqrt(pi / 2); 1/16 from z_q4. It may pass 2^31.
        size = xp.maximum(mean_abs(z.astype(xp.int64)), 1)
        least: Any = xp.maximum(size * z_q4 * 321 >> 12, 1)
        return (int(least), int(least)) if xp is np else (least, least)


def alpha_at(alpha: float, step: int, decay: int) -> float:
    """Share of weights a pure-noise vote would move: alpha, or for alpha > 1 a falling schedule."""
    return alpha if alpha <= 1 else 1 / ((2**alpha - 1) * step / decay + 1)


def z_threshold_q4(alpha: float) -> int:
    """floor(16 * PHI^-1(1 - alpha/2)): the two-sided z-test's threshold in sixteenths of sigma."""
    q = 0
    while erfc((q + 1) / 16 / sqrt(2)) >= alpha:
        q += 1
    return q


@lru_cache(64)  # the same for most leaves of an update
def vote_threshold(z_q4: int, pairs: int, rank: int, clt: bool) -> int:
    """The least |Z| that moves a weight: |Z| >= z_q4/16 * floor(sqrt N) * (256 | 1) * sqrt(r).

    Exact in integers. 256 = 16 * 16 is the deviation of one product of two noise bytes; without
    CLT the votes are of signs. Vector leaves have rank 1 whatever r is.
    """
    bound = (z_q4 * isqrt(pairs) * (256 if clt else 1)) ** 2 * rank  # (16 |Z|)^2 must reach this
    root = isqrt(bound)
    return -(-(root + (root * root < bound)) // 16)


def mean_abs(z: Any) -> Any:
    """The floor of the mean of |Z| of a leaf's int64 votes, a number where they are."""
    return abs(z).sum() // z.size


# Rules that add votes up in a fine copy of the weights.

FINE_BITS = 16  # fraction bits of a fine copy below the int8 weight's last bit
HALF = 1 << (FINE_BITS - 1)
FINE_LIMIT = (LIMIT << FINE_BITS) + HALF - 1  # the largest that rounds to LIMIT
PART = 1 << 16  # votes handled at a time, so that they stay in the cache


class FineCopyRule(UpdateRule):
    """Votes add up in a finer copy of each weight, int32 with 16 bits more; weights round it.

    A leaf's feedback matrix, where the memory has one, gets the same step as the leaf, and shrinks
    by the same share (Kolen and Pollack 1994), so that they become alike.
    """

    threads: int = 1
    _engine: Engine | None = None

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        return {leaf.name: leaf.shape for leaf in program.leaves}

    def start(self, weights: Leaves) -> Leaves:
        return {name: w.astype(mx.int32) << FINE_BITS for name, w in weights.items()}

    @abstractmethod
    def changes(
        self, name: str, votes: NDArray[np.int32], of_matrix: bool, memory: Leaves, step: int
    ) -> Iterator[tuple[slice, Any]]:
        """Rows of a leaf's votes [O, K], and what its fine copy there changes by, in last bits.

        May replace what else the memory has of that leaf, once all rows are through.
        """

    @classmethod
    def impossible(cls, weights: Leaves, memory: Leaves, start: Leaves, step: int) -> str:
        for name, leaf in weights.items():
            fine = np.asarray(memory[name])
            back = np.asarray(memory.get(feedback_name(name), memory[name]))
            if max(map(_greatest, (fine, back))) > FINE_LIMIT:
                return f"the fine copy of {name!r} is beyond {FINE_LIMIT}"
            if unlike((fine + HALF) >> FINE_BITS, leaf):
                return f"the weights {name!r} are not their fine copy, rounded"
        return super().impossible(weights, memory, start, step)

    def shrinking(self, name: str, step: int) -> int:
        """The share by which a leaf and its feedback shrink in update `step`, in 2^-24."""
        return 0

    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> MovedWeights:
        new, kept, moved = Leaves(), dict(memory), 0
        for name, leaf in weights.items():
            w, fine = np.array(leaf), np.array(memory[name])
            rows = [a.reshape(-1, w.shape[-1]) for a in (w, fine, np.asarray(votes[name]))]
            back = feedback_name(name)
            mirror = np.array(memory[back]) if back in memory else None
            shrunk = self.shrinking(name, step)
            for at, change in self.changes(name, rows[2], w.ndim == 2, kept, step):
                if shrunk:
                    _shrink(rows[1][at], shrunk)
                if mirror is not None:
                    _shrink(mirror[at], shrunk)
                    _add(mirror[at], change.copy())
                _add(rows[1][at], change)
                moved += _round(rows[0][at], rows[1][at])
            new[name], kept[name] = mx.array(w), mx.array(fine)
            if mirror is not None:
                kept[back] = mx.array(mirror)
        return MovedWeights(new, kept, moved / sum(w.size for w in weights.values()))

    def use(self, engine: Engine) -> None:
        self._engine = engine

    def of_leaves(
        self,
        rule: str,
        arguments: tuple[int, ...],
        weights: Leaves,
        memory: Leaves,
        votes: Leaves,
        keys: Callable[[str], tuple[str, ...]],
        numbers: Callable[[str], tuple[float, ...]],
    ) -> MovedWeights | None:
        """An update of all leaves at once by an engine that follows the rule, or the extension.

        None where there is neither. It is given of every leaf votes, weights, the arrays that the
        memory has by its `keys`, None for those it has not, and its numbers; and gives its weights
        and such arrays, but for the last ones if they stay, and how many weights moved.
        """
        leaves = [
            (votes[k], leaf, *map(memory.get, keys(k)), *numbers(k)) for k, leaf in weights.items()
        ]
        if self._engine and rule in self._engine.rules:
            made, moved = getattr(self._engine, rule)(leaves, *arguments)
        elif native := native_module():
            made, moved = rule_by_extension(native, rule, leaves, *arguments, self.threads)
        else:
            return None
        new, kept = Leaves(), dict(memory)
        for name, (leaf, *after) in zip(weights, made, strict=True):
            new[name] = leaf
            kept.update(zip([key for key in keys(name) if key in memory], after, strict=False))
        return MovedWeights(new, kept, int(moved) / sum([w.size for w in weights.values()]))


def unlike(one: Any, other: Any) -> bool:
    """True if two arrays of one shape differ."""
    return bool((np.asarray(one) != np.asarray(other)).any())


def _greatest(values: NDArray[np.int32]) -> int:
    """The largest size; that of -2^31 as well."""
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def feedback_name(leaf: str) -> str:
    """The name of a leaf's feedback matrix in the memory, a fine copy as of weights."""
    return f"{leaf}/feedback"


def check_names(program: Program) -> None:
    """Raises InputError where a leaf has the name under which a rule keeps something of another."""
    names = {leaf.name for leaf in program.leaves}
    kept = [(own, name) for name in names for own in (*_all_names(name)[1:], _matrix_name(name))]
    for own, name in sorted(kept):
        if own in names:
            raise InputError(
                f"leaf {own!r} is named as what rules keep of leaf {name!r}: give it another name."
            )


def parts(votes: NDArray[np.int32]) -> Iterator[slice]:
    """Rows of votes [O, K], some PART elements at a time."""
    count = max(1, PART // votes.shape[1])
    return (slice(first, first + count) for first in range(0, len(votes), count))


def _shrink(fine: Any, decay: int) -> None:
    """Takes decay / 2^24 from fine int32, toward zero, in place."""
    fine -= (np.sign(fine) * (abs(fine.astype(np.int64)) * decay >> 24)).astype(np.int32)


def _add(fine: Any, change: Any) -> None:
    """Moves fine int32 by a change, in place; `change` is used up."""
    change += fine
    fine[:] = np.clip(change, -FINE_LIMIT, FINE_LIMIT, out=change)


def arrays() -> tuple[Any, Callable[[Any], Any]]:
    """(array module, converter): NumPy on a CPU, MLX on a GPU.

    On a CPU an operation of MLX takes some 20 us or more; on a GPU arrays stay there, unread.
    """
    return (np, np.asarray) if mx.default_device() == mx.cpu else (mx, lambda array: array)


def summed(values: Any) -> Any:
    """The sum of integers: of an array of NumPy at once, of a GPU's when it is read."""
    if isinstance(values, np.ndarray):
        return int(values.sum(dtype=np.int64))
    found = values.astype(mx.int64).sum()
    mx.async_eval(found)  # type: ignore[no-untyped-call]
    return found


def rounded(fine: mx.array) -> mx.array:
    """Fine copies as int8."""
    xp, view = arrays()
    if xp is np and (native := native_module()):
        whole: mx.array = native.rounded(fine)
        return whole
    return mx.array(((view(fine) + HALF) >> FINE_BITS).astype(xp.int8))


def _round(w: Any, fine: Any) -> int:
    """Makes w int8 the rounding of fine, in place; how many of w moved."""
    rounded = (fine + HALF) >> FINE_BITS
    moved = int(np.count_nonzero(rounded != w))
    w[:] = rounded
    return moved


class MasterRule(FineCopyRule):
    """All votes on one scale: the fine copy moves by lr * Z / sigma_Z.

    sigma_Z = (256 | 1) * sqrt(N r), so a vote of one standard deviation moves a weight by lr of its
    last bit. lr falls as 1 / (1 + decay * progress) over the run; update t = 0, 1, .. has
    first / (1 + t / 10) times that, where this is more than 1. Leaves but those that are `spared`
    shrink by weight_decay in every update, so that votes by chance do not add up. Integers
    throughout. by_power: N is the sum of the squares of the pairs' fitness, then of any scale.
    """

    FALL = 10  # updates until `first` is halved

    summary = "votes add up in a finer copy of the weights, all on one scale"
    fitness = ("log-ranks",)
    reads = ("learning_rate", "rate_decay")
    of_trainers = ("first_rate", "weight_decay")

    def __init__(
        self, *, rate: float, decay: float, steps: int, pairs: int, rank: int, clt: bool,
        by_power: bool = False, first: float = 1.0, weight_decay: float = 0.0,
        spared: Collection[str] = (), threads: int = 1,
    ) -> None:  # fmt: skip
        self.rate, self.decay, self.steps, self.first = rate, decay, steps, first
        self.weight_decay, self.spared, self.threads = weight_decay, spared, threads
        self.pairs, self.rank, self.clt, self.by_power = pairs, rank, clt, by_power
        self.by_steps = decay > 0

    @classmethod
    def check(cls, options: RunOptions, scale: type[VoteScale]) -> None:
        if not scale.known_scale:
            raise InputError(
                "--rule master knows the scale of --estimator eggroll's votes alone: use --rule "
                f"{'whitened or sign' if scale.perturbs else 'adam'} with --estimator "
                f"{options.estimator}."
            )

    @classmethod
    def make(cls, options: RunOptions, program: Program, scale: VoteScale) -> Self:
        return cls(
            rate=options.learning_rate, decay=options.rate_decay, steps=options.steps,
            pairs=options.pop // 2, rank=options.rank, clt=options.clt,
            by_power=getattr(options, "fitness", "sign") != "sign",  # which a Trainer alone has
            first=getattr(options, "first_rate", 1.0),  # as this and the next
            weight_decay=getattr(options, "weight_decay", 0.0),
            spared=[leaf.name for leaf in program.leaves if len(leaf.shape) != 2],
            threads=options.threads,
        )  # fmt: skip

    def shrinking(self, name: str, step: int) -> int:
        return 0 if name in self.spared else round(self.weight_decay * (1 << 24))

    def rate_at(self, step: int) -> float:
        """lr in bits of a weight, at most 64."""
        rate = self.rate * max(1.0, self.first / (1 + step / self.FALL))
        return min(rate / (1 + self.decay * step / self.steps), 64.0)

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        return None, self.rate_at(step)

    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> MovedWeights:
        self._voters = max(decided or 0, 1) if self.by_power else self.pairs

        def numbers(name: str) -> tuple[int, int]:
            rank = self.rank if weights[name].ndim == 2 else 1
            return self.factor(step, rank, self._voters), self.shrinking(name, step)

        return self.of_leaves(
            "master", (), weights, memory, votes, lambda name: (name,), numbers
        ) or super().__call__(weights, memory, votes, step, decided)

    def factor(self, step: int, rank: int, voters: int = 0) -> int:
        """lr / sigma_Z in units of 2^-24 of a fine copy's last bit; voters: N, 0 for all pairs."""
        rate = self.rate_at(step)
        deviation_q16 = isqrt((voters or self.pairs) * rank << 32) * (256 if self.clt else 1)
        return (round(rate * (1 << 40)) << FINE_BITS) // deviation_q16

    def changes(
        self, name: str, votes: NDArray[np.int32], of_matrix: bool, memory: Leaves, step: int
    ) -> Iterator[tuple[slice, Any]]:
        factor = self.factor(step, self.rank if of_matrix else 1, self._voters)
        for rows in parts(votes):
            yield rows, (votes[rows].astype(np.int64) * factor) >> 24


class WhitenedRule(FineCopyRule):
    """Matrices' votes are whitened over a layer's inputs, and every row has a scale of its own.

    A row is the weights of one output, or of one token in an embedding; a vector is one row. So a
    rare token's row moves as far per vote as a frequent one's: the mean vote moves a weight by lr
    of its last bit, an eighth of that in a vector. Whitening changes the direction of a row and
    leaves its mean size. lr rises over 20 updates and falls linearly with progress, to a twentieth;
    its size is rate * sqrt(200 / steps), as noise adds up with the root of the number of updates.
    floors: the least mean size that is taken for a signal, per leaf, so that what is learnt is not
    undone by the few pairs that still differ; whitened: the matrices whose votes are whitened.
    """

    summary = "votes whitened over a layer's inputs (one-sided Shampoo), each row normalised"
    reads = ("learning_rate",)

    def __init__(
        self, *, rate: float, steps: int, floors: Mapping[str, int], whitened: Collection[str],
        threads: int = 1,
    ) -> None:  # fmt: skip
        self.rate, self.steps, self.floors, self.whitened = rate, steps, floors, whitened
        self.threads = threads

    @classmethod
    def make(cls, options: RunOptions, program: Program, scale: VoteScale) -> Self:
        return cls(
            rate=options.learning_rate, steps=options.steps, floors=scale.floors(),
            whitened=whitening.whitenable(program), threads=options.threads,
        )  # fmt: skip

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        shapes = super().memory(program)
        names = whitening.whitenable(program)
        return shapes | {_matrix_name(name): whitening.shape(shapes[name][1]) for name in names}

    def start(self, weights: Leaves) -> Leaves:
        names = self.whitened
        matrices = {_matrix_name(k): mx.array(whitening.start(weights[k].shape[1])) for k in names}
        return super().start(weights) | matrices

    @classmethod
    def impossible(cls, weights: Leaves, memory: Leaves, start: Leaves, step: int) -> str:
        for name in weights:
            p = memory.get(_matrix_name(name))
            if p is not None and (wrong := whitening.impossible(np.asarray(p))):
                return f"the whitening matrix of {name!r} {wrong}"
        return super().impossible(weights, memory, start, step)

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        return None, self.factor(step) / (1 << (FINE_BITS + 8))

    def factor(self, step: int) -> int:
        """lr in units of 2^-8 of a fine copy's last bit; at most 64 bits of a weight."""
        falling = 1 - 0.95 * min(step / self.steps, 1)
        rate = self.rate * sqrt(200 / self.steps) * falling * min(1, (step + 1) / 20)
        return round(min(rate, 64) * (1 << (FINE_BITS + 8)))

    def gain(self, of_matrix: bool, step: int) -> int:
        """The value of `factor` for a leaf."""
        return self.factor(step) >> (0 if of_matrix else 3)

    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> MovedWeights:
        """By the engine or the extension, else as every rule of fine copies."""
        return self.of_leaves(
            "whitened", (step % whitening.EVERY == 0,), weights, memory, votes,
            lambda name: (name, feedback_name(name), _matrix_name(name)),
            lambda name: (self.gain(weights[name].ndim == 2, step), self.floors.get(name, 1)),
        ) or super().__call__(weights, memory, votes, step, decided)  # fmt: skip

    def changes(
        self, name: str, votes: NDArray[np.int32], of_matrix: bool, memory: Leaves, step: int
    ) -> Iterator[tuple[slice, Any]]:
        factor, floor = self.gain(of_matrix, step), self.floors.get(name, 1)
        if name not in self.whitened:
            for rows in parts(votes):
                u, _ = _normalised(votes[rows], floor)
                u *= factor / ONE
                yield rows, np.rint(u, out=u)
            return
        p, learns = np.asarray(memory[_matrix_name(name)]), step % whitening.EVERY == 0
        power, mean = np.zeros(1), 0.0
        for rows in parts(votes):
            u, size = _normalised(votes[rows], floor)
            y = whitening.whitened(u, p)
            if learns:
                power, mean = power + whitening.power(y, p.shape[1]), mean + (u * u).sum()
            y = y * _share(y, size, factor)
            yield rows, np.rint(y, out=y)
        if learns:
            mean //= 256 * votes.shape[1]
            memory[_matrix_name(name)] = mx.array(whitening.updated(p, power, mean))


def _normalised(z: Any, floor: int) -> tuple[Whole, Whole]:
    """Votes int32 [O, K] over the mean size of their row, if that is not below the floor, in Q8.

    And the size that they then have in the mean, [O, 1].
    """
    u = z.astype(np.float64)
    mean = np.ceil(abs(u).sum(axis=1, keepdims=True) / z.shape[1])
    scale = np.maximum(mean, floor)
    np.rint(np.divide(u, scale / 256, out=u), out=u)  # floors would add up to a drift
    return np.clip(u, -TOP, TOP, out=u), np.floor(256 * mean / scale)


def _share(y: Whole, size: Whole, factor: int) -> Whole:
    """The factor that brings y to that mean size, times `factor`, [O, 1] in Q16."""
    total = np.maximum(abs(y).sum(axis=1, keepdims=True), 1)
    share: Whole = np.floor(factor * y.shape[1] * size / total) / ONE  # the product is below 2^53
    return share


def _matrix_name(leaf: str) -> str:
    """The name of a leaf's whitening matrix in the rule's memory."""
    return f"{leaf}/whitening"


MEAN, POWER = 26, 13  # in 1/256: what a vote adds to m, and its square to s^2
VOTE_BOUND, VOTE_BITS = 1 << 26, 4  # of Z, and fraction bits of m and s
EASE = 500  # updates; longer runs have smaller rates
FORGET, AGE = 2, 50  # update t takes FORGET / (t + AGE) of matrices, at the peak


class AdamRule(FineCopyRule):
    """Adam (Kingma and Ba 2014): the fine copy moves by lr m / s.

    m and s remember some 10 and 20 updates. lr rises over 20 updates, or a tenth of the run where
    that is shorter, and falls to zero with progress p as (1 - p)^2 (1 + 2 p), close to a cosine.
    Its peak is `rate`, in runs longer than EASE updates less, down to half of it from 16 EASE on.
    The matrices of layers and of the head, and their feedback, shrink: at first so fast that what
    was random in both is soon gone, however long the run, then ever less.
    """

    summary = "Adam in integers, for estimators that carry errors back"
    reads = ("learning_rate",)
    bytes_per_parameter: ClassVar[int] = 48

    def __init__(
        self, *, rate: float, steps: int, shrinks: Collection[str] = (), threads: int = 1
    ) -> None:
        """shrinks: names of the leaves that do."""
        self.rate, self.steps, self.shrinks, self.threads = rate, steps, shrinks, threads

    @classmethod
    def make(cls, options: RunOptions, program: Program, scale: VoteScale) -> Self:
        shrinks = {
            program.leaves[op.leaf].name
            for stage in program.stages for op in stage.ops
            if op.kind in ("linear", "score", "sums")
        }  # fmt: skip
        return cls(
            rate=options.learning_rate, steps=options.steps, shrinks=shrinks,
            threads=options.threads,
        )  # fmt: skip

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        shapes = super().memory(program)
        kept = {name: shape for leaf in shapes for name in _names(leaf) for shape in [shapes[leaf]]}
        return shapes | kept

    def start(self, weights: Leaves) -> Leaves:
        zeros = {name: mx.zeros(w.shape, mx.int32) for leaf, w in weights.items()
                 for name in _names(leaf)}  # fmt: skip
        return super().start(weights) | zeros

    @classmethod
    def impossible(cls, weights: Leaves, memory: Leaves, start: Leaves, step: int) -> str:
        for leaf in weights:
            m, s = (np.asarray(memory[name]) for name in _names(leaf))
            least, most = min(int(m.min()), -int(s.min())), max(int(m.max()), int(s.max()))
            if s.min() < 0 or max(-least, most) > VOTE_BOUND << VOTE_BITS:
                return f"mean or size of the votes on {leaf!r} is out of range"
        return super().impossible(weights, memory, start, step)

    def share(self, step: int) -> float:
        """lr in update `step` over its peak."""
        progress = min(step / self.steps, 1)
        rising = max(1, min(20, self.steps // 10))
        falling = (1 - progress) * (1 - progress) * (1 + 2 * progress)
        return falling * min(1, (step + 1) / rising)

    def factor(self, step: int) -> int:
        """lr in last bits of a fine copy; at most 64 bits of a weight."""
        eased = sqrt(sqrt(EASE / min(max(self.steps, EASE), 16 * EASE)))  # exact on every machine
        return round(min(self.rate * eased * self.share(step), 64) * (1 << FINE_BITS))

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        return None, self.factor(step) / (1 << FINE_BITS)

    def shrinking(self, name: str, step: int) -> int:
        taken = FORGET / (step + AGE) * self.share(step) if name in self.shrinks else 0.0
        return round(taken * (1 << 24))

    def changes(
        self, name: str, votes: NDArray[np.int32], of_matrix: bool, memory: Leaves, step: int
    ) -> Iterator[tuple[slice, Any]]:
        factor = self.factor(step)
        m, s = (np.array(memory[kept]) for kept in _names(name))
        rows = [a.reshape(votes.shape) for a in (m, s)]
        for at in parts(votes):
            z = np.clip(votes[at].astype(np.int64), -VOTE_BOUND, VOTE_BOUND) << VOTE_BITS
            mean, size = (row[at].astype(np.int64) for row in rows)
            mean = _scaled(mean, 256 - MEAN) + _scaled(z, MEAN)
            size = _root(size, z)
            rows[0][at], rows[1][at] = mean, size
            yield at, np.sign(mean) * (abs(mean) * factor // np.maximum(size, 1))
        memory |= {kept: mx.array(a) for kept, a in zip(_names(name), (m, s), strict=True)}

    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> MovedWeights:
        """By the engine or the extension, else as every rule of fine copies."""
        return self.of_leaves(
            "adam", (self.factor(step),), weights, memory, votes, _all_names,
            lambda name: (self.shrinking(name, step),),
        ) or super().__call__(weights, memory, votes, step, decided)  # fmt: skip


def _names(leaf: str) -> tuple[str, str]:
    """The names of m and s of a leaf in the rule's memory."""
    return f"{leaf}/mean", f"{leaf}/size"


@cache
def _all_names(leaf: str) -> tuple[str, ...]:
    """Those of its fine copy, m, s and feedback."""
    return leaf, *_names(leaf), feedback_name(leaf)


def _scaled(v: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """v times by / 256, toward zero, so that what gets no more votes comes to rest."""
    found: NDArray[np.int64] = np.sign(v) * (abs(v) * by >> 8)
    return found


def _root(s: NDArray[np.int64], z: NDArray[np.int64]) -> NDArray[np.int64]:
    """floor(sqrt(s^2 (1 - POWER / 256) + z^2 POWER / 256)), exactly."""
    old, by = s * s, 256 - POWER
    square = (old >> 8) * by + ((old & 255) * by >> 8) + (z * z >> 8) * POWER
    root = np.sqrt(square.astype(np.float64)).astype(np.int64)  # right but for its last bit
    root -= root * root > square
    root += (root + 1) * (root + 1) <= square
    found: NDArray[np.int64] = root
    return found


# All rules by name.

RuleName = Literal["sign", "master", "whitened", "adam"]
RULES: dict[str, type[UpdateRule]] = {
    "sign": SignRule,
    "master": MasterRule,
    "whitened": WhitenedRule,
    "adam": AdamRule,
}


def rules_with(option: str) -> tuple[str, ...]:
    """Names of the rules that read an option of theirs."""
    return tuple(k for k, rule in RULES.items() if option in (*rule.reads, *rule.of_trainers))
