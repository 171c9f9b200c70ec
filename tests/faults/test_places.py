"""Where and under which limits a command runs: one sentence or the same bits, no traceback."""

from __future__ import annotations

import ast
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from ended import Ended

from eggroll.errors import InputError
from eggroll.files import CHECKPOINT, CONFIG
from eggroll.training import checkpoint
from faults import torture
from faults.cases import case, corpus
from faults.commands import DONE, REFUSED, TINY, Child, lines_of, partials, preloaded, run, state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and places of Linux")
torture_only = pytest.mark.skipif("EGGROLL_TORTURE" not in os.environ, reason="for make torture")
ROOT = Path(__file__).parents[2]
JUMPS = ("ahead", "back", "steady-back")
LOADERS = {"pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "yaml", "torch"}
ENDLESS = [*TINY, "--steps", "1000000", "--checkpoint-every", "50"]


def refused(ended: Ended, *says: str) -> None:
    assert ended.code == REFUSED, ended
    last = ended.err.rstrip("\n").rpartition("\n")[2]
    assert last.startswith("error: ")
    for word in says:
        assert word in last


def executing(tree: ast.AST) -> Iterator[str]:
    """What in a module could run what a file holds."""
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        yield from {name.partition(".")[0] for name in names} & LOADERS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from {node.func.id} & {"eval", "exec", "compile", "__import__"}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield "allow_pickle"


def test_nothing_that_is_read_is_ever_executed(tmp_path: Path):
    """Neither pickle nor eval is in the package, and a pickle as a checkpoint runs nothing."""
    found = [
        f"{path.name}: {word}"
        for path in (ROOT / "eggroll").rglob("*.py")
        for word in executing(ast.parse(path.read_text()))
    ]
    assert found == []

    class Hostile:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return os.mkdir, (str(tmp_path / "executed"),)

    path = tmp_path / CHECKPOINT
    for data in (pickle.dumps(Hostile()), b"\x80\x04" + pickle.dumps(Hostile(), 0)):
        path.write_bytes(data)
        with pytest.raises(InputError, match="damaged or no checkpoint"):
            checkpoint.load(path)
    assert not (tmp_path / "executed").exists()


def test_every_fault_of_surroundings_is_tried():
    for tests in torture.SURROUNDINGS.values():
        for test in tests:
            file, _, name = test.partition("::")
            text = (ROOT / "tests" / file).read_text()
            assert f"\ndef {name}(" in text if name else "\ndef test_" in text, test


@torture_only
def test_names_with_spaces_lines_and_links(tmp_path: Path):
    """Folders and corpora with any name that a file system takes; links are followed."""
    odd = tmp_path / "a b\n\u00e9\U0001f95a 'q' \udcff -x"
    odd.mkdir()
    text = corpus(odd)
    (tmp_path / "link").symlink_to(odd, target_is_directory=True)
    words = [*TINY, "--data", tmp_path / "link" / text.name, "--seq-len", "4", "--steps", "3"]
    first = run(*words, "--out", tmp_path / "link" / "run\n1")
    again = run("--resume", odd / "run\n1", "--steps", "3")
    assert first.signature == again.signature


def test_the_folder_vanishes(tmp_path: Path):
    child = Child(*ENDLESS, "--out", tmp_path / "run")
    assert child.wait_for(lambda: lines_of(tmp_path / "run") > 3)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    refused(child.ended(), "cannot be written")


@torture_only
def test_two_runs_in_one_folder(tmp_path: Path):
    child = Child(*ENDLESS, "--out", tmp_path / "run")
    assert child.wait_for(lambda: (tmp_path / "run" / CONFIG).exists())
    refused(run("--resume", tmp_path / "run"), "in use by another run")
    refused(run(*TINY, "--out", tmp_path / "run"), "already holds a run")
    child.send(signal.SIGTERM)
    assert child.ended().code == 130
    assert partials(tmp_path / "run") == []


@torture_only
def test_a_corpus_that_changes_between_stop_and_resume(tmp_path: Path):
    text = corpus(tmp_path)
    words = [*TINY, "--data", text, "--seq-len", "4", "--steps", "3", "--out", tmp_path / "run"]
    assert run(*words).code == DONE
    before = state_of(tmp_path / "run" / CHECKPOINT)
    text.write_bytes(text.read_bytes().replace(b"a", b"z", 1))
    refused(run("--resume", tmp_path / "run", "--steps", "9"), "has changed since the run")
    text.unlink()
    refused(run("--resume", tmp_path / "run", "--steps", "9"), "data")
    assert state_of(tmp_path / "run" / CHECKPOINT) == before


@torture_only
def test_output_that_nobody_reads(tmp_path: Path):
    """stdout and stderr closed, and a stdout that is full: the run is the same."""
    true = case("sign", 6)
    closed = run(*true.words, "--out", tmp_path / "a", before=lambda: os.closerange(0, 3))
    assert closed.code == DONE
    assert true.expects(state_of(tmp_path / "a" / CHECKPOINT))
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "eggroll.train", *true.words, "--out", tmp_path / "b"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode in (DONE, REFUSED)
    assert "Traceback" not in ended.stderr


def limited(kind: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (most, most))


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        pytest.param(resource.RLIMIT_AS, 400 << 20, marks=torture_only),
        pytest.param(resource.RLIMIT_AS, 900 << 20, marks=torture_only),
        pytest.param(resource.RLIMIT_NOFILE, 8, marks=torture_only),
        (resource.RLIMIT_FSIZE, 2000),
        pytest.param(resource.RLIMIT_STACK, 256 << 10, marks=torture_only),
    ],
    ids=["memory", "more memory", "files", "size of files", "stack"],
)
def test_limits_of_the_system(tmp_path: Path, kind: int, most: int):
    """The run ends in a sentence or on the true bits, and never leaves a damaged checkpoint."""
    true, folder = case("sign", 6), tmp_path / "run"
    child = Child(*true.words, "--out", folder, before=limited(kind, most))
    ended = child.ended()
    assert ended.code in (DONE, REFUSED), ended
    if ended.code == DONE:
        assert ended.signature == true.signature
    if (folder / CHECKPOINT).exists():
        assert true.expects(state_of(folder / CHECKPOINT))


CLOCKS = ["still 0.3", *(pytest.param(f"{w} 0.3", marks=torture_only) for w in JUMPS)]


@pytest.mark.parametrize("clock", CLOCKS)
def test_clocks_that_jump(tmp_path: Path, clock: str):
    true = case("sign", 60)
    ended = run(*true.words, "--out", tmp_path / "run", env=preloaded(clock=clock))
    assert ended.signature == true.signature
    assert "-" not in "".join(re.findall(r"\S+ tokens/s", ended.err))


def apart(mounts: str, then: str = 'exec "$@"', before: Sequence[str] = ()) -> list[str]:
    """A command that sees other mounts than the rest of the machine; skips where it cannot.

    then: how the shell runs it; before: what it is run by.
    """
    begin = ["unshare", "--mount", "sh", "-ec"]
    try:
        subprocess.run([*begin, mounts], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounts cannot be changed here: {error}")
    return [*begin, f"{mounts}\n{then}", "sh", *before, sys.executable, "-m", "eggroll.train"]


@torture_only
def test_a_disk_that_is_full(tmp_path: Path):
    """A file system of 64 kB: the run ends in a sentence, and goes on where there is room."""
    true, small = case("sign", 120), tmp_path / "small"
    small.mkdir()
    fill = f"mount -t tmpfs -o size=64k tmpfs {small}"
    then = f"trap 'cp -r {small}/run {tmp_path}/saved' EXIT\n" + '"$@"'
    command = apart(fill, then)
    refused(run(*true.words, "--out", small / "run", command=command), "No space left")
    saved = tmp_path / "saved"
    assert true.expects(state_of(saved / CHECKPOINT))
    assert partials(saved) == []
    assert run("--resume", saved).signature == true.signature


@torture_only
def test_an_installation_that_is_read_only(tmp_path: Path):
    true = case("sign", 6)
    mounts = f"mount -o bind,ro {ROOT} {ROOT}"
    env = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/nothing"}
    ended = run(*true.words, "--out", tmp_path / "run", command=apart(mounts), env=env)
    assert ended.signature == true.signature
    refused(run(*true.words, "--out", ROOT / "no", command=apart(mounts)), "cannot be written")


@torture_only
def test_a_user_who_is_not_root(tmp_path: Path):
    """Nobody, with neither home nor cache; of the folders of others nothing is written."""
    true = case("sign", 6)
    place, python = tmp_path / "theirs", Path(sys.base_prefix)
    place.mkdir()
    os.chown(place, 65534, 65534)
    os.chmod(tmp_path, 0o755)
    # What is on the way to Python and to the folder may be closed to others: it is put on top.
    mounts = "mount -t tmpfs tmpfs /mnt"
    for i, path in enumerate((python, tmp_path)):
        mounts += f"\nmkdir -p /mnt/{i}; mount --bind {path} /mnt/{i}"
    if not all(parent.stat().st_mode & 1 for parent in python.parents):
        mounts += f"\nmount -t tmpfs -o mode=755 tmpfs /{python.parts[1]}"
        mounts += f"\nmkdir -p {python}; mount --bind /mnt/0 {python}"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command = apart(mounts, before=nobody)
    out = Path("/mnt/1") / "theirs" / "run"
    ended = run(*true.words, "--out", out, command=command, env={"HOME": "/nonexistent"})
    assert ended.signature == true.signature
    assert true.expects(state_of(place / "run" / CHECKPOINT))
    refused(run(*true.words, "--out", "/mnt/1/no", command=command), "cannot be written")
