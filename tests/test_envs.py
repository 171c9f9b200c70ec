"""Environments and quantisation: numbers in, episodes in lockstep, and one sentence for errors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import eggroll as eg
from eggroll.envs import argmax, box, scales
from eggroll.spec import rng

P = 12


def test_quantise_rounds_and_clips():
    found = eg.quantise([[0.5, 1.5, -0.1, 9, -np.inf], [0.25, -1.5, 0.1, -9, np.inf]], 1)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, [[0, 2, 0, 9, -127], [0, -2, 0, -9, 127]])
    np.testing.assert_array_equal(eg.quantise([1.0, -0.5]), [16, -8])
    np.testing.assert_array_equal(eg.quantise([[1, 200], [2, -3]], [2, 1]), [[2, 127], [4, -3]])
    assert eg.quantise(0.5).tolist() == 8
    assert eg.quantise(np.float32(3e38), 1e30).tolist() == 127
    given = np.ones(3, np.float32)
    eg.quantise(given, 100)
    np.testing.assert_array_equal(given, 1)


@pytest.mark.parametrize(
    ("x", "scale", "says"),
    [
        ([1.0, np.nan], 16, r"^x is NaN at \[1\]: every value must be a number"),
        (["a"], 16, r"^x is <U1: real numbers are needed"),
        ([1.0, 2.0], [1, 2, 3], r"^scale has the shape \[3\]: .* 2 values of a row"),
        ([1.0], 0, r"^scale is 0: a number above 0"),
        ([1.0], np.inf, r"^scale is inf: a number above 0"),
        (np.float32([np.inf]), 5e-324, r"^scale is 5e-324: a number above 0 that float32 holds"),
        (np.int8([0]), 1e39, r"^scale is 1e\+39: a number above 0"),
        ([1.0], np.nan, r"^scale is nan: a number above 0"),
    ],
)
def test_quantise_refuses(x: Any, scale: Any, says: str):
    with pytest.raises(eg.InputError, match=says):
        eg.quantise(x, scale)


def test_scales_bring_bounds_to_127():
    low, high = np.array([-2, -np.inf, 0, -3e38]), np.array([4, 1, 0, 3e38])
    np.testing.assert_array_equal(scales(low, high), np.float32([127 / 4, 32, 32, 32]))


def test_actions_of_outputs():
    np.testing.assert_array_equal(argmax(np.array([[1, 5, 5], [3, 2, 1]])), [1, 0])
    found = box(np.array([[-127, 0], [127, 127]], np.int8), [-2, 0], [2, 1])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[-2, 0.5], [2, 1]])


def keys(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return rng.counters(seed, 0, count)


def trainer(env: Any, **options: Any) -> eg.Trainer:
    net = eg.networks.mlp(env.inputs, [8], env.outputs or 1)
    return eg.Trainer(net, **{"pop": P, "table_bits": 16} | options)


@pytest.fixture(scope="module")
def gymnasium() -> Any:
    return pytest.importorskip("gymnasium")


def alone(gymnasium: Any, start: NDArray[np.float64], policy: Any) -> float:
    """The return of an episode of the single environment, from a state on."""
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.unwrapped.state = start
    seen, total, over = np.array(start, np.float32), 0.0, False
    while not over:
        logits = policy(
            eg.quantise(seen, scales(env.observation_space.low, env.observation_space.high))[None]
        )
        seen, reward, terminated, truncated, _ = env.step(int(logits.argmax()))
        total, over = total + reward, terminated or truncated
    return total


def test_returns_are_those_of_the_single_environment(gymnasium: Any):
    env = eg.envs.gym("CartPole-v1", members=P)
    es = trainer(env)
    starts = []
    reset = env._reset

    def spy(words: NDArray[np.uint64]) -> NDArray[Any]:
        seen = reset(words)
        starts.append(env._env.unwrapped.state.T.copy())
        return seen

    env._reset = spy
    found = env.evaluate(es.model, keys(P))
    assert len(set(found)) > 1
    known = [alone(gymnasium, start, es.model) for start in starts[0]]
    np.testing.assert_array_equal(found, known)
    assert env.steps == found.sum()


@pytest.mark.parametrize("mode", ["", "sync"])
def test_members_of_a_group_play_the_same_episodes(gymnasium: Any, mode: str):
    """A model that does not differ from member to member has the same returns in a group."""
    env = eg.envs.gym("CartPole-v1", members=P, episodes=2, mode=mode)
    es = trainer(env)
    found = env.play(es.model, keys(3))
    assert found.shape == (P, 2)
    np.testing.assert_array_equal(found, found[::4].repeat(4, axis=0))
    assert len(np.unique(found)) > 2
    np.testing.assert_array_equal(found, env.play(es.model, keys(3)))
    assert (found != env.play(es.model, keys(3, 1))).any()
    np.testing.assert_array_equal(found.mean(axis=1), env.evaluate(es.model, keys(3)))


@pytest.mark.parametrize("estimator", ["eggroll", "token-credit"])
def test_training_is_a_function_of_the_seed(gymnasium: Any, estimator: str, tmp_path: Any):
    def updates(es: eg.Trainer, env: Any, count: int) -> str:
        for _ in range(count):
            es.tell(env.play(es.ask(), es.keys(1)).sum(axis=1))
        return es.signature

    env, other = (eg.envs.gym("CartPole-v1", members=P, episodes=2) for _ in range(2))
    known = updates(trainer(env, estimator=estimator, engine="portable"), env, 4)
    es = trainer(other, estimator=estimator)
    updates(es, other, 2)
    es.save(tmp_path / "es.safetensors")
    updates(es, other, 1)
    assert updates(eg.Trainer.load(tmp_path / "es.safetensors"), env, 2) == known


def test_population_learns_to_balance(gymnasium: Any):
    env = eg.envs.gym("CartPole-v1", members=64)
    es = trainer(env, pop=64, sigma_shift=2)
    first = es.tell(env.evaluate(es.ask(), es.keys(1))).fitness
    for _ in range(11):
        last = es.tell(env.evaluate(es.ask(), es.keys(1))).fitness
    assert last > 2 * first


def test_boxes_and_numbers(gymnasium: Any):
    pendulum = eg.envs.gym("Pendulum-v1", members=2)
    assert (pendulum.inputs, pendulum.outputs) == (3, 1)
    assert (pendulum.evaluate(trainer(pendulum).model, keys(1)) < -10).all()
    lake = eg.envs.gym("FrozenLake-v1", members=2, is_slippery=False)
    assert (lake.inputs, lake.outputs) == (16, 4)
    assert set(lake.evaluate(trainer(lake).model, keys(1))) <= {0.0, 1.0}


def test_own_functions(gymnasium: Any):
    def observe(seen: NDArray[Any]) -> NDArray[np.int8]:
        return eg.quantise(seen[:, 2:], 100)

    def decode(outputs: NDArray[Any]) -> NDArray[Any]:
        return (outputs[:, 0] > 0).astype(np.int64)

    env = eg.envs.gym("CartPole-v1", members=P, observe=observe, decode=decode)
    assert (env.inputs, env.outputs) == (2, 0)
    assert env.evaluate(trainer(env).ask(), keys(1)).shape == (P,)


def recurrent(inputs: int, outputs: int) -> eg.Program:
    net = eg.Program(width=4)
    _, s = net.stage(state=True)
    shown = net.linear(net.input(inputs), "in", 4)
    net.add(net.linear(s, "back", 4), shown, out=s)
    net.output(net.linear(s, "out", outputs))
    return net


def test_recurrent_networks_begin_every_episode_anew(gymnasium: Any):
    env = eg.envs.gym("CartPole-v1", members=P)
    model = eg.Trainer(recurrent(env.inputs, env.outputs), pop=P, table_bits=16).model
    found = env.evaluate(model, keys(P))
    np.testing.assert_array_equal(found, env.evaluate(model, keys(P)))


@pytest.mark.parametrize("estimator", ["eggroll", "token-credit"])
def test_policies_draw_actions_and_models_take_the_likeliest(gymnasium: Any, estimator: str):
    net = eg.Program()
    net.policy(net.relu(net.linear(net.input(4), "hidden", 8)), "moves", 2)
    env = cartpole(episodes=2)
    es = eg.Trainer(net, pop=P, table_bits=16, alpha=1e-9, estimator=estimator)
    first = env.play(es.ask(), keys(1))
    np.testing.assert_array_equal(first, env.play(es.ask(), keys(1)))  # the chance is the update's
    es.tell(first.mean(axis=1))
    model = es.model
    likeliest = env.play(lambda rows: model(rows), keys(1))
    np.testing.assert_array_equal(likeliest, env.play(es.model, keys(1)))
    assert (first != likeliest).any()


REFUSED = {
    "no such": (
        lambda: eg.envs.gym("CartPole-v99", members=2),
        r"^environment 'CartPole-v99' cannot be made: ",
    ),
    "none": (lambda: eg.envs.gym("CartPole-v1", members=0), r"^members is 0 and episodes is 1: "),
    "keys": (
        lambda: cartpole().evaluate(trainer(cartpole()).model, keys(5)),
        r"^keys are 5 words: a number that divides 12",
    ),
    "keys of text": (lambda: cartpole().play(len, "a"), r"^keys are <U1: words of Trainer\.keys"),
    "negative keys": (lambda: cartpole().play(len, [-1]), r"^keys are int64: words of Trainer"),
    "half a member": (lambda: eg.envs.gym("CartPole-v1", members=2.5), r"^members is 2\.5 and ep"),
    "option": (
        lambda: cartpole(no_such=3),
        r"^environment 'CartPole-v1' cannot be made: .*_such",
    ),
    "mode": (lambda: cartpole(mode="fast"), r"^environment 'CartPole-v1' cannot be made: Inv"),
    "players": (
        lambda: cartpole().play(lambda rows: np.zeros((7, 1, 2), np.int8), keys(1)),
        r"^outputs are \[7, 1, 2\]: \[12, 1, size\] are needed",
    ),
    "outputs": (
        lambda: cartpole().evaluate(
            eg.Trainer(eg.networks.mlp(4, [], 3), pop=P, table_bits=16).model, keys(1)
        ),
        r"^outputs are 3: one output of 2 values is needed",
    ),
    "space": (
        lambda: eg.envs.gym(Text, members=2),
        r"^observations are of a Text space: pass observe",
    ),
    "space of actions": (
        lambda: eg.envs.gym(lambda: Text(acts=True), members=2),
        r"^actions are of a Text space: pass decode",
    ),
    "no environment": (lambda: eg.envs.gym(3, members=2), r"^name is 3: an id, a function that"),
    "a function of something else": (
        lambda: eg.envs.gym(list, members=2),
        r"^the function made \[\]: an environment is needed",
    ),
    "mode of a function": (
        lambda: eg.envs.gym(Text, members=2, mode="fast"),
        r'^mode is .fast.: "sync" or "async"',
    ),
    "squash": (lambda: pendulum(squash="hard"), r'^squash is .hard.: "clip" or "tanh"'),
    "normalise and observe": (
        lambda: cartpole(normalise=True, observe=len),
        r"^observe and normalise are both given",
    ),
    "normalise of numbers": (
        lambda: eg.envs.gym("FrozenLake-v1", members=2, normalise=True),
        r"^normalise is for numbers and observations have a Discrete space",
    ),
    "vector of another size": (
        lambda: eg.envs.gym(vector(3), members=2),
        r"^the vector environment has 3 environments: members x episodes, 2, are",
    ),
    "options of a vector": (
        lambda: eg.envs.gym(vector(2), members=2, mode="sync"),
        r"^mode and options are for environments that are still to be made",
    ),
    "option of an environment": (
        lambda: eg.envs.gym(single("CartPole-v1"), members=2, x=1),
        r"^option 'x' was given to an environment that is made already",
    ),
    "policy for numbers": (
        lambda: pendulum().play(
            eg.Trainer(eg.networks.mlp(3, [], 1, policy=True), pop=P, table_bits=16).ask(), keys(1)
        ),
        r"^the network has a policy, which draws one of several actions, and the environment",
    ),
    "too few actions": (
        lambda: cartpole(decode=lambda outputs: outputs[:2, 0]).play(ones(2), keys(1)),
        r"^decode gave actions \[2\]: \[12\] are needed, one for every episode",
    ),
    "actions that there are not": (
        lambda: eg.envs.gym("MountainCar-v0", members=P, decode=lambda o: o[:, 0]).play(
            ones(3, 90), keys(1)
        ),
        r"^decode gave actions int8 90 to 90: whole numbers from 0 to 2 are needed",
    ),
    "no whole actions": (
        lambda: cartpole(decode=lambda outputs: outputs[:, 0] / 2).play(ones(2), keys(1)),
        r"^decode gave actions float64 0.5 to 0.5: whole numbers",
    ),
    "actions in place of outputs": (
        lambda: eg.envs.gym("CartPole-v1", members=P, episodes=2).play(
            lambda rows: rows[:, :, 0], keys(1)
        ),
        r"^outputs are \[12, 2\]: \[12, 2, size\] are needed",
    ),
    "members of another population": (
        lambda: cartpole().play(
            eg.Trainer(eg.networks.mlp(4, [], 2), pop=P + 2, table_bits=16).ask(), keys(1)
        ),
        r"^the environment was made for members=12, and ask gave 14: make it for as many as pop",
    ),
    "no steps": (
        lambda: cartpole(max_episode_steps=0),
        r"^max_episode_steps is 0: a whole number from 1",
    ),
    "a step of four values": (
        lambda: eg.envs.gym(lambda: Failing(values=4), members=P).play(ones(2), keys(1)),
        r"^an environment's step gave 4 values: observation, reward, terminated, truncated and",
    ),
    "vector and recurrent": (
        lambda: eg.envs.gym(vector(2 * P), members=P, episodes=2).play(
            eg.Trainer(recurrent(4, 2), pop=P, table_bits=16).ask(), keys(1)
        ),
        r"^episodes is 2 and the network is recurrent: it plays one at a time; give a vector",
    ),
}


def ones(size: int, value: int = 1) -> Any:
    """A player whose outputs are all alike."""
    return lambda rows: np.full((*rows.shape[:2], size), value, np.int8)


class Failing:
    """Stands for an environment of three steps, the second of which may fail."""

    def __new__(cls, values: int = 5, fails: list[bool] | None = None) -> Any:
        import gymnasium

        class Of(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)
            steps = 0

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                self.steps = 0
                return np.zeros(2, np.float32), {}

            def step(self, action: Any) -> Any:
                self.steps += 1
                if fails and self.steps == 2 and fails.pop():
                    raise OSError("the connection was lost")
                seen = np.full(2, self.steps / 4, np.float32)
                return (seen, 1.0, self.steps == 3, False, {})[:values]

        return Of()


class Text:
    """Stands for an environment of texts, which gymnasium is imported for."""

    def __new__(cls, acts: bool = False) -> Any:
        import gymnasium

        numbers, text = gymnasium.spaces.Discrete(2), gymnasium.spaces.Text(3)

        class Of(gymnasium.Env):
            observation_space, action_space = (numbers, text) if acts else (text, numbers)

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                return (1 if acts else "abc"), {}

        return Of()


def pendulum(**options: Any) -> Any:
    return eg.envs.gym("Pendulum-v1", members=P, **options)


def single(name: str) -> Any:
    import gymnasium

    return gymnasium.make(name)


def vector(count: int) -> Any:
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", num_envs=count, vectorization_mode="sync")


def cartpole(**options: Any) -> Any:
    return eg.envs.gym("CartPole-v1", members=P, **options)


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence(gymnasium: Any, name: str):
    act, says = REFUSED[name]
    with pytest.raises(eg.InputError, match=says) as refused:
        act()
    assert "\n" not in str(refused.value)


def test_without_gymnasium_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(eg.InputError, match=r"^Gymnasium is missing: install it with pip install"):
        eg.envs.gym("CartPole-v1", members=2)
