"""The network as searches ask it: int8, or its float twin; evaluators.py declares it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from experiments.selfplay.evaluators import LOG_2, ONE, declare, odds
from experiments.selfplay.games import Game

Floats = NDArray[np.float32]


def shown(states: NDArray[np.int8]) -> NDArray[np.int8]:
    """Planes as the network reads them."""
    return states * np.int8(ONE)


class Int8:
    """A trainer's network as it is now. `values` runs it without the policy; as all is whole
    numbers, the values are the same bits."""

    def __init__(self, es: eg.Trainer, game: Game, hidden: list[int]) -> None:
        self.model = es.model
        part = declare(game, hidden, False)
        weights = es.weights
        mine = {leaf.name: weights[leaf.name] for leaf in part.leaves}
        self.part = eg.Trainer(part, weights=mine, threads=es.options.threads).model

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Natural logits float32 [n, A] and values float32 [n] of planes [n, F]."""
        outputs = self.model(shown(states))
        logits = outputs["policy"].astype(np.float32) * np.float32(LOG_2 / 16)
        return logits, odds(outputs["value"][:, 0])

    def values(self, states: NDArray[np.int8]) -> Floats:
        """Values alone, float32 [n]."""
        return odds(self.part(shown(states))[:, 0])


class Float:
    """The float twin with some weights. model: rows int8 [n, F] -> outputs in bits, by name."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, states: NDArray[np.int8], legal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Natural logits float32 [n, A] and values float32 [n] of planes [n, F]."""
        outputs = self.model(shown(states))
        logits, value = (np.asarray(outputs[n], np.float32) for n in ("policy", "value"))
        return logits * np.float32(LOG_2), np.tanh(value[:, 0] * np.float32(LOG_2 / 2))
