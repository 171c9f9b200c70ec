"""Activations of the unperturbed network, node by node, on a few tokens.

The program is run with an output behind every operation, by the cpu engine where there is one: so
the values are exact, and the same on every machine. Letters: R streams, T tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines import ENGINES, zero_state
from eggroll.program import (
    MAX_OPERATIONS,
    MAX_REGISTERS,
    MAX_SIZE,
    Leaves,
    Op,
    Output,
    Program,
    Stage,
    X,
)
from eggroll.statistics.counts import distribution, share

STREAMS, TOKENS = 16, 8  # looked at: enough to tell, and little beside an update
PLAIN = ("input", "concat")  # operations whose values were shown by the caller or elsewhere
GATED = ("forget", "mix")  # operations whose first input is a gate


class Nodes:
    """Looks into a network.

    names: of the nodes, a leaf's or stage and operation; gates: those that gate a state; logits:
    those of the score.
    """

    def __init__(self, program: Program) -> None:
        self.names: list[str] = []
        self.gates: set[str] = set()
        self.logits: set[str] = set()
        looked_at = self._with_outputs(program)
        name = "portable" if ENGINES["cpu"].unavailable_because() else "cpu"
        self._engine = ENGINES[name](looked_at, threads=1)

    def _with_outputs(self, program: Program) -> Program:
        """The program with an output behind every operation that makes values."""
        made = replace(
            program, stages=[], outputs=[], policies=[], leaves=list(program.leaves), prefix=""
        )
        for number, stage in enumerate(program.stages):
            made.stages.append(self._stage(program, number, stage, made.outputs))
        return made

    def _stage(self, program: Program, number: int, stage: Stage, outputs: list[Output]) -> Stage:
        """A stage whose values are put out, as far as it has room for that."""
        ops, registers, last = list[Op](), list(stage.registers), dict[int, str]()
        room = MAX_OPERATIONS - sum(op.kind not in ("output", "sums") for op in stage.ops)
        prefix = _prefix(program, number, stage)
        for op in (op for op in stage.ops if op.kind not in ("output", "sums")):
            if op.kind == "score":
                rows = program.leaves[op.leaf].shape[0]
                if rows > MAX_SIZE or len(registers) == MAX_REGISTERS:
                    continue
                registers.append(rows)
                op = op._replace(kind="linear", out=len(registers) - 1)
                self.logits.add(program.leaves[op.leaf].name)
            ops.append(op)
            name = self._name(program, prefix, op)
            if op.kind in GATED and op.inputs[0] in last:
                self.gates.add(last[op.inputs[0]])
            last[op.out] = name
            if op.kind in PLAIN or room == 0:
                continue
            room -= 1
            ops.append(Op("output", X, (op.out,), numbers=(len(outputs),)))
            outputs.append(Output(name, registers[op.out]))
            self.names.append(name)
        return Stage(ops, registers, stage.state)

    def _name(self, program: Program, prefix: str, op: Op) -> str:
        """The leaf's, or that of the operation, with a number from the second one on."""
        plain = program.leaves[op.leaf].name if op.leaf >= 0 else f"{prefix}{op.kind}"
        taken, number, name = set(self.names), 1, plain
        while name in taken:
            number += 1
            name = f"{plain}{number}"
        return name

    def values(self, weights: Leaves, tokens: NDArray[np.int32]) -> dict[str, NDArray[np.int8]]:
        """Of every node, int8 [R, T, n], of streams that begin with a zero state.

        tokens: int32 [R, T].
        """
        engine = self._engine
        with mx.stream(mx.cpu):
            state = zero_state(engine.program, len(tokens))
            prepared = engine.prepare(weights)
            found, _ = engine.outputs(prepared, None, mx.array(tokens), state)
            mx.eval(found)
        return {name: np.asarray(found[name]) for name in self.names}

    def figures(self, weights: Leaves, tokens: NDArray[np.int32]) -> dict[str, Any]:
        """The figures of every node, by its name."""
        return {name: figures_of(v) for name, v in self.values(weights, tokens).items()}


def _prefix(program: Program, number: int, stage: Stage) -> str:
    """What the names of a stage's leaves begin with, or its number."""
    names = [program.leaves[op.leaf].name for op in stage.ops if op.leaf >= 0]
    if names and "." in names[0]:
        return names[0].rpartition(".")[0] + "."
    return f"stage{number}."


def figures_of(values: NDArray[np.int8]) -> dict[str, Any]:
    """Of a node's values [R, T, n]; a unit is dead if all R * T of its values are the same."""
    rows = values.reshape(-1, values.shape[-1])
    dead = int(np.count_nonzero((rows == rows[0]).all(axis=0))) if len(rows) > 1 else 0
    found = distribution(np.ascontiguousarray(rows), "values")
    return {"saturated": found["saturated"], "dead": share(dead, rows.shape[1]), **found}
