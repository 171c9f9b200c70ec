"""Tunes a pretrained mlx-lm model from a reward: `lm.Trainer`, `lm.rewards`, `eggroll finetune`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import eggroll.lm.rewards as rewards
    from eggroll.lm.trainer import Members, Trainer, Update

__all__ = ["Members", "Trainer", "Update", "rewards"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'eggroll.lm' has no attribute {name!r}")
        module = import_module("eggroll.lm.rewards" if name == "rewards" else "eggroll.lm.trainer")
        return getattr(module, name, module)
