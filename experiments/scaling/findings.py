"""The findings of an MLX port beside this library: `python -m experiments.scaling.findings`

Three tables: whole steps at the port's four populations, memory at batch 64 and vocabulary 10,000,
and seconds until counting is learnt, beside AdamW on the same network. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from eggroll import _extension, engines
from eggroll.baseline.backprop import AdamwOptions
from eggroll.bench import PRESETS
from eggroll.bench import command as bench
from eggroll.cli import command as cli
from eggroll.files import write_whole
from eggroll.networks import egg
from experiments.arguments import new_file, population, positive, whole
from experiments.count import run as count

Say = Callable[[str], None]
BATCH, VOCABULARY = 64, 10_000  # of the port's table of memory
UPDATES = 400  # of a run of counting, unless it is done before


class Published(NamedTuple):
    """A row of the port's tables: T 16, on an Apple GPU."""

    seconds: float
    steps: float  # a second
    tokens: int  # a second
    speed_up: float | None
    updates: int  # in five minutes


STEPS = {
    1024: Published(0.19, 5.35, 87_700, 1.00, 1600),
    10240: Published(1.69, 0.59, 97_000, None, 177),
    32768: Published(5.42, 0.18, 96_700, 1.10, 55),
    262144: Published(47.27, 0.02, 88_700, 1.01, 6),
}
FIRST = STEPS[1024]
# Members at a time -> GB at the height of the port's cross entropy alone, for each BATCH sequences.
MEMORY = {128: 0.99, 1024: 7.87}
# Learner -> its run of counting: V 16, one thread.
COUNTED: dict[str, Callable[[int], Any]] = {
    "AdamW, float32": lambda seed: AdamwOptions(
        data="count", vocabulary=16, seed=seed, steps=UPDATES, val_tokens=1 << 13, threads=1
    ),
    "recipe paper": lambda seed: counting("paper", 1024, seed),
    "recipe language": lambda seed: counting("language", 1024, seed),
    "recipe feedback": lambda seed: counting("feedback", 128, seed),
}


def counting(recipe: str, pop: int, seed: int) -> Any:
    """The run that experiments/count times, on one thread, its schedule as long as AdamW's."""
    options = count.settings(recipe, 8, {"vocabulary": 16}, pop, seed)
    return replace(options, steps=UPDATES, threads=1)


def steps(options: bench.BenchOptions, say: Say) -> list[dict[str, Any]]:
    """Whole steps of preset seed: one row of the port, and one of ours, for each population."""
    network = PRESETS[options.preset]
    program = egg(network["vocabulary"], network["width"], network["layers"])
    engine, _ = engines.choose(options.engine, program, options.threads)
    threads = options.threads or _extension.load().default_threads()
    limits = bench.ProcessorLimits(threads, on_cpu=bench.on_cpu(engine))
    say(f"{bench.processor(engine)}, {engine.description}, {threads} threads; preset seed; the "
        f"port: an Apple GPU; medians of {options.repeats} steps\n")  # fmt: skip
    say("| population | by | time per step, s | steps/s | tokens/s | speed-up | steps in five "
        "minutes | tokens/s, here ÷ port |")  # fmt: skip
    say("|---|---|---|---|---|---|---|---|")
    base, found = bench.resident_peak(), list[bench.BenchRow]()
    for pop in options.pops:
        row = bench.measure(options, pop, engine, limits, base)
        found.append(row)
        speed_up = row.tokens_per_second / found[0].tokens_per_second
        if port := STEPS.get(pop):
            # The port gives no speed-up for 10,240.
            quicker = port.speed_up or port.tokens / FIRST.tokens
            say(f"| {pop:,} | port | {port.seconds} | {port.steps} | {port.tokens:,} | "
                f"{quicker:.2f} | {port.updates:,} | |")  # fmt: skip
        ratio = f"{row.tokens_per_second / port.tokens:.1f}" if port else "-"
        say(f"| {pop:,} | here | {row.seconds:.4f} | {row.steps_per_second:.3g} | "
            f"{row.tokens_per_second:,.0f} | {speed_up:.2f} | {row.updates_in_5_minutes:,} | "
            f"{ratio} |")  # fmt: skip
    shares = [row.of_limit for row in found if row.of_limit is not None]
    if warning := limits.warning(shares, [row.of_torch for row in found if row.of_torch]):
        say(f"\nWarning: {warning}")
    return [asdict(row) for row in found]


def memory(say: Say) -> dict[int, float]:
    """MB of a whole step of as many rows as the port's, by its members at a time."""
    say(f"\n| members at a time, batch {BATCH}, vocabulary {VOCABULARY:,} | rows | port, cross "
        "entropy alone, GB | here, a whole step, GB |\n|---|---|---|---|")  # fmt: skip
    found = {}
    for members, port in MEMORY.items():
        rows = members * BATCH
        command = [sys.executable, "-m", "experiments.scaling.findings", "--peak", str(rows)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        found[members] = int(done.stdout) / 1e6
        say(f"| {members:,} | {rows:,} | {port:.2f} | {found[members] / 1e3:.3f} |")
    return found


def peak(rows: int) -> int:
    """Bytes of resident memory that a step takes beyond the imports; a row is a member here."""
    PRESETS["seed"] = {**PRESETS["seed"], "vocabulary": VOCABULARY}
    program = egg(VOCABULARY, PRESETS["seed"]["width"], PRESETS["seed"]["layers"])
    engine, _ = engines.choose("auto", program, 0)
    base = bench.resident_peak()
    bench.BenchStep(bench.BenchOptions(pops=(rows,)), rows, engine).run()
    return bench.resident_peak() - base


def counted(seeds: int, say: Say) -> dict[str, list[dict[str, Any]]]:
    """Updates and seconds until validation is at 0.001 nats per token, learner by learner."""
    goal, found = 0.001 / math.log(2), {}
    say("\n| V 16, to 0.001 nats, one thread | met | updates | seconds | CPU seconds |")
    say("|---|---|---|---|---|")
    for name, options in COUNTED.items():
        runs = [count.train(options(seed), goal, math.inf, UPDATES) for seed in range(seeds)]
        met = [run for run in runs if run.reached]
        cells = [
            spread([run.updates for run in met], 0),
            spread([run.seconds for run in met], 2),
            spread([run.cpu for run in met], 2),
        ]
        say(f"| {name} | {len(met)} of {seeds} | {' | '.join(cells)} |")
        found[name] = [run._asdict() for run in runs]
    return found


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    if not values:
        return "-"
    middle, low, high = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.scaling.findings", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--populations", type=population, nargs="+", default=list(STEPS))
    parser.add_argument(
        "--repeats", type=positive, default=5, help="steps timed for each population"
    )
    parser.add_argument("--seeds", type=positive, default=5, help="of counting")
    parser.add_argument(
        "--threads", type=whole(0, 1024), default=0, help="of the steps; 0 is all cores"
    )
    parser.add_argument("--json", type=new_file, help="file for all figures")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)  # members, in a fresh process
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    args = arguments(words)
    if args.peak:
        print(peak(args.peak))
        return cli.DONE
    options = bench.check(
        bench.BenchOptions(pops=tuple(args.populations), repeats=args.repeats, threads=args.threads)
    )
    told: dict[str, Any] = {"steps": steps(options, say)}
    told |= {"memory_mb": memory(say), "counting": counted(args.seeds, say)}
    if args.json:
        write_whole(args.json, json.dumps(told, indent=1).encode() + b"\n")
    return cli.DONE


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(cli.run(main))
