"""The stages R1 to R4 by which a step moved from compositions of NumPy to single operations.

Stage 0 does with NumPy's arrays what a tensor library would: masks, gather, scatter, a call per
simulation. R1 takes root_puct_allocate_visits, R2 packing and writing back, R3
self_play_step_inplace, R4 finalize_trajectory_inplace. Every stage plays the same games.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    for name in ("white", "black", "marks", "facts"):
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
# Stage -> (what must improve on the stage before, by at least).
EXITS = {
    "R1": ("search segment", 0.40),
    "R2": ("games/s", 0.25),
    "R3": ("games/s", 0.25),
    "R4": ("games/s", 0.05),
}
REVIEW = 3.0  # games/s of R3 over stage 0, below which the design is to be looked at again


def player(name: str, s: measure.Setting) -> v1.Player:
    """The pipeline of a stage."""
    search = Search(s.simulations, noise=0.25)
    found = v1.Player(find(s.game), s.evaluate(), search, s.seed, 10)
    found.steps, found.buffers = STAGES[name]
    return found


def run(s: measure.Setting, rounds: int, say: Say) -> dict[str, Any]:
    """All stages in turn, after a comparison of their games; each has its exit."""
    players = {name: player(name, s) for name in STAGES}
    equal = {}
    first = players["0"].play(min(s.games, 8), 4, 0, IN_PLACE, None)
    for name, one in players.items():
        equal[name] = gates.compare(first, one.play(min(s.games, 8), 4, 0, IN_PLACE, None))
    seconds: dict[str, list[float]] = {name: [] for name in STAGES}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in STAGES}
    for _ in range(rounds):
        for name, one in players.items():
            telemetry = v1.Telemetry()
            began = time.perf_counter()
            one.play(s.games, s.batch, 0, IN_PLACE, telemetry)
            seconds[name].append(time.perf_counter() - began)
            steps[name] += telemetry.steps
    return report(s, seconds, steps, equal, say)


def report(
    s: measure.Setting,
    seconds: dict[str, list[float]],
    steps: dict[str, list[dict[str, float]]],
    equal: dict[str, gates.Comparison],
    say: Say,
) -> dict[str, Any]:
    """The exits, from what was measured."""
    speed = {name: s.games / statistics.median(t) for name, t in seconds.items()}
    tables = {name: measure.segments(rows) for name, rows in steps.items()}
    names, rows = list(STAGES), []
    say("| stage | games/s | search ms | same games | exit | found | |\n" + "|---" * 7 + "|")
    for before, name in zip([None, *names], names, strict=False):
        row: dict[str, Any] = {
            "stage": name, "games_per_s": speed[name], "segments": tables[name],
            "semantic": equal[name].row(), "seconds": seconds[name],
        }  # fmt: skip
        words = ["", "", ""]
        if before and name in EXITS:
            what, least = EXITS[name]
            old, new = (tables[x]["search"]["ms"] for x in (before, name))
            gain = 1 - new / old if what == "search segment" else speed[name] / speed[before] - 1
            met = gain >= least and equal[name].passed
            row |= {"exit": what, "least": least, "gain": gain, "met": met}
            words = [f"{what} by {least:.0%}", f"{gain:.0%}", "met" if met else "not met"]
        rows.append(row)
        same = "yes" if equal[name].passed else "NO"
        say(
            f"| {name} | {speed[name]:.2f} | {tables[name]['search']['ms']:.3f} | {same} | "
            + " | ".join(words) + " |"
        )  # fmt: skip
    whole = speed["R3"] / speed["0"]
    review = whole < REVIEW
    say(
        f"\nR3 plays {whole:.2f} times the games of stage 0"
        + (f": below {REVIEW:g}, so the design is to be reviewed." if review else ".")
    )
    return {
        "machine": measure.machine(), "setting": s._asdict(), "stages": rows,
        "R3_over_0": whole, "review": review,
    }  # fmt: skip
