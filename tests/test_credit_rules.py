"""The rules that token credit is used with: rows of votes, and the sign past a measured spread."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from eggroll import es, run
from eggroll.config import RECIPES, Config

TOP, BOTTOM = 2**31 - 1, -(2**31)


@pytest.fixture(autouse=True, params=["cpu", "gpu"])
def arrays_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules compute with NumPy on a CPU and with MLX on a GPU: both must give the same."""
    if request.param == "gpu":
        monkeypatch.setattr(es, "_arrays", lambda: (mx, lambda array: array))


def arrays(values: dict[str, list], dtype) -> dict[str, mx.array]:
    return {name: mx.array(np.array(v, np.int64).astype(dtype)) for name, v in values.items()}


def rows_in_integers(master, z, gain: int):
    """The rows rule by Python's integers, for a matrix or a vector in lists."""
    if not isinstance(z[0], list):
        return rows_in_integers([master], [z], gain)[0]
    out, bound = [], 127 * 2**16 + 2**15 - 1
    for m_row, z_row in zip(master, z, strict=True):
        mean = max(1, sum(map(abs, z_row)) // len(z_row))
        moved = [m + ((v * (gain // mean)) >> 16) for m, v in zip(m_row, z_row, strict=True)]
        out.append([max(-bound, min(bound, v)) for v in moved])
    return out


def test_the_mean_vote_of_every_row_moves_a_weight_by_the_rate():
    rule = es.RowsRule(rate=1.0, steps=1000, floors={})
    weights = arrays({"m": [[0, 0], [10, -10], [0, 0], [5, 5]], "v": [100, 126]}, np.int8)
    votes = arrays({"m": [[1, -1], [64, -64], [0, 0], [30, 10]], "v": [1 << 20, 1 << 20]}, np.int32)
    # At step 19 the rate has risen, and fallen by 0.95 * 19 / 1000.
    rate = 1 - 0.95 * 19 / 1000
    update = rule(weights, rule.start(weights), votes, 19)
    steps = {"m": [[1, -1], [1, -1], [0, 0], [1.5, 0.5]], "v": [1, 1]}
    for name, w in weights.items():
        start = np.array(w).astype(np.int64) * 2**16
        got = np.array(update.master[name]) - start
        np.testing.assert_allclose(got, np.array(steps[name]) * rate * 2**16, atol=2)
    assert update.weights["m"].tolist() == [[1, -1], [11, -11], [0, 0], [6, 5]]
    assert update.weights["v"].tolist() == [101, 127]
    assert update.rate == 7 / 10


def test_a_floor_bounds_the_scale_of_small_votes():
    """Below the floor a vote moves a weight by its share of the floor, above it nothing changes."""
    weights = arrays({"m": [[0, 0], [0, 0]], "free": [[0, 0], [0, 0]]}, np.int8)
    z = [[8, -8], [800, -800]]
    rule = es.RowsRule(rate=1.0, steps=1000, floors={"m": 64})
    got = rule(weights, rule.start(weights), arrays({"m": z, "free": z}, np.int32), 19).master
    gain = rule.gain(19)
    assert got["free"].tolist() == rows_in_integers([[0, 0], [0, 0]], z, gain)
    small, large = 8 * (gain // 64) >> 16, 800 * (gain // 800) >> 16
    assert got["m"].tolist() == [
        [small, -8 * (gain // 64) >> 16],
        [large, -800 * (gain // 800) >> 16],
    ]


def test_floors_are_those_of_one_byte_or_two():
    options = Config(**RECIPES["language"], width=8)
    least, deviation = run.floors(options), math.isqrt(options.pop // 2)
    one, two = 16 * deviation, 256 * deviation
    for name, floor in {
        "embedding": 16, "head": 16, "layer0.Wf": one, "layer0.Uf": one, "layer0.bf": one,
        "layer0.bh": one, "layer0.up": one, "layer0.norm1": two, "norm": two,
    }.items():  # fmt: skip
        assert least[name] == floor, name
    votes = Config(estimator="token-votes", width=8)
    assert run.floors(votes)["layer0.bf"] == 256 * math.isqrt(votes.pop // 2)
    assert run.floors(Config(rule="rows")) == {}


def test_rows_rule_warms_up_and_falls():
    rule = es.RowsRule(rate=0.5, steps=100, floors={})
    gains = [rule.gain(step) / 2**32 for step in (0, 9, 19, 50, 100, 1000)]
    want = [0.5 / 20, 0.25 * (1 - 0.0855), 0.5 * (1 - 0.1805), 0.5 * 0.525, 0.025, 0.025]
    np.testing.assert_allclose(gains, want, rtol=1e-7)


@pytest.mark.parametrize("rate", [0.001, 0.7, 64])
def test_rows_rule_in_exact_integers(rate: float):
    rng = np.random.default_rng(0)
    votes = {
        "extreme": [[TOP, BOTTOM], [BOTTOM, BOTTOM], [TOP, TOP], [TOP, 0], [BOTTOM, 1]],
        "small": [[1, 0, 0], [0, -1, 2], [0, 0, 0], [3, 3, 3]],
        "any": rng.integers(BOTTOM, TOP, (6, 8)).tolist(),
        "vector": rng.integers(-(10**6), 10**6, 40).tolist(),
    }
    rule = es.RowsRule(rate=rate, steps=30, floors={})
    z = arrays(votes, np.int32)
    weights = {
        name: mx.array(rng.integers(-127, 128, v.shape).astype(np.int8)) for name, v in z.items()
    }
    master = rule.start(weights)
    want = {name: m.tolist() for name, m in master.items()}
    for step in (0, 5, 30):
        update = rule(weights, master, z, step)
        for name in z:
            want[name] = rows_in_integers(want[name], votes[name], rule.gain(step))
            assert update.master[name].tolist() == want[name]
            rounded = (np.array(want[name]) + 2**15) >> 16
            np.testing.assert_array_equal(np.array(update.weights[name]), rounded)
            assert np.abs(rounded).max() <= 127
        weights, master = update.weights, update.master


@pytest.mark.parametrize("rule_of", ["rows", "sign"])
@pytest.mark.parametrize("step", [0, 1, 40])
def test_what_has_no_votes_does_not_move(rule_of: str, step: int):
    """Not even at the widest significance, where pure noise would move all weights."""
    rule = (
        es.RowsRule(rate=64, steps=40, floors={})
        if rule_of == "rows"
        else es.SignRule(alpha=4, decay=1000, pairs=8, rank=1, clt=True, measured=True)
    )
    weights = arrays({"m": [[3, -3], [7, 7]], "none": [[1, 2], [-3, 127]], "v": [5, 6]}, np.int8)
    votes = arrays({"m": [[0, 0], [90, -90]], "none": [[0, 0], [0, 0]], "v": [0, 0]}, np.int32)
    update = rule(weights, rule.start(weights), votes, step)
    assert update.weights["m"][0].tolist() == [3, -3]
    assert update.weights["m"][1].tolist() != [7, 7]
    assert update.weights["none"].tolist() == weights["none"].tolist()
    assert update.weights["v"].tolist() == [5, 6]
    assert update.rate == 2 / 10


def measured_in_integers(z: list[int], z_q4: int) -> list[int]:
    mean = max(1, sum(map(abs, z)) // len(z))
    threshold = max(1, mean * z_q4 * 321 // 4096)
    return [(v >= threshold) - (v <= -threshold) for v in z]


@pytest.mark.parametrize("alpha", [1.0, 0.9, 0.3, 0.01, 1e-12])
def test_measured_sign_rule_in_exact_integers(alpha: float):
    rng = np.random.default_rng(1)
    votes = {
        "ends": [TOP, BOTTOM] * 4,
        "one": [TOP] + 7 * [0],
        "bottom": [BOTTOM] + 7 * [1],
        "tiny": [0, 1, -1, 2, -2, 0, 0, 3],
        "normal": np.rint(rng.normal(0, 1000, 64)).astype(int).tolist(),
    }
    rule = es.SignRule(alpha=alpha, decay=1, pairs=99, rank=1, clt=True, measured=True)
    weights = {name: mx.zeros(len(z), mx.int8) for name, z in votes.items()}
    got = rule(weights, {}, arrays(votes, np.int32), 0).weights
    for name, z in votes.items():
        assert got[name].tolist() == measured_in_integers(z, rule.z_q4(0)), name


def test_measured_threshold_moves_the_share_that_noise_would():
    """On pure noise of any deviation the share that moves is alpha."""
    rng = np.random.default_rng(2)
    rule = es.SignRule(alpha=0.1, decay=1, pairs=2, rank=1, clt=True, measured=True)
    for deviation in (100, 10**5, 10**8):
        z = rng.normal(0, deviation, (200, 200)).astype(np.int32)
        assert (
            0.095 < rule({"w": mx.zeros(z.shape, mx.int8)}, {}, {"w": mx.array(z)}, 0).rate < 0.12
        )
