"""The stages R1 to R4 by which a step moved from compositions of NumPy to single operations.

Stage 0 does with NumPy's arrays what a tensor library would: masks, gather, scatter, a call per
simulation. R1 takes root_puct_allocate_visits, R2 packing and writing back, R3
self_play_step_inplace, R4 finalize_trajectory_inplace. Every stage plays the same games.

A round times every stage twice: without telemetry for games/s, as reading clocks costs stages with
short steps more than others, and with it for the segments of a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.selfplay import gates, measure, plain, v1
from experiments.selfplay.games import Boards, find
from experiments.selfplay.operations import BITS, IN_PLACE, VALUES, WHOLE, Children, RootStep
from experiments.selfplay.record import BOARD
from experiments.selfplay.root_puct import with_numpy
from experiments.selfplay.search import Search

Say = Callable[[str], None]


class Composed(RootStep):
    """A step from NumPy's operations alone, but for the rules of the game and the priors."""

    def __init__(self, boards: Boards, search: Search, shown: tuple[str, ...], *rest: Any) -> None:
        super().__init__(boards, search, VALUES if shown is BITS else shown, *rest)

    def roots(
        self, slots: NDArray[np.int32], numbers: NDArray[np.int32], buffer: v1.Buffer
    ) -> None:
        self.slots, self.R = slots, len(slots)
        self.parents = taken(self.boards, slots)
        for name in BOARD:
            buffer.view(name)[:] = getattr(self.parents, name)
        buffer.view("game")[:], buffer.view("mover")[:] = numbers[slots], self.parents.to_move
        buffer.steps[slots, buffer.lengths[slots]] = np.arange(buffer.first, buffer.size)
        buffer.lengths[slots] += 1
        plies = self.parents.facts["plies"].astype(np.int32)
        self.games[: self.R], self.plies[: self.R] = numbers[slots], plies
        self.temperatures[: self.R] = plies < self.temperature_plies
        self.allowed = self.parents.legal()
        self.states[: self.R], self.legal[: self.R] = self.parents.observe(), self.allowed
        self.owner, actions = np.nonzero(self.allowed)
        self.n = len(actions)
        self.packed[: self.n] = actions
        self.row_ptr[0] = 0
        self.row_ptr[1 : self.R + 1] = np.cumsum(self.allowed.sum(axis=1))
        buffer.view("start")[:] = buffer.packed + self.row_ptr[: self.R]
        buffer.packed += self.n

    def children(self) -> Children:
        after = taken(self.parents, self.owner)
        after.step(self.packed[: self.n])
        mover = self.parents.to_move[self.owner]
        self.leaves[: self.n] = after.result * mover
        open_ = np.flatnonzero(after.over == 0)
        self.m = len(open_)
        self.waiting[: self.m], self.signs[: self.m] = open_, (after.to_move * mover)[open_]
        states = after.observe()[open_]
        return Children(states, after.legal()[open_] if self.shown is WHOLE else None)

    def allocate(
        self, logits: NDArray[np.float32], values: NDArray[np.float32], roots: NDArray[np.float32]
    ) -> None:
        self.options.simulations = 0
        super().allocate(logits, values, roots)  # leaves and priors
        priors, leaves = (np.zeros(logits.shape, np.float32) for _ in range(2))
        priors[self.allowed], leaves[self.allowed] = self.priors[: self.n], self.leaves[: self.n]
        simulations, c = self.search.simulations, self.search.exploration
        found = with_numpy(priors, leaves, self.allowed, simulations, c)
        self.visits[: self.n] = found.visits[self.allowed]
        sums = found.sums[self.allowed]
        totals = [in_order(sums[a:b]) for a, b in self.bounds()]
        roots[:] = np.array(totals, np.float32) / np.float32(simulations)

    def bounds(self) -> list[tuple[int, int]]:
        """First and last of the packed actions of every root."""
        return list(pairwise(self.row_ptr[: self.R + 1].tolist()))

    def choose(self, buffer: v1.Buffer) -> None:
        buffer.policy(self.n)[:] = self.visits[: self.n]
        draws = self.draws
        for r, (a, b) in enumerate(self.bounds()):
            u = plain.uniform(draws.seed, int(self.games[r]), int(self.plies[r]))
            visits = self.visits[a:b].tolist()
            place = plain.sampled(visits, float(self.temperatures[r]), u)
            self.chosen[r] = self.packed[a + place]
        buffer.view("action")[:] = self.chosen[: self.R]

    def step(self, buffer: v1.Buffer, in_place: int = IN_PLACE) -> NDArray[np.int32]:
        moved = taken(self.boards, self.slots)
        moved.step(self.chosen[: self.R])
        for name in BOARD:
            getattr(self.boards, name)[self.slots] = getattr(moved, name)
        soft = moved.soft
        buffer.view("material")[:], buffer.view("still")[:] = soft, moved.facts["still"]
        over = np.flatnonzero(moved.over)
        ended = len(over)
        self.ended_slots[:ended] = self.slots[over]
        self.ended_results[:ended] = moved.result[over]
        self.ended_softs[:ended] = soft[over]
        return self.ended_slots[:ended]


def taken(boards: Boards, rows: NDArray[Any]) -> Boards:
    """Copies of some boards."""
    found = Boards(boards.game.name, len(rows))
    for name in BOARD:
        getattr(found, name)[:] = getattr(boards, name)[rows]
    return found


def in_order(values: NDArray[np.float32]) -> np.float32:
    """A sum from the first to the last."""
    return np.add.accumulate(values)[-1]


class ComposedBuffer(v1.Buffer):
    """A buffer that fills targets game by game."""

    def finalize(
        self, step: RootStep, count: int, numbers: NDArray[np.int32], upcoming: int, last: int
    ) -> int:
        ended = step.ended_slots[:count]
        for i, slot in enumerate(ended.tolist()):
            rows = self.steps[slot, : self.lengths[slot]]
            mover, result = self.arrays["mover"][rows], int(step.ended_results[i])
            self.arrays["value"][rows] = result * mover
            self.arrays["soft"][rows] = step.ended_softs[i] * mover
            self.outcomes[1 - result] += 1
        self.lengths[ended] = 0
        fresh = ended[: max(0, last - upcoming)]
        numbers[fresh] = np.arange(upcoming, upcoming + len(fresh))
        step.boards.reset(fresh)
        return len(fresh)


class AfterR1(Composed):
    """Visits by one operation."""

    allocate = RootStep.allocate


class AfterR2(AfterR1):
    """Packing and writing back, too."""

    __init__ = RootStep.__init__
    roots, children, choose = RootStep.roots, RootStep.children, RootStep.choose


STAGES: dict[str, tuple[type[RootStep], type[v1.Buffer]]] = {
    "0": (Composed, ComposedBuffer),
    "R1": (AfterR1, ComposedBuffer),
    "R2": (AfterR2, ComposedBuffer),
    "R3": (RootStep, ComposedBuffer),
    "R4": (RootStep, v1.Buffer),
}
GAMES = "games/s"  # the quantity of an exit that is no segment of a step
DOCUMENT = "document"  # a reading of the exits, by their definitions; the other is GAMES


class Measured(NamedTuple):
    """A stage in a round. seconds: of a run without telemetry; segments: ms of a step, the means of
    a run with it."""

    seconds: float
    segments: dict[str, float]


class Exit(NamedTuple):
    """What a stage must improve on the one before: games/s, which must grow, or a segment, which
    must become shorter.

    least: by at least, in the median of rounds, or in each where `every` is set; readings: of the
    exits that ask for it.
    """

    what: str
    least: float
    readings: tuple[str, ...] = (DOCUMENT, GAMES)
    every: bool = False

    def gains(self, before: Sequence[Measured], after: Sequence[Measured]) -> list[float]:
        """By how much, round by round."""
        pairs = zip(before, after, strict=True)
        if self.what == GAMES:
            return [old.seconds / new.seconds - 1 for old, new in pairs]
        return [1 - new.segments[self.what] / old.segments[self.what] for old, new in pairs]


# The document defines R3 by the segment of the step, and R4 by games/s or by what the host does
# beside, which must be shorter in every round; one may also read all but R1 as games/s alone.
EXITS = {
    "R1": (Exit("search", 0.40),),
    "R2": (Exit(GAMES, 0.25),),
    "R3": (Exit("step", 0.25, (DOCUMENT,)), Exit(GAMES, 0.25, (GAMES,))),
    "R4": (Exit(GAMES, 0.05), Exit("finalize", 0.05, (DOCUMENT,), every=True)),
}
REVIEW = 3.0  # games/s of R3 over stage 0, below which the design is to be looked at again


def player(name: str, s: measure.Setting) -> v1.Player:
    """The pipeline of a stage."""
    search = Search(s.simulations, noise=s.noise)
    found = v1.Player(find(s.game), s.evaluate(), search, s.seed, s.temperature_plies)
    found.steps, found.buffers = STAGES[name]
    return found


@measure.timed
def run(s: measure.Setting, rounds: int, say: Say) -> dict[str, Any]:
    """All stages in turn, after a comparison of their games; each has its exits.

    Raises:
        InputError: a search that is not root-PUCT.
    """
    for name in ("depth", "leaves", "reuse", "gumbel", "full"):
        if (value := getattr(s, name)) != measure.Setting._field_defaults[name]:
            raise InputError(f"{name} is {value}: stages are of root-PUCT, so leave it out.")
    players = {name: player(name, s) for name in STAGES}
    equal = {}
    first = players["0"].play(min(s.games, 8), 4, 0, IN_PLACE, None)
    for name, one in players.items():
        equal[name] = gates.compare(first, one.play(min(s.games, 8), 4, 0, IN_PLACE, None))
    measured: dict[str, list[Measured]] = {name: [] for name in STAGES}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in STAGES}
    names = list(STAGES)
    for round_ in range(rounds):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:  # each is first in its turn
            began = time.perf_counter()
            players[name].play(s.games, s.batch, 0, IN_PLACE, None)
            seconds = time.perf_counter() - began
            telemetry = v1.Telemetry()
            players[name].play(s.games, s.batch, 0, IN_PLACE, telemetry)
            table = measure.segments(telemetry.steps)
            measured[name].append(Measured(seconds, {k: row["ms"] for k, row in table.items()}))
            steps[name] += telemetry.steps
    return report(s, measured, steps, equal, say)


def report(
    s: measure.Setting,
    measured: dict[str, list[Measured]],
    steps: dict[str, list[dict[str, float]]],
    equal: dict[str, gates.Comparison],
    say: Say,
) -> dict[str, Any]:
    """The exits, from what was measured."""
    rows: list[dict[str, Any]] = []
    say("| stage | games/s | search ms | step ms | finalize ms | same games |\n" + "|---" * 6 + "|")
    for before, (name, found) in zip([None, *STAGES], measured.items(), strict=False):
        table = measure.segments(steps[name])
        row: dict[str, Any] = {
            "stage": name, "games_per_s": s.games / statistics.median(m.seconds for m in found),
            "segments": table, "semantic": equal[name].row(),
            "seconds": [m.seconds for m in found], "ms": [m.segments for m in found],
        }  # fmt: skip
        if before:
            row["exits"] = [left(e, measured[before], found) for e in EXITS[name]]
            for reading in (DOCUMENT, GAMES):
                asked = [e["met"] for e in row["exits"] if reading in e["readings"]]
                row[f"met, {reading}"] = any(asked) and equal[name].passed
        rows.append(row)
        ms = " | ".join(f"{table[part]['ms']:.4f}" for part in ("search", "step", "finalize"))
        same = "yes" if equal[name].passed else "NO"
        say(f"| {name} | {row['games_per_s']:.2f} | {ms} | {same} |")
    say("\n| stage | quantity | by at least | median | worst | | reading |\n" + "|---" * 7 + "|")
    for row in rows[1:]:
        for e in row["exits"]:
            say(
                f"| {row['stage']} | {e['what']} | {e['least']:.0%} | {e['gain']:.0%} | "
                f"{e['worst']:.0%} | {'met' if e['met'] else 'not met'} | "
                f"{', '.join(e['readings'])} |"
            )
    over = quotient(measured["0"], measured["R3"])
    review = over < REVIEW
    say(
        f"\nR3 plays {over:.2f} times the games of stage 0"
        + (f": below {REVIEW:g}, so the design is to be reviewed." if review else ".")
    )
    met = {
        reading: all(row[f"met, {reading}"] for row in rows[1:]) for reading in (DOCUMENT, GAMES)
    }
    for reading, all_met in met.items():
        say(f"All exits, read by {reading}: {'met' if all_met else 'not met'}.")
    return {
        "machine": measure.machine(), "setting": s._asdict(), "stages": rows,
        "R3_over_0": over, "review": review, "met": met,
    }  # fmt: skip


def left(e: Exit, before: Sequence[Measured], after: Sequence[Measured]) -> dict[str, Any]:
    """How a stage comes out of an exit."""
    gains = e.gains(before, after)
    gain, worst = statistics.median(gains), min(gains)
    return e._asdict() | {
        "gains": gains, "gain": gain, "worst": worst,
        "met": (worst if e.every else gain) >= e.least,
    }  # fmt: skip


def quotient(slow: Sequence[Measured], fast: Sequence[Measured]) -> float:
    """Games/s of one stage over those of another, the median of rounds."""
    return statistics.median(a.seconds / b.seconds for a, b in zip(slow, fast, strict=True))
