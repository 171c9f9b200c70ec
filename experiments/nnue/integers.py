"""The network of shape.py in int8, trained in integers by the library: `feedback` and evolution.

    x = relu(mover's sums of ft, then the other's, + bias); h = relu(l1 x + bias); value = l2 h

Clipped ReLU is relu, as every int8 value is held at 127. l2 has no bias. u = value / (16
floor(sqrt N)) says that the mover's expected result is 1 / (1 + 2^(-u / 16)).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.errors import InputError
from eggroll.networks import initial_weights
from eggroll.spec.backward import first_feedback
from eggroll.spec.fixed_point import divisor
from experiments.nnue import native
from experiments.nnue.features import blocks_of
from experiments.nnue.loader import Batch, coalesce
from experiments.nnue.losses import Loss, Real, sigmoid, targets
from experiments.nnue.shape import Shape

ONE = 127  # a probability of 1
CONSTANT = 64  # of the hidden unit that begins as one


def active_of(features: str) -> int:
    """Indices of a list at most: K's one stands there as often as its value says."""
    most = {"768": 32, "pairs": 120}  # of 16 pawns
    return sum(most.get(block, 30) for block in blocks_of(features))


def program(shape: Shape, active: int, shift: int = 0) -> eg.Program:
    """The network. active: indices of a list; shift: right shift of the sums of ft."""
    net = eg.Program()
    sums = net.features("ft", shape.features, shape.width, active=active, lists=2, shift=shift)
    x = net.relu(net.bias(sums, "ft.bias"))
    h = net.bias(net.linear(x, "l1", shape.hidden), "l1.bias")
    net.sums(net.relu(h), "value", 1)
    return net


def logits(values: NDArray[np.int32], hidden: int) -> Real:
    """Natural logits of the values of `sums`: [..]."""
    found: Real = values * (math.log(2) / 16 / divisor(hidden))
    return found


@cache
def table_of_labels(loss: Loss) -> NDArray[np.int8]:
    """Targets in 1/127 of all results and scores, int8 [3, 65536], each from its least on."""
    scores, results = np.arange(-(1 << 15), 1 << 15, dtype=np.int16), np.arange(-1, 2)
    found = [targets(loss, scores, np.full(len(scores), r, np.int8)) for r in results]
    return np.rint(ONE * np.array(found)).astype(np.int8)


def plain_rows(ft: NDArray[np.int8], features: str) -> NDArray[np.int8]:
    """Rows of a factorised set as those of HalfKP; sums are held at +-127."""
    held: NDArray[np.int8] = np.clip(coalesce(ft, features), -ONE, ONE).astype(np.int8)
    return held


def first_weights(net: eg.Program, features: str, seed: int) -> dict[str, NDArray[np.int8]]:
    """First weights: the library's, but a piece on a square begins alike for all kings' squares.

    So rows that are hardly ever seen are no noise. With the factor P theirs begin as 0.
    """
    drawn = {name: np.array(leaf) for name, leaf in initial_weights(net, seed).items()}
    if features.startswith("halfkp"):
        rows = drawn["ft"][: native.REAL].reshape(-1, native.BLOCK, drawn["ft"].shape[1])
        rows[:] = 0 if "p" in blocks_of(features) else rows[:1].copy()
    return drawn


def mirrored(net: eg.Program, features: str, seed: int) -> dict[str, NDArray[np.int8]]:
    """First weights whose matrices are those that carry errors back.

    One output's error has one sign for most positions at first. Carried through other random
    matrices it drives all hidden units of a kind the same way, where they die; they never part
    again. Begun alike, and moved alike, the two sets of matrices stay equal in every bit.

    But the last hidden unit begins as a constant, its errors carried back by matrices of their own,
    so that `value` has a bias: without one, with some seeds all units that count against the mover
    die first, and it is never negative again.
    """
    drawn = first_weights(net, features, seed)
    back = first_feedback(net, ("l1", "value"), seed)
    drawn |= {name: np.array(leaf) for name, leaf in back.items()}
    drawn["l1"][-1], drawn["l1.bias"][-1], drawn["value"][:, -1] = 0, CONSTANT, 0
    return drawn


class Feedback:
    """Errors carried back in integers, from WDL labels."""

    def __init__(
        self, shape: Shape, features: str, loss: Loss, seed: int = 0, *, steps: int,
        learning_rate: float = 1.0, shift: int = 3, threads: int = 1,
    ) -> None:  # fmt: skip
        self.shape, self.loss, self.shift = shape, loss, shift
        self.active = active_of(features)
        self.net = program(shape, self.active, shift)
        self.options: dict[str, Any] = {
            "pop": 2, "estimator": "feedback", "rule": "adam", "seed": seed, "steps": steps,
            "learning_rate": learning_rate, "threads": threads,
        }  # fmt: skip
        self.es = eg.Trainer(self.net, weights=mirrored(self.net, features, seed), **self.options)

    def remove_factoriser(self) -> None:
        """Adds P's rows to those of HalfKP, and goes on without them, the rule's memory anew.

        Raises:
            InputError: the features are not HalfKP + P.
        """
        if self.shape.features != native.REAL + native.BLOCK:
            raise InputError(
                f"{self.shape.features} features have no factoriser to remove: halfkp+p has one."
            )
        weights, done = self.es.weights, self.es.step / self.options["steps"]
        weights["ft"] = plain_rows(weights["ft"], "halfkp+p")
        self.shape, self.active = self.shape._replace(features=native.REAL), active_of("halfkp")
        left = max(self.options["steps"] - self.es.step, 1)
        rate = self.options["learning_rate"] * (1 - done) ** 2 * (1 + 2 * done)
        self.net = program(self.shape, self.active, self.shift)
        self.options |= {"steps": left, "learning_rate": rate}
        self.es = eg.Trainer(self.net, weights=weights, **self.options)

    def train(self, batch: Batch, rate: float = 0) -> None:
        """An update; its rate is the rule's own."""
        features, targets = native.examples(
            batch, self.active, self.shape.features, table_of_labels(self.loss)
        )
        self.es.learn(features=features, targets=targets, loss="sigmoid")

    def logits(self, batch: Batch) -> Real:
        """Natural logits [B] of the model."""
        values = self.es.model(features=native.shown(batch, self.active, self.shape.features))
        return logits(values[:, 0], self.shape.hidden)


class Evolution(Feedback):
    """Forward passes alone: `token-credit` by position, or `eggroll` by the mean of all.

    pairs: that see a position; with `eggroll` all members see the same ones. shift: of
    the sums of ft; the larger, the less they are moved by a row's step, most of which is noise.
    """

    def __init__(
        self, shape: Shape, features: str, loss: Loss, seed: int = 0, *, steps: int,
        estimator: str = "token-credit", rule: str = "whitened", pop: int = 64, pairs: int = 1,
        learning_rate: float = 4.0, sigma_shift: int = 3, shift: int = 5, threads: int = 1,
        fitness: str = "sign",
    ) -> None:  # fmt: skip
        self.shape, self.loss, self.shift = shape, loss, shift
        self.active = active_of(features)
        self.net = program(shape, self.active, shift)
        self.options = {
            "pop": pop, "seed": seed, "steps": steps, "learning_rate": learning_rate,
            "sigma_shift": sigma_shift, "threads": threads, "estimator": estimator, "rule": rule,
            "fitness": fitness,
        }  # fmt: skip
        self.es = eg.Trainer(
            self.net, weights=first_weights(self.net, features, seed), **self.options
        )
        self.readers = 1 if estimator == "eggroll" else pop // 2 // pairs

    def train(self, batch: Batch, rate: float = 0) -> None:
        """An update by the positions' losses; those that fill no reader's rows are left out."""
        rows = len(batch.stm) // self.readers
        shown = native.pad(batch, self.active, self.shape.features)[: rows * self.readers]
        values = self.es.ask()(features=shown.reshape(self.readers, rows, 2, self.active))
        wanted = targets(self.loss, batch.score, batch.result)[: rows * self.readers]
        p = sigmoid(logits(values[..., 0], self.shape.hidden))
        each = np.repeat(wanted.reshape(self.readers, rows), len(p) // self.readers, axis=0)
        value = -np.square(p - each)
        self.es.tell(value if self.readers > 1 else value.mean(axis=1))
