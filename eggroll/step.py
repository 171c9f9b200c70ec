"""One update: evaluate -> credit -> votes -> rule, for train, bench, sweep and experiments.

Letters: P members, T tokens, S streams.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from eggroll.data.corpus import Batch
from eggroll.estimator import Estimate, Estimator, Given, Lap, no_lap
from eggroll.population import Population
from eggroll.program import Leaves
from eggroll.rule import Update, UpdateRule


class Step(NamedTuple):
    """Scores of the members int16 [P, T], the share of weights that moved, and wall seconds.

    votes, decided: see Estimate.
    """

    scores: mx.array
    rate: float
    seconds: float
    votes: Leaves
    decided: int | None


@dataclass
class Learner:
    """A population, an estimator and a rule, and below them what every update changes.

    step: updates made; weights: int8 leaves in declared order; memory: of rule and estimator;
    state: int8 [P, state_size]; fitness: of the last update's pairs, see Estimate.
    """

    population: Population
    estimator: Estimator
    rule: UpdateRule
    step: int
    weights: Leaves
    memory: Leaves
    state: mx.array
    fitness: mx.array | None = None

    def update(self, batch: Batch, lap: Lap = no_lap) -> Step:
        """Makes one update from tokens and targets, int32 [S, T] each.

        lap is told when a part of it has ended: evaluation, votes (where apart), update.
        """

        def made() -> Step:
            began = time.perf_counter()
            given = Given(self.weights, self.step, batch, self.state, self.memory)
            found = self.estimator(self.population, given, lap)
            rate = self.adopt(found, lap)
            seconds = max(time.perf_counter() - began, 0.0)
            return Step(found.scores, rate, seconds, found.votes, found.decided)

        return self.population.engine.guarding(made)

    def adopt(self, found: Estimate, lap: Lap = no_lap) -> float:
        """Ends an update: the rule moves the weights by the votes; the share that moved."""

        def moved() -> Update:
            made = self.rule(self.weights, self.memory, found.votes, self.step, found.decided)
            mx.eval(made.weights, made.memory, found.state, found.scores)
            return made

        made = self.population.engine.guarding(moved)
        lap("update")
        self.weights, self.state, self.fitness = made.weights, found.state, found.fitness
        self.memory = {**self.memory, **made.memory, **(found.memory or {})}
        self.step += 1
        return made.rate
