"""The document's pictures, and those of a run.

Eight of losses and their gradients, as curves and contours; the fit of the scale; a board; and
validation over seconds and positions of all ways of training.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eggroll.errors import InputError
from eggroll.files import write_whole
from experiments.nnue.loader import Batch
from experiments.nnue.losses import Loss, Real, lost, sigmoid
from experiments.nnue.training import Look

REACH = 1500  # centipawns
LABELS = (-600, -300, 0, 300, 600)
EXAMPLE = "1k6/8/8/8/3r4/2P5/8/K7 w - - 0 1"
AXES = {"seconds": "CPU seconds of training, one thread", "positions": "positions"}
GLYPHS = dict(zip("KQRBNPkqrbnp", "\u2654\u2655\u2656\u2657\u2658\u2659\u265a\u265b\u265c\u265d\u265e\u265f", strict=True))  # fmt: skip  # noqa: E501


def new_figure(width: float, height: float) -> Any:
    """An empty figure.

    Raises:
        InputError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("matplotlib is missing: pip install matplotlib brings it.") from None
    return Figure(figsize=(width, height))


def save(path: Path, figure: Any) -> None:
    """Writes a picture whole.

    Raises:
        InputError: it cannot be written.
    """
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100, bbox_inches="tight")
    write_whole(path, data.getvalue())


def by_evaluation(loss: Loss, model: Real, label: Real) -> tuple[Real, Real]:
    """The loss of evaluations in centipawns against labels, and its slope by a centipawn."""
    p = sigmoid(model / loss.scale)
    value, slope = lost(loss, p, sigmoid(label / loss.scale), np.full_like(p, 0.5))
    return value, slope * p * (1 - p) / loss.scale


def loss_pictures(folder: Path) -> list[Path]:
    """The document's eight: {mse, cross_entropy}_loss{, _grad}{, _contour}.png."""
    made = []
    for kind, loss in (("mse", Loss()), ("cross_entropy", Loss(cross_entropy=True))):
        for part, (suffix, what) in enumerate((("", "loss"), ("_grad", "slope of the loss by a centipawn"))):  # fmt: skip  # noqa: E501
            for contour in (False, True):
                figure = new_figure(6, 4)
                draw = draw_contour if contour else draw_curves
                draw(figure, loss, part, what)
                made.append(folder / f"{kind}_loss{suffix}{'_contour' * contour}.png")
                save(made[-1], figure)
    return made


def title(loss: Loss) -> str:
    return "cross entropy" if loss.cross_entropy else "squared error"


def draw_curves(figure: Any, loss: Loss, part: int, what: str) -> None:
    panel, x = figure.subplots(), np.linspace(-REACH, REACH, 601)
    for label in LABELS:
        panel.plot(x, by_evaluation(loss, x, np.full_like(x, label))[part], label=f"{label:+d}")
    panel.set(
        xlabel="the network's evaluation, centipawns", ylabel=what,
        title=f"{title(loss)} in WDL space, scale {loss.scale:.0f}",
    )  # fmt: skip
    panel.grid(alpha=0.3)
    panel.legend(title="label", fontsize=8)


def draw_contour(figure: Any, loss: Loss, part: int, what: str) -> None:
    panel, x = figure.subplots(), np.linspace(-REACH, REACH, 201)
    model, label = np.meshgrid(x, x)
    values = by_evaluation(loss, model, label)[part]
    colours = {"cmap": "coolwarm", "vmin": -abs(values).max(), "vmax": abs(values).max()}
    drawn = panel.contourf(model, label, values, levels=21, **(colours if part else {}))
    figure.colorbar(drawn, label=what)
    panel.set(
        xlabel="the network's evaluation, centipawns", ylabel="label, centipawns",
        title=f"{title(loss)} in WDL space, scale {loss.scale:.0f}",
    )  # fmt: skip


def fit_picture(path: Path, batch: Batch, fitted: float) -> None:
    """Results of games over the score of their positions, and the sigmoid that fits them."""
    figure = new_figure(7, 4)
    panel, edges = figure.subplots(), np.linspace(-REACH, REACH, 61)
    middle = (edges[1:] + edges[:-1]) / 2
    bins = np.digitize(batch.score, edges) - 1
    points = [batch.result[bins == i] for i in range(len(middle))]
    shares = {
        name: np.array([(p == end).mean() if len(p) > 20 else np.nan for p in points])
        for name, end in (("won", 1), ("drawn", 0), ("lost", -1))
    }
    for (name, share), colour in zip(shares.items(), ("C2", "0.6", "C3"), strict=True):
        panel.plot(middle, share, color=colour, lw=1, label=name)
    panel.plot(middle, shares["won"] + shares["drawn"] / 2, "k.", ms=4, label="points of a game")
    x = np.linspace(-REACH, REACH, 301)
    panel.plot(x, sigmoid(x / fitted), "C0", label=f"sigmoid(score / {fitted:.0f})")
    panel.plot(x, sigmoid(x / 410), "C0:", lw=1, label="sigmoid(score / 410)")
    panel.set(
        xlabel="score, centipawns, for the side to move", ylabel="share of the positions",
        title=f"Results of {len(batch.score):,} positions over their scores",
    )  # fmt: skip
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    save(path, figure)


def board_picture(path: Path, fen: str = EXAMPLE) -> None:
    """A board, as the document shows one."""
    figure = new_figure(4, 4)
    panel = figure.subplots()
    panel.imshow((np.indices((8, 8)).sum(axis=0) + 1) % 2, cmap="copper", vmin=-3, vmax=1.6,
                 origin="lower", extent=(0, 8, 0, 8))  # fmt: skip
    for rank, row in enumerate(fen.split()[0].split("/")):
        file = 0
        for letter in row:
            if letter.isdigit():
                file += int(letter)
                continue
            panel.text(file + 0.5, 7.42 - rank, GLYPHS[letter], size=28, ha="center", va="center")
            file += 1
    panel.set(
        xticks=np.arange(8) + 0.5, xticklabels="abcdefgh", yticks=np.arange(8) + 0.5,
        yticklabels="12345678",
    )  # fmt: skip
    panel.tick_params(length=0)
    save(path, figure)


def curves_picture(path: Path, looks: Sequence[Look], variance: dict[str, float]) -> None:
    """Validation over seconds and over positions, a row of panels for each feature set.

    variance: squared error of the best constant, by feature set.
    """
    sets = list(dict.fromkeys(look.features for look in looks))
    ways = list(dict.fromkeys(look.way for look in looks))
    figure = new_figure(11, 3.6 * len(sets))
    rows = figure.subplots(len(sets), 2, squeeze=False, sharey="row")
    for panels, features in zip(rows, sets, strict=True):
        for panel, key in zip(panels, ("seconds", "positions"), strict=True):
            for i, way in enumerate(ways):
                draw_way(
                    panel, [x for x in looks if (x.features, x.way) == (features, way)], key, i
                )
            if features in variance:
                panel.axhline(variance[features], color="0.5", ls=":", lw=1)
            panel.set(
                xscale="log" if key == "positions" else "linear", yscale="log", title=features,
                ylabel="squared error", xlabel=AXES[key],
            )  # fmt: skip
            panel.grid(alpha=0.3, which="both")
    rows[0][1].legend(fontsize=8)
    figure.tight_layout()
    save(path, figure)


def draw_way(panel: Any, looks: Sequence[Look], key: str, colour: int) -> None:
    """A line for every seed, from the first look after the start on."""
    for i, seed in enumerate(dict.fromkeys(look.seed for look in looks)):
        mine = [look for look in looks if look.seed == seed and look.positions]
        panel.plot(
            [getattr(look, key) for look in mine], [look.squares for look in mine], f"C{colour}",
            marker=".", ms=3, lw=1, label=None if i else mine[0].way if mine else None,
        )  # fmt: skip
