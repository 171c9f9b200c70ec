"""Losses between evaluations: in WDL space, where 0 is a loss and 1 a win.

A network puts out the logit y of its expected result. An evaluation in centipawns becomes one by
`scale`: sigmoid(centipawns / scale). Letters: B positions; p the network's result, q the label's,
r the game's, all within 0 to 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError

SCALE = 410.0  # centipawns, of data by Stockfish
EPSILON = 1e-12  # keeps 0 from the logarithm
Real = NDArray[np.float64]


class Loss(NamedTuple):
    """A loss of p against the label and the game's result.

    cross_entropy: that, less the entropy of its target, so that its minimum is 0; else |p - t|^
    exponent; weight: of the label against the result (lambda), which blends the targets or, with
    `after`, the two losses.
    """

    cross_entropy: bool = False
    after: bool = False
    scale: float = SCALE
    weight: float = 1.0
    exponent: float = 2.0

    def check(self) -> Loss:
        """Itself.

        Raises:
            InputError: a number is out of range.
        """
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise InputError(
                f"--scale is {self.scale}: centipawns above 0 are needed, such as 410."
            )
        if not 0 <= self.weight <= 1:
            raise InputError(
                f"--lambda is {self.weight}: 0 (the game's result alone) to 1 (the score alone)."
            )
        if not 1 < self.exponent <= 16:
            raise InputError(f"--exponent is {self.exponent}: above 1 and up to 16 is allowed.")
        return self

    @property
    def name(self) -> str:
        kind = "cross entropy" if self.cross_entropy else f"|p - t|^{self.exponent:g}"
        when = "after" if self.after else "before"
        return kind if self.weight in (0, 1) else f"{kind}, lambda {self.weight:g} {when}"


def sigmoid(y: Any) -> Real:
    """1 / (1 + e^-y), float64, without overflow."""
    held = np.asarray(y, np.float64)
    small = np.exp(-np.abs(held))
    found: Real = np.where(held >= 0, 1, small) / (1 + small)
    return found


def targets(loss: Loss, score: NDArray[np.int16], result: NDArray[np.int8]) -> Real:
    """lambda q + (1 - lambda) r, float64 [B]."""
    q, r = sigmoid(score / loss.scale), (result + 1) / 2
    blend: Real = loss.weight * q + (1 - loss.weight) * r
    return blend


def between(loss: Loss, p: Real, t: Real) -> tuple[Real, Real]:
    """The loss of p against one target t, and its slope by p."""
    if not loss.cross_entropy:
        off = np.abs(p - t)
        slope = loss.exponent * off ** (loss.exponent - 1) * np.sign(p - t)
        return off**loss.exponent, slope
    own, other = (t * np.log(v + EPSILON) + (1 - t) * np.log(1 - v + EPSILON) for v in (t, p))
    return own - other, (1 - t) / (1 - p + EPSILON) - t / (p + EPSILON)


def lost(loss: Loss, p: Real, q: Real, r: Real) -> tuple[Real, Real]:
    """The loss of p against label and result, and its slope by p.

    Blended afterwards, the result's own entropy is taken from its loss, not the label's: so each
    of the two has its minimum 0 where p is its target.
    """
    if not loss.after:
        return between(loss, p, loss.weight * q + (1 - loss.weight) * r)
    (a, slope_a), (b, slope_b) = between(loss, p, q), between(loss, p, r)
    return (
        loss.weight * a + (1 - loss.weight) * b,
        loss.weight * slope_a + (1 - loss.weight) * slope_b,
    )


def lost_by_logit(
    loss: Loss, y: Real, score: NDArray[np.int16], result: NDArray[np.int8]
) -> tuple[Real, Real]:
    """The loss of logits y [B], and its slope by y."""
    p = sigmoid(y)
    value, slope = lost(loss, p, sigmoid(score / loss.scale), (result + 1) / 2)
    return value, slope * p * (1 - p)


def fitted_scale(score: NDArray[np.int16], result: NDArray[np.int8]) -> float:
    """The scale in centipawns under which the scores predict the results best.

    It minimises the cross entropy of the results, a draw counting as half a win, by bisection on
    its slope by 1 / scale, which rises: the loss is convex in 1 / scale.

    Raises:
        InputError: the scores say nothing of the results, or everything.
    """
    x, r = score.astype(np.float64), (result.astype(np.float64) + 1) / 2

    def slope(inverse: float) -> float:
        return float((x * (sigmoid(inverse * x) - r)).mean()) if len(x) else 0.0

    low, high = 1e-6, 1.0
    if not slope(low) < 0 < slope(high):
        raise InputError(
            f"The results of {len(x)} positions fix no scale of the scores: more games are needed, "
            "won and lost."
        )
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 1 / (low * high) ** 0.5
