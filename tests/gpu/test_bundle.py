"""The archive for a machine with a GPU and no network: what is in it, and its script."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpu import bundle
from gpu.bundle import Entry, emptied, fat_binaries, kept_entries


def fat(*entries: tuple[int, int, bytes]) -> bytes:
    """A fat binary of (kind, architecture, payload)."""
    body = b""
    for kind, architecture, payload in entries:
        head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, 0, 0, architecture)
        body += head.ljust(64, b"\1") + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


LIBRARY = (
    b"some code "
    + fat((2, 75, b"a" * 40), (2, 80, b"b" * 24), (2, 90, b"c" * 32), (1, 120, b"d" * 16))
    + b" PU\xba " + struct.pack("<I", 0xBA55ED50) + b"\0 no fat binary"
    + fat((2, 80, b"e" * 8), (1, 80, b"f" * 8))
)  # fmt: skip


def test_other_architectures_are_emptied():
    data = bytearray(LIBRARY)
    assert emptied(data, [90]) == 40 + 24 + 16 + 8
    assert len(data) == len(LIBRARY)
    assert b"a" * 40 not in data
    assert b"b" * 24 not in data
    assert b"c" * 32 in data
    assert b"e" * 8 not in data
    assert b"f" * 8 in data  # PTX, which newer GPUs take
    assert b"some code " in data
    assert b"no fat binary" in data
    assert [[e.architecture for e in found] for found in fat_binaries(data)] == [
        [75, 80, 90, 120], [80, 80]
    ]  # fmt: skip


def test_what_a_driver_would_take_stays():
    """Machine code of the same generation, or PTX of an earlier one."""
    code = {(kind, sm): Entry(kind, sm, 0, 8) for kind in (1, 2) for sm in (80, 86, 90)}

    def kept(wanted: int, *there: tuple[int, int]) -> set[Entry]:
        return kept_entries([code[each] for each in there], [wanted])

    assert kept(89, (2, 80), (2, 86), (2, 90)) == {code[2, 86]}
    assert kept(90, (2, 80), (1, 80)) == {code[1, 80]}
    assert kept(90, (2, 80)) == set()
    assert kept(80, (2, 80), (1, 80)) == {code[2, 80], code[1, 80]}
    two = kept_entries([code[2, 80], code[2, 90], code[2, 86]], [80, 90])
    assert two == {code[2, 80], code[2, 90]}


def test_all_that_a_package_requires_comes_with_it():
    names = {package.name.lower() for package in bundle.needed(["rich", "pytest"])}
    assert {"rich", "pygments", "markdown-it-py", "mdurl", "pytest", "pluggy", "iniconfig"} <= names


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive's folder without what is large, with links in the place of packages."""
    script = (Path(bundle.__file__).parent / "run.sh").read_text()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "run.sh").write_text(script.replace("@PYTHON@", version))
    for name in ("cuda", "cpu", "common", "project/tests/gpu"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/tests/gpu/__init__.py").write_text("")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("NVIDIA", str(tmp_path))
    monkeypatch.setenv("PYTHON", sys.executable)
    return tmp_path


REPORT = """
import os, sys
from pathlib import Path
asked = Path("asked")
asked.write_text((asked.read_text() if asked.exists() else "") + sys.argv[2] + " ")
print(sys.argv[1:], os.environ["PYTHONPATH"], os.environ.get("EGGROLL_MLX_ERROR", "none"))
tests = 3 if asked.read_text().count("tests") < 3 else 1
sys.exit({"tests": tests, "bench": 2}.get(sys.argv[2], 0))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(folder / "run.sh"), *words], capture_output=True, text=True, check=False, cwd="/"
    )


def test_its_script_goes_through_the_pieces(unpacked: Path):
    """A piece that is not finished is called again; the worst code is the last word."""
    (unpacked / "project/tests/gpu/report.py").write_text(REPORT)
    ended = run(unpacked)
    assert ended.returncode == 2, ended
    asked = (unpacked / "asked").read_text().split()
    assert asked == ["look", "trial", "kernels", *3 * ["tests"], "runs", "bench", "report"]
    assert (unpacked / "cuda/nvidia").resolve() == unpacked
    assert (unpacked / "cpu/nvidia").resolve() == unpacked
    (unpacked / "asked").unlink()
    assert run(unpacked, "look", "runs").returncode == 0
    assert (unpacked / "asked").read_text().split() == ["look", "runs"]


@pytest.mark.parametrize("imports", [True, False])
def test_without_mlx_for_cuda_it_takes_that_of_the_cpu(unpacked: Path, imports: bool):
    """As where the driver is missing: the report says why."""
    (unpacked / "project/tests/gpu/report.py").write_text(REPORT)
    (unpacked / "cuda/mlx").mkdir()
    said = "" if imports else "raise ImportError('libcuda.so.1: cannot open shared object file')"
    (unpacked / "cuda/mlx/core.py").write_text(said)
    out = run(unpacked, "look").stdout
    assert ("libcuda.so.1: cannot open" in out) == (not imports)
    assert f":{unpacked}/{'cuda' if imports else 'cpu'} " in out


def test_another_python_is_refused(unpacked: Path, monkeypatch: pytest.MonkeyPatch):
    script = unpacked / "run.sh"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    script.write_text(script.read_text().replace(version, "3.99"))
    ended = run(unpacked)
    assert ended.returncode == 2
    assert "this archive is for Python 3.99, and none of that version answers" in ended.stderr


def test_its_script_is_what_shells_take():
    shell = shutil.which("dash") or shutil.which("sh")
    assert shell
    path = Path(bundle.__file__).parent / "run.sh"
    assert subprocess.run([shell, "-n", str(path)], check=False, env=os.environ).returncode == 0
