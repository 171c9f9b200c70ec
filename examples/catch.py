"""Catch on 5 x 5: a ball falls, a paddle moves, and only the end is worth something."""

import numpy as np

import eggroll as eg

BALL, PADDLE = np.divmod(np.arange(25), 5)  # where all 25 games begin


def play(act, players):
    """All games side by side: whether the ball was caught, [players, 25]."""
    paddle = np.tile(PADDLE, (players, 1))
    for row in range(4):
        board = np.zeros((players, 25, 50), np.int8)  # a picture of the ball, one of the paddle
        board[:, np.arange(25), 5 * row + BALL] = 64
        np.put_along_axis(board, 45 + paddle[..., None], 64, axis=2)
        paddle = np.clip(paddle + act(board) - 1, 0, 4)
    return paddle == BALL


def main(seed=0, updates=60):
    net = eg.Program()
    net.policy(net.relu(net.linear(net.input(50), "hidden", 32)), "moves", 3)
    es = eg.Trainer(
        net, pop=256, estimator="token-credit", rule="whitened", learning_rate=2, seed=seed
    )
    while es.step < updates:
        es.tell(play(es.ask().act, es.pop))
    return play(lambda board: es.model(board)["moves"].argmax(-1), 1).mean()


if __name__ == "__main__":
    print(f"caught {main():.0%}")
