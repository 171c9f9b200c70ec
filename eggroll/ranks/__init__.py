"""The processes of one run, each a rank: how a population is dealt to them, and what they exchange.

Every rank has the same weights and draws the same noise, and neither is ever sent. What is
exchanged are signs of pairs, sums of votes, and a few numbers per update (docs/scaling-out.md).
This module is a process alone, which sends nothing; joined.py has several. Letters: R ranks, N
pairs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.spec.program import Leaves

T = TypeVar("T")

# Variables by which mlx.launch, mpirun and others tell a process that it is one of several.
LAUNCHED: Final = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
# Products of a pair's votes that a rank counts in the time in which a byte passes a connection.
PRODUCTS_PER_BYTE: Final = 64


class Ranks:
    """A process alone: rank 0 of 1.

    seconds: spent in communication so far.
    """

    rank, size = 0, 1
    seconds = 0.0

    def share(self, members: int, unit: int) -> tuple[int, int]:
        """(first, last + 1) of the members that live here, whole units of so many."""
        first, last = share(members // unit, self.rank, self.size)
        return first * unit, last * unit

    def signs(self, local: NDArray[np.int8], pairs: int, unit: int) -> NDArray[np.int8]:
        """Signs of all N pairs, int8 [N], by those of the pairs here, whole units of so many."""
        return local

    def rows(self, local: NDArray[Any], members: int, unit: int) -> NDArray[Any]:
        """Rows of all members [P, ..], by those of the members here; on rank 0, elsewhere none."""
        return local

    def sums(self, arrays: Leaves) -> Leaves:
        """The sum over all ranks of every int32 array (mod 2^32)."""
        return arrays

    def table(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Numbers of all ranks, int64 [R, n]."""
        return np.array([numbers], np.int64)

    def threads(self, cores: int) -> int:
        """The share of a machine's cores that is this rank's; 0 for all."""
        return 0

    def name_of(self, rank: int) -> str:
        """A rank in a sentence."""
        return f"rank {rank}"

    def alike(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Raises SharedError if these facts, plain data by what they are called, differ."""

    def from_first(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, which alone does it: plain data for JSON."""
        return work()

    def arrays_from_first(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Arrays as rank 0 has them; elsewhere those given are not looked at."""
        return dict(arrays)

    def together(self, work: Callable[[], T]) -> T:
        """The result of `work`; if it raises InputError anywhere, all ranks end."""
        return work()


ALONE: Final = Ranks()


def share(count: int, rank: int, size: int) -> tuple[int, int]:
    """(first, last + 1) of `count` things that are dealt evenly, in order."""
    return count * rank // size, count * (rank + 1) // size


def counts_all(pairs: int) -> bool:
    """True if every rank counts the votes of all pairs; else of its own, and they are summed.

    Both are exact. Of R ranks each counts (R - 1) / R * N * weights products more in the first
    case, and sends 2 (R - 1) / R * 4 * weights bytes in the second: R makes no difference.
    """
    return pairs <= 8 * PRODUCTS_PER_BYTE


def launched() -> str:
    """The variable that says that this process is one of several, empty if there is none."""
    return next((name for name in LAUNCHED if os.environ.get(name)), "")


def refuse(command: str) -> None:
    """Raises InputError where a command that runs in one process was started as several."""
    if name := launched():
        raise InputError(
            f"{command} runs in one process, and {name} says that this is one of several: start it "
            "without mlx.launch."
        )


class RankError(InputError):
    """Another rank of the run died, hangs, failed or differs; the sentence names it."""


class SharedError(RankError):
    """An error that all ranks know of; only rank 0 prints it."""
