"""The population-scaling benchmark: `python -m eggroll.bench`.

Whole training steps over growing populations, as a share of what the processor's int8 units can do
in the same run: measure.py times them, limits.py has the limits, picture.py draws.
"""

from __future__ import annotations

import csv
import io
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from eggroll import _extension, cli, engines, performance, plot
from eggroll.bench import PRESETS, limits
from eggroll.bench.limits import Limits
from eggroll.bench.measure import Row, macs_per_token, measure, resident_peak
from eggroll.bench.options import Options, check
from eggroll.networks import egg
from eggroll.runlog import write_whole

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


def bench(options: Options) -> Found:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.bench; returns its exit code."""

    def work() -> int:
        about = (
            "Times whole training steps over growing populations, and compares them with the int8 "
            "limit of the processor, measured in between."
        )
        words = sys.argv[1:] if argv is None else argv
        options = check(cli.parse(Options, words, command="bench", about=about, examples=EXAMPLES))
        found = bench(options)
        from rich.console import Console

        Console(width=140).print(table(found.rows))
        if found.warning:
            print(f"warning: {found.warning}")
        write(options, found)
        return cli.DONE

    return cli.run(work)


def write(options: Options, found: Found) -> None:
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
        from eggroll.bench import picture  # here, as matplotlib is slow to import

        with plot.style():
            figure = picture.draw(options, found.rows, predicted, found.where, found.warning)
            plot.save(figure, Path(options.picture))


if __name__ == "__main__":
    sys.exit(main())
