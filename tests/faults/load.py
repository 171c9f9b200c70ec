"""Large populations and long runs: memory stays within bounds, and so do open files and threads."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ended import Broken

from faults.commands import DONE, TINY, Child, lines_of


class Sample(NamedTuple):
    """A process at a moment: updates made, bytes in memory, open files, threads."""

    step: int
    memory: int
    files: int
    threads: int


def sample(pid: int, step: int) -> Sample:
    """Of a process that runs; from /proc."""
    place = Path(f"/proc/{pid}")
    status = dict(
        line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line
    )
    memory, threads = int(status["VmRSS"].split()[0]) << 10, int(status["Threads"])
    return Sample(step, memory, len(list((place / "fd").iterdir())), threads)


def watched(words: list[str], every: float) -> list[Sample]:
    """Samples of a run from its first update to its end."""
    with tempfile.TemporaryDirectory(prefix="eggroll-load-") as place:
        folder = Path(place) / "run"
        child = Child(*words, "--out", folder)
        child.wait_for(lambda: lines_of(folder) > 0)
        found: list[Sample] = []
        while child.process.poll() is None:
            try:
                found.append(sample(child.process.pid, lines_of(folder)))
            except (OSError, KeyError):  # it has just ended
                break
            time.sleep(every)
        ended = child.ended()
        if ended.code != DONE:
            raise Broken(f"{ended}")
        return found


def many_updates(updates: int, every: float = 1.0) -> dict[str, object]:
    """A run of so many updates; the memory of its last tenth beside that of its second."""
    began = time.monotonic()
    found = watched([*TINY, "--steps", str(updates), "--checkpoint-every", "100"], every)
    body = [s for s in found if 0.1 * updates <= s.step <= 0.98 * updates]
    early = [s for s in body if s.step < 0.2 * updates]
    late = [s for s in body if s.step > 0.88 * updates]
    if not early or not late:
        raise Broken(f"{len(found)} samples are too few")
    growth = max(s.memory for s in late) - max(s.memory for s in early)
    if growth > 8 << 20:
        raise Broken(f"memory grew by {growth:,} bytes: {found}")
    for name in ("files", "threads"):
        if max(getattr(s, name) for s in late) > max(getattr(s, name) for s in early):
            raise Broken(f"{name} grew: {found}")
    return {
        "updates": updates,
        "seconds": round(time.monotonic() - began),
        "samples": len(found),
        "memory early, bytes": max(s.memory for s in early),
        "memory late, bytes": max(s.memory for s in late),
        "open files early and late": [max(s.files for s in early), max(s.files for s in late)],
        "threads early and late": [max(s.threads for s in early), max(s.threads for s in late)],
    }


def large_population(members: int, limit: int) -> dict[str, object]:
    """A few updates of a population; limit: bytes that it may take."""
    began = time.monotonic()
    words = [*TINY, "--pop", str(members), "--group-size", "1024", "--steps", "3"]
    found = watched(words, 0.05)
    most = max(s.memory for s in found)
    if most > limit:
        raise Broken(f"{members:,} members take {most:,} bytes")
    return {
        "members": members,
        "updates": 3,
        "seconds": round(time.monotonic() - began),
        "most memory, bytes": most,
        "limit, bytes": limit,
    }
