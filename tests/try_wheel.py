"""Tries a wheel as a new user would: python try_wheel.py [FILE.whl].

Without a wheel the sdist is built, and the wheel from it, away from the tree. It is installed into
a fresh environment from which no compiler can be reached, and used there. Both end in dist/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
IMPORTS = """
import float_kernels, nax_check, eggroll, eggroll.nax_check, sys
for module in (float_kernels, nax_check, eggroll):
    assert module.__file__.startswith(sys.prefix), module.__file__
assert nax_check.is_nax_available() in (True, False)
assert float_kernels.isa() in float_kernels.isas()
"""


def built(folder: Path) -> Path:
    """Builds the sdist, and from it alone the wheel."""
    from scikit_build_core.build import build_sdist

    os.chdir(ROOT)
    sdist = folder / build_sdist(str(folder))
    words = ["wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(sdist)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def expected() -> set[str]:
    """The files that every wheel has, by the tree."""
    packages = {"eggroll": ROOT / "eggroll"}
    packages |= {path.parent.name: path.parent for path in ROOT.glob("extensions/*/__init__.py")}
    kinds = {".py", ".h", ".typed"}
    files = {
        f"{name}/{path.relative_to(folder)}"
        for name, folder in packages.items()
        for path in folder.rglob("*")
        if path.suffix in kinds or path.name == "py.typed"
    }
    kernels = ROOT / "extensions" / "int8_gemm"
    return files | {
        f"eggroll/kernels/{path.relative_to(kernels)}"
        for kind in ("gpu", "metal", "cuda")
        for path in (kernels / kind).rglob("*.*")
    }


def check_contents(wheel: Path) -> None:
    """Looks for missing files, files that do not belong there, and links that lead nowhere."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        page = archive.read(metadata).decode()
    missing = expected() - names
    assert not missing, f"not in the wheel: {sorted(missing)}"
    compiled = sorted(name for name in names if name.endswith((".so", ".dylib")))
    assert len(compiled) == 2, compiled
    own = ("eggroll/", "float_kernels/", "nax_check/", "eggroll_mlx-")
    assert not (other := [name for name in names if not name.startswith(own)]), other
    assert not (links := relative_links(page)), f"in the README: {links}"


def relative_links(page: str) -> list[str]:
    """Links and pictures of a page in Markdown that are neither addresses nor headings."""
    found: list[str] = re.findall(r"\]\(((?!https?:|#)[^)]*)\)", page)
    return found


def run(venv: Path, folder: Path, *words: str, code: int = 0) -> str:
    """A command in the environment, with no other programs in reach; returns what it printed.

    code: the exit code that it must have; of another than 0, stderr is returned.
    """
    env = NO_COMPILER | {"PATH": str(venv / "bin"), "HOME": str(folder)}
    argv = [str(venv / "bin" / words[0]), *words[1:]]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    print(f"{' '.join(words)[:90]}: exit code {done.returncode}", flush=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def pinned() -> tuple[list[str], str]:
    """The tiny run of the tests, and the signature that they pin."""
    found: dict[str, object] = {}
    for file, name in (("conftest.py", "TINY"), ("test_train.py", "SIGNATURE")):
        text = (ROOT / "tests" / file).read_text()
        match = re.search(rf"^{name} = (\[.*?^\]|\".*?\")$", text, re.MULTILINE | re.DOTALL)
        assert match, f"{name} in {file}"
        found[name] = eval(match[1])
    return list(found["TINY"]), str(found["SIGNATURE"])  # type: ignore[call-overload]


def try_out(wheel: Path, folder: Path) -> None:
    """Installs the wheel and uses it."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    words = ["install", "--quiet", "--only-binary=:all:", str(wheel.resolve())]
    pip = [str(venv / "bin" / "python"), "-m", "pip", *words]
    subprocess.run(pip, check=True, cwd=folder, env=os.environ | NO_COMPILER)
    run(venv, folder, "python", "-c", IMPORTS)
    tiny, signature = pinned()
    said = run(venv, folder, "eggroll", "train", *tiny, "--out", "run")
    assert said.endswith(f"signature: {signature}\n"), said
    assert run(venv, folder, "eggroll", "generate", "run", "--prompt", "3 4 5")
    run(venv, folder, "eggroll", "plot", "run", "--out", "curves.svg")
    run(venv, folder, "eggroll", "replay", "run", "--step", "3")
    run(venv, folder, "eggroll", "verify", "run")
    run(venv, folder, "eggroll", "probe", "--json", "probe.json")
    assert "_eggroll" in run(venv, folder, "eggroll", "completion", "bash")
    for name in ("run/checkpoint.safetensors", "run/curves.png", "curves.svg", "probe.json"):
        assert (folder / name).stat().st_size, name


SLIM = ("mlx", "numpy", "safetensors", "tyro", "rich")  # as docs/running.md has it
SLIM_MB = 170


def try_slim(wheel: Path, folder: Path) -> None:
    """Installs the wheel with the few packages that training needs, and uses it."""
    venv, runs = folder / "slim-venv", folder / "slim"
    runs.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        asked = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    needed = [line for line in asked if re.match(r"[\w-]+", line)[0] in SLIM  # type: ignore[index]
              and "extra ==" not in line]  # fmt: skip
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    for words in ([*pip, "--no-deps", str(wheel.resolve())], [*pip, *needed]):
        subprocess.run(words, check=True, cwd=folder, env=os.environ | NO_COMPILER)
    packages = next((venv / "lib").glob("python*/site-packages"))
    size = sum(
        path.stat().st_blocks * 512
        for path in packages.rglob("*")
        if path.is_file() and path.relative_to(packages).parts[0].partition("-")[0] not in TOOLS
    )
    print(f"slim installation: {size / 1e6:.0f} MB", flush=True)
    assert size <= SLIM_MB * 1e6, size
    tiny, signature = pinned()
    said = run(venv, runs, "eggroll", "train", *tiny, "--out", "run")
    assert said.endswith(f"signature: {signature}\n"), said
    assert run(venv, runs, "eggroll", "generate", "run", "--prompt", "3 4 5")
    run(venv, runs, "eggroll", "verify", "run")
    run(venv, runs, "eggroll", "train", "--resume", "run", "--steps", "8")
    run(venv, runs, "eggroll", "verify", "run")
    for words in (["plot", "run"], ["sweep", "--data", "count"], ["train", "--vocabulary", "512"]):
        said = run(venv, runs, "eggroll", *words, code=2)
        assert "Traceback" not in said, said
        assert said.splitlines()[-1].startswith("error: "), said
        assert "pip install " in said, said


TOOLS = {"pip", "setuptools", "_distutils_hack", "distutils"}  # which a venv brings along


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="eggroll-wheel-") as name:
        folder = Path(name)
        wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else built(folder)
        check_contents(wheel)
        try_out(wheel, folder)
        try_slim(wheel, folder)
        if len(sys.argv) == 1:
            (ROOT / "dist").mkdir(exist_ok=True)
            for path in (wheel, *folder.glob("*.tar.gz")):
                shutil.copy(path, ROOT / "dist")
        tried = "contents, training, signature, text, picture, probe and a slim installation"
        print(f"{wheel.name}: {tried} are right")


if __name__ == "__main__":
    main()
