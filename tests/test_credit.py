"""Token credit: one body for all engines, each equal to the oracle bit for bit."""

from __future__ import annotations

import os
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import oracle_credit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Case, random_case
from test_engines import BACKENDS

from eggroll.credit import Chance, Crediting, crediting
from eggroll.engines import ENGINES, Engine
from eggroll.fixed_point import gate_tables

CREDITED = ["token-votes", "token-credit"]


@dataclass
class Credited:
    """A case of networks.py with what token credit needs besides."""

    case: Case
    estimator: str
    discount: int
    signs: np.ndarray  # [leaves, N, words] int32
    draws: np.ndarray  # [N, T] uint32

    @property
    def how(self) -> Crediting:
        return crediting(
            self.case.program, self.estimator, sigma_shift=self.case.sigma_shift,
            discount=self.discount, seq_len=self.case.tokens.shape[1],
        )  # fmt: skip

    def oracle(self):
        case = self.case
        P, D, names = len(case.tokens), case.program.width, list(case.weights)
        luck = oracle_credit.Luck(dict(zip(names, self.signs, strict=True)), self.draws)
        scores, state, Z = oracle_credit.credit(
            self.estimator, case.weights, case.tokens, case.targets,
            case.state.reshape(P, case.program.state_size // D, D), case.noise(), luck,
            self.discount, None if case.gates == "clip" else gate_tables(),
        )  # fmt: skip
        return scores, state.reshape(P, -1), Z

    def run(self, engine: Engine):
        case, luck = self.case, Chance(mx.array(self.signs), mx.array(self.draws))
        prepared = engine.prepare(case.leaves)
        return engine.credit(prepared, case.slices, luck, self.how, *case.arrays)


def credited_case(
    seed: int, estimator: str, *, marks: float = 0.2, discount: int = 12, alike=True, **shape
) -> Credited:
    """marks: share of document marks; alike: members of a pair read the same."""
    case, rng = random_case(seed, **shape), np.random.default_rng(seed + 1)
    (P, T), V = case.tokens.shape, case.program.vocabulary
    case.tokens[:] = rng.integers(1, V, (P, T)) * (rng.random((P, T)) >= marks)
    if alike:
        case.tokens[1::2], case.targets[1::2] = case.tokens[0::2], case.targets[0::2]
    words = rng.integers(-(2**31), 2**31, (len(case.weights), P // 2, -(-T // 32)))
    draws = rng.integers(0, 2**32, (P // 2, T), dtype=np.uint32)
    return Credited(case, estimator, discount, words.astype(np.int32), draws)


def same(got, want, where: str = "") -> None:
    scores, state, Z = want
    np.testing.assert_array_equal(np.array(got[0]), scores, err_msg=where)
    np.testing.assert_array_equal(np.array(got[1]), state, err_msg=where)
    assert list(got[2]) == list(Z)
    for name, z in got[2].items():
        assert z.dtype == mx.int32
        np.testing.assert_array_equal(np.array(z), Z[name], err_msg=f"{where} {name}")


def check_backends(credited: Credited, threads: int = 2, slab: int = 0):
    """Compares every engine and instruction set with the oracle, computed once."""
    want, before = credited.oracle(), os.environ.get("EGGROLL_ISA")
    try:
        for backend in BACKENDS:
            name, _, os.environ["EGGROLL_ISA"] = backend.partition(":")
            engine = ENGINES[name](credited.case.program, threads, slab)
            same(credited.run(engine), want, backend)
    finally:
        os.environ.pop("EGGROLL_ISA")
        if before is not None:
            os.environ["EGGROLL_ISA"] = before
    return want


SHAPES = [
    {"V": 16, "D": 8, "L": 1, "T": 3, "P": 4},
    {"V": 5, "D": 1, "L": 2, "T": 3, "P": 2, "discount": 15},
    {"V": 300, "D": 20, "L": 1, "T": 3, "P": 6, "gates": "table"},
    {"V": 33, "D": 13, "L": 2, "T": 2, "P": 36, "gates": "table", "discount": 8},
    {"V": 9, "D": 7, "L": 1, "T": 33, "P": 4, "sigma_shift": 2},
    {"V": 7, "D": 5, "L": 1, "T": 65, "P": 2, "sigma_shift": 1, "discount": 15},
    {"V": 12, "D": 18, "L": 0, "T": 4, "P": 6},
    {"V": 17, "D": 16, "L": 1, "T": 4, "P": 34, "sigma_shift": 0, "extreme": True},
    {"V": 64, "D": 10, "L": 2, "T": 5, "P": 6, "sigma_shift": 8, "discount": 0},
    {"V": 24, "D": 6, "L": 1, "T": 8, "P": 4, "marks": 0.0},
    {"V": 8, "D": 130, "L": 1, "T": 2, "P": 2, "extreme": True, "sigma_shift": 1},
    {"V": 11, "D": 9, "L": 1, "T": 4, "P": 6, "alike": False},
]


@pytest.mark.parametrize("estimator", CREDITED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_oracle_on_chosen_networks(shape, estimator):
    want = check_backends(credited_case(1, estimator, **shape), slab=2)
    moved = [name for name, z in want[2].items() if np.any(z)]
    assert "embedding" in moved
    assert "head" in moved


random_shapes = st.fixed_dictionaries(
    {
        "V": st.integers(5, 40),
        "D": st.integers(1, 20),
        "L": st.integers(0, 2),
        "T": st.sampled_from([1, 2, 3, 5]),
        "P": st.integers(1, 3).map(lambda n: 2 * n),
        "sigma_shift": st.integers(0, 8),
        "gates": st.sampled_from(["clip", "table"]),
        "extreme": st.booleans(),
        "discount": st.sampled_from([0, 8, 15]),
    }
)


@settings(max_examples=120, deadline=None)
@given(
    shape=random_shapes,
    estimator=st.sampled_from(CREDITED),
    seed=st.integers(0, 2**32 - 1),
    threads=st.integers(1, 3),
    slab=st.integers(1, 4),
)
def test_equals_oracle_on_random_networks(shape, estimator, seed, threads, slab):
    check_backends(credited_case(seed, estimator, **shape), threads, slab)
