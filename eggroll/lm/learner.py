"""The learning of a fine-tune without its model: noise, fitness, votes and the update rule.

What learns in a layer is its delta, int8 [O, C] in units of 2^exponent. Nothing here runs a model,
so a replay needs no more than this module and the fitness of every pair.

Letters: P members, N = P/2 pairs, r rank of the noise, O outputs of a layer, C columns of its
delta, Z votes, int32 [O, C].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Final, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.cli.command import Range, check_names, check_ranges
from eggroll.cli.help import CHANGEABLE
from eggroll.errors import InputError
from eggroll.evolution import estimators
from eggroll.evolution.rules import AdamRule, FineCopyRule, MasterRule, arrays
from eggroll.spec.noise import Noise
from eggroll.spec.program import Leaves

Values = NDArray[np.float64]
Votes = NDArray[np.int8]
FitnessName = Literal["sign", "ranks", "centred", "z-scores"]
RuleName = Literal["master", "adam"]

NOISE_BITS: Final = 3  # the noise's deviation is 2^3 last bits of a delta
EXACT: Final = (1 << 24) // 127**2  # products of two noise bytes that float32 adds up exactly
MOST_PRODUCTS: Final = (1 << 31) // 127**2  # and int32
MOST_FITNESS: Final = 13  # of a pair, where its size counts; files.pack_small holds it
MEAN_SQUARE: Final = 12  # of such a fitness, about


@dataclass(frozen=True)
class Options:
    """Options of a fine-tune, `lm.Trainer` and `eggroll finetune` alike."""

    pop: Annotated[int, Range(2, 1 << 16, 2)] = 64
    """P, members of the population: 2i and 2i + 1 have opposite noise."""
    learn: str = "adapter:8"
    """adapter:RANK (low-rank additions to every linear layer of the blocks), biases (those of the
    affine quantisation: size and format of the model stay) or dense (all weights of float
    layers)."""
    sigma: Annotated[float, Range(1e-6, 16)] = 0.02
    """Deviation of the noise over the root mean square of a layer's weights, rounded to a power of
    two in each layer."""
    steps: Annotated[int, Range(1, 10**9), CHANGEABLE] = 200
    """Updates to make; with --resume the total, earlier ones included."""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """Seed of the noise, of the adapters' fixed half and of sampling."""
    fitness: FitnessName = "z-scores"
    """A pair's fitness. sign: which member had the larger mean value; ranks, centred: the size of
    the difference counts; z-scores: values over their deviation among the members, prompt by
    prompt, as GRPO has them."""
    rule: RuleName = "master"
    """master: votes added up on one scale; adam: votes by their mean over their size, with
    memory."""
    rate: Annotated[float, Range(0, 64, above=True)] = 2.0
    """Learning rate in last bits of a delta, of which the noise's deviation is eight."""
    rate_decay: Annotated[float, Range(0, 100)] = 1.0
    """Rule master: the rate falls as 1 / (1 + this x progress)."""
    decay: Annotated[float, Range(0, 0.5)] = 0.0
    """Share of the delta that every update takes away, against forgetting."""
    rank: Annotated[int, Range(1, 64)] = 1
    """Rank of the noise on a delta."""
    table_bits: Annotated[int, Range(12, 28)] = 22
    """The noise table has 2^N bytes."""
    raise_sigma: bool = True
    """Doubles sigma where most pairs write the same texts, up to eight times."""
    memory: Annotated[int, Range(1, 1 << 24), CHANGEABLE] = 1024
    """MiB that members may take at a time besides the model; they run in chunks of pairs that
    fit."""
    chunk: Annotated[int, Range(0, 1 << 16, 2), CHANGEABLE] = 0
    """Members at a time; 0 fits them into the memory."""
    checkpoint_every: Annotated[int, Range(0, 10**9), CHANGEABLE] = 10
    """Updates from one checkpoint to the next; 0 leaves it to the end."""

    def check(self) -> None:
        """Looks at every option.

        Raises:
            InputError: one is out of range, or the votes of so many pairs would not be exact.
        """
        check_ranges(self)
        check_names(self)
        mode_of(self.learn)
        most = self.pop // 2 * self.rank * (1 if self.fitness == "sign" else MOST_FITNESS)
        if most >= MOST_PRODUCTS:
            raise InputError(
                f"--pop {self.pop} at --rank {self.rank} and --fitness {self.fitness} adds up to "
                f"{most:,} products of noise in a vote, and {MOST_PRODUCTS - 1:,} fit int32: lower "
                "--pop or --rank, or use --fitness sign."
            )


class Mode(NamedTuple):
    """The part of a layer that learns; rank: of an adapter, 0 of others."""

    name: Literal["adapter", "biases", "dense"]
    rank: int = 0


def mode_of(learn: str) -> Mode:
    """The mode that option `learn` names.

    Raises:
        InputError: it names none.
    """
    name, _, rank = learn.partition(":")
    if name == "adapter" and (not rank or (rank.isdecimal() and 1 <= int(rank) <= 256)):
        return Mode("adapter", int(rank or 8))
    if learn in ("biases", "dense"):
        return Mode(learn)  # type: ignore[arg-type]
    raise InputError(
        f"--learn is {learn!r}: adapter:RANK of rank 1 to 256, biases or dense is needed."
    )


class Delta(NamedTuple):
    """The delta of a layer: its name in the model, O, K inputs, C, and the last bit's exponent.

    dtype: the float type in which the layer computes; a delta times its unit is exact in all of
    them.
    """

    name: str
    outputs: int
    inputs: int
    columns: int
    exponent: int
    dtype: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs, self.columns

    @property
    def unit(self) -> float:
        """The value of a delta's last bit."""
        return 2.0**self.exponent


class PairNoise(NamedTuple):
    """The noise of some pairs on one layer: member 2i adds c A Bᵀ to the delta, 2i + 1 takes it."""

    A: NDArray[np.int8]  # [pairs, O, r]
    B: NDArray[np.int8]  # [pairs, C, r]


class DeltaLearner:
    """The deltas of all layers, and what moves them.

    step: updates made; weights: int8 [O, C] by a layer's name; memory: of the rule.
    """

    def __init__(self, leaves: Sequence[Delta], options: Options) -> None:
        self.leaves, self.options, self.step = list(leaves), options, 0
        self._noise = Noise(
            [leaf.shape for leaf in leaves], seed=options.seed, rank=options.rank, shift=0,
            table_bits=options.table_bits,
        )  # fmt: skip
        if (longest := max(options.rank * sum(leaf.shape) for leaf in leaves)) > 1 << (
            options.table_bits - 4
        ):
            raise InputError(
                f"--table-bits {options.table_bits} makes a noise table of "
                f"{1 << options.table_bits:,} bytes and a pair takes up to {longest:,} of them for "
                f"one layer, of which 16 must fit: give {(longest - 1).bit_length() + 4} or more."
            )
        self._table = np.asarray(self._noise.table)
        self.rule = rule_of(options)
        self.weights: Leaves = {leaf.name: mx.zeros(leaf.shape, mx.int8) for leaf in leaves}
        self.memory = self.rule.start(self.weights)

    def noise(self, first: int, pairs: int) -> list[PairNoise]:
        """The noise of pairs first .. first + pairs - 1 in this update, layer by layer."""
        every = np.arange(first, first + pairs)
        starts = self._starts()
        return [self._pair_noise(starts[i], leaf, every) for i, leaf in enumerate(self.leaves)]

    def _starts(self) -> NDArray[np.int32]:
        """Places in the table, int32 [layers, N]."""
        return np.asarray(self._noise.slices(self.step, 0, self.options.pop // 2).starts)

    def _pair_noise(
        self, starts: NDArray[np.int32], leaf: Delta, which: NDArray[np.intp]
    ) -> PairNoise:
        r, (outputs, columns) = self.options.rank, leaf.shape
        size = r * (outputs + columns)
        slices = np.stack([self._table[at : at + size] for at in starts[which]])
        return PairNoise(
            slices[:, r * columns :].reshape(-1, outputs, r),
            slices[:, : r * columns].reshape(-1, columns, r),
        )

    def votes(self, fitness: Votes) -> Iterator[tuple[str, mx.array]]:
        """Z of each layer by the fitness of all pairs, int8 [N]: exact sums, by float products."""
        voters, starts = np.flatnonzero(fitness), self._starts()
        largest = max(int(abs(fitness.astype(np.int16)).max(initial=1)), 1)
        piece = max(EXACT // (largest * self.options.rank), 1)
        for i, leaf in enumerate(self.leaves):
            total = np.zeros(leaf.shape, np.int32)
            for first in range(0, len(voters), piece):
                which = voters[first : first + piece]
                noise = self._pair_noise(starts[i], leaf, which)
                total += summed(noise, fitness[which])
            yield leaf.name, mx.array(total)

    def move(self, fitness: Votes) -> float:
        """Makes an update by the fitness of all pairs; the share of the deltas that moved.

        Layer by layer, so that no more than one has its votes and its old and new arrays at a time:
        half of it is no state to go on from.
        """
        moved, self.weights, self.memory = 0, Leaves(self.weights), Leaves(self.memory)
        for name, votes in self.votes(fitness):
            delta = self.weights[name]
            after = self.rule({name: delta}, self.memory, {name: votes}, self.step)
            mx.eval(after.weights, after.memory)
            self.weights |= after.weights
            self.memory |= after.memory
            moved += round(after.rate * delta.size)
        self.step += 1
        return moved / sum(delta.size for delta in self.weights.values())


def summed(noise: PairNoise, fitness: Votes) -> NDArray[np.int32]:
    """sum_p f_p A_p B_pᵀ, int32 [O, C], of so few pairs that float32 adds them up exactly."""
    xp, view = arrays()
    credited = noise.A.astype(np.float32) * fitness[:, None, None].astype(np.float32)
    A = view(mx.array(credited) if xp is mx else credited)
    B = mx.array(noise.B).astype(mx.float32) if xp is mx else noise.B.astype(np.float32)
    outputs, columns = noise.A.shape[1], noise.B.shape[1]
    left = xp.transpose(A, (1, 0, 2)).reshape(outputs, -1)
    right = xp.transpose(B, (0, 2, 1)).reshape(-1, columns)
    return np.asarray(left @ right).astype(np.int32)


# From values to the fitness of pairs.


def fitness_of(values: Values, name: FitnessName) -> Votes:
    """Values [P] or [P, G] -> the fitness of pairs, int8 [N]; prompt by prompt for z-scores."""
    if name == "z-scores":
        columns = values.reshape(len(values), -1)
        deviation = columns.std(axis=0)
        useful = deviation > 1e-9 * (1 + abs(columns).max(axis=0))
        if not useful.any():
            return np.zeros(len(values) // 2, np.int8)
        centred = columns - columns.mean(axis=0)
        z = (centred / np.where(useful, deviation, 1) * useful).sum(axis=1)
        # The difference of two members' sums has a deviation of sqrt(2 G).
        scaled = (z[0::2] - z[1::2]) * sqrt(MEAN_SQUARE / (2 * columns.shape[1]))
        found: Votes = np.clip(np.rint(scaled), -MOST_FITNESS, MOST_FITNESS).astype(np.int8)
        return found
    mean = values.reshape(len(values), -1).mean(axis=1)
    return estimators.FITNESS[name].of(mean)


# Rules: the package's own, with a decay that anchors the model.


class AnchoredAdam(AdamRule):
    """AdamRule whose deltas shrink by a share in every update, and by nothing else."""

    anchor = 0.0

    def shrinking(self, name: str, step: int) -> int:
        return round(self.anchor * (1 << 24))


def _master(options: Options) -> MasterRule:
    square = 1 if options.fitness == "sign" else MEAN_SQUARE
    return MasterRule(
        rate=options.rate, decay=options.rate_decay, steps=options.steps,
        pairs=options.pop // 2 * square, rank=options.rank, clt=True, weight_decay=options.decay,
    )  # fmt: skip


def _adam(options: Options) -> AnchoredAdam:
    rule = AnchoredAdam(rate=options.rate, steps=options.steps)
    rule.anchor = options.decay
    return rule


MAKERS: Final[dict[str, Callable[[Options], FineCopyRule]]] = {"master": _master, "adam": _adam}


def rule_of(options: Options) -> FineCopyRule:
    """The update rule of a fine-tune."""
    return MAKERS[options.rule](options)
