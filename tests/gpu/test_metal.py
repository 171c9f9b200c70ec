"""Only for Metal: NAX, sums in float, the trial of both paths; test_gpu.py has the rest."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import emulator
import mlx.core as mx
import nax_check
import numpy as np
import pytest
from emulator import Emulator
from networks import random_case
from networks_credit import credited_case
from test_nax_check import M5

from eggroll import networks
from eggroll.engines import metal as device
from eggroll.engines import trial as verdicts
from eggroll.engines.gpu import plan
from eggroll.engines.gpu.stage import StageWriter
from eggroll.engines.metal import Metal, MetalEngine
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


@pytest.fixture
def mac(monkeypatch, tmp_path: Path) -> Callable[..., None]:
    """A made-up Mac with an M5; call it with other facts. No verdict of a trial is kept yet."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(device, "trial_error", device.trial_error.__wrapped__)
    monkeypatch.delenv(device.SWITCH, raising=False)

    def become(**changes: object) -> None:
        monkeypatch.setattr(nax_check, "read_facts", lambda: replace(M5, **changes))
        device.facts.cache_clear()

    become()
    yield become
    device.facts.cache_clear()


def ends_with(monkeypatch, ends: dict[bool, tuple[int, str]]) -> list[bool]:
    """Lets trials (nax or not) end with a code and a stderr; collects those that were made."""
    tried = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        tried.append("{'nax': True}" in command[-1])
        code, said = ends[tried[-1]]
        return subprocess.CompletedProcess(command, code, b"", said.encode())

    monkeypatch.setattr(subprocess, "run", run)
    return tried


@pytest.mark.parametrize(
    ("changes", "unused"),
    [
        ({}, ""),
        # Kernels compiled at run time need none of MLX's own in its library.
        ({"nax_kernels": False, "wheel": "mlx-metal 0.32.4 (py3-none-macosx_14_0_arm64)"}, ""),
        ({"metallib": ""}, ""),
        ({"os_version": "26.1"}, "macOS: 26.1"),
        ({"os_version": "15.7.1"}, "macOS: 15.7.1"),
        ({"os_version": ""}, "macOS: ''"),
        ({"architecture": "applegpu_g16s"}, "generation: applegpu_g16s is generation 16"),
        ({"architecture": "applegpu_g17p", "os_version": "27.0"}, "generation: applegpu_g17p"),
        ({"architecture": "applegpu_g18p", "os_version": "26.2.1"}, ""),
        ({"architecture": ""}, "generation: unknown"),
        ({"override": "applegpu_g16s"}, "generation: applegpu_g16s"),
        ({"metal": False, "trouble": "it is out"}, "Metal: it is out"),
    ],
)
def test_what_machines_use_nax(mac, monkeypatch, changes: dict, unused: str):
    """By the function whose reasons the probe prints; then by a trial."""
    mac(**changes)
    tried = ends_with(monkeypatch, {True: (0, "")})
    found = [device.nax_unused_because() for _ in range(2)]
    assert all(why.startswith(unused) if unused else not why for why in found)
    assert tried == [True] * (not unused)  # the second time by the verdict that was kept


def test_nax_is_found_by_a_python_that_is_told_16(mac, monkeypatch):
    """platform.mac_ver() says so on macOS 26 to a Python that was built with an older SDK."""
    monkeypatch.setattr(platform, "mac_ver", lambda: ("16.2", ("", "", ""), "arm64"))
    ends_with(monkeypatch, {True: (0, "")})
    assert not device.nax_unused_because()


@pytest.mark.usefixtures("mac")
def test_kernels_and_nax_are_used_only_after_a_trial(monkeypatch):
    """A wrong result or a dead process of the trial leaves the engine or NAX unused."""
    monkeypatch.setenv(verdicts.SWITCH, "1")  # every trial anew
    ends = {False: (0, ""), True: (0, "")}
    tried = ends_with(monkeypatch, ends)
    assert MetalEngine.unavailable_because() == ""
    assert not device.nax_unused_because()
    assert MetalEngine(networks.egg(8, 8, 1)).description == "metal (NAX)"
    ends[True] = (-6, "")
    assert MetalEngine.unavailable_because() == ""
    assert device.nax_unused_because() == "its trial failed: the process was ended by SIGABRT"
    told = "metal (simdgroup matrices; NAX is not used: its trial failed: the process was ended by "
    assert MetalEngine(networks.egg(8, 8, 1)).description == told + "SIGABRT)"
    ends[False] = (1, "warning\nother integers")
    assert MetalEngine.unavailable_because() == "its trial on this GPU failed: other integers"
    # A compiler's error, not the mark beneath it, which comes last.
    said = "[metal::Device] Unable to build\nprogram_source:7:3: error: no type\n  fooo x\n  ^"
    ends[False] = (1, f"Traceback (most recent call last):\n  File\nRuntimeError: {said}")
    why = "its trial on this GPU failed: program_source:7:3: error: no type"
    assert MetalEngine.unavailable_because() == why
    count = len(tried)
    monkeypatch.setenv(device.SWITCH, "0")
    assert MetalEngine(networks.egg(8, 8, 1)).description == "metal (simdgroup matrices)"
    assert device.nax_unused_because() == "EGGROLL_NAX=0"
    assert len(tried) == count


@pytest.mark.parametrize(
    "changes",
    [{"chip": "Apple M5 Max"}, {"architecture": "applegpu_g17s"}, {"os_version": "26.3"},
     {"wheel": "mlx-metal 0.32.4 (py3-none-macosx_15_0_arm64)"}, {"override": "applegpu_g17d"}],
)  # fmt: skip
def test_a_verdict_is_of_one_machine(mac, monkeypatch, changes: dict):
    tried = ends_with(monkeypatch, {False: (0, ""), True: (0, "")})
    assert [device.trial_error(nax) for nax in (False, False, True)] == [""] * 3
    assert tried == [False, True]
    mac(**changes)
    assert [device.trial_error(False) for _ in range(2)] == [""] * 2
    assert tried == [False, True, False]


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has a Metal GPU")
def test_without_a_gpu_the_trial_says_so(tmp_path: Path, monkeypatch):
    """And nothing is written: neither where nobody tries nor where the trial fails."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    assert MetalEngine.unavailable_because() == "MLX finds no Metal GPU"
    assert "No Metal back-end" in device.trial_error(False)
    assert not list(tmp_path.iterdir())


def test_missing_compiler_skips_or_fails_with_a_sentence(monkeypatch):
    monkeypatch.setattr(emulator, "clang", lambda: None)
    assert "is not installed" in emulator.unavailable_because()


@pytest.mark.parametrize(("works", "takes"), [(8 << 30, 1 << 30), (1 << 40, (1 << 31) - 1)])
def test_memory_is_an_eighth_of_what_the_gpu_works_with(monkeypatch, works: int, takes: int):
    """And no more than an int32 counts."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": works})
    assert MetalEngine.memory(None) == takes
