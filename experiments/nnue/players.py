"""Who plays the games of the generator: Stockfish by UCI, or the built-in evaluation."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from eggroll.errors import InputError
from experiments.nnue import material
from experiments.nnue.position import Position

DEBIAN = Path("/usr/games/stockfish")  # outside the PATH of some users
MATE = 30_000  # centipawns, beyond every score


class Choice(NamedTuple):
    """A move and what it is worth to the side to move."""

    move: Any  # chess.Move
    score: int  # centipawns; beyond MATE: mate in (that - MATE) moves or fewer


class Player(Protocol):
    """Chooses moves."""

    name: str

    def begin(self, random: Random) -> None:
        """Forgets the last game."""

    def choose(self, board: Any) -> Choice:
        """A legal move on a chess.Board that has one."""

    def close(self) -> None:
        """Ends what it has started."""


def chess() -> Any:
    """The package python-chess.

    Raises:
        InputError: it is missing.
    """
    try:
        import chess
    except ImportError:
        raise InputError("python-chess is missing: pip install '.[chess]' brings it.") from None
    return chess


def find_stockfish() -> str:
    """The path of the program.

    Raises:
        InputError: it is missing.
    """
    found = shutil.which("stockfish") or (str(DEBIAN) if DEBIAN.exists() else None)
    if not found:
        raise InputError(
            "stockfish is missing: 'apt install stockfish' (macOS: 'brew install stockfish') "
            "brings it, and --player material goes on without."
        )
    return found


class Stockfish:
    """A process of Stockfish that searches a number of nodes with one thread."""

    def __init__(self, path: str, nodes: int) -> None:
        self.nodes, self.chess = nodes, chess()
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.name = "an unknown engine"
        self._send("uci")
        for line in self._until("uciok"):
            if line.startswith("id name "):
                self.name = line.removeprefix("id name ")
        self._send("setoption name Hash value 1")
        self._send("setoption name Threads value 1")

    def _send(self, line: str) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{line}\n")
        except OSError:
            raise self._ended() from None

    def _until(self, word: str) -> list[str]:
        """Lines up to the one that begins with the word."""
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            lines.append(line.strip())
            if line.split(None, 1)[:1] == [word]:
                return lines
        raise self._ended()

    def _ended(self) -> InputError:
        code = self.process.wait()
        return InputError(f"stockfish ended with code {code}: try `stockfish bench`, then again.")

    def begin(self, random: Random) -> None:
        self._send("ucinewgame")
        self._send("isready")
        self._until("readyok")

    def choose(self, board: Any) -> Choice:
        self._send(f"position fen {board.fen()}\ngo nodes {self.nodes}")
        *infos, best = self._until("bestmove")
        score = 0
        for line in infos:
            words = line.split()
            if "score" in words:
                at = words.index("score")
                kind, value = words[at + 1], int(words[at + 2])
                score = value if kind == "cp" else (MATE + abs(value)) * (1 if value > 0 else -1)
        return Choice(self.chess.Move.from_uci(best.split()[1]), score)

    def close(self) -> None:
        with contextlib.suppress(OSError, InputError):
            self._send("quit")
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


class Material:
    """Takes one of the moves that the built-in evaluation likes best; the score is its own."""

    name = "material and squares"
    spread = 40  # centipawns of chance added to a move

    def __init__(self) -> None:
        self.table, self.random = material.tables(), Random(0)

    def begin(self, random: Random) -> None:
        self.random = random

    def choose(self, board: Any) -> Choice:
        def worth(move: Any) -> float:
            board.push(move)
            mate = board.is_checkmate()
            value = -material.evaluate_one(position_of(board), self.table)
            board.pop()
            return MATE if mate else value + self.random.randrange(self.spread)

        score = material.evaluate_one(position_of(board), self.table)
        return Choice(max(board.legal_moves, key=worth), score)

    def close(self) -> None:
        pass


def position_of(board: Any) -> Position:
    """The position of a chess.Board."""
    pieces = {
        square: 2 * (piece.piece_type - 1) + (not piece.color)
        for square, piece in board.piece_map().items()
    }
    return Position(pieces, int(board.turn))
