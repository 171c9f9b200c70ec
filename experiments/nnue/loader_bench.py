"""Positions a second of the native loader beside Python's extraction of the same rows.

Plain text is read natively, too: its line has the positions of such a file that become records.
Both begin with packed records; Python also with FENs, as a loader without a packed format would.
The rows are compared before anything is timed, and the sides take turns.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.nnue.data import SMALL
from experiments.nnue.features import reference_lists
from experiments.nnue.formats import read_foreign
from experiments.nnue.loader import Batch, Loader
from experiments.nnue.pack import read_pack
from experiments.nnue.position import Position

SETS = ("768", "halfkp", "halfkp+p", "halfkp+p+k", "halfkp+p+k+relative")
PYTHON = "halfkp+p"  # the set of what begins with FENs
FEW = 500  # positions that Python extracts in a round
LEAST = 1_000_000  # positions that the loader deals in a round
PLAIN = 100_000  # positions of a plain text


class Speed(NamedTuple):
    """Positions a second of one way in one round."""

    seconds: float  # by wall clock
    processor: float  # by the processor time of all threads


def run(pack: Path | None, rounds: int, threads: int, out: Path | None) -> list[str]:
    """The lines of a table, medians of the rounds; `out` gets every round.

    pack: positions to deal; the small pack if None. threads: of the loader, beside one.

    Raises:
        InputError: the pack cannot be used.
    """
    path = pack or SMALL
    records = np.array(read_pack(path).records[:FEW])
    _compare(path, records)
    fens = [Position.from_record(record).fen() for record in records]
    ways: dict[str, Callable[[], Speed]] = {
        f"loader, {name}, threads {n}": partial(_deal, path, name, n)
        for name in SETS
        for n in sorted({1, threads})
    }
    for name in SETS:
        ways[f"Python from records, {name}"] = partial(_extract_records, records, name)
    ways[f"Python from FENs, {PYTHON}"] = lambda: _timed(
        lambda: _extract(map(Position.from_fen, fens), PYTHON)
    )
    found: dict[str, list[Speed]] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "some.plain"
        entries = [f"fen {fen}\nmove 0000\nscore 0\nply 0\nresult 0\ne\n" for fen in fens]
        text.write_text("".join(entries) * (PLAIN // len(entries)))
        ways["plain text into records"] = lambda: _timed(lambda: len(read_foreign(text)[0]))
        for _ in range(rounds):
            for name, way in ways.items():
                found.setdefault(name, []).append(way())
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")
    return _table(found)


def _compare(path: Path, records: np.ndarray) -> None:
    """Sees that the loader's first rows are those that Python finds."""
    for name in SETS:
        with Loader(path, features=name, batch=FEW, epochs=1, split="all", shuffle=False) as all_:
            batch = next(all_)
        for side in ("white", "black"):
            lists = getattr(batch, side)
            rows: list[tuple[int, int]] = []
            for record in records:
                rows += getattr(reference_lists(Position.from_record(record), name), side)
            assert lists.index.tolist() == [row for row, _ in rows], name
            assert lists.count is None or lists.count.tolist() == [n for _, n in rows], name


def _deal(path: Path, features: str, threads: int) -> Speed:
    with Loader(path, features=features, threads=threads, split="all") as loader:
        next(loader)
        wall, processor = time.perf_counter(), time.process_time()
        there = 0
        while there < LEAST:
            batch: Batch = next(loader)
            there += len(batch.stm)
        return Speed(
            there / (time.perf_counter() - wall), there / (time.process_time() - processor)
        )


def _timed(work: Callable[[], int]) -> Speed:
    wall, processor = time.perf_counter(), time.process_time()
    there = work()
    return Speed(there / (time.perf_counter() - wall), there / (time.process_time() - processor))


def _extract_records(records: np.ndarray, features: str) -> Speed:
    return _timed(lambda: _extract(map(Position.from_record, records), features))


def _extract(positions: Iterable[Position], features: str) -> int:
    count = 0
    for position in positions:
        reference_lists(position, features)
        count += 1
    return count


def _table(found: dict[str, list[Speed]]) -> list[str]:
    python = {
        name: statistics.median(each.processor for each in found[f"Python from records, {name}"])
        for name in SETS
    }
    lines = [
        "| | positions/s (range) | per second of processor | ÷ Python from records, same set |",
        "|---|---|---|---|",
    ]
    for name, speeds in found.items():
        wall = sorted(each.seconds for each in speeds)
        processor = statistics.median(each.processor for each in speeds)
        beside = next((python[part] for part in name.split(", ") if part in SETS), None)
        ratio = f"{processor / beside:,.0f}" if beside else ""
        lines.append(
            f"| {name} | {statistics.median(wall):,.0f} ({wall[0]:,.0f} to {wall[-1]:,.0f}) | "
            f"{processor:,.0f} | {ratio} |"
        )
    return lines
