"""Environments of every kind: spaces, what is given, classic control, normalisation, recurrence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_envs import Failing, keys, recurrent, trainer

import eggroll as eg
from eggroll.envs.classic import CLASSIC
from eggroll.envs.normalisation import BOUND, FINE, LEAST, Normalisation
from eggroll.envs.spaces import decode_for, observe_for, soft, soft_table
from eggroll.evolution.estimators import within

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces
P = 12


# Classic control.


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_control_is_gymnasiums(name: str):
    """From the same starts, by the same actions: rewards and ends equal, observations to 1e-6."""
    n, chance = 8, np.random.default_rng(0)
    env = eg.envs.gym(name, members=n)
    own = env._env
    assert type(own) is CLASSIC[name]
    singles = [gymnasium.make(name) for _ in range(n)]
    seen = own.begin(own.starts(chance, n))
    assert own.single_observation_space == singles[0].observation_space
    for i, one in enumerate(singles):
        one.reset(seed=i)
        kind = np.float32 if name == "Acrobot-v1" else np.float64
        state = own.state[:, i].astype(kind)
        one.unwrapped.state = tuple(state) if name == "MountainCar-v0" else state
    space = own.single_action_space
    going, ended = np.ones(n, np.bool_), 0
    for t in range(own.limit):
        # a car climbs the hill if it is pushed on
        pushes = {"MountainCar-v0": 2 * (seen[:, 1] >= 0), "MountainCarContinuous-v0": (
            np.where(seen[:, 1:] >= 0, 1, -1).astype(np.float32))}  # fmt: skip
        drawn = np.array([space.sample() for _ in range(n)])
        actions = pushes.get(name, drawn) if t % 8 else drawn
        seen, rewards, over, late, _ = own.step(actions)
        for i in np.flatnonzero(going):
            known, reward, terminated, truncated, _ = singles[i].step(actions[i])
            np.testing.assert_allclose(seen[i], known, rtol=0, atol=1e-6)
            assert math.isclose(rewards[i], reward, rel_tol=1e-9)
            assert (over[i], late[i]) == (terminated, truncated)
            # small differences would grow in a chaotic system, and are not what is tested
            state = np.asarray(singles[i].unwrapped.state)
            own.state[:, i] = state
        ended += int((going & over).sum())
        going &= ~(over | late)
        if not going.any():
            break
    assert ended or name == "Pendulum-v1" or name == "Acrobot-v1"


@pytest.mark.parametrize("name", CLASSIC)
def test_starts_of_classic_control_are_gymnasiums(name: str):
    """As widely spread as those of 400 resets."""
    one = gymnasium.make(name).unwrapped
    known = np.array([one.reset(seed=i)[0] for i in range(400)])
    own = eg.envs.gym(name, members=400)._env
    found = own.begin(own.starts(np.random.default_rng(1), 400))
    assert found.shape == known.shape
    assert found.dtype == known.dtype
    for of in (np.mean, np.std, np.min, np.max):
        np.testing.assert_allclose(of(found, axis=0), of(known, axis=0), atol=0.12)


# What is given.


class Corridor(gymnasium.Env):
    """Ends after `length` steps; the reward is the seed's number of the episode."""

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.observation_space = spaces.Dict(
            {
                "far": spaces.Box(-2, 2, (2,), np.float32),
                "room": spaces.Discrete(3, start=1),
                "doors": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])]),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2, 1), np.float32)

    def seen(self) -> Any:
        return {
            "far": np.array([1, -2], np.float32),
            "room": np.int64(3),
            "doors": (np.array([0, 1], np.int8), np.array([1, 2])),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = self.length
        return self.seen(), {}

    def step(self, action: NDArray[Any]) -> Any:
        assert action.shape == (2, 1)
        assert self.action_space.contains(action)
        self.left -= 1
        return self.seen(), float(self.np_random.random()), self.left == 0, False, {}


def test_parts_of_observations_stand_side_by_side():
    env = eg.envs.gym(Corridor, members=P)
    rows = env.observe(env._reset(keys(1)))
    by_name = {"doors": [0, 64, 0, 64, 0, 0, 64], "far": [64, -127], "room": [0, 0, 64]}
    order = list(Corridor().observation_space.spaces)
    assert rows.dtype == np.int8
    np.testing.assert_array_equal(rows, [[v for name in order for v in by_name[name]]] * P)
    assert (env.inputs, env.outputs) == (12, 2)


@pytest.mark.parametrize("given", ["function", "options", "environment", "vector", "async"])
def test_what_may_be_given(given: str):
    made = {
        "function": lambda: eg.envs.gym(Corridor, members=P, episodes=2),
        "options": lambda: eg.envs.gym(
            lambda length: Corridor(length), members=P, episodes=2, length=3
        ),
        "environment": lambda: eg.envs.gym(Corridor(), members=P, episodes=2),
        "vector": lambda: eg.envs.gym(
            gymnasium.vector.SyncVectorEnv([Corridor] * 2 * P), members=P, episodes=2
        ),
        "async": lambda: eg.envs.gym(Corridor, members=2, episodes=1, mode="async"),
    }[given]
    env = made()
    es = trainer(env)
    R = 1 if given == "async" else 3
    found = env.play(es.model, keys(R))
    np.testing.assert_array_equal(found, env.play(es.model, keys(R)))
    assert (env.lengths == 3).all()
    assert not env.truncated.any()
    if given != "async":
        np.testing.assert_array_equal(found, found[::4].repeat(4, axis=0))
        np.testing.assert_array_equal(
            found, eg.envs.gym(Corridor, members=P, episodes=2).play(es.model, keys(3))
        )
    env.close()


def test_a_limit_of_steps_is_a_truncation():
    env = eg.envs.gym(Corridor, members=P, max_episode_steps=2)
    env.evaluate(trainer(env).model, keys(1))
    assert (env.lengths == 2).all()
    assert env.truncated.all()
    short = eg.envs.gym("Pendulum-v1", members=P, max_episode_steps=5)
    short.evaluate(trainer(short).model, keys(1))
    assert short.truncated.all()
    assert short.steps == 5 * P


class Stop(gymnasium.Env):
    """Lasts until action 1, for as many steps as its limit; a reward of -1 or 1 for each."""

    def __init__(self, reward: float = -1.0, limit: int = 30) -> None:
        self.reward, self.limit = reward, limit
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = self.limit
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), self.reward, bool(action == 1), self.left == 0, {}


def stopping(lengths: NDArray[np.int64]) -> Any:
    """Players whose episodes [P, E] have so many steps if nobody cuts them."""
    seen = 0

    def outputs(rows: NDArray[np.int8]) -> NDArray[np.int64]:
        nonlocal seen
        seen += 1
        return np.stack([0 * lengths, np.where(lengths <= seen, 1, -1)], axis=-1)

    return outputs


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_who_has_lost_is_cut(mode: str):
    """A start's first of eight gives the others 1.5 times its steps; two starts, two episodes."""
    lengths = np.full((16, 2), 25)
    lengths[3, 0], lengths[[2, 5], 1] = 4, (10, 14)  # the second ends before its time is over
    lengths[8:, 0], lengths[8:, 1] = range(1, 9), 99
    env = eg.envs.gym(Stop, members=16, episodes=2, patience=1.5, mode=mode)
    assert env.play(stopping(lengths), keys(2)).tolist() == (-env.lengths).tolist()
    whole = [6] * 8, [15] * 8, [1, 2, *[2] * 6], [30] * 8
    whole[0][3], whole[1][2], whole[1][5] = 4, 10, 14
    np.testing.assert_array_equal(
        env.lengths, np.reshape(whole, (2, 2, 8)).swapaxes(1, 2).reshape(16, 2)
    )
    np.testing.assert_array_equal(env.truncated, (lengths > env.lengths) | (env.lengths == 30))
    assert env.steps == env.lengths.sum()
    if mode == "sync":
        played = [30 - one.left for one in env._env._envs]
        np.testing.assert_array_equal(played, env.lengths.ravel())
    env.close()


def test_who_may_still_win_is_not_cut():
    """Where a step is a gain, those that last have more than those that ended; and models play."""
    lengths = np.array([[2], [9], [9], [30]])
    env = eg.envs.gym(lambda: Stop(1.0), members=4, patience=1)
    env.play(stopping(lengths), keys(1))
    np.testing.assert_array_equal(env.lengths, lengths)
    env = eg.envs.gym(Stop, members=4, patience=1)
    env.play(stopping(lengths), keys(1))
    assert env.lengths.tolist() == [[2], [3], [3], [3]]
    whole = eg.envs.gym(Stop, members=4)
    whole.play(stopping(lengths), keys(1))
    np.testing.assert_array_equal(whole.lengths, lengths)
    limits = iter(lengths.ravel().tolist())
    env = eg.envs.gym(lambda: Stop(limit=next(limits)), members=4, patience=1)
    env.play(trainer(env).model, keys(1))  # whose action is 0 for a row of zeros
    np.testing.assert_array_equal(env.lengths, lengths)


@pytest.mark.parametrize("patience", [0.5, 0, -1, math.inf, math.nan, "2", True])
def test_patience_is_refused(patience: Any):
    with pytest.raises(eg.InputError, match=r"^patience is .*: a number from 1 on is needed"):
        eg.envs.gym(Stop, members=4, patience=patience)


def test_an_environment_that_cannot_be_copied_is_made_by_its_spec():
    env = gymnasium.make("CartPole-v1", sutton_barto_reward=True)
    env.unwrapped.lock = (i for i in range(3))  # as handles of other languages
    played = eg.envs.gym(env, members=2)
    found = played.evaluate(trainer(played).model, keys(1))
    assert (found == -1).all()
    bare = Corridor()
    bare.lock = (i for i in range(3))
    with pytest.raises(eg.InputError, match=r"cannot be copied .* give a function that makes it"):
        eg.envs.gym(bare, members=2)


def test_actions_of_several_parts():
    decode, size = decode_for(spaces.MultiDiscrete([2, 3], start=[5, 0]))
    found = decode(np.array([[1, 2, 9, 8, 7], [2, 1, 0, 0, 1]], np.int8))
    np.testing.assert_array_equal(found, [[6, 0], [5, 2]])
    assert size == 5
    decode, size = decode_for(spaces.MultiBinary([2, 2]))
    np.testing.assert_array_equal(decode(np.int8([[1, 0, -1, 5]])), [[[1, 0], [0, 1]]])
    assert size == 4
    decode, size = decode_for(spaces.Box(np.float32([0, -1]), np.float32([1, 3])), "tanh")
    found = decode(np.int8([[-127, 127], [0, 0], [127, -127]]))
    np.testing.assert_allclose(found, [[0, 3], [0.5, 1], [1, -1]])
    for space in (
        spaces.Box(-0.3, 0.1, (1,), np.float64), spaces.Box(-1.2, 0.6, (1,), np.float64),
        spaces.Box(-(2**31) + 1, 2**31 - 1, (1,), np.int64), spaces.Box(0, 3, (1,), np.int64),
        spaces.Box(-0.3, 0.1, (1,)), spaces.Box(-2, 2, (1,), np.int8),
    ):  # fmt: skip
        made = decode_for(space)[0](np.arange(-127, 128, dtype=np.int8)[:, None])
        assert all(map(space.contains, made))
        near = np.float32(1e-7 if space.dtype == np.float32 else 0)  # as `box` computes
        assert abs(made[-1] - space.high) <= near
        assert made[0] == space.low
        assert (np.diff(made[:, 0].astype(float)) >= 0).all()
    whole, counts = np.unique(made, return_counts=True)  # the nearest of five numbers
    assert whole.tolist() == [-2, -1, 0, 1, 2]
    assert counts.tolist() == [32, 64, 63, 64, 32]
    plain, _ = decode_for(spaces.Box(np.float32([0, -1]), np.float32([1, 3])))
    given = np.int8([[8, -8]])
    np.testing.assert_array_equal(decode(given), plain(soft(given)))
    assert (decode(given) != plain(given)).all()


def test_the_table_of_tanh():
    table = soft_table()
    assert (table[0], table[127], table[254]) == (-127, 0, 127)
    np.testing.assert_array_equal(table, -table[::-1])
    assert (np.diff(table.astype(int)) >= 0).all()
    known = [round(127 * math.tanh(v / 8)) for v in (-50, -8, 1, 8, 40)]
    np.testing.assert_array_equal(soft(np.int8([-50, -8, 1, 8, 40])), known)
    assert known[3] == 97


def test_observations_of_several_numbers():
    for space, seen in (
        (spaces.Discrete(3, start=2), [1]), (spaces.Discrete(3), [3]),
        (spaces.MultiDiscrete([3, 4]), [[0, -1]]), (spaces.MultiDiscrete([3, 4]), [[3, 0]]),
    ):  # fmt: skip
        with pytest.raises(eg.InputError, match=r"an observation has .* not in its space"):
            observe_for(space)(np.array(seen))
    of = observe_for(spaces.MultiDiscrete([[2, 2], [3, 1]], start=[[0, 1], [0, 0]]))
    found = of(np.array([[[1, 1], [2, 0]], [[0, 2], [0, 0]]]))
    np.testing.assert_array_equal(found, 64 * np.array([
        [0, 1, 1, 0, 0, 0, 1, 1], [1, 0, 0, 1, 1, 0, 0, 1]]))  # fmt: skip


def test_the_span_of_a_number():
    env = eg.envs.gym("CartPole-v1", members=P, span=64)
    seen = np.float32([[4.8, 2, -0.4188790, 1]])
    np.testing.assert_array_equal(env.observe(seen), [[64, 32, -64, 16]])
    with pytest.raises(eg.InputError, match=r"^span is 128: a whole number from 1 to 127"):
        eg.envs.gym("CartPole-v1", members=P, span=128)


def test_the_settings_for_returns_learn():
    env = eg.envs.gym("CartPole-v1", members=64, span=64)
    net = eg.networks.mlp(env.inputs, [32], env.outputs, bias=False)
    assert [leaf.name for leaf in net.leaves] == ["layer0.weights", "layer1.weights"]
    es = eg.Trainer(net, pop=64, table_bits=16, **eg.control())
    first = es.tell(env.evaluate(es.ask(), es.keys(1))).fitness
    for _ in range(7):
        last = es.tell(env.evaluate(es.ask(), es.keys(1))).fitness
    assert last > 3 * first
    assert eg.control(sigma_shift=3) == eg.control() | {"sigma_shift": 3}


def told(values: np.ndarray, **options: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Weights after an update by these values, and what it was like."""
    net = eg.networks.mlp(3, [4], 2, bias=False)
    es = eg.Trainer(net, pop=len(values), engine="portable", table_bits=16, **options)
    es.ask()(np.full((len(values), 3), 50, np.int8))
    update = es.tell(values)
    return es.weights, update


def test_groups_are_ranked_among_themselves():
    """What an episode is worth to all who play it changes nothing; equal values stay equal."""
    values = np.random.default_rng(3).integers(0, 5, 16).astype(float)
    bonus = np.repeat([0.0, 500, -70, 3e9], 4)
    plain, _ = told(values, **eg.control(groups=4))
    found, update = told(values + bonus, **eg.control(groups=4))
    assert all((found[k] == plain[k]).all() for k in plain)
    assert update.fitness_best == (values + bonus).max()
    apart = told(values + bonus, **eg.control(groups=1))[0]
    assert any((apart[k] != plain[k]).any() for k in plain)
    ranks = np.concatenate([within(part, 1) for part in values.reshape(4, 4)])
    by_ranks = told(ranks, **eg.control(groups=1))[0]
    assert all((by_ranks[k] == plain[k]).all() for k in plain)
    assert within(np.array([5.0, 1, 1, 7, 0, 0, 0, 0]), 2).tolist() == [5, 2, 2, 7, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pop": 20, "groups": 4}, r"^groups is 4 and pop 20: .*; try pop=24, or groups=1\."),
        ({"pop": 16, "groups": 0}, r"^groups is 0: "),
        (
            {"pop": 16, "groups": 2, "estimator": "token-credit", "rule": "whitened"},
            r"^groups is 2: estimator token-credit does not compare",
        ),
        (
            {"pop": 16, "groups": 2, "estimator": "feedback", "rule": "adam"},
            r"^groups is 2: estimator feedback does not compare",
        ),
    ],
)
def test_groups_that_do_not_fit_get_a_sentence(options: dict[str, Any], sentence: str):
    with pytest.raises(eg.InputError, match=sentence):
        eg.Trainer(eg.networks.mlp(3, [4], 2), **options)


def test_the_first_update_may_be_larger():
    """Twice the way, and in the second a little less."""
    net, way = eg.networks.mlp(3, [4], 2, bias=False), []
    for first in (1.0, 2.0):
        options = eg.control(first_rate=first, weight_decay=0, groups=1)
        es = eg.Trainer(net, pop=8, engine="portable", table_bits=16, **options)
        for _ in range(2):
            before = np.array(es._learner.memory["layer0.weights"])
            es.ask()(np.full((8, 3), 50, np.int8))
            es.tell(np.arange(8.0))
            way.append(np.array(es._learner.memory["layer0.weights"]) - before)
    np.testing.assert_allclose(way[2], 2 * way[0], atol=2)
    np.testing.assert_allclose(way[3], 2 / 1.1 * way[1], atol=2)
    assert (abs(way[0]) > 100).mean() > 0.5
    with pytest.raises(eg.InputError, match=r"^first_rate is 0\.5: "):
        eg.Trainer(net, **eg.control(first_rate=0.5))


def test_weights_decay(tmp_path: Path):
    """By the share that is asked for, biases excepted, where votes move nothing."""
    net, found = eg.networks.mlp(3, [4], 2), []
    first = {leaf.name: np.full(leaf.shape, -9, np.int8) for leaf in net.leaves}
    first["layer0.weights"][0] = 9
    for decay in (0.0, 0.25):
        options = eg.control(groups=1, weight_decay=decay)
        es = eg.Trainer(net, pop=8, engine="portable", table_bits=16, weights=first, **options)
        es.ask()(np.full((8, 3), 50, np.int8))
        es.tell(np.zeros(8))
        found.append({k: np.array(v) for k, v in es._learner.memory.items()})
    for name, fine in found[0].items():
        left = fine - np.sign(fine) * (abs(fine) >> 2) if fine.ndim == 2 else fine
        np.testing.assert_array_equal(found[1][name], left)
    assert {fine.ndim for fine in found[0].values() if fine.any()} == {1, 2}
    with pytest.raises(eg.InputError, match=r"^weight_decay is 0\.6: "):
        eg.Trainer(net, **eg.control(weight_decay=0.6))
    es.save(tmp_path / "decayed.safetensors")
    errors = {"estimator": "feedback", "rule": "adam", "fitness": "sign"}
    sentence = (
        r"^first_rate is 2\.5 and weight_decay is 0\.25: rule adam has none: give first_rate=1, "
    )
    with pytest.raises(eg.InputError, match=sentence + r"weight_decay=0\."):
        eg.Trainer.load(tmp_path / "decayed.safetensors", **errors)
    again = eg.Trainer.load(
        tmp_path / "decayed.safetensors", **errors, first_rate=1, weight_decay=0
    )
    assert again.signature == es.signature


def test_control_has_what_a_rule_reads():
    """By another rule than master nothing is given in vain, but what is asked for is refused."""
    net = eg.networks.mlp(3, [4], 2)
    options = eg.control(rule="whitened", fitness="ranks", learning_rate=1.0)
    assert (options["first_rate"], options["weight_decay"]) == (1, 0)
    es = eg.Trainer(net, pop=8, engine="portable", table_bits=16, **options)
    before = np.array(es._learner.memory["layer0.weights"])
    es.ask()(np.full((8, 3), 50, np.int8))
    es.tell(np.arange(8.0))
    assert (es._learner.memory["layer0.weights"] != before).any()
    with pytest.raises(eg.InputError, match=r"^first_rate is 2: rule whitened has none: give "):
        eg.Trainer(net, pop=8, **eg.control(rule="whitened", fitness="ranks", first_rate=2.0))


# Normalisation.


def test_rows_are_normalised_in_integers():
    """By the definition, in Python's whole numbers."""
    chance = np.random.default_rng(0)
    seen = chance.normal([3, -1, 100], [0.5, 2, 40], (500, 3))
    found = Normalisation(3)
    np.testing.assert_array_equal(found.rows(np.array([[1.0, -1, 9]])), [[32, -32, 127]])
    for part in np.array_split(seen, 7):
        found.add(part)
    found.settle()
    for k in range(3):
        whole = [round(float(v) * 65536) for v in seen[:, k]]
        n, s, square = len(whole), sum(whole), sum(v * v for v in whole)
        mean = (2 * s + n) // (2 * n)
        deviation = math.isqrt((n * square - s * s) // n**2)
        assert (found.mean[k], found.deviation[k]) == (mean, deviation)
        known = [(64 * (v - mean) + deviation) // (2 * deviation) for v in whole]
        np.testing.assert_array_equal(found.rows(seen)[:, k], np.clip(known, -127, 127))
    assert abs(found.rows(seen).astype(int).std(axis=0) - 32).max() < 1
    again = Normalisation(3)
    again.restore(found.arrays())
    for name in ("mean", "deviation"):
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))


def test_extremes_are_normalised():
    found = Normalisation(2)
    found.add(np.array([[1e300, 5.0], [-np.inf, 5.0]]).repeat(4000, axis=0))
    found.settle()
    assert found.mean.tolist() == [0, 5 << FINE]
    assert found.deviation.tolist() == [BOUND, LEAST]
    np.testing.assert_array_equal(found.rows(np.array([[np.inf, 5.0]])), [[32, 0]])
    with pytest.raises(eg.InputError, match=r"^an observation is NaN at \[0, 1\]"):
        found.rows(np.array([[0.0, np.nan]]))


@pytest.mark.parametrize("wrong", ["size", "type", "sums"])
def test_a_normalisation_of_others_is_refused(wrong: str):
    found = Normalisation(2)
    found.add(np.ones((3, 2)))
    given = found.arrays()
    if wrong == "size":
        given["sums"] = given["sums"][:1]
    elif wrong == "type":
        given["count"] = given["count"].astype(np.float64)
    else:
        given["sums"] = given["sums"] * 1000
    with pytest.raises(eg.InputError, match=r"^the normalisation has"):
        Normalisation(2).restore(given)


def test_normalisation_goes_on_from_a_checkpoint(tmp_path: Path):
    """To the bits of a run that never stopped; an update that was not told is no part of it."""

    def made() -> Any:
        return eg.envs.gym("CartPole-v1", members=P, normalise=True)

    def updates(es: eg.Trainer, env: Any, count: int) -> str:
        for _ in range(count):
            es.tell(env.evaluate(es.ask(), es.keys(1)))
        return es.signature

    env = made()
    es = trainer(env)
    es.keep(env)
    updates(es, env, 2)
    env.evaluate(es.ask(), es.keys(1))  # not told
    es.save(tmp_path / "es.safetensors")
    other = made()
    again = eg.Trainer.load(tmp_path / "es.safetensors")
    again.keep(other)
    counted = other.normalisation.count
    assert counted > 2 * P
    other.evaluate(again.model, keys(1))  # a model's observations change nothing
    assert other.normalisation.count == counted
    whole = made()
    known = trainer(whole)
    known.keep(whole)
    assert updates(again, other, 2) == updates(known, whole, 4)
    np.testing.assert_array_equal(other.normalisation.mean, whole.normalisation.mean)
    plain = made()
    assert updates(trainer(plain), plain, 4) == known.signature
    for name in ("", "a/b", 3):
        with pytest.raises(eg.InputError, match="a text without / is needed"):
            es.keep(env, name)


def test_a_play_that_fails_counts_nothing():
    def updates(fails: list[bool]) -> Any:
        env = eg.envs.gym(lambda: Failing(fails=fails), members=P, normalise=True)
        es = trainer(env)
        es.tell(env.evaluate(es.ask(), es.keys(1)))
        return env, es

    fails: list[bool] = []
    env, es = updates(fails)
    before = {name: array.tolist() for name, array in env.arrays().items()}
    fails.append(True)
    with pytest.raises(OSError, match="lost"):
        env.play(es.ask(), es.keys(1))
    assert {name: array.tolist() for name, array in env.arrays().items()} == before
    assert env.normalisation.mean.tolist() != [0, 0]
    env.play(es.ask(), es.keys(1))
    assert env.normalisation.count == 2 * before["count"][0]


def test_a_normalisation_is_not_thrown_away():
    env = eg.envs.gym("CartPole-v1", members=P, normalise=True)
    es = trainer(env)
    es.tell(env.evaluate(es.ask(), es.keys(1)))
    plain = eg.envs.gym("CartPole-v1", members=P)
    with pytest.raises(eg.InputError, match="make it with normalise=True"):
        plain.restore(env.arrays())
    plain.restore({})


# Recurrent networks.


def test_a_recurrent_network_plays_episode_after_episode():
    env = eg.envs.gym("CartPole-v1", members=P, episodes=3)
    es = trainer(env)
    es = eg.Trainer(recurrent(4, 2), pop=P, table_bits=16)
    found = env.play(es.model, keys(3))
    assert found.shape == env.lengths.shape == (P, 3)
    np.testing.assert_array_equal(found, env.lengths)
    assert env.steps == found.sum()
    np.testing.assert_array_equal(found, found[::4].repeat(4, axis=0))
    np.testing.assert_array_equal(found, env.play(es.model, keys(3)))
    assert len(np.unique(found)) > 3
    told = es.tell(env.play(es.ask(), es.keys(1)).mean(axis=1))
    assert told.nonzero_ratio > 0
