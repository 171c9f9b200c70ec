"""Ranks find each other among strangers, and one that hears nothing kills none that lives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from eggroll.errors import InputError
from eggroll.ranks import RankError, rendezvous, watch
from eggroll.ranks.rendezvous import Connection, Peer, accept_ranks, connect, listening, own_peer

SECRET = "a secret of rank 0"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch) -> Path:
    """The ring's file of three ranks on this machine."""
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps([[f"127.0.0.1:{5000 + i}"] for i in range(3)]))
    monkeypatch.setenv("MLX_HOSTFILE", str(path))
    monkeypatch.setattr(rendezvous, "START_SECONDS", 8)
    return path


def peers_of(port: int, size: int, secret: str = SECRET) -> list[Peer]:
    first = Peer(0, "here", "machine", 0, "", ["127.0.0.1"], port, secret)
    return [first, *(Peer(rank, "here", "machine", 0, "") for rank in range(1, size))]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def met(strangers: Callable[[int], object], size: int = 3) -> dict[int, Connection]:
    """The connections of rank 0, to which strangers came first."""
    with listening() as server:
        port = server.getsockname()[1]
        peers = peers_of(port, size)
        found: dict[int, Connection] = {}
        waiting = in_thread(lambda: found.update(accept_ranks(server, peers)))
        strangers(port)
        others = [in_thread(lambda r=r: connect(peers[0], peers[r])) for r in range(1, size)]
        for thread in (*others, waiting):
            thread.join(20)
    return found


def says(port: int, data: bytes) -> bytes:
    """What rank 0 answers to a stranger who says this after the challenge."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.recv(1000)
        try:
            stranger.sendall(data)
            return stranger.recv(1000)
        except ConnectionError:
            return b""


def test_rank_0_listens_at_its_address_alone(hosts: Path, monkeypatch):
    for address in ("127.0.0.1", "127.0.0.2"):
        hosts.write_text(json.dumps([[f"{address}:5000"], ["10.0.0.2:5000"]]))
        with listening() as server:
            assert server.getsockname()[0] == address
            assert own_peer(0, server).addresses == [address]
    hosts.write_text(json.dumps([["192.0.2.7:5000"], ["10.0.0.2:5000"]]))
    with pytest.raises(RankError, match=r"cannot listen at 192\.0\.2\.7 .*EGGROLL_RANK0_ADDRESS"):
        listening()
    monkeypatch.setenv(rendezvous.OWN_ADDRESS, "127.0.0.3")
    with listening() as server:
        assert server.getsockname()[0] == "127.0.0.3"


@pytest.mark.parametrize("names", rendezvous.MPI_SIZES)
def test_under_mpi_rank_0_listens_at_one_address_too(monkeypatch, names: tuple[str, str]):
    monkeypatch.delenv("MLX_HOSTFILE", raising=False)
    for name in sum(rendezvous.MPI_SIZES, ()):
        monkeypatch.delenv(name, raising=False)
    local, size = names
    monkeypatch.setenv(size, "4")
    monkeypatch.setenv(local, "4")
    with listening() as server:
        assert server.getsockname()[0] == "127.0.0.1", "all ranks are here"
        assert own_peer(0, server).addresses == ["127.0.0.1"]
    monkeypatch.setenv(local, "2")
    with listening() as server:
        assert server.getsockname()[0] != "0.0.0.0"
    monkeypatch.setenv(rendezvous.OWN_ADDRESS, "127.0.0.3")
    with listening() as server:
        assert server.getsockname()[0] == "127.0.0.3"


@pytest.mark.parametrize(
    ("hosts", "rank", "says"),
    [
        ([["h:1"], ["h:2"]], "-1", "MLX_RANK is '-1': a number from 0 to 1 is needed"),
        ([["h:1"], ["h:2"]], "2", "MLX_RANK is '2'"),
        ([["h:1"], ["h:2"]], "", "MLX_RANK is ''"),
        ([["h:1"], ["h:1"]], "0", "'h:1', which is there twice"),
        ([["h:1"], ["h:99999"]], "0", "'h:99999', which has no port from 1 to 65535"),
        ([["h:1"], ["h"]], "0", "'h', which has no port"),
    ],
)
def test_what_the_ring_would_wait_for_is_named(hosts: list[list[str]], rank: str, says: str):
    with pytest.raises(InputError, match=says):
        watch.check_ring(hosts, rank)


def test_one_rank_is_none(tmp_path: Path, monkeypatch):
    """As mlx.launch -n 1 starts it: its file of hosts is a line's end."""
    (tmp_path / "hosts").write_text("\n")
    monkeypatch.setenv("MLX_HOSTFILE", str(tmp_path / "hosts"))
    assert watch.join(60) is None


def test_silent_strangers_hold_nobody_up(hosts: Path):
    """Twenty-five were enough to end the start after a minute."""
    with ExitStack() as held:

        def come(port: int) -> None:
            for _ in range(rendezvous.MOST_STRANGERS + 40):
                held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))

        began = time.monotonic()
        assert met(come).keys() == {1, 2}
        assert time.monotonic() - began < rendezvous.START_SECONDS


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 60_000 + b"\n",
        b"[" * 900 + b"\n",
        b"x" * 5_000_000,
        b"\xff\xfe\n",
        b"7\n",
        b'{"rank": 1, "secret": "a secret of rank 0"}\n',
        b'{"rank": 1, "challenge": "c", "proof": "a secret of rank 0"}\n',
        b'{"rank": [1], "challenge": {}, "proof": 3}\n',
        b'{"rank": 99, "challenge": "c", "proof": "\xc3\xa9"}\n',
        b'{"rank": true, "challenge": "c", "proof": "p"}\n',
        b"",
    ],
)
def test_strangers_are_dropped_without_harm(hosts: Path, data: bytes):
    answers: list[bytes] = []
    assert met(lambda port: answers.append(says(port, data) if data else b"")).keys() == {1, 2}
    assert answers == [b""]


def test_any_other_secret_is_refused(hosts: Path, monkeypatch):
    monkeypatch.setattr(rendezvous, "START_SECONDS", 1)
    with listening() as server:
        port = server.getsockname()[1]
        own, other = peers_of(port, 2), peers_of(port, 2, "another secret")
        errors: list[str] = []

        def fails(work: Callable[[], object]) -> Callable[[], None]:
            def attempt() -> None:
                with pytest.raises(RankError) as error:
                    work()
                errors.append(str(error.value))

            return attempt

        threads = [
            in_thread(fails(lambda: accept_ranks(server, own))),
            in_thread(fails(lambda: connect(other[0], other[1]))),
        ]
        for thread in threads:
            thread.join(20)
    assert len(errors) == 2
    assert all("rank 1 on here cannot reach rank 0" in error for error in errors)


def test_no_secret_goes_in_clear_and_no_answer_serves_twice(hosts: Path):
    """A stranger who has read a whole greeting says it again."""
    with listening() as server:
        port = server.getsockname()[1]
        peers, heard = peers_of(port, 2), []
        original = Connection.send

        def send(self: Connection, **facts: object) -> None:
            heard.append(json.dumps(facts).encode() + b"\n")
            original(self, **facts)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "send", send)
            waiting = in_thread(lambda: accept_ranks(server, peers))
            connect(peers[0], peers[1])
            waiting.join(20)
    assert SECRET.encode() not in b"".join(heard)
    (answer,) = [line for line in heard if b'"rank": 1' in line]
    replies: list[bytes] = []
    assert met(lambda port: replies.append(says(port, answer)), 2).keys() == {1}
    assert replies == [b""]


def test_a_stranger_does_not_pass_for_rank_0(hosts: Path):
    """It listens at the port, and answers with whatever it was sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers = peers_of(server.getsockname()[1], 2)

        def pretend() -> None:
            stranger = Connection(server.accept()[0])
            stranger.send(challenge="c")
            lines = stranger.receive() or [{}]
            stranger.send(proof=lines[0].get("proof"), welcome=True)
            server.close()  # nobody answers when it is tried again

        thread = in_thread(pretend)
        with pytest.raises(RankError, match="cannot reach rank 0"):
            connect(peers[0], peers[1])
        thread.join(10)


WATCHES = """
import socket, sys, time
from eggroll.ranks.rendezvous import Connection, Peer, own_peer
from eggroll.ranks.watch import Watch
rank, pid, port = map(int, sys.argv[1:])
own = own_peer(rank, None)
peers = [own._replace(rank=r) if r == rank else own._replace(rank=r, pid=pid) for r in range(2)]
connection = Connection(socket.create_connection(("127.0.0.1", port)))
Watch(rank, peers, {1 - rank: connection}, 0.5)
time.sleep(20)
"""


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hears_nothing_kills_only_one_that_is_stopped(rank: int, stopped: bool):
    """As where packets are cut: the other lives, and must go on living."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        if stopped:
            os.kill(other.pid, signal.SIGSTOP)
        with socket.create_server(("127.0.0.1", 0)) as server:
            words = [str(word) for word in (rank, other.pid, server.getsockname()[1])]
            done = subprocess.run(
                [sys.executable, "-c", WATCHES, *words],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert f"rank {1 - rank} on {socket.gethostname()} hangs" in done.stderr
        if stopped:
            assert other.wait(10) == -signal.SIGKILL
        else:
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_network_is_cut_names_itself(rank: int, monkeypatch):
    from eggroll.ranks import watch

    ended: list[str] = []
    monkeypatch.setattr(Connection, "answers", lambda self: False)
    monkeypatch.setattr(watch.Watch, "_end", lambda self, sentence, *rest: ended.append(sentence))
    monkeypatch.setattr(watch.Watch, "_work", lambda self: None)
    peers = [Peer(r, f"host{r}", f"machine{r}", 0, "") for r in range(3)]
    pairs = [socket.socketpair() for _ in range(2)]
    others = [1, 2] if rank == 0 else [0]
    connections = {r: Connection(pair[0]) for r, pair in zip(others, pairs, strict=False)}
    watching = watch.Watch(rank, peers, connections, 8.0)
    now = time.monotonic() + 9
    watching._heard = dict.fromkeys(others, now - 9)
    watching._end_silent(others[0], now)
    assert ended == [
        f"error: rank {rank} on host{rank} is cut off, as nothing came from "
        f"{'any other rank' if rank == 0 else 'rank 0 on host0'} for 9.0 s."
    ]
    if rank == 0:  # one other is heard: this one is not cut off
        watching._heard[2] = now - 0.1
        watching._end_silent(1, now)
        assert ended[1] == "error: rank 1 on host1 is cut off, as nothing came from it for 9.0 s."
    for pair in pairs:
        for end in pair:
            end.close()


def test_an_exchange_that_hears_nothing_ends(monkeypatch: pytest.MonkeyPatch, capfd):
    """It goes on after signals, as where the port of another rank is taken."""
    ended: list[int] = []
    monkeypatch.setattr(watch, "START_SECONDS", 0.2)
    monkeypatch.setattr(os, "_exit", ended.append)
    with watch._patience():
        pass
    time.sleep(0.6)
    assert ended == []
    with watch._patience():
        until = time.monotonic() + 30
        while not ended and time.monotonic() < until:
            time.sleep(0.01)
    assert ended == [2]
    assert "error: a rank was lost before the run began" in capfd.readouterr().err
