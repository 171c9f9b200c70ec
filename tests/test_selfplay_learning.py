"""What self-play learns from: errors in integers against their oracle, rewards, views, judges."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from eggroll.spec.fixed_point import exp2_table
from experiments.selfplay import (
    alphabeta,
    evaluation,
    evaluators,
    labels,
    learners,
    play,
    rewards,
    rwd,
    settings,
    v1,
    views,
)
from experiments.selfplay.games import GAMES, Boards
from experiments.selfplay.learners import Positions
from experiments.selfplay.search import Search
from experiments.selfplay.settings import Settings
from experiments.tictactoe import game as exact

RNG = np.random.default_rng(0)


def oracle_error(wanted: Fraction, found: Fraction, word: int) -> int:
    """One error: shares cut to 16 bits below the point, their difference rounded by chance."""
    cut = [int(127 * 65536 * share) for share in (wanted, found)]
    return (cut[0] - cut[1] + (word >> 16)) // 65536


def test_errors_of_the_policy_are_those_of_the_oracle():
    B, A = 60, 9
    logits = RNG.integers(-128, 128, (B, A)).astype(np.int8)
    visits = RNG.integers(0, 400, (B, A))
    legal = RNG.random((B, A)) < 0.6
    legal[:, 0] = True
    visits[0], legal[1] = 0, np.arange(A) == 0  # nothing to learn; one action alone
    words = RNG.integers(0, 1 << 32, (B, A), np.uint32)
    found = labels.policy_errors(logits, visits, legal, words)
    table = [int(value) for value in exp2_table()]
    for b in range(B):
        free = np.flatnonzero(legal[b])
        powers = {int(a): table[int(logits[b, a]) + 128] for a in free}
        taken = int(visits[b, free].sum())
        expected = np.zeros(A, int)
        for a in free if taken else ():
            share = Fraction(powers[int(a)], sum(powers.values()))
            expected[a] = oracle_error(Fraction(int(visits[b, a]), taken), share, int(words[b, a]))
        np.testing.assert_array_equal(found[b], expected)
    assert not found[0].any()
    assert abs(found.astype(int)).max() > 100


def test_errors_of_the_value_are_those_of_the_oracle():
    values = np.array([-2.0, -1, -0.3, 0, 0.25, 1, 1.4], np.float32)
    units = labels.value_units(np.repeat(values, 20))
    u = np.tile(np.linspace(-128, 127, 20).astype(np.int8), len(values))[:, None]
    words = RNG.integers(0, 1 << 32, u.shape, np.uint32)
    found = labels.value_errors(u, units, words)
    table = [int(value) for value in exp2_table()]
    for i, unit in enumerate(units):
        assert -32768 <= unit <= 32768
        power = table[int(u[i, 0]) + 128]
        wanted = Fraction(32768 + int(unit), 65536)
        share = Fraction(power, power + table[128])
        assert found[i, 0] == oracle_error(wanted, share, int(words[i, 0]))


def some_positions(B: int, A: int, F: int) -> Positions:
    legal = RNG.random((B, A)) < 0.7
    legal[:, 0] = True
    return Positions(
        RNG.integers(0, 2, (B, F)).astype(np.int8), RNG.integers(0, 50, (B, A)) * legal,
        labels.value_units(RNG.choice([-1.0, 0, 1], B)), legal,
    )  # fmt: skip


def test_slopes_of_adam_are_those_of_the_loss():
    """Finite differences of the loss that token credit is told, which is the same."""
    p = some_positions(8, 5, 27)
    u, v = RNG.normal(size=(8, 5)), RNG.normal(size=(8, 1))
    slopes = learners.slopes({"policy": u, "value": v}, p)

    def lost(u, v):
        return -sum(labels.log_likelihood(u, v, p.visits, p.units, p.legal)).mean()

    for array, slope in zip((u, v), slopes, strict=True):
        for at in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[at] = 1e-4
            moved = [(u + s * step, v) if array is u else (u, v + s * step) for s in (1, -1)]
            expected = (lost(*moved[0]) - lost(*moved[1])) / 2e-4
            assert slope[at] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("learner", ["feedback", "token-credit", "adam"])
def test_a_learner_learns_and_goes_on_after_a_load(learner: str, tmp_path):
    facts = GAMES["tictactoe"]
    s = Settings(learner=learner, iterations=2, updates=30, batch=64, hidden="32")
    p = some_positions(64, facts.actions, facts.inputs)
    whole = learners.new(s)
    before = learners.loss(whole.evaluator(), p)
    for _ in range(60):
        if whole.step == 20:
            whole.save(tmp_path / "at20")
        whole.learn(p)
    after = learners.loss(whole.evaluator(), p)
    assert after.value < before.value - 0.1
    assert after.policy - after.entropy < 0.7 * (before.policy - before.entropy)
    again = learners.load(tmp_path / "at20", s)
    assert again.step == 20
    assert again.signature != whole.signature
    while again.step < 60:
        again.learn(p)
    assert again.signature == whole.signature


@pytest.mark.parametrize("learner", ["feedback", "adam"])
def test_a_float_copy_is_the_twin(learner: str):
    """A network's copy for searches and peers in float is the function that Adam trains: hidden
    units are held, and would give something else if they were not."""
    facts = GAMES["connect4"]
    s = Settings("connect4", learner, hidden="32,16")
    p = some_positions(50, facts.actions, facts.inputs)
    twin = learners.Adam(s, 1).evaluator()(p.state, p.legal)
    copy = evaluators.Float.of(facts, learners.new(s).leaves())
    free = evaluators.Float(facts, layers=copy.layers)
    for mine, theirs, beyond in zip(
        copy(p.state, p.legal), twin, free(p.state, p.legal), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
        assert abs(beyond - theirs).max() > 0.01


def test_a_view_is_the_same_game():
    """Random games, each move by its counterpart: observations and legal actions agree."""
    for name, facts in GAMES.items():
        seen = views.of(name)
        assert len(seen.cells) == {"tictactoe": 8, "connect4": 2, "liuzhou": 8}[name]
        boards, chance = Boards(name, len(seen.cells)), np.random.default_rng(3)
        for _ in range(facts.longest):
            if boards.over.all():
                break
            planes = boards.observe().reshape(len(seen.cells), facts.planes, -1)
            legal = boards.legal()
            for view, (cells, actions) in enumerate(zip(*seen, strict=True)):
                np.testing.assert_array_equal(planes[view], planes[0][:, cells])
                np.testing.assert_array_equal(legal[view], legal[0][actions])
            move = chance.choice(np.flatnonzero(legal[0]))
            boards.step(np.argmax(seen.actions == move, axis=1).astype(np.int32))
        assert boards.over.all()


# Rewards of Liuzhou chess


def test_the_course_of_games_is_that_of_what_was_played():
    """Random games stepped by hand beside what play_games recorded of the same moves."""
    played = v1.play_games(
        "liuzhou", unknowing, games=6, simulations=4, batch=6, seed=1, temperature_plies=144
    )
    course = rewards.follow(played)
    for game in range(6):
        at = played.game == game
        boards, still, soft, first = Boards("liuzhou", 1), 0, 0.0, -1
        for action, change, side, after in zip(
            played.action[at], course.change[at], course.side[at], course.still[at], strict=True
        ):
            assert side == boards.to_move[0] * first
            stones = [np.bitwise_count(b[0]) for b in (boards.white, boards.black)]
            placing = boards.facts["phase"][0] < 2  # placed or marked
            boards.step(np.array([action], np.int32))
            now = [np.bitwise_count(b[0]) for b in (boards.white, boards.black)]
            still = 0 if placing or sum(now) < sum(stones) else still + 1
            assert after == still
            difference = int(now[0]) - int(now[1])
            worth = float(np.clip(np.tan(np.clip(2 * difference / 18, -1.5, 1.5)), -1, 1))
            assert change == pytest.approx(first * (worth - soft), abs=1e-6)
            soft = worth
        assert boards.over[0]
        np.testing.assert_array_equal(course.result[at], first * boards.result[0])


def unknowing(states, legal):
    return np.zeros(legal.shape, np.float32), np.zeros(len(states), np.float32)


def stalled_course(T: int) -> rewards.Course:
    """A drawn game of T steps in which nothing is ever taken."""
    side = np.where(np.arange(T) % 2 == 0, 1, -1).astype(np.int8)
    return rewards.Course(
        np.zeros(T, int), side, np.zeros(T, np.int8), np.zeros(T), np.arange(1, T + 1)
    )


def test_the_document_pays_the_second_player_to_stall_and_the_mended_reward_nobody():
    course = stalled_course(60)
    stalled = 60 - (rewards.PATIENCE - 1)
    by_document, by_mended = rewards.document(course), rewards.mended(course)
    assert by_document[0] == pytest.approx(-0.002 * stalled)  # the first player pays
    assert by_document[1] == pytest.approx(0.002 * stalled)  # and the second is paid
    np.testing.assert_allclose(by_mended[:2], -0.002 * stalled)


def test_sums_of_the_document_leave_the_range_and_the_mended_ones_do_not():
    won = stalled_course(2)._replace(
        result=np.ones(2, np.int8), change=np.array([0.5, 0.5]), still=np.zeros(2, int)
    )
    np.testing.assert_allclose(rewards.document(won), [1.2, -1.1])
    np.testing.assert_allclose(rewards.mended(won), [1, -1])


def test_rewards_are_summed_within_their_game():
    course = rewards.Course(
        np.array([0, 0, 1, 1, 1]), np.array([1, -1, 1, -1, -1], np.int8),
        np.array([0, 0, -1, -1, -1], np.int8), np.array([0.5, -5, 0, 0.25, 0.5]), np.zeros(5, int),
    )  # fmt: skip
    # Steps: 0.1, -0.2 (held), then 0, 0.05, 0.1 and a lost game.
    np.testing.assert_allclose(rewards.document(course), [-0.1, 0.2, -0.85, 0.85, 0.9])
    np.testing.assert_allclose(rewards.mended(course), [-0.1, 0.2, -0.85, 0.85, 0.9])


# Judges


def test_the_exact_judges_see_the_boards_of_the_games():
    planes, legal = evaluation.exact_states()
    known = exact.states()
    mine = known.mover[:, None]
    np.testing.assert_array_equal(planes[:, :9], known.boards == mine)
    np.testing.assert_array_equal(planes[:, 9:18], (known.boards > 0) & (known.boards != mine))
    np.testing.assert_array_equal(legal, exact.legal())


def plain_score(columns: list[list[int]], depth: int) -> int:
    """Alpha-beta's score by plain negamax; a column lists sides from below, 1 the mover's."""

    def cell(c: int, r: int) -> int:
        return columns[c][r] if 0 <= c < 7 and 0 <= r < len(columns[c]) else 0

    lines = [
        [(c + i * dc, r + i * dr) for i in range(4)]
        for c in range(7) for r in range(6) for dc, dr in ((0, 1), (1, 0), (1, 1), (1, -1))
        if c + 3 * dc < 7 and 0 <= r + 3 * dr < 6
    ]  # fmt: skip

    def won(side: int) -> bool:
        return any(all(cell(*at) == side for at in line) for line in lines)

    if sum(map(len, columns)) == 42:
        return 0
    if depth == 0:
        total = 0
        for line in lines:
            seen = [cell(*at) for at in line]
            for side in (1, -1):
                if -side not in seen:
                    total += side * (0, 1, 4, 16)[seen.count(side)]
        return total
    best = -(1 << 30)
    for column in (c for c in columns if len(c) < 6):
        column.append(1)
        if won(1):
            found = (1 << 20) + depth
        else:
            for c in columns:
                c[:] = [-side for side in c]
            found = -plain_score(columns, depth - 1)
            for c in columns:
                c[:] = [-side for side in c]
        column.pop()
        best = max(best, found)
    return best


def test_alphabeta_is_negamax():
    boards, chance = Boards("connect4", 12), np.random.default_rng(5)
    for ply in range(26):
        legal = boards.legal()
        actions = np.where(legal, chance.random(legal.shape), -1).argmax(axis=1)
        boards.step(actions.astype(np.int32))
        if ply not in (3, 12, 20, 25):
            continue
        planes = boards.observe()
        keys = chance.integers(0, 1 << 63, 12, np.uint64)
        actions, scores = alphabeta.best(planes[:, :84], 2, keys)
        for b in np.flatnonzero(boards.over == 0):
            sides = planes[b].reshape(3, 7, 6)[:2].astype(int)
            columns = [[int(s) for s in column if s] for column in sides[0] - sides[1]]
            assert scores[b] == plain_score(columns, 2)
            assert boards.legal()[b, actions[b]]


def test_reports_of_rewards_have_the_documents_fields(tmp_path):
    s = settings.new(
        {"game": "liuzhou", "games": 4, "simulations": 4, "hidden": "16", "temperature_plies": 144}
    )
    lines: list[str] = []
    whole = rwd.write(tmp_path, s, 2, None, lines.append)
    reports = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("round-*.json"))]
    assert len(reports) == 6
    for report in reports:
        assert report["decisive_games"] + report["draw_games"] == report["games"] == 4
        assert report["decisive_game_ratio"] + report["draw_game_ratio"] == 1
        value = report["value_target_summary"]
        assert value["nonzero_ratio"] == value["nonzero_count"] / value["count"]
        assert value["count"] == report["positions"]
        assert report["positions_per_sec"] > report["games_per_sec"] > 0
    of = whole["rewards"]
    assert of["terminal"]["gates"]["positions_per_sec"]["found"] == 1
    assert [r["reward"] for number in (1, 2) for r in by_place(reports, number)] == [
        "terminal", "document", "mended", "document", "mended", "terminal",
    ]  # fmt: skip
    for reward, means in of.items():  # a speed is taken within its round
        own = [r["positions_per_sec"] for r in reports if r["reward"] == reward]
        base = [r["positions_per_sec"] for r in reports if r["reward"] == "terminal"]
        assert means["speeds"] == [a / b for a, b in zip(own, base, strict=True)]
    # The same games: what a reward changes is what the value learns.
    assert len({means["decisive_game_ratio"] for means in of.values()}) == 1
    assert of["mended"]["value_target_summary"]["outside_count"] == 0
    nonzero = [of[r]["value_target_summary"]["nonzero_ratio"] for r in ("terminal", "document")]
    assert nonzero[0] < nonzero[1]
    assert lines[2].startswith("| RWD-0 | ")


def by_place(reports, number):
    """The reports of a round in the order of their games."""
    return sorted((r for r in reports if r["round"] == number), key=lambda r: r["place"])


def test_a_round_of_rewards_is_played_before_any_is_timed(monkeypatch):
    s = settings.new({"game": "liuzhou", "games": 2, "simulations": 2, "hidden": "8"})
    seeds, chunk = [], play.chunk

    def noted(settings, evaluate, games, seed):
        seeds.append(seed)
        return chunk(settings, evaluate, games, seed)

    monkeypatch.setattr(play, "chunk", noted)
    reports = rwd.rounds(s, learners.new(s).evaluator(), 2, 7)
    assert seeds == [9, 7, 7, 7, 8, 8, 8]
    assert {r["seed"] for r in reports} == {7, 8}


@pytest.mark.parametrize(
    ("decisive", "nonzero", "draws", "speed", "failed"),
    [
        (0.01, 0.01, 0.99, 0.85, set()),
        (0.009, 0.01, 0.99, 0.85, {"decisive_game_ratio"}),
        (0.01, 0.009, 0.991, 0.84, {"nonzero_ratio", "draw_game_ratio", "positions_per_sec"}),
    ],
)
def test_gates_of_rewards(decisive, nonzero, draws, speed, failed):
    means = {
        "decisive_game_ratio": decisive, "draw_game_ratio": draws,
        "value_target_summary": {"nonzero_ratio": nonzero},
    }  # fmt: skip
    found = rwd.gates(means, speed)
    assert {name for name, gate in found.items() if not gate["passed"]} == failed


def test_a_match_is_fair():
    """Of equal players from equal openings each wins as often as it loses."""
    for player in (play.search_player(unknowing, Search(12, 42)), play.policy_player(unknowing)):
        found = play.match("connect4", player, player, games=10, openings=(2, 6), seed=3)
        assert found["wins"] == found["losses"]
        assert found["wins"] + found["draws"] + found["losses"] == 10
    stronger = play.match(
        "connect4", play.alphabeta_player(2), play.random_player, games=10, openings=(0, 0), seed=1
    )
    assert stronger["wins"] >= 8
    assert stronger["openings"] == 1


@pytest.mark.parametrize("game", GAMES)
def test_openings_differ_and_are_played_from_both_sides(game: str):
    least, most = evaluation.OPENINGS[game]
    lines = play.draw_openings(game, 100, (least, most), np.random.default_rng(1))
    boards = play.placed(game, lines)
    assert not boards.over.any()
    assert boards.facts["plies"].tolist() == [len(line) for line in lines]
    assert {len(line) for line in lines} == set(range(least, most + 1))
    assert len({row.tobytes() for row in boards.observe()}) == 100
    first: list[list[bytes]] = []

    def watching(boards: Boards, chance: np.random.Generator):
        if not boards.over.any() and len(first) < 2:
            first.append([row.tobytes() for row in boards.observe()])
        return play.random_player(boards, chance)

    found = play.match(game, watching, watching, games=40, openings=(least, most), seed=2)
    assert (found["games"], found["openings"]) == (40, 20)
    assert first[0] == first[1]  # asked as the one player, and as the other
    assert first[0][:20] == first[0][20:]
    assert len({*first[0]}) == 20


def test_openings_come_again_where_there_are_no_others():
    lines = play.draw_openings("tictactoe", 30, (1, 1), np.random.default_rng(0))
    assert sorted(lines[:9]) == [[cell] for cell in range(9)]
    assert lines[9:] == (lines[:9] * 3)[:21]


@pytest.mark.parametrize(("depth", "gumbel"), [(1, 0), (9, 0), (9, 4)])
def test_a_search_moves_as_self_play_does(depth: int, gumbel: int):
    """The moves of a match are those that self-play records: without chance, and with that of a
    Gumbel root, which is another at every move."""
    s = Settings(
        simulations=20, depth=depth, gumbel=gumbel, temperature_plies=0, noise=0.0, hidden="16"
    )
    evaluate = learners.new(s).evaluator()
    played = play.chunk(s, evaluate, 1, seed=0)
    boards, searcher = Boards("tictactoe", 1), play.Searcher(evaluate, s.search())
    for state, visits in zip(played.state, played.visits, strict=True):
        np.testing.assert_array_equal(boards.observe()[0], state)
        found, actions, _ = searcher(boards)
        np.testing.assert_array_equal(found[0], visits)
        boards.step(actions)
    assert boards.over[0]


def test_thresholds_hold_from_the_iteration_after_the_last_failure():
    def row(decisive):
        return {
            "decisive_game_ratio": decisive, "draw_game_ratio": 1 - decisive,
            "value_target_summary": {"nonzero_ratio": 1.0},
        }  # fmt: skip

    assert rwd.holds_from([row(d) for d in (0, 0.5, 0.009, 0.2, 0.01)]) == 3
    assert rwd.holds_from([row(0.5)]) == 0
    assert rwd.holds_from([row(0.5), row(0.0)]) is None
