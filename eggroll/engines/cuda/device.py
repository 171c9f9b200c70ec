"""Whether the CUDA kernels give the right integers on this machine, and what its GPU is."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.engines.trial import complaint, outcome

SWITCH = "EGGROLL_CUDA"  # m16n8k32, m8n8k16 or dp4a: another product than the fastest
TRIAL_SECONDS = 180  # MLX compiles every kernel; each takes seconds the first time


def switched() -> str:
    """The product asked for by the environment, or nothing."""
    return os.environ.get(SWITCH, "")


def has_gpu() -> bool:
    """Whether MLX is one for CUDA and finds a GPU."""
    module: Any = getattr(mx, "cuda", None)
    return module is not None and bool(module.is_available())


def facts() -> dict[str, Any]:
    """What MLX says of the GPU; empty without one."""
    if not has_gpu():
        return {}
    return dict(mx.device_info(mx.Device(mx.DeviceType.gpu, 0)))


@cache
def architecture() -> int:
    """Compute capability, 10 major + minor; 0 without a GPU."""
    found = facts()
    major, minor = (found.get(f"compute_capability_{name}", 0) for name in ("major", "minor"))
    return 10 * int(major) + int(minor)


def total_memory() -> int:
    """Bytes of the GPU's memory."""
    return int(facts().get("total_memory", 0))


@cache
def failure(product: str) -> str:
    """What the trial came to in a process of its own; empty if it passed."""
    code = "from eggroll.engines.cuda.device import main; main()"
    return complaint(code, TRIAL_SECONDS, **{SWITCH: product})


def trial() -> bool:
    """Whether a small network scores, and its noise votes by every estimator, as in plain MLX."""
    from eggroll.engines.cuda.engine import CudaEngine
    from eggroll.engines.portable.engine import PortableEngine
    from eggroll.networks import egg

    program = egg(40, 48, 1)
    both = outcome(CudaEngine(program)), outcome(PortableEngine(program))
    return all(np.array_equal(x, y) for x, y in zip(*both, strict=True))


def main() -> None:
    """Ends the process with a sentence unless the trial passes."""
    if not trial():
        sys.exit("the kernels give other integers than plain MLX")
