"""Speed of the pipelines: workers side by side, sweeps, a long run with its segments.

A round plays v0 and v1 one after the other, with the same simulations, rows of a network call and
workers; a quotient is taken within a round, then over rounds. Games/s are of runs without
telemetry, segments of others with it, which read a clock at the borders of segments alone. Nothing
synchronises, profiles or prints within.
"""

from __future__ import annotations

import cProfile
import io
import multiprocessing
import os
import platform
import pstats
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from eggroll.errors import InputError
from experiments.selfplay import device, plain, v0, v1
from experiments.selfplay.evaluators import Chunks, Int8, Native
from experiments.selfplay.games import GAMES
from experiments.selfplay.operations import Evaluate
from experiments.selfplay.search import Search

Say = Callable[[str], None]
PATIENCE = 300  # seconds until all workers are ready
P, T = ParamSpec("P"), TypeVar("T")


def profiled() -> bool:
    """Whether a profiler watches this thread."""
    monitoring = getattr(sys, "monitoring", None)  # where profilers ask to be called from 3.12 on
    watched = monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None
    return sys.getprofile() is not None or watched


def timed(measurement: Callable[P, T]) -> Callable[P, T]:
    """A measurement that refuses to run under a profiler, with an InputError."""

    @wraps(measurement)
    def run(*args: P.args, **options: P.kwargs) -> T:
        if profiled():
            raise InputError(
                "a profiler is on, which slows down calls of Python by more than others: measure "
                "without it, and use 'profile' to see functions by their time."
            )
        return measurement(*args, **options)

    return run


class Setting(NamedTuple):
    """What is the same for both sides of a comparison.

    games: of each worker; rows: of a network call at most; batch: boards of v1 side by side;
    native: whether the network is asked in C++, else by the library's engine, with the same bits;
    temperature_plies: moves that are drawn by their visits. The others are of search.Search.
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
    temperature_plies: int = 10
    noise: float = 0.0
    leaves: int = 1
    reuse: bool = False
    gumbel: int = 0
    full: bool = False

    def evaluate(self) -> Evaluate:
        """The network of a worker, on one thread."""
        net: Evaluate = Int8(GAMES[self.game], self.hidden, self.seed)
        if self.native:
            net = Native(net.weights)
        return Chunks(net, self.rows)

    @property
    def search(self) -> dict[str, Any]:
        """What both pipelines are asked for, by name."""
        return {
            name: getattr(self, name)
            for name in ("simulations", "seed", "temperature_plies", "depth", *OPTIONS)
        }


OPTIONS = ("noise", "leaves", "reuse", "gumbel", "full")


class Played(NamedTuple):
    """What a worker did."""

    games: int
    positions: int
    seconds: float


def play_v0(s: Setting, evaluate: Evaluate, games: int, first: int = 0) -> Played:
    """Its lines go to a file, as what trains on them is another process."""
    positions = 0
    began = time.perf_counter()
    with tempfile.TemporaryFile("w") as file:
        for text in v0.play_games(s.game, evaluate, games=games, first=first, **s.search):
            positions += text.count("\n")
            file.write(text)
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
        s.game, evaluate, games=games, first=first, batch=s.batch, telemetry=telemetry, **s.search
    )
    return Played(games, len(found.game), time.perf_counter() - began)


def play_whole(s: Setting, evaluate: Evaluate, games: int, first: int = 0) -> Played:
    """v1 with a policy of every child, as v0 has it, although nothing reads it."""
    return play_v1(s._replace(full=True), evaluate, games, first)


def play_plain(s: Setting, evaluate: Evaluate, games: int, first: int = 0) -> Played:
    positions = 0
    began = time.perf_counter()
    for number in range(first, first + games):
        steps, _ = plain.play_game(
            s.game, evaluate, number=number, simulations=s.simulations, seed=s.seed,
            temperature_plies=s.temperature_plies, depth=s.depth,
        )  # fmt: skip
        positions += len(steps)
    return Played(games, positions, time.perf_counter() - began)


def searchable(s: Setting, by_plain: bool) -> None:
    """Raises InputError: v0, or plain Python beside it, has no such search."""
    v0.check(Search(s.simulations, s.depth, reuse=s.reuse, gumbel=s.gumbel))
    for name in ("noise", "leaves") if by_plain else ():
        if (value := getattr(s, name)) != Setting._field_defaults[name]:
            raise InputError(
                f"{name} is {value}, which plain Python has not: leave it out, or plain Python by "
                "--plain 0."
            )


WHOLE = "v1 whole"
PLAYERS: dict[str, Callable[..., Played]] = {
    "v0": play_v0, "v1": play_v1, WHOLE: play_whole, "plain": play_plain,
}  # fmt: skip


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
    try:
        ready.wait(PATIENCE)
        began = time.perf_counter()
        found = [answer(results, crew) for _ in crew]
        seconds = time.perf_counter() - began
    except threading.BrokenBarrierError:
        raise InputError(f"a worker of {name} was not ready in {PATIENCE} s: see above.") from None
    for one in crew:
        one.join()
    return Played(sum(f.games for f in found), sum(f.positions for f in found), seconds)


def answer(results: Any, crew: Sequence[Any]) -> Played:
    """What a worker answers.

    Raises:
        InputError: one has died.
    """
    while True:
        try:
            found: Played = results.get(timeout=1)
            return found
        except queue.Empty:
            if any(one.exitcode for one in crew):
                raise InputError("a worker died: see above, and try fewer games.") from None


def same(a: Setting, b: Setting) -> None:
    """Raises InputError where two sides of a comparison differ in what must be equal."""
    own = ("games", "batch", "full")  # of a side
    for name in (name for name in Setting._fields if name not in own):
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs:
            raise InputError(
                f"{name} is {mine} on one side and {theirs} on the other: a comparison needs the "
                "same on both."
            )


class Rate(NamedTuple):
    """A measurement of a round. side: of PLAYERS; games, positions: per second."""

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


@timed
def validate(
    old: Setting, new: Setting, workers: Sequence[int], rounds: int, plain_games: int, say: Say
) -> dict[str, Any]:
    """v0, v1 and v1 with whole evaluations, which trees ask for anyway, with the same workers,
    round by round, and plain Python with one.

    plain_games: of plain Python in a round, which is slow; 0 leaves it out.
    """
    same(old, new)
    searchable(old, plain_games > 0)
    rates: list[Rate] = []
    sides = {"v0": old, "v1": new} | ({WHOLE: new} if new.depth == 1 else {})
    say("| round | side | workers | games/s | positions/s |\n|---|---|---|---|---|")

    def add(round_: int, side: str, count: int, s: Setting) -> None:
        played = side_by_side(side, s, count)
        rates.append(
            Rate(
                round_, side, count, played.games / played.seconds,
                played.positions / played.seconds,
            )
        )  # fmt: skip
        r = rates[-1]
        say(f"| {r.round} | {r.side} | {r.workers} | {r.games:.3f} | {r.positions:.1f} |")

    with device.watched() as watched:
        for round_ in range(rounds):
            for count in workers:
                for side, s in sides.items():
                    add(round_, side, count, s)
            if plain_games:
                add(round_, "plain", 1, old._replace(games=plain_games))
    best = {n: statistics.fmean(r.games for r in rates if r.side == "v1" and r.workers == n)
            for n in workers}  # fmt: skip
    over = {side: spreads(rates, side, "v0") for side in ("v1", WHOLE)}
    found: dict[str, Any] = {
        "machine": machine(), "setting": new._asdict(), "rates": [r._asdict() for r in rates],
        "games": {side: s.games for side, s in sides.items()} | {"plain": plain_games},
        "v1_over_v0": over["v1"], "whole_over_v0": over[WHOLE],
        "thread_gain": max(best.values()) / best[min(workers)] - 1,
        "speedup_fixed_worker_min": min(q["mean"] for q in over["v1"].values()),
        **watched(),
    }  # fmt: skip
    say("\n| quotient | workers | mean | deviation | worst |\n|---|---|---|---|---|")
    for side, by in over.items():
        for n, q in by.items():
            say(
                f"| {side} / v0 | {n} | {q['mean']:.2f} | {q['deviation']:.2f} | {q['worst']:.2f} |"
            )
    if plain_games:
        ones = [r for r in rates if r.workers == 1]
        q = found["v1_over_plain"] = spreads(ones, "v1", "plain")[1]
        say(f"| v1 / plain | 1 | {q['mean']:.0f} | {q['deviation']:.0f} | {q['worst']:.0f} |")
    say(f"\nv1 gains {found['thread_gain']:.2f} by its best number of workers over the fewest.")
    for line in device.shown(found):
        say(line)
    return found


def spreads(rates: Sequence[Rate], fast: str, slow: str) -> dict[int, dict[str, float]]:
    """The quotients of two sides for every number of workers: mean, deviation and worst."""
    return {n: spread(values) for n, values in quotients(rates, fast, slow).items()}


@timed
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


@timed
def guard(s: Setting, boards: Sequence[int], rounds: int, say: Say) -> dict[str, Any]:
    """Steps in place against steps by copies: microseconds of a step, medians of all full steps."""
    s = s._replace(simulations=2)
    evaluate, rows = s.evaluate(), []
    say("| boards | in place, µs | by copies, µs | in place / copies |\n|---|---|---|---|")
    for count in boards:
        times: dict[int, list[float]] = {1: [], 1 << 30: []}
        for _ in range(rounds + 1):  # the first warms up
            for least, found in times.items():
                telemetry = v1.Telemetry()
                v1.play_games(
                    s.game, evaluate, games=count, batch=count, in_place=least,
                    telemetry=telemetry, **s.search,
                )  # fmt: skip
                found += [1e6 * step["step"] for step in telemetry.steps[: GAMES[s.game].cells]]
        first = len(times[1]) // (rounds + 1)
        place, copy = (statistics.median(found[first:]) for found in times.values())
        rows.append({"boards": count, "in_place_us": place, "copies_us": copy})
        say(f"| {count} | {place:.1f} | {copy:.1f} | {place / copy:.2f} |")
    return {"machine": machine(), "setting": s._asdict(), "rows": rows}


@timed
def workload(s: Setting, seconds: float, say: Say) -> dict[str, Any]:
    """v1 in one configuration for so long: speed over time, and where the steps' time goes.

    Runs with telemetry and without take turns: the former have the segments, the latter games/s.
    """
    evaluate = s.evaluate()
    play_v1(s._replace(simulations=2), evaluate, 1)
    steps: list[dict[str, float]] = []
    runs: list[dict[str, float]] = []
    told = []  # games/s with telemetry
    count = whole_games(s, s.batch)
    with device.watched() as watched:
        began, first = time.perf_counter(), 0
        while not runs or time.perf_counter() - began < seconds:
            telemetry = v1.Telemetry()
            played = play_v1(s, evaluate, count, first, telemetry)
            told.append(played.games / played.seconds)
            steps += telemetry.steps
            played = play_v1(s, evaluate, count, first + count)
            first += 2 * count
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
    mean, slowed = statistics.fmean(run["games_per_s"] for run in runs), statistics.fmean(told)
    say(
        f"\n{len(runs)} runs of {count} games, {mean:.2f} games/s; as many with telemetry, "
        f"{slowed:.2f}"
    )
    found = {
        "machine": machine(), "setting": s._asdict(), "segments": table, "runs": runs,
        "games_per_s": mean, "games_per_s_with_telemetry": slowed, **watched(),
    }  # fmt: skip
    for line in device.shown(found):
        say(line)
    return found


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
    """Functions by their own time; apart from all timing, which refuses a profiler."""
    profiler = cProfile.Profile()
    profiler.runcall(partial(play_v1, s), s.evaluate(), s.games)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(15)
    say(text.getvalue())


def machine() -> str:
    """The processor and its cores."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"
