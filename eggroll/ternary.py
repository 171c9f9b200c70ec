"""Signs of pairs, five ternary digits to a byte: 1.6 bits for each of -1, 0 and 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS = 5  # to a byte: 3^5 = 243 of its 256 values
_PLACES = 3 ** np.arange(DIGITS, dtype=np.int32)


def packed_size(count: int) -> int:
    """Bytes that `count` signs take."""
    return -(-count // DIGITS)


def pack(signs: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Signs -1, 0 and 1, int8 [n], as bytes uint8 [ceil(n / 5)]; the first has the lowest digit.

    Raises:
        ValueError: one is none of the three.
    """
    if abs(signs.astype(np.int16)).max(initial=0) > 1:
        raise ValueError("a sign other than -1, 0 and 1 cannot be packed")
    digits = np.ones((packed_size(len(signs)), DIGITS), np.int32)
    digits.reshape(-1)[: len(signs)] = signs + np.int32(1)
    return (digits @ _PLACES).astype(np.uint8)


def unpack(data: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """The first `count` signs in packed bytes, int8 [count].

    Raises:
        ValueError: another number of bytes, or bytes that `pack` does not make.
    """
    if len(data) != packed_size(count):
        raise ValueError(f"{count} signs take {packed_size(count)} bytes, not {len(data)}")
    if (data >= 3**DIGITS).any():
        raise ValueError(f"a byte of packed signs is {data.max()}: below {3**DIGITS} is needed")
    digits = data[:, None] // _PLACES % 3 - 1
    rest = digits.reshape(-1)[count:]
    if rest.any():
        raise ValueError("signs beyond the last are packed as well")
    return digits.reshape(-1)[:count].astype(np.int8)
