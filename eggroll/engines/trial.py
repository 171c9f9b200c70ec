"""A trial of an engine: a small network in a process of its own, against plain MLX.

The engine is named as "module:Class", so that engines can ask for their trial.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.credit import crediting, draw_signs
from eggroll.engines.base import Engine
from eggroll.engines.portable.engine import PortableEngine
from eggroll.networks import egg, initial_weights
from eggroll.noise import Noise


def trial_error(
    engine: str,
    seconds: int,
    *,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The reason why the trial of "module:Class" failed in its own process; empty if it passed.

    options: keyword arguments of the class; environment: set for the process besides.
    """
    code = f"from eggroll.engines.trial import main; main({engine!r}, {dict(options or {})!r})"
    return run_in_child(code, seconds, environment or {})


def run_in_child(code: str, seconds: int, environment: Mapping[str, str]) -> str:
    """The reason why Python code failed in a process of its own; empty if it ended well.

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
    return telling_line(done.stderr, done.returncode) if done.returncode else ""


def telling_line(stderr: str, code: int) -> str:
    """The line of a failed process that says why: a compiler's first error, or else the last."""
    lines = stderr.strip().splitlines() or [f"exit code {code}"]
    return next((line.strip() for line in lines if "error:" in line), lines[-1])


def passes(engine: Engine) -> bool:
    """True if a small network's scores, losses and votes are those of plain MLX."""
    both = trial_results(engine), trial_results(PortableEngine(engine.program))
    return all(np.array_equal(a, b) for a, b in zip(*both, strict=True))


def trial_results(engine: Engine) -> Iterator[NDArray[Any]]:
    """Scores, exact likelihoods, states and votes of a small network, one after the other."""
    program, P, T = engine.program, 34, 3
    shapes = [leaf.shape for leaf in program.leaves]
    noise = Noise(shapes, seed=0, rank=1, shift=8, table_bits=16).slices(0, 0, P // 2)
    tokens = (mx.arange(P * T) * 7 % program.vocabulary).reshape(P, T).astype(mx.int32)
    state = mx.zeros((P, program.state_size), mx.int8)
    prepared = engine.prepare(initial_weights(program, 0))
    yield from map(np.array, engine.evaluate(prepared, noise, tokens, tokens, state))
    yield from map(np.array, engine.likelihoods(prepared, tokens, tokens, state))
    fitness = (mx.arange(P // 2) % 3 - 1).astype(mx.int8)
    yield from map(np.array, engine.votes(fitness, noise, True).values())
    for nodes in (False, True):  # token-votes, token-credit
        credits = crediting(program, nodes=nodes, sigma_shift=2, discount=12, seq_len=T)
        signs = draw_signs(credits, seed=0, step=0, first_pair=0, pairs=P // 2, seq_len=T)
        *scored, votes = engine.credit(prepared, noise, signs, credits, tokens, tokens, state)
        yield from map(np.array, (*scored, *votes.values()))


def main(engine: str, options: Mapping[str, Any]) -> None:
    """Ends the process with a sentence unless the trial of "module:Class" passes."""
    module, _, name = engine.partition(":")
    made: Engine = getattr(import_module(module), name)(egg(40, 48, 1), **options)
    if not passes(made):
        sys.exit("the kernels give other integers than plain MLX")
