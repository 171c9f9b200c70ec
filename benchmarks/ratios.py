"""Ratios of whole steps, measured interleaved in one run: `python benchmarks/ratios.py`.

Training over pure inference, two threads over one, and the memory that a large vocabulary adds.
Before anything is timed, the kernels in use must agree with the portable ones on every score.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from eggroll import engines
from eggroll.bench import PRESETS
from eggroll.bench.measure import Step
from eggroll.bench.options import Options
from eggroll.networks import egg

REPEATS = 5


def make(preset: str, pop: int, threads: int, seq_len: int = 0) -> Step:
    options = Options(preset=preset, pops=(pop,), seq_len=seq_len, threads=threads)  # type: ignore[arg-type]
    network = PRESETS[preset]
    program = egg(network["vocabulary"], network["width"], network["layers"])
    return Step(options, pop, engines.choose("cpu", program, threads)[0])


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(name: str, first: Callable[[], object], second: Callable[[], object]) -> None:
    """Prints the median and the spread of second's time over first's, taken in turns."""
    first(), second()
    ratios = [seconds(second) / seconds(first) for _ in range(REPEATS)]
    low, high = min(ratios), max(ratios)
    print(f"{name}: {statistics.median(ratios):.3f} (from {low:.3f} to {high:.3f})", flush=True)


def inference(step: Step) -> Callable[[], object]:
    """The unperturbed model over the same tokens and members."""
    learner = step.learner
    engine = learner.population.engine
    tokens, targets = (mx.array(np.repeat(a, 2, axis=0)) for a in step.batch)
    prepared, state = engine.prepare(learner.weights), learner.population.initial_state()
    return lambda: mx.eval(engine.evaluate(prepared, None, tokens, targets, state))


def verify(preset: str) -> None:
    """Raises unless the kernels in use give the portable kernels' scores."""
    scores = []
    wanted = os.environ.get("EGGROLL_ISA", "")
    for isa in (wanted, "generic"):
        os.environ["EGGROLL_ISA"] = isa
        step = make(preset, 66, 1, seq_len=2)
        learner = step.learner
        score, _ = learner.population.evaluate(learner.weights, 0, *step.batch, learner.state)
        scores.append(np.array(score))
    os.environ["EGGROLL_ISA"] = wanted
    assert np.array_equal(*scores), "the kernels disagree"


def peak_mb(vocabulary: int) -> float:
    """Peak resident memory of a step with 64 streams and 1,024 members in a fresh process."""
    code = (
        "from eggroll.bench import PRESETS, measure\n"
        f"PRESETS['small'] = dict(width=64, layers=1, vocabulary={vocabulary}, seq_len=16)\n"
        "import runpy, sys; sys.path.insert(0, 'benchmarks'); import ratios\n"
        "ratios.make('small', 1024, 2).run(); print(measure.resident_peak())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return int(done.stdout) / 1e6


def main() -> None:
    for preset in PRESETS:
        verify(preset)
    print("verified: scores equal the portable kernels' for every preset")
    for T, pop in ((16, 10240), (100, 1024)):
        step = make("paper", pop, 2, seq_len=T)
        name = f"training / inference tokens/s, preset paper, T {T}, population {pop}"
        compare(name, step.run, inference(step))
    for preset, pop in (("paper", 1024), ("small", 10240)):
        one, two = make(preset, pop, 1), make(preset, pop, 2)
        compare(f"2 threads / 1 thread, preset {preset}, population {pop}", two.run, one.run)
    small, large = peak_mb(256), peak_mb(10_000)
    itself = 2 * (10_000 - 256) * 64 / 1e6
    print(
        f"peak memory added by V = 10,000 over V = 256, width 64, 1,024 members: "
        f"{large - small:.0f} MB, of which int8 weights {itself:.1f} MB"
    )


if __name__ == "__main__":
    main()
