"""Connect four beside pgx and mctx (JAX): `python -m experiments.selfplay.mctx_peer`

Both sides ask the same float network, untrained or a copy of a run's, and run on one thread. First
games/s of self-play with as many simulations; then games against each other with equal time per
move. Both sides move on equally many boards, none of which is over; this side gets the largest
number of simulations that takes no longer than theirs in such games, by the clock on the wall and
by the processor's, as a busy machine holds up long calls more often. Every game begins from a
random opening, each of which is played twice, with sides exchanged.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

# One thread: read when JAX is loaded, which nothing imports before.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.arguments import experiment
from experiments.selfplay import measure, v1
from experiments.selfplay.evaluation import OPENINGS
from experiments.selfplay.evaluators import Float
from experiments.selfplay.games import GAMES, Boards
from experiments.selfplay.gates import TREE
from experiments.selfplay.operations import Draws, Evaluate
from experiments.selfplay.play import draw_openings, placed
from experiments.selfplay.search import Search, Trees

GAME = GAMES["connect4"]
CONSIDERED = 7  # actions of a Gumbel root
HIDDEN = (256, 256)  # units of an untrained network
MIXING, TIMED = 30, 120  # steps of games until their lengths are mixed, and those that are timed
BEYOND = 1.2  # times theirs: more simulations are not tried
CANDIDATES = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 256, 384, 512)


def modules() -> tuple[Any, Any, Any]:
    """jax, mctx and pgx.

    Raises:
        InputError: one is missing.
    """
    try:
        import jax
        import mctx
        import pgx
    except ImportError as error:
        raise InputError(f"{error.name} is missing: pip install '.[peers]' brings it.") from None
    return jax, mctx, pgx


class Peer:
    """Self-play and moves by mctx's Gumbel search on pgx's connect four."""

    def __init__(self, net: Float, simulations: int, seed: int = 0) -> None:
        self.jax, self.mctx, pgx = modules()
        self.env, self.simulations = pgx.make("connect_four"), simulations
        jnp = self.jax.numpy
        self.layers = [(jnp.asarray(w), jnp.asarray(b)) for w, b in net.layers]
        self.tops = [jnp.asarray(top) for top in net.tops]
        self.start = self.jax.jit(self.jax.vmap(self.env.init))
        self.move = self.jax.jit(self.search)
        self.step = self.jax.jit(self.jax.vmap(self.env.step))
        self.play_on = self.jax.jit(self.play)
        self.put = self.jax.jit(self.put_openings)
        self.key = self.jax.random.key(seed)

    def moves(self, state: Any) -> NDArray[np.int32]:
        """A move on each board, int32 [B]; what it says of games that are over is not read."""
        self.key, one = self.jax.random.split(self.key)
        return np.asarray(self.move(state, one), np.int32)

    def opened(self, lines: Sequence[Sequence[int]]) -> Any:
        """States after lines of actions."""
        state = self.start(self.jax.random.split(self.jax.random.key(0), len(lines)))
        for ply in range(max(map(len, lines))):
            going = np.array([len(line) > ply for line in lines])
            actions = np.array([line[ply] if len(line) > ply else 0 for line in lines], np.int32)
            state = self.mixed(going, self.step(state, actions), state)
        return state

    def put_openings(self, state: Any, rows: Any, openings: Any, of: Any) -> Any:
        """The openings `of`, int32 [B], where `rows`, bool [B], holds."""
        fresh = self.jax.tree_util.tree_map(lambda a: a[of], openings)
        return self.mixed(rows, fresh, state)

    def mixed(self, rows: Any, new: Any, old: Any) -> Any:
        """New states on some boards, bool [B]."""

        def pick(new: Any, old: Any) -> Any:
            return self.jax.numpy.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        return self.jax.tree_util.tree_map(pick, new, old)

    def network(self, state: Any) -> tuple[Any, Any]:
        """Logits and values of the side to move."""
        jnp = self.jax.numpy
        x = inputs(jnp, state.observation)
        for i, (w, b) in enumerate(self.layers[:-2]):
            x = self.jax.nn.relu(x @ w.T + b)
            x = jnp.minimum(x, self.tops[i]) if self.tops else x
        (wp, bp), (wv, bv) = self.layers[-2:]
        logits = jnp.where(state.legal_action_mask, x @ wp.T + bp, jnp.finfo(jnp.float32).min)
        return logits, jnp.tanh((x @ wv.T + bv)[:, 0])

    def after(self, params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        """mctx's recurrent_fn."""
        jnp, mover = self.jax.numpy, state.current_player
        state = self.jax.vmap(self.env.step)(state, action)
        logits, value = self.network(state)
        over = state.terminated
        reward = state.rewards[jnp.arange(len(mover)), mover]
        return self.mctx.RecurrentFnOutput(
            reward=reward, discount=jnp.where(over, 0.0, -1.0), prior_logits=logits,
            value=jnp.where(over, 0.0, value),
        ), state  # fmt: skip

    def search(self, state: Any, key: Any) -> Any:
        """Actions [B]."""
        logits, value = self.network(state)
        root = self.mctx.RootFnOutput(prior_logits=logits, value=value, embedding=state)
        return self.mctx.gumbel_muzero_policy(
            params=None, rng_key=key, root=root, recurrent_fn=self.after,
            num_simulations=self.simulations, invalid_actions=~state.legal_action_mask,
            max_num_considered_actions=CONSIDERED,
        ).action  # fmt: skip

    def play(self, state: Any, key: Any) -> tuple[Any, Any]:
        """A move on all boards; those whose game ended begin anew. Gives the number that ended."""
        one, two = self.jax.random.split(key)
        after = self.jax.vmap(self.env.step)(state, self.search(state, one))
        fresh = self.jax.vmap(self.env.init)(self.jax.random.split(two, len(after.terminated)))
        return self.mixed(after.terminated, fresh, after), after.terminated.sum()

    def games_per_second(self, boards: int, seconds: float, seed: int) -> float:
        """Of self-play on so many boards, after a warm-up of a game's length."""
        key = self.jax.random.key(seed)
        state = self.start(self.jax.random.split(key, boards))
        ended, began, done = 0, 0.0, 0
        for i in range(1 << 30):
            if i == GAME.longest:
                began, ended = time.perf_counter(), 0
            key, one = self.jax.random.split(key)
            state, done = self.play_on(state, one)
            ended += int(done)  # waits for the step
            if began and time.perf_counter() - began > seconds:
                break
        return ended / (time.perf_counter() - began)


def inputs(jnp: Any, seen: Any) -> Any:
    """pgx's observation [B, 6, 7, 2], top row first, as planes [B, 126] of games.py."""
    planes = jnp.transpose(seen[:, ::-1].astype(jnp.float32), (0, 3, 2, 1))
    planes = planes.reshape(len(seen), 2 * GAME.cells)
    return jnp.concatenate([planes, jnp.ones((len(seen), GAME.cells))], axis=1)


def own_games_per_second(
    net: Evaluate, simulations: int, boards: int, seconds: float, gumbel: int
) -> float:
    """Of v1's self-play, by games that ended in whole runs."""
    games, began, first = 0, time.perf_counter(), 0
    while not games or time.perf_counter() - began < seconds:
        v1.play_games(
            "connect4", net, games=16 * boards, simulations=simulations, batch=boards, seed=0,
            temperature_plies=0, depth=TREE, gumbel=gumbel, first=first,
        )  # fmt: skip
        first += 16 * boards
        games += 16 * boards
    return games / (time.perf_counter() - began)


class Own:
    """Moves by v1's trees."""

    def __init__(self, net: Evaluate, search: Search, boards: Boards, seed: int) -> None:
        self.net, self.seed = v1.Evaluation(net), seed
        self.boards, self.trees = boards, Trees(boards, search)

    def moves(self, slots: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """A move on each of the boards `slots`. numbers: int32 [R], of the games there, which have
        chance of their own."""
        self.trees.forget(slots)
        draws = Draws(self.seed, numbers, self.boards.facts["plies"][slots].astype(np.int32))
        policy = np.empty((len(slots), GAME.actions), np.uint16)
        self.trees.run(slots, draws, self.net)
        return self.trees.finish(slots, draws, np.zeros(len(slots), np.float32), policy)[0]


class Openings:
    """Positions that games begin with, as both sides have them. Game n begins with opening n // 2;
    in even games v1 moves first, in odd ones the peer does."""

    def __init__(self, peer: Peer, lines: list[list[int]]) -> None:
        self.lines, self.boards, self.theirs = lines, placed(GAME.name, lines), peer.opened(lines)


class Table:
    """Games side by side, of which all that are open wait for the same side to move.

    numbers: int32 [B], of the games; sides: int8 [B], v1's. results: of all games, from v1, which
    fills as they end.
    """

    def __init__(
        self, peer: Peer, openings: Openings, numbers: Sequence[int], results: NDArray[np.int8]
    ) -> None:
        """The first games, one per board."""
        self.peer, self.openings, self.results = peer, openings, results
        self.boards = Boards(GAME.name, len(numbers))
        self.theirs = peer.opened([[]] * len(numbers))
        self.numbers, self.sides = np.zeros((2, len(numbers)), np.int32)
        self.begin(np.arange(len(numbers)), numbers)

    @property
    def open(self) -> NDArray[np.int32]:
        """Boards whose game goes on, int32 [R]."""
        return np.flatnonzero(self.boards.over == 0).astype(np.int32)

    def begin(self, rows: NDArray[Any], numbers: Sequence[int]) -> None:
        """Games on some boards, by their numbers."""
        of = np.zeros(self.boards.count, np.int32)
        of[rows] = at = np.array(numbers, np.int32) // 2
        self.boards.put(rows, self.openings.boards, at)
        self.theirs = self.peer.put(self.theirs, np.isin(np.arange(len(of)), rows),
                                    self.openings.theirs, of)  # fmt: skip
        self.numbers[rows] = numbers
        self.sides[rows] = self.boards.to_move[rows] * np.where(self.numbers[rows] % 2, -1, 1)

    def play(self, actions: NDArray[np.int32], waiting: Iterator[int]) -> None:
        """Moves on all open boards; where a game has ended, the next of `waiting` begins, in which
        the other side moves first."""
        before = self.open
        self.boards.step(actions)
        self.theirs = self.peer.step(self.theirs, actions)
        ended = before[self.boards.over[before] == 1]
        self.results[self.numbers[ended]] = self.boards.result[ended] * self.sides[ended]
        if numbers := list(islice(waiting, len(ended))):
            self.begin(ended[: len(numbers)], numbers)


class Times(NamedTuple):
    """Seconds of a move of either side, by the clock on the wall and by the processor's."""

    v1: float
    v1_processor: float
    theirs: float
    theirs_processor: float


def clocks() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


def play_out(
    peer: Peer,
    own: Callable[[Boards], Own],
    openings: Openings,
    boards: int,
    steps: int | None = None,
) -> tuple[NDArray[np.int8], list[Times]]:
    """Games against each other: at two tables, at each of which the other side is to move.

    steps: a number of them, in which games begin again and again; None plays every game once, two
    from each opening. Gives results, int8 [games], from v1; and the times of every step with all
    boards open, of a move on `boards` boards.
    """
    games = range(2 * len(openings.lines))
    waiting = [iter(games[first::2]) if steps is None else cycle(games[first::2])
               for first in (0, 1)]  # fmt: skip
    boards = min(boards, len(openings.lines))
    results, times = np.zeros(len(games), np.int8), list[Times]()
    tables = [Table(peer, openings, list(islice(w, boards)), results) for w in waiting]
    players = [own(table.boards) for table in tables]
    while steps != 0 and any(len(table.open) for table in tables):
        ours, theirs = tables
        rows, actions = ours.open, np.zeros(boards, np.int32)
        began = clocks()
        if len(rows):
            actions[rows] = players[0].moves(rows, ours.numbers[rows])
        between = clocks()
        answers = peer.moves(theirs.theirs)
        if len(rows) == len(theirs.open) == boards:
            times.append(Times(*(between - began), *(clocks() - between)))
        ours.play(actions, waiting[1])
        theirs.play(answers, waiting[0])
        tables.reverse()
        players.reverse()
        steps = None if steps is None else steps - 1
    return results, times


def seconds(times: list[Times]) -> dict[str, float]:
    """Medians of a move on all boards of a table, and how often it was timed."""
    medians = Times(*(float(statistics.median(each)) for each in zip(*times, strict=True)))
    return {**medians._asdict(), "moves": len(times)}


def fitting(
    peer: Peer, own: Callable[[int], Callable[[Boards], Own]], openings: Openings, boards: int,
    say: Callable[[str], None],
) -> tuple[int, list[dict[str, float]]]:  # fmt: skip
    """The most simulations that take this side no longer per move than theirs, in games against
    each other; and the times of all that were tried.

    Raises:
        InputError: none takes so little.
    """
    tried, best = [], 0
    for simulations in CANDIDATES:
        times = play_out(peer, own(simulations), openings, boards, MIXING + TIMED)[1][MIXING:]
        spent = seconds(times)
        tried.append({"simulations": simulations, **spent})
        part = max(spent["v1"] / spent["theirs"],
                   spent["v1_processor"] / spent["theirs_processor"])  # fmt: skip
        say(f"a move of {boards} boards with {simulations} simulations and theirs with "
            f"{peer.simulations}, ms: "
            + ", ".join(f"{name} {1e3 * spent[name]:.2f}" for name in Times._fields))  # fmt: skip
        if part <= 1:
            best = simulations
        elif part > BEYOND:
            break
    if not best:
        raise InputError(f"even {CANDIDATES[0]} simulations take longer: raise --simulations.")
    return best, tried


def network(args: argparse.Namespace) -> tuple[Float, dict[str, Any]]:
    """The float network that both sides ask, and which it is.

    Raises:
        InputError: the run has none for connect four.
    """
    if not args.run:
        hidden = args.hidden or HIDDEN
        return Float(GAME, hidden, args.seed), {"untrained": True, "hidden": [*hidden]}
    from experiments.selfplay.pipeline import Run

    run = Run(args.run)
    if args.hidden or run.settings.game != GAME.name or not run.trained:
        raise InputError(
            f"--run is a run of {run.settings.game} with {run.trained} trainings: it must be one "
            f"of {GAME.name} with at least one, and brings its layers, so leave --hidden out."
        )
    learner = run.learner(run.trained)
    net = Float.of(GAME, learner.leaves())
    about = {"run": args.run.name, "settings": asdict(run.settings), "iteration": run.trained,
             "signature": learner.signature}  # fmt: skip
    return net, about | likeness(net, learner.evaluator(), args.seed)


def likeness(net: Evaluate, learnt: Evaluate, seed: int) -> dict[str, float]:
    """How near a float copy comes to a network, on positions of the network's own games."""
    games = v1.play_games(
        GAME.name, learnt, games=64, simulations=32, batch=64, seed=seed, temperature_plies=12,
        depth=TREE,
    )  # fmt: skip
    logits, values = zip(
        *(evaluate(games.state, games.legal) for evaluate in (net, learnt)), strict=True
    )
    one, two = (np.where(games.legal, a, -np.inf).argmax(axis=1) for a in logits)
    return {
        "positions": len(one), "same_best_action": float((one == two).mean()),
        "mean_difference_of_values": float(np.abs(values[0] - values[1]).mean()),
    }  # fmt: skip


def run(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    counts = (args.games, args.boards, args.table, args.simulations, args.rounds)
    if args.games % 2 or min(counts) < 1:
        raise InputError(
            "--games is even, and --boards, --table, --simulations and --rounds count from 1."
        )
    net, about = network(args)
    say(f"network: {about}")
    peer, gumbel = Peer(net, args.simulations, args.seed), 0 if args.puct else CONSIDERED
    given = {name: value for name, value in vars(args).items() if name not in ("json", "run")}
    versions = {name: version(name) for name in ("jax", "mctx", "pgx")}
    found: dict[str, Any] = {
        "machine": measure.machine(), "settings": given, "versions": versions, "network": about,
        "rounds": [],
    }  # fmt: skip
    for _ in range(args.rounds):
        theirs = peer.games_per_second(args.boards, args.seconds, args.seed)
        ours = own_games_per_second(net, args.simulations, args.boards, args.seconds, gumbel)
        found["rounds"].append({"theirs": theirs, "v1": ours})
        say(f"games/s, {args.simulations} simulations: v1 {ours:.1f}, pgx + mctx {theirs:.1f}, "
            f"quotient {ours / theirs:.2f}")  # fmt: skip
    lines = draw_openings(
        GAME.name, args.games // 2, OPENINGS[GAME.name], np.random.default_rng(args.seed)
    )
    openings, boards = Openings(peer, lines), min(args.table, len(lines))

    def own(simulations: int) -> Callable[[Boards], Own]:
        search = Search(simulations, TREE, gumbel=gumbel)
        return lambda boards: Own(net, search, boards, args.seed)

    simulations, tried = fitting(peer, own, openings, boards, say)
    peer.key = peer.jax.random.key(args.seed)  # whatever was tried before
    results, times = play_out(peer, own(simulations), openings, boards)
    wins, draws, losses = (int((results == value).sum()) for value in (1, 0, -1))
    score = (wins + draws / 2) / args.games
    found |= {
        "openings": ["".join(map(str, line)) for line in lines], "times": tried,
        "simulations": simulations, "times_of_the_match": seconds(times), "wins": wins,
        "draws": draws, "losses": losses, "score": score,
        "v1_moves_first": letters(results[::2]), "v1_moves_second": letters(results[1::2]),
    }  # fmt: skip
    say(f"v1 with {simulations} simulations against theirs with {args.simulations}: {wins} won, "
        f"{draws} drawn, {losses} lost, score {score:.1%} of {args.games} games from {len(lines)} "
        f"openings; seconds a move of {boards} boards: {seconds(times)}")  # fmt: skip
    return found


def letters(results: NDArray[np.int8]) -> str:
    """w, d or l of each game, in the order of the openings."""
    return "".join("ldw"[result + 1] for result in results)


@experiment
def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.selfplay.mctx_peer", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--simulations", type=int, default=32, help="of mctx")
    parser.add_argument("--boards", type=int, default=64, help="side by side, in self-play")
    parser.add_argument(
        "--table", type=int, default=200, help="boards of a move against each other"
    )
    parser.add_argument("--games", type=int, default=400, help="against each other")
    parser.add_argument("--run", type=Path, help="whose newest network both sides ask")
    parser.add_argument("--hidden", type=int, nargs="+", help="of an untrained network, 256 256")
    parser.add_argument("--seconds", type=float, default=20, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--puct", action="store_true", help="v1 with PUCT at the root, too")
    parser.add_argument("--json", type=Path, help="file for all that was found")
    args = parser.parse_args(words)
    from experiments.selfplay.suite import say, write

    write(args.json, run(args, say))


if __name__ == "__main__":
    sys.exit(main())
