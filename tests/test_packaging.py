"""The pins agree, the extension was built with them, and a broken install says so in a sentence."""

from __future__ import annotations

import email
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from try_wheel import relative_links

import eggroll
from eggroll import _extension
from eggroll.errors import InputError

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
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


def test_the_readme_of_the_metadata_has_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a package index shows it: no picture or link is relative, and none was lost."""
    from scikit_build_core.build import prepare_metadata_for_build_wheel

    monkeypatch.chdir(ROOT)
    folder = tmp_path / prepare_metadata_for_build_wheel(str(tmp_path))
    metadata = email.message_from_string((folder / "METADATA").read_text())
    page, readme = metadata.get_payload(), (ROOT / "README.md").read_text()
    assert relative_links(readme)
    assert relative_links(page) == []
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", readme)
    assert pictures
    for picture in pictures:
        assert f"({PYPROJECT['project']['urls']['Source']}/raw/HEAD/{picture})" in page
        assert (ROOT / picture).is_file()
    named = {line.partition(",")[0] for line in metadata.get_all("Project-URL")}
    assert {"Source", "Documentation", "Changelog", "Issues"} <= named


def test_the_sdist_has_what_builds_and_tests_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from scikit_build_core.build import build_sdist

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with tarfile.open(tmp_path / build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kinds = {".py", ".h", ".cpp", ".cu", ".metal", ".txt", ".cmake", ".md", ".svg", ".typed"}
    folders = ("eggroll", "extensions", "tests", "docs", "examples", "benchmarks", "experiments")
    needed = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    }
    needed |= {"pyproject.toml", "CMakeLists.txt", "Makefile", "README.md", "LICENSE", "PKG-INFO"}
    assert len(needed) > 400
    assert needed - names == set()
    assert [name for name in names if name.endswith((".so", ".pyc")) or ".venv" in name] == []


def test_what_takes_long_to_import_is_left_until_it_is_used():
    heavy = [
        "datasets",
        "matplotlib",
        "optuna",
        "tokenizers",
        "shtab",
        "tensorboardX",
        "pandas",
        "pyarrow",
    ]
    code = (
        "import sys, eggroll; from eggroll.__main__ import main\n"
        f"assert not [m for m in {heavy} if m in sys.modules] and 'mlx.core' not in sys.modules\n"
        "try:\n    main(['train', '--help'])\n"
        f"finally:\n    assert not (found := [m for m in {heavy} if m in sys.modules]), found\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("usage: ")
