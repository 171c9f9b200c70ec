"""Environments that step together: the same in processes, and what ended is left alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eggroll as eg
from eggroll.envs.lockstep import Lockstep, Processes
from eggroll.errors import InputError

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


class Walk(gymnasium.Env):
    """Ends after as many steps as its seed says, and must not be stepped then."""

    def __init__(self, most: int = 7) -> None:
        self.most = most
        self.observation_space = spaces.Dict(
            at=spaces.Box(-1.0, 9.0, (2,)), parts=spaces.Tuple([spaces.Discrete(9)])
        )
        self.action_space = spaces.Discrete(2)

    def seen(self) -> dict[str, Any]:
        return {"at": np.float32([self.left, self.done]), "parts": (np.int64(self.done),)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.done = 1 + (seed or 0) % self.most, 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert self.left, "an episode goes on that has ended"
        if action and self.done == 3:
            raise ValueError("a wall")
        self.left, self.done = self.left - 1, self.done + 1
        return self.seen(), float(self.done), self.left == 0, False, {}


class Gone(Walk):
    def step(self, action: Any) -> Any:
        os._exit(7)


def flat(seen: Any) -> list[Any]:
    return [seen["at"].tolist(), seen["parts"][0].tolist()]


def test_what_ended_rests_until_all_begin_anew():
    envs = Lockstep([Walk] * 4)
    for _ in range(2):
        seen, _ = envs.reset(seed=[0, 2, 1, 2])
        assert flat(seen) == [[[1, 0], [3, 0], [2, 0], [3, 0]], [0] * 4]
        steps = [envs.step(np.zeros(4, int)) for _ in range(4)]
        assert [s[1].tolist() for s in steps] == [[1] * 4, [0, 2, 2, 2], [0, 3, 0, 3], [0] * 4]
        assert [s[2].tolist() for s in steps] == [
            [True, False, False, False], [False, False, True, False], [False, True, False, True],
            [False] * 4,
        ]  # fmt: skip
        assert flat(steps[-1][0]) == [[[0, 1], [0, 3], [0, 2], [0, 3]], [1, 3, 2, 3]]


@pytest.mark.parametrize("cores", [1, 3, 8])
def test_processes_are_the_same(cores: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eggroll.envs.lockstep.cli.usable_cores", lambda: cores)
    here, there = Lockstep([Walk] * 5), Processes([Walk] * 5)
    assert len(there._workers) == min(cores, 5)
    assert there.single_observation_space == here.single_observation_space
    for first in (0, 3):
        seeds = list(range(first, first + 5))
        assert flat(there.reset(seed=seeds)[0]) == flat(here.reset(seed=seeds)[0])
        for _ in range(6):
            one, other = (envs.step(np.zeros(5, int)) for envs in (here, there))
            assert flat(one[0]) == flat(other[0])
            assert [a.tolist() for a in one[1:4]] == [a.tolist() for a in other[1:4]]
    workers = [process for process, _ in there._workers]
    there.close()
    assert not any(process.is_alive() for process in workers)


def test_a_population_plays_the_same_in_processes():
    def played(mode: str) -> Any:
        env = eg.envs.gym("CartPole-v1", members=4, mode=mode)
        net = eg.networks.mlp(env.inputs, [8], env.outputs)
        es = eg.Trainer(net, pop=4, seed=1, table_bits=16)
        found = env.play(es.ask(), es.keys(2))
        env.close()
        return found, env.lengths, env.steps

    one, other = played("sync"), played("async")
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])
    assert one[2] == other[2] == one[1].sum()


class Slow(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.3 * (seed == 5))
        return super().reset(seed=seed)

    def close(self) -> None:
        with open(os.environ["EGGROLL_TEST_CLOSED"], "a") as file:
            file.write("closed\n")


def test_an_interrupt_leaves_no_answer_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And environments are closed in their processes."""
    monkeypatch.setenv("EGGROLL_TEST_CLOSED", str(tmp_path / "closed"))
    envs, here = Processes([Slow] * 2), Lockstep([Walk] * 2)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            envs.reset(seed=[5, 1])
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(InputError, match="are closed: make them anew"):
        envs.step(np.zeros(2, int))
    for seeds in ([1, 2], [3, 0]):
        assert flat(envs.reset(seed=seeds)[0]) == flat(here.reset(seed=seeds)[0])
        assert flat(envs.step(np.zeros(2, int))[0]) == flat(here.step(np.zeros(2, int))[0])
    envs.close()
    assert (tmp_path / "closed").read_text().count("closed") >= 2
    with pytest.raises(InputError, match="are closed: make them anew"):
        envs.reset(seed=[1, 2])


def test_what_fails_is_a_sentence():
    there = Processes([Walk] * 2)
    there.reset(seed=[6, 6])
    for _ in range(3):
        there.step(np.zeros(2, int))
    with pytest.raises(eg.InputError, match=r"environment failed: ValueError: a wall"):
        there.step(np.ones(2, int))
    gone = Processes([Walk, Gone])
    gone.reset(seed=[6, 6])
    with pytest.raises(eg.InputError, match="process ended with exit code 7"):
        gone.step(np.zeros(2, int))
    with pytest.raises(eg.InputError, match="other spaces than the first"):
        Lockstep([Walk, lambda: gymnasium.make("CartPole-v1")])
    lock = (i for i in range(3))
    with pytest.raises(eg.InputError, match=r"cannot be sent to processes .*leave mode out"):
        Processes([lambda: lock])
