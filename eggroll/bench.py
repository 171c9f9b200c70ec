"""The population-scaling benchmark: `python -m eggroll.bench`.

Whole training steps over growing populations, as a share of what the processor's int8 units can do
in the same run. Letters: P members, T tokens, V vocabulary, D width, L layers.
"""

from __future__ import annotations

import csv
import io
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from eggroll import _extension, cli, engines, performance, plot, rng
from eggroll.cli import Range
from eggroll.config import Config
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.networks import egg
from eggroll.performance import Prediction
from eggroll.program import Program
from eggroll.run import new_learner
from eggroll.runlog import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRESETS = {
    "seed": {"width": 256, "layers": 1, "vocabulary": 1024, "seq_len": 16},
    "paper": {"width": 256, "layers": 6, "vocabulary": 256, "seq_len": 16},
    "small": {"width": 64, "layers": 1, "vocabulary": 256, "seq_len": 16},
    "medium": {"width": 128, "layers": 2, "vocabulary": 256, "seq_len": 16},
}
Preset = Literal["seed", "paper", "small", "medium"]
EXAMPLES = (
    ("--quick", "two populations, in a minute"),
    ("--preset small --csv small.csv --picture small.png", "one network, as a table and a picture"),
)


@dataclass(frozen=True)
class Options:
    """What to measure."""

    preset: Preset = "seed"
    """Network: seed D 256 L 1 V 1024; paper D 256 L 6 V 256; medium D 128 L 2; small D 64 L 1."""
    pops: tuple[int, ...] = (1024, 10240, 32768, 262144)
    """Populations, each even."""
    seq_len: Annotated[int, Range(0, 1 << 16)] = 0
    """Tokens per update; 0 is the preset's 16."""
    rank: Annotated[int, Range(1, 64)] = 1
    """Rank of a matrix's perturbation."""
    repeats: Annotated[int, Range(1, 1000)] = 5
    """Steps timed per population, after one that is not; the median counts."""
    quick: bool = False
    """A minute's worth: populations 1024 and 10240, three repeats."""
    engine: Literal["auto", "portable", "cpu", "metal", "cuda"] = "auto"
    """What computes."""
    chunk: Annotated[int, Range(0, 1 << 24, 2)] = 0
    """Members evaluated at a time (even); 0 lets a memory budget decide."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """Threads of the cpu engine; 0 is all cores."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write everything measured as JSON."""
    csv: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the table as CSV."""
    picture: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also draw rates over the population, and those predicted for GPUs (.png, .svg or .pdf)."""


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
    of_limit: float  # of the register loop's rate in the same run
    of_torch: float | None  # of torch._int_mm's rate in the same run, if torch is there


def macs_per_token(program: Program) -> int:
    """Multiply-adds of the matrices for one token; embedding, noise and votes are not counted."""
    kinds = {op.leaf: op.kind for stage in program.stages for op in stage.ops if op.leaf >= 0}
    return sum(
        prod(leaf.shape) for i, leaf in enumerate(program.leaves) if kinds[i] in ("linear", "score")
    )


class Step:
    """A training step that can be repeated, on random tokens."""

    def __init__(self, options: Options, pop: int, engine: Engine, chunk: int) -> None:
        network = PRESETS[options.preset]
        T = options.seq_len or network["seq_len"]
        config = Config(
            pop=pop, chunk=chunk, rank=options.rank, seq_len=T,
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


def register_loop(threads: int) -> Callable[[], float]:
    """GMAC/s of the instruction set's dot product on registers alone, all threads at once."""
    native = _extension.load()
    try:
        native.isa()
    except ValueError as error:
        raise InputError(str(error)) from None
    return lambda: float(native.peak(threads)) / 1e9


def torch_loop(threads: int) -> Callable[[], float] | None:
    """GMAC/s of torch._int_mm (oneDNN) on 4096 x 256 times 256 x 1024, if torch is installed."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(threads)
    a = torch.randint(-127, 128, (4096, 256), dtype=torch.int8)
    b = torch.randint(-127, 128, (256, 1024), dtype=torch.int8)

    def batch() -> float:
        began = time.perf_counter()
        for _ in range(10):
            torch._int_mm(a, b)
        return 10 * 4096 * 256 * 1024 / (time.perf_counter() - began) / 1e9

    def measure() -> float:
        return max(batch() for _ in range(5))  # the first wakes the threads; a limit is a best

    return measure


@dataclass(frozen=True)
class Limits:
    """What a step is compared with, measured between the steps of the same run."""

    registers: Callable[[], float]
    torch: Callable[[], float] | None

    def sample(self) -> tuple[float, float | None]:
        return self.registers(), self.torch() if self.torch else None


def measure(options: Options, pop: int, engine: Engine, limits: Limits, base: int) -> Row:
    """Times whole steps of one population, interleaved with the limits; medians count."""
    step = Step(options, pop, engine, options.chunk)
    step.run()
    parts, rates = [], []
    for _ in range(options.repeats):
        rates.append(limits.sample())
        parts.append(step.run())
    totals = [sum(part) for part in parts]
    seconds = statistics.median(totals)
    shares = [statistics.median(part[i] for part in parts) / seconds for i in range(3)]
    gmacs = macs_per_token(engine.program) * step.tokens_read / seconds / 1e9
    torch = [rate for _, rate in rates if rate is not None]
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
        of_limit=gmacs / statistics.median(rate for rate, _ in rates),
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


COLUMNS = {
    "population": "{:,}",
    "seconds": "{:.4f}",
    "spread": "{:.1%}",
    "steps_per_second": "{:.3g}",
    "tokens_per_second": "{:,.0f}",
    "speed_up": "{:.2f}",
    "updates_in_5_minutes": "{:,}",
    "peak_mb": "{:.0f}",
    "evaluation": "{:.1%}",
    "votes": "{:.1%}",
    "update": "{:.1%}",
    "gmacs": "{:.0f}",
    "of_limit": "{:.1%}",
    "of_torch": "{:.1%}",
}


def table(rows: Sequence[Row]) -> Any:
    """The rows for people."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        drawn.add_column(name.replace("_", "\n"), justify="right")
    for row in rows:
        values = asdict(row)
        cells = (COLUMNS[n].format(values[n]) if values[n] is not None else "-" for n in COLUMNS)
        drawn.add_row(*cells)
    return drawn


def picture(rows: Sequence[Row], predicted: Sequence[Prediction], path: Path, title: str) -> None:
    """Steps and tokens per second over the population, on logarithmic axes."""
    with plot.style():
        figure = plot.new_figure(8, 4)
        left, right = figure.subplots(1, 2)
        pops = [row.population for row in rows]
        left.loglog(pops, [row.steps_per_second for row in rows], marker="o")
        left.set(title="steps per second", xlabel="population", ylabel="1/s")
        right.loglog(pops, [row.tokens_per_second for row in rows], marker="o", label="measured")
        for name, value in PUBLISHED.items():
            right.axhline(value, color="0.5", lw=0.9, ls="--")
            right.annotate(name, (0.02, value), xycoords=("axes fraction", "data"), fontsize=7,
                           xytext=(0, 2), textcoords="offset points")  # fmt: skip
        ends = [*pops, performance.POPULATION]
        right.set_xlim(min(ends) / 2, max(ends) * 2)
        mark(right, predicted)
        right.set(title="member-tokens per second", xlabel="population", ylabel="tokens/s")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        plot.save(figure, path)


def mark(axes: Axes, predicted: Sequence[Prediction]) -> None:
    """Hollow marks at the population of the predictions, each with its chip's name."""
    shown = [p for p in predicted if p.chip.name in performance.SHOWN]
    at, rates = performance.POPULATION, [p.tokens_per_second for p in shown]
    axes.plot([at] * len(rates), rates, ls="", marker="D", mfc="none", mec=plot.VALID, ms=7,
              zorder=3, label="predicted, never run (docs/performance.md)")  # fmt: skip
    low, high = axes.get_xlim()
    x, side = (-7, "right") if at * at > low * high else (7, "left")
    for p, rate in zip(shown, rates, strict=True):
        axes.annotate(p.chip.name, (at, rate), fontsize=7, color=plot.VALID, ha=side, va="top",
                      xytext=(x, -2), textcoords="offset points")  # fmt: skip
    axes.margins(y=0.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=7)


# Whole steps as published or measured elsewhere, on other machines: marks, not rivals in this run.
PUBLISHED = {
    "MLX port on an Apple GPU, preset seed: 97,000": 97_000,
    "JAX reference trainer, 2 cores, preset paper: 2,464": 2_464,
}


def check(options: Options) -> Options:
    """Raises InputError for bad options; returns them with --quick applied."""
    cli.check_ranges(options)
    if options.quick:
        options = replace(options, pops=(1024, 10240), repeats=3)
    if not options.pops:
        raise InputError("--pops is empty: at least one population is needed; try --pops 1024.")
    if options.picture and Path(options.picture).suffix not in plot.FORMATS:
        raise InputError(
            f"--picture {options.picture!r} does not end in {', '.join(plot.FORMATS)}: give it one "
            "of these."
        )
    for pop in options.pops:
        if pop < 2 or pop % 2 or pop > 1 << 24:
            raise InputError(
                f"--pops has {pop}: an even number from 2 to {1 << 24} is needed; try --pops 1024."
            )
    for name in ("json", "csv", "picture"):
        path = Path(getattr(options, name))
        if getattr(options, name) and (path.is_dir() or not path.parent.is_dir()):
            raise InputError(
                f"--{name} {str(path)!r} is no place for a file: give a file in a folder that is "
                "there."
            )
    return options


def bench(options: Options) -> list[Row]:
    """Measures and prints; returns the rows."""
    network = PRESETS[options.preset]
    program = egg(network["vocabulary"], network["width"], network["layers"])
    engine, reason = engines.choose(options.engine, program, options.threads)
    print(f"engine: {engine.description}, {reason}")
    threads = options.threads or _extension.load().default_threads()
    limits = Limits(register_loop(threads), torch_loop(threads))
    base, rows = resident_peak(), list[Row]()
    for pop in sorted(options.pops):
        print(f"population {pop:,} ...", file=sys.stderr, flush=True)
        row = measure(options, pop, engine, limits, base)
        rows.append(
            replace(row, speed_up=row.tokens_per_second / rows[0].tokens_per_second)
            if rows
            else row
        )
    registers, torch = limits.sample()
    print(
        f"preset {options.preset}: {macs_per_token(program):,} multiply-adds per token; chunks of "
        f"{rows[-1].chunk:,} members; limit: {registers:.0f} GMAC/s on registers"
        + (f", torch._int_mm {torch:.0f} GMAC/s" if torch else "; torch is not installed")
    )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.bench; returns its exit code."""

    def work() -> int:
        about = "Times whole training steps over growing populations."
        words = sys.argv[1:] if argv is None else argv
        options = check(cli.parse(Options, words, command="bench", about=about, examples=EXAMPLES))
        rows = bench(options)
        from rich.console import Console

        Console(width=140).print(table(rows))
        write(options, rows)
        return cli.DONE

    return cli.run(work)


def write(options: Options, rows: Sequence[Row]) -> None:
    """The files asked for."""
    title = f"preset {options.preset}, {platform.system()} {platform.machine()}"
    predicted = performance.predictions(
        PRESETS[options.preset], rank=options.rank, seq_len=options.seq_len
    )
    if options.json:
        marks = {p.chip.name: round(p.tokens_per_second) for p in predicted}
        found = {"options": asdict(options), "machine": platform.platform(),
                 "rows": [asdict(row) for row in rows],
                 "predicted": {"population": performance.POPULATION,
                               "tokens_per_second": marks}}  # fmt: skip
        write_whole(Path(options.json), json.dumps(found, indent=1).encode() + b"\n")
    if options.csv:
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
        write_whole(Path(options.csv), text.getvalue().encode())
    if options.picture:
        picture(rows, predicted, Path(options.picture), title)


if __name__ == "__main__":
    sys.exit(main())
