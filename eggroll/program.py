"""The network, declared once: typed integer operations over named int8 registers.

Letters: V vocabulary, D width, L layers, K inputs of an operation. Engines interpret the program;
nothing here knows how. To change the network, edit `egg`; to add an operation, add an entry to
OPERATIONS and one function to every engine (a test fails until each has it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx

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


@dataclass
class Stage:
    """Operations between which only register X passes on, so a stage may run all T tokens first.

    `registers` are their sizes; `state` is the offset of the recurrent state (register S) in the
    member's state, or -1.
    """

    ops: list[Op]
    registers: list[int]
    state: int


X, S = 0, 1  # registers of the passing activation and of the recurrent state


@dataclass
class Program:
    """A network under construction: each method emits one operation and returns its register.

    A score's unit is 1/S bit, S = 2^score_bits: 1/16 or 1/256.
    """

    vocabulary: int
    width: int
    score_bits: int = 4
    leaves: list[Leaf] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    state_size: int = 0
    prefix: str = ""

    @property
    def score_unit(self) -> float:
        """What a score of 1 is worth, in bits."""
        return 2.0**-self.score_bits

    @property
    def registers(self) -> list[int]:
        return self.stages[-1].registers

    def stage(self, prefix: str = "", *, state: bool = False) -> tuple[int, int]:
        """Begins a stage whose leaf names start with `prefix`; returns its registers (x, s)."""
        self.prefix = prefix
        offset = self.state_size if state else -1
        self.stages.append(Stage([], [self.width, self.width], offset))
        self.state_size += self.width if state else 0
        return X, S

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
        return hashlib.sha256(text.encode()).hexdigest()

    def _leaf(self, name: str, shape: tuple[int, ...], init: int | None = None) -> int:
        name = self.prefix + name
        if any(name == leaf.name for leaf in self.leaves):
            raise ValueError(f"leaf {name!r} is declared twice")
        self.leaves.append(Leaf(name, shape, init))
        return len(self.leaves) - 1

    def _emit(
        self,
        kind: str,
        inputs: tuple[int, ...],
        size: int,
        out: int | None = None,
        leaf: int = -1,
        table: str = "",
    ) -> int:
        if out is None:
            self.registers.append(size)
            out = len(self.registers) - 1
        self.stages[-1].ops.append(Op(kind, out, inputs, leaf, table))
        return out

    def embed(self, name: str) -> int:
        leaf = self._leaf(name, (self.vocabulary, self.width))
        return self._emit("embed", (), self.width, X, leaf)

    def linear(self, x: int, name: str, outputs: int) -> int:
        leaf = self._leaf(name, (outputs, self.registers[x]))
        return self._emit("linear", (x,), outputs, leaf=leaf)

    def norm(self, x: int, name: str) -> int:
        n = self.registers[x]
        return self._emit("norm", (x,), n, leaf=self._leaf(name, (n,), 16))

    def add(self, a: int, b: int, out: int | None = None) -> int:
        return self._emit("add", (a, b), self.registers[a], out)

    def add_bias(self, a: int, b: int, name: str) -> int:
        n = self.registers[a]
        return self._emit("add_bias", (a, b), n, leaf=self._leaf(name, (n,), 0))

    def lookup(self, x: int, table: str) -> int:
        return self._emit("lookup", (x,), self.registers[x], table=table)

    def forget(self, f: int, s: int) -> int:
        return self._emit("forget", (f, s), self.registers[s])

    def mix(self, f: int, h: int, s: int, out: int) -> int:
        return self._emit("mix", (f, h, s), self.registers[s], out)

    def score(self, x: int, name: str) -> None:
        leaf = self._leaf(name, (self.vocabulary, self.registers[x]))
        self._emit("score", (x,), self.vocabulary, X, leaf)


Weights = Mapping[str, mx.array]
Leaves = dict[str, mx.array]
