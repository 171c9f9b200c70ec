"""evosax's strategies on the same networks in float32. Letters: P members, E episodes.

A network has layers of weights, biases and ReLU, and begins with normal weights over the root of
their inputs and biases of 0, as int8 ones do. It reads int8 rows, divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.spec import rng

# Outputs of the network -> what `Gym` makes actions of: within -127..127 between bounds.
Forward = Callable[[Any, Any], Any]


class Peer(NamedTuple):
    """Settings of a strategy, one for all tasks."""

    std: float
    rate: float  # of Adam, for OpenES
    divisor: float  # of int8 rows


class Compiled(NamedTuple):
    """A strategy, its parameters, and the network of a population and of one."""

    strategy: Any
    params: Any
    together: Callable[..., Any]
    alone: Callable[..., Any]


@cache
def compiled(name: str, peer: Peer, pop: int, sizes: tuple[int, ...], bounded: bool) -> Compiled:
    """A strategy for a network of layers of these sizes, compiled once for all seeds."""
    import jax
    import jax.numpy as jnp
    import optax
    from evosax.algorithms import CMA_ES, SNES, Open_ES

    def forward(weights: Any, x: Any) -> Any:
        for i in range(len(sizes) - 1):
            x = x @ weights[f"w{i}"] + weights[f"b{i}"]
            if i < len(sizes) - 2:
                x = jax.nn.relu(x)
        return 127 * jnp.tanh(x) if bounded else x

    solution = {key: jnp.asarray(w) for key, w in first_weights(sizes, 0).items()}
    if name == "OpenES":
        strategy = Open_ES(
            pop, solution, optimizer=optax.adam(peer.rate),
            std_schedule=optax.constant_schedule(peer.std),
        )  # fmt: skip
        params = strategy.default_params
    else:
        strategy = {"SNES": SNES, "CMA-ES": CMA_ES}[name](pop, solution)
        params = strategy.default_params.replace(std_init=peer.std)
    return Compiled(strategy, params, jax.jit(jax.vmap(forward)), jax.jit(forward))


def first_weights(sizes: tuple[int, ...], seed: int) -> dict[str, NDArray[np.float32]]:
    """Float32 weights by name, before the first update."""
    chance, made = np.random.default_rng(seed), dict[str, NDArray[np.float32]]()
    for i, (K, O) in enumerate(pairwise(sizes)):
        made[f"w{i}"] = (chance.normal(size=(K, O)) / K**0.5).astype(np.float32)
        made[f"b{i}"] = np.zeros(O, np.float32)
    return made


def evolve(name: str, peer: Peer, env: Any, hidden: tuple[int, ...], seed: int) -> Iterator[Any]:
    """Trains by an update per item; an item is a function of rows, of the mean of the strategy."""
    sizes = (env.inputs, *hidden, env.outputs)
    es = compiled(name, peer, env.members, sizes, not env.draws)
    import jax
    import jax.numpy as jnp

    strategy, params = es.strategy, es.params
    weights = {key: jnp.asarray(w) for key, w in first_weights(sizes, seed).items()}
    key = jax.random.key(seed)
    state = strategy.init(key, weights, params)
    for step in range(1 << 30):
        key, asked, told = jax.random.split(key, 3)
        population, state = strategy.ask(asked, state, params)

        def members(rows: NDArray[np.int8], population: Any = population) -> NDArray[Any]:
            return np.asarray(es.together(population, rows.astype(np.float32) / peer.divisor))

        returns = env.evaluate(members, rng.counters(rng.key(seed, step), 0, 1))
        state, _ = strategy.tell(told, population, -jnp.asarray(returns), state, params)
        mean = strategy.get_mean(state)
        yield lambda rows, mean=mean: np.asarray(
            es.alone(mean, rows.astype(np.float32) / peer.divisor)
        )
