"""Engines run the declared program; all are bit-exact, `choose` picks one.

Letters: P members, N = P/2 pairs, T tokens, V vocabulary, Z votes.
"""

from __future__ import annotations

from eggroll.engines.base import Engine, zero_state
from eggroll.engines.choice import ENGINES, available, choose

__all__ = ["ENGINES", "Engine", "available", "choose", "zero_state"]
