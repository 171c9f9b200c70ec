"""The speed of token credit beside the default estimator's: `python benchmarks/estimators.py`

Times whole training steps (evaluation, votes, update) of each estimator on the same network,
population and text, step by step in turn, after comparing a small run of each with the portable
engine. Prints tokens per second as a ratio to the default estimator's in the same run.
"""

from __future__ import annotations

import contextlib
import io
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any

import tyro
from checks import check_names, write_json

from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.files import check_place
from eggroll.training.checkpoint import signature
from eggroll.training.config import RECIPES, Config
from eggroll.training.run import TrainingRun, open_run

CREDIT = ("estimator", "rule", "sigma_shift")
ESTIMATORS: dict[str, dict[str, Any]] = {
    "eggroll": {},
    "token-votes": {"estimator": "token-votes"},
    "token-credit": {k: RECIPES["language"][k] for k in CREDIT},
}
NETWORKS = {"D 64, L 1": (64, 1), "D 128, L 2": (128, 2), "D 256, L 6": (256, 6)}


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/estimators.py."""

    pop: int = 4096
    """Members, an even number."""
    seq_len: int = 32
    """Tokens of an update."""
    repeats: Annotated[int, Range(1, 10_000)] = 15
    """Steps of each estimator that count."""
    networks: tuple[str, ...] = tuple(NETWORKS)
    """Networks, by these names."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the figures as JSON."""


@contextlib.contextmanager
def opened(options: Config) -> Iterator[TrainingRun]:
    """A run without a folder, which says nothing."""
    with ExitStack() as stack:
        with contextlib.redirect_stdout(io.StringIO()):
            run = open_run(options, stack, write=False, show=False)
        yield run


def verify(estimators: Mapping[str, dict[str, Any]], fast: str = "auto") -> None:
    """Two updates of a small run of each estimator, as the portable engine makes them."""
    for name, options in estimators.items():
        small = Config(**options, data="count", pop=36, width=24, seq_len=5, table_bits=18)
        found = []
        for engine in (fast, "portable"):
            with opened(replace(small, engine=engine)) as run:
                run.update(), run.update()
                found.append(signature(run.weights))
        if found[0] != found[1]:
            sys.exit(f"{name}: the engines disagree.")


def times(options: Config, repeats: int) -> dict[str, list[float]]:
    """Seconds of whole steps per estimator, in turn, after two that are not counted."""
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(opened(replace(options, **own)))
            for name, own in ESTIMATORS.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for i in range(repeats + 2):
            for name, run in runs.items():
                took = run.update()["seconds"]
                if i >= 2:
                    seconds[name].append(took)
    return seconds


def configs(args: Options) -> dict[str, Config]:
    """The options of every network's runs.

    Raises:
        InputError: an option is out of range.
    """
    cli.check_ranges(args)
    check_place("--json", args.json)
    check_names("--networks", args.networks, NETWORKS)
    found = {}
    for network in args.networks:
        width, layers = NETWORKS[network]
        found[network] = Config(width=width, layers=layers, pop=args.pop, seq_len=args.seq_len)
        for own in ESTIMATORS.values():
            replace(found[network], **own).check()
    return found


@cli.command(
    Options,
    name="benchmarks/estimators.py",
    about="The speed of token credit beside the default estimator's, verified first.",
)
def main(args: Options) -> None:
    asked = configs(args)
    verify(ESTIMATORS)
    rows = []
    for network, options in asked.items():
        found = times(options, args.repeats)
        base = statistics.median(found["eggroll"])
        for name, seconds in found.items():
            middle = statistics.median(seconds)
            row = {
                "network": network,
                "estimator": name,
                "tokens_per_second": round(args.pop * args.seq_len / middle),
                "spread": round((max(seconds) - min(seconds)) / middle, 3),
                "of_eggroll": round(base / middle, 3),
            }
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    facts = {"machine": platform.platform(), "pop": args.pop, "seq_len": args.seq_len}
    write_json(args.json, facts | {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
