"""Reads the facts of this machine. Nothing here raises: what cannot be read stays empty."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from nax_check.decision import Facts

BACKENDS = ("mlx-metal", "mlx-cuda-13", "mlx-cuda-12", "mlx-cpu", "mlx")
NAX_NAME = b"_nax_"  # as in steel_gemm_fused_nax_nn_float16_...: no other kernel's name has it


def read_facts() -> Facts:
    """The facts of this machine; imports MLX, on macOS only."""
    system = platform.system()
    wheel = wheel_of(BACKENDS)
    override = os.environ.get("MLX_METAL_GPU_ARCH", "")
    tf32 = os.environ.get("MLX_ENABLE_TF32")
    if system != "Darwin":
        version = platform.release()
        return Facts(system, version, wheel=wheel, override=override, tf32=tf32)
    device, trouble = metal_device()
    library = metallib()
    return Facts(
        system=system,
        os_version=macos_version(),
        metal=bool(device),
        chip=str(device.get("device_name", "")),
        architecture=str(device.get("architecture", "")),
        override=override,
        tf32=tf32,
        wheel=wheel,
        metallib=str(library or ""),
        nax_kernels=library is not None and contains(library, NAX_NAME),
        memory=int(device.get("memory_size", 0)),
        working_set=int(device.get("max_recommended_working_set_size", 0)),
        trouble=trouble,
    )


def wheel_of(names: Sequence[str]) -> str:
    """Name, version and tag of the first of these packages that is installed."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError, OSError):
            package = metadata.distribution(name)
            lines = (package.read_text("WHEEL") or "").splitlines()
            tags = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
            return f"{name} {package.version} ({', '.join(tags) or 'no wheel'})"
    return ""


def metal_device() -> tuple[dict[str, Any], str]:
    """MLX's own facts on its Metal device, or nothing and why."""
    try:
        mx: Any = import_module("mlx.core")
        if not mx.metal.is_available():
            return {}, "MLX finds no Metal device"
        return dict(mx.device_info(mx.gpu)), ""
    except Exception as error:  # whatever MLX throws belongs into the report
        text = " ".join(str(error).split())[:200]
        return {}, f"MLX cannot read the Metal device ({text or type(error).__name__})"


def metallib() -> Path | None:
    """The path of MLX's Metal library, found without importing MLX."""
    with contextlib.suppress(ImportError, ValueError):
        spec = util.find_spec("mlx")
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(folder, "lib", "mlx.metallib")
            if path.is_file():
                return path
    return None


def contains(path: Path, text: bytes) -> bool:
    """True if a file holds these bytes; one that cannot be read does not."""
    with (
        contextlib.suppress(OSError, ValueError),  # ValueError: an empty file cannot be mapped
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
    ):
        return view.find(text) >= 0
    return False


def macos_version() -> str:
    """The version itself: a Python built with an older SDK is told 16 for 26 (CPython #135675)."""
    return sysctl("kern.osproductversion").get("kern.osproductversion") or platform.mac_ver()[0]


def sysctl(*names: str, program: str = "/usr/sbin/sysctl") -> dict[str, str]:
    """Values of macOS's kernel state by name; names it does not know are left out."""
    environment = {**os.environ, "SYSTEM_VERSION_COMPAT": "0"}
    try:
        ended = subprocess.run(
            [program, *names], env=environment, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = ended.stdout.decode(errors="replace").splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {name: value for name, _, value in pairs if name in names}
