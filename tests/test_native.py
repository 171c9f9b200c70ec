"""The kernels without MLX or Python: under sanitizers here, and for arm64 under emulation.

Six programs do the work. `replay` repeats small training runs recorded by the oracle; `kernels`
and `rows` compare every operation with a plain reference at the sizes and values where kernels go
wrong; `worlds` compares members in worlds with the same members told row by row; `ends`
looks at whole quotients and long sums; `products` compares products of credit with plain sums. A
seventh, `choice`, plays processors and systems that lack what an instruction set needs, and an
eighth, `parts`, looks at how stages are cut.
"""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import EMULATED, needs_emulation

NATIVE = Path(__file__).parent / "native"
SOURCES = Path(__file__).parents[1] / "extensions" / "int8_gemm" / "cpu"
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mbmi2"],
    "avxvnni": ["-mavx2", "-mfma", "-mbmi2", "-mavxvnni"],
    "avx512vnni": [
        *("-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-mavx512vbmi", "-mavx512ifma", "-mavx512vnni"),
    ],
}
X86["amx"] = [*X86["avx512vnni"], "-mamx-tile", "-mamx-int8"]
# AVX-VNNI in AVX-512's encoding, where the processor has only that; see units.h.
RECODED = ["-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512vl", "-mavx512vnni"]
ARM = {
    "neon": [],
    "neon_dotprod": ["-march=armv8.2-a+dotprod"],
    "neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
}
TILES = {"amx_plain": "-DEGG_PLAIN_TILES", "amx_avx512": "-DEGG_PLAIN_TILES_AVX512"}
SANITIZE = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
# Of the largest units, to compile them in half the time: checks of memory are called and not
# written out, and null and misaligned pointers and the sizes of objects are left to the others,
# which are made of the same templates.
BRIEF = ["--param=asan-instrumentation-with-call-threshold=0"]  # GCC's
BRIEF += ["-fno-sanitize=null,alignment,object-size"]
HEADER = Path(__file__).parents[1] / "eggroll" / "native"
# As every compiler takes them.
PLAIN = "dispatch.cpp", "program.cpp", "parts.cpp", "crediting.cpp", "machine.cpp", "stepper.cpp"
CASES = {"kernels": 6645, "rows": 401, "worlds": 105, "ends": 67}  # that these compare
CROSS = "aarch64-linux-gnu-g++"
# Where Debian and Ubuntu put the libraries that go with CROSS.
EMULATE = "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu"


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(NATIVE))
    import cases

    path = tmp_path_factory.mktemp("native") / "cases.bin"
    cases.write(path)
    return path


def build(
    folder: Path,
    compiler: str,
    isas: dict[str, list[str]],
    *flags: str,
    plain: Sequence[str] = (),
    tiles: dict[str, list[str]] | None = None,
) -> Path:
    """Compiles the kernels; returns the folder of the programs.

    plain: flags of generic code. tiles: units of AMX with tiles in plain C++, and their flags.
    """
    recoded = isas.get("avxvnni") == RECODED  # then it is called directly
    dispatched = [name for name in isas if name != "avxvnni" or not recoded]
    have = [f"-DEGG_HAVE_{name.upper()}" for name in dispatched]
    common = [compiler, "-std=c++20", "-pthread", "-Wall", "-Wextra", *flags, *have]
    common += [f"-I{SOURCES}", f"-I{HEADER}"]
    units = {"generic": [*plain], **isas}
    files = {SOURCES / f"isa_{name}.cpp": extra for name, extra in units.items()}
    files |= {path: [] for path in map(SOURCES.joinpath, PLAIN)}
    for name, extra in (tiles or {}).items():
        files[NATIVE / f"isa_{name}.cpp"] = ["-O2", *extra]
        common.append(TILES[name])
    programs = [NATIVE / f"{name}.cpp" for name in ("replay", *CASES)]
    # They hand over what lies in vectors, whose ends sanitizers know however this is compiled.
    checked = files | {path: ["-fno-sanitize=all", "-O1"] for path in programs}
    objects, running = {}, []
    for source, extra in checked.items():
        objects[source] = str(folder / source.with_suffix(".o").name)
        command = [*common, *extra, "-c", str(source), "-o", objects[source]]
        running.append(subprocess.Popen(command))
    assert [process.wait() for process in running] == [0] * len(running)
    for program in programs:
        linked = [*(objects[source] for source in files), objects[program]]
        subprocess.run([*common, *linked, "-o", str(folder / program.stem)], check=True)
    return folder


def run(*command: str | Path) -> list[str]:
    """The lines a program says, once it has found nothing that differs."""
    # The sanitizer's search for leaks cannot run under emulation.
    leaks = {"ASAN_OPTIONS": "detect_leaks=0"} if command[0] == EMULATE[0] else {}
    env = {**os.environ, **leaks}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def has_sanitizers(compiler: str, folder: Path, *more: str) -> bool:
    command = [compiler, *SANITIZE, *more, "-x", "c++", "-", "-o", str(folder / "empty")]
    return subprocess.run(command, input=b"int main() {}", check=False).returncode == 0


def replayed(said: list[str], units: list[str]) -> None:
    assert said[1:] == [f"{unit}: 32 cases replayed" for unit in units]


def compared(
    folder: Path, units: list[str], covered: set[str], *before: str, every: int = 1
) -> None:
    """Runs the programs that compare, at every n-th case."""
    for name, cases in CASES.items():
        said = run(*before, folder / name, str(every))
        assert [line.partition(": ")[0] for line in said] == units
        for line in said:
            assert sum(int(word) for word in line.split() if word.isdigit()) == -(-cases // every)
    covered.update(units)


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """The programs for this machine; the units dispatch lists, and those the programs run."""
    from eggroll import _extension

    compiler, folder = os.environ.get("CXX", "c++"), tmp_path_factory.mktemp("here")
    if not has_sanitizers(compiler, folder):
        pytest.skip(f"{compiler} has no sanitizers")
    usable = _extension.load().usable_isas()
    # Those that run here: the others are compiled with the extension.
    isas = {k: v for k, v in (X86 | ARM).items() if k in usable}
    extra = []
    if "avx512vnni" in usable and "avxvnni" not in usable:
        isas["avxvnni"] = RECODED
        extra = ["-DEGG_REPLAY_AVXVNNI"]
    brief = BRIEF if has_sanitizers(compiler, folder, *BRIEF) else []
    if "avx512vnni" in isas:
        isas["avx512vnni"] = [*X86["avx512vnni"], *brief]
    tiles: dict[str, list[str]] = {"amx_plain": []}
    # The unit of AMX with its own tiles, or else with such in plain C++.
    if "amx" in isas:
        isas["amx"] = [*X86["amx"], *brief, "-O0"]
    elif "avx512vnni" in isas:
        tiles["amx_avx512"] = [*X86["avx512vnni"], "-O1", *brief]
    build(folder, compiler, isas, "-O1", "-g0", *SANITIZE, *extra, tiles=tiles)
    return folder, usable, [*usable, *(["avxvnni"] if extra else []), *tiles]


def test_recorded_cases_under_sanitizers(here: tuple[Path, list[str], list[str]], cases: Path):
    folder, usable, units = here
    said = run(folder / "replay", cases)
    assert said[0] == "usable: " + " ".join(usable)
    replayed(said, units)


def test_kernels_under_sanitizers(here: tuple[Path, list[str], list[str]], covered: set[str]):
    folder, _, units = here
    compared(folder, units, covered)


def test_products_of_credit_under_sanitizers(tmp_path: Path):
    """What AVX2 multiplies in pairs of words, and what it must not."""
    from eggroll import _extension

    compiler = os.environ.get("CXX", "c++")
    if "avx2" not in _extension.load().usable_isas() or not has_sanitizers(compiler, tmp_path):
        pytest.skip("AVX2 and sanitizers are needed")
    program = tmp_path / "products"
    flags = ["-std=c++20", "-O1", "-g0", "-Wall", "-Wextra", *SANITIZE, *X86["avx2"]]
    folders = [f"-I{SOURCES}", f"-I{HEADER}"]
    command = [compiler, *flags, *folders, NATIVE / "products.cpp", "-o", program]
    subprocess.run(command, check=True)
    assert run(program)[0].startswith("0 wrong")


def test_every_unit_of_x86_is_fuzzed_too():
    fuzzed = runpy.run_path(str(NATIVE.parent / "fuzz" / "run.py"))
    assert fuzzed["X86"] == X86
    sources = {path.stem for path in SOURCES.glob("*.cpp")} - {"bindings"}
    assert {*fuzzed["CHECKED"], *fuzzed["PLAIN"]} == {s for s in sources if s[:4] != "isa_"}


def alone(folder: Path, name: str, *sources: str) -> list[str]:
    """What a program that needs no kernels says."""
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-Wall", "-Wextra"]
    command += [f"-I{SOURCES}", f"-I{HEADER}", str(NATIVE / f"{name}.cpp")]
    command += [str(SOURCES / source) for source in sources]
    subprocess.run([*command, "-o", folder / name], check=True)
    return run(folder / name)


def test_the_fuzzed_calls_are_those_of_today():
    """Their program is compiled for `make torture` alone, and would be left behind."""
    mlx = next(Path(folder) for folder in importlib.import_module("mlx").__path__)
    include = [f"-I{SOURCES}", f"-I{HEADER}", "-isystem", str(mlx / "include")]
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *flags, *include, NATIVE.parent / "fuzz/entries.cpp"], check=True)


def test_choice_on_machines_that_lack_something(tmp_path: Path):
    """And on one whose system refuses tiles."""
    assert alone(tmp_path, "choice") == ["0 wrong"]


def test_stages_are_cut_where_x_alone_lives(tmp_path: Path):
    assert alone(tmp_path, "parts", "parts.cpp") == ["0 wrong"]


# neoverse-n1 has no matrix products, and cortex-a57 no dot product either.
CPUS = {
    "max": [*EMULATED, "generic"],
    "neoverse-n1": ["neon_dotprod", "neon", "generic"],
    "cortex-a57": ["neon", "generic"],
}


@pytest.fixture(scope="session")
def arm64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs for arm64, optimised as the extension is."""
    needs_emulation()
    return build(tmp_path_factory.mktemp("arm64"), CROSS, ARM, "-O3", "-static")


@pytest.mark.parametrize("cpu", CPUS)
def test_arm64_recorded_cases_under_emulation(cases: Path, arm64: Path, cpu: str):
    said = run(*EMULATE, cpu, arm64 / "replay", cases)
    assert said[0] == "usable: " + " ".join(CPUS[cpu])
    replayed(said, CPUS[cpu])


def test_arm64_kernels_under_emulation(arm64: Path, covered: set[str]):
    compared(arm64, CPUS["max"], covered, *EMULATE, "max")


def test_arm64_under_emulation_and_sanitizers(
    arm64: Path, cases: Path, covered: set[str], tmp_path: Path
):
    if not has_sanitizers(CROSS, tmp_path):
        pytest.skip(f"{CROSS} has no sanitizers")
    # The first and the last, as what lies between is made of their parts. Plain code as above.
    units = {name: ARM[name] for name in ("neon", "neon_i8mm")}
    build(tmp_path, CROSS, units, "-O1", "-g0", *SANITIZE, plain=("-fno-sanitize=all", "-O0"))
    replayed(run(*EMULATE, "max", tmp_path / "replay", cases), [*reversed(units), "generic"])
    every = 13  # prime to all that the cases cycle through
    compared(tmp_path, [*reversed(units), "generic"], covered, *EMULATE, "max", every=every)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_session_that_misses_a_required_instruction_set_fails(processes: int, tmp_path: Path):
    """And one that has it does not, whichever process covered it."""
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    test = tmp_path / "test_it.py"
    test.write_text("def test_it(covered):\n    covered.add('avx2048')\n")
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist.plugin",
        "-n",
        str(processes),
        str(test),
    )
    for required, code in (("avx1024,avx2048", 1), ("avx2048", 0)):
        env = {**os.environ, "EGGROLL_REQUIRE": required, "PYTHONPATH": str(Path(__file__).parent)}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which would take longer than the test
        command = [sys.executable, "-m", "pytest", *options]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout
        said = f"EGGROLL_REQUIRE={required}: not covered: avx1024"
        assert (said in done.stdout) is (code == 1)
        assert "kernels compared with the reference: avx2048" in done.stdout
        assert "failed" not in done.stdout
