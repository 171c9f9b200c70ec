"""Cosines of each estimator's votes with the gradient: `python experiments/estimators/run.py`

The cosine of one update's votes with the gradient of the float twin (its opposite, which votes
estimate) on the same streams, per leaf, over populations, widths and T; means are over matrices but
the head, which token-credit teaches by its own error. With --ranks, of the default estimator with
noise of these ranks instead. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from eggroll.baseline.backprop import gradient
from eggroll.cli import command as cli
from eggroll.evolution.estimators import ESTIMATORS, UpdateInput
from eggroll.files import check_place
from eggroll.training.config import RECIPES, Config
from eggroll.training.learner import engine_for, new_learner
from eggroll.training.run import load_run_corpus

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, where it is not installed
from experiments.arguments import population, positive, whole, write_csv

SHIFTS = (3, 4, 5)  # compared at each of --ranks
LEARNT = 100  # updates of a recipe before the cosines of "trained"


def trained(options: Config, corpus, updates: int) -> dict[str, mx.array]:
    """Weights after some updates of a recipe."""
    learner = new_learner(options, engine_for(options, options.program())[0])
    streams = corpus.streams("train", options.streams, options.seq_len, options.seed)
    for step in range(updates):
        learner.update(streams.batch(step))
    return learner.weights


def cosines(config: Config, corpus, weights: dict, repeats: int) -> dict[str, list[float]]:
    """Per leaf, the cosine of votes and gradient in each of some updates."""
    learner = new_learner(config, engine_for(config, config.program())[0])
    program = learner.population.engine.program
    streams = corpus.streams("train", config.streams, config.seq_len, config.seed)
    found: dict[str, list[float]] = {}
    for step in range(repeats):
        batch = streams.batch(step)
        start = batch._replace(state=learner.population.initial_state())
        Z = learner.estimator(
            learner.population, UpdateInput(weights, step, start, learner.memory)
        ).votes
        zero = np.zeros((len(batch.tokens), program.state_size), np.int8)
        true = gradient(program, weights, batch._replace(state=zero))
        for name, g in true.items():
            z = np.array(Z[name]).astype(np.float64)
            norm = np.linalg.norm(z) * np.linalg.norm(g)
            found.setdefault(name, []).append(-float((z * g).sum()) / norm if norm else 0.0)
    return found


def compared(ranks: list[int], estimators: Iterable[str]) -> dict[str, dict]:
    """Name -> options of what is compared; each of the estimators with its default's noise."""
    if ranks:
        # Rank 4 makes noise twice as large as rank 1 does, and so does one bit less of shift.
        return {
            f"rank {rank}, sigma_shift {shift}": {"rank": rank, "sigma_shift": shift}
            for rank in ranks
            for shift in SHIFTS
        }
    shift = {"sigma_shift": RECIPES["language"]["sigma_shift"]}
    own = {"token-credit": shift, "group-credit": {**shift, "group_size": 8}}
    return {name: {"estimator": name} | own.get(name, {}) for name in estimators}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--populations", type=population, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--widths", type=whole(1, 8191), nargs="+", default=[64, 128])
    parser.add_argument("--seq-lens", type=whole(1, 1 << 16), nargs="+", default=[16, 64])
    parser.add_argument("--ranks", type=whole(1, 64), nargs="+", default=[])
    parser.add_argument("--repeats", type=positive, default=4)
    parser.add_argument("--estimators", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS))
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--recipe", choices=("language", "evolution"), default="language",
                        help="that trains: on bytes, or on byte pairs")  # fmt: skip
    parser.add_argument("--learnt", type=positive, default=LEARNT, help="updates of the recipe")
    parser.add_argument("--seed", type=whole(0), default=0)
    parser.add_argument("--leaves", action="store_true", help="print every leaf")
    parser.add_argument("--csv", type=Path, help="one row per leaf")
    args = parser.parse_args()
    check_place("--csv", str(args.csv or ""))  # before all runs
    base = Config(recipe=args.recipe, data=args.data, seed=args.seed)
    text = {"data": base.data, "vocabulary": base.vocabulary, "seed": base.seed}
    corpus, rows = load_run_corpus(base), []
    for width in args.widths:
        for when, updates in (("first weights", 0), ("trained", args.learnt)):
            weights = trained(replace(base, width=width), corpus, updates)
            for pop in args.populations:
                for seq_len in args.seq_lens:
                    means = {}
                    for name, options in compared(args.ranks, args.estimators).items():
                        config = Config(width=width, pop=pop, seq_len=seq_len, **text, **options)
                        found = cosines(config, corpus, weights, args.repeats)
                        leaves = {k: statistics.mean(v) for k, v in found.items()}
                        shapes = {leaf.name: leaf.shape for leaf in config.program().leaves}
                        means[name] = statistics.mean(
                            v for k, v in leaves.items() if len(shapes[k]) == 2 and k != "head"
                        )
                        for leaf, value in leaves.items():
                            rows.append((width, when, pop, seq_len, name, leaf, value))
                            if args.leaves:
                                print(f"    {name} {leaf}: {100 * value:.2f} %")
                    told = ", ".join(
                        f"{k} {100 * v:.2f} % (x{v / next(iter(means.values())):.1f})"
                        for k, v in means.items()
                    )
                    print(f"D {width}, {when}, population {pop}, T {seq_len}: {told}", flush=True)
    if args.csv:
        names = ("width", "weights", "population", "seq_len", "estimator", "leaf", "cosine")
        write_csv(args.csv, names, rows)


if __name__ == "__main__":
    sys.exit(cli.run(main))
