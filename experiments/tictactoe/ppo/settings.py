"""Settings of the PPO runs, the same for every backend.

`document` has what the C-backend report states: 500 iterations of 512 games, learning rate 0.003,
4 epochs, batches of 64, clip 0.1, entropy 0.05, draw reward 0.5, a snapshot every 25 iterations,
an opponent drawn uniformly from the snapshots. It leaves open discount, lambda, the rewards of a
win and a loss, the weight of the value loss and the bound of the gradient's norm: 0.99, 0.95, +1
and -1, 0.5 and 0.5 here, with a constant learning rate and advantages normalised over an
iteration, as is usual. With these the policy does not reliably become unbeatable (RESULTS.md).

`strict` is the default and does: rewards 1, 0.5 and 0 for a win, a draw and a loss, a learning rate
that falls linearly to 0, and advantages as they are. All else is equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Settings:
    """Of a run of PPO.

    games: per iteration; batch: transitions of a minibatch; clip: of the probability ratio;
    win, draw, loss: rewards; snapshot: iterations between two; falling: the learning rate falls
    linearly to 0; normalise: advantages to mean 0 and deviation 1; norm: bound of the gradient's.
    """

    iterations: int = 500
    games: int = 512
    learning_rate: float = 0.003
    epochs: int = 4
    batch: int = 64
    clip: float = 0.1
    entropy: float = 0.05
    value: float = 0.5
    discount: float = 0.99
    decay: float = 0.95
    norm: float = 0.5
    win: float = 1.0
    draw: float = 0.5
    loss: float = 0.0
    snapshot: int = 25
    falling: bool = True
    normalise: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def rate(self, iteration: int) -> float:
        """Learning rate of an iteration, which count from 0."""
        return self.learning_rate * (1 - iteration / self.iterations if self.falling else 1)


SETTINGS = {
    "strict": Settings(),
    "document": replace(Settings(), loss=-1.0, falling=False, normalise=True),
}
