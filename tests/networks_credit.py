"""Small random networks with what token credit needs besides."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import oracle_credit
from networks import Case, random_case

from eggroll.credit import Crediting, CreditNoise, crediting
from eggroll.engines import Engine
from eggroll.fixed_point import gate_tables


@dataclass
class Credited:
    """A case of networks.py with what token credit needs besides."""

    case: Case
    estimator: str
    discount: int
    signs: np.ndarray  # [leaves, N, words] int32
    draws: np.ndarray  # [N, T] uint32

    @property
    def crediting(self) -> Crediting:
        return crediting(
            self.case.program,
            nodes=self.estimator == "token-credit",
            sigma_shift=self.case.sigma_shift,
            discount=self.discount,
            seq_len=self.case.tokens.shape[1],
        )

    def oracle(self):
        case = self.case
        P, D, names = len(case.tokens), case.program.width, list(case.weights)
        signs = dict(zip(names, self.signs, strict=True))
        credit_noise = oracle_credit.CreditNoise(signs, self.draws)
        scores, state, Z = oracle_credit.credit(
            self.estimator, case.weights, case.tokens, case.targets,
            case.state.reshape(P, case.program.state_size // D, D), case.noise(), credit_noise,
            self.discount, None if case.gates == "clip" else gate_tables(),
            1 << case.program.score_bits,
        )  # fmt: skip
        return scores, state.reshape(P, -1), Z

    def run(self, engine: Engine):
        case, credit_noise = self.case, CreditNoise(mx.array(self.signs), mx.array(self.draws))
        prepared = engine.prepare(case.leaves)
        return engine.credit(prepared, case.slices, credit_noise, self.crediting, *case.arrays)


def credited_case(
    seed: int, estimator: str, *, marks: float = 0.2, discount: int = 12, alike=True, **shape
) -> Credited:
    """A case of EGG: shape as in `random_case`, the rest as in `credited_of`."""
    rng = np.random.default_rng(seed + 1)
    return credited_of(random_case(seed, **shape), rng, estimator, marks, discount, alike)


def credited_of(
    case: Case,
    rng: np.random.Generator,
    estimator: str,
    marks: float = 0.2,
    discount: int = 12,
    alike: bool = True,
) -> Credited:
    """marks: share of document marks; alike: members of a pair read the same."""
    (P, T), V = case.tokens.shape, case.program.vocabulary
    case.tokens[:] = rng.integers(1, V, (P, T)) * (rng.random((P, T)) >= marks)
    if alike:
        case.tokens[1::2], case.targets[1::2] = case.tokens[0::2], case.targets[0::2]
    words = rng.integers(-(2**31), 2**31, (len(case.weights), P // 2, -(-T // 32)))
    draws = rng.integers(0, 2**32, (P // 2, T), dtype=np.uint32)
    return Credited(case, estimator, discount, words.astype(np.int32), draws)
