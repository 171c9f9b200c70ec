"""The command that writes one page about runs, by their folders: `python -m eggroll.report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import CONFIG, METRICS, write_whole
from eggroll.report import page
from eggroll.report.record import RunRecord, read_record

PAGE: Final = "report.html"
ENDINGS: Final = (".html", ".htm")
DETAILS: Final = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)  # tried in turn until the page fits
LARGEST: Final = 3_000_000  # bytes of a page
MOST_RUNS: Final = 64
EXAMPLES: Final = (
    ("runs/stdlib-000", "one run, into its folder"),
    ("runs/a runs/b --label paper recipe --out both.html", "two runs on one page"),
)


@dataclass(frozen=True)
class ReportOptions:
    """Options of eggroll.report."""

    folders: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR ..."), tyro.conf.Positional] = ()
    """Folders of runs of eggroll.train, eggroll.adamw or eggroll.Trainer; a folder of several, as
    that of a sweep, stands for all in it."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """The page, a file that ends in .html; DIR/report.html for one folder and report.html for
    several if not given."""
    title: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """Title of the page."""
    label: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")] = ()
    """Names of the runs, one for each folder."""


def write(options: ReportOptions) -> Path:
    """Writes the page that the options ask for; returns its path.

    Raises:
        InputError: no run is given, one cannot be read, or the page cannot be written.
    """
    folders = [run for folder in options.folders for run in runs_in(Path(folder))]
    if not folders:
        raise InputError("no folder is given: name those of one or more runs.")
    if len(folders) > MOST_RUNS:
        raise InputError(
            f"{len(folders)} runs are given: a page has from 1 to {MOST_RUNS}; make several pages."
        )
    if options.label and len(options.label) != len(folders):
        raise InputError(
            f"--label has {len(options.label)} names for {len(folders)} runs: give one for each."
        )
    single = len(options.folders) == 1
    out = Path(options.out or (Path(options.folders[0], PAGE) if single else PAGE))
    if out.suffix not in ENDINGS:
        raise InputError(f"--out {options.out!r} does not end in .html: give it that ending.")
    names = options.label or ("",) * len(folders)
    records = [read_record(*pair) for pair in zip(folders, names, strict=True)]
    write_whole(out, fitting_page(records, options.title))
    return out


def runs_in(folder: Path) -> list[Path]:
    """The folder itself; of one that is no run's, as a sweep's, those in it that have metrics."""
    if (folder / CONFIG).exists() or not folder.is_dir():
        return [folder]
    runs = sorted(path.parent for path in folder.glob(f"[!.]*/{CONFIG}"))
    return [run for run in runs if _size(run / METRICS)] or [folder]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def fitting_page(records: Sequence[RunRecord], title: str) -> bytes:
    """The page with as much detail as keeps it below LARGEST, or with the least there is."""
    content = b""
    for detail in DETAILS:
        content = page.html_of(records, title, detail)
        if len(content) <= LARGEST:
            break
    return content


@cli.command(
    ReportOptions,
    name="report",
    about="Writes one HTML page about one run or several, which opens offline.",
    examples=EXAMPLES,
)
def main(options: ReportOptions) -> None:
    """Command line of eggroll.report."""
    print(f"written: {write(options)}")
