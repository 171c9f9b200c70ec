"""Arrays whose place in memory is chosen, and a workspace that hands them out step after step.

Arrays that begin at the same offset within a page of 4,096 bytes fall on the same sets of the L1
cache, row for row where a row is a multiple of the page. Here successive arrays begin some cache
lines apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from eggroll.errors import InputError

PAGE, LINE = 4096, 64  # bytes
STRIDE = 13  # cache lines between the offsets of successive arrays: coprime to the page's 64

Place = Callable[[tuple[int, ...], DTypeLike], NDArray]


def at_offset(shape: tuple[int, ...], dtype: DTypeLike, offset: int) -> NDArray:
    """A zeroed array that begins `offset` bytes into a page.

    Raises:
        InputError: the offset is outside the page or not a multiple of an element.
    """
    size = np.dtype(dtype).itemsize
    if not 0 <= offset < PAGE or offset % size:
        raise InputError(
            f"the offset {offset} is not allowed: take a multiple of {size} from 0 to "
            f"{PAGE - size}."
        )
    count = math.prod(shape)
    memory = np.zeros(count * size + PAGE, np.uint8)
    begin = (offset - memory.ctypes.data) % PAGE
    return memory[begin : begin + count * size].view(dtype).reshape(shape)


def by_lines() -> Place:
    """Successive arrays begin 13 cache lines further within the page; the 65th as the first."""
    made = 0

    def place(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray:
        nonlocal made
        made += 1
        return at_offset(shape, dtype, made * STRIDE * LINE % PAGE)

    return place


def by_pages() -> Place:
    """Every array begins on a page, as posix_memalign(4096) would have it: all of them alias."""
    return lambda shape, dtype: at_offset(shape, dtype, 0)


def by_numpy() -> Place:
    """Every array where NumPy's allocator puts it; large ones begin 64 bytes into a page."""
    return np.zeros


def by_arena(room: int = 64 << 20) -> Place:
    """One block of `room` bytes, arrays carved off one behind the other at cache lines."""
    block, used = at_offset((room,), np.uint8, 0), 0

    def place(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray:
        nonlocal used
        size = math.prod(shape) * np.dtype(dtype).itemsize
        begin, used = used, used + -(-size // LINE) * LINE
        if used > room:
            raise InputError(f"the arena of {room} bytes is full: give it {used} or more.")
        return block[begin : begin + size].view(dtype).reshape(shape)

    return place


class Workspace:
    """Buffers in the order in which a step asks for them; the next step gets the same ones."""

    def __init__(self, place: Place | None = None, reuse: bool = True) -> None:
        self.place = place or by_lines()
        self._reuse = reuse
        self._slots: list[NDArray] = []
        self._next = 0

    def begin(self) -> None:
        """A new step: all buffers are free again."""
        self._next = 0
        if not self._reuse:
            self._slots.clear()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray:
        """The next buffer, with what the last step left in it; a new one if the shape differs."""
        index, self._next = self._next, self._next + 1
        if index < len(self._slots):
            found = self._slots[index]
            if found.shape == shape and found.dtype == dtype:
                return found
            self._slots[index] = self.place(shape, dtype)
        else:
            self._slots.append(self.place(shape, dtype))
        return self._slots[index]
