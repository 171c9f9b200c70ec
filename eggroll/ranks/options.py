"""Options of runs that are several processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from eggroll.cli import Range
from eggroll.help import CHANGEABLE, Group


@dataclass(frozen=True)
class SeveralRanks:
    """How the ranks of a run look after each other; a process alone reads none of it."""

    rank_timeout: Annotated[float, Group.RANKS, Range(1, 10**6), CHANGEABLE] = 8.0
    """Seconds without a sign of life after which a rank hangs, which ends all of them."""
    rank_check: Annotated[int, Group.RANKS, Range(0, 10**9), CHANGEABLE] = 50
    """Updates from one comparison of all ranks' weights to the next; 0 compares them before
    checkpoints only."""
