"""Connect four beside pgx and mctx (JAX): `python -m experiments.selfplay.mctx_peer`

Both sides ask the same float network and run on one thread. First games/s of self-play with as many
simulations; then games against each other with equal time per move: this side gets the largest
number of simulations that takes no longer than theirs, measured in the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# One thread: read when JAX is loaded, which nothing imports before.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.selfplay import measure, v1
from experiments.selfplay.evaluators import Float
from experiments.selfplay.games import GAMES, Boards
from experiments.selfplay.operations import Draws, Evaluate
from experiments.selfplay.search import Search, Trees

GAME = GAMES["connect4"]
TREE = 1000  # a depth without a limit
CONSIDERED = 7  # actions of a Gumbel root
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

    def __init__(self, net: Float, simulations: int) -> None:
        self.jax, self.mctx, pgx = modules()
        self.env, self.simulations = pgx.make("connect_four"), simulations
        jnp = self.jax.numpy
        self.layers = [(jnp.asarray(w), jnp.asarray(b)) for w, b in net.layers]
        self.start = self.jax.jit(self.jax.vmap(self.env.init))
        self.move = self.jax.jit(self.search)
        self.step = self.jax.jit(self.jax.vmap(self.env.step))
        self.play_on = self.jax.jit(self.play)

    def network(self, state: Any) -> tuple[Any, Any]:
        """Logits and values of the side to move."""
        jnp = self.jax.numpy
        x = inputs(jnp, state.observation)
        for w, b in self.layers[:-2]:
            x = self.jax.nn.relu(x @ w.T + b)
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

        def pick(new: Any, old: Any) -> Any:
            over = after.terminated.reshape(-1, *[1] * (old.ndim - 1))
            return self.jax.numpy.where(over, new, old)

        return self.jax.tree_util.tree_map(pick, fresh, after), after.terminated.sum()

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
        self.net, self.search, self.seed = v1.Evaluation(net), search, seed
        self.boards, self.trees = boards, Trees(boards, search)

    def moves(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """A move on each of the boards `slots`."""
        self.trees.forget(slots)
        plies = self.boards.facts["plies"][slots].astype(np.int32)
        draws = Draws(self.seed, slots, plies)
        policy = np.empty((len(slots), GAME.actions), np.uint16)
        self.trees.run(slots, draws, self.net)
        return self.trees.finish(slots, draws, np.zeros(len(slots), np.float32), policy)[0]


def match(peer: Peer, own: Callable[[Boards], Own], boards: int, seed: int) -> dict[str, int]:
    """Games against each other, half with each side to begin after two random moves."""
    rng, key = np.random.default_rng(seed), peer.jax.random.key(seed)
    counts = {"wins": 0, "draws": 0, "losses": 0}
    for side in (1, -1):  # of v1
        mine = Boards("connect4", boards)
        theirs = peer.start(peer.jax.random.split(key, boards))
        player, every = own(mine), np.arange(boards, dtype=np.int32)
        for ply in range(GAME.longest):
            if mine.over.all():
                break
            open_ = every[mine.over == 0]
            actions = np.zeros(boards, np.int32)
            if ply < 2:
                actions = rng.integers(0, GAME.actions, boards).astype(np.int32)
            elif mine.to_move[open_[0]] == side:
                actions[open_] = player.moves(open_)
            else:
                key, one = peer.jax.random.split(key)
                actions = np.asarray(peer.move(theirs, one), np.int32)
            mine.step(actions)
            theirs = peer.step(theirs, actions)
        result = mine.result * side
        for name, value in (("wins", 1), ("draws", 0), ("losses", -1)):
            counts[name] += int((result == value).sum())
    return counts


def seconds_per_move(call: Callable[[], Any], rounds: int = 5) -> float:
    """The median, after one call that is not counted."""
    call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def fitting(peer: Peer, net: Evaluate, boards: int, gumbel: int, say: Callable[[str], None]) -> int:
    """The most simulations that take this side no longer per move than theirs."""
    state = peer.start(peer.jax.random.split(peer.jax.random.key(0), boards))
    key = peer.jax.random.key(1)
    limit = seconds_per_move(lambda: np.asarray(peer.move(state, key)))
    say(f"theirs: {1e3 * limit:.1f} ms a move of {boards} boards, {peer.simulations} simulations")
    best = CANDIDATES[0]
    for simulations in CANDIDATES:
        start = Boards("connect4", boards)
        one = Own(net, Search(simulations, TREE, gumbel=gumbel), start, 0)
        spent = seconds_per_move(partial(one.moves, np.arange(boards, dtype=np.int32)))
        say(f"v1: {1e3 * spent:.1f} ms, {simulations} simulations")
        if spent > limit:
            break
        best = simulations
    return best


def run(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    if args.games % 2 or min(args.games, args.boards, args.simulations) < 1:
        raise InputError("--games is even, and --boards and --simulations count from 1.")
    net = Float(GAME, tuple(args.hidden), args.seed)
    peer, gumbel = Peer(net, args.simulations), 0 if args.puct else CONSIDERED
    found: dict[str, Any] = {"machine": measure.machine(), "rounds": []}
    for _ in range(args.rounds):
        theirs = peer.games_per_second(args.boards, args.seconds, args.seed)
        ours = own_games_per_second(net, args.simulations, args.boards, args.seconds, gumbel)
        found["rounds"].append({"theirs": theirs, "v1": ours})
        say(f"games/s, {args.simulations} simulations: v1 {ours:.1f}, pgx + mctx {theirs:.1f}, "
            f"quotient {ours / theirs:.2f}")  # fmt: skip
    simulations = fitting(peer, net, args.games // 2, gumbel, say)
    search = Search(simulations, TREE, gumbel=gumbel)
    counts = match(peer, lambda boards: Own(net, search, boards, args.seed), args.games // 2,
                   args.seed)  # fmt: skip
    score = (counts["wins"] + counts["draws"] / 2) / args.games
    say(f"v1 with {simulations} simulations against theirs with {args.simulations}: {counts}, "
        f"score {score:.1%} of {args.games} games")  # fmt: skip
    return found | {"simulations": simulations, "score": score, **counts}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.selfplay.mctx_peer", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--simulations", type=int, default=32, help="of mctx")
    parser.add_argument("--boards", type=int, default=64, help="side by side, in self-play")
    parser.add_argument("--games", type=int, default=400, help="against each other")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--seconds", type=float, default=20, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--puct", action="store_true", help="v1 with PUCT at the root, too")
    parser.add_argument("--json", type=Path, help="file for all that was found")
    args = parser.parse_args(words)
    try:
        from experiments.selfplay.suite import say, write

        write(args.json, run(args, say))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
