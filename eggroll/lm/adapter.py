"""The results of a fine-tune as mlx-lm reads them: an adapter, of low rank or of whole arrays.

Letters: K inputs, O outputs, C rank of an adapter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import safetensors.numpy

from eggroll.errors import InputError
from eggroll.files import unwritable, write_whole
from eggroll.lm.layers import signs
from eggroll.lm.learner import Leaf
from eggroll.spec.program import Leaves

WEIGHTS, CONFIG = "adapters.safetensors", "adapter_config.json"


def save_low_rank(path: Path, leaves: Sequence[Leaf], deltas: Leaves, seed: int) -> None:
    """Writes deltas int8 [O, C] as the LoRA adapter that they are; no model is needed.

    Raises:
        InputError: the files cannot be written.
    """
    arrays = {}
    for index, leaf in enumerate(leaves):
        fixed = signs(seed, index, leaf.inputs, leaf.columns)
        arrays[f"{leaf.name}.lora_a"] = fixed.astype(np.float32)
        learnt = np.asarray(deltas[leaf.name]).astype(np.float32).T * np.float32(leaf.unit)
        arrays[f"{leaf.name}.lora_b"] = np.ascontiguousarray(learnt)
    parts = [leaf.name.split(".") for leaf in leaves]
    # A layer's name is that of the list of blocks, the block's number and the name within it.
    numbers = [next(i for i, word in enumerate(words) if word.isdecimal()) for words in parts]
    blocks = 1 + max(int(words[at]) for words, at in zip(parts, numbers, strict=True))
    keys = sorted({".".join(words[at + 1 :]) for words, at in zip(parts, numbers, strict=True)})
    config = {
        "fine_tune_type": "lora",
        "num_layers": blocks,
        "lora_parameters": {
            "rank": leaves[0].columns, "scale": 1.0, "dropout": 0.0, "keys": keys,
        },
    }  # fmt: skip
    _write(path, safetensors.numpy.save(arrays, {"format": "mlx"}), config)


def save_arrays(path: Path, arrays: Mapping[str, mx.array]) -> None:
    """Writes arrays of a model that take the place of its own when mlx-lm loads the adapter.

    Raises:
        InputError: the files cannot be written.
    """
    folder = _folder(path)
    partial = folder / f".partial.{WEIGHTS}"  # by MLX, as NumPy has no bfloat16
    try:
        mx.save_safetensors(str(partial), dict(arrays), {"format": "mlx"})
        data = partial.read_bytes()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"{str(partial)!r} cannot be written ({error}): make room or grant access there and "
            "save the adapter again."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    _write(path, data, {"fine_tune_type": "full", "num_layers": -1, "lora_parameters": {}})


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def _write(path: Path, weights: bytes, config: Mapping[str, Any]) -> None:
    folder = _folder(path)
    write_whole(folder / WEIGHTS, weights)
    write_whole(folder / CONFIG, json.dumps(config, indent=1).encode() + b"\n")


def check_free(path: Path) -> None:
    """Raises InputError unless an adapter can be put there without taking another's place."""
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{str(path)!r} is there and not an empty folder: give the adapter a new one."
        )
