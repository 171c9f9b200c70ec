"""The pins agree, the extension was built with them, and a broken install says so in a sentence."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import eggroll
from eggroll import _extension
from eggroll.errors import InputError

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
BUILD = PYPROJECT["build-system"]["requires"]
RUN = PYPROJECT["project"]["dependencies"]


def pins(requirements: list[str], name: str) -> set[str]:
    """Versions that `requirements` pin `name` to, over all platforms and extras."""
    exact = [r.partition(";")[0].split("==") for r in requirements if "==" in r]
    return {version.strip() for package, version in exact if package.partition("[")[0] == name}


def test_build_and_run_pin_the_same_mlx_on_both_platforms():
    mlx = [r for r in BUILD if r.startswith("mlx")]
    assert mlx == [r for r in RUN if r.startswith("mlx")]
    assert sorted(r.partition("sys_platform == ")[2] for r in mlx) == ["'darwin'", "'linux'"]
    assert len(pins(BUILD, "mlx")) == 1
    extras = PYPROJECT["project"]["optional-dependencies"]
    for name in ("cuda", "cuda12"):
        assert pins(extras[name], "mlx") == pins(BUILD, "mlx")


def test_extension_was_built_with_the_pinned_pair():
    built = _extension.load().built_with()
    assert {built["mlx"]} == pins(BUILD, "mlx")
    assert {built["nanobind"]} == pins(BUILD, "nanobind")


def test_every_package_is_declared_and_installed(tmp_path: Path):
    """A folder with an __init__.py under extensions/ is a package of its own in the wheel."""
    declared = PYPROJECT["tool"]["scikit-build"]["wheel"]["packages"]
    root = Path(__file__).parents[1]
    found = [path.parent for path in root.glob("extensions/*/__init__.py")]
    assert found
    assert declared == ["eggroll", *(str(path.relative_to(root)) for path in sorted(found))]
    code = "import " + ", ".join(path.name for path in found)
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def test_version_comes_from_the_package():
    assert importlib.metadata.version("eggroll-mlx") == eggroll.__version__


def test_kernel_sources_travel_with_the_package():
    """Compiled at run time, so they must be where the package is, as they are in the tree."""
    tree = Path(__file__).parents[1] / "extensions" / "int8_gemm"
    installed = {str(f): f for f in importlib.metadata.files("eggroll-mlx") or ()}
    sources = [path for folder in ("gpu", "metal", "cuda") for path in (tree / folder).glob("*.*")]
    assert sources
    for path in sources:
        name = f"eggroll/kernels/{path.relative_to(tree)}"
        assert name in installed, f"{name} is not installed"
        assert installed[name].read_text() == path.read_text(), "run `make build`"


def fake_import(monkeypatch: pytest.MonkeyPatch, extension: SimpleNamespace | ImportError) -> None:
    """Lets `_extension.load` find `extension` (or raise it) in place of the real module."""
    real = importlib.import_module

    def import_module(name: str):
        if name != _extension.NAME:
            return real(name)
        if isinstance(extension, ImportError):
            raise extension
        return extension

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_another_mlx_is_refused(monkeypatch: pytest.MonkeyPatch):
    fake_import(monkeypatch, SimpleNamespace(built_with=lambda: {"mlx": "0.0.1"}))
    installed = importlib.metadata.version("mlx")
    with pytest.raises(InputError, match=rf"mlx 0\.0\.1 and mlx {installed} .*make build"):
        _extension.load()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("none", name=_extension.NAME), "is missing: run `make build`"),
        (ImportError("undefined symbol"), r"\(undefined symbol\): run `make build`"),
    ],
)
def test_missing_or_broken_extension_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, message: str
):
    fake_import(monkeypatch, error)
    with pytest.raises(InputError, match=message):
        _extension.load()


def test_missing_mlx_is_refused(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(InputError, match="mlx does not import"):
        _extension.load()


def test_importing_the_loader_imports_neither_mlx_nor_the_extension():
    code = (
        "import sys, eggroll._extension;"
        "sys.exit(any(m.startswith(('mlx', 'eggroll._int8')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
