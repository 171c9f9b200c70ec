"""What a declared network is made of: operations over registers and leaves, in stages.

program.py has the language that builds it; engines interpret it. Letters: P members, T rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.arrays import array_of
from eggroll.errors import InputError, shown
from eggroll.fixed_point import LIMIT

# name -> meaning. All values int8, clip(v) = clamp to +-127, w' = the member's perturbed leaf.
OPERATIONS: dict[str, str] = {
    "embed": "x = clip(E[t] + noise)",
    "linear": "y = clip((W x + noise) // (16 floor(sqrt K)))",
    "norm": "y_i = clip((x_i w'_i) // max(1, sum|x| // D))",
    "add": "y = clip(a + b)",
    "add_bias": "y = clip(a + b + w')",
    "lookup": "y = table[x]",
    "forget": "y = ((f + 127) s) >> 8",
    "mix": "y = s + (((f + 127) (h - s)) >> 8)",
    "score": "u = linear(x) + 128; log-likelihood = S/16 u_c - LOG2[sum EXP2[u]], in 1/S bit",
    "input": "x = clip(the row shown)",
    "features": "per list: y = clip((sum of E[f] over its indices f + noise) >> shift)",
    "bias": "y = clip(a + w')",
    "relu": "y = max(a, 0)",
    "concat": "y = a, then b",
    "output": "the caller has x, int8",
    "sums": "the caller has W x + noise, int32",
}
RESULTS = ("score", "output", "sums")  # operations that write no register

MAX_REGISTERS = 32  # of a stage, x and s included; kRegisters of plan.h
MAX_OPERATIONS = 64  # of a stage; kOps of plan.h
MAX_SIZE = 32767  # of a register; kSize of plan.h
MAX_VOCABULARY = 1 << 16
MAX_FEATURES = 1 << 20  # that a row chooses from
MAX_LISTS = 8  # of active features
MAX_ACTIVE = 256  # indices in a list
MAX_FEATURE_SHIFT = 7


class ProgramError(InputError, ValueError):
    """A declaration that an engine could not run: one sentence with the way out."""


@dataclass(frozen=True)
class Leaf:
    """A parameter: unique name, shape ([out, in] or [n]), and its initial value (None: normal)."""

    name: str
    shape: tuple[int, ...]
    init: int | None = None


class Op(NamedTuple):
    """One operation: registers[out] = kind(registers[inputs], leaves[leaf], table, numbers).

    numbers: of `features` (lists, indices per list, first index of the row, shift); of `output` and
    `sums` (place among the program's outputs,).
    """

    kind: str
    out: int
    inputs: tuple[int, ...] = ()
    leaf: int = -1
    table: str = ""
    numbers: tuple[int, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether its result goes to register `out`."""
        return self.kind not in RESULTS

    def plain(self) -> list[Any]:
        """Its fields as JSON values; numbers are left out where there are none."""
        values = [list(v) if isinstance(v, tuple) else v for v in self]
        return values if self.numbers else values[:-1]


class Output(NamedTuple):
    """What the caller has of every row: values [size], int8 or, of `sums`, int32."""

    name: str
    size: int
    wide: bool = False

    @property
    def dtype(self) -> mx.Dtype:
        return mx.int32 if self.wide else mx.int8


class Policy(NamedTuple):
    """Where actions are drawn: the leaf of the logits, and their place among the outputs.

    The output after it has the inputs of that leaf.
    """

    leaf: int
    output: int


class Rows(NamedTuple):
    """What members are shown beside tokens; None where the program asks for nothing.

    inputs: int8 [P, T, program.inputs], -128 counts as -127; features: int32 [P, T,
    program.indices], the indices of every list, -1 for none.
    """

    inputs: mx.array | None = None
    features: mx.array | None = None


NO_ROWS = Rows()


@dataclass(eq=False)
class Stage:
    """Operations that hand only register x to the next stage.

    So all T tokens can run through one stage before the next begins. registers: their sizes;
    state: offset of register s in the member's state, or -1 where the stage has none.
    """

    ops: list[Op]
    registers: list[int]
    state: int


@dataclass(frozen=True)
class Register:
    """A value of one stage, int8 [size] in Q4; operations know it by its index there."""

    stage: Stage = field(repr=False)
    index: int
    size: int


X, S = 0, 1  # indices of registers x and s


def as_table(name: str, values: Sequence[int] | NDArray[Any]) -> NDArray[np.int8]:
    """Values of a table for `lookup`, int8 [255]; a ProgramError for others."""
    array = array_of(f"Table {name!r}", values)
    if array.shape != (255,) or array.dtype.kind not in "iu":
        raise ProgramError(
            f"Table {name!r} is {array.dtype} {list(array.shape)}: 255 whole numbers are needed, "
            "for -127 to 127."
        )
    if int(array.max()) > LIMIT or int(array.min()) < -LIMIT:
        raise ProgramError(f"Table {name!r} has values beyond -127 to 127.")
    return array.astype(np.int8)


def named(prefix: str, name: Any) -> str:
    """A name after its stage's prefix; a ProgramError for what is no text."""
    if not isinstance(name, str):
        raise ProgramError(f"The name {shown(name)} is of type {type(name).__name__}: give a str.")
    return prefix + name


def in_range(what: str, value: Any, low: int, high: int) -> int:
    """A whole number, of Python's or NumPy's, as Python's.

    Raises:
        ProgramError: it is none, or out of range.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise ProgramError(f"{what} is {shown(value)}: a number from {low} to {high} is needed.")
    return int(value)
