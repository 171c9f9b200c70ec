"""The benchmark's picture: rates over the population, beside predictions and published rates."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eggroll import performance, plot
from eggroll.bench import PRESETS, PUBLISHED, Published
from eggroll.bench.measure import Row
from eggroll.bench.options import Options
from eggroll.performance import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def published(options: Options) -> Published | None:
    """The known rate of another program for just this work per token, if there is one."""
    same = options.tokens == PRESETS[options.preset]["seq_len"] and options.rank == 1
    return PUBLISHED.get(options.preset) if same else None


def draw(
    options: Options, rows: Sequence[Row], predicted: Sequence[Prediction], where: str, warning: str
) -> Figure:
    """Steps and tokens per second over the population, on logarithmic axes.

    where: the processor and the engine, for the title; warning: a sentence or empty.
    """
    figure = plot.new_figure(9, 4.5 + 0.4 * bool(warning))
    left, right = figure.subplots(1, 2)
    pops = [row.population for row in rows]
    left.loglog(pops, [row.steps_per_second for row in rows], marker="o", color=plot.TRAIN)
    left.set(title="steps per second", xlabel="population P", ylabel="1/s")
    right.loglog(pops, [row.tokens_per_second for row in rows], marker="o", color=plot.TRAIN,
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
    legend.get_title().set_color(plot.VALID)
    network = PRESETS[options.preset]
    title = (
        f"Training steps of preset {options.preset} (D {network['width']}, L {network['layers']}, "
        f"V {network['vocabulary']}, T {options.tokens}, rank {options.rank})\n{where}"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _mark_published(axes: Axes, known: Published) -> None:
    """A dashed line, with its name above it."""
    axes.axhline(known.tokens_per_second, color=plot.REFERENCE, lw=0.9, ls="--",
                 label="another program, on another machine")  # fmt: skip
    axes.annotate(
        f"{known.name}: {known.tokens_per_second:,}", (0.02, known.tokens_per_second),
        xycoords=("axes fraction", "data"), fontsize=8, color=plot.REFERENCE,
        xytext=(0, 2), textcoords="offset points",
    )  # fmt: skip


def mark_predictions(axes: Axes, predicted: Sequence[Prediction]) -> None:
    """Hollow marks at the population of the predictions, each with its chip's name."""
    shown = [p for p in predicted if p.chip.name in performance.SHOWN]
    at, rates = performance.POPULATION, [p.tokens_per_second for p in shown]
    axes.plot([at] * len(rates), rates, ls="", marker="D", mfc="none", mec=plot.VALID, ms=7,
              zorder=3, label="predicted, never run (docs/performance.md)")  # fmt: skip
    low, high = axes.get_xlim()
    x, side = (-7, "right") if at * at > low * high else (7, "left")
    for p, rate in zip(shown, rates, strict=True):
        axes.annotate(p.chip.name, (at, rate), fontsize=8, color=plot.VALID, ha=side, va="top",
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
