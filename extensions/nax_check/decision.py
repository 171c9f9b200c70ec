"""The rule on NAX as a pure function of plain facts: for MLX's own kernels, and for others.

MLX's own kernels come compiled, so its Metal library has to carry them: those of the wheels for
macOS 14 and 15 do not, and there MLX's is_nax_available is always false. Kernels that MLX compiles
at run time (mx.fast.metal_kernel) need no such library. They need Metal 4, which MLX asks for from
macOS 26.0 on (Metal 4.1 from 27.0 on), whatever wheel it came with. Both need macOS 26.2 and a GPU
that has the units. (The wheel for macOS 26 is built for 26.2 and does not look at the version.)

Source: mlx 0.32.4, mlx/backend/metal/device.cpp (is_nax_available, get_metal_version,
Device::Device), mlx/utils.h, and these functions as compiled in its three macOS wheels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

FIRST_MACOS = (26, 2)
FIRST_GENERATION, FIRST_PHONE_GENERATION = 17, 18
NAX_DTYPES = ("float16", "bfloat16", "float32")
QUANTIZED_BLOCK = 64


@dataclass(frozen=True)
class Facts:
    """The facts that the decision reads. Unknown strings are empty, unknown sizes 0 bytes."""

    system: str  # as platform.system() names it: Darwin, Linux
    os_version: str = ""
    metal: bool = False  # MLX has a Metal device
    chip: str = ""
    architecture: str = ""  # as MLX reports it, such as applegpu_g17s
    override: str = ""  # MLX_METAL_GPU_ARCH
    tf32: str | None = None  # MLX_ENABLE_TF32
    wheel: str = ""  # package, version and tag of what brings MLX's backend
    metallib: str = ""  # path of MLX's Metal library
    nax_kernels: bool = False  # whether that library carries NAX kernels
    memory: int = 0
    working_set: int = 0  # what the GPU recommends to stay below
    trouble: str = ""  # what kept the device from being read


class Reason(NamedTuple):
    """One condition, whether it is met, and the fact behind it.

    mlx_only: whether it is one of MLX's own kernels alone.
    """

    name: str
    met: bool
    text: str
    mlx_only: bool = False


@dataclass(frozen=True)
class Decision:
    """Whether MLX's own kernels use NAX, and every condition behind it."""

    available: bool
    reasons: tuple[Reason, ...]

    @property
    def obstacles(self) -> tuple[Reason, ...]:
        """The conditions of kernels compiled at run time that are not met; none: they use NAX."""
        return tuple(each for each in self.reasons if not each.met and not each.mlx_only)


def generation(architecture: str) -> int:
    """The GPU's generation as MLX reads it: the two bytes before the last one.

    Whatever is no digit counts as 0, so applegpu_g9p is 9 and a short or empty string 0.
    """
    text = architecture.encode(errors="surrogatepass")
    if len(text) < 3:
        return 0
    tens, ones = (byte - 48 if 48 <= byte < 58 else 0 for byte in text[-3:-1])
    return 10 * tens + ones


def effective_architecture(facts: Facts) -> str:
    """The string MLX goes by: MLX_METAL_GPU_ARCH unless that is unset or empty."""
    return facts.override or facts.architecture


def tf32_enabled(value: str | None) -> bool:
    """MLX_ENABLE_TF32 as MLX reads it: on if unset, else C's atoi, so that "true" means off."""
    if value is None:
        return True
    number = re.match(r"\s*[+-]?([0-9]+)", value)
    return number is not None and bool(number[1].strip("0"))


def decide(facts: Facts) -> Decision:
    """Applies the rule; every condition is looked at, so that one answer names all obstacles."""
    if facts.system != "Darwin":
        name = facts.system or "unknown"
        reasons = [Reason("system", False, f"{name}: NAX is reached through Metal, on macOS only")]
    else:
        reasons = [_metal(facts), _kernels(facts), _macos(facts), _architecture(facts)]
    return Decision(all(reason.met for reason in reasons), tuple(reasons))


def _metal(facts: Facts) -> Reason:
    if facts.metal:
        return Reason("Metal", True, facts.chip or "a device without a name")
    return Reason("Metal", False, facts.trouble or "MLX finds no Metal device")


def _kernels(facts: Facts) -> Reason:
    wheel = facts.wheel or "an MLX of unknown origin"
    if not facts.metallib:
        text = f"{wheel}: its mlx.metallib is not found"
    elif facts.nax_kernels:
        text = f"{wheel} carries NAX kernels"
    else:
        text = f"{wheel} was built without NAX kernels, which come with the macosx_26 wheels"
    return Reason("kernels", bool(facts.metallib) and facts.nax_kernels, text, mlx_only=True)


def _macos(facts: Facts) -> Reason:
    needed = ".".join(map(str, FIRST_MACOS))
    numbers = re.fullmatch(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.[0-9]{1,4})*", facts.os_version)
    if not numbers:
        return Reason("macOS", False, f"{facts.os_version!r} is no version; {needed} is needed")
    met = (int(numbers[1]), int(numbers[2] or 0)) >= FIRST_MACOS
    return Reason("macOS", met, f"{facts.os_version}; {needed} or newer is needed")


def _architecture(facts: Facts) -> Reason:
    name = effective_architecture(facts)
    phone = name.endswith("p")
    needed = FIRST_PHONE_GENERATION if phone else FIRST_GENERATION
    found = generation(name)
    text = (
        f"{name or 'unknown'} is generation {found}; {needed} or newer is needed"
        f"{' where the letter is p' if phone else ''}"
    )
    if facts.override:
        text += f" (said by MLX_METAL_GPU_ARCH, the chip is {facts.chip or 'unknown'})"
    return Reason("generation", found >= needed, text)


def gate(dtype: str, k: int, *, quantized: bool = False, tf32: bool = True) -> str:
    """The reason why MLX's own product would not take its NAX kernels ("" if it would).

    dtype: of the activations, as MLX names it; k: length of the sums; quantized: transposed
    quantized weights (mx.quantized_matmul) instead of dense ones (mx.matmul). It holds where
    NAX is available; products of one row take other kernels in any case.
    """
    if dtype not in NAX_DTYPES:
        return f"MLX's NAX kernels take {', '.join(NAX_DTYPES)} only"
    if dtype == "float32" and not tf32:
        return "MLX_ENABLE_TF32 is off, which keeps float32 at full precision"
    if quantized and k % QUANTIZED_BLOCK:
        return f"K {k} is no multiple of {QUANTIZED_BLOCK}"
    return ""
