"""The float kernels without Python: under sanitizers, at AVX-512's width, and for arm64 emulated.

AVX-512 itself runs only where the processor has it. Elsewhere the template is compiled at its width
and with its tiles for what there is ("wide"), which executes the algorithm, not the instructions.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import float_kernels
import pytest
from conftest import needs_emulation

ROOT = Path(__file__).parents[1]
NATIVE, SOURCES = ROOT / "tests" / "native", ROOT / "extensions" / "float_kernels"
FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512f": ["-mavx2", "-mfma", "-mavx512f", "-Wno-uninitialized", "-Wno-maybe-uninitialized"],
    "neon": [],
}
COMMON = [
    *("-std=c++20", "-g0", "-pthread", "-fno-math-errno", "-ffp-contract=fast"),
    *("-Wall", "-Wextra", "-Wno-psabi", "-Werror", f"-I{SOURCES}"),
]
ADDRESS = "-fsanitize=address"
SANITIZE = [ADDRESS, "-fsanitize=undefined", "-fno-sanitize-recover=all"]
PLAIN = [SOURCES / f"{name}.cpp" for name in ("dispatch", "pool", "scratch")]
PROGRAM = [NATIVE / "float_kernels.cpp", NATIVE / "float_elements.cpp"]
CASES = 1003


def build(folder: Path, compiler: str, sources: dict[Path, list[str]], *flags: str) -> Path:
    """Compiles each source with its flags beside the common ones; returns the program."""
    commands = [
        [compiler, *COMMON, *flags, *own, "-c", str(source), "-o", str(folder / f"{source.stem}.o")]
        for source, own in sources.items()
    ]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in running] == [0] * len(running)
    program, objects = folder / "program", [command[-1] for command in commands]
    link = [flag for flag in flags if flag == "-static"]
    link += SANITIZE if any(ADDRESS in own for own in sources.values()) else []
    subprocess.run([compiler, "-pthread", *link, *objects, "-o", str(program)], check=True)
    return program


def checked(isas: list[str], *command: str | Path) -> None:
    """Runs the program; every instruction set must have passed every case."""
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # the pool is kept on purpose
    done = subprocess.run([*command, *isas], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{isa}: {CASES} cases" for isa in isas]


def test_every_shape_under_sanitizers(tmp_path: Path):
    compiler = os.environ.get("CXX", "c++")
    empty = [compiler, *SANITIZE, "-x", "c++", "-", "-o", str(tmp_path / "empty")]
    if subprocess.run(empty, input=b"int main() {}", check=False).returncode:
        pytest.skip(f"{compiler} has no sanitizers")
    isas = [isa for isa in float_kernels.isas() if isa != "generic"]
    have = [f"-DFK_HAVE_{isa.upper()}" for isa in isas]
    here = FLAGS["avx2"] if "avx2" in isas else []
    sources = {path: [*SANITIZE, *have] for path in PLAIN}
    # What is checked lies on the heap, which is guarded whatever the program was compiled with.
    sources |= {path: ["-O1", "-DFK_WIDE"] for path in PROGRAM}
    sources |= {SOURCES / f"isa_{isa}.cpp": [*SANITIZE, *FLAGS[isa]] for isa in isas}
    sources |= {SOURCES / "isa_generic.cpp": [], NATIVE / "float_isa_wide.cpp": [ADDRESS, *here]}
    checked([*isas, "wide"], build(tmp_path, compiler, sources, "-O0"))


def test_arm64_under_emulation(tmp_path: Path):
    needs_emulation()
    sources = {path: ["-DFK_HAVE_NEON"] for path in (*PLAIN, *PROGRAM)}
    sources |= {SOURCES / f"isa_{isa}.cpp": [] for isa in ("generic", "neon")}
    program = build(tmp_path, "aarch64-linux-gnu-g++", sources, "-O1", "-static")
    checked(["neon"], "qemu-aarch64", "-cpu", "max", program)


def masks(compiler: str, folder: Path, *flags: str) -> ctypes.CDLL:
    path = folder / "mask.so"
    command = [compiler, "-O2", "-shared", "-fPIC", *flags, str(NATIVE / "float_mask.cpp")]
    subprocess.run([*command, "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    for function in (library.masked_by_arithmetic, library.masked_by_branch):
        function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float, ctypes.c_float]
    return library


LEGAL = (1.5, -3.0, 0.25)  # exact in float32, so the sum with 0 is


def test_mask_by_arithmetic_loses_every_logit_under_fast_math(tmp_path: Path):
    """clang turns a legal move's logit into 0; a branch is right with any flags."""
    if not shutil.which("clang++"):
        pytest.skip("clang++ is missing: gcc does not show what -ffast-math does to the mask")
    fast = masks("clang++", tmp_path, "-ffast-math")
    assert [fast.masked_by_arithmetic(x, 1.0) for x in LEGAL] == [0.0] * len(LEGAL)
    assert [fast.masked_by_branch(x, 1.0) for x in LEGAL] == list(LEGAL)
    assert fast.masked_by_branch(1.5, 0.0) == fast.masked_by_arithmetic(1.5, 0.0) == -1e8


def test_mask_without_fast_math(tmp_path: Path):
    plain = masks(os.environ.get("CXX", "c++"), tmp_path)
    for mask in (plain.masked_by_arithmetic, plain.masked_by_branch):
        assert [mask(x, 1.0) for x in LEGAL] == list(LEGAL)
        assert mask(1.5, 0.0) == -1e8


def test_no_fast_math_in_the_sources():
    """Neither in the extension's flags nor asked for by a pragma."""
    files = [*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), SOURCES / "CMakeLists.txt"]
    assert len(files) > 10
    asked = "-ffast-math", "-Ofast", "fast-math", "associative-math", "unsafe-math"
    assert [path.name for path in files for flag in asked if flag in path.read_text()] == []
