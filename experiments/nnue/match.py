"""Players of chess by the searcher of search.cpp, and a match between them.

A player is an evaluation: an exported int8 network, a float network or material. Each is compiled
into a library of its own. Openings are random moves, every one is played twice with sides changed,
and errors are those of the mean over such pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import byref, c_int32, c_int64, c_uint16, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll import native
from eggroll.errors import InputError
from eggroll.files import make_folder
from experiments.nnue.integers import active_of, plain_rows, program
from experiments.nnue.loader import FEATURES
from experiments.nnue.quantise import Integers, plain, quantise
from experiments.nnue.shape import Shape

HERE = Path(__file__).parent
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
OPENING = 8  # plies at random
LONGEST = 240  # plies, after which a game is a draw
GOES_ON, MATED, DRAW = 0, 1, 2


class Player:
    """An evaluation with its searcher, compiled once. net: the array that the evaluator reads."""

    def __init__(self, name: str, evaluator: str, net: NDArray[Any], *flags: str) -> None:
        """Compiles it.

        Raises:
            InputError: there is no compiler, or the cache cannot be written.
        """
        self.name, self._net = name, net
        given = [f'-DEVALUATOR="{evaluator}"', f"-I{HERE}", *flags]
        self.calls: Any = native.build(HERE / "search.cpp", flags=given).handle
        self.calls.search_new.restype = c_void_p
        for call in ("best", "moves", "play", "state", "value", "delete", "evaluations", "board"):
            getattr(self.calls, f"search_{call}").argtypes = [c_void_p]
        self.calls.search_perft.argtypes = [c_void_p, c_int32]
        for call, arguments in (
            ("best", [c_int32]), ("moves", [c_void_p]), ("play", [c_uint16]), ("value", [c_int32]),
            ("board", [c_void_p]),
        ):  # fmt: skip
            getattr(self.calls, f"search_{call}").argtypes = [c_void_p, *arguments]
        self.calls.search_best.restype = c_uint16
        for call in ("evaluations", "perft", "walk", "speed"):
            getattr(self.calls, f"search_{call}").restype = c_int64

    @property
    def net(self) -> c_void_p:
        return c_void_p(self._net.ctypes.data)

    def game(self, fen: str = START) -> Game:
        """A game from a position."""
        return Game(self, fen)

    def walk(self, seed: int, games: int, plies: int, how: int = 2) -> tuple[int, int]:
        """Positions of random games, and those whose kept sums are not those of the whole board."""
        different, total = c_int64(), c_int64()
        positions = self.calls.search_walk(
            START.encode(), self.net, c_uint64(seed), games, plies, how, byref(different),
            byref(total),
        )  # fmt: skip
        return int(positions), different.value

    def evaluate_nodes(self, seed: int, plies: int, times: int, anew: bool) -> int:
        """Evaluates the nodes of a random game so many times over; returns evaluations."""
        total = c_int64()
        return int(
            self.calls.search_speed(
                START.encode(), self.net, c_uint64(seed), plies, times, int(anew), byref(total)
            )
        )


class Game:
    """A game of one player's memory."""

    def __init__(self, player: Player, fen: str) -> None:
        """Begins it.

        Raises:
            InputError: the FEN is no position with a king on either side.
        """
        self.player, self.calls = player, player.calls
        made = self.calls.search_new(fen.encode(), player.net)
        if not made:
            raise InputError(f"{fen!r} is no position: give a FEN with one king on either side.")
        self._game = c_void_p(made)

    def __del__(self) -> None:
        if hasattr(self, "_game"):
            self.calls.search_delete(self._game)

    def moves(self) -> list[int]:
        found = (c_uint16 * 256)()
        return list(found[: self.calls.search_moves(self._game, found)])

    def play(self, move: int) -> None:
        self.calls.search_play(self._game, move)

    def best(self, depth: int) -> int:
        return int(self.calls.search_best(self._game, depth))

    @property
    def state(self) -> int:
        return int(self.calls.search_state(self._game))

    @property
    def evaluations(self) -> int:
        return int(self.calls.search_evaluations(self._game))

    def value(self, anew: bool = False) -> int:
        """The evaluation for the side to move: what a network puts out, with its offset."""
        return int(self.calls.search_value(self._game, int(anew)))

    def board(self) -> tuple[NDArray[np.int8], int]:
        """Codes of the pieces [64], -1 for none, and the side to move, 1 for black."""
        at = np.empty(64, np.int8)
        return at, int(self.calls.search_board(self._game, c_void_p(at.ctypes.data)))

    def perft(self, depth: int) -> int:
        """Positions that so many legal moves lead to."""
        return int(self.calls.search_perft(self._game, depth))


def material() -> Player:
    """The player that counts pieces."""
    return Player("material", "evaluate_material.h", np.zeros(1, np.int32))


def integer(name: str, found: Integers, folder: Path) -> Player:
    """An int8 network, exported to C into a folder.

    Raises:
        InputError: the folder cannot be written, or the network is of no plain feature set.
    """
    if found.shape.features not in (768, 40960):
        raise InputError(
            f"A player needs 768 or 40960 features, and the network has {found.shape.features}: "
            "coalesce it first."
        )
    make_folder(folder)
    found.model.export(folder / "net.h")
    flags = (f"-I{folder.resolve()}", f"-DNET_ROWS={found.shape.features}")
    return Player(name, "evaluate_net.h", np.array([found.offset], np.int32), *flags)


def floating(name: str, flat: NDArray[np.float32], shape: Shape) -> Player:
    """A float network of 768 or 40,960 features."""
    flags = [
        f"-DFLOAT_{what}={size}"
        for what, size in zip(("ROWS", "WIDTH", "HIDDEN"), shape, strict=True)
    ]
    return Player(name, "evaluate_float.h", np.ascontiguousarray(flat), *flags)


class Score(NamedTuple):
    """Games of the first player against the second: its wins, draws and losses, and their mean.

    points: 1 a win, 0.5 a draw, of a game; error: half of the interval of 95 % about it.
    """

    wins: int
    draws: int
    losses: int
    points: float
    error: float

    @property
    def elo(self) -> tuple[float, float, float]:
        """The difference of strength, and its interval of 95 %."""
        at = [min(max(self.points + by * self.error, 1e-3), 1 - 1e-3) for by in (0, -1, 1)]
        found = [-400 * math.log10(1 / p - 1) for p in at]
        return found[0], found[1], found[2]

    def text(self) -> str:
        elo, low, high = self.elo
        return (
            f"+{self.wins} ={self.draws} -{self.losses}, {self.points:.3f} of a point a game "
            f"(+-{self.error:.3f}), {elo:+.0f} Elo ({low:+.0f} to {high:+.0f})"
        )


def play(white: Player, black: Player, opening: Sequence[int], depth: int) -> float:
    """A game's points for white."""
    games = [white.game(), black.game()]
    for ply in range(LONGEST):
        if state := games[0].state:
            mated = 0.0 if ply % 2 == 0 else 1.0
            return mated if state == MATED else 0.5
        move = opening[ply] if ply < len(opening) else games[ply % 2].best(depth)
        for game in games:
            game.play(move)
    return 0.5


def openings(count: int, seed: int, player: Player) -> list[list[int]]:
    """Random moves from the first position, none of which ends the game."""
    rng, found = np.random.default_rng([seed, 7]), list[list[int]]()
    while len(found) < count:
        game, made = player.game(), list[int]()
        while len(made) < OPENING and not game.state:
            made.append(int(rng.choice(game.moves())))
            game.play(made[-1])
        if not game.state and made not in found:
            found.append(made)
    return found


def match(
    one: Player, other: Player, pairs: int, depth: int, seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Score:  # fmt: skip
    """Two games from every opening, sides changed."""
    points: list[tuple[float, float]] = []
    for opening in openings(pairs, seed, one):
        first = play(one, other, opening, depth)
        second = 1 - play(other, one, opening, depth)
        points.append((first, second))
        if say and len(points) % 10 == 0:
            say(f"{one.name} - {other.name}: {len(points)} of {pairs} pairs")
    flat, means = np.array(points).ravel(), np.array(points).mean(axis=1)
    error = 1.96 * float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.5
    counts = [int((flat == value).sum()) for value in (1, 0.5, 0)]
    return Score(counts[0], counts[1], counts[2], float(flat.mean()), error)


def of_float(
    name: str, flat: NDArray[np.float32], shape: Shape, folder: Path, *, int8: bool
) -> Player:
    """A float network of `run --out`, factorised or not, as it is or quantised.

    Raises:
        InputError: it is of a feature set that does not play.
    """
    sizes = {size: features for features, size in FEATURES.items()}
    wanted = sum(math.prod(part) for part in shape.shapes().values())
    if min(shape) < 1 or flat.shape != (wanted,) or not np.isfinite(flat).all():
        raise InputError(
            f"{name!r} has weights {list(flat.shape)}: {wanted} finite numbers are needed by its "
            f"shape {list(shape)}."
        )
    flat = np.ascontiguousarray(flat, np.float32)
    if shape.features not in sizes:
        raise InputError(f"{name!r} has {shape.features} features, which is no feature set.")
    features = sizes[shape.features]
    if int8:
        return integer(f"{name}, int8", quantise(flat, shape, features), folder / name)
    if features.startswith("halfkp+"):
        flat, shape = plain(flat, shape, features)
    return floating(f"{name}, float", flat, shape)


def of_checkpoint(path: Path, folder: Path) -> Player:
    """An int8 network of `run --out`, trained in integers; P's rows are added to HalfKP's."""
    es = eg.Trainer.load(path)
    weights = es.weights
    sizes = {size: features for features, size in FEATURES.items()}
    features = sizes[len(weights["ft"])]
    if features.startswith("halfkp+"):
        weights["ft"], features = plain_rows(weights["ft"], features), "halfkp"
    rows, width = weights["ft"].shape
    shape = Shape(rows, width, len(weights["l1.bias"]))
    shift = next(op for op in es.program.stages[0].ops if op.kind == "features").numbers[3]
    active = active_of(features)
    found = Integers(program(shape, active, shift), weights, shape, active, 1.0, 0, shift, {})
    return integer(path.stem, found, folder / path.stem)
