"""Trials that engines have passed, kept so that no run waits for the same trial again.

A verdict holds for one device, system, MLX, Python and text of this package, which are all in its
key. Only trials that passed are kept: one that failed is tried again by every process. Without the
file, or with EGGROLL_TRIAL=1, every process tries; `python -m eggroll.probe` tries anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from eggroll.cache import cache_folder
from eggroll.engines.gpu.source import IN_TREE
from eggroll.errors import InputError
from eggroll.runlog import write_whole

SWITCH = "EGGROLL_TRIAL"  # 1: verdicts that are kept do not count
KEPT = 32  # the last ones
LANGUAGES = ("gpu", "metal", "cuda")  # folders of kernel files


def path() -> Path:
    """The file with all verdicts."""
    return cache_folder() / "trials.json"


def passed_before(facts: Mapping[str, str]) -> bool:
    """True if a trial with these facts passed and nobody asks for another."""
    return os.environ.get(SWITCH) != "1" and key_of(facts) in read()


def keep_passed(facts: Mapping[str, str]) -> None:
    """Keeps that a trial passed. Where no file can be written, nothing is kept."""
    found = read()
    found[key_of(facts)] = dict(facts)
    last = dict(list(found.items())[-KEPT:])
    with contextlib.suppress(OSError, InputError):
        path().parent.mkdir(parents=True, exist_ok=True)
        write_whole(path(), json.dumps(last, indent=1).encode() + b"\n")


def forget() -> None:
    """Lets every engine be tried again."""
    with contextlib.suppress(OSError, InputError):
        path().unlink()


def read() -> dict[str, dict[str, str]]:
    """Key -> facts of every verdict; none if the file is missing or unreadable."""
    try:
        found = json.loads(path().read_text())
    except (OSError, InputError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def key_of(facts: Mapping[str, str]) -> str:
    """A hash of the facts, of the system and of all that kernels are written from."""
    name, _, *system = os.uname()
    versions = platform.python_version(), metadata.version("mlx")
    known = [name, *system, *versions, source_hash(), dict(facts)]
    text = json.dumps(known, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def source_hash() -> str:
    """A hash of this package's Python files and of the kernel files, installed or in-tree."""
    found = hashlib.sha256()
    for name, content in source_files():
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def source_files() -> Iterator[tuple[str, bytes]]:
    """Name and content of each: Python files of the package and kernel files."""
    package = Path(__file__).parents[1]
    for file in sorted((*package.glob("*.py"), *(package / "engines").rglob("*.py"))):
        yield str(file.relative_to(package)), file.read_bytes()
    installed = resources.files("eggroll").joinpath("kernels")
    for root in (installed, IN_TREE):
        for language in LANGUAGES:
            yield from _files(root.joinpath(language))


def _files(folder: Traversable) -> Iterator[tuple[str, bytes]]:
    if folder.is_dir():
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.is_file():
                yield f"{folder.name}/{file.name}", file.read_bytes()
