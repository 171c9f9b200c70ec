"""NumPy's memory as an MLX array: contents, lifetime, refusals."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import mlx.core as mx
import numpy as np
import pytest

from eggroll import _extension
from eggroll.errors import InputError

try:
    view = _extension.load().view
except InputError as error:  # other tests say why it is missing
    pytest.skip(str(error), allow_module_level=True)

SHARED = mx.default_device() == mx.cpu  # elsewhere MLX's allocator may need a copy


class Given(np.ndarray):
    """An array that a weak reference can follow."""


def given(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape).view(Given)


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 4), (3, 1, 5), (0,), (2, 0, 3)])
def test_has_the_contents_shape_and_dtype(shape: tuple[int, ...], dtype: type):
    array = given(shape, dtype)
    seen = view(array)
    assert seen.shape == shape
    assert seen.dtype == (mx.int8 if dtype is np.int8 else mx.int32)
    np.testing.assert_array_equal(np.array(seen), array)
    np.testing.assert_array_equal(np.array(seen + 1), array + dtype(1))


@pytest.mark.skipif(not SHARED, reason="MLX's allocator of this device takes no foreign memory")
def test_shares_the_memory():
    array = np.zeros((4, 64), np.int8)
    seen = view(array)
    array[2, 3] = 5
    assert seen[2, 3].item() == 5
    assert np.array(seen, copy=False).ctypes.data == array.ctypes.data


def test_what_is_computed_from_it_leaves_it_as_it_was():
    """MLX reuses the memory of its own temporaries, but not this."""
    array = given((64, 64), np.int32)
    want = array.copy()
    mx.eval(mx.abs(view(array) * 2) - 1, mx.sort(-view(array)), view(array).reshape(-1) + 3)
    np.testing.assert_array_equal(array, want)


def test_keeps_the_array_alive_and_lets_it_go():
    array = given((1 << 16,), np.int8)
    alive = weakref.ref(array)
    seen = view(array)
    del array
    gc.collect()
    if SHARED:
        assert alive() is not None
    np.testing.assert_array_equal(np.array(seen)[:256], np.arange(256).astype(np.int8))
    del seen
    gc.collect()
    assert alive() is None


def test_is_let_go_after_work_that_still_reads_it():
    """The last reference may be given up on a thread of MLX's."""
    alive = []
    for _ in range(50):
        array = given((1 << 12,), np.int32)
        alive.append(weakref.ref(array))
        total = mx.sum(view(array))
        del array
        mx.async_eval(total)
        assert total.item() == 4096 * 4095 // 2
    del total
    gc.collect()
    mx.synchronize()
    assert [ref for ref in alive if ref() is not None] == []


def test_may_outlive_the_interpreter():
    code = (
        "import mlx.core as mx, numpy as np\n"
        "from eggroll import _extension\n"
        "mx.kept = _extension.load().view(np.ones(9, np.int8))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros(4, np.uint8), "int8 or int32"),
        (np.zeros(4, np.int16), "int8 or int32"),
        (np.zeros(4, np.int64), "int8 or int32"),
        (np.zeros(4, np.float32), "int8 or int32"),
        (np.zeros(4, bool), "int8 or int32"),
        (np.zeros((4, 4), np.int8).T[:, 1:], "C-contiguous"),
        (np.zeros((4, 4), np.int8)[:, ::2], "C-contiguous"),
        (np.zeros(8, np.int32)[::-1], "C-contiguous"),
        (np.broadcast_to(np.zeros(4, np.int8), (3, 4)), "C-contiguous"),
        ([1, 2, 3], "an array of NumPy"),
        (None, "an array of NumPy"),
    ],
)
def test_refuses_what_it_cannot_view(array: object, says: str):
    with pytest.raises(ValueError, match=says):
        view(array)


def test_a_read_only_array_is_seen():
    array = np.arange(5, dtype=np.int32)
    array.flags.writeable = False
    assert view(array).tolist() == [0, 1, 2, 3, 4]
