"""Learners: errors carried back in integers, token credit, and Adam in float, on the same data.

All three begin with the same weights and are shown the same positions in the same order. Letters:
B positions of an update, A actions.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.baseline.backprop import AdamW
from eggroll.baseline.twin import dequantise
from eggroll.baseline.twin_numpy import twin_for
from eggroll.errors import InputError
from eggroll.files import write_whole
from eggroll.library.gradient_trainer import FloatModel
from eggroll.networks import initial_weights
from eggroll.spec.program import Leaves
from eggroll.training.checkpoint import signature
from experiments.selfplay import labels
from experiments.selfplay.evaluators import LOG_2, Int8, Native, declare, library
from experiments.selfplay.games import find
from experiments.selfplay.network import Twin, scaled
from experiments.selfplay.operations import Evaluate
from experiments.selfplay.settings import Settings

PAIRS = 32  # of token credit; every pair reads positions of its own
RATES = {"feedback": 1.5, "token-credit": 1.5, "adam": 0.03}
FINEST = 64  # values told to token credit are whole numbers of 1/64 bit
BETAS = (0.9, 0.999)


class Positions(NamedTuple):
    """What an update learns from.

    state: int8 [B, F] planes; visits: whole numbers [B, A]; units: int64 [B], values in 1/32,768;
    legal: bool [B, A].
    """

    state: NDArray[np.int8]
    visits: NDArray[Any]
    units: NDArray[np.int64]
    legal: NDArray[np.bool_]


class Loss(NamedTuple):
    """Mean cross entropies in bits, and what of the policy's is the entropy of the visits."""

    policy: float
    value: float
    entropy: float


class Learner(Protocol):
    """A network that learns; step: updates made."""

    @property
    def step(self) -> int: ...

    @property
    def signature(self) -> str:
        """Hex sha256 of the weights."""

    def learn(self, positions: Positions) -> None:
        """Makes an update."""

    def evaluator(self) -> Evaluate:
        """The network as it is now, for a search."""

    def leaves(self) -> Leaves:
        """Its weights, float32 by name; an int8 of 16 is 1."""

    def save(self, path: Path) -> None:
        """Writes all that `load` needs to go on, whole or not at all."""


class Feedback:
    """Errors of policy and value, made and carried back in integers."""

    options: ClassVar[dict[str, Any]] = {"estimator": "feedback", "rule": "adam"}

    def __init__(self, settings: Settings, es: eg.Trainer) -> None:
        self.settings, self.es = settings, es

    @classmethod
    def new(cls, settings: Settings, threads: int) -> Self:
        """Before the first update."""
        return cls(
            settings,
            eg.Trainer(
                network_of(settings), steps=settings.total_updates, seed=settings.seed,
                learning_rate=rate_of(settings), threads=threads, **cls.options,
            ),
        )  # fmt: skip

    @classmethod
    def load(cls, path: Path, settings: Settings, threads: int) -> Self:
        """As `save` left it."""
        return cls(settings, eg.Trainer.load(path, network_of(settings), threads=threads))

    @property
    def step(self) -> int:
        return self.es.step

    @property
    def signature(self) -> str:
        return self.es.signature

    def learn(self, positions: Positions) -> None:
        keys = self.es.keys(len(positions.state))

        def errors(outputs: dict[str, NDArray[np.int8]]) -> dict[str, NDArray[np.int8]]:
            A = positions.legal.shape[1]
            words = labels.chance(keys, A + 1)
            return {
                "policy": labels.policy_errors(
                    outputs["policy"], positions.visits, positions.legal, words[:, :A]
                ),
                "value": labels.value_errors(outputs["value"], positions.units, words[:, A:]),
            }

        self.es.learn(scaled(positions.state), errors=errors)

    def evaluator(self) -> Evaluate:
        # The bits are the same: C++ is the faster one for the few rows that trees ask for, and for
        # many where it has instructions for them.
        if self.settings.depth > 1 or library().net_runs(1):
            return Native(self.es.weights)
        s = self.settings
        return Int8.of(find(s.game), s.layers, self.es.weights)

    def leaves(self) -> Leaves:
        return dequantise(self.es.weights)

    def save(self, path: Path) -> None:
        self.es.save(path)


class TokenCredit(Feedback):
    """Evolution: members with noise of their own on every row, told how likely its labels were."""

    options: ClassVar[dict[str, Any]] = {
        "estimator": "token-credit", "rule": "whitened", "pop": 2 * PAIRS, "sigma_shift": 3,
    }  # fmt: skip

    def learn(self, positions: Positions) -> None:
        rows = [part.reshape(PAIRS, -1, *part.shape[1:]) for part in positions]
        outputs = self.es.ask()(scaled(rows[0]))
        _, visits, units, legal = (part.repeat(2, axis=0) for part in rows)
        bits = (outputs[name].astype(np.float64) / 16 for name in ("policy", "value"))
        of_policy, of_value = labels.log_likelihood(*bits, visits, units, legal)
        self.es.tell(np.rint((of_policy + of_value) * FINEST))


class Adam:
    """The float twin of the same declaration, from the same weights, by its gradient and Adam."""

    def __init__(self, settings: Settings, threads: int) -> None:
        net = network_of(settings)
        self.twin, self.settings, self.step = twin_for(net, threads), settings, 0
        self.weights = dequantise(initial_weights(net, settings.seed))
        self.optimizer = AdamW(self.weights, BETAS, 0.0)

    @property
    def signature(self) -> str:
        return signature(self.weights)

    @property
    def rate(self) -> float:
        """The learning rate, which falls as that of rule adam does."""
        at = min(self.step / self.settings.total_updates, 1)
        rising = max(1, min(20, self.settings.total_updates // 10))
        falling = (1 - at) ** 2 * (1 + 2 * at)
        return rate_of(self.settings) * falling * min(1, (self.step + 1) / rising)

    def learn(self, positions: Positions) -> None:
        model = FloatModel(self.twin, self.weights)
        outputs = model(scaled(positions.state))
        policy, value = slopes(outputs, positions)
        assert model.back is not None
        gradient = model.back({"policy": mx.array(policy[None]), "value": mx.array(value[None])})
        self.weights = self.optimizer.update(self.weights, gradient, self.rate, 0.0)
        mx.eval(self.weights, self.optimizer.state)
        self.step += 1

    def evaluator(self) -> Evaluate:
        return Twin(FloatModel(self.twin, self.weights))

    def leaves(self) -> Leaves:
        return self.weights

    def save(self, path: Path) -> None:
        arrays = {f"weights/{name}": np.array(a) for name, a in self.weights.items()}
        arrays |= {f"moments/{name}": a for name, a in self.optimizer.arrays().items()}
        whole = io.BytesIO()
        np.savez(whole, step=np.array(self.step), **arrays)
        write_whole(path, whole.getvalue())

    def restore(self, path: Path) -> None:
        """Goes back to what `save` wrote."""
        with np.load(path) as kept:
            self.step = int(kept["step"])
            self.weights = {n: mx.array(kept[f"weights/{n}"]) for n in self.weights}
            moments = {n.removeprefix("moments/"): kept[n] for n in kept if n.startswith("moments")}
        self.optimizer.restore(moments, self.step)


def slopes(
    outputs: dict[str, Any], positions: Positions
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Slopes of the mean loss in bits at the outputs, [B, A] and [B, 1]: found less wanted."""
    u, v = (np.asarray(outputs[name], np.float64) for name in ("policy", "value"))
    masked = np.where(positions.legal, u, -np.inf)
    powers = np.exp2(masked - masked.max(axis=1, keepdims=True))
    shares = labels.visit_shares(positions.visits, positions.legal)
    policy = powers / powers.sum(axis=1, keepdims=True) - shares
    policy *= shares.any(axis=1, keepdims=True)
    wanted = (labels.WHOLE + positions.units[:, None]) / (2 * labels.WHOLE)
    value = 1 / (1 + np.exp2(-v)) - wanted
    B = len(u)
    return (policy / B).astype(np.float32), (value / B).astype(np.float32)


def rate_of(settings: Settings) -> float:
    """The learning rate of a run."""
    return settings.rate or RATES[settings.learner]


def network_of(settings: Settings) -> eg.Program:
    """The declaration of a run's network."""
    return declare(find(settings.game), settings.layers, True)


INTEGERS = {"feedback": Feedback, "token-credit": TokenCredit}


def new(settings: Settings, threads: int = 1) -> Learner:
    """The learner of a run before its first update."""
    if settings.learner == "adam":
        return Adam(settings, threads)
    return INTEGERS[settings.learner].new(settings, threads)


def load(path: Path, settings: Settings, threads: int = 1) -> Learner:
    """The learner that `save` wrote.

    Raises:
        InputError: the file is missing or damaged.
    """
    if settings.learner != "adam":
        return INTEGERS[settings.learner].load(path, settings, threads)
    learner = Adam(settings, threads)
    try:
        learner.restore(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({type(error).__name__}): name a new folder, or put "
            "back the file."
        ) from None
    return learner


def loss(evaluate: Evaluate, positions: Positions) -> Loss:
    """What a network's answers cost on positions, on average."""
    logits, value = evaluate(positions.state, positions.legal)
    win = np.clip((1 + value.astype(np.float64)) / 2, 1e-9, 1 - 1e-9)
    of_policy, of_value = labels.log_likelihood(
        logits.astype(np.float64) / LOG_2, np.log2(win / (1 - win))[:, None],
        positions.visits, positions.units, positions.legal,
    )  # fmt: skip
    shares = labels.visit_shares(positions.visits, positions.legal)
    entropy = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=1)
    return Loss(-float(of_policy.mean()), -float(of_value.mean()), float(entropy.mean()))
