"""PyTorch's steps of the same networks: eager, by hand without a tape, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.autograd.timing import Case, Clock


def load_torch(threads: int) -> Any:
    """PyTorch, on that many threads.

    Raises:
        InputError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise InputError("torch is missing: pip install '.[experiments]' brings it.") from None
    torch.set_num_threads(threads)
    return torch


def parameters(torch: Any, layers: list[NDArray]) -> list[Any]:
    return [torch.tensor(w, requires_grad=True) for w in layers]


def mlp(
    torch: Any, x: NDArray, labels: NDArray, layers: list[NDArray], rate: float, clock: Clock,
    compiled: bool = False,
) -> Case:  # fmt: skip
    """Forward and loss, backward, SGD."""
    F = torch.nn.functional
    weights = parameters(torch, layers)
    batch, right = torch.tensor(x), torch.tensor(labels).long()
    optimiser = torch.optim.SGD(weights, lr=rate)

    def forward(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return F.cross_entropy(F.linear(F.relu(F.linear(batch, w1, b1)), w2, b2), right)

    run = torch.compile(forward) if compiled else forward

    def step() -> dict[str, float]:
        optimiser.zero_grad()
        began = clock()
        loss = run(*weights)
        forwards = clock()
        loss.backward()
        backwards = clock()
        optimiser.step()
        return split(began, forwards, backwards, clock())

    return step


def split(began: float, forwards: float, backwards: float, ended: float) -> dict[str, float]:
    """Seconds of a step's three parts, and of all."""
    return {
        "forward": forwards - began,
        "backward": backwards - forwards,
        "sgd": ended - backwards,
        "total": ended - began,
    }


def mlp_by_hand(
    torch: Any, x: NDArray, labels: NDArray, layers: list[NDArray], rate: float, clock: Clock
) -> Case:
    """The same without autograd: preallocated outputs, every gradient written out."""
    w1, b1, w2, b2 = (torch.tensor(w) for w in layers)
    batch, right = torch.tensor(x), torch.tensor(labels).long()
    a1, logits = torch.empty(len(x), len(w1)), torch.empty(len(x), len(w2))
    hidden, dy = torch.empty_like(a1), torch.empty_like(logits)
    slopes = [torch.empty_like(w) for w in (w1, b1, w2, b2)]
    hit = torch.nn.functional.one_hot(right, len(w2)).float() / len(x)

    def step() -> dict[str, float]:
        began = clock()
        torch.addmm(b1, batch, w1.t(), out=a1).clamp_(min=0)
        torch.addmm(b2, a1, w2.t(), out=logits)
        shares = torch.log_softmax(logits, 1)
        shares.gather(1, right[:, None]).mean()
        forwards = clock()
        torch.exp(shares, out=dy).div_(len(x)).sub_(hit)
        torch.mm(dy.t(), a1, out=slopes[2])
        torch.sum(dy, 0, out=slopes[3])
        torch.mm(dy, w2, out=hidden)
        hidden.mul_(a1 > 0)
        torch.mm(hidden.t(), batch, out=slopes[0])
        torch.sum(hidden, 0, out=slopes[1])
        backwards = clock()
        for w, slope in zip((w1, b1, w2, b2), slopes, strict=True):
            w.sub_(slope, alpha=rate)
        return split(began, forwards, backwards, clock())

    return step


def ffn(
    torch: Any,
    kind: str,
    x: NDArray,
    layers: list[NDArray],
    dy: NDArray,
    clock: Clock,
    compiled: bool = False,
) -> Case:
    """Linear, GELU, linear, forwards and backwards from dy, the input's gradient included."""
    F = torch.nn.functional
    weights = parameters(torch, [*layers, x])
    slopes, approximate = torch.tensor(dy), {"erf": "none", "tanh": "tanh"}[kind]

    def forward(w1: Any, b1: Any, w2: Any, b2: Any, batch: Any) -> Any:
        return F.linear(F.gelu(F.linear(batch, w1, b1), approximate=approximate), w2, b2)

    run = torch.compile(forward) if compiled else forward

    def step() -> dict[str, float]:
        for w in weights:
            w.grad = None
        began = clock()
        y = run(*weights)
        forwards = clock()
        y.backward(slopes)
        ended = clock()
        return {"forward": forwards - began, "backward": ended - forwards, "total": ended - began}

    return step


def mlp_gradients(torch: Any, x: NDArray, labels: NDArray, layers: list[NDArray]) -> list[NDArray]:
    """PyTorch's gradients in float64."""
    F = torch.nn.functional
    w1, b1, w2, b2 = weights = parameters(torch, [w.astype(np.float64) for w in layers])
    hidden = F.relu(F.linear(torch.tensor(x.astype(np.float64)), w1, b1))
    F.cross_entropy(F.linear(hidden, w2, b2), torch.tensor(labels).long()).backward()
    return [w.grad.numpy() for w in weights]


def ffn_gradients(
    torch: Any, kind: str, x: NDArray, layers: list[NDArray], dy: NDArray
) -> list[NDArray]:
    """PyTorch's gradients in float64, the input's last."""
    F = torch.nn.functional
    w1, b1, w2, b2, batch = weights = parameters(
        torch, [w.astype(np.float64) for w in (*layers, x)]
    )
    approximate = {"erf": "none", "tanh": "tanh"}[kind]
    hidden = F.gelu(F.linear(batch, w1, b1), approximate=approximate)
    F.linear(hidden, w2, b2).backward(torch.tensor(dy.astype(np.float64)))
    return [w.grad.numpy() for w in weights]
