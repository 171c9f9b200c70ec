"""The table's functions on NumPy arrays: float32 matrices whose rows are contiguous.

Letters as in float_kernels.h. Arrays may be views with longer rows; an argument `out` is written in
place and returned. Shapes are checked, as the kernels do not check them: ValueError names the one
that does not fit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from float_kernels.library import best

Floats = NDArray[np.float32]
KINDS = {"erf": 0, "tanh": 1, "slope": 2}
TRANSPOSED = {"nn": 0, "nt": 1, "tn": 2}
LONGEST = 2**31 - 1  # rows, columns and leading dimensions are int32 in C
PARTS = "dw2", "db2", "d_a1", "dw1", "dx", "total"


class Profile(ctypes.Structure):
    """Seconds of a backward call's parts, and their total; calls add to what is there."""

    _fields_ = tuple((name, ctypes.c_double) for name in PARTS)

    def seconds(self) -> dict[str, float]:
        """Seconds by part."""
        return {name: getattr(self, name) for name in PARTS}


class _Net(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "in_", "hidden", "out")),
        *((name, ctypes.c_void_p) for name in ("x", "w1", "b1", "w2", "b2")),
        *((name, ctypes.c_int32) for name in ("ldx", "ldw1", "ldw2")),
    )


class _Gradients(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("dw1", "db1", "dw2", "db2", "dx")),
        *((name, ctypes.c_int32) for name in ("lddw1", "lddw2", "lddx")),
    )


class TwoLayers(NamedTuple):
    """x [rows, in], w1 [hidden, in], b1 [hidden], w2 [out, hidden], b2 [out]."""

    x: Floats
    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats

    def struct(self) -> _Net:
        """The same for C."""
        (rows, inputs), (hidden, _), outputs = self.x.shape, self.w1.shape, len(self.w2)
        _expect(self.w1, (hidden, inputs))
        _expect(self.w2, (outputs, hidden))
        vectors = _vector(self.b1, hidden), _vector(self.b2, outputs)
        matrices = [at(a) for a in (self.x, self.w1, self.w2)]
        return _Net(
            *(rows, inputs, hidden, outputs, matrices[0][0], matrices[1][0], vectors[0]),
            *(matrices[2][0], vectors[1], *(ld for _, ld in matrices)),
        )


class Gradients(NamedTuple):
    """dw1, db1, dw2, db2 shaped as the parameters, dx as x or None."""

    dw1: Floats
    db1: Floats
    dw2: Floats
    db2: Floats
    dx: Floats | None = None

    def struct(self, net: TwoLayers) -> _Gradients:
        """The same for C."""
        for name in ("dw1", "db1", "dw2", "db2"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is None: only dx may be left out")
        _expect(self.dw1, net.w1.shape)
        _expect(self.dw2, net.w2.shape)
        if self.dx is not None:
            _expect(self.dx, net.x.shape)
        matrices = [at(a, writes=True) for a in (self.dw1, self.dw2, self.dx)]
        (dw1, ld1), (dw2, ld2), (dx, ldx) = matrices
        db1 = _vector(self.db1, len(net.b1), writes=True)
        db2 = _vector(self.db2, len(net.b2), writes=True)
        return _Gradients(dw1, db1, dw2, db2, dx, ld1, ld2, ldx)


def at(a: Floats | None, *, writes: bool = False) -> tuple[int | None, int]:
    """(address, leading dimension) of a matrix; (None, 0) for None.

    writes: whether a kernel will write into it.
    """
    if a is None:
        return None, 0
    if a.dtype != np.float32 or a.ndim != 2:
        raise ValueError(f"a float32 matrix is needed, not {a.dtype} {a.shape}")
    _writable(a, writes)
    if a.shape[1] > 1 and a.shape[0] and a.strides[1] != 4:
        raise ValueError(f"rows of a matrix must be contiguous, not {a.strides[1]} bytes apart")
    apart = a.shape[0] > 1 and a.shape[1] > 0
    ld = a.strides[0] // 4 if apart else a.shape[1]
    if ld < a.shape[1] or (apart and a.strides[0] % 4):
        raise ValueError(f"rows {a.strides[0]} bytes apart cannot hold {a.shape[1]} floats")
    if max(ld, *a.shape) > LONGEST:
        raise ValueError(f"a matrix {a.shape} with rows {ld} floats apart is beyond {LONGEST}")
    return a.ctypes.data, ld


def _vector(
    a: NDArray[Any] | None, n: int, dtype: type = np.float32, *, writes: bool = False
) -> int | None:
    if a is None:
        return None
    if a.dtype != dtype or a.size != n or not a.flags.c_contiguous:
        raise ValueError(f"{n} contiguous {np.dtype(dtype)} are needed, not {a.dtype} {a.shape}")
    _writable(a, writes)
    return int(a.ctypes.data)


def _writable(a: NDArray[Any], writes: bool) -> None:
    if writes and not a.flags.writeable:
        raise ValueError(f"an array {a.shape} that is written is read-only")


def _expect(a: NDArray[Any], shape: tuple[int, ...]) -> None:
    if a.shape != shape:
        raise ValueError(f"shape {shape} is needed, not {a.shape}")


def words(n: int) -> int:
    """Words of a row of mask bits."""
    return (n + 31) // 32


class Kernels:
    """The functions of an instruction set's table, or of the fastest."""

    def __init__(self, isa: str | None = None, threads: int = 1) -> None:
        self.table = best(isa)
        self.threads = threads

    def matmul(
        self, kind: str, a: Floats, b: Floats, out: Floats | None = None, accumulate: bool = False
    ) -> Floats:
        """`nn`: a b; `nt`: a b^T; `tn`: a^T b."""
        k, m = a.shape if kind == "tn" else a.shape[::-1]
        n, depth = b.shape if kind == "nt" else b.shape[::-1]
        if depth != k:
            raise ValueError(f"{a.shape} and {b.shape} do not fit for a product {kind!r}")
        out = np.empty((m, n), np.float32) if out is None else out
        _expect(out, (m, n))
        operands = *at(a), *at(b), *at(out, writes=True)
        if out.size and operands[4] in (operands[0], operands[2]):
            raise ValueError("out is an operand: they must not overlap")
        self.table.sgemm(TRANSPOSED[kind], m, n, k, *operands, accumulate, self.threads)
        return out

    def pack(self, b: Floats, transposed: bool = False) -> Floats:
        """Panels of b [k, n], or of b^T."""
        k, n = b.shape[::-1] if transposed else b.shape
        packed = np.empty(self.table.packed_floats(k, n), np.float32)
        self.table.pack(k, n, *at(b), transposed, packed.ctypes.data)
        return packed

    def matmul_packed(
        self, a: Floats, packed: Floats, n: int, out: Floats | None = None, accumulate: bool = False
    ) -> Floats:
        """a b, b [k, n] packed; n as there, which panels, whole, do not say."""
        m, k = a.shape
        out = np.empty((m, n), np.float32) if out is None else out
        _expect(out, (m, n))
        panels = _vector(packed, self.table.packed_floats(k, n))
        self.table.sgemm_packed(
            m, n, k, *at(a), panels, *at(out, writes=True), accumulate, self.threads
        )
        return out

    def linear(
        self,
        x: Floats,
        w: Floats,
        bias: Floats | None,
        relu: bool = False,
        out: Floats | None = None,
        bits: NDArray[np.uint32] | None = None,
        packed: Floats | None = None,
    ) -> Floats:
        """x w^T + bias, w [n, k]; `packed` is w's panels, if there are any."""
        (rows, k), n = x.shape, len(w)
        _expect(w, (n, k))
        out = np.empty((rows, n), np.float32) if out is None else out
        _expect(out, (rows, n))
        mask = _vector(bits, rows * words(n), np.uint32, writes=True)
        rest = _vector(bias, n), *at(out, writes=True), relu, mask, self.threads
        if packed is None:
            self.table.linear(rows, n, k, *at(x), *at(w), *rest)
        else:
            panels = _vector(packed, self.table.packed_floats(k, n))
            self.table.linear_packed(rows, n, k, *at(x), panels, *rest)
        return out

    def linear_backward(
        self,
        x: Floats,
        w: Floats,
        dy: Floats,
        dw: Floats | None,
        db: Floats | None,
        dx: Floats | None,
        y: Floats | None = None,
        bits: NDArray[np.uint32] | None = None,
        accumulate: bool = False,
    ) -> None:
        """Fills dw, db and dx, each unless None; dy is masked in place where y or bits is given."""
        (rows, k), n = x.shape, len(w)
        for a, shape in (
            (w, (n, k)),
            (dy, (rows, n)),
            (dw, (n, k)),
            (dx, (rows, k)),
            (y, dy.shape),
        ):
            if a is not None:
                _expect(a, shape)
        mask = _vector(bits, rows * words(n), np.uint32)
        slopes = at(dy, writes=not (y is None and bits is None))
        made = *at(dw, writes=True), _vector(db, n, writes=True), *at(dx, writes=True)
        self.table.linear_backward(
            *(rows, n, k, *at(x), *at(w), *slopes, *at(y), mask, *made, accumulate, self.threads)
        )

    def workspace(self, rows: int, hidden: int) -> Floats:
        """The backward calls' workspace."""
        return np.empty(self.table.workspace_floats(rows, hidden), np.float32)

    def mlp_forward(
        self, net: TwoLayers, a1: Floats, y: Floats, bits: NDArray[np.uint32] | None = None
    ) -> None:
        """Fills a1 [rows, hidden], y [rows, out] and bits."""
        rows, hidden = len(net.x), len(net.w1)
        _expect(a1, (rows, hidden))
        _expect(y, (rows, len(net.w2)))
        mask = _vector(bits, rows * words(hidden), np.uint32, writes=True)
        filled = *at(a1, writes=True), mask, *at(y, writes=True)
        self.table.mlp_forward(ctypes.byref(net.struct()), *filled, self.threads)

    def mlp_backward(
        self,
        net: TwoLayers,
        a1: Floats,
        dy: Floats,
        out: Gradients,
        workspace: Floats,
        bits: NDArray[np.uint32] | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Fills `out` from dy [rows, out]."""
        rows, hidden = len(net.x), len(net.w1)
        _expect(a1, (rows, hidden))
        _expect(dy, (rows, len(net.w2)))
        mask = _vector(bits, rows * words(hidden), np.uint32)
        rest = *at(dy), *self._rest(net, out, workspace, profile)
        _done(self.table.mlp_backward(ctypes.byref(net.struct()), *at(a1), mask, *rest))

    def ffn_forward(
        self, kind: str, net: TwoLayers, pre: Floats, act: Floats, y: Floats, slope: bool = False
    ) -> None:
        """Fills pre, act [rows, hidden], with rows equally far apart, and y [rows, out]."""
        ldh = _alike(pre, act, (len(net.x), len(net.w1)))
        _expect(y, (len(net.x), len(net.w2)))
        hidden = at(pre, writes=True)[0], at(act, writes=True)[0], ldh
        filled = *hidden, *at(y, writes=True)
        call = self.table.ffn_forward
        call(KINDS[kind], ctypes.byref(net.struct()), *filled, slope, self.threads)

    def ffn_backward(
        self,
        kind: str,
        net: TwoLayers,
        pre: Floats,
        act: Floats,
        dy: Floats,
        out: Gradients,
        workspace: Floats,
        profile: Profile | None = None,
    ) -> None:
        """Fills `out` from dy [rows, out]."""
        ldh = _alike(pre, act, (len(net.x), len(net.w1)))
        _expect(dy, (len(net.x), len(net.w2)))
        rest = *at(dy), *self._rest(net, out, workspace, profile)
        hidden = pre.ctypes.data, act.ctypes.data, ldh
        _done(self.table.ffn_backward(KINDS[kind], ctypes.byref(net.struct()), *hidden, *rest))

    def _rest(
        self, net: TwoLayers, out: Gradients, workspace: Floats, profile: Profile | None
    ) -> tuple[object, ...]:
        seconds = None if profile is None else ctypes.byref(profile)
        space = _vector(workspace, workspace.size, writes=True), workspace.size
        return ctypes.byref(out.struct(net)), *space, seconds, self.threads

    def map(self, name: str, x: Floats) -> Floats:
        """exp, tanh or erf of each element."""
        y = np.empty_like(x)
        function: Callable[..., None] = getattr(self.table, name)
        function(x.size, _vector(x, x.size), y.ctypes.data)
        return y

    def softmax(self, x: Floats) -> Floats:
        """Softmax of each row."""
        y = np.empty(x.shape, np.float32)
        self.table.softmax(*x.shape, *at(x), *at(y))
        return y

    def column_sums(self, x: Floats) -> Floats:
        """Sums over the rows."""
        sums = np.empty(x.shape[1], np.float32)
        self.table.column_sums(*x.shape, *at(x), sums.ctypes.data, 0)
        return sums


def _alike(a: Floats, b: Floats, shape: tuple[int, int]) -> int:
    _expect(a, shape)
    _expect(b, shape)
    if at(a)[1] != at(b)[1]:
        raise ValueError(f"rows must be equally far apart, not {at(a)[1]} and {at(b)[1]} floats")
    return at(a)[1]


def _done(returned: int) -> None:
    if returned:
        raise ValueError("the workspace is too short: Kernels.workspace() makes one")
