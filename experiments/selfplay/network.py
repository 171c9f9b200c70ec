"""The float twin of the network as searches ask it; evaluators.py has it in int8."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.selfplay.evaluators import LOG_2, ONE

Floats = NDArray[np.float32]


def scaled(states: NDArray[np.int8]) -> NDArray[np.int8]:
    """Planes as the network reads them."""
    return states * np.int8(ONE)


class Twin:
    """The float twin with some weights. model: rows int8 [n, F] -> outputs in bits, by name."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Natural logits float32 [n, A] and values float32 [n] of planes [n, F]."""
        outputs = self.model(scaled(states))
        logits, value = (np.asarray(outputs[n], np.float32) for n in ("policy", "value"))
        return logits * np.float32(LOG_2), np.tanh(value[:, 0] * np.float32(LOG_2 / 2))
