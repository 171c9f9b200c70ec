"""Gates and speed of self-play: `python -m experiments.selfplay.suite COMMAND`

`ab` compares ways to play, which must give the same games; `validate`, `sweep`, `workload`,
`stages` and `bench` time them; `profile` shows functions by their time; `acceptance` runs all of
it in one and writes a summary. What needs a CUDA device is "not measured".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eggroll.errors import InputError
from eggroll.files import write_whole
from experiments.selfplay import gates, measure, root_puct, stages
from experiments.selfplay.games import GAMES

SIMULATIONS = (256, 512)  # of the semantic gate
LONGER = 32  # times as many games are v1's in `validate`: v0's would be over at once
STAGED = 8  # times as many games are played by every stage
SMOKE = measure.Setting("tictactoe", simulations=8, games=4, batch=4, hidden=(16,))


@dataclass(frozen=True)
class Criterion:
    """A line of the summary. value: what was found, None where it was not measured."""

    name: str
    value: float | bool | None
    least: float | bool | None  # None: it is reported, and nothing is asked of it

    @property
    def verdict(self) -> str:
        """Met, not met, reported or not measured."""
        if self.value is None:
            return measure.NOT_MEASURED
        if self.least is None:
            return "reported"
        return "met" if self.value >= self.least else "not met"

    def line(self) -> str:
        """A row of a table."""
        shown = self.value if isinstance(self.value, bool) or self.value is None else (
            f"{self.value:.3g}"
        )  # fmt: skip
        return f"| {self.name} | {shown} | {self.least} | {self.verdict} |"


def say(text: str) -> None:
    print(text, flush=True)


def setting(args: argparse.Namespace) -> measure.Setting:
    """The configuration that a command line names."""
    if args.smoke:
        return SMOKE
    found = measure.Setting(
        args.game, args.simulations, args.games, args.rows, args.batch, depth=args.depth,
        seed=args.seed,
        hidden=tuple(args.hidden),
        native=not args.engine,
    )  # fmt: skip
    for name in ("simulations", "games", "rows", "batch", "depth"):
        value = getattr(found, name)
        if value < 1:
            raise InputError(f"--{name} is {value}: at least 1 is needed.")
    return found


def write(path: Path | None, found: Any) -> None:
    """A JSON file, where one was asked for."""
    if path:
        write_whole(path, (json.dumps(found, indent=1, default=float) + "\n").encode())


def ab(args: argparse.Namespace) -> dict[str, Any]:
    """The semantic gate."""
    s = setting(args)
    games = [s.game] if args.smoke else [args.game] if args.game else list(GAMES)
    say("| game, simulations | comparison | positions | actions that match | largest difference of "
        "roots | results | targets |\n|---|---|---|---|---|---|---|")  # fmt: skip
    rows = {
        f"{game}, {n}": gates.semantic(game, n, min(s.games, 16), s.seed, say)
        for game in games
        for n in ((s.simulations,) if args.smoke else SIMULATIONS)
    }
    passed = all(row["passed"] for part in rows.values() for row in part.values())
    say(f"\nThe gate is {'passed' if passed else 'NOT passed'}.")
    return {"setting": s._asdict(), "rows": rows, "passed": passed}


def validate(args: argparse.Namespace) -> dict[str, Any]:
    """v0 and v1 with the same workers."""
    s = setting(args)
    workers, rounds = ([1], 1) if args.smoke else (args.workers, args.rounds)
    fast = s if args.smoke else s._replace(games=LONGER * s.games)
    return measure.validate(s, fast, workers, rounds, 1 if args.smoke else args.plain, say)


def sweep(args: argparse.Namespace) -> dict[str, Any]:
    """v1 with more and more boards."""
    boards, rounds = ([2, 4], 1) if args.smoke else (args.boards, args.rounds)
    return measure.sweep(setting(args), boards, rounds, say)


def guard(args: argparse.Namespace) -> dict[str, Any]:
    """Steps in place and by copies."""
    boards, rounds = ([2, 4], 1) if args.smoke else (args.boards, args.rounds)
    return measure.guard(setting(args), boards, rounds, say)


def workload(args: argparse.Namespace) -> dict[str, Any]:
    """v1 for some time, with its segments."""
    found = measure.workload(setting(args), 0 if args.smoke else args.seconds, say)
    if args.picture:
        measure.draw(found, args.picture)
    return found


def stage_exits(args: argparse.Namespace) -> dict[str, Any]:
    """Stages R1 to R4."""
    s = setting(args)
    if not args.smoke:
        s = s._replace(games=STAGED * s.games)
    return stages.run(s, 1 if args.smoke else args.rounds, say)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Root-PUCT beside NumPy and torch."""
    say(f"{measure.machine()}, one thread, {root_puct.R} roots of {root_puct.A} actions\n")
    return root_puct.bench(1 if args.smoke else args.rounds, say)


def profile(args: argparse.Namespace) -> None:
    """Functions by their time."""
    measure.profile(setting(args), say)


def acceptance(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, with one summary."""
    parts: dict[str, Any] = {}
    for name, call in (
        ("ab", ab), ("bench", bench), ("validate", validate), ("stages", stage_exits),
        ("sweep", sweep), ("guard", guard), ("workload", workload),
    ):  # fmt: skip
        say(f"\n## {name}\n")
        parts[name] = call(args)
    lines = criteria(parts)
    say("\n## Summary\n\n| criterion | found | at least | |\n|---|---|---|---|")
    for line in lines:
        say(line.line())
    summary = [
        {"name": c.name, "value": c.value, "least": c.least, "verdict": c.verdict} for c in lines
    ]
    return parts | {"summary": summary}


def criteria(parts: dict[str, Any]) -> list[Criterion]:
    """What is asked of the parts, line by line."""
    found = [Criterion("semantic gate passed", parts["ab"]["passed"], True)]
    for case, row in parts["bench"].items():
        for peer, least in root_puct.GATES.items():
            gated = "all legal" in case
            value = row["over_native"].get(peer)
            found.append(Criterion(f"root-PUCT / {peer}, {case}", value, least if gated else None))
    valid = parts["validate"]
    found += [
        Criterion("v1 / v0, least of all workers", valid["speedup_fixed_worker_min"], 10.0),
        Criterion("v1 / plain Python", valid.get("v1_over_plain", {}).get("mean"), 300.0),
        Criterion("gain by workers", valid["thread_gain"], None),
    ]
    for row in parts["stages"]["stages"]:
        if "gain" in row:
            found.append(Criterion(f"{row['stage']}: {row['exit']}", row["gain"], row["least"]))
    found.append(Criterion("R3 over stage 0", parts["stages"]["R3_over_0"], stages.REVIEW))
    found += [Criterion(name, None, None) for name in measure.CUDA_ONLY]
    return found


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], Any], str]] = {
    "ab": (
        ab,
        "the semantic gate: v1 against v0, values against full, batches against single",
    ),
    "validate": (validate, "v0 and v1 with the same workers, in rounds"),
    "sweep": (sweep, "v1 with more and more boards side by side"),
    "guard": (guard, "steps in place against steps by copies, with more and more boards"),
    "workload": (workload, "v1 for some time, with the segments of its steps"),
    "stages": (stage_exits, "stages R1 to R4, each with its exit"),
    "bench": (bench, "root-PUCT beside NumPy and torch"),
    "profile": (profile, "functions by their time, apart from all timing"),
    "acceptance": (acceptance, "all of these but the profile, with one summary"),
}


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m experiments.selfplay.suite", description=__doc__.splitlines()[0]
    )
    commands = whole.add_subparsers(required=True)
    d = measure.Setting()
    for name, (call, words) in COMMANDS.items():
        part = commands.add_parser(name, help=words)
        part.set_defaults(call=call)
        part.add_argument("--game", choices=list(GAMES), default=None if name == "ab" else d.game)
        part.add_argument("--simulations", type=int, default=d.simulations, help="of a move")
        part.add_argument("--games", type=int, default=d.games, help="of a worker")
        part.add_argument("--rows", type=int, default=d.rows, help="of a network call, both sides")
        part.add_argument("--batch", type=int, default=d.batch, help="boards of v1 side by side")
        part.add_argument("--hidden", type=int, nargs="+", default=d.hidden, help="units of layers")
        part.add_argument("--depth", type=int, default=d.depth, help="plies searched; 1: root-PUCT")
        part.add_argument("--seed", type=int, default=d.seed)
        part.add_argument("--engine", action="store_true", help="the library's engine, not C++")
        part.add_argument("--rounds", type=int, default=3)
        part.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
        part.add_argument("--boards", type=int, nargs="+", default=[8, 16, 32, 64], help="of sweep")
        part.add_argument("--seconds", type=float, default=180, help="of workload")
        part.add_argument("--plain", type=int, default=8, help="games of plain Python in a round")
        part.add_argument("--picture", type=Path, help="of workload, a .png")
        part.add_argument("--json", type=Path, help="file for all that was found")
        part.add_argument("--smoke", action="store_true", help="a few games of tic-tac-toe")
    return whole


def main(words: list[str] | None = None) -> int:
    args = parser().parse_args(words)
    try:
        for name in ("rounds", "plain"):
            if getattr(args, name) < (name == "rounds"):
                raise InputError(f"--{name} is {getattr(args, name)}: it is too few.")
        if any(n < 1 for n in (*args.workers, *args.boards, *args.hidden)):
            raise InputError("--workers, --boards and --hidden count from 1.")
        write(args.json, args.call(args))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
