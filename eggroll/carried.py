"""Estimators without noise, which carry the error of a score back (docs/estimators.md)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from eggroll.backward import (
    FIRST,
    Backward,
    first_feedback,
    head,
    layers,
    next_scale,
    values_credited,
    values_kept,
)
from eggroll.estimator import (
    Estimate,
    Estimator,
    EstimatorOptions,
    Given,
    Lap,
    no_lap,
)
from eggroll.population import Population
from eggroll.program import Leaves, Program, Weights
from eggroll.rule import FINE_BITS, feedback_name, rounded

SCALES = "credit/scales"  # in the memory: right shifts of credit, int32 [leaves]


class Local(Estimator):
    """The error of the score, sent by the head to the sum of all blocks, and there to each block.

    Within a block it passes single operations by their own slopes, a state by its gate's trace, and
    an inner layer by a fixed random matrix. Nothing flows through other weights but a norm's.
    """

    summary = "no noise: the score's error, handed to every block, where credit stays local"
    refuses_values = "it carries the error of a score back, and values from outside have none"
    known_scale = False
    perturbs = False

    def __init__(self, options: EstimatorOptions, program: Program) -> None:
        super().__init__(options, program)
        self.first = first_feedback(program, self.passing(program), options.seed)

    @classmethod
    def passing(cls, program: Program) -> tuple[str, ...]:
        """Names of the leaves that pass credit on through feedback."""
        return layers(program, inner=True)

    @classmethod
    def inputs_kept(cls, program: Program) -> int:
        return values_kept(program)

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        return {SCALES: (len(program.leaves),)}

    def start(self) -> Leaves:
        return {SCALES: mx.full(len(self.program.leaves), FIRST, mx.int32)}

    def matrices(self, weights: Weights, memory: Leaves) -> dict[str, mx.array]:
        """What passes credit on, int8 by the leaf's name."""
        name = head(self.program)
        return self.first | {name: weights[name]}

    def __call__(self, population: Population, given: Given, lap: Lap = no_lap) -> Estimate:
        weights, step, batch, state, memory = given
        scales = tuple[int, ...](np.array(memory[SCALES]).tolist())
        back = Backward(scales, self.matrices(weights, memory))
        found = population.learn(weights, step, *batch, state, back)
        lap("evaluation")
        sizes: list[int] = np.array(found.sizes).tolist()
        rows = population.everyone * found.scores.shape[1]
        counts = (rows * n for n in values_credited(self.program))
        after = [next_scale(*of) for of in zip(scales, sizes, counts, strict=True)]
        kept = {SCALES: mx.array(after, mx.int32)}
        return Estimate(found.scores, found.state, found.votes, None, kept)


class Feedback(Local):
    """The error of the score, carried back to every leaf by matrices that learn beside the weights.

    A backward pass in integers, through a second set of matrices: no weight is read backwards but a
    norm's, one per value.
    """

    summary = "no noise: the score's error, carried back through learnt feedback matrices"
    feedback = True

    @classmethod
    def passing(cls, program: Program) -> tuple[str, ...]:
        return (*layers(program), head(program))

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        names = cls.passing(program)
        fine = {
            feedback_name(leaf.name): leaf.shape for leaf in program.leaves if leaf.name in names
        }
        return super().memory(program) | fine

    def start(self) -> Leaves:
        fine = {feedback_name(k): F.astype(mx.int32) << FINE_BITS for k, F in self.first.items()}
        return super().start() | fine

    def matrices(self, weights: Weights, memory: Leaves) -> dict[str, mx.array]:
        return {name: rounded(memory[feedback_name(name)]) for name in self.first}
