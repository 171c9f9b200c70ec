"""The language in which a network is declared: typed integer operations over int8 registers.

Letters: V vocabulary, D width, K inputs of an operation. A program is a list of stages. Register x
passes from stage to stage, register s holds a stage's recurrent state; both are [D] int8 in Q4.
Networks are declared in networks.py and engines interpret them; nothing here knows how. Whatever a
method accepts runs on every engine; anything else is refused in one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import mlx.core as mx

from eggroll.errors import InputError
from eggroll.fixed_point import gate_tables

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
}

MAX_REGISTERS = 32  # of a stage, x and s included; kRegisters of plan.h
MAX_OPERATIONS = 64  # of a stage; kOps of plan.h
MAX_SIZE = 32767  # of a register; kSize of plan.h
MAX_VOCABULARY = 1 << 16


class ProgramError(InputError, ValueError):
    """A declaration that an engine could not run: one sentence with the way out."""


@dataclass(frozen=True)
class Leaf:
    """A parameter: unique name, shape ([out, in] or [n]), and its initial value (None: normal)."""

    name: str
    shape: tuple[int, ...]
    init: int | None = None


class Op(NamedTuple):
    """One operation: registers[out] = kind(registers[inputs], leaves[leaf], table)."""

    kind: str
    out: int
    inputs: tuple[int, ...] = ()
    leaf: int = -1
    table: str = ""


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


@dataclass
class Program:
    """A network under construction: each method adds one operation and returns its register.

    vocabulary: V, 2..65,536; width: D, 1..32,767; score_bits: 4 or 8, for scores in units of 1/S
    bit with S = 2^score_bits. Every method raises ProgramError for an operation that an engine
    could not run, and `check` for a program that is not finished.
    """

    vocabulary: int
    width: int
    score_bits: int = 4
    leaves: list[Leaf] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    state_size: int = 0
    prefix: str = ""

    def __post_init__(self) -> None:
        _check_range("The vocabulary", self.vocabulary, 2, MAX_VOCABULARY)
        _check_range("The width", self.width, 1, MAX_SIZE)

    @property
    def score_unit(self) -> float:
        """The bits that a score of 1 stands for."""
        return 2.0**-self.score_bits

    def stage(self, prefix: str = "", *, state: bool = False) -> tuple[Register, Register]:
        """Begins a stage whose leaf names start with `prefix`; returns its registers (x, s).

        s may be used where the stage has a state, which is zero where a document begins.
        """
        if self.stages:
            self._check_stage()
            if self._has_score:
                raise ProgramError("A stage follows the score: the score is in the last stage.")
            if all(op.out != X for op in self.stages[-1].ops):
                raise ProgramError(
                    f"{self._here} never writes x, so that no later stage sees what it computes: "
                    "write x with out=x."
                )
        offset = self.state_size if state else -1
        self.stages.append(Stage([], [self.width, self.width], offset))
        self.state_size += self.width if state else 0
        self.prefix = prefix
        stage = self.stages[-1]
        return Register(stage, X, self.width), Register(stage, S, self.width)

    def embed(self, name: str) -> Register:
        """x = the row of the token that is read, of a leaf [V, D]; the first of all operations."""
        leaf = Leaf(name, (self.vocabulary, self.width))
        return self._emit("embed", (), self.width, X, leaf)

    def linear(self, x: Register, name: str, outputs: int) -> Register:
        """The product with a leaf [outputs, K]."""
        leaf = Leaf(name, (outputs, self._size("linear", x)))
        _check_range(f"The number of outputs of {name!r}", outputs, 1, MAX_SIZE)
        return self._emit("linear", (x,), outputs, leaf=leaf)

    def norm(self, x: Register, name: str) -> Register:
        """x divided by its mean magnitude, times a leaf [n] that begins as 1.0."""
        n = self._size("norm", x)
        return self._emit("norm", (x,), n, leaf=Leaf(name, (n,), 16))

    def add(self, a: Register, b: Register, out: Register | None = None) -> Register:
        """a + b, in a new register or in `out`."""
        return self._emit("add", (a, b), self._size("add", a, b), out)

    def add_bias(self, a: Register, b: Register, name: str) -> Register:
        """a + b + a leaf [n] that begins as 0."""
        n = self._size("add_bias", a, b)
        return self._emit("add_bias", (a, b), n, leaf=Leaf(name, (n,), 0))

    def lookup(self, x: Register, table: str) -> Register:
        """Each element of x through a table of fixed_point.gate_tables."""
        if table not in gate_tables():
            known = ", ".join(gate_tables())
            raise ProgramError(f"Table {table!r} is unknown: choose one of {known}.")
        return self._emit("lookup", (x,), self._size("lookup", x), table=table)

    def forget(self, f: Register, s: Register) -> Register:
        """s times the gate (f + 127) / 256."""
        return self._emit("forget", (f, s), self._size("forget", f, s))

    def mix(self, f: Register, h: Register, s: Register, out: Register | None = None) -> Register:
        """s moved toward h by the gate (f + 127) / 256, in a new register or in `out`."""
        return self._emit("mix", (f, h, s), self._size("mix", f, h, s), out)

    def score(self, x: Register, name: str) -> None:
        """Logits by a leaf [V, K], and the target's log-likelihood; once, in the last stage."""
        leaf = Leaf(name, (self.vocabulary, self._size("score", x)))
        if self._has_score:
            raise ProgramError(f"The score {name!r} is a second one: a program has one.")
        self._emit("score", (x,), self.vocabulary, X, leaf)

    def check(self) -> None:
        """Raises ProgramError for a program that is not finished."""
        if not self.stages:
            raise ProgramError("The program is empty: begin a stage and embed the token.")
        self._check_stage()
        if not self._has_score:
            raise ProgramError("The program has no score: its last stage must end in one.")
        if self.score_bits not in (4, 8):
            raise ProgramError(f"score_bits is {self.score_bits}: 4 or 8 is needed.")

    def digest(self) -> str:
        """Sha256, hex, of the whole declaration, the same on every machine."""
        tables = gate_tables()
        used = {op.table for stage in self.stages for op in stage.ops if op.table}
        declared = {
            "vocabulary": self.vocabulary,
            "width": self.width,
            "state": self.state_size,
            "leaves": [(leaf.name, leaf.shape, leaf.init) for leaf in self.leaves],
            "stages": [(stage.ops, stage.registers, stage.state) for stage in self.stages],
            "tables": {name: tables[name].tolist() for name in used},
        }
        text = json.dumps(declared, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def _here(self) -> str:
        prefix = f" ({self.prefix!r})" if self.prefix else ""
        return f"Stage {len(self.stages) - 1}{prefix}"

    @property
    def _has_score(self) -> bool:
        return any(op.kind == "score" for stage in self.stages for op in stage.ops)

    def _check_stage(self) -> None:
        """Raises ProgramError unless the stage is worth running."""
        stage = self.stages[-1]
        if not stage.ops:
            raise ProgramError(f"{self._here} is empty: give it an operation or leave it out.")
        if stage.state >= 0 and all(op.out != S for op in stage.ops):
            raise ProgramError(
                f"{self._here} has a state and never writes it: write it with out=s, or begin "
                "the stage without state=True."
            )

    def _size(self, kind: str, *registers: Register) -> int:
        """The one size of an operation's registers, which hold values of the current stage."""
        for r in registers:
            self._check_register(kind, r)
        sizes = [r.size for r in registers]
        if len(set(sizes)) > 1:
            listed = ", ".join(map(str, sizes))
            raise ProgramError(f"{self._here}: {kind} needs registers of one size, not {listed}.")
        return sizes[0]

    def _check_register(self, kind: str, r: Register) -> None:
        if not isinstance(r, Register):
            raise ProgramError(f"{kind} needs a register, as operations return it, not {r!r}.")
        if not self.stages or r.stage is not self.stages[-1]:
            raise ProgramError(
                f"{kind} was given register {r.index} of another stage: only x passes from stage "
                "to stage, so use the registers that stage() has just returned."
            )
        if not self.stages[0].ops:
            raise ProgramError(f"The program begins with {kind}: embed the token first.")
        if r.index == S and r.stage.state < 0:
            raise ProgramError(
                f"{self._here}: {kind} uses register s and the stage has no state: begin it with "
                "state=True."
            )

    def _emit(
        self,
        kind: str,
        inputs: tuple[Register, ...],
        size: int,
        out: Register | int | None = None,
        leaf: Leaf | None = None,
        table: str = "",
    ) -> Register:
        """Adds an operation whose result has `size`; out: None for a new register."""
        if not self.stages:
            raise ProgramError(f"{kind} is in no stage: begin one with stage().")
        stage = self.stages[-1]
        if len(stage.ops) == MAX_OPERATIONS:
            raise ProgramError(f"{self._here} has {MAX_OPERATIONS} operations: begin another one.")
        if out is None and len(stage.registers) == MAX_REGISTERS:
            raise ProgramError(
                f"{self._here} has {MAX_REGISTERS} registers: begin another stage, or reuse one "
                "with out=."
            )
        if isinstance(out, Register):
            self._check_register(kind, out)
            if out.size != size:
                raise ProgramError(
                    f"{self._here}: {kind} gives {size} values and out holds {out.size}."
                )
            out = out.index
        number = self._declare(leaf) if leaf else -1
        if out is None:
            stage.registers.append(size)
            out = len(stage.registers) - 1
        stage.ops.append(Op(kind, out, tuple(r.index for r in inputs), number, table))
        return Register(stage, out, stage.registers[out])

    def _declare(self, leaf: Leaf) -> int:
        """Adds a leaf, its name after the stage's prefix; returns its index."""
        leaf = replace(leaf, name=self.prefix + leaf.name)
        if any(leaf.name == other.name for other in self.leaves):
            raise ProgramError(f"Leaf {leaf.name!r} is declared twice: give one another name.")
        self.leaves.append(leaf)
        return len(self.leaves) - 1


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ProgramError(f"{what} is {value}: a number from {low} to {high} is needed.")


Weights = Mapping[str, mx.array]
Leaves = dict[str, mx.array]
