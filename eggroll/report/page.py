"""The page: HTML that one can read without its script, the figures as JSON, style and script.

Names, samples and warnings may hold anything. Every text passes `text`, the JSON has no `<`, and
the page's policy lets no other script, style or address in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, Final

import numpy as np

from eggroll import __version__
from eggroll.curves import LanguageCurves, TrainerCurves
from eggroll.report.figures import CHARTS, NAME, PARTS, figures_of, seen
from eggroll.report.record import Record
from eggroll.runlog import in_bits, prefixed

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
        "version": text(__version__),
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
