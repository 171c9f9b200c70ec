"""What members are shown and keep: arrays of any kind, and what a caller does with them later."""

from __future__ import annotations

from typing import Any

import numpy as np

from eggroll.program import Program
from eggroll.trainer import Trainer

P = 12


def answering() -> Program:
    net = Program()
    net.output(net.linear(net.relu(net.linear(net.input(3), "hidden", 8)), "out", 2))
    return net


def trainer(net: Program, **options: Any) -> Trainer:
    return Trainer(net, pop=P, engine="cpu", **options)


def rows(seed: int) -> Any:
    return np.random.default_rng(seed).integers(-100, 100, (P, 3)).astype(np.int8)


def test_arrays_may_be_reused_after_a_call():
    """An environment's own mask of episodes under way is changed in place, step by step."""
    signatures = []
    for reuse in (False, True):
        es = trainer(answering(), estimator="token-credit", sigma_shift=0)
        members, shown, active = es.ask(), rows(0), np.ones(P, np.bool_)
        for _ in range(3):
            members(shown if reuse else shown.copy(), active=active if reuse else active.copy())
            active[4:8], shown[:] = False, 0
        active[:] = False
        es.tell(np.arange(P) ** 2 % 7)
        signatures.append(es.signature)
    assert signatures[0] == signatures[1] != trainer(answering()).signature
