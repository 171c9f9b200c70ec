"""Data of experiments/nnue: packs, other programs' files, games, and what is said of bad input."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from faults import fuzz_positions
from nnue_binpack import binpack, game
from nnue_positions import FENS, fixed_records, plain_text

from eggroll.errors import InputError
from experiments.nnue import formats, games, material, players
from experiments.nnue.data import SMALL, data_command, sentence
from experiments.nnue.formats import BULLET, read_foreign
from experiments.nnue.pack import read_pack, write_pack
from experiments.nnue.position import LETTERS, RECORD, Position, boards_of


def test_a_position_survives_its_record_and_its_fen():
    for fen, record in zip(FENS, fixed_records(), strict=True):
        position = Position.from_record(record)
        assert position == Position.from_fen(fen)
        assert position.fen().split()[:2] == fen.split()[:2]
    boards = boards_of(fixed_records())
    for fen, board in zip(FENS, boards, strict=True):
        found = {square: int(code) for square, code in enumerate(board) if code >= 0}
        assert found == Position.from_fen(fen).pieces


@pytest.mark.parametrize(
    "fen",
    ["", "8/8 w", "k7/8/8/8/8/8/8/K8 w", "k7/8/8/8/8/8/8/K7 x", "x7/8/8/8/8/8/8/K7 w", "k9/8/8 w"],
)
def test_what_is_no_fen_is_refused(fen: str):
    with pytest.raises(InputError, match="is no FEN: eight ranks and the side to move are needed"):
        Position.from_fen(fen)


def test_a_record_is_as_data_md_says():
    record = Position.from_fen("1k6/8/8/8/3r4/2P5/8/K7 w - - 0 1").record(-300, 1, 70_000)
    occupied = (1 << 0 | 1 << 18 | 1 << 27 | 1 << 57).to_bytes(8, "little")
    codes = bytes([0xA | 0x0 << 4, 0x7 | 0xB << 4]) + bytes(14)  # K P r k
    rest = (
        (-300).to_bytes(2, "little", signed=True) + bytes([1, 1]) + (70_000).to_bytes(4, "little")
    )
    assert record.tobytes() == occupied + codes + rest


def test_a_pack_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "one.bin"
    write_pack(path, fixed_records(), {"source": "tests", "nodes": 3})
    pack = read_pack(path)
    np.testing.assert_array_equal(pack.records, fixed_records())
    assert pack.about == {"source": "tests", "nodes": 3}
    assert path.stat().st_size == pack.offset + 32 * len(FENS)
    assert pack.offset % 64 == 0


def test_the_built_in_evaluation_has_no_favourite():
    """Black's tables are white's, turned over; a pawn ahead is worth about 100."""
    records = fixed_records()
    for record, score in zip(records, material.evaluate(records), strict=True):
        position = Position.from_record(record)
        turned = Position({s ^ 56: c ^ 1 for s, c in position.pieces.items()}, 1 - position.stm)
        assert material.evaluate(np.array([turned.record()]))[0] == score
        assert material.evaluate_one(position, material.tables()) == score
    (start,) = material.evaluate(records[FENS.index(FENS[1])][None])
    assert start == 0
    without = Position.from_fen("rnbqkbnr/pppp1ppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1")
    assert 90 <= material.evaluate(np.array([without.record()]))[0] <= 130


def test_the_small_pack_has_what_data_md_says():
    pack = read_pack(SMALL)
    assert len(pack.records) == 4096
    formats.check(SMALL, np.array(pack.records))
    assert pack.about["player"].startswith("Stockfish")
    assert set(np.unique(pack.records["result"])) == {-1, 0, 1}
    by_game = np.split(pack.records, np.flatnonzero(np.diff(pack.records["game"])) + 1)
    for one in by_game:  # one result, seen from the side to move
        white = np.where(one["stm"] == 1, one["result"], -one["result"])
        assert len(set(white)) == 1


# Other programs' files.


def test_plain_text_is_read(tmp_path: Path):
    path, records = tmp_path / "some.plain", fixed_records()
    path.write_text(plain_text(records, [3, 4, 5, 6, 8, 10, 0, 1, 2, 2, 3, 7, 9, 11]))
    found, about = read_foreign(path)
    records["game"] = [0] * 6 + [1] * 3 + [2] * 5  # a ply that does not grow begins a game
    np.testing.assert_array_equal(found, records)
    assert about == {
        "source": "some.plain", "format": "plain", "game": "a game ends where the ply does not grow"
    }  # fmt: skip
    path.write_text(plain_text(records).replace("\n", "\r\n"))
    np.testing.assert_array_equal(read_foreign(path)[0]["codes"], records["codes"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("score 4\n", "score 40000\n", "record 3, line 21: 'score 40000' is no score of -32768 to"),
        ("result 1\n", "result 2\n", "record 2, which ends in line 18: the result is 2, of -1, 0"),
        (
            "result 1\n",
            "result draw\n",
            "record 2, line 17: 'result draw' is no result of -1, 0 or",
        ),
        ("ply 1\n", "", "record 1, which ends in line 11: it has no ply, by which games are told"),
        ("ply 1\n", "ply\n", "record 1, line 10: 'ply' is no ply"),
        ("score 6\n", "", "record 1, which ends in line 11: it has no score"),
        ("result 0\n", "", "record 1, which ends in line 11: it has no result"),
        ("move e2e4\n", "moves\n", "record 0, line 2: 'moves' is no line of this format, which"),
        (
            "8/8/8/3r4",
            "8/8/9/3r4",
            "record 0, line 1: 'fen 1k6/8/8/9/3r4/2P5/8/K7 w - - 0 1' is no",
        ),
        ("2P5/8/K7", "2P5/8/8", "record 0, which ends in line 6: the board has 0 white kings"),
        ("2P5/8/K7", "k1P5/8/K7", "record 0, which ends in line 6: the board has 2 black kings"),
        ("3r4/2P5/8/K7 w", "3r4/2P5/8/K7 x", "record 0, line 1: 'fen 1k6/8/8/8/3r4/2P5/8/K7 x -"),
        ("3r4/2P5/8/K7 w", "3r4/2P5/8/8/K7 w", "is no FEN"),
        ("3r4/2P5/8/K7 w", "3r4/2P5/8/K6r b", "the king on square 0 is in check and its side is"),
    ],
)
def test_a_bad_entry_of_plain_text_is_named(old: str, new: str, said: str, tmp_path: Path):
    path, text = tmp_path / "some.plain", plain_text(fixed_records())
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_foreign(path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{str(path)!r}, record ")
    assert str(error.value).endswith(": repair the file or leave the record out.")


def test_a_cut_text_is_named(tmp_path: Path):
    path, text = tmp_path / "some.plain", plain_text(fixed_records())
    path.write_text(text[: text.rindex("ply")])
    with pytest.raises(
        InputError, match="record 13, which ends in line 81: the text ends within it"
    ):
        read_foreign(path)


def bullet_of(records: np.ndarray) -> np.ndarray:
    """bullet's records, piece by piece: the board of the side to move, its pieces first."""
    found = np.zeros(len(records), BULLET)
    for given, to in zip(records, found, strict=True):
        position = Position.from_record(given)
        flip = 0 if position.stm else 1
        pieces = {s ^ 56 * flip: c ^ flip for s, c in position.pieces.items()}
        for i, square in enumerate(sorted(pieces)):
            kind, colour = divmod(pieces[square], 2)
            to["occupied"] |= np.uint64(1 << square)
            to["codes"][i // 2] |= (kind | colour << 3) << 4 * (i % 2)
            if kind == 5:
                to["other_king" if colour else "king"] = square ^ 56 * colour
        to["score"], to["result"] = given["score"], given["result"] + 1
    return found


def test_bullets_records_are_read_from_the_side_to_move(tmp_path: Path):
    path, records = tmp_path / "some.data", np.tile(fixed_records(), 80)
    path.write_bytes(bullet_of(records).tobytes())
    found, about = read_foreign(path)
    assert about["format"] == "bullet"
    assert found["stm"].tolist() == [1] * len(records)
    assert found["game"].tolist() == [i // 1024 for i in range(len(records))]
    for given, read in zip(records, found, strict=True):
        flip = 0 if given["stm"] else 1
        expected = {s ^ 56 * flip: c ^ flip for s, c in Position.from_record(given).pieces.items()}
        assert Position.from_record(read).pieces == expected
        assert (read["score"], read["result"]) == (given["score"], given["result"])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("result", 3, "record 4: the result is 3, of 0 to 2"),
        ("king", 9, "record 4: kings are said to be on 9 and 2, and are on 6 and 2"),
        ("other_king", 9, "record 4: kings are said to be on 6 and 9"),
        ("occupied", 5, "record 4: it has more codes than the board has pieces (2)"),
    ],
)
def test_a_bad_record_of_bullets_is_named(field: str, value: int, said: str, tmp_path: Path):
    path, records = tmp_path / "some.data", bullet_of(fixed_records())
    records[4][field] = value
    path.write_bytes(records.tobytes())
    with pytest.raises(InputError) as error:
        read_foreign(path)
    assert said in str(error.value)


def test_a_cut_file_of_bullets_is_named(tmp_path: Path):
    path = tmp_path / "some.data"
    path.write_bytes(bullet_of(fixed_records()).tobytes()[:-5])
    with pytest.raises(InputError, match="record 13: the file ends after 27 of its 32 bytes"):
        read_foreign(path, "bullet")


def test_bullets_types_that_are_none_are_named(tmp_path: Path):
    path, records = tmp_path / "some.data", bullet_of(fixed_records())
    records[4]["codes"][0] = 0x6 | 0x3 << 4
    path.write_bytes(records.tobytes())
    with pytest.raises(InputError, match="record 4: a piece has the code 12, of 0 to 11"):
        read_foreign(path)


def test_a_binpack_is_read(tmp_path: Path):
    chess = pytest.importorskip("chess", reason="python-chess is not installed")
    path, random = tmp_path / "some.binpack", Random(2)
    played = [game(random, 120) for _ in range(50)]
    moves = [entry for one in played for entry in one]
    for kind in (chess.Board.is_castling, chess.Board.is_en_passant):
        assert sum(kind(entry.board, entry.move) for entry in moves) > 10
    assert len({entry.move.promotion for entry in moves}) == 5  # none and all four
    # A game in two chains, and a stem from which a pawn can be taken en passant.
    passed = next(i for i, entry in enumerate(moves) if entry.board.has_legal_en_passant())
    cut = [[one[:50], one[50:]] for one in played[:10]]
    chunks = [[*chains] for chains in cut] + [played[10:20], [], played[20:], [[moves[passed]]]]
    path.write_bytes(binpack(chunks))
    found, about = read_foreign(path)
    expected = [entry.record(i) for i, one in enumerate(played) for entry in one]
    last = moves[passed].record(len(played))
    np.testing.assert_array_equal(found, np.array([*expected, last]))
    assert about["format"] == "binpack"


def test_the_fuzzed_binpack_is_one(tmp_path: Path):
    path = tmp_path / "some.binpack"
    path.write_bytes(fuzz_positions.BINPACK)
    found, _ = read_foreign(path)
    scores = [-32767, 2000, -32767, 3, -250, 3, 32767, 32767, 0, 2000, 3, 3]
    assert found["score"].tolist() == scores
    assert Position.from_record(found[-1]).fen().startswith("R7/6k1/8/8/8/6r1/8/4K3 w ")


@pytest.fixture
def short_binpack() -> bytes:
    pytest.importorskip("chess", reason="python-chess is not installed")
    return binpack([[game(Random(1), 30)], [game(Random(2), 30)]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b[:-9], "record 30, byte {half}: the file ends within a chunk: repair the file"),
        (lambda b: b + b"BIN", "record 60, byte {all}: the file ends within the head of a chunk"),
        (lambda b: b + b"BINQ" + bytes(4), "record 60, byte {all}: a chunk does not begin with"),
        (lambda b: b[:8] + b"\xff" * 8 + b[16:], "record 0, byte 8: the board has more than 32"),
        (lambda b: b[:36] + b"\xc0" + b[37:], "record 0, byte 8: the result is -2, of -1, 0 and"),
        (lambda b: b[:24] + b"\0" * 8 + b[32:], "record 0, byte 8: the board has 0 kings of a"),
        (lambda b: b[:40] + b"\xff" + b[41:], "the chunk ends within a chain"),
    ],
)
def test_a_bad_binpack_is_named(change, said: str, short_binpack: bytes, tmp_path: Path):
    path = tmp_path / "some.binpack"
    path.write_bytes(change(short_binpack))
    half = short_binpack.index(b"BINP", 8)
    with pytest.raises(InputError) as error:
        read_foreign(path)
    assert said.format(half=half, all=len(short_binpack)) in str(error.value)


def test_files_of_no_known_format_are_refused(tmp_path: Path):
    path = tmp_path / "some.file"
    path.write_bytes(b"PK\3\4 something else altogether")
    with pytest.raises(InputError, match="is of no format that is read here"):
        read_foreign(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty: give a file with positions"):
        read_foreign(path)
    with pytest.raises(InputError, match="cannot be read \\(No such file or directory\\)"):
        read_foreign(tmp_path / "none")
    path.write_text("\n\n")
    with pytest.raises(InputError, match="has no positions"):
        read_foreign(path, "plain")


# Games.


def test_games_are_the_same_for_any_number_of_processes(tmp_path: Path, capsys):
    pytest.importorskip("chess", reason="python-chess is not installed")
    paths = [tmp_path / f"{n}.bin" for n in (1, 2)]
    for n, path in enumerate(paths, 1):
        words = ["--player", "material", "--positions", "60", "--processes", str(n), "--seed", "3"]
        data_command([*words, "--out", str(path)])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    pack = read_pack(paths[0])
    assert len(pack.records) == 60
    assert pack.about["player"] == "material and squares"
    np.testing.assert_array_equal(pack.records["score"], material.evaluate(pack.records))
    assert f"{paths[1]}: 60 positions of " in capsys.readouterr().out


def test_stockfish_labels_positions(tmp_path: Path):
    pytest.importorskip("chess", reason="python-chess is not installed")
    try:
        players.find_stockfish()
    except InputError as error:
        pytest.skip(str(error))
    words = ["--positions", "40", "--nodes", "20"]
    paths = [tmp_path / f"{n}.bin" for n in (1, 2)]
    for n, path in enumerate(paths, 1):
        data_command([*words, "--processes", str(n), "--out", str(path)])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    pack = read_pack(paths[0])
    assert pack.about["player"].startswith("Stockfish")
    assert pack.about["nodes"] == 20
    assert len(pack.records) == 40
    assert len(np.unique(pack.records["score"])) > 10


def test_a_game_ends_by_the_rules_and_by_scores():
    chess = pytest.importorskip("chess", reason="python-chess is not installed")

    def result(fen: str, scores: list[int] = ()) -> int | None:
        return games._result(chess.Board(fen), list(scores))

    assert result(FENS[1]) is None
    assert result("R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1") == 1
    assert result("k7/8/8/8/8/8/5PPP/r5K1 w - - 0 1") == -1
    assert result("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1") == 0  # stalemate
    assert result("7k/8/6K1/8/8/8/8/8 b - - 0 1") == 0
    assert result(FENS[2].replace("6 8", "100 80")) == 0
    assert result(FENS[1], [1500] * 3) is None
    assert result(FENS[1], [0, *[1500] * 4]) == 1
    assert result(FENS[1], [0, *[-1501] * 4]) == -1
    assert result(FENS[1], [200] * 70 + [3] * 10) == 0
    assert result(FENS[1], [200] * 69 + [3] * 10) is None
    assert result(FENS[1], [200] * 400) == 0


def test_an_engine_that_ended_is_named():
    pytest.importorskip("chess", reason="python-chess is not installed")
    with pytest.raises(InputError, match="stockfish ended with code 0: try `stockfish bench`"):
        players.Stockfish("/bin/true", 1)


def test_a_process_that_died_is_named():
    end, other = games.multiprocessing.Pipe(duplex=False)
    other.close()
    with pytest.raises(InputError, match="the process that plays game 7 died"):
        games._receive(end, 7)


# The command.


def test_a_pack_is_converted_checked_and_labelled_anew(tmp_path: Path, capsys):
    text, pack, other = (tmp_path / name for name in ("a.plain", "a.bin", "b.bin"))
    text.write_text(plain_text(fixed_records()))
    data_command(["--read", str(text), "--out", str(pack)])
    data_command(["--check", str(pack)])
    said = capsys.readouterr().out.splitlines()
    assert said == [sentence(pack)] * 2
    assert said[0].startswith(
        f"{pack}: 14 positions of 1 games; the side to move won, drew, lost 4,"
    )
    data_command(["--read", str(pack), "--out", str(other), "--relabel"])
    records = read_pack(other).records
    np.testing.assert_array_equal(records["score"], material.evaluate(fixed_records()))
    assert read_pack(other).about["score"].startswith("material and squares")
    with pytest.raises(InputError, match="is a pack already: give it to --check"):
        data_command(["--read", str(pack), "--out", str(other)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--out is missing: name the pack to write, or one to --check."),
        (["--out", "x", "--positions", "0"], "--positions is 0: at least 1 is needed."),
        (["--out", "x", "--processes", "-1"], "--processes is -1: at least 1 is needed."),
        (["--out", "x", "--seed", "-1"], "--seed is -1: at least 0 is needed."),
        (["--check", "nowhere"], "'nowhere' cannot be read \\(No such file or directory\\)"),
        (["--out", "x", "--read", "nowhere"], "'nowhere' cannot be read"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], said: str):
    with pytest.raises(InputError, match=said):
        data_command(words)


def test_what_is_missing_is_said(monkeypatch, tmp_path: Path):
    out = ["--out", str(tmp_path / "x.bin"), "--positions", "1"]
    monkeypatch.setitem(sys.modules, "chess", None)
    with pytest.raises(
        InputError, match=r"python-chess is missing: pip install '\.\[chess\]' brings"
    ):
        data_command([*out, "--player", "material"])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(players, "DEBIAN", tmp_path / "none")
    with pytest.raises(InputError, match="stockfish is missing: 'apt install stockfish'"):
        data_command(out)
    assert not list(tmp_path.iterdir())


def test_letters_are_those_of_the_native_reader():
    text = (formats.native.FOLDER / "plain.cpp").read_text()
    assert f'kLetters = "{LETTERS}"' in text
    assert RECORD.itemsize == 32
