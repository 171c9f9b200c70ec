"""EGGROLL: int8 networks trained in integers alone, by evolution or by errors carried back.

The names of `__all__` are the library, docs/python.md its guide. Each is imported when it is first
used, so `import eggroll` takes no time and needs neither MLX nor the extension.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eggroll import envs, networks, sweep
    from eggroll.api import Interrupted, Trained, train
    from eggroll.baseline.gradient_trainer import GradientTrainer
    from eggroll.config import Config
    from eggroll.errors import EngineError, EngineWarning, InputError
    from eggroll.language import LanguageModel, load
    from eggroll.members import Members, Model
    from eggroll.policy import draw
    from eggroll.program import Program
    from eggroll.quantisation import quantise
    from eggroll.scripts import script
    from eggroll.trainer import Trainer, Update

__version__ = "0.2.0"

__all__ = [
    "Config",
    "EngineError",
    "EngineWarning",
    "GradientTrainer",
    "InputError",
    "Interrupted",
    "LanguageModel",
    "Members",
    "Model",
    "Program",
    "Trained",
    "Trainer",
    "Update",
    "__version__",
    "draw",
    "envs",
    "load",
    "networks",
    "quantise",
    "script",
    "sweep",
    "train",
]

# Name -> the module that has it, or that it is.
_PLACES = {
    "Config": "eggroll.config",
    "EngineError": "eggroll.errors",
    "EngineWarning": "eggroll.errors",
    "GradientTrainer": "eggroll.baseline.gradient_trainer",
    "InputError": "eggroll.errors",
    "Interrupted": "eggroll.api",
    "LanguageModel": "eggroll.language",
    "Members": "eggroll.members",
    "Model": "eggroll.members",
    "Program": "eggroll.program",
    "Trained": "eggroll.api",
    "Trainer": "eggroll.trainer",
    "Update": "eggroll.trainer",
    "draw": "eggroll.policy",
    "envs": "eggroll.envs",
    "load": "eggroll.language",
    "networks": "eggroll.networks",
    "quantise": "eggroll.quantisation",
    "script": "eggroll.scripts",
    "sweep": "eggroll.sweep",
    "train": "eggroll.api",
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
