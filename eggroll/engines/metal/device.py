"""The GPU of a Mac: compiles and launches kernels, tries them with and without NAX.

NAX are the matrix units of M5 and later.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from typing import Any

import mlx.core as mx

from eggroll.engines import trial
from eggroll.engines.gpu.launch import kernel_name, launcher
from eggroll.engines.gpu.source import Source

ENGINE = "eggroll.engines.metal.engine:MetalEngine"
SWITCH = "EGGROLL_NAX"  # 0 leaves NAX unused, so that both paths can be compared
TRIAL_SECONDS = 120


@cache
def compiled(source: Source) -> Any:
    """The kernel as MLX compiles it."""
    return mx.fast.metal_kernel(
        name=kernel_name(source),
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
    )


launch = launcher(compiled)


def has_nax(architecture: str, macos: str) -> bool:
    """MLX's own test, of e.g. `applegpu_g17s` and macOS `26.2`."""
    found = re.search(r"g(\d+)(\w?)$", architecture)
    version = tuple(int(part) for part in re.findall(r"\d+", macos)[:2])
    if not found or version < (26, 2):
        return False
    return int(found[1]) >= (18 if found[2] == "p" else 17)


def nax_usable() -> bool:
    """True if the GPU has NAX, nobody switched it off, and a trial gave the right integers."""
    if os.environ.get(SWITCH) == "0" or not mx.metal.is_available():
        return False
    architecture = str(mx.device_info().get("architecture", ""))
    return has_nax(architecture, platform.mac_ver()[0]) and not trial_error(True)


@cache
def trial_error(nax: bool) -> str:
    """The reason why the engine's trial failed; empty if it passed."""
    return trial.trial_error(ENGINE, TRIAL_SECONDS, options={"nax": nax})
