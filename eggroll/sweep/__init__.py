"""Searches for good options, all trials on the same budget: `search(Options(...))`.

Each name is imported when it is first used, as those of `eggroll` are.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eggroll.sweep.command import search
    from eggroll.sweep.plan import SweepOptions as Options

__all__ = ["Options", "search"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        places = {
            "Options": ("eggroll.sweep.plan", "SweepOptions"),
            "search": ("eggroll.sweep.command", "search"),
        }
        if name not in places:
            raise AttributeError(f"module 'eggroll.sweep' has no attribute {name!r}")
        module, attribute = places[name]
        return getattr(import_module(module), attribute)
