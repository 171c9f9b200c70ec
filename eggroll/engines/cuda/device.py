"""The NVIDIA GPU of this machine: its facts; compiles, launches and tries kernels."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx

from eggroll.engines import trial
from eggroll.engines.cuda.declaration import PREFIX, declaration
from eggroll.engines.cuda.plan import PRODUCTS
from eggroll.engines.gpu.launch import kernel_name, launcher
from eggroll.engines.gpu.source import Source
from eggroll.errors import InputError

ENGINE = "eggroll.engines.cuda.engine:CudaEngine"
SWITCH = "EGGROLL_CUDA"  # m16n8k32, m8n8k16 or dp4a: another product than the fastest
TRIAL_SECONDS = 300  # MLX compiles every kernel; each takes seconds the first time
NAMED = ("device_name", "compute_capability_major", "compute_capability_minor", "architecture")
COMPILERS = (
    *("mlx-cuda-13", "mlx-cuda-12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    *("nvidia-cuda-nvrtc-cu13", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
)


@cache
def compiled(source: Source, dtypes: tuple[mx.Dtype, ...]) -> Any:
    """The kernel as MLX compiles it, for arrays of these types."""
    name = kernel_name(source, str(architecture()), str(source.blocks))
    return mx.fast.cuda_kernel(
        name=name,
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header + declaration(source, PREFIX + name, dtypes),
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


def versions() -> dict[str, str]:
    """What compiles and runs kernels besides MLX: packages of CUDA, and the driver."""
    found = {}
    for name in COMPILERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    with contextlib.suppress(OSError):
        found["driver"] = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    return found


@cache
def trial_error(product: str) -> str:
    """The reason why the trial with a product (empty: the fastest) failed; empty if it passed."""
    found = {name: str(value) for name, value in device_info().items() if name in NAMED}
    known = {**found, **versions(), "product": product}
    return trial.trial_error(ENGINE, TRIAL_SECONDS, facts=known, environment={SWITCH: product})
