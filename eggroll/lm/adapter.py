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

from eggroll.errors import InputError
from eggroll.files import unwritable, write_whole
from eggroll.lm.layers import signs
from eggroll.lm.learner import Delta
from eggroll.spec.program import Leaves

WEIGHTS, CONFIG = "adapters.safetensors", "adapter_config.json"
# Names in a safetensors file, and a type of as many bytes that NumPy has.
KINDS = {
    mx.float32: ("F32", mx.uint32),
    mx.float16: ("F16", mx.uint16),
    mx.bfloat16: ("BF16", mx.uint16),
}


def save_low_rank(path: Path, leaves: Sequence[Delta], deltas: Leaves, seed: int) -> None:
    """Writes deltas int8 [O, C] as the LoRA adapter that they are; no model is needed.

    Raises:
        InputError: the files cannot be written.
    """
    arrays = {}
    for index, leaf in enumerate(leaves):
        dtype = getattr(mx, leaf.dtype)
        fixed = mx.array(signs(seed, index, leaf.inputs, leaf.columns))
        arrays[f"{leaf.name}.lora_a"] = fixed.astype(dtype)
        arrays[f"{leaf.name}.lora_b"] = (deltas[leaf.name].T * leaf.unit).astype(dtype)
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
    _write(path, arrays, config)


def save_arrays(path: Path, arrays: Mapping[str, mx.array]) -> None:
    """Writes arrays of a model that take the place of its own when mlx-lm loads the adapter.

    Raises:
        InputError: the files cannot be written.
    """
    _write(path, arrays, {"fine_tune_type": "full", "num_layers": -1, "lora_parameters": {}})


def tensors_file(arrays: Mapping[str, mx.array]) -> bytes:
    """Arrays as a safetensors file, the same bytes wherever it is made."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    data, place = list[bytes](), 0
    for name in sorted(arrays):
        array = arrays[name]
        kind, view = KINDS[array.dtype]
        data.append(np.ascontiguousarray(np.asarray(array.view(view))).tobytes())
        end = place + len(data[-1])
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _write(path: Path, arrays: Mapping[str, mx.array], config: Mapping[str, Any]) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    write_whole(path / WEIGHTS, tensors_file(arrays))
    write_whole(path / CONFIG, json.dumps(config, indent=1).encode() + b"\n")


def check_free(path: Path) -> None:
    """Raises InputError unless an adapter can be put there without taking another's place."""
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{str(path)!r} is there and not an empty folder: give the adapter a new one."
        )
