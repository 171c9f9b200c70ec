"""The sign rule that token credit is used with, and what no rule may do."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from eggroll.evolution import rules
from eggroll.evolution.rules import WhitenedRule

TOP, BOTTOM = 2**31 - 1, -(2**31)


@pytest.fixture(autouse=True, params=["cpu", "gpu"])
def arrays_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules compute with NumPy on a CPU and with MLX on a GPU: both must give the same."""
    if request.param == "gpu":
        monkeypatch.setattr(rules, "arrays", lambda: (mx, lambda array: array))


@pytest.fixture(autouse=True, params=["extension", "numpy"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(rules, "native_module", lambda: None)


def arrays(values: dict[str, list], dtype) -> dict[str, mx.array]:
    return {name: mx.array(np.array(v, np.int64).astype(dtype)) for name, v in values.items()}


@pytest.mark.parametrize("rule_of", ["whitened", "sign"])
@pytest.mark.parametrize("step", [0, 1, 40])
def test_what_has_no_votes_does_not_move(rule_of: str, step: int):
    """Not even at the widest significance, where pure noise would move all weights."""
    rule = (
        WhitenedRule(rate=64, steps=40, floors={}, whitened=["none"])
        if rule_of == "whitened"
        else rules.SignRule(alpha=4, decay=1000, pairs=8, rank=1, clt=True, measured=True)
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
    rule = rules.SignRule(alpha=alpha, decay=1, pairs=99, rank=1, clt=True, measured=True)
    weights = {name: mx.zeros(len(z), mx.int8) for name, z in votes.items()}
    got = rule(weights, {}, arrays(votes, np.int32), 0).weights
    for name, z in votes.items():
        assert got[name].tolist() == measured_in_integers(z, rule.z_q4(0)), name


def test_measured_sizes_stay_on_the_gpu():
    """A threshold read on the host would wait for the GPU at every leaf."""
    z = mx.array([3, -(1 << 31), 4], mx.int64)
    assert isinstance(rules.mean_abs(z), mx.array)
    assert int(rules.mean_abs(z)) == ((1 << 31) + 7) // 3


def test_measured_threshold_moves_the_share_that_noise_would():
    """On pure noise of any deviation the share that moves is alpha."""
    rng = np.random.default_rng(2)
    rule = rules.SignRule(alpha=0.1, decay=1, pairs=2, rank=1, clt=True, measured=True)
    for deviation in (100, 10**5, 10**8):
        z = rng.normal(0, deviation, (200, 200)).astype(np.int32)
        assert (
            0.095 < rule({"w": mx.zeros(z.shape, mx.int8)}, {}, {"w": mx.array(z)}, 0).rate < 0.12
        )
