"""Estimators: a population's evaluation -> votes. ESTIMATORS has them by name.

Letters: P members, N = P/2 pairs, T tokens, K inputs of a leaf, Z votes (int32, one array per
leaf). Those with noise work from forward passes alone, the others carry the error of a score back;
docs/estimators.md has the arithmetic and says what each one uses, credit.py and backward.py what
each leaf is credited with. Adding an estimator of these kinds needs no other file.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.carried import Feedback, Local
from eggroll.credit import Crediting, CreditKind, crediting
from eggroll.errors import InputError
from eggroll.estimator import (
    Estimate,
    Estimator,
    EstimatorOptions,
    Given,
    Lap,
    Record,
    Told,
    no_lap,
)
from eggroll.fitness import (
    CREDIT,
    FITNESS,
    decided,
    mean_size,
    pair_fitness,
    power,
    scaled,
)
from eggroll.policy import readout
from eggroll.population import Population
from eggroll.program import Program, Weights

EstimatorName = Literal[
    "eggroll", "token-votes", "token-credit", "group-credit", "local", "feedback"
]


GROUPS = (4, 8, 16, 32)  # sizes that the cpu engine's blocks of 32 members hold whole


class WeightNoise(Estimator):
    """The paper's: noise on the weights, a pair votes with the sign of its whole score."""

    summary = "noise on weights, one vote per pair and sequence (the paper's)"
    replays = True

    def __call__(self, population: Population, given: Given, lap: Lap = no_lap) -> Estimate:
        scores, after = population.evaluate(given.weights, given.step, *given.batch, given.state)
        fitness = population.signs(pair_fitness(scores))
        lap("evaluation")
        votes = population.votes(fitness, given.step)
        lap("votes")
        return Estimate(scores, after, votes, decided(fitness), fitness=fitness)

    def told(
        self,
        population: Population,
        weights: Weights,
        step: int,
        record: Record,
        values: NDArray[np.float64],
        fitness: str,
    ) -> Told:
        f = FITNESS[fitness].of(values if values.ndim == 1 else values.sum(axis=1))
        votes = population.votes(mx.array(f), step)
        return Told(votes, power(f), int(np.count_nonzero(f)) / f.size)


class TokenVotes(Estimator):
    """Noise on the weights, credited at every token by B's product with the input there."""

    summary = "the same noise, credited token by token"
    reads = ("discount",)
    known_scale = False
    by_token = True
    nodes: ClassVar[bool] = False  # noise on the outputs of layers, else on the weights

    def __init__(self, options: EstimatorOptions, program: Program) -> None:
        super().__init__(options, program)
        self.crediting: Crediting = crediting(
            program, nodes=self.nodes, sigma_shift=options.sigma_shift, discount=options.discount,
            seq_len=options.seq_len, group=options.group_size if self.grouped else 0,
        )  # fmt: skip

    @classmethod
    def check(cls, options: EstimatorOptions) -> None:
        if options.rank != 1 or not options.clt:
            raise InputError(
                f"--estimator {options.estimator} has noise of rank 1 and no signs of it: leave "
                f"{'--rank' if options.rank != 1 else '--no-clt'} out, or use --estimator eggroll."
            )

    @classmethod
    def inputs_kept(cls, program: Program) -> int:
        return sum(leaf.shape[-1] for leaf in program.leaves)

    def floors(self) -> dict[str, int]:
        """Mean size that votes have when pairs differ by about 1/16 bit at every token."""
        crediting, deviation = self.crediting, math.isqrt(self.options.pop // 2)
        least = {}
        for i, leaf in enumerate(self.program.leaves):
            kind = crediting.kinds[i]
            one_byte = kind == CreditKind.INPUTS or crediting.owners[i] != i
            noise = deviation * (16 if one_byte else 256)  # of one byte, or of the product of two
            summed = kind in (CreditKind.INPUTS, CreditKind.SCALAR)
            least[leaf.name] = noise if summed else 16
        return least

    def __call__(self, population: Population, given: Given, lap: Lap = no_lap) -> Estimate:
        scores, after, votes = population.credit(
            given.weights, given.step, *given.batch, given.state
        )
        lap("evaluation")
        return Estimate(scores, after, votes, None)

    def told(
        self,
        population: Population,
        weights: Weights,
        step: int,
        record: Record,
        values: NDArray[np.float64],
        fitness: str,
    ) -> Told:
        T = values.shape[-1] if record.tokens is None else record.tokens.shape[1]
        whole = values[:, None] if values.ndim == 1 else values
        d = np.broadcast_to(whole[0::2] - whole[1::2], (len(values) // 2, T))
        active = np.ones(d.shape, np.bool_) if record.active is None else record.active
        d, stakes = d * active, int(np.count_nonzero(active))
        mean = mean_size(d, stakes)
        # The update before gives the scale, so that worth may become credit as soon as it is known.
        worth = scaled(d, CREDIT, record.unit or mean)
        votes = record.votes
        if votes is None:
            assert record.tokens is not None
            assert record.turns is not None
            votes = population.credit_values(
                weights, step, record.tokens, record.state, record.shown,
                record.turns.window(0, T), worth.astype(np.int32),
            )  # fmt: skip
        for policy, acted in zip(self.program.policies, record.acted, strict=False):
            leaf = self.program.leaves[policy.leaf]
            votes[leaf.name] = readout(acted, worth, leaf.shape)
        differing = int(np.count_nonzero(d)) / max(stakes, 1)
        return Told(votes, None, differing, mean or record.unit)


class TokenCredit(TokenVotes):
    """Noise on the outputs of layers with a new sign at every token: node perturbation."""

    summary = "noise on layers' outputs with a new sign at every token, credited token by token"
    nodes = True


class GroupCredit(TokenCredit):
    """The same, but every member has signs of its own and is compared with its group's mean.

    Members of a pair with opposite signs tell one thing about the noise, and with signs of their
    own two, once it is known what the tokens would have scored anyway: a group's mean tells that.
    """

    summary = "as token-credit, but each member against the mean of those that read the same"
    refuses_values = "it compares the scores of a group, and values from outside are of pairs"
    grouped = True

    @classmethod
    def check(cls, options: EstimatorOptions) -> None:
        super().check(options)
        if options.group_size not in GROUPS:
            raise InputError(
                f"--group-size is {options.group_size}: --estimator {options.estimator} compares "
                f"members with the mean of their group, of {', '.join(map(str, GROUPS[:-1]))} or "
                f"{GROUPS[-1]}; try --group-size {GROUPS[0]}, or --estimator token-credit."
            )


ESTIMATORS: dict[str, type[Estimator]] = {
    "eggroll": WeightNoise,
    "token-votes": TokenVotes,
    "token-credit": TokenCredit,
    "group-credit": GroupCredit,
    "local": Local,
    "feedback": Feedback,
}


def estimators_with(option: str) -> tuple[str, ...]:
    """Names of the estimators that read an option of theirs, for sweeps."""
    return tuple(name for name, kind in ESTIMATORS.items() if option in kind.reads)
