"""Catch, played in C++ inside the engine.

    python examples/native_world.py --steps 40

native_world.cpp beside this file is the game; it is compiled once, by the system's C++ compiler.
"""

from pathlib import Path

import eggroll as eg
from eggroll import native


def main(steps: int = 40, seed: int = 0, pop: int = 256) -> None:
    world = native.build(Path(__file__).with_suffix(".cpp")).catching
    net = eg.networks.mlp(world.inputs, [32], world.outputs)
    options = {"estimator": "token-credit", "sigma_shift": 1}
    es = eg.Trainer(net, pop=pop, steps=steps, seed=seed, **options)
    while es.step < steps:
        update = es.play(world, rows=128)  # 32 games of every member
        if update.step % 10 == 0:
            rows = 1e-6 * es.pop * 128 / update.seconds
            print(f"update {update.step}: {update.fitness:.3f} caught, {rows:.1f} M rows/s")


if __name__ == "__main__":
    eg.script(main)
