"""How the processes that mlx.launch started become the ranks of one run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from eggroll.cli import DONE, INTERRUPTED, REFUSED
from eggroll.errors import InputError
from eggroll.ranks import RankError, SharedError, share
from eggroll.ranks.joined import Joined
from eggroll.ranks.watch import Line, Member, Watch, end_launcher
from eggroll.screen import say

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
