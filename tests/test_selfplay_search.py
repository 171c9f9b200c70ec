"""Operations, searches and pipelines of experiments/selfplay, against plain Python."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from eggroll.errors import InputError
from experiments.selfplay import evaluators, gates, operations, plain, play, v0, v1
from experiments.selfplay.evaluators import Int8, uniform
from experiments.selfplay.games import GAMES, Boards
from experiments.selfplay.operations import Draws
from experiments.selfplay.search import Search, Trees

Single = np.float32
SETS = {"generic": 0, "avx2": 1, "avx512": 2}


def guess(states: Any, legal: Any) -> tuple[Any, Any]:
    """An evaluation that is a hash of every row: cheap, and different everywhere."""
    rows = np.ascontiguousarray(states).astype(np.int64) @ WORDS[: states.shape[1]]
    rows ^= rows >> 13
    logits = (rows[:, None] * WORDS[: legal.shape[1]] >> 20) % 97 / np.float32(16)
    return logits.astype(np.float32), ((rows >> 7) % 201 / 100 - 1).astype(np.float32)


WORDS = np.random.default_rng(3).integers(1, 1 << 40, 512)


def allotted(
    priors: Any, leaves: Any, valid: Any, simulations: int, c: float
) -> tuple[Any, Any, Any]:
    """root_puct_allocate_visits in NumPy, a row at a time, as puct.h defines it."""
    visits, sums = np.zeros_like(priors), np.zeros_like(priors)
    for p, v, mask, n, w in zip(priors, leaves, valid, visits, sums, strict=True):
        if not mask.any():
            continue
        weight = Single(c) * p
        for t in range(simulations):
            q = np.divide(w, n, out=np.zeros_like(w), where=n > 0)
            score = q + np.sqrt(Single(1 + t)) * (weight / (1 + n))
            a = np.where(mask, score, -np.inf).argmax()
            n[a] += 1
            w[a] += v[a]
    totals = [sum_in_order(row[mask]) for row, mask in zip(sums, valid, strict=True)]
    return visits, sums, np.array(totals, np.float32) / Single(max(simulations, 1))


def sum_in_order(values: Any) -> Any:
    total = Single(0)
    for value in values:
        total += value
    return total


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest) -> Any:
    if not operations.library().puct_use(SETS[request.param]):
        pytest.skip(f"{request.param} does not run here")
    yield request.param
    operations.library().puct_use(-1)


@pytest.mark.parametrize("A", [1, 2, 7, 8, 9, 16, 31, 32, 33, 220, 256])
def test_root_puct_allots_as_its_definition(instruction_set: str, A: int) -> None:
    rng = np.random.default_rng(A)
    priors = rng.dirichlet(np.full(A, 0.5), 5).astype(np.float32)
    leaves = rng.uniform(-1, 1, (5, A)).astype(np.float32)
    valid = rng.random((5, A)) < 0.6
    valid[0], valid[1] = True, False
    found = operations.root_puct_allocate_visits(priors, leaves, valid, 48, 1.5)
    for own, wanted in zip(found, allotted(priors, leaves, valid, 48, 1.5), strict=True):
        assert (own == wanted).all()


def test_roots_of_many_sizes_are_searched_in_one_call(instruction_set: str) -> None:
    """Roots go four by four with others of their size, and what is left with larger ones."""
    rng = np.random.default_rng(2)
    for counts in (
        [1, 72, 0, 16, 17, 3, 33, 64, 65, 8, 9, 1, 4, 5, 32, 48, 49],
        [7],
        [0],
        [20] * 9,
    ):
        A = 80
        priors = rng.dirichlet(np.full(A, 0.5), len(counts)).astype(np.float32)
        leaves = rng.uniform(-1, 1, priors.shape).astype(np.float32)
        valid = np.zeros(priors.shape, bool)
        for row, count in zip(valid, counts, strict=True):
            row[rng.choice(A, count, replace=False)] = True
        found = operations.root_puct_allocate_visits(priors, leaves, valid, 60, 1.5)
        for own, wanted in zip(found, allotted(priors, leaves, valid, 60, 1.5), strict=True):
            assert (own == wanted).all()


def test_priors_that_are_no_numbers_keep_to_their_root(instruction_set: str) -> None:
    """Scores are then no numbers, either: the first action takes all, as among objects."""
    for A in (3, 40, 220):
        priors = np.full((5, A), 1 / A, np.float32)
        leaves, valid = np.linspace(-1, 1, 5 * A, dtype=np.float32).reshape(5, A), priors > 0
        wanted = operations.root_puct_allocate_visits(priors, leaves, valid, 30, 1.5)
        priors[2] = np.nan
        found = operations.root_puct_allocate_visits(priors, leaves, valid, 30, 1.5)
        assert found.visits[2].tolist() == [30] + [0] * (A - 1)
        others = [0, 1, 3, 4]
        assert (found.visits[others] == wanted.visits[others]).all()


def test_root_puct_takes_the_first_of_equals(instruction_set: str) -> None:
    """Equal priors and values everywhere: simulation t goes to action t, round and round."""
    for A in (5, 40, 220):
        same = np.full((1, A), 0.25, np.float32)
        mask = np.ones((1, A), bool)
        for simulations in (1, A - 1, A, A + 3):
            found = operations.root_puct_allocate_visits(same, same, mask, simulations, 1.0)
            expected = allotted(same, same, mask, simulations, 1.0)[0]
            assert (found.visits == expected).all()
        zero = np.zeros((1, A), np.float32)
        found = operations.root_puct_allocate_visits(same, zero, mask, A + 2, 1.0)
        assert found.visits[0].tolist() == [2, 2] + [1] * (A - 2)


def test_legal_rows_are_packed_in_order() -> None:
    rng = np.random.default_rng(0)
    for R, A in ((1, 1), (3, 7), (16, 220)):
        legal = rng.random((R, A)) < 0.4
        found = operations.pack_legal_rows(legal)
        actions = np.nonzero(legal)[1]
        assert found.actions.tolist() == actions.tolist()
        assert np.diff(found.row_ptr).tolist() == legal.sum(axis=1).tolist()


def test_visits_are_drawn_in_logarithms() -> None:
    """The same places as plain Python's, also where a power would be no number."""
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 400, (300, 9)).astype(np.float32)
    weights[:, 4] += 1
    u = rng.random(300)
    for temperature in (0.0, 1e-3, 0.1, 0.5, 1.0, 3.0):
        found = operations.sample_visits(weights, temperature, u)
        wanted = [
            plain.sampled(w.tolist(), temperature, x) for w, x in zip(weights, u, strict=True)
        ]
        assert found.tolist() == wanted
        assert (weights[np.arange(300), found] > 0).all()
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(np.float32(400) ** np.float32(1000))
        odds = weights ** np.float32(1 / 1e-3)
        assert np.isnan(odds / odds.sum(axis=1, keepdims=True)).any()
    close = operations.sample_visits(weights, 1e-3, u)
    assert (weights[np.arange(300), close] >= 0.97 * weights.max(axis=1)).all()


def test_drawn_visits_have_their_odds() -> None:
    weights = np.array([[1, 0, 3, 6]], np.float32)
    u = (np.arange(20_000) + 0.5) / 20_000
    for temperature, power in ((1.0, 1), (0.5, 2)):
        found = operations.sample_visits(np.repeat(weights, len(u), 0), temperature, u)
        odds = weights[0] ** power / (weights[0] ** power).sum()
        assert np.bincount(found, minlength=4) / len(u) == pytest.approx(odds, abs=1e-4)


# ---- searches ----------------------------------------------------------------------------------


def positions_of(game: str, count: int, plies: int) -> list[plain.Position]:
    """Positions of random games, none of them over."""
    rng, found = np.random.default_rng(plies), []
    while len(found) < count:
        position: plain.Position = plain.GAMES[game].begin()
        for _ in range(int(rng.integers(0, plies))):
            if not position.over:
                position = position.apply(int(rng.choice(position.legal())))
        if not position.over:
            found.append(position)
    return found


def boards_of(game: str, positions: list[plain.Position]) -> Boards:
    boards = Boards(game, len(positions))
    for row, position in enumerate(positions):
        state = v0.state_of(position)
        boards.white[row], boards.black[row] = state.white, state.black
        boards.marks[row] = state.marks
        boards.facts[row] = tuple(getattr(state, name) for name in boards.facts.dtype.names)
    return boards


def tree_search(
    game: str, positions: list[plain.Position], search: Search, evaluate: Any = guess, seed: int = 0
) -> tuple[Any, Any, Any]:
    """Policies [R, A], chosen moves and values of a tree search of arrays."""
    return searched(game, positions, search, evaluate, seed)[1:]


def searched(
    game: str, positions: list[plain.Position], search: Search, evaluate: Any, seed: int
) -> tuple[Any, Any, Any, Any]:
    """The same, after the visits [R, A] of the roots' actions."""
    boards = boards_of(game, positions)
    trees, R = Trees(boards, search), len(positions)
    slots = np.arange(R, dtype=np.int32)
    draws = Draws(seed, slots, np.array([p.plies for p in positions], np.int32))
    policy = np.empty((R, GAMES[game].actions), np.uint16)
    trees.run(slots, draws, v1.Evaluation(evaluate))
    chosen, values = trees.finish(slots, draws, np.zeros(R, np.float32), policy)
    return trees.visits(slots), policy, chosen, values


@pytest.mark.parametrize(
    ("game", "plies", "simulations"),
    [("tictactoe", 6, 60), ("connect4", 30, 50), ("liuzhou", 100, 40)],
)
def test_trees_of_arrays_search_as_plain_python(game: str, plies: int, simulations: int) -> None:
    positions = positions_of(game, 8, plies)
    for depth in (1, 2, 3, 1000):
        found = tree_search(game, positions, Search(simulations, depth))
        for row, position in enumerate(positions):
            wanted = plain.tree_puct(plain.Node(position), guess, simulations, 1.5, depth)
            assert found[0][row].tolist() == wanted.visits
            assert found[2][row] == Single(wanted.value)


@pytest.mark.parametrize("game", GAMES)
def test_a_tree_of_depth_one_is_root_puct(game: str) -> None:
    positions = positions_of(game, 8, 40)
    found = tree_search(game, positions, Search(70, 1))
    for row, position in enumerate(positions):
        wanted = plain.root_puct(position, guess, 70, 1.5)
        assert (found[0][row].tolist(), found[2][row]) == (wanted.visits, Single(wanted.value))


@pytest.mark.parametrize("leaves", [1, 4, 16])
@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_trees_of_arrays_and_of_objects_are_equal(leaves: int, noise: float) -> None:
    """With several leaves at a time, and with Dirichlet noise: v0's nodes and v1's arrays."""
    for game, depth in (("tictactoe", 1000), ("connect4", 1000), ("connect4", 3), ("liuzhou", 5)):
        search = Search(50, depth, leaves=leaves, noise=noise)
        positions = positions_of(game, 6, 40)
        found = tree_search(game, positions, search, seed=5)
        tree = v0.Tree(game, guess, search, 5)
        for row, position in enumerate(positions):
            wanted = tree.search(position, row)
            assert found[0][row].tolist() == wanted.visits
            assert found[2][row] == Single(wanted.value)


def test_a_subtree_goes_on_to_grow() -> None:
    """A game with reuse: the visits of plain nodes that are handed on from move to move."""
    for game, simulations in (("tictactoe", 40), ("connect4", 60)):
        boards, slots = Boards(game, 1), np.zeros(1, np.int32)
        search = Search(simulations, 1000, reuse=True)
        trees, top = Trees(boards, search), plain.Node(plain.GAMES[game].begin())
        policy = np.empty((1, boards.game.actions), np.uint16)
        kept, room = 0, 3 * (simulations + 2)
        while not boards.over[0]:
            draws = Draws(0, slots, slots)
            trees.run(slots, draws, v1.Evaluation(guess))
            chosen, _ = trees.finish(slots, draws, np.zeros(1, np.float32), policy)
            wanted = plain.tree_puct(top, guess, simulations, 1.5, 1000)
            assert policy[0].tolist() == wanted.visits
            trees.advance(slots, chosen)
            boards.step(chosen)
            node = next(child for child in top.children if child.action == chosen[0])
            fits = size(node) + simulations + 1 <= room
            kept += bool(node.children and fits)
            position = top.position.apply(int(chosen[0]))
            top = node if node.children and fits else plain.Node(position)
        assert kept > 2


def size(node: plain.Node) -> int:
    """Nodes of a subtree that were met."""
    met = [c for c in node.children if c.position is not node.position]
    return 1 + sum(size(child) for child in met)


@pytest.mark.parametrize(
    ("game", "plies", "simulations"),
    [("tictactoe", 6, (1, 9, 40)), ("connect4", 34, (2, 16, 50)), ("liuzhou", 100, (7, 33))],
)
@pytest.mark.parametrize("considered", [1, 2, 3, 5, 7, 16, 100])
def test_a_gumbel_root_is_that_of_plain_python(
    game: str, plies: int, simulations: tuple[int, ...], considered: int
) -> None:
    """Visits, moves, improved policies and values are equal to the bit, also where fewer actions
    are legal than considered, and a game is over below the root."""
    positions = positions_of(game, 4, plies)
    for seed, (n, depth) in enumerate(product(simulations, (2, 1000))):
        search = Search(n, depth, gumbel=considered)
        visits, policy, chosen, values = searched(game, positions, search, guess, seed)
        for row, position in enumerate(positions):
            noise = plain.gumbels(seed, row, position.plies, len(position.legal()))
            wanted = plain.tree_gumbel(
                plain.Node(position), guess, n, 1.5, depth, considered, noise
            )
            assert visits[row].tolist() == wanted.found.visits
            assert (policy[row].tolist(), chosen[row]) == (wanted.policy, wanted.action)
            assert values[row] == Single(wanted.found.value)


def test_sequential_halving_is_that_of_its_paper() -> None:
    """Of 16 simulations and 4 actions: two visits each, then four more of each of the better two;
    what is left over goes on with the last two."""
    assert plain.halving(4, 16) == [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]
    assert plain.halving(4, 3) == [0] * 3
    assert plain.halving(3, 8) == [0] * 3 + [1, 1, 2, 2, 3]
    assert plain.halving(2, 5) == [0, 0, 1, 1, 2]
    assert plain.halving(1, 3) == [0, 1, 2]


def test_a_gumbel_root_halves_and_improves() -> None:
    positions = positions_of("connect4", 16, 20)
    for m, simulations in ((4, 16), (7, 50), (16, 32)):
        policy, chosen, _ = tree_search(
            "connect4", positions, Search(simulations, 1000, gumbel=m), guess
        )
        assert abs(policy.sum(axis=1, dtype=np.int64) - 65535).max() <= 4
        for row, position in enumerate(positions):
            assert chosen[row] in position.legal()
    seen = {
        tree_search("connect4", positions, Search(16, 1000, gumbel=4), guess, seed)[1].tobytes()
        for seed in range(6)
    }
    assert len(seen) > 1  # chance is of the seed


def test_a_gumbel_root_finds_the_win() -> None:
    """White wins at once in column 0: all of the improved policy goes there."""
    position: plain.Position = plain.Connect4.begin()
    for move in (0, 1, 0, 1, 0, 1):
        position = position.apply(move)
    policy, chosen, _ = tree_search("connect4", [position], Search(64, 1000, gumbel=7), uniform)
    assert chosen[0] == 0
    assert policy[0, 0] > 60_000


def gamma(words: Any, shape: float) -> float:
    """A draw of a gamma distribution by Marsaglia and Tsang, from chances in [0, 1)."""
    if shape < 1:
        above = gamma(words, shape + 1)
        return above * (1 - next(words)) ** (1 / shape)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = math.sqrt(-2 * math.log(1 - next(words))) * math.cos(math.tau * next(words))
        v = (1 + c * x) * (1 + c * x) * (1 + c * x)
        if v > 0 and math.log(1 - next(words)) < 0.5 * x * x + d * (1 - v + math.log(v)):
            return d * v


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 3.0])
def test_noise_at_the_root_is_that_of_its_definition(shape: float) -> None:
    """Priors that are noise alone, seen by the visits that they give."""
    game, games = GAMES["liuzhou"], 80
    given: dict[str, Any] = {
        "simulations": 500, "batch": games, "seed": 5, "temperature_plies": 0, "noise": 1.0,
    }  # fmt: skip
    found = v1.play_games("liuzhou", uniform, games=games, shape=shape, **given)
    first = np.unique(found.game, return_index=True)[1]
    for number, row in enumerate(first):
        words = plain.chances(5, number, 0, plain.NOISE)
        drawn = [gamma(words, shape) for _ in range(36)]
        priors = np.zeros((1, game.actions), np.float32)
        priors[0, :36] = [value / plain.sum_in_order(drawn) for value in drawn]
        none = np.zeros((1, game.actions), np.float32)
        wanted = allotted(priors, none, found.legal[row][None], 500, 1.5)[0]
        assert (found.policy[row] == wanted[0]).all()


# ---- whole games -------------------------------------------------------------------------------

WHOLE = [("tictactoe", 24, 6), ("connect4", 12, 4), ("liuzhou", 8, 1)]


@pytest.mark.parametrize(("game", "simulations", "games"), WHOLE)
@pytest.mark.parametrize("depth", [1, 1000])
def test_v1_v0_and_plain_python_play_the_same_games(
    game: str, simulations: int, games: int, depth: int
) -> None:
    given: dict[str, Any] = {
        "simulations": simulations, "seed": 3, "temperature_plies": 4, "depth": depth,
    }  # fmt: skip
    found = v1.play_games(game, guess, games=games, batch=3, **given)
    lines = [json.loads(line) for text in v0.play_games(game, guess, games=games, **given)
             for line in text.splitlines()]  # fmt: skip
    report = gates.compare(found, gates.parsed(game, lines))
    assert report.passed, report
    row = 0
    for number in range(games):
        steps, last = plain.play_game(game, guess, number=number, **given)
        for step in steps:
            assert found.game[row] == number
            assert found.state[row].tolist() == np.ravel(step.position.planes()).tolist()
            assert np.flatnonzero(found.legal[row]).tolist() == step.position.legal()
            assert found.policy[row].tolist() == step.found.visits
            assert found.root[row] == Single(step.found.value)
            assert found.action[row] == step.action
            assert found.value[row] == last.result * step.position.mover
            assert found.soft[row] == Single(last.soft() * step.position.mover)
            after = step.position.apply(step.action)
            assert found.material[row] == Single(after.soft())
            assert found.still[row] == getattr(after, "still", 0)
            row += 1
    assert row == len(found.game)


@pytest.mark.parametrize(("game", "simulations"), [("connect4", 24), ("liuzhou", 12)])
def test_values_alone_give_the_games_of_whole_evaluations(game: str, simulations: int) -> None:
    net = Int8(GAMES[game], (32,), seed=1)
    play = partial(
        v1.play_games, game, net, games=3, simulations=simulations, batch=3, seed=0,
        temperature_plies=6,
    )  # fmt: skip
    assert gates.compare(play(), play(full=True)).passed


@pytest.mark.parametrize("set_", [0, 1])
@pytest.mark.parametrize("hidden", [(16,), (33, 20), (128, 64)])
def test_the_native_network_has_the_bits_of_the_engine(set_: int, hidden: tuple[int, ...]) -> None:
    if not evaluators.library().net_runs(set_):
        pytest.skip("the instruction set does not run here")
    rng = np.random.default_rng(len(hidden))
    for game in GAMES.values():
        whole = Int8(game, hidden, seed=2)
        for name, leaf in whole.weights.items():
            if "policy" in name:  # up to the clip
                leaf[:] = rng.integers(-127, 128, leaf.shape)
        whole = Int8.of(game, hidden, whole.weights)
        own = evaluators.Native(whole.weights, set_)
        for n in (1, 7, 8, 9, 300):
            states = (rng.random((n, game.inputs)) < 0.4).astype(np.int8)
            legal = np.ones((n, game.actions), bool)
            for mine, wanted in zip(own(states, legal), whole(states, legal), strict=True):
                assert (mine == wanted).all()
            assert (own.values(states) == whole.values(states)).all()
            assert (whole.values(states) == whole(states, legal)[1]).all()


def children_of(game: str, plies: int) -> Any:
    """What the children of some positions show, int8 [n, F], root by root as a search asks them."""
    rows = []
    for position in positions_of(game, 12, plies):
        rows += [child.planes() for action in position.legal() if (child := position.apply(action))]
    return np.array(rows, np.int8).reshape(len(rows), -1)


@pytest.mark.parametrize("set_", [0, 1])
@pytest.mark.parametrize(("game", "plies"), [("tictactoe", 6), ("connect4", 30), ("liuzhou", 120)])
def test_a_first_layer_by_differences_is_the_whole_one(game: str, plies: int, set_: int) -> None:
    """On children of random positions, on rows that have nothing to do with each other, and where
    sums leave the range of int8 or come close to that of int16."""
    if not evaluators.library().net_runs(set_):
        pytest.skip("the instruction set does not run here")
    rng, kind = np.random.default_rng(plies), GAMES[game]
    F, A = kind.inputs, kind.actions
    near = children_of(game, plies)
    far = (rng.random((40, F)) < rng.random((40, 1))).astype(np.int8)
    rows = np.concatenate([near, far, near[::-1], near[:1], np.zeros((3, F), np.int8), near])
    for hidden, most in (((128, 64), 24), ((33,), 127), ((16, 40), min(127, 32767 // F))):
        net = Int8(kind, hidden, seed=5)
        first = net.weights["layer0.weights"]
        first[:] = rng.integers(-most, most + 1, first.shape)
        first[0], first[1] = most, -most
        fits = int(np.abs(first.astype(np.int64)).sum(axis=1).max()) <= 32767
        assert (evaluators.columns(first) is not None) == fits
        own, whole = (evaluators.Native(net.weights, set_, differences=d) for d in (True, False))
        legal = np.ones((len(rows), A), bool)
        for mine, wanted in zip(own(rows, legal), whole(rows, legal), strict=True):
            assert (mine == wanted).all()
        assert (own.values(rows) == whole.values(rows)).all()
        engine = Int8.of(kind, hidden, net.weights)
        assert (own.values(rows) == engine.values(rows)).all()
        for r in (0, len(near) - 1, len(near), len(rows) - 1):  # no row depends on those before it
            assert (own.values(rows[r : r + 1]) == own.values(rows)[r]).all()


def test_every_divisor_of_a_first_layer_is_exact() -> None:
    """All sums that a quotient tells apart, by inputs that are taken one more at a time."""
    for K in (4, 5, 9, 16, 17, 25, 36, 100, 126, 255, 256, 396, 1024, 4096):
        weights = {
            "layer0.weights": np.ones((2, K), np.int8), "layer0.bias": np.zeros(2, np.int8),
            "policy.weights": 16 * np.eye(2, dtype=np.int8),
            "policy.bias": np.zeros(2, np.int8),
            "value.weights": np.zeros((1, 2), np.int8), "value.bias": np.zeros(1, np.int8),
        }  # fmt: skip
        weights["layer0.weights"][1] = -1
        weights["layer0.bias"][1] = 127
        rows = np.tri(K + 1, K, -1, np.int8)
        legal = np.ones((K + 1, 2), bool)
        own, whole = (evaluators.Native(weights, differences=d)(rows, legal) for d in (True, False))
        assert all((a == b).all() for a, b in zip(own, whole, strict=True))
        d = 16 * math.isqrt(K)
        sums = 64 * np.arange(K + 1)[:, None] * np.array([1, -1])
        hidden = (sums // d).clip(-127, 127) + np.array([0, 127])  # the policy passes it on
        wanted = hidden.clip(0, 127).astype(np.float32) * np.float32(evaluators.LOG_2 / 16)
        assert (own[0] == wanted).all()


@pytest.mark.parametrize("depth", [1, 1000])
def test_a_network_of_another_game_is_refused(depth: int) -> None:
    """Before it is asked by its address, where its rows would be read as this game's."""
    net = evaluators.Native(Int8(GAMES["connect4"], (16,)).weights)
    with pytest.raises(InputError, match=r"\[n, 126\] is needed"):
        v1.play_games(
            "tictactoe", net, games=1, simulations=4, batch=1, seed=0, temperature_plies=0,
            depth=depth,
        )  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("depth", [1, 1000])
def test_a_network_in_native_code_plays_the_games_of_the_engine(game: str, depth: int) -> None:
    """Shown planes or bits, by instruction sets, with or without columns of the first layer."""
    whole = Int8(GAMES[game], (32,), seed=4)
    play = partial(
        v1.play_games, game, games=6, simulations=16, batch=4, seed=0, temperature_plies=6,
        depth=depth,
    )  # fmt: skip
    wanted = play(whole)
    for set_ in (0, 1):
        if evaluators.library().net_runs(set_):
            net = evaluators.Native(whole.weights, set_)
            assert net.bits
            assert gates.compare(play(net), wanted).passed
    net = evaluators.Native(whole.weights, differences=False)
    assert not net.bits
    assert gates.compare(play(net), wanted).passed


def test_a_native_network_needs_its_leaves_and_planes() -> None:
    whole = Int8(GAMES["connect4"], (32,), seed=4)
    with pytest.raises(InputError, match=r"no leaf 'layer0.bias'"):
        evaluators.Native({"layer0.weights": 0, "a": 0, "b": 0, "c": 0, "d": 0, "e": 0})
    with pytest.raises(InputError, match=r"\[n, 126\] is needed"):
        evaluators.Native(whole.weights).values(np.zeros((2, 9), np.int8))


@pytest.mark.parametrize(("game", "games"), [("tictactoe", 20), ("connect4", 8), ("liuzhou", 5)])
@pytest.mark.parametrize("depth", [1, 1000])
def test_a_game_does_not_depend_on_the_games_beside_it(game: str, games: int, depth: int) -> None:
    play = partial(
        v1.play_games, game, guess, games=games, simulations=16, seed=1, temperature_plies=8,
        depth=depth, noise=0.25,
    )  # fmt: skip
    alone = play(batch=1)
    for batch in (2, 3, games):
        assert gates.compare(play(batch=batch), alone).passed
    # Games that ended leave room for others at once: numbers and chance are their own.
    later = play(batch=4, first=2)
    rows = np.flatnonzero(alone.game >= 2)
    shared = np.flatnonzero(later.game < games)
    assert (later.policy[shared] == alone.policy[rows]).all()


@pytest.mark.parametrize("depth", [1, 1000])
def test_the_gate_sees_values_that_leak_between_games(depth: int) -> None:
    """Two planted leaks, as LightZero had one for years: the gate must fail both."""
    play = partial(
        v1.play_games, "connect4", games=6, simulations=20, seed=1, temperature_plies=8, depth=depth
    )
    for leak in (gates.leaking_rows, gates.leaking_scale):
        evaluate = leak(guess)
        assert not gates.compare(play(evaluate, batch=6), play(evaluate, batch=1)).passed
    assert gates.compare(play(guess, batch=6), play(guess, batch=1)).passed


def test_steps_in_place_and_by_copies_are_equal() -> None:
    play = partial(
        v1.play_games, "liuzhou", guess, games=40, simulations=8, batch=40, seed=2,
        temperature_plies=20,
    )  # fmt: skip
    assert gates.compare(play(in_place=1), play(in_place=1 << 30)).passed


def test_bad_settings_get_a_sentence() -> None:
    play = partial(v1.play_games, games=1, simulations=8, batch=1, seed=0, temperature_plies=0)
    for options, words in (
        ({"noise": 2}, "noise is 2"),
        ({"depth": 1, "gumbel": 4}, "depth is 1"),
        ({"depth": 5, "reuse": True}, "reuse needs"),
        ({"depth": 99, "gumbel": 4, "noise": 0.1}, "gumbel counts"),
        ({"simulations": 0}, "simulations is 0"),
        ({"games": 0}, "games is 0"),
        ({"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(InputError, match=words):
            play("tictactoe", guess, **{**options})
    with pytest.raises(InputError, match="choose one of"):
        play("go", guess)
    with pytest.raises(InputError, match="must have the same shape"):
        play("tictactoe", lambda s, legal: (legal[:, :3].astype(np.float32), np.zeros(len(s))))
    with pytest.raises(InputError, match="finite"):
        play("tictactoe", lambda s, legal: (legal.astype(np.float32), np.full(len(s), np.nan)))


def test_an_error_of_the_evaluation_comes_through_the_old_search() -> None:
    def broken(states: Any, legal: Any) -> Any:
        raise RuntimeError("the network is gone")

    with pytest.raises(RuntimeError, match="is gone"):
        list(v0.play_games("tictactoe", broken, games=1, simulations=4, seed=0,
                           temperature_plies=0))  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
def test_the_float_network_is_that_of_numpy(game: str) -> None:
    net = evaluators.Float(GAMES[game], (48, 32), seed=3)
    rng = np.random.default_rng(0)
    for n in (1, 5, 300):
        states = (rng.random((n, GAMES[game].inputs)) < 0.4).astype(np.int8)
        x = states.astype(np.float64)
        for w, b in net.layers[:-2]:
            x = np.maximum(x @ w.T.astype(np.float64) + b, 0)
        wanted = [x @ w.T.astype(np.float64) + b for w, b in net.layers[-2:]]
        logits, values = net(states, np.ones((n, GAMES[game].actions), bool))
        np.testing.assert_allclose(logits, wanted[0], atol=1e-4)
        np.testing.assert_allclose(values, np.tanh(wanted[1][:, 0]), atol=1e-5)
        np.testing.assert_allclose(net.values(states), values, atol=1e-6)


class OtherSide:
    """Stands for pgx and mctx: the first legal action, on boards of this library."""

    def opened(self, lines: Any) -> Boards:
        return play.placed("connect4", lines)

    def put(self, state: Boards, rows: Any, openings: Boards, of: Any) -> Boards:
        at = np.flatnonzero(rows)
        state.put(at, openings, of[at])
        return state

    def step(self, state: Boards, actions: Any) -> Boards:
        state.step(actions)
        return state

    def moves(self, state: Boards) -> Any:
        return state.legal().argmax(axis=1).astype(np.int32)


class FirstLegal:
    """Stands for v1, and remembers when a game came to it first, and how many it was asked."""

    def __init__(self, boards: Boards, met: dict[int, int], asked: list[int]) -> None:
        self.boards, self.met, self.asked = boards, met, asked

    def moves(self, slots: Any, numbers: Any) -> Any:
        self.asked.append(len(slots))
        for number, plies in zip(numbers, self.boards.facts["plies"][slots], strict=True):
            self.met.setdefault(int(number), int(plies))
        return self.boards.legal()[slots].argmax(axis=1).astype(np.int32)


def test_peers_play_every_opening_with_sides_exchanged() -> None:
    """Equal players: a game and the one with sides exchanged have opposite results. Times are those
    of moves with all boards open, and no game is left out as boards are taken again."""
    from experiments.selfplay import mctx_peer

    lines = play.draw_openings("connect4", 9, (2, 6), np.random.default_rng(0))
    peer: Any = OtherSide()
    openings = mctx_peer.Openings(peer, lines)
    met: dict[int, int] = {}
    asked: list[int] = []
    own: Any = partial(FirstLegal, met=met, asked=asked)
    results, times = mctx_peer.play_out(peer, own, openings, 4)
    assert met == {n: len(lines[n // 2]) + n % 2 for n in range(18)}
    assert results.any()
    assert (results[::2] == -results[1::2]).all()
    assert 20 < len(times) <= asked.count(4) < len(asked)
    assert len(mctx_peer.play_out(peer, own, openings, 4, steps=100)[1]) == 100


def test_connect_four_is_that_of_pgx() -> None:
    """Observations, legal moves and ends of random games, where pgx is installed."""
    pytest.importorskip("pgx", reason="pgx is missing: pip install '.[peers]' brings it")
    pytest.importorskip("mctx", reason="mctx is missing: pip install '.[peers]' brings it")
    from experiments.selfplay import mctx_peer

    count, rng = 16, np.random.default_rng(0)
    peer = mctx_peer.Peer(evaluators.Float(GAMES["connect4"], (8,)), 4)
    theirs = peer.start(peer.jax.random.split(peer.jax.random.key(0), count))
    boards = Boards("connect4", count)
    while not boards.over.all():
        open_, legal = boards.over == 0, boards.legal()
        seen = np.asarray(mctx_peer.inputs(peer.jax.numpy, theirs.observation))
        assert (boards.observe()[open_] == seen[open_]).all()
        assert (legal[open_] == np.asarray(theirs.legal_action_mask)[open_]).all()
        assert (np.asarray(theirs.terminated) == ~open_).all()
        odds = legal + 1e-9 * ~open_[:, None]
        actions = np.array([rng.choice(7, p=row / row.sum()) for row in odds], np.int32)
        boards.step(actions)
        theirs = peer.step(theirs, actions)
