"""Trackers are told everything once, and whatever they do a run goes on with the same bits."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TINY, Command
from test_train import SIGNATURE

import eggroll
from eggroll import adamw
from eggroll.sweep import command as sweep
from eggroll.training import trackers

pytestmark = pytest.mark.usefixtures("no_curves")


class Fake(trackers.Tracker):
    """Keeps what it is told; does `during` in the method of that name."""

    package = "json"  # which is installed
    told: list[tuple[Any, ...]]
    during: dict[str, Callable[[], object]]

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        self.during.get(what[0], int)()

    def begin(self, run: trackers.Tracked) -> None:
        self._tell("begin", run)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._tell("log", step, values)

    def text(self, step: int, name: str, text: str) -> None:
        self._tell("text", step, name, text)

    def end(self) -> None:
        self._tell("end")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    kind = type("Fake", (Fake,), {"told": [], "during": {}})
    monkeypatch.setitem(trackers.TRACKERS, "wandb", kind)
    return kind


def fail() -> None:
    raise ConnectionError("nobody\nanswers")


def test_a_tracker_is_told_rows_options_and_samples(
    fake: type[Fake], call: Command, tmp_path: Path
):
    run = tmp_path / "run"
    assert call(*TINY, "--out", run, "--track", "wandb").signature == SIGNATURE
    (first, begun), *rows, text, end = fake.told
    assert (first, end) == ("begin", ("end",))
    assert (begun.folder, begun.step) == (run, 0)
    assert begun.config == json.loads((run / "config.json").read_text())
    known = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == [("log", row.pop("step"), row) for row in known]
    assert text == ("text", 6, "samples", (run / "samples.txt").read_text())


def test_a_run_that_goes_on_is_the_same_for_its_tracker(
    fake: type[Fake], call: Command, tmp_path: Path
):
    whole = call(*TINY, "--out", tmp_path / "a", "--track", "wandb", "--steps", "8")
    id_of_another = fake.told[0][1].id
    fake.told.clear()
    call(*TINY, "--out", tmp_path / "run", "--track", "wandb")
    again = call("--resume", tmp_path / "run", "--steps", "8")
    assert again.signature == whole.signature
    first, second = (what[1] for what in fake.told if what[0] == "begin")
    assert (first.step, second.step) == (0, 6)
    assert first.id == second.id != id_of_another
    assert [what[1] for what in fake.told if what[0] == "log"] == [*range(1, 9)]
    fake.told.clear()
    call("--resume", tmp_path / "run", "--steps", "9", "--track", "none")
    assert fake.told == []


@pytest.mark.parametrize("where", ["begin", "log", "text", "end"])
def test_a_tracker_that_fails_ends_alone(
    where: str, fake: type[Fake], call: Command, tmp_path: Path
):
    fake.during[where] = fail
    ended = call(*TINY, "--out", tmp_path / "run", "--track", "wandb")
    assert ended.signature == SIGNATURE
    said = "warning: --track wandb: nobody answers; the run goes on without it.\n"
    assert (ended.err.count(said), ended.err.count("warning:")) == (1, 1)
    assert fake.told[-1][0] == where  # nothing more was asked of it


@pytest.mark.parametrize(
    ("where", "most", "says"),
    [("begin", 100, "not taken everything within 0.1 s"), ("log", 3, "it is 3 updates behind")],
)
def test_a_tracker_that_hangs_is_left(
    where: str, most: int, says: str, fake: type[Fake], call: Command, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(trackers, "PATIENCE", 0.1)
    monkeypatch.setattr(trackers, "MOST", most)
    freed = threading.Event()
    fake.during[where] = freed.wait
    try:
        ended = call(*TINY, "--out", tmp_path / "run", "--track", "wandb")
    finally:
        freed.set()
    assert ended.signature == SIGNATURE
    assert (ended.err.count(says), ended.err.count("warning:")) == (1, 1)


def test_the_float_network_is_tracked_as_well(fake: type[Fake], call: Command, tmp_path: Path):
    words = ["--data", "count", "--width", "8", "--seq-len", "4", "--steps", "2", "--streams", "4"]
    call(*words, "--out", tmp_path / "run", "--track", "wandb", main=adamw.main)
    assert [what[0] for what in fake.told] == ["begin", "log", "log", "text", "end"]


def test_several_at_once_and_lists_in_rows(fake: type[Fake], tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with trackers.tracking("wandb,wandb", tmp_path, 3) as tracking:
        tracking.log({"step": 4, "loss": 1.5, "rank_tokens_per_second": [7.0, 8.0]})
    values = {"loss": 1.5, "rank_tokens_per_second/0": 7.0, "rank_tokens_per_second/1": 8.0}
    assert fake.told[1:-1] == [("log", 4, values)]  # named twice, told once
    assert trackers.names_in("tensorboard,wandb") == ["tensorboard", "wandb"]


@pytest.mark.parametrize("main", [None, adamw.main])
def test_a_missing_package_is_named_before_any_work(
    main: Any, fake: type[Fake], call: Command, tmp_path: Path
):
    fake.package = "no_such_package"
    how = {"main": main} if main else {}
    ended = call("--data", "count", "--out", tmp_path / "run", "--track", "wandb", **how)
    assert (ended.code, ended.out, (tmp_path / "run").exists()) == (2, "", False)
    assert ended.err == (
        "error: --track wandb needs the package no_such_package: run `pip install "
        "no_such_package`, or leave --track out.\n"
    )


@pytest.mark.parametrize("word", ["weights", "", "wandb,", "none,wandb"])
def test_unknown_trackers_are_refused(call: Command, word: str):
    ended = call("--track", word)
    assert ended.code == 2
    assert f"--track is {word!r}: none or one of tensorboard, wandb, trackio" in ended.err


def test_trials_and_runs_without_a_folder_are_not_tracked(fake: type[Fake], call: Command):
    ended = call("--track", "wandb", main=sweep.main)
    assert (ended.code, "--track is no option of eggroll.sweep" in ended.err) == (2, True)
    with pytest.raises(eggroll.InputError, match="only a run with a folder is tracked: give out"):
        eggroll.train(eggroll.Config(data="count", track="wandb"))


def test_no_tracker_is_imported_for_a_run_without():
    code = (
        "import sys; from eggroll.training.trackers import *; check_installed('tensorboard');"
        "sys.exit(any(t.package in sys.modules for t in TRACKERS.values()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tensorboard_reads_what_was_written(call: Command, tmp_path: Path):
    """By its own format, and updates made anew replace the earlier ones."""
    from tensorboardX.proto.event_pb2 import Event

    run = tmp_path / "run"
    assert call(*TINY, "--out", run, "--track", "tensorboard").signature == SIGNATURE
    call("--resume", run, "--steps", "7")
    events = [Event.FromString(data) for path in files_of(run) for data in records(path)]
    starts = [event.step for event in events if event.HasField("session_log")]
    assert starts == [7]  # what an earlier file has from there on is not shown
    scalars = [
        (event.step, value.tag, value.simple_value)
        for event in events for value in event.summary.value if value.HasField("simple_value")
    ]  # fmt: skip
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for tag in ("loss", "val_loss", "update_rate"):
        known = [(row["step"], tag, row[tag]) for row in rows if tag in row]
        found = [scalar for scalar in scalars if scalar[1] == tag]
        assert [x[:2] for x in found] == [x[:2] for x in known]
        assert [x[2] for x in found] == pytest.approx([x[2] for x in known], rel=1e-6)
    texts = [v for event in events for v in event.summary.value if v.HasField("tensor")]
    said = b"\n".join(value.tensor.string_val[0] for value in texts).decode()
    assert (run / "samples.txt").read_text() in said
    assert '"table_bits": 16' in said


def files_of(run: Path) -> list[Path]:
    return sorted((run / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def records(path: Path) -> list[bytes]:
    """The records of an event file: a length, its checksum, the data and theirs."""
    data, found = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        found.append(data[12 : 12 + size])
        data = data[size + 16 :]
    return found


def test_wandb_keeps_a_run_offline(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    ended = call(*TINY, "--out", run, "--track", "wandb")
    assert (ended.signature, "warning:" in ended.err) == (SIGNATURE, False)
    call("--resume", run, "--steps", "7")
    mine = json.loads((run / "trackers.json").read_text())["id"]
    found = [path.name for path in (run / "wandb").glob(f"offline-run-*/run-{mine}.wandb")]
    assert len(found) == 2


def test_trackio_keeps_every_update(call: Command, tmp_path: Path):
    """In a process of its own, as trackio reads its folder when it is imported."""
    pytest.importorskip("trackio")
    run = tmp_path / "run"
    words = ["train", *TINY, "--out", str(run), "--track", "trackio"]
    env = os.environ | {"TRACKIO_DIR": str(tmp_path / "kept")}
    argv = [sys.executable, "-m", "eggroll", *words]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert ended.stdout.endswith(f"signature: {SIGNATURE}\n")
    assert "warning: --track" not in ended.stderr
    (path,) = (tmp_path / "kept").glob("*.db")
    with sqlite3.connect(path) as known:
        steps = known.execute("select distinct step from metrics order by step").fetchall()
    assert steps == [(n,) for n in range(1, 7)]


@pytest.mark.parametrize(
    ("given", "key", "mode"),
    [("", True, ""), ("", False, "offline"), ("disabled", False, "disabled")],
)
def test_wandb_without_a_key_is_offline(
    given: str, key: bool, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun = dict[str, Any]()
    package = SimpleNamespace(login=lambda prompt: key, Settings=dict, init=begun.update)
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setenv("WANDB_MODE", given)
    trackers.WandB().begin(SimpleNamespace(folder=tmp_path, id="a", config={}))
    assert (begun["mode"], begun["id"]) == (mode, "a")
