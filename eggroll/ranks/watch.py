"""Who is still alive: ranks tell rank 0 so, and it tells them, over connections of their own.

MLX's exchanges cannot be interrupted, and say of a rank that is lost neither which it is nor, if it
only hangs, that it is lost. So a thread of every rank sends a line some times a second, and ends
its process when another rank has died, hangs or failed. Nothing else goes this way.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eggroll.cli import REFUSED
from eggroll.ranks import RankError
from eggroll.screen import say

BEATS = 10  # lines that are sent in the time within which one must come
LONGEST = 1 << 16  # bytes of a line
LAST = 0.3  # seconds after a death in which MLX has complained of lost connections
REACHED = 3.0  # seconds for a line to be sent, or a connection to be made


class Member(NamedTuple):
    """A rank as the others know it.

    host: its machine's name; machine: tells one machine from another; pid: its process there;
    pids: tells one count of processes, as of a container, from another; addresses: of rank 0, where
    it listens, and port; secret: which those who connect know.
    """

    rank: int
    host: str
    machine: str
    pid: int
    pids: str
    addresses: Sequence[str] = ()
    port: int = 0
    secret: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class Line:
    """A connection to another rank, in lines of JSON."""

    def __init__(self, at: socket.socket) -> None:
        self.at, self._rest = at, b""
        self._lock = threading.Lock()
        at.settimeout(REACHED)

    def send(self, **facts: Any) -> None:
        """Sends a line; if nobody is there any more, `received` will tell."""
        with self._lock, contextlib.suppress(OSError):
            self.at.sendall(json.dumps(facts).encode() + b"\n")

    def received(self) -> list[dict[str, Any]] | None:
        """Lines that have come, once there is something to read; None at the end."""
        try:
            data = self.at.recv(LONGEST)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data or len(self._rest) > LONGEST:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            found = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return [facts for facts in found if isinstance(facts, dict)]

    def close(self) -> None:
        """Ends it; what was sent still arrives, as the other side is waited for."""
        with contextlib.suppress(OSError):
            self.at.shutdown(socket.SHUT_WR)
            self.at.settimeout(1)
            while self.at.recv(LONGEST):
                pass
        self.at.close()


class Watch:
    """The thread of a rank that sends lines and looks for those of others.

    limit: seconds without a line after which a rank hangs; members: all ranks; lines: to rank 0,
    or of rank 0 to all others, by rank; resume: said of how the run goes on.
    """

    def __init__(
        self, rank: int, members: Sequence[Member], lines: dict[int, Line], limit: float
    ) -> None:
        self.rank, self.members, self.limit = rank, members, limit
        self.resume = ""
        self._lines, self._heard = lines, dict.fromkeys(lines, time.monotonic())
        self._leaving, self._parent = False, os.getppid()
        threading.Thread(target=self._work, name="watch", daemon=True).start()

    def lost(self, why: str) -> RankError:
        """What to raise where a connection of MLX's is gone; before, the watch may find out why.

        It ends this process then.
        """
        time.sleep(self.limit + 1)
        return RankError(f"the connection to another rank was lost ({why}){self.resume}.")

    def leave(self, *, wait: bool = False) -> None:
        """Says that this rank has done its part: nobody waits for it any more.

        wait: until rank 0 has, too.
        """
        self._leaving = True
        self._tell(done=True)
        until = time.monotonic() + self.limit
        while wait and self._lines and time.monotonic() < until:
            time.sleep(0.01)

    def fail(self, code: int) -> None:
        """Ends all other ranks, on rank 0."""
        self._leaving = True
        self._tell(failed="", code=code, rank=0)
        self._close()

    def ended_by_first(self, sentence: str, code: int, shared: bool) -> bool:
        """Waits on another rank for rank 0, which says what it is told and ends this process.

        shared: whether it knows without being told. False if that does not come.
        """
        self._leaving = True
        if not shared:
            self._tell(failed=sentence, code=code, rank=self.rank)
        time.sleep(self.limit + 1)
        return False

    def _tell(self, **facts: Any) -> None:
        for line in list(self._lines.values()):
            line.send(**facts)

    def _close(self) -> None:
        for line in list(self._lines.values()):
            line.close()

    def _work(self) -> None:
        period = self.limit / BEATS
        with selectors.DefaultSelector() as waiting:
            for rank, line in self._lines.items():
                waiting.register(line.at, selectors.EVENT_READ, rank)
            before = sent = time.monotonic()
            while self._lines:
                ready = waiting.select(period / 2)
                now = time.monotonic()
                if now - before > 2 * period:  # this process itself was stopped, or starved
                    self._heard = {k: t + now - before for k, t in self._heard.items()}
                before = now
                for key, _ in ready:
                    if not self._hear(key.data, now):
                        waiting.unregister(key.fileobj)
                if now - sent >= period:
                    sent = now
                    self._tell()
                self._look(now)

    def _hear(self, rank: int, now: float) -> bool:
        """Reads what a rank said; whether more may come."""
        found = self._lines[rank].received()
        self._heard[rank] = now
        for facts in found or ():
            if "done" in facts:
                del self._lines[rank]
                return False
            if "failed" in facts:
                who = self.members[int(facts.get("rank", rank))]
                said = f"{who}: {facts['failed']}" if facts["failed"] else ""
                self._end(said, int(facts["code"]), who)
        if found is None:
            del self._lines[rank]
            if not self._leaving:
                time.sleep(LAST)
                self._end(
                    f"error: {self.members[rank]} died{self.resume}.", REFUSED, self.members[rank]
                )
        return found is not None

    def _look(self, now: float) -> None:
        for rank in list(self._lines):
            silent = now - self._heard[rank]
            if silent > self.limit and not self._leaving:
                who = self.members[rank]
                said = (
                    f"error: {who} hangs, as nothing came from it for {silent:.1f} s{self.resume}."
                )
                self._end(said, REFUSED, who, kill=True)
        if os.getppid() != self._parent:  # what started the ranks is gone
            self._parent = os.getppid()
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self, said: str, code: int, who: Member, *, kill: bool = False) -> None:
        """Says why, tells all others, and ends this process, whatever it waits for.

        kill: the rank that hangs, where it is on this machine.
        """
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        if said:
            say(said)
        self._tell(failed="", code=code, rank=who.rank)
        mine = self.members[self.rank]
        if kill and (who.machine, who.pids) == (mine.machine, mine.pids):
            with contextlib.suppress(OSError):
                os.kill(who.pid, signal.SIGKILL)
        self._close()
        end_launcher()
        os._exit(code)


def end_launcher() -> None:
    """Ends mlx.launch, where it started this process, as it returns 0 whatever ranks return.

    So it ends by SIGTERM, a shell's 143; eggroll.launch has the code of the ranks.
    """
    parent = os.getppid()
    try:
        command = ["ps", "-o", "args=", "-p", str(parent)]
        words = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return
    if any(Path(word).name == "mlx.launch" for word in words[:2]):
        time.sleep(2)  # in which it passes on what was said, on a busy machine too
        with contextlib.suppress(OSError):
            os.kill(parent, signal.SIGTERM)
