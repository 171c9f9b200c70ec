"""Credit, thresholds, schedules and the update rules."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import mlx.core as mx
import numpy as np
import oracle
import pytest

from eggroll.evolution import estimators as fitness
from eggroll.evolution import rules


@pytest.fixture(autouse=True, params=["extension", "numpy", "gpu"])
def arrays_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules use the extension, or NumPy on a CPU and MLX on a GPU: all must give the same."""
    if request.param == "gpu":
        for module in (rules, fitness):
            monkeypatch.setattr(module, "arrays", lambda: (mx, lambda array: array))
    if request.param == "numpy":
        for module in (rules, fitness):
            monkeypatch.setattr(module, "native_module", lambda: None)


def test_pair_fitness_is_the_sign_of_the_difference():
    scores = mx.array(
        [[5, -7], [1, -2], [3, 3], [3, 3], [-30000, -30000], [30000, 30000]], mx.int16
    )
    assert fitness.pair_fitness(scores).tolist() == [-1, 0, -1]


def test_alpha_schedule():
    assert [rules.alpha_at(0.3, t, 10) for t in (0, 5, 500)] == [0.3, 0.3, 0.3]
    assert [rules.alpha_at(4, t, 1000) for t in (0, 1000)] == [1.0, 1 / 16]
    assert rules.alpha_at(2, 50, 100) == 1 / 2.5


@pytest.mark.parametrize("clt", [True, False])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("alpha", [1.0, 0.4, 0.01])
def test_sign_rule_equals_the_oracle(clt, rank, alpha):
    rng, pairs = np.random.default_rng(0), 50
    rule = rules.SignRule(alpha=alpha, decay=1, pairs=pairs, rank=rank, clt=clt)
    scale = (256 if clt else 1) * np.sqrt(pairs * rank)
    shapes = {"m": (9, 7), "v": (300,), "n": (5, 3)}
    weights = {k: rng.integers(-127, 128, shape) for k, shape in shapes.items()}
    weights["m"][0] = [127, -127, 127, -127, 0, 0, 0]
    votes = {k: np.rint(rng.normal(0, scale, w.shape)).astype(np.int64) for k, w in weights.items()}
    votes["m"][0] = [2**31 - 1, -(2**31), -(2**31), 2**31 - 1, 0, 1, -1]
    before = {k: mx.array(w.astype(np.int8)) for k, w in weights.items()}
    counted = {k: mx.array(z.astype(np.int32)) for k, z in votes.items()}
    for step in range(2):  # a GPU's weights are parts of one array from the second update on
        want = oracle.update(weights, votes, rules.z_threshold_q4(alpha), pairs, rank, clt)
        got = rule(before, {}, counted, step)
        assert list(got.weights) == list(weights)
        for k in weights:
            np.testing.assert_array_equal(np.array(got.weights[k]), want[k])
        moved = sum(int((want[k] != w).sum()) for k, w in weights.items())
        assert got.rate == moved / sum(w.size for w in weights.values())
        weights, before = want, got.weights


def test_one_alpha_serves_every_population():
    """On pure noise the share that moves is alpha, whatever the number of pairs or the rank."""
    rng = np.random.default_rng(1)
    for pairs, rank in ((64, 1), (400, 4), (5000, 1)):
        rule = rules.SignRule(alpha=0.1, decay=1, pairs=pairs, rank=rank, clt=True)
        Z = rng.normal(0, 256 * np.sqrt(pairs * rank), (200, 200)).astype(np.int32)
        weights = {"w": mx.zeros(Z.shape, mx.int8)}
        # The threshold is a whole number of sixteenths, and floor(sqrt N) is below sqrt N.
        assert 0.095 < rule(weights, {}, {"w": mx.array(Z)}, 0).rate < 0.13


@pytest.mark.parametrize(
    ("decided", "voters"), [(None, 900), (900, 900), (450, 900), (449, 449), (1, 1), (0, 1)]
)
def test_where_most_pairs_tie_the_threshold_counts_the_others(decided, voters):
    rng, alpha = np.random.default_rng(2), 0.2
    rule = rules.SignRule(alpha=alpha, decay=1, pairs=900, rank=2, clt=True)
    weights = {"w": rng.integers(-127, 128, (40, 50))}
    votes = {"w": np.rint(rng.normal(0, 256 * np.sqrt(2 * voters), (40, 50))).astype(np.int64)}
    want = oracle.update(weights, votes, rules.z_threshold_q4(alpha), voters, 2, True)["w"]
    arrays = {"w": mx.array(weights["w"].astype(np.int8))}, {"w": mx.array(votes["w"], mx.int32)}
    got = rule(arrays[0], {}, arrays[1], 0, decided).weights["w"]
    np.testing.assert_array_equal(np.array(got), want)
    still = {"w": mx.zeros((40, 50), mx.int32)}
    assert rule(arrays[0], {}, still, 0, 0).rate == 0  # no pair decided: nothing moves


def exact_gain(rate: float, pairs: int, rank: int, clt: bool) -> float:
    return rate * 2**16 / ((256 if clt else 1) * np.sqrt(pairs * rank))


@pytest.mark.parametrize("clt", [True, False])
def test_master_rule_adds_up_normalised_votes(clt):
    pairs, rank, steps = 300, 2, 4
    rule = rules.MasterRule(rate=0.5, decay=19, steps=steps, pairs=pairs, rank=rank, clt=clt)
    rng = np.random.default_rng(2)
    weights = {
        "m": mx.array(rng.integers(-127, 128, (5, 6)).astype(np.int8)),
        "v": mx.zeros(4, mx.int8),
    }
    master, exact = rule.start(weights), {k: np.array(w) * 2.0**16 for k, w in weights.items()}
    for step in range(steps):
        scale = (256 if clt else 1) * np.sqrt(pairs)
        votes = {k: rng.normal(0, 3 * scale, w.shape).astype(np.int32) for k, w in weights.items()}
        update = rule(weights, master, {k: mx.array(z) for k, z in votes.items()}, step)
        lr = 0.5 / (1 + 19 * step / steps)
        for k in weights:
            leaf_rank = rank if weights[k].ndim == 2 else 1
            exact[k] = exact[k] + votes[k] * exact_gain(lr, pairs, leaf_rank, clt)
            exact[k] = exact[k].clip(-127.5 * 2**16, 127.5 * 2**16)
            # An update rounds the rate to 2^-17 of itself or so, and the product down by under one.
            bound = (step + 1) * (1 + 2**-15 * np.abs(votes[k] * exact_gain(0.5, pairs, 1, clt)))
            assert (np.abs(np.array(update.memory[k]) - exact[k]) <= bound + 2).all()
            rounded = (np.array(update.memory[k]).astype(np.int64) + 2**15) >> 16
            np.testing.assert_array_equal(np.array(update.weights[k]), rounded)
            assert np.abs(rounded).max() <= 127
        weights, master = update.weights, update.memory


@pytest.mark.parametrize("seed", [0, 1])
def test_master_rule_of_the_extension_is_that_of_numpy(seed: int, monkeypatch):
    """On the largest numbers as well; and only NumPy's path is left where the extension is not."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (70, 33), "b": (5,), "c": (300, 300)}
    fine = {k: rng.integers(-rules.FINE_LIMIT, rules.FINE_LIMIT + 1, s) for k, s in shapes.items()}
    votes = {k: rng.integers(-1 << 31, 1 << 31, s) >> (30 * seed) for k, s in shapes.items()}
    fine["a"][0, :2] = rules.FINE_LIMIT, -rules.FINE_LIMIT
    memory = {k: mx.array(v.astype(np.int32)) for k, v in fine.items()}
    weights = {k: mx.array(((v + 32768) >> 16).astype(np.int8)) for k, v in fine.items()}
    Z = {k: mx.array(v.astype(np.int32)) for k, v in votes.items()}
    rule = rules.MasterRule(
        rate=2.0, decay=1.0, steps=10, pairs=9, rank=4, clt=False, weight_decay=0.1, spared=["b"],
        threads=2,
    )  # fmt: skip
    found = rule(weights, memory, Z, 3)
    monkeypatch.setattr(rules, "native_module", lambda: None)
    right = rule(weights, memory, Z, 3)
    assert 0 < found.rate == right.rate
    for ours, theirs in ((found.weights, right.weights), (found.memory, right.memory)):
        for name in shapes:
            np.testing.assert_array_equal(np.array(ours[name]), np.array(theirs[name]))


def test_master_gain_is_an_integer_of_known_precision():
    for pairs in (1, 512, 131072):
        rule = rules.MasterRule(rate=1.0, decay=0, steps=1, pairs=pairs, rank=1, clt=True)
        want = Fraction(2**40, 256) / isqrt(pairs * 10**12) * 10**6
        assert abs(rule.factor(0, 1) / want - 1) < 1e-5
        # The largest vote there can be fits 64 bits, at rates up to 64.
        assert 64 * rule.factor(0, 1) * pairs * 127 * 127 < 2**63


def test_master_rule_takes_the_power_of_a_fitness_for_its_pairs():
    """A deviation of votes is 256 times the root of the fitness' squares, whatever their scale."""
    weights = {"m": mx.zeros((3, 4), mx.int8), "v": mx.zeros(4, mx.int8)}
    votes = {k: mx.array(np.full(w.shape, 256 * 60, np.int32)) for k, w in weights.items()}
    make = {"rate": 2.0, "decay": 0, "steps": 9, "pairs": 50, "rank": 1, "clt": True}
    rule = rules.MasterRule(**make, by_power=True)
    for decided in (3600, 900, 0):
        found = rule(weights, rule.start(weights), votes, 7, decided)
        moved = 2 * 60 / max(decided, 1) ** 0.5
        for w in found.weights.values():
            np.testing.assert_array_equal(np.array(w), min(round(moved), 127))
    plain = rules.MasterRule(**make)
    found = plain(weights, plain.start(weights), votes, 7, 3600)
    assert np.array(found.weights["m"])[0, 0] == round(2 * 60 / 50**0.5)
    assert not rule.by_steps
    assert rules.MasterRule(**make | {"decay": 1}).by_steps


def test_first_updates_of_rule_master_may_be_larger():
    """Down to the rate as it is, and never beyond what 64 bits hold."""
    make = {"rate": 2.0, "decay": 0, "steps": 9, "pairs": 50, "rank": 1, "clt": True}
    plain, larger = (rules.MasterRule(**make, first=first) for first in (1.0, 3.0))
    assert [plain.rate_at(t) for t in (0, 1, 9)] == [2, 2, 2]
    assert [larger.rate_at(t) for t in (0, 5, 10, 20, 99)] == [6, 4, 3, 2, 2]
    assert rules.MasterRule(**make | {"decay": 9}, first=3.0).rate_at(5) == 4 / 6
    assert rules.MasterRule(**make, first=64.0).rate_at(0) == 64
