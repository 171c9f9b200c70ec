"""Catch on 5 x 5, a game whose end alone is worth something.

    python examples/catch.py --steps 100

A ball falls, a paddle moves below it; all 25 games are played side by side, as rows.
"""

import numpy as np

import eggroll as eg

BALL, PADDLE = np.divmod(np.arange(25), 5)  # columns in which the 25 games begin


def play(act, players: int) -> np.ndarray:  # caught or not, bool [players, 25 games]
    paddle = np.tile(PADDLE, (players, 1))
    for row in range(4):
        board = np.zeros((players, 25, 25), np.int8)  # a picture with two bright points
        board[:, np.arange(25), 5 * row + BALL] = 64
        np.put_along_axis(board, 20 + paddle[..., None], 64, axis=2)
        paddle = np.clip(paddle + act(board) - 1, 0, 4)
    return paddle == BALL


def main(steps: int = 100, seed: int = 0, pop: int = 256) -> None:
    net = eg.Program()
    net.policy(net.relu(net.bias(net.linear(net.input(25), "hidden", 32), "bias")), "moves", 3)
    options = {"estimator": "token-credit", "rule": "whitened", "learning_rate": 2}
    es = eg.Trainer(net, pop=pop, steps=steps, seed=seed, **options)
    while es.step < steps:
        update = es.tell(play(es.ask().act, es.pop))
        if es.step % 20 == 0:
            print(f"update {es.step}: members caught {update.fitness:.1%}")
            if play(es.model.act, 1).all():  # the model takes the likeliest move
                break
    print(f"after {es.step} updates the model caught {play(es.model.act, 1).mean():.0%}")


if __name__ == "__main__":
    eg.script(main)
