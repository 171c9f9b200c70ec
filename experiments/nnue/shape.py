"""The network of all trainers: ft [F, M] shared by two sides, l1 [N, 2 M], l2 [1, N], with biases.

    x = clamp(mover's sums of ft, then the other's); h = clamp(l1 x); y = l2 h

clamp is to 0 .. 1; y is the logit of the mover's expected result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Parts = dict[str, NDArray[np.float32]]


class Shape(NamedTuple):
    """Sizes: F features, M width of a side's accumulator, N hidden units."""

    features: int
    width: int
    hidden: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters, in the order in which they lie in a flat array."""
        F, M, N = self
        return {
            "ft": (F, M), "ft.bias": (M,), "l1": (N, 2 * M), "l1.bias": (N,), "l2": (1, N),
            "l2.bias": (1,),
        }  # fmt: skip

    def split(self, flat: NDArray[np.float32]) -> Parts:
        """Parameters by name, views of a flat array."""
        parts, at = Parts(), 0
        for name, shape in self.shapes().items():
            size = int(np.prod(shape))
            parts[name] = flat[at : at + size].reshape(shape)
            at += size
        assert at == len(flat)
        return parts

    def first(self, seed: int) -> NDArray[np.float32]:
        """First weights, flat: uniform, as of PyTorch's Linear with some 30 active inputs.

        Linear would draw ft within 1 / sqrt(F), as if all F inputs were active at once.
        """
        rng = np.random.default_rng([seed, 43])
        flat = np.empty(sum(int(np.prod(s)) for s in self.shapes().values()), np.float32)
        parts = self.split(flat)
        bounds = {"ft": 30, "l1": 2 * self.width, "l2": self.hidden}
        for name, part in parts.items():
            bound = bounds[name.split(".")[0]] ** -0.5
            part[:] = rng.uniform(-bound, bound, part.shape)
        parts["ft.bias"][:] = 0.5  # in the middle of the clamp
        parts["l2.bias"][:] = 0
        return flat
