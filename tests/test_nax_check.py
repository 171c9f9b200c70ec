"""The rule on Apple's matrix units, the facts it reads, and the processes that multiply."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import nax_check
import numpy as np
import pytest
from nax_check import Facts, Outcome, child, decide, facts

import eggroll.nax_check

NATIVE = Path(__file__).parent / "native"
M5 = Facts(
    system="Darwin", os_version="26.2", metal=True, chip="Apple M5", architecture="applegpu_g17g",
    wheel="mlx-metal 0.32.4 (py3-none-macosx_26_0_arm64)", metallib="mlx.metallib",
    nax_kernels=True, memory=32 << 30, working_set=24 << 30,
)  # fmt: skip


def unmet(**changes: object) -> list[str]:
    """Names of the conditions that an M5 with these changes does not meet."""
    decision = decide(replace(M5, **changes))
    assert decision.available == all(reason.met for reason in decision.reasons)
    return [reason.name for reason in decision.reasons if not reason.met]


def test_both_names_are_one_function():
    assert eggroll.nax_check.is_nax_available is nax_check.is_nax_available
    assert set(eggroll.nax_check.__all__) == set(nax_check.__all__)


@pytest.mark.parametrize("module", ["nax_check", "eggroll.nax_check"])
def test_importing_does_nothing(module: str, tmp_path: Path):
    code = f"import sys, {module}; sys.exit(any(m.startswith('mlx') for m in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize("letter", "gscdp")
@pytest.mark.parametrize("number", [13, 14, 15, 16, 17, 18, 19])
@pytest.mark.parametrize("version", ["15.7.1", "26.0", "26.1", "26.1.9", "26.2", "26.3.1", "27.0"])
def test_every_generation_letter_and_version(number: int, letter: str, version: str):
    """M1 is 13, M2 14, M3 15, M4 16, M5 17; p is a phone's, which comes a generation later."""
    expected = []
    if version in ("15.7.1", "26.0", "26.1", "26.1.9"):
        expected.append("macOS")
    if number < 17 or (letter == "p" and number == 17):
        expected.append("generation")
    name = f"applegpu_g{number}{letter}"
    assert unmet(architecture=name, os_version=version) == expected


def test_what_the_gpu_family_gets_wrong():
    """M3 and M4 are family Apple 9 too; neither has the units."""
    assert unmet(chip="Apple M3 Max", architecture="applegpu_g15s") == ["generation"]
    assert unmet(chip="Apple M4 Pro", architecture="applegpu_g16s") == ["generation"]


@pytest.mark.parametrize(
    ("architecture", "number"),
    [
        *(("applegpu_g17s", 17), ("applegpu_g9p", 9), ("applegpu_g170s", 70), ("g17", 1)),
        *(("17s", 17), ("7s", 0), ("s", 0), ("", 0), ("applegpu", 0), ("applegpu_gx7s", 7)),
        *(("applegpu_g1xs", 10), ("applegpu_g1٧s", 0), ("applegpu_g17s ", 70)),
    ],
)
def test_generation_of_odd_strings(architecture: str, number: int):
    """As MLX reads them: the two bytes before the last, whatever is no digit being 0."""
    assert nax_check.generation(architecture) == number


def test_an_unknown_architecture_is_none():
    assert unmet(architecture="") == ["generation"]
    assert "unknown" in decide(replace(M5, architecture="")).reasons[-1].text


@pytest.mark.parametrize("version", ["", "x", "26.", "26.x", ".2", "26.2-beta", "99999", "-26.2"])
def test_versions_that_are_none(version: str):
    assert unmet(os_version=version) == ["macOS"]


def test_a_version_is_compared_by_numbers():
    assert unmet(os_version="26.10") == []
    assert unmet(os_version="26") == ["macOS"]
    assert unmet(os_version="100") == []


def test_the_override_counts_both_ways():
    assert unmet(override="applegpu_g16s") == ["generation"]
    assert unmet(architecture="applegpu_g16s", override="applegpu_g17s") == []
    assert unmet(override="") == []  # set but empty is not set
    (reason,) = (r for r in decide(replace(M5, override="applegpu_g18p")).reasons[-1:])
    assert reason.met
    assert "MLX_METAL_GPU_ARCH" in reason.text
    assert "Apple M5" in reason.text


def test_wheels_without_kernels():
    """Only MLX's own kernels must be in its library: those compiled at run time need not."""
    assert unmet(nax_kernels=False, wheel="mlx-metal 0.32.4 (macosx_15_0)") == ["kernels"]
    assert unmet(nax_kernels=False, metallib="") == ["kernels"]
    assert [r.name for r in decide(M5).reasons if r.mlx_only] == ["kernels"]
    assert decide(replace(M5, nax_kernels=False)).obstacles == ()
    old = decide(replace(M5, nax_kernels=False, os_version="15.5", architecture="applegpu_g16g"))
    assert [reason.name for reason in old.obstacles] == ["macOS", "generation"]
    assert [reason.name for reason in decide(replace(M5, system="Linux")).obstacles] == ["system"]


def test_no_metal_device():
    assert unmet(metal=False) == ["Metal"]
    told = decide(replace(M5, metal=False, trouble="it is out")).reasons[0]
    assert told.text == "it is out"


@pytest.mark.parametrize("system", ["Linux", "Windows", ""])
def test_other_systems(system: str):
    decision = decide(replace(M5, system=system))
    assert not decision.available
    assert [reason.name for reason in decision.reasons] == ["system"]
    assert decision.reasons[0].text.startswith(system or "unknown")


@pytest.mark.parametrize(
    ("value", "on"),
    [
        *((None, True), ("1", True), ("0", False), ("", False), ("true", False), ("2x", True)),
        *((" 1", True), ("-1", True), ("+0", False), ("00", False), ("9" * 5000, True)),
    ],
)
def test_tf32_as_atoi_reads_it(value: str | None, on: bool):
    assert nax_check.tf32_enabled(value) is on


def test_gates():
    gate = nax_check.gate
    assert not gate("float16", 256)
    assert not gate("bfloat16", 100)
    assert not gate("float16", 128, quantized=True)
    assert "K 96 is no multiple of 64" in gate("float16", 96, quantized=True)
    assert not gate("float32", 256)
    assert "MLX_ENABLE_TF32" in gate("float32", 256, tf32=False)
    for other in ("int8", "int32", "complex64"):
        assert "float16, bfloat16, float32 only" in gate(other, 256)


# Facts of a Mac, read through made-up tools.


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine that looks like an M5 with the macosx_26 wheel; change what it holds."""
    library = tmp_path / "mlx" / "lib" / "mlx.metallib"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"MTLB" + bytes(5000) + b"steel_gemm_fused_nax_nn_float16_float16")
    told = {"kern.osproductversion": "26.3"}
    device = {"device_name": "Apple M5", "architecture": "applegpu_g17g", "memory_size": 1 << 34,
              "max_recommended_working_set_size": 3 << 32}  # fmt: skip
    mlx = SimpleNamespace(
        gpu="gpu",
        metal=SimpleNamespace(is_available=lambda: True),
        device_info=lambda where: device,
    )
    monkeypatch.setattr(facts.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(facts.platform, "mac_ver", lambda: ("16.0", ("", "", ""), "arm64"))
    monkeypatch.setattr(facts, "import_module", lambda name: mlx)
    monkeypatch.setattr(
        facts.util, "find_spec",
        lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path / "mlx")]),
    )  # fmt: skip
    monkeypatch.setattr(facts, "sysctl", lambda *names: {n: told[n] for n in names if n in told})
    for name in ("MLX_METAL_GPU_ARCH", "MLX_ENABLE_TF32"):
        monkeypatch.delenv(name, raising=False)
    return SimpleNamespace(library=library, told=told, device=device, mlx=mlx)


def test_facts_of_a_mac(mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    found = nax_check.read_facts()
    assert (found.os_version, found.architecture) == ("26.3", "applegpu_g17g")
    assert (found.memory, found.working_set) == (1 << 34, 3 << 32)
    assert found.metallib == str(mac.library)
    assert found.nax_kernels
    assert nax_check.is_nax_available()
    monkeypatch.setenv("MLX_METAL_GPU_ARCH", "applegpu_g16s")
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    assert nax_check.read_facts().tf32 == "0"
    assert not nax_check.is_nax_available()


def test_a_mac_without_kernels(mac: SimpleNamespace):
    for content in (b"MTLB steel_gemm_fused_nn", b""):
        mac.library.write_bytes(content)
        assert not nax_check.is_nax_available()
    mac.library.unlink()
    assert nax_check.read_facts().metallib == ""
    assert not nax_check.is_nax_available()


def test_a_mac_that_hides_its_version(mac: SimpleNamespace):
    """An old Python is told 16.0; without sysctl that is all there is, and it is not enough."""
    mac.told.clear()
    assert nax_check.read_facts().os_version == "16.0"
    assert not nax_check.is_nax_available()


def test_a_mac_whose_device_cannot_be_read(mac: SimpleNamespace):
    def broken(where: str) -> dict[str, object]:
        raise RuntimeError("no\ndevice")

    mac.mlx.device_info = broken
    assert "no device" in decide(nax_check.read_facts()).reasons[0].text
    mac.mlx.metal.is_available = lambda: False
    assert "no Metal device" in decide(nax_check.read_facts()).reasons[0].text
    assert not nax_check.is_nax_available()


def test_sysctl_reads_what_is_known(tmp_path: Path):
    program = tmp_path / "sysctl"
    lines = '"a.b: 26.2: x"', '"other: 1"', '"c.d: $SYSTEM_VERSION_COMPAT"'
    program.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines) + "exit 1\n")
    program.chmod(0o755)
    found = facts.sysctl("a.b", "c.d", "e.f", program=str(program))
    assert found == {"a.b": "26.2: x", "c.d": "0"}
    assert facts.sysctl("a.b", program=str(tmp_path / "none")) == {}


def test_a_wheel_is_named():
    assert facts.wheel_of(["no-such-package-here"]) == ""
    assert facts.wheel_of(["no-such-package-here", "mlx"]).startswith("mlx 0.")
    assert "(cp" in facts.wheel_of(["mlx"])


# The process that multiplies, and what its parent makes of it.


def ended(code: str, seconds: float = 60) -> Outcome:
    return nax_check.run_child([sys.executable, "-c", code], seconds)


@pytest.mark.parametrize(
    ("code", "state", "says"),
    [
        ("print('noise'); print('{\"exact\": true, \"text\": \"all\"}')", "exact", "all"),
        ("print('{\"exact\": false, \"text\": \"3 of 4\"}')", "wrong", "3 of 4"),
        ("import os; os.abort()", "failed", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 11)", "failed", "SIGSEGV"),
        pytest.param(
            "import os; os.kill(os.getpid(), 40)", "failed", "ended by signal 40",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no such signal"),
        ),
        ("import sys; sys.exit('no Metal\\n\\n')", "failed", "code 1: no Metal"),
        ("raise SystemExit(7)", "failed", "code 7"),
        ("1 / 0", "failed", "ZeroDivisionError"),
        ("pass", "failed", "''"),
        ("print('hello')", "failed", "'hello'"),
        ("print('{\"exact\": 1, \"text\": \"x\"}')", "failed", "no result"),
        ("print('{\"exact\": true}')", "failed", "no result"),
        ("print('[true]')", "failed", "no result"),
        ("print('[' * 100000)", "failed", "no result"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "failed", "no result"),
        # What came before a crash does not count.
        ("print('{\"exact\": true, \"text\": \"all\"}', flush=True); import os; os.abort()",
         "failed", "SIGABRT"),
    ],
)  # fmt: skip
def test_how_a_child_ends(code: str, state: str, says: str):
    outcome = ended(code)
    assert outcome.state == state
    assert says in outcome.text
    assert "\n" not in outcome.text


def test_a_child_that_hangs_is_ended(tmp_path: Path):
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    assert ended(code, 2) == Outcome("failed", "no answer within 2 seconds")
    if mark.exists():  # a very slow machine may not have come that far
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


def test_a_child_that_does_not_start(tmp_path: Path):
    outcome = nax_check.run_child([str(tmp_path / "none")], 5)
    assert outcome.state == "failed"
    assert "did not start" in outcome.text


@pytest.mark.skipif(sys.platform == "darwin", reason="there the products run")
@pytest.mark.parametrize("name", list(child.KERNELS))
def test_the_real_child_without_metal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "json.py").write_text("raise SystemExit(9)")  # nothing here may be imported
    monkeypatch.chdir(tmp_path)
    outcome = nax_check.try_product(name)
    assert outcome.state == "failed"
    assert "No Metal back-end" in outcome.text


@pytest.mark.skipif(not mx.metal.is_available(), reason="there is no Metal device")
@pytest.mark.parametrize("name", list(child.KERNELS))
def test_no_product_is_wrong_on_metal(name: str):
    """A GPU may refuse a kernel; what it does compute has to be exact."""
    outcome = nax_check.try_product(name)
    assert outcome.state in ("exact", "failed"), outcome.text


def test_a_child_with_an_unknown_kernel(capsys: pytest.CaptureFixture[str]):
    assert child.main("none") == 1
    assert "none" in capsys.readouterr().err


def test_a_compiler_that_complains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def on_gpu(*_: object) -> None:
        raise RuntimeError("Unable to build\n\nprogram_source:9: error: no tensor\n    tensor\n")

    monkeypatch.setattr(child, "on_gpu", on_gpu)
    assert child.main("tensor") == 1
    assert capsys.readouterr().err == "program_source:9: error: no tensor\n"


@pytest.mark.parametrize("name", list(child.KERNELS))
def test_comparison_is_exact(name: str):
    kernel = child.KERNELS[name]
    left, right = child.operands(kernel)
    assert min(left.min(), right.min()) == -127
    wanted = left.astype(np.int64) @ right.astype(np.int64)
    assert child.compare(wanted.astype(np.int32), kernel)["exact"] is True
    wanted[3, 5] += 1
    answer = child.compare(wanted.astype(np.int32), kernel)
    assert answer["exact"] is False
    assert "1 of" in str(answer["text"])
    assert "[3, 5]" in str(answer["text"])


def test_operands_tell_accumulators_apart():
    """Past 2^24 no float holds the odd sum; the half products' own stay below."""
    sums = {}
    for name, kernel in child.KERNELS.items():
        left, right = child.operands(kernel)
        sums[name] = np.abs(left.astype(np.int64)) @ np.abs(right.astype(np.int64))
        first = int(left[0].astype(np.int64) @ right[:, 0].astype(np.int64))
        assert (int(np.float32(first)) == first) is (name == "simdgroup")
    assert sums["simdgroup"].max() < 1 << 24 < sums["tensor"].max()


@pytest.mark.parametrize("name", list(child.KERNELS))
def test_kernels_on_the_cpu(name: str, tmp_path: Path):
    """Their logic and bounds, through a shim in C++; not Apple's compiler."""
    kernel = child.KERNELS[name]
    assert kernel.source.isascii()
    lines = child.defines(kernel).splitlines()
    (tmp_path / "sizes.h").write_text(
        "\n".join(line for line in lines if line.startswith("#define")) + "\n"
    )
    (tmp_path / "body.inc").write_text(kernel.source)
    program = tmp_path / "program"
    subprocess.run(
        [
            *(os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-pthread"),
            *("-include", str(tmp_path / "sizes.h"), f'-DKERNEL="{tmp_path}/body.inc"'),
            *(str(NATIVE / "metal_product.cpp"), "-o", str(program)),
        ],
        check=True,
    )
    operands = child.operands(kernel)
    paths = [tmp_path / "left", tmp_path / "right"]
    for path, matrix in zip(paths, operands, strict=True):
        path.write_bytes(matrix.tobytes())
    grid = kernel.n // kernel.tile_n, kernel.m // kernel.tile_m
    assert (grid[0] * kernel.tile_n, grid[1] * kernel.tile_m) == (kernel.n, kernel.m)
    result = tmp_path / "product"
    subprocess.run([program, *map(str, grid), *paths, result], check=True)
    found = np.fromfile(result, np.int32).reshape(kernel.m, kernel.n)
    answer = child.compare(found, kernel)
    assert answer["exact"], answer["text"]
