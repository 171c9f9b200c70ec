"""Self-play: `python -m experiments.selfplay COMMAND`, see `--help`.

`run` goes through all iterations; `selfplay`, `train` and `eval` are its stages, one at a time. A
command that is killed is run again, and goes on. See RESULTS.md.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    # NumPy's BLAS reads these when it is loaded; workers share the cores among themselves.
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    start = entry.start if sys.argv[1:2] == ["work"] else entry.run  # a worker ends in silence
    raise SystemExit(start("experiments.selfplay.__main__"))

import argparse
import signal
from pathlib import Path

from eggroll.cli import command as cli
from eggroll.errors import InputError
from experiments.arguments import positive, whole
from experiments.selfplay import settings


def run(args: argparse.Namespace) -> None:
    from experiments.selfplay import pipeline

    named = settings.given(args)
    if args.smoke:
        named = settings.SMOKE | named
    whole = pipeline.Run(args.folder, named)
    with pipeline.alone(whole):
        pipeline.everything(whole, workers=args.workers, threads=args.threads, say=say)


def stage(args: argparse.Namespace) -> None:
    """One of the stages selfplay, train and eval."""
    from experiments.selfplay import pipeline

    named = settings.given(args) if args.command == "selfplay" else None
    part = pipeline.Run(args.folder, named)
    with pipeline.alone(part):
        if args.command == "selfplay":
            pipeline.selfplay(part, workers=args.workers, say=say)
        elif args.command == "train":
            pipeline.train(part, threads=args.threads, say=say)
        else:
            pipeline.evaluate(part, threads=args.threads, say=say)


def compare(args: argparse.Namespace) -> None:
    """Another learner on the games of a run."""
    from experiments.selfplay import pipeline

    source = pipeline.Run(args.folder)
    pipeline.compare(source, args.out, settings.given(args), threads=args.threads, say=say)


def work(args: argparse.Namespace) -> None:
    """A worker of self-play; prints the most memory that it had."""
    from experiments.selfplay import pipeline

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # in silence: whoever started it says why
    part = pipeline.Run(args.folder)
    pipeline.work(part, args.iteration, args.worker, args.chunks, args.parent)
    say(str(pipeline.peak_memory()))


def infer(args: argparse.Namespace) -> None:
    from experiments.selfplay import inference

    say(inference.answer(args.folder, args.moves, args.iteration, args.simulations))


def report(args: argparse.Namespace) -> None:
    from experiments.selfplay import pictures

    for line in pictures.report(args.runs, args.out, args.csv):
        say(line)


def reward_driven(args: argparse.Namespace) -> None:
    from experiments.selfplay import rwd

    if args.game not in (None, "liuzhou") or args.reward:
        raise InputError(
            "rwd compares all rewards, on liuzhou alone: leave --game and --reward out."
        )
    asked = settings.new({"game": "liuzhou", "games": 64} | settings.given(args))
    rwd.write(args.out, asked, args.rounds, args.run, say)


WORKERS = 1024  # at most; each is a process
# Command -> that of suite.py, and what it does.
SUITE = {
    "gates": ("acceptance", "all gates with one summary; see suite.py for each alone"),
    "bench": ("bench", "root-PUCT beside NumPy and torch"),
}


def say(text: str) -> None:
    print(text, flush=True)


def moves(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip()]


def parser() -> argparse.ArgumentParser:
    parsing = argparse.ArgumentParser(
        prog="python -m experiments.selfplay", description=__doc__.splitlines()[0]
    )
    commands = parsing.add_subparsers(dest="command", required=True)
    summaries = {
        "run": "all stages of all iterations", "selfplay": "play the games of the next iteration",
        "train": "train the next network", "eval": "judge the newest network",
    }  # fmt: skip
    for name, summary in summaries.items():
        part = commands.add_parser(name, help=summary)
        part.add_argument("folder", type=Path, help="of the run")
        if name in ("run", "selfplay"):
            part.add_argument(
                "--workers", type=whole(1, WORKERS), default=1, help="processes that play"
            )
            settings.add_options(part)
        if name != "selfplay":
            part.add_argument("--threads", type=positive, default=1, help="of training")
        if name == "run":
            part.add_argument("--smoke", action="store_true", help="a few small iterations")
        part.set_defaults(call=run if name == "run" else stage)
    part = commands.add_parser("compare", help="train another learner on the games of a run")
    part.add_argument("folder", type=Path, help="of the run")
    part.add_argument("--out", type=Path, required=True, help="folder of the other learner")
    part.add_argument("--threads", type=positive, default=1)
    settings.add_options(part)
    part.set_defaults(call=compare)
    part = commands.add_parser("work", help="a worker of selfplay, which starts it itself")
    part.add_argument("folder", type=Path)
    for name in ("iteration", "worker", "parent"):
        part.add_argument(f"--{name}", type=int, default=0)
    part.add_argument("--chunks", type=int, nargs="*", default=[])
    part.set_defaults(call=work)
    part = commands.add_parser("infer", help="what a network says of a position")
    part.add_argument("folder", type=Path, help="of the run")
    part.add_argument("--moves", type=moves, default=[], help="actions so far, such as 4,0,8")
    part.add_argument("--iteration", type=int, default=-1, help="of the network; the newest")
    part.add_argument("--simulations", type=int, default=-1, help="0 for none; those of the run")
    part.set_defaults(call=infer)
    part = commands.add_parser("rwd", help="reports RWD-0 to RWD-2 of Liuzhou chess")
    part.add_argument("--out", type=Path, required=True, help="folder for the JSON reports")
    part.add_argument("--rounds", type=positive, default=3)
    part.add_argument("--run", type=Path, help="whose newest network plays; else an untrained one")
    settings.add_options(part)
    part.set_defaults(call=reward_driven)
    part = commands.add_parser("report", help="pictures and tables of runs")
    part.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    part.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    part.add_argument("--csv", type=Path, help="file for a row of each evaluation")
    part.set_defaults(call=report)
    for name, (_, summary) in SUITE.items():
        commands.add_parser(name, help=summary, add_help=False)
    return parsing


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words and words[0] in SUITE:
        from experiments.selfplay import suite

        return suite.main([SUITE[words[0]][0], *words[1:]])
    args = parser().parse_args(words)

    def call() -> int:
        args.call(args)
        return cli.DONE

    return cli.run(call)
