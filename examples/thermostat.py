"""A thermostat: an int8 network learns to heat a room, leaves as C, and runs there in a loop.

    python examples/thermostat.py --steps 60

It needs a C compiler, cc; the loop is thermostat.c.
"""

import subprocess
from pathlib import Path

import numpy as np

import eggroll as eg

COMPILE = "cc -std=c99 -O2 -I. {} -o thermostat -lm"


def live(network, room: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Mean distance from 20 degrees in two hours, [members] of rooms [members, rooms]."""
    missed = np.zeros(len(room))
    for _ in range(120):
        rows = eg.quantise(np.stack([16 * (20 - room), 4 * outside], axis=-1), 1)
        room = room + 0.01 * (outside - room) + 0.002 * (network(rows)[..., 0] + 127.0)
        missed += abs(room - 20).mean(axis=1) / 120
    return missed


def main(steps: int = 60, seed: int = 0, pop: int = 64) -> None:
    es = eg.Trainer(eg.networks.mlp(2, [16], 1), pop=pop, seed=seed, steps=steps, **eg.control())
    while es.step < steps:
        chance = np.random.default_rng((seed, es.step))  # the same rooms for all members
        room, outside = chance.uniform(5, 25, (1, 8)), chance.uniform(-10, 15, (1, 8))
        update = es.tell(-live(es.ask(), room.repeat(pop, 0), outside.repeat(pop, 0)))
    print(f"{es.model.export('thermostat.h')} by members {-update.fitness:.2f} degrees off")
    subprocess.run(COMPILE.format(Path(__file__).with_suffix(".c")).split(), check=True)
    print(subprocess.run("./thermostat", capture_output=True, text=True).stdout, end="")


if __name__ == "__main__":
    eg.script(main)
