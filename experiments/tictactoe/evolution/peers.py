"""Tic-tac-toe beside other people's code: `python -m experiments.tictactoe.evolution.peers`.

- evosax's OpenES on the network 27-64-64-9 in float32 (JAX), fitness and judges of method `states`,
  beside this library's two estimators, all with the same number of network evaluations;
- steps of pgx's tic_tac_toe (JAX) beside steps of the worlds in C++ and in Python, no network;
- updates by the worlds in Python and in C++, which give the same weights.

A missing package is said in a sentence, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll import _extension
from eggroll.errors import InputError
from eggroll.library import worlds as playing
from experiments.tictactoe import game, judges
from experiments.tictactoe.evolution import training as evolution
from experiments.tictactoe.evolution import worlds

MILLION = 10**6
HIDDEN = (64, 64)
Steps = Callable[[], int]  # makes steps, says how many


def module(name: str) -> Any:
    """A package by its name.

    Raises:
        InputError: it is missing.
    """
    try:
        return __import__(name)
    except ImportError:
        raise InputError(f"{name} is missing: pip install '.[peers]' brings it.") from None


def open_es(
    seed: int, budget: int, *, pop: int, rows: int, rate: float, std: float, looks: int = 10
) -> Iterator[dict[str, float]]:
    """evosax's OpenES with Adam: members see the same `rows` random states in an update.

    Yields a look: rows, seconds of updates, compilation apart, and bad moves.
    """
    module("evosax")
    import jax
    import jax.numpy as jnp
    import optax
    from evosax.algorithms import Open_ES

    inputs = game.observations(game.states().boards)
    at = np.flatnonzero(~game.states().over)
    seen, legal, good = (
        jnp.asarray(array[at]) for array in (inputs, game.legal(), game.optimal().moves)
    )

    def logits(weights: Any, x: Any) -> Any:
        for i in range(len(HIDDEN)):
            x = jax.nn.relu(x @ weights[f"w{i}"] + weights[f"b{i}"])
        return x @ weights["w"] + weights["b"]

    def fitness(weights: Any, states: Any) -> Any:
        moves = jnp.where(legal[states], logits(weights, seen[states]), -jnp.inf).argmax(axis=1)
        return jnp.take_along_axis(good[states], moves[:, None], 1).mean()

    weights = _first_weights(seed)
    es = Open_ES(
        pop, weights, optimizer=optax.adam(rate), std_schedule=optax.constant_schedule(std)
    )
    params = es.default_params

    @jax.jit
    def update(key: Any, state: Any) -> Any:
        asked, told, drawn = jax.random.split(key, 3)
        population, state = es.ask(asked, state, params)
        states = jax.random.randint(drawn, (rows,), 0, len(at))
        values = jax.vmap(fitness, (0, None))(population, states)
        return es.tell(told, population, -values, state, params)[0]

    key, steps = jax.random.key(seed), max(1, budget // (pop * rows))
    state = es.init(key, {name: jnp.asarray(w, jnp.float32) for name, w in weights.items()}, params)
    jax.block_until_ready(update(key, update(key, state)))  # compiled for both kinds of state
    every, spent = max(1, steps // looks), 0.0
    for step in range(1, steps + 1):
        key, one = jax.random.split(key)
        began = time.perf_counter()
        state = jax.block_until_ready(update(one, state))
        spent += time.perf_counter() - began
        if step % every == 0 or step == steps:
            found = np.zeros((len(game.states().over), game.CELLS))
            found[at] = np.asarray(logits(es.get_mean(state), seen))
            judged = judges.judge(game.greedy_moves(found))
            yield {"rows": step * pop * rows, "seconds": spent} | judged.row()


def _first_weights(seed: int) -> dict[str, NDArray[np.float64]]:
    chance, sizes = np.random.default_rng(seed), [game.INPUTS, *HIDDEN, game.CELLS]
    found = {}
    for i, (a, b) in enumerate(pairwise(sizes)):
        name = str(i) if i < len(HIDDEN) else ""
        found |= {f"w{name}": chance.normal(size=(a, b)) / a**0.5, f"b{name}": np.zeros(b)}
    return found


def pgx_steps(members: int, steps: int) -> Steps:
    """Steps of pgx's tic_tac_toe with legal moves at random; games begin anew by themselves."""
    pgx = module("pgx")
    import jax
    import jax.numpy as jnp
    from pgx.experimental import auto_reset

    env = pgx.make("tic_tac_toe")
    step = jax.vmap(auto_reset(env.step, env.init))

    def one(state: Any, key: Any) -> Any:
        moved, again = jax.random.split(key)
        odds = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        moves = jax.random.categorical(moved, odds, axis=1)
        return step(state, moves, jax.random.split(again, members)), state.observation.sum()

    @jax.jit
    def run(state: Any, key: Any) -> Any:
        return jax.lax.scan(one, state, jax.random.split(key, steps))

    first = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), members))
    jax.block_until_ready(run(first, jax.random.key(1)))

    def measured() -> int:
        jax.block_until_ready(run(first, jax.random.key(2)))
        return members * steps

    return measured


def _tables() -> NDArray[Any]:
    return worlds.tables(replies=1.0)  # as pgx: moves at random


def native_steps(members: int, steps: int) -> Steps:
    """Rows of the world `games` in C++: what the mover sees, its move and the reply."""
    es = evolution.trainer("64", evolution.recipe("games", "64", pop=members, rows=steps), 0)
    shared, outputs = _tables(), _outputs(members)
    call = playing.world_call(
        es.program, es.options, worlds.library().games, steps, shared, es.keys, 2
    )

    def measured() -> int:
        world = _extension.load().Worlds(call.world, call.shared, call.keys, 1)
        inputs, flags = np.zeros((members, game.INPUTS), np.int8), np.zeros(members, np.uint8)
        for row in range(steps):
            world.observe(row, inputs, flags)
            world.act(row, outputs[row % len(outputs)].view(np.uint8), flags)
        return members * steps

    return measured


def python_steps(members: int, steps: int) -> Steps:
    """The same rows by the world in Python."""
    keys = np.arange(members, dtype=np.uint64) * np.uint64(0x123456789ABCDEF)
    shared, outputs = _tables(), _outputs(members)

    def measured() -> int:
        world = worlds.Games(keys, shared)
        for row in range(steps):
            world.observe(row)
            world.act(row, outputs[row % len(outputs)])
        return members * steps

    return measured


def _outputs(members: int) -> NDArray[np.int8]:
    return np.random.default_rng(1).integers(-127, 128, (16, members, game.CELLS), np.int8)


def peak() -> int:
    """The instruction set's dot product on registers: multiply-adds in the seconds of this call."""
    began = time.perf_counter()
    rate = _extension.load().peak(1)
    return round(rate * (time.perf_counter() - began))


def updates(name: str, net: str, native: bool, rows: int = 256) -> Steps:
    """Updates of 128 members by a world in C++ or in Python, network and votes included."""
    settings = evolution.recipe("states", net, pop=128, rows=rows)
    es = evolution.trainer(net, settings, 0)
    shared, library = worlds.tables(replies=0.1, openings=7), worlds.library()
    es.play(getattr(library, name), rows, shared=shared)  # finds the scale of the values

    def measured() -> int:
        if native:
            es.play(getattr(library, name), rows, shared=shared)
        else:
            worlds.play(es, name, rows, shared)
        return es.pop * rows

    return measured


def rates(cases: dict[str, Steps], rounds: int) -> dict[str, list[float]]:
    """Steps per second of all cases, interleaved."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.perf_counter()
            count = case()
            found[name].append(count / (time.perf_counter() - began))
    return found


def told(found: dict[str, list[float]]) -> None:
    first = next(iter(found.values()))
    for name, each in found.items():
        ratio = statistics.median(a / b for a, b in zip(first, each, strict=True))
        print(
            f"{name}: {statistics.median(each) / MILLION:.4g} M/s ({min(each) / MILLION:.4g} to "
            f"{max(each) / MILLION:.4g}), 1 / {ratio:.3g} of the first",
            flush=True,
        )


def learning(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Bad moves over rows of OpenES and of this library, seed by seed."""
    found = []
    for seed in args.seeds:
        es = open_es(
            seed, args.rows, pop=args.pop, rows=args.states, rate=args.learning_rate, std=args.std
        )
        found += [{"method": "OpenES", "seed": seed} | look for look in es]
        for estimator in ("token-credit", "eggroll"):
            out = args.out / f"states-64-{estimator}-{seed}"
            looks = evolution.train(
                "states", "64", seed, out, looks=10, estimator=estimator, budget=args.rows
            )
            found += [{"method": estimator, "seed": seed} | look for look in looks]
        for method in ("OpenES", "token-credit", "eggroll"):
            last = [row for row in found if row["method"] == method][-1]
            print(
                f"{method}, seed {seed}: {last['rows'] / MILLION:.1f} M rows, "
                f"{last['seconds']:.1f} s, {last['bad_moves']:.0f} bad moves, loss to minimax "
                f"{100 * last['optimal_loss']:.1f} %",
                flush=True,
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=33 * MILLION, help="network evaluations")
    parser.add_argument("--pop", type=int, default=128, help="of OpenES")
    parser.add_argument("--states", type=int, default=256, help="that a member of OpenES sees")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of OpenES's Adam")
    parser.add_argument("--std", type=float, default=0.05, help="of OpenES's noise")
    parser.add_argument("--members", type=int, default=4096, help="of timed worlds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("runs/tictactoe-peers"))
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.seeds, args.rows, args.members, args.rounds = [0], 400_000, 256, 1
    results: dict[str, Any] = {}
    for name, part in {
        "learning": partial(learning, args),
        "steps": partial(timed_steps, args),
        "updates": partial(timed_updates, args),
    }.items():
        print(f"\n{name}", flush=True)
        try:
            results[name] = part()
        except InputError as error:
            print(error)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def timed_steps(args: argparse.Namespace) -> dict[str, list[float]]:
    """Steps of worlds without a network."""
    cases: dict[str, Steps] = {"world in C++": native_steps(args.members, 64)}
    try:
        cases["pgx"] = pgx_steps(args.members, 64)
    except InputError as error:
        print(error)
    cases["world in Python"] = python_steps(args.members, 64)
    found = rates(cases, args.rounds)
    told(found)
    return found


def timed_updates(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Whole updates by both kinds of world, beside the limit of the processor's int8 products."""
    every = {}
    for name, net in [*((name, "64") for name in worlds.WORLDS), ("states", "256")]:
        cases = {"in C++": updates(name, net, True)}
        if net == "64":
            cases["in Python"] = updates(name, net, False)
        print(f"{name}, {evolution.NAMES[net]}, rows of members", flush=True)
        found = rates(cases | {"peak": peak}, args.rounds)
        peaks = found.pop("peak")
        told(found)
        share = [r * evolution.macs(net) / p for r, p in zip(found["in C++"], peaks, strict=True)]
        print(
            f"in C++ {statistics.median(share):.1%} of the peak of {evolution.macs(net)} "
            f"multiply-adds a row, {statistics.median(peaks) / 1e9:.4g} G/s"
        )
        every[f"{name} {net}"] = found | {"peak": peaks}
    return every


if __name__ == "__main__":
    sys.exit(main())
