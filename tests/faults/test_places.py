"""Where and under which limits a command runs: one sentence or the same bits, no traceback."""

from __future__ import annotations

import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eggroll import checkpoint, runlog
from eggroll.errors import InputError
from faults.cases import case, corpus
from faults.commands import (
    DONE,
    REFUSED,
    TINY,
    Child,
    Ended,
    lines_of,
    partials,
    preloaded,
    run,
    state_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and places of Linux")
ROOT = Path(__file__).parents[2]
ENDLESS = [*TINY, "--steps", "1000000", "--checkpoint-every", "50"]


def refused(ended: Ended, *says: str) -> None:
    assert ended.code == REFUSED, ended
    last = ended.err.rstrip("\n").rpartition("\n")[2]
    assert last.startswith("error: ")
    for word in says:
        assert word in last


def test_nothing_that_is_read_is_ever_executed(tmp_path: Path):
    """Neither pickle nor eval is in the package, and a pickle as a checkpoint runs nothing."""
    executing = re.compile(
        r"\b(pickle|marshal|shelve|joblib|dill)\b(?!s)|allow_pickle=True|torch\.load"
        r"|(?<![.\w])(eval|exec)\("
    )
    found = [
        f"{path.name}:{number}"
        for path in (ROOT / "eggroll").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if executing.search(line.partition("#")[0]) and "import" in line + "import"[: "(" in line]
    ]
    assert found == []

    class Hostile:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return os.mkdir, (str(tmp_path / "executed"),)

    path = tmp_path / runlog.CHECKPOINT
    for data in (pickle.dumps(Hostile()), b"\x80\x04" + pickle.dumps(Hostile(), 0)):
        path.write_bytes(data)
        with pytest.raises(InputError, match="damaged or no checkpoint"):
            checkpoint.load(path)
    assert not (tmp_path / "executed").exists()


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


def test_two_runs_in_one_folder(tmp_path: Path):
    child = Child(*ENDLESS, "--out", tmp_path / "run")
    assert child.wait_for(lambda: (tmp_path / "run" / runlog.CONFIG).exists())
    refused(run("--resume", tmp_path / "run"), "in use by another run")
    refused(run(*TINY, "--out", tmp_path / "run"), "already holds a run")
    child.send(signal.SIGTERM)
    assert child.ended().code == 130
    assert partials(tmp_path / "run") == []


def test_a_corpus_that_changes_between_stop_and_resume(tmp_path: Path):
    text = corpus(tmp_path)
    words = [*TINY, "--data", text, "--seq-len", "4", "--steps", "3", "--out", tmp_path / "run"]
    assert run(*words).code == DONE
    before = state_of(tmp_path / "run" / runlog.CHECKPOINT)
    text.write_bytes(text.read_bytes().replace(b"a", b"z", 1))
    refused(run("--resume", tmp_path / "run", "--steps", "9"), "has changed since the run")
    text.unlink()
    refused(run("--resume", tmp_path / "run", "--steps", "9"), "data")
    assert state_of(tmp_path / "run" / runlog.CHECKPOINT) == before


def test_output_that_nobody_reads(tmp_path: Path):
    """stdout and stderr closed, and a stdout that is full: the run is the same."""
    true = case("sign", 6)
    closed = run(*true.words, "--out", tmp_path / "a", before=lambda: os.closerange(0, 3))
    assert closed.code == DONE
    assert true.expects(state_of(tmp_path / "a" / runlog.CHECKPOINT))
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
        (resource.RLIMIT_AS, 400 << 20),
        (resource.RLIMIT_AS, 900 << 20),
        (resource.RLIMIT_NOFILE, 8),
        (resource.RLIMIT_FSIZE, 2000),
        (resource.RLIMIT_STACK, 256 << 10),
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
    if (folder / runlog.CHECKPOINT).exists():
        assert true.expects(state_of(folder / runlog.CHECKPOINT))


@pytest.mark.parametrize("clock", ["still 0.3", "ahead 0.3", "back 0.3", "steady-back 0.3"])
def test_clocks_that_jump(tmp_path: Path, clock: str):
    true = case("sign", 60)
    ended = run(*true.words, "--out", tmp_path / "run", env=preloaded(clock=clock))
    assert ended.signature == true.signature
    assert "-" not in "".join(re.findall(r"\S+ tokens/s", ended.err))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_who_may_write_nothing_of_the_installation(tmp_path: Path):
    """Not root, no home, the package read-only, caches impossible."""
    true = case("sign", 6)
    os.chmod(tmp_path, 0o755)
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 65534, 65534)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 1:
            os.chmod(parent, parent.stat().st_mode | 0o011)

    def nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    env = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = run(*true.words, "--out", place / "run", env=env, before=nobody, cwd=place)
    except PermissionError:
        pytest.skip("this Python is not for other users")
    if "No module named" in ended.err or ended.code in (126, 127):
        pytest.skip("this installation is not for other users")
    assert ended.signature == true.signature
    refused(run(*true.words, "--out", tmp_path / "no", before=nobody, env=env), "cannot be written")
