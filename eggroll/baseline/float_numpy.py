"""The float twin on a CPU: float_twin.py's numbers, forwards and backwards, by NumPy.

MLX's own products and exponentials are many times slower there than NumPy's, which would make a
weak baseline. MLX's automatic gradient of float_twin.py says what is right: tests compare them.
Letters: S streams, T tokens, V vocabulary, D width, n values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isqrt
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.baseline import host
from eggroll.baseline.float_twin import (
    IN,
    LIMIT,
    LN2,
    ONE,
    STATE,
    Back,
    Leaves,
    Outputs,
    Schedule,
    Twin,
    given,
    on_cpu,
    scored,
)
from eggroll.baseline.operations_numpy import (
    LOOKUPS,
    OPERATIONS,
    Array,
    Operation,
    through_points,
)
from eggroll.program import NO_ROWS, Op, Program, Rows, Stage

Values = dict[int, Array]

LEAST_STREAMS = 16  # that are worth a thread of their own


class Pass:
    """One pass over T tokens of S streams: every value [T, S, n], kept for the way back.

    weights: leaves by name, float32 (of another type, so are all values); tokens: int32 [T, S];
    inputs, features: of rows, [T, S, n].
    """

    def __init__(
        self,
        twin: Twin,
        weights: Mapping[str, Array],
        tokens: Array,
        inputs: Array | None = None,
        features: Array | None = None,
    ) -> None:
        self.program, self.schedules, self.tokens = twin.program, twin.schedules, tokens
        self.dtype = np.result_type(np.float32, *weights.values())
        self.fresh = (tokens != 0).astype(self.dtype)[..., None]
        self.features, self.inputs = features, inputs
        if inputs is not None:
            self.inputs = np.maximum(inputs.astype(self.dtype) * np.float32(1 / ONE), -LIMIT)
        self.leaves = [weights[leaf.name] for leaf in self.program.leaves]
        for stage in self.program.stages:
            for op in stage.ops:
                if op.kind in ("linear", "score"):  # once, not for every token
                    w = self.leaves[op.leaf]
                    self.leaves[op.leaf] = w * np.float32(1 / isqrt(w.shape[1]))
        self.values: list[Values] = []
        self.logits: Array | None = None
        self.outputs: dict[str, Array] = {}

    def operation(self, op: Op) -> tuple[Operation, Array | None]:
        if op.kind == "lookup":
            known = LOOKUPS.get(op.table)
            return known or through_points(self.program.tables[op.table]), None
        return OPERATIONS[op.kind], self.leaves[op.leaf] if op.leaf >= 0 else None

    def inputs_of(self, op: Op, sources: tuple[int, ...], values: Values) -> list[Any]:
        """The arguments of an operation beside its leaf."""
        if op.kind == "embed":
            return [self.tokens, self.program.vocabulary]
        if op.kind == "input":
            return [self.inputs]
        if op.kind == "features":
            assert self.features is not None
            (lists, active, first, shift), shape = op.numbers, self.tokens.shape
            index = self.features[..., first : first + lists * active]
            scale, count = self.dtype.type(2.0**-shift), len(self.leaves[op.leaf])
            return [index.reshape(*shape, lists, active), scale, count]
        return [values[j] for j in sources]

    def forward(self, state: Array) -> Array:
        """state: [S, state_size]; returns the new one, leaves logits [T, S, V] and outputs."""
        D, states = self.program.width, [state[:, :0]]
        x = np.zeros((*self.tokens.shape, D), self.dtype)
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
            self.outputs |= {name: values[i] for i, name in plan.outputs.items()}
        return np.concatenate(states, axis=1)

    def _batched(self, stage: Stage, plan: Schedule, indices: list[int], values: Values) -> None:
        for i in indices:
            op = stage.ops[i]
            kind, w = self.operation(op)
            values[i] = kind.forward(w, *self.inputs_of(op, plan.inputs[i], values))

    def _recurrence(self, stage: Stage, plan: Schedule, values: Values, state: Array) -> Array:
        """Runs the loop; the state [S, D] that every token begins with is a value, too."""
        loop = [(i, *self.operation(stage.ops[i]), plan.inputs[i]) for i in plan.loop]
        T = len(self.tokens)
        values[STATE] = np.empty((T, *state.shape), self.dtype)
        for t in range(T):
            np.multiply(state, self.fresh[t], out=values[STATE][t])
            for i, kind, w, inputs in loop:
                y = kind.forward(w, *(values[j][t] for j in inputs))
                if t == 0:
                    values[i] = np.empty((T, *y.shape), self.dtype)
                values[i][t] = y
            state = values[plan.state][t]
        return state

    def backward(self, dlogits: Array | None, slopes: Mapping[str, Array]) -> list[Array]:
        """Gradients of all leaves from those of the logits [T, S, V] and of outputs, by name."""
        leaves = [np.zeros(leaf.shape, self.dtype) for leaf in self.program.leaves]
        dx: Array | None = None
        stages = zip(self.program.stages, self.schedules, self.values, strict=True)
        for stage, plan, values in reversed(list(stages)):
            grads: Values = {} if dx is None else {plan.out: dx}
            if plan.score is not None and dlogits is not None:
                grads[plan.score] = dlogits
            grads |= {i: slopes[name] for i, name in plan.outputs.items() if name in slopes}
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
            kind, w = self.operation(op)
            inputs = self.inputs_of(op, plan.inputs[i], values)
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
        self, weights: Leaves, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        with host.one_thread():
            shown = (None if a is None else np.array(a) for a in rows)
            run = Pass(self, arrays(weights), np.array(tokens), *shown)
            after = run.forward(np.array(state))
        return mx.array(scored(run.logits)), mx.array(after)

    def bits(
        self,
        weights: Leaves,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        leaves = arrays(weights)

        def work(state: Array, targets: Array, *read: Array) -> tuple[Array, Array]:
            run = Pass(self, leaves, *read)
            after = run.forward(state)
            return token_bits(run, targets)[0], after

        bits, after = zip(*self._share_out(work, state, targets, tokens, *rows), strict=True)
        return mx.array(np.concatenate(bits, axis=1)), mx.array(np.concatenate(after))

    def gradient(
        self,
        weights: Leaves,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, Leaves]:
        leaves = arrays(weights)

        def work(state: Array, targets: Array, *read: Array) -> tuple[Array, Array, list[Array]]:
            run = Pass(self, leaves, *read)
            after = run.forward(state)
            bits, slope = token_bits(run, targets)
            c = targets[..., None]
            np.put_along_axis(slope, c, np.take_along_axis(slope, c, axis=-1) - 1, axis=-1)
            return bits, after, run.backward(slope, {})

        done = self._share_out(work, state, targets, tokens, *rows)
        bits, after, parts = zip(*done, strict=True)
        total, count = sum(float(b.sum(dtype=np.float64)) for b in bits), targets.size
        grads = {
            name: mx.array(gradient * np.float32(1 / count))
            for name, gradient in self._summed(parts).items()
        }
        return mx.array(total / count), mx.array(np.concatenate(after)), grads

    def run(
        self, weights: Leaves, rows: Rows, state: mx.array, tokens: mx.array | None = None
    ) -> tuple[Outputs, mx.array, Back]:
        leaves, tokens = arrays(weights), given(self.program, rows, tokens)

        def work(state: Array, *read: Array) -> tuple[Pass, Array]:
            run = Pass(self, leaves, *read)
            return run, run.forward(state)

        passes, after = zip(*self._share_out(work, state, tokens, *rows), strict=True)

        def back(slopes: Mapping[str, mx.array]) -> Leaves:
            self.check_slopes(slopes)
            ends = np.cumsum([run.tokens.shape[1] for run in passes])[:-1]
            parted = {name: np.split(np.array(a), ends, axis=1) for name, a in slopes.items()}
            shares = [{name: a[i] for name, a in parted.items()} for i in range(len(passes))]
            parts = in_threads(Pass.backward, passes, [None] * len(passes), shares)
            return {name: mx.array(g) for name, g in self._summed(parts).items()}

        names = [output.name for output in self.program.outputs]
        joined = {name: np.concatenate([p.outputs[name] for p in passes], axis=1) for name in names}
        outputs = {name: mx.array(a) for name, a in joined.items()}
        return outputs, mx.array(np.concatenate(after)), back

    def _summed(self, parts: Sequence[list[Array]]) -> dict[str, Array]:
        """The shares' gradients, as `Pass.backward` gives them, added up, by leaf."""
        columns = zip(self.program.leaves, zip(*parts, strict=True), strict=True)
        return {leaf.name: sum(column[1:], column[0]) for leaf, column in columns}

    def _share_out(
        self, work: Callable[..., Any], state: mx.array, *columns: mx.array | None
    ) -> list[Any]:
        """The results of `work` on each thread's share of the streams, in their order.

        columns: [T, S, ...], None as it is.
        """
        shares = max(1, min(self.threads, state.shape[0] // LEAST_STREAMS))
        parts = [
            [None] * shares if a is None else np.array_split(np.array(a), shares, axis=1)
            for a in columns
        ]
        return in_threads(work, np.array_split(np.array(state), shares), *parts)


def in_threads(work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """`work` on the first of every column, on the second .., each in a thread of its own."""
    if len(columns[0]) == 1:
        with host.one_thread():
            return [work(*(column[0] for column in columns))]
    with host.one_thread(), ThreadPoolExecutor(len(columns[0])) as pool:
        return list(pool.map(work, *columns))


def token_bits(run: Pass, targets: Array) -> tuple[Array, Array]:
    """Bits [T, S] of the targets, and the softmax [T, S, V] of the logits."""
    logits = scored(run.logits)
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
