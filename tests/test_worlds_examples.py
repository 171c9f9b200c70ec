"""The experiments with worlds of other people run, in small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Experiment -> (packages it needs, its arguments, what it prints at the end).
EXPERIMENTS = {
    "autograd": (
        ("sklearn", "float_kernels"),
        ("run",),
        r"\| eggroll, token credit \| 20 \| 0\.\d+ ",
    ),
    "black_box": ((), (), r"\nsmooth carriage, adam: 4 evaluations, \d+\.\d+ "),
    "cartpole": (("gymnasium", "evosax"), (), r"\nOpenES: \d of 1 solved, "),
    "cartpole int8": (("gymnasium",), ("--methods", "int8"), r"\nint8: \d of 1 solved, .* unseen "),
    "control": (
        ("gymnasium", "evosax"),
        ("--tasks", "Pendulum"),
        r"\nPendulum, CMA-ES: 0 of 1 solved, ",
    ),
    "control int8": (
        ("gymnasium",),
        ("--tasks", "Pendulum", "CartPole", "--methods", "int8"),
        r"\nCartPole, int8: \d of 1 solved, .* unseen ",
    ),
    "digits": (("sklearn",), (), r"\n64-256-10, adam: 20 updates: \d\d\.\d\d "),
    "tictactoe": (
        ("float_kernels",),
        ("run",),
        r"\nppo-native, seed 0, 2 iterations in .* optimal ",
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs(name: str):
    packages, words, printed = EXPERIMENTS[name]
    for package in packages:
        pytest.importorskip(package)
    module = f"experiments.{name.split()[0]}"
    ended = subprocess.run(
        [sys.executable, "-m", module, *words, "--smoke"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert re.search(printed, ended.stdout), ended.stdout
