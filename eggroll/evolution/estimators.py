"""Estimators: a population's evaluation -> votes. ESTIMATORS has them by name.

Letters: P members, N = P/2 pairs, T tokens, K inputs of a leaf, Z votes (int32, one array per
leaf). Those with noise work from forward passes alone, the others carry the error of a score back;
docs/estimators.md has the arithmetic and says what each one uses, credit.py and backward.py what
each leaf is credited with. Adding an estimator of these kinds needs no other file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, array_of
from eggroll.evolution.population import Population
from eggroll.evolution.rules import (
    FINE_BITS,
    RunOptions,
    arrays,
    feedback_name,
    rounded,
    summed,
)
from eggroll.spec.backward import (
    FIRST,
    Backward,
    Learnt,
    check_passable,
    first_feedback,
    heads,
    last_ones,
    layers,
    next_scale,
    values_credited,
    values_kept,
)
from eggroll.spec.credit import Acted, Crediting, CreditKind, Turns, crediting, readout
from eggroll.spec.fixed_point import log2_fixed
from eggroll.spec.program import Batch, Leaves, Program, Weights
from eggroll.spec.rng import native_module

Timer = Callable[[str], None]  # called with the name of each phase of an update when it ends


def no_timer(phase: str) -> None:
    """The Timer of callers that do not time the phases of an update."""


class UpdateInput(NamedTuple):
    """The weights, the data and the memory that an update starts from."""

    weights: Weights
    step: int  # updates made
    batch: Batch  # tokens and targets [S, T], state [P, state_size]
    memory: Leaves  # of rule and estimator
    losses: tuple[str, ...] = ()  # of outputs, where errors are made of batch.wanted


class Estimate(NamedTuple):
    """The result of evaluating a population."""

    scores: mx.array  # int16 [P, T], see score bits
    state: mx.array  # int8 [P, state_size], after the last token
    votes: Leaves  # Z per leaf
    decided: int | None  # pairs that did not tie; None where pairs have no fitness
    memory: Leaves | None = None  # of the estimator
    fitness: mx.array | None = None  # int8 [N] of all pairs, where votes follow from it and noise
    learnt: Learnt | None = None  # of members that carried errors back


class Rollout(NamedTuple):
    """All rows that a caller has shown to the members of an update.

    Only estimators that credit rows need more than the states.
    """

    batch: Batch | None  # of R readers; `state` is that before the first row
    state: mx.array  # int8 [P, state_size], after the last row
    turns: Turns | None  # signs of the rows, where they have any
    active: NDArray[np.bool_] | None = None  # [N, T], whether member 2p had something at stake
    acted: Sequence[Acted] = ()  # the draws of the program's policies
    value_scale: float = 0.0  # mean difference of values in the update before, 0 without one
    votes: Leaves | None = None  # where they were counted while the rows ran, by this scale


class ValueVotes(NamedTuple):
    """The votes of members, from what they were worth to a caller."""

    votes: Leaves  # Z per leaf
    decided: int | None  # as in Estimate
    differing: float  # share of pairs, or of their rows, whose members differ in value
    value_scale: float = 0.0  # their mean difference, for the next update


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

    def __init__(self, options: RunOptions, program: Program) -> None:
        self.options, self.program = options, program

    @classmethod
    def check(cls, options: RunOptions) -> None:
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
    def __call__(
        self, population: Population, start: UpdateInput, timer: Timer = no_timer
    ) -> Estimate:
        """Runs the members of an update over its batch, and counts votes."""

    def votes_from_values(
        self,
        population: Population,
        weights: Weights,
        step: int,
        rollout: Rollout,
        values: NDArray[np.float64],
        fitness: str,
    ) -> ValueVotes:
        """Counts the votes of members that ran already, by what they were worth to the caller.

        values: float64 [P], or [P, T] for every row, larger is better; fitness: of FITNESS, for
        values of whole members. Never called where values are refused.
        """
        raise NotImplementedError


# Evolution: members have noise.


class WeightNoise(Estimator):
    """The paper's: noise on the weights, a pair votes with the sign of its whole score."""

    summary = "noise on weights, one vote per pair and sequence (the paper's)"
    replays = True

    def __call__(
        self, population: Population, start: UpdateInput, timer: Timer = no_timer
    ) -> Estimate:
        scores, after = population.evaluate(start.weights, start.step, start.batch)
        fitness = population.signs(pair_fitness(scores))
        timer("evaluation")
        decisive = counted(fitness)
        votes = population.votes(fitness, start.step, signs=True)
        timer("votes")
        return Estimate(scores, after, votes, int(decisive), fitness=fitness)

    def votes_from_values(
        self,
        population: Population,
        weights: Weights,
        step: int,
        rollout: Rollout,
        values: NDArray[np.float64],
        fitness: str,
    ) -> ValueVotes:
        f = FITNESS[fitness].of(values if values.ndim == 1 else values.sum(axis=1))
        votes = population.votes(mx.array(f), step)
        return ValueVotes(votes, power(f), int(np.count_nonzero(f)) / f.size)


class TokenVotes(Estimator):
    """Noise on the weights, credited at every token by B's product with the input there."""

    summary = "the same noise, credited token by token"
    reads = ("discount",)
    known_scale = False
    by_token = True
    nodes: ClassVar[bool] = False  # noise on the outputs of layers, else on the weights

    def __init__(self, options: RunOptions, program: Program) -> None:
        super().__init__(options, program)
        self.crediting: Crediting = crediting(
            program, nodes=self.nodes, sigma_shift=options.sigma_shift, discount=options.discount,
            seq_len=options.seq_len, group=options.group_size if self.grouped else 0,
        )  # fmt: skip

    @classmethod
    def check(cls, options: RunOptions) -> None:
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
        self, population: Population, start: UpdateInput, timer: Timer = no_timer
    ) -> Estimate:
        scores, after, votes = population.credit(start.weights, start.step, start.batch)
        timer("evaluation")
        return Estimate(scores, after, votes, None)

    def votes_from_values(
        self,
        population: Population,
        weights: Weights,
        step: int,
        rollout: Rollout,
        values: NDArray[np.float64],
        fitness: str,
    ) -> ValueVotes:
        T = values.shape[-1] if rollout.batch is None else rollout.batch.size[1]
        whole = values[:, None] if values.ndim == 1 else values
        d = np.broadcast_to(whole[0::2] - whole[1::2], (len(values) // 2, T))
        active = np.ones(d.shape, np.bool_) if rollout.active is None else rollout.active
        d, stakes = d * active, int(np.count_nonzero(active))
        mean = mean_size(d, stakes)
        # The update before gives the scale, so that a value may be credited as soon as it is known.
        credited = scaled(d, CREDIT, rollout.value_scale or mean)
        votes = rollout.votes
        if votes is None:
            assert rollout.batch is not None
            assert rollout.turns is not None
            votes = population.credit_values(
                weights, step, rollout.batch, rollout.turns.window(0, T), credited.astype(np.int32)
            )
        for policy, acted in zip(self.program.policies, rollout.acted, strict=False):
            leaf = self.program.leaves[policy.leaf]
            votes[leaf.name] = readout(acted, credited, leaf.shape)
        differing = int(np.count_nonzero(d)) / max(stakes, 1)
        return ValueVotes(votes, None, differing, mean or rollout.value_scale)


class TokenCredit(TokenVotes):
    """Noise on the outputs of layers with a new sign at every token: node perturbation."""

    summary = "noise on layers' outputs with a new sign at every token, credited token by token"
    nodes = True


GROUPS = (4, 8, 16, 32)  # sizes that the cpu engine's blocks of 32 members hold whole


class GroupCredit(TokenCredit):
    """The same, but every member has signs of its own and is compared with its group's mean.

    Members of a pair with opposite signs tell one thing about the noise, and with signs of their
    own two, once it is known what the tokens would have scored anyway: a group's mean tells that.
    """

    summary = "as token-credit, but each member against the mean of those that read the same"
    refuses_values = "it compares the scores of a group, and values from outside are of pairs"
    grouped = True

    @classmethod
    def check(cls, options: RunOptions) -> None:
        super().check(options)
        if options.group_size not in GROUPS:
            raise InputError(
                f"--group-size is {options.group_size}: --estimator {options.estimator} compares "
                f"members with the mean of their group, of {', '.join(map(str, GROUPS[:-1]))} or "
                f"{GROUPS[-1]}; try --group-size {GROUPS[0]}, or --estimator token-credit."
            )


# Errors carried back: members have none.

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

    def __init__(self, options: RunOptions, program: Program) -> None:
        super().__init__(options, program)
        check_passable(program, options.estimator)
        self.first = first_feedback(program, self.passing(program), options.seed)
        self._values, self._last = values_credited(program), last_ones(program)
        # The score's leaf has a scale that nothing uses, and others next to an error that of it.
        fixed = () if program.scored else heads(program)
        self._fixed = [leaf.name in fixed for leaf in program.leaves]

    @classmethod
    def passing(cls, program: Program) -> tuple[str, ...]:
        """Names of the leaves that pass credit on through feedback."""
        return tuple(name for name in layers(program, inner=True) if name not in heads(program))

    @classmethod
    def inputs_kept(cls, program: Program) -> int:
        return values_kept(program)

    @classmethod
    def memory(cls, program: Program) -> dict[str, tuple[int, ...]]:
        return {SCALES: (len(program.leaves),)}

    def start(self) -> Leaves:
        return {SCALES: mx.full(len(self.program.leaves), FIRST, mx.int32)}

    def matrices(self, weights: Weights, memory: Leaves) -> dict[str, mx.array]:
        """The matrices that pass credit on, int8 by the leaf's name."""
        return self.first | {name: weights[name] for name in heads(self.program)}

    def __call__(
        self, population: Population, start: UpdateInput, timer: Timer = no_timer
    ) -> Estimate:
        weights, step, batch, memory, losses = start
        scales: tuple[int, ...] = tuple(np.asarray(memory[SCALES]).tolist())
        back = Backward(scales, self.matrices(weights, memory), losses)
        learnt = population.learn(weights, step, batch, back)
        timer("evaluation")
        rows = population.everyone * learnt.scores.shape[1]
        sizes: list[int] = np.asarray(learnt.sizes).tolist()
        counts = (rows * n for n in self._values)
        after = [
            FIRST if fixed else next_scale(scale, size, count)
            for fixed, scale, size, count in zip(self._fixed, scales, sizes, counts, strict=True)
        ]
        kept = memory[SCALES] if after == [*scales] else mx.array(np.array(after, np.int32))
        return Estimate(
            learnt.scores, learnt.state, learnt.votes, None, {SCALES: kept}, learnt=learnt
        )


class Feedback(Local):
    """The error of the score, carried back to every leaf by matrices that learn beside the weights.

    A backward pass in integers, through a second set of matrices: no weight is read backwards but a
    norm's, one per value.
    """

    summary = "no noise: the score's error, carried back through learnt feedback matrices"
    feedback = True

    @classmethod
    def passing(cls, program: Program) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*layers(program), *heads(program))))

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
        names = [name for name in self.first if name not in self._last]
        return {name: rounded(memory[feedback_name(name)]) for name in names}


# All estimators by name.

EstimatorName = Literal[
    "eggroll", "token-votes", "token-credit", "group-credit", "local", "feedback"
]
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


# From values to the fitness of pairs.

Values = NDArray[np.float64]
FitnessName = Literal["sign", "ranks", "centred", "log-ranks"]


class Fitness(NamedTuple):
    """A way from values to the fitness of pairs: what it is, and its function."""

    summary: str
    of: Callable[[Values], NDArray[np.int8]]


def pair_fitness(scores: mx.array) -> mx.array:
    """Token scores [P, T] -> int8 [N]: sign of member 2i's total minus member 2i+1's."""
    xp, view = arrays()
    native = native_module()
    if xp is np and native is not None and scores.dtype == mx.int16:
        fitness: mx.array = native.pair_signs(scores)
        return fitness
    total = view(scores).astype(xp.int32).sum(axis=1)
    return mx.array(xp.sign(total[0::2] - total[1::2]).astype(xp.int8))


def counted(fitness: mx.array) -> Any:
    """Pairs that did not tie, of fitness int8 [N], as `summed` gives them."""
    _, view = arrays()
    return summed(view(fitness) != 0)


def decided(fitness: mx.array) -> int:
    """Pairs that did not tie, of fitness int8 [N]."""
    return int(counted(fitness))


def power(fitness: NDArray[np.int8]) -> int:
    """The sum of the squares of a fitness: the variance of its votes, in pairs of fitness 1."""
    return int((fitness.astype(np.int64) ** 2).sum())


LOG_LEVELS = 15  # of a pair's fitness by log-ranks on either side of zero, four bits
LEVELS = 7  # of a pair's fitness on either side of zero, three bits
CREDIT = 32  # mean size of the values that token credit is given: wide, and rarely clipped to int8
MOST, LEAST = 1e290, 1e-290  # of values, and of differences that count by their size
MIN_DIFFERING = 0.01  # share of differing pairs below which hardly anything is learnt
FINE = 1 << 24  # steps of the largest difference, where means are taken


def signs(values: Values) -> NDArray[np.int8]:
    """Values [P] -> the sign of each pair's difference, int8 [N]."""
    return np.sign(values[0::2] - values[1::2]).astype(np.int8)


def ranks(values: Values) -> NDArray[np.int8]:
    """Values [P] -> the difference of each pair's ranks among all members, in -7..7, int8 [N].

    Equal values share the mean of their ranks.
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    twice = 2 * np.cumsum(count) - count - 1  # 2 x mean rank of every value, from 0
    difference = twice[place[0::2]] - twice[place[1::2]]  # at most 2 (P - 1)
    most = 2 * (len(values) - 1)
    return _rounded(LEVELS * difference, most).astype(np.int8)


@cache
def log_worth(members: int) -> NDArray[np.int64]:
    """max(0, log2(P/2 + 1) - log2(k)) of the k-th best of P members, from the worst, in 2^-16."""
    levels = log2_fixed(np.arange(1, members + 2))
    worth: NDArray[np.int64] = np.maximum(levels[members // 2] - levels[:-1], 0)[::-1].copy()
    worth.setflags(write=False)  # as it is made once
    return worth


def log_ranks(values: Values) -> NDArray[np.int8]:
    """Values [P] -> the difference of what each pair's ranks are worth, in -15..15, int8 [N].

    The utilities of natural evolution strategies (Wierstra et al. 2014): the worse half is worth
    nothing, and the best most. Equal values share the mean of theirs.
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    worth, ends = log_worth(len(values)), np.cumsum(count)
    before = np.concatenate([[0], np.cumsum(worth)])
    mean = (before[ends] - before[ends - count]) // count
    difference = mean[place[0::2]] - mean[place[1::2]]
    return _rounded(LOG_LEVELS * difference, int(worth[-1])).astype(np.int8)


def within(values: Values, groups: int) -> Values:
    """Values [P] -> their ranks, doubled, among the P / groups neighbours of their group.

    Equal values share the mean of theirs.
    """
    ranked = list[NDArray[np.int64]]()
    for part in values.reshape(groups, -1):
        ordered = np.sort(part)
        ranked.append(np.searchsorted(ordered, part) + np.searchsorted(ordered, part, "right"))
    return np.concatenate(ranked).astype(np.float64)


def centred(values: Values) -> NDArray[np.int8]:
    """Values [P] -> each pair's difference, of mean size 3, in -7..7, int8 [N]."""
    d = values[0::2] - values[1::2]
    return np.clip(scaled(d, 3, mean_size(d)), -LEVELS, LEVELS).astype(np.int8)


def mean_size(difference: Values, count: int = 0) -> float:
    """Mean of the sizes, to 2^-24 of the largest; no order of additions changes a bit of it.

    count: the differences that the mean is of, if the others are zero because nothing was at stake.
    """
    most = float(abs(difference).max(initial=0.0))
    if most < LEAST:
        return 0.0
    fine = np.rint(abs(difference) / most * FINE).astype(np.int64)
    return int(fine.sum()) / FINE * most / (count or fine.size)


def scaled(difference: Values, mean: int, unit: float) -> NDArray[np.int64]:
    """Differences in whole numbers, such that `unit` becomes `mean`; the largest are clipped."""
    if unit == 0:
        return np.zeros(difference.shape, np.int64)
    limit = 1 << 19  # of a value that engines take
    out: NDArray[np.int64] = np.clip(np.rint(difference * (mean / unit)), -limit, limit).astype(
        np.int64
    )
    return out


def _rounded(n: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """n / by to the nearest whole number, halves away from zero."""
    out: NDArray[np.int64] = np.sign(n) * ((2 * abs(n) + by) // (2 * by))
    return out


FITNESS: dict[str, Fitness] = {
    "sign": Fitness("one vote per pair, for the member of the larger value", signs),
    "ranks": Fitness("votes grow with the difference of the ranks", ranks),
    "centred": Fitness("votes grow with the difference of the values", centred),
    "log-ranks": Fitness("votes grow with the rank's logarithm: the best count most", log_ranks),
}


def as_values(values: Any) -> Values:
    """Any array of numbers as float64; a ValueError for what is none, or is not finite."""
    array = array_of("fitness", values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"fitness is {array.dtype}: real numbers are needed")
    real = array.astype(np.float64)
    if not np.isfinite(real).all():
        first = np.argwhere(~np.isfinite(real))[0].tolist()
        raise ValueError(
            f"fitness is {real[tuple(first)]} at {first}: every value must be a finite number"
        )
    if abs(real).max(initial=0) > MOST:
        raise ValueError(f"fitness reaches {abs(real).max()}: {MOST} is the most, divide it")
    return real
