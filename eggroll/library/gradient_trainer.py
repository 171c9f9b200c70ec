"""GradientTrainer, for comparison: any declared network in floating point, by its gradient.

Letters: R readers, T rows of a call.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll import engines
from eggroll.baseline.backprop import AdamW
from eggroll.baseline.twin import Pullback, Twin, by_token, dequantise
from eggroll.baseline.twin_numpy import twin_for
from eggroll.errors import InputError, array_of, is_real, shown, whole_number
from eggroll.library.learning import visible
from eggroll.library.members import Model, RowArrays, RowReader, Whole, check_readers
from eggroll.library.trainer import check_trainable, checked_weights
from eggroll.networks import initial_weights
from eggroll.spec.fixed_point import LIMIT, quantise
from eggroll.spec.program import Batch, Leaves, Lists, Program


class FloatModel:
    """The float network with its weights, called as members.Model is, for outputs in real units.

    Calls carry the state of a recurrent program on, for as many readers as the first call had;
    `reset` begins anew. weights: float32 leaves by name.
    """

    def __init__(self, twin: Twin, weights: Leaves) -> None:
        self.twin, self.weights = twin, weights
        mx.eval(weights)  # what is left to compute belongs to the thread that began it
        self.back: Pullback | None = None  # of the last call
        self._reader = RowReader(twin.program, None, self._outputs)
        self._state: mx.array | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the way back of the last call, so that a copy begins with a call."""
        return {"twin": self.twin, "weights": self.weights, "_state": self._state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, back=None)
        self._reader = RowReader(self.twin.program, None, self._outputs)

    def reset(self) -> None:
        """Zeroes the state."""
        self._state = None

    def __call__(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | Lists | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
    ) -> Any:
        """Outputs float32 [R, T, size] of rows [R, T, ..]; see GradientTrainer.ask."""
        return self._reader(RowArrays(inputs, features, tokens, begins))

    def _outputs(self, batch: Batch) -> dict[str, mx.array]:
        (R, _), size = batch.size, self.twin.program.state_size
        state = mx.zeros((R, size)) if self._state is None else self._state
        check_readers(state, R)
        batch_by_token = by_token(batch._replace(state=state))
        outputs, after, self.back = self.twin.run(self.weights, batch_by_token)
        self._state = after if size else None
        return {name: mx.swapaxes(a, 0, 1) for name, a in outputs.items()}


class RealModel(Model):
    """An int8 network whose outputs are in real units, float32, as those of FloatModel are."""

    def _outputs(self, batch: Batch) -> dict[str, mx.array]:
        unit = {output.name: 256 if output.wide else 16 for output in self.program.outputs}
        return {name: a / unit[name] for name, a in super()._outputs(batch).items()}


class Quantised(NamedTuple):
    """A float network's weights as int8, and what that changed.

    weights: int8 by name, as a Trainer begins with; clipped: share of the weights that were beyond
    +-127/16 and are held there; before, after: loss of the float and of the int8 network, NaN
    without a loss.
    """

    weights: dict[str, NDArray[np.int8]]
    clipped: float
    before: float
    after: float


class GradientTrainer:
    """Trains the float twin of a declared network by Adam: `ask`, then `tell_gradient`.

    It is shown the arrays that the int8 network is shown, and begins with its first weights. An
    int8 value u is u / 16 here: so are inputs and int8 outputs, and `sums` are their value / 256.
    twin: the float network; weights: float32 leaves by name; step: updates made.
    """

    def __init__(
        self,
        net: Program,
        *,
        learning_rate: float = 0.03,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
        seed: Whole = 0,
        carry: bool = False,
        threads: Whole = 0,
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """A trainer before its first update.

        Args:
            net: the network, with an output; it must not change any more.
            learning_rate: of the next update; an attribute that may be set between two of them.
                Matrices begin as N(0, 1), so rates are larger than elsewhere.
            betas: Adam's.
            weight_decay: of matrices per update, times the learning rate (AdamW).
            clip_norm: largest norm of the gradient of all leaves together; 0 never shortens it.
            seed: of the initial weights.
            carry: the state goes on from `ask` to `ask`; gradients do not.
            threads: of a CPU; 0 takes all cores.
            weights: what to begin with, int8 by the leaf's name, such as `weights` of a Trainer;
                None draws them by the seed.

        Raises:
            InputError: a network without an output or weights, or with a score, weights that do
                not fit it, or a number out of its range.
        """
        check_trainable(net)
        engines.check_process()
        _not_negative("learning_rate", learning_rate)
        _not_negative("weight_decay", weight_decay)
        _not_negative("clip_norm", clip_norm)
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(map(_beta, betas)):
            raise InputError(f"betas are {shown(betas)}: two numbers from 0 to below 1 are needed.")
        if not isinstance(carry, bool):
            raise InputError(f"carry is {shown(carry)}: True or False is needed.")
        seed = whole_number("seed", seed, 0, (1 << 64) - 1)
        threads = whole_number("threads", threads, 0, 1024)
        self.program, self.carry, self.step = net, carry, 0
        self.learning_rate, self.clip_norm = learning_rate, clip_norm
        self.twin, self._threads = twin_for(net, threads), threads
        first = initial_weights(net, seed) if weights is None else checked_weights(net, weights)
        self._running = FloatModel(self.twin, dequantise(first))
        self._optimizer = AdamW(self.weights, betas, weight_decay)
        mx.eval(self._optimizer.state)
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    @property
    def weights(self) -> Leaves:
        """float32 leaves by name, in declared order."""
        return self._running.weights

    @property
    def model(self) -> FloatModel:
        """The network as it is now, whatever updates follow; called as `ask` is."""
        return FloatModel(self.twin, self.weights)

    def quantised(self, loss: Callable[[FloatModel | RealModel], float] | None = None) -> Quantised:
        """The weights as `eggroll.quantise` makes them int8, and the loss before and after.

        loss(model) -> a number, of a network that is called as `ask` is, for outputs in real
        units: first the float network, then the int8 network. Both begin with a zero state, and
        anew after `reset`.

        Raises:
            InputError: a weight is not finite, or the loss is no function that returns a number.
        """
        if not (loss is None or callable(loss)):
            raise InputError(f"loss is {shown(loss)}: a function of a model is needed.")
        real = {name: np.array(w) for name, w in self.weights.items()}
        for name, w in real.items():
            if not np.isfinite(w).all():
                raise InputError(f"a weight of {name!r} is not finite: try a lower learning_rate.")
        whole = {name: quantise(w) for name, w in real.items()}
        beyond = [abs(w) * 16 >= LIMIT + 0.5 for w in real.values()]
        clipped = sum(map(np.count_nonzero, beyond)) / sum(w.size for w in beyond)
        if loss is None:
            return Quantised(whole, clipped, math.nan, math.nan)
        engine, _ = engines.choose("auto", self.program, self._threads)
        model = RealModel(engine, {name: mx.array(w) for name, w in whole.items()})
        before, after = _number(loss(self.model)), _number(loss(model))
        return Quantised(whole, clipped, before, after)

    def ask(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | Lists | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
    ) -> Any:
        """The outputs of rows for the present weights; `tell_gradient` is then about these rows.

        Without the axis T it is one row.

        Args:
            inputs: int8 [R, T, n] or [R, n], for a program with an input of n values. The first
                argument may also be the tokens or features of a program that has no input.
            features: whole numbers [R, T, lists, active], -1 for none, or Lists.
            tokens: whole numbers [R, T], for a program that embeds tokens.
            begins: bool [R] or [R, T], where an episode begins: there the state is zero.

        Returns:
            float32 [R, T, size], or [R, size] for one row; a dict by name if the program has
            several outputs.

        Raises:
            InputError: a wrong shape, dtype or range; nothing has changed.
        """
        if not self.carry:
            self._running.reset()
        outputs = self._running(inputs, features=features, tokens=tokens, begins=begins)
        self._shapes = {name: a.shape for name, a in self._named(outputs).items()}
        return outputs

    def tell_gradient(self, slopes: ArrayLike | Mapping[str, ArrayLike]) -> None:
        """Makes the update that lowers a loss, by its slopes at the outputs that `ask` gave last.

        slopes: d loss / d output, of the outputs' shape; by name if the program has several
        outputs, 0 for those left out. Rows are summed: for their mean, divide by their number.

        Raises:
            InputError: another shape or name, a slope that is not finite, or no `ask` before it;
                nothing has changed.
        """
        back = self._running.back
        if not self._shapes or back is None:
            raise InputError("tell_gradient comes without ask before it: call ask() first.")
        if isinstance(slopes, Mapping) and not slopes:
            raise InputError("slopes is empty: give those of one output at least.")
        gradient = back({name: self._slope(name, a) for name, a in self._named(slopes).items()})
        for name in ("learning_rate", "clip_norm"):
            _not_negative(name, getattr(self, name))
        weights = self._optimizer.update(self.weights, gradient, self.learning_rate, self.clip_norm)
        mx.eval(weights, self._optimizer.state)
        self._shapes, self._running.back, self._running.weights = {}, None, weights
        self.step += 1

    def _named(self, arrays: Any) -> dict[str, Any]:
        """Arrays by name, as the caller has them only of several outputs."""
        if isinstance(arrays, Mapping):
            return dict(arrays)
        names = visible(self.program)
        if len(names) > 1:
            raise InputError(
                f"slopes are one array: give them by name, a dict of {', '.join(names)}."
            )
        return {names[0]: arrays}

    def _slope(self, name: str, slopes: ArrayLike) -> mx.array:
        """One output's slopes as the twin takes them, float32 [T, R, size]."""
        if name not in self._shapes:
            names = ", ".join(self._shapes)
            raise InputError(f"{name!r} is no output of this network: it has {names}.")
        array, shape = array_of(f"slopes of {name!r}", slopes), self._shapes[name]
        if array.dtype.kind not in "biuf":
            raise InputError(f"slopes of {name!r} are {array.dtype}: real numbers are needed.")
        array = array.astype(np.float32, copy=False)
        if array.shape != shape:
            raise InputError(
                f"slopes of {name!r} have the shape {list(array.shape)}: {list(shape)} is needed, "
                "that of what ask returned."
            )
        if not np.isfinite(array).all():
            raise InputError(f"a slope of {name!r} is not finite: try a lower learning_rate.")
        by_row = array.reshape(len(array), -1, array.shape[-1]).swapaxes(0, 1)
        return mx.array(np.ascontiguousarray(by_row))


def _number(loss: Any) -> float:
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise InputError(f"loss returned {shown(loss)}: a number is needed.") from None


def _not_negative(name: str, value: Any) -> None:
    if not is_real(value) or value < 0:
        raise InputError(f"{name} is {shown(value)}: a number from 0 on is needed.")


def _beta(value: Any) -> bool:
    return is_real(value) and 0 <= value < 1
