"""Catch, played in C++ inside the engine: native_world.cpp beside this file is the game."""

import sys
from pathlib import Path

import eggroll as eg
from eggroll import native

updates = int((sys.argv[1:] or ["40"])[0])
world = native.build(Path(__file__).with_suffix(".cpp")).catching
net = eg.networks.mlp(world.inputs, [32], world.outputs)
es = eg.Trainer(net, pop=256, estimator="token-credit", sigma_shift=1, steps=updates)
for _ in range(updates):
    update = es.play(world, rows=128)  # 32 games of every member
    if update.step % 10 == 0:
        rows = 1e-6 * es.pop * 128 / update.seconds
        print(f"update {update.step}: {update.fitness:.3f} caught, {rows:.1f} M rows/s")
