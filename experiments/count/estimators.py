"""Counting by every estimator but the default: `python experiments/count/estimators.py`

One setting per estimator for all tasks; trains until the exact validation loss meets the task's
goal, and reports updates and the CPU seconds of one thread, validation apart. With --whole it goes
on to the last update, and the loss is the one there. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from pathlib import Path

from run import Found, summary, train

from eggroll.cli import command as cli
from eggroll.files import check_place
from eggroll.training.config import Config

NATS = 0.001 / math.log(2)  # bits per token
# name -> options of the data
TASKS = {
    "V 16": {"vocabulary": 16},
    "V 64, steps 1 2 3": {"vocabulary": 64, "count_steps": (1, 2, 3)},
    "V 256": {"vocabulary": 256},
}
SETTINGS = {
    "token-votes": {
        "recipe": "language",
        "estimator": "token-votes",
        "sigma_shift": 3,
        "learning_rate": 4.0,
    },
    "token-credit": {"recipe": "language"},
    "group-credit": {"recipe": "language", "estimator": "group-credit", "group_size": 8},
    "local": {"recipe": "feedback", "estimator": "local"},
    "feedback": {"recipe": "feedback"},
}
STREAMS = 128
POPULATION = {**dict.fromkeys(SETTINGS, 1024), "local": STREAMS, "feedback": STREAMS}
COLUMNS = ("task", "estimator", "seed")


def least(vocabulary: int) -> float:
    """Bits of a token whose logit is 127 where all others are -127, in 1/16 bit."""
    return math.log2(1 + (vocabulary - 1) * 2.0 ** -(254 / 16))


def goal(vocabulary: int) -> float:
    """0.001 nats; where int8 logits cannot reach them, 0.001 nats above the least they can."""
    floor = least(vocabulary)
    return NATS if floor < NATS else floor + NATS


def settings(estimator: str, task: dict, seed: int, steps: int) -> Config:
    return Config(
        **{
            **SETTINGS[estimator],
            **task,
            "data": "count",
            "pop": POPULATION[estimator],
            "seed": seed,
            "steps": steps,
            "val_tokens": 1 << 13,
            "table_bits": 22,
            "threads": 1,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--estimators", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--updates", type=int, default=400, help="of a run; its schedule's length")
    parser.add_argument(
        "--whole", action="store_true", help="make all updates; the loss at the end"
    )
    parser.add_argument("--csv", type=Path, help="one row per run")
    args = parser.parse_args()
    check_place("--csv", str(args.csv or ""))  # before all runs
    rows = []
    for name in args.tasks:
        bits = goal(TASKS[name]["vocabulary"])
        for estimator in args.estimators:
            found = []
            for seed in range(args.seeds):
                options = settings(estimator, TASKS[name], seed, args.updates)
                run = train(options, -1 if args.whole else bits, math.inf, args.updates)
                found.append(run._replace(reached=run.bits <= bits))
                rows.append((name, estimator, seed, *found[-1]))
            said = summary(found, bits, f"{args.updates} updates")
            print(f"{name}, {estimator}: {said}", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow((*COLUMNS, *Found._fields))
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(cli.run(main))
