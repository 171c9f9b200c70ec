"""eggroll finetune --sweep: trials, what is kept of them, and sweeps that go on."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lm_models
import pytest
from ended import Ended

from eggroll import InputError
from eggroll.__main__ import main as all_commands
from eggroll.files import METRICS
from eggroll.lm.command import FinetuneOptions
from eggroll.lm.search import TRIALS, Report, TuningSearch, rounded

Command = Callable[..., Ended]


@pytest.fixture
def eggroll(call: Command) -> Command:
    return partial(call, main=all_commands)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lm_models.save(tmp_path_factory.mktemp("models") / "llama", "llama", 32)


@pytest.fixture
def words(tmp_path: Path, model: Path) -> list[str]:
    """The words of a small run, but for its folder."""
    data, reward = tmp_path / "prompts.jsonl", tmp_path / "mine.py"
    data.write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(20)))
    reward.write_text(
        "import time\ndef good(prompt, answer):\n    return sum(map(ord, answer)) % 101 / 100\n"
        "def slow(prompt, answer):\n    time.sleep(0.01)\n    return good(prompt, answer)\n"
    )
    return [
        *("--model", str(model), "--data", str(data), "--reward", f"{reward}:good", "--pop", "8"),
        *("--prompts", "2", "--tokens", "6", "--steps", "4", "--rows", "4", "--judge-every", "2"),
        *("--table-bits", "16", "--sigma", "0.1"),
    ]


def trials(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / TRIALS).read_text()))


def test_a_sweep_has_the_given_options_first_and_goes_on(
    words: list[str], tmp_path: Path, eggroll: Command
) -> None:
    folder = tmp_path / "sweep"
    words += ["--out", str(folder)]
    ended = eggroll("finetune", *words, "--sweep", "3")
    assert ended.code == 0, ended.err
    first = trials(folder)
    assert [one["number"] for one in first] == [0, 1, 2]
    assert (first[0]["sigma"], first[0]["rate"]) == (0.1, 2.0)
    assert all(0.1 / 8 <= one["sigma"] <= 0.8 and 0.25 <= one["rate"] <= 16 for one in first)
    best = max(first, key=lambda one: one["held_out"])
    assert f"best: --sigma {best['sigma']} --rate {best['rate']}, " in ended.out

    plain = eggroll("finetune", *words[:-1], str(tmp_path / "run"))
    assert plain.code == 0, plain.err
    last = json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])
    assert last["held_out"] == first[0]["held_out"]

    ended = eggroll("finetune", *words, "--sweep", "5")
    assert ended.code == 0, ended.err
    assert trials(folder)[:3] == first
    assert len({one["sigma"] for one in trials(folder)}) == 5

    ended = eggroll("finetune", *words, "--sweep", "6", "--tokens", "7")
    assert (ended.code, len(trials(folder))) == (2, 5)
    assert "was begun with tokens 6, not 7" in ended.err
    assert "give the same options, or another --out." in ended.err
    reward = tmp_path / "mine.py"
    reward.write_text(reward.read_text() + "\n")
    ended = eggroll("finetune", *words, "--sweep", "6")
    assert ended.code == 2
    assert "was begun with the reward's file" in ended.err


def test_sweeps_neither_resume_nor_share_a_run(
    words: list[str], tmp_path: Path, eggroll: Command
) -> None:
    run = tmp_path / "run"
    assert eggroll("finetune", *words, "--out", str(run)).code == 0
    ended = eggroll("finetune", "--resume", str(run), "--sweep", "3")
    assert ended.code == 2
    assert "leave --sweep out to go on with it" in ended.err
    ended = eggroll("finetune", *words, "--out", str(run), "--sweep", "3")
    assert ended.code == 2
    assert "already holds a run" in ended.err
    assert not (run / TRIALS).exists()
    words += ["--out", str(tmp_path / "sweep"), "--sweep", "3", "--track", "tensorboard"]
    ended = eggroll("finetune", *words)
    assert ended.code == 2
    assert "leave --track out" in ended.err
    assert not (tmp_path / "sweep").exists()


def test_a_stopped_sweep_keeps_its_trials(
    words: list[str], tmp_path: Path, eggroll: Command
) -> None:
    folder = tmp_path / "sweep"
    words[words.index("--reward") + 1] = f"{tmp_path / 'mine.py'}:slow"
    words += ["--out", str(folder), "--sweep", "40"]
    process = subprocess.Popen(
        [sys.executable, "-m", "eggroll", "finetune", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not ((folder / TRIALS).exists() and len(trials(folder)) >= 2):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"the same command with --out {folder} goes on" in err
    kept = trials(folder)
    assert all(one["early"] or one["updates"] == 4 for one in kept)
    words[-1] = str(len(kept) + 1)
    ended = eggroll("finetune", *words)
    assert ended.code == 0, ended.err
    assert trials(folder)[:-1] == kept


def test_trials_that_fall_behind_end_early_and_the_best_is_found(tmp_path: Path) -> None:
    options = FinetuneOptions(sigma=0.1, rate=1.0, steps=4, seed=1 << 62)
    search = TuningSearch(tmp_path, options, {})
    made: list[tuple[float, float]] = []

    def run(trial: FinetuneOptions, report: Report) -> float:
        worth = -abs(math.log(trial.sigma / 0.3))
        for step in (1, 2, 3, 4):
            if not report(worth * step / 4, step):
                break
        made.append((worth, step))
        return worth * step / 4

    ended = [search.next(run) for _ in range(24)]
    assert [one and (one.early, one.updates) for one in ended] == [
        (step < 4, step) for _, step in made
    ]
    whole = [worth for worth, step in made if step == 4]
    early = [worth for worth, step in made if step < 4]
    assert early
    assert max(early) < max(whole) == search.best().held_out
    assert 0.2 < search.best().sigma < 0.45
    assert search.next(lambda trial, report: None) is None
    assert search.done == 24

    def fails(trial: FinetuneOptions, report: Report) -> float:
        raise InputError("no.")

    with pytest.raises(InputError, match="no"):
        search.next(fails)
    assert TuningSearch(tmp_path, options, {}).done == 24


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_trial_that_was_lost_is_tried_again(ending: str, tmp_path: Path) -> None:
    options, met = FinetuneOptions(sigma=0.1, rate=1.0, steps=4), list[tuple[float, float]]()

    def run(trial: FinetuneOptions, report: Report) -> float:
        met.append((trial.sigma, trial.rate))
        report(0.5, 4)
        return 0.5

    def lost(trial: FinetuneOptions, report: Report) -> float | None:
        run(trial, report)
        if ending == "stopped":
            return None
        os._exit(7)

    search = TuningSearch(tmp_path, options, {})
    search.next(run)
    if ending == "stopped":
        assert search.next(lost) is None
    else:
        process = multiprocessing.get_context("fork").Process(target=search.next, args=(lost,))
        process.start()
        process.join()
        assert process.exitcode == 7
        met.append((0, 0))  # what the other process met
    again = TuningSearch(tmp_path, options, {})
    for _ in range(2):
        again.next(run)
    first, second, third, fourth = met
    notes = [trial.user_attrs for trial in again._study.trials]
    assert all(note["worker"].endswith(f":{os.getpid()}") for note in notes[2:])
    assert notes[1].get("stopped") is (True if ending == "stopped" else None)
    assert notes[2]["retry"] == 1
    if ending == "killed":
        states = [trial.state.name for trial in again._study.trials]
        assert states == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
        second = tuple(rounded(again._study.trials[1].params[k]) for k in ("sigma", "rate"))
    assert first == (0.1, 1.0)
    assert third == second
    assert fourth not in (first, second)
    assert len(again.ended()) == 3
