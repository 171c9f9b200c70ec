"""Tic-tac-toe's states, perfect play and exact judges, against slow ones and known policies."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from eggroll.errors import InputError
from experiments.tictactoe import game, judges

FIRST = game.legal().argmax(axis=1)  # the policy that moves to the first free cell
UNIFORM = judges.uniform(game.legal())
PERFECT = judges.uniform(game.optimal().moves)
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
Board = tuple[int, ...]


def won(board: Board) -> int:
    for line in LINES:
        a, b, c = (board[int(cell)] for cell in line)
        if a and a == b == c:
            return a
    return 0


def moved(board: Board) -> dict[int, Board]:
    """Boards after the mover's moves, by cell; none where the game is over."""
    player = 1 + (9 - board.count(0)) % 2
    if won(board):
        return {}
    return {i: (*board[:i], player, *board[i + 1 :]) for i in range(9) if not board[i]}


@cache
def minimax(board: Board) -> int:
    """For the mover."""
    if won(board):
        return -1
    return max((-minimax(after) for after in moved(board).values()), default=0)


@cache
def boards() -> list[Board]:
    """Of the states, in their order."""
    return [tuple(board) for board in game.states().boards.tolist()]


@cache
def numbers() -> dict[Board, int]:
    return {board: s for s, board in enumerate(boards())}


def reached() -> set[Board]:
    found, new = set(), {(0,) * 9}
    while new:
        found |= new
        new = {after for board in new for after in moved(board).values()}
    return found


def test_states_and_perfect_play_are_those_of_a_search_by_recursion():
    known, after, best = game.states(), game.children(), game.optimal()
    assert set(boards()) == reached()
    assert (len(known.boards), int((~known.over).sum())) == (5478, 4520)
    for s, board in enumerate(boards()):
        children = moved(board)
        assert {i: boards()[after[s, i]] for i in range(9) if after[s, i] >= 0} == children
        assert known.winner[s] == won(board)
        assert known.over[s] == (not children)
        assert known.mover[s] == 1 + (9 - board.count(0)) % 2
        assert best.value[s] == minimax(board)
        good = {i for i, child in children.items() if -minimax(child) == minimax(board)}
        assert set(np.flatnonzero(best.moves[s])) == good


def test_an_observation_is_mine_theirs_and_one_for_each_cell():
    board = np.array([1, 2, 0, 0, 1, 0, 0, 0, 0], np.uint8)  # O is to move
    seen = game.observations(board, 64, np.int8)
    assert (seen.dtype, seen.shape) == (np.int8, (27,))
    assert seen.reshape(9, 3)[:5].tolist() == [
        [0, 64, 64], [64, 0, 64], [0, 0, 64], [0, 0, 64], [0, 64, 64],
    ]  # fmt: skip
    assert game.observations(game.states().boards).shape == (5478, 27)


def test_the_greedy_move_is_the_first_of_the_highest_legal_logits():
    logits = np.zeros((5478, 9), np.int8)
    logits[:, 4], logits[:, 7:] = 127, 5
    taken = game.index(np.array([0, 0, 0, 0, 1, 0, 0, 0, 0], np.uint8))
    moves = game.greedy_moves(logits)
    assert (moves[0], moves[taken]) == (4, 7)
    assert game.legal()[np.arange(5478), moves][~game.states().over].all()
    assert (game.greedy_moves(logits / 16) == moves).all()


def test_random_games_end_as_is_known():
    x, o = judges.against_random(UNIFORM)
    assert [round(100 * chance, 1) for chance in x] == [58.5, 12.7, 28.8]
    assert x == pytest.approx(o[::-1])
    assert float(sum(x)) == pytest.approx(1)


def test_perfect_play_loses_to_nobody():
    judged = judges.judge(PERFECT)
    assert (judged.bad_moves, judged.exploitability) == (0, (0, 0))
    assert judged.optimal.mean.draw == pytest.approx(1)
    assert (judged.optimal.mean.loss, judged.random.mean.loss) == (0, 0)
    assert judges.against(PERFECT, FIRST).as_x.loss == 0
    assert judges.against(FIRST, PERFECT).as_x.win == 0


def test_the_first_free_cell_loses_always_to_minimax():
    judged = judges.judge(FIRST)
    assert judged.exploitability == (1, 1)
    assert judged.optimal.as_x == judged.optimal.as_o == (0, 0, 1)
    assert judged.random.as_x.loss == pytest.approx(17 / 96)  # of 8 x 6 x 4 x 2 ways to reply


def chances(
    policy: np.ndarray, board: Board, side: int, against: str, known: dict[Board, tuple]
) -> tuple[Fraction, ...]:
    """Win, draw and loss of a deterministic policy by recursion in fractions; known: a cache."""
    children = moved(board)
    if not children:
        winner = won(board)
        return tuple(Fraction(x) for x in (winner == side, winner == 0, winner == 3 - side))
    if board in known:
        return known[board]
    if 1 + (9 - board.count(0)) % 2 == side:
        children = {0: children[int(policy[numbers()[board]])]}
    elif against == "optimal":
        children = {i: c for i, c in children.items() if -minimax(c) == minimax(board)}
    found = [chances(policy, child, side, against, known) for child in children.values()]
    if against == "worst":
        known[board] = max(found, key=lambda results: results[2])
    else:
        known[board] = tuple(sum(column) / len(found) for column in zip(*found, strict=True))
    return known[board]


def some_policies() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    drawn = (rng.random(UNIFORM.shape) * game.legal()).argmax(axis=1)
    nearly = np.where(rng.random(5478) < 0.9, game.optimal().moves.argmax(axis=1), drawn)
    return [FIRST, drawn, nearly]


@pytest.mark.parametrize("policy", some_policies())
def test_judges_agree_with_a_recursion_in_fractions(policy: np.ndarray):
    judged, start, good = judges.judge(policy), (0,) * 9, game.optimal().moves
    for i, side in enumerate((1, 2)):
        for name, sides in (("optimal", judged.optimal), ("random", judged.random)):
            known = chances(policy, start, side, name, {})
            assert sides[i] == pytest.approx([float(c) for c in known], abs=1e-12)
        assert judged.exploitability[i] == chances(policy, start, side, "worst", {})[2]
    bad = [s for s, board in enumerate(boards()) if moved(board) and not good[s, policy[s]]]
    assert judged.bad_moves == len(bad)


def test_a_board_that_is_turned_or_mirrored_is_worth_the_same():
    known, best = game.states(), game.optimal()
    grid = np.arange(9).reshape(3, 3)
    for turned in (np.rot90(grid), grid.T, grid[::-1]):
        cells = turned.reshape(-1)
        image = game.index(known.boards[:, cells])
        assert (image >= 0).all()
        assert (best.value[image] == best.value).all()
        assert (best.moves[image] == best.moves[:, cells]).all()
        # A policy that is turned with its board does as well.
        policy = some_policies()[1]
        turned_policy = np.empty_like(policy)
        turned_policy[image] = np.argsort(cells)[policy]
        assert judges.judge(turned_policy).row() == pytest.approx(judges.judge(policy).row())


def test_two_sides_of_a_game_add_up():
    policies = [judges.probabilities(p) for p in some_policies()]
    a, b = judges.against(policies[1], policies[2]), judges.against(policies[2], policies[1])
    assert a.as_x == pytest.approx(b.as_o[::-1])
    assert a.as_o == pytest.approx(b.as_x[::-1])


def test_a_row_of_metrics_is_flat():
    row = judges.judge(FIRST).row()
    assert row["optimal_loss"] == row["exploitability_as_x"] == row["optimal_as_o_loss"] == 1
    assert row["bad_moves"] == 1869
    assert all(isinstance(value, float) for value in row.values())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.zeros(7), r"has the shape \[7\]: \[5478\], moves, or \[5478, 9\]"),
        (np.zeros(5478, int), "gives state 1 the chances .* free cells"),
        (np.full(5478, 12), "moves of 0 to 12: cells are 0 to 8"),
        (0.9 * UNIFORM, "gives state 0 the chances"),
    ],
)
def test_one_sentence_for_a_policy_that_is_none(policy: np.ndarray, message: str):
    with pytest.raises(InputError, match=message):
        judges.judge(policy)
