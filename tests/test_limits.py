"""A limit on the address space: refused in a sentence, or ended with one."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from eggroll.cli import command as limits
from eggroll.cli import entry
from eggroll.errors import InputError
from eggroll.training.config import Config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")

# What ends a process without an exception: in MLX, in C++, in a library like OpenBLAS.
ENDS = {
    "null pointer": "mx.array(np.zeros(1 << 29, np.int8))",
    "abort": "os.abort()",
    "exit of a library": "ctypes.CDLL(None).exit(1)",
    "import": "raise ImportError('failed to map segment')",
    "memory": "np.zeros(1 << 33, np.int8)",
}
SCRIPT = """
import ctypes, os, resource, sys
import mlx.core as mx, numpy as np
from eggroll.cli import command as cli
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (800 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def main():
    {}
    return 0
sys.exit(cli.run(main))
"""


@pytest.mark.parametrize("name", ENDS)
def test_a_process_that_its_limit_ends_says_so(name: str):
    command = [sys.executable, "-c", SCRIPT.format(ENDS[name])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("error: memory ran out")
    assert done.stderr.count("\n") == 1


def test_a_run_that_the_limit_leaves_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "address_space", lambda: 1 << 20)
    with pytest.raises(InputError, match=r"need some .* GiB and the limit of `ulimit -v` leaves"):
        Config().check()


SMALL = (
    "-m", "eggroll.train", "--data", "count", "--pop", "4", "--width", "8", "--steps", "1",
    "--table-bits", "16", "--sample-tokens", "0",
)  # fmt: skip


def limited(shell: str, *before: str, home: Path) -> subprocess.CompletedProcess[str]:
    """A small run that a shell starts under a limit."""
    words = [*before, "bash", "-c", f'{shell}; exec "$@"', "bash", sys.executable, *SMALL]
    env = os.environ | {"HOME": str(home), "EGGROLL_CACHE": str(home / "cache")}
    env.pop("OPENBLAS_NUM_THREADS", None)
    command = [*words, "--out", str(home / "run")]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=env, timeout=120
    )


@pytest.mark.parametrize("kilobytes", [60_000, 120_000, 160_000])
def test_too_little_address_space_to_start_is_one_sentence(tmp_path: Path, kilobytes: int):
    """The libraries fail in many ways: one does not load, another exits with a line of its own."""
    done = limited(f"ulimit -v {kilobytes}", home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: `ulimit -v` lets this process take ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs another user")
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_too_few_threads_are_one_sentence_or_enough(tasks: int):
    user = (
        "setpriv", "--reuid", "54321", "--clear-groups", "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override", "--bounding-set=-all,+dac_override",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as home:  # that other users may enter
        Path(home).chmod(0o777)
        done = limited(f"ulimit -u {tasks}", *user, home=Path(home))
    if done.returncode == 0:
        assert tasks > 1
        assert "signature: " in done.stdout
        return
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: the system starts no more threads")
    assert "Traceback" not in done.stderr
    assert "OpenBLAS" not in done.stderr


@pytest.mark.parametrize(
    ("space", "tasks", "threads"),
    [
        (None, None, ""),
        (entry.TIGHT_SPACE, None, ""),
        (entry.TIGHT_SPACE - 1, None, "1"),
        (None, entry.FEW_TASKS + 1, ""),
        (None, entry.FEW_TASKS, "1"),
    ],
)
def test_openblas_starts_one_thread_where_a_limit_is_near(
    monkeypatch: pytest.MonkeyPatch, space: int | None, tasks: int | None, threads: str
):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    limit_of = {"RLIMIT_AS": space, "RLIMIT_NPROC": tasks}
    monkeypatch.setattr(entry, "limit", limit_of.__getitem__)
    monkeypatch.setattr(entry, "start", lambda module: 0)
    try:
        assert entry.run("eggroll.train") == 0
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert os.environ.get("OPENBLAS_NUM_THREADS", "") == threads


def test_errors_of_limits_are_told_from_others(monkeypatch: pytest.MonkeyPatch):
    assert "ulimit -u" in entry.limit_reached(RuntimeError("can't start new thread"))
    assert entry.limit_reached(RuntimeError("a fault")) == ""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (200 << 20, 200 << 20))
    assert "take 200 MiB" in entry.limit_reached(ImportError("failed to map segment"))
    assert entry.limit_reached(ModuleNotFoundError("no such module")) == ""


def test_an_interrupt_before_anything_began_is_a_word():
    code = "from eggroll.cli import entry; entry._end(2, None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"Interrupted.\n")
