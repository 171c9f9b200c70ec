"""The suite of experiments/selfplay, in small, and the ways to measure wrongly."""

from __future__ import annotations

import cProfile
import json
import queue
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eggroll import native
from eggroll.errors import InputError
from experiments.selfplay import (
    alphabeta,
    device,
    evaluators,
    games,
    gates,
    measure,
    operations,
    search,
    settings,
    stages,
    suite,
    v0,
    v1,
)
from experiments.selfplay.measure import Rate, Setting
from experiments.selfplay.stages import Measured
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
    """The document once kept a cache in every instance, and filled each anew: here whoever comes
    second compiles and loads nothing."""
    modules = (games, operations, search, v0, evaluators, alphabeta)
    loaded = [*(module.library() for module in modules), evaluators.float_library()]
    builds = [path for path in Path(games.__file__).parent.glob("*.py")
              if "native.build(" in path.read_text()]  # fmt: skip
    assert {path.stem for path in builds} == {m.__name__.split(".")[-1] for m in modules}

    def again(*sources: Any, **options: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(native, "build", again)
    assert loaded == [*(module.library() for module in modules), evaluators.float_library()]
    game = games.GAMES["connect4"]
    given: dict[str, Any] = {"games": 1, "simulations": 4, "seed": 0, "temperature_plies": 0}
    for seed in range(2):
        nets = (evaluators.Float(game, (8,), seed),
                evaluators.Native(evaluators.Int8(game, (8,), seed).weights))  # fmt: skip
        for net in nets:
            for depth in (1, 5):
                v1.play_games("connect4", net, batch=1, depth=depth, **given)
                assert list(v0.play_games("connect4", net, depth=depth, **given))
        boards = games.Boards("connect4", 1)
        alphabeta.best(boards.observe()[:, : 2 * 42], 1, np.zeros(1, np.uint64))


@pytest.mark.parametrize("game", ["connect4", "liuzhou"])
def test_stages_play_the_same_games(game: str) -> None:
    s = Setting(game, simulations=12, games=4, batch=4, hidden=(16,), noise=0.25)
    found = stages.run(s, 2, lambda text: None)
    assert [row["stage"] for row in found["stages"]] == ["0", "R1", "R2", "R3", "R4"]
    assert all(row["semantic"]["passed"] for row in found["stages"])
    assert found["setting"]["noise"] == 0.25
    for row in found["stages"]:
        assert len(row["seconds"]) == len(row["ms"]) == 2
    asked = [[e["what"] for e in row["exits"]] for row in found["stages"][1:]]
    assert asked == [["search"], ["games/s"], ["step", "games/s"], ["games/s", "finalize"]]
    with pytest.raises(InputError, match="depth is 5: stages are of root-PUCT"):
        stages.run(s._replace(depth=5), 1, lambda text: None)


def test_games_per_second_are_of_runs_without_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document warns of speeds that were read off while segments were timed: every timed run
    of a stage and of a workload has one beside it for its segments."""
    told: list[bool] = []
    play = v1.Player.play

    def noted(self: Any, *given: Any) -> Any:
        told.append(given[-1] is not None)
        return play(self, *given)

    monkeypatch.setattr(v1.Player, "play", noted)
    s = Setting("tictactoe", simulations=8, games=4, batch=4, hidden=(16,))
    stages.run(s, 1, lambda text: None)
    compared = len(stages.STAGES) + 1
    assert told == [False] * compared + [False, True] * len(stages.STAGES)
    told.clear()
    measure.workload(s, 0, lambda text: None)
    assert told == [False, True, False]  # a warm-up, its segments, its games/s


def reported(
    seconds: dict[str, list[float]], ms: Callable[[str, int], dict[str, float]], differs: str = ""
) -> dict[str, Any]:
    """The report of made-up times; differs: a stage whose games are not the same."""
    rounds = len(seconds["0"])
    segments = {
        name: [dict.fromkeys(v1.SEGMENTS, 1.0) | ms(name, i) for i in range(rounds)]
        for name in seconds
    }
    measured = {
        name: [Measured(t, segments[name][i]) for i, t in enumerate(seconds[name])]
        for name in seconds
    }
    steps = {n: [{k: 1e-3 * v for k, v in row.items()} for row in r] for n, r in segments.items()}
    equal = {
        name: gates.Comparison(9, 1.0, 0.0, 0.0 if name != differs else 1e-7, True, True)
        for name in seconds
    }
    return stages.report(Setting(games=100), measured, steps, equal, lambda text: None)


def test_exits_of_stages_by_both_readings() -> None:
    """R1 passes, R2 falls short; R3 passes by the step's segment, which is what the document asks,
    and not by games/s; R4 by what the host does beside, in every round."""
    seconds = {"0": [10.0], "R1": [8.0], "R2": [7.5], "R3": [6.5], "R4": [6.4]}
    short = {"0": {"search": 5.0}, "R3": {"step": 0.7}, "R4": {"finalize": 0.9}}
    found = reported(seconds, lambda name, i: short.get(name, {}))
    rows = {row["stage"]: row for row in found["stages"]}
    assert [e["met"] for name in ("R1", "R2", "R3", "R4") for e in rows[name]["exits"]] == [
        True, False, True, False, False, True,
    ]  # fmt: skip
    assert [rows[name]["met, document"] for name in ("R1", "R2", "R3", "R4")] == [
        True, False, True, True,
    ]  # fmt: skip
    assert [rows[name]["met, games/s"] for name in ("R1", "R2", "R3", "R4")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert found["met"] == {"document": False, "games/s": False}
    assert found["review"] is True
    assert found["R3_over_0"] == pytest.approx(10 / 6.5)


def test_a_stage_whose_games_differ_is_not_met() -> None:
    seconds = {"0": [10.0], "R1": [3.0], "R2": [2.0], "R3": [1.0], "R4": [0.5]}
    ms = {"0": {"search": 5.0}, "R3": {"step": 0.5}, "R4": {"step": 0.5, "finalize": 0.5}}
    found = reported(seconds, lambda name, i: ms.get(name, {}))
    assert found["met"] == {"document": True, "games/s": True}
    assert found["review"] is False
    found = reported(seconds, lambda name, i: ms.get(name, {}), "R1")
    assert found["met"] == {"document": False, "games/s": False}
    assert [row.get("met, document") for row in found["stages"]] == [None, False, True, True, True]


def test_gains_are_of_rounds_and_host_overhead_of_every_round() -> None:
    """The median of quotients within rounds; a segment that is longer in one round of three is no
    measurable reduction."""
    seconds = {name: [4.0, 8.0, 6.0] for name in stages.STAGES}
    seconds["R2"] = [3.0, 4.0, 4.0]
    host = {"finalize": (0.1, 0.2, 1.1)}
    found = reported(
        seconds, lambda name, i: {k: v[i] for k, v in host.items()} if name == "R4" else {}
    )
    rows = {row["stage"]: row for row in found["stages"]}
    (exit_,) = rows["R2"]["exits"]
    assert exit_["gains"] == pytest.approx([1 / 3, 1.0, 0.5])
    assert (exit_["gain"], exit_["worst"]) == pytest.approx((0.5, 1 / 3))
    speed, beside = rows["R4"]["exits"]
    assert beside["gain"] == pytest.approx(0.8)
    assert (speed["met"], beside["met"], rows["R4"]["met, document"]) == (False, False, False)


def test_a_worker_that_died_is_said() -> None:
    class Dead:
        exitcode = -9

    with pytest.raises(InputError, match="a worker died"):
        measure.answer(queue.Queue(), [Dead()])


@pytest.mark.parametrize("set_", [0, 1, 2])
def test_the_gate_at_its_simulations_by_every_instruction_set(set_: int) -> None:
    """256 simulations of Liuzhou chess, whose roots have up to 36 stones to place: more than the
    generic set and AVX2 keep in registers, so that both ways of root-PUCT are compared with v0."""
    calls = operations.library()
    if not calls.puct_use(set_):
        pytest.skip("the instruction set does not run here")
    try:
        rows = gates.semantic("liuzhou", 256, 1, 3, lambda text: None, (16,))
    finally:
        calls.puct_use(-1)
    assert len(rows) == 9
    assert all(row["passed"] for row in rows.values()), rows
    few = (16, 32, 64)[set_]  # kFew of puct.h
    found = v1.play_games(
        "liuzhou", evaluators.uniform, games=2, batch=2, simulations=8, seed=3,
        temperature_plies=10,
    )  # fmt: skip
    assert (found.legal.sum(axis=1).max() > few) == (set_ < 2)


def test_verdicts_of_the_summary() -> None:
    assert Criterion("a", 10.0, 10.0).verdict == "met"
    assert Criterion("a", 9.99, 10.0).verdict == "not met"
    assert Criterion("a", False, True).verdict == "not met"
    assert Criterion("a", 0.05, 0.05, most=True).verdict == "met"
    assert Criterion("a", 0.06, 0.05, most=True).verdict == "not met"
    assert Criterion("a", None).verdict == "not measured"
    assert Criterion("a", None, 3.0, why="it needs torch").verdict == "not measured: it needs torch"
    assert Criterion("a", None, why="tested: here").verdict == "tested: here"
    assert Criterion("a", 3.0).verdict == "reported"


def test_the_whole_suite_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the peers in JAX, which are told to be missing, and without a device."""
    monkeypatch.setattr(suite, "PEERS", ("no_such_package",))
    monkeypatch.setattr(device, "shutil", SimpleNamespace(which=lambda name: None))
    path = tmp_path / "found.json"
    assert suite.main(["acceptance", "--smoke", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["ab"]["passed"]
    assert found["ab"]["setting"]["noise"] == 0.25
    assert set(found["bench"]) == {
        f"{n} simulations, {what}" for n in (128, 256) for what in ("all legal", "35 legal")
    }
    assert {r["side"] for r in found["validate"]["rates"]} == {"v0", "v1", "v1 whole", "plain"}
    assert {r["side"] for r in found["trees"]["rates"]} == {"v0", "v1"}
    assert found["trees"]["setting"]["depth"] == gates.TREE
    verdicts = {line["name"]: line["verdict"] for line in found["summary"]}
    assert len(verdicts) == len(found["summary"])
    assert verdicts["semantic gate passed"] == "met"
    for name, words in (
        ("share of P0", "nvidia-smi, which tells it, is missing"),
        ("launches per second", "run no code of their own on a device"),
        ("games/s over theirs, worst", "it needs no_such_package"),
        ("rewards, mended: decisive_game_ratio", "it needs --run FOLDER"),
        ("connect4: wins against the untrained network", "it needs --runs FOLDERS"),
    ):
        assert verdicts[name].startswith("not measured: ")
        assert words in verdicts[name]
    kills = verdicts["kills at any stage lose nothing"]
    assert kills.startswith("tested: ")
    assert (Path(__file__).parents[1] / kills.split(": ")[1].split(",")[0]).exists()
    assert verdicts["rewards, mended: positions_per_sec / those of results alone"] in (
        "met", "not met",
    )  # fmt: skip
    assert "graph capture and replay: not measured" in capsys.readouterr().out


def test_whole_runs_have_their_lines(tmp_path: Path) -> None:
    """What was learnt is read from the last evaluation of the runs that are named."""
    for name, game, figures in (
        ("a", "tictactoe", {"optimal_loss": 0.04, "random_loss": 0.006}),
        (
            "b",
            "connect4",
            {
                "search_against_untrained": {"win_ratio": 0.85},
                "long_search_against_alphabeta": {"win_ratio": 0.49},
            },
        ),
    ):
        folder = tmp_path / name
        settings.settle(folder, {"game": game, "seed": 1})
        (folder / "evals").mkdir()
        (folder / "evals/0001.json").write_text(json.dumps({"iteration": 1} | figures))
    verdicts = [c.verdict for c in suite.learnt([tmp_path / "a", tmp_path / "b"])]
    none = "not measured: its evaluation has none"  # by the run's own search
    assert verdicts == ["met", "not met", "met", none, "not met"]


def fake_nvidia_smi(folder: Path, lines: str) -> None:
    """A command that answers as nvidia-smi, again and again."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\nwhile :; do printf '{lines}'; sleep 0.01; done\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("lines", "share", "power"),
    [
        ("P0, 70.5\\n", 1.0, 70.5),
        ("P8, 20.0\\nP8, 30.0\\n", 0.0, 25.0),
        ("P0, [N/A]\\n", 1.0, None),
        ("No devices were found\\n", None, None),
    ],
)
def test_power_is_read_where_a_device_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, share: float, power: float
) -> None:
    fake_nvidia_smi(tmp_path, lines)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with device.watched() as watched:
        time.sleep(0.2)  # for at least one sample
    found = watched()
    for name, value in ((device.P0, share), (device.POWER, power)):
        if value is None:
            assert found[name].startswith("not measured: ")
        else:
            assert found[name] == value
    assert found["launches per second"].startswith("not measured: these pipelines run no code")


def side_by_side(name: str, s: Setting, workers: int) -> measure.Played:
    """Games of nobody, which take a while."""
    time.sleep(0.1)
    return measure.Played(workers * s.games, 9 * workers * s.games, 0.1)


def test_a_device_is_watched_while_games_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_nvidia_smi(tmp_path, "P0, 70.5\\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(measure, "side_by_side", side_by_side)
    path = tmp_path / "found.json"
    assert suite.main(["validate", "--smoke", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert (found[device.P0], found[device.POWER]) == (1.0, 70.5)
    assert "share of P0: 1\n" in capsys.readouterr().out


def test_the_old_pipeline_writes_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a file, all of them, while its time is taken."""
    written: list[str] = []

    class File:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def write(self, text: str) -> None:
            written.append(text)

    monkeypatch.setattr(measure.tempfile, "TemporaryFile", lambda mode: File())
    s = Setting("tictactoe", simulations=4, hidden=(8,))
    played = measure.play_v0(s, s.evaluate(), 3)
    lines = [json.loads(line) for text in written for line in text.splitlines()]
    assert len(lines) == played.positions
    assert {line["game"] for line in lines} == {0, 1, 2}


def test_whole_evaluations_ask_for_the_policy_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side `v1 whole` evaluates as v0 does: policies of all children, too."""
    s, asked = Setting("tictactoe", simulations=4, hidden=(8,)), [0]
    net = s.evaluate()

    def counted(states: Any, legal: Any) -> Any:
        asked[0] += len(states)
        return net(states, legal)

    counted.values = net.values  # type: ignore[attr-defined]
    measure.play_v1(s, counted, 1)
    alone = asked[0]
    asked[0] = 0
    measure.play_whole(s, counted, 1)
    whole = asked[0]
    asked[0] = 0
    list(v0.play_games(s.game, counted, games=1, **s.search))
    assert alone < 10 < whole == asked[0]


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "side_by_side", side_by_side)
    steps, speeds = tmp_path / "steps.png", tmp_path / "speed.png"
    assert suite.main(["workload", "--smoke", "--picture", str(steps)]) == 0
    assert steps.stat().st_size > 1000
    for name in ("validate", "stages", "sweep"):
        path = tmp_path / f"{name}.json"
        assert suite.main([name, "--smoke", "--json", str(path)]) == 0
    draw = ["draw", "--folder", str(tmp_path), "--picture", str(speeds)]
    assert suite.main(draw) == 0
    assert speeds.stat().st_size > 10_000


def test_a_picture_needs_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = ["draw", "--folder", str(tmp_path), "--picture", str(tmp_path / "a.png")]
    for text in (None, "{}", "[", '{"rates": []}'):
        if text:
            (tmp_path / "validate.json").write_text(text)
        assert suite.main(draw) == 2
        assert "validate.json' cannot be drawn" in capsys.readouterr().err
    assert suite.main(["draw"]) == 2
    assert "draw needs --folder" in capsys.readouterr().err


def test_a_profile_stands_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It watches the games, gives no speed and no file; and what measures speed refuses it."""
    seen: list[bool] = []
    play = v1.play_games

    def noted(*given: Any, **options: Any) -> Any:
        seen.append(measure.profiled())
        return play(*given, **options)

    monkeypatch.setattr(v1, "play_games", noted)
    assert suite.main(["profile", "--smoke"]) == 0
    assert seen == [True]
    out = capsys.readouterr().out
    assert "tottime" in out
    assert "games/s" not in out
    assert suite.main(["profile", "--smoke", "--json", str(tmp_path / "a.json")]) == 2
    assert not (tmp_path / "a.json").exists()
    capsys.readouterr()
    seen.clear()
    for name in (
        "validate", "trees", "sweep", "guard", "workload", "stages", "bench", "rwd", "mctx",
    ):  # fmt: skip
        assert cProfile.Profile().runcall(suite.main, [name, "--smoke"]) == 2
        assert "a profiler is on" in capsys.readouterr().err
    assert seen == []
    assert suite.main(["sweep", "--smoke"]) == 0
    assert seen == [False] * 4


def test_wrong_options_get_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        (["sweep", "--batch", "0"], "--batch is 0"),
        (["sweep", "--rounds", "0"], "--rounds is 0"),
        (["validate", "--workers", "0"], "count from 1"),
        (["validate", "--noise", "0.1"], "noise is 0.1, which plain Python has not"),
        (["validate", "--leaves", "4"], "depth is 1, root-PUCT"),
        (["trees", "--reuse"], "v0 has neither reuse nor gumbel"),
        (["ab", "--noise", "0.5"], "--noise is 0.5: the gate has 0.25"),
        (["stages", "--depth", "4"], "depth is 4: stages are of root-PUCT"),
    ):
        assert suite.main(words) == 2
        assert sentence in capsys.readouterr().err
