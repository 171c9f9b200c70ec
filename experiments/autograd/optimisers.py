"""Steps from gradients to weights, over the parameters of a tape."""

from __future__ import annotations

from experiments.autograd.kernels import Kernels
from experiments.autograd.tape import Tape


class Sgd:
    """w -= rate g."""

    def __init__(self, tape: Tape, rate: float) -> None:
        self.tape, self.rate = tape, rate

    def step(self) -> None:
        kernels: Kernels = self.tape.kernels
        for tensor in self.tape.parameters:
            if tensor.grad is not None:
                kernels.descend(tensor.data, tensor.grad, self.rate)


class Adam:
    """Adam as PyTorch defines it, each parameter in one pass."""

    def __init__(self, tape: Tape, rate: float) -> None:
        self.tape, self.rate, self.steps = tape, rate, 0
        place = tape.workspace.place
        self.moments = [
            tuple(place(tensor.shape, tape.dtype) for _ in range(2)) for tensor in tape.parameters
        ]

    def step(self) -> None:
        self.steps += 1
        for tensor, (m, v) in zip(self.tape.parameters, self.moments, strict=True):
            if tensor.grad is not None:
                self.tape.kernels.adam(tensor.data, tensor.grad, m, v, self.rate, self.steps)
