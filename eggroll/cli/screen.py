"""A terminal that may be written to and never waited for.

A write to a terminal that nobody reads (stopped by Ctrl-S, or its window hangs) takes until
somebody does. No run should.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from typing import IO, Any, Final, Self, cast

from eggroll.files import Row

PLAIN_SECONDS = 10.0  # between lines where there is no terminal to draw a bar on
LINE_SECONDS = 5.0  # between validations that stay above the bar


class Display:
    """Live progress on stderr: on a terminal a bar below validations so far, else plain lines.

    A line every few seconds; the first validation and the last are always shown.

    In a notebook a bar and curves below the cell.

    unit: of loss and validation; legend: printed first, says what the two are.
    """

    def __init__(self, step: int, steps: int, unit: str, legend: str = "") -> None:
        self.steps, self.unit = steps, unit
        self._row: Row = {}  # the last one
        self._validation = ""
        self._validated = False  # whether a line has said a validation
        self._said = float("-inf")
        self._spent, self._seen = 0.0, 0  # seconds of the updates shown, and their number
        self._live: Any = None
        self._notebook = Notebook.here(step, steps, legend) if step < steps else None
        if self._notebook:
            return
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
            get_renderable=lambda: Group(self._bar.get_renderable(), self._words(self._row)),
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
            if "val_bits_per_byte_with_counts" in row:
                both = in_bits(row["val_bits_per_byte_with_counts"])
                self._validation += f", {both} per byte with counts"
        self._spent, self._seen = self._spent + row["seconds"], self._seen + 1
        if self._notebook:
            self._notebook.update(row, self._words(row))
            return
        with contextlib.suppress(OSError):
            if self._live:
                self._row = row
                self._bar.update(self._task, completed=row["step"])
                # It stays above the bar, where the next ones follow.
                if "val_loss" in row and self._says(row, LINE_SECONDS):
                    self._live.console.print(
                        f"update {row['step']} · loss {in_bits(row['loss'])}{self._validation}"
                    )
            elif self._says(row, PLAIN_SECONDS):
                self._line(row)

    def _words(self, row: Row) -> str:
        """An update in a line; empty before the first."""
        if not row:
            return ""
        return (
            f"loss {in_bits(row['loss'])}{self._validation} · {row['update_rate']:.1%} moved · "
            f"{prefixed(row['tokens_per_second'])} tokens/s"
        )

    def _says(self, row: Row, seconds: float) -> bool:
        """True if it is time for a line about this update; the next one follows `seconds` later."""
        now = time.monotonic()
        first = "val_loss" in row and not self._validated
        if not (first or row["step"] == self.steps or now - self._said >= seconds):
            return False
        self._said, self._validated = now, self._validated or "val_loss" in row
        return True

    def _line(self, row: Row) -> None:
        step = row["step"]
        last = step == self.steps
        left = max(int((self.steps - step) * self._spent / self._seen), 0)
        hours, minutes = divmod(left // 60, 60)
        clock = f"{hours}:{minutes:02d}" * bool(hours) or f"{minutes}"
        eta = "" if last else f" · ETA {clock}:{left % 60:02d}"
        print(f"update {step}/{self.steps} · {self._words(row)}{eta}", file=sys.stderr, flush=True)

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


NOTEBOOK_SECONDS = 0.5  # between two pictures of a notebook
CURVE = 360, 90  # pixels
POINTS = 400  # of a curve, at most


class Notebook:
    """A bar and the curves of loss and validation below a notebook's cell, drawn now and then."""

    def __init__(self, shell: Any, step: int, steps: int, legend: str) -> None:
        self._display, self._steps, self._legend = shell, steps, legend
        self._drawn = float("-inf")
        self._loss, self._valid = list[tuple[int, float]](), list[tuple[int, float]]()
        self._handle = shell.display(self.page(step, ""), display_id=True)

    @classmethod
    def here(cls, step: int, steps: int, legend: str) -> Self | None:
        """The one of this process, if it is a notebook's kernel."""
        shell = sys.modules.get("IPython")
        if shell is None or not hasattr(shell.get_ipython(), "kernel"):
            return None
        return cls(import_module("IPython.display"), step, steps, legend)

    def update(self, row: Row, text: str) -> None:
        """Shows an update, if the last was shown some time ago or is worth it."""
        self._loss.append((row["step"], row["loss"]))
        if "val_loss" in row:
            self._valid.append((row["step"], row["val_loss"]))
        now = time.monotonic()
        if now - self._drawn >= NOTEBOOK_SECONDS or row["step"] == self._steps:
            self._drawn = now
            self._handle.update(self.page(row["step"], text))

    def page(self, step: int, text: str) -> Any:
        """The bar, a line of words and the curves, as HTML."""
        lines = "".join(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
            for colour, points in (("#4c78a8", self._points(self._loss)),
                                   ("#d1495b", self._points(self._valid)))
        )  # fmt: skip
        return self._display.HTML(
            f'<progress value="{step}" max="{self._steps}" style="width:{CURVE[0]}px"></progress> '
            f"update {step}/{self._steps}<br>{text}<br><small>{self._legend}</small><br>"
            f'<svg width="{CURVE[0]}" height="{CURVE[1]}">{lines}</svg>'
        )

    def _points(self, curve: Sequence[tuple[int, float]]) -> str:
        """A curve's corners in pixels, from the loss 0 at the bottom to the highest."""
        highest = max((loss for _, loss in (*self._loss, *self._valid)), default=1.0) or 1.0
        kept = curve[:: max(len(curve) // POINTS, 1)]
        return " ".join(
            f"{CURVE[0] * step / self._steps:.1f},{CURVE[1] * (1 - 0.95 * loss / highest):.1f}"
            for step, loss in kept
        )


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


MOST: Final = 1 << 16  # bytes that wait; what comes on top is left out
PATIENCE: Final = 1.0  # seconds, at the end of all
HASTE: Final = 0.1  # in between


def say(sentence: str) -> None:
    """Writes a line to stderr, if there is one; what a terminal does not take in time is left out.

    A terminal or file that is gone, closed or full is no error, as there is nowhere to tell of it.
    """
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            line = f"{sentence}\n".encode(sys.stderr.encoding, "replace")
            put(sys.stderr.fileno(), line, PATIENCE)
        else:
            print(sentence, file=sys.stderr, flush=True)


def put(handle: int, data: bytes, seconds: float) -> None:
    """Writes to a file, or to a terminal within so many seconds or not at all.

    By a thread, as a terminal that has room for less than all counts as ready.

    Raises:
        OSError: the file cannot be written.
    """
    if not os.isatty(handle):
        os.write(handle, data)
        return
    writer = threading.Thread(target=_write, args=(handle, data), daemon=True)
    writer.start()
    writer.join(seconds)


def _write(handle: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone
        while data:
            data = data[os.write(handle, data) :]


class Screen(io.TextIOBase):
    """stderr, a terminal, written to by a thread of its own, the only one that waits for it."""

    def __init__(self) -> None:
        self._handle, self._coding = sys.stderr.fileno(), sys.stderr.encoding
        self._left, self._done, self._news = bytearray(), False, threading.Condition()
        self._writer = threading.Thread(target=self._write_all, daemon=True)
        self._writer.start()

    def as_file(self) -> IO[str]:
        """Itself, as rich's types want it."""
        return cast(IO[str], self)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # rich chooses its signs by it
        return self._coding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._handle

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._news:
            if len(self._left) < MOST:
                self._left += text.encode(self._coding, "replace")
            self._news.notify()
        return len(text)

    def close(self) -> None:
        """Waits until all is written, but not long."""
        with self._news:
            self._done = True
            self._news.notify()
        self._writer.join(PATIENCE)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError):  # a screen that is gone
            while part := self._next():
                while part:
                    part = part[os.write(self._handle, part) :]
        with self._news:
            self._left.clear()

    def _next(self) -> bytes:
        """All that waits; empty at the end."""
        with self._news:
            while not (self._left or self._done):
                self._news.wait()
            part = bytes(self._left)
            self._left.clear()
        return part
