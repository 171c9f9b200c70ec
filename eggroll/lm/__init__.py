"""Tunes a pretrained mlx-lm model from a reward: `lm.Trainer`, `lm.rewards`, `eggroll finetune`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import eggroll.lm.rewards as rewards
    from eggroll.lm.trainer import ModelMembers as Members
    from eggroll.lm.trainer import ModelTrainer as Trainer
    from eggroll.lm.trainer import ModelUpdate as Update

__all__ = ["Members", "Trainer", "Update", "rewards"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'eggroll.lm' has no attribute {name!r}")
        if name == "rewards":
            return import_module("eggroll.lm.rewards")
        return getattr(import_module("eggroll.lm.trainer"), f"Model{name}")
