"""Root-PUCT beside compositions of array operations: NumPy, and PyTorch where it is installed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.selfplay.operations import Visits, root_puct_allocate_visits

Say = Callable[[str], None]
R, A = 16, 220
GATES = {"torch": 40.0, "numpy": 8.0}


def with_numpy(
    priors: NDArray[np.float32],
    leaves: NDArray[np.float32],
    valid: NDArray[np.bool_],
    simulations: int,
    exploration: float,
) -> Visits:
    """A simulation of all rows at a time, on dense arrays [R, A]."""
    weights = np.float32(exploration) * priors
    visits, sums = np.zeros_like(priors), np.zeros_like(priors)
    mean, bonus = np.zeros_like(priors), weights.copy()
    mean[~valid] = -np.inf
    rows = np.flatnonzero(valid.any(axis=1))
    for t in range(simulations):
        best = (mean + np.sqrt(np.float32(1 + t)) * bonus).argmax(axis=1)[rows]
        at = (rows, best)
        visits[at] += 1
        sums[at] += leaves[at]
        mean[at] = sums[at] / visits[at]
        bonus[at] = weights[at] / (1 + visits[at])
    totals = np.where(valid, sums, 0).sum(axis=1, dtype=np.float32)
    return Visits(visits, sums, totals / np.float32(max(simulations, 1)))


def with_torch(torch: Any, simulations: int, exploration: float) -> Callable[..., Any]:
    """The same as tensors: scores, a mask, argmax, scatter; one call per simulation each."""

    def run(priors: Any, leaves: Any, valid: Any) -> tuple[Any, Any]:
        visits, sums = torch.zeros_like(priors), torch.zeros_like(priors)
        one = torch.ones((len(priors), 1))
        for t in range(simulations):
            q = torch.where(visits > 0, sums / visits.clamp(min=1), 0.0)
            u = exploration * priors / (1 + visits) * (1 + t) ** 0.5
            best = (q + u).masked_fill(~valid, float("-inf")).argmax(dim=1, keepdim=True)
            visits.scatter_add_(1, best, one)
            sums.scatter_add_(1, best, leaves.gather(1, best))
        return visits, sums

    return run


def cases(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """Priors, leaf values and a mask that allows all: the dense case."""
    rng = np.random.default_rng(seed)
    priors = rng.dirichlet(np.full(A, 0.3), R).astype(np.float32)
    return priors, rng.uniform(-1, 1, (R, A)).astype(np.float32), np.ones((R, A), np.bool_)


def bench(rounds: int, say: Say) -> dict[str, Any]:
    """Milliseconds of each, in turn, on one thread; visits are compared first."""
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        torch = None
        say("torch is missing: pip install '.[experiments]' brings it; its row is not measured.")
    found: dict[str, Any] = {}
    for simulations in (128, 256):
        for name, mask in (("all legal", None), ("35 legal", 35)):
            priors, leaves, valid = cases(simulations)
            if mask:
                valid[:] = False
                for row in valid:
                    row[np.random.default_rng(1).choice(A, mask, replace=False)] = True
            calls: dict[str, Callable[[], Any]] = {
                "native": lambda p=priors, v=leaves, m=valid, s=simulations: (
                    root_puct_allocate_visits(p, v, m, s, 1.5)
                ),
                "numpy": lambda p=priors, v=leaves, m=valid, s=simulations: with_numpy(
                    p, v, m, s, 1.5
                ),
            }
            if torch:
                run = with_torch(torch, simulations, 1.5)
                tensors = [torch.from_numpy(a) for a in (priors, leaves, valid)]
                calls["torch"] = lambda run=run, tensors=tensors: run(*tensors)
            found[f"{simulations} simulations, {name}"] = compare(calls, rounds, say)
    return found


def compare(calls: dict[str, Callable[[], Any]], rounds: int, say: Say) -> dict[str, Any]:
    """Times calls in turn after their visits were found equal.

    Raises:
        InputError: visits differ, of NumPy's in any, of torch's, which rounds otherwise, in more
            than one in a hundred.
    """
    visits = {name: np.asarray(call()[0]) for name, call in calls.items()}
    for name, other in visits.items():
        apart = float((other != visits["native"]).mean())
        if apart > (0.01 if name == "torch" else 0.0):
            raise InputError(f"visits of {name} differ in {apart:.1%}: nothing is timed.")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - began))
    middle = {name: statistics.median(t) for name, t in times.items()}
    for name, ms in middle.items():
        quotient = ms / middle["native"]
        say(f"| {name} | {ms:.3f} | {min(times[name]):.3f} | {quotient:.1f} |")
    return {
        "ms": times, "over_native": {n: ms / middle["native"] for n, ms in middle.items()},
    }  # fmt: skip
