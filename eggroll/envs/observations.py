"""What networks read of an environment: its observations as int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.fixed_point import LIMIT
from eggroll.quantisation import quantise

# Observations of many environments, [n, ..] -> int8 [n, inputs].
Observe = Callable[[NDArray[Any]], NDArray[np.int8]]

FAR = 1e6  # a bound beyond which a value is as good as unbounded
UNBOUNDED = 32.0  # scale of a value without bounds: 1.0 is 32, what is beyond 4 is clipped


def scales(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float32]:
    """Scales for `quantise` of values within low..high [..]: the wider bound becomes 127.

    A value without bounds has the scale 32. float32 [n], of the values side by side.
    """
    bound = np.maximum(abs(low.astype(np.float64)), abs(high.astype(np.float64))).reshape(-1)
    known = (bound > 0) & (bound < FAR)
    return np.where(known, LIMIT / np.where(known, bound, 1), UNBOUNDED).astype(np.float32)


def observing(space: Any) -> Observe:
    """The function that makes int8 of observations of a Gymnasium space.

    Box: `quantise` with `scales` of its bounds, flat. Discrete: 64 at the place of the number, 0
    elsewhere.

    Raises:
        InputError: another space.
    """
    kind = type(space).__name__
    if kind == "Box":
        by = scales(space.low, space.high)
        return lambda seen: quantise(seen.reshape(len(seen), -1), by)
    if kind == "Discrete":
        hot = np.diag(np.full(int(space.n), 64, np.int8))
        return lambda seen: hot[seen - int(space.start)]
    raise InputError(
        f"observations are of a {kind} space: pass observe, a function that makes int8 [n, inputs] "
        "of them."
    )
