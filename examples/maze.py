"""A maze with memory: a sign at the entrance tells which way to turn at the end of a corridor.

    python examples/maze.py --steps 100 --rooms 8

On the way the state of a recurrent network must keep it."""

import numpy as np

import eggroll as eg


def memory(width: int = 8) -> eg.Program:
    net = eg.Program(width=width)
    _, s = net.stage(state=True)
    s = net.add(net.linear(net.input(3), "in", width), net.linear(s, "back", width), out=s)
    net.output(net.linear(s, "turn", 1))
    return net


def walk(network, players: int, rooms: int) -> np.ndarray:
    turns = np.zeros((players, 2), int)  # at the crossing, toward the side of the exit
    for maze, side in enumerate((-1, 1)):
        for room in range(rooms + 2):  # a sign, rooms that look alike, a crossing
            row = (64 * side * (room == 0), 64 * (0 < room <= rooms), 64 * (room > rooms))
            rows, begins = np.tile(np.int8(row), (players, 1)), np.full(players, room == 0)
            turn = network(rows, begins=begins)
        turns[:, maze] = side * turn[:, 0].astype(int)
    return turns


def main(steps: int = 100, seed: int = 0, pop: int = 128, rooms: int = 8) -> None:
    es = eg.Trainer(memory(), pop=pop, seed=seed, steps=steps, **eg.control(groups=1))
    while es.step < steps and not (walk(es.model, 1, rooms) > 8).all():
        es.tell(np.minimum(walk(es.ask(), pop, rooms), 16).sum(axis=1))
    found = (walk(es.model, 1, rooms) > 0).mean()
    print(f"after {es.step} updates the model leaves {found:.0%} of the mazes")


if __name__ == "__main__":
    eg.script(main)
