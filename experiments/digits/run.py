"""Handwritten digits by an int8 MLP, accuracy over seconds: `python -m experiments.digits`

The 1,797 images of 8 x 8 pixels that scikit-learn brings along (`pip install '.[examples]'`): the
first 1,400 train, the other 397 validate. The loss is the cross-entropy in bits of the logits,
which int8 has in 1/16 bit. Seconds are those of updates, validation apart. See RESULTS.md.
Letters: B images of a batch.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import engines
from eggroll.baseline.gradient_trainer import GradientTrainer
from eggroll.members import Model
from eggroll.networks import mlp
from eggroll.program import Program

NETWORKS = {"64-64-10": [64], "64-256-10": [256]}  # name -> hidden layers
TRAINING = 1400  # images


class Digits(NamedTuple):
    """pixels: int8 [B, 64], 0..112; labels: [B], 0..9."""

    pixels: NDArray[np.int8]
    labels: NDArray[np.int64]


class Seen(NamedTuple):
    """A look at a network on its way: validation accuracies in per cent.

    accuracy: as it is trained; int8: by the int8 network of its weights.
    """

    updates: int
    seconds: float
    accuracy: float
    int8: float


def load() -> tuple[Digits, Digits]:
    """Training and validation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("scikit-learn is missing: pip install '.[examples]' brings it.")
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    parts = order[:TRAINING], order[TRAINING:]
    pixels = (7 * found.data).astype(np.int8)
    train, valid = (Digits(pixels[part], found.target[part]) for part in parts)
    return train, valid


def slopes(bits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Of the mean cross-entropy in bits, by logits in bits [B, 10]: 2^u / sum 2^u, less the hit."""
    chances = np.exp2(bits - bits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    return chances / len(labels)


def share_right(logits: NDArray, digits: Digits) -> float:
    return 100 * float((logits.argmax(axis=1) == digits.labels).mean())


def adam(
    net: Program, seed: int, args: argparse.Namespace, train: Digits, valid: Digits
) -> Iterator[Seen]:
    """Adam on the float twin."""
    trainer = GradientTrainer(net, seed=seed, threads=args.threads)
    engine, _ = engines.choose("auto", net, 1)
    chance, seconds = np.random.default_rng(seed), 0.0
    for step in range(args.updates):
        began = time.perf_counter()
        batch = chance.integers(0, len(train.labels), args.batch)
        trainer.learning_rate = args.learning_rate * (1 - step / args.updates)
        logits = trainer.ask(train.pixels[batch])
        trainer.tell_gradient(slopes(logits, train.labels[batch]))
        seconds += time.perf_counter() - began
        if trainer.step % args.look == 0 or trainer.step == args.updates:
            whole = {
                name: mx.clip(mx.round(16 * w), -127, 127).astype(mx.int8)
                for name, w in trainer.weights.items()
            }
            found = (trainer.model(valid.pixels), Model(engine, whole)(valid.pixels))
            yield Seen(trainer.step, seconds, *(share_right(logits, valid) for logits in found))


METHODS: dict[str, Callable[..., Iterator[Seen]]] = {"adam": adam}


def summary(runs: list[list[Seen]]) -> str:
    last = [run[-1] for run in runs]

    def of(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    return (
        f"{last[0].updates} updates: {of([s.accuracy for s in last])} % right, as int8 "
        f"{of([s.int8 for s in last])} %, {of([s.seconds for s in last])} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.03, help="at first; falls to 0")
    parser.add_argument("--look", type=int, default=50, help="updates between two validations")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="one row per validation")
    args = parser.parse_args()
    train, valid = load()
    rows = []
    for name in args.networks:
        for method in args.methods:
            runs = []
            for seed in range(args.seeds):
                net = mlp(64, NETWORKS[name], 10)
                runs.append(list(METHODS[method](net, seed, args, train, valid)))
                rows += [(name, method, seed, *seen) for seen in runs[-1]]
            print(f"{name}, {method}: {summary(runs)}", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("network", "method", "seed", *Seen._fields))
            writer.writerows(rows)
