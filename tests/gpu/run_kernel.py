"""Kernels as files, and a process for one of them: it may fail, crash or hang, and no other does.

PYTHONPATH=tests python -m gpu.run_kernel list metal FOLDER [VARIANT ..]    every kernel's file
PYTHONPATH=tests python -m gpu.run_kernel run eggroll.engines.metal FILE    one of them

Running one prints the text that MLX compiles before it compiles it. What comes out is not looked
at; the engine tests do that.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.launch import launcher

MARK = "built and ran in"


def write_kernel(path: Path, launched: Any) -> None:
    """A file.json with the source and the launch, and a file.npz with its arrays."""
    outputs = [(shape, str(dtype).removeprefix("mlx.core.")) for shape, dtype in launched.outputs]
    found = {
        "name": launched.name, "source": launched.source._asdict(), "outputs": outputs,
        "grid": launched.grid, "threadgroup": launched.threadgroup,
    }  # fmt: skip
    np.savez(path.with_suffix(".npz"), *(np.array(array) for array in launched.inputs))
    path.write_text(json.dumps(found))  # last, so that who finds it finds both


def write_all(kind: str, folder: Path, variants: Sequence[str]) -> None:
    """Files 000.json, 001.json .. of an engine's kernels; no GPU has a part in this."""
    from gpu.every_kernel import every_kernel

    mx.set_default_device(mx.cpu)
    for i, launched in enumerate(every_kernel(kind, variants)):
        write_kernel(folder / f"{i:03}.json", launched)


def source_of(found: dict[str, Any]) -> KernelSource:
    """The source in a file's content."""
    fields = found["source"]
    names = {name: tuple(fields[name]) for name in ("inputs", "outputs")}
    return KernelSource(**{**fields, **names})


def run(module: str, path: Path) -> None:
    """Builds and launches the kernel of a file by the module's `compiled`."""
    found = json.loads(path.read_text())
    arrays = np.load(path.with_suffix(".npz"))
    inputs = [mx.array(arrays[name]) for name in arrays.files]
    outputs = [(tuple(shape), getattr(mx, dtype)) for shape, dtype in found["outputs"]]
    launch = launcher(import_module(module).compiled, verbose=True)
    began = time.perf_counter()
    grid, threadgroup = tuple(found["grid"]), tuple(found["threadgroup"])
    mx.eval(launch(source_of(found), inputs, outputs, grid, threadgroup))
    print(f"{MARK} {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    command, what, place, *more = sys.argv[1:]
    if command == "list":
        write_all(what, Path(place), more)
    else:
        run(what, Path(place))
