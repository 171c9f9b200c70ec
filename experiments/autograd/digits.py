"""Digits by gradients on the tape and by evolution without: the same network 64-256-10.

The 1,797 images of 8 x 8 pixels that scikit-learn brings along: 1,400 train, 397 validate. The loss
is the cross-entropy in bits. Seconds are those of updates, validation apart. Letters: B images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.errors import InputError
from experiments.autograd import networks, nodes
from experiments.autograd.native import Native
from experiments.autograd.optimisers import Adam, Sgd
from experiments.autograd.tape import Tape
from experiments.autograd.timing import Clock

HIDDEN, TRAINING = 256, 1400
RATES = {"sgd": 0.5, "adam": 0.005}  # at first; they fall to 0
BATCH = 128
POPULATION, IMAGES = 256, 64  # of evolution: members, and images of a pair


class Digits(NamedTuple):
    """pixels: int8 [B, 64], 0..112; labels: int32 [B], 0..9."""

    pixels: NDArray[np.int8]
    labels: NDArray[np.int32]


class Look(NamedTuple):
    """A validation: updates and their seconds so far, loss in bits, images right in per cent.

    rows: images that the network, or a member of the population, was shown in training so far.
    """

    method: str
    seed: int
    updates: int
    seconds: float
    rows: int
    loss: float
    accuracy: float


class Settings(NamedTuple):
    updates: int  # of SGD and Adam
    evolution_updates: int
    look: int  # updates between two validations
    threads: int
    clock: Clock


def load() -> tuple[Digits, Digits]:
    """Training and validation.

    Raises:
        InputError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("scikit-learn is missing: pip install '.[examples]' brings it.") from None
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    parts = order[:TRAINING], order[TRAINING:]
    pixels, labels = (7 * found.data).astype(np.int8), found.target.astype(np.int32)
    train, valid = (Digits(pixels[part], labels[part]) for part in parts)
    return train, valid


def judge(bits: NDArray, labels: NDArray[np.int32]) -> tuple[float, float]:
    """Mean cross-entropy in bits of logits in bits [B, 10], and the per cent that are right."""
    bits = bits.astype(np.float64)
    top = bits.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log2(np.exp2(bits - top).sum(axis=1))
    right = bits[np.arange(len(labels)), labels]
    return float((total - right).mean()), 100 * float((bits.argmax(axis=1) == labels).mean())


def gradient(
    method: str, seed: int, settings: Settings, train: Digits, valid: Digits
) -> Iterator[Look]:
    """SGD or Adam on the tape, the network one native node, its mask of bits."""
    tape = Tape(Native(settings.threads))
    layers = [tape.parameter(w) for w in networks.initial(64, HIDDEN, 10, seed)]
    optimiser = {"sgd": Sgd, "adam": Adam}[method](tape, RATES[method])
    chance, seconds = np.random.default_rng(seed), 0.0
    pixels = train.pixels.astype(np.float32) / 64
    unseen = valid.pixels.astype(np.float32) / 64
    for step in range(1, settings.updates + 1):
        began = settings.clock()
        batch = chance.integers(0, len(train.labels), BATCH)
        optimiser.rate = RATES[method] * (1 - (step - 1) / settings.updates)
        tape.begin()
        logits = networks.mlp(tape, tape.constant(pixels[batch]), layers, mask="bits")
        tape.backward(nodes.cross_entropy(tape, logits, train.labels[batch]))
        optimiser.step()
        seconds += settings.clock() - began
        if step % settings.look == 0 or step == settings.updates:
            judging = Tape(Native(settings.threads))
            logits = networks.mlp(judging, judging.constant(unseen), layers)
            found = judge(logits.data / np.log(2), valid.labels)
            yield Look(method, seed, step, seconds, step * BATCH, *found)


def evolution(
    method: str, seed: int, settings: Settings, train: Digits, valid: Digits
) -> Iterator[Look]:
    """Token credit: noise on the outputs of layers, credited image by image; no gradient."""
    es = eg.Trainer(
        eg.networks.mlp(64, [HIDDEN], 10), pop=POPULATION, estimator="token-credit",
        rule="whitened", learning_rate=1, sigma_shift=3, steps=settings.evolution_updates,
        seed=seed, threads=settings.threads,
    )  # fmt: skip
    chance, seconds = np.random.default_rng(seed), 0.0
    while es.step < settings.evolution_updates:
        began = settings.clock()
        batch = chance.integers(0, len(train.labels), (POPULATION // 2, IMAGES))
        bits = es.ask()(train.pixels[batch]) / np.float32(16)
        right = train.labels[batch].repeat(2, axis=0)[..., None]
        es.tell(np.take_along_axis(bits, right, -1)[..., 0] - np.log2(np.exp2(bits).sum(-1)))
        seconds += settings.clock() - began
        if es.step % settings.look == 0 or es.step == settings.evolution_updates:
            found = judge(es.model(valid.pixels) / 16, valid.labels)
            rows = es.step * POPULATION * IMAGES
            yield Look(method, seed, es.step, seconds, rows, *found)


METHODS: dict[str, Callable[..., Iterator[Look]]] = {
    "sgd": gradient,
    "adam": gradient,
    "eggroll": evolution,
}
