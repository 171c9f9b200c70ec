"""Estimator group-credit: members with signs of their own against the mean of their group."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import get_args

import mlx.core as mx
import numpy as np
import pytest
from networks_credit import credited_case
from test_credit import check_backends, same

import eggroll as eg
from eggroll import networks
from eggroll.engines import ENGINES, choose
from eggroll.errors import InputError
from eggroll.evolution.estimators import EstimatorName
from eggroll.evolution.population import Population
from eggroll.library.trainer import TrainerEstimator
from eggroll.spec.credit import crediting
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch
from eggroll.training.config import Config
from eggroll.training.learner import chunk_size, fitting_chunk

SHAPES = [
    {"V": 16, "D": 8, "L": 1, "T": 3, "P": 8, "group": 4, "sigma_shift": 0},
    {"V": 33, "D": 13, "L": 2, "T": 2, "P": 40, "gates": "table", "discount": 8, "group": 8},
    {"V": 9, "D": 7, "L": 1, "T": 33, "P": 32, "group": 32, "sigma_shift": 2, "alike": False},
    {"V": 300, "D": 11, "L": 1, "T": 6, "P": 48, "group": 16, "sigma_shift": 1, "score_bits": 8},
    {"V": 8, "D": 130, "L": 0, "T": 2, "P": 4, "group": 4, "extreme": True, "sigma_shift": 1},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_oracles(shape):
    credited = credited_case(2, "token-credit", **shape)
    want = check_backends(credited, block_tokens=2)
    declared = credited.oracle_of_any()
    for name, z in want[2].items():
        np.testing.assert_array_equal(z, declared[2][name])
    in_pairs = replace(credited, group=0).oracle()
    assert not np.array_equal(want[2]["embedding"], in_pairs[2]["embedding"])


@pytest.mark.parametrize("name", ["portable", "cpu"])
def test_chunks_of_whole_groups_change_no_bit(name):
    program, P, T, group = networks.egg(19, 12, 1), 72, 9, 8
    noise = Noise([leaf.shape for leaf in program.leaves], seed=3, rank=1, shift=6, table_bits=12)
    by_leaf = crediting(program, nodes=True, sigma_shift=2, discount=12, seq_len=T, group=group)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 19, (2, P // group, T)).astype(np.int32)
    state = mx.array(rng.integers(-127, 128, (P, program.state_size)).astype(np.int8))
    weights, results = networks.initial_weights(program, 1), []
    for chunk, threads in ((72, 1), (8, 1), (24, 3)):
        engine = ENGINES[name](program, threads, 4)
        population = Population(
            engine, noise, members=P, group=group, chunk=chunk, crediting=by_leaf
        )
        results.append(population.credit(weights, 5, Batch(tokens, targets, state)))
    scores, after, votes = results[0]
    want = np.array(scores), np.array(after), {k: np.array(z) for k, z in votes.items()}
    for got in results[1:]:
        same(got, want)


def options(**given) -> Config:
    small = {"estimator": "group-credit", "rule": "whitened", "score_bits": 8, "sigma_shift": 2}
    small |= {"pop": 32, "group_size": 8, "steps": 4, "seq_len": 6, "width": 8, "data": "count"}
    small |= {"table_bits": 16, "val_tokens": 64, "sample_tokens": 0, "validate_every": 0}
    return Config(**small | given)


@pytest.mark.parametrize("size", [2, 6, 64])
def test_other_sizes_of_groups_are_refused(size):
    with pytest.raises(InputError, match=f"--group-size is {size}: .* 4, 8, 16 or 32"):
        options(pop=192, group_size=size).check()


def test_values_from_outside_are_refused():
    with pytest.raises(InputError, match="compares the scores of a group"):
        eg.Trainer(networks.mlp(4, [8], 2), pop=8, estimator="group-credit")


def test_a_trainer_names_the_estimators_that_it_takes():
    """For type checkers, which know no more than the names."""
    net, taken = networks.mlp(4, [8], 2), set[str]()
    for name in get_args(EstimatorName):
        with contextlib.suppress(InputError):
            taken.add(eg.Trainer(net, pop=8, estimator=name, rule="whitened").options.estimator)
    assert taken == {*get_args(TrainerEstimator)} == {*get_args(EstimatorName)} - {"group-credit"}


def test_chunks_are_whole_groups():
    config = options(chunk=12)
    engine, _ = choose("portable", config.program(), 1)
    assert chunk_size(config, engine, config.estimator_class(config, config.program())) == 8


@pytest.mark.parametrize("members", [2, 10, 1000, 131_072, 2**20 + 2])
def test_chunks_are_of_one_size(members: int):
    """So that the last one is no remainder that leaves most of a GPU idle."""
    engine = ENGINES["cpu"](networks.egg(8, 8, 1))
    chunk = fitting_chunk(engine, members=members, seq_len=500, rank=1, kept=0)
    count = -(-members // chunk)
    assert chunk % 2 == 0
    assert 0 <= count * chunk - members < 2 * count
    most = fitting_chunk(engine, members=2**30, seq_len=500, rank=1, kept=0)
    assert (count - 1) * most < members <= count * (most + 2)
