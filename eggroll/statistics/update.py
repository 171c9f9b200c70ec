"""What an update shows of itself: ties, threshold and rate, votes and weights per leaf.

Letters: P members, N = P/2 pairs, T tokens, Z votes (int32, one array per leaf).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from eggroll.estimator import Given
from eggroll.program import Leaves
from eggroll.statistics import chance
from eggroll.statistics.counts import DIGITS, changed, distribution, share, total_size
from eggroll.step import Learner, Step


class Observed(NamedTuple):
    """An update as it was made.

    given: what it began with; made: its scores and votes; tied: share of the pairs whose scores
    tie, of all ranks, None where members have no noise.
    """

    given: Given
    made: Step
    tied: float | None


def observe(learner: Learner, given: Given, made: Step) -> Observed:
    """Observes the update that was just made, on all ranks together."""
    people = learner.population
    if not learner.estimator.perturbs:
        return Observed(given, made, None)
    if learner.fitness is not None:  # of all pairs, on every rank
        fitness = np.asarray(learner.fitness)
        return Observed(given, made, share(int(np.count_nonzero(fitness == 0)), fitness.size))
    scores = np.asarray(made.scores)
    here = int(np.count_nonzero(scores[0::2] == scores[1::2])), scores.size // 2
    ties, of = people.ranks.table(here).sum(axis=0).tolist()
    return Observed(given, made, share(ties, of))


def figures(learner: Learner, seen: Observed) -> dict[str, Any]:
    """The fields of a line of statistics.jsonl that are about votes and weights."""
    made, step = seen.made, seen.given.step
    threshold, rate = learner.rule.used(step, made.decided)
    tied = {} if seen.tied is None else {"tied": seen.tied}
    return {
        **tied,
        "threshold": threshold,
        "rate": None if rate is None else float(f"{rate:.{DIGITS}g}"),
        "leaves": leaves(seen.given.weights, learner.weights, made.votes, noise_of(learner, seen)),
    }


def noise_of(learner: Learner, seen: Observed) -> dict[str, float]:
    """Mean |Z| of votes that were pure chance, for the leaves where it is known."""
    people, made = learner.population, seen.made
    if not learner.estimator.perturbs:
        return {}
    if learner.estimator.known_scale:
        return chance.of_pairs(people, made.decided or 0)
    return chance.of_credit(people, seen.given, made.scores)


def leaves(before: Any, after: Leaves, votes: Leaves, noise: dict[str, float]) -> dict[str, Any]:
    """The figures of every leaf, by its name."""
    found = {}
    for name, weights in after.items():
        host = np.asarray(weights)
        row: dict[str, Any] = {"update_rate": share(changed(before[name], host), host.size)}
        if noise.get(name):
            mean = total_size(votes[name]) / host.size
            row["vote_over_noise"] = round(mean / noise[name], DIGITS)
        found[name] = row | distribution(host, "weights")
    return found
