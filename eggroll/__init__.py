"""EGGROLL: int8 networks trained in integers alone, by evolution or by errors carried back.

The names of `__all__` are the library, docs/python.md its guide. Each is imported when it is first
used, so `import eggroll` takes no time and needs neither MLX nor the extension.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eggroll import envs, lm, networks, sweep
    from eggroll.cli.command import script
    from eggroll.errors import EngineError, EngineWarning, InputError
    from eggroll.library.gradient_trainer import GradientTrainer
    from eggroll.library.language import Interrupted, LanguageModel, Trained, load, train
    from eggroll.library.learning import ErrorUpdate
    from eggroll.library.members import Members, Model
    from eggroll.library.trainer import Best, Trainer, Update, control
    from eggroll.spec.credit import draw
    from eggroll.spec.fixed_point import quantise
    from eggroll.spec.program import Lists, Program
    from eggroll.training.config import Config

__version__ = "0.2.0"

__all__ = [
    "Best",
    "Config",
    "EngineError",
    "EngineWarning",
    "ErrorUpdate",
    "GradientTrainer",
    "InputError",
    "Interrupted",
    "LanguageModel",
    "Lists",
    "Members",
    "Model",
    "Program",
    "Trained",
    "Trainer",
    "Update",
    "__version__",
    "control",
    "draw",
    "envs",
    "lm",
    "load",
    "networks",
    "quantise",
    "script",
    "sweep",
    "train",
]

# Name -> the module that has it, or that it is.
_PLACES = {
    "Best": "eggroll.library.trainer",
    "Config": "eggroll.training.config",
    "EngineError": "eggroll.errors",
    "EngineWarning": "eggroll.errors",
    "ErrorUpdate": "eggroll.library.learning",
    "GradientTrainer": "eggroll.library.gradient_trainer",
    "InputError": "eggroll.errors",
    "Interrupted": "eggroll.library.language",
    "LanguageModel": "eggroll.library.language",
    "Lists": "eggroll.spec.program",
    "Members": "eggroll.library.members",
    "Model": "eggroll.library.members",
    "Program": "eggroll.spec.program",
    "Trained": "eggroll.library.language",
    "Trainer": "eggroll.library.trainer",
    "Update": "eggroll.library.trainer",
    "control": "eggroll.library.trainer",
    "draw": "eggroll.spec.credit",
    "envs": "eggroll.envs",
    "lm": "eggroll.lm",
    "load": "eggroll.library.language",
    "networks": "eggroll.networks",
    "quantise": "eggroll.spec.fixed_point",
    "script": "eggroll.cli.command",
    "sweep": "eggroll.sweep",
    "train": "eggroll.library.language",
}

if not TYPE_CHECKING:  # else a type checker would take any name for known

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'eggroll' has no attribute {name!r}")
        module = import_module(_PLACES[name])
        globals()[name] = value = getattr(module, name, module)
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
