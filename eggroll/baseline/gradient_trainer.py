"""The ruler of the library: the declared network in floating point, trained by its gradient.

Letters: S streams, T rows shown at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.baseline.adam import AdamW
from eggroll.baseline.float_numpy import twin_for
from eggroll.baseline.float_twin import Back, by_token, real, rows_by_token
from eggroll.errors import InputError
from eggroll.networks import initial_weights
from eggroll.program import Program, Rows

Array = NDArray[Any]
Outputs = dict[str, Array]


class GradientTrainer:
    """Adam on the float twin of a program, for whatever loss the caller has of its outputs.

    It reads the arrays that the int8 engines read, an int8 value u as u / 16, and begins with
    their first weights. Outputs are in real units: what int8 gives, / 16; what `sums` gives, / 256.
    The gradient goes back through the T rows of an `ask`; a state is carried on to the next one.

    learning_rate: of the next update; may be set between two of them. Weights begin as N(0, 1).
    weight_decay: of matrices per update, times the learning rate (AdamW); clip_norm: largest norm
    of the gradient, 0 for none; threads: of a CPU, 0 for all cores.
    weights: float32 leaves by name; step: updates done.

        trainer = GradientTrainer(program)
        outputs = trainer.ask(inputs)
        trainer.tell_gradient({"output": slopes_of_the_loss(outputs["output"])})

    Raises:
        InputError: the program is not finished, or has no leaf.
    """

    def __init__(
        self,
        program: Program,
        *,
        learning_rate: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
        seed: int = 0,
        threads: int = 0,
    ) -> None:
        program.check()
        if not program.leaves:
            raise InputError("the program has no leaf: there is nothing to train.")
        self.program, self.learning_rate, self.clip_norm = program, learning_rate, clip_norm
        self.twin = twin_for(program, threads)
        self.weights = real(initial_weights(program, seed))
        self.optimizer = AdamW(self.weights, betas, weight_decay)
        self.step = 0
        self._state: mx.array | None = None
        self._asked: tuple[Back, dict[str, tuple[int, ...]]] | None = None

    def ask(
        self,
        inputs: Array | None = None,
        *,
        features: Array | None = None,
        tokens: Array | None = None,
    ) -> Outputs:
        """Shows rows to the present network, and remembers them for `tell_gradient`.

        inputs: int8 [S, T, program.inputs]; features: int32 [S, T, program.indices], -1 for none;
        tokens: int32 [S, T]: 0 begins anew, and without any nothing does. All may leave out T where
        it is 1. Returns output name -> float32 [S, T, size], or [S, size].

        Raises:
            InputError: an array that the program reads is missing or of another shape or type, or
                the state is of another number of streams.
        """
        shown = _shown(self.program, inputs, features, tokens)
        state = self._state
        if state is None or not self.program.state_size:
            state = self._zero(shown)
        if len(state) != shown.lead[0]:
            raise InputError(
                f"{shown.lead[0]} streams are shown and the state is of {len(state)}: show as "
                "many, or call restart() to begin anew."
            )
        outputs, self._state, back = self.twin.run(self.weights, shown.rows, state, shown.tokens)
        found = shown.by_stream(outputs)
        self._asked = back, {name: a.shape for name, a in found.items()}
        return found

    def tell_gradient(self, slopes: Mapping[str, Array]) -> None:
        """Makes one update, from the slopes of the loss at the outputs that `ask` gave last.

        slopes: output name -> d loss / d output, of the output's shape; 0 where left out. The loss
        is that of all rows together: divide by their number for a mean.

        Raises:
            InputError: no `ask` came before, or slopes of another name or shape or that are no
                numbers.
        """
        if self._asked is None:
            raise InputError("there is nothing to tell a gradient of: call ask() first.")
        back, shapes = self._asked
        gradient = back({name: _slope(name, a, shapes) for name, a in slopes.items()})
        rate, self._asked = self.learning_rate, None
        self.weights = self.optimizer.update(self.weights, gradient, rate, self.clip_norm)
        mx.eval(self.weights, self.optimizer.state)
        self.step += 1

    def model(
        self,
        inputs: Array | None = None,
        *,
        features: Array | None = None,
        tokens: Array | None = None,
    ) -> Outputs:
        """The outputs of the present network from a zero state; changes nothing. See `ask`."""
        shown = _shown(self.program, inputs, features, tokens)
        state = self._zero(shown)
        return shown.by_stream(self.twin.run(self.weights, shown.rows, state, shown.tokens)[0])

    def restart(self) -> None:
        """Begins with a zero state at the next `ask`."""
        self._state = None

    def _zero(self, shown: _Shown) -> mx.array:
        return mx.zeros((shown.lead[0], self.program.state_size))


class _Shown(NamedTuple):
    """What streams are shown, as the twin takes it: rows [T, S, n], tokens int32 [T, S]."""

    rows: Rows
    tokens: mx.array | None
    lead: tuple[int, ...]  # [S, T] or [S], of the caller's arrays

    def by_stream(self, outputs: Mapping[str, mx.array]) -> Outputs:
        """[T, S, size] -> [*lead, size]."""
        whole = {name: np.array(a).swapaxes(0, 1) for name, a in outputs.items()}
        return {name: a.reshape(*self.lead, a.shape[-1]) for name, a in whole.items()}


def _shown(
    program: Program, inputs: Array | None, features: Array | None, tokens: Array | None
) -> _Shown:
    """Checks the caller's arrays and lays them out."""
    embedded = any(op.kind == "embed" for stage in program.stages for op in stage.ops)
    leads = {
        "inputs": _lead("inputs", inputs, np.int8, program.inputs, program.inputs > 0),
        "features": _lead("features", features, np.int32, program.indices, program.indices > 0),
        "tokens": _lead("tokens", tokens, np.int32, None, embedded),
    }
    there = {name: lead for name, lead in leads.items() if lead}
    if len(set(there.values())) != 1:
        found = ", ".join(f"{name} {list(lead)}" for name, lead in there.items()) or "nothing"
        raise InputError(f"{found} is shown: streams and rows [S, T] must be the same in all.")
    lead = next(iter(there.values()))
    S, T = (*lead, 1)[:2]
    if features is not None:
        for op in (op for stage in program.stages for op in stage.ops if op.kind == "features"):
            lists, active, first, _ = op.numbers
            mine = features[..., first : first + lists * active]
            _check_range("features", mine, -1, program.leaves[op.leaf].shape[0] - 1)
    if tokens is not None:
        _check_range("tokens", tokens, 0, program.vocabulary - 1)
    rows = (None if a is None else mx.array(a.reshape(S, T, -1)) for a in (inputs, features))
    read = None if tokens is None else by_token(tokens.reshape(S, T))
    return _Shown(rows_by_token(Rows(*rows)), read, lead)


def _lead(
    name: str, a: Array | None, dtype: Any, size: int | None, needed: bool
) -> tuple[int, ...]:
    """The dimensions [S, T] or [S] of one array; () for none. size: of its last one, if any."""
    last = "" if size is None else f", {size}"
    if a is None:
        if needed:
            raise InputError(f"{name} are missing: the program reads {_named(dtype, last)}.")
        return ()
    if size == 0:
        raise InputError(f"{name} are shown, which the program does not read: leave them out.")
    lead = a.shape if size is None else a.shape[:-1]
    wrong = a.dtype != dtype or len(lead) not in (1, 2) or 0 in lead
    if wrong or (size is not None and a.shape[-1] != size):
        raise InputError(f"{name} are {a.dtype} {list(a.shape)}: {_named(dtype, last)} is needed.")
    return lead


def _named(dtype: Any, last: str) -> str:
    return f"{np.dtype(dtype)} [S, T{last}] or, for one row, [S{last}]"


def _check_range(name: str, a: Array, low: int, high: int) -> None:
    if a.min() < low or a.max() > high:
        raise InputError(f"{name} reach from {a.min()} to {a.max()}: {low} to {high} is allowed.")


def _slope(name: str, given: Array, shapes: Mapping[str, tuple[int, ...]]) -> mx.array:
    """One output's slopes as the twin takes them, [T, S, size]."""
    if name not in shapes:
        raise InputError(f"{name!r} is no output: the program has {', '.join(shapes)}.")
    a = np.asarray(given, np.float32)
    if a.shape != shapes[name]:
        raise InputError(
            f"the slopes of {name!r} are {list(a.shape)}: {list(shapes[name])} is needed, the "
            "shape of what ask() gave."
        )
    if not np.isfinite(a).all():
        raise InputError(f"a slope of {name!r} is no finite number: try a lower learning_rate.")
    S, *_, size = a.shape
    return mx.array(np.ascontiguousarray(a.reshape(S, -1, size).swapaxes(0, 1)))
