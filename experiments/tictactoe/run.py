"""Tic-tac-toe by PPO and by evolution: `python -m experiments.tictactoe run|report|bench|bugs`

`run` trains by one method and writes metrics.jsonl and the weights; `report` draws the pictures and
tables of runs from their metrics alone; `bench` times the three stages of PPO against each other;
`bugs` finds three bugs again, step by step. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from eggroll.errors import InputError
from experiments.arguments import check_no_run, experiment
from experiments.tictactoe import metrics
from experiments.tictactoe.ppo import training
from experiments.tictactoe.ppo.settings import SETTINGS

EVOLUTION = ("states", "vine", "games", "pool")
COMMITTED = Path(__file__).parent  # where the repository has the pictures of RESULTS.md
LOOK = 5  # iterations of PPO between two looks


def run(args: argparse.Namespace) -> None:
    """Trains by one method."""
    _refuse_ignored(args)
    if args.smoke:
        args.iterations, args.look = 2, 1
    args.settings, args.look = args.settings or "strict", args.look or LOOK
    if args.seed < 0:
        raise InputError(f"--seed is {args.seed}: seeds are whole numbers from 0.")
    if args.out:
        check_no_run(args.out, metrics.NAME)
        _train(args, args.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        if not args.smoke:
            raise InputError("--out is missing: name the folder for metrics and weights.")
        _train(args, Path(folder))


def _refuse_ignored(args: argparse.Namespace) -> None:
    """Raises InputError for an option that the method does not read, or that is out of range."""
    for name in ("iterations", "look"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} is {value}: at least 1 is needed.")
    names = ("settings", "iterations", "look")
    given = [f"--{name}" for name in names if getattr(args, name) is not None]
    if args.method in EVOLUTION and given:
        raise InputError(
            f"{given[0]} is of PPO, and --method {args.method} does not read it: leave it out, or "
            f"use --method {', '.join(training.METHODS)}."
        )
    if args.smoke and (given := [word for word in given if word != "--settings"]):
        raise InputError(f"--smoke sets {given[0]} itself: leave one of them out.")


def _train(args: argparse.Namespace, out: Path) -> None:
    if args.method in EVOLUTION:
        from experiments.tictactoe.evolution import training as evolution

        evolution.train(
            args.method, args.net or "64", args.seed, out, threads=args.threads, smoke=args.smoke,
            show=_say,
        )  # fmt: skip
        return
    if args.net not in (None, "256"):
        raise InputError(f"--net is {args.net!r}: PPO has 256 alone; evolution has 64 too.")
    settings = SETTINGS[args.settings]
    if args.iterations:
        settings = replace(settings, iterations=args.iterations)
    found = training.train(
        args.method, settings, args.seed, out, name=args.settings, look=args.look,
        threads=args.threads, say=_say,
    )  # fmt: skip
    _say(
        f"{args.method}, seed {args.seed}, {settings.iterations} iterations in "
        f"{found['seconds']:.1f} s: {training.sentence(found)}"
    )


def _say(text: str) -> None:
    print(text, flush=True)


def report(args: argparse.Namespace) -> None:
    from experiments.tictactoe import pictures

    compared = args.out or COMMITTED
    for line in pictures.report(args.runs, args.out or COMMITTED / "pictures", args.csv, compared):
        _say(line)


def bench(args: argparse.Namespace) -> None:
    from experiments.tictactoe.ppo import bench as benchmark

    benchmark.run(args.rounds, args.threads, args.compile, args.json, _say)


def bugs(args: argparse.Namespace) -> None:
    from experiments.tictactoe.ppo import bugs as steps

    steps.run(args.step, args.iterations, _say)


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m experiments.tictactoe", description=__doc__.splitlines()[0]
    )
    commands = whole.add_subparsers(required=True)
    part = commands.add_parser("run", help="train by one method")
    part.add_argument("--method", default="ppo-native", choices=[*training.METHODS, *EVOLUTION])
    part.add_argument("--net", choices=["64", "256"], help="256: 4x256; 64: 64-64, of evolution")
    part.add_argument("--settings", choices=list(SETTINGS), help="of PPO, strict otherwise")
    part.add_argument("--seed", type=int, default=0)
    part.add_argument("--iterations", type=int, help="of PPO, 500 otherwise")
    part.add_argument(
        "--look", type=int, help=f"iterations of PPO between two looks, {LOOK} otherwise"
    )
    part.add_argument("--threads", type=int, default=1)
    part.add_argument("--out", type=Path, help="folder for metrics.jsonl and weights")
    part.add_argument("--smoke", action="store_true", help="a few iterations")
    part.set_defaults(call=run)
    part = commands.add_parser("report", help="draw pictures and tables of runs")
    part.add_argument("runs", type=Path, nargs="+", help="folders that run --out has written")
    part.add_argument(
        "--out", type=Path, help="folder for the pictures; those of RESULTS.md otherwise"
    )
    part.add_argument("--csv", type=Path, help="file for a row of each look")
    part.set_defaults(call=report)
    part = commands.add_parser("bench", help="time the three stages of PPO")
    part.add_argument("--rounds", type=int, default=7)
    part.add_argument("--threads", type=int, default=1)
    part.add_argument("--compile", action="store_true", help="torch.compile too, a minute more")
    part.add_argument("--json", type=Path, help="file for all times")
    part.set_defaults(call=bench)
    part = commands.add_parser("bugs", help="find three bugs in five steps, as BUGS.md tells")
    part.add_argument(
        "step", nargs="?", default="all",
        choices=["all", "isolate", "compare", "inspect", "bisect", "explain"],
    )  # fmt: skip
    part.add_argument("--iterations", type=int, default=60, help="of isolate")
    part.set_defaults(call=bugs)
    return whole


@experiment
def main(words: list[str] | None = None) -> None:
    args = parser().parse_args(words)
    args.call(args)
