"""Four problems for one network, 4-16-1: two programs without a gradient, each beside a smooth one.

Letters: P networks, R readers (P, or 1 where all read the same), T rows, G starts.
A network is a function of int8 [R, T, 4] for int8 [P, T, 1].
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

import eggroll as eg

Array = NDArray[np.float32]
Network = Callable[[NDArray[np.int8]], NDArray[Any]]


class Members(Protocol):
    """P networks together."""

    members: int

    def __call__(self, rows: NDArray[np.int8], /) -> NDArray[np.int8]: ...


class Problem:
    """What a network is worth, on what it trains on and on what it has not seen.

    unit: of the cost; scale: of its axis; by_row: whether rows have values of their own.
    """

    unit: ClassVar[str]
    scale: ClassVar[str] = "linear"
    by_row: ClassVar[bool] = True

    def __init__(self, seed: int) -> None:
        raise NotImplementedError

    def values(self, networks: Members) -> NDArray:
        """[P], or [P, rows] if rows have values of their own; larger is better."""
        raise NotImplementedError

    def total(self, values: NDArray) -> NDArray:
        """The one number of every network [P], of `values`."""
        return values.sum(axis=1) if self.by_row else values

    def cost(self, network: Network) -> float:
        """Of one network on what it has not seen."""
        raise NotImplementedError

    def descend(self, trainer: eg.GradientTrainer) -> None:
        """An update by the gradient, if the problem is smooth."""
        raise NotImplementedError

    def references(self) -> dict[str, float]:
        """Costs to compare with: without a network, and of a simple one made by hand."""
        raise NotImplementedError


def signal(first: int, count: int) -> NDArray[np.int8]:
    """Two waves and noise."""
    time = np.arange(first, first + count)
    chance = np.random.default_rng(first)
    waves = 40 * np.sin(time / 7) + 30 * np.sin(time / 17)
    return eg.quantise(waves + chance.normal(0, 1, count), 1)


class Prediction(Problem):
    """A sample from the four before it."""

    def __init__(self, seed: int) -> None:
        self.train, self.unseen = signal(0, 1004), signal(5000, 1004)

    @staticmethod
    def errors(networks: Network, samples: NDArray[np.int8]) -> NDArray[np.int16]:
        """[P, T]"""
        past = np.lib.stride_tricks.sliding_window_view(samples, 4)[None, :-1]
        return samples[4:] - networks(past)[..., 0].astype(np.int16)

    def references(self) -> dict[str, float]:
        past, fit = (
            np.lib.stride_tricks.sliding_window_view(samples.astype(float), 4)[:-1]
            for samples in (self.unseen, self.train)
        )
        linear = past @ np.linalg.lstsq(fit, self.train[4:].astype(float))[0]
        whole = np.rint(linear).clip(-127, 127).astype(np.int8)[None, :, None]
        return {
            "samples themselves": self.cost(lambda rows: np.zeros_like(whole)),
            "linear, least squares": self.cost(lambda rows: whole),
        }


class Compressor(Prediction):
    """The bytes that zlib needs for what the prediction misses."""

    unit, by_row = "bytes for 1,000 samples", False

    @staticmethod
    def packed(errors: NDArray[np.int16]) -> list[int]:
        return [len(zlib.compress(e.astype(np.int8), 6)) for e in errors]

    def values(self, networks: Members) -> NDArray:
        return -np.array(self.packed(self.errors(networks, self.train)))

    def cost(self, network: Network) -> float:
        return float(self.packed(self.errors(network, self.unseen))[0])


class Squares(Prediction):
    """The mean square of what the prediction misses."""

    unit, scale = "mean square of the error", "log"

    def values(self, networks: Members) -> NDArray:
        return -(self.errors(networks, self.train).astype(np.int32) ** 2)

    def cost(self, network: Network) -> float:
        return float((self.errors(network, self.unseen).astype(np.float64) ** 2).mean())

    def descend(self, trainer: eg.GradientTrainer) -> None:
        past = np.lib.stride_tricks.sliding_window_view(self.train, 4)[None, :-1]
        found = np.asarray(trainer.ask(past))
        trainer.tell_gradient(2 * (found - self.train[None, 4:, None] / 16) / found.size)


class Carriage(Problem):
    """A carriage is to be brought to 0 from a random place and held there, for 48 steps.

    The row of a step has the place coarse and fine, the speed and the last drive, which is what the
    network put out.
    """

    steps: ClassVar[int] = 48
    dtype: ClassVar[type]
    gains: ClassVar[tuple[int, ...]]  # of the row in a drive made by hand

    def __init__(self, seed: int) -> None:
        self.train = np.random.default_rng(seed).integers(-400, 401, 16)
        self.unseen = np.random.default_rng(1 << 32).integers(-400, 401, 128)

    def step(self, place: NDArray, speed: NDArray, drive: NDArray) -> tuple[NDArray, NDArray]:
        """The state after a drive."""
        raise NotImplementedError

    def lost(self, place: NDArray) -> NDArray:
        """The cost of a step that ended here."""
        raise NotImplementedError

    def run(self, networks: Network, starts: NDArray[np.int64], members: int) -> NDArray:
        """Places after every step [P, steps, G]; all members in lockstep."""
        place, speed, drive = np.zeros((3, members, len(starts)), self.dtype)
        place += starts.astype(self.dtype)
        places = []
        for _ in range(self.steps):
            shown = np.stack((place // 8, place, 4 * speed, drive), axis=-1)
            rows = np.rint(np.clip(shown, -127, 127)).astype(np.int8)
            drive = networks(rows)[..., 0].astype(self.dtype)
            place, speed = self.step(place, speed, drive)
            places.append(place)
        return np.stack(places, axis=1)

    def values(self, networks: Members) -> NDArray:
        costs = self.lost(self.run(networks, self.train, networks.members))
        ahead = costs[:, ::-1].cumsum(axis=1)[:, ::-1]  # what a drive can still change
        return -ahead.reshape(len(costs), -1)

    def total(self, values: NDArray) -> NDArray:
        return values[:, : len(self.train)].sum(axis=1)  # those of the first step are of all steps

    def cost(self, network: Network) -> float:
        return float(self.lost(self.run(network, self.unseen, 1)).mean())

    def references(self) -> dict[str, float]:
        def by_hand(rows: NDArray[np.int8]) -> NDArray[np.int8]:
            drive = -rows.astype(np.int32) @ self.gains
            return drive.clip(-127, 127).astype(np.int8)[..., None]

        return {
            "no drive": self.cost(lambda rows: np.zeros_like(rows[..., :1])),
            "proportional by hand": self.cost(by_hand),
        }


class Integers(Carriage):
    """Integers and branches: a dead zone, four gears, dry friction, walls.

    Lost are the steps that end more than 8 from 0.
    """

    unit, dtype = "share of the steps outside", np.int32
    gains = (8, 4, 3, 0)

    def step(self, place: NDArray, speed: NDArray, drive: NDArray) -> tuple[NDArray, NDArray]:
        gear = np.where(abs(drive) < 12, 0, np.sign(drive) * (1 + (abs(drive) >> 5)))
        speed = speed + gear
        speed = speed - np.sign(speed)
        place = place + (speed >> 1)
        hit = abs(place) > 450
        return np.where(hit, 450 * np.sign(place), place), np.where(hit, -(speed >> 1), speed)

    def lost(self, place: NDArray) -> NDArray:
        return (abs(place) > 8).astype(np.int32)


class Smooth(Carriage):
    """Real numbers without a branch: viscous friction; the square of the place is lost."""

    unit, dtype = "mean of (place / 64)²", np.float32
    gains, scale = (8, 6, 4, 0), "log"

    def step(self, place: NDArray, speed: NDArray, drive: NDArray) -> tuple[NDArray, NDArray]:
        speed = speed * np.float32(15 / 16) + drive * np.float32(1 / 32)
        return place + speed / 2, speed

    def lost(self, place: NDArray) -> NDArray:
        return (place / 64) ** 2

    def descend(self, trainer: eg.GradientTrainer) -> None:
        """Back through carriage and network from the last step; rounding is not seen."""
        leaves = [np.asarray(leaf) for leaf in trainer.weights.values()]
        shown = []

        def network(rows: NDArray[np.int8]) -> Array:
            shown.append(rows)
            return 16 * layers(leaves, rows)[-1]

        places = self.run(network, self.train, 1)[0]  # [steps, G]
        rows = np.concatenate(shown).swapaxes(0, 1)  # [G, steps, 4]
        slopes = np.zeros_like(np.asarray(trainer.ask(rows)))
        to_place, to_speed, to_drive = np.zeros((3, len(self.train)), np.float32)
        for t in reversed(range(self.steps)):
            to_place = to_place + 2 * places[t] / (64**2 * places.size)
            to_speed = to_speed + to_place / 2
            to_drive = to_drive + to_speed / 32
            slopes[:, t, 0] = 16 * to_drive
            g = slopes_of_rows(leaves, rows[:, t], to_drive)
            to_place = to_place + g[:, 0] / 8 + g[:, 1]
            to_speed = to_speed * 15 / 16 + 4 * g[:, 2]
            to_drive = g[:, 3]
        trainer.tell_gradient(slopes)


LIMIT = np.float32(127 / 16)  # of the float network's values


def layers(leaves: list[Array], rows: NDArray[np.int8]) -> tuple[Array, Array, Array, Array]:
    """The float network on rows [.., 4]: hidden values without and with bias, outputs alike."""
    first, bias, second, last = leaves
    a = (rows @ first.T / 32).clip(-LIMIT, LIMIT)
    b = (a + bias).clip(-LIMIT, LIMIT)
    c = (b.clip(0) @ second.T / 4).clip(-LIMIT, LIMIT)
    return a, b, c, (c + last).clip(-LIMIT, LIMIT)


def slopes_of_rows(leaves: list[Array], rows: NDArray[np.int8], slope: Array) -> Array:
    """The slopes [G, 4] at rows, given those [G] at the float network's output."""
    first, _, second, _ = leaves
    a, b, c, d = layers(leaves, rows)
    out = slope[:, None] * ((abs(c) < LIMIT) & (abs(d) < LIMIT)) @ second / 4
    return out * ((b > 0) & (b < LIMIT) & (abs(a) < LIMIT)) @ first / 2 * (abs(rows) < 127)


# The gradient of a black box is its proxy's.
PROBLEMS: dict[str, type[Problem]] = {
    "compressor": Compressor,
    "squares": Squares,
    "integer carriage": Integers,
    "smooth carriage": Smooth,
}
PROXIES: dict[str, type[Problem]] = {"compressor": Squares, "integer carriage": Smooth}
