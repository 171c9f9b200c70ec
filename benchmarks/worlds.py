"""Rows per second of networks in a native world, beside the limit of the processor.

A row is one run of the network by one member, with its world. Every round measures all cases and
between them `peak`, the instruction set's dot product on registers; ratios are of the same round.

    python benchmarks/worlds.py --rounds 9 --json worlds.json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import numpy as np
import tyro
from checks import write_json

from eggroll import _extension, native
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.evolution.population import WorldCall
from eggroll.files import check_place
from eggroll.library import worlds as playing
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp

INPUTS, OUTPUTS = 27, 9
NETWORKS = {"27-64-64-9": [64, 64], "27-4x256-9": [256] * 4}
ROWS = {"27-64-64-9": 512, "27-4x256-9": 128}  # of an update
ESTIMATORS = {"evaluate": "eggroll", "credit": "token-credit"}
LOCKSTEP_POP, LOCKSTEP_ROWS = 4096, 32


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/worlds.py."""

    rounds: Annotated[int, Range(1, 1000)] = 9
    """Rounds over everything; the median counts."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the figures as JSON."""


def macs(hidden: list[int]) -> int:
    sizes = [INPUTS, *hidden, OUTPUTS]
    return sum(a * b for a, b in pairwise(sizes))


class Timed:
    """A function that adds up the seconds of its calls, results computed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = self.function(*arguments, **named)
        mx.eval(result)
        self.seconds += time.perf_counter() - began
        return result


class Case:
    """A network in the world, within the cpu engine."""

    def __init__(self, network: str, what: str, threads: int, world: native.World) -> None:
        self.network, self.world, self.rows = network, world, ROWS[network]
        self.threads = threads or _extension.load().default_threads()
        self.name = f"{network} {what}, {self.threads} thread{'s' * (self.threads > 1)}"
        self.es = Trainer(
            mlp(INPUTS, NETWORKS[network], OUTPUTS), pop=128 * self.threads, engine="cpu",
            estimator=ESTIMATORS[what], sigma_shift=1, steps=10**6, threads=self.threads,
        )  # fmt: skip
        self.engine = Timed(self.es.engine.play)
        self.es.engine.play = self.engine  # type: ignore[method-assign]
        for _ in range(2):  # the first finds the scale of the values
            self.es.play(world, self.rows)
        assert self.engine.seconds

    def measure(self, peak: float) -> dict[str, float]:
        self.engine.seconds, rows = 0.0, self.es.pop * self.rows
        began = time.perf_counter()
        self.es.play(self.world, self.rows)
        whole, kernels = time.perf_counter() - began, self.engine.seconds
        rate = rows / kernels
        return {
            "rows_per_second": rate, "of_peak": rate * macs(NETWORKS[self.network]) / peak,
            "whole_update_rows_per_second": rows / whole,
        }  # fmt: skip


class Lockstep:
    """Members asked row by row from Python (T = 1), the world stepped by the extension."""

    def __init__(self, what: str, threads: int, world: native.World) -> None:
        self.world, self.name = world, f"27-64-64-9 {what}, one row a call, population 4096"
        self.es = Trainer(
            mlp(INPUTS, [64, 64], OUTPUTS), pop=LOCKSTEP_POP, engine="cpu", threads=threads,
            estimator=ESTIMATORS[what], sigma_shift=1, steps=10**6,
        )  # fmt: skip
        engine = self.es.engine
        engine.plays = False  # type: ignore[misc]
        self.network = Timed(engine.outputs)
        engine.outputs = self.network  # type: ignore[method-assign]
        self.es.play(world, 2)

    def measure(self, peak: float) -> dict[str, float]:
        es, options = self.es, self.es.options
        call = playing.world_call(es.program, options, self.world, LOCKSTEP_ROWS, None, es.keys, 2)
        members, self.network.seconds = es.ask(), 0.0
        began = time.perf_counter()
        playing.lockstep(members, call, options.threads)
        step = (time.perf_counter() - began) / LOCKSTEP_ROWS
        worlds = self._worlds(call)
        inside = self.network.seconds / LOCKSTEP_ROWS + worlds
        return {
            "rows_per_second": LOCKSTEP_POP / step, "step_seconds": step,
            "outside_kernels": 1 - inside / step,
        }  # fmt: skip

    def _worlds(self, call: WorldCall) -> float:
        """Seconds that stepping all worlds once takes by itself."""
        worlds = _extension.load().Worlds(call.world, 0, call.keys, self.es.options.threads)
        inputs = np.zeros((LOCKSTEP_POP, INPUTS), np.int8)
        outputs = np.zeros((LOCKSTEP_POP, OUTPUTS), np.uint8)
        flags = np.zeros(LOCKSTEP_POP, np.uint8)
        began = time.perf_counter()
        for t in range(LOCKSTEP_ROWS):
            worlds.observe(t, inputs, flags)
            worlds.act(t, outputs, flags)
        return (time.perf_counter() - began) / LOCKSTEP_ROWS


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


@cli.command(
    Options,
    name="benchmarks/worlds.py",
    about="Rows per second of networks in a native world, beside the limit of the processor.",
)
def main(options: Options) -> None:
    cli.check_ranges(options)
    check_place("--json", options.json)
    extension = _extension.load()
    world = native.build(Path(__file__).with_suffix(".cpp")).tictactoe
    cases: list[Case | Lockstep] = [
        Case(network, what, threads, world)
        for network in NETWORKS for what in ESTIMATORS for threads in (1, 0)
    ]  # fmt: skip
    cases += [Lockstep(what, 0, world) for what in ESTIMATORS]
    found: dict[str, dict[str, list[float]]] = {case.name: {} for case in cases}
    peaks = []
    for _ in range(options.rounds):
        for case in cases:
            threads = case.threads if isinstance(case, Case) else 1
            peak = extension.peak(threads)
            peaks.append(peak / threads)
            for name, value in case.measure(peak).items():
                found[case.name].setdefault(name, []).append(value)
    results = {name: {k: spread(v) for k, v in each.items()} for name, each in found.items()}
    about = {"isa": extension.isa(), "rounds": options.rounds, "peak_of_a_thread": spread(peaks)}
    for name, each in results.items():
        print(name)
        for key, value in each.items():
            scale, unit = (1e-6, " M") if "rows" in key else (1, "")
            numbers = [f"{scale * v:.4g}" for v in value.values()]
            print(f"    {key}: {numbers[0]}{unit} ({numbers[1]} to {numbers[2]})")
    write_json(options.json, {"about": about, "results": results})


if __name__ == "__main__":
    sys.exit(main())
