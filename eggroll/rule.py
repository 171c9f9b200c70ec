"""The kinds of update rules: what votes become, and what a rule keeps between updates.

Letters: Z votes (int32, one array per leaf), O outputs and K inputs of a matrix; a vector is one
row, an embedding has one row per token. rules.py has the rules by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.fixed_point import LIMIT
from eggroll.program import Leaves, Program

FINE_BITS = 16  # fraction bits of a fine copy below the int8 weight's last bit
HALF = 1 << (FINE_BITS - 1)
FINE_LIMIT = (LIMIT << FINE_BITS) + HALF - 1  # the largest that rounds to LIMIT
PART = 1 << 16  # votes handled at a time, so that they stay in the cache


class RuleOptions(Protocol):
    """The options of a run that rules read; config.py declares them."""

    @property
    def alpha(self) -> float: ...
    @property
    def alpha_decay(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def rate_decay(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def pop(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def clt(self) -> bool: ...
    @property
    def estimator(self) -> str: ...
    @property
    def threads(self) -> int: ...


class VoteScale(Protocol):
    """What rules must know of an estimator.

    known_scale: the size of its votes follows from N and the rank alone; feedback: it has matrices
    that learn beside the weights; perturbs: its members have noise.
    """

    known_scale: ClassVar[bool]
    feedback: ClassVar[bool]
    perturbs: ClassVar[bool]

    def floors(self) -> Mapping[str, int]: ...


class Update(NamedTuple):
    """New int8 weights, the rule's new memory, and the share of the weights that moved."""

    weights: Leaves
    memory: Leaves
    rate: float


class UpdateRule(ABC):
    """Turns votes into weights.

    summary: the rule in a line of --help; reads: the options of a run that belong to it alone;
    bytes_per_parameter: votes and what the rule makes of them, for estimates of memory.
    """

    summary: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    bytes_per_parameter: ClassVar[int] = 24
    by_steps: ClassVar[bool] = True  # whether its steps depend on how many updates a run has
    any_scale: ClassVar[bool] = True  # whether it takes the votes of fitness larger than 1

    @classmethod
    def check(cls, options: RuleOptions, scale: type[VoteScale]) -> None:
        """Raises InputError where the rule cannot use such votes."""
        return

    @classmethod
    @abstractmethod
    def make(cls, options: RuleOptions, program: Program, scale: VoteScale) -> Self:
        """The rule of a run."""

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays it keeps between updates, int32, by name."""
        return {}

    def start(self, weights: Leaves) -> Leaves:
        """Its memory before the first update."""
        return {}

    def used(self, step: int, decided: int | None) -> tuple[int | None, float | None]:
        """For the record of update `step`: (threshold of matrices' |Z|, rate), None for none."""
        return None, None

    @classmethod
    def impossible(cls, weights: Leaves, memory: Leaves, start: Leaves, step: int) -> str:
        """What this rule cannot have left after `step` updates, from weights `start`; empty if all
        is possible. Shapes and types fit."""
        differs = (name for name in weights if not step and unlike(weights[name], start[name]))
        return next(
            (f"update 0 has other weights in {name!r} than its seed" for name in differs), ""
        )

    @abstractmethod
    def __call__(
        self, weights: Leaves, memory: Leaves, votes: Leaves, step: int, decided: int | None = None
    ) -> Update:
        """Makes update `step`. decided: pairs that did not tie, if pairs have a fitness, or
        the sum of its squares."""


class FineCopyRule(UpdateRule):
    """Votes add up in a finer copy of each weight, int32 with 16 bits more; weights round it.

    A leaf's feedback matrix, where the memory has one, gets the same step as the leaf, and shrinks
    by the same share (Kolen and Pollack 1994), so that they become alike.
    """

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
    ) -> Update:
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
        return Update(new, kept, moved / sum(w.size for w in weights.values()))


def by_extension(
    made_by: Callable[[list[tuple[Any, ...]]], tuple[list[list[mx.array]], int]],
    weights: Leaves,
    memory: Leaves,
    votes: Leaves,
    keys: Callable[[str], tuple[str, ...]],
    numbers: Callable[[str], tuple[float, ...]],
) -> Update:
    """An update by a function of the extension.

    It is given of every leaf votes, weights, the arrays that the memory has by its `keys`, None for
    those it has not, and its numbers; and gives its weights and such arrays, but for the last ones
    if they stay, and how many weights moved.
    """
    leaves = [
        (np.asarray(votes[name]), np.asarray(leaf),
         *(np.asarray(memory[key]) if key in memory else None for key in keys(name)),
         *numbers(name))
        for name, leaf in weights.items()
    ]  # fmt: skip
    made, moved = made_by(leaves)
    new, kept = Leaves(), dict(memory)
    for name, (leaf, *after) in zip(weights, made, strict=True):
        new[name] = leaf
        kept |= dict(zip((key for key in keys(name) if key in memory), after, strict=False))
    return Update(new, kept, moved / sum(w.size for w in weights.values()))


def unlike(one: Any, other: Any) -> bool:
    """True if two arrays of one shape differ."""
    return bool((np.asarray(one) != np.asarray(other)).any())


def _greatest(values: NDArray[np.int32]) -> int:
    """The largest size; that of -2^31 as well."""
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def feedback_name(leaf: str) -> str:
    """The name of a leaf's feedback matrix in the memory, a fine copy as of weights."""
    return f"{leaf}/feedback"


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


def rounded(fine: mx.array) -> mx.array:
    """Fine copies as int8."""
    xp, view = arrays()
    return mx.array(((view(fine) + HALF) >> FINE_BITS).astype(xp.int8))


def _round(w: Any, fine: Any) -> int:
    """Makes w int8 the rounding of fine, in place; how many of w moved."""
    rounded = (fine + HALF) >> FINE_BITS
    moved = int(np.count_nonzero(rounded != w))
    w[:] = rounded
    return moved
