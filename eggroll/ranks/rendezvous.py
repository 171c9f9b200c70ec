"""The connections between ranks: how they find each other, and know that no stranger joins them.

Rank 0 listens at one address: that which the ring's file has for it, or under MPI, which has none,
127.0.0.1 where all ranks are on its machine, else that of its usual way out. Who connects gets a
number, and answers with a digest of it by a key (HMAC); rank 0 answers likewise. The key is
exchanged over MLX's ring, whose network must be trusted. Others are dropped, and hold nobody up.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eggroll.ranks import RankError

START_SECONDS = 60  # within which all ranks must be there
REACH_SECONDS = 3.0  # for a line to be sent, or a connection to be made
LOOPBACK = "127.0.0.1"
LONGEST_LINE = 1 << 16  # bytes of a line
LONGEST_GREETING = 1 << 10  # bytes that a connection may send before it is known
MOST_STRANGERS = 256  # connections that have not answered yet; beyond that the oldest is dropped
TRIES = 3  # of a connection, which many strangers may push out
OWN_ADDRESS = "EGGROLL_RANK0_ADDRESS"
# Variables of Open MPI and MPICH: ranks on this machine, and of the run.
MPI_SIZES = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
)


class Peer(NamedTuple):
    """The facts by which the other ranks know one; the last three are of rank 0, which listens."""

    rank: int
    host: str  # its machine's name
    machine: str  # tells one machine from another
    pid: int  # of its process there
    pids: str  # tells one process namespace, as of a container, from another
    addresses: Sequence[str] = ()
    port: int = 0
    secret: str = ""  # the key that proves that who connects is a rank of this run

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def own_peer(rank: int, server: socket.socket | None) -> Peer:
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
    address, port = server.getsockname()
    return Peer(*facts, [address], port, secrets.token_hex(16))


def _address_without_file() -> str:
    """The address of rank 0 where no file says which the others know."""
    if any(os.environ.get(local) == os.environ.get(size, "") for local, size in MPI_SIZES):
        return LOOPBACK
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent; it tells the usual way out
        return str(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return LOOPBACK


def ring_hosts() -> list[list[str]] | None:
    """Addresses of every rank, ["ip:port", ..] each, where the ring's file has them; else None."""
    try:
        hosts = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text().strip() or "[]")
    except (KeyError, OSError, ValueError, RecursionError):
        return None
    whole = isinstance(hosts, list) and all(
        isinstance(host, list) and host and all(isinstance(a, str) for a in host) for host in hosts
    )
    return hosts if whole else None


def listening() -> socket.socket:
    """A server of rank 0, at its address alone.

    Raises:
        RankError: this machine has no such address.
    """
    hosts = ring_hosts()
    first = hosts[0][0].rpartition(":")[0] if hosts else _address_without_file()
    address = os.environ.get(OWN_ADDRESS) or first
    try:
        return socket.create_server((address, 0), backlog=1024)
    except OSError as error:
        raise RankError(
            f"rank 0 cannot listen at {address} ({error.strerror or error}), its address "
            f"{'in the ring file' if hosts else 'on the way out'}: set {OWN_ADDRESS} there to one "
            "of its own that all ranks reach."
        ) from None


def accept_ranks(server: socket.socket, peers: Sequence[Peer]) -> dict[int, Connection]:
    """The connections of all other ranks, on rank 0, each of which has proved to be one.

    Raises:
        RankError: one does not come in time.
    """
    connections: dict[int, Connection] = {}
    asked: dict[Connection, str] = {}  # in the order in which they came, with their challenges
    deadline = time.monotonic() + START_SECONDS
    server.setblocking(False)
    with selectors.DefaultSelector() as waiting:
        waiting.register(server, selectors.EVENT_READ)
        while len(connections) < len(peers) - 1:
            ready = waiting.select(max(deadline - time.monotonic(), 0))
            if not ready and time.monotonic() >= deadline:
                absent = next(peer for peer in peers[1:] if peer.rank not in connections)
                raise unreachable(peers[0], absent)
            for key, _ in ready:
                if key.data is None:
                    _ask(server, waiting, asked)
                    continue
                connection, lines = key.data, key.data.receive()
                if lines == [] or connection not in asked:  # half a line; dropped meanwhile
                    continue
                waiting.unregister(connection.socket)
                rank = _answered(connection, lines, asked.pop(connection), peers)
                if rank is None or rank in connections:
                    connection.socket.close()
                else:
                    connections[rank] = connection
        for stranger in asked:
            stranger.socket.close()
    return connections


def _ask(
    server: socket.socket, waiting: selectors.BaseSelector, asked: dict[Connection, str]
) -> None:
    """Takes a connection in, and sends it a challenge."""
    try:
        connection = Connection(server.accept()[0], LONGEST_GREETING)
    except OSError:  # it is gone already, or there are too many
        return
    if len(asked) >= MOST_STRANGERS:
        oldest = next(iter(asked))
        del asked[oldest]
        waiting.unregister(oldest.socket)
        oldest.socket.close()
    asked[connection] = challenge = secrets.token_hex(16)
    waiting.register(connection.socket, selectors.EVENT_READ, connection)
    connection.send(challenge=challenge)


def _answered(
    connection: Connection,
    lines: list[dict[str, Any]] | None,
    challenge: str,
    peers: Sequence[Peer],
) -> int | None:
    """The rank that an answer proves, which is answered in turn; None if it proves none."""
    answer = lines[0] if lines else {}
    rank, own = answer.get("rank"), answer.get("challenge")
    if type(rank) is not int or not 0 < rank < len(peers) or not isinstance(own, str):
        return None
    secret = peers[0].secret
    if not _same(answer.get("proof"), proof(secret, rank, challenge, own)):
        return None
    connection.send(proof=proof(secret, 0, challenge, own))
    connection.most = LONGEST_LINE
    return rank


def connect(first: Peer, own: Peer) -> Connection:
    """The connection to rank 0, which has proved to be it.

    Raises:
        RankError: it is not to be reached.
    """
    for address in [*first.addresses] * TRIES:
        try:
            connection = Connection(
                socket.create_connection((address, first.port), timeout=REACH_SECONDS)
            )
        except OSError:
            continue
        asked = connection.wait_for("challenge", START_SECONDS)
        challenge = secrets.token_hex(16)
        answer = proof(first.secret, own.rank, asked, challenge)
        connection.send(rank=own.rank, challenge=challenge, proof=answer)
        theirs = connection.wait_for("proof", START_SECONDS)
        if _same(theirs, proof(first.secret, 0, asked, challenge)):
            return connection
        connection.socket.close()
    raise unreachable(first, own)


def proof(secret: str, rank: int, server_challenge: str, client_challenge: str) -> str:
    """The digest by which a rank shows that it knows the secret, hex."""
    message = f"eggroll rank {rank} {server_challenge} {client_challenge}".encode()
    return hmac.new(secret.encode(), message, "sha256").hexdigest()


def _same(found: object, needed: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), needed.encode())


def unreachable(first: Peer, other: Peer) -> RankError:
    addresses = ", ".join(first.addresses) or LOOPBACK
    return RankError(
        f"{other} cannot reach rank 0 on {first.host} at {addresses}, port {first.port}: let it "
        f"through there, as by this way ranks know that the others live, or set {OWN_ADDRESS} on "
        f"{first.host} to an address that all reach."
    )


class Connection:
    """A connection to another rank, in lines of JSON. most: bytes of a line."""

    def __init__(self, endpoint: socket.socket, most: int = LONGEST_LINE) -> None:
        self.socket, self._rest, self.most = endpoint, b"", most
        self._lock = threading.Lock()
        endpoint.settimeout(REACH_SECONDS)

    def send(self, **facts: Any) -> None:
        """Sends a line; if nobody is there any more, `receive` will tell."""
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(facts).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Returns the lines that have come, once there is something to read; None at the end."""
        try:
            data = self.socket.recv(self.most)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data or len(self._rest) + len(data) > 2 * self.most:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            rows = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return rows if all(isinstance(facts, dict) for facts in rows) else None

    def wait_for(self, name: str, seconds: float) -> str:
        """The text of this name in the next line; empty if none comes in time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            lines = self.receive()
            if lines is None:
                return ""
            if lines:
                return str(lines[0].get(name, ""))
        return ""

    def answers(self) -> bool:
        """True if the machine at the other end still answers, whatever the process there does."""
        try:
            socket.create_connection(self.socket.getpeername()[:2], timeout=1).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Ends it; what was sent still arrives, as the other side is waited for."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(1)
            while self.socket.recv(LONGEST_LINE):
                pass
        self.socket.close()
