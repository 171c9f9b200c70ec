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
from eggroll.report.record import VOTES, Point, RunRecord, TensorStatistics
from eggroll.training.curves import LanguageCurves, RunCurves, TrainerCurves, Values, smooth

# Points of a curve, of a leaf's, and histograms in time, at full detail.
POINTS, PART_POINTS, SNAPSHOTS = 1600, 160, 48
FEWEST_POINTS: Final = 16  # of any curve
SAMPLE_LENGTH: Final = 24_000  # characters of samples at full detail
NAME_LENGTH: Final = 200  # characters
VALUE_LENGTH, SENTENCE_LENGTH = 300, 1000  # characters of an option's value and of a warning
MOST_OPTIONS: Final = 1000
SCRIPTS: Final = ("chart.js", "parts.js", "page.js")
COLOURS, DASHES = 8, ("", "7 3", "2 3", "9 3 2 3")  # of page.css and chart.js
PATH_OPTIONS: Final = ("out", "resume", "config")  # which no two runs share
# Surrogates stand for stray bytes; control characters, and those that turn text around, hide it.
INVISIBLE: Final = re.compile("[\ud800-\udfff\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NOISE = ("pure chance", 1.0)

Json = dict[str, Any]


class Chart(NamedTuple):
    """A figure that is drawn over time."""

    key: str
    title: str
    unit: str = ""
    share: bool = False  # of 1, shown in percent
    zero: bool = False  # its axis begins at 0
    reference: tuple[str, float] | None = None  # name and value of a line
    help: str = ""  # a sentence below the title


CHARTS: Final = (
    Chart("valid", "Validation", help="Exact cross-entropy of the unperturbed network."),
    Chart("per_token", "Validation per token", "bits per token"),
    Chart("fitness", "Fitness, mean of the members", "value told"),
    Chart("fitness_best", "Fitness of the best member", "value told"),
    Chart(
        "loss", "Training loss",
        help="Of members: their integer score, which is their fitness. By labels: the rows' mean.",
    ),
    Chart("error", "Errors at the outputs", "mean size, of 127", zero=True),
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


def html_of(records: Sequence[RunRecord], title: str, detail: float) -> bytes:
    """The page about these runs, UTF-8; detail: from 0 to 1, how many points curves keep."""
    asset = resources.files("eggroll.report").joinpath("assets")
    style = asset.joinpath("page.css").read_text("utf-8")
    script = "\n".join(asset.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    heading = title or ", ".join(record.name for record in records[:4])
    if not title and len(records) > 4:
        heading += f" and {len(records) - 4} more"
    fields = {
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
    return template.substitute(fields).encode("utf-8", "replace")


# The parts of the page, as HTML.


def _warnings(records: Sequence[RunRecord]) -> str:
    items = [
        f"<li>{_name(records, i)}, update {step:,}: {sentence_of(sentence[:SENTENCE_LENGTH])}</li>"
        for i, record in enumerate(records)
        for step, sentence in record.statistics.warnings
    ]
    return _notes("warnings", "notes warn", "Warnings", items)


def _missing(records: Sequence[RunRecord]) -> str:
    """The files and records that runs lack, every sentence once."""
    runs_by_sentence: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        for sentence in record.missing:
            runs_by_sentence.setdefault(sentence, []).append(i)
    items = [
        f"<li>{_names(records, runs)}: {sentence_of(sentence)}</li>"
        for sentence, runs in runs_by_sentence.items()
    ]
    return _notes("missing", "notes", "Not recorded", items)


def _runs(records: Sequence[RunRecord]) -> str:
    """The table of runs."""
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


def _facts(record: RunRecord) -> dict[str, str]:
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
        if curves.with_counts.size:
            facts["with counts"] = f"{in_bits(curves.with_counts[1, -1])} {curves.unit}"
        facts["training loss"] = in_bits(curves.loss[-1])
    if isinstance(curves, TrainerCurves):
        heads = {"fitness_best": "best member", "loss": "training loss", "error": "errors, of 127"}
        for name in ("fitness", "fitness_best", "loss", "error"):
            if curves.has(name):
                facts[heads.get(name, name)] = f"{curves.points[name][1, -1]:.4g}"
    facts["time of updates"] = _duration(float(curves.seconds.sum()))
    facts["throughput"] = f"{prefixed(float(np.median(curves.speed)))} {curves.over}/s"
    facts["engine"] = text(_engine(record))
    if signature := record.signature.text:
        code = f"<code>{signature[:8]}…</code>"
        facts["signature"] = f"{code} of update {record.signature.step:,}"
    return facts


def _engine(record: RunRecord) -> str:
    """The engine and its kernels, without its threads and blocks, which the options have."""
    name, comma, _ = str(record.curves.about.get("engine", "unknown")).partition(",")
    return f"{name})" if comma and "(" in name else name


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def _samples(records: Sequence[RunRecord], detail: float) -> str:
    most = max(int(SAMPLE_LENGTH * detail / max(len(records) / 3, 1)), 500)
    blocks: list[str] = []
    for i, record in enumerate(records):
        if record.samples:
            tail = record.samples[-most:]
            note = (
                "" if len(tail) == len(record.samples) else f"<p>The last {most:,} characters.</p>"
            )
            opened = " open" if len(blocks) < 3 else ""
            blocks.append(
                f"<details{opened}><summary>{_name(records, i)}</summary>{note}"
                f'<pre tabindex="0">{text(tail)}</pre></details>'
            )
    content = "".join(blocks) or "<p>None of the runs has samples.</p>"
    return f'<section id="samples"><h2>Samples</h2>{content}</section>'


def _options(records: Sequence[RunRecord]) -> str:
    """All options, and those in which the runs differ before them."""
    each = [_flat(_all_of(record)) for record in records]
    names = list(dict.fromkeys(name for row in each for name in row))[:MOST_OPTIONS]
    differ = [
        name
        for name in names
        if name not in PATH_OPTIONS and len({row.get(name) for row in each}) > 1
    ]
    content = []
    if len(records) > 1:
        caption = f"Options and facts in which the runs differ: {len(differ)} of {len(names)}"
        content.append(_grid(records, each, differ, caption) if differ else
                     "<p>The runs have the same options.</p>")  # fmt: skip
    table = _grid(records, each, names, "All options, and facts about the run")
    content.append(
        f"<details><summary>All {len(names)} options and facts</summary>{table}</details>"
    )
    return f'<section id="options"><h2>Options</h2>{"".join(content)}</section>'


def _all_of(record: RunRecord) -> dict[str, Any]:
    signature = {"signature": record.signature.text} if record.signature.text else {}
    return record.curves.config | {"about": record.curves.about | signature}


def _flat(value: object, name: str = "", depth: int = 0) -> dict[str, str]:
    """Nested options as one level: 'about.corpus.bytes' -> its value as text."""
    if isinstance(value, dict) and value and depth < 8:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
        return flat
    words = value if isinstance(value, str) else json.dumps(value)
    return {name[:NAME_LENGTH]: words if len(words) <= VALUE_LENGTH else f"{words[:VALUE_LENGTH]}…"}


def _grid(
    records: Sequence[RunRecord],
    each: Sequence[Mapping[str, str]],
    names: Iterable[str],
    caption: str,
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


def _notes(name: str, kind: str, heading: str, items: Sequence[str]) -> str:
    """A list in a frame; nothing if it is empty."""
    if not items:
        return ""
    inside = f"<h2>{heading}</h2><ul>{''.join(items)}</ul>"
    return f'<section id="{name}" class="{kind}">{inside}</section>'


def _names(records: Sequence[RunRecord], runs: Sequence[int]) -> str:
    """The names of some runs, by their numbers."""
    if len(runs) == len(records) > 3:
        return "All runs"
    return ", ".join(_name(records, i) for i in runs)


def _name(records: Sequence[RunRecord], i: int) -> str:
    """A run's colour and name."""
    dashes = DASHES[i // COLOURS % len(DASHES)]
    path = f'<path d="M0 5H18" class="c{i % COLOURS}" stroke-dasharray="{dashes}"/>'
    swatch = f'<svg viewBox="0 0 18 10" aria-hidden="true" class="swatch">{path}</svg>'
    return f"{swatch}<bdi>{text(records[i].name[:NAME_LENGTH])}</bdi>"


def text(value: object) -> str:
    """Text as HTML."""
    return html.escape(visible(value))


def sentence_of(value: object) -> str:
    """A sentence as HTML, in which no option is torn at its hyphens."""
    return re.sub(r"--[a-z][a-z-]*", r'<span class="option">\g<0></span>', text(value))


def visible(value: object) -> str:
    """Text with U+FFFD in place of characters that a page cannot show."""
    return INVISIBLE.sub("\ufffd", str(value))


def _policy(style: str, script: str) -> str:
    """Content-Security-Policy: this style and this script, and nothing from anywhere."""
    kinds = {"style-src": style, "script-src": script}
    allowed = [f"{kind} '{_digest(content)}'" for kind, content in kinds.items()]
    return "; ".join(["default-src 'none'", *allowed, "img-src data:", "base-uri 'none'"])


def _digest(content: str) -> str:
    """The digest by which a policy allows a style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


# The figures, as JSON; a thinned curve keeps the extremes of each bucket, so spikes stay visible.


def _json(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it is in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(records: Sequence[RunRecord], detail: float) -> dict[str, Any]:
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


def figures_of(record: RunRecord, detail: float) -> Json:
    """All figures of a run.

    time: update -> tokens or rows and seconds, at nodes to interpolate between; curves: key -> x
    and y, and `raw` where y is smoothed; leaves, activations: name -> figures and histograms;
    snapshots: the updates of the histograms. detail: 0 to 1, scales how many points are kept.
    """
    curves, statistics = record.curves, record.statistics
    most = max(int(POINTS * detail), FEWEST_POINTS)
    most_of_tensor = max(int(PART_POINTS * detail), FEWEST_POINTS)
    groups = {"leaves": statistics.leaves, "activations": statistics.activations}
    steps = snapshots((tensor for g in groups.values() for tensor in g.values()), detail)
    figures: Json = {
        "name": visible(record.name)[:NAME_LENGTH],
        "made_by": record.made_by,
        "counted": curves.counted,
        "speed_unit": f"{curves.over} per s",
        "unit": curves.unit_of(curves.metrics[0]),
        "time": _time(curves, most),
        "curves": _curves(record, most),
        "snapshots": steps,
    }
    for group, tensors in groups.items():
        figures[group] = {
            visible(name)[:NAME_LENGTH]: _part(tensor, steps, most_of_tensor)
            for name, tensor in tensors.items()
        }
    return figures


def _curves(record: RunRecord, most: int) -> Json:
    run = record.curves
    curves: Json = {"update_rate": curve(run.steps, run.rate, most, smoothed=True)}
    curves["speed"] = curve(run.steps, run.speed, most, smoothed=True)
    if isinstance(run, LanguageCurves):
        curves["loss"] = curve(run.steps, run.loss, most, smoothed=True)
        curves["valid"] = curve(run.valid_steps, run.valid, most)
        curves["per_token"] = curve(record.per_token[0], record.per_token[1], most)
    if isinstance(run, TrainerCurves):
        curves |= {n: curve(x, y, most, smoothed=True) for n, (x, y) in run.points.items()}
    curves |= {name: of_points(points, most) for name, points in record.statistics.run.items()}
    return {name: values for name, values in curves.items() if values["x"]}


def _part(tensor: TensorStatistics, steps: Sequence[int], most: int) -> Json:
    rows = [tensor.histograms.get(step) for step in steps]
    figures = {name: of_points(points, most) for name, points in tensor.figures.items()}
    if all(row is None for row in rows):
        return {"figures": figures}
    histograms = [None if row is None else numbers(100 * row, 3) for row in rows]
    return {"figures": figures, "histograms": histograms}


def snapshots(tensors: Iterable[TensorStatistics], detail: float) -> list[int]:
    """The updates whose histograms are shown, evenly chosen, the first and the last included."""
    steps = sorted({step for tensor in tensors for step in tensor.histograms})
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
    """A curve through points."""
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    return curve(x, y, most)


def curve(x: Values, y: Values, most: int, *, smoothed: bool = False) -> Json:
    """A curve in at most so many points; x: [n] updates in order, y: [n]."""
    indices = thin(y, most)
    columns = {"x": numbers(x[indices], 15), "y": numbers((smooth(y) if smoothed else y)[indices])}
    return columns | {"raw": numbers(y[indices])} if smoothed else columns


def thin(values: Values, most: int) -> NDArray[np.int64]:
    """Indices in order: those of the least and the greatest value of each bucket, and both ends.

    values: [n]; returns at most `most` indices, all n where they are no more.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max((most - 2) // 2, 1) + 1).astype(int)
    indices = {0, count - 1}
    for low, high in pairwise(edges.tolist()):
        bucket = values[low:high]
        indices |= {low + int(bucket.argmin()), low + int(bucket.argmax())}
    return np.array(sorted(indices))


def numbers(values: Iterable[float], digits: int = 5) -> list[float | int | None]:
    """Numbers of so many digits, short as JSON; None for what is not finite."""
    return [_short(float(value), digits) for value in values]


def _short(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1 << 53 else rounded
