"""Plain nodes: one operation each, with a buffer of its own. Letters as in tape.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.autograd.kernels import Gelu, check_gelu, words
from experiments.autograd.tape import Parts, Tape, Tensor

MASKS = ("output", "bits")  # where a ReLU's backward reads its mask


Shape = tuple[int, ...]


def check_layer(name: str, x: Shape, w: Shape, bias: Shape | None = None) -> None:
    """Raises InputError unless the shapes x [B, I], w [O, I] and bias [O] go together."""
    if len(x) != 2 or len(w) != 2 or x[1] != w[1]:
        raise InputError(
            f"{name} was given inputs {x} and weights {w}: inputs are (rows, I), weights (O, I) "
            "with the same I."
        )
    if bias is not None and bias != w[:1]:
        raise InputError(f"{name} was given a bias {bias}: it must be {w[:1]}.")


def check_mask(mask: str, kinds: tuple[str, ...] = MASKS) -> None:
    """Raises InputError unless the mask's kind exists."""
    if mask not in kinds:
        raise InputError(f"{mask} is no kind of mask: choose {' or '.join(kinds)}.")


def matmul(tape: Tape, x: Tensor, w: Tensor, name: str = "matmul") -> Tensor:
    """x [B, I] w^T, w [O, I]: [B, O]."""
    check_layer(name, x.shape, w.shape)
    kernels = tape.kernels
    out = tape.buffer(len(x.data), len(w.data))
    kernels.matmul(x.data, w.data, out, "nt")
    parts: Parts = []
    if w.needs_grad:
        parts.append(
            ("dw", lambda: tape.receive(w, lambda to: kernels.matmul(y.grad, x.data, to, "tn")))
        )
    if x.needs_grad:
        parts.append(("dx", lambda: tape.receive(x, lambda to: kernels.matmul(y.grad, w.data, to))))
    y = tape.record(name, out, [x, w], parts)
    return y


def add_bias(tape: Tape, x: Tensor, bias: Tensor, name: str = "bias") -> Tensor:
    """x [B, O] + bias [O]."""
    if bias.shape != x.shape[1:]:
        raise InputError(f"{name} was given a bias {bias.shape}: it must be {x.shape[1:]}.")
    out = tape.buffer(*x.shape)
    tape.kernels.add_bias(x.data, bias.data, out)
    parts: Parts = []
    if bias.needs_grad:
        parts.append(
            ("db", lambda: tape.receive(bias, lambda to: tape.kernels.column_sums(y.grad, to)))
        )
    if x.needs_grad:
        parts.append(("dx", lambda: tape.receive(x, lambda to: np.copyto(to, y.grad))))
    y = tape.record(name, out, [x, bias], parts)
    return y


def add(tape: Tape, a: Tensor, b: Tensor, name: str = "add") -> Tensor:
    """a + b, of one shape."""
    if a.shape != b.shape:
        raise InputError(f"{name} was given {a.shape} and {b.shape}: the shapes must be equal.")
    out = tape.buffer(*a.shape)
    np.add(a.data, b.data, out=out)
    parts: Parts = [
        (f"d{letter}", lambda x=x: tape.receive(x, lambda to: np.copyto(to, y.grad)))
        for letter, x in (("a", a), ("b", b))
        if x.needs_grad
    ]
    y = tape.record(name, out, [a, b], parts)
    return y


def linear(tape: Tape, x: Tensor, w: Tensor, bias: Tensor, name: str = "linear") -> Tensor:
    """x w^T + bias, added in place; three parts backwards: dw, db, dx."""
    check_layer(name, x.shape, w.shape, bias.shape)
    kernels = tape.kernels
    out = tape.buffer(len(x.data), len(w.data))
    kernels.linear(x.data, w.data, bias.data, out)
    parts: Parts = []
    if w.needs_grad:
        parts.append(
            ("dw", lambda: tape.receive(w, lambda to: kernels.matmul(y.grad, x.data, to, "tn")))
        )
    if bias.needs_grad:
        parts.append(("db", lambda: tape.receive(bias, lambda to: kernels.column_sums(y.grad, to))))
    if x.needs_grad:
        parts.append(("dx", lambda: tape.receive(x, lambda to: kernels.matmul(y.grad, w.data, to))))
    y = tape.record(name, out, [x, w, bias], parts)
    return y


def relu(
    tape: Tape, x: Tensor, mask: str = "output", reuse: str | None = None, name: str = "relu"
) -> Tensor:
    """max(0, x); the mask is read from the output, the input, or one bit for each element.

    reuse: the first gradient of x is written over the "output", whose mask is of bits then, or over
    the output's "gradient", instead of into a buffer of its own.
    """
    if reuse not in (None, "gradient") and (reuse, mask) != ("output", "bits"):
        raise InputError(
            f"{name} cannot reuse {reuse} with a mask from {mask}: reuse gradient, or output with "
            "a mask of bits."
        )
    check_mask(mask, (*MASKS, "input"))
    kernels = tape.kernels
    out = tape.buffer(*x.shape)
    bits = tape.buffer(len(out), words(out.shape[1]), dtype=np.uint32) if mask == "bits" else None
    kernels.relu(x.data, out, bits)
    above = {"bits": None, "input": x.data, "output": out}[mask]

    def backward() -> None:
        if reuse is not None and x.grad is None:
            x.grad = {"output": out, "gradient": y.grad}[reuse]
            kernels.relu_backward(above, bits, y.grad, x.grad)
        else:
            tape.receive(x, lambda to: kernels.relu_backward(above, bits, y.grad, to))

    parts: Parts = [("dx", backward)]
    y = tape.record(name, out, [x], parts)
    return y


def gelu(tape: Tape, x: Tensor, kind: Gelu = "erf", name: str = "gelu") -> Tensor:
    """x Phi(x), or its approximation by tanh."""
    check_gelu(kind)
    kernels = tape.kernels
    out = tape.buffer(*x.shape)
    kernels.gelu(kind, x.data, out)
    parts: Parts = [
        ("dx", lambda: tape.receive(x, lambda to: kernels.gelu_backward(kind, x.data, y.grad, to)))
    ]
    y = tape.record(name, out, [x], parts)
    return y


def cross_entropy(tape: Tape, x: Tensor, labels: NDArray[np.int32], name: str = "loss") -> Tensor:
    """Mean over the rows of -log softmax(x)[label], a scalar; labels int32 [B].

    Raises:
        InputError: a label is outside 0 .. O - 1, or their number is not that of the rows.
    """
    if labels.shape != x.shape[:1] or labels.dtype != np.int32:
        raise InputError(
            f"{name} was given labels {labels.shape} {labels.dtype}: they must be int32 "
            f"{x.shape[:1]}."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < x.shape[1]:
        raise InputError(
            f"labels from {labels.min()} to {labels.max()} do not fit {x.shape[1]} classes: they "
            f"must be 0 to {x.shape[1] - 1}."
        )
    slopes, out = tape.buffer(*x.shape), tape.buffer()
    out[...] = tape.kernels.cross_entropy(x.data, labels, slopes)
    parts: Parts = [("dx", lambda: tape.receive(x, lambda to: np.multiply(slopes, y.grad, out=to)))]
    y = tape.record(name, out, [x], parts)
    return y
