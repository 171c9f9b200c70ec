"""Time of one update without an environment: ask, one row of the network, tell; beside evosax.

    python benchmarks/ask_tell.py --rounds 21

Every member of 64, 1,024 and 16,384 reads one row of the network 4-32-2, and is worth what its
first output says. eggroll's Trainer with the settings of `eg.control`, one thread; evosax's OpenES
(Adam, centred ranks) and SNES in float32, compiled before they are timed, one thread. Rounds are
interleaved; a time is the median (10 to 90 %). It needs '.[peers]'.
"""

import os
import sys
import time
from collections.abc import Callable

import numpy as np
from checks import check_packages

import eggroll as eg
from eggroll.errors import whole_number

if "jax" not in sys.modules:  # which reads them when it is loaded
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", flags)

MEMBERS = (64, 1024, 16384)
K, HIDDEN, O = 4, 32, 2


def ours(pop: int) -> Callable[[], float]:
    """An update of Trainer, which returns the mean fitness."""
    es = eg.Trainer(eg.networks.mlp(K, [HIDDEN], O), pop=pop, threads=1, **eg.control())
    row = np.int8([[40, -20, 9, 64]])

    def update() -> float:
        return es.tell(es.ask()(row)[:, 0]).fitness

    return update


def theirs(name: str, pop: int) -> Callable[[], float]:
    """An update of evosax, which returns the mean fitness."""
    import jax
    import jax.numpy as jnp
    import optax
    from evosax.algorithms import SNES, Open_ES

    shapes = {"w": (K, HIDDEN), "b": (HIDDEN,), "v": (HIDDEN, O), "c": (O,)}
    chance = np.random.default_rng(0)
    first = {k: jnp.asarray(chance.normal(size=s) / 4, jnp.float32) for k, s in shapes.items()}
    if name == "OpenES":
        es = Open_ES(
            pop, first, optimizer=optax.adam(0.1), std_schedule=optax.constant_schedule(0.2)
        )
    else:
        es = SNES(pop, first)
    params, key = es.default_params, jax.random.key(0)
    state = es.init(key, first, params)
    row = jnp.asarray([2.5, -1.25, 0.6, 4.0])

    def forward(weights: dict) -> jax.Array:
        return (jax.nn.relu(row @ weights["w"] + weights["b"]) @ weights["v"] + weights["c"])[0]

    together = jax.jit(jax.vmap(forward))

    def update() -> float:
        nonlocal state, key
        key, asked, told = jax.random.split(key, 3)
        population, state = es.ask(asked, state, params)
        values = together(population)
        state, _ = es.tell(told, population, -values, state, params)
        return float(np.asarray(values).mean())

    return update


def main(rounds: int = 21, updates: int = 10) -> None:
    for name, value in (("rounds", rounds), ("updates", updates)):
        whole_number(f"--{name}", value, 1)
    check_packages("peers", "jax", "optax", "evosax")
    print("| members | method | ms of an update |\n|---|---|---|")
    for pop in MEMBERS:
        methods = {
            "eggroll": ours(pop), "OpenES": theirs("OpenES", pop), "SNES": theirs("SNES", pop)
        }  # fmt: skip
        for name, update in methods.items():  # compiles, and sees that it learns
            before = np.mean([update() for _ in range(3)])
            after = np.mean([update() for _ in range(20)][-3:])
            if not after > before:
                raise eg.InputError(f"{name} does not learn: {before:.3f} became {after:.3f}.")
        times: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(rounds):
            for name, update in methods.items():
                began = time.perf_counter()
                for _ in range(updates):
                    update()
                times[name].append((time.perf_counter() - began) * 1000 / updates)
        for name, found in times.items():
            low, middle, high = np.quantile(found, (0.1, 0.5, 0.9))
            print(f"| {pop:,} | {name} | {middle:.2f} ({low:.2f} to {high:.2f}) |", flush=True)


if __name__ == "__main__":
    eg.script(main)
