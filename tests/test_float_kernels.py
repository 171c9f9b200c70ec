"""The float kernels against NumPy in double precision, for every instruction set that runs here."""

from __future__ import annotations

import ctypes
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import float_kernels
import numpy as np
import pytest
from float_kernels import Gradients, Kernels, Profile, TwoLayers
from float_kernels.library import FUNCTIONS


@pytest.fixture(scope="module", params=float_kernels.isas())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def random(*shape: int, seed: int = 0, gap: int = 0) -> np.ndarray:
    """Normal numbers; rows are `gap` floats further apart than they are wide."""
    rng = np.random.default_rng([seed, *shape])
    wide = (*shape[:-1], shape[-1] + gap)
    return rng.standard_normal(wide).astype(np.float32)[..., : shape[-1]]


def unaligned(a: np.ndarray) -> np.ndarray:
    """The same numbers, one float off any alignment."""
    memory = np.empty(a.size + 17, np.float32)
    skip = (-memory.ctypes.data // 4) % 16 + 1
    moved = memory[skip : skip + a.size].reshape(a.shape)
    moved[...] = a
    assert moved.ctypes.data % 64 == 4
    return moved


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (65, 33, 27), (150, 130, 600)])
def test_products(kernels: Kernels, shape: tuple[int, int, int], gap: int):
    m, n, k = shape
    a, b = random(m, k, gap=gap), random(k, n, seed=1, gap=gap)
    expected = a.astype(float) @ b.astype(float)
    near = {"atol": 3e-7 * (k + 4), "rtol": 1e-5}
    np.testing.assert_allclose(kernels.matmul("nn", a, b), expected, **near)
    np.testing.assert_allclose(kernels.matmul("nt", a, unaligned(b.T)), expected, **near)
    np.testing.assert_allclose(kernels.matmul("tn", unaligned(a.T), b), expected, **near)
    packed = kernels.matmul_packed(a, kernels.pack(b), n)
    np.testing.assert_array_equal(packed, kernels.matmul("nn", a, b))
    into = random(m, n, seed=2, gap=gap)
    before = into.astype(float)
    kernels.matmul("nn", a, b, into, accumulate=True)
    np.testing.assert_allclose(into, before + expected, **near)


@pytest.mark.parametrize("kind", ["nn", "nt", "tn"])
def test_threads_change_no_bit(kernels: Kernels, kind: str):
    a = random(*((300, 200) if kind == "tn" else (200, 300)))
    b = random(*((500, 300) if kind == "nt" else (300, 500)), seed=1)
    one = kernels.matmul(kind, a, b)
    for threads in (2, 3, 7):
        several = Kernels(kernels.table.isa.decode(), threads).matmul(kind, a, b)
        np.testing.assert_array_equal(one, several)


def test_the_pool_serves_a_forked_child():
    """Threads do not survive a fork, so the child makes its own pool."""
    code = """if True:
        import os, numpy as np
        from float_kernels import Kernels
        a = np.ones((256, 256), np.float32)
        k = Kernels(threads=2)
        k.matmul("nn", a, a)
        if (child := os.fork()) == 0:
            os._exit(0 if (k.matmul("nn", a, a) == 256).all() else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def as_bools(bits: np.ndarray, n: int) -> np.ndarray:
    return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :n].astype(bool)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 10, 33), (64, 256, 27), (65, 95, 100)])
def test_linear_with_relu_and_its_mask(kernels: Kernels, shape: tuple[int, int, int]):
    rows, n, k = shape
    x, w, bias = random(rows, k), random(n, k, seed=1), random(n, seed=2)
    bits = np.full((rows, (n + 31) // 32), 0xFFFFFFFF, np.uint32)
    y = kernels.linear(x, w, bias, relu=True, bits=bits)
    expected = np.maximum(x.astype(float) @ w.T.astype(float) + bias, 0)
    np.testing.assert_allclose(y, expected, atol=3e-7 * (k + 4))
    assert (as_bools(bits, n) == (y > 0)).all()
    packed = kernels.linear(x, w, bias, relu=True, packed=kernels.pack(w, transposed=True))
    np.testing.assert_array_equal(packed, y)


def numeric_gradient(loss, array: np.ndarray, at: list[tuple[int, ...]]) -> np.ndarray:
    """Central differences of `loss()` by the entries `at` of a float64 array."""
    found = []
    for index in at:
        before = array[index]
        ends = []
        for step in (1e-5, -1e-5):
            array[index] = before + step
            ends.append(loss())
        array[index] = before
        found.append((ends[0] - ends[1]) / 2e-5)
    return np.array(found)


def erf_gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "erf": erf_gelu, "tanh": tanh_gelu}


@pytest.mark.parametrize("way", ["relu", "relu bits", "erf", "erf slope", "tanh", "tanh slope"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (9, 13, 35, 5)])
def test_backward_is_the_derivative(kernels: Kernels, way: str, sizes: tuple[int, ...]):
    """By finite differences of the forward pass in double precision, and so is the forward pass."""
    rows, inputs, hidden, outputs = sizes
    kind, _, extra = way.partition(" ")
    shapes = (rows, inputs), (hidden, inputs), (hidden,), (outputs, hidden), (outputs,)
    net = TwoLayers(*(random(*s, seed=i, gap=i % 3) for i, s in enumerate(shapes)))
    net = net._replace(b1=net.b1.copy(), b2=net.b2.copy())
    dy = random(rows, outputs, seed=9)
    exact = TwoLayers(*(a.astype(float) for a in net))

    def forward() -> np.ndarray:
        act = ACTIVATIONS[kind](exact.x @ exact.w1.T + exact.b1)
        return act @ exact.w2.T + exact.b2

    out = Gradients(*(np.full(a.shape, np.nan, np.float32) for a in (*net[1:], net.x)))
    y, space = np.empty((rows, outputs), np.float32), kernels.workspace(rows, hidden)
    act, pre = (np.empty((rows, hidden), np.float32) for _ in range(2))
    profile = Profile()
    if kind == "relu":
        bits = np.empty((rows, (hidden + 31) // 32), np.uint32) if extra else None
        kernels.mlp_forward(net, act, y, bits)
        kernels.mlp_backward(net, act, dy, out, space, bits, profile)
    else:
        kernels.ffn_forward(kind, net, pre, act, y, slope=bool(extra))
        kernels.ffn_backward(extra or kind, net, pre, act, dy, out, space, profile)
    np.testing.assert_allclose(y, forward(), rtol=1e-5, atol=1e-5)
    rng = np.random.default_rng(3)
    for got, array in zip(out, (*exact[1:], exact.x), strict=True):
        at = [tuple(rng.integers(size) for size in array.shape) for _ in range(6)]
        numeric = numeric_gradient(lambda: float((forward() * dy).sum()), array, at)
        assert not np.isnan(got).any()
        np.testing.assert_allclose([got[i] for i in at], numeric, rtol=1e-4, atol=1e-4)
    seconds = profile.seconds()
    total = seconds.pop("total")
    assert total > 0
    assert sum(seconds.values()) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("masked", ["", "y", "bits"])
def test_linear_backward(kernels: Kernels, masked: str):
    rows, n, k = 37, 45, 21
    x, w, dy = random(rows, k), random(n, k, seed=1), random(rows, n, seed=2)
    bits = np.empty((rows, 2), np.uint32)
    y = kernels.linear(x, w, random(n, seed=3), relu=True, bits=bits)
    before = dy.astype(float) * (y > 0) if masked else dy.astype(float)
    dw, db, dx = np.empty_like(w), np.empty(n, np.float32), np.empty_like(x)
    mask = {"": {}, "y": {"y": y}, "bits": {"bits": bits}}[masked]
    kernels.linear_backward(x, w, dy, dw, db, dx, **mask)
    np.testing.assert_array_equal(dy, before)
    np.testing.assert_allclose(dw, before.T @ x, atol=1e-4)
    np.testing.assert_allclose(db, before.sum(axis=0), atol=1e-4)
    np.testing.assert_allclose(dx, before @ w, atol=1e-4)
    kernels.linear_backward(x, w, dy, dw, db, None, accumulate=True)
    np.testing.assert_allclose(dw, 2 * (before.T @ x), atol=1e-4)
    np.testing.assert_allclose(db, 2 * before.sum(axis=0), atol=1e-4)


FUNCTIONS_OF_ONE = {"exp": (math.exp, -86.9, 88.7), "tanh": (math.tanh, -10, 10)}
FUNCTIONS_OF_ONE["erf"] = (math.erf, -5, 5)


@pytest.mark.parametrize("name", FUNCTIONS_OF_ONE)
def test_functions_are_within_two_units_of_the_last_place(kernels: Kernels, name: str):
    exact, low, high = FUNCTIONS_OF_ONE[name]
    x = np.linspace(low, high, 20_001).astype(np.float32)
    x = np.concatenate([x, x / 1000])
    expected = np.array([exact(float(v)) for v in x])
    unit = np.spacing(np.abs(expected).astype(np.float32))
    assert (np.abs(kernels.map(name, x) - expected) / unit).max() < 2


def test_softmax_of_masked_logits(kernels: Kernels):
    x = random(6, 9)
    x[:, 3] = -np.inf
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-1e30).astype(float))
    np.testing.assert_allclose(kernels.softmax(x), e / e.sum(axis=1, keepdims=True), atol=1e-6)
    assert (kernels.softmax(x)[:, 3] == 0).all()


def test_adam_of_a_network(kernels: Kernels):
    n = 207_114
    w, g, m, v = (random(n, seed=i) for i in range(4))
    exact_w, exact_m, exact_v = w.astype(float), m.astype(float), (v := np.abs(v)).astype(float)
    pointers = [a.ctypes.data for a in (w, g, m, v)]
    for step in (1, 2):
        kernels.table.adam(n, *pointers, 0.003, 0.9, 0.999, 1e-8, 0.5, step)
        d = 0.5 * g.astype(float)
        exact_m = 0.9 * exact_m + 0.1 * d
        exact_v = 0.999 * exact_v + 0.001 * d * d
        root = np.sqrt(exact_v / (1 - 0.999**step)) + 1e-8
        exact_w -= 0.003 / (1 - 0.9**step) * exact_m / root
    np.testing.assert_allclose(w, exact_w, atol=1e-6, rtol=1e-6)
    squares = kernels.table.sum_squares(n, g.ctypes.data)
    assert squares == pytest.approx((g.astype(float) ** 2).sum(), rel=1e-6)


def test_shapes_are_checked():
    kernels = Kernels()
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(4, 5\) do not fit"):
        kernels.matmul("nn", random(2, 3), random(4, 5))
    with pytest.raises(ValueError, match="rows of a matrix must be contiguous"):
        kernels.matmul("nn", random(3, 2).T, random(3, 5))
    with pytest.raises(ValueError, match="float32 matrix is needed"):
        kernels.matmul("nn", np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="none of those usable here"):
        Kernels("avx1024")


def test_what_cannot_be_written_or_reached_is_refused(tmp_path: Path):
    k, f = Kernels(), np.float32
    a, square = np.ones((4, 4), f), np.ones((4, 4), f)
    square.flags.writeable = False
    net = TwoLayers(a[:, :3], np.ones((5, 3), f), np.ones(5, f), np.ones((2, 5), f), np.ones(2, f))
    made = Gradients(np.empty((5, 3), f), np.empty(5, f), np.empty((2, 5), f), np.empty(2, f))
    a1, dy, space = np.ones((4, 5), f), np.ones((4, 2), f), k.workspace(4, 5)
    k.mlp_backward(net, a1, dy, made, space)
    far = np.lib.stride_tricks.as_strided(a, (2, 4), (2**33, 4))  # never read
    for work, said in (
        (lambda: k.matmul("nn", a, a, square), "read-only"),
        (lambda: k.linear(a, a, None, out=square), "read-only"),
        (lambda: k.linear_backward(a, a, square, None, None, np.empty_like(a), y=a), "read-only"),
        (lambda: k.mlp_backward(net, a1, dy, made._replace(db1=None), space), "db1 is None"),
        (lambda: k.mlp_backward(net, a1, dy, made._replace(dw2=None), space), "dw2 is None"),
        (lambda: k.matmul("nn", far, a), "beyond 2147483647"),
        (lambda: k.matmul("nn", a, a.copy(), a), "must not overlap"),
    ):
        with pytest.raises(ValueError, match=said):
            work()
    k.linear_backward(a, a, square, None, None, np.empty_like(a))  # not masked, it is only read


def test_sums_of_nothing_are_0(kernels: Kernels):
    f = np.float32
    for m, k, n in ((5, 0, 39), (0, 4, 3), (4, 3, 0), (0, 0, 0)):
        product = kernels.matmul("nn", np.zeros((m, k), f), np.zeros((k, n), f))
        np.testing.assert_array_equal(product, np.zeros((m, n), f))
    np.testing.assert_array_equal(kernels.column_sums(np.zeros((0, 5), f)), np.zeros(5, f))


def test_an_instruction_set_can_be_named(monkeypatch: pytest.MonkeyPatch):
    best = float_kernels.load().float_kernels_best
    for isa in float_kernels.isas():
        monkeypatch.setenv("FLOAT_KERNELS_ISA", isa)
        assert best().contents.isa.decode() == isa
    monkeypatch.setenv("FLOAT_KERNELS_ISA", "avx1024")
    assert not best()
    monkeypatch.setenv("FLOAT_KERNELS_ISA", "")
    assert best().contents.isa.decode() == float_kernels.isas()[0]


def test_python_knows_the_header():
    """Names and order of the table's functions, and the number of their arguments."""
    text = (float_kernels.include() / "float_kernels.h").read_text()
    body = text[text.index("typedef struct float_kernels {") :]
    found = re.findall(r"\(\*(\w+)\)\(([^)]*)\);", re.sub(r"//.*", "", body))
    assert [name for name, _ in found] == list(FUNCTIONS)
    for name, arguments in found:
        assert len(arguments.split(",")) == len(FUNCTIONS[name][1]), name
    assert float_kernels.table() == ctypes.addressof(Kernels().table)


def test_polynomials_are_those_fitted():
    folder = float_kernels.include()
    text = runpy.run_path(str(folder / "fit_polynomials.py"))["text"]()
    number = re.compile(r"-?\d\.\d+e[+-]\d+")
    fitted, kept = (
        [float(n) for n in number.findall(t)]
        for t in (text, (folder / "polynomials.h").read_text())
    )
    assert len(fitted) > 30
    np.testing.assert_allclose(fitted, kept, rtol=1e-4, atol=1e-9)


def test_the_pages_example_runs():
    page = (Path(__file__).parents[1] / "docs" / "float_kernels.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(program, "docs/float_kernels.md", "exec"), {})
