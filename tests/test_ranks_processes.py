"""Ranks as processes on MLX's ring: started, stopped, killed, hung, and told different things."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from eggroll.files import CHECKPOINT
from eggroll.library.language import Trained, train
from eggroll.training import checkpoint, replay_log, verify
from eggroll.training import loop as training

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="ranks are found in /proc")

LAUNCH = (sys.executable, "-m", "eggroll.launch")
TRAIN = (sys.executable, "-m", "eggroll.train")
SMALL = (
    "--data", "count", "--pop", "20", "--width", "8", "--seq-len", "3", "--table-bits", "16",
    "--val-tokens", "64", "--sample-tokens", "0", "--validate-every", "0", "--score-bits", "8",
    "--checkpoint-every", "2", "--threads", "1",
)  # fmt: skip
ENDLESS = (*SMALL, "--steps", "1000000")


def free_port(count: int) -> int:
    """The first of some ports in a row that nobody listens at."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            first = server.getsockname()[1]
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return int(first)


@contextmanager
def started(
    ranks: int,
    words: Sequence[str],
    launch: Sequence[str] = LAUNCH,
    program: Sequence[str] = TRAIN,
) -> Iterator[subprocess.Popen[str]]:
    """The launcher of a run on so many ranks, which is killed with all it started in the end."""
    port = str(free_port(ranks))
    command = (*launch, "-n", str(ranks), "--starting-port", port, "--", *program, *words)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLX_")}
    launcher = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip
    try:
        yield launcher
    finally:
        for process in (*ranks_of(launcher), launcher):
            pid = process.pid if isinstance(process, subprocess.Popen) else process
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        launcher.communicate()


def ranks_of(launcher: subprocess.Popen[str]) -> list[int]:
    """Processes of the ranks of a launcher, in order."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [v for v in variables if v.startswith(b"MLX_RANK=")]
        if parent == str(launcher.pid) and rank:
            found[int(rank[0].partition(b"=")[2])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


def wait_for(lines: int, out: Path, launcher: subprocess.Popen[str]) -> None:
    """Until that many updates are made."""
    metrics, until = out / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def gone_on(steps: int, out: Path) -> Trained:
    """A run that this process, alone, goes on with."""
    return train(replace(checkpoint.load_options(out / CHECKPOINT), resume=str(out), steps=steps))


def signs_in(out: Path) -> list[list[int]]:
    """The signs of all pairs of every update, as the replay log has them."""
    with open(out / "replay.bin", "rb") as file:
        header = replay_log.header_of(file, out)
        return [record.signs.tolist() for record in replay_log.records(file, header)]


def test_three_ranks_train_stop_and_go_on(tmp_path: Path):
    """Unequal shares of ten pairs, a stop by a signal to one rank, and the rest by two ranks."""
    out = tmp_path / "three"
    with started(3, (*ENDLESS, "--out", str(out))) as launcher:
        wait_for(3, out, launcher)
        os.kill(ranks_of(launcher)[2], signal.SIGTERM)
        said, complaints = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, complaints
    assert "Traceback" not in complaints
    assert said.count("engine: ") == 1, "several ranks print"
    assert "ranks: 3, 6 of the members on this one" in said
    assert complaints.count("go on with: ") == 1
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    done = rows[-1]["step"]
    assert f"Interrupted after update {done} of" in complaints
    for row in rows:
        assert len(row["rank_tokens_per_second"]) == len(row["rank_communication_seconds"]) == 3
    alone = train(training.options_from((*SMALL, "--steps", str(done + 2))), out=tmp_path / "alone")
    assert [row["loss"] for row in rows] == [row["loss"] for row in alone.history[:done]]
    with started(2, ("--resume", str(out), "--steps", str(done + 2))) as launcher:
        said, complaints = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, complaints
    assert said.splitlines()[-1] == f"signature: {alone.signature}"
    assert signs_in(out) == signs_in(tmp_path / "alone")
    assert len(signs_in(out)) == done + 2
    assert len(verify.verify(verify.VerifyOptions(str(out)))) == 64  # by this process alone
    assert len(verify.read_chain(out).links) == done + 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_run_and_is_named(rank: int, tmp_path: Path):
    out = tmp_path / "run"
    with started(2, (*ENDLESS, "--out", str(out))) as launcher:
        wait_for(3, out, launcher)
        others = ranks_of(launcher)
        os.kill(others.pop(rank), signal.SIGKILL)
        began = time.monotonic()
        _, complaints = launcher.communicate(timeout=60)
        assert time.monotonic() - began < 10
    assert launcher.returncode == 128 + signal.SIGKILL
    assert f"error: rank {rank} on {socket.gethostname()} died; go on with: " in complaints
    assert str(out) in complaints
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)
    done = checkpoint.load(out / CHECKPOINT).step
    assert done >= 2
    assert gone_on(done + 2, out).step == done + 2


def test_a_rank_that_dies_before_all_are_there_ends_the_others():
    """Which wait in MLX for its connection."""
    with started(2, ENDLESS) as launcher:
        until = time.monotonic() + 60
        while len(ranks := ranks_of(launcher)) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(ranks[1], signal.SIGKILL)
        began = time.monotonic()
        _, complaints = launcher.communicate(timeout=60)
        assert time.monotonic() - began < 10
    assert launcher.returncode == 128 + signal.SIGKILL
    assert "rank 1 was ended by signal 9" in complaints
    assert not Path(f"/proc/{ranks[0]}").exists()


def test_a_rank_that_hangs_ends_the_run_and_is_named(tmp_path: Path):
    out = tmp_path / "run"
    launch = (str(Path(sys.executable).with_name("mlx.launch")),)  # whose own code would be 0
    with started(2, (*ENDLESS, "--out", str(out), "--rank-timeout", "2"), launch) as launcher:
        wait_for(3, out, launcher)
        stopped = ranks_of(launcher)[1]
        os.kill(stopped, signal.SIGSTOP)
        _, complaints = launcher.communicate(timeout=60)
    assert launcher.returncode == -signal.SIGTERM
    assert f"error: rank 1 on {socket.gethostname()} hangs, as nothing came from it" in complaints
    assert not Path(f"/proc/{stopped}").exists()


def by_hand(folder: Path, *commands: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Ranks with a command each."""
    port, hosts = free_port(len(commands)), folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port + i}"] for i in range(len(commands))]))
    return [
        subprocess.Popen(
            command, env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, command in enumerate(commands)
    ]  # fmt: skip


def test_ranks_that_differ_refuse_to_start(tmp_path: Path):
    """As by hand on two machines, with another seed on one, and another text."""
    texts = [tmp_path / name for name in ("a.txt", "b.txt")]
    for text in texts:
        text.write_text(f"{text.name} " * 5000)
    out = tmp_path / "run"
    words = (*TRAIN, *SMALL[2:], "--out", str(out))
    processes = by_hand(
        tmp_path, *((*words, "--data", str(texts[rank]), "--seed", str(rank)) for rank in range(2))
    )
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    where = f"rank 1 on {socket.gethostname()} has"
    assert f"error: {where} --seed 1 where rank 0 has 0; {where} the corpus" in said[0][1]
    assert [out for out, _ in said] == ["", ""]
    assert said[1][1] == ""
    assert not out.exists(), "a run began"


@pytest.mark.parametrize("resuming", [0, 1])
def test_ranks_of_which_one_resumes_refuse_to_start(tmp_path: Path, resuming: int):
    words = [(*TRAIN, *SMALL, "--out", str(tmp_path / "run"))] * 2
    words[resuming] = (*TRAIN, "--resume", str(tmp_path))
    processes = by_hand(tmp_path, *words)
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2], said
    there, here = ("given", "left out") if resuming else ("left out", "given")
    where = f"error: rank 1 on {socket.gethostname()} has --resume {there} where rank 0 has {here}"
    assert (said[0][1].startswith(where), said[1][1]) == (True, "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", [None, "no list", '{"a": 1}'])
def test_a_file_without_hosts_is_named(tmp_path: Path, text: str | None):
    hosts = tmp_path / "hosts.json"
    if text:
        hosts.write_text(text)
    ended = subprocess.run(
        (*TRAIN, *SMALL, "--steps", "1", "--out", str(tmp_path / "run")), capture_output=True,
        env=os.environ | {"MLX_RANK": "0", "MLX_HOSTFILE": str(hosts)}, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"error: MLX_HOSTFILE is '{hosts}', where no list of hosts can be read" in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [(("-n", "2", "--"), "no command stands after --"),
     (("--hostfile", "none.json", "--", "true"), "--hostfile names no host"),
     (("-n", "0", "--", "true"), "-n is 0: a whole number from 1 to 65536"),
     (("--starting-port=-5", "--", "true"), "--starting-port is -5: a whole number from 1"),
     (("--foo", "3", "--", "true"), "mlx.launch: '--foo' is no option"),
     (("--hostfile", "no.json", "--", "true"), "mlx.launch: Hostfile no.json doesn't exist (ml"),
     (("--hosts", "a", "--", "true"), "ring backend requires IPs")],
)  # fmt: skip
def test_a_launch_of_nothing_is_refused(tmp_path: Path, words: tuple[str, ...], says: str):
    (tmp_path / "none.json").write_text("[]")
    ended = subprocess.run((*LAUNCH, *words), capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, says in ended.stderr, ended.stderr.count("\n")) == (2, True, 1)


def test_a_host_that_ssh_does_not_reach_is_named(tmp_path: Path):
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    hosts = [{"ssh": name, "ips": ["127.0.0.1"]} for name in ("127.0.0.1", "far")]
    (tmp_path / "hosts.json").write_text(json.dumps(hosts))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        (*LAUNCH, "--hostfile", "hosts.json", "--", "/bin/sleep", "0.2"), capture_output=True,
        text=True, cwd=tmp_path, env=os.environ | {"PATH": path}, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 255
    assert "launch: rank 1 never began: ssh must reach 'far' and log in" in ended.stderr
    assert ended.stderr.count("never began") == 1


def test_a_sentence_of_all_ranks_is_said_once(tmp_path: Path):
    with started(2, (*SMALL, "--sigma-shift", "99")) as launcher:
        said, complaints = launcher.communicate(timeout=60)
    assert launcher.returncode == 2
    assert said == ""
    assert complaints.startswith("error: --sigma-shift is 99: ")
    assert complaints.count("\n") == 1


def test_a_rank_that_gives_up_after_another_is_waited_for():
    """As the one that says why, on a machine that has much else to do."""
    late = "import os, time; time.sleep(4 * (os.environ['MLX_RANK'] == '0')); exit('why')"
    with started(2, ("-c", late), program=(sys.executable,)) as launcher:
        _, complaints = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert complaints == "why\nwhy\n"
