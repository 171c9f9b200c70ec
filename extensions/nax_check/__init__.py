"""Does MLX use the matrix units (NAX) of this Apple GPU, and why or why not?

`is_nax_available()` repeats MLX's own rule, which MLX does not export: its Metal library has to
carry the kernels, macOS has to be 26.2 or newer, and the GPU's generation 17 or newer (18 for a
phone's, whose architecture string ends in p). MLX_METAL_GPU_ARCH replaces the string.

Do not ask for the GPU family instead. "Family Apple 9 or newer" also names the M3 and the M4,
which have no such units: theirs are generations 15 and 16; the M5 is the first with 17.

The rule reads strings, and an override can say anything. `try_product` therefore multiplies int8
matrices on the GPU, in a process of its own, and compares every number with NumPy's. An exact
product shows that the operation works, not on which units: Metal 4 may also run it on others.

Importing this package does nothing; MLX is imported when facts are read, and only on macOS.
"""

from nax_check.decision import (
    Decision,
    Facts,
    Reason,
    decide,
    effective_architecture,
    gate,
    generation,
    tf32_enabled,
)
from nax_check.facts import read_facts
from nax_check.product import Outcome, run_child, try_product

__all__ = [
    "Decision",
    "Facts",
    "Outcome",
    "Reason",
    "decide",
    "effective_architecture",
    "gate",
    "generation",
    "is_nax_available",
    "read_facts",
    "run_child",
    "tf32_enabled",
    "try_product",
]


def is_nax_available() -> bool:
    """True if MLX takes its NAX kernels here; False on anything but macOS.

    `decide(read_facts()).reasons` says why.
    """
    return decide(read_facts()).available
