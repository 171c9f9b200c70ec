"""A writer of Stockfish's .binpack on python-chess, from the format's description in DATA.md.

It shares no code with the reader, which it tests.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.nnue.players import position_of

STARTS = (  # of games; the others castle soon
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "r3k2r/pppppppp/8/8/8/8/PPPPPPPP/R3K2R w KQkq - 0 1",
    "r3k2r/8/8/8/8/8/8/R3K2R b Kq - 0 1",
)


class Entry(NamedTuple):
    """A position of a game with its labels."""

    board: Any  # chess.Board
    move: Any  # chess.Move
    score: int
    ply: int
    result: int

    def record(self, game: int) -> NDArray[np.void]:
        return position_of(self.board).record(self.score, self.result, game)


def game(random: Random, plies: int) -> list[Entry]:
    """Random moves that like to castle, promote and take en passant."""
    import chess

    board, end, entries = chess.Board(random.choice(STARTS)), random.choice([-1, 0, 1]), []
    while len(entries) < plies and not board.is_game_over():
        moves = list(board.legal_moves)
        rare = [m for m in moves if m.promotion or board.is_castling(m) or board.is_en_passant(m)]
        pawns = [m for m in moves if board.piece_type_at(m.from_square) == chess.PAWN]
        liked = next((some for some in (rare, pawns) if some and random.random() < 0.6), moves)
        move, score = random.choice(liked), random.choice([0, 3, -250, 2000, 32767, -32767])
        result = end if board.turn else -end
        entries.append(Entry(board.copy(stack=False), move, score, len(entries), result))
        board.push(move)
    return entries


class Writer:
    """Bits of a movetext, the highest of a byte first."""

    def __init__(self) -> None:
        self.bits = ""

    def put(self, value: int, width: int) -> None:
        self.bits += f"{value:0{width}b}" if width else ""

    def put_below(self, value: int, count: int) -> None:
        assert 0 <= value < count
        self.put(value, (count - 1).bit_length())

    def put_blocks(self, value: int) -> None:
        while True:
            self.put((value > 15) << 4 | value & 15, 5)
            value >>= 4
            if not value:
                return

    def bytes(self) -> bytes:
        whole = self.bits + "0" * (-len(self.bits) % 8)
        return bytes(int(whole[i : i + 8], 2) for i in range(0, len(whole), 8))


def unsigned(value: int) -> int:
    """A number of 16 bits with its sign in bit 0."""
    word = value & 0xFFFF
    if word & 0x8000:
        word ^= 0x7FFF
    return (word << 1 | word >> 15) & 0xFFFF


def position_bytes(board: Any) -> bytes:
    import chess

    passed = board.ep_square if board.has_legal_en_passant() else None
    codes = []
    for square in chess.scan_forward(board.occupied):
        piece = board.piece_at(square)
        code = 2 * (piece.piece_type - 1) + (not piece.color)
        if passed is not None and square == passed + (8 if piece.color else -8):
            code = 12
        elif board.castling_rights >> square & 1:
            code = 13 if piece.color else 14
        elif code == 11 and not board.turn:
            code = 15
        codes.append(code)
    codes += [0] * (32 - len(codes))
    packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, 32, 2))
    return board.occupied.to_bytes(8, "big") + packed


def move_bytes(board: Any, move: Any) -> bytes:
    kind, to, piece = 0, move.to_square, 0
    if move.promotion:
        kind, piece = 1, move.promotion - 2
    elif board.is_castling(move):
        kind, to = 2, rook_of(move)
    elif board.is_en_passant(move):
        kind = 3
    return (kind << 14 | move.from_square << 8 | to << 2 | piece).to_bytes(2, "big")


def rook_of(move: Any) -> int:
    """The square of the rook with which a king castles."""
    return move.to_square // 8 * 8 + (7 if move.to_square % 8 == 6 else 0)


def put_move(to: Writer, board: Any, move: Any) -> None:
    import chess

    own, other = board.occupied_co[board.turn], board.occupied_co[not board.turn]
    to.put_below((own & ((1 << move.from_square) - 1)).bit_count(), own.bit_count())
    kind, at = board.piece_type_at(move.from_square), chess.BB_SQUARES[move.from_square]
    squares = board.attacks_mask(move.from_square) & ~own
    if kind == chess.PAWN:
        passed = chess.BB_SQUARES[board.ep_square] if board.has_legal_en_passant() else 0
        push = at << 8 if board.turn else at >> 8
        squares &= other | passed
        if not push & board.occupied:
            squares |= push
            if at & (chess.BB_RANK_2 if board.turn else chess.BB_RANK_7):
                squares |= (push << 8 if board.turn else push >> 8) & ~board.occupied
    count = squares.bit_count()
    number = (squares & ((1 << move.to_square) - 1)).bit_count()
    if kind == chess.KING:
        wings = [board.has_queenside_castling_rights(board.turn)]
        wings.append(board.has_kingside_castling_rights(board.turn))
        if board.is_castling(move):
            number = count + (wings[0] if rook_of(move) % 8 else 0)
        to.put_below(number, count + sum(wings))
    elif move.promotion:
        to.put_below(4 * number + move.promotion - 2, 4 * count)
    else:
        to.put_below(number, count)


def chain(entries: list[Entry]) -> bytes:
    """A stem and its movetext."""
    first, movetext = entries[0], Writer()
    labels = first.ply | unsigned(first.result) << 14 & 0xC000
    stem = position_bytes(first.board) + move_bytes(first.board, first.move)
    for number in (unsigned(first.score), labels, 0, len(entries) - 1):
        stem += number.to_bytes(2, "big")
    for before, entry in pairwise(entries):
        put_move(movetext, entry.board, entry.move)
        movetext.put_blocks(unsigned(entry.score + before.score))
    return stem + movetext.bytes()


def binpack(chunks: list[list[list[Entry]]]) -> bytes:
    """A file of chunks of chains."""
    found = b""
    for chains in chunks:
        data = b"".join(map(chain, chains))
        found += b"BINP" + len(data).to_bytes(4, "little") + data
    return found
