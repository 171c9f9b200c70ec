"""Catch on 5 x 5: a ball falls, a paddle moves, and only the end is worth something."""

import sys

import numpy as np

import eggroll as eg

BALL, PADDLE = np.divmod(np.arange(25), 5)  # where all 25 games begin


def play(act, players):  # whether the ball was caught, [players, 25 games]
    paddle = np.tile(PADDLE, (players, 1))
    for row in range(4):
        board = np.zeros((players, 25, 25), np.int8)  # a picture with two bright points
        board[:, np.arange(25), 5 * row + BALL] = 64
        np.put_along_axis(board, 20 + paddle[..., None], 64, axis=2)
        paddle = np.clip(paddle + act(board) - 1, 0, 4)
    return paddle == BALL


def main(steps=100, seed=0):
    net = eg.Program()
    net.policy(net.relu(net.bias(net.linear(net.input(25), "hidden", 32), "bias")), "moves", 3)
    options = {"estimator": "token-credit", "rule": "whitened", "learning_rate": 2}
    es = eg.Trainer(net, pop=256, steps=steps, seed=seed, **options)
    while es.step < steps:
        es.tell(play(es.ask().act, es.pop))
    return play(es.model.act, 1).mean()


if __name__ == "__main__":
    print(f"caught {main(*map(int, sys.argv[1:])):.0%}")
