"""Rule `adam` equals the oracle over several updates, feedback and its decay included."""

from __future__ import annotations

from math import isqrt
from typing import Any

import mlx.core as mx
import numpy as np
import oracle_backward
import pytest
from networks_backward import WAYS, go

from eggroll.evolution import rules as moments
from eggroll.evolution import rules as rule
from eggroll.evolution.rules import AdamRule, MovedWeights, feedback_name
from eggroll.networks import egg, initial_weights
from eggroll.training.config import Config

STEPS, RATE = 30, 1.3
WITH_FEEDBACK = "layer0.up"
SHRINK = {WITH_FEEDBACK, "layer0.Uf"}  # with feedback, and without
PROGRAM = egg(5, 4, 1)


def votes_of(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Votes of all sizes, with zeros and the largest among them."""
    Z = np.rint(random.normal(0, 2.0 ** random.integers(-1, 28, shape)))
    limits = random.choice([0, 1, -1, 2**26, -(2**26) - 1, 2**31 - 1, -(2**31)], shape)
    return np.clip(np.where(random.random(shape) < 0.3, limits, Z), -(2**31), 2**31 - 1)


def history(random: np.random.Generator, updates: int) -> list[dict[str, np.ndarray]]:
    """Votes of several updates: random ones, then a rest without any, then a steady push."""
    shapes = {leaf.name: leaf.shape for leaf in PROGRAM.leaves}
    steady = {k: random.choice([-1, 1], s) * 2**14 for k, s in shapes.items()}
    made = []
    for t in range(updates):
        if t % 3 == 0 or t < 6:
            made.append({k: votes_of(random, s) for k, s in shapes.items()})
        else:
            made.append({k: steady[k] * (t >= 12) for k in shapes})
    return [{k: z.astype(np.int32) for k, z in votes.items()} for votes in made]


class Both:
    """The rule and the oracle, side by side; one leaf has feedback, and two shrink."""

    def __init__(self, rate: float = RATE, steps: int = STEPS, threads: int = 1) -> None:
        random = np.random.default_rng(8)
        self.rule = AdamRule(rate=rate, steps=steps, shrinks=SHRINK, threads=threads)
        self.step = 0
        self.rate, self.steps = rate, steps
        self.weights = initial_weights(PROGRAM, 3)
        at_limits = random.choice([-127, 127], self.weights["head"].shape)
        self.weights["head"] = mx.array(at_limits, mx.int8)
        self.memory = self.rule.start(self.weights)
        shape = self.weights[WITH_FEEDBACK].shape
        feedback = random.integers(-(127 << 16), 127 << 16, shape)
        self.memory[feedback_name(WITH_FEEDBACK)] = mx.array(feedback, mx.int32)
        self.oracles = {
            name: oracle_backward.Adam(
                np.array(w, np.int64) << 16,
                feedback if name == WITH_FEEDBACK else None,
                shrinks=name in SHRINK,
            )
            for name, w in self.weights.items()
        }

    def update(self, votes: dict[str, np.ndarray]) -> None:
        made = self.rule(
            self.weights, self.memory, {k: mx.array(z) for k, z in votes.items()}, self.step
        )
        moved = [np.array(made.weights[k] != w).ravel() for k, w in self.weights.items()]
        assert made.rate == np.concatenate(moved).mean()
        self.weights, self.memory = made.weights, made.memory
        factors = oracle_backward.schedule(self.step, self.steps, self.rate)
        for name, z in votes.items():
            self.oracles[name].update(z, *factors)
        self.step += 1

    def differing(self) -> set[str]:
        """The leaves of which anything differs."""
        found = set()
        for name, right in self.oracles.items():
            kept = {
                "": right.fine, "/mean": right.m, "/size": right.s, "/feedback": right.feedback
            }  # fmt: skip
            for ending, values in kept.items():
                if values is None:
                    assert name + ending not in self.memory
                elif np.ravel(self.memory[name + ending]).tolist() != values:
                    found.add(name)
            if np.ravel(self.weights[name]).tolist() != right.rounded().tolist():
                found.add(name)
        return found


@pytest.fixture(params=WAYS)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    go(request.param, moments, monkeypatch)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(("rate", "threads"), [(RATE, 1), (0.01, 3), (100.0, 1)])
def test_the_rule_equals_the_oracle(rate: float, threads: int):
    both = Both(rate, threads=threads)
    before = np.array(both.memory[feedback_name(WITH_FEEDBACK)])
    for t, votes in enumerate(history(np.random.default_rng(1), 24)):
        both.update(votes)
        assert both.differing() == set(), t
    assert (np.array(both.memory[feedback_name(WITH_FEEDBACK)]) != before).mean() > 0.9


@pytest.fixture(scope="module")
def large() -> tuple[dict[str, mx.array], list[MovedWeights]]:
    """Votes on two leaves, more values than one thread takes alone; updates without threads."""
    random, shapes = np.random.default_rng(2), {"w": (250, 131), "b": (8193,)}
    votes = {name: mx.array(votes_of(random, s).astype(np.int32)) for name, s in shapes.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "native_module", lambda: None)
        return votes, updates_of(votes, 1)


def updates_of(votes: dict[str, mx.array], threads: int) -> list[MovedWeights]:
    """Three updates with the same votes, from weights of zero."""
    rule, made = AdamRule(rate=64.0, steps=60, shrinks={"w"}, threads=threads), []
    weights = {name: mx.zeros(z.shape, mx.int8) for name, z in votes.items()}
    memory = rule.start(weights) | {feedback_name("w"): mx.full((250, 131), 1 << 22, mx.int32)}
    for step in range(3):
        made.append(rule(weights, memory, votes, step))
        weights, memory = made[-1].weights, made[-1].memory
    return made


def same_bits(found: MovedWeights, want: MovedWeights) -> None:
    """Weights and memory alike."""
    for one, two in zip(found[:2], want[:2], strict=True):
        assert one.keys() == two.keys()
        assert [name for name in two if not np.array_equal(one[name], two[name])] == []


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_large_leaves(
    large: tuple[dict[str, mx.array], list[MovedWeights]], threads: int
):
    """Every value once, and every weight that moved is counted."""
    votes, right = large
    for found, want in zip(updates_of(votes, threads), right, strict=True):
        assert found.rate == want.rate > 0.5
        same_bits(found, want)


@pytest.fixture(scope="module", params=["shrinks", "stays"])
def past_caches(
    request: pytest.FixtureRequest,
) -> tuple[dict[str, mx.array], set[str], MovedWeights]:
    """Votes on a leaf of more values than are kept in caches, most rows without; by NumPy."""
    shrinks = {"w"} if request.param == "shrinks" else set[str]()
    votes = votes_of(np.random.default_rng(3), (2051, 2048)).astype(np.int32)
    votes[64:] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "native_module", lambda: None)
        right = update_of_all_sizes({"w": mx.array(votes)}, shrinks)
    return {"w": mx.array(votes)}, shrinks, right


def update_of_all_sizes(votes: dict[str, mx.array], shrinks: set[str]) -> MovedWeights:
    """From every size below 2^22, and means that are 0 in the second half."""
    rule, shape = AdamRule(rate=64.0, steps=60, shrinks=shrinks, threads=2), votes["w"].shape
    random, size = np.random.default_rng(4), np.arange(np.prod(shape), dtype=np.int32) % (1 << 22)
    means = random.integers(-1 << 16, 1 << 16, shape, np.int32)
    means[1024:] = 0
    weights = {"w": mx.array(random.integers(-127, 128, shape, np.int8))}
    memory = rule.start(weights) | {feedback_name("w"): mx.full(shape, 1 << 22, mx.int32)}
    memory |= {"w/mean": mx.array(means), "w/size": mx.array(size.reshape(shape))}
    return rule(weights, memory, votes, 0)


@pytest.mark.usefixtures("_way")
def test_large_leaves_and_rows_without_votes(
    past_caches: tuple[dict[str, mx.array], set[str], MovedWeights],
):
    votes, shrinks, right = past_caches
    found = update_of_all_sizes(votes, shrinks)
    assert found.rate == right.rate > 0.1
    same_bits(found, right)


SMALL = 1 << 18  # votes from which on their squares are no longer computed in doubles


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("most", [SMALL - 1, SMALL])
def test_sizes_on_both_sides_of_what_doubles_hold(most: int, monkeypatch: pytest.MonkeyPatch):
    """The rule without the extension, and roots of Python's whole numbers."""
    random = np.random.default_rng(most)
    votes = np.rint(np.exp2(random.uniform(0, 18, 4099))).astype(np.int32)
    sizes = np.rint(np.exp2(random.uniform(0, 22, votes.size))).astype(np.int32)
    votes = np.minimum(votes, most) * random.choice([-1, 0, 1, 1], votes.size)
    sizes = np.minimum(sizes, 16 * most + 15)
    votes[:64], sizes[:32], sizes[32:64] = most, 16 * most, 16 * most + 15
    rule, weights = AdamRule(rate=1.0, steps=100), {"w": mx.zeros(votes.size, mx.int8)}
    memory = rule.start(weights) | {"w/size": mx.array(sizes)}
    given = {"w": mx.array(votes.astype(np.int32))}
    found = rule(weights, memory, given, 30).memory
    monkeypatch.setattr(moments, "native_module", lambda: None)
    right = rule(weights, memory, given, 30).memory
    assert [name for name in right if not np.array_equal(right[name], found[name])] == []
    pairs = zip(sizes.tolist(), votes.tolist(), strict=True)
    exact = [isqrt(s * s * 243 // 256 + 13 * z * z) for s, z in pairs]
    assert np.array(right["w/size"]).tolist() == exact


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("factor", [1, 65521, 1 << 16, 250007, 1 << 18, (1 << 18) + 1, 1 << 22])
def test_small_numbers_all_of_them(factor: int, monkeypatch: pytest.MonkeyPatch):
    """Every size up to 2^12 with every vote up to 2^7, and means and fine copies of all kinds."""
    random, shape = np.random.default_rng(factor), (4097, 129)
    sizes, votes = (array.ravel().astype(np.int32) for array in np.indices(shape))
    votes *= random.choice([-1, 1], votes.size).astype(np.int32)
    means = np.rint(np.exp2(random.uniform(-2, 12, votes.size))) * random.choice(
        [-1, 1], votes.size
    )
    means[random.random(votes.size) < 0.01] = random.choice([-2048, 2047])
    means[:1032] = random.integers(-2047, 2048, 1032)  # many times their sizes
    fine = random.integers(-rule.FINE_LIMIT, rule.FINE_LIMIT, votes.size, np.int32, endpoint=True)
    fine[: votes.size // 8] = random.choice([-1, 1], votes.size // 8) * rule.FINE_LIMIT
    # Rests in rows, within a vector, and of a mean alone.
    still = np.repeat(random.random(votes.size // 64 + 1) < 0.5, 64)[: votes.size]
    votes[still], means[still & (random.random(votes.size) < 0.9)] = 0, 0
    adam, memory = AdamRule(rate=1.0, steps=100), {"w": fine, "w/mean": means, "w/size": sizes}
    monkeypatch.setattr(adam, "factor", lambda step: factor)
    memory = {name: mx.array(array.astype(np.int32)) for name, array in memory.items()}
    weights = {"w": mx.array(((fine + rule.HALF) >> rule.FINE_BITS).astype(np.int8))}
    found = adam(weights, memory, {"w": mx.array(votes)}, 30)
    monkeypatch.setattr(moments, "native_module", lambda: None)
    same_bits(found, adam(weights, memory, {"w": mx.array(votes)}, 30))


def test_fine_copies_round_alike_on_cpu_and_gpu(monkeypatch: pytest.MonkeyPatch):
    fine = mx.array([-rule.FINE_LIMIT, -32769, -32768, -1, 32767, 32768, rule.FINE_LIMIT], mx.int32)
    by_numpy = rule.rounded(fine)
    monkeypatch.setattr(rule, "arrays", lambda: (mx, lambda array: array))
    assert by_numpy.tolist() == rule.rounded(fine).tolist() == [-127, -1, 0, 0, 0, 1, 127]
    assert by_numpy.dtype == rule.rounded(fine).dtype == mx.int8


def one_leaf(steps: int = 1000) -> tuple[AdamRule, dict[str, mx.array], dict[str, mx.array]]:
    """A rule, a leaf of four weights at zero, and its memory."""
    rule, weights = AdamRule(rate=1.0, steps=steps), {"w": mx.zeros((1, 4), mx.int8)}
    return rule, weights, rule.start(weights)


def test_a_weight_without_votes_comes_to_rest():
    rule, weights, memory = one_leaf()
    votes = {"w": mx.array([[2**31 - 1, -(2**31), 3, -1]], mx.int32)}
    memory = rule(weights, memory, votes, 20).memory
    assert np.array(memory["w/mean"]).all()
    for _ in range(260):
        memory = rule(weights, memory, {"w": mx.zeros((1, 4), mx.int32)}, 20).memory
    assert not np.array(memory["w/mean"]).any()


def test_steps_are_as_large_as_promised():
    """A vote that is always the same moves a weight by learning_rate last bits at the peak."""
    rule, weights, memory = one_leaf(500)
    votes = {"w": mx.array([[5000, -5000, 77, 0]], mx.int32)}
    for _ in range(70):
        before, memory = memory["w"], rule(weights, memory, votes, 20).memory
    moved = np.array(memory["w"] - before)[0] / 2**16
    np.testing.assert_allclose(moved, np.array([1, -1, 1, 0]) * rule.share(20), rtol=0.05)


def test_the_schedule_equals_the_oracle():
    of = (1, 1.0), (7, 0.3), (30, 99.0), (200, 1.0), (1935, 1.5), (16400, 64.0), (100000, 1e-6)
    for steps, rate in of:
        rule = AdamRule(rate=rate, steps=steps, shrinks={"w"})
        for t in sorted({*range(0, steps + 3, max(1, steps // 50)), steps - 1}):
            made = rule.factor(t), rule.shrinking("w", t)
            assert made == oracle_backward.schedule(t, steps, rate)
            assert rule.shrinking("b", t) == 0


@pytest.mark.parametrize("piece", ["FORGET", "AGE", "EASE"])
def test_a_broken_schedule_is_noticed(piece: str, monkeypatch: pytest.MonkeyPatch):
    rule = AdamRule(rate=1.0, steps=9000, shrinks={"w"})
    monkeypatch.setattr(oracle_backward, piece, 0.9 * getattr(oracle_backward, piece))
    right = [oracle_backward.schedule(t, 9000, 1.0) for t in (30, 1990)]
    assert [(rule.factor(t), rule.shrinking("w", t)) for t in (30, 1990)] != right


@pytest.mark.parametrize("estimator", ["local", "feedback", "token-credit"])
def test_matrices_of_layers_and_head_shrink(estimator: str):
    options = Config(estimator=estimator, rule="adam")  # type: ignore[arg-type]
    made = options.estimator_class(options, PROGRAM)
    rule = AdamRule.make(options, PROGRAM, made)
    shrunk = [leaf.name for leaf in PROGRAM.leaves if rule.shrinking(leaf.name, 100)]
    layer = ("Wf", "Uf", "Wh", "Uh", "up", "down")
    assert sorted(shrunk) == sorted([*(f"layer0.{name}" for name in layer), "head"])


BROKEN: dict[str, tuple[str, Any]] = {
    "decay": ("decayed", lambda v, delta: v),
    "early share lost": ("FORGET", 3),
    "floored": ("part", lambda v, b: v * b >> 8),
    "mean": ("MEAN", 25),
    "power": ("POWER", 12),
    "bound": ("VOTES", 2**27),
    "limit": ("LIMIT", 127 << 16),
}


@pytest.mark.parametrize("piece", BROKEN)
def test_the_comparison_notices_what_is_broken(piece: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oracle_backward, *BROKEN[piece])
    both = Both()
    for votes in history(np.random.default_rng(1), 5):
        both.update(votes)
    found = both.differing()
    assert found
    if piece in ("decay", "early share lost"):
        assert found == SHRINK
