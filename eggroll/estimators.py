"""Estimators: a population's evaluation -> votes. ESTIMATORS has them by name.

Letters: P members, N = P/2 pairs, T tokens, K inputs of a leaf, Z votes (int32, one array per
leaf). Every estimator works from forward passes alone; docs/estimators.md has the arithmetic,
credit.py what each leaf is credited with. Adding an estimator of these kinds needs no other file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.credit import Crediting, CreditKind, Turns, crediting
from eggroll.data.streams import Batch
from eggroll.errors import InputError
from eggroll.fitness import (
    CREDIT,
    FITNESS,
    decided,
    mean_size,
    pair_fitness,
    power,
    scaled,
)
from eggroll.policy import Acted, readout
from eggroll.population import Population, Shown
from eggroll.program import Leaves, Program, Weights

EstimatorName = Literal["eggroll", "token-votes", "token-credit"]
Lap = Callable[[str], None]  # told the name of a part of a step that has just ended


def no_lap(part: str) -> None:
    """The Lap of callers that do not time the parts of a step."""


class EstimatorOptions(Protocol):
    """The options of a run that estimators read; config.py declares them."""

    @property
    def estimator(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def clt(self) -> bool: ...
    @property
    def sigma_shift(self) -> int: ...
    @property
    def discount(self) -> int: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def pop(self) -> int: ...


class Estimate(NamedTuple):
    """The result of evaluating a population.

    scores: int16 [P, T], see score bits; state: int8 [P, state_size]; votes: Z per leaf; decided:
    pairs that did not tie, None where pairs have no fitness.
    """

    scores: mx.array
    state: mx.array
    votes: Leaves
    decided: int | None


class Record(NamedTuple):
    """What the members of an update were shown since it began, row by row, by a caller.

    tokens: int32 [R, T], shown: [R, T, ..], of P members or of R groups; state: int8 [P,
    state_size] at the beginning, after: at the end; turns: signs of the rows, where they have any;
    active: bool [N, T], where something was at stake for member 2p, None for everywhere; acted:
    what the program's policies did; unit: mean difference of the values in the update before, 0 if
    there is none; votes: of the rows, where they were counted while the rows were run, by this
    unit. Only estimators that credit rows need more than the states.
    """

    tokens: NDArray[np.int32] | None
    shown: Shown
    state: mx.array
    after: mx.array
    turns: Turns | None
    active: NDArray[np.bool_] | None = None
    acted: Sequence[Acted] = ()
    unit: float = 0.0
    votes: Leaves | None = None


class Told(NamedTuple):
    """Votes Z per leaf; decided: as in Estimate; differing: the share of pairs, or of their rows,
    whose members were worth different values; unit: their mean difference, for the next update.
    """

    votes: Leaves
    decided: int | None
    differing: float
    unit: float = 0.0


class Estimator(ABC):
    """Evaluates a population and forms its votes.

    summary: the estimator in a line of --help; reads: the options of a run that belong to it alone;
    known_scale: whether the size of its votes follows from N and the rank; crediting: what each
    leaf is credited with token by token, None where a pair is credited as a whole.
    """

    summary: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    known_scale: ClassVar[bool] = True
    by_token: ClassVar[bool] = False  # whether engines must give credit token by token
    crediting: Crediting | None = None

    def __init__(self, options: EstimatorOptions, program: Program) -> None:
        self.options, self.program = options, program

    @classmethod
    def check(cls, options: EstimatorOptions) -> None:
        """Raises InputError where it cannot use these options."""
        return

    @classmethod
    def inputs_kept(cls, program: Program) -> int:
        """Values stored per pair and token until the credit is known."""
        return 0

    def floors(self) -> dict[str, int]:
        """Least mean size of a leaf's votes that is a signal, by name; see rule whitened."""
        return {}

    @abstractmethod
    def __call__(
        self,
        population: Population,
        weights: Weights,
        step: int,
        batch: Batch,
        state: mx.array,
        lap: Lap = no_lap,
    ) -> Estimate:
        """Runs the members of update `step` over a batch, int32 [S, T] each, and counts votes."""

    @abstractmethod
    def told(
        self,
        population: Population,
        weights: Weights,
        step: int,
        record: Record,
        values: NDArray[np.float64],
        fitness: str,
    ) -> Told:
        """Counts the votes of members that ran already, by what they were worth to the caller.

        values: float64 [P], or [P, T] for every row, larger is better; fitness: of FITNESS, for
        values of whole members.
        """


class WeightNoise(Estimator):
    """The paper's: noise on the weights, a pair votes with the sign of its whole score."""

    summary = "noise on weights, one vote per pair and sequence (the paper's)"

    def __call__(
        self,
        population: Population,
        weights: Weights,
        step: int,
        batch: Batch,
        state: mx.array,
        lap: Lap = no_lap,
    ) -> Estimate:
        scores, after = population.evaluate(weights, step, *batch, state)
        fitness = pair_fitness(scores)
        lap("evaluation")
        votes = population.votes(fitness, step)
        lap("votes")
        return Estimate(scores, after, votes, decided(fitness))

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
            seq_len=options.seq_len,
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

    def __call__(
        self,
        population: Population,
        weights: Weights,
        step: int,
        batch: Batch,
        state: mx.array,
        lap: Lap = no_lap,
    ) -> Estimate:
        scores, after, votes = population.credit(weights, step, *batch, state)
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


ESTIMATORS: dict[str, type[Estimator]] = {
    "eggroll": WeightNoise,
    "token-votes": TokenVotes,
    "token-credit": TokenCredit,
}


def estimators_with(option: str) -> tuple[str, ...]:
    """Names of the estimators that read an option of theirs, for sweeps."""
    return tuple(name for name, kind in ESTIMATORS.items() if option in kind.reads)
