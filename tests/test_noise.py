"""The shared noise: frozen bytes, and the same slices in the forward pass and in the votes."""

from __future__ import annotations

import hashlib

import mlx.core as mx
import numpy as np
import oracle
import pytest

from eggroll import networks
from eggroll.engines import ENGINES, available
from eggroll.engines.portable.operations import log2_score
from eggroll.evolution.population import Population
from eggroll.spec import fixed_point as fx
from eggroll.spec import noise, rng
from eggroll.spec import program as language

FROZEN = "f5dfaad07384df132cdd94116e838b48669b08742f9200be189bd7cf1fbf1016"


def test_table_is_normal_and_frozen():
    table = rng.normal_bytes(rng.key(0, rng.TABLE), 1 << 18)
    assert abs(table.mean()) < 0.1
    assert abs(table.astype(float).std() - 16) < 0.1
    assert table.min() > -127  # -128 never occurs
    digest = hashlib.sha256(table.tobytes()).hexdigest()
    assert digest == FROZEN, "the noise bytes of a seed must never change"


def test_shorter_draws_are_prefixes():
    whole = rng.normal_bytes(5, 100)
    for n in (0, 1, 3, 4, 99):
        np.testing.assert_array_equal(rng.normal_bytes(5, n), whole[:n])


def test_mixing_is_the_published_generator():
    """SplitMix64 from seed 1234567, as widely published."""
    state = np.array([1234567 + 0x9E3779B97F4A7C15], np.uint64)
    assert rng.mix(state)[0] == 6457827717110365317


def test_float_built_tables_are_far_from_ties():
    """Tables come from float formulas once; no C library's last digit may move an entry."""
    edges = np.array([fx.normal_cdf((k + 0.5) / 16) * 65536 - 0.5 for k in range(-127, 127)])
    inside = edges[(edges > 0) & (edges < 65535)]
    assert np.abs(inside - np.rint(inside)).min() > 1e-6
    v = np.arange(-127, 128)
    for exact in (254 / (1 + np.exp(-v / 16)), 64 * np.tanh(v / 64)):
        assert np.abs(exact - np.floor(exact) - 0.5).min() > 1e-6
    assert fx.gate_tables()["sigmoid"][127] == 0
    np.testing.assert_array_equal(fx.gate_tables()["tanh"], -fx.gate_tables()["tanh"][::-1])


@pytest.mark.parametrize("bits", [4, 8])
def test_fixed_point_tables_equal_the_oracle(bits):
    assert fx.exact_exp2().tolist() == oracle.EXACT
    for i, exact in enumerate(oracle.EXACT):  # 2^(31 + i/16), to the 31st digit
        assert exact**16 <= 2 ** (16 * 31 + i) < (exact + 2 ** (i // 16)) ** 16
    np.testing.assert_array_equal(fx.exp2_table(bits), oracle.EXP2[1 << bits])
    edges = [int(b) >> s for b in fx.log2_breakpoints(bits) for s in (30, 45)]
    edges += [1 << k for k in range(35)]
    numbers = [n + d for n in edges for d in (-1, 0, 1) if n + d > 0]
    got = log2_score(mx.array(numbers, mx.int64), bits).tolist()
    assert got == [oracle.log2_floor(n, 1 << bits) for n in numbers]


def small_noise(rank: int, reuse: int = 1, shift: int = 0) -> tuple[language.Program, noise.Noise]:
    """Noise of at most +-1, so that an unshifted perturbation leaves the network alive."""
    program = networks.egg(12, 8, 2)
    shared = noise.Noise(
        [leaf.shape for leaf in program.leaves],
        seed=3, rank=rank, shift=shift, reuse=reuse, table_bits=12,
    )  # fmt: skip
    shared.table = mx.sign(shared.table)
    return program, shared


@pytest.mark.parametrize("name", [n for n, why in available().items() if not why])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_forward_noise_is_voted_noise(name, rank, epoch):
    """Without a shift, member 2i is the plain network with weights W + Z_i, member 2i + 1 with
    W - Z_i, where Z_i is what the engine votes when pair i alone has fitness 1. So every leaf is
    credited with exactly the noise it was evaluated with, in every chunk, epoch and rank.
    """
    program, shared = small_noise(rank)
    P, T = 12, 4
    random = np.random.default_rng(epoch)
    weights = networks.initial_weights(program, 1)
    population = Population(ENGINES[name](program), shared, members=P, group=2, chunk=8, clt=True)
    tokens = random.integers(0, 12, (P // 2, T)).astype(np.int32)
    targets = random.integers(0, 12, (P // 2, T)).astype(np.int32)
    batch = language.Batch(tokens, targets, population.initial_state())
    scores, _ = population.evaluate(weights, epoch, batch)
    plain = {k: np.array(w).astype(np.int64) for k, w in weights.items()}
    for pair in range(P // 2):
        fitness = mx.array([int(i == pair) for i in range(P // 2)], mx.int8)
        Z = {k: np.array(z) for k, z in population.votes(fitness, epoch).items()}
        assert all(np.count_nonzero(z) for z in Z.values()), "every leaf is perturbed"
        for parity, sign in enumerate((1, -1)):
            moved = {k: w + sign * Z[k] for k, w in plain.items()}
            rows = tokens[pair : pair + 1], targets[pair : pair + 1]
            want, _, _ = oracle.evaluate(moved, *rows, np.zeros((1, 2, 8), np.int64))
            np.testing.assert_array_equal(np.array(scores)[2 * pair + parity], want[0])


def test_slices_fit_differ_and_do_not_depend_on_chunks():
    program, shared = small_noise(rank=2)
    whole = np.array(shared.slices(4, 0, 50).starts)
    np.testing.assert_array_equal(np.array(shared.slices(4, 20, 10).starts), whole[:, 20:30])
    for row, leaf in zip(whole, program.leaves, strict=True):
        room = shared.table.size - noise.slice_length(leaf.shape, 2)
        assert 0 <= row.min() <= row.max() <= room
        assert len(set(row.tolist())) > 40
    assert (np.array(shared.slices(5, 0, 50).starts) != whole).mean() > 0.9
    assert len({tuple(row) for row in whole.tolist()}) == len(program.leaves)


def test_noise_reuse():
    for reuse, same in ((1, [0]), (3, [0, 1, 2]), (0, [0, 1, 2, 5, 1000])):
        _, shared = small_noise(1, reuse)
        first = np.array(shared.slices(0, 0, 9).starts)
        for epoch in (0, 1, 2, 5, 1000):
            equal = np.array_equal(np.array(shared.slices(epoch, 0, 9).starts), first)
            assert equal == (epoch in same), (reuse, epoch)


def test_starts_are_uniform():
    """Chi-squared of 64 bins over 20,000 starts lies in its 1e-6 tails' complement."""
    _, shared = small_noise(1)
    starts = np.array(shared.slices(0, 0, 20_000).starts)[2]
    bins = np.bincount(starts * 64 // (starts.max() + 1), minlength=64)
    chi = ((bins - bins.mean()) ** 2 / bins.mean()).sum()
    assert 22 < chi < 127, chi
