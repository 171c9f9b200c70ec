"""The games of experiments/selfplay: C++ against plain Python, and every phase of Liuzhou chess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eggroll.errors import InputError
from experiments.selfplay import plain, v0
from experiments.selfplay.games import GAMES, Boards
from experiments.tictactoe import game as tictactoe


def put(boards: Boards, row: int, position: plain.Position) -> None:
    """Sets a board to a position of plain Python."""
    state = v0.state_of(position)
    boards.white[row], boards.black[row], boards.marks[row] = state.white, state.black, state.marks
    boards.facts[row] = tuple(getattr(state, name) for name in boards.facts.dtype.names)


def flat(position: plain.Position) -> list[int]:
    """All planes, one after another."""
    return [value for plane in position.planes() for value in plane]


def check(boards: Boards, positions: list[plain.Position]) -> None:
    """Boards show, allow and count what the positions do."""
    legal, seen, soft = boards.legal(), boards.observe(), boards.soft
    for row, position in enumerate(positions):
        assert np.flatnonzero(legal[row]).tolist() == position.legal()
        assert seen[row].tolist() == flat(position)
        assert boards.to_move[row] == position.mover
        assert (boards.over[row], boards.result[row]) == (position.over, position.result)
        assert soft[row] == np.float32(position.soft())
        state = v0.state_of(position)
        assert boards.marks[row] == state.marks
        assert boards.facts[row].item() == tuple(
            getattr(state, name) for name in boards.facts.dtype.names
        )


@pytest.mark.parametrize(("game", "count"), [("tictactoe", 200), ("connect4", 40), ("liuzhou", 12)])
def test_random_games_of_both_languages_are_equal(game: str, count: int) -> None:
    """All that a board shows, after every move of random games, one action each."""
    rng = np.random.default_rng(7)
    boards, positions = Boards(game, count), [plain.GAMES[game].begin() for _ in range(count)]
    check(boards, positions)
    plies = 0
    while not boards.over.all():
        actions = np.zeros(count, np.int32)
        for row, position in enumerate(positions):
            if not position.over:
                actions[row] = rng.choice(position.legal())
                positions[row] = position.apply(int(actions[row]))
        boards.step(actions)
        check(boards, positions)
        plies += 1
    assert plies <= GAMES[game].longest
    results = {position.result for position in positions}
    assert len(results) > 1 or game == "liuzhou"  # where nearly all random games are drawn


def test_tictactoe_is_that_of_its_own_experiment() -> None:
    """Winners, moves and children of all 5,478 states."""
    known, after = tictactoe.states(), tictactoe.children()
    boards = Boards("tictactoe", len(known.boards))
    bits = 1 << np.arange(9, dtype=np.uint64)
    boards.white[:] = (known.boards == 1) @ bits
    boards.black[:] = (known.boards == 2) @ bits
    boards.facts["mover"] = np.where(known.mover == 1, 1, -1)
    boards.facts["over"] = known.over
    assert (boards.legal() == tictactoe.legal()).all()
    moves = tictactoe.legal().argmax(axis=1)
    boards.step(moves)
    open_ = ~known.over
    to = after[np.arange(len(moves)), moves][open_]
    assert (boards.result[open_] == np.array([0, 1, -1])[known.winner[to]]).all()
    assert (boards.over[open_] == known.over[to]).all()
    own = (tictactoe.observations(known.boards[to]) > 0).reshape(-1, 9, 3)
    assert (boards.observe()[open_].reshape(-1, 3, 9) == own.transpose(0, 2, 1)).all()


@pytest.mark.parametrize("moves", ["0101010", "0011223", "01122323303", "65544343363"])
def test_connect_four_is_won_up_along_and_both_ways_across(moves: str) -> None:
    position: plain.Position = plain.Connect4.begin()
    boards = Boards("connect4", 1)
    for i, move in enumerate(moves):
        assert not boards.over[0], i
        position = position.apply(int(move))
        boards.step([int(move)])
    assert boards.result[0] == 1
    check(boards, [position])


def test_connect_four_does_not_go_on_above_a_column() -> None:
    """Three on top of one column and one at the foot of the next are not four."""
    board = [0] * 42
    board[0:6] = [-1, 1, -1, 1, 1, 1]
    position: plain.Position = plain.Connect4(tuple(board), plies=6)
    boards = Boards("connect4", 1)
    put(boards, 0, position)
    boards.step([1])
    assert not boards.over[0]
    check(boards, [position.apply(1)])


# ---- Liuzhou chess, phase by phase -----------------------------------------------------------


def stones(white: str = "", black: str = "") -> tuple[int, ...]:
    """A board from points "rc rc"."""
    board = [0] * 36
    for points, side in ((white, 1), (black, -1)):
        for point in points.split():
            board[cell(point)] = side
    return tuple(board)


def cell(point: str) -> int:
    return 6 * int(point[0]) + int(point[1])


def at(phase: str, white: str, black: str, mover: int, **facts: object) -> plain.Liuzhou:
    return replace(plain.Liuzhou(stones(white, black)), phase=phase, mover=mover, **facts)


class Case:
    """A position played in both languages at once."""

    def __init__(self, position: plain.Liuzhou) -> None:
        self.position, self.boards = position, Boards("liuzhou", 1)
        put(self.boards, 0, position)
        check(self.boards, [position])

    def play(self, *actions: int) -> plain.Liuzhou:
        for action in actions:
            self.boards.step([action])
            self.position = self.position.apply(action)
            check(self.boards, [self.position])
        return self.position


def choose(point: str) -> int:
    return 180 + cell(point)


def slide(point: str, direction: str) -> int:
    return 36 + 4 * cell(point) + "udlr".index(direction)


def chosen(position: plain.Liuzhou) -> set[str]:
    """Points of the stones that may be chosen."""
    return {f"{a // 6}{a % 6}" for a in (action - 180 for action in position.legal()) if a >= 0}


def test_black_begins_on_an_empty_board() -> None:
    position = Case(plain.Liuzhou.begin()).play(14)
    assert (position.mover, position.phase, position.board[14]) == (1, "place", -1)
    assert 14 not in position.legal()
    assert len(position.legal()) == 35


def test_a_square_marks_one_stone_that_stays() -> None:
    position = Case(at("place", "44 45 55", "00 01 10", -1)).play(cell("11"))
    assert (position.phase, position.pending, position.mover) == ("mark", 1, -1)
    assert chosen(position) == {"44", "45", "55"}
    position = Case(position).play(choose("45"))
    assert (position.phase, position.mover) == ("place", 1)
    assert position.marks == {cell("45")}
    assert position.board[cell("45")] == 1


def test_a_line_marks_two_and_goes_before_a_square() -> None:
    line = Case(at("place", "40 42 44", "00 01 02 03 04 10 11", -1))
    position = line.play(cell("05"))
    assert position.pending == 2
    position = line.play(choose("40"))
    assert (position.phase, position.pending, position.mover) == ("mark", 1, -1)
    assert chosen(position) == {"42", "44"}
    assert line.play(choose("42")).mover == 1
    both = Case(at("place", "40 42 44", "00 01 02 03 04 14 15", -1)).play(cell("05"))
    assert both.pending == 2
    column = Case(at("place", "01 02 03 04 05", "00 10 20 30 40", -1)).play(cell("50"))
    assert column.pending == 2


def test_two_squares_at_once_earn_one() -> None:
    assert Case(at("place", "44 45 55", "00 10 02 12 01", -1)).play(cell("11")).pending == 1


def test_stones_in_shapes_are_spared_unless_there_are_no_others() -> None:
    spared = Case(at("place", "44 45 54 55 30", "00 01 10", -1)).play(cell("11"))
    assert chosen(spared) == {"30"}
    none_else = Case(at("place", "44 45 54 55", "00 01 10", -1)).play(cell("11"))
    assert chosen(none_else) == {"44", "45", "54", "55"}


def test_marked_stones_make_no_shape_and_are_not_marked_again() -> None:
    marks = frozenset({cell("00")})
    nothing = Case(at("place", "44 45 55", "00 01 10", -1, marks=marks)).play(cell("11"))
    assert (nothing.phase, nothing.mover) == ("place", 1)
    marks = frozenset({cell("44")})
    broken = Case(at("place", "44 45 54 55", "00 01 10", -1, marks=marks)).play(cell("11"))
    assert chosen(broken) == {"45", "54", "55"}


def test_marks_lapse_where_nobody_is_left() -> None:
    marks = frozenset({cell("45")})
    only = at("place", "44 45", "00 01 02 03 04", -1, marks=marks)
    position = Case(only).play(cell("05"), choose("44"))
    assert (position.phase, position.mover) == ("place", 1)
    everyone = at("place", "44 45", "00 01 10", -1, marks=frozenset({cell("44"), cell("45")}))
    assert Case(everyone).play(cell("11")).phase == "place"


FULL_WHITE = "00 02 04 11 13 15 20 22 24 31 33 35 40 42 44 51 53 55"
FULL_BLACK = "01 03 05 10 12 14 21 23 25 30 32 34 41 43 45 50 52 54"


def test_a_full_board_is_cleared_of_marks_and_white_moves() -> None:
    marks = frozenset({cell("00"), cell("01")})
    last = at("place", FULL_WHITE.replace("55", ""), FULL_BLACK, 1, marks=marks)
    position = Case(last).play(cell("55"))
    assert (position.phase, position.legal()) == ("removal", [216])
    position = Case(position).play(216)
    assert (position.phase, position.mover) == ("move", 1)
    assert position.board.count(0) == 2
    assert not position.marks


def test_a_full_board_without_marks_costs_each_side_a_stone() -> None:
    full = Case(at("removal", FULL_WHITE, FULL_BLACK, 1))
    position = full.play(216)
    assert (position.phase, position.mover, position.still) == ("forced", 1, 1)
    assert chosen(position) == set(FULL_BLACK.split())
    position = full.play(choose("01"))
    assert (position.phase, position.mover, position.still) == ("forced", -1, 0)
    position = full.play(choose("00"))
    assert (position.phase, position.mover) == ("move", 1)


def test_clearing_all_stones_of_a_side_loses_and_of_both_draws() -> None:
    mine, theirs = ([cell(p) for p in full.split()] for full in (FULL_WHITE, FULL_BLACK))
    for marked, result in ((mine, -1), (theirs, 1), (mine + theirs, 0)):
        lost = at("removal", FULL_WHITE, FULL_BLACK, 1, marks=frozenset(marked))
        position = Case(lost).play(216)
        assert (position.over, position.result) == (True, result)


def test_stones_move_one_step_to_empty_points() -> None:
    position = at("move", "00 35", "10 44", 1)
    assert position.legal() == [slide("00", "r"), slide("35", "u"), slide("35", "d"),
                                slide("35", "l")]  # fmt: skip
    moved = Case(position).play(slide("35", "d"))
    assert moved.board[cell("45")] == 1
    assert (moved.mover, moved.phase, moved.still) == (-1, "move", 1)


def test_a_square_captures_one_and_a_line_two() -> None:
    square = Case(at("move", "00 01 10 21", "44 45 30", 1))
    position = square.play(slide("21", "u"))
    assert (position.phase, position.pending, position.mover) == ("capture", 1, 1)
    position = square.play(choose("44"))
    assert (position.phase, position.mover, position.still) == ("move", -1, 0)
    line = Case(at("move", "00 01 02 03 04 15", "44 45 30", 1))
    assert line.play(slide("15", "u")).pending == 2
    position = line.play(choose("44"), choose("45"))
    assert (position.mover, position.board.count(-1)) == (-1, 1)


def test_who_takes_the_last_stone_wins() -> None:
    position = Case(at("move", "00 01 10 21", "44", 1)).play(slide("21", "u"), choose("44"))
    assert (position.over, position.result, position.legal()) == (True, 1, [])
    line = at("move", "44", "00 01 02 03 04 15", -1)
    position = Case(line).play(slide("15", "u"), choose("44"))  # the second capture lapses
    assert (position.over, position.result) == (True, -1)


def test_who_cannot_move_takes_a_stone_and_loses_one() -> None:
    stuck = Case(at("move", "00 55", "01 10 45 54 33", 1))
    assert chosen(stuck.position) == {"01", "10", "45", "54", "33"}
    position = stuck.play(choose("33"))
    assert (position.phase, position.mover) == ("counter", -1)
    assert chosen(position) == {"00", "55"}
    position = stuck.play(choose("55"))
    assert (position.phase, position.mover) == ("move", 1)
    assert chosen(position) == {"01", "10", "45", "54"}  # still stuck: it takes again
    position = stuck.play(choose("01"), choose("00"))
    assert (position.over, position.result) == (True, -1)


def test_a_game_is_drawn_after_36_plies_without_a_capture_and_after_144() -> None:
    quiet = at("move", "00", "55", 1, still=35)
    position = Case(quiet).play(slide("00", "r"))
    assert (position.over, position.result, position.still) == (True, 0, 36)
    late = at("move", "00", "55", 1, plies=143)
    assert Case(late).play(slide("00", "r")).over
    captured = at("move", "00 01 10 21", "44 45", 1, plies=142, still=35)
    assert Case(captured).play(slide("21", "u")).over


def test_soft_value_counts_stones() -> None:
    for white, black in ((18, 18), (3, 2), (10, 2), (2, 10), (0, 18)):
        board = (1,) * white + (-1,) * black + (0,) * (36 - white - black)
        position = replace(plain.Liuzhou(board), phase="move", mover=1)
        boards = Boards("liuzhou", 1)
        put(boards, 0, position)
        assert boards.soft[0] == np.float32(position.soft())
    assert Boards("liuzhou", 1).soft[0] == 0
    assert plain.Liuzhou(stones("00", "")).soft() == pytest.approx(np.tan(2 / 18))


# ---- what a caller may do wrong --------------------------------------------------------------


def test_bad_input_gets_one_sentence_and_changes_nothing() -> None:
    with pytest.raises(InputError, match="choose one of tictactoe, connect4, liuzhou"):
        Boards("chess", 1)
    with pytest.raises(InputError, match="at least 1 board"):
        Boards("tictactoe", 0)
    boards = Boards("tictactoe", 2)
    boards.step([4, 4])
    before = boards.observe()
    with pytest.raises(InputError, match=r"the action 4 of board 1 is not legal: \[0, 1, 2"):
        boards.step([0, 4])
    with pytest.raises(InputError, match="shape"):
        boards.step([0])
    with pytest.raises(InputError, match="boards are 0 to 1"):
        boards.reset([2])
    assert (boards.observe() == before).all()


def test_reset_and_finished_boards() -> None:
    boards = Boards("tictactoe", 2)
    for cells in ((0, 0), (3, 1), (1, 3), (4, 4), (2, 8)):
        boards.step(cells)
    assert boards.over.tolist() == [1, 0]
    boards.step([99, 5])  # a board that is over stays as it is
    assert boards.result.tolist() == [1, 0]
    boards.reset(boards.over == 1)
    assert boards.legal()[0].all()
    assert boards.legal()[1].sum() == 3


def test_rules_page_names_its_tests() -> None:
    page = Path(__file__).parents[1] / "experiments" / "selfplay" / "LIUZHOU.md"
    assert Path(__file__).name in page.read_text()
