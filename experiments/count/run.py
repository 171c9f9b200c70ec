"""Learning to count, at every population and seed: `python experiments/count/run.py`

Trains the default settings and recipe language on the count tasks, with scores in 1/16 or 1/256
bit, until the exact validation loss reaches the task's goal, and reports how long that took: the
seconds of updates, validation apart. With --updates a run ends after so many, however slow the
machine is at the time. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from eggroll import adamw
from eggroll.baseline.backprop import AdamwOptions
from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import check_place
from eggroll.training.config import RECIPES, Config
from eggroll.training.run import open_run

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, where it is not installed
from experiments.arguments import population, write_csv

# name -> (options, goal in bits per token, seconds at most)
TASKS = {
    "V 16": ({"vocabulary": 16}, 0.001 / math.log(2), 10),  # 0.001 nats
    "V 256": ({"vocabulary": 256}, 0.01, 60),
    "V 64, steps 1 2 3": ({"vocabulary": 64, "count_steps": (1, 2, 3)}, 0.02, 60),
}
POPULATIONS = (512, 1024, 4096, 10240, 32768)
POPULATED = ("paper", "language")  # recipes that need a population
COLUMNS = ("task", "recipe", "score_bits", "population", "seed")


class Found(NamedTuple):
    """The state of a run when it met its goal or had to stop."""

    reached: bool
    seconds: float  # of updates
    updates: int
    bits: float  # exact, per token
    cpu: float  # seconds of all threads, of updates


def train(options: Config | AdamwOptions, goal: float, seconds: float, updates: float) -> Found:
    """Trains until validation reaches the goal, or the seconds or updates have passed."""
    begin = adamw.open_run if isinstance(options, AdamwOptions) else open_run
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with contextlib.redirect_stdout(io.StringIO()):
            run = begin(replace(options, out=f"{folder}/run"), stack)
        spent, cpu, looked, loss = 0.0, 0.0, 0, run.validate()
        while spent < seconds and run.step < updates and loss > goal:
            began = time.process_time()
            spent += run.update()["seconds"]
            cpu += time.process_time() - began
            # A fiftieth of the updates so far between two looks, so that the answer is that exact.
            if run.step - looked > run.step / 50 or run.step == updates:
                loss, looked = run.validate(), run.step
        return Found(loss <= goal, spent, run.step, loss, cpu)


def settings(recipe: str, score_bits: int, task: dict, pop: int, seed: int) -> Config:
    return Config(
        **{
            "recipe": recipe,
            "score_bits": score_bits,
            **task,
            "data": "count",
            "pop": pop,
            "seed": seed,
            "steps": 1500,
            "val_tokens": 1 << 13,
            "table_bits": 22,
        }
    )


def summary(found: list[Found], goal: float, limit: str) -> str:
    reached = [run for run in found if run.reached]
    bits = f"last {statistics.median(run.bits for run in found):.5f} bits"
    said = f"{len(reached)}/{len(found)} reached {goal:.5f} bits in {limit}"
    if not reached:
        return f"{said}; {bits}"
    seconds, updates = [run.seconds for run in reached], [run.updates for run in reached]
    cpu = [run.cpu for run in reached]
    return (
        f"{said}; {statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f}), "
        f"{statistics.median(cpu):.2f} CPU s ({min(cpu):.2f}-{max(cpu):.2f}), "
        f"{statistics.median(updates):.0f} updates ({min(updates)}-{max(updates)}), {bits}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--populations", type=population, nargs="+", default=POPULATIONS)
    parser.add_argument("--recipes", nargs="+", default=POPULATED, choices=list(RECIPES))
    parser.add_argument("--score-bits", type=int, nargs="+", default=[4, 8], choices=[4, 8])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--updates", type=int, help="end a run after so many, not by seconds")
    parser.add_argument("--csv", type=Path, help="one row per run")
    args = parser.parse_args()
    check_place("--csv", str(args.csv or ""))  # before all runs
    for name in ("seeds", "updates"):
        if (given := getattr(args, name)) is not None and given < 1:
            raise InputError(f"--{name} is {given}: 1 or more is needed.")
    rows = []
    for name in args.tasks:
        task, goal, seconds = TASKS[name]
        limits = (math.inf, args.updates) if args.updates else (seconds, math.inf)
        limit = f"{args.updates} updates" if args.updates else f"{seconds} s"
        for recipe in args.recipes:
            for bits in args.score_bits:
                for pop in args.populations if name == "V 16" else [1024]:
                    found = []
                    for seed in range(args.seeds):
                        options = settings(recipe, bits, task, pop, seed)
                        found.append(train(options, goal, *limits))
                        rows.append((name, recipe, bits, pop, seed, *found[-1]))
                    said = summary(found, goal, limit)
                    print(f"{name}, recipe {recipe}, score bits {bits}, population {pop}: {said}",
                          flush=True)  # fmt: skip
    if args.csv:
        write_csv(args.csv, (*COLUMNS, *Found._fields), rows)


if __name__ == "__main__":
    sys.exit(cli.run(main))
