"""One update: evaluate -> credit -> votes -> rule, for train, bench, sweep and experiments.

Letters: P members, T tokens, S streams.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from eggroll.evolution.estimators import Estimate, Estimator, Timer, UpdateInput, no_timer
from eggroll.evolution.population import Population
from eggroll.evolution.rules import MovedWeights, UpdateRule, arrays, summed
from eggroll.spec.program import Batch, Leaves


class Step(NamedTuple):
    """The result of one update."""

    scores: mx.array  # of the members, int16 [P, T]
    rate: float  # share of the weights that moved
    seconds: float  # of wall time
    votes: Leaves  # as in Estimate
    decided: int | None  # as in Estimate
    total_score: int  # the sum of the scores


@dataclass
class Learner:
    """A population, an estimator and a rule, and below them what every update changes."""

    population: Population
    estimator: Estimator
    rule: UpdateRule
    step: int  # updates made
    weights: Leaves  # int8, in declared order
    memory: Leaves  # of rule and estimator
    state: mx.array  # int8 [P, state_size]
    fitness: mx.array | None = None  # of the last update's pairs, see Estimate

    def begin_with(self, weights: Leaves) -> None:
        """Takes these weights, int8 in declared order; what rule and estimator keep begins anew."""
        self.weights = weights
        self.memory = self.rule.start(weights) | self.estimator.start()

    def update(self, batch: Batch, timer: Timer = no_timer) -> Step:
        """Makes one update from tokens and targets, int32 [S, T] each.

        timer: called when evaluation, votes (where apart) and update have ended.
        """

        def evaluate_and_move() -> Step:
            began = time.perf_counter()
            start = self.start_of(batch)
            estimate = self.estimator(self.population, start, timer)
            _, view = arrays()
            score = int(summed(view(estimate.scores)))  # before anything changes
            rate = self.adopt(estimate, timer)
            seconds = max(time.perf_counter() - began, 0.0)
            scores, votes, decided = estimate.scores, estimate.votes, estimate.decided
            return Step(scores, rate, seconds, votes, decided, score)

        return self.population.engine.run_guarded(evaluate_and_move)

    def start_of(self, batch: Batch) -> UpdateInput:
        """The start of an update with this batch; its members go on from their states."""
        return UpdateInput(self.weights, self.step, batch._replace(state=self.state), self.memory)

    def adopt(self, estimate: Estimate, timer: Timer = no_timer) -> float:
        """Ends an update: the rule moves the weights by the votes; the share that moved."""

        def move() -> MovedWeights:
            update = self.rule(
                self.weights, self.memory, estimate.votes, self.step, estimate.decided
            )
            mx.eval(update.weights, update.memory, estimate.state, estimate.scores)
            return update

        update = self.population.engine.run_guarded(move)
        timer("update")
        # Nothing is called from here on, so no signal's handler leaves a part of an update.
        self.weights, self.state, self.fitness = update.weights, estimate.state, estimate.fitness
        self.memory = {**self.memory, **update.memory, **(estimate.memory or {})}
        self.step += 1
        return update.rate
