"""The chain of a run: verify says yes to an honest one, else it names the update that differs."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from conftest import TINY, Command

from eggroll.data.corpus import Corpus, load_corpus
from eggroll.evolution.population import Population
from eggroll.files import ANCHORS, CHAIN, CHECKPOINT, REPLAY
from eggroll.training import chain, checkpoint, replay_log, verify
from eggroll.training import loop as training

STEPS = 120  # two updates whose states the chain has, and one at the end
LONG = [*TINY[:-6], "--val-tokens", "512", "--validate-every", "0", "--sample-tokens", "0"]
OF_TEXT = ["--steps", STEPS, "--checkpoint-every", 25, "--group-size", 4, "--table-bits", 16]
WAYS = {
    "eggroll": [],
    "master": ["--rule", "master", "--learning-rate", "1"],
    "group-credit": ["--estimator", "group-credit", "--group-size", "4", "--rule", "whitened"],
    "feedback": ["--recipe", "feedback", "--pop", "32"],
}
pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A finished run on a copy of a text, which lies beside it."""
    place = tmp_path_factory.mktemp("verify")
    shutil.copy(text, place / "words.txt")
    words = [*LONG, "--data", place / "words.txt", *OF_TEXT, "--out", place / "run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eggroll.training.pictures.curves", lambda folder: folder)
        assert training.main([str(word) for word in words]) == 0
    return place


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, with anchors."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def said_no(call: Command, *words: object) -> str:
    ended = call(*words, main=verify.main)
    assert ended.code == 2, ended
    assert "yes" not in ended.out
    assert "head" not in ended.out
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert len(last) < 510
    return last


def said_yes(call: Command, *words: object) -> str:
    ended = call(*words, main=verify.main)
    assert ended.code == 0, ended
    assert "yes: updates" in ended.out
    return ended.out


def head_of(run: Path) -> bytes:
    return (run / CHAIN).read_bytes()[-32:]


def size_of_header(run: Path) -> int:
    with open(run / CHAIN, "rb") as file:
        return chain.read_header(file, run).size


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_an_honest_run_is_verified(call: Command, run: Path):
    out = said_yes(call, run)
    assert f"yes: updates 1 to {STEPS} are" in out
    assert f"checkpoint: equal to what update {STEPS} leaves" in out
    assert f"the signs of all {STEPS} updates are those of the chain" in out
    assert out.splitlines()[-1] == f"head: {head_of(run).hex()}"
    assert sorted(path.name for path in (run / ANCHORS).iterdir()) == [
        "100.safetensors",
        "50.safetensors",
    ]


def test_a_stretch_is_made_again_from_the_nearest_anchor(call: Command, run: Path, monkeypatch):
    steps, real = [], Population.evaluate

    def evaluate(self: Population, weights, step: int, batch):
        steps.append(step)
        return real(self, weights, step, batch)

    monkeypatch.setattr(Population, "evaluate", evaluate)
    out = said_yes(call, run, "--updates", "104:110")
    assert steps == list(range(100, 110))
    assert "updates 101 to 110, from the anchor of update 100" in out
    assert f"checkpoint: of update {STEPS}, which was not made again" in out
    steps.clear()
    said_yes(call, run, "--updates", ":40")
    assert steps == list(range(40))
    shutil.rmtree(run / ANCHORS)
    steps.clear()
    assert "from the initial weights" in said_yes(call, run, "--updates", "104:")
    assert steps == list(range(STEPS))


@pytest.mark.parametrize("words", ["5:5", "7:3", "0:121", "a:b", "3", "-1:4"])
def test_a_stretch_that_is_none(call: Command, run: Path, words: str):
    said = said_no(call, run, f"--updates={words}")
    assert f"--updates is {words!r}" in said
    assert f"A:B with 0 <= A < B <= {STEPS} is needed" in said


@pytest.mark.parametrize("way", WAYS)
def test_every_estimator_is_verified(call: Command, tmp_path: Path, way: str):
    out = tmp_path / "run"
    words = [*WAYS[way], "--steps", 53, "--checkpoint-every", 50]
    assert call(*LONG, *words, "--out", out).code == 0
    for engine in ("portable", "auto"):
        assert "updates 1 to 53" in said_yes(call, out, "--engine", engine)
        anchored = said_yes(call, out, "--engine", engine, "--updates", "50:")
        assert "updates 51 to 53, from the anchor of update 50" in anchored


def test_each_bit_of_a_record_counts(call: Command, run: Path):
    start, sound = size_of_header(run), (run / CHAIN).read_bytes()
    assert len(sound) == start + STEPS * chain.RECORD
    for place in range(0, chain.RECORD, 5):
        update = 1 + place * 37 % STEPS
        flip(run / CHAIN, start + (update - 1) * chain.RECORD + place, place % 8)
        assert f"error: update {update} differs" in said_no(call, run, "--updates", "0:1")
        (run / CHAIN).write_bytes(sound)
    for place in range(0, start, 41):
        flip(run / CHAIN, place)
        said_no(call, run, "--updates", "0:1")
        (run / CHAIN).write_bytes(sound)
    said_yes(call, run, "--updates", "0:1")


@pytest.mark.parametrize("at", [1, 2, 50, 119, 120])
def test_records_dropped_doubled_and_swapped(call: Command, run: Path, at: int):
    start, sound = size_of_header(run), (run / CHAIN).read_bytes()
    records = [sound[i : i + chain.RECORD] for i in range(start, len(sound), chain.RECORD)]
    before, this, after = records[: at - 1], records[at - 1], records[at:]
    damaged = {
        "dropped": ([*before, *after], at),
        "doubled": ([*before, this, this, *after], at + 1),
    }
    if after:
        damaged["swapped"] = ([*before, after[0], this, *after[1:]], at)
    for way, (kept, update) in damaged.items():
        (run / CHAIN).write_bytes(sound[:start] + b"".join(kept))
        assert f"error: update {update} differs" in said_no(call, run), way
    (run / CHAIN).write_bytes(sound[:-1])
    assert f"update {STEPS} differs: the chain ends within its record" in said_no(call, run)


def test_a_chain_that_was_made_to_fit_is_found_out(call: Command, run: Path):
    """Links are no secret: a forged record may fit, and then only making it again tells."""
    start, sound = size_of_header(run), (run / CHAIN).read_bytes()
    with open(run / CHAIN, "rb") as file:
        header = chain.read_header(file, run)
        links = [link for link, _ in chain.read_links(file, header)]
    for name, value in (("total_score", links[8].total_score + 1), ("state", bytes(range(32)))):
        at = 8 if name == "total_score" else 49
        forged, last = b"", header.first_link()
        for i, link in enumerate(links):
            record = (link._replace(**{name: value}) if i == at else link).after(last)
            forged, last = forged + record, record[-32:]
        (run / CHAIN).write_bytes(sound[:start] + forged)
        assert f"error: update {at + 1} differs" in said_no(call, run)


def test_a_changed_replay_log_is_named(call: Command, run: Path):
    with open(run / REPLAY, "rb") as file:
        header = replay_log.header_of(file, run)
        told = list(replay_log.records(file, header))
    sound = (run / REPLAY).read_bytes()
    flip(run / REPLAY, header.size + 6 * header.record + 9)
    assert "error: update 7 differs" in said_no(call, run)
    other = told[6]._replace(signs=-told[6].signs)
    data = [header.recorded(*(other if i == 6 else record)) for i, record in enumerate(told)]
    (run / REPLAY).write_bytes(header.data() + b"".join(data))
    assert "error: update 7 differs: replay.bin has other signs" in said_no(call, run)
    (run / REPLAY).write_bytes(sound + b"more")
    said = said_yes(call, run, "--updates", "0:1")
    assert f"all {STEPS} updates are those of the chain; 4 bytes behind them are not of it" in said
    (run / REPLAY).unlink()
    assert "replay log: not compared" in said_yes(call, run, "--updates", "0:1")


def test_a_changed_checkpoint_is_named(call: Command, run: Path):
    sound = (run / CHECKPOINT).read_bytes()
    for place in (len(sound) // 2, len(sound) - 1):
        flip(run / CHECKPOINT, place)
        assert f"error: update {STEPS} differs" in said_no(call, run)
        (run / CHECKPOINT).write_bytes(sound)
    saved = checkpoint.load(run / CHECKPOINT)
    name, leaf = next(iter(saved.weights.items()))
    for other in (
        saved._replace(weights={**saved.weights, name: -leaf}),
        saved._replace(state=-saved.state),
    ):
        checkpoint.save(run / CHECKPOINT, other)
        assert f"error: update {STEPS} differs" in said_no(call, run, "--updates", "0:1")
    checkpoint.save(run / CHECKPOINT, saved._replace(step=77))  # of which the chain has no state
    assert "error: update 77 differs" in said_no(call, run)
    (run / CHECKPOINT).unlink()
    assert "checkpoint: not compared" in said_yes(call, run)


def test_a_changed_anchor_is_named(call: Command, run: Path):
    flip(run / ANCHORS / "50.safetensors", -9)
    assert "error: update 50 differs" in said_no(call, run, "--updates", "60:61")
    said_yes(call, run, "--updates", "100:101")
    shutil.copy(run / ANCHORS / "100.safetensors", run / ANCHORS / "50.safetensors")
    assert "update 50 differs" in said_no(call, run, "--updates", "60:61")
    (run / ANCHORS / "50.safetensors").unlink()
    said_yes(call, run, "--updates", "60:61")


def test_changed_data_are_named_at_the_first_update_that_reads_them(
    call: Command, run: Path, trained: Path, tmp_path: Path
):
    data = tmp_path / "words.txt"
    shutil.copy(trained / "words.txt", data)
    said_yes(call, run, "--data", data)
    sound, before = data.read_bytes(), load_corpus(str(trained / "words.txt"))
    for place in range(100, len(sound), 811):  # most are read by no update
        data.write_bytes(sound)
        flip(data, place)
        after = load_corpus(str(data))
        differ = (reads(before, step) != reads(after, step) for step in range(STEPS))
        update = 1 + next((step for step, read in enumerate(differ) if read), STEPS)
        if 1 < update < STEPS:
            break
    assert 1 < update < STEPS
    assert f"error: update {update} differs" in said_no(call, run, "--data", data)
    said = said_no(call, run, "--data", data, "--updates", f"0:{update - 1}")
    assert "has changed since the run began, though no update" in said


def test_words_are_looked_at_before_any_work(call: Command, run: Path):
    for words, says in (
        (("--engine", "foo"), "engine 'foo' is unknown"),
        (("--data", "count"), "--data 'count' has other tokens than"),
    ):
        ended = call(run, *words, main=verify.main)
        assert (ended.code, ended.out) == (2, "")
        assert says in ended.err


def reads(corpus: Corpus, step: int) -> bytes:
    """The tokens and targets of an update of the run."""
    batch = corpus.streams("train", 8, 8, 0).batch(step)
    assert batch.targets is not None
    return bytes(batch.tokens.tobytes() + batch.targets.tobytes())


def test_a_resumed_run_has_the_chain_of_one_that_never_stopped(
    call: Command, run: Path, trained: Path, tmp_path: Path, monkeypatch
):
    words = [*LONG, "--data", trained / "words.txt", *OF_TEXT]
    out, real, stops = tmp_path / "stopped", Population.votes, [71, 32]

    def votes(self: Population, fitness, step: int, **named):
        if stops and step == stops[-1]:
            stops.pop()
            signal.raise_signal(signal.SIGTERM)
        return real(self, fitness, step, **named)

    monkeypatch.setattr(Population, "votes", votes)
    assert call(*words, "--out", out).code == 130
    assert "updates 1 to 33" in said_yes(call, out)
    assert call("--resume", out, "--threads", 1).code == 130
    assert call("--resume", out, "--engine", "portable").code == 0
    assert (out / CHAIN).read_bytes()[-112 * STEPS :] == (run / CHAIN).read_bytes()[-112 * STEPS :]
    said_yes(call, out)
    assert call("--resume", out, "--steps", STEPS + 3).code == 0
    out_words = said_yes(call, out, "--updates", f"{STEPS - 30}:")
    assert f"updates 51 to {STEPS + 3}" in out_words


def test_a_chain_that_does_not_reach_the_checkpoint_ends_there(call: Command, run: Path):
    data = (run / CHAIN).read_bytes()
    (run / CHAIN).write_bytes(data[: -9 * chain.RECORD])
    assert f"update {STEPS - 8} differs: the chain ends before it" in said_no(call, run)
    ended = call("--resume", run, "--steps", STEPS + 2)
    assert ended.code == 0
    assert f"ends with update {STEPS - 9}: updates from here on cannot be verified" in ended.err
    flip(run / CHAIN, size_of_header(run) + 3)
    ended = call("--resume", run, "--steps", STEPS + 3)
    assert "update 1 differs: updates from here on cannot be verified" in ended.err
    (run / CHAIN).unlink()
    ended = call("--resume", run, "--steps", STEPS + 4)
    assert f"there is no '{run / CHAIN}': updates from here on cannot be" in ended.err
    assert not (run / CHAIN).exists()
    assert "has no chain.bin" in said_no(call, run)
    assert "absent' is no folder: give that of a run" in said_no(call, run / "absent")


def test_equal_runs_on_any_engine_have_one_head(call: Command, tmp_path: Path):
    heads = set()
    for i, more in enumerate((["--engine", "portable"], ["--threads", "1", "--chunk", "8"])):
        assert call(*TINY, *more, "--out", tmp_path / str(i)).code == 0
        heads.add(head_of(tmp_path / str(i)))
    assert len(heads) == 1
    assert call(*TINY, "--seed", 1, "--out", tmp_path / "other").code == 0
    assert head_of(tmp_path / "other") not in heads


def test_anchors_are_few_and_evenly_spread(tmp_path: Path, monkeypatch):
    (tmp_path / CHECKPOINT).write_bytes(b"x" * 1000)
    for step in range(0, 5001, 25):
        chain.keep_anchor(tmp_path, step)
        kept = list(chain.anchors_in(tmp_path))
        assert len(kept) <= chain.MOST_ANCHORS
        assert all(at % chain.EVERY == 0 for at in kept)
        gaps = [b - a for a, b in zip([0, *kept], [*kept, step], strict=True)]
        assert max(gaps) <= max(step // 6, 100)
    assert kept[-1] == 5000
    chain.drop_anchors(tmp_path, 2000)
    assert max(chain.anchors_in(tmp_path)) <= 2000
    monkeypatch.setattr(chain, "ANCHOR_BYTES", 1999)  # of fewer than two checkpoints
    chain.keep_anchor(tmp_path, 6000)
    assert 6000 not in chain.anchors_in(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "no links")))
    chain.keep_anchor(tmp_path, 6000)
    assert 6000 not in chain.anchors_in(tmp_path)
