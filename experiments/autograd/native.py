"""The tape's operations by the native kernels of extensions/float_kernels, float32 only.

A step meets the same arrays again, so the checks and the address of an array are remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from ctypes import Structure, byref, c_double, c_int32, c_void_p
from typing import Any

from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.autograd.kernels import Gelu, Gradients, Kernels, Parts, TwoLayers

KINDS = {"erf": 0, "tanh": 1}
SLOPE = 2  # of GELU, kept by the forward call
KNOWN = 4096  # arrays remembered before all are forgotten
PREPARED = 16  # fused calls remembered, with all of their arrays


class _Net(Structure):
    """float_kernels_two_layers"""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "inputs", "hidden", "out")),
        *((name, c_void_p) for name in ("x", "w1", "b1", "w2", "b2")),
        *((name, c_int32) for name in ("ldx", "ldw1", "ldw2")),
    )


class _Gradients(Structure):
    """float_kernels_gradients"""

    _fields_ = (
        *((name, c_void_p) for name in ("dw1", "db1", "dw2", "db2", "dx")),
        *((name, c_int32) for name in ("lddw1", "lddw2", "lddx")),
    )


class _Profile(Structure):
    """float_kernels_profile"""

    _fields_ = tuple((name, c_double) for name in (*Parts.NAMES, "total"))


class Native(Kernels):
    """One native call for each operation, fused ones included.

    Raises:
        InputError: the kernels were not built, or none of `isa` runs here.
    """

    name = "native"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        try:
            from float_kernels import library

            table = library.best(isa)
        except (ImportError, ValueError) as error:
            raise InputError(f"the native kernels cannot be used: {error}") from None
        self.isa = table.isa.decode()
        self.threads = threads
        self._call: dict[str, Any] = {name: getattr(table, name) for name in library.FUNCTIONS}
        self._calls: dict[tuple[object, ...], tuple[list[Any], tuple[NDArray | None, ...]]] = {}
        self._floats: dict[tuple[int, int], int] = {}
        self._known: dict[int, tuple[weakref.ref[NDArray], int]] = {}

    def _at(self, array: NDArray) -> int:
        """The address of an array.

        Raises:
            InputError: it is not C-contiguous, or not of 32-bit elements.
        """
        known = self._known.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        if array.itemsize != 4 or not array.flags.c_contiguous:
            raise InputError(
                f"an array {array.shape} is {array.dtype}, contiguous: {array.flags.c_contiguous}, "
                "and native kernels need contiguous float32: np.ascontiguousarray(array, "
                "np.float32) makes it."
            )
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[id(array)] = weakref.ref(array), array.ctypes.data
        return self._known[id(array)][1]

    def _or_null(self, array: NDArray | None) -> int | None:
        return None if array is None else self._at(array)

    def matmul(self, a: NDArray, b: NDArray, out: NDArray, kind: str = "nn") -> None:
        inner = a.shape[0 if kind[0] == "t" else 1]
        m, n = out.shape
        at = self._at
        self._call["sgemm"](
            ("nn", "nt", "tn").index(kind), m, n, inner, at(a), a.shape[1], at(b), b.shape[1],
            at(out), n, 0, self.threads,
        )  # fmt: skip

    def column_sums(self, x: NDArray, out: NDArray) -> None:
        rows, n = x.shape
        self._call["column_sums"](rows, n, self._at(x), n, self._at(out), 0)

    def relu_backward(
        self, y: NDArray | None, bits: NDArray | None, dy: NDArray, dx: NDArray
    ) -> None:
        rows, n = dy.shape
        to = self._at(dy), n, self._at(dx), n, None
        if y is not None:
            self._call["relu_backward"](rows, n, self._at(y), n, *to)
        else:
            self._call["relu_backward_bits"](rows, n, self._or_null(bits), *to)

    def gelu(self, kind: Gelu, x: NDArray, out: NDArray) -> None:
        self._call["gelu"](KINDS[kind], x.size, self._at(x), self._at(out), None)

    def gelu_backward(self, kind: Gelu, x: NDArray, dy: NDArray, dx: NDArray) -> None:
        self._call["gelu_backward"](KINDS[kind], x.size, self._at(x), self._at(dy), self._at(dx))

    def cross_entropy(self, x: NDArray, labels: NDArray, dx: NDArray) -> float:
        rows, n = x.shape
        at = self._at
        return float(self._call["cross_entropy"](rows, n, at(x), n, at(labels), at(dx), n))

    def linear(
        self, x: NDArray, w: NDArray, bias: NDArray, out: NDArray, relu: bool = False,
        bits: NDArray | None = None,
    ) -> None:  # fmt: skip
        (rows, n), k = out.shape, x.shape[1]
        at = self._at
        self._call["linear"](
            rows, n, k, at(x), k, at(w), k, at(bias), at(out), n, relu, self._or_null(bits),
            self.threads,
        )  # fmt: skip

    def linear_backward(
        self, x: NDArray, w: NDArray, dy: NDArray, dw: NDArray, db: NDArray, dx: NDArray | None,
        y: NDArray | None = None, bits: NDArray | None = None,
    ) -> None:  # fmt: skip
        (rows, n), k = dy.shape, x.shape[1]
        at, null = self._at, self._or_null
        self._call["linear_backward"](
            rows, n, k, at(x), k, at(w), k, at(dy), n, null(y), n, null(bits), at(dw), k, at(db),
            null(dx), k, 0, self.threads,
        )  # fmt: skip

    def _net(self, net: TwoLayers) -> Any:
        rows, inputs = net.x.shape
        out, hidden = net.w2.shape
        pointers = [self._at(array) for array in net]
        return byref(_Net(rows, inputs, hidden, out, *pointers, inputs, inputs, hidden))

    def _gradients(self, net: TwoLayers, out: Gradients) -> Any:
        inputs, hidden = net.w1.shape[1], net.w1.shape[0]
        pointers = [self._or_null(array) for array in out]
        return byref(_Gradients(*pointers, inputs, hidden, inputs))

    def _prepared(
        self, function: str, arrays: tuple[NDArray | None, ...], make: Callable[[], list[Any]]
    ) -> list[Any]:
        """A call's arguments, remembered together with its arrays, which keeps their ids theirs."""
        key = (function, *map(id, arrays))
        found = self._calls.get(key)
        if found is None:
            if len(self._calls) >= PREPARED:
                self._calls.clear()
            found = self._calls[key] = make(), arrays
        return found[0]

    def mlp_forward(self, net: TwoLayers, a1: NDArray, bits: NDArray | None, y: NDArray) -> None:
        def make() -> list[Any]:
            hidden = [self._at(a1), a1.shape[1], self._or_null(bits)]
            return [self._net(net), *hidden, self._at(y), y.shape[1], self.threads]

        self._call["mlp_forward"](*self._prepared("mlp_forward", (*net, a1, bits, y), make))

    def mlp_backward(
        self, net: TwoLayers, a1: NDArray, bits: NDArray | None, dy: NDArray, out: Gradients,
        workspace: NDArray, parts: Parts | None = None,
    ) -> None:  # fmt: skip
        def make() -> list[Any]:
            hidden = [self._at(a1), a1.shape[1], self._or_null(bits)]
            return [self._net(net), *hidden, *self._last(net, dy, out, workspace)]

        arrays = (*net, a1, bits, dy, *out, workspace)
        self._backward("mlp_backward", self._prepared("mlp_backward", arrays, make), parts)

    def ffn_forward(
        self, kind: Gelu, net: TwoLayers, pre: NDArray, act: NDArray, y: NDArray,
        slope: bool = False,
    ) -> None:  # fmt: skip
        def make() -> list[Any]:
            hidden = [self._at(pre), self._at(act), act.shape[1]]
            return [self._net(net), *hidden, self._at(y), y.shape[1], slope, self.threads]

        given = self._prepared(f"ffn_forward {slope}", (*net, pre, act, y), make)
        self._call["ffn_forward"](KINDS[kind], *given)

    def ffn_backward(
        self, kind: Gelu, net: TwoLayers, pre: NDArray, act: NDArray, dy: NDArray,
        out: Gradients, workspace: NDArray, slope: bool = False, parts: Parts | None = None,
    ) -> None:  # fmt: skip
        def make() -> list[Any]:
            hidden = [self._at(pre), self._at(act), act.shape[1]]
            chosen = SLOPE if slope else KINDS[kind]
            return [chosen, self._net(net), *hidden, *self._last(net, dy, out, workspace)]

        arrays = (*net, pre, act, dy, *out, workspace)
        given = self._prepared(f"ffn_backward {kind} {slope}", arrays, make)
        self._backward("ffn_backward", given, parts)

    def _last(self, net: TwoLayers, dy: NDArray, out: Gradients, workspace: NDArray) -> list[Any]:
        """Arguments that both backward calls have in common, up to the profile.

        Raises:
            InputError: the workspace is too short.
        """
        needed = self.workspace_floats(len(net.x), len(net.w1))
        if workspace.size < needed:
            raise InputError(f"the workspace has {workspace.size} floats: it needs {needed}.")
        gradients = self._gradients(net, out)
        return [self._at(dy), dy.shape[1], gradients, self._at(workspace), workspace.size]

    def _backward(self, function: str, given: list[Any], parts: Parts | None) -> None:
        """A fused backward call; its seconds are added to `parts`."""
        if parts is None:
            self._call[function](*given, None, self.threads)
            return
        profile = _Profile()
        self._call[function](*given, byref(profile), self.threads)
        for name in Parts.NAMES:
            parts.seconds[name] += getattr(profile, name)
        parts.total += profile.total

    def workspace_floats(self, rows: int, hidden: int) -> int:
        key = rows, hidden
        if key not in self._floats:
            self._floats[key] = int(self._call["workspace_floats"](rows, hidden))
        return self._floats[key]

    def descend(self, w: NDArray, g: NDArray, rate: float) -> None:
        self._call["axpy"](w.size, -rate, self._at(g), self._at(w))

    def adam(
        self, w: NDArray, g: NDArray, m: NDArray, v: NDArray, rate: float, step: int,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    ) -> None:  # fmt: skip
        pointers = [self._at(array) for array in (w, g, m, v)]
        self._call["adam"](w.size, *pointers, rate, *betas, eps, 1.0, step)


def peak_rate(kernels: Native, clock: Callable[[], float], rounds: int = 20000) -> float:
    """Multiply-adds on registers alone, in Gflop/s, two operations each: the best of 30 trials."""
    rates = []
    for _ in range(30):
        began = clock()
        done = kernels._call["peak"](rounds)
        rates.append(2e-9 * done / (clock() - began))
    return max(rates)
