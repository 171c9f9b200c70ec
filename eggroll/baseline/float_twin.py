"""The declared network in floating point, and its true gradient: the twin that adamw.py trains.

The same operations in the same order, with Q4's rounding left out: an int8 value u stands for
u / 16, so the clip is to +-127/16, logits are in bits, and the divisor 16 floor(sqrt K) of a linear
operation becomes floor(sqrt K). Only rounding differs: a floor lowers a value by half a last bit on
average.
Letters: S streams, T tokens, V vocabulary, D width, K inputs of an operation, n values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, log
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import fixed_point as fx
from eggroll.program import Op, Program, S, Stage, X

Leaves = dict[str, mx.array]

ONE = 1 << fx.Q  # 1.0 in Q4
LIMIT = fx.LIMIT / ONE
LN2 = log(2)
IN, STATE = -2, -1  # values a stage begins with; the others are the indices of its operations


def real(values: Mapping[str, Any]) -> Leaves:
    """Int8 leaves in Q4 -> float32 leaves of what they stand for."""
    return {name: mx.array(np.array(v, np.float32) / ONE) for name, v in values.items()}


def by_token(batch: NDArray[Any]) -> mx.array:
    """[S, T] -> [T, S], as the twins read."""
    return mx.array(np.ascontiguousarray(batch.T))


def on_cpu() -> bool:
    """True if MLX's default device is the CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def clip(v: mx.array) -> mx.array:
    """Clamp to +-127/16; the gradient passes inside and is zero outside."""
    return mx.clip(v, -LIMIT, LIMIT)


class Reading(NamedTuple):
    """Arguments of an operation beside its inputs: tokens and targets, int32 [T, S]."""

    program: Program
    weights: Leaves
    tokens: mx.array
    targets: mx.array | None

    def leaf(self, op: Op) -> mx.array:
        return self.weights[self.program.leaves[op.leaf].name]


def embed(read: Reading, op: Op) -> mx.array:
    return clip(read.leaf(op)[read.tokens])


def linear(read: Reading, op: Op, x: mx.array) -> mx.array:
    return clip(x @ read.leaf(op).T * (1 / isqrt(x.shape[-1])))


def norm(read: Reading, op: Op, x: mx.array) -> mx.array:
    mean = mx.maximum(mx.abs(x).mean(axis=-1, keepdims=True), 1 / ONE)
    return clip(x * read.leaf(op) / mean)


def add(read: Reading, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return clip(a + b)


def add_bias(read: Reading, op: Op, a: mx.array, b: mx.array) -> mx.array:
    return clip(a + b + read.leaf(op))


def lookup(read: Reading, op: Op, x: mx.array) -> mx.array:
    return TABLES[op.table](x)


def share(f: mx.array) -> mx.array:
    """A gate f as a factor: (f + 127) / 256 of the int8 value."""
    return (f + LIMIT) * (ONE / 256)


def forget(read: Reading, op: Op, f: mx.array, s: mx.array) -> mx.array:
    return share(f) * s


def mix(read: Reading, op: Op, f: mx.array, h: mx.array, s: mx.array) -> mx.array:
    return s + share(f) * (h - s)


def score(read: Reading, op: Op, x: mx.array) -> mx.array:
    """Logits in bits, [.., V]; `Twin.bits` makes log-likelihoods of them."""
    return linear(read, op, x)


# What the integer tables of fixed_point.gate_tables round, in real units.
TABLES: dict[str, Callable[[mx.array], mx.array]] = {
    "sigmoid": lambda v: (254 * mx.sigmoid(v) - fx.LIMIT) / ONE,
    "tanh": lambda v: 4 * mx.tanh(v / 4),
}

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
}


@dataclass(frozen=True)
class Schedule:
    """A stage's operations, by index: those for all tokens at once, and those of the recurrence.

    before: need no state; loop: lead from a state to the next; after: need states, but lead to
    none. inputs: of each operation, as indices or IN or STATE; out, state: what register X and
    register S hold at the end; score: the index of the logits or None.
    """

    before: list[int]
    loop: list[int]
    after: list[int]
    inputs: list[tuple[int, ...]]
    out: int
    state: int
    score: int | None


def schedule_of(stage: Stage) -> Schedule:
    """Finds which of a stage's operations must run token by token."""
    holds, inputs, score = {X: IN, S: STATE}, [], None
    for i, op in enumerate(stage.ops):
        inputs.append(tuple(holds[register] for register in op.inputs))
        if op.kind == "score":
            score = i  # gives no activation: its register keeps what it held
        else:
            holds[op.out] = i
    recurrent = {STATE}
    for i, sources in enumerate(inputs):
        if recurrent & set(sources):
            recurrent.add(i)
    leading = {holds[S]}
    for i in reversed(range(len(inputs))):
        if i in leading:
            leading |= set(inputs[i])
    every = range(len(inputs))
    return Schedule(
        before=[i for i in every if i not in recurrent],
        loop=[i for i in every if i in recurrent & leading],
        after=[i for i in every if i in recurrent - leading],
        inputs=inputs,
        out=holds[X],
        state=holds[S],
        score=score,
    )


def unstack(v: mx.array) -> list[mx.array]:
    """[T, ...] -> T arrays, in one operation, so that its gradient is one, too."""
    return [part.squeeze(0) for part in mx.split(v, v.shape[0], axis=0)]


class Twin:
    """The float network of a program. Weights are float32 leaves by name, as `real` gives them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.schedules = [schedule_of(stage) for stage in program.stages]

    @property
    def description(self) -> str:
        """The device, for the run's first line."""
        return f"float twin (MLX's automatic gradient on the {mx.default_device().type.name})"

    def logits(
        self, weights: Leaves, tokens: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Runs S streams over T tokens.

        tokens: int32 [T, S]; state: float32 [S, state_size], zeroed where the mark 0 is read.
        Returns logits in bits, float32 [T, S, V], and the new state.
        """
        D = self.program.width
        read = Reading(self.program, weights, tokens, None)
        x, logits = mx.zeros((*tokens.shape, D)), None
        states = []
        for stage, plan in zip(self.program.stages, self.schedules, strict=True):
            known = state[:, stage.state : stage.state + D] if stage.state >= 0 else None
            values, last = run_stage(read, stage, plan, x, known)
            x = values[plan.out]
            states += [] if last is None else [last]
            logits = logits if plan.score is None else values[plan.score]
        assert logits is not None
        return logits, mx.concatenate([state[:, :0], *states], axis=1)

    def bits(
        self, weights: Leaves, tokens: mx.array, targets: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Minus the log-likelihood of every target in bits, float32 [T, S], and the new state."""
        logits, state = self.logits(weights, tokens, state)
        hit = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
        return mx.logsumexp(logits * LN2, axis=-1) / LN2 - hit, state

    def gradient(
        self, weights: Leaves, tokens: mx.array, targets: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array, Leaves]:
        """Mean bits per token over all [T, S], the new state, and the mean's gradient by leaf."""
        (mean, after), leaves = self._slope(weights, tokens, targets, state)
        return mean, after, leaves

    @cached_property
    def _slope(self) -> Callable[..., Any]:
        def loss(*args: Any) -> tuple[mx.array, mx.array]:
            bits, after = self.bits(*args)
            return bits.mean(), after

        slope: Callable[..., Any] = mx.value_and_grad(loss)
        # On a CPU compiling takes longer than a short run, and products are what costs time there.
        return slope if on_cpu() else mx.compile(slope)


def run_stage(
    read: Reading, stage: Stage, plan: Schedule, x: mx.array, state: mx.array | None
) -> tuple[dict[int, mx.array], mx.array | None]:
    """Values [T, S, n] of a stage's operations and the state [S, D] after the last token."""

    def compute(indices: list[int], known: Mapping[int, mx.array]) -> dict[int, mx.array]:
        new = dict(known)
        for i in indices:
            op = stage.ops[i]
            new[i] = OPERATIONS[op.kind](read, op, *(new[j] for j in plan.inputs[i]))
        return new

    values = compute(plan.before, {IN: x})
    if state is not None:
        read_there = {j for i in plan.loop for j in plan.inputs[i]} | {plan.state}
        rows = {j: unstack(values[j]) for j in read_there & values.keys()}
        fresh = unstack((read.tokens != 0).astype(mx.float32)[..., None])
        kept = {j for i in plan.after for j in plan.inputs[i]} | {plan.out}
        seen: dict[int, list[mx.array]] = {j: [] for j in (STATE, *plan.loop) if j in kept}
        for t in range(len(fresh)):
            now = {j: row[t] for j, row in rows.items()} | {STATE: state * fresh[t]}
            now = compute(plan.loop, now)
            state = now[plan.state]
            for j, column in seen.items():
                column.append(now[j])
        values |= {j: mx.stack(column) for j, column in seen.items()}
    return compute(plan.after, values), state
