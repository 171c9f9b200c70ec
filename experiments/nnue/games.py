"""Self-play games from random openings, packed position by position.

Game g is played by chance of (seed, g) alone, by a player that has forgotten the games before: the
positions are the same for every number of processes.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.nnue.players import (
    MATE,
    Choice,
    Material,
    Player,
    Stockfish,
    chess,
    find_stockfish,
    position_of,
)
from experiments.nnue.position import RECORD

BALANCED = 400  # centipawns: an opening with more for one side is drawn again
WON, WON_PLIES = 1500, 4  # a game is won after so many plies with so many centipawns for one side
DRAWN, DRAWN_PLIES, DRAWN_FROM = 10, 10, 80  # ... drawn, from a ply on
LONGEST = 400  # plies; what is not decided by then is drawn


@dataclass(frozen=True)
class Rules:
    """How games are played."""

    player: str = "stockfish"  # or material
    nodes: int = 150  # of stockfish's search
    opening: int = 8  # random plies at least, and one more in half of the games
    seed: int = 0

    def make_player(self) -> Player:
        """The player.

        Raises:
            InputError: what it needs is missing.
        """
        return Material() if self.player == "material" else Stockfish(find_stockfish(), self.nodes)


def play(player: Player, rules: Rules, game: int) -> NDArray[np.void]:
    """The quiet positions of a game, RECORD [n], labelled by the player's scores and the result.

    Quiet: the side to move is not in check, its chosen move takes nothing and promotes nothing, and
    no mate is in sight.
    """
    random = Random(f"{rules.seed} {game}")
    player.begin(random)
    board, choice = _opening(player, rules, random)
    scores: list[int] = []  # for white, by ply
    found: list[NDArray[np.void]] = []
    while (result := _result(board, scores)) is None:
        if scores:
            choice = player.choose(board)
        if not (board.is_check() or board.is_capture(choice.move) or choice.move.promotion) and (
            abs(choice.score) < MATE
        ):
            found.append(position_of(board).record(choice.score, 0, game))
        scores.append(choice.score if board.turn else -choice.score)
        board.push(choice.move)
    records = np.array(found, RECORD) if found else np.empty(0, RECORD)
    records["result"] = np.where(records["stm"] == 1, result, -result)
    return records


def _opening(player: Player, rules: Rules, random: Random) -> tuple[Any, Choice]:
    """A board after random moves where neither side is ahead, and the first choice on it."""
    while True:
        board = chess().Board()
        for _ in range(rules.opening + random.randrange(2)):
            if moves := list(board.legal_moves):
                board.push(random.choice(moves))
        if not board.is_game_over():
            choice = player.choose(board)
            if abs(choice.score) <= BALANCED:
                return board, choice


def _result(board: Any, scores: list[int]) -> int | None:
    """1: white has won, 0: drawn, -1: black has won; None while the game goes on.

    scores: centipawns for white of the plies since the opening.
    """
    if not any(board.generate_legal_moves()):
        return 0 if not board.is_check() else -1 if board.turn else 1
    if board.is_insufficient_material() or board.halfmove_clock >= 100 or board.is_repetition(3):
        return 0
    last = scores[-WON_PLIES:]
    if len(last) == WON_PLIES:
        if min(last) >= WON:
            return 1
        if max(last) <= -WON:
            return -1
    quiet = scores[-DRAWN_PLIES:]
    if len(scores) >= DRAWN_FROM and max(map(abs, quiet)) <= DRAWN:
        return 0
    return 0 if len(scores) >= LONGEST else None


class Generated:
    """Positions of games in their order, and who played."""

    def __init__(self, records: NDArray[np.void], name: str) -> None:
        self.records, self.name = records, name


def generate(rules: Rules, positions: int, processes: int, say: Callable[[int], None]) -> Generated:
    """The first positions of games 0, 1, ..., by processes that take turns.

    say: is told how many positions there are, after every game.

    Raises:
        InputError: a program or package is missing, or a process died.
    """
    probe = rules.make_player()  # says what is missing before processes start
    name = probe.name
    probe.close()
    chess()
    context = multiprocessing.get_context("spawn")
    games: list[NDArray[np.void]] = []
    there = 0
    with ExitStack() as stack:
        ends: list[Connection] = []
        for first in range(processes):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(theirs, rules, first, processes), daemon=True
            )
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.terminate)
            stack.callback(mine.close)
            ends.append(mine)
        for game in count():
            if there >= positions:
                break
            games.append(_receive(ends[game % processes], game))
            there += len(games[-1])
            say(there)
    return Generated(np.concatenate(games)[:positions], name)


def _receive(end: Connection, game: int) -> NDArray[np.void]:
    try:
        found = end.recv()
    except EOFError:
        raise InputError(
            f"the process that plays game {game} died: make room in memory and try again."
        ) from None
    if isinstance(found, str):
        raise InputError(found)
    return np.frombuffer(found, RECORD)


def _work(end: Connection, rules: Rules, first: int, step: int) -> None:
    """Plays games first, first + step ... and sends each, until nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        player = rules.make_player()
        for game in count(first, step):
            end.send(play(player, rules, game).tobytes())
    except InputError as error:
        end.send(str(error))
    except BrokenPipeError:
        pass
