"""Programs unlike EGG on both GPUs, under emulation: random ones, and what kernels got wrong."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Emulator
from networks import case_of
from networks_credit import credited_of
from test_programs import CREDITED, SEEDS, check, complete_case, same_credit, small_case

from eggroll.engines.portable.engine import PortableEngine
from eggroll.program import Program
from gpu.backend import Gpu, engine

VARIANTS = {"metal": ("", "nax"), "cuda": ("m16n8k32", "m8n8k16", "dp4a")}


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_oracle_on_random_programs(gpu: Gpu, launcher: Emulator, seed: int):
    case = small_case(seed, rank=1 + seed % 2)
    for variant in VARIANTS[gpu.name]:
        members = 16 if variant == "nax" else (8, 16, 32)[seed % 3]
        check(engine(gpu, case.program, launcher, members, variant), case)


def test_has_every_operation(gpu: Gpu, launcher: Emulator):
    case = complete_case()
    check(engine(gpu, case.program, launcher, 8), case)


@pytest.mark.parametrize("estimator", CREDITED)
def test_credits_random_programs_as_the_portable_engine(
    gpu: Gpu, launcher: Emulator, estimator: str
):
    for seed in SEEDS[:2]:
        credited = credited_of(small_case(seed), np.random.default_rng(seed), estimator)
        program = credited.case.program
        want = credited.run(PortableEngine(program))
        same_credit(credited.run(engine(gpu, program, launcher, 8)), want)


def padded(D: int) -> Program:
    """What a norm leaves beside its result is looked up and passed on; a result nobody reads."""
    net = Program(9, D)
    x, _ = net.stage()
    net.embed("embedding")
    n = net.norm(net.lookup(x, "tanh"), "norm")
    net.add(n, n, out=x)
    x, _ = net.stage("b.")
    net.norm(x, "unread")
    net.score(net.lookup(net.norm(x, "norm"), "sigmoid"), "head")
    return net


@pytest.mark.parametrize("D", [3, 12])
def test_what_pads_a_register_is_no_index_and_no_result(gpu: Gpu, launcher: Emulator, D: int):
    case = case_of(padded(D), np.random.default_rng(D))
    check(engine(gpu, case.program, launcher, 8), case)


def in_place() -> Program:
    """Operations in place after others in the same tiles, and a write after the last read."""
    net = Program(9, 24)
    x, _ = net.stage()
    net.embed("embedding")
    net.mix(x, x, x, out=x)
    net.add(x, x, out=x)
    early = net.linear(x, "early", 24)
    late = net.linear(early, "late", 24)
    wide = net.linear(late, "wide", 24)
    net.add(late, late, out=early)  # nobody reads it any more
    net.add(net.linear(wide, "back", 24), wide, out=x)
    net.score(x, "head")
    return net


def test_registers_are_written_in_place(gpu: Gpu, launcher: Emulator):
    case = case_of(in_place(), np.random.default_rng(1))
    check(engine(gpu, case.program, launcher, 8), case)
