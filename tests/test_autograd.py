"""The tape of experiments/autograd: gradients against float64, against differences, and reuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.autograd import buffers, fused, networks, nodes
from experiments.autograd.kernels import Gradients, Kernels, TwoLayers, pack_mask, unpack_mask
from experiments.autograd.native import Native
from experiments.autograd.optimisers import Adam, Sgd
from experiments.autograd.tape import Profile, Tape, Tensor

ROWS, INPUTS, HIDDEN, OUTPUTS = 13, 19, 67, 7  # no multiples of a vector
BOUND = 1e-5

# Node -> function of (tape, x, layers); layers are w1, b1, w2, b2.
NETWORKS: dict[str, Callable[..., Tensor]] = {
    "matmul": lambda tape, x, p: nodes.matmul(tape, x, p[0]),
    "bias": lambda tape, x, p: nodes.add_bias(tape, nodes.matmul(tape, x, p[0]), p[1]),
    "linear": lambda tape, x, p: nodes.linear(tape, x, p[0], p[1]),
    "twice": lambda tape, x, p: twice(tape, x, p),
    **{
        f"mlp {path} {mask}": partial(networks.mlp, path=path, mask=mask)
        for path in networks.PATHS
        for mask in nodes.MASKS
    },
    "mlp plain, mask of the input": partial(networks.mlp, path="plain", mask="input"),
    **{
        f"mlp plain, {reuse} reused": partial(networks.mlp, path="plain", mask="bits", reuse=reuse)
        for reuse in ("output", "gradient")
    },
    **{
        f"ffn {kind} {path}": partial(networks.ffn, kind=kind, fuse=path != "plain", slope=slope)
        for kind in ("erf", "tanh")
        for path, slope in (("plain", False), ("fused", False), ("fused, slope kept", True))
    },
}


def twice(tape: Tape, x: Tensor, layers: list[Tensor]) -> Tensor:
    """A hidden value that two fused networks and a sum use, and weights used by both."""
    w1, b1, w2, b2 = layers
    hidden = fused.linear_relu(tape, x, w1, b1)
    square = nodes.linear(tape, nodes.relu(tape, nodes.add(tape, hidden, hidden)), w2, b2)
    return nodes.add(tape, square, fused.two_layer(tape, x, layers, "bits"))


def all_kernels() -> list[str]:
    return ["numpy", "native"]


def make_kernels(name: str) -> Kernels:
    if name == "numpy":
        return Kernels()
    pytest.importorskip("float_kernels", reason="the native kernels were not built")
    return Native()


def data(dtype: type = np.float64) -> tuple[NDArray, list[NDArray], NDArray]:
    """x, layers and labels; the same numbers, exact in float32, in every type."""
    chance = np.random.default_rng(1)
    x = chance.normal(size=(ROWS, INPUTS)).astype(np.float32)
    layers = [3 * w for w in networks.initial(INPUTS, HIDDEN, OUTPUTS, seed=2)]
    labels = chance.integers(0, OUTPUTS, ROWS).astype(np.int32)
    return x.astype(dtype), [w.astype(dtype) for w in layers], labels


def gradients(
    name: str, kernels: Kernels, dtype: type = np.float32, steps: int = 1
) -> tuple[float, dict[str, NDArray]]:
    """Loss and the gradients of every input of a network, the last of some equal steps."""
    x, arrays, labels = data(dtype)
    tape = Tape(kernels, dtype=dtype)
    layers = [tape.parameter(w) for w in arrays]
    source = Tensor(x, needs_grad=True)
    for _ in range(steps):
        tape.begin()
        source.grad = None
        loss = nodes.cross_entropy(tape, NETWORKS[name](tape, source, layers), labels)
        tape.backward(loss)
    found = dict(zip(("x", "w1", "b1", "w2", "b2"), (source, *layers), strict=True))
    return float(loss.data), {
        key: tensor.grad.copy() for key, tensor in found.items() if tensor.grad is not None
    }


def loss_of(name: str, arrays: list[NDArray], labels: NDArray) -> float:
    tape = Tape(Kernels(), dtype=np.float64)
    x, *layers = [Tensor(a) for a in arrays]
    return float(nodes.cross_entropy(tape, NETWORKS[name](tape, x, layers), labels).data)


@pytest.mark.parametrize("name", NETWORKS)
def test_float64_gradients_are_differences_of_the_loss(name: str):
    _, exact = gradients(name, Kernels(), np.float64)
    x, layers, labels = data()
    arrays, chance = [x, *layers], np.random.default_rng(3)
    for key, array in zip(("x", "w1", "b1", "w2", "b2"), arrays, strict=True):
        if key not in exact:
            continue
        direction = chance.normal(size=array.shape)
        sides = []
        for sign in (1, -1):
            array += sign * 1e-6 * direction
            sides.append(loss_of(name, arrays, labels))
            array -= sign * 1e-6 * direction
        slope = (sides[0] - sides[1]) / 2e-6
        assert slope == pytest.approx((exact[key] * direction).sum(), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("kernels", all_kernels())
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_agree_with_float64(name: str, kernels: str):
    loss, exact = gradients(name, Kernels(), np.float64)
    for steps in (1, 3):  # buffers used again do not change them
        found_loss, found = gradients(name, make_kernels(kernels), steps=steps)
        assert found_loss == pytest.approx(loss, rel=BOUND)
        assert found.keys() == exact.keys()
        for key, gradient in found.items():
            error = abs(gradient - exact[key]).max() / abs(exact[key]).max()
            assert error < BOUND, (key, error)


@pytest.mark.parametrize("path", networks.PATHS)
@pytest.mark.parametrize("kernels", all_kernels())
def test_both_masks_give_the_same_bits(path: str, kernels: str):
    used = make_kernels(kernels)
    output, bits = (gradients(f"mlp {path} {mask}", used)[1] for mask in nodes.MASKS)
    for key in output:
        assert np.array_equal(output[key], bits[key]), key


@pytest.mark.parametrize("kernels", all_kernels())
def test_a_mask_of_bits_is_that_of_the_output(kernels: str):
    used = make_kernels(kernels)
    x, (w, bias, *_), _ = data(np.float32)
    w[5] = bias[5] = 0  # an output of exactly 0 passes nothing
    out, bits = np.empty((ROWS, HIDDEN), np.float32), np.full((ROWS, 3), 77, np.uint32)
    used.linear(x, w, bias, out, relu=True, bits=bits)
    assert np.array_equal(bits, pack_mask(out > 0))
    assert np.array_equal(unpack_mask(bits, HIDDEN), out > 0)
    assert not (out[:, 5] > 0).any()
    assert 0 < (out > 0).mean() < 1


@pytest.mark.parametrize("kernels", all_kernels())
@pytest.mark.parametrize("path", networks.PATHS)
def test_a_second_step_allocates_no_buffer(path: str, kernels: str):
    made = []

    def place(shape, dtype):
        made.append(shape)
        return np.zeros(shape, dtype)

    tape = Tape(make_kernels(kernels), buffers.Workspace(place))
    x, arrays, labels = data(np.float32)
    layers, seen = [tape.parameter(w) for w in arrays], []
    for _ in range(3):
        tape.begin()
        source = Tensor(x, needs_grad=True)
        out = networks.mlp(tape, source, layers, path, "bits")
        tape.backward(nodes.cross_entropy(tape, out, labels))
        seen.append((len(made), out.data.ctypes.data, source.grad.ctypes.data))
    assert seen[0] == seen[1] == seen[2]
    assert len(made) > 8


def test_a_workspace_without_reuse_and_a_changed_shape_give_new_buffers():
    fresh = buffers.Workspace(buffers.by_numpy(), reuse=False)
    kept = buffers.Workspace()
    for space, same in ((fresh, False), (kept, True)):
        space.begin()
        first = space.take((4, 5))
        space.begin()
        assert (space.take((4, 5)) is first) is same
        space.begin()
        assert space.take((5, 4)).shape == (5, 4)


@pytest.mark.parametrize(
    ("place", "offsets"),
    [(buffers.by_lines(), 64), (buffers.by_pages(), 1), (buffers.by_arena(1 << 22), 1)],
)
def test_arrays_begin_where_the_place_says(place: buffers.Place, offsets: int):
    arrays = [place((16, 256), np.float32) for _ in range(64)]
    assert len({a.ctypes.data % buffers.PAGE for a in arrays}) == offsets
    assert all(a.ctypes.data % buffers.LINE == 0 and not a.any() for a in arrays)
    for index, array in enumerate(arrays):
        array[...] = index
    assert [a[0, 0] for a in arrays] == [a[-1, -1] for a in arrays] == list(range(64))


@pytest.mark.parametrize("path", networks.PATHS)
def test_parts_of_a_profile_sum_to_its_total(path: str):
    tape = Tape(make_kernels("native"))
    layers = [tape.parameter(w) for w in networks.initial(256, 512, 10)]
    chance = np.random.default_rng(0)
    x = tape.constant(chance.normal(size=(128, 256)).astype(np.float32))
    labels = chance.integers(0, 10, 128).astype(np.int32)
    tape.profile = Profile()
    for _ in range(5):
        tape.begin()
        out = networks.mlp(tape, x, layers, path)
        tape.backward(nodes.cross_entropy(tape, out, labels))
    profile = tape.profile
    assert 0.8 * profile.total < sum(profile.parts.values()) <= profile.total
    if path == "two-layer":
        inside = profile.fused
        assert all(inside.seconds[name] > 0 for name in ("dw2", "db2", "d_a1", "dw1_db1"))
        assert inside.seconds["activation"] > 0
        assert inside.total == pytest.approx(sum(inside.seconds.values()))
        assert inside.total <= profile.parts["two_layer.all"]


@pytest.mark.parametrize("kernels", all_kernels())
def test_steps_of_sgd_and_adam_follow_their_definition(kernels: str):
    chance = np.random.default_rng(4)
    start, slopes = chance.normal(size=37), chance.normal(size=(3, 37))
    for make in (Sgd, Adam):
        tape = Tape(make_kernels(kernels))
        w = tape.parameter(start.astype(np.float32))
        optimiser = make(tape, 0.1)
        exact, m, v = start.copy(), np.zeros(37), np.zeros(37)
        for step, slope in enumerate(slopes, 1):
            w.grad = slope.astype(np.float32)
            optimiser.step()
            m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
            moved = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            exact -= 0.1 * (moved if make is Adam else slope)
        assert abs(w.data - exact).max() < BOUND


def test_a_tensor_without_gradient_is_left_out_and_changes_nothing_else():
    x, arrays, labels = data(np.float32)
    for path in networks.PATHS:
        found = []
        for needed in (False, True):
            tape = Tape(make_kernels("native"))
            layers, source = [tape.parameter(w) for w in arrays], Tensor(x, needs_grad=needed)
            out = networks.mlp(tape, source, layers, path)
            tape.backward(nodes.cross_entropy(tape, out, labels))
            assert (source.grad is not None) is needed
            found.append(layers[0].grad.copy())
        assert np.array_equal(*found)


def refusals() -> dict[str, tuple[Callable[[Tape, Tensor], object], str]]:
    def tensor(*shape: int) -> Tensor:
        return Tensor(np.zeros(shape, np.float32), needs_grad=True)

    w, bias = tensor(6, 5), tensor(6)
    labels = np.zeros(4, np.int32)
    return {
        "weights": (lambda t, x: nodes.matmul(t, x, tensor(6, 4)), r"weights \(6, 4\)"),
        "bias": (lambda t, x: nodes.linear(t, x, w, tensor(5)), r"bias \(5,\): it must be \(6,\)"),
        "added bias": (lambda t, x: nodes.add_bias(t, x, bias), r"bias \(6,\): it must be \(5,\)"),
        "sum": (lambda t, x: nodes.add(t, x, w), "shapes must be equal"),
        "mask": (lambda t, x: nodes.relu(t, x, "bytes"), "choose output or bits"),
        "reuse": (lambda t, x: nodes.relu(t, x, reuse="output"), "output with a mask of bits"),
        "gelu": (lambda t, x: nodes.gelu(t, x, "sigmoid"), "choose erf or tanh"),
        "path": (lambda t, x: networks.mlp(t, x, [w] * 4, "one"), "choose plain, linear"),
        "labels": (lambda t, x: nodes.cross_entropy(t, x, labels + 5), "must be 0 to 4"),
        "labels' type": (lambda t, x: nodes.cross_entropy(t, x, labels[:3]), r"int32 \(4,\)"),
        "second layer": (
            lambda t, x: fused.two_layer(t, x, [w, bias, w, bias]), r"6\) and weights \(6, 5\)",
        ),
        "output": (lambda t, x: t.backward(x), "no output of this step"),
        "type": (lambda t, x: t.constant(np.zeros((4, 5))), "float64.*needs contiguous float32"),
        "offset": (lambda t, x: buffers.at_offset((3,), np.float32, 6), "multiple of 4 from 0"),
        "arena": (lambda t, x: buffers.by_arena(64)((32,), np.float32), "64 bytes is full"),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals())
def test_errors_are_sentences(name: str):
    call, said = refusals()[name]
    with pytest.raises(InputError, match=said):
        call(Tape(Kernels()), Tensor(np.zeros((4, 5), np.float32), needs_grad=True))


def test_native_kernels_refuse_other_arrays():
    used = make_kernels("native")
    w = np.zeros((6, 5), np.float32)
    for x in (np.zeros((4, 5)), np.zeros((5, 4), np.float32).T):
        with pytest.raises(InputError, match="contiguous float32"):
            used.matmul(x, w, np.zeros((4, 6), np.float32), "nt")
    net = TwoLayers(
        np.zeros((4, 5), np.float32), w, *(np.zeros(s, np.float32) for s in (6, (3, 6), 3))
    )
    slopes = Gradients(*(np.zeros_like(w) for w in net[1:]), None)
    a1, dy, room = (np.zeros(s, np.float32) for s in ((4, 6), (4, 3), 7))
    with pytest.raises(InputError, match="7 floats: it needs"):
        used.mlp_backward(net, a1, None, dy, slopes, room)
    with pytest.raises(InputError, match=r"cannot be used: .*'z80'"):
        Native(isa="z80")
