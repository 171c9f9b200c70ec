"""A run of PPO: iterations, looks, metrics and weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.tictactoe import game, metrics
from experiments.tictactoe.ppo import network
from experiments.tictactoe.ppo.settings import Settings
from experiments.tictactoe.ppo.transitions import Iteration


class Backend(Protocol):
    """What a run asks of sequential PyTorch, lockstep or native code."""

    def iterate(self) -> Iteration: ...

    def weights(self) -> NDArray[np.float32]: ...


METHODS = ("ppo-sequential", "ppo-lockstep", "ppo-native")


def backend(method: str, settings: Settings, seed: int, threads: int = 1) -> Backend:
    """The trainer of a method.

    Raises:
        InputError: it needs torch, which is missing, or a compiler.
    """
    if method == "ppo-native":
        from experiments.tictactoe.ppo.native import NativePPO

        return NativePPO(settings, seed, threads)
    torch = require_torch()
    torch.set_num_threads(threads)
    from experiments.tictactoe.ppo.pytorch import STAGES, TorchPPO

    return TorchPPO(STAGES[method], settings, seed)


def require_torch():
    """The module torch.

    Raises:
        InputError: it is missing.
    """
    try:
        import torch
    except ImportError:
        raise InputError("torch is missing: pip install '.[experiments]' brings it.") from None
    return torch


def logits_of(flat: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits [5478, 9] of all states."""
    return network.forward(flat, game.observations(game.states().boards))[0]


def train(
    method: str,
    settings: Settings,
    seed: int,
    out: Path,
    *,
    name: str = "strict",
    look: int = 5,
    threads: int = 1,
    say: Callable[[str], None] = print,
) -> dict[str, float]:
    """Trains, writes metrics.jsonl and weights/ in `out`; the last look's figures.

    name: of the settings; look: iterations between two.
    """
    trainer = backend(method, settings, seed, threads)
    totals = dict.fromkeys(("seconds", "cpu_seconds", "games", "rows", "multiply_adds"), 0.0)
    judged: dict[str, float] = {}
    about: dict[str, object] = {
        "method": method, "net": "4x256", "arithmetic": "float32", "seed": seed,
    }  # fmt: skip
    if products := getattr(trainer, "products", ""):
        about["products"] = products
        say(f"products: {products}")
    with metrics.Writer(
        out, **about, settings=name, threads=threads, iterations=settings.iterations
    ) as writer:
        for step in range(1, settings.iterations + 1):
            began, cpu_began = time.perf_counter(), time.process_time()
            done = trainer.iterate()
            totals["seconds"] += time.perf_counter() - began
            totals["cpu_seconds"] += time.process_time() - cpu_began
            totals["games"] += settings.games
            totals["rows"] += done.rows
            totals["multiply_adds"] += done.multiply_adds
            line = {"step": step, **totals, **_figures(done)}
            if step % look == 0 or step == settings.iterations:
                judged = metrics.judge(logits_of(trainer.weights()))
                line |= judged
            writer.write(**line)
            if judged and (step % (20 * look) == 0 or step == settings.iterations):
                say(f"{step}: {totals['seconds']:.1f} s, {sentence(judged)}")
    save(method, trainer.weights(), out / "weights", say)
    return judged | totals


def _figures(done: Iteration) -> dict[str, object]:
    wins, draws, losses = done.results
    return {
        **{f"{name}_loss": getattr(done.losses, name) for name in ("policy", "value")},
        "entropy": done.losses.entropy, "transitions": done.transitions,
        "self_play_win": wins / (wins + draws + losses),
        "self_play_draw": draws / (wins + draws + losses),
        **({"parts": {k: round(v, 6) for k, v in done.parts.items()}} if done.parts else {}),
    }  # fmt: skip


def sentence(judged: dict[str, float]) -> str:
    """The judges' figures in a line."""
    return (
        f"optimal {judged['optimal_draw']:.1%} drawn {judged['optimal_loss']:.2%} lost, "
        f"exploitability {judged['exploitability_as_x']:.2f} {judged['exploitability_as_o']:.2f}, "
        f"random {judged['random_win']:.1%} won {judged['random_loss']:.2%} lost, "
        f"{judged['bad_moves']:.0f} bad moves"
    )


def save(method: str, flat: NDArray[np.float32], folder: Path, say: Callable[[str], None]) -> None:
    """Writes the weights: c_policy_params.npy and c_policy.pt, or pytorch_policy.pt."""
    folder.mkdir(parents=True, exist_ok=True)
    native = method == "ppo-native"
    if native:
        np.save(folder / "c_policy_params.npy", flat)
    try:
        torch = require_torch()
    except InputError as error:
        say(f"{error} Without it c_policy.pt is not written.")
        return
    from experiments.tictactoe.ppo.policy import state_dict

    torch.save(state_dict(flat), folder / ("c_policy.pt" if native else "pytorch_policy.pt"))
