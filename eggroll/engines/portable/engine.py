"""The portable engine: the program interpreted with plain MLX operations, on any MLX device.

Slow and obvious, so that the others are compared with it: a token at a time, an operation at a time
(operations.py), all members at once. Letters: P members, N pairs, T tokens, D width, K inputs, O
outputs, r rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.engines.base import (
    Engine,
    check_errors,
    check_ids,
    check_rows,
    check_scored,
    check_values,
)
from eggroll.engines.portable.backward import BackwardPass, OpRecord, RecordedPass
from eggroll.engines.portable.credit import CreditPass, Tape
from eggroll.engines.portable.operations import (
    OPERATIONS,
    TokenPass,
    TokenRow,
    exact_matmul,
    scores,
    table_slice,
)
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.losses import Targets
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Program, S, X

PassMaker = Callable[[int, TokenRow], TokenPass]  # makes the pass in which row t runs


class PortableEngine(Engine):
    """Interprets the program with plain MLX operations."""

    name = "portable"

    def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
        super().__init__(program, threads, block_tokens)
        if mx.default_device().type != mx.DeviceType.cpu:
            # Products of float32 must not be rounded to TF32; MLX reads this before the first one.
            os.environ["MLX_ENABLE_TF32"] = "0"

    @property
    def description(self) -> str:
        where = mx.default_device().type.name
        return f"portable (plain MLX on the {where}" + (
            ", products by NumPy)" if where == "cpu" else ")"
        )

    def evaluate(
        self, prepared: Any, noise: Slices | None, batch: Batch
    ) -> tuple[mx.array, mx.array]:
        check_scored(self.program)
        states = self._split(batch.state)
        results = [
            self._scores(row, batch.targets[:, t])
            for t, row in self._rows(self._passes(prepared, noise), batch, states)
        ]
        return mx.stack(results, axis=1).astype(mx.int16), self._join(states)

    def outputs(
        self,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
        credit_noise: CreditNoise | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[dict[str, mx.array], mx.array]:
        states = self._split(batch.state)
        outputs: dict[str, list[mx.array]] = {out.name: [] for out in self.program.outputs}
        passes = self._passes(prepared, noise)
        if crediting is not None:
            if noise is None or credit_noise is None:
                raise ValueError(
                    "noise and credit_noise are needed for the members that are credited."
                )
            tape = Tape.of(self.program, noise, credit_noise, crediting, batch)
            passes = self._credit_passes(prepared, tape)
        for _, row in self._rows(passes, batch, states):
            for out in self.program.outputs:
                outputs[out.name].append(row.outputs[out.name].astype(out.dtype))
        return {name: mx.stack(each, axis=1) for name, each in outputs.items()}, self._join(states)

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        f, r, Z = fitness.astype(mx.int32), noise.rank, {}
        value = (lambda v: v) if clt else mx.sign
        for i, leaf in enumerate(self.program.leaves):
            if len(leaf.shape) == 1:
                two = table_slice(noise, i, 0, (*leaf.shape, 2))
                Z[leaf.name] = (f[:, None] * value(two[..., 0] * two[..., 1])).sum(axis=0)
                continue
            O, K = leaf.shape
            B = value(table_slice(noise, i, 0, (K, r))).transpose(0, 2, 1).reshape(-1, K)
            A = value(table_slice(noise, i, r * K, (O, r))) * f[:, None, None]
            Z[leaf.name] = exact_matmul(A.transpose(1, 0, 2).reshape(O, -1), B)
        mx.eval(Z)
        return Z

    def credit(
        self,
        prepared: Any,
        noise: Slices,
        batch: Batch,
        credit_noise: CreditNoise,
        crediting: Crediting,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        P, T = batch.size
        check_values(self.program, values, P // 2, T)
        tape = Tape.of(self.program, noise, credit_noise, crediting, batch)
        states, results = self._split(batch.state), []
        for t, row in self._rows(self._credit_passes(prepared, tape), batch, states):
            if self.program.scored:
                tape.read(row.logits[0::2], batch.targets[0::2, t], t)
                results.append(self._scores(row, batch.targets[:, t]))
        scores = mx.stack(results, axis=1) if results else mx.zeros((P, T), mx.int32)
        Z = tape.votes(tape.differences(scores) if values is None else values)
        return scores.astype(mx.int16), self._join(states), Z

    def learn(self, prepared: Any, batch: Batch, words: mx.array, back: Backward) -> Learnt:
        check_errors(self.program, batch, back.losses)
        rated = None
        if back.losses:
            outputs, _ = self.outputs(prepared, None, batch)
            targets = Targets(back.losses, np.array(batch.wanted))
            rated = targets.rated(self.program, outputs, np.array(words))
            batch = batch._replace(errors=mx.array(rated.errors))
        states, records = self._split(batch.state), list[list[OpRecord]]()

        def recorded(t: int, row: TokenRow) -> TokenPass:
            run = RecordedPass(self.program, prepared, None, row)
            records.append(run.records)
            return run

        results = [
            self._scores(row, batch.targets[:, t])
            if self.program.scored
            else mx.zeros(len(batch.tokens), mx.int32)
            for t, row in self._rows(recorded, batch, states)
        ]
        backward = BackwardPass(self.program, prepared, back, batch, words)
        backward.run(records)
        scores = mx.stack(results, axis=1).astype(mx.int16)
        sizes = mx.array(np.array(backward.sizes, np.int64))
        made = () if rated is None else (batch.errors, mx.array(rated.lost))
        return Learnt(scores, self._join(states), backward.votes, sizes, *made)

    def logits(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array]:
        check_scored(self.program)
        states = self._split(batch.state)
        ((_, row),) = self._rows(self._passes(prepared, None), batch, states)
        return row.logits.astype(mx.int8), self._join(states)

    def likelihoods(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array]:
        check_scored(self.program)
        table, states, totals, hits = mx.array(fx.exact_exp2()), self._split(batch.state), [], []
        for t, row in self._rows(self._passes(prepared, None), batch, states):
            totals.append(table[row.logits + 128].sum(axis=1))
            hits.append(mx.take_along_axis(row.logits, batch.targets[:, t, None], axis=1)[:, 0])
            mx.eval(totals[-1], hits[-1])
        return mx.stack(totals, axis=1), mx.stack(hits, axis=1).astype(mx.int8), self._join(states)

    def _passes(self, prepared: Any, noise: Slices | None) -> PassMaker:
        return lambda t, row: TokenPass(self.program, prepared, noise, row)

    def _credit_passes(self, prepared: Any, tape: Tape) -> PassMaker:
        return lambda t, row: CreditPass(self.program, prepared, tape.noise, row, tape=tape, t=t)

    def _rows(
        self, passes: PassMaker, batch: Batch, states: list[mx.array]
    ) -> Iterator[tuple[int, TokenRow]]:
        """Runs row after row; yields t and the row. `states` become the new ones."""
        check_rows(self.program, batch)
        for name, ids in (("tokens", batch.tokens), ("targets", batch.targets)):
            if ids is not None:
                check_ids(name, ids, self.program.vocabulary)
        for t in range(batch.size[1]):
            tokens, _, _, inputs, features, *_ = batch.at(t)
            # The document mark 0 zeroes a member's state.
            states[:] = [s * (tokens != 0)[:, None] for s in states]
            row = TokenRow(tokens, inputs, features)
            self._run(passes(t, row), states)
            mx.eval(states, row.outputs)
            yield t, row

    def _run(self, run: TokenPass, states: list[mx.array]) -> None:
        """Runs one row through all stages; `states` become the new ones."""
        x = mx.zeros((run.tokens.shape[0], self.program.width), mx.int32)
        for i, stage in enumerate(self.program.stages):
            run.registers = [x, states[i]] + [x] * len(stage.registers[2:])
            for op in stage.ops:
                run.store(op, OPERATIONS[op.kind](run, op))
            x, states[i] = run.registers[X], run.registers[S]

    def _scores(self, row: TokenRow, targets: mx.array) -> mx.array:
        """The scores of a row, int32 [P]."""
        of_row = scores(row.logits, targets, self.program.score_bits)
        mx.eval(of_row)
        return of_row

    def _split(self, state: mx.array) -> list[mx.array]:
        """The state of every stage, int32 [P, D]; zeros where a stage has none."""
        D, firsts = self.program.width, [stage.state for stage in self.program.stages]
        zeros = mx.zeros((state.shape[0], D), mx.int32)
        return [state[:, i : i + D].astype(mx.int32) if i >= 0 else zeros for i in firsts]

    def _join(self, states: list[mx.array]) -> mx.array:
        """The state of all stages, int8 [P, state_size]."""
        own = [s for s, stage in zip(states, self.program.stages, strict=True) if stage.state >= 0]
        P = states[0].shape[0]
        return mx.concatenate([mx.zeros((P, 0), mx.int32), *own], axis=1).astype(mx.int8)
