"""Steps of eggroll.adamw and of the same network in PyTorch: benchmarks/adamw_vs_torch.py.

Both are verified against each other (loss and gradients), then timed in turns, whole steps with
AdamW. Letters: S streams, T tokens, D width, L layers.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, log

import mlx.core as mx
import numpy as np
from checks import check_packages

from eggroll import networks
from eggroll.baseline.backprop import AdamwOptions, AdamwTrainer, gradient
from eggroll.baseline.twin import IN, LIMIT, ONE, STATE, schedule_of
from eggroll.baseline.twin_numpy import twin_for
from eggroll.cli import command as cli
from eggroll.spec import program as language

REPEATS = 15
NETWORKS = ((64, 1), (128, 2), (256, 6))
STREAMS, TOKENS = 128, 16

try:
    import torch
except ImportError:
    torch = None


class TorchTwin:
    """The twin in PyTorch, eager: products over all tokens wherever the recurrence allows it."""

    def __init__(self, program: language.Program, weights: dict[str, mx.array]) -> None:
        self.program = program
        self.weights = {
            name: torch.from_numpy(np.array(w)).float().div_(ONE).requires_grad_()
            for name, w in weights.items()
        }

    def operation(self, op: language.Op, tokens, *inputs):
        def clip(v):
            return v.clamp(-LIMIT, LIMIT)

        w = self.weights[self.program.leaves[op.leaf].name] if op.leaf >= 0 else None
        match op.kind, inputs:
            case "embed", ():
                return clip(torch.nn.functional.embedding(tokens, w))
            case "linear" | "score", (x,):
                return clip(torch.nn.functional.linear(x, w) * (1 / isqrt(w.shape[1])))
            case "norm", (x,):
                return clip(x * w / x.abs().mean(-1, keepdim=True).clamp_min(1 / ONE))
            case "add", (a, b):
                return clip(a + b)
            case "add_bias", (a, b):
                return clip(a + b + w)
            case "forget", (f, s):
                return (f + LIMIT) * (ONE / 256) * s
            case "mix", (f, h, s):
                return torch.lerp(s, h, (f + LIMIT) * (ONE / 256))
        raise NotImplementedError(op.kind)

    def loss(self, tokens, targets, state):
        """Mean bits per token and the new state; tokens, targets: int64 [T, S]."""
        D = self.program.width
        x, states = None, []
        for stage in self.program.stages:
            plan = schedule_of(stage)
            values = {IN: x}

            def compute(indices, known, ops=stage.ops, plan=plan):
                for i in indices:
                    inputs = (known[j] for j in plan.inputs[i])
                    known[i] = self.operation(ops[i], tokens, *inputs)

            compute(plan.before, values)
            if stage.state >= 0:
                s, seen = state[:, stage.state : stage.state + D], []
                rows = {j: v.unbind(0) for j, v in values.items()}
                for t, fresh in enumerate((tokens != 0).float()[..., None].unbind(0)):
                    now = {j: row[t] for j, row in rows.items()} | {STATE: s * fresh}
                    compute(plan.loop, now)
                    s = now[plan.state]
                    seen.append(now)
                for j in (STATE, *plan.loop):
                    values[j] = torch.stack([now[j] for now in seen])
                states.append(s)
            compute(plan.after, values)
            logits = values[plan.score] if plan.score is not None else None
            x = values[plan.out]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1) * log(2), targets.flatten()
        ) / log(2)
        return loss, torch.cat(states, 1).detach()


def torch_step(twin: TorchTwin, options: AdamwOptions, tokens, targets) -> Callable[[], float]:
    leaves = list(twin.weights.values())
    groups = [
        {"params": [w for w in leaves if w.ndim == 2], "weight_decay": options.weight_decay},
        {"params": [w for w in leaves if w.ndim == 1], "weight_decay": 0.0},
    ]
    betas = (options.beta1, options.beta2)
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=betas)
    state = torch.zeros(tokens.shape[1], twin.program.state_size)

    def step() -> float:
        nonlocal state
        optimizer.zero_grad()
        loss, state = twin.loss(tokens, targets, state)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, options.clip_norm)
        optimizer.step()
        return loss.item()

    return step


def batch(seed: int) -> language.Batch:
    """Tokens and targets, int32 [S, T]."""
    tokens = np.random.default_rng(seed).integers(0, 256, (STREAMS, TOKENS + 1)).astype(np.int32)
    return language.Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy())


def verify(program: language.Program, weights: dict[str, mx.array]) -> None:
    """Raises unless both give the same gradients, but for float32's rounding."""
    state = np.zeros((STREAMS, program.state_size), np.int8)
    read = batch(1)._replace(state=state)
    ours = gradient(program, weights, read)
    peer = TorchTwin(program, weights)
    rows = (torch.from_numpy(a.T.astype(np.int64)) for a in read[:2])
    peer.loss(*rows, torch.from_numpy(state).float())[0].backward()
    for name, mine in ours.items():
        theirs = peer.weights[name].grad.numpy() / ONE
        error = np.linalg.norm(mine - theirs) / max(np.linalg.norm(theirs), 1e-12)
        assert error < 1e-2, f"the gradients of {name} differ by {error:.1e}"


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(width: int, layers: int) -> None:
    """Prints medians, the ratio's median and its spread, taken in turns."""
    program = networks.egg(256, width, layers)
    weights = networks.initial_weights(program, 0)
    verify(program, weights)
    read = batch(0)
    options = AdamwOptions(width=width, layers=layers, streams=STREAMS, seq_len=TOKENS)
    trainer = AdamwTrainer(options, twin_for(program))
    rows = (torch.from_numpy(a.T.astype(np.int64)) for a in read[:2])
    peer = torch_step(TorchTwin(program, weights), options, *rows)

    def ours() -> None:
        trainer.update(read)

    for _ in range(3):
        ours(), peer()
    times = [(seconds(ours), seconds(peer)) for _ in range(REPEATS)]
    ratios = sorted(mine / theirs for mine, theirs in times)
    mine, theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"D {width}, L {layers}, S {STREAMS}, T {TOKENS}: eggroll.adamw {mine:.1f} ms, torch "
        f"{theirs:.1f} ms, ratio {statistics.median(ratios):.2f} "
        f"(from {ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/adamw_vs_torch.py: none."""


@cli.command(
    Options,
    name="benchmarks/adamw_vs_torch.py",
    about="Steps of eggroll.adamw and of the same network in PyTorch, verified first.",
)
def main(_: Options) -> None:
    check_packages("experiments", "torch")
    torch.set_num_threads(cli.usable_cores())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; mlx {mx.__version__}")
    for width, layers in NETWORKS:
        compare(width, layers)


if __name__ == "__main__":
    sys.exit(main())
