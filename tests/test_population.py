"""Chunks and groups: no cut of a population changes a bit, and a group reads one stream."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Case

from eggroll import networks
from eggroll.engines import ENGINES, Engine, available
from eggroll.evolution import population as populations
from eggroll.evolution.estimators import pair_fitness
from eggroll.evolution.population import Population
from eggroll.inference import model_loss
from eggroll.spec.fixed_point import exact_exp2, total_bits
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch


@pytest.mark.parametrize("name", [name for name, why in available().items() if not why])
@settings(max_examples=20, deadline=None)
@given(
    groups=st.integers(1, 5),
    group=st.sampled_from([2, 4, 6, 12]),
    chunk=st.integers(1, 40).map(lambda n: 2 * n),
    threads=st.integers(1, 3),
    rank=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_population_equals_the_oracle(name, groups, group, chunk, threads, rank, seed):
    program, P, T = networks.egg(9, 6, 1), groups * group, 2
    shapes = [leaf.shape for leaf in program.leaves]
    noise = Noise(shapes, seed=seed, rank=rank, shift=8, table_bits=10)
    random = np.random.default_rng(seed)
    tokens, targets = random.integers(0, 9, (2, groups, T)).astype(np.int32)
    weights = {k: np.array(w) for k, w in networks.initial_weights(program, seed).items()}
    state = random.integers(-127, 128, (P, 6)).astype(np.int8)
    repeated = (np.repeat(a, group, axis=0) for a in (tokens, targets))  # members of a group agree
    starts = np.array(noise.slices(3, 0, P // 2).starts)
    table = np.array(noise.table)
    case = Case(program, weights, table, starts, rank, 4, *repeated, state)
    scores, after, _ = case.oracle()
    fitness = oracle.pair_fitness(scores)

    engine = ENGINES[name](program, threads)
    population = Population(engine, noise, members=P, group=group, chunk=chunk, clt=True)
    got = population.evaluate(case.leaves, 3, Batch(tokens, targets, mx.array(state)))
    np.testing.assert_array_equal(np.array(got[0]), scores)
    np.testing.assert_array_equal(np.array(got[1]), after)
    np.testing.assert_array_equal(np.array(pair_fitness(got[0])), fitness)
    votes = population.votes(mx.array(fitness.astype(np.int8)), 3)
    for leaf, want in oracle.votes(weights, case.noise(), fitness).items():
        np.testing.assert_array_equal(np.array(votes[leaf]), want)


@pytest.mark.parametrize("chunk", [4, 10, 14])
def test_signs_that_stay_on_a_gpu_have_the_same_votes(chunk: int, monkeypatch: pytest.MonkeyPatch):
    program, P = networks.egg(9, 6, 1), 14
    noise = Noise([leaf.shape for leaf in program.leaves], seed=1, rank=1, shift=8, table_bits=10)
    signs = mx.array([1, 0, -1, -1, 0, 1, 1], mx.int8)
    made = ENGINES["cpu"](program, 1)
    population = Population(made, noise, members=P, group=2, chunk=chunk)
    expected, read = population.votes(signs, 2), list[object]()
    monkeypatch.setattr(populations, "arrays", lambda: (mx, lambda array: array))
    monkeypatch.setattr(populations.np, "array", read.append)
    found = population.votes(signs, 2, signs=True)
    assert read == []
    for name, votes in expected.items():
        assert mx.array_equal(found[name], votes), name


class ByLogits(ENGINES["cpu"]):
    """An engine without likelihoods of its own."""

    likelihoods = Engine.likelihoods


@pytest.mark.parametrize("warmup", [0, 2])
def test_model_loss_carries_the_state_and_leaves_the_warmup_out(warmup):
    program = networks.egg(9, 6, 1)
    weights = {k: np.array(w) for k, w in networks.initial_weights(program, 0).items()}
    random = np.random.default_rng(0)
    tokens, targets = random.integers(0, 9, (2, 3, 8)).astype(np.int32)
    _, _, logits = oracle.evaluate(weights, tokens, targets, np.zeros((3, 1, 6), np.int64))
    batches = [Batch(tokens, targets).window(rows) for rows in (slice(5), slice(5, None))]
    leaves = {k: mx.array(w) for k, w in weights.items()}
    names = [name for name, why in available().items() if not why]
    engines = [ENGINES[name](program) for name in names] + [ByLogits(program)]
    losses = {model_loss(engine, leaves, batches, warmup) for engine in engines}
    chances = np.exp2(logits / 16) / np.exp2(logits / 16).sum(axis=-1, keepdims=True)
    asked = np.take_along_axis(chances, targets[..., None], axis=-1)[:, warmup:]
    assert len(losses) == 1, "the same on all engines, to the last bit"
    assert losses.pop() == pytest.approx(-np.log2(asked).mean(), abs=2**-30)


def test_exact_bits_do_not_depend_on_the_order_of_tokens():
    """Sums of many floats do; nor may a nearly sure model lose its last digits."""
    rng = np.random.default_rng(0)
    totals = rng.integers(2**31, 2**62, 5000, dtype=np.uint64)
    hits = rng.integers(-127, 128, 5000).astype(np.int8)
    bits = total_bits(totals, hits)
    for _ in range(5):
        order = rng.permutation(5000)
        assert total_bits(totals[order], hits[order]) == bits
    tokens = np.log2(totals.astype(np.float64)) - 31 - (hits + 128.0) / 16
    assert bits == pytest.approx(tokens.sum(), rel=1e-12)
    exp2 = exact_exp2()
    sure = np.full(1000, exp2[255] + exp2[1], np.uint64)  # V = 2, both logits at their limits
    loss = total_bits(sure, np.full(1000, 127, np.int8)) / 1000
    assert loss == pytest.approx(np.log2(1 + 2 ** (-254 / 16)), abs=2**-31)
