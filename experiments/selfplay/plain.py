"""Self-play in plain Python, to be read first: three games, two searches, one loop.

One game at a time, an object for every position and node, nothing but lists. native/ has the same
in C++, and tests compare the two: actions, positions, visits and values are equal bit for bit, as
both take float32 in the same order. White is 1 and Black is -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

# states int8 [n, F], legal bool [n, A] -> logits float32 [n, A], values float32 [n]
Evaluate = Callable[
    [NDArray[np.int8], NDArray[np.bool_]], tuple[NDArray[np.float32], NDArray[np.float32]]
]
Single = np.float32
ZERO = Single(0)
WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Position:
    """A position of a game.

    board: a stone of 1 or -1, or 0, for every cell; mover: whose move it is; over, result: 1 White
    won, 0 a draw or not over, -1 Black won; plies: since the first.
    """

    board: tuple[int, ...]
    mover: int = 1
    over: bool = False
    result: int = 0
    plies: int = 0
    actions: ClassVar[int]

    def legal(self) -> list[int]:
        """Legal actions in ascending order; none where the game is over."""
        raise NotImplementedError

    def apply(self, action: int) -> Position:
        """The position after a legal action."""
        raise NotImplementedError

    def planes(self) -> list[list[int]]:
        """What the mover sees: a plane of 0 and 1 per kind of thing."""
        mine = [int(stone == self.mover) for stone in self.board]
        theirs = [int(stone == -self.mover) for stone in self.board]
        return [mine, theirs, [1] * len(self.board)]

    def soft(self) -> float:
        """How the game stands for White, from the stones that were taken."""
        return 0.0


def end(position: Position, won: bool, full: bool) -> Position:
    """The position after its mover has moved: won, drawn as the board is full, or the other's."""
    result = position.mover if won else 0
    return replace(
        position, mover=-position.mover, over=won or full, result=result, plies=position.plies + 1
    )


class TicTacToe(Position):
    """Three in a row on 3 x 3; the action is the cell."""

    actions = 9
    LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

    @classmethod
    def begin(cls) -> TicTacToe:
        return cls((0,) * 9)

    def legal(self) -> list[int]:
        return [] if self.over else [cell for cell in range(9) if self.board[cell] == 0]

    def apply(self, action: int) -> Position:
        board = (*self.board[:action], self.mover, *self.board[action + 1 :])
        won = any(all(board[cell] == self.mover for cell in line) for line in self.LINES)
        return end(replace(self, board=board), won, 0 not in board)


class Connect4(Position):
    """Four in a row on 7 columns of 6; the action is the column, cells are column by column."""

    actions = 7

    @classmethod
    def begin(cls) -> Connect4:
        return cls((0,) * 42)

    def legal(self) -> list[int]:
        return [] if self.over else [c for c in range(7) if self.board[6 * c + 5] == 0]

    def apply(self, action: int) -> Position:
        row = next(row for row in range(6) if self.board[6 * action + row] == 0)
        at = 6 * action + row
        board = (*self.board[:at], self.mover, *self.board[at + 1 :])
        moved = replace(self, board=board)
        won = any(
            moved.run(action, row, dc, dr) >= 4 for dc, dr in ((0, 1), (1, 0), (1, 1), (1, -1))
        )
        return end(moved, won, 0 not in board)

    def run(self, column: int, row: int, dc: int, dr: int) -> int:
        """Stones of the mover in a row through a cell, along a direction and against it."""
        count = 1
        for sign in (1, -1):
            c, r = column + sign * dc, row + sign * dr
            while 0 <= c < 7 and 0 <= r < 6 and self.board[6 * c + r] == self.mover:
                count, c, r = count + 1, c + sign * dc, r + sign * dr
        return count


PHASES = ("place", "mark", "removal", "move", "capture", "forced", "counter")
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right


@dataclass(frozen=True)
class Liuzhou(Position):
    """Liuzhou chess, as LIUZHOU.md states it; cell = 6 row + column.

    marks: cells of marked stones; pending: choices that the phase still has; still: plies since a
    stone was taken.
    """

    mover: int = -1
    marks: frozenset[int] = frozenset()
    phase: str = "place"
    pending: int = 0
    still: int = 0
    actions: ClassVar[int] = 220

    @classmethod
    def begin(cls) -> Liuzhou:
        return cls((0,) * 36)

    def stones(self, side: int, marked: bool = False) -> list[int]:
        """Cells of a side's stones, marked ones only where they are asked for."""
        return [
            cell for cell in range(36)
            if self.board[cell] == side and (marked or cell not in self.marks)
        ]  # fmt: skip

    def shape(self, cell: int) -> str:
        """What the unmarked stone of a cell is part of: "line", "square" or ""."""
        own = set(self.stones(self.board[cell]))
        assert cell in own
        r, c = divmod(cell, 6)
        if all(6 * r + i in own for i in range(6)) or all(6 * i + c in own for i in range(6)):
            return "line"
        for top in (r - 1, r):
            for left in (c - 1, c):
                inside = 0 <= top < 5 and 0 <= left < 5
                if inside and all(6 * (top + i) + left + j in own for i in (0, 1) for j in (0, 1)):
                    return "square"
        return ""

    def targets(self) -> list[int]:
        """Stones of the other side that may be marked or taken: those in no shape, or all."""
        theirs = self.stones(-self.mover)
        return [cell for cell in theirs if not self.shape(cell)] or theirs

    def moves(self) -> list[int]:
        """Actions that move a stone of the mover by one step."""
        found = []
        for cell in self.stones(self.mover, marked=True):
            for d, (dr, dc) in enumerate(STEPS):
                r, c = cell // 6 + dr, cell % 6 + dc
                if 0 <= r < 6 and 0 <= c < 6 and self.board[6 * r + c] == 0:
                    found.append(36 + 4 * cell + d)
        return found

    def legal(self) -> list[int]:
        if self.over:
            return []
        if self.phase == "place":
            return [cell for cell in range(36) if self.board[cell] == 0]
        if self.phase == "removal":
            return [216]
        chosen = [180 + cell for cell in self.targets()]
        return self.moves() or chosen if self.phase == "move" else chosen

    def apply(self, action: int) -> Liuzhou:
        if action < 36:
            after = self.place(action)
        elif action < 180:
            after = self.move((action - 36) // 4, (action - 36) % 4)
        elif action == 216:
            after = self.clear()
        elif self.phase == "mark":
            after = self.mark(action - 180)
        else:
            after = self.take(action - 180)
        taken = after.board.count(0) > self.board.count(0)
        counted = self.phase not in ("place", "mark") and not taken
        after = replace(after, still=self.still + 1 if counted else 0, plies=self.plies + 1)
        drawn = not after.over and (after.plies >= 144 or after.still >= 36)
        return replace(after, over=True, result=0) if drawn else after

    def put(self, cell: int, stone: int) -> Liuzhou:
        return replace(self, board=(*self.board[:cell], stone, *self.board[cell + 1 :]))

    def turn(self, mover: int, phase: str, pending: int = 0) -> Liuzhou:
        return replace(self, mover=mover, phase=phase, pending=pending)

    def place(self, cell: int) -> Liuzhou:
        after = self.put(cell, self.mover)
        count = {"line": 2, "square": 1, "": 0}[after.shape(cell)]
        if count and after.stones(-self.mover):
            return after.turn(self.mover, "mark", count)
        return after.next_placement()

    def mark(self, cell: int) -> Liuzhou:
        after = replace(self, marks=self.marks | {cell}, pending=self.pending - 1)
        if after.pending and after.stones(-self.mover):
            return after
        return after.next_placement()

    def next_placement(self) -> Liuzhou:
        return self.turn(1, "removal") if 0 not in self.board else self.turn(-self.mover, "place")

    def clear(self) -> Liuzhou:
        if not self.marks:
            return self.turn(1, "forced", 2)
        board = tuple(0 if cell in self.marks else self.board[cell] for cell in range(36))
        after = replace(self, board=board, marks=frozenset()).turn(1, "move")
        white, black = 1 in board, -1 in board
        if white and black:
            return after
        return replace(after, over=True, result=int(white) - int(black))

    def move(self, cell: int, direction: int) -> Liuzhou:
        dr, dc = STEPS[direction]
        to = cell + 6 * dr + dc
        after = self.put(cell, 0).put(to, self.mover)
        count = {"line": 2, "square": 1, "": 0}[after.shape(to)]
        if count:
            return after.turn(self.mover, "capture", count)
        return after.turn(-self.mover, "move")

    def take(self, cell: int) -> Liuzhou:
        after = self.put(cell, 0)
        if -self.mover not in after.board:
            return replace(after, over=True, result=self.mover)
        left = self.pending - 1
        if self.phase == "capture" and left:
            return after.turn(self.mover, "capture", left)
        if self.phase == "forced":
            return after.turn(-self.mover, "forced", left) if left else after.turn(1, "move")
        if self.phase == "move":
            return after.turn(-self.mover, "counter")
        return after.turn(-self.mover, "move")

    def planes(self) -> list[list[int]]:
        def plane(cells: Sequence[int]) -> list[int]:
            return [int(cell in cells) for cell in range(36)]

        mine, theirs = (self.stones(side, marked=True) for side in (self.mover, -self.mover))
        marked = [[cell for cell in side if cell in self.marks] for side in (mine, theirs)]
        phases = [[int(self.phase == phase)] * 36 for phase in PHASES]
        return [plane(mine), plane(theirs), *map(plane, marked), *phases]

    def soft(self) -> float:
        ahead = self.board.count(1) - self.board.count(-1)
        angle = min(max(2 * ahead / 18, -math.pi / 2 + 1e-3), math.pi / 2 - 1e-3)
        return float(Single(min(max(math.tan(angle), -1.0), 1.0)))


GAMES: dict[str, type[TicTacToe] | type[Connect4] | type[Liuzhou]] = {
    "tictactoe": TicTacToe,
    "connect4": Connect4,
    "liuzhou": Liuzhou,
}


# ---- chance: a pure function of the seed, the game's number and its plies --------------------


def mixed(x: int) -> int:
    """splitmix64's hash of a word."""
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


MOVE, NOISE, GUMBEL = range(3)  # what a chance is for


def chances(seed: int, game: int, ply: int, purpose: int) -> Iterator[float]:
    """Chances in [0, 1), one after another."""
    state = mixed(mixed(mixed(seed) ^ game) ^ (4 * ply + purpose))
    while True:
        yield (mixed(state) >> 11) * 2.0**-53
        state = (state + 0x9E3779B97F4A7C15) & WORD


def uniform(seed: int, game: int, ply: int) -> float:
    """The chance in [0, 1) that a move of a game is drawn with."""
    return next(chances(seed, game, ply, MOVE))


def gumbels(seed: int, game: int, ply: int, count: int) -> list[np.float32]:
    """Gumbel noise of the first `count` actions."""
    drawn = islice(chances(seed, game, ply, GUMBEL), count)
    return [Single(-math.log(-math.log(max(u, 2.0**-53)))) for u in drawn]


def sampled(weights: Sequence[float], temperature: float, u: float) -> int:
    """The place that u falls into, odds being weight^(1 / temperature), by logarithms."""
    largest = max(weights)
    if temperature <= 0:
        return list(weights).index(largest)
    top = math.log(largest)
    odds = [math.exp((math.log(w) - top) / temperature) if w > 0 else 0.0 for w in weights]
    left = u * sum_in_order(odds)
    last = 0
    for i, odd in enumerate(odds):
        if weights[i] > 0:
            left, last = left - odd, i
            if left < 0:
                break
    return last


def sum_in_order(values: Sequence[float]) -> float:
    """A sum from the first to the last: `sum` of newer Pythons keeps what is rounded off."""
    total = 0.0
    for value in values:
        total += value
    return total


def softmax(logits: Sequence[float]) -> list[np.float32]:
    """Softmax in float64, rounded to float32 at the end."""
    top = max(logits)
    odds = [math.exp(logit - top) for logit in logits]
    total = sum_in_order(odds)
    return [Single(odd / total) for odd in odds]


# ---- search ----------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a search finds. visits: of every action; value: the mean of all simulations, for the
    mover at the root."""

    visits: list[float]
    value: float


def ask(evaluate: Evaluate, positions: Sequence[Position]) -> tuple[list[list[float]], list[float]]:
    """Logits of the legal actions and the value of each position, in one call."""
    legal = np.zeros((len(positions), positions[0].actions), np.bool_)
    for row, position in zip(legal, positions, strict=True):
        row[position.legal()] = True
    states = np.array([p.planes() for p in positions], np.int8).reshape(len(positions), -1)
    logits, values = evaluate(states, legal)
    rows = [row[mask].tolist() for row, mask in zip(logits, legal, strict=True)]
    return rows, [Single(value) for value in values]


def root_puct(root: Position, evaluate: Evaluate, simulations: int, exploration: float) -> Found:
    """Simulations shared out among the root's actions, whose values are known once and for all.

    Each goes to the first action of the largest q + sqrt(1 + simulations so far) c p / (1 + n).
    """
    actions = root.legal()
    logits, _ = ask(evaluate, [root])
    weights = [Single(exploration) * prior for prior in softmax(logits[0])]
    children = [root.apply(action) for action in actions]
    leaves = [Single(child.result * root.mover) for child in children]
    open_ = [i for i, child in enumerate(children) if not child.over]
    if open_:
        _, values = ask(evaluate, [children[i] for i in open_])
        for i, value in zip(open_, values, strict=True):
            leaves[i] = Single(children[i].mover * root.mover) * value
    visits = [Single(0)] * len(actions)
    sums = [Single(0)] * len(actions)
    for t in range(simulations):
        scores = [
            (sums[i] / visits[i] if visits[i] else Single(0))
            + np.sqrt(Single(1 + t)) * (weights[i] / (1 + visits[i]))
            for i in range(len(actions))
        ]
        best = scores.index(max(scores))
        visits[best] += Single(1)
        sums[best] += leaves[best]
    return found_of(root, actions, visits, sums)


def found_of(
    root: Position, actions: list[int], visits: list[np.float32], sums: list[np.float32]
) -> Found:
    """Visits of all actions, and the mean value."""
    every = [0.0] * root.actions
    total, count = Single(0), Single(0)
    for action, n, value in zip(actions, visits, sums, strict=True):
        every[action] = float(n)
        total, count = total + value, count + n
    return Found(every, float(total / count) if count else 0.0)


@dataclass
class Node:
    """A node of a search tree. value: the first evaluation, for White; sum: for the mover above."""

    position: Position
    action: int = -1
    logit: float = 0.0
    prior: np.float32 = ZERO
    weight: np.float32 = ZERO
    visits: int = 0
    sum: np.float32 = ZERO
    value: np.float32 = ZERO
    children: list[Node] = field(default_factory=list)

    @property
    def mean(self) -> np.float32:
        """For the mover above, 0 before the first visit."""
        return self.sum / Single(self.visits) if self.visits else ZERO

    def best(self) -> Node:
        """The first child of the largest score."""
        root = np.sqrt(Single(1 + sum(child.visits for child in self.children)))
        scores = [
            child.mean + root * (child.weight / Single(1 + child.visits)) for child in self.children
        ]
        return self.children[scores.index(max(scores))]


def tree_puct(
    top: Node, evaluate: Evaluate, simulations: int, exploration: float, depth: int
) -> Found:
    """PUCT in a tree: one leaf at a time is evaluated, and its value is added to all edges above.

    top: Node(position), or a node of an earlier search, whose subtree goes on to grow. A node
    `depth` plies below it keeps its first value.
    """
    if not top.children:
        expand(top, evaluate, exploration)
    for _ in range(simulations):
        walk(top, top.best(), evaluate, exploration, depth)
    return found_below(top)


def walk(top: Node, child: Node, evaluate: Evaluate, exploration: float, depth: int) -> None:
    """A simulation: from the root to one of its children, and on to a leaf."""
    path = [top]
    while True:
        path.append(child)
        if child.position is path[-2].position:  # not met before
            child.position = child.position.apply(child.action)
            child.value = Single(child.position.result)
            if not child.position.over:
                deeper = child.position.plies - top.position.plies < depth
                expand(child, evaluate, exploration if deeper else 0)
            break
        if not child.children:
            break
        child = child.best()
    for above, node in pairwise(path):
        node.visits += 1
        node.sum += path[-1].value * Single(above.position.mover)


def found_below(top: Node) -> Found:
    """What the simulations of a root have found."""
    actions = [child.action for child in top.children]
    visits = [Single(child.visits) for child in top.children]
    return found_of(top.position, actions, visits, [child.sum for child in top.children])


def expand(node: Node, evaluate: Evaluate, exploration: float) -> None:
    """Evaluates a node, and hangs in its actions unless exploration is 0."""
    logits, values = ask(evaluate, [node.position])
    node.value = values[0] * Single(node.position.mover)
    if exploration:
        node.children = [
            Node(node.position, action, logit, prior, Single(exploration) * prior)
            for action, logit, prior in zip(
                node.position.legal(), logits[0], softmax(logits[0]), strict=True
            )
        ]


class Improved(NamedTuple):
    """What a Gumbel root finds. policy: the improved one, of every action, in 1/65,535; action: the
    move."""

    found: Found
    policy: list[int]
    action: int


def tree_gumbel(
    top: Node,
    evaluate: Evaluate,
    simulations: int,
    exploration: float,
    depth: int,
    considered: int,
    noise: Sequence[np.float32],
) -> Improved:
    """A tree whose root tries the `considered` actions of the largest logits with Gumbel noise, and
    goes on with the better halves (Danihelka et al., 2022); nodes below are those of PUCT.

    noise: of every child of the root, drawn before the search.
    """
    expand(top, evaluate, exploration)
    for before in halving(min(considered, len(top.children)), simulations):
        walk(top, promising(top, noise, before), evaluate, exploration, depth)
    policy = [0] * top.position.actions
    totals = [float(Single(c.logit) + w) for c, w in zip(top.children, worths(top), strict=True)]
    for child, share in zip(top.children, softmax(totals), strict=True):
        policy[child.action] = math.floor(float(Single(65535) * share) + 0.5)
    best = promising(top, noise, max(child.visits for child in top.children))
    return Improved(found_below(top), policy, best.action)


def halving(considered: int, simulations: int) -> list[int]:
    """Sequential halving: of each simulation, the visits that its action must have had before.

    All considered actions are tried equally often, then the better half of them, and so on to two;
    each of these rounds has the same share of the simulations. If some are left, the last goes on.
    """
    if considered == 1:
        return list(range(simulations))
    rounds, alive, before = math.ceil(math.log2(considered)), considered, 0
    found: list[int] = []
    while len(found) < simulations:
        for _ in range(max(1, simulations // (rounds * alive))):
            found += [before] * alive
            before += 1
        alive = max(2, alive // 2)
    return found[:simulations]


def promising(top: Node, noise: Sequence[np.float32], visits: int) -> Node:
    """The first child of the largest noise + logit + worth among those with so many visits, or
    among all where none has."""
    scores = {
        i: g + Single(child.logit) + worth
        for i, (child, g, worth) in enumerate(zip(top.children, noise, worths(top), strict=True))
    }
    equal = [i for i in scores if top.children[i].visits == visits]
    return top.children[max(equal or scores, key=scores.__getitem__)]


def worths(top: Node) -> list[np.float32]:
    """What the root's actions are worth beside their logits: means of their values, stretched to
    0 .. 1, times a tenth of 50 + the most visits.

    An action without visits has the mixed value of the root: its own evaluation and, as often as
    there are simulations, the mean of the visited actions by their priors.
    """
    mixed, weight, weighted = top.value * Single(top.position.mover), ZERO, ZERO
    for child in top.children:
        if child.visits:
            weight += child.prior
            weighted += child.prior * child.sum / Single(child.visits)
    if weight > 0:
        count = Single(sum(child.visits for child in top.children))
        mixed = (mixed + count * weighted / weight) / (1 + count)
    values = [child.mean if child.visits else mixed for child in top.children]
    low, high = min(values), max(values)
    scale = Single(50 + max(child.visits for child in top.children)) * Single(0.1)
    return [scale * (value - low) / max(high - low, Single(1e-8)) for value in values]


# ---- self-play -------------------------------------------------------------------------------


class Step(NamedTuple):
    """A move that was played: where, what the search found, and which."""

    position: Position
    found: Found
    action: int


def play_game(
    game: str,
    evaluate: Evaluate,
    *,
    number: int,
    simulations: int,
    seed: int,
    temperature_plies: int,
    exploration: float = 1.5,
    depth: int = 1,
) -> tuple[list[Step], Position]:
    """A game from the first move to the last: its steps, and the position that ended it.

    number: of the game, which with the seed settles its chance. The first `temperature_plies` moves
    are drawn by their visits, later ones are the first of the most visited.
    """
    position: Position = GAMES[game].begin()
    steps = []
    while not position.over:
        if depth == 1:
            found = root_puct(position, evaluate, simulations, exploration)
        else:
            found = tree_puct(Node(position), evaluate, simulations, exploration, depth)
        temperature = 1.0 if position.plies < temperature_plies else 0.0
        u = uniform(seed, number, position.plies)
        steps.append(Step(position, found, sampled(found.visits, temperature, u)))
        position = position.apply(steps[-1].action)
    return steps, position
