"""How much of an update's votes is signal: `python -m experiments.tictactoe.evolution.votes`

Votes of updates at the same weights have the signal in common and the noise apart, so the cosine c
between two of them is the signal's share of their power. Noise falls with the number of rows; after
rows (1 - c) / c, rows being those of an update, it is as large as the signal. Method `states`.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import Any

import numpy as np

import eggroll as eg
from eggroll.evolution.rules import MovedWeights
from experiments.tictactoe import judges
from experiments.tictactoe.evolution import training as evolution
from experiments.tictactoe.evolution import worlds

MILLION = 10**6


class Recorder:
    """In a rule's place: keeps the votes, and leaves the weights as they are."""

    def __init__(self) -> None:
        self.votes: list[dict[str, Any]] = []

    def __call__(
        self, weights: Any, memory: Any, votes: Any, step: int, decided: int | None = None
    ) -> MovedWeights:
        self.votes.append({name: np.array(z, np.float64).ravel() for name, z in votes.items()})
        return MovedWeights(weights, memory, 0.0)


def recorded(estimator: str, weights: Any, updates: int, seed: int) -> tuple[int, list[Any]]:
    """Rows of an update, and the votes of some at the given weights."""
    settings = evolution.recipe("states", "64", estimator)
    es = evolution.trainer("64", settings, seed)
    es._learner.rule = recorder = Recorder()
    es._learner.weights = weights
    # The first update of token credit finds the scale of the values.
    for _ in range(updates + 1):
        es.play(worlds.library().states, settings.rows, shared=worlds.tables())
    return settings.pop * settings.rows, recorder.votes[1:]


def share(votes: list[dict[str, Any]], leaf: str) -> float:
    """Mean cosine of all pairs."""
    unit = [z[leaf] / max(np.linalg.norm(z[leaf]), 1.0) for z in votes]
    return float(np.mean([a @ b for a, b in combinations(unit, 2)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=40, help="of each estimator and weights")
    parser.add_argument(
        "--learnt", type=int, nargs="+", default=[0, 40, 100], help="updates before"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    settings = evolution.recipe("states", "64")
    es: eg.Trainer = evolution.trainer("64", settings, args.seed)
    for learnt in sorted(args.learnt):
        while es.step < learnt:
            es.play(worlds.library().states, settings.rows, shared=worlds.tables())
        print(f"{judges.bad_moves(evolution.greedy(es)):.0f} bad moves", flush=True)
        for estimator in ("token-credit", "eggroll"):
            rows, votes = recorded(estimator, es._learner.weights, args.updates, args.seed)
            for leaf in (name for name in es.weights if name.endswith("weights")):
                c = share(votes, leaf)
                needed = f"{rows * (1 - c) / c / MILLION:.3g} M" if c > 0 else "more than"
                print(
                    f"    {estimator}, {leaf}: cosine {c:.4f}, signal = noise after {needed} rows"
                )


if __name__ == "__main__":
    main()
