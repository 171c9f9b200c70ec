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
from typing import IO, Final, cast

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
