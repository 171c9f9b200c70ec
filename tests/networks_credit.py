"""Small random networks with what token credit needs besides."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import oracle_credit
import oracle_rows
from networks import Case, random_case

from eggroll.engines import Engine
from eggroll.spec.credit import Crediting, CreditNoise, crediting
from eggroll.spec.fixed_point import gate_tables

LARGEST = 1 << 19  # value in place of a score difference


@dataclass
class Credited:
    """A case of networks.py with what token credit needs besides."""

    case: Case
    estimator: str
    discount: int
    signs: np.ndarray  # [leaves, N, words] int32
    draws: np.ndarray  # [N, T] uint32
    values: np.ndarray | None = None  # [N, T] int32, in place of score differences
    group: int = 0  # members compared with their mean; 0: those of a pair

    @property
    def credit_noise(self) -> CreditNoise:
        return CreditNoise(mx.array(self.signs), mx.array(self.draws))

    @property
    def signs_of_nodes(self) -> oracle_credit.CreditNoise | None:
        """For the oracle, where the noise is on what layers give."""
        signs = dict(zip(self.case.weights, self.signs, strict=True))
        nodes = self.estimator == "token-credit"
        return oracle_credit.CreditNoise(signs, self.draws, self.group) if nodes else None

    @property
    def crediting(self) -> Crediting:
        return crediting(
            self.case.program,
            nodes=self.estimator == "token-credit",
            sigma_shift=self.case.sigma_shift,
            discount=self.discount,
            seq_len=self.case.tokens.shape[1],
            group=self.group,
        )

    def oracle_of_any(self):
        """Scores, state and votes by the oracle that runs any program."""
        case = self.case
        return oracle_rows.credit(
            case.program, case.weights, case.tokens, case.targets, case.state, case.rows,
            case.noise(), self.signs_of_nodes, self.discount, self.values,
        )  # fmt: skip

    def oracle_outputs(self):
        """Outputs and state of the members that are credited."""
        case = self.case
        return oracle_rows.credited_outputs(
            case.program, case.weights, case.tokens, case.state, case.rows, case.noise(),
            self.signs_of_nodes,
        )  # fmt: skip

    def oracle(self):
        """Scores, state and votes of EGG, by the oracle that knows no other network."""
        case = self.case
        P, D, names = len(case.tokens), case.program.width, list(case.weights)
        signs = dict(zip(names, self.signs, strict=True))
        credit_noise = oracle_credit.CreditNoise(signs, self.draws, self.group)
        scores, state, Z = oracle_credit.credit(
            self.estimator, case.weights, case.tokens, case.targets,
            case.state.reshape(P, case.program.state_size // D, D), case.noise(), credit_noise,
            self.discount, None if case.gates == "clip" else gate_tables(),
            1 << case.program.score_bits,
        )  # fmt: skip
        return scores, state.reshape(P, -1), Z

    def run(self, engine: Engine):
        case, values = self.case, None if self.values is None else mx.array(self.values)
        prepared = engine.prepare(case.leaves)
        return engine.credit(
            prepared, case.slices, case.batch, self.credit_noise, self.crediting, values
        )

    def outputs(self, engine: Engine):
        prepared = engine.prepare(self.case.leaves)
        return engine.outputs(
            prepared, self.case.slices, self.case.batch, self.credit_noise, self.crediting
        )


def credited_case(
    seed: int,
    estimator: str,
    *,
    marks: float = 0.2,
    discount: int = 12,
    alike=True,
    group=0,
    **shape,
) -> Credited:
    """A case of EGG: shape as in `random_case`, the rest as in `credited_of`."""
    rng = np.random.default_rng(seed + 1)
    case = random_case(seed, **shape)
    return credited_of(case, rng, estimator, marks, discount, alike, group=group)


def credited_of(
    case: Case,
    rng: np.random.Generator,
    estimator: str,
    marks: float = 0.2,
    discount: int = 12,
    alike: bool = True,
    valued: bool = False,
    group: int = 0,
) -> Credited:
    """A case with signs and draws.

    marks: share of document marks; alike: members of a pair read the same; valued: values are given
    where there is a score, too.
    """
    (P, T), V = case.tokens.shape, case.program.vocabulary
    case.tokens[:] = rng.integers(1, V, (P, T)) * (rng.random((P, T)) >= marks)
    if alike:
        for array in (case.tokens, case.targets, *(a for a in case.rows if a is not None)):
            array[1::2] = array[0::2]
    words = rng.integers(-(2**31), 2**31, (len(case.weights), P // 2, -(-T // 32)))
    draws = rng.integers(0, 2**32, (P // 2, T), dtype=np.uint32)
    values = values_of(rng, (P // 2, T)) if valued or not case.program.scored else None
    return Credited(case, estimator, discount, words.astype(np.int32), draws, values, group)


def values_of(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Values of all sizes, with zeros and the largest among them."""
    sizes = 2.0 ** rng.integers(-1, 12, shape)
    values = np.rint(rng.normal(0, sizes)).astype(np.int32)
    limits = rng.choice(np.array([-LARGEST, LARGEST], np.int32), shape)
    return np.where(rng.random(shape) < 0.1, limits, values)
