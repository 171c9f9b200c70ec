"""Gates and speed of self-play: `python -m experiments.selfplay.suite COMMAND`

`ab` compares ways to play, which must give the same games; `validate`, `trees`, `sweep`,
`workload`, `stages` and `bench` time them; `profile` shows functions by their time; `acceptance`
runs all of it in one, with rewards and the peers in JAX, and writes a summary; `draw` makes a
picture. What needs a device or a package that is not there is "not measured".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eggroll.errors import InputError
from eggroll.files import write_whole
from experiments.arguments import experiment
from experiments.selfplay import device, gates, measure, root_puct, stages
from experiments.selfplay.games import GAMES
from experiments.selfplay.search import Search

SIMULATIONS = (256, 512)  # of the semantic gate
LONGER = 32  # times as many games are v1's in `validate`: v0's would be over at once
STAGED = 8  # times as many games are played by every stage
ROUNDS = {"bench": 200, "stages": 9}  # unless --rounds says otherwise
FEW = 3  # of all others
PEERS = ("jax", "pgx", "mctx")
SMOKE = measure.Setting("tictactoe", simulations=8, games=4, batch=4, hidden=(16,))
KILLS = "tested: tests/test_selfplay_pipeline.py, kills at every write, of a parent, of a worker"
LONG_RUNS = "it needs --runs FOLDERS, whole runs of RESULTS.md"
# Of a whole run, by game: what is asked, its field in evals/*.json, the bound, and whether it is
# the most.
LEARNT: dict[str, tuple[tuple[str, str, float, bool], ...]] = {
    "tictactoe": (("raw policy lost to minimax", "optimal_loss", 0.05, True),
                  ("raw policy lost to random", "random_loss", 0.005, True)),
    "connect4": (("wins against the untrained network", "search_against_untrained", 0.8, False),
                 ("wins against alpha-beta, depth 4", "search_against_alphabeta", 0.5, False),
                 ("wins of a longer search against alpha-beta, depth 4",
                  "long_search_against_alphabeta", 0.5, False)),
}  # fmt: skip


@dataclass(frozen=True)
class Criterion:
    """A line of the summary.

    value: what was found, None where it was not measured; bound: the least of it, or with `most`
    the most, None where nothing is asked of it; why: of what has no value.
    """

    name: str
    value: float | bool | None
    bound: float | bool | None = None
    most: bool = False
    why: str = ""

    @property
    def verdict(self) -> str:
        """Met, not met, reported, tested or not measured."""
        if self.value is None:
            if self.why.startswith("tested"):
                return self.why
            return device.NOT_MEASURED + (f": {self.why}" if self.why else "")
        if self.bound is None:
            return "reported"
        met = self.value <= self.bound if self.most else self.value >= self.bound
        return "met" if met else "not met"

    def line(self) -> str:
        """A row of a table."""
        bound = "" if self.bound is None else f"{'at most ' if self.most else ''}{self.bound}"
        value = "" if self.value is None else f"{self.value}"
        if isinstance(self.value, float):
            value = f"{self.value:.3g}"
        return f"| {self.name} | {value} | {bound} | {self.verdict} |"


def say(text: str) -> None:
    print(text, flush=True)


def setting(args: argparse.Namespace, depth: int | None = None) -> measure.Setting:
    """The configuration that a command line names; depth: another than its own.

    Of `acceptance` options of trees are for its trees alone.
    """
    depth = args.depth if depth is None else depth
    if args.smoke:
        return SMOKE._replace(depth=depth)
    found = measure.Setting(
        args.game or measure.Setting().game, args.simulations, args.games, args.rows, args.batch,
        depth=depth, seed=args.seed, hidden=tuple(args.hidden), native=not args.engine,
        noise=args.noise or 0.0,
    )  # fmt: skip
    if depth > 1 or args.call is not acceptance:
        found = found._replace(leaves=args.leaves, reuse=args.reuse, gumbel=args.gumbel)
    for name in ("simulations", "games", "rows", "batch", "depth"):
        value = getattr(found, name)
        if value < 1:
            raise InputError(f"--{name} is {value}: at least 1 is needed.")
    search = {k: v for k, v in found.search.items() if k in Search._fields}
    Search(**search).check(GAMES[found.game].longest)
    return found


def rounds_of(args: argparse.Namespace, name: str = "") -> int:
    """Rounds of a part."""
    if args.smoke:
        return 1
    return ROUNDS.get(name, FEW) if args.rounds is None else args.rounds


def write(path: Path | None, found: Any) -> None:
    """A JSON file, where one was asked for."""
    if path:
        write_whole(path, (json.dumps(found, indent=1, default=float) + "\n").encode())


def noisy(args: argparse.Namespace) -> measure.Setting:
    """The same with noise at the root, as self-play has it to learn, unless it is named."""
    s = setting(args)
    return s if args.noise is not None else s._replace(noise=gates.NOISE)


def ab(args: argparse.Namespace) -> dict[str, Any]:
    """The semantic gate."""
    s = noisy(args)
    if s.noise != gates.NOISE:
        raise InputError(f"--noise is {s.noise}: the gate has {gates.NOISE}; leave it out.")
    games = [s.game] if args.smoke or args.game else list(GAMES)
    simulations = (s.simulations,) if args.smoke else SIMULATIONS
    say("| game, simulations | comparison | positions | actions that match | largest difference of "
        "roots | results | targets |\n|---|---|---|---|---|---|---|")  # fmt: skip
    rows = {
        f"{game}, {n}": gates.semantic(game, n, min(s.games, 16), s.seed, say, s.hidden)
        for game in games
        for n in simulations
    }
    passed = all(row["passed"] for part in rows.values() for row in part.values())
    say(f"\nThe gate is {'passed' if passed else 'NOT passed'}.")
    own = {"games": games, "simulations": simulations, "noise": s.noise, "seed": s.seed,
           "hidden": s.hidden, "temperature_plies": s.temperature_plies}  # fmt: skip
    return {"setting": own, "rows": rows, "passed": passed}


def validate(args: argparse.Namespace) -> dict[str, Any]:
    """v0 and v1 with the same workers."""
    s = setting(args)
    workers = [1] if args.smoke else args.workers
    fast = s if args.smoke else s._replace(games=LONGER * s.games)
    games = 1 if args.smoke else args.plain
    return measure.validate(s, fast, workers, rounds_of(args), games, say)


def trees(args: argparse.Namespace) -> dict[str, Any]:
    """v0 and v1 by trees without a limit, a quarter of the games of `validate`."""
    s = setting(args, gates.TREE if args.depth == 1 else args.depth)
    if args.smoke:
        return measure.validate(s, s, [1], 1, 0, say)
    s = s._replace(games=max(1, s.games // 4))
    return measure.validate(s, s._replace(games=LONGER * s.games), [1], rounds_of(args), 0, say)


def sweep(args: argparse.Namespace) -> dict[str, Any]:
    """v1 with more and more boards."""
    boards = [2, 4] if args.smoke else args.boards
    return measure.sweep(setting(args), boards, rounds_of(args), say)


def guard(args: argparse.Namespace) -> dict[str, Any]:
    """Steps in place and by copies."""
    boards = [2, 4] if args.smoke else args.boards
    return measure.guard(setting(args), boards, rounds_of(args), say)


def workload(args: argparse.Namespace) -> dict[str, Any]:
    """v1 for some time, with its segments."""
    found = measure.workload(setting(args), 0 if args.smoke else args.seconds, say)
    if args.picture:
        from experiments.selfplay import panels

        panels.workload(found, args.picture)
    return found


def stage_exits(args: argparse.Namespace) -> dict[str, Any]:
    """Stages R1 to R4."""
    s = noisy(args)
    if not args.smoke:
        s = s._replace(games=STAGED * s.games)
    return stages.run(s, rounds_of(args, "stages"), say)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Root-PUCT beside NumPy and torch."""
    say(f"{measure.machine()}, one thread, {root_puct.R} roots of {root_puct.A} actions\n")
    return measure.timed(root_puct.bench)(rounds_of(args, "bench"), say)


@measure.timed
def rewards(args: argparse.Namespace) -> dict[str, Any]:
    """Rewards on the way of Liuzhou chess, by the newest network of a run or an untrained one."""
    from experiments.selfplay import rwd, settings

    named: dict[str, Any] = {"game": "liuzhou", "games": 256, "seed": args.seed}
    if args.smoke:
        named |= {"games": 4, "simulations": 4, "hidden": "16"}
    asked = settings.new(named)
    with tempfile.TemporaryDirectory() as folder:
        found = rwd.write(Path(folder), asked, rounds_of(args), args.run, say)
    return found | {"machine": measure.machine(), "run": str(args.run) if args.run else None}


@measure.timed
def peers(args: argparse.Namespace) -> dict[str, Any]:
    """Connect four beside pgx and mctx, in a process of its own, as JAX keeps threads."""
    if missing := [name for name in PEERS if importlib.util.find_spec(name) is None]:
        why = f"it needs {', '.join(missing)}: pip install '.[peers]' brings them"
        say(f"{device.NOT_MEASURED}: {why}")
        return {device.NOT_MEASURED: why}
    words = ["--rounds", str(rounds_of(args)), "--seed", str(args.seed)]
    if args.smoke:
        tiny = {"simulations": 2, "boards": 2, "games": 2, "hidden": 8, "seconds": 2, "rounds": 1}
        words = [word for name, value in tiny.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mctx.json"
        command = [sys.executable, "-m", "experiments.selfplay.mctx_peer", "--json", str(path)]
        code = subprocess.run([*command, *words], check=False).returncode
        if code:
            raise InputError(f"mctx_peer ended with code {code}: its words are above.")
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def profile(args: argparse.Namespace) -> None:
    """Functions by their time."""
    if args.json:
        raise InputError("profile has no figures for --json: leave it out.")
    measure.profile(setting(args), say)


def draw(args: argparse.Namespace) -> dict[str, Any]:
    """A picture of validate.json, stages.json and sweep.json."""
    from experiments.selfplay import panels

    if not args.picture or not args.folder:
        raise InputError("draw needs --folder, of the .json files, and --picture, a .png.")
    panels.speed(args.folder, args.picture)
    return {"folder": str(args.folder)}


def acceptance(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, with one summary."""
    parts: dict[str, Any] = {}
    for name, call in (
        ("ab", ab), ("bench", bench), ("validate", validate), ("trees", trees),
        ("stages", stage_exits), ("sweep", sweep), ("guard", guard), ("workload", workload),
        ("rwd", rewards), ("mctx", peers),
    ):  # fmt: skip
        say(f"\n## {name}\n")
        parts[name] = call(args)
        write(args.json, parts)  # so that an error in the next takes none of it away
    lines = [*criteria(parts), *learnt(args.runs)]
    say("\n## Summary\n\n| criterion | found | bound | |\n|---|---|---|---|")
    for line in lines:
        say(line.line())
    summary = [
        {"name": c.name, "value": c.value, "bound": c.bound, "most": c.most, "verdict": c.verdict}
        for c in lines
    ]
    return parts | {"summary": summary}


def criteria(parts: dict[str, Any]) -> list[Criterion]:
    """What is asked of the parts, line by line."""
    found = [Criterion("semantic gate passed", parts["ab"]["passed"], True)]
    for case, row in parts["bench"].items():
        for peer, least in root_puct.GATES.items():
            gated = "all legal" in case
            found.append(
                Criterion(
                    f"root-PUCT / {peer}, {case}", row["over_native"].get(peer),
                    least if gated else None, why=f"it needs {peer}",
                )
            )  # fmt: skip
    valid = parts["validate"]
    found += [
        Criterion("v1 / v0, least of all workers", valid["speedup_fixed_worker_min"], 10.0),
        Criterion(
            "v1 with whole evaluations / v0, least",
            min((q["mean"] for q in valid["whole_over_v0"].values()), default=None),
            why="trees ask for them anyway",
        ),
        Criterion(
            "v1 / plain Python", valid.get("v1_over_plain", {}).get("mean"), 300.0,
            why="--plain 0 left it out",
        ),
        Criterion("gain by workers", valid["thread_gain"]),
        Criterion("v1 / v0, trees", parts["trees"]["speedup_fixed_worker_min"]),
    ]  # fmt: skip
    for row in parts["stages"]["stages"]:
        for e in row.get("exits", ()):
            name = f"{row['stage']}: {e['what']}, asked by {' and '.join(e['readings'])}"
            value = e["worst"] if e["every"] else e["gain"]
            found.append(Criterion(name + (", worst" if e["every"] else ""), value, e["least"]))
    found += [
        Criterion(f"all stages, read by {reading}", met, True)
        for reading, met in parts["stages"]["met"].items()
    ]
    found.append(Criterion("R3 over stage 0", parts["stages"]["R3_over_0"], stages.REVIEW))
    found += rewarded(parts["rwd"]) + beside_jax(parts["mctx"])
    for name in (device.P0, device.POWER, *device.LAUNCHES):
        value = parts["workload"][name]
        told = isinstance(value, float)
        why = "" if told else value.removeprefix(f"{device.NOT_MEASURED}: ")
        found.append(Criterion(name, value if told else None, why=why))
    return [*found, Criterion("kills at any stage lose nothing", None, why=KILLS)]


def rewarded(part: dict[str, Any]) -> list[Criterion]:
    """RWD-2's thresholds of the rewards; an untrained network, which draws all, tells speeds."""
    found = []
    for reward, means in part["rewards"].items():
        for name, gate in means["gates"].items():
            if reward == "terminal":
                continue
            speed = name == "positions_per_sec"
            known = speed or part["run"] is not None
            title = f"rewards, {reward}: {name}" + (" / those of results alone" if speed else "")
            found.append(
                Criterion(
                    title, gate["found"] if known else None, gate["needed"],
                    most=name == "draw_game_ratio", why="it needs --run FOLDER, a run of liuzhou",
                )
            )  # fmt: skip
    return found


def beside_jax(part: dict[str, Any]) -> list[Criterion]:
    """Connect four against pgx and mctx."""
    speed = [row["v1"] / row["theirs"] for row in part.get("rounds", ())]
    why = part.get(device.NOT_MEASURED, "")
    return [
        Criterion("connect four against pgx and mctx, score", part.get("score"), 0.5, why=why),
        Criterion("games/s over theirs, worst", min(speed) if speed else None, 1.0, why=why),
    ]


def learnt(folders: list[Path]) -> list[Criterion]:
    """What whole runs have learnt, by their last evaluation; see RESULTS.md."""
    from experiments.selfplay import pictures

    runs = [pictures.read(folder) for folder in folders]
    found = []
    for game, asked in LEARNT.items():
        own = [run for run in runs if run.settings.game == game]
        for name, field, bound, most in asked:
            title = f"{game}: {name}"
            if not own:
                found.append(Criterion(title, None, bound, most, LONG_RUNS))
            for run in own:
                value = run.evals[-1].get(field)
                value = value["win_ratio"] if isinstance(value, dict) else value
                who = f"{title}, {run.name}, seed {run.settings.seed}"
                found.append(Criterion(who, value, bound, most, "its evaluation has none"))
    return found


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], Any], str]] = {
    "ab": (
        ab,
        "the semantic gate: v1 against v0, values against full, batches against single",
    ),
    "validate": (validate, "v0 and v1 with the same workers, in rounds"),
    "trees": (trees, "the same by trees, with one worker"),
    "sweep": (sweep, "v1 with more and more boards side by side"),
    "guard": (guard, "steps in place against steps by copies, with more and more boards"),
    "workload": (workload, "v1 for some time, with the segments of its steps"),
    "stages": (stage_exits, "stages R1 to R4, each with its exit"),
    "bench": (bench, "root-PUCT beside NumPy and torch"),
    "rwd": (rewards, "rewards of Liuzhou chess, results alone beside them"),
    "mctx": (peers, "connect four beside pgx and mctx, where they are installed"),
    "profile": (profile, "functions by their time, apart from all timing"),
    "acceptance": (acceptance, "all of these but the profile, with one summary"),
    "draw": (draw, "a picture of validate.json, stages.json and sweep.json"),
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
        part.add_argument("--game", choices=list(GAMES), help=f"{d.game}; of ab all of them")
        part.add_argument("--simulations", type=int, default=d.simulations, help="of a move")
        part.add_argument("--games", type=int, default=d.games, help="of a worker")
        part.add_argument("--rows", type=int, default=d.rows, help="of a network call, both sides")
        part.add_argument("--batch", type=int, default=d.batch, help="boards of v1 side by side")
        part.add_argument("--hidden", type=int, nargs="+", default=d.hidden, help="units of layers")
        part.add_argument("--depth", type=int, default=d.depth, help="plies searched; 1: root-PUCT")
        part.add_argument("--noise", type=float, help="share of Dirichlet noise at the root")
        part.add_argument("--leaves", type=int, default=d.leaves, help="of a tree, at a time")
        part.add_argument("--gumbel", type=int, default=d.gumbel, help="actions of a Gumbel root")
        part.add_argument("--reuse", action="store_true", help="subtrees of a tree stay")
        part.add_argument("--seed", type=int, default=d.seed)
        part.add_argument("--engine", action="store_true", help="the library's engine, not C++")
        part.add_argument("--rounds", type=int, help=f"{FEW}; of stages 9, of bench 200")
        part.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
        part.add_argument("--boards", type=int, nargs="+", default=[8, 16, 32, 64], help="of sweep")
        part.add_argument("--seconds", type=float, default=180, help="of workload")
        part.add_argument("--plain", type=int, default=8, help="games of plain Python in a round")
        part.add_argument("--picture", type=Path, help="of workload and draw, a .png")
        part.add_argument("--folder", type=Path, help="of draw, with .json files")
        part.add_argument("--run", type=Path, help="of rwd: whose newest network plays")
        part.add_argument("--runs", type=Path, nargs="*", default=[], help="learnt, of acceptance")
        part.add_argument("--json", type=Path, help="file for all that was found")
        part.add_argument("--smoke", action="store_true", help="a few games of tic-tac-toe")
    return whole


@experiment
def main(words: list[str] | None = None) -> None:
    args = parser().parse_args(words)
    for name in ("rounds", "plain"):
        value = getattr(args, name)
        if value is not None and value < (name == "rounds"):
            raise InputError(f"--{name} is {getattr(args, name)}: it is too few.")
    if any(n < 1 for n in (*args.workers, *args.boards, *args.hidden)):
        raise InputError("--workers, --boards and --hidden count from 1.")
    write(args.json, args.call(args))


if __name__ == "__main__":
    sys.exit(main())
