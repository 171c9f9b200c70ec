"""The kernels without MLX or Python: under sanitizers here, and for arm64 under emulation."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent / "native"
SOURCES = Path(__file__).parents[1] / "extensions" / "int8_gemm"
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mbmi2"],
    # In AVX-512's encoding, which more machines of continuous integration have; see replay.cpp.
    "avxvnni": ["-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512vl", "-mavx512vnni"],
    "avx512vnni": [
        *("-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-mavx512vbmi", "-mavx512vnni"),
    ],
}
ARM = {
    "neon": [],
    "neon_dotprod": ["-march=armv8.2-a+dotprod"],
    "neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
}
REQUIRED = os.environ.get("EGGROLL_REQUIRE", "").split(",")  # of what else may be skipped


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(NATIVE))
    import cases

    path = tmp_path_factory.mktemp("native") / "cases.bin"
    cases.write(path)
    return path


def build(folder: Path, compiler: str, isas: dict[str, list[str]], *flags: str) -> Path:
    """Compiles the kernels and replay.cpp, side by side; returns the program."""
    dispatched = [name for name in isas if name != "avxvnni"]  # that one is replayed directly
    have = [f"-DEGG_HAVE_{name.upper()}" for name in dispatched]
    common = [compiler, "-std=c++20", "-Wall", "-Wextra", *flags, *have, f"-I{SOURCES}"]
    units = {"generic": [], **isas}
    files = {SOURCES / f"isa_{name}.cpp": extra for name, extra in units.items()}
    files |= {path: [] for path in (SOURCES / "dispatch.cpp", SOURCES / "program.cpp")}
    files[NATIVE / "replay.cpp"] = []
    objects, running = [], []
    for source, extra in files.items():
        objects.append(str(folder / source.with_suffix(".o").name))
        command = [*common, *extra, "-c", str(source), "-o", objects[-1]]
        running.append(subprocess.Popen(command))
    assert [process.wait() for process in running] == [0] * len(running)
    program = folder / "replay"
    subprocess.run([*common, *objects, "-o", str(program)], check=True)
    return program


def replay(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def missing(what: str) -> None:
    if "arm64" in REQUIRED:
        pytest.fail(f"{what} is required here")
    pytest.skip(f"{what} is not installed")


def test_kernels_under_sanitizers(cases: Path, tmp_path: Path):
    compiler = os.environ.get("CXX", "c++")
    from eggroll import _extension

    usable = _extension.load().usable_isas()
    isas = X86 if platform.machine() in ("x86_64", "AMD64") else ARM
    extra = ["-DEGG_REPLAY_AVXVNNI"] if "avx512vnni" in usable else []
    sanitize = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    empty = ["-x", "c++", "-", "-o", str(tmp_path / "empty")]
    tried = subprocess.run([compiler, *sanitize, *empty], input=b"int main() {}", check=False)
    if tried.returncode:
        pytest.skip(f"{compiler} has no sanitizers")
    said = replay(build(tmp_path, compiler, isas, "-O1", "-g0", *sanitize, *extra), cases)
    assert said.splitlines()[0] == "usable: " + " ".join(usable)
    for isa in {*usable, "avxvnni"} if extra else usable:
        assert f"{isa}: 5 cases replayed" in said


@pytest.mark.parametrize(
    ("cpu", "usable"),
    [
        ("max", "neon_i8mm neon_dotprod neon generic"),
        ("neoverse-n1", "neon_dotprod neon generic"),
        ("cortex-a57", "neon generic"),
    ],
)
def test_arm64_kernels_under_emulation(cases: Path, arm64: Path, cpu: str, usable: str):
    """-cpu max has all, neoverse-n1 no matrix products and cortex-a57 no dot product either."""
    said = replay("qemu-aarch64", "-cpu", cpu, arm64, cases)
    assert said.splitlines()[0] == f"usable: {usable}"


@pytest.fixture(scope="session")
def arm64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if not compiler:
        missing("aarch64-linux-gnu-g++")
    if not shutil.which("qemu-aarch64"):
        missing("qemu-aarch64")
    assert compiler
    return build(tmp_path_factory.mktemp("arm64"), compiler, ARM, "-O2", "-static")
