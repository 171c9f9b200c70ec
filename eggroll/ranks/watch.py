"""Processes that mlx.launch started become the ranks of one run, and watch each other.

MLX's exchanges cannot be interrupted, and say of a rank that is lost neither which it is nor, if it
only hangs, that it is lost. So every rank connects to rank 0: a thread sends a line there some
times a second, and ends its process when another rank has died, hangs or failed. Nothing else goes
this way.
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
from eggroll.ranks.joined import JoinedRanks

START_SECONDS = 60  # within which all ranks must be there
LOOPBACK = "127.0.0.1"
BEATS = 10  # lines that are sent in the time within which one must come
LONGEST_LINE = 1 << 16  # bytes of a line
DEATH_SECONDS = 0.3  # after a death: by then MLX has complained of lost connections
REACH_SECONDS = 3.0  # for a line to be sent, or a connection to be made


def join(limit: float) -> WatchedRanks | None:
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
                f"the ranks of this run did not come together within {START_SECONDS} s ({error}): "
                "see that all of them start, and can reach each other."
            ) from None
    return WatchedRanks(group, limit) if group.size() > 1 else None


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Interrupts MLX's wait after START_SECONDS; other signals end this process at once."""
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGINT)}
    handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class WatchedRanks(JoinedRanks):
    """A rank of a run that was started as several processes, under watch.

    peers: all of them, this one included.
    """

    def __init__(self, group: mx.distributed.Group, limit: float) -> None:
        super().__init__(group, self._lost_early)
        with _listening() if self.rank == 0 else contextlib.nullcontext() as server:
            own = _own_peer(self.rank, server)
            self.peers = [Peer(*facts) for facts in self.all_of(own)]
            self.watch = Watch(self.rank, self.peers, self._connections(server), limit)
        self.lost = self.watch.lost

    def run(self, work: Callable[[], Any]) -> int:
        """Does the work of all ranks; returns the exit code, once none of them needs the others.

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

        shared: rank 0 knows the sentence.
        """
        if self.rank == 0:
            say(sentence)
            self.watch.fail(code)
            end_launcher()
        elif not self.watch.ended_by_first(sentence, code, shared):
            say(f"{self.name_of(self.rank)}: {sentence}")
        return code

    def name_of(self, rank: int) -> str:
        return str(self.peers[rank])

    def _lost_early(self, why: str) -> RankError:
        return RankError(f"a rank was lost before the run began ({why}): start it again.")

    def threads(self, cores: int) -> int:
        machine = self.peers[self.rank].machine
        here = [peer.rank for peer in self.peers if peer.machine == machine]
        first, last = share(cores, here.index(self.rank), len(here))
        return max(last - first, 1)

    def _connections(self, server: socket.socket | None) -> dict[int, Connection]:
        if server:
            return _accept(server, self.peers)
        return {0: _connect(self.peers[0], self.peers[self.rank])}


# How ranks find each other.


class Peer(NamedTuple):
    """The facts by which the other ranks know one; the last three are of rank 0, which listens."""

    rank: int
    host: str  # its machine's name
    machine: str  # tells one machine from another
    pid: int  # of its process there
    pids: str  # tells one process namespace, as of a container, from another
    addresses: Sequence[str] = ()
    port: int = 0
    secret: str = ""  # proves that who connects is a rank of this run

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def _own_peer(rank: int, server: socket.socket | None) -> Peer:
    """This process; server: of rank 0."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
    pids = Path("/proc/self/ns/pid")
    facts = (
        rank, socket.gethostname(), machine, os.getpid(),
        os.readlink(pids) if pids.is_symlink() else "",
    )  # fmt: skip
    if server is None:
        return Peer(*facts)
    addresses = [host.rpartition(":")[0] for host in (_hosts() or [[]])[0]]
    with contextlib.suppress(OSError):
        addresses += socket.gethostbyname_ex(socket.gethostname())[2]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent; it tells the usual way out
        addresses.append(probe.getsockname()[0])
    port = server.getsockname()[1]
    return Peer(*facts, list(dict.fromkeys(addresses)), port, secrets.token_hex(16))


def _hosts() -> list[list[str]]:
    """Addresses of every rank, ["ip:port", ..] each, where the ring's file has them."""
    try:
        hosts = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text() or "[]")
    except (KeyError, OSError, ValueError):
        return []
    return hosts if isinstance(hosts, list) else []


def _listening() -> socket.socket:
    """A server of rank 0, on this machine alone where all ranks are."""
    addresses = {address.rpartition(":")[0] for host in _hosts() for address in host}
    return socket.create_server((LOOPBACK if addresses == {LOOPBACK} else "", 0), backlog=1024)


def _accept(server: socket.socket, peers: Sequence[Peer]) -> dict[int, Connection]:
    """The connections of all other ranks, on rank 0."""
    connections: dict[int, Connection] = {}
    deadline = time.monotonic() + START_SECONDS
    while len(connections) < len(peers) - 1:
        server.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            connection = Connection(server.accept()[0])
        except TimeoutError:
            absent = next(peer for peer in peers[1:] if peer.rank not in connections)
            raise _unreachable(peers[0], absent) from None
        greeting: list[dict[str, Any]] = connection.receive() or []
        if greeting and greeting[0].get("secret") == peers[0].secret:
            connections[int(greeting[0]["rank"])] = connection
            connection.send(welcome=True)
    return connections


def _connect(first: Peer, own: Peer) -> Connection:
    """The connection to rank 0."""
    addresses = [LOOPBACK] * (first.machine == own.machine) + list(first.addresses)
    for address in dict.fromkeys(addresses):
        with contextlib.suppress(OSError):
            connection = Connection(socket.create_connection((address, first.port), timeout=3))
            connection.send(rank=own.rank, secret=first.secret)
            if connection.receive():
                return connection
    raise _unreachable(first, own)


def _unreachable(first: Peer, other: Peer) -> RankError:
    addresses = ", ".join(first.addresses) or LOOPBACK
    return RankError(
        f"{other} cannot reach rank 0 on {first.host} at {addresses}, port {first.port}: let it "
        "through there, as by this way ranks know that the others live."
    )


# The watch.


class Watch:
    """The thread of a rank that sends lines and waits for those of others.

    limit: seconds without a line after which a rank hangs; connections: to rank 0, or of rank 0 to
    all others, by rank; resume: the part of a sentence that says how the run goes on.
    """

    def __init__(
        self, rank: int, peers: Sequence[Peer], connections: dict[int, Connection], limit: float
    ) -> None:
        self.rank, self.peers, self.limit = rank, peers, limit
        self.resume = ""
        self._connections, self._heard = connections, dict.fromkeys(connections, time.monotonic())
        self._leaving, self._parent = False, os.getppid()
        threading.Thread(target=self._work, name="watch", daemon=True).start()

    def lost(self, why: str) -> RankError:
        """The error for a connection of MLX's that is gone.

        The watch has time to find out why before, and ends this process then.
        """
        time.sleep(self.limit + 1)
        return RankError(f"the connection to another rank was lost ({why}){self.resume}.")

    def leave(self, *, wait: bool = False) -> None:
        """Says that this rank has done its part: nobody waits for it any more.

        wait: until rank 0 has, too.
        """
        self._leaving = True
        self._send(done=True)
        deadline = time.monotonic() + self.limit
        while wait and self._connections and time.monotonic() < deadline:
            time.sleep(0.01)

    def fail(self, code: int) -> None:
        """Ends all other ranks, on rank 0."""
        self._leaving = True
        self._send(failed="", code=code, rank=0)
        self._close()

    def ended_by_first(self, sentence: str, code: int, shared: bool) -> bool:
        """Tells rank 0, which says it and ends this process; false if it does not in time.

        shared: rank 0 knows without being told.
        """
        self._leaving = True
        if not shared:
            self._send(failed=sentence, code=code, rank=self.rank)
        time.sleep(self.limit + 1)
        return False

    def _send(self, **facts: Any) -> None:
        for connection in list(self._connections.values()):
            connection.send(**facts)

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()

    def _work(self) -> None:
        """The thread: sends a line every period, reads those that come, until all have left."""
        period = self.limit / BEATS
        with selectors.DefaultSelector() as waiting:
            for rank, connection in self._connections.items():
                waiting.register(connection.socket, selectors.EVENT_READ, rank)
            previous = sent = time.monotonic()
            while self._connections:
                ready = waiting.select(period / 2)
                now = time.monotonic()
                if now - previous > 2 * period:  # this process itself was stopped, or starved
                    self._heard = {k: t + now - previous for k, t in self._heard.items()}
                previous = now
                for key, _ in ready:
                    if not self._hear(key.data, now):
                        waiting.unregister(key.fileobj)
                if now - sent >= period:
                    sent = now
                    self._send()
                self._check_alive(now)

    def _hear(self, rank: int, now: float) -> bool:
        """Reads a rank's lines; returns false if no more can come."""
        lines = self._connections[rank].receive()
        self._heard[rank] = now
        for facts in lines or ():
            if "done" in facts:
                del self._connections[rank]
                return False
            if "failed" in facts:
                peer = self.peers[int(facts.get("rank", rank))]
                sentence = f"{peer}: {facts['failed']}" if facts["failed"] else ""
                self._end(sentence, int(facts["code"]), peer)
        if lines is None:
            del self._connections[rank]
            if not self._leaving:
                time.sleep(DEATH_SECONDS)
                self._end(
                    f"error: {self.peers[rank]} died{self.resume}.", REFUSED, self.peers[rank]
                )
        return lines is not None

    def _check_alive(self, now: float) -> None:
        """Ends this process if a rank hangs, and asks it to end if its launcher is gone."""
        for rank in list(self._connections):
            silence = now - self._heard[rank]
            if silence > self.limit and not self._leaving:
                peer = self.peers[rank]
                cause = f"as nothing came from it for {silence:.1f} s{self.resume}."
                self._end(f"error: {peer} hangs, {cause}", REFUSED, peer, kill=True)
        if os.getppid() != self._parent:  # what started the ranks is gone
            self._parent = os.getppid()
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self, sentence: str, code: int, peer: Peer, *, kill: bool = False) -> None:
        """Prints the sentence, tells all others, and ends this process, whatever it waits for.

        peer: the rank that is the cause; kill: also ends it, where it is on this machine.
        """
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        if sentence:
            say(sentence)
        self._send(failed="", code=code, rank=peer.rank)
        own = self.peers[self.rank]
        if kill and (peer.machine, peer.pids) == (own.machine, own.pids):
            with contextlib.suppress(OSError):
                os.kill(peer.pid, signal.SIGKILL)
        self._close()
        end_launcher()
        os._exit(code)


class Connection:
    """A connection to another rank, in lines of JSON."""

    def __init__(self, endpoint: socket.socket) -> None:
        self.socket, self._rest = endpoint, b""
        self._lock = threading.Lock()
        endpoint.settimeout(REACH_SECONDS)

    def send(self, **facts: Any) -> None:
        """Sends a line; if nobody is there any more, `receive` will tell."""
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(facts).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Returns the lines that have come, once there is something to read; None at the end."""
        try:
            data = self.socket.recv(LONGEST_LINE)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data or len(self._rest) > LONGEST_LINE:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            rows = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return [facts for facts in rows if isinstance(facts, dict)]

    def close(self) -> None:
        """Ends it; what was sent still arrives, as the other side is waited for."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(1)
            while self.socket.recv(LONGEST_LINE):
                pass
        self.socket.close()


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
