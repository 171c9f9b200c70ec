"""The float twin on a CPU: float_twin.py's numbers, forwards and backwards, by NumPy.

MLX's own products and exponentials are many times slower there than NumPy's, which would make a
weak baseline. MLX's automatic gradient of float_twin.py says what is right: tests compare them.
Letters: S streams, T tokens, V vocabulary, D width, K inputs of an operation, n values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import isqrt
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import fixed_point as fx
from eggroll.baseline import host
from eggroll.baseline.float_twin import (
    IN,
    LIMIT,
    LN2,
    ONE,
    STATE,
    Leaves,
    Schedule,
    Twin,
    on_cpu,
)
from eggroll.program import Op, Program, Stage

Array = NDArray[Any]
Values = dict[int, Array]

LEAST_STREAMS = 16  # that are worth a thread of their own


class Operation(NamedTuple):
    """An operation's value and gradient; w is its leaf (divided already where it is linear).

    forward(w, *inputs) -> y;
    back(g, y, w, *inputs) -> h, the gradient before the clip, and that of every input;
    leaf(h, *inputs) -> the leaf's gradient from all tokens, None where there is no leaf.
    """

    forward: Callable[..., Array]
    back: Callable[..., tuple[Array, tuple[Array, ...]]]
    leaf: Callable[..., Array] | None = None


def clip(v: Array) -> Array:
    """Clamps v, a fresh array, in place."""
    return np.clip(v, -LIMIT, LIMIT, out=v)


def inside(g: Array, y: Array) -> Array:
    """The gradient before a clip whose result is y."""
    out: Array = np.abs(y)
    np.less(out, LIMIT, out=out)
    out *= g
    return out


def rows(v: Array) -> Array:
    return v.reshape(-1, v.shape[-1])


def linear_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h = inside(g, y)
    return h, (h @ w,)


def linear_leaf(h: Array, x: Array) -> Array:
    out: Array = rows(h).T @ rows(x) * np.float32(1 / isqrt(x.shape[-1]))
    return out


def mean_size(x: Array) -> tuple[Array, Array]:
    """A norm's divisor, and whether it depends on x."""
    mean = np.abs(x).mean(axis=-1, keepdims=True)
    return np.maximum(mean, np.float32(1 / ONE)), mean > 1 / ONE


def norm_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h, (mean, free) = inside(g, y), mean_size(x)
    dr = h * w
    along = (dr * x).sum(axis=-1, keepdims=True) * free / (mean * x.shape[-1])
    return h, ((dr - np.sign(x) * along) / mean,)


def norm_leaf(h: Array, x: Array) -> Array:
    out: Array = rows(h * (x / mean_size(x)[0])).sum(axis=0)
    return out


def sum_back(g: Array, y: Array, w: Array, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    h = inside(g, y)
    return h, (h, h)


def share(f: Array) -> Array:
    return (f + np.float32(LIMIT)) * np.float32(ONE / 256)


def forget_back(
    g: Array, y: Array, w: Array, f: Array, s: Array
) -> tuple[Array, tuple[Array, ...]]:
    return g, (g * s * np.float32(ONE / 256), g * share(f))


def mix(w: Array, f: Array, h: Array, s: Array) -> Array:
    out: Array = s + share(f) * (h - s)
    return out


def mix_back(
    g: Array, y: Array, w: Array, f: Array, h: Array, s: Array
) -> tuple[Array, tuple[Array, ...]]:
    dh = g * share(f)
    return g, (g * (h - s) * np.float32(ONE / 256), dh, g - dh)


LINEAR = Operation(lambda w, x: clip(x @ w.T), linear_back, linear_leaf)

OPERATIONS: dict[str, Operation] = {
    "linear": LINEAR,
    "score": LINEAR,
    "norm": Operation(lambda w, x: clip(x * w / mean_size(x)[0]), norm_back, norm_leaf),
    "add": Operation(lambda w, a, b: clip(a + b), sum_back),
    "add_bias": Operation(
        lambda w, a, b: clip(a + b + w), sum_back, lambda h, a, b: rows(h).sum(axis=0)
    ),
    "forget": Operation(lambda w, f, s: share(f) * s, forget_back),
    "mix": Operation(mix, mix_back),
}

# The tables of gates have no leaf; embed reads tokens, see `Pass`.
LOOKUPS: dict[str, Operation] = {
    "sigmoid": Operation(
        lambda w, v: (254 / (1 + np.exp(-v)) - fx.LIMIT) / ONE,
        lambda g, y, w, v: (g, (g * (y + LIMIT) * (254 / ONE - LIMIT - y) * (ONE / 254),)),
    ),
    "tanh": Operation(
        lambda w, v: 4 * np.tanh(v / 4),
        lambda g, y, w, v: (g, (g * (1 - np.square(y / 4)),)),
    ),
}


def embed_leaf(h: Array, tokens: Array, vocabulary: int) -> Array:
    """Sums the rows of h [T, S, D] that belong to one token, for every token."""
    flat, out = tokens.reshape(-1), np.zeros((vocabulary, h.shape[-1]), np.float32)
    by_token = np.argsort(flat, kind="stable")
    seen, first = np.unique(flat[by_token], return_index=True)
    out[seen] = np.add.reduceat(rows(h)[by_token], first, axis=0)
    return out


class Pass:
    """One pass over T tokens of S streams: every value [T, S, n], kept for the way back.

    weights: float32 leaves by name; tokens: int32 [T, S].
    """

    def __init__(self, twin: Twin, weights: Mapping[str, Array], tokens: Array) -> None:
        self.program, self.schedules, self.tokens = twin.program, twin.schedules, tokens
        self.fresh = (tokens != 0).astype(np.float32)[..., None]
        self.leaves = [weights[leaf.name] for leaf in self.program.leaves]
        for stage in self.program.stages:
            for op in stage.ops:
                if op.kind in ("linear", "score"):  # once, not for every token
                    w = self.leaves[op.leaf]
                    self.leaves[op.leaf] = w * np.float32(1 / isqrt(w.shape[1]))
        self.values: list[Values] = []
        self.logits: Array | None = None

    def operation(self, op: Op) -> tuple[Operation, Array | None]:
        found = LOOKUPS[op.table] if op.kind == "lookup" else OPERATIONS[op.kind]
        return found, self.leaves[op.leaf] if op.leaf >= 0 else None

    def forward(self, state: Array) -> Array:
        """state: float32 [S, state_size]; returns the new one and leaves logits [T, S, V]."""
        D, states = self.program.width, [state[:, :0]]
        x = np.zeros((*self.tokens.shape, D), np.float32)
        for stage, plan in zip(self.program.stages, self.schedules, strict=True):
            values: Values = {IN: x}
            self._batched(stage, plan, plan.before, values)
            if stage.state >= 0:
                start = state[:, stage.state : stage.state + D]
                states.append(self._recurrence(stage, plan, values, start))
            self._batched(stage, plan, plan.after, values)
            self.values.append(values)
            x = values[plan.out]
            self.logits = self.logits if plan.score is None else values[plan.score]
        return np.concatenate(states, axis=1)

    def _batched(self, stage: Stage, plan: Schedule, indices: list[int], values: Values) -> None:
        for i in indices:
            op = stage.ops[i]
            if op.kind == "embed":
                values[i] = clip(self.leaves[op.leaf][self.tokens])
                continue
            kind, w = self.operation(op)
            values[i] = kind.forward(w, *(values[j] for j in plan.inputs[i]))

    def _recurrence(self, stage: Stage, plan: Schedule, values: Values, state: Array) -> Array:
        """Runs the loop; the state [S, D] that every token begins with is a value, too."""
        loop = [(i, *self.operation(stage.ops[i]), plan.inputs[i]) for i in plan.loop]
        T = len(self.tokens)
        values[STATE] = np.empty((T, *state.shape), np.float32)
        for t in range(T):
            np.multiply(state, self.fresh[t], out=values[STATE][t])
            for i, kind, w, inputs in loop:
                y = kind.forward(w, *(values[j][t] for j in inputs))
                if t == 0:
                    values[i] = np.empty((T, *y.shape), np.float32)
                values[i][t] = y
            state = values[plan.state][t]
        return state

    def backward(self, dlogits: Array) -> list[Array]:
        """Gradients of all leaves from that of the logits, [T, S, V]."""
        leaves = [np.zeros(leaf.shape, np.float32) for leaf in self.program.leaves]
        dx: Array | None = None
        stages = zip(self.program.stages, self.schedules, self.values, strict=True)
        for stage, plan, values in reversed(list(stages)):
            grads: Values = {} if dx is None else {plan.out: dx}
            if plan.score is not None:
                grads[plan.score] = dlogits
            self._batched_back(stage, plan, plan.after, values, grads, leaves)
            if stage.state >= 0:
                self._recurrence_back(stage, plan, values, grads, leaves)
            self._batched_back(stage, plan, plan.before, values, grads, leaves)
            dx = grads.get(IN)
        return leaves

    def _batched_back(
        self,
        stage: Stage,
        plan: Schedule,
        indices: list[int],
        values: Values,
        grads: Values,
        leaves: list[Array],
    ) -> None:
        for i in reversed(indices):
            op = stage.ops[i]
            if i not in grads:
                continue
            if op.kind == "embed":
                h, V = inside(grads[i], values[i]), self.program.vocabulary
                leaves[op.leaf] = embed_leaf(h, self.tokens, V)
                continue
            kind, w = self.operation(op)
            inputs = [values[j] for j in plan.inputs[i]]
            h, parts = kind.back(grads[i], values[i], w, *inputs)
            if kind.leaf and op.leaf >= 0:
                leaves[op.leaf] = kind.leaf(h, *inputs)
            accumulate(grads, plan.inputs[i], parts)

    def _recurrence_back(
        self, stage: Stage, plan: Schedule, values: Values, grads: Values, leaves: list[Array]
    ) -> None:
        """Back through the tokens; products for the leaves wait until all tokens are known."""
        loop = [(i, *self.operation(stage.ops[i]), plan.inputs[i]) for i in reversed(plan.loop)]
        before = {j for i in plan.loop for j in plan.inputs[i]} | {plan.state}
        before -= {STATE, *plan.loop}
        for j in before:  # a copy, as an operation may have given it to two values
            grads[j] = grads[j].copy() if j in grads else np.zeros_like(values[j])
        held = {i: np.empty_like(values[i]) for i, kind, _, _ in loop if kind.leaf}
        arriving = [j for j in (STATE, *plan.loop) if j in grads]
        carried = np.zeros_like(values[STATE][0])
        for t in reversed(range(len(self.tokens))):
            now = {j: grads[j][t] for j in arriving}
            accumulate(now, (plan.state,), (carried,))
            for i, kind, w, inputs in loop:
                h, parts = kind.back(now[i], values[i][t], w, *(values[j][t] for j in inputs))
                if i in held:
                    held[i][t] = h
                accumulate(now, inputs, parts)
            for j in before & now.keys():
                grads[j][t] += now[j]
            carried = now[STATE] * self.fresh[t] if STATE in now else carried * 0
        for i, kind, _, inputs in loop:
            if kind.leaf:
                leaves[stage.ops[i].leaf] = kind.leaf(held[i], *(values[j] for j in inputs))


def accumulate(grads: Values, where: tuple[int, ...], parts: tuple[Array, ...]) -> None:
    """Adds without touching an array in place, as an operation may return one array twice."""
    for j, part in zip(where, parts, strict=True):
        grads[j] = grads[j] + part if j in grads else part


class NumpyTwin(Twin):
    """The twin with its work done by NumPy; takes and returns what `Twin` does.

    threads: each runs its own share of the streams, forwards and backwards; 0 is all cores.
    """

    def __init__(self, program: Program, threads: int = 0) -> None:
        super().__init__(program)
        self.threads = threads or host.cores()
        host.keep_memory()

    @property
    def description(self) -> str:
        return f"float twin (NumPy on the cpu, {self.threads} threads)"

    def logits(
        self, weights: Leaves, tokens: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        with host.one_thread():
            run = Pass(self, arrays(weights), np.array(tokens))
            after = run.forward(np.array(state))
        assert run.logits is not None
        return mx.array(run.logits), mx.array(after)

    def bits(
        self, weights: Leaves, tokens: mx.array, targets: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        leaves = arrays(weights)

        def work(tokens: Array, targets: Array, state: Array) -> tuple[Array, Array]:
            run = Pass(self, leaves, tokens)
            after = run.forward(state)
            return token_bits(run, targets)[0], after

        bits, after = zip(*self._share_out(work, tokens, targets, state), strict=True)
        return mx.array(np.concatenate(bits, axis=1)), mx.array(np.concatenate(after))

    def gradient(
        self, weights: Leaves, tokens: mx.array, targets: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array, Leaves]:
        leaves = arrays(weights)

        def work(tokens: Array, targets: Array, state: Array) -> tuple[Array, Array, list[Array]]:
            run = Pass(self, leaves, tokens)
            after = run.forward(state)
            bits, slope = token_bits(run, targets)
            c = targets[..., None]
            np.put_along_axis(slope, c, np.take_along_axis(slope, c, axis=-1) - 1, axis=-1)
            return bits, after, run.backward(slope)

        bits, after, parts = zip(*self._share_out(work, tokens, targets, state), strict=True)
        total, count = sum(float(b.sum(dtype=np.float64)) for b in bits), targets.size
        grads = {
            leaf.name: mx.array(sum(column[1:], column[0]) * np.float32(1 / count))
            for leaf, column in zip(self.program.leaves, zip(*parts, strict=True), strict=True)
        }
        return mx.array(total / count), mx.array(np.concatenate(after)), grads

    def _share_out(
        self, work: Callable[..., Any], tokens: mx.array, targets: mx.array, state: mx.array
    ) -> list[Any]:
        """The results of `work` on each thread's share of the streams, in their order."""
        shares = max(1, min(self.threads, tokens.shape[1] // LEAST_STREAMS))
        columns = [np.array_split(np.array(a), shares, axis=1) for a in (tokens, targets)]
        parts = (*columns, np.array_split(np.array(state), shares))
        with host.one_thread(), ThreadPoolExecutor(shares) as pool:
            return list(pool.map(work, *parts))


def token_bits(run: Pass, targets: Array) -> tuple[Array, Array]:
    """Bits [T, S] of the targets, and the softmax [T, S, V] of the logits."""
    logits = run.logits
    assert logits is not None
    top = logits.max(axis=-1, keepdims=True)
    chances = (logits - top) * np.float32(LN2)
    np.exp(chances, out=chances)
    total = chances.sum(axis=-1, keepdims=True)
    chances /= total
    bits = np.log2(total) + top - np.take_along_axis(logits, targets[..., None], axis=-1)
    return bits[..., 0], chances


def arrays(weights: Leaves) -> dict[str, Array]:
    """NumPy's view of leaves in MLX."""
    return {name: np.array(w, copy=False) for name, w in weights.items()}


def twin_for(program: Program, threads: int = 0) -> Twin:
    """The twin that is fastest on MLX's default device; threads are of a CPU."""
    return NumpyTwin(program, threads) if on_cpu() else Twin(program)
