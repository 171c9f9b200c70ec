"""Times whole training steps of one population: the step of eggroll.train, on random tokens.

Letters: P members, T tokens, V vocabulary, D width, L layers.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from eggroll import rng
from eggroll.bench import PRESETS
from eggroll.bench.limits import Limits
from eggroll.bench.options import Options
from eggroll.config import Config
from eggroll.engines import Engine
from eggroll.learners import new_learner
from eggroll.program import Program


@dataclass(frozen=True)
class Row:
    """One population. Rates are of whole steps; shares are of a step's time."""

    population: int
    chunk: int
    seconds: float  # median of a step
    spread: float  # (largest - smallest) / median
    steps_per_second: float
    tokens_per_second: float
    speed_up: float  # tokens per second against the first row
    updates_in_5_minutes: int
    peak_mb: float  # resident memory beyond the imports, up to and with this row
    evaluation: float
    votes: float
    update: float
    gmacs: float  # 1e9 int8 multiply-adds per second of the network's matrices
    of_limit: float | None  # of the register loop's rate in the same run, for engines on a CPU
    of_torch: float | None  # of torch._int_mm's rate in the same run, if torch is there too


def macs_per_token(program: Program) -> int:
    """Multiply-adds of the matrices for one token; embedding, noise and votes are not counted."""
    kinds = {op.leaf: op.kind for stage in program.stages for op in stage.ops if op.leaf >= 0}
    return sum(
        prod(leaf.shape) for i, leaf in enumerate(program.leaves) if kinds[i] in ("linear", "score")
    )


class Step:
    """The step of eggroll.train under its default estimator and rule, on random tokens."""

    def __init__(self, options: Options, pop: int, engine: Engine) -> None:
        network, T = PRESETS[options.preset], options.tokens
        config = Config(
            pop=pop, chunk=options.chunk, rank=options.rank, seq_len=T,
            width=network["width"], layers=network["layers"],
        )  # fmt: skip
        self.learner, self.tokens_read = new_learner(config, engine), pop * T
        words = rng.counters(rng.key(0, rng.COUNT), 0, pop // 2 * (T + 1))
        tokens = (words % np.uint64(network["vocabulary"])).astype(np.int32).reshape(-1, T + 1)
        self.batch = (tokens[:, :-1].copy(), tokens[:, 1:].copy())

    def run(self) -> tuple[float, float, float]:
        """Seconds of evaluation, votes and update."""
        times = [time.perf_counter()]
        self.learner.update(self.batch, lambda part: times.append(time.perf_counter()))
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]


def measure(options: Options, pop: int, engine: Engine, limits: Limits, base: int) -> Row:
    """Times whole steps of one population, interleaved with the limits; medians count.

    As in training a step follows a step: one that is not timed comes between a limit and a step
    that is, and finds the caches as the limit left them. base: resident bytes before the first
    population.
    """
    step = Step(options, pop, engine)
    parts, samples = [], []
    for _ in range(options.repeats):
        samples.append(limits.sample())
        step.run()
        parts.append(step.run())
    totals = [sum(part) for part in parts]
    seconds = statistics.median(totals)
    shares = [statistics.median(part[i] for part in parts) / seconds for i in range(3)]
    gmacs = macs_per_token(engine.program) * step.tokens_read / seconds / 1e9
    registers = [sample.registers for sample in samples if sample]
    torch = [sample.torch for sample in samples if sample and sample.torch]
    return Row(
        population=pop,
        chunk=step.learner.population.chunk,
        seconds=seconds,
        spread=(max(totals) - min(totals)) / seconds,
        steps_per_second=1 / seconds,
        tokens_per_second=step.tokens_read / seconds,
        speed_up=1.0,
        updates_in_5_minutes=int(300 / seconds),
        peak_mb=(resident_peak() - base) / 1e6,
        evaluation=shares[0],
        votes=shares[1],
        update=shares[2],
        gmacs=gmacs,
        of_limit=gmacs / statistics.median(registers) if registers else None,
        of_torch=gmacs / statistics.median(torch) if torch else None,
    )


def resident_peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would begin with what the process was started from
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
