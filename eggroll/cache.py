"""The folder for what can be made again: data sets, compiled worlds, verdicts of trials."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$EGGROLL_CACHE, else eggroll/ in $XDG_CACHE_HOME, else ~/.cache/eggroll."""
    if own := os.environ.get("EGGROLL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eggroll"
