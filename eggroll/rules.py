"""Update rules: votes -> new int8 weights. RULES has them by name; adding one needs no other file.

Letters: P members, N = P/2 pairs, r rank, Z votes (int32, one array per leaf), O outputs and K
inputs of a matrix; a vector is one row, an embedding has one row per token. Engines form the votes;
the arithmetic is docs/estimators.md's. A rule's memory is what it keeps between updates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from math import erfc, isqrt, sqrt
from typing import Any, Literal, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import whitening
from eggroll.draws import native_module
from eggroll.errors import InputError
from eggroll.fixed_point import LIMIT
from eggroll.moments import AdamRule
from eggroll.program import Leaves, Program
from eggroll.rule import (
    FINE_BITS,
    FineCopyRule,
    RuleOptions,
    Update,
    UpdateRule,
    VoteScale,
    arrays,
    by_extension,
    feedback_name,
    parts,
)
from eggroll.whitening import ONE, TOP, Whole

RuleName = Literal["sign", "master", "whitened", "adam"]


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
    def check(cls, options: RuleOptions, scale: type[VoteScale]) -> None:
        if scale.feedback:
            raise InputError(
                f"--rule sign has no finer copies, by which the matrices of --estimator "
                f"{options.estimator} would learn: use --rule adam or whitened."
            )

    @classmethod
    def make(cls, options: RuleOptions, program: Program, scale: VoteScale) -> Self:
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
    ) -> Update:
        xp, view = arrays()
        total = sum(w.size for w in weights.values())
        z_q4, voters = self.z_q4(step), self.voters(decided)
        leaves = [
            (z, view(w), *self.limits(xp, z, self.rank if w.ndim == 2 else 1, z_q4, voters))
            for k, w in weights.items() for z in [view(votes[k])]
        ]  # fmt: skip
        if xp is np and (native := native_module()):
            made, moved = native.sign(leaves, self.threads)
            return Update(dict(zip(weights, made, strict=True)), {}, moved / total)
        made, moved = [], 0
        for z, w, least, most in leaves:
            up, down = (z >= least) & (w != LIMIT), (z <= -most) & (w != -LIMIT)  # |-2^31| wraps
            made.append(mx.array(w + up.view(xp.int8) - down.view(xp.int8)))
            moved = moved + (up | down).sum()
        return Update(dict(zip(weights, made, strict=True)), {}, int(moved) / total)

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


class MasterRule(FineCopyRule):
    """All votes on one scale: the fine copy moves by lr * Z / sigma_Z.

    sigma_Z = (256 | 1) * sqrt(N r), so a vote of one standard deviation moves a weight by lr of its
    last bit. lr falls as 1 / (1 + decay * progress) over the run. Integers throughout.
    """

    summary = "votes add up in a finer copy of the weights, all on one scale"
    any_scale = False
    reads = ("learning_rate", "rate_decay")

    def __init__(
        self, *, rate: float, decay: float, steps: int, pairs: int, rank: int, clt: bool
    ) -> None:
        self.rate, self.decay, self.steps = rate, decay, steps
        self.pairs, self.rank, self.clt = pairs, rank, clt

    @classmethod
    def check(cls, options: RuleOptions, scale: type[VoteScale]) -> None:
        if not scale.known_scale:
            raise InputError(
                "--rule master knows the scale of --estimator eggroll's votes alone: use --rule "
                f"{'whitened or sign' if scale.perturbs else 'adam'} with --estimator "
                f"{options.estimator}."
            )

    @classmethod
    def make(cls, options: RuleOptions, program: Program, scale: VoteScale) -> Self:
        return cls(
            rate=options.learning_rate, decay=options.rate_decay, steps=options.steps,
            pairs=options.pop // 2, rank=options.rank, clt=options.clt,
        )  # fmt: skip

    def rate_at(self, step: int) -> float:
        """lr in bits of a weight."""
        return self.rate / (1 + self.decay * step / self.steps)

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        return None, self.rate_at(step)

    def factor(self, step: int, rank: int) -> int:
        """lr / sigma_Z in units of 2^-24 of a fine copy's last bit."""
        rate = self.rate_at(step)
        deviation_q16 = isqrt(self.pairs * rank << 32) * (256 if self.clt else 1)
        return (round(rate * (1 << 40)) << FINE_BITS) // deviation_q16

    def changes(
        self, name: str, votes: NDArray[np.int32], of_matrix: bool, memory: Leaves, step: int
    ) -> Iterator[tuple[slice, Any]]:
        factor = self.factor(step, self.rank if of_matrix else 1)
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
    def make(cls, options: RuleOptions, program: Program, scale: VoteScale) -> Self:
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
        """What `factor` is for a leaf."""
        return self.factor(step) >> (0 if of_matrix else 3)

    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> Update:
        """By the extension where it is built; without it, as every rule of fine copies."""
        native = native_module()
        if native is None:
            return super().__call__(weights, memory, votes, step, decided)
        learns = step % whitening.EVERY == 0
        return by_extension(
            lambda leaves: native.whitened(leaves, learns, self.threads), weights, memory, votes,
            lambda name: (name, feedback_name(name), _matrix_name(name)),
            lambda name: (self.gain(weights[name].ndim == 2, step), self.floors.get(name, 1)),
        )  # fmt: skip

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


RULES: dict[str, type[UpdateRule]] = {
    "sign": SignRule,
    "master": MasterRule,
    "whitened": WhitenedRule,
    "adam": AdamRule,
}


def rules_with(option: str) -> tuple[str, ...]:
    """Names of the rules that read an option of theirs, for sweeps."""
    return tuple(name for name, rule in RULES.items() if option in rule.reads)
