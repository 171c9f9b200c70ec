"""Fits the polynomials of elements.h and writes them: `python fit_polynomials.py >polynomials.h`.

Weighted least squares at Chebyshev nodes, in double precision; the weight is the reciprocal of the
result's size, so that relative errors count. The highest power comes first, as Horner's rule reads
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

SPLIT = 1.0  # where erf goes over from x R(x^2) to 1 - exp(-Q(x))
END = 4.0  # where erf rounds to 1
NORMAL_END = 6.0  # where the normal distribution does


def fit(
    f: Callable[[float], float],
    low: float,
    high: float,
    degree: int,
    weight: Callable[[float], float],
) -> list[float]:
    """Coefficients of the polynomial nearest to f on low .. high, highest power first."""
    nodes = np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    x = low + (high - low) * (nodes + 1) / 2
    w = np.array([weight(v) for v in x])
    basis = np.polynomial.chebyshev.chebvander(nodes, degree)
    target = np.array([f(v) for v in x])
    series = np.linalg.lstsq(basis * w[:, None], target * w, rcond=None)[0]
    in_nodes = np.polynomial.Polynomial(np.polynomial.chebyshev.cheb2poly(series))
    line = np.polynomial.Polynomial([-(high + low) / (high - low), 2 / (high - low)])
    return list(in_nodes(line).coef[::-1])


def exp_rest(r: float) -> float:
    """(exp(r) - 1 - r) / r^2."""
    return sum(r**i / math.factorial(i + 2) for i in range(14))


def tanh_rest(z: float) -> float:
    """(tanh(x) / x - 1) / x^2 of z = x^2."""
    x = math.sqrt(z)
    return (math.tanh(x) / x - 1) / z if z > 1e-3 else -1 / 3 + 2 * z / 15 - 17 * z * z / 315


def erf_rest(z: float) -> float:
    """erf(x) / x - 1 of z = x^2."""
    x = math.sqrt(z)
    return math.erf(x) / x - 1


def normal_tail(t: float) -> float:
    """(1 - Phi(t)) exp(t^2 / 2), of the normal distribution Phi."""
    return 0.5 * math.erfc(t / math.sqrt(2)) * math.exp(t * t / 2)


HALF = math.log(2) / 2
POLYNOMIALS = {
    "kExp": fit(exp_rest, -HALF, HALF, 4, lambda r: 1.0),
    "kTanh": fit(tanh_rest, 1e-9, 0.625**2, 4, lambda z: 1.0),
    "kErf": fit(erf_rest, 1e-9, SPLIT**2, 6, lambda z: 1.0),
    "kErfTail": fit(lambda t: -math.log(math.erfc(t)), SPLIT, END, 7, lambda t: math.erfc(t)),
    "kNormalTail": fit(normal_tail, 0, NORMAL_END, 11, lambda t: math.exp(-t * t / 2)),
}


def text() -> str:
    """The header."""
    lines = ["// Written by fit_polynomials.py; highest power first.", "#pragma once", ""]
    lines += ["namespace float_kernels_impl {", ""]
    lines += [f"inline constexpr float kErfSplit = {SPLIT}f, kErfEnd = {END}f;"]
    lines += [f"inline constexpr float kNormalEnd = {NORMAL_END}f;"]
    for name, coefficients in POLYNOMIALS.items():
        lines += [f"inline constexpr float {name}[] = {{"]
        lines += [f"    {np.float32(c):.9e}f," for c in coefficients]
        lines += ["};"]
    return "\n".join([*lines, "", "}  // namespace float_kernels_impl"])


if __name__ == "__main__":
    print(text())
