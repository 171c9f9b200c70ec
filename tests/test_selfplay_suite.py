"""The suite of experiments/selfplay, in small, and the ways to measure wrongly."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eggroll.errors import InputError
from experiments.selfplay import evaluators, games, measure, operations, search, stages, suite, v1
from experiments.selfplay.measure import Rate, Setting
from experiments.selfplay.suite import Criterion


def test_a_step_reads_the_clock_for_telemetry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits or reads a clock without it; with it the games are the same, and the segments
    are those of every step."""
    reads = 0
    clock = v1.time.perf_counter

    def counted() -> float:
        nonlocal reads
        reads += 1
        return clock()

    monkeypatch.setattr(v1.time, "perf_counter", counted)
    given: dict[str, Any] = {
        "games": 4, "simulations": 8, "batch": 4, "seed": 0, "temperature_plies": 9,
    }  # fmt: skip
    plain = v1.play_games("tictactoe", evaluators.uniform, **given)
    assert reads == 0
    telemetry = v1.Telemetry()
    timed = v1.play_games("tictactoe", evaluators.uniform, telemetry=telemetry, **given)
    assert reads > 0
    assert all(np.array_equal(a, b) for a, b in zip(plain, timed, strict=True))
    table = measure.segments(telemetry.steps)
    assert sum(row["share"] for row in table.values()) == pytest.approx(1)
    assert telemetry.outcomes.sum() == 4


def test_sides_with_other_batches_are_not_compared() -> None:
    """The document once measured batches of 128 against 512."""
    with pytest.raises(InputError, match="rows is 128 on one side and 512 on the other"):
        measure.same(Setting(rows=128), Setting(rows=512))
    with pytest.raises(InputError, match="simulations is 64"):
        measure.validate(Setting(simulations=64), Setting(), [1], 1, 0, print)
    measure.same(Setting(batch=1), Setting(batch=64))  # boards side by side are v1's own


def test_a_quotient_needs_its_own_baseline() -> None:
    """The document once compared a switch's two sides over different runs of v0."""
    rates = [Rate(0, "v0", 1, 1.0, 9), Rate(0, "v1", 1, 12.0, 9), Rate(1, "v1", 1, 13.0, 9)]
    with pytest.raises(InputError, match="no v0 in the same round"):
        measure.quotients(rates, "v1", "v0")
    rates.append(Rate(1, "v0", 1, 0.5, 9))
    assert measure.quotients(rates, "v1", "v0") == {1: [12.0, 26.0]}
    assert measure.spread([12.0, 26.0])["worst"] == 12.0


def test_compiled_code_belongs_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document once kept a cache in every instance, and filled each anew."""
    loaded = [module.library() for module in (games, operations, search)]

    def again(*sources: Any, **options: Any) -> Any:
        raise AssertionError("compiled again")

    for module in (games, operations, search):
        monkeypatch.setattr(module.native, "build", again)
    assert loaded == [module.library() for module in (games, operations, search)]
    for _ in range(2):
        v1.play_games(
            "tictactoe", evaluators.uniform, games=1, simulations=4, batch=1, seed=0,
            temperature_plies=0,
        )  # fmt: skip


@pytest.mark.parametrize("game", ["connect4", "liuzhou"])
def test_stages_play_the_same_games(game: str) -> None:
    s = Setting(game, simulations=12, games=4, batch=4, hidden=(16,))
    found = stages.run(s, 1, lambda text: None)
    assert [row["stage"] for row in found["stages"]] == ["0", "R1", "R2", "R3", "R4"]
    assert all(row["semantic"]["passed"] for row in found["stages"])
    assert all("met" in row for row in found["stages"][1:])


def test_a_stage_below_its_exit_is_not_met() -> None:
    """From made-up times: R1 passes, R2 falls short, and R3 asks for a review."""
    s = Setting(games=100)
    seconds = {"0": [10.0], "R1": [8.0], "R2": [7.5], "R3": [5.0], "R4": [4.9]}
    steps = {
        name: [dict.fromkeys(v1.SEGMENTS, 1e-3) | {"search": 1e-3 * (5 if name == "0" else 1)}]
        for name in seconds
    }
    equal = {name: stages.gates.Comparison(9, 1.0, 0.0, 0.0, True, True) for name in seconds}
    found = stages.report(s, seconds, steps, equal, lambda text: None)
    assert [row.get("met") for row in found["stages"]] == [None, True, False, True, False]
    assert (found["R3_over_0"], found["review"]) == (2.0, True)
    equal["R1"] = equal["R1"]._replace(root_max=1e-7)
    found = stages.report(s, seconds, steps, equal, lambda text: None)
    assert found["stages"][1]["met"] is False


def test_a_worker_that_died_is_said() -> None:
    class Dead:
        exitcode = -9

    with pytest.raises(InputError, match="a worker died"):
        measure.answer(queue.Queue(), [Dead()])


def test_verdicts_of_the_summary() -> None:
    assert Criterion("a", 10.0, 10.0).verdict == "met"
    assert Criterion("a", 9.99, 10.0).verdict == "not met"
    assert Criterion("a", False, True).verdict == "not met"
    assert Criterion("a", None, None).verdict == "not measured"
    assert Criterion("a", 3.0, None).verdict == "reported"


def test_the_whole_suite_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    assert suite.main(["acceptance", "--smoke", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["ab"]["passed"]
    assert set(found["bench"]) == {
        f"{n} simulations, {what}" for n in (128, 256) for what in ("all legal", "35 legal")
    }
    verdicts = {line["name"]: line["verdict"] for line in found["summary"]}
    assert verdicts["semantic gate passed"] == "met"
    assert verdicts["share of P0"] == "not measured"
    assert "graph capture and replay: not measured" in capsys.readouterr().out


def test_a_picture_of_a_workload(tmp_path: Path) -> None:
    picture = tmp_path / "steps.png"
    assert suite.main(["workload", "--smoke", "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 1000


def test_a_profile_stands_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["profile", "--smoke"]) == 0
    assert "tottime" in capsys.readouterr().out


def test_wrong_options_get_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        (["sweep", "--batch", "0"], "--batch is 0"),
        (["sweep", "--rounds", "0"], "--rounds is 0"),
        (["validate", "--workers", "0"], "count from 1"),
    ):
        assert suite.main(words) == 2
        assert sentence in capsys.readouterr().err
