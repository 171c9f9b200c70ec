"""Does it learn to count, at every population and seed? `python experiments/count/run.py`

Trains the default settings and recipe language on the count tasks until validation reaches the
task's goal, and reports the seconds of updates that took (validation apart). See RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from eggroll.config import RECIPES, Config
from eggroll.population import exact_loss
from eggroll.run import TrainingRun, open_run, validation_batches

# name -> (options, goal in bits per token, seconds at most)
TASKS = {
    "V 16": ({"vocabulary": 16}, 0.001 / 0.6931, 10),
    "V 256": ({"vocabulary": 256}, 0.01, 60),
    "V 64, steps 1 2 3": ({"vocabulary": 64, "count_steps": (1, 2, 3)}, 0.02, 60),
}
POPULATIONS = (512, 1024, 4096, 10240, 32768)


def seconds_to_goal(
    options: Config, goal: float, budget: float
) -> tuple[float | None, int, float, float]:
    """Seconds of updates until validation meets the goal (None: too late), updates, last loss.

    The loss is the integer score's; what it is in float comes last.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with contextlib.redirect_stdout(io.StringIO()):
            run = open_run(replace(options, out=folder), stack)
        spent, looked, loss = 0.0, 0.0, run.validate()
        while spent < budget:
            spent += run.update()["seconds"]
            # A fiftieth of the time so far between two looks, so that the answer is that exact.
            if spent - looked > spent / 50 or run.step < 20:
                loss, looked = run.validate(), spent
                if loss <= goal:
                    return spent, run.step, loss, exact(run)
        return None, run.step, loss, exact(run)


def exact(run: TrainingRun) -> float:
    batches = validation_batches(run.corpus, run.config)
    return exact_loss(run.engine, run.weights, batches, run.corpus.warmup)


def settings(recipe: str, task: dict, pop: int, seed: int) -> Config:
    return Config(
        **{
            "recipe": recipe,
            **task,
            "data": "count",
            "pop": pop,
            "seed": seed,
            "steps": 1500,
            "val_tokens": 1 << 13,
            "table_bits": 22,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--populations", type=int, nargs="+", default=POPULATIONS)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--csv", type=Path, help="one row per run")
    args = parser.parse_args()
    rows = []
    for name in args.tasks:
        task, goal, budget = TASKS[name]
        populations = args.populations if name == "V 16" else [1024]
        for recipe in args.recipes:
            for pop in populations:
                found = []
                for seed in range(args.seeds):
                    took = seconds_to_goal(settings(recipe, task, pop, seed), goal, budget)
                    found.append(took)
                    rows.append((name, recipe, pop, seed, *took))
                times = [t for t, *_ in found if t is not None]
                said = f"{len(times)}/{len(found)} reached {goal:.4f} bits in {budget} s"
                if times:
                    updates = [n for t, n, *_ in found if t is not None]
                    said += (
                        f"; {statistics.median(times):.2f} s ({min(times):.2f}-{max(times):.2f}), "
                        f"{statistics.median(updates):.0f} updates"
                    )
                else:
                    said += f"; last {statistics.median(loss for _, _, loss, _ in found):.4f} bits"
                said += f"; in float {statistics.median(f for *_, f in found):.4f} bits"
                print(f"{name}, recipe {recipe}, population {pop}: {said}", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("task", "recipe", "population", "seed", "seconds", "updates", "bits", "float_bits")
            )
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
