"""From an edited kernel to its time: files of the checkout count, and environments build apart."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eggroll.engines import cuda
from eggroll.engines.gpu import dialect

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernel files that is taken for the checkout's."""
    for name in ("gpu", "cuda", "metal"):
        shutil.copytree(dialect.IN_TREE / name, tmp_path / name)
    monkeypatch.setattr(dialect, "IN_TREE", tmp_path)
    dialect.kernel_text.cache_clear()
    yield tmp_path
    dialect.kernel_text.cache_clear()


def test_an_edited_kernel_is_in_effect_without_a_build(checkout: Path):
    """Whatever an earlier install has put beside the package."""
    words = cuda.Cuda("m16n8k32").kernel_file
    before = words("linear")
    file = checkout / "cuda" / "linear.cu"
    file.write_text(file.read_text() + "// edited\n")
    dialect.kernel_text.cache_clear()
    assert words("linear") == before + "// edited\n"
    file.unlink()
    dialect.kernel_text.cache_clear()
    assert words("linear")  # that of the install


def commands(*words: str) -> str:
    make = shutil.which("make")
    if not make:
        pytest.skip("make is not installed")
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        [make, "-n", "-B", *words], cwd=ROOT, capture_output=True, text=True, check=False, env=own
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_environments_build_in_folders_of_their_own():
    """And that of CUDA against mlx-cpu, as MLX for CUDA cannot be configured against."""
    own = commands("build")
    assert "build-dir" not in own
    assert "EGG_MLX" not in own
    other = commands("VENV=.venv-cuda", "MLX=.venv-cuda/mlx-cpu", "build")
    assert "'--config-settings=build-dir=build/venv-cuda-{state}-{wheel_tag}'" in other
    assert f"cmake.define.EGG_MLX={ROOT}/.venv-cuda/mlx-cpu" in other
    assert ".venv-cuda/bin/python -m pip install" in other


@pytest.mark.parametrize("extra", ["cuda", "cuda12"])
def test_mlx_for_cuda_comes_beside_one_to_build_against(extra: str):
    said = commands("VENV=.venv-cuda", f".venv-cuda/.{extra}-installed")
    assert "--target .venv-cuda/mlx-cpu" in said
    order = [said.rindex(words) for words in ("--target", "uninstall", "install --quiet -r")]
    assert order == sorted(order)
    assert f'["{extra}"]' in said
    assert said.rstrip().endswith(f"touch .venv-cuda/.{extra}-installed")


def test_what_another_environment_had_does_not_count():
    """A folder that CMake keeps from an earlier configuration would win over every hint."""
    text = (ROOT / "CMakeLists.txt").read_text()
    found = text.index("find_package(MLX")
    assert text.index("unset(MLX_DIR CACHE)") < found
    assert text.index('list(PREPEND package_dirs "${EGG_MLX}/mlx")') < found
