"""The float twin on a CPU: float_twin.py's numbers, forwards and backwards, by NumPy.

MLX's own products and exponentials are many times slower there than NumPy's, which would make a
weak baseline. MLX's automatic gradient of float_twin.py says what is right: tests compare them.
Letters: S streams, T tokens, V vocabulary, D width, n values.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.baseline.twin import (
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
    checked,
    on_cpu,
    scored,
)
from eggroll.spec import fixed_point as fx
from eggroll.spec.program import Batch, Op, Program, Stage


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@cache
def _openblas() -> tuple[Any, Any] | None:
    """The functions (get, set) for the threads of the OpenBLAS in NumPy's wheel; None without."""
    site = Path(np.__file__).parent
    for folder in (site.parent / "numpy.libs", site / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            with contextlib.suppress(OSError):
                library = ctypes.CDLL(str(path))
                for end in ("64_", ""):
                    names = (f"scipy_openblas_{verb}_num_threads{end}" for verb in ("get", "set"))
                    found = [getattr(library, name, None) for name in names]
                    if all(found):
                        return found[0], found[1]
    return None


@cache
def keep_memory() -> None:
    """Lets this process keep what it frees, so that large arrays cost no page faults every time.

    For good; glibc only, elsewhere nothing happens.
    """
    mmap_threshold, trim_threshold = -3, -1  # of malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(mmap_threshold, 1 << 25)
            library.mallopt(trim_threshold, 1 << 30)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's BLAS on one thread inside, on as many as before outside; only OpenBLAS is known.

    Its threads spin while they wait: beside other work, small products then take far longer than
    with one. Whoever shares out larger pieces needs no more.
    """
    if not (functions := _openblas()):
        yield
        return
    get, put = functions
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


Array = NDArray[Any]

GATHERED = 1 << 16  # rows of a leaf of features that are added at once


class Operation(NamedTuple):
    """An operation's value and gradient; w is its leaf (divided already where it is linear).

    forward(w, *inputs) -> y;
    back(g, y, w, *inputs) -> h, the gradient before the clip, and that of every input;
    leaf(h, *inputs) -> the leaf's gradient from all tokens, None where there is no leaf.
    What embed, input and features read are their inputs, which have no gradient.
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
    return product(h, x) * np.float32(1 / isqrt(x.shape[-1]))


def product(h: Array, x: Array) -> Array:
    out: Array = rows(h).T @ rows(x)
    return out


def halves(g: Array, y: Array, w: Array, a: Array, b: Array) -> tuple[Array, tuple[Array, ...]]:
    size = a.shape[-1]
    return g, (g[..., :size], g[..., size:])


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


def bias_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h = inside(g, y)
    return h, (h,)


def total(h: Array, *inputs: Array) -> Array:
    out: Array = rows(h).sum(axis=0)
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


def embed_leaf(h: Array, tokens: Array, vocabulary: int) -> Array:
    """Sums the rows of h [T, S, D] that belong to one token, for every token."""
    flat, out = tokens.reshape(-1), np.zeros((vocabulary, h.shape[-1]), h.dtype)
    by_token = np.argsort(flat, kind="stable")
    seen, first = np.unique(flat[by_token], return_index=True)
    out[seen] = np.add.reduceat(rows(h)[by_token], first, axis=0)
    return out


def read_back(g: Array, y: Array, w: Array, *read: Any) -> tuple[Array, tuple[Array, ...]]:
    return inside(g, y), ()


def features(E: Array, index: Array, scale: Any) -> Array:
    """index: int32 [T, S, lists, active], -1 for none; scale: 2^-shift."""
    extended = np.concatenate([E, np.zeros((1, E.shape[1]), E.dtype)])  # index -1: nothing
    sums = np.zeros((*index.shape[:3], E.shape[1]), E.dtype)
    for i in range(index.shape[3]):  # all at once would take `active` times the memory
        sums += extended[index[..., i]]
    sums *= scale
    return clip(sums.reshape(*index.shape[:2], -1))


def features_leaf(h: Array, index: Array, scale: Any, count: int) -> Array:
    """The gradient of a leaf [count, D], block of rows by block."""
    lists, active = index.shape[2:]
    parts, flat = h.reshape(-1, h.shape[-1] // lists) * scale, index.reshape(-1, active)
    out, block = np.zeros((count, parts.shape[1]), h.dtype), max(1, GATHERED // active)
    for start in range(0, len(flat), block):
        some = flat[start : start + block]
        row, column = np.nonzero(some >= 0)
        if len(row):
            active_rows = some[row, column]
            order = np.argsort(active_rows, kind="stable")
            seen, first = np.unique(active_rows[order], return_index=True)
            out[seen] += np.add.reduceat(parts[start + row[order]], first, axis=0)
    return out


def through_points(table: NDArray[np.int8]) -> Operation:
    """A table's 255 points joined by straight lines; the gradient is the slope to the right."""
    points = table.astype(np.float32) / np.float32(ONE)

    steps = np.diff(points)

    def left(v: Array) -> Array:
        out: Array = np.clip(np.floor(v * ONE), -fx.LIMIT, fx.LIMIT - 1)
        return out

    def forward(w: Array, v: Array) -> Array:
        low = left(v)
        i = low.astype(np.int32) + fx.LIMIT
        out: Array = points[i] + (v * ONE - low) * steps[i]
        return out

    def back(g: Array, y: Array, w: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
        return g, (g * steps[left(v).astype(np.int32) + fx.LIMIT] * ONE,)

    return Operation(forward, back)


LINEAR = Operation(lambda w, x: clip(x @ w.T), linear_back, linear_leaf)

OPERATIONS: dict[str, Operation] = {
    "embed": Operation(lambda w, tokens, V: clip(w[tokens]), read_back, embed_leaf),
    "linear": LINEAR,
    "score": LINEAR,
    "norm": Operation(lambda w, x: clip(x * w / mean_size(x)[0]), norm_back, norm_leaf),
    "add": Operation(lambda w, a, b: clip(a + b), sum_back),
    "add_bias": Operation(lambda w, a, b: clip(a + b + w), sum_back, total),
    "forget": Operation(lambda w, f, s: share(f) * s, forget_back),
    "mix": Operation(mix, mix_back),
    "input": Operation(lambda w, shown: shown, read_back),
    "features": Operation(
        lambda w, index, scale, count: features(w, index, scale), read_back, features_leaf
    ),
    "bias": Operation(lambda w, x: clip(x + w), bias_back, total),
    "relu": Operation(lambda w, x: np.maximum(x, 0), lambda g, y, w, x: (g, (g * (y > 0),))),
    "concat": Operation(lambda w, a, b: np.concatenate([a, b], axis=-1), halves),
    "output": Operation(lambda w, x: x, lambda g, y, w, x: (g, (g,))),
    "sums": Operation(lambda w, x: x @ w.T, lambda g, y, w, x: (g, (g @ w,)), product),
}

# The tables that fixed_point.gate_tables rounds; any other is `through_points`.
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


Values = dict[int, Array]

LEAST_STREAMS = 16  # that are worth a thread of their own


class Pass:
    """One pass over T tokens of S streams: every value [T, S, n], kept for the way back.

    weights: leaves by name, float32 (of another type, so are all values); batch: by token, in
    NumPy's arrays.
    """

    def __init__(self, twin: Twin, weights: Mapping[str, Array], batch: Batch) -> None:
        self.batch, self.tokens, inputs = batch, batch.tokens, batch.inputs
        self.program, self.schedules = twin.program, twin.schedules
        self.dtype = np.result_type(np.float32, *weights.values())
        self.fresh = (self.tokens != 0).astype(self.dtype)[..., None]
        self.features, self.inputs = batch.features, inputs
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

    def forward(self) -> Array:
        """Leaves logits [T, S, V] and outputs; returns the new state [S, state_size]."""
        D, state = self.program.width, self.batch.state
        states = [state[:, :0]]
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
        self.threads = threads or cores()
        keep_memory()

    @property
    def description(self) -> str:
        return f"float twin (NumPy on the cpu, {self.threads} threads)"

    def logits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        with one_thread():
            run = Pass(self, arrays(weights), batch.each(np.array))
            after = run.forward()
        return mx.array(scored(run.logits)), mx.array(after)

    def bits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        leaves = arrays(weights)

        def work(share: Batch) -> tuple[Array, Array]:
            run = Pass(self, leaves, share)
            after = run.forward()
            return token_bits(run)[0], after

        bits, after = zip(*self._share_out(work, batch), strict=True)
        return mx.array(np.concatenate(bits, axis=1)), mx.array(np.concatenate(after))

    def gradient(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array, Leaves]:
        leaves = arrays(weights)

        def work(share: Batch) -> tuple[Array, Array, list[Array]]:
            run = Pass(self, leaves, share)
            after = run.forward()
            bits, slope = token_bits(run)
            c = share.targets[..., None]
            np.put_along_axis(slope, c, np.take_along_axis(slope, c, axis=-1) - 1, axis=-1)
            return bits, after, run.backward(slope, {})

        bits, after, parts = zip(*self._share_out(work, batch), strict=True)
        total, count = sum(float(b.sum(dtype=np.float64)) for b in bits), batch.targets.size
        grads = {
            name: mx.array(gradient * np.float32(1 / count))
            for name, gradient in self._summed(parts).items()
        }
        return mx.array(total / count), mx.array(np.concatenate(after)), grads

    def run(self, weights: Leaves, batch: Batch) -> tuple[Outputs, mx.array, Back]:
        leaves, batch = arrays(weights), checked(self.program, batch)

        def work(share: Batch) -> tuple[Pass, Array]:
            run = Pass(self, leaves, share)
            return run, run.forward()

        passes, after = zip(*self._share_out(work, batch), strict=True)

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

    def _share_out(self, work: Callable[[Batch], Any], batch: Batch) -> list[Any]:
        """The results of `work` on each thread's share of the streams, in their order."""
        S = batch.state.shape[0]
        shares = max(1, min(self.threads, S // LEAST_STREAMS))
        host, numbers = batch.each(np.array), np.array_split(np.arange(S), shares)
        parts = (slice(each[0], each[-1] + 1) for each in numbers)
        return in_threads(work, [
            host.window(part)._replace(state=host.state[part]) for part in parts
        ])  # fmt: skip


def in_threads(work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """`work` on the first of every column, on the second .., each in a thread of its own."""
    if len(columns[0]) == 1:
        with one_thread():
            return [work(*(column[0] for column in columns))]
    with one_thread(), ThreadPoolExecutor(len(columns[0])) as pool:
        return list(pool.map(work, *columns))


def token_bits(run: Pass) -> tuple[Array, Array]:
    """Bits [T, S] of the targets, and the softmax [T, S, V] of the logits."""
    logits = scored(run.logits)
    top = logits.max(axis=-1, keepdims=True)
    chances = (logits - top) * np.float32(LN2)
    np.exp(chances, out=chances)
    total = chances.sum(axis=-1, keepdims=True)
    chances /= total
    bits = np.log2(total) + top - np.take_along_axis(logits, run.batch.targets[..., None], axis=-1)
    return bits[..., 0], chances


def arrays(weights: Leaves) -> dict[str, Array]:
    """NumPy's view of leaves in MLX."""
    return {name: np.array(w, copy=False) for name, w in weights.items()}


def twin_for(program: Program, threads: int = 0) -> Twin:
    """The twin that is fastest on MLX's default device; threads are of a CPU."""
    return NumpyTwin(program, threads) if on_cpu() else Twin(program)
