"""The part of a report that is on kernels: each built and launched in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from eggroll.engines.trial import PLAIN, why_ended, why_late
from gpu.run_kernel import MARK

ROOT = Path(__file__).parents[2]
SECONDS = 120  # for one kernel
MOST_SECONDS = 1800  # for all of them
DEVICES = {name: f"eggroll.engines.{name}" for name in ("metal", "cuda")}


class Done(NamedTuple):
    """The end of a process: exit code, all that it said, why it failed (empty if it did not)."""

    code: int
    said: str
    why: str


def run_step(words: Sequence[str], env: Mapping[str, str], seconds: float) -> Done:
    """Runs Python with these words, and ends it and all that it started when its time is up."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    # Unbuffered, C's output too: what was said before a crash is kept.
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **PLAIN, **env}
    with tempfile.TemporaryFile() as file:
        child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *words], stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, env=env, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        late = False
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        file.seek(0)
        said = file.read().decode(errors="replace")
    if late:
        return Done(124, said, why_late(said, seconds))
    return Done(
        child.returncode, said, why_ended(said, child.returncode) if child.returncode else ""
    )


class Kernels(NamedTuple):
    """What came of some kernels: a line for each that ran, a text for each that did not."""

    ran: list[str]
    failed: list[str]
    names: list[str]  # of those that failed

    def text(self) -> str:
        count = f"{len(self.ran)} kernels ran, {len(self.failed)} failed"
        return "\n".join([count, *self.names, "", *self.ran, "", *self.failed])


def digest(found: dict) -> str:
    """The hash by which tests/*/golden.json records a source."""
    text = found["source"]["header"] + found["source"]["body"]
    return hashlib.sha256(text.encode()).hexdigest()


def failure_text(name: str, found: dict, done: Done) -> str:
    """All on a kernel that failed: what its process said, and the source unless that has it."""
    source = found["source"]
    body = source["body"].strip()
    shown = body and body.splitlines()[-1] in done.said
    text = "" if shown else f"\n--- its header and body:\n{source['header']}\n{body}"
    launch = f"grid {found['grid']}, threadgroup {found['threadgroup']}"
    head = (
        f"--- {name}: {done.why}\nsha256 {digest(found)}, {launch}, {source['shared']} bytes shared"
    )
    return f"{head}\n{done.said.rstrip()}{text}\n"


def try_kernels(
    device: str,
    files: Sequence[Path],
    tell: Callable[[Kernels], None],
    seconds: float = SECONDS,
    *,
    before: Kernels | None = None,
    side_by_side: int = 1,
    most_seconds: float | None = None,
) -> Kernels:
    """Builds and launches the kernels of files, some side by side; tells after each.

    device: the module whose `compiled` makes a kernel; before: what came of earlier ones. Goes on
    after failures, until all the time is used up: then those that are left are told as failed, or,
    with most_seconds, left for later.
    """
    so_far = before or Kernels([], [], [])
    end = time.monotonic() + (MOST_SECONDS if most_seconds is None else most_seconds)

    def tried(file: Path) -> Done | None:
        if time.monotonic() <= end:
            return run_step(["-m", "gpu.run_kernel", "run", device, str(file)], {}, seconds)
        late = f"not tried: {MOST_SECONDS} seconds were over"
        return Done(1, "", late) if most_seconds is None else None

    for first in range(0, len(files), side_by_side):
        some = files[first : first + side_by_side]
        if side_by_side == 1:
            ended = [tried(some[0])]
        else:
            with ThreadPoolExecutor(side_by_side) as pool:
                ended = list(pool.map(tried, some))
        for file, done in zip(some, ended, strict=True):
            if done is None:  # and so are all that follow
                return so_far
            found = json.loads(file.read_text())
            name = found["name"]
            if done.code == 0:
                last = next(line for line in done.said.splitlines()[::-1] if line.startswith(MARK))
                so_far.ran.append(f"{name}: {last}, sha256 {digest(found)[:16]}")
            else:
                so_far.names.append(f"{name}: {done.why}")
                so_far.failed.append(failure_text(name, found, done))
            tell(so_far)
    return so_far
