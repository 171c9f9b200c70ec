"""CartPole-v1 by an int8 network and by evosax's OpenES: `python -m experiments.cartpole`

Both train 4-32-2 (ReLU, biases) in Gymnasium's vectorised CartPole, seed by seed in turn, until the
mean of 100 validation episodes is 490; then 100 unseen episodes judge. Seconds are those of
updates, validation and compilation apart. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll.errors import InputError
from eggroll.spec import rng
from experiments.arguments import experiment, positive

HIDDEN = 32
SOLVED = 490  # of the validation: above 475, so that other episodes pass, too


class Solved(NamedTuple):
    """A run until its end: seconds of updates; unseen: mean return of unseen episodes."""

    solved: bool
    updates: int
    episodes: int
    steps: int
    seconds: float
    unseen: float


# Trains by an update per item; an item is a function of rows for the judge.
Method = Callable[[Any, int, argparse.Namespace], Iterator[Any]]


def int8(env: Any, seed: int, args: argparse.Namespace) -> Iterator[Any]:
    """The default rule and estimator."""
    net = eg.networks.mlp(env.inputs, [HIDDEN], env.outputs)
    es = eg.Trainer(net, pop=args.pop, seed=seed, threads=args.threads)
    while True:
        es.tell(env.evaluate(es.ask(), es.keys(1)))
        yield es.model


@cache
def compiled(pop: int, learning_rate: float, std: float, inputs: int, outputs: int) -> Any:
    """OpenES with Adam, and the network of a population and of one; compiled once for all seeds."""
    import jax
    import jax.numpy as jnp
    import optax
    from evosax.algorithms import Open_ES

    def forward(weights: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ weights["a"] + weights["c"])
        return hidden @ weights["b"] + weights["d"]

    shapes = {"a": (inputs, HIDDEN), "b": (HIDDEN, outputs), "c": (HIDDEN,), "d": (outputs,)}
    es = Open_ES(
        pop, {name: jnp.zeros(shape) for name, shape in shapes.items()},
        optimizer=optax.adam(learning_rate), std_schedule=optax.constant_schedule(std),
    )  # fmt: skip
    return es, jax.jit(jax.vmap(forward)), jax.jit(forward)


def open_es(env: Any, seed: int, args: argparse.Namespace) -> Iterator[Any]:
    """evosax's OpenES with Adam, in float32; ranks, antithetic."""
    import jax
    import jax.numpy as jnp

    es, together, alone = compiled(args.pop, args.learning_rate, args.std, env.inputs, env.outputs)
    chance = np.random.default_rng(seed)
    first = {
        "a": chance.normal(size=(env.inputs, HIDDEN)) / env.inputs**0.5,
        "b": chance.normal(size=(HIDDEN, env.outputs)) / HIDDEN**0.5,
        "c": np.zeros(HIDDEN),
        "d": np.zeros(env.outputs),
    }
    weights = {name: jnp.asarray(w, jnp.float32) for name, w in first.items()}
    key, params = jax.random.key(seed), es.default_params
    state = es.init(key, weights, params)
    for step in range(1 << 30):
        key, asked, told = jax.random.split(key, 3)
        population, state = es.ask(asked, state, params)

        def members(rows: NDArray[np.int8], population: Any = population) -> NDArray[Any]:
            return np.asarray(together(population, rows.astype(np.float32) / 16))

        words = rng.counters(rng.key(seed, step), 0, 1)
        returns = env.evaluate(members, words)
        state, _ = es.tell(told, population, -jnp.asarray(returns), state, params)
        mean = es.get_mean(state)
        yield lambda rows, mean=mean: np.asarray(alone(mean, rows.astype(np.float32) / 16))


METHODS: dict[str, Method] = {"int8": int8, "OpenES": open_es}


def solve(method: Method, seed: int, args: argparse.Namespace) -> Solved:
    """A run of one method."""
    env = eg.envs.gym("CartPole-v1", members=args.pop)
    judge = eg.envs.gym("CartPole-v1", members=100)
    seconds, updates, over, updating = 0.0, 0, False, method(env, seed, args)
    while not over and updates < args.updates:
        began = time.perf_counter()
        model = next(updating)
        seconds += time.perf_counter() - began
        updates += 1
        over = judge.evaluate(model, rng.counters(rng.key(seed, 1), 0, 100)).mean() >= SOLVED
    unseen = judge.evaluate(model, rng.counters(rng.key(seed, 2), 0, 100)).mean()
    return Solved(over, updates, updates * args.pop, env.steps, seconds, float(unseen))


def summary(runs: list[Solved]) -> str:
    """Median and range of what runs took."""

    def of(values: list[float], digits: int = 0) -> str:
        low, high = min(values), max(values)
        return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"

    return (
        f"{sum(run.solved for run in runs)} of {len(runs)} solved, "
        f"{of([r.seconds for r in runs], 2)} s, "
        f"{of([r.updates for r in runs])} updates, {of([r.episodes for r in runs])} episodes, "
        f"{of([r.steps for r in runs])} steps, unseen {of([r.unseen for r in runs], 1)}"
    )


@experiment
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--pop", type=positive, default=128)
    parser.add_argument("--updates", type=positive, default=200, help="at most")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of OpenES's Adam")
    parser.add_argument("--std", type=float, default=0.2, help="of OpenES's noise")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="one seed, few updates")
    args = parser.parse_args()
    if args.smoke:
        args.seeds, args.updates, args.pop = 1, 3, 32
    runs: dict[str, list[Solved]] = {name: [] for name in args.methods}
    for name in args.methods:  # compiles what is compiled
        try:
            next(METHODS[name](eg.envs.gym("CartPole-v1", members=args.pop), 0, args))
        except ModuleNotFoundError as error:
            raise InputError(
                f"{error.name} is missing: pip install '.[peers]' brings it."
            ) from None
    for seed in range(args.seeds):
        for name in args.methods:
            runs[name].append(solve(METHODS[name], seed, args))
            print(f"{name}, seed {seed}: {summary(runs[name][-1:])}", flush=True)
    for name in args.methods:
        print(f"{name}: {summary(runs[name])}")
