"""Processes that mlx.launch started become the ranks of one run, and watch each other.

MLX's exchanges cannot be interrupted, and say of a rank that is lost neither which it is nor, if it
only hangs, that it is lost. So every rank connects to rank 0: a thread sends a line there some
times a second, and ends its process when another rank has died, hangs or failed. Nothing else goes
this way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from eggroll.cli.command import DONE, INTERRUPTED, REFUSED
from eggroll.cli.screen import say
from eggroll.errors import InputError
from eggroll.ranks import RankError, SharedError, share
from eggroll.ranks.joined import JoinedRanks
from eggroll.ranks.rendezvous import (
    START_SECONDS,
    Connection,
    Peer,
    accept_ranks,
    connect,
    listening,
    own_peer,
    ring_hosts,
)

BEATS = 10  # lines that are sent in the time within which one must come
DEATH_SECONDS = 0.3  # after a death: by then MLX has complained of lost connections


def join(limit: float) -> WatchedRanks | None:
    """This process as a rank; None if it is the only one.

    limit: seconds without a sign of life after which a rank hangs.

    Raises:
        InputError: the others do not come.
    """
    if (name := os.environ.get("MLX_HOSTFILE")) and not (hosts := ring_hosts()):
        if hosts is None:
            raise InputError(
                f"MLX_HOSTFILE is {name!r}, where no list of hosts can be read: start the ranks by "
                "eggroll launch, or unset it."
            )
        return None  # as of `mlx.launch -n 1`
    if name:
        check_ring(hosts or [], os.environ.get("MLX_RANK", ""))
    with _patience():
        try:
            group = mx.distributed.init(strict=True)
        except RuntimeError as error:
            raise InputError(
                f"the ranks of this run did not come together ({error}): see that all of them "
                f"start within {START_SECONDS} s and can reach each other, or give another "
                "--starting-port where ports are taken."
            ) from None
    return WatchedRanks(group, limit) if group.size() > 1 else None


def check_ring(hosts: list[list[str]], rank: str) -> None:
    """Raises InputError for what MLX's ring waits for in vain.

    hosts: addresses of every rank; rank: which of them this process is, as a word.
    """
    if not (rank.isdecimal() and int(rank) < len(hosts)):
        raise InputError(
            f"MLX_RANK is {rank!r}: a number from 0 to {len(hosts) - 1} is needed, as MLX_HOSTFILE "
            f"lists {len(hosts)} ranks."
        )
    known = set[str]()
    for address in itertools.chain(*hosts):
        port = address.rpartition(":")[2]
        if not (port.isdecimal() and 0 < int(port) < 1 << 16) or address in known:
            why = "is there twice" if address in known else "has no port from 1 to 65535"
            raise InputError(
                f"MLX_HOSTFILE has the address {address!r}, which {why}: give every rank "
                "addresses of its own, such as 127.0.0.1:33001."
            )
        known.add(address)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Interrupts MLX's wait after START_SECONDS, and ends this process where it goes on as long.

    Other signals end it at once.
    """
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGINT)}
    handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS, 1)
    last = threading.Timer(2 * START_SECONDS, _give_up)  # an exchange goes on after signals
    last.daemon = True
    last.start()
    try:
        yield
    finally:
        last.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _give_up() -> None:
    say(
        f"error: a rank was lost before the run began (silent for {2 * START_SECONDS} s): start "
        "it again."
    )
    os._exit(REFUSED)


class WatchedRanks(JoinedRanks):
    """A rank of a run that was started as several processes, under watch.

    peers: all of them, this one included.
    """

    def __init__(self, group: mx.distributed.Group, limit: float) -> None:
        super().__init__(group, self._lost_early)
        with listening() if self.rank == 0 else contextlib.nullcontext() as server:
            own = own_peer(self.rank, server)
            with _patience():
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
            return accept_ranks(server, self.peers)
        return {0: connect(self.peers[0], self.peers[self.rank])}


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
        if not self._leaving:
            for rank in list(self._connections):
                if now - self._heard[rank] > self.limit:
                    self._end_silent(rank, now)
        if os.getppid() != self._parent:  # what started the ranks is gone
            self._parent = os.getppid()
            os.kill(os.getpid(), signal.SIGTERM)

    def _end_silent(self, rank: int, now: float) -> None:
        """Ends this process, as nothing comes from a rank; kills that one only if it is stopped."""
        own, peer, connection = self.peers[self.rank], self.peers[rank], self._connections[rank]
        cause = f"as nothing came from it for {now - self._heard[rank]:.1f} s"
        latest = max(self._heard[other] for other in self._connections)
        if (peer.machine, peer.pids) == (own.machine, own.pids) and is_stopped(peer.pid):
            say(f"error: {peer} hangs, {cause}{self.resume}.")
            time.sleep(1)  # as mlx.launch ends all ranks at once when it sees one dead
            with contextlib.suppress(OSError):
                os.kill(peer.pid, signal.SIGKILL)
            return self._end("", REFUSED, peer)
        if connection.answers():
            sentence = f"{peer} hangs, {cause}"
        elif self.rank or (len(self._connections) > 1 and now - latest > 0.7 * self.limit):
            others = "any other rank" if self.rank == 0 else str(peer)
            sentence = f"{own} is cut off, as nothing came from {others} for {now - latest:.1f} s"
        else:
            sentence = f"{peer} is cut off, {cause}"
        self._end(f"error: {sentence}{self.resume}.", REFUSED, peer)

    def _end(self, sentence: str, code: int, peer: Peer) -> None:
        """Prints the sentence, tells all others, and ends this process, whatever it waits for.

        peer: the rank that is the cause.
        """
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        if sentence:
            say(sentence)
        self._send(failed="", code=code, rank=peer.rank)
        self._close()
        end_launcher()
        os._exit(code)


def is_stopped(pid: int) -> bool:
    """True for a process of this machine that a signal has stopped, so that it surely hangs."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    try:
        command = ["ps", "-o", "state=", "-p", str(pid)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return found.strip()[:1] in ("T", "t")


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
