"""The NVIDIA GPU of this machine: its facts; compiles, launches and tries kernels."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import mlx.core as mx

from eggroll.engines import trial
from eggroll.engines.cuda.plan import PRODUCTS
from eggroll.engines.gpu.launch import kernel_name, launcher
from eggroll.engines.gpu.source import Source
from eggroll.errors import InputError

ENGINE = "eggroll.engines.cuda.engine:CudaEngine"
SWITCH = "EGGROLL_CUDA"  # m16n8k32, m8n8k16 or dp4a: another product than the fastest
TRIAL_SECONDS = 180  # MLX compiles every kernel; each takes seconds the first time


@cache
def compiled(source: Source) -> Any:
    """The kernel as MLX compiles it."""
    return mx.fast.cuda_kernel(
        name=kernel_name(source, str(architecture())),
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
        shared_memory=source.shared,
    )


launch = launcher(compiled)


def has_gpu() -> bool:
    """True if MLX is built for CUDA and finds a GPU."""
    module: Any = getattr(mx, "cuda", None)
    return module is not None and bool(module.is_available())


def device_info() -> dict[str, Any]:
    """MLX's facts of the GPU; empty without one."""
    if not has_gpu():
        return {}
    return dict(mx.device_info(mx.Device(mx.DeviceType.gpu, 0)))


@cache
def architecture() -> int:
    """Compute capability, 10 major + minor; 0 without a GPU."""
    found = device_info()
    major, minor = (found.get(f"compute_capability_{name}", 0) for name in ("major", "minor"))
    return 10 * int(major) + int(minor)


def total_memory() -> int:
    """Bytes of the GPU's memory."""
    return int(device_info().get("total_memory", 0))


def chosen_product() -> str:
    """The product that EGGROLL_CUDA names; empty for the fastest of the GPU.

    Raises InputError for any other name.
    """
    name = os.environ.get(SWITCH, "")
    if name and name not in PRODUCTS:
        raise InputError(
            f"{SWITCH}={name!r} is no product of the cuda engine: set it to one of "
            f"{', '.join(PRODUCTS)}, or unset it."
        )
    return name


@cache
def trial_error(product: str) -> str:
    """The reason why the trial with a product (empty: the fastest) failed; empty if it passed."""
    return trial.trial_error(ENGINE, TRIAL_SECONDS, environment={SWITCH: product})
