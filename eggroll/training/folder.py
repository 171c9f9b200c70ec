"""The files of a run, and its live progress on the screen.

A folder holds config.json, checkpoint.safetensors, metrics.jsonl, curves.png and samples.txt, and
replay.bin where replay_log.py can be of use; statistics.jsonl is from eggroll/statistics.
Letters: P members, T tokens.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from math import inf
from pathlib import Path
from typing import Self

from eggroll.errors import InputError
from eggroll.files import (
    FILES,
    Row,
    flush_to_disk,
    make_folder,
    open_regular,
    path_of,
    unwritable,
    write_whole,
)


class Folder:
    """A run's folder, locked while the run lasts so that two never write into one."""

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path_of(path), os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise InputError(
                f"folder {str(path)!r} cannot be used ({error.strerror}): give another one."
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise InputError(
                f"folder {str(path)!r} is in use by another run: wait for its end or stop it, or "
                "give another --out."
            ) from error
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def check_free(path: Path) -> None:
    """Raises InputError unless a new run may be put at `path`; creates nothing."""
    where = f"--out {str(path)!r}"
    try:
        if held := [name for name in FILES if os.path.lexists(path / name)]:
            raise InputError(
                f"{where} already holds a run ({held[0]}): go on with --resume {path}, or give "
                "another --out."
            )
        nearest = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
    except OSError as error:
        raise InputError(
            f"{where} cannot be used ({error.strerror}): give another --out."
        ) from error
    if not nearest.is_dir():
        raise InputError(
            f"{where} is no folder, as {str(nearest)!r} is a file: give another --out."
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"{where} cannot be written, as {str(nearest)!r} denies it: give another --out."
        )


def new_folder(out: str, data: str) -> Path:
    """Creates the folder of a new run: `out`, or the first free runs/<data>-<number>."""
    if out:
        return make_folder(Path(out))
    letters = [c if c.isalnum() or c in "_-" else "-" for c in Path(data).stem[:40]]
    name = "".join(letters).strip("-") or "run"
    for number in range(1000):
        path = Path("runs", f"{name}-{number:03d}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(path, error) from error
        return path
    raise InputError(f"runs/{name}-000 to runs/{name}-999 are all taken: give --out.")


class Growing:
    """A file that grows by whole records, each handed to the system as soon as it is known.

    lacks: why nothing is recorded, and no file is open; empty if all is well.
    """

    lacks = ""

    def __init__(self, path: Path) -> None:
        """Opens a file that is there."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND)
            self._end = os.fstat(self._handle).st_size  # nobody else writes, so it is kept
        except OSError as error:
            raise unwritable(path, error) from error

    def write(self, record: bytes) -> None:
        """Adds a whole record or none.

        Raises:
            InputError: it cannot be written.
        """
        try:
            if os.write(self._handle, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._end)
            raise unwritable(self.path, error) from error
        self._end += len(record)

    def sync(self) -> None:
        """Sees the records on the disk, so that a checkpoint never knows more than they do.

        Raises:
            InputError: the disk refuses them.
        """
        if self.lacks:
            return
        try:
            flush_to_disk(self._handle)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.lacks:
            os.close(self._handle)


class Metrics(Growing):
    """metrics.jsonl, or another file of lines that have a step.

    Opening cuts it back to the updates up to `step`, as what follows them comes anew.
    """

    def __init__(self, path: Path, step: int) -> None:
        lines = [line for line, _ in read_lines(path, step)]
        write_whole(path, b"".join(lines))
        super().__init__(path)

    def append(self, row: Row) -> None:
        """Adds a whole line or none.

        Raises:
            InputError: it cannot be written.
        """
        self.write(json.dumps(row).encode() + b"\n")


def read_lines(path: Path, last: float = inf) -> list[tuple[bytes, Row]]:
    """The lines of metrics.jsonl up to update `last`, with their rows; none if there is no file.

    What a death left behind the last whole line does not count.

    Raises:
        InputError: the file cannot be read, or a line before its last whole one is damaged.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror}): make it readable."
        ) from error
    rows: list[tuple[bytes, Row]] = []
    damaged = 0  # number of the first such line
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        row: object = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            damaged = damaged or number
        elif row["step"] <= last:
            if damaged:
                raise InputError(
                    f"Line {damaged} of {str(path)!r} is damaged, and whole ones follow it: put "
                    "the file back as it was, or take the line out."
                )
            rows.append((line + b"\n", row))
    return rows
