"""The replay log: past weights rebuilt bit for bit from signs alone, whatever the run met."""

from __future__ import annotations

import os
import shutil
import signal
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, Command, replace_in_files

import eggroll
from eggroll import files as ternary
from eggroll import generate, replay
from eggroll.errors import InputError
from eggroll.evolution.population import Population
from eggroll.evolution.rules import FineCopyRule, UpdateRule
from eggroll.files import CHECKPOINT, METRICS, REPLAY, write_whole
from eggroll.training import checkpoint, replay_log
from eggroll.training import loop as training

RULES = {
    "sign": [],
    "master": ["--rule", "master", "--learning-rate", "1"],
    "whitened": ["--rule", "whitened", "--noise-reuse", "2"],
    "ranks": ["--rank", "2", "--no-clt", "--group-size", "4"],
}
pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("replay") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eggroll.training.pictures.curves", lambda folder: folder)
        assert training.main([*TINY, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def refused(call: Command, *words: object) -> str:
    ended = call(*words, main=replay.main)
    assert ended.code == 2, ended
    assert "signature" not in ended.out
    assert ended.err.startswith("error: ")
    assert ended.err.endswith((".\n", "?\n"))
    assert len(ended.err) < 510
    return ended.err


@pytest.mark.parametrize("rule", RULES)
def test_every_update_is_rebuilt(call: Command, tmp_path: Path, rule: str, monkeypatch):
    made, real = [], write_whole

    def write(path: Path, data: bytes) -> None:
        real(path, data)
        if path.name == CHECKPOINT:
            made.append(checkpoint.signature(checkpoint.load(path).weights))

    replace_in_files(monkeypatch, "write_whole", write)
    whole = call(*TINY, *RULES[rule], "--out", tmp_path / "run")
    assert whole.signature == made[6] == made[-1]
    monkeypatch.setattr(Population, "evaluate", None)  # no network runs
    for step in range(7):
        other = ["--engine", "portable"] if step == 3 else ["--threads", 1]
        ended = call(tmp_path / "run", "--step", step, *other, main=replay.main)
        assert ended.signature == made[step], step
    ended = call(tmp_path / "run", main=replay.main)
    assert ended.signature == made[6]
    assert "equal to the weights in the checkpoint of update 6" in ended.out


@pytest.mark.parametrize("rule", ["sign", "master"])
def test_stopped_resumed_and_longer_is_rebuilt(
    call: Command, tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
):
    """Every rule that a replay makes is one that the engine may follow."""
    run, engines = tmp_path / "run", []
    short = [*TINY[: TINY.index("--steps")], *TINY[TINY.index("--steps") + 2 :]]
    assert call(*short, *RULES[rule], "--steps", 3, "--out", run).code == 0
    assert call("--resume", run, "--steps", 5).code == 0
    last = call("--resume", run, "--steps", 7)  # with rule master another learning rate each time
    monkeypatch.setattr(UpdateRule, "use", lambda self, engine: engines.append(engine.name))
    monkeypatch.setattr(FineCopyRule, "use", UpdateRule.use)
    assert call(run, main=replay.main).signature == last.signature
    assert engines == ["cpu"] * 3  # of 3, 5 and 7 updates
    for step, total in ((0, 3), (3, 3), (4, 5), (7, 7)):
        out = tmp_path / f"{step}.safetensors"
        assert call(run, "--step", step, "--out", out, main=replay.main).code == 0
        model = checkpoint.load_model(out)
        assert (model.step, model.config.steps) == (step, total)


def test_what_is_not_there_is_said_so(call: Command, tmp_path: Path):
    absent = str(tmp_path / "absent")
    assert f"{absent!r} is no file or folder" in refused(call, absent)


def test_what_follows_the_checkpoint_is_cut_off_and_comes_anew(call: Command, run: Path):
    log = run / REPLAY
    whole, record = log.read_bytes(), 8 + ternary.packed_size(16) + 4
    before = (run / CHECKPOINT).read_bytes()
    assert call("--resume", run, "--steps", 8).code == 0
    longer = log.read_bytes()
    assert longer[: len(whole)] == whole
    assert len(longer) == len(whole) + 2 * record
    (run / CHECKPOINT).write_bytes(before)
    log.write_bytes(longer[:-7])  # killed in the middle of a record
    assert call("--resume", run, "--steps", 8).code == 0
    assert log.read_bytes() == longer


def test_the_log_alone_is_enough(call: Command, run: Path, tmp_path: Path):
    kept = checkpoint.load(run / CHECKPOINT)
    alone = tmp_path / "alone.bin"
    shutil.copy(run / REPLAY, alone)
    out = tmp_path / "w.safetensors"
    ended = call(alone, "--out", out, main=replay.main)
    assert ended.signature == checkpoint.signature(kept.weights)
    assert "not compared with a checkpoint" in ended.out
    model = eggroll.load(out)
    assert (model.signature, model.step) == (ended.signature, 6)
    texts = [call(f, "--tokens", 9, main=generate.main) for f in (run, out)]
    assert texts[0] == texts[1]
    refusal = refused(call, alone, "--out", out)
    assert "is no place for a new file" in refusal
    (run / CHECKPOINT).write_bytes(out.read_bytes())
    ended = call("--resume", run)
    assert ended.code == 2
    assert "of a run of eggroll.replay, which is not read here: give the folder" in ended.err


def test_it_takes_what_it_says(run: Path):
    """1.6 bits for each of 16 pairs, and 12 bytes, in each of 6 updates."""
    with open(run / REPLAY, "rb") as file:
        header = replay_log.header_of(file, run)
        signs = [record.signs for record in replay_log.records(file, header)]
    assert (run / REPLAY).stat().st_size == header.size + 6 * (4 + 12)
    assert [len(s) for s in signs] == [16] * 6
    assert np.unique(signs).tolist() == [-1, 0, 1]


def test_a_changed_bit_is_noticed(call: Command, run: Path):
    log = run / REPLAY
    sound = log.read_bytes()
    with open(log, "rb") as file:
        size = replay_log.header_of(file, log).size
    for place in [*range(16), 20, 200, size - 1, *range(size, len(sound), 5)]:
        changed = bytearray(sound)
        changed[place] ^= 1 << place % 8
        log.write_bytes(changed)
        said = refused(call, run, "--step", 6)
        if place >= size:
            assert f"is damaged after update {(place - size) // 16}" in said


def test_records_of_another_run_are_noticed(call: Command, run: Path, tmp_path: Path):
    other = tmp_path / "other"
    assert call(*TINY, "--seed", 1, "--out", other).code == 0
    with open(other / REPLAY, "rb") as file:
        header = replay_log.header_of(file, other)
        theirs = list(replay_log.records(file, header))
    with open(run / REPLAY, "rb") as file:
        mine = replay_log.header_of(file, run)
    assert refused(call, run / CHECKPOINT).count("is no replay log") == 1
    swapped = (run / REPLAY).read_bytes()[: mine.size] + b"".join(
        header.recorded(*record) for record in theirs
    )
    (run / REPLAY).write_bytes(swapped)
    assert "is damaged after update 0" in refused(call, run, "--step", 1)
    sound = b"".join(mine.recorded(*record) for record in theirs)  # with fitting checksums
    (run / REPLAY).write_bytes(swapped[: mine.size] + sound)
    assert "replay log and checkpoint are not of one run" in refused(call, run)
    shutil.copy(other / REPLAY, run / REPLAY)
    assert "replay log and checkpoint are not of one run" in refused(call, run)
    ended = call("--resume", run, "--steps", 7)
    assert "is of another run: updates from here on cannot be replayed" in ended.err
    assert (run / REPLAY).read_bytes() == (other / REPLAY).read_bytes()


def test_a_run_without_a_log_goes_on_without(call: Command, run: Path, tmp_path: Path):
    (run / REPLAY).unlink()
    assert "runs that began before there were replay logs" in refused(call, run)
    ended = call("--resume", run, "--steps", 8)
    assert ended.signature
    assert f"there is no '{run / REPLAY}': updates from here on cannot be" in ended.err
    assert not (run / REPLAY).exists()


def test_a_log_that_lost_records_is_not_gone_on_with(call: Command, run: Path):
    log = run / REPLAY
    data = log.read_bytes()
    log.write_bytes(data[:-20])
    ended = call("--resume", run, "--steps", 8)
    assert ended.signature
    assert "ends with update 4: updates from here on cannot be replayed" in ended.err
    assert log.read_bytes() == data[:-32]
    assert "ends with update 4: give --step 4 or less" in refused(call, run, "--step", 5)
    assert call(run, "--step", 4, main=replay.main).signature


@pytest.mark.parametrize("estimator", ["token-credit", "token-votes", "feedback"])
def test_what_credits_tokens_has_no_log(call: Command, tmp_path: Path, estimator: str):
    rule = "adam" if estimator == "feedback" else "whitened"
    words = ["--estimator", estimator, "--rule", rule, "--out", tmp_path / "run"]
    assert call(*TINY, *words).code == 0
    assert not (tmp_path / "run" / REPLAY).exists()
    said = refused(call, tmp_path / "run")
    assert "it is offered for --estimator eggroll only" in said


def test_a_record_is_on_the_disk_before_the_checkpoint_that_counts_on_it(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """At every rename of a checkpoint, all bytes of both logs must have been synced."""
    synced: dict[int, int] = {}
    real, replaced, seen = os.fsync, os.replace, []

    def fsync(handle: int) -> None:
        real(handle)
        about = os.fstat(handle)
        synced[about.st_ino] = about.st_size

    def replace(source: Path, target: Path) -> None:
        for name in (METRICS, REPLAY):
            grown = target.with_name(name)
            if target.name == CHECKPOINT and grown.exists():
                about = grown.stat()
                seen.append((name, about.st_size))
                assert synced.get(about.st_ino) == about.st_size, name
        replaced(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    assert call(*TINY, "--out", tmp_path / "run").code == 0
    assert len(set(seen)) == 12  # each grew before each of six checkpoints


def test_a_full_disk_leaves_whole_records(call: Command, tmp_path: Path, monkeypatch):
    real, run = os.write, tmp_path / "run"

    def write(handle: int, data: bytes) -> int:
        if struct.unpack("<I", data[:4])[0] == 4 and len(data) == 16:
            return real(handle, data[:7])
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    ended = call(*TINY, "--checkpoint-every", 2, "--out", run)
    assert ended.code == 2
    assert "replay.bin' cannot be written (No space left on device)" in ended.err
    monkeypatch.undo()
    monkeypatch.setattr("eggroll.training.pictures.curves", lambda folder: folder)
    assert call(run, "--step", 3, main=replay.main).signature
    last = call("--resume", run)
    assert call(run, main=replay.main).signature == last.signature


def test_stopped_in_the_middle(call: Command, tmp_path: Path, monkeypatch):
    real = Population.votes

    def votes(self: Population, fitness, step: int, **named):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        return real(self, fitness, step, **named)

    monkeypatch.setattr(Population, "votes", votes)
    assert call(*TINY, "--out", tmp_path / "run").code == 130
    monkeypatch.setattr(Population, "votes", real)
    assert call(tmp_path / "run", "--step", 3, main=replay.main).signature
    assert "ends with update 3" in refused(call, tmp_path / "run", "--step", 4)


@pytest.mark.parametrize(("pairs", "fits"), [(0, False), (1, True), (1 << 23, True)])
def test_a_log_is_of_one_pair_or_more(tmp_path: Path, pairs: int, fits: bool):
    path = tmp_path / REPLAY
    path.write_bytes(replay_log.Header.of({"pairs": pairs, "config": {}}).data())
    with open(path, "rb") as file:
        if fits:
            assert replay_log.header_of(file, path).pairs == pairs
            return
        with pytest.raises(InputError, match="names no number of pairs"):
            replay_log.header_of(file, path)
