"""Loads the compiled extension, or says in one sentence why it cannot be loaded."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from eggroll.errors import InputError

NAME = "eggroll._int8_gemm"
WAY_OUT = "run `make build` in a checkout, or reinstall eggroll-mlx"


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
        raise InputError(f"mlx does not import ({error}): {WAY_OUT}.") from error

    try:
        module = importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        raise InputError(f"The compiled extension {NAME} is missing: {WAY_OUT}.") from error
    except ImportError as error:
        raise InputError(
            f"The compiled extension {NAME} does not load with mlx {installed} "
            f"({error}): {WAY_OUT}."
        ) from error

    built: str = module.built_with()["mlx"]
    if built != installed:
        raise InputError(
            f"The compiled extension {NAME} was built with mlx {built} and mlx {installed} "
            f"is installed: {WAY_OUT}."
        )
    return module
