"""Only for Metal: NAX, sums in float, the trial of both paths; test_gpu.py has the rest."""

from __future__ import annotations

import subprocess

import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulator import Emulator
from networks import random_case
from networks_credit import credited_case

from eggroll import networks
from eggroll.engines.gpu import plan
from eggroll.engines.gpu.stage import StageWriter
from eggroll.engines.metal import device
from eggroll.engines.metal.dialect import Metal
from eggroll.engines.metal.engine import MetalEngine
from gpu.backend import (
    MetalGpu,
    at_the_end,
    beyond_float,
    check_credit,
    check_scores,
    engine,
    stage_source,
)
from gpu.test_gpu import ALL, CASES
from gpu.test_gpu_credit import RAGGED
from gpu.test_gpu_programs import unscored, wide

metal_only = pytest.mark.parametrize("gpu", ["metal"], indirect=True)
NAX_CASES = (
    "ragged everywhere", "registers in device memory", "next to nothing", "gates by tables",
)  # fmt: skip

# The floor of a quotient by 64 bits, against the kernels' division.
DIFFERS = """
template <int DIVISOR>
EGG_FUNCTION int differs(int v) {
  const long numerator = v;
  const long down = numerator < 0 ? -((DIVISOR - 1 - numerator) / DIVISOR) : numerator / DIVISOR;
  const int floor = down < -1000 ? -1000 : down > 1000 ? 1000 : int(down);
  return egg::divide<DIVISOR>(v) != egg::clip(floor);
}
"""


@metal_only
@pytest.mark.parametrize("name", NAX_CASES)
def test_nax_equals_oracle(gpu: MetalGpu, launcher: Emulator, name: str):
    """The path for matmul2d, in an emulation of what Apple documents of it."""
    members, _, shape = CASES[name]
    members = gpu.largest if members == ALL else max(members, 16)
    case = at_the_end(random_case(1, **{"P": members + 4} | shape))
    check_scores(engine(gpu, case.program, launcher, members, "nax"), case)
    assert any("matmul2d<" in msl for msl in launcher.sources.values())


@metal_only
def test_nax_credits_as_the_oracle(gpu: MetalGpu, launcher: Emulator):
    """Rows of registers have no gaps there, which the tape must not take amiss."""
    made = credited_case(1, "token-credit", **RAGGED[-1])
    program = at_the_end(made.case).program
    check_credit(engine(gpu, program, launcher, 16, "nax"), made)
    assert any("matmul2d<" in msl for msl in launcher.sources.values())


@pytest.mark.parametrize("members", [16, 32])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_nax_leaves_threadgroup_memory_free(members: int, rank: int):
    """As matmul2d may want some: 1 KiB in every plan."""
    most = []
    for D in (24, 64, 128, 256, 300, 512):
        for V in (256, 1024, 5000):
            program = networks.egg(V, D, 1)
            plans = plan.stage_plans(program, members=members, rank=rank, nax=True)
            most += [StageWriter(each, Metal(), shift=8).source().shared for each in plans]
    for program in (wide(), unscored()):
        options = {"members": members, "rank": rank, "nax": True, "puts_out": True}
        plans = plan.stage_plans(program, **options)
        most += [StageWriter(each, Metal(), "outputs", shift=8).source().shared for each in plans]
    assert 27 << 10 < max(most) <= 31 << 10


@metal_only
def test_sums_beyond_float(gpu: MetalGpu, launcher: Emulator):
    case = beyond_float()
    check_scores(engine(gpu, case.program, launcher, 8), case)


@metal_only
def test_a_shift_divides_as_a_division_does(gpu: MetalGpu, launcher: Emulator):
    """Around every multiple that counts, and at the ends of int32, where nothing may overflow."""
    layer = stage_source(gpu, gpu.plans(networks.egg(4, 4, 1), 8, 1)[1])
    each = """
for (int step = -140 + int(at); step <= 140; step += 32)
  for (int near = -2; near <= 2; ++near) wrong += differs<@>(step * @ + near);
for (int end = 0; end < 3; ++end) {
  wrong += differs<@>(2147483647 - end) + differs<@>(-2147483647 - 1 + end);
  wrong += differs<@>(1 << (8 + (at + end) % 23)) + differs<@>(-(1 << (8 + (at + end) % 23)));
}
"""
    divisors = [16 << n for n in range(12)]
    body = "const uint at = thread_position_in_grid.x;\nint wrong = 0;"
    body += "".join(each.replace("@", str(divisor)) for divisor in divisors)
    source = layer._replace(
        inputs=("given",), outputs=("out",), header=layer.header + DIFFERS, shared=0,
        body=body + "out[at] = wrong + given[0];\n",
    )  # fmt: skip
    zeros = mx.zeros(8, mx.int32)
    (wrong,) = launcher(source, [zeros], [((32,), mx.int32)], (32, 1, 1), (32, 1, 1))
    assert not np.array(wrong).any()


@pytest.mark.parametrize(
    ("architecture", "macos", "has"),
    [
        ("applegpu_g17s", "26.2", True),
        ("applegpu_g17s", "26.1", False),
        ("applegpu_g17s", "15.7.1", False),
        ("applegpu_g16s", "26.2", False),
        ("applegpu_g17p", "27.0", False),
        ("applegpu_g18p", "26.2.1", True),
        ("", "26.2", False),
        ("applegpu_g17s", "", False),
    ],
)
def test_what_machines_have_nax(architecture: str, macos: str, has: bool):
    assert device.has_nax(architecture, macos) is has


def test_kernels_and_nax_are_used_only_after_a_trial(monkeypatch):
    """A wrong result or a dead process of the trial leaves the engine or NAX unused."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"architecture": "applegpu_g17s"})
    monkeypatch.setattr(device.platform, "mac_ver", lambda: ("26.2", (), ""))
    monkeypatch.setattr(device, "trial_error", device.trial_error.__wrapped__)
    ends = {False: (0, ""), True: (0, "")}
    tried = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        tried.append("{'nax': True}" in command[-1])
        code, said = ends[tried[-1]]
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    assert MetalEngine.unavailable_because() == ""
    assert device.nax_usable()
    ends[True] = (-6, "")
    assert MetalEngine.unavailable_because() == ""
    assert not device.nax_usable()
    ends[False] = (1, "Traceback\nother integers")
    assert MetalEngine.unavailable_because() == "its trial on this GPU failed: other integers"
    # A compiler's error, not the mark beneath it, which comes last.
    ends[False] = (1, "Traceback\nprogram_source:7:3: error: unknown type\n  fooo x\n  ^")
    why = "its trial on this GPU failed: program_source:7:3: error: unknown type"
    assert MetalEngine.unavailable_because() == why
    count = len(tried)
    monkeypatch.setenv(device.SWITCH, "0")
    assert not device.nax_usable()
    assert len(tried) == count


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has a Metal GPU")
def test_without_a_gpu_the_trial_says_so():
    assert "No Metal back-end" in device.trial_error(False)


def test_missing_compiler_skips_or_fails_with_a_sentence(monkeypatch):
    monkeypatch.setattr(emulator, "clang", lambda: None)
    assert "is not installed" in emulator.unavailable_because()
