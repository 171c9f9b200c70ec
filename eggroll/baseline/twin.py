"""The declared network in floating point, and its true gradient: the twin that adamw.py trains.

The same operations in the same order, with Q4's rounding left out: an int8 value u stands for
u / 16, so the clip is to +-127/16, logits are in bits, and the divisor 16 floor(sqrt K) of a linear
operation becomes floor(sqrt K). `sums`, undivided, stand for sums / 256. Only rounding differs: a
floor lowers a value by half a last bit on average.
Letters: S streams, T tokens, V vocabulary, D width, K inputs of an operation, n values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, log
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.spec import fixed_point as fx
from eggroll.spec.program import Batch, Leaves, Op, Program, S, Stage, X

ONE = 1 << fx.Q  # 1.0 in Q4
LIMIT = fx.LIMIT / ONE
LN2 = log(2)
IN, STATE = -2, -1  # values a stage begins with; the others are the indices of its operations

TwinOutputs = dict[str, mx.array]  # by name, float32 [T, S, size]
Pullback = Callable[[Mapping[str, mx.array]], Leaves]  # slopes of a loss at outputs -> by leaf


class Twin:
    """The float network of a program. Weights are float32 leaves by name, as `real` gives them.

    A batch is by token, [T, S, ..], as `by_token` gives it; its state is float32 [S, state_size],
    zeroed where the mark 0 is read.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        names = [output.name for output in program.outputs]
        self.schedules = [schedule_of(stage, names) for stage in program.stages]

    @property
    def description(self) -> str:
        """The device, for the run's first line."""
        return f"float twin (MLX's automatic gradient on the {mx.default_device().type.name})"

    def logits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        """Runs S streams over T tokens of a program that has a score.

        Returns logits in bits, float32 [T, S, V], and the new state.
        """
        logits, _, after = self._forward(weights, batch)
        return require_score(logits), after

    def _forward(
        self, weights: Leaves, batch: Batch
    ) -> tuple[mx.array | None, TwinOutputs, mx.array]:
        """The logits, if there is a score, the outputs and the new state."""
        D, state = self.program.width, batch.state
        context = OperationContext(self.program, weights, batch)
        x, logits = mx.zeros((*batch.tokens.shape, D)), None
        states: list[mx.array] = []
        outputs: TwinOutputs = {}
        for stage, plan in zip(self.program.stages, self.schedules, strict=True):
            start = state[:, stage.state : stage.state + D] if stage.state >= 0 else None
            values, last = run_stage(context, stage, plan, x, start)
            x = values[plan.out]
            states += [] if last is None else [last]
            logits = logits if plan.score is None else values[plan.score]
            outputs |= {name: values[i] for i, name in plan.outputs.items()}
        return logits, outputs, mx.concatenate([state[:, :0], *states], axis=1)

    def bits(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array]:
        """Minus the log-likelihood of every target in bits, float32 [T, S], and the new state."""
        logits, state = self.logits(weights, batch)
        hit = mx.take_along_axis(logits, batch.targets[..., None], axis=-1).squeeze(-1)
        return mx.logsumexp(logits * LN2, axis=-1) / LN2 - hit, state

    def gradient(self, weights: Leaves, batch: Batch) -> tuple[mx.array, mx.array, Leaves]:
        """Mean bits per token over all [T, S], the new state, and the mean's gradient by leaf."""
        (mean, after), leaves = self._slope(weights, arrays_of(batch))
        return mean, after, leaves

    def run(self, weights: Leaves, batch: Batch) -> tuple[TwinOutputs, mx.array, Pullback]:
        """Runs S streams over T rows; gives the outputs by name, and the way back from them.

        Returns outputs, float32 [T, S, size] in real units: an int8 output / 16, sums / 256; the
        new state; and `back`, which takes the slopes of a loss by output, float32 [T, S, size],
        those left out being zero, to the loss's gradient by leaf.

        Raises:
            ValueError: the program reads what is not there.
        """
        batch = check_batch(self.program, batch)
        _, outputs, after = self._forward(weights, batch)

        def back(slopes: Mapping[str, mx.array]) -> Leaves:
            self.check_slopes(slopes)
            leaves: Leaves = self._pull(weights, dict(slopes), arrays_of(batch))
            return leaves

        return outputs, after, back

    def check_slopes(self, slopes: Mapping[str, Any]) -> None:
        """Raises ValueError for a name that is none of an output."""
        names = [output.name for output in self.program.outputs]
        for name in slopes.keys() - set(names):
            raise ValueError(f"{name!r} is no output: the program has {', '.join(names)}.")

    def gradient_at(self, weights: Leaves, batch: Batch, slopes: Mapping[str, mx.array]) -> Leaves:
        """The gradient by leaf of a loss with these slopes at the outputs; see `run`."""
        return self.run(weights, batch)[2](slopes)

    def gradient_of(
        self, loss: Callable[[TwinOutputs], mx.array], weights: Leaves, batch: Batch
    ) -> tuple[mx.array, mx.array, Leaves]:
        """A loss of the outputs, in MLX's operations; the new state, and the loss's gradient."""
        outputs, after, back = self.run(weights, batch)
        value, slopes = mx.value_and_grad(loss)(outputs)
        return value, after, back(slopes)

    @cached_property
    def _slope(self) -> Callable[..., Any]:
        def loss(weights: Leaves, arrays: Leaves) -> tuple[mx.array, mx.array]:
            bits, after = self.bits(weights, Batch(**arrays))
            return bits.mean(), after

        return compile_on_gpu(mx.value_and_grad(loss))

    @cached_property
    def _pull(self) -> Callable[..., Any]:
        def along(weights: Leaves, slopes: TwinOutputs, arrays: Leaves) -> mx.array:
            _, outputs, _ = self._forward(weights, Batch(**arrays))
            return sum(((outputs[k] * slope).sum() for k, slope in slopes.items()), mx.array(0.0))

        return compile_on_gpu(mx.grad(along))


def dequantise(values: Mapping[str, Any]) -> Leaves:
    """Int8 leaves in Q4 -> float32 leaves of what they stand for."""
    return {name: mx.array(np.array(v, np.float32) / ONE) for name, v in values.items()}


def by_token(batch: Batch) -> Batch:
    """Arrays of rows [S, T, ..] -> [T, S, ..] in MLX, as the twins read."""
    return batch.rows(lambda a: mx.array(np.ascontiguousarray(np.array(a).swapaxes(0, 1))))


def check_batch(program: Program, batch: Batch) -> Batch:
    """The batch, by token; without tokens they are all 1, which no document begins.

    Raises:
        ValueError: the program reads what is not there, or numbers beyond their range.
    """
    needed = ("inputs", "int8", program.inputs), ("features", "int32", program.indices)
    for name, dtype, size in needed:
        a = getattr(batch, name)
        if size and (a is None or a.ndim != 3 or a.shape[-1] != size):
            raise ValueError(f"the program reads {name} {dtype} [T, S, {size}]: give them")
    for op in program.sparse_ops:
        lists, active, first, _ = op.numbers
        index = batch.features[..., first : first + lists * active]
        _check_range("features", index, -1, program.leaves[op.leaf].shape[0] - 1)
    if batch.tokens is not None:
        _check_range("tokens", batch.tokens, 0, program.vocabulary - 1)
        return batch
    rows = next((a for a in (batch.inputs, batch.features) if a is not None), None)
    if rows is None or any(op.kind == "embed" for stage in program.stages for op in stage.ops):
        raise ValueError("the program reads tokens: give them, int32 [T, S]")
    return batch._replace(tokens=mx.ones(rows.shape[:2], mx.int32))


def _check_range(name: str, values: mx.array, low: int, high: int) -> None:
    """Raises ValueError for a value out of range."""
    array = np.array(values)
    if array.min() < low or array.max() > high:
        raise ValueError(
            f"{name} reach from {array.min()} to {array.max()}: {low} to {high} are allowed"
        )


def require_score(logits: Any) -> Any:
    """The logits themselves.

    Raises:
        ValueError: there are none.
    """
    if logits is None:
        raise ValueError("the program has no score: use `run`, which gives its outputs.")
    return logits


def arrays_of(batch: Batch) -> dict[str, mx.array]:
    """The arrays of a batch by name, as MLX's functions take them."""
    return {name: a for name, a in batch._asdict().items() if a is not None}


def on_cpu() -> bool:
    """True if MLX's default device is the CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def compile_on_gpu(slope: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled on a GPU; on a CPU that takes longer than a short run."""
    # Products are what costs time there.
    function: Callable[..., Any] = slope if on_cpu() else mx.compile(slope)
    return function


# The stages.


@dataclass(frozen=True)
class Schedule:
    """A stage's operations, by index: those for all tokens at once, and those of the recurrence."""

    before: list[int]  # need no state
    loop: list[int]  # lead from a state to the next
    after: list[int]  # need states, but lead to none
    inputs: list[tuple[int, ...]]  # of each operation, as indices or IN or STATE
    out: int  # the value in register X at the end
    state: int  # the value in register S at the end
    score: int | None  # of the logits
    outputs: dict[int, str]  # index -> name


def schedule_of(stage: Stage, names: Sequence[str] = ()) -> Schedule:
    """Finds the operations that must run token by token. names: of all outputs."""
    registers, inputs, score = {X: IN, S: STATE}, [], None
    outputs: dict[int, str] = {}
    for i, op in enumerate(stage.ops):
        inputs.append(tuple(registers[register] for register in op.inputs))
        if op.writes:
            registers[op.out] = i
        elif op.kind == "score":
            score = i
        else:
            outputs[i] = names[op.numbers[0]]
    recurrent = {STATE}
    for i, sources in enumerate(inputs):
        if recurrent & set(sources):
            recurrent.add(i)
    leading = {registers[S]}
    for i in reversed(range(len(inputs))):
        if i in leading:
            leading |= set(inputs[i])
    every = range(len(inputs))
    return Schedule(
        before=[i for i in every if i not in recurrent],
        loop=[i for i in every if i in recurrent & leading],
        after=[i for i in every if i in recurrent - leading],
        inputs=inputs,
        out=registers[X],
        state=registers[S],
        score=score,
        outputs=outputs,
    )


def run_stage(
    context: OperationContext, stage: Stage, plan: Schedule, x: mx.array, state: mx.array | None
) -> tuple[dict[int, mx.array], mx.array | None]:
    """Values [T, S, n] of a stage's operations and the state [S, D] after the last token."""

    def compute(indices: list[int], values: Mapping[int, mx.array]) -> dict[int, mx.array]:
        results = dict(values)
        for i in indices:
            op = stage.ops[i]
            results[i] = OPERATIONS[op.kind](context, op, *(results[j] for j in plan.inputs[i]))
        return results

    values = compute(plan.before, {IN: x})
    if state is not None:
        loop_inputs = {j for i in plan.loop for j in plan.inputs[i]} | {plan.state}
        rows = {j: unstack(values[j]) for j in loop_inputs & values.keys()}
        fresh = unstack((context.batch.tokens != 0).astype(mx.float32)[..., None])
        needed = {j for i in plan.after for j in plan.inputs[i]} | {plan.out}
        columns: dict[int, list[mx.array]] = {j: [] for j in (STATE, *plan.loop) if j in needed}
        for t in range(len(fresh)):
            results = {j: row[t] for j, row in rows.items()} | {STATE: state * fresh[t]}
            results = compute(plan.loop, results)
            state = results[plan.state]
            for j, column in columns.items():
                column.append(results[j])
        values |= {j: mx.stack(column) for j, column in columns.items()}
    return compute(plan.after, values), state


def unstack(v: mx.array) -> list[mx.array]:
    """[T, ...] -> T arrays, in one operation, so that its gradient is one, too."""
    return [token.squeeze(0) for token in mx.split(v, v.shape[0], axis=0)]


# The operations, whose gradient MLX finds; values are float32 in real units.


class OperationContext(NamedTuple):
    """The arguments of an operation beside its inputs."""

    program: Program
    weights: Leaves
    batch: Batch  # by token: [T, S, ..]

    def leaf(self, op: Op) -> mx.array:
        return self.weights[self.program.leaves[op.leaf].name]


def embed(context: OperationContext, op: Op) -> mx.array:
    return clip(context.leaf(op)[context.batch.tokens])


def linear(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    return clip(x @ context.leaf(op).T * (1 / isqrt(x.shape[-1])))


def norm(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    mean = mx.maximum(mx.abs(x).mean(axis=-1, keepdims=True), 1 / ONE)
    return clip(x * context.leaf(op) / mean)


def add(context: OperationContext, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return clip(a + b)


def add_bias(context: OperationContext, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return clip(a + b + context.leaf(op))


def lookup(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    function = TABLE_FUNCTIONS.get(op.table)
    return function(x) if function else interpolate(context.program.tables[op.table], x)


def interpolate(table: NDArray[np.int8], x: mx.array) -> mx.array:
    """The table's 255 points joined by straight lines; the gradient is the slope to the right."""
    points = mx.array(table.astype(np.float32) / ONE)
    position = x * ONE
    low = mx.stop_gradient(mx.clip(mx.floor(position), -fx.LIMIT, fx.LIMIT - 1))
    left = low.astype(mx.int32) + fx.LIMIT
    return points[left] + (position - low) * (points[left + 1] - points[left])


def gate_share(f: mx.array) -> mx.array:
    """A gate f as a factor: (f + 127) / 256 of the int8 value."""
    return (f + LIMIT) * (ONE / 256)


def forget(context: OperationContext, op: Op, f: mx.array, s: mx.array) -> mx.array:
    return gate_share(f) * s


def mix(context: OperationContext, op: Op, f: mx.array, h: mx.array, s: mx.array) -> mx.array:
    return s + gate_share(f) * (h - s)


def score(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    """Logits in bits, [.., V]; `Twin.bits` makes log-likelihoods of them."""
    return linear(context, op, x)


def input_rows(context: OperationContext, op: Op) -> mx.array:
    return mx.maximum(context.batch.inputs.astype(mx.float32) / ONE, -LIMIT)


def features(context: OperationContext, op: Op) -> mx.array:
    (lists, active, first, shift), E = op.numbers, context.leaf(op)
    index = context.batch.features[..., first : first + lists * active]
    rows = mx.concatenate([E, mx.zeros((1, E.shape[1]))])  # index -1: the last one, nothing
    sums = rows[index.reshape(*index.shape[:2], lists, active)].sum(axis=-2)
    return clip(sums.reshape(*index.shape[:2], lists * E.shape[1]) * 2.0**-shift)


def bias(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    return clip(x + context.leaf(op))


def relu(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def concat(context: OperationContext, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return mx.concatenate([a, b], axis=-1)


def output(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    return x


def sums(context: OperationContext, op: Op, x: mx.array) -> mx.array:
    return x @ context.leaf(op).T


def clip(v: mx.array) -> mx.array:
    """Clamp to +-127/16; the gradient passes inside and is zero outside."""
    return mx.clip(v, -LIMIT, LIMIT)


OPERATIONS: dict[str, Callable[..., mx.array]] = {
    "embed": embed,
    "linear": linear,
    "norm": norm,
    "add": add,
    "add_bias": add_bias,
    "lookup": lookup,
    "forget": forget,
    "mix": mix,
    "score": score,
    "input": input_rows,
    "features": features,
    "bias": bias,
    "relu": relu,
    "concat": concat,
    "output": output,
    "sums": sums,
}
# The functions that the tables of fixed_point.gate_tables round, in real units.
TABLE_FUNCTIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "sigmoid": lambda v: (254 * mx.sigmoid(v) - fx.LIMIT) / ONE,
    "tanh": lambda v: 4 * mx.tanh(v / 4),
}
