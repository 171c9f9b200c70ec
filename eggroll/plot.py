"""Pictures of training: one run's curves, or one figure of several runs on one picture.

`python -m eggroll.plot DIR... [--out FILE]`; letters: P members, S streams, T tokens.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.plot"))

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import tyro

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import CURVES, METRICS
from eggroll.training import pictures
from eggroll.training.curves import Metric, read_run

COMPARED: Final = "compare.png"
EXAMPLES: Final = (
    ("runs/stdlib-000", "the curves of one run, into its folder"),
    ("runs/a runs/b --label paper recipe --out both.svg", "two runs, by validation or fitness"),
)


@dataclass(frozen=True)
class PlotOptions:
    """Options of eggroll.plot."""

    folders: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR ..."), tyro.conf.Positional] = ()
    """Folders of runs of eggroll.train or eggroll.adamw, or of eggroll.Trainer; that of a sweep
    stands for its trials."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """The picture, in the format of its ending: .png, .svg or .pdf; DIR/curves.png for one run,
    DIR/compare.png for one sweep, compare.png for several runs and with --metric if not given."""
    metric: Metric | None = None
    """Draws this figure alone, over tokens or rows and over seconds; if not given, all of one run,
    val_loss of several, and fitness or loss of those of eggroll.Trainer. Figures of single updates
    are smoothed."""
    title: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """Title of the picture."""
    label: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")] = ()
    """Names of the runs in the legend, one for each folder or, with seeds joined, each line."""
    group_seeds: bool = True
    """Draws runs that differ in the seed alone as one line, their mean, with a band from the least
    to the greatest; otherwise each has a line of its own."""


def draw(options: PlotOptions) -> Path:
    """The picture that the options ask for; returns its path.

    Raises:
        InputError: no run is given, one cannot be read, or the picture cannot be written.
    """
    named = [Path(folder) for folder in options.folders]
    if not named:
        raise InputError("no folder is given: name those of one or more runs.")
    folders = [run for folder in named for run in runs_in(folder)]
    swept = len(named) == 1 and folders != named
    alone = folders == named and len(named) == 1 and options.metric is None
    usual = named[0] / CURVES if alone else named[0] / COMPARED if swept else Path(COMPARED)
    out = Path(options.out or usual)
    if out.suffix not in pictures.FORMATS:
        raise InputError(
            f"--out {options.out!r} does not end in {', '.join(pictures.FORMATS)}: give it one."
        )
    if alone and len(options.label) > 1:
        raise InputError(f"--label has {len(options.label)} names for 1 folder: give one.")
    if alone:
        return curves(folders[0], out, title=options.title or "".join(options.label[:1]))
    return compare(
        folders, out, metric=options.metric, title=options.title,
        labels=options.label, group_seeds=options.group_seeds,
    )  # fmt: skip


def curves(folder: Path | str, out: Path | str | None = None, *, title: str = "") -> Path:
    """Draws one run, into its curves.png or `out`: see pictures.curves."""
    return pictures.curves(Path(folder), Path(out) if out else None, title=title)


def compare(folders: Sequence[Path | str], out: Path | str, **options: Any) -> Path:
    """Draws one figure of several runs: see pictures.compare, whose options it takes."""
    return pictures.compare([Path(folder) for folder in folders], Path(out), **options)


def runs_in(folder: Path) -> list[Path]:
    """The runs that a folder stands for: itself, or the trials of a sweep that were validated.

    Raises:
        InputError: it is a sweep's, and no trial was validated.
    """
    trials = sorted(path for path in folder.glob("trial-[0-9]*") if path.is_dir())
    if not trials or (folder / METRICS).exists():
        return [folder]
    validated = [trial for trial in trials if has_validation(trial)]
    if not validated:
        raise InputError(
            f"none of the {len(trials)} trials of the sweep in {str(folder)!r} has been validated: "
            "give it time, or more --budget."
        )
    return validated


def has_validation(folder: Path) -> bool:
    """True of a run that can be drawn and was validated at least once."""
    try:
        run = read_run(folder)
    except InputError:
        return False
    return bool(len(run.curve(run.main)[0]))


@cli.command(
    PlotOptions,
    name="plot",
    about="Draws the curves of one run, or one figure of several runs for comparison.",
    examples=EXAMPLES,
)
def main(options: PlotOptions) -> None:
    """Command line of eggroll.plot."""
    print(f"written: {draw(options)}")
