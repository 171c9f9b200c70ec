"""The float trainer in native code (trainer.cpp), bound by ctypes.

It is compiled for the instruction set of the float kernels that it is handed. With `coalesce`, a
factorised first layer is trained as the plain one that it is equal to: each step reads the sum of
a real row and its virtual one, and a virtual row's gradient is the sum of its real rows'. Gradient
and result are those of the longer lists, but for rounding.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import eggroll as eg
from eggroll import native
from eggroll.errors import InputError
from experiments.nnue.loader import Batch, Lists
from experiments.nnue.losses import Loss
from experiments.nnue.shape import Shape

SOURCE = Path(__file__).parent / "trainer.cpp"
# Of the float kernels' tables: the flags of extensions/float_kernels/CMakeLists.txt.
FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512f": ["-mavx2", "-mfma", "-mavx512f", "-mprefer-vector-width=512"],
}
REAL, BLOCK = 40960, 640  # rows of HalfKP, of a king's square


class _Shape(Structure):
    _fields_ = tuple((n, c_int32) for n in ("features", "width", "hidden", "real"))


class _Loss(Structure):
    _fields_ = (
        *((n, c_int32) for n in ("kind", "after")),
        *((n, c_double) for n in ("scale", "weight", "exponent")),
    )


class _Lists(Structure):
    _fields_ = tuple((n, c_void_p) for n in ("starts", "index", "count"))


class _Batch(Structure):
    _fields_ = (
        *((n, c_int32) for n in ("size", "reduced")),
        *((n, c_void_p) for n in ("stm", "score", "result")),
        *((n, _Lists) for n in ("white", "black")),
    )


@cache
def library() -> Any:
    """The functions of trainer.cpp, compiled once.

    Raises:
        InputError: there is no compiler, or the float kernels are not built.
    """
    try:
        import float_kernels

        isa = float_kernels.isa()
    except (ImportError, ValueError) as error:
        raise InputError(f"The float kernels cannot be used ({error}): `make build`.") from None
    flags = [f"-I{float_kernels.include()}", "-Wno-psabi", *FLAGS.get(isa, [])]
    calls: Any = native.build(SOURCE, flags=flags).handle
    calls.nnue_parameters.restype = c_int64
    calls.nnue_gradient.restype = c_double
    calls.nnue_gradient.argtypes = [c_void_p, *[POINTER(t) for t in (_Shape, _Loss, _Batch)]] + [
        c_void_p
    ] * 4
    calls.nnue_adam.argtypes = [c_void_p, POINTER(_Shape), *[c_void_p] * 4, c_double, c_int64]
    calls.nnue_fold.argtypes = [POINTER(_Shape), c_void_p]
    calls.nnue_unfold.argtypes = [POINTER(_Shape), c_void_p, c_void_p]
    calls.nnue_pad.argtypes = [POINTER(_Batch), c_int32, c_int32, c_void_p]
    calls.nnue_labels.argtypes = [POINTER(_Batch), c_void_p, c_void_p]
    calls.nnue_spans.argtypes = [POINTER(_Batch), c_int32, c_void_p]
    calls.nnue_take.argtypes = [POINTER(_Lists), c_int64, c_void_p, c_int32, *[c_void_p] * 3]
    calls.nnue_losses.argtypes = [POINTER(_Loss), c_int64, *[c_void_p] * 5]
    return calls


def kernels() -> int:
    """The address of the float kernels' table."""
    import float_kernels

    return int(float_kernels.table())


def pointer(array: NDArray[Any] | None) -> int | None:
    """The address of a contiguous array, for as long as it lives."""
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data


def _lists(lists: Lists) -> _Lists:
    return _Lists(*(pointer(a) for a in lists))


def _batch(batch: Batch, reduced: bool = False) -> _Batch:
    given = [pointer(a) for a in (batch.stm, batch.score, batch.result)]
    return _Batch(len(batch.stm), reduced, *given, _lists(batch.white), _lists(batch.black))


def _loss(loss: Loss) -> _Loss:
    return _Loss(loss.cross_entropy, loss.after, loss.scale, loss.weight, loss.exponent)


def pad(batch: Batch, active: int, features: int) -> NDArray[np.int32]:
    """Lists of a fixed length, the mover's first: int32 [B, 2, active], -1 for none.

    features: those from this number on are left out. A value of n is its index n times.

    Raises:
        InputError: a list is longer than `active`.
    """
    found = np.empty((len(batch.stm), 2, active), np.int32)
    row = library().nnue_pad(byref(_batch(batch)), active, features, pointer(found))
    if row:
        raise InputError(
            f"Position {row - 1} of a batch has more than {active} active features: give room for "
            "more."
        )
    return found


def examples(
    batch: Batch, active: int, features: int, table: NDArray[np.int8]
) -> tuple[NDArray[np.int32] | eg.Lists, NDArray[np.int8]]:
    """`shown` and `looked_up` of one batch, whose addresses are taken once."""
    at = _batch(batch)
    return shown(batch, active, features, at), looked_up(table, batch, at)


def shown(
    batch: Batch, active: int, features: int, at: _Batch | None = None
) -> NDArray[np.int32] | eg.Lists:
    """A batch's features as the library takes them, the mover's list first.

    Lists stay as they lie where both sides' have one index; else, and with values, see `pad`.
    """
    index, count = batch.white.index, batch.white.count
    if count is not None or batch.black.index is not index:
        return pad(batch, active, features)
    spans = np.empty((len(batch.stm), 2, 2), np.int32)
    end = (1 << 31) - 1 if features >= batch.rows > 0 else features  # the most: none is looked at
    library().nnue_spans(byref(at or _batch(batch)), end, pointer(spans))
    return eg.Lists(index, spans)


def looked_up(table: NDArray[np.int8], batch: Batch, at: _Batch | None = None) -> NDArray[np.int8]:
    """Bytes [B] of a table [3, 65536] by result and score, both from their least on.

    Raises:
        InputError: a result is none of -1, 0 and 1.
    """
    found = np.empty(len(batch.stm), np.int8)
    row = library().nnue_labels(byref(at or _batch(batch)), pointer(table), pointer(found))
    if row:
        raise InputError(
            f"Position {row - 1} of a batch has the result {batch.result[row - 1]}: -1, 0 and 1 "
            "are allowed."
        )
    return found


def take(white: Lists, black: Lists, rows: NDArray[np.int64]) -> tuple[Lists, Lists]:
    """Some rows of both sides' lists, in that order, in one index: black's behind white's."""
    ends = np.cumsum([0, *(int(np.diff(lists.starts)[rows].sum()) for lists in (white, black))])
    index = np.empty(ends[-1], np.int32)
    count = None if white.count is None else np.empty(ends[-1], np.int8)
    made = []
    for lists, first in zip((white, black), ends.tolist(), strict=False):
        starts = np.empty(len(rows) + 1, np.int32)
        library().nnue_take(
            byref(_lists(lists)), len(rows), pointer(rows), first, pointer(starts), pointer(index),
            pointer(count),
        )  # fmt: skip
        made.append(Lists(starts, index, count))
    return made[0], made[1]


def losses(
    loss: Loss, y: NDArray[np.float64], score: NDArray[np.int16], result: NDArray[np.int8]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The loss of logits y [B] and its slope by y, as the trainer computes them."""
    value, slope = np.empty_like(y), np.empty_like(y)
    library().nnue_losses(
        byref(_loss(loss)), len(y), *(pointer(a) for a in (y, score, result, value, slope))
    )
    return value, slope


class NativeTrainer:
    """An NNUE in float32 and its Adam.

    weights: flat, as Shape.split cuts it; gradient: of the last `differentiate`, 0 after a step.
    """

    def __init__(
        self, shape: Shape, loss: Loss, seed: int = 0, *, coalesce: bool = False,
        reduced: bool = True,
    ) -> None:  # fmt: skip
        """Memory and first weights.

        coalesce: HalfKP + P is trained in its plain form; reduced: the gradient of a feature with
        a value is as if that were 1.

        Raises:
            InputError: a width that is no multiple of 16, or features that do not coalesce.
        """
        if shape.width % 16:
            raise InputError(f"--width is {shape.width}: native code needs a multiple of 16.")
        if coalesce and shape.features != REAL + BLOCK:
            raise InputError(
                f"{shape.features} features do not coalesce on the way: halfkp+p does, which has "
                f"{REAL + BLOCK}."
            )
        self.shape, self.loss, self.reduced, self.steps = shape, loss.check(), reduced, 0
        real = REAL if coalesce else shape.features
        self._shape = _Shape(shape.features, shape.width, shape.hidden, real)
        self.weights = shape.first(seed)
        assert library().nnue_parameters(byref(self._shape)) == len(self.weights)
        self.gradient, self._mean, self._size = (np.zeros_like(self.weights) for _ in range(3))
        self._table = np.empty((real, shape.width), np.float32) if coalesce else None
        self._coalesced()

    def _coalesced(self) -> None:
        if self._table is not None:
            library().nnue_unfold(byref(self._shape), pointer(self.weights), pointer(self._table))

    def set(self, weights: NDArray[np.float32]) -> None:
        """Takes other weights, flat."""
        self.weights[:] = weights
        self._coalesced()

    def remove_factoriser(self) -> None:
        """Adds the virtual rows to the real ones, and leaves them out from now on.

        Raises:
            InputError: the features are not HalfKP + P.
        """
        if self.shape.features != REAL + BLOCK:
            raise InputError(
                f"{self.shape.features} features have no factoriser to remove: halfkp+p has one."
            )
        parts = self.shape.split(self.weights)
        ft, virtual = parts["ft"][:REAL], parts["ft"][REAL:]
        ft.reshape(-1, *virtual.shape)[:] += virtual
        for flat in (self.weights, self._mean, self._size):
            self.shape.split(flat)["ft"][REAL:] = 0
        self._table, self._shape.real = None, REAL

    def _run(self, batch: Batch, gradient: NDArray[np.float32] | None) -> tuple[float, Any]:
        y = np.empty(len(batch.stm), np.float32)
        table = self.weights if self._table is None else self._table
        lost = library().nnue_gradient(
            kernels(), byref(self._shape), byref(_loss(self.loss)),
            byref(_batch(batch, self.reduced)), pointer(table), pointer(self.weights),
            pointer(gradient), pointer(y),
        )  # fmt: skip
        return lost, y

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [B]."""
        y: NDArray[np.float32] = self._run(batch, None)[1]
        return y

    def differentiate(self, batch: Batch) -> float:
        """The mean loss of a batch; its gradient is in `gradient`, which was 0."""
        lost = self._run(batch, self.gradient)[0]
        if self._table is not None:
            library().nnue_fold(byref(self._shape), pointer(self.gradient))
        return lost

    def step(self, batch: Batch, rate: float) -> float:
        """A step of Adam; the mean loss before it."""
        lost = self.differentiate(batch)
        self.steps += 1
        arrays = (self.weights, self.gradient, self._mean, self._size)
        library().nnue_adam(kernels(), byref(self._shape), *map(pointer, arrays), rate, self.steps)
        self._coalesced()
        return lost
