"""The yardstick: the program interpreted with plain MLX operations, on any MLX device.

Letters: P members, N pairs, K inputs, O outputs, r rank. Slow and obvious: a token at a time, an
operation at a time (operations.py), all members at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.engines.base import Engine, check_rows, check_scored, check_values
from eggroll.engines.portable.backward import Done, Errors, RecordedRun
from eggroll.engines.portable.credit import CreditRun, Tape
from eggroll.engines.portable.operations import (
    OPERATIONS,
    Run,
    Seen,
    exact_matmul,
    scores,
    table_slice,
)
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Program, S, X

Begin = Callable[[Seen], Run]


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
        run, states = partial(Run, self.program, prepared, noise), self._split(batch.state)
        found = []
        for t, seen in self._rows(lambda t: run, batch, states):
            found.append(self._scores(seen, batch.targets[:, t]))
        return mx.stack(found, axis=1).astype(mx.int16), self._join(states)

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
        begin = self._beginning(prepared, noise, batch, credit_noise, crediting)
        for _, seen in self._rows(begin, batch, states):
            for out in self.program.outputs:
                outputs[out.name].append(seen.outputs[out.name].astype(out.dtype))
        return {name: mx.stack(each, axis=1) for name, each in outputs.items()}, self._join(states)

    def _beginning(
        self,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
        credit_noise: CreditNoise | None,
        crediting: Crediting | None,
    ) -> Callable[[int], Begin]:
        """What runs row t of members with the noise that `outputs` is asked for."""
        if crediting is None:
            return lambda t: partial(Run, self.program, prepared, noise)
        if noise is None or credit_noise is None:
            raise ValueError("noise and credit_noise are needed for the members that are credited.")
        tape = Tape.of(self.program, noise, credit_noise, crediting, batch)
        return lambda t: partial(CreditRun, self.program, prepared, noise, tape=tape, t=t)

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
        states, found = self._split(batch.state), []

        def begin(t: int) -> Begin:
            return partial(CreditRun, self.program, prepared, noise, tape=tape, t=t)

        for t, seen in self._rows(begin, batch, states):
            if self.program.scored:
                tape.read(seen.logits[0::2], batch.targets[0::2, t], t)
                found.append(self._scores(seen, batch.targets[:, t]))
        stacked = mx.stack(found, axis=1) if found else mx.zeros((P, T), mx.int32)
        Z = tape.votes(tape.differences(stacked) if values is None else values)
        return stacked.astype(mx.int16), self._join(states), Z

    def learn(self, prepared: Any, batch: Batch, words: mx.array, back: Backward) -> Learnt:
        check_scored(self.program)
        run, states = partial(RecordedRun, self.program, prepared, None), self._split(batch.state)
        done: list[list[Done]] = []

        def begin(seen: Seen) -> Run:
            made = run(seen)
            done.append(made.done)
            return made

        found = [
            self._scores(seen, batch.targets[:, t])
            for t, seen in self._rows(lambda t: begin, batch, states)
        ]
        errors = Errors(self.program, prepared, back, batch, words)
        errors.run(done)
        scores = mx.stack(found, axis=1).astype(mx.int16)
        sizes = mx.array(np.array(errors.sizes, np.int64))
        return Learnt(scores, self._join(states), errors.votes, sizes)

    def logits(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array]:
        check_scored(self.program)
        run, states = partial(Run, self.program, prepared, None), self._split(batch.state)
        ((_, seen),) = self._rows(lambda t: run, batch, states)
        return seen.logits.astype(mx.int8), self._join(states)

    def likelihoods(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array]:
        check_scored(self.program)
        run, states = partial(Run, self.program, prepared, None), self._split(batch.state)
        table, totals, hits = mx.array(fx.exact_exp2()), [], []
        for t, seen in self._rows(lambda t: run, batch, states):
            totals.append(table[seen.logits + 128].sum(axis=1))
            hits.append(mx.take_along_axis(seen.logits, batch.targets[:, t, None], axis=1)[:, 0])
            mx.eval(totals[-1], hits[-1])
        return mx.stack(totals, axis=1), mx.stack(hits, axis=1).astype(mx.int8), self._join(states)

    def _rows(
        self, begin: Callable[[int], Begin], batch: Batch, states: list[mx.array]
    ) -> Iterator[tuple[int, Seen]]:
        """Runs row after row; gives each and its place in [P, T]. `states` become the new ones."""
        check_rows(self.program, batch)
        for t in range(batch.size[1]):
            row = batch.at(t)
            # The document mark 0 zeroes a member's state.
            states[:] = [s * (row.tokens != 0)[:, None] for s in states]
            run = begin(t)(Seen(row.tokens, row.inputs, row.features))
            self._run(run, states)
            mx.eval(states, run.seen.outputs)
            yield t, run.seen

    def _run(self, run: Run, states: list[mx.array]) -> None:
        """One row through all stages; `states` become the new ones."""
        x = mx.zeros((run.tokens.shape[0], self.program.width), mx.int32)
        for i, stage in enumerate(self.program.stages):
            run.registers = [x, states[i]] + [x] * len(stage.registers[2:])
            for op in stage.ops:
                run.keep(op, OPERATIONS[op.kind](run, op))
            x, states[i] = run.registers[X], run.registers[S]

    def _scores(self, seen: Seen, targets: mx.array) -> mx.array:
        """Of a row, int32 [P]."""
        found = scores(seen.logits, targets, self.program.score_bits)
        mx.eval(found)
        return found

    def _split(self, state: mx.array) -> list[mx.array]:
        """The state of every stage, int32 [P, D]; zeros where a stage has none."""
        D = self.program.width
        parts = []
        for stage in self.program.stages:
            part = state[:, stage.state : stage.state + D] if stage.state >= 0 else None
            parts.append(mx.zeros((state.shape[0], D), mx.int32) if part is None else part)
        return [p.astype(mx.int32) for p in parts]

    def _join(self, states: list[mx.array]) -> mx.array:
        own = [s for s, stage in zip(states, self.program.stages, strict=True) if stage.state >= 0]
        P = states[0].shape[0]
        return mx.concatenate([mx.zeros((P, 0), mx.int32), *own], axis=1).astype(mx.int8)

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
