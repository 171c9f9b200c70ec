"""Installs what a wheel is built with, for builds without isolation: python build_requirements.py.

With --older-glibc the binaries are taken for glibc 2.35, whatever this machine has: they are linked
with, and never run here.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements() -> list[str]:
    """build-system.requires of this project."""
    found: list[str] = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
    return found


def commands(older_glibc: bool) -> list[list[str]]:
    """pip's arguments: those of the tools, which run here, and those of mlx."""
    mlx = [r for r in requirements() if r.startswith("mlx")]
    rest = [r for r in requirements() if r not in mlx] + ["ninja", "cmake>=3.24"]
    if not older_glibc:
        return [["install", *rest, *mlx]]
    version = mlx[0].partition("==")[2].partition(";")[0].strip()
    place = sysconfig.get_path("purelib")
    tag = f"manylinux_2_35_{platform.machine()}"
    binary = ["--no-deps", "--only-binary=:all:", "--platform", tag, "--target", place]
    return [["install", *rest], ["install", *binary, f"mlx=={version}", f"mlx-cpu=={version}"]]


if __name__ == "__main__":
    for words in commands("--older-glibc" in sys.argv[1:]):
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
