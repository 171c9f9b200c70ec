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
import stat
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Self

from eggroll.errors import InputError
from eggroll.screen import Screen

CHECKPOINT, CONFIG, METRICS = "checkpoint.safetensors", "config.json", "metrics.jsonl"
CURVES, SAMPLES, REPLAY = "curves.png", "samples.txt", "replay.bin"
STATISTICS = "statistics.jsonl"
FILES = (CHECKPOINT, CONFIG, METRICS, CURVES, SAMPLES, REPLAY, STATISTICS)
PLAIN_SECONDS = 10.0  # between lines where there is no terminal to draw a bar on

Row = dict[str, Any]


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and sees it on the disk before it counts.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                flush_to_disk(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def open_regular(path: Path) -> BinaryIO:
    """A file open for reading; an OSError for what is none, as a pipe would be waited for.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def flush_to_disk(handle: int) -> None:
    """fsync, and on macOS, whose fsync stops at the drive's cache, what goes beyond."""
    os.fsync(handle)
    if full := getattr(fcntl, "F_FULLFSYNC", None):
        with contextlib.suppress(OSError):  # not every file system knows it
            fcntl.fcntl(handle, full)


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        flush_to_disk(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> InputError:
    begun = os.path.lexists(path.parent / CHECKPOINT)
    again = f"go on with --resume {path.parent}" if begun else "run the command again"
    return InputError(
        f"{str(path)!r} cannot be written ({error.strerror or error}): make room or grant access "
        f"there and {again}; what was there before is intact."
    )


class Folder:
    """A run's folder, locked while the run lasts so that two never write into one."""

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
        path = Path(out)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
        return path
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
    """A file that grows by whole records, each handed to the system as soon as it is known."""

    def __init__(self, path: Path) -> None:
        """Opens a file that is there."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise unwritable(path, error) from error

    def write(self, record: bytes) -> None:
        """Adds a whole record or none.

        Raises:
            InputError: it cannot be written.
        """
        end = os.fstat(self._handle).st_size
        try:
            if os.write(self._handle, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, end)
            raise unwritable(self.path, error) from error

    def sync(self) -> None:
        """Sees the records on the disk, so that a checkpoint never knows more than they do.

        Raises:
            InputError: the disk refuses them.
        """
        try:
            flush_to_disk(self._handle)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


class Metrics(Growing):
    """metrics.jsonl, or another file of lines that have a step.

    Opening cuts it back to the updates up to `step`, as what follows them comes anew.
    """

    def __init__(self, path: Path, step: int) -> None:
        lines = [line for line, row in read_lines(path) if row["step"] <= step]
        write_whole(path, b"".join(lines))
        super().__init__(path)

    def append(self, row: Row) -> None:
        """Adds a whole line or none.

        Raises:
            InputError: it cannot be written.
        """
        self.write(json.dumps(row).encode() + b"\n")


def read_lines(path: Path) -> list[tuple[bytes, Row]]:
    """Every whole line of metrics.jsonl with its row, in order; none if there is no file."""
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror}): make it readable."
        ) from error
    rows = []
    for line in data.splitlines(keepends=True):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if line.endswith(b"\n") and isinstance(row, dict) and type(row.get("step")) is int:
                rows.append((line, row))
    return rows


class Display:
    """Live progress on stderr: on a terminal a bar below the validations so far, else plain lines.

    unit: of loss and validation; legend: printed first, says what the two are.
    """

    def __init__(self, step: int, steps: int, unit: str, legend: str = "") -> None:
        self.steps, self.unit = steps, unit
        self._text = self._validation = ""
        self._said = float("-inf")
        self._spent, self._seen = 0.0, 0  # seconds of the updates shown, and their number
        self._live: Any = None
        with contextlib.suppress(OSError):
            if legend and step < steps:
                print(legend, file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                self._start(step)

    def _start(self, step: int) -> None:
        from rich import progress as rp
        from rich.console import Console, Group
        from rich.live import Live

        count = rp.TextColumn("update {task.completed}/{task.total}")
        left = (rp.TextColumn("ETA"), rp.TimeRemainingColumn())
        self._screen = Screen()
        console = Console(file=self._screen.as_file(), force_terminal=True, highlight=False)
        self._bar = rp.Progress(count, rp.BarColumn(None), *left, console=console, expand=True)
        self._task = self._bar.add_task("", total=self.steps, completed=step)
        self._live = Live(
            get_renderable=lambda: Group(self._bar.get_renderable(), self._text),
            console=console,
            redirect_stdout=False,
        )
        self._live.start()

    def update(self, row: Row) -> None:
        """Shows one update; a screen that is gone does not stop the run."""
        if "val_loss" in row:
            self._validation = f" · validation {in_bits(row['val_loss'])} {self.unit}"
            if row.get("val_bits_per_byte", row["val_loss"]) != row["val_loss"]:
                self._validation += f" ({in_bits(row['val_bits_per_byte'])} per byte)"
        text = (
            f"loss {in_bits(row['loss'])}{self._validation} · {row['update_rate']:.1%} moved · "
            f"{prefixed(row['tokens_per_second'])} tokens/s"
        )
        self._spent, self._seen = self._spent + row["seconds"], self._seen + 1
        with contextlib.suppress(OSError):
            if self._live:
                self._text = text
                self._bar.update(self._task, completed=row["step"])
                if "val_loss" in row:  # stays above the bar, where the next ones follow
                    self._live.console.print(
                        f"update {row['step']} · loss {in_bits(row['loss'])}{self._validation}"
                    )
            else:
                self._line(row, text)

    def _line(self, row: Row, text: str) -> None:
        now, step = time.monotonic(), row["step"]
        last = step == self.steps
        if not (last or "val_loss" in row or now - self._said >= PLAIN_SECONDS):
            return
        self._said = now
        left = max(int((self.steps - step) * self._spent / self._seen), 0)
        hours, minutes = divmod(left // 60, 60)
        clock = f"{hours}:{minutes:02d}" * bool(hours) or f"{minutes}"
        eta = "" if last else f" · ETA {clock}:{left % 60:02d}"
        print(f"update {step}/{self.steps} · {text}{eta}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the screen to others; may be called again."""
        with contextlib.suppress(OSError):
            if self._live:
                self._live.stop()
                self._screen.close()


def per_second(count: int, seconds: float) -> float:
    """A rate; 0 of a clock that stood still or went back."""
    return count / seconds if seconds > 0 else 0.0


def in_bits(loss: float) -> str:
    """A loss as people read it: three decimals, and five where the first ones say little."""
    return f"{loss:.3f}" if loss >= 0.1 else f"{loss:.5f}"


def prefixed(value: float) -> str:
    """Three digits and a prefix: 1.23M."""
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5 or prefix == "G":
            break
        value /= 1000
    return f"{value:.3g}{prefix}"
