"""Bits per byte at equal seconds: `python experiments/text/run.py --minutes 1 5`

Trains the default settings, recipe language and the AdamW baseline on the same text, each for the
same seconds of updates (validation and checkpoints apart), and compares validation. A probe tells
how many updates that is, so that schedules end with the time. What is trained can be named with
other options, as in `--what paper paper:rank=4 adamw:learning_rate=0.05`. Where steps are named as
well, so many updates are made, however long they take. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from eggroll import adamw
from eggroll.baseline.backprop import AdamwOptions
from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import METRICS, Row, check_place
from eggroll.sweep.plan import updates_within
from eggroll.training import folder as runlog
from eggroll.training import loop as training
from eggroll.training import pictures
from eggroll.training.config import RECIPES, from_dict, options_of

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, where it is not installed
from experiments.arguments import finished, write_csv

WHAT = (*RECIPES, "adamw")


def rows_of(folder: Path) -> list[Row]:
    return [row for _, row in runlog.read_lines(folder / METRICS)]


def updates_of_adamw(seconds: float, options: AdamwOptions) -> int:
    """Updates of the baseline that the time has room for, from a short run thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        few = replace(options, out=f"{folder}/probe", steps=40, validate_every=0, sample_tokens=0)
        finished(adamw.train_twin, few)
        rows = rows_of(Path(few.out))
    return int(seconds / statistics.median(row["seconds"] for row in rows[5:]))


def run(what: str, seconds: float, seed: int, out: Path, extra: dict) -> tuple[int, float, float]:
    """One run in the folder `out`; returns updates, seconds of updates and validation."""
    name, _, words = what.partition(":")
    given = dict(word.split("=") for word in words.split(",") if word)
    given = {k: json.loads(v) if v[0] in "0123456789" else v for k, v in given.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    if name == "adamw":
        named = options_of(AdamwOptions, {**extra, **given}, f"--what {what}")
        options = replace(named, seed=seed, out=str(out))
        if "steps" not in given:
            options = replace(options, steps=updates_of_adamw(seconds, options))
        options = replace(options, validate_every=max(1, options.steps // 40), checkpoint_every=0)
        finished(adamw.train_twin, options)
    else:
        chosen = from_dict({"recipe": name, **extra, **given}, f"--what {what}")
        config = replace(chosen, seed=seed, out=str(out))
        if "steps" not in given:
            steps = updates_within(seconds, config, out.parent, lambda: None)
            config = replace(config, steps=steps)
        config = replace(config, validate_every=max(1, config.steps // 40), checkpoint_every=0)
        finished(training.train, config)
    rows = rows_of(out)
    return len(rows), sum(row["seconds"] for row in rows), rows[-1]["val_bits_per_byte"]


def known(what: str) -> str:
    """A word of --what, if it names something that can be trained."""
    name, _, words = what.partition(":")
    pairs = [word.partition("=") for word in words.split(",") if word]
    if name not in WHAT or not all(v for _, _, v in pairs):
        raise argparse.ArgumentTypeError(
            f"{what!r} is none of {', '.join(WHAT)}, nor one with options as in paper:rank=4"
        )
    return what


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--what", nargs="+", default=list(WHAT), type=known)
    parser.add_argument("--width", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--data", help="a file of text instead of Python's standard library")
    parser.add_argument("--out", type=Path, default=Path(f"runs/text-{time.strftime('%H%M%S')}"))
    parser.add_argument("--csv", type=Path, help="one row per run")
    args = parser.parse_args()
    check_place("--csv", str(args.csv or ""))  # before all runs
    for name, given in (("minutes", args.minutes), ("seeds", [args.seeds])):
        if not 0 < min(given) <= max(given) < math.inf:
            raise InputError(f"--{name} is {min(given)}: a number above 0 is needed.")
    extra = {k: v for k in ("width", "layers", "data") if (v := vars(args)[k])}
    rows = []
    for minutes in args.minutes:
        for what in args.what:
            bits = []
            for seed in range(args.seeds):
                folder = args.out / f"{what.replace(':', '-')}-{minutes:g}min-seed{seed}"
                took = run(what, 60 * minutes, seed, folder, extra)
                bits.append(took[-1])
                rows.append((what, minutes, seed, *took))
            spread = f"{min(bits):.3f} to {max(bits):.3f}"
            print(
                f"RESULT {what}, {minutes:g} min: {statistics.mean(bits):.3f} bits per byte "
                f"({spread}, {len(bits)} seeds)",
                flush=True,
            )
        shown = [args.out / f"{w.replace(':', '-')}-{minutes:g}min-seed0" for w in args.what]
        pictures.compare(shown, args.out / f"{minutes:g}min.png")
    if args.csv:
        names = ("what", "minutes", "seed", "updates", "seconds", "bits_per_byte")
        write_csv(args.csv, names, rows)
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
