"""Speed of training and of play: all cases in turn, in one process, on one thread."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eggroll.files import write_whole
from experiments.nnue import integers, match, peers, quantise
from experiments.nnue.loader import FEATURES
from experiments.nnue.losses import Loss
from experiments.nnue.native import NativeTrainer
from experiments.nnue.positions import Positions
from experiments.nnue.shape import Shape

Case = Callable[[int], float]  # number of a batch -> CPU seconds of an update
RATE = 0.001
# ratio -> (which case, by which other, the least that is asked)
GATES = {
    "native / PyTorch COO": ("native-coalesced", "torch-coo", 3.0),
    "native / EmbeddingBag": ("native-coalesced", "torch-bag", 2.0),
    "feedback / native": ("feedback", "native", 1.0),
}
TURN = 5  # updates


def timed(update: Callable[[Any], object], train: Positions) -> Case:
    """An update with batch i, the batch made beforehand."""

    def run(i: int) -> float:
        batch = train[i]
        began = time.process_time()
        update(batch)
        return time.process_time() - began

    return run


def training_cases(features: str, width: int, train: Positions) -> dict[str, Case]:
    """Updates of every way, of one width."""
    shape, loss, steps = Shape(FEATURES[features], width, 16), Loss(), 1 << 20
    kept: dict[str, Any] = {"native": NativeTrainer(shape, loss)}
    if features == "halfkp+p":
        kept["native-coalesced"] = NativeTrainer(shape, loss, coalesce=True)
    for way in ("coo", "bag"):
        kept[f"torch-{way}"] = peers.TorchTrainer(shape, loss, way=way)
    cases = {
        name: timed(lambda batch, t=trainer: t.step(batch, RATE), train)
        for name, trainer in kept.items()
    }
    ways = {
        "feedback": integers.Feedback(shape, features, loss, steps=steps),
        "token-credit": integers.Evolution(shape, features, loss, steps=steps),
    }
    return cases | {name: timed(trainer.train, train) for name, trainer in ways.items()}


def measure(cases: dict[str, Case], rounds: int) -> dict[str, list[float]]:
    """Seconds of an update in every round, the mean of a turn; the first round warms up.

    A turn has TURN updates of one way, as training has no others; the first is not timed, which
    finds the caches as another way left them.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for i in range(rounds + 1):
        for name in order:
            seconds = [cases[name](TURN * i + j) for j in range(TURN)]
            if i:
                found[name].append(statistics.fmean(seconds[1:]))
        order.append(order.pop(0))
    return found


def training(data: Path, features: str, width: int, batch: int, rounds: int) -> dict[str, Any]:
    """Positions/s of every way, and the ratios that have a gate."""
    train = Positions.read(data, features, "train", batch)
    times = measure(training_cases(features, width, train), rounds)
    pace = {name: [batch / s for s in seconds] for name, seconds in times.items()}
    ratios = {}
    for name, (mine, other, least) in GATES.items():
        own = times.get(mine, times["native"])
        each = [b / a for a, b in zip(own, times[other], strict=True)]
        ratios[name] = {"of": mine if mine in times else "native", "rounds": each, "least": least}
    return {"features": features, "width": width, "batch": batch, "pace": pace, "ratios": ratios}


def playing(folder: Path, rounds: int, width: int = 32, hidden: int = 16) -> dict[str, list[float]]:
    """Evaluations/s of nodes of HalfKP nets with first weights: speed depends on sizes alone."""
    shape = Shape(FEATURES["halfkp"], width, hidden)
    flat = shape.first(0)
    players = {
        "int8": match.integer("int8", quantise.quantise(flat, shape, "halfkp"), folder),
        "float": match.floating("float", flat, shape),
    }
    found: dict[str, list[float]] = {}
    for player in players.values():
        positions, different = player.walk(1, 10, 100)
        if player.name == "int8" and (different or not positions):
            raise RuntimeError(f"{different} of {positions} sums differ from those of the board")
    for _ in range(rounds):
        for name, player in players.items():
            for anew in (False, True):
                began = time.process_time()
                done = player.evaluate_nodes(3, 120, 2000, anew)
                key = f"{name}, {'from the whole board' if anew else 'by the difference'}"
                found.setdefault(key, []).append(done / (time.process_time() - began))
    return found


def cell(values: list[float], scale: float = 1.0, form: str = "{:.0f}") -> str:
    made = [form.format(v * scale) for v in (statistics.median(values), min(values), max(values))]
    return f"{made[0]} ({made[1]} to {made[2]})"


def lines(found: dict[str, Any]) -> list[str]:
    """Tables of all that was measured."""
    made = [
        f"{found['machine']}, one thread, CPU seconds; medians (range) of {found['rounds']} rounds",
        "", "| features | M | way | thousand positions/s |", "|---|---|---|---|",
    ]  # fmt: skip
    for one in found["training"]:
        made += [
            f"| {one['features']} | {one['width']} | {way} | {cell(pace, 1e-3)} |"
            for way, pace in one["pace"].items()
        ]
    made += [
        "",
        "| features | M | ratio | of | at least | median (range) |",
        "|---|---|---|---|---|---|",
    ]
    for one in found["training"]:
        made += [
            f"| {one['features']} | {one['width']} | {name} | {r['of']} | {r['least']:g} | "
            f"{cell(r['rounds'], 1, '{:.2f}')} |"
            for name, r in one["ratios"].items()
        ]
    made += ["", "| evaluation of a node | thousand/s |", "|---|---|"]
    return made + [f"| {name} | {cell(v, 1e-3)} |" for name, v in found["playing"].items()]


def main(
    data: Path, rounds: int, batch: int, widths: list[int], to: Path | None, folder: Path
) -> str:
    """Measures all, and gives the tables."""
    cases = [("768", widths[0]), *(("halfkp+p", width) for width in widths)]
    found = {
        "machine": f"{platform.machine()}, {platform.system()}, NumPy {np.__version__}",
        "rounds": rounds,
        "training": [training(data, of, width, batch, rounds) for of, width in cases],
        "playing": playing(folder, rounds),
    }
    if to:
        write_whole(to, json.dumps(found, indent=1).encode())
    return "\n".join(lines(found))
