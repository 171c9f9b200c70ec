"""Signs of pairs packed into bytes."""

import numpy as np
import pytest

from eggroll import files as ternary


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 1001])
def test_signs_survive(count: int):
    signs = np.random.default_rng(count).integers(-1, 2, count).astype(np.int8)
    data = ternary.pack(signs)
    assert data.dtype == np.uint8
    assert len(data) == -(-count // 5)
    np.testing.assert_array_equal(ternary.unpack(data, count), signs)


def test_the_first_sign_is_the_lowest_digit():
    # (1 + 1) + 3 (0 + 1) + 9 (-1 + 1) + 27 + 81, the last two digits of signs that are not there
    assert ternary.pack(np.array([1, 0, -1], np.int8)).tolist() == [2 + 3 + 0 + 27 + 81]


@pytest.mark.parametrize(
    ("data", "count", "what"),
    [
        ([113], 6, "2 bytes, not 1"),
        ([243], 5, "243"),
        ([0], 4, "beyond the last"),
    ],
)
def test_bytes_that_are_no_signs_are_refused(data: list[int], count: int, what: str):
    with pytest.raises(ValueError, match=what):
        ternary.unpack(np.array(data, np.uint8), count)


@pytest.mark.parametrize("sign", [-128, 2])
def test_other_numbers_are_refused(sign: int):
    with pytest.raises(ValueError, match="other than"):
        ternary.pack(np.array([sign], np.int8))
