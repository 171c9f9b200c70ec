"""A float network as the int8 one of integers.py, with scales that follow from its weights.

    clamp 0 .. 1      is 0 .. 127, so activations have the scale 127
    ft                127 x 2^s: the engine shifts the sums right by s, the largest s (at most 7) at
                      which one in 10,000 weights at most is beyond +-127
    biases            127, added to what is held at +-127 already; see `with_room_for_biases`
    l1                16 floor(sqrt 2M), by which the engine divides: 1.0 x 1.0 becomes 127 again;
                      it allows weights within +-127 / that
    l2                127 / its largest weight: the sum is the caller's, so any scale will do

Shifts and divisions round down, which takes half a unit of what is cut off in the mean: the bias
behind them gives it back. l2's bias is a number that the caller adds. Virtual features are
coalesced first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.spec.fixed_point import divisor
from experiments.nnue import integers, native
from experiments.nnue.loader import Batch, coalesce
from experiments.nnue.losses import Real
from experiments.nnue.shape import Parts, Shape

ONE = 127
BEYOND = 1e-4  # of the weights of ft, at most
MOST_SHIFT = 7


class Integers(NamedTuple):
    """An int8 network, and what makes its value a logit: (value + offset) / scale.

    clipped: the share of each leaf's weights that are beyond +-127.
    """

    net: eg.Program
    weights: dict[str, NDArray[np.int8]]
    shape: Shape
    active: int
    scale: float
    offset: int
    shift: int
    clipped: dict[str, float]

    @property
    def model(self) -> eg.Model:
        """The network in the integer engine."""
        return eg.Trainer(
            self.net, pop=2, estimator="feedback", rule="adam", weights=self.weights
        ).model

    def values(self, batch: Batch) -> NDArray[np.int32]:
        """What the network puts out [B], by the integer engine."""
        shown = native.pad(batch, self.active, self.shape.features)
        values: NDArray[np.int32] = self.model(features=shown)[:, 0]
        return values

    def logits(self, batch: Batch) -> Real:
        """Natural logits [B]."""
        found: Real = (self.values(batch) + self.offset) / self.scale
        return found


def shift_of(ft: NDArray[np.float32]) -> int:
    """The finest shift at which hardly a weight is beyond +-127."""
    for shift in range(MOST_SHIFT, 0, -1):
        if (np.abs(ft) * ONE * 2**shift > ONE).mean() <= BEYOND:
            return shift
    return 0


def plain(
    flat: NDArray[np.float32], shape: Shape, features: str
) -> tuple[NDArray[np.float32], Shape]:
    """The network without virtual features, which is equal."""
    parts = shape.split(flat)
    rows = np.asarray(coalesce(parts["ft"], features), np.float32)
    rest = [part.ravel() for name, part in parts.items() if name != "ft"]
    return np.concatenate([rows.ravel(), *rest]), shape._replace(features=len(rows))


def with_room_for_biases(parts: Parts) -> Parts:
    """An equal network whose clipped ReLU may clip before it adds the bias.

    clip(z) + b is right but where b < 0 and z > 1. There a unit is made smaller by c = 1 / (1 - b):
    clip(c z) + c b = c at least where z + b = 1, and the layer behind it takes c back.
    """
    first, second = (1 / (1 - np.minimum(parts[f"{name}.bias"], 0)) for name in ("ft", "l1"))
    return {
        "ft": parts["ft"] * first,
        "ft.bias": parts["ft.bias"] * first,
        "l1": parts["l1"] / np.tile(first, 2) * second[:, None],
        "l1.bias": parts["l1.bias"] * second,
        "l2": parts["l2"] / second,
        "l2.bias": parts["l2.bias"],
    }


def quantise(flat: NDArray[np.float32], shape: Shape, features: str) -> Integers:
    """The int8 network of float weights that were trained on a feature set."""
    if features.startswith("halfkp+"):
        flat, shape = plain(flat, shape, features)
        features = "halfkp"
    parts = with_room_for_biases(shape.split(flat))
    shift, inner = shift_of(parts["ft"]), float(divisor(2 * shape.width))
    largest = float(np.abs(parts["l2"]).max()) or 1.0
    scales = {
        "ft": ONE * 2.0**shift, "ft.bias": float(ONE), "l1": inner, "l1.bias": float(ONE),
        "value": ONE / largest,
    }  # fmt: skip
    real = {name: parts[name] for name in ("ft", "ft.bias", "l1", "l1.bias")}
    real |= {"ft.bias": np.tile(parts["ft.bias"], 2), "value": parts["l2"]}
    real["ft.bias"] = real["ft.bias"] + (1 - 2.0**-shift) / 2 / ONE
    real["l1.bias"] = real["l1.bias"] + 0.5 / ONE
    weights = {name: eg.quantise(real[name], scales[name]) for name in real}
    clipped = {name: float((np.abs(real[name]) * scales[name] > ONE + 0.5).mean()) for name in real}
    active = integers.active_of(features)
    scale = ONE * scales["value"]
    offset = round(float(parts["l2.bias"][0]) * scale)
    net = integers.program(shape, active, shift)
    assert list(weights) == [leaf.name for leaf in net.leaves]
    return Integers(net, weights, shape, active, scale, offset, shift, clipped)
