"""The loader of experiments/nnue: rows as Python finds them, in an order that the seed decides."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nnue_positions import FENS, WORKED, fixed_records, raw_pack

from eggroll.errors import InputError
from experiments.nnue.data import SMALL
from experiments.nnue.features import FEATURES, Reference, coalesce, reference_lists
from experiments.nnue.loader import Batch, Lists, Loader, data_loader
from experiments.nnue.pack import read_pack, write_pack
from experiments.nnue.position import LETTERS, Position

ROOT = Path(__file__).parents[1]
A1, C3, D4, B8 = 0, 18, 27, 57


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    path = tmp_path / "fixed.bin"
    write_pack(path, fixed_records(), {"source": "FENs of the tests"})
    return path


def rows(lists: Lists, i: int) -> list[tuple[int, int]]:
    """Rows and values of position i."""
    one = slice(lists.starts[i], lists.starts[i + 1])
    counts = np.ones(len(lists.index), np.int8) if lists.count is None else lists.count
    return list(zip(lists.index[one].tolist(), counts[one].tolist(), strict=True))


def in_order(path: Path, features: str = "768", batch: int = 100) -> list[Batch]:
    with Loader(path, features=features, batch=batch, epochs=1, split="all", shuffle=False) as all_:
        return list(all_)


def test_the_worked_example_of_the_document():
    board = Position.from_fen(WORKED)
    assert board.pieces == {A1: 10, C3: 0, D4: 7, B8: 11}
    pawn, rook = 0 * 64 + C3, 7 * 64 + D4
    seen_pawn, seen_rook, king = 1 * 64 + (C3 ^ 56), 6 * 64 + (D4 ^ 56), 1  # B8 is B1 for black
    assert reference_lists(board, "halfkp+p") == Reference(
        [(A1 * 640 + pawn, 1), (A1 * 640 + rook, 1), (40960 + pawn, 1), (40960 + rook, 1)],
        [(king * 640 + n, 1) for n in (seen_pawn, seen_rook)]
        + [(40960 + n, 1) for n in (seen_pawn, seen_rook)],
    )
    weights = np.random.default_rng(0).integers(-128, 128, (FEATURES["halfkp+p"], 4))
    feature = A1 * 640 + pawn  # (A1, C3, pawn, white)
    whole = coalesce(weights.astype(np.int8), "halfkp+p")
    np.testing.assert_array_equal(whole[feature], weights[feature] + weights[40960 + pawn])


def test_sets_have_the_rows_of_the_document():
    assert FEATURES["halfkp"] == 40_960
    assert FEATURES["halfkp+p"] == 41_600
    assert FEATURES["halfkp+p+k+relative"] == 41_600 + 64 + 10 * 15 * 15
    assert FEATURES["halfrelativekp"] == 2250
    assert FEATURES["768"] == 768
    assert FEATURES["768+pairs"] == 768 + 96 * 95 // 2
    assert len(FEATURES) == 11


@pytest.mark.parametrize("features", FEATURES)
def test_rows_are_those_that_python_finds(features: str, fixed: Path):
    for path in (fixed, SMALL):
        records = read_pack(path).records[:400]
        (batch, *_) = in_order(path, features, 400)
        for lists in (batch.white, batch.black):
            assert lists.starts.dtype == lists.index.dtype == np.int32
            assert (lists.count is not None) == ("+k" in features)
        assert batch.rows == FEATURES[features] > max(batch.white.index.max(), 0)
        for i, record in enumerate(records):
            expected = reference_lists(Position.from_record(record), features)
            assert rows(batch.white, i) == expected.white, FENS[i] if path == fixed else i
            assert rows(batch.black, i) == expected.black
            labels = int(batch.stm[i]), int(batch.score[i]), int(batch.result[i])
            assert labels == (record["stm"], record["score"], record["result"])


def test_pairs_of_pawns_have_a_row_each():
    board = Position.from_fen("4k3/8/8/4p3/8/8/P1P5/4K3 w - - 0 1")
    a2, c2, e5 = 0, 2, 48 + 36 - 8
    rows = [c2 * (c2 - 1) // 2 + a2, e5 * (e5 - 1) // 2 + a2, e5 * (e5 - 1) // 2 + c2]
    found = [row - 768 for row, _ in reference_lists(board, "768+pairs").white if row >= 768]
    assert found == sorted(rows)
    assert e5 * (e5 - 1) // 2 + c2 < 96 * 95 // 2 - 1


def test_both_sides_have_lists_of_their_own_length(fixed: Path):
    """The document sizes black's lists by white's count; a king's square and K tell them apart."""
    (batch,) = in_order(fixed, "halfkp+p+k")
    assert batch.white.index.tolist() != batch.black.index.tolist()
    most = np.diff(batch.white.starts).max()
    assert most == 2 * 30 + 1  # HalfKP and P of 30 pieces but kings, and K
    assert batch.white.count is not None
    assert batch.white.count.max() == 30
    lone = FENS.index("4k3/8/8/8/8/8/8/4K3 b - - 0 1")
    assert rows(batch.white, lone) == rows(batch.black, lone) == []


@pytest.mark.parametrize("features", [name for name in FEATURES if "768" not in name])
@pytest.mark.parametrize("kind", [np.int8, np.float64])
def test_coalesced_rows_give_the_sums_of_all_factors(features: str, kind: type, fixed: Path):
    drawn = np.random.default_rng(1).integers(-127, 128, (FEATURES[features], 3))
    whole = coalesce(drawn.astype(kind), features)
    assert whole.shape == (40_960, 3)
    (factored,), (plain,) = in_order(fixed, features), in_order(fixed, "halfkp")
    for given, merged in ((factored.white, plain.white), (factored.black, plain.black)):
        for i in range(len(FENS)):
            expected = sum((value * drawn[row] for row, value in rows(given, i)), np.zeros(3, int))
            found = sum((whole[row] for row, _ in rows(merged, i)), np.zeros(3, kind))
            np.testing.assert_array_equal(found, expected)  # whole numbers, so floats are exact too


def test_coalesce_refuses_what_has_no_kings_squares():
    with pytest.raises(InputError, match="768 cannot be coalesced"):
        coalesce(np.zeros((768, 1), np.int8), "768")
    with pytest.raises(InputError, match="halfkp has 40960 rows, not 5"):
        coalesce(np.zeros((5, 1), np.int8), "halfkp")
    with pytest.raises(InputError, match="the feature set 'halfka' is none of 768, halfkp"):
        coalesce(np.zeros((5, 1), np.int8), "halfka")


def flat(batches: list[Batch]) -> list[tuple[int, ...]]:
    """A tuple for each position, from which it can be told."""
    return [
        (int(b.score[i]), int(b.result[i]), int(b.stm[i]), *(row for row, _ in rows(b.white, i)))
        for b in batches
        for i in range(len(b.stm))
    ]  # fmt: skip


def some(seed: int = 0, threads: int = 1, **options) -> list[tuple[int, ...]]:
    given = {"features": "768", "batch": 500, "epochs": 2, **options}
    with Loader(SMALL, seed=seed, threads=threads, **given) as loader:
        return flat(list(loader))


def test_the_order_depends_on_the_seed_and_not_on_threads():
    first = some()
    assert some(threads=2) == first
    assert some(threads=3) == first
    assert some(batch=77) == first
    assert some(seed=1) != first
    assert sorted(some(seed=1)) == sorted(first)


def test_every_epoch_has_every_position_once_in_another_order():
    everything = flat(in_order(SMALL))
    found = some(split="all", epochs=3)
    n = len(everything)
    assert len(found) == 3 * n
    epochs = [found[i * n : (i + 1) * n] for i in range(3)]
    for epoch in epochs:
        assert epoch != everything
        assert sorted(epoch) == sorted(everything)
    assert epochs[0] != epochs[1] != epochs[2]
    fixed = sum(a == b for a, b in zip(epochs[0], everything, strict=True))
    assert fixed < n / 100  # a random order leaves about one in its place


def test_batches_are_full_but_for_the_last():
    with Loader(SMALL, features="768", batch=500, epochs=2, split="all") as loader:
        sizes = [len(batch.stm) for batch in loader]
        assert sum(sizes) == 2 * loader.positions
        assert set(sizes[:-1]) == {500}
        assert sizes[-1] == 2 * loader.positions % 500
        assert next(loader, None) is None
    with Loader(SMALL, features="768", batch=3000) as loader:  # without end
        assert [len(next(loader).stm) for _ in range(5)] == [3000] * 5


def is_validation(game: int) -> bool:
    """splitmix64 of the game, from its definition."""
    mask = 2**64 - 1
    x = (game + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return (x ^ x >> 31) % 20 == 0


def test_games_and_not_positions_are_split(tmp_path: Path):
    path, records = tmp_path / "games.bin", np.repeat(fixed_records(), 100)
    records["game"] = np.arange(len(records)) // 10
    records["score"] = records["game"]  # by which a position tells its game
    write_pack(path, records, {})
    games = {}
    for split in ("train", "validation"):
        with Loader(path, features="768", epochs=1, split=split, batch=64) as loader:
            games[split] = {int(score) for batch in loader for score in batch.score}
    everything = set(records["game"].tolist())
    assert games["validation"] == {g for g in everything if is_validation(g)}
    assert games["train"] == everything - games["validation"]
    assert 2 <= len(games["validation"]) <= 15


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "valid"}, "split is 'valid': one of all, train, validation is needed."),
        ({"features": "halfkp+q"}, "the feature set 'halfkp\\+q' is none of 768, "),
        ({"batch": 0}, "batch is 0: a whole number from 1 to"),
        ({"threads": 1000}, "threads is 1000: a whole number from 1 to 256"),
        ({"seed": -1}, "seed is -1: a whole number from 0 to"),
        ({"epochs": 0}, "epochs is 0: a whole number from 1 to"),
        ({"split": "validation"}, "split validation: it has no positions of that split: give"),
    ],
)
def test_bad_options_are_one_sentence(options: dict, said: str, tmp_path: Path):
    path = tmp_path / "one.bin"
    write_pack(path, fixed_records()[:1], {})  # game 0 is none of validation
    with pytest.raises(InputError, match=said):
        Loader(path, **options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b[:-40], "is cut off at record 12 of 14"),
        (lambda b: b[:20], "is cut off in its header"),
        (lambda b: b + b"x", "has 1 bytes after its 14 records"),
        (
            lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:],
            "is damaged \\(its checksum is wrong\\)",
        ),
        (lambda b: b"fen " + b, "is no pack \\(it begins with b'fen EGGN', a pack with"),
        (lambda b: b"", "is no pack \\(it begins with b'', a pack with"),
        (lambda b: b[:8] + b"\2" + b[9:], "is a pack of version 2: this reads 1"),
        (lambda b: b[:12] + b"\x28" + b[13:], "has a header of no pack \\(records of 40 bytes"),
        (lambda b: b[:24] + b"\0" + b[25:], "has a header of no pack"),
        (lambda b: b[:16] + b"\7" + b[17:], "has a header of no pack"),
    ],
)
def test_packs_that_are_none_are_refused(change, said: str, fixed: Path):
    fixed.write_bytes(change(fixed.read_bytes()))
    with pytest.raises(InputError, match=said) as error:
        Loader(fixed)
    assert str(fixed) in str(error.value)


def test_a_missing_pack_is_said(tmp_path: Path):
    with pytest.raises(
        InputError, match="cannot be read \\(No such file or directory\\): give the"
    ):
        Loader(tmp_path / "none.bin")
    with pytest.raises(InputError, match="cannot be read \\(it is no regular file\\)"):
        Loader(tmp_path)


def altered(**fields) -> np.ndarray:
    records = fixed_records()
    for name, value in fields.items():
        records[5][name] = value
    return records


def with_board(fen: str) -> np.ndarray:
    records = fixed_records()
    records[5] = Position.from_fen(fen).record()
    return records


def with_code(code: int) -> np.ndarray:
    records = fixed_records()
    records[5]["codes"][15] = code << 4
    return records


BAD = [
    (altered(result=2), "the result is 2, of -1, 0 and 1"),
    (altered(stm=2), "the side to move is 2, of 0 \\(black\\) and 1 \\(white\\)"),
    (altered(occupied=2**64 - 1), "the board has 64 pieces, of 32 at most"),
    (altered(occupied=0), "it has more codes than the board has pieces \\(0\\)"),
    (with_code(13), "a piece has the code 13, of 0 to 11"),
    (with_board("8/8/8/8/8/8/8/K7 w - -"), "the board has 0 black kings, and one is needed"),
    (with_board("k7/8/8/8/8/8/8/KK6 w - -"), "the board has 2 white kings, and one is needed"),
    (with_board("k6P/8/8/8/8/8/8/K7 w - -"), "a pawn stands on square 63, of 8 to 55"),
    (
        with_board("k7/8/PPPPPPPP/PPPPPPPP/8/8/8/K7 w - -"),
        "white has 17 pieces, of 16 at most",
    ),
    (with_board("k7/8/PPPPPPPP/P7/8/8/8/K7 w - -"), "white has 9 pawns, of 8 at most"),
    (with_board("k6R/8/8/8/8/8/8/K7 w - -"), "the king on square 56 is in check and its side is"),
    (with_board("k7/8/8/8/8/8/6n1/4K3 b - -"), "the king on square 4 is in check"),
    (with_board("k7/1P6/8/8/8/8/8/4K3 w - -"), "the king on square 56 is in check"),
    (with_board("8/8/8/8/8/3k4/4p3/3K4 b - -"), "the king on square 3 is in check"),
    (with_board("8/8/8/8/8/8/1k6/K7 w - -"), "the king on square 9 is in check"),
    (with_board("k7/8/8/8/8/5b2/8/3K4 b - -"), "the king on square 3 is in check"),
]


@pytest.mark.parametrize(("records", "said"), BAD, ids=[said[:40] for _, said in BAD])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_bad_record_is_named(records: np.ndarray, said: str, threads: int, tmp_path: Path):
    path = raw_pack(tmp_path / "bad.bin", records)
    with Loader(
        path, features="halfkp", batch=2, threads=threads, split="all", shuffle=False
    ) as loader:
        assert [len(next(loader).stm) for _ in range(2)] == [2, 2]  # what comes before is good
        for _ in range(2):  # and it is said again
            with pytest.raises(InputError, match=f"bad.bin': record 5: {said}") as error:
                next(loader)
        assert str(error.value).endswith(": make the pack again.")


def test_check_is_seen_along_every_line():
    """A slider checks over empty squares alone, and never the side to move."""
    good = [
        "k6R/8/8/8/8/8/8/K7 b - -",  # its side is to move
        "kn5R/8/8/8/8/8/8/K7 w - -",  # a piece between
        "k7/8/8/8/8/4B3/8/K7 w - -",  # another diagonal
        "8/8/8/8/8/8/k1K5/8 w - -",
    ]
    from experiments.nnue import formats

    records = np.array([Position.from_fen(fen).record() for fen in good])
    formats.check(Path("good"), records)
    for piece in LETTERS[4:10:2]:  # B, R, Q from every square of an empty board
        for square in range(64):
            pieces = {27: 11, 0: 10} | {square: LETTERS.index(piece)}
            if len(pieces) < 3:
                continue
            file, rank = abs(square % 8 - 3), abs(square // 8 - 3)
            straight, diagonal = not file or not rank, file == rank
            checks = (piece in "RQ" and straight) or (piece in "BQ" and diagonal)
            # Nothing stands between on this board but, for none of them, the king on a1.
            record = np.array([Position(pieces, 1).record()])
            if checks:
                with pytest.raises(InputError, match="the king on square 27 is in check"):
                    formats.check(Path("bad"), record)
            else:
                formats.check(Path("good"), record)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_worker_without_memory_is_named(tmp_path: Path):
    program = (
        "import resource, sys\n"
        "from experiments.nnue import loader\n"
        "from eggroll.errors import InputError\n"
        "loader.native.library()\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))\n"
        "try:\n"
        "    with loader.Loader(sys.argv[1], batch=1 << 21, epochs=2000, threads=1) as batches:\n"
        "        next(batches)\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(SMALL)], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == (
        f"{str(SMALL)!r}: worker 1 of 1 died at batch 0: out of memory: ask for smaller batches.\n"
    ), done.stderr


def test_batches_outlive_the_loader():
    loader = Loader(SMALL, features="halfkp+p+k", batch=512, threads=2)
    batch = next(loader)
    lists, copied = batch.white, [array.copy() for array in batch.white]
    loader.close()
    loader.close()  # a second time does nothing
    del batch, loader
    gc.collect()
    for array, copy in zip(lists, copied, strict=True):
        np.testing.assert_array_equal(array, copy)
    part = lists.index[10:20]
    del lists
    gc.collect()
    np.testing.assert_array_equal(part, copied[1][10:20])


def test_a_closed_loader_has_no_more_batches():
    loader = Loader(SMALL, features="768", batch=10)
    next(loader)
    loader.close()
    assert list(loader) == []


def test_threads_end_with_the_loader():
    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    if not Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc")
    before = count()
    loaders = [Loader(SMALL, features="768", batch=10, threads=3) for _ in range(4)]
    assert count() == before + 12
    loaders[0].close()
    assert count() == before + 9
    del loaders
    gc.collect()
    assert count() == before


def test_a_fork_is_told():
    loader = Loader(SMALL, features="768", batch=10)
    next(loader)
    child = os.fork()
    if not child:
        try:
            next(loader)
        except InputError as error:
            os._exit(0 if "make a Loader after the fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loader.close()


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    for features in ("halfkp+p", "halfkp+k"):
        with Loader(SMALL, features=features, batch=64, epochs=1, split="all") as loader:
            batch = next(iter(data_loader(loader)))
        white, black, stm, score, result = batch.get_tensors("cpu")
        for tensor, lists in ((white, batch.white), (black, batch.black)):
            assert tensor.is_coalesced()
            assert tensor.shape == (64, FEATURES[features])
            checked = torch.sparse_coo_tensor(
                tensor.indices(), tensor.values(), tensor.shape, check_invariants=True
            )
            again = checked.coalesce()  # by sorting: the order was right
            assert torch.equal(again.indices(), tensor.indices())
            assert torch.equal(again.values(), tensor.values())
            dense = tensor.to_dense()
            for i in range(64):
                assert dense[i].nonzero()[:, 0].tolist() == [row for row, _ in rows(lists, i)]
        for column, array in ((stm, batch.stm), (score, batch.score), (result, batch.result)):
            assert column.shape == (64, 1)
            np.testing.assert_array_equal(column[:, 0].numpy(), array)
