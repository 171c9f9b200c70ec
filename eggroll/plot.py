"""Pictures of training: one run's curves, or several runs side by side.

`python -m eggroll.plot DIR... [--out FILE]`; letters: P members, S streams, T tokens.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray

from eggroll import cli
from eggroll.errors import InputError
from eggroll.runlog import CONFIG, CURVES, read_lines, write_whole
from eggroll.runlog import METRICS as METRICS_FILE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

STYLE: Any = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
TRAIN, VALID, RATE, SPEED, REFERENCE = "#4c78a8", "#d1495b", "#6a994e", "#7b6d8d", "#444444"
FORMATS = (".png", ".svg", ".pdf")


class Run(NamedTuple):
    """What the pictures show of a run.

    steps, loss, rate, speed, seconds: [updates], seconds of one update each; valid_steps, valid:
    [validations].
    """

    name: str
    config: dict[str, Any]
    about: dict[str, Any]
    steps: Values
    loss: Values
    rate: Values
    speed: Values
    seconds: Values
    valid_steps: Values
    valid: Values

    @property
    def unit(self) -> str:
        return "bits per token" if self.config.get("data") == "count" else "bits per byte"

    @property
    def has_members(self) -> bool:
        """Whether a population was trained, not the baseline's single network."""
        return "pop" in self.config

    def tokens(self) -> Values:
        """Tokens of the corpus read up to each validation: updates x S x T."""
        c = self.config
        streams = c["pop"] // c["group_size"] if self.has_members else c["streams"]
        per_update: int = streams * c["seq_len"]
        return self.valid_steps * per_update

    def elapsed(self) -> Values:
        """Seconds of all updates up to each validation, those of validating left out."""
        done = np.searchsorted(self.steps, self.valid_steps, side="right")
        sums: Values = np.concatenate([[0.0], self.seconds.cumsum()])
        return sums[done]


def read_run(folder: Path) -> Run:
    """A run's config and metrics.

    Raises:
        InputError: the folder holds no run, or none that has made an update.
    """
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        about = config.get("about", {})
        rows = [row for _, row in read_lines(folder / METRICS_FILE)]
        columns = [
            np.array([row[name] for row in rows], np.float64)
            for name in ("step", "loss", "update_rate", "tokens_per_second", "seconds")
        ]
        valid = [(row["step"], row["val_bits_per_byte"]) for row in rows if "val_loss" in row]
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} holds no run ({error.strerror}): give the folder of a training run."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"the files of {str(folder)!r} are damaged ({type(error).__name__}: {error}): give the "
            "folder of another run."
        ) from error
    if not rows:
        raise InputError(f"the run in {str(folder)!r} has made no update yet: plot it later.")
    steps, loss, rate, speed, seconds = columns
    valid_steps, bits = np.array(valid, np.float64).reshape(-1, 2).T
    name = printable(folder.resolve().name)
    return Run(name, config, about, steps, loss, rate, speed, seconds, valid_steps, bits)


def printable(name: str) -> str:
    """A file's name as text that matplotlib takes literally: no formulas, no stray bytes."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text.replace("$", r"\$")


def smooth(values: Values) -> Values:
    """Centred moving average over a hundredth of the run, narrower towards the ends."""
    half = min(max(len(values) // 200, 2), 50)
    sums = np.concatenate([[0.0], values.cumsum()])
    index = np.arange(len(values))
    reach = np.minimum(half, np.minimum(index, len(values) - 1 - index))
    means: Values = (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)
    return means


def curves(folder: Path, out: Path | None = None) -> Path:
    """Draws the curves of the run in a folder, into its curves.png or `out`; returns the path.

    Raises:
        InputError: there is nothing to draw, or the picture cannot be written.
    """
    run = read_run(folder)
    with style():
        figure = new_figure(8, 7.5)
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 1, 1])
        _loss(top, run)
        _panel(middle, run.steps, 100 * run.rate, RATE, "weights that moved", "% per update")
        speed = "throughput" + " of all members" * run.has_members
        _panel(bottom, run.steps, run.speed, SPEED, speed, "tokens per s")
        bottom.set_xlabel("update")
        bottom.yaxis.set_major_formatter(_prefixes())
        figure.suptitle(_title(run), x=0.01, ha="left", fontsize=11, fontweight="bold")
        return save(figure, out or folder / CURVES)


def compare(folders: Sequence[Path], out: Path) -> Path:
    """Draws the validation of several runs over tokens and over seconds; returns the path.

    Raises:
        InputError: a folder holds no validated run, or the picture cannot be written.
    """
    runs = [read_run(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        if not len(run.valid):
            raise InputError(
                f"the run in {str(folder)!r} has not been validated yet: leave it out."
            )
    with style():
        figure = new_figure(11, 5)
        left, right = figure.subplots(1, 2, sharey=True)
        _validations(left, runs, [run.tokens() for run in runs], "tokens of the corpus read")
        _validations(right, runs, [run.elapsed() for run in runs], "seconds of updates")
        left.set(ylabel=" / ".join(sorted({run.unit for run in runs})))
        left.legend(title="run: last value")
        figure.suptitle("validation", x=0.01, ha="left", fontsize=11, fontweight="bold")
        return save(figure, out)


def _validations(axes: Axes, runs: Sequence[Run], x: Sequence[Values], unit: str) -> None:
    for run, where in zip(runs, x, strict=True):
        label = f"{run.name}: {run.valid[-1]:.3f}"
        axes.plot(where, run.valid, marker="o", markersize=3, lw=1.6, label=label)
    # Reference lines stand for one corpus: none where the runs differ in it.
    if all(run.about.get("baselines") == runs[0].about.get("baselines") for run in runs):
        _references(axes, runs[0])
    ends = [where[-1] for where in x]
    if max(ends) > 10 * min(ends):  # else the shorter run would be a line at the left
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_formatter(_prefixes())
    axes.set_xlabel(unit)


def style() -> Any:
    """A context with the house's look; nothing global stays changed."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _loss(axes: Axes, run: Run) -> None:
    label = "train" + " (perturbed members)" * run.has_members
    axes.plot(run.steps, run.loss, color=TRAIN, lw=0.8, alpha=0.3)
    axes.plot(run.steps, smooth(run.loss), color=TRAIN, lw=1.6, label=label)
    if len(run.valid):
        axes.plot(
            run.valid_steps, run.valid, color=VALID, marker="o", markersize=3, lw=1.6,
            label=f"validation: {run.valid[-1]:.3f} at the end",
        )  # fmt: skip
    _references(axes, run)
    axes.set(ylabel=run.unit, title="loss")
    axes.legend(loc="best")


def _references(axes: Axes, run: Run) -> None:
    """Dashed lines at the unigram and bigram models' losses, labelled away from the curves' end."""
    for name, value in run.about.get("baselines", {}).items():
        above = value > run.loss[-1]
        axes.axhline(value, color=REFERENCE, lw=0.9, ls="--", alpha=0.7, zorder=1)
        axes.annotate(
            f"{name} {value:.2f}", (1, value), xycoords=("axes fraction", "data"),
            xytext=(-4, 2 if above else -2), textcoords="offset points",
            ha="right", va="bottom" if above else "top",
            color=REFERENCE, fontsize=8,
        )  # fmt: skip


def _panel(axes: Axes, x: Values, y: Values, colour: str, title: str, unit: str) -> None:
    axes.plot(x, y, color=colour, lw=0.8, alpha=0.35)
    axes.plot(x, smooth(y), color=colour, lw=1.4)
    axes.set(title=title, ylabel=unit)
    axes.set_ylim(bottom=0)


def _prefixes() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _title(run: Run) -> str:
    c = run.config
    data = printable(Path(str(c.get("data"))).name)
    how = f"population {c.get('pop')}, rank {c.get('rank')}"
    if not run.has_members:
        how = f"AdamW, streams {c.get('streams')}"
    rest = ", ".join(f"{name} {c.get(name)}" for name in ("layers", "width", "seed"))
    return f"{run.name}: {data}, {how}, {rest}"


def save(figure: Figure, path: Path) -> Path:
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:])
    write_whole(path, picture.getvalue())
    return path


@dataclass(frozen=True)
class Options:
    """Options of eggroll.plot."""

    folders: Annotated[
        tuple[str, ...],
        tyro.conf.arg(metavar="DIR ...", help_behavior_hint=""),
        tyro.conf.Positional,
    ] = ()
    """Folders of training runs."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """Picture (.png, .svg or .pdf); else DIR/curves.png for one run, compare.png for several."""


def draw(options: Options) -> Path:
    """The picture that the options ask for; returns its path.

    Raises:
        InputError: no run is given, one cannot be read, or the picture cannot be written.
    """
    folders = [Path(folder) for folder in options.folders]
    if not folders:
        raise InputError("no folder is given: name those of one or more runs.")
    out = Path(options.out or (folders[0] / CURVES if len(folders) == 1 else "compare.png"))
    if out.suffix not in FORMATS:
        raise InputError(
            f"--out {options.out!r} does not end in {', '.join(FORMATS)}: give it one of these."
        )
    return curves(folders[0], out) if len(folders) == 1 else compare(folders, out)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.plot; returns its exit code."""

    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        about = "Draws the curves of one run, or the validation curves of several."
        print(draw(cli.parse(Options, words, command="plot", about=about)))
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
