"""Ratios of whole steps, measured interleaved in one run: `python benchmarks/ratios.py`.

Training over pure inference, two threads over one, and the memory that a large vocabulary adds; or,
with `--isas amx avx512vnni`, instruction sets over one another, on every preset. Before anything is
timed, the kernels in use must agree with the portable ones on every score.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import mlx.core as mx
import numpy as np
from tiny_programs import Disagreement, using

from eggroll import _extension, engines
from eggroll.bench import PRESETS
from eggroll.bench import command as bench
from eggroll.bench.command import BenchStep
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.errors import InputError
from eggroll.networks import egg

REPEATS = 5


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/ratios.py."""

    isas: tuple[str, ...] | None = None
    """Compare these instruction sets instead, the first with each of the others."""
    pop: Annotated[int, Range(2, 1 << 24, 2)] = 10240
    """Population of that comparison."""


def make(preset: str, pop: int, threads: int, seq_len: int = 0) -> BenchStep:
    options = bench.BenchOptions(preset=preset, pops=(pop,), seq_len=seq_len, threads=threads)  # type: ignore[arg-type]
    network = PRESETS[preset]
    program = egg(network["vocabulary"], network["width"], network["layers"])
    return BenchStep(options, pop, engines.choose("cpu", program, threads)[0])


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(ratios: Sequence[float]) -> str:
    low, high = min(ratios), max(ratios)
    return f"{statistics.median(ratios):.3f} (from {low:.3f} to {high:.3f})"


def compare(name: str, first: Callable[[], object], second: Callable[[], object]) -> None:
    """Prints the median and the spread of second's time over first's, taken in turns."""
    first(), second()
    print(
        f"{name}: {spread([seconds(second) / seconds(first) for _ in range(REPEATS)])}", flush=True
    )


def inference(step: BenchStep) -> Callable[[], object]:
    """The unperturbed model over the same tokens and members."""
    learner = step.learner
    engine = learner.population.engine
    batch = learner.start_of(step.batch).batch.rows(lambda a: mx.array(np.repeat(a, 2, axis=0)))
    prepared = engine.prepare(learner.weights)
    return lambda: mx.eval(engine.evaluate(prepared, None, batch))


def scores(preset: str, isa: str) -> np.ndarray:
    with using(isa):
        step = make(preset, 66, 1, seq_len=2)
        learner = step.learner
        batch = learner.start_of(step.batch).batch
        score, _ = learner.population.evaluate(learner.weights, 0, batch)
        return np.array(score)


def verify(isas: Sequence[str]) -> None:
    """Raises Disagreement unless all kernels give the portable kernels' scores."""
    for preset in PRESETS:
        right = scores(preset, "generic")
        for isa in isas:
            if not np.array_equal(scores(preset, isa), right):
                raise Disagreement(f"{isa} gives other scores than generic for preset {preset}.")
    print("verified: scores equal the portable kernels' for every preset", flush=True)


def compare_sets(preset: str, pop: int, isas: Sequence[str]) -> None:
    """Prints every set's median rate, and the first's over the others' in the same round."""
    steps = {isa: make(preset, pop, 2) for isa in isas}
    rounds = []
    for _ in range(REPEATS + 1):
        taken = {}
        for isa, step in steps.items():
            with using(isa):
                taken[isa] = seconds(step.run)
        rounds.append(taken)
    first, counted = isas[0], rounds[1:]  # before, memory is new
    for isa, step in steps.items():
        rate = step.tokens_read / statistics.median(taken[isa] for taken in counted)
        ratio = spread([taken[isa] / taken[first] for taken in counted])
        held = f"; {first} / {isa}: {ratio}" if isa != first else ""
        print(f"preset {preset}, population {pop}, {isa}: {rate:,.0f} tokens/s{held}", flush=True)


def peak_mb(vocabulary: int) -> float:
    """Peak resident memory of a step with 64 streams and 1,024 members in a fresh process."""
    code = (
        "from eggroll.bench import PRESETS, command\n"
        f"PRESETS['small'] = dict(width=64, layers=1, vocabulary={vocabulary}, seq_len=16)\n"
        "import runpy, sys; sys.path.insert(0, 'benchmarks'); import ratios\n"
        "ratios.make('small', 1024, 2).run(); print(command.resident_peak())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return int(done.stdout) / 1e6


def compare_all() -> None:
    """Everything but instruction sets."""
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


def check(options: Options) -> Options:
    """Raises InputError for a set that is not usable here, one alone, or one named twice."""
    cli.check_ranges(options)
    usable, isas = _extension.load().usable_isas(), options.isas
    needed = f"two or more of {', '.join(usable)} are needed here, each once"
    for wrong in (isa for isa in isas or () if isa not in usable):
        raise InputError(f"--isas has {wrong!r}: {needed}.")
    if isas is not None and (len(isas) < 2 or len(set(isas)) < len(isas)):
        raise InputError(f"--isas is {' '.join(isas)!r}: {needed}.")
    return options


def report(options: Options) -> None:
    verify(options.isas or [_extension.load().isa()])
    if not options.isas:
        return compare_all()
    for preset in PRESETS:
        compare_sets(preset, options.pop, options.isas)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a kernel is wrong."""

    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        about = "Ratios of whole steps, of kernels that are verified first."
        try:
            report(check(cli.parse(Options, words, command="benchmarks/ratios.py", about=about)))
        except Disagreement as wrong:
            print(f"error: {wrong}", file=sys.stderr)
            return 1
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
