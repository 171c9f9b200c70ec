"""The recorded reference runs, reproduced exactly by the oracle and by every engine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import oracle
import pytest
from networks import GOLDEN, recorded

from eggroll.engines import ENGINES, available
from eggroll.evolution import estimators as fitness
from eggroll.evolution import rules

FOLDERS = [
    GOLDEN,
    *([Path(os.environ["EGGROLL_GOLDEN"])] if "EGGROLL_GOLDEN" in os.environ else []),
]
FILES = sorted(path for folder in FOLDERS for path in folder.glob("*.npz"))


def same(got, want):
    np.testing.assert_array_equal(np.array(got).reshape(np.shape(want)), want)


def same_leaves(got, want):
    assert set(got) == set(want)
    for name in want:
        np.testing.assert_array_equal(np.array(got[name]), want[name], err_msg=name)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def run(request):
    return recorded(request.param)


def test_there_is_a_recording():
    assert [path for path in FILES if path.parent == GOLDEN and path.stat().st_size < 100_000]


def test_oracle(run):
    weights, pairs = run.leaves("init/"), run.facts["pairs"]
    for i in range(run.facts["epochs"]):
        a = {k[3:]: v for k, v in run.arrays.items() if k.startswith(f"e{i}/")}
        case = run.case(i, weights)
        scores, state, logits = case.oracle()
        same(scores, a["token_scores"])
        same(scores.sum(1), a["scores"])
        same(state.reshape(a["state_out"].shape), a["state_out"])
        if "logits" in a:
            same(logits, a["logits"])
        fitness = oracle.pair_fitness(scores)
        same(fitness, a["fitness"])
        votes = oracle.votes(weights, case.noise(), fitness)
        same_leaves(votes, run.leaves(f"e{i}/votes/"))
        weights = oracle.update(weights, votes, int(a["z_threshold_q4"]), pairs)
        same_leaves(weights, run.leaves(f"e{i}/updated/"))


@pytest.mark.parametrize("name", [n for n, why in available().items() if not why])
def test_engine(run, name):
    weights, f = run.leaves("init/"), run.facts
    for i in range(f["epochs"]):
        case = run.case(i, weights)
        engine = ENGINES[name](case.program)
        scores, state = engine.evaluate(engine.prepare(case.leaves), case.slices, case.batch)
        same(scores, run.arrays[f"e{i}/token_scores"])
        same(state, run.arrays[f"e{i}/state_out"])
        signs = fitness.pair_fitness(scores)
        same(signs, run.arrays[f"e{i}/fitness"])
        votes = engine.votes(signs, case.slices, f["use_clt"])
        same_leaves(votes, run.leaves(f"e{i}/votes/"))
        rule = rules.SignRule(alpha=1.0, decay=1, pairs=f["pairs"], rank=1, clt=f["use_clt"])
        rule.z_q4 = lambda step, q=int(run.arrays[f"e{i}/z_threshold_q4"]): q
        same_leaves(rule(case.leaves, {}, votes, i).weights, run.leaves(f"e{i}/updated/"))
        weights = run.leaves(f"e{i}/updated/")


def test_thresholds_follow_the_schedule():
    """T_q = floor(16 PHI^-1(1 - alpha/2)), against another implementation of the quantile."""
    assert [rules.z_threshold_q4(alpha) for alpha in (1.0, 0.05, 0.3173)] == [0, 31, 16]
    from statistics import NormalDist

    for alpha in (0.9, 0.5, 0.25, 0.1, 0.01, 1e-4):
        exact = NormalDist().inv_cdf(1 - alpha / 2)
        assert rules.z_threshold_q4(alpha) == int(16 * exact)
