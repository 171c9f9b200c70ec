"""The compiled extension, loaded and checked against the installed mlx."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from eggroll.errors import InputError

NAME = "eggroll._int8_gemm"
REPAIR = "run `make build` in a checkout, or reinstall eggroll-mlx"


def load() -> ModuleType:
    """Returns the extension module, built for the installed mlx.

    Raises:
        InputError: mlx or the extension is missing, broken, or of another version.
    """
    try:
        installed = importlib.metadata.version("mlx")
        # First, so that mlx's own library and types are the ones the extension finds.
        importlib.import_module("mlx.core")
    except (importlib.metadata.PackageNotFoundError, ImportError) as error:
        raise InputError(f"mlx does not import ({error}): {REPAIR}.") from error

    try:
        module = importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        raise InputError(f"The compiled extension {NAME} is missing: {REPAIR}.") from error
    except ImportError as error:
        raise InputError(
            f"The compiled extension {NAME} does not load with mlx {installed} ({error}): {REPAIR}."
        ) from error

    mlx_version: str = module.built_with()["mlx"]
    if mlx_version != installed:
        raise InputError(
            f"The compiled extension {NAME} was built with mlx {mlx_version} and mlx {installed} "
            f"is installed: {REPAIR}."
        )
    return module
