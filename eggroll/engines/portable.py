"""The yardstick: the program interpreted with plain MLX operations, on any MLX device.

Letters: P members, N pairs, K inputs, O outputs, r rank. Slow and obvious: a token at a time, an
operation at a time, all members at once. Sums are int32 in two's complement (they wrap).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from eggroll import fixed_point as fx
from eggroll.engines.base import Engine
from eggroll.model import Op, Program, S, Weights, X
from eggroll.noise import Slices


def exact_matmul(a: mx.array, b: mx.array) -> mx.array:
    """int32 a [.., n, K] @ b [.., K, m] of int8-valued arrays.

    Exact in float32 because partial products over EXACT_K terms stay below 2^24. On the CPU NumPy's
    BLAS does it: MLX's own there is two orders of magnitude slower.
    """
    total = None
    for k in range(0, a.shape[-1], fx.EXACT_K):
        left, right = a[..., k : k + fx.EXACT_K], b[..., k : k + fx.EXACT_K, :]
        left, right = left.astype(mx.float32), right.astype(mx.float32)
        if mx.default_device().type == mx.DeviceType.cpu:
            part = mx.array(np.matmul(np.array(left), np.array(right)))
        else:
            part = left @ right
        part = part.astype(mx.int32)
        total = part if total is None else total + part
    assert total is not None
    return total


def clip(v: mx.array) -> mx.array:
    return mx.clip(v, -fx.LIMIT, fx.LIMIT)


def both(v: mx.array) -> mx.array:
    """A value per pair [N, ...] -> per member [2N, ...], the odd one negated."""
    return mx.stack([v, -v], axis=1).reshape(2 * v.shape[0], *v.shape[1:])


@dataclass
class Run:
    """One evaluation: everything an operation may read. All values int32."""

    program: Program
    weights: Weights
    noise: Slices | None
    registers: list[mx.array]
    tokens: mx.array  # [P]
    targets: mx.array  # [P]
    scores: mx.array | None = None
    logits: mx.array | None = None

    def leaf(self, op: Op) -> mx.array:
        return self.weights[self.program.leaves[op.leaf].name].astype(mx.int32)

    def slice(self, leaf: int, offset: int, shape: tuple[int, ...]) -> mx.array:
        """int32 [N, *shape]: table bytes from `offset` into each pair's slice of the leaf."""
        return table_slice(self.noise, leaf, offset, shape)  # type: ignore[arg-type]

    def vector(self, op: Op) -> mx.array:
        """A vector leaf as the members see it: [n], or [P, n] with noise."""
        w = self.leaf(op)
        if self.noise is None:
            return w
        two = self.slice(op.leaf, 0, (w.size, 2))
        return clip(w + (both(two[..., 0] * two[..., 1]) >> self.noise.shift))


def table_slice(noise: Slices, leaf: int, offset: int, shape: tuple[int, ...]) -> mx.array:
    index = noise.starts[leaf][:, None] + offset + mx.arange(int(np.prod(shape)))[None]
    return noise.table[index].astype(mx.int32).reshape(-1, *shape)


def embed(run: Run, op: Op) -> mx.array:
    E, noise = run.leaf(op), run.noise
    x = E[run.tokens]
    if noise is not None:
        V, D = E.shape
        B = run.slice(op.leaf, 0, (D, noise.rank))
        A = run.slice(op.leaf, noise.rank * D, (V, noise.rank))
        A = mx.take_along_axis(both(A), run.tokens[:, None, None], axis=1)  # [P, 1, r]
        x = x + ((mx.repeat(B, 2, axis=0) * A).sum(axis=-1) >> noise.shift)
    return clip(x)


def linear(run: Run, op: Op) -> mx.array:
    W, x, noise = run.leaf(op), run.registers[op.inputs[0]], run.noise
    O, K = W.shape
    y = exact_matmul(x, W.T)
    if noise is not None:
        B = mx.repeat(run.slice(op.leaf, 0, (K, noise.rank)), 2, axis=0)
        A = both(run.slice(op.leaf, noise.rank * K, (O, noise.rank)))
        xB = (x[..., None] * B).sum(axis=1, keepdims=True)  # [P, 1, r]
        y = y + ((xB * A).sum(axis=-1) >> noise.shift)
    return clip(y // fx.divisor(K))


def norm(run: Run, op: Op) -> mx.array:
    x = run.registers[op.inputs[0]]
    mean = mx.maximum(mx.abs(x).sum(axis=1, keepdims=True) // x.shape[1], 1)
    return clip((x * run.vector(op)) // mean)


def add(run: Run, op: Op) -> mx.array:
    a, b = (run.registers[i] for i in op.inputs)
    return clip(a + b)


def add_bias(run: Run, op: Op) -> mx.array:
    a, b = (run.registers[i] for i in op.inputs)
    return clip(a + b + run.vector(op))


def lookup(run: Run, op: Op) -> mx.array:
    table = mx.array(fx.gate_tables()[op.table]).astype(mx.int32)
    return table[run.registers[op.inputs[0]] + fx.LIMIT]


def forget(run: Run, op: Op) -> mx.array:
    f, s = (run.registers[i] for i in op.inputs)
    return ((f + fx.LIMIT) * s) >> 8


def mix(run: Run, op: Op) -> mx.array:
    f, h, s = (run.registers[i] for i in op.inputs)
    return s + (((f + fx.LIMIT) * (h - s)) >> 8)


def score(run: Run, op: Op) -> mx.array:
    run.logits = linear(run, op)
    u = run.logits + 128
    total = mx.array(fx.exp2_table())[u].astype(mx.int64).sum(axis=1)
    hit = mx.take_along_axis(u, run.targets[:, None], axis=1)[:, 0]
    run.scores = hit - log2_q4(total)
    return run.registers[op.out]


def log2_q4(n: mx.array) -> mx.array:
    """int32 floor(16 log2(n / 16)) of int64 n >= 1: leading one by bisection, then breakpoints."""
    bit, rest = mx.zeros(n.shape, mx.int32), n
    for width in (32, 16, 8, 4, 2, 1):
        big = rest >= (1 << width)
        bit, rest = bit + big * width, mx.where(big, rest >> width, rest)
    scaled = n.astype(mx.uint64) << (63 - bit).astype(mx.uint64)
    breakpoints = mx.array(fx.log2_breakpoints())
    fraction = (scaled[:, None] >= breakpoints[None]).sum(axis=1)
    return (16 * bit + fraction - 64).astype(mx.int32)


OPERATIONS: dict[str, Callable[[Run, Op], mx.array]] = {
    "embed": embed,
    "linear": linear,
    "norm": norm,
    "add": add,
    "add_bias": add_bias,
    "lookup": lookup,
    "forget": forget,
    "mix": mix,
    "score": score,
}


class PortableEngine(Engine):
    """Interprets the program with plain MLX operations."""

    name: ClassVar[str] = "portable"

    @property
    def path(self) -> str:
        where = mx.default_device().type.name
        return f"portable (plain MLX on the {where}" + (
            ", products by NumPy)" if where == "cpu" else ")"
        )

    def _token(
        self,
        weights: Weights,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        states: list[mx.array],
    ) -> Run:
        x = mx.zeros((tokens.shape[0], self.program.width), mx.int32)
        for i, stage in enumerate(self.program.stages):
            registers = [x, states[i]] + [x] * len(stage.registers[2:])
            run = Run(self.program, weights, noise, registers, tokens, targets)
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
    ) -> tuple[mx.array, mx.array]:
        states, scores = self._split(state), []
        for t in range(tokens.shape[1]):
            states = [self._restart(s, tokens[:, t]) for s in states]
            run = self._token(prepared, noise, tokens[:, t], targets[:, t], states)
            scores.append(run.scores)
            mx.eval(scores[-1], states)
        return mx.stack(scores, axis=1).astype(mx.int16), self._join(states)  # type: ignore[arg-type]

    def logits(self, prepared: Any, tokens: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        states = [self._restart(s, tokens) for s in self._split(state)]
        run = self._token(prepared, None, tokens, tokens, states)
        assert run.logits is not None
        return run.logits.astype(mx.int8), self._join(states)

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
        kept = [s for s, stage in zip(states, self.program.stages, strict=True) if stage.state >= 0]
        P = states[0].shape[0]
        return mx.concatenate([mx.zeros((P, 0), mx.int32), *kept], axis=1).astype(mx.int8)

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
