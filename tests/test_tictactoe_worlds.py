"""Tic-tac-toe's native worlds equal those in Python bit for bit, and do what they say."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_native import HEADER, SANITIZE, has_sanitizers

import eggroll as eg
from eggroll.errors import InputError
from eggroll.evolution.rules import MovedWeights
from experiments.tictactoe import comparison, game, judges, metrics
from experiments.tictactoe.evolution import training as evolution
from experiments.tictactoe.evolution import worlds

PROGRAM = Path(__file__).with_name("native") / "tictactoe.cpp"
FIRST = game.legal().argmax(axis=1)
PERFECT = game.optimal().moves.argmax(axis=1)
# World -> policies that it has besides the network's own, and the settings of tables.
CASES: dict[str, tuple[list[NDArray[Any]], dict[str, Any]]] = {
    "states": ([], {}),
    "vine": ([], {"replies": 0.3}),
    "games": ([], {"replies": 0.25, "openings": 7}),
    "pool": ([FIRST, PERFECT], {"replies": 0.1, "openings": 1}),
}


def world_of(case: str) -> str:
    return "games" if case == "pool" else case


def trainer(**options: Any) -> eg.Trainer:
    given = {"pop": 36, "seed": 4, "table_bits": 16, "steps": 20, "rule": "whitened"}
    return eg.Trainer(eg.networks.mlp(27, [8], 9), **given | options)


@pytest.mark.parametrize("estimator", ["eggroll", "token-credit"])
@pytest.mark.parametrize("case", CASES)
def test_native_and_python_worlds_give_equal_weights(case: str, estimator: str):
    policies, settings = CASES[case]
    name, group = world_of(case), 4 if case == "vine" else 2
    world = getattr(worlds.library(), name)
    es, played = (trainer(estimator=estimator, engine=e) for e in ("portable", "cpu"))
    shared, signatures = worlds.tables(**settings), {es.signature}
    for _ in range(4):
        worlds.set_policies(shared, [*policies, evolution.greedy(played)])
        told = worlds.play(es, name, 23, shared, group)
        assert played.play(world, 23, shared=shared, group=group)[:4] == told[:4]
        assert played.signature == es.signature
        signatures.add(es.signature)
    assert len(signatures) > 1


def test_both_languages_agree_on_what_they_read():
    shared_bytes = ctypes.c_int32.in_dll(worlds.library().handle, "shared_bytes")
    assert worlds.SHARED.itemsize == shared_bytes.value


def outputs_of(policy: NDArray[Any], inputs: NDArray[np.int8]) -> NDArray[np.int8]:
    """Logits that a table's moves are the highest of, for boards as they are shown."""
    mine, theirs = (inputs[:, i::3] > 0 for i in range(2))
    x_moves = mine.sum(axis=1) == theirs.sum(axis=1)
    boards = np.where(mine, np.where(x_moves, 1, 2)[:, None], 0)
    boards += np.where(theirs, np.where(x_moves, 2, 1)[:, None], 0)
    return np.eye(9, dtype=np.int8)[policy[game.index(boards)]]


Seen = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def met(name: str, policy: NDArray[Any], shared: NDArray[Any], rows: int, members: int) -> Seen:
    """What members that play a policy meet: states, flags and values, [members, rows]."""
    keys = np.random.default_rng(3).integers(0, 1 << 63, members, np.uint64)
    world = worlds.WORLDS[name](keys, shared)
    states, flags = np.zeros((2, members, rows), np.int64)
    for row in range(rows):
        inputs, flags[:, row] = world.observe(row)
        states[:, row] = world.state  # type: ignore[attr-defined]
        world.act(row, outputs_of(policy, inputs))
    return states, flags, world.values(rows).astype(int)


@pytest.mark.parametrize("policy", [FIRST, PERFECT])
def test_states_are_worth_whether_the_move_is_optimal(policy: NDArray[Any]):
    states, flags, values = met("states", policy, worlds.tables(), 100, 50)
    assert (values == game.optimal().moves[states, policy[states]]).all()
    assert (flags == 1).all()
    assert len(np.unique(states)) > 2500, "of 4,520, by 5,000 draws"


def test_vine_is_worth_what_the_frozen_policy_makes_of_the_move():
    """Perfect play holds every position's value; the first free cell's is followed by hand."""
    states, _, values = met("vine", PERFECT, worlds.tables([PERFECT]), 40, 50)
    assert (values == game.optimal().value[states]).all()
    states, _, values = met("vine", FIRST, worlds.tables([FIRST]), 10, 50)
    known, after = game.states(), game.children()
    for start, value in zip(states.ravel(), values.ravel(), strict=True):
        state = start
        while not known.over[state]:
            state = after[state, FIRST[state]]
        won = {0: 0, known.mover[start]: 1}.get(known.winner[state], -1)
        assert value == won


def test_random_replies_are_easier_to_beat():
    """The first free cell meets perfect replies, some at random, all at random."""
    mean = []
    for replies in (0.0, 0.5, 1.0):
        shared = worlds.tables([PERFECT], replies=replies)
        mean.append(met("vine", FIRST, shared, 40, 100)[2].mean())
    assert mean[0] < mean[1] < mean[2]


def test_games_are_worth_their_results():
    """Every row of a game has its result, games begin side by side, and perfect play never loses
    what an opening left it."""
    shared = worlds.tables([FIRST, PERFECT], replies=0.3, openings=7)
    states, flags, values = met("games", PERFECT, shared, 300, 60)
    begins = flags == worlds.BEGINS
    assert begins[:, 0].all()
    value = game.optimal().value[states]
    for member in range(60):
        starts = np.flatnonzero(begins[member])
        for a, b in zip(starts, [*starts[1:], 300], strict=True):
            if b < 300:
                assert (values[member, a:b] == values[member, a]).all()
                assert values[member, a] >= value[member, a]
                assert b - a == (10 - game.stones(game.states().boards[states[member, a]])) // 2
    other = met("games", FIRST, shared, 300, 60)[1] == worlds.BEGINS
    assert (other == begins).all(), "whatever is played, a key has the same openings and rows"
    assert 300 * 60 / begins.sum() == pytest.approx(evolution.game_rows(7), rel=0.02)


def test_whole_games_from_the_empty_board_end_as_the_judges_say():
    """As X against the first free cell with half of its replies at random."""
    _, _, values = met("games", FIRST, worlds.tables([PERFECT], replies=0.5), 150, 200)
    moves = judges.uniform(game.legal()) / 2 + np.eye(9)[PERFECT] / 2
    known = judges.against(FIRST, moves).as_x
    assert values.mean() == pytest.approx(known.win - known.loss, abs=0.03)


def test_worlds_under_sanitizers(tmp_path: Path):
    """Outputs at random, and more rows than a member's memory is for; the Python worlds agree."""
    compiler = os.environ.get("CXX", "c++")
    if not has_sanitizers(compiler, tmp_path):
        pytest.skip(f"{compiler} has no sanitizers")
    run = tmp_path / "run"
    command = [compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", *SANITIZE, f"-I{HEADER}"]
    subprocess.run([*command, str(PROGRAM), str(worlds.SOURCE), "-o", str(run)], check=True)
    shared = worlds.tables([FIRST, PERFECT], replies=0.2, openings=8)
    shared.tofile(tmp_path / "shared")
    for rows in (200, worlds.ROWS + 6):
        done = subprocess.run(
            [run, tmp_path / "shared", str(rows)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said = np.array([line.split() for line in done.stdout.splitlines()], int).reshape(3, 3, 3)
        if rows <= 200:
            known = [random_play(name, shared, rows) for name in worlds.WORLDS]
            assert (said == known).all()


def random_play(name: str, shared: NDArray[Any], rows: int) -> NDArray[np.int64]:
    """What tictactoe.cpp says of a world, [3 members, 3]."""
    member = np.arange(3, dtype=np.uint64)
    world, state = (
        worlds.WORLDS[name](member * np.uint64(0x123456789ABCDEF), shared),
        12345 + member,
    )
    idle, total = np.zeros((2, 3), np.int64)
    for row in range(rows):
        outputs = np.zeros((3, 9), np.int8)
        for i in range(9):
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            outputs[:, i] = (state >> np.uint64(56)).astype(np.uint8).view(np.int8)
        inputs, flags = world.observe(row)
        total += np.where(flags > 0, inputs.sum(axis=1, dtype=np.int64), 0)
        idle += flags == 0
        world.act(row, outputs)
    values = world.values(rows).astype(np.int64)
    worth = (values * (np.arange(values.shape[1]) % 7 + 1)).sum(axis=1)
    return np.stack([worth, idle, total], axis=1)


@pytest.mark.parametrize("method", evolution.METHODS)
def test_a_run_writes_its_looks_and_can_be_repeated(method: str, tmp_path: Path):
    first = evolution.train(method, "64", 1, tmp_path / "a", looks=2, smoke=True, replies=0.5)
    again = evolution.train(method, "64", 1, tmp_path / "b", looks=2, smoke=True, replies=0.5)
    timed = ("seconds", "cpu_seconds")
    stripped = [
        [{k: v for k, v in row.items() if k not in timed} for row in r] for r in (first, again)
    ]
    assert stripped[0] == stripped[1]
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    about, *looks = map(json.loads, lines)
    assert (about["method"], about["net"], about["seed"]) == (method, "64x64", 1)
    assert [look["rows"] for look in looks] == [look["rows"] for look in first]
    budget = evolution.SMOKE["budget"]
    assert first[0]["rows"] == 0
    assert 0.9 * budget < first[-1]["rows"] <= budget
    assert (first[-1]["games"] > 0) == (method != "states")
    moves = evolution.policy_of(tmp_path / "a")
    assert judges.bad_moves(moves) == first[-1]["bad_moves"] != first[0]["bad_moves"]


def looks(folder: Path, seed: int, estimator: str, curve: list[tuple[int, float, float]]) -> Path:
    """A metrics file of rows, bad moves and exploitability as O."""
    about = {"method": "states", "net": "64x64", "arithmetic": "int8", "seed": seed}
    about |= {"estimator": estimator, "rule": "whitened"}
    with metrics.Writer(folder, **about) as writer:
        for rows, bad, lost in curve:
            judged = judges.judge(PERFECT).row()
            judged |= {"bad_moves": bad, "exploitability_as_o": lost, "optimal_loss": lost / 4}
            costs = {"seconds": rows / 1e6, "games": rows, "multiply_adds": 6400 * rows}
            writer.write(step=rows, rows=rows, **costs, **judged)
    return folder


def test_runs_are_compared_by_what_it_took_them(tmp_path: Path, capsys: Any, monkeypatch: Any):
    pytest.importorskip("matplotlib")
    million = 10**6
    last = (4 * million, 400, 0)
    folders = [
        looks(tmp_path / "a", 0, "token-credit", [(0, 2000, 1), (2 * million, 800, 0)]),
        looks(tmp_path / "b", 1, "token-credit", [(0, 1600, 0), (million, 900, 1), last]),
        looks(tmp_path / "c", 0, "eggroll", [(0, 1800, 1), (80 * million, 1000, 1)]),
    ]
    pictures = [tmp_path / "all.png", tmp_path / "rows.png"]
    words = [*map(str, folders), "--picture", str(pictures[0]), "--rows", str(pictures[1])]
    monkeypatch.setattr("sys.argv", ["comparison", *words])
    assert comparison.main() == 0
    said = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in said]
    name = "states 64x64, int8, token-credit"
    until, end = (row for row in cells if row[0] == name)
    assert until[1:7] == [
        "2 of 2", "3 (2 to 4)", "-", "3 (2 to 4)", "3 (2 to 4)", "19.2 (12.8 to 25.6)"
    ]  # fmt: skip
    assert next(row for row in cells if row[0].endswith("rule whitened"))[1:3] == ["0 of 1", "-"]
    assert end[1:3] == ["3 (2 to 4)", "3 (2 to 4)"]
    won = 100 * judges.against_random(PERFECT).mean.win
    assert end[3:] == ["-", "0.00", f"{won:.1f}", "0.00", "600 (400 to 800)"]
    # 1,000 bad moves: after 1.67 and 0.86 M rows, and after 80 M.
    assert ["1000", "1.26 M", "80.0 M = 63 x"] in cells
    assert ["900", "1.42 M", "-"] in cells
    assert all(picture.stat().st_size > 10_000 for picture in pictures)
    monkeypatch.setattr("sys.argv", ["comparison", str(tmp_path / "none")])
    assert comparison.main() == 2
    assert capsys.readouterr().err.endswith("has written.\n")


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "method": (lambda p: evolution.train("luck", "64", 0, p), "method is 'luck': states, vine"),
    "net": (lambda p: evolution.train("vine", "65", 0, p), "net is '65': 64, 256 are known"),
    "setting": (
        lambda p: evolution.train("vine", "64", 0, p, speed=1),
        "setting 'speed' is unknown",
    ),
    "rows": (lambda p: evolution.train("vine", "64", 0, p, rows=5000), "rows is 5000: 1 to 4096"),
    "replies": (lambda p: worlds.tables(replies=2), "replies is 2: a chance"),
    "openings": (lambda p: worlds.tables(openings=9), "openings is 9: 0 to 8"),
    "policies": (lambda p: worlds.tables([FIRST] * 33), "33 policies were given: 32 are the most"),
    "folder": (lambda p: evolution.policy_of(p), "is no file: give the folder of a run"),
    "file": (lambda p: evolution.train("vine", "64", 0, __file__), "cannot be written"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_sentence_for_what_does_not_fit(name: str, tmp_path: Path):
    wrong, message = WRONG[name]
    with pytest.raises(InputError, match=message) as caught:
        wrong(tmp_path)
    assert str(caught.value).endswith(".")


class Recorder:
    """In a rule's place: keeps the votes, and leaves the weights as they are."""

    def __init__(self) -> None:
        self.votes: list[NDArray[np.float64]] = []

    def __call__(
        self, weights: Any, memory: Any, votes: Any, step: int, decided: int | None = None
    ) -> MovedWeights:
        self.votes.append(np.array(votes["layer2.weights"], np.float64).ravel())
        return MovedWeights(weights, memory, 0.0)


def test_votes_of_token_credit_have_the_larger_share_of_signal():
    """Of the last layer at first weights, with a quarter of the rows.

    Votes at the same weights have the signal in common and the noise apart, so the cosine of two of
    them is the signal's share of their power.
    """
    shares = {}
    for estimator in ("token-credit", "eggroll"):
        settings = evolution.recipe("states", "64", estimator)
        es = evolution.trainer("64", settings, 0)
        es._learner.rule = recorder = Recorder()
        # The first update of token credit finds the scale of the values.
        for _ in range(5):
            es.play(worlds.library().states, settings.rows, shared=worlds.tables())
        unit = [z / np.linalg.norm(z) for z in recorder.votes[1:]]
        shares[estimator] = np.mean([a @ b for a, b in combinations(unit, 2)])
    assert shares["token-credit"] > 2 * shares["eggroll"] > 0
