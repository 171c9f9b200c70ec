"""Rule whitened: exact integers in float64, votes made round, and steps of the promised size."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks_backward import WAYS, go

from eggroll.evolution import rules, whitening
from eggroll.evolution import rules as rule_kinds
from eggroll.evolution.estimators import ESTIMATORS
from eggroll.evolution.rules import RULES, WhitenedRule, feedback_name
from eggroll.evolution.whitening import ONE, TOP
from eggroll.networks import egg
from eggroll.training.config import RECIPES, Config

MOST, LEAST = 2**31 - 1, -(2**31)
BOUND = 127 * 2**16 + 2**15 - 1


def estimator(options: Config):
    return ESTIMATORS[options.estimator](options, options.program())


def floors(options: Config) -> dict[str, int]:
    return estimator(options).floors()


def clip(x: int, bound: int) -> int:
    return max(-bound, min(bound, x))


def nearest(x: int, by: int = ONE) -> int:
    """x / by, halves to even."""
    q, r = divmod(x, by)
    return q + (2 * r > by or (2 * r == by and q % 2))


def each(f, *arrays):
    """f of Python's integers, element by element."""
    return np.frompyfunc(f, len(arrays), 1)(*arrays)


def columns_of(p):
    return [slice(b * p.shape[1], (b + 1) * p.shape[1]) for b in range(len(p))]


def whitened_in_integers(u, p):
    parts = [u[:, c] @ square[: u[:, c].shape[1], : u[:, c].shape[1]]
             for c, square in zip(columns_of(p), p, strict=True)]  # fmt: skip
    return each(lambda x: clip(nearest(x), TOP), np.concatenate(parts, axis=1))


def updated_in_integers(p, u, y):
    mean = int((u * u).sum()) // (256 * u.shape[1])
    if mean < 1:
        return p
    new, size = [], p.shape[1]
    for c, square in zip(columns_of(p), p, strict=True):
        part = y[:, c]
        seen = np.zeros((size, size), object)
        seen[: part.shape[1], : part.shape[1]] = part.T @ part
        excess = each(lambda s, q: s * 256 // mean + nearest(q) // 10, seen, square @ square)
        unit = ONE * np.eye(size, dtype=np.int64).astype(object)
        m = unit - each(lambda e, i: (clip(e, 1 << 22) - i) // 128, excess, unit)
        next_p = each(nearest, each(nearest, m @ square) @ m)
        new.append(each(lambda a, b: clip((a + b) // 2, (1 << 19) - 1), next_p, next_p.T))
    return np.stack(new)


def leaf_in_integers(z, gain, floor, p, look):
    """A leaf's step and next P by Python's integers; z: [O, K] of objects."""
    K = z.shape[1]
    mean = [-(-sum(map(abs, row)) // K) for row in z.tolist()]
    scale = [max(m, floor) for m in mean]
    u = np.array(
        [
            [clip(nearest(256 * v, s), TOP) for v in row]
            for row, s in zip(z.tolist(), scale, strict=True)
        ],
        object,
    )
    y, after, share = u, p, [gain] * len(mean)
    if p is not None:
        y = whitened_in_integers(u, p)
        after = updated_in_integers(p, u, y) if look else p
        total = [max(sum(map(abs, row)), 1) for row in y.tolist()]
        size = [256 * m // s for m, s in zip(mean, scale, strict=True)]
        share = [gain * K * n // t for n, t in zip(size, total, strict=True)]
    return each(lambda a, b: nearest(a * b), y, np.array(share, object)[:, None]), after


def whole(array) -> np.ndarray:
    """An array as one of Python's integers, [O, K]."""
    values = np.array(array)
    return values.reshape(-1, values.shape[-1]).astype(object)


def halves(size: int) -> np.ndarray:
    """A row of mean size 512 * size, so that in its scale odd multiples of `size` are halves."""
    row = np.array([[1, -1, 3, -5, 255, -257, 1023, 2551]])
    assert abs(row).sum() == 512 * row.size
    return size * row


def nearly_halves(size: int) -> np.ndarray:
    """A row of this mean size whose first numbers are next to halves in its scale."""
    odd = pow(size, -1, 512)  # 512 z = odd * size - 1, and (512 - odd) * size + 1
    first = [(odd * size - 1) // 512, -((512 - odd) * size + 1) // 512]
    assert [512 * z % size for z in first] == [size - 1, size - 1]
    rest, more = divmod(8 * size - sum(map(abs, first)), 6)
    row = np.array([[*first, *[rest] * 5, rest + more]])
    assert abs(row).sum() == 8 * size
    assert abs(row).max() < 2**31
    return row


@pytest.fixture(params=WAYS)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    go(request.param, rules, monkeypatch)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(("rate", "threads"), [(0.001, 1), (0.7, 3), (64, 1)])
@pytest.mark.parametrize("floor", [1, 5000, 2**39 - 1])
def test_the_rule_in_exact_integers(rate: float, threads: int, floor: int):
    rng = np.random.default_rng(0)
    votes = {
        "halves": np.concatenate([halves(size) for size in (1, 49, 7777, 499999)]),
        "nearly": nearly_halves(3 * 2**29 - 1),
        "least": np.array([[2**30, 0], [2**30 - 1, 1 - 2**30]]),  # with that floor half of one
        "extreme": np.array([[MOST, LEAST], [LEAST, LEAST], [MOST, 0], [LEAST, 1], [0, 0]]),
        "small": np.array([[1, 0, 0], [0, -1, 2], [0, 0, 0], [3, 3, 3]]),
        "any": rng.integers(LEAST, MOST, (66, 8)),
        "blocks": rng.normal(0, 10000, (70, 131)),
        "one": np.eye(1, 130) * 70000 + np.eye(1, 130, 50) * 500,
        "embedding": rng.normal(0, 10000, (5, 9)),
        "vector": rng.integers(-(10**6), 10**6, 40),
    }
    turned = ["halves", "nearly", "extreme", "small", "any", "blocks", "one"]
    rule = WhitenedRule(
        rate=rate, steps=30, floors=dict.fromkeys(votes, floor), whitened=turned, threads=threads
    )
    weights = {
        name: mx.array(rng.integers(-127, 128, z.shape).astype(np.int8))
        for name, z in votes.items()
    }
    memory = rule.start(weights)
    with_feedback = {"any", "blocks", "embedding"}
    for name in with_feedback:
        start = rng.integers(-BOUND, BOUND + 1, votes[name].shape)
        memory[feedback_name(name)] = mx.array(start.astype(np.int32))
    for step in (0, 4, 5, 8, 30):
        z = {name: mx.array(v.astype(np.int64).astype(np.int32)) for name, v in votes.items()}
        update = rule(weights, memory, z, step)
        moved = 0
        for name in votes:
            p = memory.get(f"{name}/whitening")
            gain = rule.factor(step) >> (3 if votes[name].ndim == 1 else 0)
            change, after = leaf_in_integers(
                whole(z[name]), gain, floor, None if p is None else np.array(p).astype(object),
                step % 4 == 0,
            )  # fmt: skip
            for key in (name, feedback_name(name)):
                assert (key in update.memory) == (key in memory)
                if key in memory:
                    want = each(lambda f, s: clip(f + s, BOUND), whole(memory[key]), change)
                    np.testing.assert_array_equal(whole(update.memory[key]), want, err_msg=key)
            want = whole(update.memory[name])
            rounded = (want.astype(np.int64) + 2**15) >> 16
            np.testing.assert_array_equal(whole(update.weights[name]), rounded)
            moved += int((rounded != whole(weights[name])).sum())
            if p is not None:
                got = np.array(update.memory[f"{name}/whitening"])
                np.testing.assert_array_equal(got, after.astype(np.int64), err_msg=name)
        assert update.rate == moved / sum(w.size for w in weights.values())
        weights, memory = update.weights, update.memory


@pytest.mark.parametrize("part", [1, 7, 200])
def test_how_many_rows_at_a_time_changes_nothing(part: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    weights = {"m": mx.zeros((70, 40), mx.int8), "e": mx.zeros((9, 40), mx.int8)}
    votes = {
        name: mx.array(rng.normal(0, 99, w.shape).astype(np.int32)) for name, w in weights.items()
    }
    monkeypatch.setattr(rules, "native_module", lambda: None)
    rule = WhitenedRule(rate=1, steps=30, floors={}, whitened=["m"])
    want = rule(weights, rule.start(weights), votes, 0)
    monkeypatch.setattr(rule_kinds, "PART", part)
    got = rule(weights, rule.start(weights), votes, 0)
    for name, array in want.memory.items():
        np.testing.assert_array_equal(np.array(got.memory[name]), np.array(array))


@pytest.mark.usefixtures("_way")
def test_the_mean_vote_of_every_row_moves_a_weight_by_the_rate():
    rule = WhitenedRule(rate=1.0, steps=200, floors={}, whitened=[])
    matrix = mx.array(np.array([[0, 0], [10, -10], [0, 0], [5, 5]], np.int8))
    weights = {"m": matrix, "v": mx.array(np.array([100, 126], np.int8))}
    z = {"m": [[1, -1], [64, -64], [0, 0], [30, 10]], "v": [1 << 20, 1 << 20]}
    votes = {name: mx.array(np.array(v, np.int32)) for name, v in z.items()}
    # At step 19 the rate has risen, and fallen by 0.95 * 19 / 200; a vector has an eighth of it.
    rate = 1 - 0.95 * 19 / 200
    update = rule(weights, rule.start(weights), votes, 19)
    steps = {"m": [[1, -1], [1, -1], [0, 0], [1.5, 0.5]], "v": [1 / 8, 1 / 8]}
    for name, w in weights.items():
        got = np.array(update.memory[name]) - np.array(w).astype(np.int64) * 2**16
        np.testing.assert_allclose(got, np.array(steps[name]) * rate * 2**16, atol=2)
    assert update.weights["m"].tolist() == [[1, -1], [11, -11], [0, 0], [6, 5]]
    assert update.rate == 5 / 10


def test_turning_leaves_the_mean_size_of_a_row():
    rng = np.random.default_rng(2)
    rule = WhitenedRule(rate=1, steps=200, floors={"m": 1}, whitened=["m"])
    weights = {"m": mx.zeros((8, 64), mx.int8)}
    memory = rule.start(weights)
    square = rng.normal(0, ONE / 8, (1, 64, 64)) + ONE * np.eye(64)
    memory["m/whitening"] = mx.array(((square + square.swapaxes(1, 2)) / 2).astype(np.int32))
    votes = {"m": mx.array(rng.normal(0, 10**5, (8, 64)).astype(np.int32))}
    after = np.array(rule(weights, memory, votes, 19).memory["m"]) / 2**16
    np.testing.assert_allclose(abs(after).mean(axis=1), 1 - 0.95 * 19 / 200, rtol=0.005)
    straight = np.corrcoef(after.ravel(), np.array(votes["m"]).ravel())[0, 1]
    assert 0.5 < straight < 0.99


def test_noise_does_not_drift():
    """Votes of both signs alike, above and far below the floor, leave no mean behind."""
    rng = np.random.default_rng(4)
    for floor in (1, 2000):
        rule = WhitenedRule(rate=1, steps=200, floors={"m": floor}, whitened=[])
        weights = {"m": mx.zeros((64, 64), mx.int8)}
        z = rng.normal(0, 300, (64, 64)).astype(np.int32)
        up, down = mx.array(z), mx.array(-z)
        memory = rule.start(weights)
        for votes in (up, down):
            _, memory, _ = rule(weights, memory, {"m": votes}, 100)
        assert not np.array(memory["m"]).any()


def test_votes_become_round():
    """Powers from 20 to 1/100: after 400 looks all above a tenth of the mean are within 20 %."""
    rng = np.random.default_rng(3)
    powers = np.geomspace(20, 0.01, 64)
    powers /= powers.mean()
    basis = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    p = whitening.start(64)
    for _ in range(400):
        u = np.rint(300 * (rng.normal(size=(64, 64)) * powers**0.5) @ basis.T)
        y = whitening.whitened(u, p)
        p = whitening.updated(p, whitening.power(y, 64), (u * u).sum() // (256 * 64))
    square = basis.T @ (p[0] / ONE) @ basis
    after = np.diag(square @ np.diag(powers) @ square)
    want = powers / (powers + 0.1)  # as P P / 10 is counted in
    assert np.abs(after - want).max() < 0.2
    assert np.linalg.eigvalsh(p[0] / ONE)[-1] < 10**0.5 + 0.1


def test_the_least_mean_turns_a_step_and_none_does_not():
    p = ONE * np.eye(2, dtype=np.int32)[None]
    power = np.full((1, 2, 2), float(ONE))
    assert whitening.updated(p, power, 0.0) is p
    assert (whitening.updated(p, power, 1.0) != p).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 70), st.sampled_from([1, 50]))
def test_no_votes_turn_a_step_round(seed: int, rows: int, inputs: int, steep: int):
    """P stays positive: what is voted for is never moved against, however uneven the votes."""
    rng = np.random.default_rng(seed)
    p = whitening.start(inputs)
    for _ in range(30):
        u = rng.normal(size=(rows, 1)) ** steep * rng.normal(size=inputs)
        u = np.rint(u * (rng.random((rows, inputs)) < 0.3) * 300).clip(-TOP, TOP)
        y = whitening.whitened(u, p)
        p = whitening.updated(
            p, whitening.power(y, p.shape[1]), float((u * u).sum() // (256 * inputs))
        )
        for square in p:
            np.testing.assert_array_equal(square, square.T)
            # As far as Q16 can tell: each rounding is by half a unit of an entry.
            assert np.linalg.eigvalsh(square.astype(float))[0] > -len(square)


def test_rate_rises_falls_and_follows_the_number_of_updates():
    def gains(steps: int, at: list[int]) -> list[float]:
        rule = WhitenedRule(rate=0.5, steps=steps, floors={}, whitened=[])
        return [rule.factor(step) / 2**24 for step in at]

    want = [0.5 / 20, 0.25 * (1 - 0.04275), 0.5 * (1 - 0.09025), 0.5 * 0.525, 0.025, 0.025]
    np.testing.assert_allclose(gains(200, [0, 9, 19, 100, 200, 9999]), want, rtol=1e-6)
    assert gains(800, [400]) == [pytest.approx(0.25 * 0.525)]
    assert gains(50, [25]) == [pytest.approx(1.0 * 0.525)]
    assert WhitenedRule(rate=64, steps=1, floors={}, whitened=[]).factor(20) <= 2**30


def test_floors_are_those_of_one_byte_or_two():
    options = Config(**RECIPES["language"], width=8)
    least, deviation = floors(options), math.isqrt(options.pop // 2)
    one, two = 16 * deviation, 256 * deviation
    for name, floor in {
        "embedding": 16, "head": 16, "layer0.Wf": one, "layer0.Uf": one, "layer0.bf": one,
        "layer0.bh": one, "layer0.up": one, "layer0.norm1": two, "norm": two,
    }.items():  # fmt: skip
        assert least[name] == floor, name
    votes = Config(estimator="token-votes", width=8)
    assert floors(votes)["layer0.bf"] == 256 * math.isqrt(votes.pop // 2)
    assert floors(Config(rule="whitened")) == {}


def test_all_matrices_but_the_embedding_are_whitened():
    program = egg(16, 100, 1)
    names = {leaf.name for leaf in program.leaves if len(leaf.shape) == 2} - {"embedding"}
    assert set(whitening.whitenable(program)) == names
    memory = WhitenedRule.memory(program)
    assert memory["layer0.up/whitening"] == (2, 50, 50)
    assert memory["layer0.down/whitening"] == (7, 58, 58)  # 400 inputs; the last block has 52
    options = Config(rule="whitened", data="count", width=100)
    rule = RULES["whitened"].make(options, program, estimator(options))
    start = rule.start({leaf.name: mx.zeros(leaf.shape, mx.int8) for leaf in program.leaves})
    assert {name: array.shape for name, array in start.items()} == memory
