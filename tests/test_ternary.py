"""Signs of pairs, and small numbers, packed into bytes."""

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


@pytest.mark.parametrize("count", [0, 1, 7, 8, 32, 1001])
def test_small_numbers_survive(count: int):
    values = np.random.default_rng(count).integers(-15, 16, count).astype(np.int8)
    data = ternary.pack_small(values)
    assert data.dtype == np.uint8
    found, size = ternary.unpack_small(np.append(data, np.uint8(77)), count)
    assert size == len(data)
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("value", range(-15, 16))
def test_a_small_number_takes_its_bits(value: int):
    data = ternary.pack_small(np.full(8, value, np.int8))
    assert len(data) == (2 * abs(value) - (value < 0)) // 4 + 3
    assert data[0] < 255
    assert ternary.unpack_small(data, 8)[0].tolist() == [value] * 8


def test_small_numbers_stand_as_ones_a_zero_and_two_bits():
    # u = 0, 3 and 4: 0 00, 0 11, 10 00, and six bits that are left
    assert ternary.pack_small(np.array([0, -2, 2], np.int8)).tolist() == [0b00001110, 0]


@pytest.mark.parametrize(
    "data", [[], [255, 255], [0b11111110], [0b00010000], [0b11111110, 0b11 << 6]]
)
def test_bytes_that_are_no_small_numbers_are_refused(data: list[int]):
    with pytest.raises(ValueError, match="small numbers"):
        ternary.unpack_small(np.array(data, np.uint8), 1)


@pytest.mark.parametrize("value", [-128, -16, 16])
def test_numbers_that_are_not_small_are_refused(value: int):
    with pytest.raises(ValueError, match="other than -15 to 15"):
        ternary.pack_small(np.array([value], np.int8))
