"""Tables of the feed-forward block, linear-GELU-linear: unfused, fused, and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.autograd import networks, peers
from experiments.autograd.buffers import Workspace
from experiments.autograd.kernels import GELUS, Gelu, Kernels
from experiments.autograd.manual import ManualFfn
from experiments.autograd.mlp_tables import Problem
from experiments.autograd.native import Native
from experiments.autograd.tape import Tape, Tensor
from experiments.autograd.timing import Case, Clock


def problem(rows: int, model: int, hidden: int, clock: Clock) -> Problem:
    """x [B, model] of the block; in place of labels the output's gradient dy [B, model]."""
    space, chance = Workspace(), np.random.default_rng(0)
    x, dy = (space.take((rows, model)) for _ in range(2))
    for array in (x, dy):
        array[...] = chance.normal(size=array.shape)
    return Problem(x, dy, networks.initial(model, hidden, model), clock)


def tape_step(
    kernels: Kernels, kind: Gelu, given: Problem, fuse: bool, slope: bool = False,
    workspace: Workspace | None = None,
) -> Case:  # fmt: skip
    """Forwards, then backwards from dy, the input's gradient included."""
    tape = Tape(kernels, workspace)
    layers, x = [tape.parameter(w) for w in given.layers], Tensor(given.x, needs_grad=True)
    clock = given.clock

    def step() -> dict[str, float]:
        tape.begin()
        x.grad = None
        began = clock()
        y = networks.ffn(tape, x, layers, kind, fuse, slope)
        forwards = clock()
        tape.backward(y, given.labels)
        ended = clock()
        return {"forward": forwards - began, "backward": ended - forwards, "total": ended - began}

    return step


def manual_step(kernels: Kernels, kind: Gelu, given: Problem, slope: bool) -> Case:
    """The fused calls without a tape."""
    net = ManualFfn(kernels, kind, given.x, given.layers, slope)
    clock = given.clock

    def step() -> dict[str, float]:
        began = clock()
        net.forward()
        forwards = clock()
        net.backward(given.labels)
        ended = clock()
        return {"forward": forwards - began, "backward": ended - forwards, "total": ended - began}

    return step


def steps(given: Problem, native: Native, torch: Any, compiled: bool) -> dict[str, Case]:
    """Every way through the block, by kind of GELU.

    unfused: plain nodes, an operation a call, in NumPy, buffers of their own made in every step.
    """
    cases: dict[str, Case] = {}
    for kind in GELUS:
        fresh = Workspace(np.zeros, reuse=False)
        cases |= {
            f"{kind}: unfused": tape_step(Kernels(), kind, given, fuse=False, workspace=fresh),
            f"{kind}: unfused, native calls": tape_step(native, kind, given, fuse=False),
            f"{kind}: fused": tape_step(native, kind, given, fuse=True),
            f"{kind}: fused, slope kept": tape_step(native, kind, given, fuse=True, slope=True),
            f"{kind}: fused, slope kept, no tape": manual_step(native, kind, given, True),
        }
        if torch is not None:
            words = torch, kind, given.x, given.layers, given.labels, given.clock
            cases[f"{kind}: PyTorch"] = peers.ffn(*words)
            if compiled:
                cases[f"{kind}: PyTorch, compiled"] = peers.ffn(*words, compiled=True)
    return cases


def gradients(
    given: Problem, kernels: Kernels, kind: Gelu, slope: bool, dtype: type
) -> list[NDArray]:
    """Gradients of the fused node, the input's last."""
    tape = Tape(kernels, dtype=dtype)
    layers = [tape.parameter(w) for w in given.layers]
    x = Tensor(given.x.astype(dtype), needs_grad=True)
    tape.backward(networks.ffn(tape, x, layers, kind, True, slope), given.labels.astype(dtype))
    return [tensor.grad for tensor in (*layers, x) if tensor.grad is not None]
