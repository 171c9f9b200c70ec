"""Bits per byte over the population at equal tokens: `python experiments/scaling/run.py`

Every population reads as many member-tokens in all, so a larger one makes fewer updates. Runs every
recipe: paper, language and feedback. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
from pathlib import Path

from eggroll.cli import command as cli
from eggroll.files import check_apart, check_place
from eggroll.training import pictures
from eggroll.training.config import RECIPES, Config
from eggroll.training.loop import train

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, where it is not installed
from experiments.arguments import finished, population, positive, write_csv


def bits(recipe: str, pop: int, seed: int, tokens: int) -> tuple[int, float]:
    """Updates made and validation in bits per byte."""
    options = {"recipe": recipe, "pop": pop, "seed": seed, "validate_every": 0, "sample_tokens": 0}
    steps = max(1, round(tokens / (pop * Config(recipe=recipe).seq_len)))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = Config(**{**options, "steps": steps, "out": f"{folder}/run"})
        result = finished(train, config)
    assert result.val_loss is not None
    return steps, result.val_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--populations", type=population, nargs="+", default=[256, 1024, 4096, 16384]
    )
    parser.add_argument(
        "--tokens", type=positive, default=1 << 26, help="members x tokens of a run"
    )
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--csv", type=Path, help="one row per run")
    parser.add_argument("--picture", type=Path, help="bits per byte over population")
    args = parser.parse_args()
    places = {"--csv": str(args.csv or ""), "--picture": str(args.picture or "")}
    for flag, given in places.items():  # before all runs
        check_place(flag, given)
    check_apart(places)
    rows, means = [], {}
    for recipe in RECIPES:
        for pop in args.populations:
            found = [bits(recipe, pop, seed, args.tokens) for seed in range(args.seeds)]
            rows += [(recipe, pop, seed, *took) for seed, took in enumerate(found)]
            values = [value for _, value in found]
            means.setdefault(recipe, []).append(statistics.mean(values))
            print(
                f"recipe {recipe}, population {pop}, {found[0][0]} updates: "
                f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})",
                flush=True,
            )
    if args.csv:
        write_csv(args.csv, ("recipe", "population", "seed", "updates", "bits_per_byte"), rows)
    if args.picture:
        draw(args.populations, means, args.picture)


def draw(populations: list[int], means: dict[str, list[float]], path: Path) -> None:
    with pictures.style():
        figure = pictures.new_figure(6, 4)
        axes = figure.add_subplot()
        for recipe, values in means.items():
            axes.plot(populations, values, marker="o", label=f"recipe {recipe}")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("population")
        axes.set_ylabel("validation, bits per byte")
        axes.legend()
        pictures.save(figure, path)


if __name__ == "__main__":
    sys.exit(cli.run(main))
