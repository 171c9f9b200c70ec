"""Gymnasium's classic control, vectorised over environments; tests compare it with Gymnasium's own.

CLASSIC has the environments by id. Letters: n environments. Gymnasium's arithmetic is kept, the
types of its numbers too, so that returns agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import pi
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[Any]  # float32 or float64, as Gymnasium has them


class Classic(ABC):
    """n environments of one kind, which step together until a limit of steps.

    state: [values, n]; None before the first start.
    """

    def __init__(self, n: int, single: Any, limit: int) -> None:
        """single: an environment of Gymnasium's, for its spaces; limit: steps of an episode."""
        self.num_envs, self.limit, self.steps = n, limit, 0
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.state: Reals = np.zeros((0, n))

    def begin(self, state: Reals) -> Reals:
        """Begins all episodes, at a state [values, n]; what is seen, float32 [n, size]."""
        self.state, self.steps = np.ascontiguousarray(state), 0
        return self.seen()

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Reals, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Observations, rewards, ends and time-outs, [n] each; ended episodes go on unheeded."""
        rewards, ended = self.advance(actions)
        self.steps += 1
        late = np.full(self.num_envs, self.steps >= self.limit)
        return self.seen(), rewards, ended, late, {}

    def close(self) -> None:
        """Forgets the state; nothing else is open."""
        self.state = np.zeros((0, self.num_envs))

    @staticmethod
    @abstractmethod
    def starts(chance: np.random.Generator, n: int) -> Reals:
        """States [values, n] that episodes begin at."""

    @abstractmethod
    def seen(self) -> Reals:
        """Observations of the state, float32 [n, size]."""

    @abstractmethod
    def advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Moves the state: rewards and ends, [n] each."""


class Pendulum(Classic):
    """Angle and its speed; a torque within ±2."""

    @staticmethod
    def starts(chance: np.random.Generator, n: int) -> Reals:
        high = np.array([pi, 1.0])
        return chance.uniform(-high, high, (n, 2)).T

    def seen(self) -> Reals:
        angle, speed = self.state
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)

    def advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        angle, speed = self.state
        torque = np.clip(actions, -2.0, 2.0)[:, 0]
        upright = ((angle + pi) % (2 * pi)) - pi
        cost = upright**2 + 0.1 * speed**2 + 0.001 * (torque**2)
        after = speed + (3 * 10.0 / 2.0 * np.sin(angle) + 3.0 * torque) * 0.05
        after = np.clip(after, -8, 8)
        self.state = np.stack([angle + after * 0.05, after])
        return -cost, np.zeros(self.num_envs, np.bool_)


class MountainCar(Classic):
    """Position and speed; pushes left, none, right; -1 for every step until the top."""

    @staticmethod
    def starts(chance: np.random.Generator, n: int) -> Reals:
        return np.stack([chance.uniform(-0.6, -0.4, n), np.zeros(n)])

    def seen(self) -> Reals:
        return self.state.T.astype(np.float32)

    def advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        position, speed = self.state
        speed = speed + ((actions - 1) * 0.001 + np.cos(3 * position) * -0.0025)
        speed = np.clip(speed, -0.07, 0.07)
        position = np.clip(position + speed, -1.2, 0.6)
        speed = np.where((position == -1.2) & (speed < 0), 0, speed)
        self.state = np.stack([position, speed])
        return np.full(self.num_envs, -1.0), (position >= 0.5) & (speed >= 0)


class MountainCarContinuous(Classic):
    """Position and speed; a force within ±1, which costs; 100 at the top."""

    starts = staticmethod(MountainCar.starts)

    def seen(self) -> Reals:
        return self.state.T.astype(np.float32)

    def advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        position, speed = self.state  # float64 at the start, float32 later, as Gymnasium's
        given = actions[:, 0]
        slope = 0.0025 * np.cos((3 * position).astype(np.float64))
        force = np.clip(given, -1.0, 1.0)
        speed = speed + (force * 0.0015 - slope.astype(force.dtype))
        speed = np.clip(speed, -0.07, 0.07)
        position = np.clip(position + speed, -1.2, 0.6)
        speed = np.where((position == position.dtype.type(-1.2)) & (speed < 0), 0, speed)
        top = (position >= position.dtype.type(0.45)) & (speed >= 0)
        self.state = np.stack([position, speed]).astype(np.float32)
        return np.where(top, 100.0, 0.0) - given.astype(np.float64) ** 2 * 0.1, top


class Acrobot(Classic):
    """Two angles and their speeds; torques -1, 0, 1; -1 for every step until the tip is high."""

    SPEEDS: ClassVar[Reals] = np.array([[4 * pi], [9 * pi]])

    @staticmethod
    def starts(chance: np.random.Generator, n: int) -> Reals:
        drawn = chance.uniform(-0.1, 0.1, (n, 4)).astype(np.float32)
        return drawn.T.astype(np.float64)

    def seen(self) -> Reals:
        one, two, speed, other = self.state
        parts = [np.cos(one), np.sin(one), np.cos(two), np.sin(two), speed, other]
        return np.stack(parts, axis=1).astype(np.float32)

    def advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        torque, s, dt = np.asarray(actions) - 1.0, self.state, 0.2
        k1 = _pull(s, torque)
        k2 = _pull(s + dt / 2.0 * k1, torque)
        k3 = _pull(s + dt / 2.0 * k2, torque)
        k4 = _pull(s + dt * k3, torque)
        s = s + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        angles = s[:2]
        while (beyond := angles > pi).any():
            angles = np.where(beyond, angles - 2 * pi, angles)
        while (beyond := angles < -pi).any():
            angles = np.where(beyond, angles + 2 * pi, angles)
        self.state = np.concatenate([angles, np.clip(s[2:], -self.SPEEDS, self.SPEEDS)])
        one, two = angles
        ended = -np.cos(one) - np.cos(two + one) > 1.0
        return np.where(ended, 0.0, -1.0), ended


def _pull(s: Reals, torque: Reals) -> Reals:
    """The derivative of Acrobot's state [4, n], by Sutton and Barto's book."""
    one, two, speed, other = s
    d1 = 0.5**2 + (1.0 + 0.5**2 + 2 * 0.5 * np.cos(two)) + 1.0 + 1.0
    d2 = (0.5**2 + 0.5 * np.cos(two)) + 1.0
    phi2 = 0.5 * 9.8 * np.cos(one + two - pi / 2.0)
    phi1 = (
        -0.5 * other**2 * np.sin(two)
        - 2 * 0.5 * other * speed * np.sin(two)
        + (0.5 + 1.0) * 9.8 * np.cos(one - pi / 2)
        + phi2
    )
    dd2 = (torque + d2 / d1 * phi1 - 0.5 * speed**2 * np.sin(two) - phi2) / (
        0.5**2 + 1.0 - d2**2 / d1
    )
    dd1 = -(d2 * dd2 + phi1) / d1
    return np.stack([speed, other, dd1, dd2])


CLASSIC: dict[str, type[Classic]] = {
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}
