"""PPO of stable-baselines3 on the same tasks, with the settings of rl-baselines3-zoo for each.

Its networks are sb3's own: two layers of 64 tanh for the policy, as many for the value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.control.tasks import Task

LOOK = 2_048  # environment steps at least from one look to the next

# rl-baselines3-zoo, hyperparams/ppo.yml at commit 00128b5, where those of Acrobot, MountainCar and
# LunarLander are not marked as tuned, and the pendulum is MuJoCo's version 3. `envs`: environments
# side by side; `normalise`: rows and rewards less their running mean, over their deviation;
# `falls`: steps in which rate and clip fall to 0.
COMMON = {"envs": 1, "normalise": False, "falls": 0, "policy_kwargs": {}}
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole": {
        "envs": 8, "falls": 100_000, "n_steps": 32, "batch_size": 256, "n_epochs": 20,
        "learning_rate": 1e-3, "clip_range": 0.2, "gamma": 0.98, "gae_lambda": 0.8,
    },
    "Acrobot": {
        "envs": 16, "normalise": True, "n_steps": 256, "n_epochs": 4, "gamma": 0.99,
        "gae_lambda": 0.94,
    },
    "MountainCar": {
        "envs": 16, "normalise": True, "n_steps": 16, "n_epochs": 4, "gamma": 0.99,
        "gae_lambda": 0.98,
    },
    "MountainCarContinuous": {
        "normalise": True, "n_steps": 8, "batch_size": 256, "n_epochs": 10, "gamma": 0.9999,
        "gae_lambda": 0.9, "learning_rate": 7.77e-5, "ent_coef": 0.00429, "clip_range": 0.1,
        "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
    },
    "Pendulum": {
        "envs": 4, "n_steps": 1024, "n_epochs": 10, "gamma": 0.9, "gae_lambda": 0.95,
        "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
    "LunarLander": {
        "envs": 16, "n_steps": 1024, "batch_size": 64, "n_epochs": 4, "gamma": 0.999,
        "gae_lambda": 0.98, "ent_coef": 0.01,
    },
    "InvertedPendulum": {
        "normalise": True, "n_steps": 32, "batch_size": 64, "n_epochs": 5, "gamma": 0.999,
        "gae_lambda": 0.9, "learning_rate": 2.22425e-4, "ent_coef": 1.37976e-7, "clip_range": 0.4,
        "max_grad_norm": 0.3, "vf_coef": 0.19816,
    },
}  # fmt: skip


Returns = Callable[[int, int], float]


class Progress(NamedTuple):
    """A run that has ended.

    steps: of its environments; seconds: of training alone; rollouts: that ended; returns: a
    function of (episodes, seed) to the mean return of the policy without its noise.
    """

    steps: int
    seconds: float
    rollouts: int
    returns: Returns


def learn(
    name: str, task: Task, seed: int, threads: int, most: int, solved: Callable[[Returns], bool]
) -> Progress:
    """Trains until `solved`, or for so many steps.

    solved: asked between rollouts, LOOK steps apart or more, and at the end.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(threads)
    settings = COMMON | SETTINGS[name]
    env = make_vec_env(task.id, settings.pop("envs"), seed=seed)
    falls, rows = settings.pop("falls"), None
    if settings.pop("normalise"):
        env = rows = VecNormalize(env, gamma=settings["gamma"])
    if falls:
        for one in ("learning_rate", "clip_range"):
            settings[one] = _falling(settings[one])
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings)

    def mean(count: int, seed: int) -> float:
        return returns(model, rows, task, count, seed)

    class Looks(BaseCallback):
        """Looks whether the task is solved, while the clock stands."""

        def __init__(self) -> None:
            super().__init__()
            self.done, self.looked, self.rollouts, self.paused = False, 0, 0, 0.0

        def _on_rollout_start(self) -> None:
            self.rollouts += self.num_timesteps > 0
            if self.num_timesteps - self.looked >= LOOK:
                began, self.looked = time.perf_counter(), self.num_timesteps
                self.done = solved(mean)
                self.paused += time.perf_counter() - began

        def _on_step(self) -> bool:
            return not self.done

    looks, began = Looks(), time.perf_counter()
    model.learn(min(most, falls or most), callback=looks)
    seconds = time.perf_counter() - began - looks.paused
    steps = looks.looked if looks.done else model.num_timesteps
    looks.done = looks.done or solved(mean)
    env.close()
    return Progress(steps, seconds, looks.rollouts, mean)


def returns(model: Any, rows: Any, task: Task, count: int, seed: int) -> float:
    """Mean return of so many episodes, those of seeds `seed` and on."""
    import gymnasium

    envs = [gymnasium.make(task.id) for _ in range(count)]
    seen = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    total, going = np.zeros(count), list(range(count))
    while going:
        now = np.stack([seen[i] for i in going])
        actions, _ = model.predict(rows.normalize_obs(now) if rows else now, deterministic=True)
        for i, action in zip([*going], actions, strict=True):
            seen[i], reward, terminated, truncated, _ = envs[i].step(action)
            total[i] += float(reward)
            if terminated or truncated:
                going.remove(i)
    for env in envs:
        env.close()
    return float(total.mean())


def _falling(value: float) -> Any:
    return lambda left: left * value
