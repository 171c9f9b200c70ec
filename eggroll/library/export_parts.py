"""The parts of an export: the network that is written, and names in other languages."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.spec.program import Op, Output, Program, S, Stage, X

ArrayLeaves = Mapping[str, NDArray[np.int8]]


class Network(NamedTuple):
    """A program with its weights, int8 by name, and an identifier for its functions."""

    program: Program
    weights: ArrayLeaves
    name: str

    @property
    def reads_tokens(self) -> bool:
        return any(op.kind == "embed" for _, op in self.operations())

    def operations(self) -> list[tuple[Stage, Op]]:
        """All operations that a result or the state needs, but not what policies read for votes."""
        inner = {policy.output + 1 for policy in self.program.policies}
        found, needed = list[tuple[Stage, Op]](), set[int]()  # registers, after the operation
        for stage in reversed(self.program.stages):
            needed = (needed & {X}) | ({S} if stage.state >= 0 else set())
            for op in reversed(stage.ops):
                shown = op.kind != "output" or op.numbers[0] not in inner
                if (op.out in needed) if op.writes else shown:
                    found.append((stage, op))
                    needed = (needed - ({op.out} if op.writes else set())) | {*op.inputs}
        return found[::-1]

    def leaves(self) -> dict[str, NDArray[np.int8]]:
        """The weights of these operations, in declared order."""
        used = {op.leaf for _, op in self.operations()}
        names = [leaf.name for i, leaf in enumerate(self.program.leaves) if i in used]
        return {name: self.weights[name] for name in names}

    def outputs(self) -> list[Output]:
        """The results of a row; the logits of a score come last, as "logits"."""
        places = [op.numbers[0] for _, op in self.operations() if op.kind in ("output", "sums")]
        found = [self.program.outputs[place] for place in sorted(places)]
        return found + [Output("logits", self.program.vocabulary)] * self.program.scored

    def leaf(self, op: Op) -> NDArray[np.int8]:
        return self.weights[self.program.leaves[op.leaf].name]

    def result(self, op: Op) -> str:
        """The name of the output that an operation without a register gives."""
        return "logits" if op.kind == "score" else self.program.outputs[op.numbers[0]].name

    def tables(self) -> dict[str, NDArray[np.int8]]:
        """The tables that are looked up, int8 [255] each."""
        used = sorted({op.table for _, op in self.operations() if op.table})
        return {name: np.asarray(self.program.tables[name], np.int8) for name in used}

    def output_name(self, name: str) -> str:
        """An output's identifier."""
        return identifiers([output.name for output in self.outputs()])[name]

    def table_name(self, name: str) -> str:
        """A table's identifier."""
        return identifiers([*self.tables()])[name]


def identifier(text: str) -> str:
    """A text as a name in Python and C."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"n_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name


def identifiers(names: Sequence[str]) -> dict[str, str]:
    """Names as identifiers, no two alike, also in capitals."""
    made, taken = dict[str, str](), set[str]()
    for name in names:
        chosen = identifier(name)
        while chosen.upper() in taken:
            chosen += "_"
        taken.add(chosen.upper())
        made[name] = chosen
    return made
