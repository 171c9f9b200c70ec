"""Fused nodes: several operations forwards, and all of their gradients in one call backwards.

The call writes gradients over what was there, so an input that has received one already gets this
node's apart, and the tape adds it. Letters as in tape.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from experiments.autograd.kernels import Gelu, Gradients, TwoLayers, check_gelu, words
from experiments.autograd.nodes import check_layer, check_mask
from experiments.autograd.tape import Tape, Tensor


class Targets:
    """Where a fused call writes its gradients: in place the first time, else apart, then added."""

    def __init__(self, tape: Tape, inputs: list[Tensor]) -> None:
        self.arrays: list[NDArray | None] = []
        self._later: list[tuple[NDArray, NDArray]] = []
        for tensor in inputs:
            if not tensor.needs_grad:
                # Only the network's input may be left out; of the others a call writes all.
                last = tensor is inputs[-1]
                self.arrays.append(None if last else tape.buffer(*tensor.shape))
                continue
            slot, add = tape.slot(tensor)
            if add:
                apart = tape.buffer(*tensor.shape)
                self._later.append((slot, apart))
                slot = apart
            self.arrays.append(slot)

    def settle(self) -> None:
        """Adds what was written apart."""
        for slot, apart in self._later:
            np.add(slot, apart, out=slot)


def run_fused(
    tape: Tape, inputs: list[Tensor], call: Callable[[list[NDArray | None]], None]
) -> None:
    """One native call that writes the gradients of all inputs."""
    targets = Targets(tape, inputs)
    call(targets.arrays)
    targets.settle()


def mask_buffer(tape: Tape, mask: str, rows: int, columns: int) -> NDArray | None:
    """Bits of a ReLU, or None where the mask is read from the output."""
    check_mask(mask)
    return tape.buffer(rows, words(columns), dtype=np.uint32) if mask == "bits" else None


def linear_relu(
    tape: Tape, x: Tensor, w: Tensor, bias: Tensor, mask: str = "output", name: str = "linear_relu"
) -> Tensor:
    """max(0, x w^T + bias); backwards mask, dw, db and dx in one call, on the output's gradient."""
    check_layer(name, x.shape, w.shape, bias.shape)
    kernels = tape.kernels
    out = tape.buffer(len(x.data), len(w.data))
    bits = mask_buffer(tape, mask, *out.shape)
    kernels.linear(x.data, w.data, bias.data, out, relu=True, bits=bits)

    def call(to: list[NDArray | None]) -> None:
        dw, db, dx = to
        above = out if bits is None else None
        kernels.linear_backward(x.data, w.data, y.grad, dw, db, dx, above, bits)

    y = tape.record(name, out, [x, w, bias], [("all", lambda: run_fused(tape, [w, bias, x], call))])
    return y


def two_layer(
    tape: Tape, x: Tensor, layers: list[Tensor], mask: str = "output", name: str = "two_layer"
) -> Tensor:
    """Linear, ReLU, linear by w1 [H, I], b1, w2 [O, H], b2; all gradients in one call."""
    net = _two_layers(name, x, layers)
    kernels, rows, hidden = tape.kernels, len(net.x), len(net.w1)
    a1, out = tape.buffer(rows, hidden), tape.buffer(rows, len(net.w2))
    bits = mask_buffer(tape, mask, rows, hidden)
    kernels.mlp_forward(net, a1, bits, out)

    def call(to: list[NDArray | None]) -> None:
        room = tape.buffer(kernels.workspace_floats(rows, hidden))
        kernels.mlp_backward(net, a1, bits, y.grad, Gradients(*to), room, tape.fused_parts)

    backward = [("all", lambda: run_fused(tape, [*layers, x], call))]
    y = tape.record(name, out, [x, *layers], backward)
    return y


def ffn(
    tape: Tape, x: Tensor, layers: list[Tensor], kind: Gelu = "erf", slope: bool = True,
    name: str = "ffn",
) -> Tensor:  # fmt: skip
    """Linear, GELU, linear by w1 [H, I], b1, w2 [O, H], b2; all gradients in one call.

    slope: keep GELU's derivative of the forward call instead of its inputs, which saves the
    backward call an erf or tanh.
    """
    check_gelu(kind)
    net = _two_layers(name, x, layers)
    kernels, rows, hidden = tape.kernels, len(net.x), len(net.w1)
    pre, act = tape.buffer(rows, hidden), tape.buffer(rows, hidden)
    out = tape.buffer(rows, len(net.w2))
    kernels.ffn_forward(kind, net, pre, act, out, slope)

    def call(to: list[NDArray | None]) -> None:
        room, parts = tape.buffer(kernels.workspace_floats(rows, hidden)), tape.fused_parts
        kernels.ffn_backward(kind, net, pre, act, y.grad, Gradients(*to), room, slope, parts)

    backward = [("all", lambda: run_fused(tape, [*layers, x], call))]
    y = tape.record(name, out, [x, *layers], backward)
    return y


def _two_layers(name: str, x: Tensor, layers: list[Tensor]) -> TwoLayers:
    """Raises InputError unless the shapes go together."""
    w1, b1, w2, b2 = layers
    check_layer(name, x.data.shape, w1.data.shape, b1.data.shape)
    hidden = len(x.data), len(w1.data)
    check_layer(name, hidden, w2.data.shape, b2.data.shape)
    return TwoLayers(x.data, w1.data, b1.data, w2.data, b2.data)
