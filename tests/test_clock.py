"""Validations and checkpoints are planned by time, and change nothing that is learnt."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import TINY, Command

from eggroll.cli.screen import Display
from eggroll.training import clock as clocks
from eggroll.training.clock import Repeated, RunClock


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clocks, "time", made)
    return made


def walk(clock: Clock, seconds: float, update: float, cost: float) -> tuple[RunClock, list[float]]:
    """A run of that many seconds of updates; when it validated."""
    run, times = RunClock(), list[float]()
    while run.elapsed < seconds:
        clock.now += update
        row = {"tokens_per_second": 1000 / cost}  # as fast as validation, of 1,000 tokens
        if run.validation_fits(row, 1000):
            times.append(run.elapsed)
            with run.spent_on(run.validations):
                clock.now += cost
    with run.spent_on(run.validations):  # the last one is always made
        clock.now += cost
    return run, times


@pytest.mark.parametrize(
    ("seconds", "update", "cost"),
    [(60, 0.01, 0.07), (60, 0.02, 0.5), (30, 1.0, 0.1), (900, 0.02, 0.5), (20, 0.001, 0.001)],
)
def test_validations_take_their_share_at_most(clock, seconds, update, cost):
    run, times = walk(clock, seconds, update, cost)
    assert run.validations.seconds <= run.validations.share * run.elapsed
    assert times, "there was time for one"
    assert all(b - a >= b / clocks.DENSITY - 1e-9 for a, b in pairwise(times))


def test_a_run_too_short_for_a_validation_has_the_last_alone(clock):
    run, times = walk(clock, 1.0, 0.1, 0.5)
    assert times == []
    assert run.validations.seconds == pytest.approx(0.5)


def test_a_validation_dearer_than_its_guess_waits_longer(clock):
    task = Repeated(share=0.04, gap=0.0)
    run = RunClock()
    clock.now += 10
    assert task.fits(run.elapsed, guess=0.1)
    with run.spent_on(task):
        clock.now += 2.0
    assert (task.cost, task.seconds) == (2.0, 2.0)
    for elapsed, fits in ((149.0, False), (151.0, True)):  # 2 spent, 2 now, 2 at the end: 4 %
        assert task.fits(elapsed) is fits


def test_checkpoints_keep_their_distance(clock):
    run, made = RunClock(), 0
    for _ in range(6000):
        clock.now += 0.01
        if run.checkpoint_fits():
            made += 1
            with run.spent_on(run.checkpoints):
                clock.now += 0.001
    assert 10 <= made <= 60.1 / 5


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


BY_TIME = [*TINY, "--validate-every", "-1", "--checkpoint-every", "-1"]


@pytest.mark.usefixtures("no_curves")
def test_what_is_validated_when_changes_no_bit(call: Command, tmp_path: Path, monkeypatch):
    fixed = call(*TINY, "--out", tmp_path / "fixed")
    timed = call(*BY_TIME, "--out", tmp_path / "timed")
    with monkeypatch.context() as patch:
        patch.setattr(RunClock, "validation_fits", lambda self, row, tokens: row["step"] == 3)
        patch.setattr(RunClock, "checkpoint_fits", lambda self: True)
        other = call(*BY_TIME, "--out", tmp_path / "other")
    assert fixed.signature == timed.signature == other.signature
    assert [row["step"] for row in rows(tmp_path / "other") if "val_loss" in row] == [3, 6]
    ends = [rows(tmp_path / name)[-1]["val_loss"] for name in ("fixed", "timed", "other")]
    assert ends[0] == ends[1] == ends[2]
    times = [row["seconds_total"] for row in rows(tmp_path / "timed")]
    assert times == sorted(times)
    assert times[-1] >= sum(row["seconds"] for row in rows(tmp_path / "timed"))
    said = re.search(r"^time: .*% updates, .*% validation, .*% checkpoints", timed.out, re.M)
    assert said, timed.out


@pytest.mark.usefixtures("no_curves")
def test_seconds_go_on_with_the_run(call: Command, tmp_path: Path):
    call(*BY_TIME, "--out", tmp_path / "run")
    before = rows(tmp_path / "run")
    before[-1]["seconds_total"] = 1000.0
    lines = "".join(f"{json.dumps(row)}\n" for row in before)
    (tmp_path / "run" / "metrics.jsonl").write_text(lines)
    assert call("--resume", tmp_path / "run", "--steps", 8).code == 0
    assert all(row["seconds_total"] > 1000 for row in rows(tmp_path / "run")[6:])


def test_an_option_below_is_refused(call: Command):
    ended = call(*TINY, "--validate-every", "-2")
    assert ended.code == 2
    assert "--validate-every is -2" in ended.err


def test_lines_come_every_few_seconds(capsys: pytest.CaptureFixture[str], monkeypatch):
    now = [0.0]
    monkeypatch.setattr("eggroll.cli.screen.time.monotonic", lambda: now[0])
    row = {"loss": 1.0, "update_rate": 0.1, "tokens_per_second": 1.0, "seconds": 1.0}
    with Display(0, 100, "bits per byte") as display:
        for step in range(1, 101):
            now[0] += 1.0
            display.update(row | {"step": step} | ({"val_loss": 1.0} if step > 5 else {}))
    said = re.findall(r"update (\d+)/", capsys.readouterr().err)
    assert said == ["1", "6", "16", "26", "36", "46", "56", "66", "76", "86", "96", "100"]
