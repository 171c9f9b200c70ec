"""Speed of the pipelines: workers side by side, sweeps, a long run with its segments.

A round plays v0 and v1 one after the other, with the same simulations, rows of a network call and
workers; a quotient is taken within a round, then over rounds. Clocks are read at the borders of
segments alone; nothing synchronises, profiles or prints within.
"""

from __future__ import annotations

import cProfile
import io
import multiprocessing
import os
import platform
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eggroll.errors import InputError
from experiments.selfplay import plain, v0, v1
from experiments.selfplay.evaluators import Chunks, Int8, Native
from experiments.selfplay.games import GAMES
from experiments.selfplay.operations import Evaluate

Say = Callable[[str], None]
NOT_MEASURED = "not measured"  # for what needs a CUDA device
CUDA_ONLY = (
    "share of P0", "power", "graph capture and replay", "launches per second", "share of launches",
)  # fmt: skip


class Setting(NamedTuple):
    """What is the same for both sides of a comparison.

    games: of each worker; rows: of a network call at most; batch: boards of v1 side by side;
    native: whether the network is asked in C++, else by the library's engine, with the same bits.
    """

    game: str = "liuzhou"
    simulations: int = 128
    games: int = 64
    rows: int = 512
    batch: int = 64
    hidden: tuple[int, ...] = (128, 64)
    depth: int = 1
    seed: int = 12345
    native: bool = True

    def evaluate(self) -> Evaluate:
        """The network of a worker, on one thread."""
        net: Evaluate = Int8(GAMES[self.game], self.hidden, self.seed)
        if self.native:
            net = Native(net.weights)
        return Chunks(net, self.rows)


class Played(NamedTuple):
    """What a worker did."""

    games: int
    positions: int
    seconds: float


def play_v0(s: Setting, evaluate: Evaluate, games: int, first: int = 0) -> Played:
    positions = 0
    began = time.perf_counter()
    for text in v0.play_games(
        s.game, evaluate, games=games, first=first, simulations=s.simulations, seed=s.seed,
        temperature_plies=10, depth=s.depth,
    ):  # fmt: skip
        positions += text.count("\n")
    return Played(games, positions, time.perf_counter() - began)


def play_v1(
    s: Setting,
    evaluate: Evaluate,
    games: int,
    first: int = 0,
    telemetry: v1.Telemetry | None = None,
) -> Played:
    began = time.perf_counter()
    found = v1.play_games(
        s.game, evaluate, games=games, first=first, batch=s.batch, simulations=s.simulations,
        seed=s.seed, temperature_plies=10, depth=s.depth, telemetry=telemetry,
    )  # fmt: skip
    return Played(games, len(found.game), time.perf_counter() - began)


def play_plain(s: Setting, evaluate: Evaluate, games: int, first: int = 0) -> Played:
    positions = 0
    began = time.perf_counter()
    for number in range(first, first + games):
        steps, _ = plain.play_game(
            s.game, evaluate, number=number, simulations=s.simulations, seed=s.seed,
            temperature_plies=10, depth=s.depth,
        )  # fmt: skip
        positions += len(steps)
    return Played(games, positions, time.perf_counter() - began)


PLAYERS = {"v0": play_v0, "v1": play_v1, "plain": play_plain}


def _work(name: str, s: Setting, worker: int, ready: Any, results: Any) -> None:
    """A worker: a short game to warm up, then, once all are ready, its games."""
    evaluate = s.evaluate()
    PLAYERS[name](s._replace(simulations=2), evaluate, 1)
    ready.wait()
    results.put(PLAYERS[name](s, evaluate, s.games, worker * s.games))


def side_by_side(name: str, s: Setting, workers: int) -> Played:
    """So many processes, each with its games; seconds from the moment that all are ready."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(workers + 1), context.Queue()
    crew = [
        context.Process(target=_work, args=(name, s, i, ready, results), daemon=True)
        for i in range(workers)
    ]
    for one in crew:
        one.start()
    ready.wait()
    began = time.perf_counter()
    found = [results.get() for _ in crew]
    seconds = time.perf_counter() - began
    for one in crew:
        one.join()
    return Played(sum(f.games for f in found), sum(f.positions for f in found), seconds)


def same(a: Setting, b: Setting) -> None:
    """Raises InputError where two sides of a comparison differ in what must be equal."""
    for name in ("game", "simulations", "rows", "hidden", "depth", "seed", "native"):
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs:
            raise InputError(
                f"{name} is {mine} on one side and {theirs} on the other: a comparison needs the "
                "same on both."
            )


class Rate(NamedTuple):
    """A measurement of a round. side: v0, v1 or plain; games, positions: per second."""

    round: int
    side: str
    workers: int
    games: float
    positions: float


def quotients(rates: Sequence[Rate], fast: str, slow: str) -> dict[int, list[float]]:
    """Games/s of one side over those of another, for every number of workers, a value per round.

    Raises:
        InputError: a measurement has no other side in its own round; those of different rounds are
            not comparable.
    """
    found: dict[int, list[float]] = {}
    by = {(r.round, r.side, r.workers): r.games for r in rates}
    for rate in rates:
        if rate.side != fast:
            continue
        base = by.get((rate.round, slow, rate.workers))
        if base is None:
            raise InputError(
                f"{fast} with {rate.workers} workers in round {rate.round} has no {slow} in the "
                "same round: measure both in every round."
            )
        found.setdefault(rate.workers, []).append(rate.games / base)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, deviation and the least of a few values."""
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "worst": min(values),
    }


def validate(
    old: Setting, new: Setting, workers: Sequence[int], rounds: int, plain_games: int, say: Say
) -> dict[str, Any]:
    """v0 and v1 with the same workers, round by round, and plain Python with one.

    plain_games: of plain Python in a round, which is slow; 0 leaves it out.
    """
    same(old, new)
    rates: list[Rate] = []
    say("| round | side | workers | games/s | positions/s |\n|---|---|---|---|---|")

    def add(round_: int, side: str, count: int, played: Played) -> None:
        rates.append(
            Rate(
                round_,
                side,
                count,
                played.games / played.seconds,
                played.positions / played.seconds,
            )
        )
        r = rates[-1]
        say(f"| {r.round} | {r.side} | {r.workers} | {r.games:.3f} | {r.positions:.1f} |")

    for round_ in range(rounds):
        for count in workers:
            add(round_, "v0", count, side_by_side("v0", old, count))
            add(round_, "v1", count, side_by_side("v1", new, count))
        if plain_games:
            add(round_, "plain", 1, side_by_side("plain", old._replace(games=plain_games), 1))
    over_v0 = {n: spread(values) for n, values in quotients(rates, "v1", "v0").items()}
    best = {n: statistics.fmean(r.games for r in rates if r.side == "v1" and r.workers == n)
            for n in workers}  # fmt: skip
    found: dict[str, Any] = {
        "machine": machine(), "setting": new._asdict(), "rates": [r._asdict() for r in rates],
        "v1_over_v0": over_v0, "thread_gain": max(best.values()) / best[min(workers)] - 1,
        "speedup_fixed_worker_min": min(q["mean"] for q in over_v0.values()),
        **dict.fromkeys(CUDA_ONLY, NOT_MEASURED),
    }  # fmt: skip
    if plain_games:
        ones = [r for r in rates if r.workers == 1]
        found["v1_over_plain"] = spread(quotients(ones, "v1", "plain")[1])
    say("\n| quotient | workers | mean | deviation | worst |\n|---|---|---|---|---|")
    for n, q in over_v0.items():
        say(f"| v1 / v0 | {n} | {q['mean']:.2f} | {q['deviation']:.2f} | {q['worst']:.2f} |")
    if plain_games:
        q = found["v1_over_plain"]
        say(f"| v1 / plain | 1 | {q['mean']:.0f} | {q['deviation']:.0f} | {q['worst']:.0f} |")
    say(f"\nv1 gains {found['thread_gain']:.2f} by its best number of workers over the fewest.")
    for name in CUDA_ONLY:
        say(f"{name}: {NOT_MEASURED}")
    return found


def sweep(s: Setting, boards: Sequence[int], rounds: int, say: Say) -> dict[str, Any]:
    """v1 with so many boards side by side, in turn; games/s and positions/s, medians."""
    found: dict[int, list[Played]] = {count: [] for count in boards}
    evaluate = s.evaluate()
    for count in boards:
        play_v1(s._replace(simulations=2, batch=count), evaluate, 1)
    for _ in range(rounds):
        for count in boards:
            found[count].append(play_v1(s._replace(batch=count), evaluate, whole_games(s, count)))
    rows = []
    say("| boards | games/s, median (range) | positions/s |\n|---|---|---|")
    for count, played in found.items():
        games = [p.games / p.seconds for p in played]
        positions = statistics.median(p.positions / p.seconds for p in played)
        rows.append({"boards": count, "games_per_s": games, "positions_per_s": positions})
        say(
            f"| {count} | {statistics.median(games):.2f} ({min(games):.2f} to {max(games):.2f}) | "
            f"{positions:.0f} |"
        )
    return {"machine": machine(), "setting": s._asdict(), "rows": rows}


def whole_games(s: Setting, boards: int) -> int:
    """So many games that the end, when boards run empty, is a small part; few in a short trial."""
    return max(s.games, 16 * boards if s.games >= boards else boards)


def guard(s: Setting, boards: Sequence[int], rounds: int, say: Say) -> dict[str, Any]:
    """Steps in place against steps by copies: microseconds of a step, medians of all full steps."""
    evaluate, rows = s.evaluate(), []
    say("| boards | in place, µs | by copies, µs | in place / copies |\n|---|---|---|---|")
    for count in boards:
        times: dict[int, list[float]] = {1: [], 1 << 30: []}
        for _ in range(rounds + 1):  # the first warms up
            for least, found in times.items():
                telemetry = v1.Telemetry()
                v1.play_games(
                    s.game, evaluate, games=count, batch=count, simulations=2, seed=s.seed,
                    temperature_plies=10, in_place=least, telemetry=telemetry,
                )  # fmt: skip
                found += [1e6 * step["step"] for step in telemetry.steps[: GAMES[s.game].cells]]
        first = len(times[1]) // (rounds + 1)
        place, copy = (statistics.median(found[first:]) for found in times.values())
        rows.append({"boards": count, "in_place_us": place, "copies_us": copy})
        say(f"| {count} | {place:.1f} | {copy:.1f} | {place / copy:.2f} |")
    return {"machine": machine(), "setting": s._asdict(), "rows": rows}


def workload(s: Setting, seconds: float, say: Say) -> dict[str, Any]:
    """v1 in one configuration for so long: speed over time, and where the steps' time goes."""
    evaluate = s.evaluate()
    play_v1(s._replace(simulations=2), evaluate, 1)
    steps: list[dict[str, float]] = []
    runs = []
    count = whole_games(s, s.batch)
    began, first = time.perf_counter(), 0
    while not runs or time.perf_counter() - began < seconds:
        telemetry = v1.Telemetry()
        played = play_v1(s, evaluate, count, first, telemetry)
        first += count
        steps += telemetry.steps
        runs.append(
            {"at": time.perf_counter() - began, "games_per_s": played.games / played.seconds,
             "positions_per_s": played.positions / played.seconds}
        )  # fmt: skip
    table = segments(steps)
    say("| segment | ms of a step | share | p50 | p95 |\n|---|---|---|---|---|")
    for name, row in table.items():
        say(
            f"| {name} | {row['ms']:.3f} | {row['share']:.1%} | {row['p50']:.3f} | "
            f"{row['p95']:.3f} |"
        )
    mean = statistics.fmean(run["games_per_s"] for run in runs)
    say(f"\n{len(runs)} runs of {count} games, {mean:.2f} games/s")
    return {
        "machine": machine(), "setting": s._asdict(), "segments": table, "runs": runs,
        **dict.fromkeys(CUDA_ONLY, NOT_MEASURED),
    }  # fmt: skip


def segments(steps: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Milliseconds of every segment of a step: mean, share of all, median and 95th percentile."""
    times = {name: np.array([1e3 * step[name] for step in steps]) for name in v1.SEGMENTS}
    whole = sum(float(t.sum()) for t in times.values())
    return {
        name: {
            "ms": float(t.mean()), "share": float(t.sum() / whole),
            "p50": float(np.percentile(t, 50)), "p95": float(np.percentile(t, 95)),
        }
        for name, t in times.items()
    }  # fmt: skip


def profile(s: Setting, say: Say) -> None:
    """Functions by their own time; apart from all timing, which a profiler would distort."""
    profiler = cProfile.Profile()
    profiler.runcall(partial(play_v1, s), s.evaluate(), s.games)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(15)
    say(text.getvalue())


def draw(found: dict[str, Any], picture: Path) -> None:
    """Bars of the segments' shares, and games/s over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    table = found["segments"]
    left.barh(list(table), [100 * row["share"] for row in table.values()])
    left.set_xlabel("% of a step")
    left.invert_yaxis()
    runs = found["runs"]
    right.plot([run["at"] for run in runs], [run["games_per_s"] for run in runs])
    right.set_xlabel("seconds")
    right.set_ylabel("games/s")
    right.set_ylim(bottom=0)
    figure.savefig(picture, dpi=120)


def machine() -> str:
    """The processor and its cores."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"
