"""Fitness that is only a number, for one int8 network: `python -m experiments.black_box`

Every method has the network 4-16-1 (ReLU, biases, 97 weights) and is judged as int8 on what it has
not seen. An evaluation is one number of one network. Seconds are those of updates, judging apart.
See RESULTS.md.
Letters: P networks, R readers, T rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import mlx.core as mx
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray

import eggroll as eg
from eggroll import engines
from eggroll.files import check_apart
from eggroll.library.members import Model
from experiments.arguments import (
    above_0,
    experiment,
    new_file,
    new_picture,
    population,
    positive,
    whole,
    write_csv,
)
from experiments.black_box.problems import PROBLEMS, PROXIES, Network, Problem

matplotlib.use("Agg")

INPUTS, HIDDEN = 4, 16
# name -> what differs from the defaults of eg.Trainer.
EVOLUTION: dict[str, dict[str, Any]] = {
    "eggroll sign": {},
    "eggroll ranks": {"fitness": "ranks"},
    "eggroll centred": {"fitness": "centred"},
    "token-credit": {"estimator": "token-credit", "rule": "whitened"},
}
COLOURS = {
    "eggroll sign": "C0", "eggroll ranks": "C4", "eggroll centred": "C9", "token-credit": "C1",
    "random": "C7", "adam": "C2",
}  # fmt: skip


class Seen(NamedTuple):
    """A look at a run: the cost is of what was not seen in training."""

    evaluations: int
    seconds: float
    cost: float


class Step(NamedTuple):
    """The network after an update, and what it took."""

    evaluations: int
    seconds: float
    network: Network


def evolution(
    problem: Problem, seed: int, args: argparse.Namespace, **options: Any
) -> Iterator[Step]:
    """eg.Trainer; without token credit all rows of a member become one number."""
    net = eg.networks.mlp(INPUTS, [HIDDEN], 1)
    es = eg.Trainer(
        net, pop=args.pop, steps=args.updates, sigma_shift=args.sigma_shift, seed=seed,
        threads=args.threads, **options,
    )  # fmt: skip
    credited = es.options.estimator == "token-credit"
    while es.step < args.updates:
        began = time.perf_counter()
        values = problem.values(es.ask())
        es.tell(values if credited else problem.total(values))
        yield Step(args.pop, time.perf_counter() - began, es.model)


class Random:
    """P independent networks: matrices as first weights are, biases as matrices."""

    def __init__(self, chance: np.random.Generator, members: int) -> None:
        shapes = ((HIDDEN, INPUTS), (1, HIDDEN), (1, HIDDEN), (1, 1))
        drawn = (16 * chance.normal(size=(members, *shape)) for shape in shapes)
        weights = [np.rint(w).clip(-127, 127).astype(np.float32) for w in drawn]
        self.first, self.bias, self.second, self.last = weights
        self.members = members

    def __call__(self, rows: NDArray[np.int8]) -> NDArray[np.int8]:
        """As engines count, in float32, which is exact here."""
        x = self.layer(rows.astype(np.float32), self.first, self.bias, 32)
        return self.layer(np.maximum(x, 0), self.second, self.last, 64).astype(np.int8)

    @staticmethod
    def layer(x: NDArray, w: NDArray, b: NDArray, by: int) -> NDArray:
        sums = np.floor(x @ w.swapaxes(1, 2) / by).clip(-127, 127)
        return (sums + b).clip(-127, 127)

    def one(self, i: int) -> Random:
        """Network i alone."""
        found = object.__new__(Random)
        found.members = 1
        for name in ("first", "bias", "second", "last"):
            setattr(found, name, getattr(self, name)[i : i + 1])
        return found


def random(problem: Problem, seed: int, args: argparse.Namespace) -> Iterator[Step]:
    """The floor: the best in training of networks drawn one after another."""
    chance, best, most = np.random.default_rng(seed), None, -np.inf
    for _ in range(args.updates):
        began = time.perf_counter()
        drawn = Random(chance, args.pop)
        values = problem.total(problem.values(drawn))
        if values.max() > most:
            best, most = drawn.one(int(values.argmax())), values.max()
        yield Step(args.pop, time.perf_counter() - began, best)


def adam(problem: Problem, seed: int, args: argparse.Namespace) -> Iterator[Step]:
    """The ruler: Adam on the float twin, its rate falling to 0."""
    net = eg.networks.mlp(INPUTS, [HIDDEN], 1)
    trainer = eg.GradientTrainer(net, clip_norm=1, seed=seed, threads=args.threads)
    engine, _ = engines.choose("auto", net, 1)
    for step in range(args.adam_updates):
        began = time.perf_counter()
        trainer.learning_rate = args.learning_rate * (1 - step / args.adam_updates)
        problem.descend(trainer)
        seconds = time.perf_counter() - began
        whole = {
            name: mx.clip(mx.round(16 * w), -127, 127).astype(mx.int8)
            for name, w in trainer.weights.items()
        }
        yield Step(1, seconds, Model(engine, whole))


def run(name: str, method: str, seed: int, args: argparse.Namespace) -> list[Seen]:
    """One run, looked at when its evaluations have grown by a quarter, and at its end."""
    problem = PROBLEMS[name](seed)
    if method == "adam":
        steps = adam(PROXIES.get(name, PROBLEMS[name])(seed), seed, args)
    elif method == "random":
        steps = random(problem, seed, args)
    else:
        steps = evolution(problem, seed, args, **EVOLUTION[method])
    evaluations, seconds, seen, last = 0, 0.0, [], None
    for last in steps:
        evaluations, seconds = evaluations + last.evaluations, seconds + last.seconds
        if not seen or evaluations >= seen[-1].evaluations * 5 / 4:
            seen.append(Seen(evaluations, seconds, problem.cost(last.network)))
    if seen[-1].evaluations < evaluations:
        seen.append(Seen(evaluations, seconds, problem.cost(last.network)))
    return seen


def label(name: str, method: str) -> str:
    """What a method is called where it has a problem's smooth proxy instead of its own gradient."""
    return f"{method} by proxy" if method == "adam" and name in PROXIES else method


def picture(path: Path, found: dict[tuple[str, str], list[list[Seen]]], threads: int) -> None:
    """Cost over evaluations and over seconds: medians of the seeds and their ranges."""
    names = list(dict.fromkeys(name for name, _ in found))
    figure, panels = plt.subplots(len(names), 2, figsize=(12, 3 * len(names)), squeeze=False)
    for name, (left, right) in zip(names, panels, strict=True):
        for method in (m for n, m in found if n == name):
            runs = found[name, method]
            costs = np.array([[seen.cost for seen in run] for run in runs])
            seconds = np.median([[seen.seconds for seen in run] for run in runs], axis=0)
            evaluations = [seen.evaluations for seen in runs[0]]
            for panel, x in ((left, evaluations), (right, seconds)):
                panel.plot(x, np.median(costs, 0), COLOURS[method], label=label(name, method))
                band = costs.min(0), costs.max(0)
                panel.fill_between(x, *band, color=COLOURS[method], alpha=0.15, linewidth=0)
        for panel in (left, right):
            for style, cost in zip(
                (":", "--"), PROBLEMS[name](0).references().values(), strict=True
            ):
                panel.axhline(cost, color="black", linewidth=0.8, linestyle=style)
            panel.set(yscale=PROBLEMS[name].scale)
        left.set(title=name, xscale="log", xlabel="evaluations", ylabel=PROBLEMS[name].unit)
        right.set(xlabel=f"seconds, {threads} thread" + "s" * (threads != 1))
        right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def summary(runs: list[list[Seen]]) -> str:
    """Median and range of the ends."""

    def of(values: list[float]) -> str:
        return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"

    last = [run[-1] for run in runs]
    seconds = of([seen.seconds for seen in last])
    return f"{last[0].evaluations} evaluations, {of([s.cost for s in last])}, {seconds} s"


@experiment
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    methods = [*EVOLUTION, "random", "adam"]
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", default=methods, choices=methods)
    parser.add_argument("--seeds", type=positive, default=4)
    parser.add_argument("--pop", type=population, default=128)
    parser.add_argument("--updates", type=positive, default=150)
    parser.add_argument("--sigma-shift", type=whole(0, 24), default=1)
    parser.add_argument("--adam-updates", type=positive, default=200)
    parser.add_argument("--learning-rate", type=above_0, default=0.1, help="of Adam; falls to 0")
    parser.add_argument("--threads", type=whole(0, 1024), default=1)
    parser.add_argument("--csv", type=new_file, help="one row per look")
    parser.add_argument("--picture", type=new_picture, help="cost over evaluations and seconds")
    parser.add_argument("--smoke", action="store_true", help="one seed, few updates")
    args = parser.parse_args()
    check_apart({"--csv": str(args.csv or ""), "--picture": str(args.picture or "")})
    if args.smoke:
        args.seeds, args.pop, args.updates, args.adam_updates = 1, 16, 4, 4
    warnings.filterwarnings("ignore", message=".*hardly anything is learnt")  # seen in the result
    found: dict[tuple[str, str], list[list[Seen]]] = {}
    for name in args.problems:
        references = PROBLEMS[name](0).references().items()
        listed = ", ".join(f"{what} {cost:.4g}" for what, cost in references)
        print(f"{name}, {PROBLEMS[name].unit}: {listed}", flush=True)
        for method in args.methods:
            if method == "token-credit" and not PROBLEMS[name].by_row:
                continue  # its number is of all rows together
            runs = [run(name, method, seed, args) for seed in range(args.seeds)]
            found[name, method] = runs
            print(f"{name}, {label(name, method)}: {summary(runs)}", flush=True)
    if args.csv:
        rows = (
            (name, method, seed, seen.evaluations, f"{seen.seconds:.3f}", f"{seen.cost:.6g}")
            for (name, method), runs in found.items()
            for seed, looks in enumerate(runs)
            for seen in looks
        )
        write_csv(args.csv, ("problem", "method", "seed", *Seen._fields), rows)
    if args.picture:
        picture(args.picture, found, args.threads)
