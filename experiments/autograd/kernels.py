"""The operations of the tape in NumPy, in any float type: float64 is the reference of the tests.

Every function writes into the arrays it is given. native.py has the same in native code. Letters:
B rows, I inputs, H hidden units, O outputs; weights are [O, I] row-major, as PyTorch keeps them.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError

Gelu = Literal["erf", "tanh"]
ROOT, CUBIC = math.sqrt(2 / math.pi), 0.044715  # of GELU's approximation by tanh
GELUS: tuple[Gelu, ...] = ("erf", "tanh")


class TwoLayers(NamedTuple):
    """x [B, I], w1 [H, I], b1 [H], w2 [O, H], b2 [O] of a network with one hidden layer."""

    x: NDArray
    w1: NDArray
    b1: NDArray
    w2: NDArray
    b2: NDArray


class Gradients(NamedTuple):
    """Arrays for the gradients of two layers; dx [B, I] is None where nobody needs it."""

    dw1: NDArray
    db1: NDArray
    dw2: NDArray
    db2: NDArray
    dx: NDArray | None


class Parts:
    """Seconds of the parts of fused backward calls, added up; total is measured around them."""

    NAMES = ("dw2", "db2", "d_a1", "dw1", "dx")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(self.NAMES, 0.0)
        self.total = 0.0


def words(columns: int) -> int:
    """32-bit words of a row of a ReLU mask."""
    return (columns + 31) // 32


def pack_mask(above: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """[B, O] as bits, uint32 [B, words]: bit j % 32 of word j / 32 is column j."""
    packed = np.zeros((len(above), 4 * words(above.shape[1])), np.uint8)
    found = np.packbits(above, axis=1, bitorder="little")
    packed[:, : found.shape[1]] = found
    return packed.view("<u4")


def unpack_mask(bits: NDArray[np.uint32], columns: int) -> NDArray[np.bool_]:
    """The inverse of pack_mask."""
    flags = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little", count=columns)
    return flags.view(np.bool_)


def check_gelu(kind: str) -> None:
    """Raises InputError unless the kind of GELU exists."""
    if kind not in GELUS:
        raise InputError(f"{kind} is no kind of GELU: choose erf or tanh.")


def normal_share(x: NDArray) -> NDArray:
    """Phi(x), the share of the normal distribution below x."""
    try:
        from scipy.special import erf
    except ImportError:
        raise InputError(
            "scipy is missing: pip install '.[examples]' brings it with scikit-learn."
        ) from None
    return (1 + erf(x / x.dtype.type(math.sqrt(2)))) / 2


def gelu_of(kind: Gelu, x: NDArray) -> NDArray:
    """GELU, of the values' type."""
    check_gelu(kind)
    return x * normal_share(x) if kind == "erf" else x * (1 + bent(x)) / 2


def slope_of(kind: Gelu, x: NDArray) -> NDArray:
    """GELU's derivative, of the values' type."""
    check_gelu(kind)
    of = x.dtype.type
    if kind == "erf":
        return normal_share(x) + x * np.exp(-x * x / 2) * of(1 / math.sqrt(2 * math.pi))
    found, square = bent(x), x * x
    inner = (1 + 3 * CUBIC * square) * of(ROOT)
    return (1 + found + x * (1 - found * found) * inner) / 2


def bent(x: NDArray) -> NDArray:
    """The tanh of GELU's approximation."""
    return np.tanh(x.dtype.type(ROOT) * (x + CUBIC * x * x * x))


class Kernels:
    """One NumPy call or a few for each operation; arrays are C-contiguous and of one type."""

    name = "numpy"

    # One operation each.

    def matmul(self, a: NDArray, b: NDArray, out: NDArray, kind: str = "nn") -> None:
        """out = a b; kind nt: b transposed, tn: a transposed."""
        np.matmul(a.T if kind[0] == "t" else a, b.T if kind[1] == "t" else b, out=out)

    def add_bias(self, x: NDArray, bias: NDArray, out: NDArray) -> None:
        np.add(x, bias, out=out)

    def column_sums(self, x: NDArray, out: NDArray) -> None:
        np.sum(x, axis=0, out=out)

    def relu(self, x: NDArray, out: NDArray, bits: NDArray | None = None) -> None:
        np.maximum(x, 0, out=out)
        if bits is not None:
            bits[...] = pack_mask(out > 0)

    def relu_backward(
        self, y: NDArray | None, bits: NDArray | None, dy: NDArray, dx: NDArray
    ) -> None:
        """dx = dy where the output y was above 0, by y or, if it is None, by its bits."""
        if y is None:
            assert bits is not None
            above = unpack_mask(bits, dy.shape[1])
        else:
            above = y > 0
        np.multiply(dy, above, out=dx)

    def gelu(self, kind: Gelu, x: NDArray, out: NDArray) -> None:
        out[...] = gelu_of(kind, x)

    def gelu_backward(self, kind: Gelu, x: NDArray, dy: NDArray, dx: NDArray) -> None:
        np.multiply(dy, slope_of(kind, x), out=dx)

    def cross_entropy(self, x: NDArray, labels: NDArray, dx: NDArray) -> float:
        """Mean of -log softmax(x)[label]; dx becomes its gradient."""
        rows = np.arange(len(x))
        np.subtract(x, x.max(axis=1, keepdims=True), out=dx)
        right = dx[rows, labels].copy()
        np.exp(dx, out=dx)
        sums = dx.sum(axis=1, keepdims=True)
        dx /= sums
        dx[rows, labels] -= 1
        dx /= len(x)
        return float((np.log(sums[:, 0]) - right).mean())

    # Several in one call.

    def linear(
        self, x: NDArray, w: NDArray, bias: NDArray, out: NDArray, relu: bool = False,
        bits: NDArray | None = None,
    ) -> None:  # fmt: skip
        """out = x w^T + bias, through a ReLU if asked, whose mask becomes `bits`."""
        np.matmul(x, w.T, out=out)
        np.add(out, bias, out=out)
        if relu:
            self.relu(out, out, bits)

    def linear_backward(
        self, x: NDArray, w: NDArray, dy: NDArray, dw: NDArray, db: NDArray, dx: NDArray | None,
        y: NDArray | None = None, bits: NDArray | None = None,
    ) -> None:  # fmt: skip
        """dw, db and dx of a linear layer; with y or bits dy is masked first, in place."""
        if y is not None or bits is not None:
            self.relu_backward(y, bits, dy, dy)
        np.matmul(dy.T, x, out=dw)
        np.sum(dy, axis=0, out=db)
        if dx is not None:
            np.matmul(dy, w, out=dx)

    def mlp_forward(self, net: TwoLayers, a1: NDArray, bits: NDArray | None, y: NDArray) -> None:
        """Linear, ReLU, linear: a1 [B, H] is the ReLU's output, bits its mask."""
        self.linear(net.x, net.w1, net.b1, a1, relu=True, bits=bits)
        self.linear(a1, net.w2, net.b2, y)

    def mlp_backward(
        self, net: TwoLayers, a1: NDArray, bits: NDArray | None, dy: NDArray, out: Gradients,
        workspace: NDArray, parts: Parts | None = None,
    ) -> None:  # fmt: skip
        """All gradients of mlp_forward, the mask from `bits` or, if that is None, from a1."""
        hidden = np.empty_like(a1)
        self.linear_backward(a1, net.w2, dy, out.dw2, out.db2, hidden)
        mask = (a1, None) if bits is None else (None, bits)
        self.linear_backward(net.x, net.w1, hidden, out.dw1, out.db1, out.dx, *mask)

    def ffn_forward(
        self, kind: Gelu, net: TwoLayers, pre: NDArray, act: NDArray, y: NDArray,
        slope: bool = False,
    ) -> None:  # fmt: skip
        """Linear, GELU, linear: pre [B, H] becomes GELU's inputs, or its derivative there."""
        self.linear(net.x, net.w1, net.b1, pre)
        act[...] = gelu_of(kind, pre)
        if slope:
            pre[...] = slope_of(kind, pre)
        self.linear(act, net.w2, net.b2, y)

    def ffn_backward(
        self, kind: Gelu, net: TwoLayers, pre: NDArray, act: NDArray, dy: NDArray,
        out: Gradients, workspace: NDArray, slope: bool = False, parts: Parts | None = None,
    ) -> None:  # fmt: skip
        """All gradients of ffn_forward with the same `kind` and `slope`."""
        hidden = np.empty_like(act)
        self.linear_backward(act, net.w2, dy, out.dw2, out.db2, hidden)
        hidden *= pre if slope else slope_of(kind, pre)
        self.linear_backward(net.x, net.w1, hidden, out.dw1, out.db1, out.dx)

    def workspace_floats(self, rows: int, hidden: int) -> int:
        """Floats that the backward calls of two layers need besides."""
        return 0

    # Steps.

    def descend(self, w: NDArray, g: NDArray, rate: float) -> None:
        """w -= rate g."""
        w -= w.dtype.type(rate) * g

    def adam(
        self, w: NDArray, g: NDArray, m: NDArray, v: NDArray, rate: float, step: int,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    ) -> None:  # fmt: skip
        """A step of Adam as PyTorch defines it; the first step is 1."""
        first, second = betas
        m += (g - m) * w.dtype.type(1 - first)
        v += (g * g - v) * w.dtype.type(1 - second)
        root = np.sqrt(v) / math.sqrt(1 - second**step) + eps
        w -= (rate / (1 - first**step) * (m / root)).astype(w.dtype)
