"""The float twin of twin.py on a CPU, forwards and backwards, by NumPy.

MLX's own products and exponentials are many times slower there than NumPy's, which would make a
weak baseline. MLX's automatic gradient of twin.py defines the result: tests compare them.
Letters: S streams, T tokens, V vocabulary, D width, n values.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
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
    Pullback,
    Schedule,
    Twin,
    TwinOutputs,
    check_batch,
    on_cpu,
    require_score,
)
from eggroll.cli import command as cli
from eggroll.spec import fixed_point as fx
from eggroll.spec.program import Batch, Leaves, Op, Program, Stage

GATHER_ROWS = 1 << 16  # rows of a leaf of features added at once
STREAMS_PER_THREAD = 16  # at least

Array = NDArray[Any]
Values = dict[int, Array]


def twin_for(program: Program, threads: int = 0) -> Twin:
    """The twin that is fastest on MLX's default device; threads are of a CPU."""
    return NumpyTwin(program, threads) if on_cpu() else Twin(program)


class NumpyTwin(Twin):
    """The twin with its work done by NumPy; takes and returns what `Twin` does.

    threads: each runs its own share of the streams, forwards and backwards; 0 is all cores.
    """

    def __init__(self, program: Program, threads: int = 0) -> None:
        super().__init__(program)
        self.threads = threads or cli.usable_cores()
        keep_memory()

    @property
    def description(self) -> str:
        return f"float twin (NumPy on the cpu, {self.threads} threads)"

    def logits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        with one_thread():
            run = Pass(self, numpy_leaves(weights), batch.each(np.array))
            after = run.forward()
        return mx.array(require_score(run.logits)), mx.array(after)

    def bits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        leaves = numpy_leaves(weights)

        def work(gate_share: Batch) -> tuple[Array, Array]:
            run = Pass(self, leaves, gate_share)
            after = run.forward()
            return token_bits(run)[0], after

        bits, after = zip(*self._share_out(work, batch), strict=True)
        return mx.array(np.concatenate(bits, axis=1)), mx.array(np.concatenate(after))

    def gradient(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array, Leaves]:
        leaves = numpy_leaves(weights)

        def work(gate_share: Batch) -> tuple[Array, Array, list[Array]]:
            run = Pass(self, leaves, gate_share)
            after = run.forward()
            bits, slope = token_bits(run)
            c = gate_share.targets[..., None]
            np.put_along_axis(slope, c, np.take_along_axis(slope, c, axis=-1) - 1, axis=-1)
            return bits, after, run.backward(slope, {})

        bits, after, gradients = zip(*self._share_out(work, batch), strict=True)
        bias_leaf, count = sum(float(b.sum(dtype=np.float64)) for b in bits), batch.targets.size
        grads = {
            name: mx.array(gradient * np.float32(1 / count))
            for name, gradient in self._sum(gradients).items()
        }
        return mx.array(bias_leaf / count), mx.array(np.concatenate(after)), grads

    def run(self, weights: Leaves, batch: Batch) -> tuple[TwinOutputs, mx.array, Pullback]:
        leaves, batch = numpy_leaves(weights), check_batch(self.program, batch)

        def work(gate_share: Batch) -> tuple[Pass, Array]:
            run = Pass(self, leaves, gate_share)
            return run, run.forward()

        passes, after = zip(*self._share_out(work, batch), strict=True)

        def back(slopes: Mapping[str, mx.array]) -> Leaves:
            self.check_slopes(slopes)
            ends = np.cumsum([run.tokens.shape[1] for run in passes])[:-1]
            slices = {name: np.split(np.array(a), ends, axis=1) for name, a in slopes.items()}
            shares = [{name: a[i] for name, a in slices.items()} for i in range(len(passes))]
            gradients = map_threads(Pass.backward, passes, [None] * len(passes), shares)
            return {name: mx.array(g) for name, g in self._sum(gradients).items()}

        names = [output.name for output in self.program.outputs]
        joined = {name: np.concatenate([p.outputs[name] for p in passes], axis=1) for name in names}
        outputs = {name: mx.array(a) for name, a in joined.items()}
        return outputs, mx.array(np.concatenate(after)), back

    def _sum(self, gradients: Sequence[list[Array]]) -> dict[str, Array]:
        """The shares' gradients, as `Pass.backward` gives them, added up, by leaf."""
        columns = zip(self.program.leaves, zip(*gradients, strict=True), strict=True)
        return {leaf.name: sum(column[1:], column[0]) for leaf, column in columns}

    def _share_out(self, work: Callable[[Batch], Any], batch: Batch) -> list[Any]:
        """The results of `work` on each thread's share of the streams, in their order."""
        S = batch.state.shape[0]
        shares = max(1, min(self.threads, S // STREAMS_PER_THREAD))
        host, numbers = batch.each(np.array), np.array_split(np.arange(S), shares)
        spans = (slice(group[0], group[-1] + 1) for group in numbers)
        return map_threads(work, [
            host.window(span)._replace(state=host.state[span]) for span in spans
        ])  # fmt: skip


def map_threads(work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """`work` on the first of every column, on the second .., each in a thread of its own."""
    if len(columns[0]) == 1:
        with one_thread():
            return [work(*(column[0] for column in columns))]
    with one_thread(), ThreadPoolExecutor(len(columns[0])) as pool:
        return list(pool.map(work, *columns))


def token_bits(run: Pass) -> tuple[Array, Array]:
    """Bits [T, S] of the targets, and the softmax [T, S, V] of the logits."""
    logits = require_score(run.logits)
    top = logits.max(axis=-1, keepdims=True)
    chances = (logits - top) * np.float32(LN2)
    np.exp(chances, out=chances)
    bias_leaf = chances.sum(axis=-1, keepdims=True)
    chances /= bias_leaf
    bits = (
        np.log2(bias_leaf) + top - np.take_along_axis(logits, run.batch.targets[..., None], axis=-1)
    )
    return bits[..., 0], chances


def numpy_leaves(weights: Leaves) -> dict[str, Array]:
    """NumPy's view of leaves in MLX."""
    return {name: np.array(w, copy=False) for name, w in weights.items()}


class Pass:
    """One pass over T tokens of S streams: every value [T, S, n], for `backward`.

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

    def operation(self, op: Op) -> tuple[NumpyOperation, Array | None]:
        """An operation, and its leaf."""
        if op.kind == "lookup":
            table = LOOKUPS.get(op.table)
            return table or interpolation(self.program.tables[op.table]), None
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
            operation, w = self.operation(op)
            values[i] = operation.forward(w, *self.inputs_of(op, plan.inputs[i], values))

    def _recurrence(self, stage: Stage, plan: Schedule, values: Values, state: Array) -> Array:
        """Runs the loop; the state [S, D] that every token begins with is a value, too."""
        loop = [(i, *self.operation(stage.ops[i]), plan.inputs[i]) for i in plan.loop]
        T = len(self.tokens)
        values[STATE] = np.empty((T, *state.shape), self.dtype)
        for t in range(T):
            np.multiply(state, self.fresh[t], out=values[STATE][t])
            for i, operation, w, inputs in loop:
                y = operation.forward(w, *(values[j][t] for j in inputs))
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
            operation, w = self.operation(op)
            inputs = self.inputs_of(op, plan.inputs[i], values)
            h, slopes_of_inputs = operation.back(grads[i], values[i], w, *inputs)
            if operation.leaf and op.leaf >= 0:
                leaves[op.leaf] = operation.leaf(h, *inputs)
            accumulate(grads, plan.inputs[i], slopes_of_inputs)

    def _recurrence_back(
        self, stage: Stage, plan: Schedule, values: Values, grads: Values, leaves: list[Array]
    ) -> None:
        """Back through the tokens; products for the leaves wait until all tokens are known."""
        loop = [(i, *self.operation(stage.ops[i]), plan.inputs[i]) for i in reversed(plan.loop)]
        outer = {j for i in plan.loop for j in plan.inputs[i]} | {plan.state}
        outer -= {STATE, *plan.loop}
        for j in outer:  # a copy, as an operation may have given it to two values
            grads[j] = grads[j].copy() if j in grads else np.zeros_like(values[j])
        slopes = {i: np.empty_like(values[i]) for i, operation, _, _ in loop if operation.leaf}
        received = [j for j in (STATE, *plan.loop) if j in grads]
        carried = np.zeros_like(values[STATE][0])
        for t in reversed(range(len(self.tokens))):
            grads_t = {j: grads[j][t] for j in received}
            accumulate(grads_t, (plan.state,), (carried,))
            for i, operation, w, inputs in loop:
                h, slopes_of_inputs = operation.back(
                    grads_t[i], values[i][t], w, *(values[j][t] for j in inputs)
                )
                if i in slopes:
                    slopes[i][t] = h
                accumulate(grads_t, inputs, slopes_of_inputs)
            for j in outer & grads_t.keys():
                grads[j][t] += grads_t[j]
            carried = grads_t[STATE] * self.fresh[t] if STATE in grads_t else carried * 0
        for i, operation, _, inputs in loop:
            if operation.leaf:
                leaves[stage.ops[i].leaf] = operation.leaf(slopes[i], *(values[j] for j in inputs))


def accumulate(grads: Values, indices: tuple[int, ...], terms: tuple[Array, ...]) -> None:
    """Adds without touching an array in place, as an operation may return one array twice."""
    for j, term in zip(indices, terms, strict=True):
        grads[j] = grads[j] + term if j in grads else term


# The operations, each with its gradient by hand; values are float in real units.


class NumpyOperation(NamedTuple):
    """An operation's value and gradient; w is its leaf (divided already where it is linear).

    forward(w, *inputs) -> y;
    back(g, y, w, *inputs) -> h, the gradient before the clip, and that of every input;
    leaf(h, *inputs) -> the leaf's gradient from all tokens, None where there is no leaf.
    Tokens, rows and features are inputs of embed, input and features, without a gradient.
    """

    forward: Callable[..., Array]
    back: Callable[..., tuple[Array, tuple[Array, ...]]]
    leaf: Callable[..., Array] | None = None


def clip(v: Array) -> Array:
    """Clamps v, a fresh array, in place."""
    return np.clip(v, -LIMIT, LIMIT, out=v)


def through_clip(g: Array, y: Array) -> Array:
    """The gradient before a clip whose result is y."""
    out: Array = np.abs(y)
    np.less(out, LIMIT, out=out)
    out *= g
    return out


def flat_rows(v: Array) -> Array:
    """[.., n] -> [rows, n]."""
    return v.reshape(-1, v.shape[-1])


def linear_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h = through_clip(g, y)
    return h, (h @ w,)


def linear_leaf(h: Array, x: Array) -> Array:
    return weight_gradient(h, x) * np.float32(1 / isqrt(x.shape[-1]))


def weight_gradient(h: Array, x: Array) -> Array:
    """The gradient of the weights of h = x W^T, summed over all tokens."""
    out: Array = flat_rows(h).T @ flat_rows(x)
    return out


def norm_divisor(x: Array) -> tuple[Array, Array]:
    """A norm's divisor, and true where it depends on x."""
    mean = np.abs(x).mean(axis=-1, keepdims=True)
    return np.maximum(mean, np.float32(1 / ONE)), mean > 1 / ONE


def norm_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h, (mean, free) = through_clip(g, y), norm_divisor(x)
    dr = h * w
    along = (dr * x).sum(axis=-1, keepdims=True) * free / (mean * x.shape[-1])
    return h, ((dr - np.sign(x) * along) / mean,)


def norm_leaf(h: Array, x: Array) -> Array:
    out: Array = flat_rows(h * (x / norm_divisor(x)[0])).sum(axis=0)
    return out


def add_back(g: Array, y: Array, w: Array, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    h = through_clip(g, y)
    return h, (h, h)


def bias_back(g: Array, y: Array, w: Array, x: Array) -> tuple[Array, tuple[Array, ...]]:
    h = through_clip(g, y)
    return h, (h,)


def bias_leaf(h: Array, *inputs: Array) -> Array:
    """The gradient of a bias."""
    out: Array = flat_rows(h).sum(axis=0)
    return out


def concat_back(
    g: Array, y: Array, w: Array, a: Array, b: Array
) -> tuple[Array, tuple[Array, ...]]:
    size = a.shape[-1]
    return g, (g[..., :size], g[..., size:])


def gate_share(f: Array) -> Array:
    """A gate f as a factor: (f + 127) / 256 of the int8 value."""
    return (f + np.float32(LIMIT)) * np.float32(ONE / 256)


def forget_back(
    g: Array, y: Array, w: Array, f: Array, s: Array
) -> tuple[Array, tuple[Array, ...]]:
    return g, (g * s * np.float32(ONE / 256), g * gate_share(f))


def mix(w: Array, f: Array, h: Array, s: Array) -> Array:
    out: Array = s + gate_share(f) * (h - s)
    return out


def mix_back(g: Array, y: Array, w: Array, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    f, h, s = inputs
    dh = g * gate_share(f)
    return g, (g * (h - s) * np.float32(ONE / 256), dh, g - dh)


def input_back(g: Array, y: Array, w: Array, *read: Any) -> tuple[Array, tuple[Array, ...]]:
    return through_clip(g, y), ()


def embed_leaf(h: Array, tokens: Array, vocabulary: int) -> Array:
    """Sums the rows of h [T, S, D] that belong to one token, for every token."""
    flat, out = tokens.reshape(-1), np.zeros((vocabulary, h.shape[-1]), h.dtype)
    by_token = np.argsort(flat, kind="stable")
    unique, first = np.unique(flat[by_token], return_index=True)
    out[unique] = np.add.reduceat(flat_rows(h)[by_token], first, axis=0)
    return out


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
    slopes, flat = h.reshape(-1, h.shape[-1] // lists) * scale, index.reshape(-1, active)
    out, block = np.zeros((count, slopes.shape[1]), h.dtype), max(1, GATHER_ROWS // active)
    for start in range(0, len(flat), block):
        lists_of_block = flat[start : start + block]
        row, column = np.nonzero(lists_of_block >= 0)
        if len(row):
            active_rows = lists_of_block[row, column]
            order = np.argsort(active_rows, kind="stable")
            unique, first = np.unique(active_rows[order], return_index=True)
            out[unique] += np.add.reduceat(slopes[start + row[order]], first, axis=0)
    return out


def interpolation(table: NDArray[np.int8]) -> NumpyOperation:
    """A table's 255 points joined by straight lines; the gradient is the slope to the right."""
    points = table.astype(np.float32) / np.float32(ONE)

    steps = np.diff(points)

    def cell(v: Array) -> Array:
        out: Array = np.clip(np.floor(v * ONE), -fx.LIMIT, fx.LIMIT - 1)
        return out

    def forward(w: Array, v: Array) -> Array:
        low = cell(v)
        i = low.astype(np.int32) + fx.LIMIT
        out: Array = points[i] + (v * ONE - low) * steps[i]
        return out

    def back(g: Array, y: Array, w: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
        return g, (g * steps[cell(v).astype(np.int32) + fx.LIMIT] * ONE,)

    return NumpyOperation(forward, back)


LINEAR = NumpyOperation(lambda w, x: clip(x @ w.T), linear_back, linear_leaf)
OPERATIONS: dict[str, NumpyOperation] = {
    "embed": NumpyOperation(lambda w, tokens, V: clip(w[tokens]), input_back, embed_leaf),
    "linear": LINEAR,
    "score": LINEAR,
    "norm": NumpyOperation(lambda w, x: clip(x * w / norm_divisor(x)[0]), norm_back, norm_leaf),
    "add": NumpyOperation(lambda w, a, b: clip(a + b), add_back),
    "add_bias": NumpyOperation(lambda w, a, b: clip(a + b + w), add_back, bias_leaf),
    "forget": NumpyOperation(lambda w, f, s: gate_share(f) * s, forget_back),
    "mix": NumpyOperation(mix, mix_back),
    "input": NumpyOperation(lambda w, shown: shown, input_back),
    "features": NumpyOperation(
        lambda w, index, scale, count: features(w, index, scale), input_back, features_leaf
    ),
    "bias": NumpyOperation(lambda w, x: clip(x + w), bias_back, bias_leaf),
    "relu": NumpyOperation(lambda w, x: np.maximum(x, 0), lambda g, y, w, x: (g, (g * (y > 0),))),
    "concat": NumpyOperation(lambda w, a, b: np.concatenate([a, b], axis=-1), concat_back),
    "output": NumpyOperation(lambda w, x: x, lambda g, y, w, x: (g, (g,))),
    "sums": NumpyOperation(lambda w, x: x @ w.T, lambda g, y, w, x: (g, (g @ w,)), weight_gradient),
}
# The tables that fixed_point.gate_tables rounds; any other is `through_points`.
LOOKUPS: dict[str, NumpyOperation] = {
    "sigmoid": NumpyOperation(
        lambda w, v: (254 / (1 + np.exp(-v)) - fx.LIMIT) / ONE,
        lambda g, y, w, v: (g, (g * (y + LIMIT) * (254 / ONE - LIMIT - y) * (ONE / 254),)),
    ),
    "tanh": NumpyOperation(
        lambda w, v: 4 * np.tanh(v / 4),
        lambda g, y, w, v: (g, (g * (1 - np.square(y / 4)),)),
    ),
}


# Threads and memory of the process.


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's BLAS on one thread inside, on as many as before outside; only OpenBLAS is known.

    Its threads spin while they wait: beside other work, small products then take far longer than
    with one. Threads that each compute a share of the streams need no more. The number is the
    process's: the last thread that leaves puts it back.
    """
    if not (functions := _openblas()):
        yield
        return
    get_threads, set_threads = functions
    with _blas_lock:
        _before.append(get_threads())
        set_threads(1)
    try:
        yield
    finally:
        with _blas_lock:
            set_threads(_before.pop())


_blas_lock = threading.Lock()
_before: list[int] = []  # numbers of threads that those inside found: all but the first 1


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
                    functions = [getattr(library, name, None) for name in names]
                    if all(functions):
                        return functions[0], functions[1]
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
