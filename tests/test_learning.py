"""It learns: the count task, by update budget."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from eggroll.config import Config
from eggroll.run import open_run

GOAL = 0.00144  # bits per token: 0.001 nats


@pytest.mark.parametrize(
    ("pop", "seed", "updates"),
    [*((512, seed, 240) for seed in range(3)), *((1024, seed, 120) for seed in range(5)),
     (4096, 0, 60), (10240, 0, 40)],
)  # fmt: skip
def test_default_settings_learn_to_count(tmp_path, pop, seed, updates):
    """V = 16, D = 64, one layer, T = 16: to a chance of 0.999 per token, and it stays there.

    With scores in 1/256 bit: in 1/16 bit members tie long before.
    """
    losses: list[float] = []
    options = Config(
        data="count", pop=pop, seed=seed, score_bits=8, val_tokens=1 << 13, table_bits=22,
        out=str(tmp_path),
    )  # fmt: skip
    with ExitStack() as stack:
        run = open_run(options, stack)
        while run.step < updates:
            run.update()
            if run.step % 10 == 0:
                losses.append(run.validate())
    assert min(losses) <= GOAL, losses
    assert losses[-1] <= 4 * GOAL, losses
