"""The tasks: Gymnasium's environments with the return that counts as solved."""

from __future__ import annotations

from typing import Any, NamedTuple

import eggroll as eg
from eggroll.errors import InputError


class Task(NamedTuple):
    """An environment; threshold: mean return of 100 episodes; most: environment steps of a run.

    extra: of Gymnasium, that it needs; normalise: int8 reads rows less their mean, over their
    deviation, where bounds are so far apart that by them alone hardly a bit would be left.
    """

    id: str
    threshold: float
    most: int
    extra: str = ""
    normalise: bool = False


# Thresholds are Gymnasium's own (`reward_threshold`); Pendulum has none, and -200 is usual.
TASKS = {
    "CartPole": Task("CartPole-v1", 475, 1_000_000),
    "Acrobot": Task("Acrobot-v1", -100, 5_000_000),
    "MountainCar": Task("MountainCar-v0", -110, 5_000_000),
    "MountainCarContinuous": Task("MountainCarContinuous-v0", 90, 5_000_000),
    "Pendulum": Task("Pendulum-v1", -200, 10_000_000),
    "LunarLander": Task("LunarLander-v3", 200, 10_000_000, "box2d", normalise=True),
    "InvertedPendulum": Task("InvertedPendulum-v5", 950, 10_000_000, "mujoco", normalise=True),
}


def environment(task: Task, members: int, **options: Any) -> Any:
    """Environments of a task; an InputError with the way to what is missing."""
    try:
        return eg.envs.gym(task.id, members=members, **options)
    except InputError as error:
        if task.extra:
            hint = f"pip install 'gymnasium[{task.extra}]' brings what it needs"
            raise InputError(f"{str(error).rstrip('.')}; {hint}.") from None
        raise
