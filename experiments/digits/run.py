"""Handwritten digits by an int8 MLP, accuracy over seconds: `python -m experiments.digits`

The 1,797 images of 8 x 8 pixels that scikit-learn brings along (`pip install '.[examples]'`): the
first 1,400 train, the other 397 validate. The loss is the cross-entropy in bits of the logits,
which int8 has in 1/16 bit. Seconds are those of updates, validation apart. See RESULTS.md.
Letters: B images of a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib
import mlx.core as mx
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray

from eggroll import engines
from eggroll.files import check_apart
from eggroll.library.gradient_trainer import GradientTrainer
from eggroll.library.members import Model
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp
from eggroll.spec.program import Program
from experiments.arguments import (
    above_0,
    check_packages,
    experiment,
    new_file,
    new_picture,
    positive,
    whole,
    write_csv,
)

matplotlib.use("Agg")

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
    """Training and validation.

    Raises:
        InputError: scikit-learn is missing.
    """
    check_packages("examples", "scikit-learn")
    from sklearn.datasets import load_digits

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


def token_credit(
    net: Program, seed: int, args: argparse.Namespace, train: Digits, valid: Digits
) -> Iterator[Seen]:
    """Evolution by noise on the outputs of layers, credited image by image."""
    es = Trainer(
        net, pop=256, estimator="token-credit", rule="whitened", learning_rate=1, sigma_shift=3,
        steps=args.evolution_updates, seed=seed, threads=args.threads,
    )  # fmt: skip
    return evolution(es, (es.pop // 2, 64), args, train, valid)


def eggroll(
    net: Program, seed: int, args: argparse.Namespace, train: Digits, valid: Digits
) -> Iterator[Seen]:
    """Evolution by noise on the weights, one vote per pair: the default."""
    es = Trainer(net, pop=1024, steps=args.evolution_updates, seed=seed, threads=args.threads)
    return evolution(es, (1, 64), args, train, valid)


def evolution(
    es: Trainer, shape: tuple[int, int], args: argparse.Namespace, train: Digits, valid: Digits
) -> Iterator[Seen]:
    """Updates by the likelihood in bits of batches [groups, images]; a group sees the same."""
    chance, seconds = np.random.default_rng(es.options.seed), 0.0
    while es.step < es.options.steps:
        began = time.perf_counter()
        batch = chance.integers(0, len(train.labels), shape)
        bits = es.ask()(train.pixels[batch]) / np.float32(16)
        right = train.labels[batch].repeat(es.pop // len(batch), axis=0)[..., None]
        likelihood = np.take_along_axis(bits, right, -1)[..., 0] - np.log2(np.exp2(bits).sum(-1))
        es.tell(likelihood)
        seconds += time.perf_counter() - began
        if es.step % args.look == 0 or es.step == es.options.steps:
            found = share_right(es.model(valid.pixels), valid)
            yield Seen(es.step, seconds, found, found)


METHODS: dict[str, Callable[..., Iterator[Seen]]] = {
    "token-credit": token_credit,
    "eggroll": eggroll,
    "adam": adam,
}
COLOURS = dict(zip(METHODS, ("C0", "C1", "C2"), strict=True))


def picture(path: Path, rows: list[tuple[str, str, int, Seen]]) -> None:
    """Validation accuracy over seconds: a panel for each network, a line for each run."""
    names = list(dict.fromkeys(row[0] for row in rows))
    figure, panels = plt.subplots(1, len(names), figsize=(5 * len(names), 4), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for method, seed in dict.fromkeys(row[1:3] for row in rows if row[0] == name):
            seen = [row[3] for row in rows if row[:3] == (name, method, seed)]
            panel.plot(
                [s.seconds for s in seen], [s.int8 for s in seen], COLOURS[method], alpha=0.6,
                label=method if seed == 0 else None,
            )  # fmt: skip
        panel.set(
            title=name, xlabel="seconds", ylabel="validation, % right as int8", ylim=(80, 100)
        )
        panel.legend(loc="lower right")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def summary(runs: list[list[Seen]]) -> str:
    last = [run[-1] for run in runs]

    def of(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    return (
        f"{last[0].updates} updates: {of([s.accuracy for s in last])} % right, as int8 "
        f"{of([s.int8 for s in last])} %, {of([s.seconds for s in last])} s"
    )


@experiment
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--updates", type=positive, default=600, help="of Adam")
    parser.add_argument("--evolution-updates", type=positive, default=300)
    parser.add_argument("--batch", type=positive, default=128)
    parser.add_argument("--learning-rate", type=above_0, default=0.03, help="at first; falls to 0")
    parser.add_argument("--look", type=positive, default=50, help="updates between two validations")
    parser.add_argument("--threads", type=whole(0, 1024), default=1)
    parser.add_argument("--csv", type=new_file, help="one row per validation")
    parser.add_argument("--picture", type=new_picture, help="accuracy over seconds")
    parser.add_argument("--smoke", action="store_true", help="one seed, few updates")
    args = parser.parse_args()
    check_apart({"--csv": str(args.csv or ""), "--picture": str(args.picture or "")})
    if args.smoke:
        args.seeds, args.updates, args.evolution_updates, args.look = 1, 20, 20, 10
    train, valid = load()
    rows: list[tuple[str, str, int, Seen]] = []
    for name in args.networks:
        for method in args.methods:
            runs = []
            for seed in range(args.seeds):
                net = mlp(64, NETWORKS[name], 10)
                runs.append(list(METHODS[method](net, seed, args, train, valid)))
                rows += [(name, method, seed, seen) for seen in runs[-1]]
            print(f"{name}, {method}: {summary(runs)}", flush=True)
    if args.csv:
        names = ("network", "method", "seed", *Seen._fields)
        write_csv(args.csv, names, ((*row[:3], *row[3]) for row in rows))
    if args.picture:
        picture(args.picture, rows)
