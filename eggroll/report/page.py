"""The page: HTML that one can read without its script, the figures as JSON, style and script.

Names, samples and warnings may hold anything. Every text passes `text`, the JSON has no `<`, and
the page's policy lets no other script, style or address in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from string import Template
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.cli.screen import in_bits, prefixed
from eggroll.files import VERSION
from eggroll.report.record import VOTES, Part, Point, Record
from eggroll.training.curves import LanguageCurves, RunCurves, TrainerCurves, Values, smooth

POINTS, PART_POINTS, SNAPSHOTS = 1600, 160, 48  # of a curve; of a leaf's; histograms in time
LEAST: Final = 16  # points of any curve
# Surrogates stand for stray bytes; control characters, and those that turn text around, hide it.
UNSEEN: Final = re.compile("[\ud800-\udfff\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NAME: Final = 200  # characters of a name
Json = dict[str, Any]


class Chart(NamedTuple):
    """A figure that is drawn over time.

    share: it is a share of 1, shown in percent; zero: its axis begins at 0; reference: name and
    value of a line; help: a sentence below the title.
    """

    key: str
    title: str
    unit: str = ""
    share: bool = False
    zero: bool = False
    reference: tuple[str, float] | None = None
    help: str = ""


NOISE = ("pure chance", 1.0)
CHARTS: Final = (
    Chart("valid", "Validation", help="Exact cross-entropy of the unperturbed network."),
    Chart("per_token", "Validation per token", "bits per token"),
    Chart("fitness", "Fitness, mean of the members", "value told"),
    Chart("fitness_best", "Fitness of the best member", "value told"),
    Chart("loss", "Training loss", help="Of members: their integer score, which is their fitness."),
    Chart("update_rate", "Weights that moved", "% per update", share=True, zero=True),
    Chart(
        "nonzero_ratio", "Pairs whose members differ in value", "% of pairs", share=True, zero=True,
        help="Below 1 % hardly anything is learnt.",
    ),
    Chart("tied", "Pairs that tie", "% of pairs", share=True, zero=True),
    Chart(
        VOTES, "Votes over their noise", "ratio", reference=NOISE,
        help="Mean |Z| over what chance alone gives, mean of the leaves.",
    ),
    Chart("threshold", "Threshold of the votes", "sum of votes", zero=True),
    Chart(
        "rate", "Alpha or learning rate", "of the rule", zero=True,
        help="Of rule sign, alpha of its z-test; of the others, their learning rate.",
    ),
    Chart("speed", "Throughput", "per s", zero=True),
)  # fmt: skip
PARTS: Final[Mapping[str, Sequence[Chart]]] = {
    "leaves": (
        Chart("update_rate", "Weights that moved", "% per update", share=True, zero=True),
        Chart(VOTES, "Votes over their noise", "ratio", reference=NOISE),
        Chart("saturated", "Weights at ±127", "% of weights", share=True, zero=True),
    ),
    "activations": (
        Chart("saturated", "Values at ±127", "% of values", share=True, zero=True),
        Chart("dead", "Units that never change", "% of units", share=True, zero=True),
    ),
}


def figures_of(record: Record, detail: float) -> Json:
    """All figures of a run.

    time: update -> tokens or rows and seconds, at nodes to interpolate between; curves: key -> x
    and y, and `raw` where y is smoothed; leaves, activations: name -> figures and histograms;
    snapshots: the updates of the histograms.
    """
    curves, statistics = record.curves, record.statistics
    most = max(int(POINTS * detail), LEAST)
    parts = max(int(PART_POINTS * detail), LEAST)
    groups = {"leaves": statistics.leaves, "activations": statistics.activations}
    steps = snapshots((part for g in groups.values() for part in g.values()), detail)
    figures: Json = {
        "name": seen(record.name)[:NAME],
        "made_by": record.made_by,
        "counted": curves.counted,
        "speed_unit": f"{curves.over} per s",
        "unit": curves.unit_of(curves.metrics[0]),
        "time": _time(curves, most),
        "curves": _curves(record, most),
        "snapshots": steps,
    }
    for group, known in groups.items():
        figures[group] = {
            seen(name)[:NAME]: _part(part, steps, parts) for name, part in known.items()
        }
    return figures


def seen(value: object) -> str:
    """Text without what a page cannot show."""
    return UNSEEN.sub("\ufffd", str(value))


def _curves(record: Record, most: int) -> Json:
    run = record.curves
    found: Json = {"update_rate": curve(run.steps, run.rate, most, smoothed=True)}
    found["speed"] = curve(run.steps, run.speed, most, smoothed=True)
    if isinstance(run, LanguageCurves):
        found["loss"] = curve(run.steps, run.loss, most, smoothed=True)
        found["valid"] = curve(run.valid_steps, run.valid, most)
        found["per_token"] = curve(record.per_token[0], record.per_token[1], most)
    if isinstance(run, TrainerCurves):
        found["fitness"] = curve(run.steps, run.fitness, most, smoothed=True)
        found["fitness_best"] = curve(run.steps, run.best, most, smoothed=True)
        found["nonzero_ratio"] = curve(run.steps, run.differing, most, smoothed=True)
    found |= {name: of_points(points, most) for name, points in record.statistics.run.items()}
    return {name: one for name, one in found.items() if one["x"]}


def _part(part: Part, steps: Sequence[int], most: int) -> Json:
    rows = [part.histograms.get(step) for step in steps]
    figures = {name: of_points(points, most) for name, points in part.figures.items()}
    if all(row is None for row in rows):
        return {"figures": figures}
    histograms = [None if row is None else numbers(100 * row, 3) for row in rows]
    return {"figures": figures, "histograms": histograms}


def snapshots(parts: Iterable[Part], detail: float) -> list[int]:
    """The updates whose histograms are shown, evenly chosen, the first and the last included."""
    steps = sorted({step for part in parts for step in part.histograms})
    most = max(int(SNAPSHOTS * detail), 2)
    if len(steps) <= most:
        return steps
    return [steps[round(i)] for i in np.linspace(0, len(steps) - 1, most)]


def _time(run: RunCurves, most: int) -> Json:
    """Nodes of the way from updates to tokens or rows, and to seconds."""
    index = np.unique(np.linspace(0, len(run.steps) - 1, min(most, len(run.steps))).astype(int))
    steps = np.concatenate([[0.0], run.steps[index]])
    counted = getattr(run, run.over)(steps)
    return {
        "step": numbers(steps, 15),
        "counted": numbers(counted, 9),
        "seconds": numbers(run.elapsed(steps), 6),
    }


def of_points(points: Sequence[Point], most: int) -> Json:
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    return curve(x, y, most)


def curve(x: Values, y: Values, most: int, *, smoothed: bool = False) -> Json:
    """A curve in at most so many points; x: [n] updates in order, y: [n]."""
    kept = thinned(y, most)
    found = {"x": numbers(x[kept], 15), "y": numbers((smooth(y) if smoothed else y)[kept])}
    return found | {"raw": numbers(y[kept])} if smoothed else found


def thinned(values: Values, most: int) -> NDArray[np.int64]:
    """Indices in order: those of the least and the greatest value of each bucket, and both ends.

    values: [n]; returns at most `most` indices, all n where they are no more.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max((most - 2) // 2, 1) + 1).astype(int)
    kept = {0, count - 1}
    for low, high in pairwise(edges.tolist()):
        part = values[low:high]
        kept |= {low + int(part.argmin()), low + int(part.argmax())}
    return np.array(sorted(kept))


def numbers(values: Iterable[float], digits: int = 5) -> list[float | int | None]:
    """Numbers of so many digits, short as JSON; None for what is not finite."""
    return [_short(float(value), digits) for value in values]


def _short(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1 << 53 else rounded


COLOURS, DASHES = 8, ("", "7 3", "2 3", "9 3 2 3")  # of page.css and chart.js
SAMPLES: Final = 24_000  # characters of samples at full detail
VALUE, SENTENCE = 300, 1000  # characters of an option's value and of a warning
MOST_OPTIONS: Final = 1000
SCRIPTS: Final = ("chart.js", "parts.js", "page.js")
PLACES: Final = ("out", "resume", "config")  # options that no two runs share


def html_of(records: Sequence[Record], title: str, detail: float) -> bytes:
    """The page about these runs, UTF-8; detail: from 0 to 1, how many points curves keep."""
    asset = resources.files("eggroll.report").joinpath("assets")
    style = asset.joinpath("page.css").read_text("utf-8")
    script = "\n".join(asset.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    heading = title or ", ".join(record.name for record in records[:4])
    if not title and len(records) > 4:
        heading += f" and {len(records) - 4} more"
    parts = {
        "title": text(heading[:300]),
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        "data": _json(_data(records, detail)),
        "version": text(VERSION),
        "warnings": _warnings(records),
        "runs": _runs(records),
        "missing": _missing(records),
        "samples": _samples(records, detail),
        "options": _options(records),
    }
    template = Template(asset.joinpath("page.html").read_text("utf-8"))
    return template.substitute(parts).encode("utf-8", "replace")


def text(value: object) -> str:
    """Text as HTML."""
    return html.escape(seen(value))


def sentence_of(value: object) -> str:
    """A sentence as HTML, in which no option is torn at its hyphens."""
    return re.sub(r"--[a-z][a-z-]*", r'<span class="option">\g<0></span>', text(value))


def _policy(style: str, script: str) -> str:
    """Content-Security-Policy: this style and this script, and nothing from anywhere."""
    kinds = {"style-src": style, "script-src": script}
    allowed = [f"{kind} '{_digest(content)}'" for kind, content in kinds.items()]
    return "; ".join(["default-src 'none'", *allowed, "img-src data:", "base-uri 'none'"])


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _data(records: Sequence[Record], detail: float) -> dict[str, Any]:
    each = detail / max(len(records) / 3, 1)  # three runs are shown in full
    lines = {}
    if len({json.dumps(r.curves.about.get("baselines"), sort_keys=True) for r in records}) == 1:
        lines = records[0].curves.about.get("baselines", {})
    return {
        "runs": [figures_of(record, each) for record in records],
        "charts": [chart._asdict() for chart in CHARTS],
        "parts": {group: [chart._asdict() for chart in charts] for group, charts in PARTS.items()},
        "baselines": [[f"{name} model", value] for name, value in lines.items()],
    }


def _json(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it is in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _name(records: Sequence[Record], i: int) -> str:
    """A run's colour and name."""
    dashes = DASHES[i // COLOURS % len(DASHES)]
    path = f'<path d="M0 5H18" class="c{i % COLOURS}" stroke-dasharray="{dashes}"/>'
    swatch = f'<svg viewBox="0 0 18 10" aria-hidden="true" class="swatch">{path}</svg>'
    return f"{swatch}<bdi>{text(records[i].name[:NAME])}</bdi>"


def _names(records: Sequence[Record], runs: Sequence[int]) -> str:
    if len(runs) == len(records) > 3:
        return "All runs"
    return ", ".join(_name(records, i) for i in runs)


def _warnings(records: Sequence[Record]) -> str:
    items = [
        f"<li>{_name(records, i)}, update {step:,}: {sentence_of(sentence[:SENTENCE])}</li>"
        for i, record in enumerate(records)
        for step, sentence in record.statistics.warnings
    ]
    return _notes("warnings", "notes warn", "Warnings", items)


def _missing(records: Sequence[Record]) -> str:
    """What runs lack, every sentence once."""
    lacking: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        for sentence in record.missing:
            lacking.setdefault(sentence, []).append(i)
    items = [
        f"<li>{_names(records, runs)}: {sentence_of(sentence)}</li>"
        for sentence, runs in lacking.items()
    ]
    return _notes("missing", "notes", "Not recorded", items)


def _notes(name: str, kind: str, heading: str, items: Sequence[str]) -> str:
    """A list in a frame; nothing if it is empty."""
    if not items:
        return ""
    inside = f"<h2>{heading}</h2><ul>{''.join(items)}</ul>"
    return f'<section id="{name}" class="{kind}">{inside}</section>'


def _runs(records: Sequence[Record]) -> str:
    rows = [_facts(record) for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("run", *columns))
    body = "".join(
        f'<tr><th scope="row">{_name(records, i)}</th>'
        + "".join(f"<td>{row.get(name, '')}</td>" for name in columns)
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return _table("The runs in short", f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>")


def _facts(record: Record) -> dict[str, str]:
    """A run in short: heading -> HTML."""
    curves, facts = record.curves, {"made by": text(record.made_by)}
    facts["updates"] = f"{int(curves.steps[-1]):,}"
    if isinstance(curves, LanguageCurves):
        if len(curves.valid):
            facts["validation"] = f"{in_bits(curves.valid[-1])} {curves.unit}"
            facts["best validation"] = (
                f"{in_bits(curves.valid.min())} at update "
                f"{int(curves.valid_steps[curves.valid.argmin()]):,}"
            )
        facts["training loss"] = in_bits(curves.loss[-1])
    if isinstance(curves, TrainerCurves):
        facts["fitness"] = f"{curves.fitness[-1]:.4g}"
        facts["best member"] = f"{curves.best[-1]:.4g}"
    facts["time of updates"] = _duration(float(curves.seconds.sum()))
    facts["throughput"] = f"{prefixed(float(np.median(curves.speed)))} {curves.over}/s"
    facts["engine"] = text(_engine(record))
    if signature := record.signature.text:
        cut = f"<code>{signature[:8]}…</code>"
        facts["signature"] = f"{cut} of update {record.signature.step:,}"
    return facts


def _engine(record: Record) -> str:
    """The engine and its kernels, without its threads and blocks, which the options have."""
    name, comma, _ = str(record.curves.about.get("engine", "unknown")).partition(",")
    return f"{name})" if comma and "(" in name else name


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def _samples(records: Sequence[Record], detail: float) -> str:
    most = max(int(SAMPLES * detail / max(len(records) / 3, 1)), 500)
    blocks: list[str] = []
    for i, record in enumerate(records):
        if record.samples:
            cut = record.samples[-most:]
            said = (
                "" if len(cut) == len(record.samples) else f"<p>The last {most:,} characters.</p>"
            )
            opened = " open" if len(blocks) < 3 else ""
            blocks.append(
                f"<details{opened}><summary>{_name(records, i)}</summary>{said}"
                f'<pre tabindex="0">{text(cut)}</pre></details>'
            )
    found = "".join(blocks) or "<p>None of the runs has samples.</p>"
    return f'<section id="samples"><h2>Samples</h2>{found}</section>'


def _options(records: Sequence[Record]) -> str:
    """All options, and those in which the runs differ before them."""
    each = [_flat(_all_of(record)) for record in records]
    names = list(dict.fromkeys(name for row in each for name in row))[:MOST_OPTIONS]
    differ = [
        name for name in names if name not in PLACES and len({row.get(name) for row in each}) > 1
    ]
    found = []
    if len(records) > 1:
        caption = f"Options and facts in which the runs differ: {len(differ)} of {len(names)}"
        found.append(_grid(records, each, differ, caption) if differ else
                     "<p>The runs have the same options.</p>")  # fmt: skip
    whole = _grid(records, each, names, "All options, and facts about the run")
    found.append(f"<details><summary>All {len(names)} options and facts</summary>{whole}</details>")
    return f'<section id="options"><h2>Options</h2>{"".join(found)}</section>'


def _all_of(record: Record) -> dict[str, Any]:
    signed = {"signature": record.signature.text} if record.signature.text else {}
    return record.curves.config | {"about": record.curves.about | signed}


def _flat(value: object, name: str = "", depth: int = 0) -> dict[str, str]:
    """Nested options as one level: 'about.corpus.bytes' -> its value as text."""
    if isinstance(value, dict) and value and depth < 8:
        found: dict[str, str] = {}
        for key, inner in value.items():
            found |= _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
        return found
    words = value if isinstance(value, str) else json.dumps(value)
    return {name[:NAME]: words if len(words) <= VALUE else f"{words[:VALUE]}…"}


def _grid(
    records: Sequence[Record], each: Sequence[Mapping[str, str]], names: Iterable[str], caption: str
) -> str:
    heads = "".join(f'<th scope="col">{_name(records, i)}</th>' for i in range(len(records)))
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + "".join(f"<td>{text(row.get(name, '—'))}</td>" for row in each)
        + "</tr>"
        for name in names
    )
    head = f'<thead><tr><th scope="col">option</th>{heads}</tr></thead>'
    return _table(caption, f"{head}<tbody>{rows}</tbody>")


def _table(caption: str, content: str) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    label = text(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{label}</caption>{content}</table></div>"
    )
