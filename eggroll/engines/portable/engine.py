"""The yardstick: the program interpreted with plain MLX operations, on any MLX device.

Letters: P members, N pairs, K inputs, O outputs, r rank. Slow and obvious: a token at a time, an
operation at a time (operations.py), all members at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import mlx.core as mx

from eggroll import fixed_point as fx
from eggroll.credit import Crediting, CreditNoise
from eggroll.engines.base import Engine
from eggroll.engines.portable.credit import CreditRun, Tape
from eggroll.engines.portable.operations import OPERATIONS, Run, exact_matmul, table_slice
from eggroll.noise import Slices
from eggroll.program import NO_ROWS, Rows, S, X

Begin = Callable[[list[mx.array], mx.array, mx.array], Run]  # registers, tokens, targets


class PortableEngine(Engine):
    """Interprets the program with plain MLX operations."""

    name: ClassVar[str] = "portable"

    @property
    def description(self) -> str:
        where = mx.default_device().type.name
        return f"portable (plain MLX on the {where}" + (
            ", products by NumPy)" if where == "cpu" else ")"
        )

    def _token(
        self, begin: Begin, tokens: mx.array, targets: mx.array, states: list[mx.array]
    ) -> Run:
        x = mx.zeros((tokens.shape[0], self.program.width), mx.int32)
        for i, stage in enumerate(self.program.stages):
            registers = [x, states[i]] + [x] * len(stage.registers[2:])
            run = begin(registers, tokens, targets)
            for op in stage.ops:
                registers[op.out] = OPERATIONS[op.kind](run, op)
            x, states[i] = registers[X], registers[S]
        return run

    def evaluate(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        begin = partial(Run, self.program, prepared, noise)
        states, scores = self._split(state), []
        for t in range(tokens.shape[1]):
            scores.append(self._step(begin, tokens[:, t], targets[:, t], states).scores)
        return mx.stack(scores, axis=1).astype(mx.int16), self._join(states)

    def credit(
        self,
        prepared: Any,
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        tape = Tape(self.program, noise, credit_noise, crediting, tokens[0::2])
        states, scores = self._split(state), []
        for t in range(tokens.shape[1]):
            begin = partial(CreditRun, self.program, prepared, noise, tape=tape, t=t)
            run = self._step(begin, tokens[:, t], targets[:, t], states)
            tape.read(run.logits[0::2], targets[0::2, t], t)
            scores.append(run.scores)
        stacked = mx.stack(scores, axis=1)
        Z = tape.votes(stacked[0::2] - stacked[1::2])
        return stacked.astype(mx.int16), self._join(states), Z

    def logits(
        self, prepared: Any, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        states = [self._restart(s, tokens) for s in self._split(state)]
        run = self._token(partial(Run, self.program, prepared, None), tokens, tokens, states)
        return run.logits.astype(mx.int8), self._join(states)

    def likelihoods(
        self,
        prepared: Any,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, mx.array]:
        begin = partial(Run, self.program, prepared, None)
        states, totals, hits = self._split(state), [], []
        table = mx.array(fx.exact_exp2())
        for t in range(tokens.shape[1]):
            logits = self._step(begin, tokens[:, t], targets[:, t], states).logits
            totals.append(table[logits + 128].sum(axis=1))
            hits.append(mx.take_along_axis(logits, targets[:, t, None], axis=1)[:, 0])
            mx.eval(totals[-1], hits[-1])
        return mx.stack(totals, axis=1), mx.stack(hits, axis=1).astype(mx.int8), self._join(states)

    def _step(
        self, begin: Begin, tokens: mx.array, targets: mx.array, states: list[mx.array]
    ) -> Run:
        """Runs one token, evaluated; `states` become the new ones."""
        states[:] = [self._restart(s, tokens) for s in states]
        run = self._token(begin, tokens, targets, states)
        mx.eval(run.scores, states)
        return run

    def _restart(self, s: mx.array, tokens: mx.array) -> mx.array:
        """The document mark 0 zeroes a member's state."""
        return s * (tokens != 0)[:, None]

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
