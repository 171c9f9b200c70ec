"""Files of games: chunks that workers write, and the file that they are merged into.

A chunk is what one worker played side by side; its games depend on its number alone, so that any
number of workers, killed and begun again, gives the same. Memory is bounded by a chunk, of the
worker that plays it and of the merge, which reads one field of one chunk at a time.

Letters: n positions, F values of a state, A actions.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.files import replacing, unwritable, write_whole

DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
ABOUT = "about"  # the member of an archive that says what it is


class Games(NamedTuple):
    """Positions of complete games, game by game, each game's in the order of its moves.

    state: int8 [n, F]; visits: uint16 [n, A]; value: int8 [n], the result for the mover; target:
    float32 [n], what the value learns, see rewards.py; soft: float32 [n], of the game's end, for
    the mover; mover: int8 [n], 1 White, -1 Black; legal: uint8 [n, ceil(A / 8)], packed; game:
    int32 [n].
    """

    state: NDArray[np.int8]
    visits: NDArray[np.uint16]
    value: NDArray[np.int8]
    target: NDArray[np.float32]
    soft: NDArray[np.float32]
    mover: NDArray[np.int8]
    legal: NDArray[np.uint8]
    game: NDArray[np.int32]

    def legal_mask(self) -> NDArray[np.bool_]:
        """Legal actions, bool [n, A]."""
        return unpacked(self.legal, self.visits.shape[1])


def unpacked(legal: NDArray[np.uint8], actions: int) -> NDArray[np.bool_]:
    """Legal actions bool [n, A] of packed ones."""
    return np.unpackbits(legal, axis=1, count=actions).astype(bool)


def write(path: Path, games: Games, about: dict[str, Any]) -> None:
    """Writes a chunk, whole or not at all; about: what tells it from other chunks."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(member(ABOUT + ".json"), json.dumps(about, sort_keys=True))
        for name, array in games._asdict().items():
            with archive.open(member(name + ".npy"), "w") as file:
                npy.write_array(file, np.ascontiguousarray(array))
    write_whole(path, whole.getvalue())


def member(name: str) -> zipfile.ZipInfo:
    """A member of an archive with a fixed date, so that equal games are equal bytes."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


class Archive:
    """A file of games, read field by field."""

    def __init__(self, path: Path) -> None:
        """Raises InputError: the file is missing or damaged."""
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self.about: dict[str, Any] = json.loads(archive.read(ABOUT + ".json"))
        except DAMAGE as error:
            raise self.damaged(error) from None

    def damaged(self, error: Exception) -> InputError:
        return InputError(
            f"{str(self.path)!r} cannot be read as games ({type(error).__name__}): remove it, and "
            "'selfplay' plays them again."
        )

    def field(self, name: str) -> NDArray[Any]:
        """One of the fields of Games."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(name + ".npy") as file:
                array: NDArray[Any] = npy.read_array(file)
                if file.read(1):
                    raise ValueError("bytes behind the array")
                return array
        except DAMAGE as error:
            raise self.damaged(error) from None

    def games(self) -> Games:
        """All fields."""
        return Games(*(self.field(name) for name in Games._fields))


def expect(archive: Archive, about: dict[str, Any]) -> None:
    """Raises InputError where a file is of another run, iteration or chunk."""
    for name, value in about.items():
        if archive.about.get(name) != value:
            raise InputError(
                f"{str(archive.path)!r} has {name} {archive.about.get(name)!r}, and {value!r} is "
                "needed: it is of another run; remove it, and 'selfplay' plays its games again."
            )


def merge(parts: Sequence[Archive], path: Path, about: dict[str, Any]) -> None:
    """Joins chunks, in their order, to one file that is there whole or not at all.

    Games are numbered through. Raises InputError: a chunk is damaged, or the disk is full.
    """
    try:
        with (
            replacing(path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            archive.writestr(member(ABOUT + ".json"), json.dumps(about, sort_keys=True))
            for name in Games._fields:
                join(parts, name, archive)
    except OSError as error:
        raise unwritable(path, error) from error


def join(parts: Sequence[Archive], name: str, archive: zipfile.ZipFile) -> None:
    """Writes one field of all parts; two passes, as the header comes first."""
    sizes, shape, dtype = [], (), np.dtype(np.int8)
    for part in parts:
        array = part.field(name)
        sizes.append(len(array))
        shape, dtype = array.shape[1:], array.dtype
    with archive.open(member(name + ".npy"), "w", force_zip64=True) as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (sum(sizes), *shape)}
        npy.write_array_header_1_0(file, header)
        first = 0
        for part in parts:
            array = part.field(name)
            if name == "game":
                array = array + np.int32(first)
                first = int(array.max(initial=first - 1)) + 1
            file.write(np.ascontiguousarray(array).tobytes())


def digest(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Shards:
    """The chunks of an iteration: a folder for each worker, and a file in it for each chunk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def shard(self, worker: int) -> Path:
        """The folder of a worker."""
        return self.folder / f"worker-{worker:02}"

    def name(self, chunk: int) -> str:
        return f"chunk-{chunk:05}.npz"

    def found(self) -> dict[int, Path]:
        """Chunks that are there, whoever played them."""
        paths = sorted(self.folder.glob("worker-*/chunk-*.npz"))
        return {int(path.stem.removeprefix("chunk-")): path for path in paths}

    def make(self, workers: int) -> None:
        """The folders of so many workers."""
        for worker in range(workers):
            self.shard(worker).mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """All chunks, once they are merged."""
        shutil.rmtree(self.folder, ignore_errors=True)


def summary(
    value: NDArray[np.int8], target: NDArray[np.float32], game: NDArray[np.int32]
) -> dict[str, Any]:
    """The document's fields of data effectiveness, ratios with their counts; see Games."""
    games = int(game.max(initial=-1)) + 1
    results = value[np.unique(game, return_index=True)[1]]  # of the first player, who moves first
    decisive = int(np.count_nonzero(results))
    count, nonzero = len(target), int(np.count_nonzero(target))
    return {
        "games": games,
        "positions": count,
        "first_player_wins": int(np.count_nonzero(results > 0)),
        "second_player_wins": int(np.count_nonzero(results < 0)),
        "decisive_games": decisive,
        "draw_games": games - decisive,
        "decisive_game_ratio": decisive / max(games, 1),
        "draw_game_ratio": (games - decisive) / max(games, 1),
        "value_target_summary": {
            "count": count,
            "nonzero_count": nonzero,
            "nonzero_ratio": nonzero / max(count, 1),
            "positive_count": int(np.count_nonzero(target > 0)),
            "negative_count": int(np.count_nonzero(target < 0)),
            "outside_count": int(np.count_nonzero(np.abs(target) > 1)),
            "mean": round(float(target.mean(dtype=np.float64)) if count else 0.0, 9),
            "least": float(target.min(initial=0)),
            "most": float(target.max(initial=0)),
        },
    }
