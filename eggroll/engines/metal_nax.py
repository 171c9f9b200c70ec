"""Whether NAX, the matrix units of M5 and later, multiplies int8 on this machine.

`python -m eggroll.engines.metal_nax` is the trial itself: exit code 0 if its integers are right.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from functools import cache

import mlx.core as mx

SWITCH = "EGGROLL_NAX"  # 0 leaves NAX unused, so that both paths can be compared
TRIAL_SECONDS = 120


def has_nax(architecture: str, macos: str) -> bool:
    """What MLX's own test says of e.g. `applegpu_g17s` and macOS `26.2`."""
    found = re.search(r"g(\d+)(\w?)$", architecture)
    version = tuple(int(part) for part in re.findall(r"\d+", macos)[:2])
    if not found or version < (26, 2):
        return False
    return int(found[1]) >= (18 if found[2] == "p" else 17)


@cache
def usable() -> bool:
    """Whether the GPU has NAX, nobody switched it off, and a trial gave the right integers.

    The trial is a process of its own, as a kernel that does not build can end the process.
    """
    if os.environ.get(SWITCH) == "0" or not mx.metal.is_available():
        return False
    architecture = str(mx.device_info().get("architecture", ""))
    if not has_nax(architecture, platform.mac_ver()[0]):
        return False
    command = [sys.executable, "-m", "eggroll.engines.metal_nax"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TRIAL_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def trial() -> bool:
    """Whether a small network scores the same by NAX and by plain MLX."""
    from eggroll.engines.metal import MetalEngine
    from eggroll.engines.portable import PortableEngine
    from eggroll.model import egg, initial_weights
    from eggroll.noise import Noise

    program = egg(40, 48, 1)
    weights = initial_weights(program, 0)
    shapes = [leaf.shape for leaf in program.leaves]
    noise = Noise(shapes, seed=0, rank=1, shift=8, table_bits=16).slices(0, 0, 17)
    tokens = (mx.arange(34 * 3) * 7 % 40).reshape(34, 3).astype(mx.int32)
    state = mx.zeros((34, program.state_size), mx.int8)
    results = []
    for engine in (MetalEngine(program, nax=True), PortableEngine(program)):
        prepared = engine.prepare(weights)
        results.append(engine.evaluate(prepared, noise, tokens, tokens, state))
    return all(bool(mx.array_equal(a, b)) for a, b in zip(*results, strict=True))


if __name__ == "__main__":
    sys.exit(not trial())
