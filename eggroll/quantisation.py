"""Quantisation: real numbers of any scale -> the int8 that networks read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.arrays import array_of
from eggroll.errors import InputError
from eggroll.fixed_point import LIMIT


def quantise(x: ArrayLike, scale: ArrayLike = 16) -> NDArray[np.int8]:
    """round(x * scale) as int8, clipped to -127..127, in the shape of x; halves go to even.

    x: real numbers [..]; scale: one number, or one for each value of the last axis. With 16 an
    int8 value is Q4: 1.0 becomes 16, and what is beyond 7.9 is clipped. The finer the better, as
    long as few values are clipped.

    Raises:
        InputError: NaN, no real numbers, or a scale of another shape or that is not positive.
    """
    array, by = _real("x", x), _real("scale", scale)
    if by.ndim and by.shape != array.shape[-1:]:
        raise InputError(
            f"scale has the shape {list(by.shape)}: one number is needed, or one for each of the "
            f"{array.shape[-1] if array.ndim else 1} values of a row."
        )
    kind = np.result_type(array, np.float32)
    with np.errstate(over="ignore"):  # what is beyond any number is clipped
        held = by.astype(kind)
        if not (sound := (held > 0) & np.isfinite(held)).all():  # NaN too
            raise InputError(f"scale is {by[~sound].item(0)}: a number above 0 is needed.")
        product = np.multiply(array, held, dtype=kind)
    scaled = np.asarray(product)  # of a single number, NumPy makes no array
    np.rint(scaled, out=scaled)
    np.clip(scaled, -LIMIT, LIMIT, out=scaled)
    if np.isnan(scaled).any():
        first = np.argwhere(np.isnan(scaled))[0].tolist()
        raise InputError(f"x is NaN at {first}: every value must be a number.")
    out: NDArray[np.int8] = scaled.astype(np.int8)
    return out


def _real(name: str, given: ArrayLike) -> NDArray[Any]:
    array = array_of(name, given)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} is {array.dtype}: real numbers are needed.")
    return array
