"""Whether the Metal kernels give the right integers on this machine, with and without NAX.

NAX are the matrix units of M5 and later.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.credit import Estimator, crediting, draw_signs
from eggroll.engines.base import Engine
from eggroll.networks import egg, initial_weights
from eggroll.noise import Noise

SWITCH = "EGGROLL_NAX"  # 0 leaves NAX unused, so that both paths can be compared
TRIAL_SECONDS = 120
CREDITED: tuple[Estimator, ...] = ("token-votes", "token-credit")


def has_nax(architecture: str, macos: str) -> bool:
    """What MLX's own test says of e.g. `applegpu_g17s` and macOS `26.2`."""
    found = re.search(r"g(\d+)(\w?)$", architecture)
    version = tuple(int(part) for part in re.findall(r"\d+", macos)[:2])
    if not found or version < (26, 2):
        return False
    return int(found[1]) >= (18 if found[2] == "p" else 17)


def nax_usable() -> bool:
    """Whether the GPU has NAX, nobody switched it off, and a trial gave the right integers."""
    if os.environ.get(SWITCH) == "0" or not mx.metal.is_available():
        return False
    architecture = str(mx.device_info().get("architecture", ""))
    return has_nax(architecture, platform.mac_ver()[0]) and not failure(True)


@cache
def failure(nax: bool) -> str:
    """What the trial came to in a process of its own; empty if it passed."""
    code = f"from eggroll.engines.trial import main; main({nax})"
    return complaint(code, TRIAL_SECONDS)


def complaint(code: str, seconds: int, **environment: str) -> str:
    """The last words of Python code in a process of its own; empty if it ended well.

    A process of its own, as a kernel that does not build or run can end the process.
    """
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds} seconds"
    except OSError as error:
        return str(error)
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return said[-1] if done.returncode else ""


def trial(nax: bool) -> bool:
    """Whether a small network scores, and its noise votes by every estimator, as in plain MLX."""
    from eggroll.engines.metal.engine import MetalEngine
    from eggroll.engines.portable.engine import PortableEngine

    program = egg(40, 48, 1)
    both = outcome(MetalEngine(program, nax=nax)), outcome(PortableEngine(program))
    return all(np.array_equal(a, b) for a, b in zip(*both, strict=True))


def outcome(engine: Engine) -> Iterator[NDArray[Any]]:
    """Scores, states and votes of a small network, one after the other."""
    program, P, T = engine.program, 34, 3
    shapes = [leaf.shape for leaf in program.leaves]
    noise = Noise(shapes, seed=0, rank=1, shift=8, table_bits=16).slices(0, 0, P // 2)
    tokens = (mx.arange(P * T) * 7 % program.vocabulary).reshape(P, T).astype(mx.int32)
    state = mx.zeros((P, program.state_size), mx.int8)
    prepared = engine.prepare(initial_weights(program, 0))
    yield from map(np.array, engine.evaluate(prepared, noise, tokens, tokens, state))
    fitness = (mx.arange(P // 2) % 3 - 1).astype(mx.int8)
    yield from map(np.array, engine.votes(fitness, noise, True).values())
    for estimator in CREDITED:
        how = crediting(program, estimator, sigma_shift=2, discount=12, seq_len=T)
        credit_noise = draw_signs(how, seed=0, epoch=0, first_pair=0, pairs=P // 2, seq_len=T)
        *scored, votes = engine.credit(prepared, noise, credit_noise, how, tokens, tokens, state)
        yield from map(np.array, (*scored, *votes.values()))


def main(nax: bool) -> None:
    """Ends the process with a sentence unless the trial passes."""
    if not trial(nax):
        sys.exit("the kernels give other integers than plain MLX")
