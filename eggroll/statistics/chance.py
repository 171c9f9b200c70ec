"""The mean |Z| that votes would have if scores were pure chance, per leaf.

Letters: N pairs, T tokens, r rank of the noise, O outputs and K inputs of a matrix.
"""

from __future__ import annotations

from functools import partial
from math import exp, lgamma, pi, sqrt

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.credit import Crediting, CreditKind, draw_signs
from eggroll.errors import EngineError
from eggroll.estimator import Given
from eggroll.population import Population

NORMAL = sqrt(2 / pi)  # mean size of a normal value over its deviation
BYTE = 256 + 1 / 12  # variance of a noise byte, rounding included
SIGN = 0.975  # share of noise bytes that are not 0, and so the variance of their signs
LARGEST, SHARE = 256, 8  # pairs of a sample: this many at most, and one of so many
LEAST = 4  # pairs of a sample


def of_pairs(population: Population, decided: int) -> dict[str, float]:
    """Of votes that follow from the fitness of pairs: each that decided adds its noise.

    decided: their number. A sum of k products of two normal values is normal, given the one factor
    of each, with the deviation that these have together, which is distributed as chi of k degrees.
    """
    power = BYTE if population.clt else SIGN
    ranks = {2: population.noise.rank, 1: 1}
    terms = ((leaf.name, decided * ranks[len(leaf.shape)])
             for leaf in population.engine.program.leaves)  # fmt: skip
    return {name: NORMAL * power * _mean_chi(k) for name, k in terms if k}


def _mean_chi(k: int) -> float:
    """The mean length of k normal values; sqrt(k) of many."""
    return sqrt(2) * exp(lgamma((k + 1) / 2) - lgamma(k / 2))


def of_credit(population: Population, given: Given, scores: mx.array) -> dict[str, float]:
    """Of votes credited token by token: some pairs are credited with the scores of others.

    Their votes have the size of real ones and know nothing of their own noise. The leaves of
    layers alone: a rare token's row has too few of them, and a readout has no noise. Empty where
    there are too few pairs, or where members are compared with a group.
    scores: int16 [P, T], of the update that began with `given`.
    """
    crediting, all_pairs = population.crediting, population.everyone // 2
    pairs = min(LARGEST, all_pairs // SHARE, population.members // 2)
    if crediting is None or crediting.group or pairs < LEAST:
        return {}
    try:
        work = partial(_sample, population, crediting, given, scores, pairs)
        votes = population.engine.guarding(work)
    except EngineError:  # of which the next update will tell
        return {}
    scale = NORMAL * sqrt(all_pairs / pairs)
    kinds = zip(population.engine.program.leaves, crediting.kinds, strict=True)
    names = [leaf.name for leaf, kind in kinds if kind in (CreditKind.INPUTS, CreditKind.SCALAR)]
    return {name: scale * _deviation(np.asarray(votes[name])) for name in names}


def _sample(
    population: Population, crediting: Crediting, given: Given, scores: mx.array, pairs: int
) -> dict[str, mx.array]:
    """Votes of the first pairs here, each by the next one's score differences."""
    engine, noise, (tokens, targets) = population.engine, population.noise, given.batch
    first, T = population.before // 2, tokens.shape[1]
    signs = draw_signs(
        crediting, seed=noise.seed, step=given.step, first_pair=first, pairs=pairs, seq_len=T,
        threads=engine.threads,
    )  # fmt: skip
    mine = np.asarray(scores)[: 2 * pairs].astype(np.int32)
    values = np.roll(mine[0::2] - mine[1::2], 1, axis=0)
    rows = np.arange(2 * pairs) * len(tokens) // population.members
    read, wanted = (mx.array(np.take(shared, rows, axis=0)) for shared in (tokens, targets))
    votes = engine.credit(
        population.prepared(given.weights), noise.slices(given.step, first, pairs), signs,
        crediting, read, wanted, given.state[: 2 * pairs], values=mx.array(values),
    )[2]  # fmt: skip
    mx.eval(votes)
    return votes


def _deviation(votes: NDArray[np.int32]) -> float:
    """The deviation of votes [O, K] or [n] about 0, in the mean over the inputs."""
    power = (votes.astype(np.float64) ** 2).mean(axis=0)
    return float(np.sqrt(power).mean())
