"""The population-scaling benchmark: `python -m eggroll.bench`.

Whole training steps over growing populations, as a share of what the processor's int8 units can do
in the same run: measure.py times them, limits.py has the limits, py draws.
"""

from __future__ import annotations

import csv
import io
import json
import platform
import resource
import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import tyro

from eggroll import _extension, engines
from eggroll.bench import PRESETS, PUBLISHED, Preset, Published, limits
from eggroll.bench import prediction as performance
from eggroll.bench.limits import Limits
from eggroll.bench.prediction import Prediction
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.cli.help import Group
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.files import write_whole
from eggroll.networks import egg
from eggroll.spec import rng
from eggroll.spec.program import Batch, Program
from eggroll.training import pictures
from eggroll.training.config import Config
from eggroll.training.learner import new_learner


@dataclass(frozen=True)
class BenchOptions:
    """Options of eggroll.bench."""

    preset: Preset = "seed"
    """Network: seed has width 256, 1 layer, vocabulary 1024; the others have vocabulary 256: paper
    width 256, 6 layers; medium 128, 2; small 64, 1."""
    pops: tuple[int, ...] = (1024, 10240, 32768, 262144)
    """Populations, timed one after another; each even."""
    seq_len: Annotated[int, Range(0, 1 << 16)] = 0
    """Tokens a member reads per update; 0 is the preset's 16."""
    rank: Annotated[int, Range(1, 64)] = 1
    """Rank of a matrix's perturbation; a step takes longer with more."""
    repeats: Annotated[int, Range(1, 1000)] = 5
    """Steps timed per population, after one that is not; the table has their median."""
    quick: bool = False
    """Only populations 1024 and 10240, three repeats each: about a minute."""
    engine: Annotated[Literal["auto", "portable", "cpu", "metal", "cuda"], Group.ENGINE] = "auto"
    """What computes; auto takes the fastest that works here."""
    chunk: Annotated[int, Range(0, 1 << 24, 2), Group.ENGINE] = 0
    """Members evaluated at a time (even); 0 lets a memory budget decide."""
    threads: Annotated[int, Range(0, 1024), Group.ENGINE] = 0
    """Threads of the cpu engine; 0 is all cores."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write everything measured as JSON."""
    csv: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the table as CSV."""
    picture: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also draw rates over the population, beside those predicted for GPUs (.png, .svg or .pdf)."""

    @property
    def tokens(self) -> int:
        """T: tokens of a member per update."""
        return self.seq_len or PRESETS[self.preset]["seq_len"]


def check(options: BenchOptions) -> BenchOptions:
    """Raises InputError for bad options; returns them with --quick applied."""
    cli.check_ranges(options)
    if options.quick:
        options = replace(options, pops=(1024, 10240), repeats=3)
    if not options.pops:
        raise InputError("--pops is empty: at least one population is needed; try --pops 1024.")
    if options.picture and Path(options.picture).suffix not in pictures.FORMATS:
        raise InputError(
            f"--picture {options.picture!r} does not end in {', '.join(pictures.FORMATS)}: give "
            "it one of these."
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

    def __init__(self, options: BenchOptions, pop: int, engine: Engine) -> None:
        network, T = PRESETS[options.preset], options.tokens
        config = Config(
            pop=pop, chunk=options.chunk, rank=options.rank, seq_len=T,
            width=network["width"], layers=network["layers"],
        )  # fmt: skip
        self.learner, self.tokens_read = new_learner(config, engine), pop * T
        words = rng.counters(rng.key(0, rng.COUNT), 0, pop // 2 * (T + 1))
        tokens = (words % np.uint64(network["vocabulary"])).astype(np.int32).reshape(-1, T + 1)
        self.batch = Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy())

    def run(self) -> tuple[float, float, float]:
        """Seconds of evaluation, votes and update."""
        times = [time.perf_counter()]
        self.learner.update(self.batch, lambda phase: times.append(time.perf_counter()))
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]


def measure(options: BenchOptions, pop: int, engine: Engine, limits: Limits, base: int) -> Row:
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


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def published(options: BenchOptions) -> Published | None:
    """The known rate of another program for just this work per token, if there is one."""
    same = options.tokens == PRESETS[options.preset]["seq_len"] and options.rank == 1
    return PUBLISHED.get(options.preset) if same else None


def draw(
    options: BenchOptions,
    rows: Sequence[Row],
    predicted: Sequence[Prediction],
    where: str,
    warning: str,
) -> Figure:
    """Steps and tokens per second over the population, on logarithmic axes.

    where: the processor and the engine, for the title; warning: a sentence or empty.
    """
    figure = pictures.new_figure(9, 4.5 + 0.4 * bool(warning))
    left, right = figure.subplots(1, 2)
    pops = [row.population for row in rows]
    left.loglog(pops, [row.steps_per_second for row in rows], marker="o", color=pictures.TRAIN)
    left.set(title="steps per second", xlabel="population P", ylabel="1/s")
    right.loglog(pops, [row.tokens_per_second for row in rows], marker="o", color=pictures.TRAIN,
                 label="measured here")  # fmt: skip
    for axes, ends in ((left, pops), (right, [*pops, performance.POPULATION])):
        axes.set_xlim(min(ends) / 2, max(ends) * 2)
    if known := published(options):
        _mark_published(right, known)
    mark_predictions(right, predicted)
    right.set(title="member-tokens per second", xlabel="population P", ylabel="tokens/s")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        _plain_ticks(axis)
    legend = figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=8,
        title=textwrap.fill(f"Warning: {warning}", 130) if warning else None, title_fontsize=8,
        alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(pictures.VALID)
    network = PRESETS[options.preset]
    title = (
        f"Training steps of preset {options.preset} (D {network['width']}, L {network['layers']}, "
        f"V {network['vocabulary']}, T {options.tokens}, rank {options.rank})\n{where}"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _mark_published(axes: Axes, known: Published) -> None:
    """A dashed line, with its name above it."""
    axes.axhline(known.tokens_per_second, color=pictures.REFERENCE, lw=0.9, ls="--",
                 label="another program, on another machine")  # fmt: skip
    axes.annotate(
        f"{known.name}: {known.tokens_per_second:,}", (0.02, known.tokens_per_second),
        xycoords=("axes fraction", "data"), fontsize=8, color=pictures.REFERENCE,
        xytext=(0, 2), textcoords="offset points",
    )  # fmt: skip


def mark_predictions(axes: Axes, predicted: Sequence[Prediction]) -> None:
    """Hollow marks at the population of the predictions, each with its chip's name."""
    shown = [p for p in predicted if p.chip.name in performance.SHOWN]
    at, rates = performance.POPULATION, [p.tokens_per_second for p in shown]
    axes.plot([at] * len(rates), rates, ls="", marker="D", mfc="none", mec=pictures.VALID, ms=7,
              zorder=3, label="predicted, never run (docs/performance.md)")  # fmt: skip
    low, high = axes.get_xlim()
    x, side = (-7, "right") if at * at > low * high else (7, "left")
    for p, rate in zip(shown, rates, strict=True):
        axes.annotate(p.chip.name, (at, rate), fontsize=8, color=pictures.VALID, ha=side, va="top",
                      xytext=(x, -2), textcoords="offset points")  # fmt: skip
    axes.margins(y=0.12)


def _plain_ticks(axis: Axis) -> None:
    """Numbers such as 0.5, 2k and 1M at 1, 2 and 5 of a decade, or at 1 where it spans several."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    prefixed = EngFormatter(sep="")

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter(lambda value, _: prefixed(value) if value >= 1 else f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


EXAMPLES: Final = (
    ("--quick", "a first look, in a minute"),
    ("--preset paper --json paper.json --picture paper.png", "the paper's network, kept"),
)


@dataclass(frozen=True)
class Found:
    """Everything measured. where: processor and engine; warning: a sentence or empty."""

    rows: list[Row]
    limits: Limits
    processor: str
    where: str
    warning: str


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


def bench(options: BenchOptions) -> Found:
    """Measures and prints."""
    network = PRESETS[options.preset]
    program = egg(network["vocabulary"], network["width"], network["layers"])
    engine, reason = engines.choose(options.engine, program, options.threads, replaceable=False)
    name = limits.processor(engine)
    print(f"engine: {engine.description}, {reason}\nprocessor: {name}")
    threads = options.threads or _extension.load().default_threads()
    measured = Limits(threads, on_cpu=limits.on_cpu(engine))
    base, rows = resident_peak(), list[Row]()
    for pop in sorted(options.pops):
        print(f"population {pop:,} ...", file=sys.stderr, flush=True)
        row = measure(options, pop, engine, measured, base)
        first = rows[0] if rows else row
        rows.append(replace(row, speed_up=row.tokens_per_second / first.tokens_per_second))
    print(
        f"preset {options.preset}: {macs_per_token(program):,} multiply-adds per token; chunks of "
        f"{rows[-1].chunk:,} members{limit_words(measured)}"
    )
    shares = [
        [share for row in rows if (share := getattr(row, name)) is not None]
        for name in ("of_limit", "of_torch")
    ]
    return Found(rows, measured, name, f"{name}, {engine.description}", measured.warning(*shares))


def limit_words(measured: Limits) -> str:
    """The limits for the terminal: medians over the run."""
    rates = measured.rates()
    if not rates:
        return "; no limit is measured on a GPU"
    torch = f", torch._int_mm {rates['torch'].median:.0f} GMAC/s" if "torch" in rates else (
        "; torch is not installed"
    )  # fmt: skip
    return f"; limit: {rates['registers'].median:.0f} GMAC/s on registers{torch}"


@cli.command(
    BenchOptions,
    name="bench",
    about=(
        "Times whole training steps over growing populations, and compares them with the int8 "
        "limit of the processor, measured in between."
    ),
    examples=EXAMPLES,
)
def main(options: BenchOptions) -> None:
    """Command line of eggroll.bench."""
    from rich.console import Console

    options = check(options)
    results = bench(options)
    Console(width=140).print(table(results.rows))
    if results.warning:
        print(f"warning: {results.warning}")
    write(options, results)


def write(options: BenchOptions, found: Found) -> None:
    """The files asked for."""
    predicted = performance.predictions(
        PRESETS[options.preset], rank=options.rank, seq_len=options.seq_len
    )
    if options.json:
        marks = {p.chip.name: round(p.tokens_per_second) for p in predicted}
        values = {"options": asdict(options), "machine": platform.platform(),
                  "processor": found.processor, "warning": found.warning,
                  "limits": {k: rate._asdict() for k, rate in found.limits.rates().items()},
                  "rows": [asdict(row) for row in found.rows],
                  "predicted": {"population": performance.POPULATION,
                                "tokens_per_second": marks}}  # fmt: skip
        write_whole(Path(options.json), json.dumps(values, indent=1).encode() + b"\n")
    if options.csv:
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in found.rows)
        write_whole(Path(options.csv), text.getvalue().encode())
    if options.picture:
        with pictures.style():
            figure = draw(options, found.rows, predicted, found.where, found.warning)
            pictures.save(figure, Path(options.picture))


if __name__ == "__main__":
    sys.exit(main())
