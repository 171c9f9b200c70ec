"""Adam in integers: a rule with memory, for votes that are more signal than noise.

Letters: Z votes, m their running mean, s the root of the running mean of their squares. The
arithmetic is docs/estimators.md's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import sqrt
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.draws import native_module
from eggroll.program import Leaves, Program
from eggroll.rule import (
    FINE_BITS,
    FineCopyRule,
    RuleOptions,
    Update,
    VoteScale,
    by_extension,
    feedback_name,
    parts,
)

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
    def make(cls, options: RuleOptions, program: Program, scale: VoteScale) -> Self:
        shrinks = {
            program.leaves[op.leaf].name
            for stage in program.stages for op in stage.ops if op.kind in ("linear", "score")
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
        taken = FORGET / (step + AGE) * self.share(step)
        return round(taken * (1 << 24)) if name in self.shrinks else 0

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
    ) -> Update:
        """By the extension where it is built; without it, as every rule of fine copies."""
        native = native_module()
        if native is None:
            return super().__call__(weights, memory, votes, step, decided)
        factor = self.factor(step)
        return by_extension(
            lambda leaves: native.adam(leaves, factor, self.threads), weights, memory, votes,
            lambda name: (name, *_names(name), feedback_name(name)),
            lambda name: (self.shrinking(name, step),),
        )  # fmt: skip


def _names(leaf: str) -> tuple[str, str]:
    """The names of m and s of a leaf in the rule's memory."""
    return f"{leaf}/mean", f"{leaf}/size"


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
