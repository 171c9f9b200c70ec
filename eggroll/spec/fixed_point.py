"""Q4 fixed point: the constants and the small integer tables every engine shares.

A real value v is stored as int8 round(16 v) in [-127, 127]; -128 never occurs. Accumulators are
int32 in two's complement, `>>` and `//` round toward minus infinity.
"""

from __future__ import annotations

from functools import cache
from math import erfc, exp, fsum, isqrt, sqrt, tanh
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError, array_of

Q: Final = 4
LIMIT: Final = 127
# 127 * 127 * EXACT_K < 2**24: float32 sums of int8 products are exact up to this many terms.
EXACT_K: Final = 1040


def root(n: int, bits: int) -> int:
    """floor(n ** (1 / 2**bits)) of an integer of any size, exactly."""
    for _ in range(bits):
        n = isqrt(n)
    return n


def root16(n: int) -> int:
    """floor(n ** (1/16)) of an integer of any size, exactly."""
    return root(n, 4)


@cache
def exp2_mantissas() -> NDArray[np.uint32]:
    """floor(2**(31 + f/16)) for f = 0..15, shape [16] uint32, of which all powers are shifts."""
    return np.array([root16(1 << (16 * 31 + f)) for f in range(16)], np.uint32)


def exact_exp2() -> NDArray[np.uint64]:
    """2**(31 + i/16) for i in 0..255, each by less than 2**-31 of itself too small: uint64 [256].

    Sums of up to 2**16 of them stay below 2**63.
    """
    i = np.arange(256, dtype=np.uint64)
    return exp2_mantissas().astype(np.uint64)[i % 16] << (i // 16)


def total_bits(totals: NDArray[np.uint64], hits: NDArray[np.int8]) -> float:
    """Cross-entropy in bits, summed over tokens, from what `Engine.likelihoods` gives.

    A token costs log2(total) - 31 - (hit + 128) / 16. The sum does not depend on the tokens' order.
    """
    steps = hits.sum(dtype=np.int64) + (128 + 16 * 31) * hits.size
    return fsum([*np.log2(totals.astype(np.float64)).reshape(-1), -float(steps) / 16])


def exp2_table(bits: int = 4) -> NDArray[np.int32]:
    """EXP2[i] = floor(2**(bits + i/16)) for i in 0..255, shape [256] int32."""
    i = np.arange(256)
    return (exp2_mantissas()[i % 16] >> (31 - bits - i // 16)).astype(np.int32)


@cache
def log2_breakpoints(bits: int = 4) -> NDArray[np.uint64]:
    """ceil(2**(63 + f / 2**bits)) for f = 1 .. 2**bits - 1, uint64.

    For n scaled to have its leading one at bit 63, the number of breakpoints <= n is the fraction
    of log2(n) in units of 2**-bits, so LOG2[n] = floor(2**bits log2(n / 2**bits)) =
    2**bits (leading_bit - bits) + fraction.
    """
    powers = (1 << ((63 << bits) + f) for f in range(1, 1 << bits))
    return np.array([root(power, bits) + 1 for power in powers], np.uint64)


def log2_fixed(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """log2 of whole numbers from 1 to 2^53, in 2^-16, by squaring 32 bits: the same everywhere."""
    part, whole = np.frexp(n.astype(np.float64))
    x = np.ldexp(part, 32).astype(np.uint64)  # without the bits below
    fraction = np.zeros(x.shape, np.uint64)
    for _ in range(16):
        x = x * x >> np.uint64(31)
        over = x >> np.uint64(32)
        fraction, x = 2 * fraction + over, x >> over
    found: NDArray[np.int64] = ((whole.astype(np.int64) - 1) << 16) + fraction.astype(np.int64)
    return found


def divisor(inputs: int) -> int:
    """The divisor 16 * floor(sqrt(K)) of a linear operation with K inputs."""
    return 16 * isqrt(inputs)


def gate_tables() -> dict[str, NDArray[np.int8]]:
    """The integer gates, int8 [255] each, indexed by v + 127 for v in -127..127 (Q4).

    `sigmoid`: round(254 * sigmoid(v / 16)) - 127, because a gate f acts as (f + 127) / 256.
    `tanh`: round(64 * tanh(v / 64)), slope one at zero and soft limits at 4.0 in Q4.
    No entry is near a rounding tie, so every C library gives the same table.
    """
    v = range(-LIMIT, LIMIT + 1)
    sigmoid = [round(254 / (1 + exp(-i / 16))) - LIMIT for i in v]
    return {
        "sigmoid": np.array(sigmoid, np.int8),
        "tanh": np.array([round(64 * tanh(i / 64)) for i in v], np.int8),
    }


def normal_cdf(x: float) -> float:
    """Distribution function of the standard normal."""
    return erfc(-x / sqrt(2)) / 2


@cache
def normal_quantiles() -> NDArray[np.int8]:
    """int8 [65536], read-only: 16-bit uniform u -> normal value of standard deviation 16 (Q4: 1.0).

    Entry u is the integer k whose interval [k - 1/2, k + 1/2) / 16 holds the quantile of
    (u + 1/2) / 65536, so the table is the inverse distribution function, rounded to nearest.
    """
    edges = [normal_cdf((k + 0.5) / 16) * 65536 - 0.5 for k in range(-LIMIT, LIMIT)]
    quantiles = (np.searchsorted(edges, np.arange(65536), side="right") - LIMIT).astype(np.int8)
    quantiles.setflags(write=False)  # as it is made once
    return quantiles


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
            raise InputError(
                f"scale is {by[~sound].item(0)}: a number above 0 that {kind} holds is needed."
            )
        product = np.multiply(array, held, dtype=kind)
    scaled = np.asarray(product)  # of a single number, NumPy makes no array
    np.rint(scaled, out=scaled)
    np.clip(scaled, -LIMIT, LIMIT, out=scaled)
    if np.isnan(scaled).any():
        first = np.argwhere(np.isnan(scaled))[0].tolist()
        raise InputError(f"x is NaN at {first}: every value must be a number.")
    out: NDArray[np.int8] = scaled.astype(np.int8)
    return out


def _real(name: str, value: ArrayLike) -> NDArray[Any]:
    array = array_of(name, value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} is {array.dtype}: real numbers are needed.")
    return array
