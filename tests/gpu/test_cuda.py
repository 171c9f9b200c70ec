"""Only for CUDA: its products, EXP2 by shifts, a real GPU; test_gpu.py has the rest.

Those that look for an NVIDIA GPU have not run on one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import oracle
import pytest
from cuda_emulator import without_asm
from emulator import EmulationError, Emulator
from networks import random_case
from networks_credit import credited_case
from test_credit import CREDITED, same

from eggroll import networks
from eggroll.engines import cuda as device
from eggroll.engines import trial as verdicts
from eggroll.engines.cuda import PRODUCTS, Cuda, CudaEngine
from eggroll.engines.gpu.stage import StageWriter
from eggroll.engines.portable.engine import PortableEngine
from eggroll.errors import InputError
from gpu.backend import CudaGpu, at_the_end, check_scores, engine, stage_source


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("score_bits", [4, 8])
def test_exp2_by_shifts_is_the_table(gpu: CudaGpu, launcher: Emulator, score_bits: int):
    """Every entry from 16 of them."""
    program = networks.egg(4, 4, 1)
    program.score_bits = score_bits
    head = stage_source(gpu, gpu.plans(program, 8, 1)[-1])
    body = """
int wrong = 0;
for (uint32_t u = threadIdx.x; u < 256; u += 128)
  wrong += egg::power(EXP2, u) != uint32_t(given[u]);
out[threadIdx.x] = wrong;
"""
    source = head._replace(inputs=("given",), outputs=("out",), body=body, shared=0)
    table = mx.array(oracle.EXP2[1 << score_bits].astype(np.int32))
    (wrong,) = launcher(source, [table], [((128,), mx.int32)], (128, 1, 1), (128, 1, 1))
    assert not np.array(wrong).any()


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("product", ["m16n8k32", "dp4a"])
def test_clipped_bytes_are_packed_in_order(gpu: CudaGpu, launcher: Emulator, product: str):
    """By the instruction and without it; -128, which the instruction would leave, is clipped."""
    plan, body = (
        gpu.plans(networks.egg(4, 4, 1), 8, 1)[1],
        """
int wrong = 0;
const int far[4] = {-2147483647 - 1, 2147483647, -128, -127};
for (int v = -300 + int(threadIdx.x); v <= 300; v += 128)
  for (int i = 0; i < 4; ++i) {
    const int all[4] = {v, far[i], -v, v / 2};
    const uint32_t word = egg::clipped(all);
    for (int e = 0; e < 4; ++e) wrong += egg::byte_of(word, e) != egg::clip(all[e]);
  }
out[threadIdx.x] = wrong + given[0];
""",
    )
    layer = StageWriter(plan, Cuda(product)).source()
    source = layer._replace(inputs=("given",), outputs=("out",), body=body, shared=0)
    zeros = mx.zeros(8, mx.int32)
    (wrong,) = launcher(source, [zeros], [((128,), mx.int32)], (128, 1, 1), (128, 1, 1))
    assert not np.array(wrong).any()


def test_emulation_reads_assembly_with_its_operands():
    """A matrix product reaches the emulation with the operands of its statement, or not at all."""
    code = "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
    statement = f'asm volatile("{code}" : "+r"(d[0]), "+r"(d[1]) : "r"(a), "r"(f(b, c)));'
    assert without_asm(statement) == "emu::m8n8k16(d[0], d[1], a, f(b, c));"
    for old, new in (
        ("{%2}, {%3}", "{%3}, {%2}"), ("s8.s8", "u8.s8"), ('"+r"(d[1])', '"=r"(d[1])'),
        ("{%3}, {%0, %1}", "{%3}, {%1, %0}"), ("mma.sync", "mma"),
    ):  # fmt: skip
        with pytest.raises(EmulationError):
            without_asm(statement.replace(old, new))
    pack = 'asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(h), "r"(l), "r"(a));'
    assert without_asm(pack) == "v = emu::pack(h, l, a);"
    with pytest.raises(EmulationError):
        without_asm(pack.replace("sat", "rn"))


def test_it_is_used_only_after_a_trial(monkeypatch, tmp_path: Path):
    """A wrong result or a dead process of the trial leaves the engine unused."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    monkeypatch.setenv(verdicts.SWITCH, "1")  # every trial anew
    monkeypatch.setattr(device, "device_info", lambda: {"device_name": "NVIDIA X", "uuid": "1"})
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "trial_error", device.trial_error.__wrapped__)
    ends, asked = [(0, ""), (-6, ""), (1, "warning\nother integers")], []

    def run(command: list[str], *, env: dict, **_: object) -> subprocess.CompletedProcess:
        asked.append(env[device.SWITCH])
        code, said = ends.pop(0)
        return subprocess.CompletedProcess(command, code, b"", said.encode())

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv(device.SWITCH, "dp4a")
    assert CudaEngine.unavailable_because() == ""
    why = "its trial on this GPU failed: the process was ended by SIGABRT"
    assert CudaEngine.unavailable_because() == why
    assert CudaEngine.unavailable_because() == "its trial on this GPU failed: other integers"
    assert asked == ["dp4a"] * 3
    monkeypatch.delenv(verdicts.SWITCH)
    assert CudaEngine.unavailable_because() == ""  # by the verdict of the trial that passed
    (facts,) = verdicts.read_verdicts().values()
    assert (facts["device_name"], facts["product"]) == ("NVIDIA X", "dp4a")
    assert "uuid" not in facts
    monkeypatch.setenv(device.SWITCH, "fast")
    with pytest.raises(InputError, match=r"EGGROLL_CUDA='fast'.*m16n8k32, m8n8k16, dp4a"):
        CudaEngine.unavailable_because()


@pytest.mark.skipif(mx.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_without_a_gpu_the_trial_says_so(tmp_path: Path, monkeypatch):
    """And nothing is written: neither where nobody tries nor where the trial fails."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    assert CudaEngine.unavailable_because() == "MLX finds no CUDA GPU"
    assert "No CUDA back-end" in device.trial_error("")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("product", PRODUCTS)
def test_on_this_gpu(product: str, monkeypatch):
    """Both presets' shapes on a real GPU, against plain MLX, with every product it has."""
    monkeypatch.setenv(device.SWITCH, product)
    if not device.has_gpu():
        pytest.skip("MLX finds no CUDA GPU")
    if device.architecture() < {"m16n8k32": 80, "m8n8k16": 75, "dp4a": 61}[product]:
        pytest.skip(f"this GPU has no {product}")
    assert not CudaEngine.unavailable_because()
    for shape in ({"V": 256, "D": 64, "P": 70}, {"V": 1000, "D": 256, "L": 6, "P": 66, "rank": 4}):
        case = random_case(4, T=3, **shape)
        fitness = mx.array(np.random.default_rng(0).integers(-1, 2, case.starts.shape[1], np.int8))
        results = []
        for each in (CudaEngine(case.program), PortableEngine(case.program)):
            scored = each.evaluate(each.prepare(case.leaves), case.slices, case.batch)
            votes = each.votes(fitness, case.slices, True)
            results.append([np.array(a) for a in (*scored, *votes.values())])
        for mine, plain in zip(*results, strict=True):
            np.testing.assert_array_equal(mine, plain)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("estimator", CREDITED)
def test_credit_on_this_gpu(product: str, estimator: str, monkeypatch):
    """Both presets' shapes on a real GPU, against plain MLX, with every product it has."""
    monkeypatch.setenv(device.SWITCH, product)
    if why := CudaEngine.unavailable_because():
        pytest.skip(f"no trial on a GPU: {why}")
    for shape in ({"V": 256, "D": 64, "P": 70}, {"V": 1000, "D": 256, "L": 6, "P": 66}):
        made = credited_case(4, estimator, T=3, **shape)
        scores, state, Z = made.run(PortableEngine(made.case.program))
        want = scores, state, {name: np.array(z) for name, z in Z.items()}
        same(made.run(CudaEngine(made.case.program)), want)


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize(
    ("M", "shape", "kept"),
    [
        (16, {"D": 256, "P": 22}, {(False, True), (True, True)}),
        (64, {"D": 128, "P": 70}, {(True, False), (True, True)}),
        # 1,280 inputs, and a shift that no upper word makes.
        (32, {"D": 320, "P": 2, "sigma_shift": 0}, {(True, False), (True, True)}),
    ],
)
def test_noise_that_a_launch_keeps(
    gpu: CudaGpu, launcher: Emulator, M: int, shape: dict[str, int], kept: set[tuple[bool, bool]]
):
    """Of lanes with octets: A, B or both of a matrix, and pairs that are not there."""
    case = at_the_end(random_case(4, V=5, T=2, **shape))
    plan = gpu.plans(case.program, M, rank=1)[1]
    assert {(of.A >= 0, of.B >= 0) for of in plan.factors.values()} == kept
    check_scores(engine(gpu, case.program, launcher, M), case)
