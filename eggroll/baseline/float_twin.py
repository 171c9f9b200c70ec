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
from math import log
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.baseline.operations_mlx import (
    LIMIT,
    ONE,
    OPERATIONS,
    TABLES,
    Leaves,
    Reading,
    clip,
)
from eggroll.program import NO_ROWS, Program, Rows, S, Stage, X

__all__ = [
    "IN",
    "LIMIT",
    "LN2",
    "ONE",
    "OPERATIONS",
    "STATE",
    "TABLES",
    "Leaves",
    "Reading",
    "Schedule",
    "Twin",
    "by_token",
    "clip",
    "on_cpu",
    "real",
    "rows_by_token",
    "schedule_of",
]

Outputs = dict[str, mx.array]  # by name, float32 [T, S, size]
Back = Callable[[Mapping[str, mx.array]], Leaves]  # slopes of outputs -> gradient

LN2 = log(2)
IN, STATE = -2, -1  # values a stage begins with; the others are the indices of its operations


def real(values: Mapping[str, Any]) -> Leaves:
    """Int8 leaves in Q4 -> float32 leaves of what they stand for."""
    return {name: mx.array(np.array(v, np.float32) / ONE) for name, v in values.items()}


def by_token(batch: NDArray[Any]) -> mx.array:
    """[S, T] -> [T, S], as the twins read."""
    return mx.array(np.ascontiguousarray(batch.T))


def rows_by_token(inputs: NDArray[Any] | None, features: NDArray[Any] | None = None) -> Rows:
    """Inputs and features [S, T, n] -> [T, S, n], as the twins read."""
    given = inputs, features
    return Rows(*(a if a is None else mx.array(a.swapaxes(0, 1).copy()) for a in given))


def given(program: Program, rows: Rows, tokens: mx.array | None) -> mx.array:
    """The tokens of rows, int32 [T, S]; without tokens all 1, which no document begins.

    Raises:
        ValueError: the program reads what is not there, or numbers beyond their range.
    """
    needed = program.inputs, program.indices
    for name, a, size in zip(("inputs int8", "features int32"), rows, needed, strict=True):
        if size and (a is None or a.ndim != 3 or a.shape[-1] != size):
            raise ValueError(f"the program reads {name} [T, S, {size}]: give them in its rows")
    for op in (op for stage in program.stages for op in stage.ops if op.kind == "features"):
        lists, active, first, _ = op.numbers
        index = rows.features[..., first : first + lists * active]  # type: ignore[index]
        _check_range("features", index, -1, program.leaves[op.leaf].shape[0] - 1)
    if tokens is not None:
        _check_range("tokens", tokens, 0, program.vocabulary - 1)
        return tokens
    shown = next((a for a in rows if a is not None), None)
    if shown is None or any(op.kind == "embed" for stage in program.stages for op in stage.ops):
        raise ValueError("the program reads tokens: give them, int32 [T, S]")
    return mx.ones(shown.shape[:2], mx.int32)


def _check_range(name: str, values: mx.array, low: int, high: int) -> None:
    found = np.array(values)
    if found.min() < low or found.max() > high:
        raise ValueError(
            f"{name} reach from {found.min()} to {found.max()}: {low} to {high} are allowed"
        )


def on_cpu() -> bool:
    """True if MLX's default device is the CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


@dataclass(frozen=True)
class Schedule:
    """A stage's operations, by index: those for all tokens at once, and those of the recurrence.

    before: need no state; loop: lead from a state to the next; after: need states, but lead to
    none. inputs: of each operation, as indices or IN or STATE; out, state: what register X and
    register S hold at the end; score: the index of the logits or None; outputs: index -> name.
    """

    before: list[int]
    loop: list[int]
    after: list[int]
    inputs: list[tuple[int, ...]]
    out: int
    state: int
    score: int | None
    outputs: dict[int, str]


def schedule_of(stage: Stage, names: Sequence[str] = ()) -> Schedule:
    """Finds which of a stage's operations must run token by token. names: of all outputs."""
    holds, inputs, score = {X: IN, S: STATE}, [], None
    outputs: dict[int, str] = {}
    for i, op in enumerate(stage.ops):
        inputs.append(tuple(holds[register] for register in op.inputs))
        if op.writes:
            holds[op.out] = i
        elif op.kind == "score":
            score = i
        else:
            outputs[i] = names[op.numbers[0]]
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
        outputs=outputs,
    )


def unstack(v: mx.array) -> list[mx.array]:
    """[T, ...] -> T arrays, in one operation, so that its gradient is one, too."""
    return [part.squeeze(0) for part in mx.split(v, v.shape[0], axis=0)]


class Twin:
    """The float network of a program. Weights are float32 leaves by name, as `real` gives them.

    rows: inputs int8 and features int32 [T, S, n], as `rows_by_token` gives them; state: float32
    [S, state_size], zeroed where the mark 0 is read.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        names = [output.name for output in program.outputs]
        self.schedules = [schedule_of(stage, names) for stage in program.stages]

    @property
    def description(self) -> str:
        """The device, for the run's first line."""
        return f"float twin (MLX's automatic gradient on the {mx.default_device().type.name})"

    def logits(
        self, weights: Leaves, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        """Runs S streams over T tokens of a program that has a score.

        tokens: int32 [T, S]. Returns logits in bits, float32 [T, S, V], and the new state.
        """
        logits, _, after = self._forward(weights, tokens, state, rows)
        return scored(logits), after

    def _forward(
        self, weights: Leaves, tokens: mx.array, state: mx.array, rows: Rows
    ) -> tuple[mx.array | None, Outputs, mx.array]:
        """The logits, if there is a score, the outputs and the new state."""
        D = self.program.width
        read = Reading(self.program, weights, tokens, rows)
        x, logits = mx.zeros((*tokens.shape, D)), None
        states: list[mx.array] = []
        outputs: Outputs = {}
        for stage, plan in zip(self.program.stages, self.schedules, strict=True):
            known = state[:, stage.state : stage.state + D] if stage.state >= 0 else None
            values, last = run_stage(read, stage, plan, x, known)
            x = values[plan.out]
            states += [] if last is None else [last]
            logits = logits if plan.score is None else values[plan.score]
            outputs |= {name: values[i] for i, name in plan.outputs.items()}
        return logits, outputs, mx.concatenate([state[:, :0], *states], axis=1)

    def bits(
        self,
        weights: Leaves,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        """Minus the log-likelihood of every target in bits, float32 [T, S], and the new state."""
        logits, state = self.logits(weights, tokens, state, rows)
        hit = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
        return mx.logsumexp(logits * LN2, axis=-1) / LN2 - hit, state

    def gradient(
        self,
        weights: Leaves,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, Leaves]:
        """Mean bits per token over all [T, S], the new state, and the mean's gradient by leaf."""
        (mean, after), leaves = self._slope(weights, tokens, targets, state, there(rows))
        return mean, after, leaves

    def run(
        self, weights: Leaves, rows: Rows, state: mx.array, tokens: mx.array | None = None
    ) -> tuple[Outputs, mx.array, Back]:
        """Runs S streams over T rows; gives the outputs by name, and the way back from them.

        Returns outputs, float32 [T, S, size] in real units: an int8 output / 16, sums / 256; the
        new state; and `back`, which takes the slopes of a loss by output, float32 [T, S, size],
        those left out being zero, to the loss's gradient by leaf.

        Raises:
            ValueError: the program reads what is not there.
        """
        tokens = given(self.program, rows, tokens)
        _, outputs, after = self._forward(weights, tokens, state, rows)

        def back(slopes: Mapping[str, mx.array]) -> Leaves:
            self.check_slopes(slopes)
            leaves: Leaves = self._pull(weights, dict(slopes), tokens, state, there(rows))
            return leaves

        return outputs, after, back

    def check_slopes(self, slopes: Mapping[str, Any]) -> None:
        """Raises ValueError for a name that is none of an output."""
        known = [output.name for output in self.program.outputs]
        for name in slopes.keys() - set(known):
            raise ValueError(f"{name!r} is no output: the program has {', '.join(known)}.")

    def gradient_at(
        self,
        weights: Leaves,
        rows: Rows,
        state: mx.array,
        slopes: Mapping[str, mx.array],
        tokens: mx.array | None = None,
    ) -> Leaves:
        """The gradient by leaf of a loss with these slopes at the outputs; see `run`."""
        return self.run(weights, rows, state, tokens)[2](slopes)

    def gradient_of(
        self,
        loss: Callable[[Outputs], mx.array],
        weights: Leaves,
        rows: Rows,
        state: mx.array,
        tokens: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, Leaves]:
        """A loss of the outputs, in MLX's operations; the new state, and the loss's gradient."""
        outputs, after, back = self.run(weights, rows, state, tokens)
        value, slopes = mx.value_and_grad(loss)(outputs)
        return value, after, back(slopes)

    @cached_property
    def _slope(self) -> Callable[..., Any]:
        def loss(
            weights: Leaves, tokens: mx.array, targets: mx.array, state: mx.array, rows: Leaves
        ) -> tuple[mx.array, mx.array]:
            bits, after = self.bits(weights, tokens, targets, state, Rows(**rows))
            return bits.mean(), after

        return compiled(mx.value_and_grad(loss))

    @cached_property
    def _pull(self) -> Callable[..., Any]:
        def along(
            weights: Leaves, slopes: Outputs, tokens: mx.array, state: mx.array, rows: Leaves
        ) -> mx.array:
            _, outputs, _ = self._forward(weights, tokens, state, Rows(**rows))
            return sum(((outputs[k] * slope).sum() for k, slope in slopes.items()), mx.array(0.0))

        return compiled(mx.grad(along))


def scored(logits: Any) -> Any:
    """The logits themselves.

    Raises:
        ValueError: there are none.
    """
    if logits is None:
        raise ValueError("the program has no score: use `run`, which gives its outputs.")
    return logits


def there(rows: Rows) -> dict[str, mx.array]:
    """What rows hold, by name, as MLX's functions take it."""
    return {name: a for name, a in rows._asdict().items() if a is not None}


def compiled(slope: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled on a GPU; on a CPU that takes longer than a short run."""
    # Products are what costs time there.
    made: Callable[..., Any] = slope if on_cpu() else mx.compile(slope)
    return made


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
