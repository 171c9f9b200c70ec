"""Who is still alive: ranks tell rank 0 so, and it tells them, over connections of their own.

MLX's exchanges cannot be interrupted, and say of a rank that is lost neither which it is nor, if it
only hangs, that it is lost. So a thread of every rank sends a line some times a second, and ends
its process when another rank has died, hangs or failed. Nothing else goes this way.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from eggroll.cli.command import DONE, INTERRUPTED, REFUSED
from eggroll.cli.screen import say
from eggroll.errors import InputError
from eggroll.ranks import RankError, SharedError, share
from eggroll.ranks.joined import Joined

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


START = 60  # seconds within which all ranks must be there
LOOPBACK = "127.0.0.1"


class Rank(Joined):
    """A rank of a run that was started as several processes, under watch.

    members: all of them.
    """

    def __init__(self, group: mx.distributed.Group, limit: float) -> None:
        super().__init__(group, self._unwatched)
        with _listening() if self.rank == 0 else contextlib.nullcontext() as server:
            mine = _member(self.rank, server)
            self.members = [Member(*facts) for facts in self.all_of(mine)]
            self.watch = Watch(self.rank, self.members, self._lines(server, limit), limit)
        self.lost = self.watch.lost

    def run(self, work: Callable[[], Any]) -> int:
        """Does what all ranks do; returns the exit code, once none of them needs the others.

        work: returns something whose resume_hint is not empty if all were asked to stop.
        """
        try:
            hint = work().resume_hint
            self.table([0])  # what rank 0 wrote is on its disk
        except InputError as error:
            return self._failed(f"error: {error}", REFUSED, isinstance(error, SharedError))
        except KeyboardInterrupt as stop:
            return self._failed(str(stop) or "Interrupted.", INTERRUPTED)
        # What started the ranks ends all others when the first has stopped.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if hint and self.rank == 0:
            say(hint)
        self.watch.leave(wait=bool(hint))
        return INTERRUPTED if hint else DONE

    def _failed(self, sentence: str, code: int, shared: bool = False) -> int:
        """Ends all ranks, of which only rank 0 says why; returns the exit code.

        shared: whether rank 0 knows.
        """
        if self.rank == 0:
            say(sentence)
            self.watch.fail(code)
            end_launcher()
        elif not self.watch.ended_by_first(sentence, code, shared):
            say(f"{self.name_of(self.rank)}: {sentence}")
        return code

    def name_of(self, rank: int) -> str:
        return str(self.members[rank])

    def _unwatched(self, why: str) -> RankError:
        return RankError(f"a rank was lost before the run began ({why}): start it again.")

    def threads(self, cores: int) -> int:
        machine = self.members[self.rank].machine
        here = [member.rank for member in self.members if member.machine == machine]
        first, last = share(cores, here.index(self.rank), len(here))
        return max(last - first, 1)

    def _lines(self, server: socket.socket | None, limit: float) -> dict[int, Line]:
        if server:
            return _accepted(server, self.members)
        return {0: _connected(self.members[0], self.members[self.rank])}


def join(limit: float) -> Rank | None:
    """This process as a rank; None if it is the only one.

    limit: seconds without a sign of life after which a rank hangs.

    Raises:
        InputError: the others do not come.
    """
    if os.environ.get("MLX_HOSTFILE") and not _hosts():
        return None  # as of `mlx.launch -n 1`
    with _patience():
        try:
            group = mx.distributed.init(strict=True)
        except RuntimeError as error:
            raise InputError(
                f"the ranks of this run did not come together within {START} s ({error}): see that "
                "all of them start, and can reach each other."
            ) from None
    return Rank(group, limit) if group.size() > 1 else None


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Interrupts what MLX waits for after a time; any other signal ends this process at once."""
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, START, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _hosts() -> list[list[str]]:
    """Addresses of every rank, ["ip:port", ..] each, where the ring's file has them."""
    try:
        found = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text() or "[]")
    except (KeyError, OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def _listening() -> socket.socket:
    """A server of rank 0, on this machine alone where all ranks are."""
    addresses = {at.rpartition(":")[0] for host in _hosts() for at in host}
    return socket.create_server((LOOPBACK if addresses == {LOOPBACK} else "", 0), backlog=1024)


def _member(rank: int, server: socket.socket | None) -> Member:
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
    pids = Path("/proc/self/ns/pid")
    known = (
        rank, socket.gethostname(), machine, os.getpid(),
        os.readlink(pids) if pids.is_symlink() else "",
    )  # fmt: skip
    if server is None:
        return Member(*known)
    addresses = [at.rpartition(":")[0] for at in (_hosts() or [[]])[0]]
    with contextlib.suppress(OSError):
        addresses += socket.gethostbyname_ex(socket.gethostname())[2]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent; it tells the usual way out
        addresses.append(probe.getsockname()[0])
    port = server.getsockname()[1]
    return Member(*known, list(dict.fromkeys(addresses)), port, secrets.token_hex(16))


def _accepted(server: socket.socket, members: Sequence[Member]) -> dict[int, Line]:
    """The connections of all other ranks, on rank 0."""
    lines: dict[int, Line] = {}
    until = time.monotonic() + START
    while len(lines) < len(members) - 1:
        server.settimeout(max(until - time.monotonic(), 0.01))
        try:
            line = Line(server.accept()[0])
        except TimeoutError:
            missing = next(m for m in members[1:] if m.rank not in lines)
            raise _unreachable(members[0], missing) from None
        said: list[dict[str, Any]] = line.received() or []
        if said and said[0].get("secret") == members[0].secret:
            lines[int(said[0]["rank"])] = line
            line.send(welcome=True)
    return lines


def _connected(first: Member, mine: Member) -> Line:
    """The connection to rank 0."""
    addresses = [LOOPBACK] * (first.machine == mine.machine) + list(first.addresses)
    for address in dict.fromkeys(addresses):
        with contextlib.suppress(OSError):
            line = Line(socket.create_connection((address, first.port), timeout=3))
            line.send(rank=mine.rank, secret=first.secret)
            if line.received():
                return line
    raise _unreachable(first, mine)


def _unreachable(first: Member, other: Member) -> RankError:
    where = ", ".join(first.addresses) or LOOPBACK
    return RankError(
        f"{other} cannot reach rank 0 on {first.host} at {where}, port {first.port}: let it "
        "through there, as by this way ranks know that the others live."
    )
