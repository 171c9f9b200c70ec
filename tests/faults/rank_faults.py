"""Runs of several ranks under attack: one is killed, stopped or asked to end, and named.

Ranks are processes of one launcher, or each in a network namespace with an address and a host name
of its own, where this user may make such. Every resume is on another number of ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ended import Broken

from eggroll.files import CHECKPOINT, METRICS
from faults.cases import NAMES, Case, case
from faults.commands import DONE, INTERRUPTED, Child, check_metrics, lines_of, state_of

ALL = [name for name in NAMES if name != "adamw"]
STEPS, MOST = 60, 4  # updates of a run, ranks
LIMIT = 3.0  # --rank-timeout
NAMED = 10.0  # seconds within which all ranks have ended
HUB = "egg-hub"
FAULTS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Namespaces:
    """MOST machines, as far as the network tells: egg-0, egg-1 .. at 10.231.7.1, .2 .."""

    def __init__(self) -> None:
        self.names = [f"egg-{i}" for i in range(MOST)]

    def __enter__(self) -> Namespaces:
        self.__exit__()
        sh("ip", "netns", "add", HUB)
        sh("ip", "-n", HUB, "link", "add", "bridge", "type", "bridge")
        sh("ip", "-n", HUB, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", name, "netns", HUB)
            sh("ip", "-n", HUB, "link", "set", name, "master", "bridge", "up")
            sh("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                sh("ip", "-n", name, "link", "set", link, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, HUB):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def address(self, i: int) -> str:
        return f"10.231.7.{i + 1}"

    def within(self, i: int) -> list[str]:
        """Words before a command that starts it there."""
        script = f'hostname {self.names[i]}; exec "$@"'
        return ["ip", "netns", "exec", self.names[i], "unshare", "-u", "sh", "-c", script, "sh"]


class Job:
    """A run on so many ranks. pids: of the ranks, in order."""

    def __init__(self, ranks: int, words: Sequence[object], spaces: Namespaces | None) -> None:
        self.ranks, self.spaces = ranks, spaces
        train = [sys.executable, "-m", "eggroll.train"]
        if spaces:
            hosts = [[f"{spaces.address(i)}:32323"] for i in range(ranks)]
            file = Path(tempfile.mkdtemp()) / "hosts.json"
            file.write_text(json.dumps(hosts))
            self.children = [
                Child(
                    *words, command=[*spaces.within(i), *train],
                    env={"MLX_RANK": str(i), "MLX_HOSTFILE": str(file)},
                )
                for i in range(ranks)
            ]  # fmt: skip
            self.pids = [child.process.pid for child in self.children]
        else:
            launch = [sys.executable, "-m", "eggroll.launch", "-n", str(ranks)]
            port = 20000 + random.SystemRandom().randrange(10000)
            command = [*launch, "--starting-port", str(port), "--", *train]
            self.children = [Child(*words, command=command)]
            self.pids = []

    def found(self) -> bool:
        """Whether all ranks are processes by now."""
        if not self.spaces:
            launcher = self.children[0].process.pid
            here = {}
            for pid in children_of(launcher):
                with contextlib.suppress(OSError, IndexError):
                    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    rank = next(v for v in variables if v.startswith(b"MLX_RANK="))
                    here[int(rank.partition(b"=")[2])] = pid
            self.pids = [here[rank] for rank in sorted(here)]
        return len(self.pids) == self.ranks

    def ended(self) -> tuple[int, str, str]:
        """The exit code, that of rank 0 where each has its own, and all that was said."""
        found = [child.ended() for child in self.children]
        return found[0].code, "".join(f.out for f in found), "".join(f.err for f in found)

    def host(self, rank: int) -> str:
        return self.spaces.names[rank] if self.spaces else socket.gethostname()


def children_of(parent: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(folder.name)


class RankChain:
    """One run under attack in its folder, on ranks whose number changes with every resume.

    counts: of starts, faults, resumes; slowest: seconds from a fault until all ranks had ended.
    """

    def __init__(self, of: Case, folder: Path, chance: random.Random) -> None:
        self.case, self.folder, self.chance = of, folder, chance
        self.counts: Counter[str] = Counter()
        self.slowest, self.step = 0.0, -1

    def attack(self, fault: str, rank: int, ranks: int, spaces: Namespaces | None) -> bool:
        """Starts or resumes the run and breaks it; True once it has made all its updates."""
        words = ["--resume", self.folder] if self.step >= 0 else [*self.case.words]
        words += [] if self.step >= 0 else ["--out", self.folder]
        every = str(self.chance.choice([2, 3, 7]))
        words += ["--checkpoint-every", every, "--rank-timeout", str(LIMIT), "--rank-check", "5"]
        job = Job(ranks, words, spaces)
        self.counts["starts"] += 1
        self.counts["starts in namespaces"] += spaces is not None
        wanted = max(self.step, 0) + self.chance.randrange(1, 25)
        before = self._metrics()
        alive = job.children[0].wait_for(
            lambda: self._metrics() != before and lines_of(self.folder) >= wanted and job.found()
        )
        began = time.monotonic()
        if alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pids[rank], FAULTS[fault])
        code, _, said = job.ended()
        return self._look(job, fault, rank, code, said, time.monotonic() - began)

    def _metrics(self) -> int:
        path = self.folder / METRICS
        return path.stat().st_ino if path.exists() else 0

    def _look(self, job: Job, fault: str, rank: int, code: int, said: str, seconds: float) -> bool:
        state = state_of(self.folder / CHECKPOINT)
        self.counts["checkpoints verified"] += 1
        if not self.case.expects(state) or state.step < self.step:
            raise Broken(f"{self.folder}: update {state.step} is another than undisturbed")
        check_metrics(self.folder, state.step)
        self.counts["exact resumes on another number of ranks"] += 0 <= self.step < state.step
        self.step = state.step
        if code == DONE:
            return True
        how = {"SIGKILL": "died", "SIGSTOP": "hangs"}.get(fault)
        if how and f"rank {rank} on {job.host(rank)} {how}" not in said:
            raise Broken(f"{fault} of rank {rank} of {job.ranks}: {code} {said}")
        if not how and (code != INTERRUPTED or "go on with" not in said):
            raise Broken(f"{fault} of rank {rank} of {job.ranks}: {code} {said}")
        if seconds > NAMED:
            raise Broken(f"{fault} of rank {rank} of {job.ranks} took {seconds:.1f} s: {said}")
        self.counts[f"{fault} of rank {rank} of {job.ranks}"] += 1
        self.counts[fault] += 1
        self.slowest = max(self.slowest, seconds)
        return False

    def whole(self, ranks: int, spaces: Namespaces | None) -> None:
        """The run from its first to its last update; the signature must be the undisturbed one."""
        code, out, said = Job(ranks, [*self.case.words, "--out", self.folder], spaces).ended()
        if code != DONE or f"signature: {self.case.signature}" not in out:
            raise Broken(f"{self.folder} ended with {code}: {out} {said}")

    def end(self, ranks: int, spaces: Namespaces | None) -> None:
        """Goes on to the last update, undisturbed; the signature must be the undisturbed one."""
        if self.step < STEPS:
            code, out, said = Job(ranks, ["--resume", self.folder], spaces).ended()
            self.counts["starts"] += 1
            if code != DONE or f"signature: {self.case.signature}" not in out:
                raise Broken(f"{self.folder} ended with {code}: {out} {said}")
        state = state_of(self.folder / CHECKPOINT)
        if state.step != STEPS or not self.case.expects(state):
            raise Broken(f"{self.folder}: {state}")
        self.counts["runs that ended on the exact signature"] += 1


def possible() -> bool:
    """Whether this user may make network namespaces."""
    try:
        with Namespaces():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def attacked(wanted: int, seed: int) -> tuple[Counter[str], float]:
    """So many faults, of every case, number of ranks, rank and fault in turn; the slowest end."""
    counts: Counter[str] = Counter({"broken promises": 0})
    slowest, turn = 0.0, 0
    with Namespaces() if possible() else contextlib.nullcontext() as spaces:
        counts["namespaces"] = 0 if spaces is None else MOST
        ways = [(n, rank, f) for n in range(2, MOST + 1) for rank in range(n) for f in FAULTS]
        random.Random(seed).shuffle(ways)
        while sum(counts[fault] for fault in FAULTS) < wanted and not counts["broken promises"] > 9:
            place = Path(tempfile.mkdtemp(prefix="eggroll-ranks-"))
            chance = random.Random(f"{seed} {turn}")
            chain = RankChain(case(ALL[turn % len(ALL)], STEPS), place / "run", chance)
            try:
                for i in range(3):
                    ranks, rank, fault = ways[(3 * turn + i) % len(ways)]
                    if chain.attack(fault, rank, ranks, spaces if i % 2 else None):
                        break
                chain.end(chance.randrange(2, MOST + 1), spaces)
                shutil.rmtree(place)
            except Broken as broken:
                counts["broken promises"] += 1
                print(f"chain {turn}: {broken}", flush=True)
            counts.update(chain.counts)
            slowest, turn = max(slowest, chain.slowest), turn + 1
    return counts, slowest


def signatures() -> Counter[str]:
    """Whole runs of every case on 2 to MOST ranks, as processes and in namespaces."""
    counts: Counter[str] = Counter({"broken promises": 0, "cases": len(ALL)})
    with Namespaces() if possible() else contextlib.nullcontext() as spaces:
        for name in ALL:
            of = case(name, STEPS)
            for ranks in range(2, MOST + 1):
                for where in (None, spaces) if spaces else (None,):
                    place = Path(tempfile.mkdtemp(prefix="eggroll-ranks-"))
                    chain = RankChain(of, place / "run", random.Random(0))
                    try:
                        chain.whole(ranks, where)
                        counts[f"{ranks} ranks{' in namespaces' * (where is not None)}"] += 1
                        shutil.rmtree(place)
                    except Broken as broken:
                        counts["broken promises"] += 1
                        print(f"{name} on {ranks} ranks: {broken}", flush=True)
    return counts
