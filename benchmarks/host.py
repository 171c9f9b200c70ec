"""The host's part of an update on a GPU: `python benchmarks/host.py [--engine cuda]`

Makes whole updates with a GPU engine's Python code and a launcher that returns ones at once, so
no GPU is needed, and times what the host does before and between launches, in the order and as
often as an update does it, in seconds of the CPU. What a GPU would compute is left out, but for
rule `sign`, which is MLX operations on a GPU and NumPy here. Estimators take turns; the table has
medians in ms per update. For cuda, with an H200's memory and the largest launches, it names the
share of an update that is left where noise is drawn while the GPU computes, as fast as predicted.
First two small runs are compared, one of which draws its noise by NumPy.

Letters: P members, N = P/2 pairs, T tokens.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from unittest import mock

import mlx.core as mx
import numpy as np
import tyro
from checks import write_json

from eggroll.bench import PRESETS, Preset, prediction
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.cuda import CudaEngine, target
from eggroll.engines.gpu import engine as gpu
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.gpu.launch import MAX_MACS
from eggroll.engines.metal import MetalEngine
from eggroll.evolution import population as populations
from eggroll.evolution.step import Learner
from eggroll.files import check_place
from eggroll.spec import rng as draws
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch, Program
from eggroll.training.checkpoint import signature
from eggroll.training.config import Config
from eggroll.training.learner import new_learner

ESTIMATORS: dict[str, dict[str, Any]] = {
    "eggroll, sign": {},
    "eggroll, master": {"rule": "master"},
    "token-votes, whitened": {"estimator": "token-votes", "rule": "whitened"},
    "token-credit, whitened": {"estimator": "token-credit", "rule": "whitened"},
}
CHECKS = "check_credit", "check_draws", "check_noise", "check_rows", "check_tokens", "check_values"
PARTS = (
    "noise",
    "signs and draws",
    "tokens gathered",
    "checks",
    "launches",
    "weights packed",
    "rule",
)
DEVICE = "device"  # what MLX computes when it is asked to, here on the CPU


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/host.py."""

    preset: Preset = "paper"
    """The network."""
    pairs: Annotated[int, Range(1, 1 << 23)] = 1 << 17
    """Pairs of members."""
    repeats: Annotated[int, Range(1, 1000)] = 5
    """Updates of each estimator that count."""
    engine: Literal["metal", "cuda"] = "metal"
    """The engine whose Python code runs."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the figures as JSON."""


class Clock:
    """Seconds of the CPU per part; a part within another is not counted there."""

    def __init__(self) -> None:
        self.seconds, self.calls = Counter[str](), Counter[str]()
        self._within = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._within.append(0.0)
            began = time.process_time()
            try:
                return function(*args, **options)
            finally:
                took = time.process_time() - began
                self.seconds[part] += took - self._within.pop()
                self.calls[part] += 1
                self._within[-1] += took

        return call

    @contextmanager
    def around(self, learner: Learner) -> Iterator[None]:
        """Times what an update of this learner calls."""
        engine, rule = type(learner.population.engine), type(learner.rule)
        places = [
            (Noise, "slices", "noise"), (populations, "draw_signs", "signs and draws"),
            (engine, "array", "tokens gathered"), (engine, "prepare", "weights packed"),
            (engine, "evaluate", "launches"), (engine, "votes", "launches"),
            (engine, "credit", "launches"), (rule, "__call__", "rule"), (mx, "eval", DEVICE),
            *((gpu, name, "checks") for name in CHECKS),
        ]  # fmt: skip
        with ExitStack() as stack:
            for place, name, part in places:
                timed = self.timed(part, getattr(place, name))
                stack.enter_context(mock.patch.object(place, name, timed))
            repeated = engine.repeated

            def there(*args: Any) -> mx.array:
                rows = repeated(*args)
                mx.eval(rows)  # the GPU's work
                return rows

            stack.enter_context(mock.patch.object(engine, "repeated", there))
            yield


def ones(source: Any, inputs: Any, outputs: Any, grid: Any, threadgroup: Any) -> list[mx.array]:
    """A launcher whose kernels leave ones."""
    return [mx.ones(shape, dtype) for shape, dtype in outputs]


def verify() -> None:
    """Two updates of a small run, with noise drawn by the extension and by NumPy."""
    small = Config(pop=36, width=24, seq_len=5, chunk=10, table_bits=18, vocabulary=9)
    for name, options in ESTIMATORS.items():
        found = set()
        for native in (draws.native_module(), None):
            with mock.patch.object(draws, "native_module", lambda native=native: native):
                changed = replace(small, **options)
                learner = new_learner(changed, CpuEngine(changed.program()))
                for _ in range(2):
                    learner.update(batch(changed))
                found.add(signature(learner.weights))
        if len(found) > 1:
            sys.exit(f"{name}: draws differ.")


def batch(options: Config) -> Batch:
    """Random tokens and targets, int32 [streams, T] each."""
    shape = 2, options.streams, options.seq_len
    tokens, targets = np.random.default_rng(0).integers(0, options.symbols, shape).astype(np.int32)
    return Batch(tokens, targets)


class Hopper(CudaEngine):
    """Engine cuda as it is on an H200 after some updates, with kernels that leave ones."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, launcher=ones, on=target(prediction.HOPPER))
        self.pace.macs = MAX_MACS

    def memory(self) -> int:
        return (1 << 31) - 1


def engine_of(name: str, program: Program) -> GpuEngine:
    return Hopper(program) if name == "cuda" else MetalEngine(program, launcher=ones, nax=False)


def share_words(options: Config, host: dict[str, float]) -> str:
    """The host's share of an update on an H200, without what that does, or what overlaps with it.

    host: ms of the parts.
    """
    chip = next(chip for chip in prediction.CHIPS if chip.name == "H200")
    made = prediction.predict(chip, options.program(), options.seq_len, population=options.pop)
    device = 1e3 * (made.seconds - made.host)
    left = host["all"] - host["noise"] - host["rule"] * (options.rule == "sign")
    return f"; {left / (left + device):.1%} of {left + device:.0f} ms on an H200, by prediction"


def measure(options: Config, repeats: int, engine: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of every part, of each estimator's updates, after one that is not counted."""
    learners = {}
    for name, own in ESTIMATORS.items():
        changed = replace(options, **own)
        learners[name] = new_learner(changed, engine_of(engine, changed.program()))
    found = {name: {part: list[float]() for part in PARTS} for name in learners}
    given = batch(options)
    for turn in range(repeats + 1):
        for name, learner in learners.items():
            clock = Clock()
            with clock.around(learner):
                learner.update(given)
            learner.state = learner.population.initial_state()  # which takes no memory yet
            for part in PARTS if turn else ():
                found[name][part].append(clock.seconds[part])
    return found


@cli.command(
    Options, name="benchmarks/host.py", about="The host's part of an update on a GPU, without one."
)
def main(args: Options) -> None:
    cli.check_ranges(args)
    check_place("--json", args.json)
    options = Config(**PRESETS[args.preset], pop=2 * args.pairs)
    for own in ESTIMATORS.values():
        replace(options, **own).check()
    verify()
    print("verified: runs are the same with noise drawn by the extension and by NumPy", flush=True)
    found = measure(options, args.repeats, args.engine)
    rows = []
    for name, parts in found.items():
        middle = {part: 1e3 * statistics.median(seconds) for part, seconds in parts.items()}
        whole = [1e3 * sum(turn) for turn in zip(*parts.values(), strict=True)]
        row = {"all": statistics.median(whole)} | middle
        spread = (max(whole) - min(whole)) / row["all"]
        rows.append({"estimator": name, "ms": row, "spread": spread})
        own = replace(options, **ESTIMATORS[name])
        share = share_words(own, row) if args.engine == "cuda" else ""
        print(f"{name}: " + ", ".join(f"{part} {ms:.1f}" for part, ms in row.items())
              + f" ms per update, spread {spread:.0%}{share}", flush=True)  # fmt: skip
    facts = {"machine": platform.platform(), "preset": args.preset, "pairs": args.pairs,
             "engine": args.engine}  # fmt: skip
    write_json(args.json, facts | {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
