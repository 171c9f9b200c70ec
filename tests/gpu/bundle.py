"""`make gpu-bundle`: one archive for a machine with an NVIDIA GPU, its driver and no network.

It has this environment's packages that the tests need, the package with its extension, MLX for the
CPU and for CUDA, the tests, and run.sh. MLX's CUDA library loses the machine code of architectures
that are not asked for.

PYTHONPATH=tests python -m gpu.bundle [--architectures 80 90] [--out FILE.tar.xz]
"""

from __future__ import annotations

import argparse
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from eggroll import _extension

ROOT = Path(__file__).parents[2]
NAME = "eggroll-gpu"
MOST_BYTES = 60_000_000
PACKAGES = ("numpy", "safetensors", "tyro", "rich", "pytest", "hypothesis")
CPU = ("mlx", "mlx-cpu")
CUDA = "mlx-cuda-13"
TREES = ("eggroll", "extensions", "tests")
FILES = ("pyproject.toml", "README.md", "Makefile")
NEEDLESS = {"__pycache__", "include", "share", ".mypy_cache", "node_modules"}
HEADERS = "mlx/include/cccl"  # which MLX's own kernels are compiled with


class Entry(NamedTuple):
    """Code for one architecture in a fat binary: PTX (kind 1) or machine code (kind 2)."""

    kind: int
    architecture: int
    begin: int  # of its payload in the file
    end: int


MAGIC = struct.pack("<I", 0xBA55ED50)


def fat_binaries(data: bytes | bytearray) -> Iterator[list[Entry]]:
    """The entries of every fat binary in a library.

    A header of magic, version, its own size and that of all entries; each of these has a header
    with its kind, size of the header, size of the payload and, from byte 28 on, the architecture.
    What does not add up is left out.
    """
    at = data.find(MAGIC)
    while 0 <= at <= len(data) - 16:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        place, end, entries = at + header, at + header + size, list[Entry]()
        while header == 16 and place + 32 <= end <= len(data):
            kind, _, own, payload = struct.unpack_from("<HHIQ", data, place)
            (architecture,) = struct.unpack_from("<I", data, place + 28)
            begin = place + own
            if kind not in (1, 2) or own < 32 or begin + payload > end:
                break
            entries.append(Entry(kind, architecture, begin, begin + payload))
            place = begin + payload
        whole = bool(entries) and place == end
        if whole:
            yield entries
        at = data.find(MAGIC, end if whole else at + 4)


def kept_entries(entries: list[Entry], architectures: Iterable[int]) -> set[Entry]:
    """The entries that a driver would take for these architectures.

    That for the architecture itself; else the latest before it in machine code of the same
    generation, or in PTX.
    """
    kept = set[Entry]()
    for wanted in architectures:
        usable = [
            e for e in entries
            if e.architecture <= wanted and (e.kind == 1 or e.architecture // 10 == wanted // 10)
        ]  # fmt: skip
        latest = max((e.architecture for e in usable), default=0)
        kept |= {e for e in usable if e.architecture == latest}
    return kept


def emptied(data: bytearray, architectures: Iterable[int]) -> int:
    """Overwrites the code of all other architectures with zeros; returns bytes that are so."""
    gone, wanted = 0, list(architectures)
    for entries in fat_binaries(data):
        kept = kept_entries(entries, wanted)
        for entry in entries:
            if entry not in kept:
                data[entry.begin : entry.end] = bytes(entry.end - entry.begin)
                gone += entry.end - entry.begin
    return gone


def needed(names: Iterable[str]) -> list[metadata.Distribution]:
    """These distributions and all that they require."""
    found, todo = dict[str, metadata.Distribution](), list(names)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = metadata.distribution(name)
            wanted = map(Requirement, found[name].requires or [])
            todo += [r.name for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]
    return list(found.values())


def copy_package(package: metadata.Distribution, to: Path) -> None:
    """The files of an installed distribution, without tests, headers and scripts."""
    for file in package.files or []:
        parts = set(file.parts)
        if ".." in parts or parts & NEEDLESS or (parts & {"tests", "_tests"} and "numpy" in parts):
            continue
        source, place = Path(str(file.locate())), to / str(file)
        if source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)


def cuda_wheel(folder: Path) -> Path:
    """MLX's CUDA library as a wheel, of the version that is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    pin = metadata.version("mlx")
    pattern = f"{CUDA.replace('-', '_')}-{pin}-*.whl"
    if not list(folder.glob(pattern)):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
             "--dest", str(folder), f"{CUDA}=={pin}"], check=True,
        )  # fmt: skip
    return next(folder.glob(pattern))


def put_cuda(wheel: Path, to: Path, architectures: list[int]) -> None:
    """MLX for CUDA: the wheel's library, its headers, and MLX's Python part."""
    copy_package(metadata.distribution("mlx"), to)
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            parts = set(Path(name).parts)
            if not name.startswith(HEADERS) and parts & NEEDLESS:
                continue
            data = bytearray(file.read(name))
            if Path(name).name == "libmlx.so":
                gone = emptied(data, architectures)
                print(f"{name}: {len(data) / 1e6:.1f} MB, {gone / 1e6:.1f} of them emptied")
            if not name.endswith("/"):
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                (to / name).write_bytes(data)


def put_project(to: Path) -> None:
    """The package as in a checkout, with its extension, and the tests."""
    ignore = shutil.ignore_patterns(*NEEDLESS - {"include"}, "*.png", "fuzz")
    for tree in TREES:
        shutil.copytree(ROOT / tree, to / tree, ignore=ignore)
    for file in FILES:
        shutil.copy(ROOT / file, to / file)
    built = Path(_extension.load().__file__ or "")
    shutil.copy(built, to / "eggroll" / built.name)


def fill(folder: Path, architectures: list[int], wheels: Path) -> None:
    """Puts all of it into a folder."""
    for package in needed(PACKAGES):
        copy_package(package, folder / "common")
    about = metadata.distribution("eggroll-mlx")
    own = next(f for f in about.files or [] if f.name == "METADATA").parent
    place = folder / "common" / own.name
    place.mkdir(parents=True)
    (place / "METADATA").write_text(about.read_text("METADATA") or "")
    for name in CPU:
        copy_package(metadata.distribution(name), folder / "cpu")
    put_cuda(cuda_wheel(wheels), folder / "cuda", architectures)
    put_project(folder / "project")
    script = (Path(__file__).parent / "run.sh").read_text()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (folder / "run.sh").write_text(script.replace("@PYTHON@", version))


def main(words: list[str]) -> int:
    options = argparse.ArgumentParser(prog="make gpu-bundle", description=__doc__)
    about = "compute capabilities whose machine code stays, such as 90"
    options.add_argument("--architectures", type=int, nargs="+", default=[80, 90], help=about)
    options.add_argument("--out", type=Path, default=ROOT / "build" / f"{NAME}.tar.xz")
    given = options.parse_args(words)
    folder = ROOT / "build" / NAME
    shutil.rmtree(folder, ignore_errors=True)
    fill(folder, given.architectures, ROOT / "build" / "wheels")
    part = given.out.with_suffix(".part")
    with tarfile.open(part, "w:xz", preset=6) as archive:
        archive.add(folder, NAME)
    part.replace(given.out)
    size = given.out.stat().st_size
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    kept = ", ".join(f"sm_{architecture}" for architecture in given.architectures)
    print(f"{given.out}: {size / 1e6:.1f} MB, for Python {version} and {kept}")
    if size > MOST_BYTES:
        print(f"error: {size / 1e6:.1f} MB are more than {MOST_BYTES / 1e6:g}: name fewer "
              "architectures.", file=sys.stderr)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
