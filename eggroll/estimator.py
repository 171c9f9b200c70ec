"""The kind of estimators: a population's evaluation -> votes. estimators.py has them by name.

Letters: P members, N = P/2 pairs, T tokens, Z votes (int32, one array per leaf).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.credit import Crediting, Turns
from eggroll.data.corpus import Batch
from eggroll.policy import Acted
from eggroll.population import Population, Shown
from eggroll.program import Leaves, Program, Weights

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
    @property
    def group_size(self) -> int: ...
    @property
    def seed(self) -> int: ...


class Given(NamedTuple):
    """What an update begins with.

    step: updates made; batch: tokens and targets, int32 [S, T] each; state: int8 [P, state_size];
    memory: what rule and estimator keep.
    """

    weights: Weights
    step: int
    batch: Batch
    state: mx.array
    memory: Leaves


class Estimate(NamedTuple):
    """The result of evaluating a population.

    scores: int16 [P, T], see score bits; state: int8 [P, state_size]; votes: Z per leaf; decided:
    pairs that did not tie, None where pairs have no fitness; memory: what the estimator keeps;
    fitness: of all pairs, int8 [N], where the votes follow from it and the noise alone.
    """

    scores: mx.array
    state: mx.array
    votes: Leaves
    decided: int | None
    memory: Leaves | None = None
    fitness: mx.array | None = None


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

    summary: the estimator in a line of --help; refuses_values: why it cannot be told values from
    outside, or nothing; reads: the options of a run that belong to it alone;
    known_scale: whether the size of its votes follows from N and the rank; crediting: what each
    leaf is credited with token by token, None where a pair is credited as a whole; perturbs:
    whether members have noise, else each reads a stream of its own and carries its errors back;
    feedback: whether it keeps matrices that learn beside the weights; replays: whether votes follow
    from the noise and the fitness of pairs alone.
    """

    summary: ClassVar[str]
    refuses_values: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()
    known_scale: ClassVar[bool] = True
    by_token: ClassVar[bool] = False  # whether engines must give credit token by token
    grouped: ClassVar[bool] = False  # and compare members with the mean of their group
    perturbs: ClassVar[bool] = True
    feedback: ClassVar[bool] = False
    replays: ClassVar[bool] = False
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

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays it keeps between updates, int32, by name."""
        return {}

    def start(self) -> Leaves:
        """Its memory before the first update."""
        return {}

    def floors(self) -> dict[str, int]:
        """Least mean size of a leaf's votes that is a signal, by name; see rule whitened."""
        return {}

    @abstractmethod
    def __call__(self, population: Population, given: Given, lap: Lap = no_lap) -> Estimate:
        """Runs the members of an update over its batch, and counts votes."""

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
        values of whole members. Never called where values are refused.
        """
        raise NotImplementedError
