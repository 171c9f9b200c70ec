"""It learns: the count task, by update budget."""

from __future__ import annotations

import pytest

from eggroll import es, model
from eggroll.data import load_corpus
from eggroll.engines import choose
from eggroll.noise import Noise
from eggroll.population import Population, model_loss

PAIRS = 512


@pytest.mark.parametrize("seed", range(5))
def test_count_is_learnt_in_under_100_updates(seed):
    """V = 16, D = 64, one layer, T = 16, population 1024: below 0.05 bits per token."""
    corpus = load_corpus("count", vocabulary=16)
    program = model.egg(16, 64, 1)
    engine, _ = choose("auto", program)
    shapes = [leaf.shape for leaf in program.leaves]
    noise = Noise(shapes, seed=seed, rank=1, shift=8, table_bits=22)
    population = Population(engine, noise, members=2 * PAIRS, group=2, chunk=2 * PAIRS, clt=True)
    rule = es.SignRule(alpha=4, decay=1000, pairs=PAIRS, rank=1, clt=True)
    weights, state = model.initial_weights(program, seed), population.initial_state()
    train = corpus.streams("train", PAIRS, 16, seed)
    valid = corpus.streams("valid", 64, 32, seed)
    losses = []
    for step in range(99):
        scores, state = population.evaluate(weights, step, *train.batch(step), state)
        votes = population.votes(es.pair_fitness(scores), step)
        weights = rule(weights, {}, votes, step).weights
        if step % 10 == 9 or step == 98:
            batches = [valid.batch(0), valid.batch(1)]
            losses.append(model_loss(engine, weights, batches, corpus.warmup))
            if losses[-1] < 0.05:
                return
    pytest.fail(f"bits per token every ten updates: {losses}")
