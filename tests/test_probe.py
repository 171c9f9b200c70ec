"""The report of a machine: this one, and made-up Macs and processors."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nax_check
import pytest
from conftest import Command
from nax_check import Outcome, child
from test_nax_check import M5

from eggroll import _extension, engines, probe
from eggroll.engines import trial as verdicts


def test_report_of_this_machine(call: Command, tmp_path: Path):
    path = tmp_path / "out.json"
    said = call("--json", path, main=probe.main)
    assert (said.code, said.err) == (0, "")
    found = json.loads(path.read_text())
    native = _extension.load()
    assert found["cpu"]["usable_isas"] == native.usable_isas()
    assert found["cpu"]["isa"] == native.isa()
    assert {n: w for n, w in found["engines"].items() if not w} == {
        n: w for n, w in engines.available().items() if not w
    }
    assert found["nax"]["available"] is nax_check.is_nax_available()
    assert set(found["nax"]["products"]) == set(child.KERNELS)
    for word in ("NAX", "CPU", "engines", "CUDA", "portable: available"):
        assert word in said.out


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own answer")
def test_on_linux_the_answer_is_no(call: Command):
    assert nax_check.is_nax_available() is False
    said = call("--json", "-", main=probe.main)
    found = json.loads(said.out)
    assert found["nax"]["available"] is False
    assert "Metal" in found["nax"]["reasons"][0]["text"]
    assert {p["state"] for p in found["nax"]["products"].values()} == {"not tried"}
    assert found["system"]["name"] == "Linux"


def fake_mac(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, **changes: object) -> list[float]:
    asked: list[float] = []

    def try_product(name: str, *, seconds: float) -> Outcome:
        asked.append(seconds)
        return outcome

    state = {probe.APPLE_MODEL: "Apple M5", "hw.optional.arm.FEAT_I8MM": "1",
             "hw.optional.arm.FEAT_SME": "0", "hw.perflevel0.l2cachesize": "16777216"}  # fmt: skip
    monkeypatch.setattr(nax_check, "read_facts", lambda: replace(M5, **changes))
    monkeypatch.setattr(nax_check, "try_product", try_product)
    monkeypatch.setattr(probe, "sysctl", lambda *names: {n: state[n] for n in names if n in state})
    return asked


def test_report_of_a_mac(call: Command, monkeypatch: pytest.MonkeyPatch):
    asked = fake_mac(monkeypatch, Outcome("exact", "every number"), tf32="0")
    said = call("--seconds", "9", main=probe.main)
    assert said.code == 0
    assert asked == [9, 9]
    for text in (
        "yes, by MLX's rule; int8 product: exact", "Apple M5, applegpu_g17g",
        "32 GiB, 24 GiB recommended", "MLX_ENABLE_TF32 is off", "dense int8, K 256: other units",
        "quantized float16, K 96: other units: K 96", "dense float16, K 256: NAX",
        "instructions: I8MM", "L2 16 MiB",
    ):  # fmt: skip
        assert text in said.out


def test_report_of_a_mac_that_claims_too_much(call: Command, monkeypatch: pytest.MonkeyPatch):
    why = Outcome("failed", "the process was ended by SIGABRT")
    fake_mac(monkeypatch, why, architecture="applegpu_g16s", override="applegpu_g17s")
    said = call(main=probe.main)
    assert said.code == 0
    assert "yes, by MLX's rule; int8 product: failed" in said.out
    assert "ended by SIGABRT" in said.out
    assert "MLX_METAL_GPU_ARCH" in said.out


def test_report_of_an_older_mac(call: Command, monkeypatch: pytest.MonkeyPatch):
    fake_mac(monkeypatch, Outcome("exact", "all"), architecture="applegpu_g16s", nax_kernels=False)
    said = call(main=probe.main)
    assert "no, by MLX's rule" in said.out
    assert "+ macOS" in said.out
    assert "- kernels" in said.out
    assert "(of MLX's own kernels alone)" in said.out
    assert "engine metal: without NAX (MLX finds no Metal GPU)" in said.out
    assert "- generation" in said.out
    assert "dense int8" not in said.out


def test_engines_are_tried_anew(call: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Whoever asks the probe has a reason to doubt a verdict that was kept."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    verdicts.keep_verdict({"chip": "M4"})
    assert call(main=probe.main).code == 0
    assert not verdicts.passed_before({"chip": "M4"})


def test_engine_metal_uses_nax_without_kernels_of_mlx(call: Command, monkeypatch):
    fake_mac(monkeypatch, Outcome("exact", "all"), nax_kernels=False)
    monkeypatch.setattr(probe.metal, "nax_unused_because", lambda: "")
    said = call(main=probe.main)
    assert "no, by MLX's rule" in said.out
    assert "engine metal: with NAX" in said.out


def test_a_bad_isa_and_a_missing_extension_are_reported(
    call: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EGGROLL_ISA", "none")
    said = call(main=probe.main)
    assert said.code == 0
    assert "EGGROLL_ISA" in said.out
    monkeypatch.setattr(_extension, "NAME", "eggroll._none")
    said = call(main=probe.main)
    assert said.code == 0
    assert "kernels: none known" in said.out
    assert "cpu: The compiled extension" in said.out


def test_cuda_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe.mx, "cuda", SimpleNamespace(is_available=lambda: True))
    monkeypatch.setattr(probe.mx, "device_info", lambda where: {"device_name": "NVIDIA X"})
    assert probe.cuda() == {"available": True, "device": "NVIDIA X", "reason": ""}

    def broken(where: object) -> dict[str, object]:
        raise RuntimeError("driver\ntoo old")

    monkeypatch.setattr(probe.mx, "device_info", broken)
    assert probe.cuda() == {"available": False, "device": "", "reason": "driver too old"}
    monkeypatch.setattr(probe.mx, "cuda", None)
    assert "no CUDA backend" in probe.cuda()["reason"]


def linux(root: Path, cpuinfo: str, caches: list[tuple[str, str, str]]) -> Path:
    """A made-up /proc and /sys."""
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpuinfo)
    for i, values in enumerate(caches):
        folder = root / f"sys/devices/system/cpu/cpu0/cache/index{i}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (folder / name).write_text(value + "\n")
    return root


def test_cpu_facts_on_linux(tmp_path: Path):
    x86 = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: A: B\n"
    x86 += "flags\t\t: fpu avx2 avx_vnni avx512\n"
    caches = [("1", "Data", "48K"), ("2", "Unified", "1024K"), ("3", "Unified", "32M")]
    found = probe.linux_cpu(linux(tmp_path, x86, caches))
    assert (found["model"], found["instructions"]) == (
        "A: B (family 26, model 2)", ["avx2", "avx_vnni"],
    )  # fmt: skip
    assert found["caches"] == {"L1d": 48 << 10, "L2": 1 << 20, "L3": 32 << 20}


def test_cpu_facts_on_arm_and_where_there_are_none(tmp_path: Path):
    assert probe.linux_cpu(tmp_path) == {"model": "", "instructions": [], "caches": {}}
    arm = "Features\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    found = probe.linux_cpu(linux(tmp_path, arm, [("1", "Instruction", "odd")]))
    assert found["model"] == "CPU implementer 0x41, CPU part 0xd40"
    assert found["instructions"] == ["asimd", "asimddp", "i8mm"]
    assert found["caches"] == {"L1i": 0}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--json missing/out.json", "'missing/out.json' is no place for a file"),
        ("--json .", "'.' is no place for a file"),
        ("--json", "--json"),
        ("--seconds 0", "--seconds is 0"),
        ("--seconds x", "a whole number is needed"),
        ("--jsn x", "did you mean --json?"),
    ],
)
def test_bad_input(
    call: Command, words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = call(*words.split(), main=probe.main)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told_at_once(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object) -> None:
        raise AssertionError("surveyed in vain")

    monkeypatch.setattr(probe, "survey", fails)
    assert call("--json", tmp_path / "none" / "x", main=probe.main).code == 2


@pytest.mark.parametrize(("rate", "slow"), [(2.5, True), (30.0, False)])
def test_a_slow_blas_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch, rate, slow):
    assert probe.blas_rate(64, 1) > 0
    monkeypatch.setattr(probe, "blas_rate", lambda: rate)
    found = probe.blas()
    assert (found["gflops"], found["slow"]) == (rate, slow)
    report = json.loads(json.dumps(probe.survey(1) | {"blas": found}))
    rows = [text for name, text in probe.lines(report)]
    (row,) = [text for name, text in probe.lines(report) if name == "MLX's BLAS"]
    assert f"{rate:g} GFLOP/s in float32" in row
    told = [text for text in rows if "LD_PRELOAD=libopenblas.so.0" in text]
    assert len(told) == slow
