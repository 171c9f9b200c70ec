"""Launches come in portions whose size follows the time that they take."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import mlx.core as mx
import oracle
import pytest
from conftest import Command
from emulator import Emulator
from networks import random_case

from eggroll import engines
from eggroll.engines.gpu.launch import FIRST_MACS, MAX_MACS, MIN_MACS, SECONDS, Pace
from eggroll.engines.gpu.plan import matrix_macs
from eggroll.errors import InputError
from gpu.backend import Gpu, check_scores, check_votes, engine


def paced(seconds: float) -> Pace:
    """Every portion takes so long."""
    looks = count()
    return Pace(waits=True, clock=lambda: next(looks) * seconds)


def portions(pace: Pace, kernels: list[str]) -> list[int]:
    """Sizes of the portions that follow, each filled by one launch of a kernel."""
    sizes = []
    for kernel in kernels:
        pace.begin(kernel)
        pace.launched([mx.zeros(1)], pace.macs)
        sizes.append(pace.macs)
    return sizes


def test_portions_follow_the_time_they_take():
    assert portions(paced(SECONDS / 3), ["a"] * 40)[:2] == [2 * FIRST_MACS, 4 * FIRST_MACS]
    assert portions(paced(SECONDS / 3), ["a"] * 40)[-1] == MAX_MACS
    assert portions(paced(SECONDS * 0.9), ["a"] * 3) == [FIRST_MACS] * 3
    slow = portions(paced(SECONDS * 20), ["a"] * 40)
    assert slow[-1] == MIN_MACS
    # The first portion of a kernel has its compilation in it, which says nothing.
    assert portions(paced(SECONDS * 20), ["a", "b", "b", "c", "a"]) == [
        FIRST_MACS, FIRST_MACS, FIRST_MACS // 2, FIRST_MACS // 2, FIRST_MACS // 4,
    ]  # fmt: skip


def test_small_launches_share_a_portion(monkeypatch: pytest.MonkeyPatch):
    waited, pace = [], paced(SECONDS * 0.9)
    monkeypatch.setattr(mx, "eval", lambda *_: waited.append(1))
    for _ in range(8):
        pace.begin("a")
        pace.launched([mx.zeros(1)], FIRST_MACS // 8)
    assert len(waited) == 2


def test_launches_and_votes_are_cut_while_they_run(gpu: Gpu, launcher: Emulator):
    """A slow GPU gets less at a time, and gives the same integers."""
    case = random_case(8, V=9, D=8, T=5, P=600)
    made = engine(gpu, case.program, launcher)
    made.pace = paced(SECONDS * 20)
    made.pace.macs = 1 << 20
    fitness = oracle.pair_fitness(check_scores(made, case))
    stages = launcher.launches.count("egg_stage")
    assert stages > 3 * len(case.program.stages)
    launcher.launches.clear()
    made.pace = paced(SECONDS * 0.9)
    made.pace.macs = 1 << 16
    check_votes(made, case, fitness)
    pairs = made.pace.macs // matrix_macs(case.program)
    assert launcher.launches.count("egg_votes") == -(-300 // pairs) > 1


def test_emulated_launches_wait_for_nothing(gpu: Gpu, launcher: Emulator):
    made = engine(gpu, random_case(8).program, launcher)
    assert not made.pace.waits
    made.pace.begin("a")
    made.pace.launched([mx.zeros(1)], MAX_MACS)
    assert made.pace.macs == FIRST_MACS


def test_a_resumed_run_opens_no_gpu_before_it_has_an_engine(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """MLX reads what Metal's engine has to tell it when it makes the first array."""
    small = ("--data", "count", "--pop", "4", "--seq-len", "2", "--layers", "1", "--width", "8")
    words = (*small, "--table-bits", "16", "--steps", "1", "--val-tokens", "32")
    assert call(*words, "--sample-tokens", "0", "--out", tmp_path / "run").code == 0
    monkeypatch.setattr(mx, "array", lambda *_: pytest.fail("an array was made"))

    def chosen(*_: object, **__: object) -> None:
        raise InputError("no engine")

    monkeypatch.setattr(engines, "choose", chosen)
    assert "no engine" in call("--resume", tmp_path / "run").err


def test_metal_puts_a_portion_into_one_command_buffer():
    """Else MLX ends one within it, whose failure no result tells of.

    It is told before it is asked for the GPU's name, which opens the GPU.
    """
    code = """
import os
from eggroll.engines.metal import MetalEngine
from eggroll.networks import egg
MetalEngine(egg(8, 8, 1), nax=False, launcher=lambda *_: [])
assert "MLX_MAX_OPS_PER_BUFFER" not in os.environ
MetalEngine(egg(8, 8, 1), nax=False)
assert int(os.environ["MLX_MAX_OPS_PER_BUFFER"]) >= 1000
assert int(os.environ["MLX_MAX_MB_PER_BUFFER"]) >= 1000

for name in [name for name in os.environ if name.startswith("MLX_MAX")]:
    del os.environ[name]
import mlx.core as mx
import nax_check
from eggroll import engines
class Asked(Exception): pass
def read_facts():
    raise Asked(os.environ["MLX_MAX_OPS_PER_BUFFER"])
nax_check.read_facts, mx.metal.is_available = read_facts, lambda: True
try:
    engines.choose("auto", egg(8, 8, 1))
except Asked as limit:
    assert int(str(limit)) >= 1000
else:
    assert False
"""
    limits = ("MLX_MAX_OPS_PER_BUFFER", "MLX_MAX_MB_PER_BUFFER")
    env = {name: value for name, value in os.environ.items() if name not in limits}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
