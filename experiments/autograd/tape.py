"""A small reverse-mode tape: operations are recorded as they run, and walked back for gradients.

An operation writes its output into a buffer of the workspace and appends a node; a node's backward
is a list of named parts, so that a profile can time each where it runs, inside the tape. Gradients
are written where they belong: the first that a tensor receives in place, a later one is added.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from eggroll.errors import InputError
from experiments.autograd.buffers import Workspace
from experiments.autograd.kernels import Kernels
from experiments.autograd.kernels import Parts as FusedParts

Parts = list[tuple[str, Callable[[], object]]]


class Tensor:
    """An array with its gradient, which is None until one has been received in this step."""

    __slots__ = ("_own", "data", "grad", "needs_grad")

    def __init__(self, data: NDArray, needs_grad: bool = False, own: NDArray | None = None) -> None:
        self.data = data
        self.needs_grad = needs_grad
        self.grad: NDArray | None = None
        self._own = own  # where a parameter's gradient lies in every step

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


class Node(NamedTuple):
    """An operation that ran, and how its output's gradient becomes its inputs'."""

    name: str
    output: Tensor
    parts: Parts


class Profile:
    """Seconds by operation, measured inside the tape, and of the whole backward pass around them.

    parts: by "node.part"; fused: what the fused calls measured within them, always wall time.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.parts: dict[str, float] = {}
        self.fused = FusedParts()
        self.total = 0.0

    def add(self, name: str, seconds: float) -> None:
        self.parts[name] = self.parts.get(name, 0.0) + seconds


class Tape:
    """Records operations on tensors and propagates gradients back through them.

    Letters: B rows, I inputs, H hidden units, O outputs of a layer; weights are [O, I].
    """

    def __init__(
        self,
        kernels: Kernels,
        workspace: Workspace | None = None,
        dtype: DTypeLike = np.float32,
        profile: Profile | None = None,
    ) -> None:
        self.kernels = kernels
        self.workspace = workspace or Workspace()
        self.dtype = np.dtype(dtype)
        self.profile = profile
        self.nodes: list[Node] = []
        self.parameters: list[Tensor] = []

    @property
    def fused_parts(self) -> FusedParts | None:
        """Where a fused call adds its seconds, or None without a profile."""
        return None if self.profile is None else self.profile.fused

    def parameter(self, values: NDArray) -> Tensor:
        """A tensor that is trained: a copy of the values, and a gradient's buffer, both kept."""
        places = [self.workspace.place(values.shape, self.dtype) for _ in range(2)]
        places[0][...] = values
        self.parameters.append(Tensor(places[0], needs_grad=True, own=places[1]))
        return self.parameters[-1]

    def constant(self, values: NDArray) -> Tensor:
        """A tensor without gradient, such as a batch.

        Raises:
            InputError: the values are not of the tape's type or not C-contiguous.
        """
        if values.dtype != self.dtype or not values.flags.c_contiguous:
            raise InputError(
                f"the batch is {values.dtype}, contiguous: {values.flags.c_contiguous}, and the "
                f"tape needs contiguous {self.dtype}: np.ascontiguousarray(batch, np.{self.dtype}) "
                "makes it."
            )
        return Tensor(values)

    def begin(self) -> None:
        """Forgets the last step's operations and gradients; buffers are used again."""
        self.nodes.clear()
        self.workspace.begin()
        for tensor in self.parameters:
            tensor.grad = None

    def record(self, name: str, output: NDArray, inputs: list[Tensor], parts: Parts) -> Tensor:
        """The output as a tensor; its node is kept if an input needs a gradient."""
        tensor = Tensor(output)
        for x in inputs:
            if x.needs_grad:
                tensor.needs_grad = True
                self.nodes.append(Node(name, tensor, parts))
                break
        return tensor

    def buffer(self, *shape: int, dtype: DTypeLike | None = None) -> NDArray:
        return self.workspace.take(shape, dtype or self.dtype)

    def slot(self, tensor: Tensor) -> tuple[NDArray, bool]:
        """Where to write a gradient for a tensor, and whether it is to be added there."""
        if tensor.grad is not None:
            return tensor.grad, True
        own = tensor._own
        tensor.grad = self.workspace.take(tensor.data.shape, self.dtype) if own is None else own
        return tensor.grad, False

    def receive(self, tensor: Tensor, write: Callable[[NDArray], object]) -> None:
        """Has a gradient written in place if it is the first, else apart, and added."""
        slot, add = self.slot(tensor)
        if not add:
            write(slot)
            return
        apart = self.buffer(*tensor.shape)
        write(apart)
        np.add(slot, apart, out=slot)

    def backward(self, output: Tensor, slopes: NDArray | float = 1.0) -> None:
        """Gradients of the sum of output times `slopes` by every tensor that needs one.

        Raises:
            InputError: the output was not computed by operations of this step.
        """
        last = self.nodes[-1].output if self.nodes else None
        if last is not output and not any(node.output is output for node in self.nodes):
            raise InputError(
                f"a tensor of shape {output.shape} is no output of this step: call backward with "
                "one that an operation of this tape returned since begin(), from inputs that need "
                "a gradient."
            )
        self.slot(output)[0][...] = slopes
        if self.profile is not None:
            self._backward_timed(self.profile)
            return
        for node in reversed(self.nodes):
            if node.output.grad is not None:
                for _, run in node.parts:
                    run()

    def _backward_timed(self, profile: Profile) -> None:
        """The same, every part timed; a fused node's call reports its own parts besides."""
        clock = profile.clock
        began = clock()
        for node in reversed(self.nodes):
            if node.output.grad is None:
                continue
            for part, run in node.parts:
                start = clock()
                run()
                profile.add(f"{node.name}.{part}", clock() - start)
        profile.total += clock() - began
