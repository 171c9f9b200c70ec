"""The population-scaling benchmark: `python -m eggroll.bench`.

Whole training steps over growing populations are timed, and compared with the rate of the
processor's int8 units in the same run. A step is that of eggroll.train, on random tokens.
Letters: P members, T tokens, V vocabulary, D width, L layers.
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
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import mlx.core as mx
import numpy as np
import tyro

from eggroll import _extension, engines, probe
from eggroll.bench import PRESETS, PUBLISHED, Preset, PublishedRate, prediction
from eggroll.bench.prediction import Prediction
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.cli.help import Group
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.files import check_apart, check_place, write_whole
from eggroll.networks import egg
from eggroll.spec import rng
from eggroll.spec.program import Batch, Program
from eggroll.training import pictures
from eggroll.training.config import Config
from eggroll.training.learner import new_learner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

EXAMPLES: Final = (
    ("--quick", "a first look, in a minute"),
    ("--preset paper --json paper.json --picture paper.png", "the paper's network, kept"),
)
LEAST_GRANTED = 0.8  # of the processor time asked for; with less, other programs had the rest
MOST_SPREAD = 0.1  # (largest - smallest) / median of a limit, above which it is no limit
SLOW = 10.0  # GMAC/s: a product of 4096 x 256 x 1024 then takes 0.1 s, and one is measured


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
    """Also write everything measured as JSON; - prints it alone, and the table on stderr."""
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
        usual = BenchOptions()
        if (options.pops, options.repeats) != (usual.pops, usual.repeats):
            raise InputError("--quick has its own --pops and --repeats: leave it or them out.")
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
    flags = {f"--{name}": getattr(options, name) for name in ("json", "csv", "picture")}
    for flag, given in flags.items():
        check_place(flag, given, screen=flag == "--json")
    if options.picture:
        pictures.style()  # says now if what draws is missing
    check_apart(flags)
    return options


def bench(options: BenchOptions) -> BenchResults:
    """Times all populations, and prints the facts of the run."""
    network = PRESETS[options.preset]
    program = egg(network["vocabulary"], network["width"], network["layers"])
    engine, reason = engines.choose(options.engine, program, options.threads, replaceable=False)
    name = processor(engine)
    print(f"engine: {engine.description}, {reason}\nprocessor: {name}")
    threads = options.threads or _extension.load().default_threads()
    processor_limits = ProcessorLimits(threads, on_cpu=on_cpu(engine))
    base, rows = resident_peak(), list[BenchRow]()
    for pop in sorted(options.pops):
        print(f"population {pop:,} ...", file=sys.stderr, flush=True)
        row = measure(options, pop, engine, processor_limits, base)
        first = rows[0] if rows else row
        rows.append(replace(row, speed_up=row.tokens_per_second / first.tokens_per_second))
    print(
        f"preset {options.preset}: {macs_per_token(program):,} multiply-adds per token; chunks of "
        f"{rows[-1].chunk:,} members{limit_words(processor_limits)}"
    )
    shares = [
        [share for row in rows if (share := getattr(row, name)) is not None]
        for name in ("of_limit", "of_torch")
    ]
    return BenchResults(
        rows,
        processor_limits,
        name,
        f"{name}, {engine.description}",
        processor_limits.warning(*shares),
    )


@dataclass(frozen=True)
class BenchResults:
    """Everything measured."""

    rows: list[BenchRow]  # by population
    limits: ProcessorLimits
    processor: str
    where: str  # processor and engine
    warning: str  # a sentence or empty


@dataclass(frozen=True)
class BenchRow:
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


def table(rows: Sequence[BenchRow]) -> Any:
    """The rows as a table for the terminal."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        grid.add_column(name.replace("_", "\n"), justify="right")
    for row in rows:
        values = asdict(row)
        cells = (COLUMNS[n].format(values[n]) if values[n] is not None else "-" for n in COLUMNS)
        grid.add_row(*cells)
    return grid


def limit_words(processor_limits: ProcessorLimits) -> str:
    """The limits for the terminal: medians over the run."""
    rates = processor_limits.rates()
    if not rates:
        return "; no limit is measured on a GPU"
    torch = f", torch._int_mm {rates['torch'].median:.0f} GMAC/s" if "torch" in rates else (
        "; torch is not installed"
    )  # fmt: skip
    return f"; limit: {rates['registers'].median:.0f} GMAC/s on registers{torch}"


def write(options: BenchOptions, results: BenchResults) -> None:
    """Writes the files that --json, --csv and --picture name."""
    predicted = prediction.predictions(
        PRESETS[options.preset], rank=options.rank, seq_len=options.seq_len
    )
    if options.json:
        marks = {p.chip.name: round(p.tokens_per_second) for p in predicted}
        values = {"options": asdict(options), "machine": platform.platform(),
                  "processor": results.processor, "warning": results.warning,
                  "limits": {k: rate._asdict() for k, rate in results.limits.rates().items()},
                  "rows": [asdict(row) for row in results.rows],
                  "predicted": {"population": prediction.POPULATION,
                                "tokens_per_second": marks}}  # fmt: skip
        text = json.dumps(values, indent=1)
        if options.json == "-":
            print(text)
        else:
            write_whole(Path(options.json), text.encode() + b"\n")
    if options.csv:
        table = io.StringIO()
        writer = csv.DictWriter(
            table, [field.name for field in fields(BenchRow)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(asdict(row) for row in results.rows)
        write_whole(Path(options.csv), table.getvalue().encode())
    if options.picture:
        with pictures.style():
            figure = draw(options, results.rows, predicted, results.where, results.warning)
            pictures.save(figure, Path(options.picture))


# One population, timed.

# One population, timed.


def measure(
    options: BenchOptions, pop: int, engine: Engine, limits: ProcessorLimits, base: int
) -> BenchRow:
    """Times whole steps of one population, interleaved with the limits; medians count.

    As in training a step follows a step: one that is not timed comes between a limit and a step
    that is, and finds the caches as the limit left them. base: resident bytes before the first
    population.
    """
    step = BenchStep(options, pop, engine)
    phases, samples = [], []
    for _ in range(options.repeats):
        samples.append(limits.sample())
        step.run()
        phases.append(step.run())
    totals = [sum(phase) for phase in phases]
    seconds = statistics.median(totals)
    shares = [statistics.median(phase[i] for phase in phases) / seconds for i in range(3)]
    gmacs = macs_per_token(engine.program) * step.tokens_read / seconds / 1e9
    registers = [sample.registers for sample in samples if sample]
    torch = [sample.torch for sample in samples if sample and sample.torch]
    return BenchRow(
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


class BenchStep:
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


def macs_per_token(program: Program) -> int:
    """Multiply-adds of the matrices for one token; embedding, noise and votes are not counted."""
    kinds = {op.leaf: op.kind for stage in program.stages for op in stage.ops if op.leaf >= 0}
    return sum(
        prod(leaf.shape) for i, leaf in enumerate(program.leaves) if kinds[i] in ("linear", "score")
    )


def resident_peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would begin with what the process was started from
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# Limits: int8 rates of the processor in GMAC/s, 1e9 multiply-adds per second, between the steps.


class ProcessorLimits:
    """Limits of the processor, sampled between steps; none for an engine on a GPU.

    samples: those taken so far.
    """

    def __init__(self, threads: int, *, on_cpu: bool) -> None:
        self.threads, self.samples = threads, list[LimitSample]()
        self.registers = register_loop(threads) if on_cpu else None
        self.torch = torch_loop(threads) if on_cpu else None

    def sample(self) -> LimitSample | None:
        """Measures and keeps the limits as they are now."""
        if self.registers is None:
            return None
        wall, processor = time.perf_counter(), time.process_time()
        rate = self.registers()
        available = (time.perf_counter() - wall) * min(self.threads, cli.usable_cores())
        granted = (time.process_time() - processor) / available
        self.samples.append(LimitSample(rate, granted, self.torch() if self.torch else None))
        return self.samples[-1]

    def rates(self) -> dict[str, LimitRate]:
        """Limit by name, over all samples."""
        columns = {
            "registers": [s.registers for s in self.samples],
            "torch": [s.torch for s in self.samples if s.torch is not None],
        }
        return {
            name: LimitRate(statistics.median(rates), min(rates), max(rates))
            for name, rates in columns.items()
            if rates
        }

    def warning(self, of_limit: Sequence[float], of_torch: Sequence[float]) -> str:
        """A sentence if the figures of the run cannot be trusted, else empty.

        of_limit, of_torch: shares of a limit that steps reached.
        """
        if not self.samples:
            return ""
        rates, reasons = self.rates(), []
        granted = statistics.median(s.granted for s in self.samples)
        if granted < LEAST_GRANTED:
            reasons.append(f"this program was given {granted:.0%} of its threads' time")
        for name, loop in (("registers", "the register loop"), ("torch", "torch._int_mm")):
            if name in rates and rates[name].spread > MOST_SPREAD:
                reasons.append(f"{loop} did {rates[name].low:.0f} to {rates[name].high:.0f} GMAC/s")
        if max(of_limit, default=0) > 1:
            reasons.append(f"steps reached {max(of_limit):.0%} of the limit")
        if max(of_torch, default=0) > 1:
            reasons.append(f"steps reached {max(of_torch):.0%} of torch._int_mm, which other "
                           "programs slow down most")  # fmt: skip
        if not reasons:
            return ""
        return (
            f"these figures are in doubt, as the machine seems busy ({'; '.join(reasons)}): repeat "
            "the run on an idle machine."
        )


class LimitSample(NamedTuple):
    """Rates at one moment, in GMAC/s."""

    registers: float
    granted: float  # share of its threads' time that the register loop ran
    torch: float | None


class LimitRate(NamedTuple):
    """A limit's median, and its range, over a run."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        return (self.high - self.low) / self.median


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

    def batch(products: int) -> float:
        began = time.perf_counter()
        for _ in range(products):
            torch._int_mm(a, b)
        return products * 4096 * 256 * 1024 / (time.perf_counter() - began) / 1e9

    def measure() -> float:
        first = batch(1)  # wakes the threads; where oneDNN has no int8 kernel it takes a second
        return first if first < SLOW else max(batch(10) for _ in range(5))  # a limit is a best

    return measure


def on_cpu(engine: Engine) -> bool:
    """True of an engine that computes on a CPU."""
    return engine.name == "cpu" or (engine.name == "portable" and mx.default_device() == mx.cpu)


def processor(engine: Engine) -> str:
    """The name of the processor or GPU that the engine computes on."""
    if on_cpu(engine):
        return str(probe.cpu(platform.system())["model"]) or platform.machine()
    return str(mx.device_info(mx.Device(mx.DeviceType.gpu, 0)).get("device_name", "GPU"))


# The picture.

# The picture.


def draw(
    options: BenchOptions,
    rows: Sequence[BenchRow],
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
    for axes, ends in ((left, pops), (right, [*pops, prediction.POPULATION])):
        axes.set_xlim(min(ends) / 2, max(ends) * 2)
    if rate := published_rate(options):
        _mark_published(right, rate)
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
    pictures.set_title(figure, title, 10)
    return figure


def published_rate(options: BenchOptions) -> PublishedRate | None:
    """The known rate of another program for just this work per token, if there is one."""
    same_work = options.tokens == PRESETS[options.preset]["seq_len"] and options.rank == 1
    return PUBLISHED.get(options.preset) if same_work else None


def _mark_published(axes: Axes, rate: PublishedRate) -> None:
    """A dashed line, with its name above it."""
    axes.axhline(rate.tokens_per_second, color=pictures.REFERENCE, lw=0.9, ls="--",
                 label="another program, on another machine")  # fmt: skip
    axes.annotate(
        f"{rate.name}: {rate.tokens_per_second:,}", (0.02, rate.tokens_per_second),
        xycoords=("axes fraction", "data"), fontsize=8, color=pictures.REFERENCE,
        xytext=(0, 2), textcoords="offset points",
    )  # fmt: skip


def mark_predictions(axes: Axes, predicted: Sequence[Prediction]) -> None:
    """Hollow marks at the population of the predictions, each with its chip's name."""
    drawn = [p for p in predicted if p.chip.name in prediction.DRAWN_CHIPS]
    population, rates = prediction.POPULATION, [p.tokens_per_second for p in drawn]
    axes.plot([population] * len(rates), rates, ls="", marker="D", mfc="none", mec=pictures.VALID,
              ms=7, zorder=3, label="predicted, never run (docs/performance.md)")  # fmt: skip
    low, high = axes.get_xlim()
    x, side = (-7, "right") if population * population > low * high else (7, "left")
    for p, rate in zip(drawn, rates, strict=True):
        axes.annotate(p.chip.name, (population, rate), fontsize=8, color=pictures.VALID, ha=side,
                      va="top", xytext=(x, -2), textcoords="offset points")  # fmt: skip
    axes.margins(y=0.12)


def _plain_ticks(axis: Axis) -> None:
    """Numbers such as 0.5, 2k and 1M at 1, 2 and 5 of a decade, or at 1 where it spans several."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    prefixed = EngFormatter(sep="")

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter(lambda value, _: prefixed(value) if value >= 1 else f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


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
    with redirect_stdout(sys.stderr) if options.json == "-" else nullcontext():
        results = bench(options)
        Console(width=140).print(table(results.rows))
        if results.warning:
            print(f"warning: {results.warning}")
    write(options, results)


if __name__ == "__main__":
    sys.exit(main())
