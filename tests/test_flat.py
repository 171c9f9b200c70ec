"""Leaves that are parts of one flat array."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from eggroll.spec.flat import FlatLeaves, added, flat_order, whole_of

SHAPES = {"bias": (3,), "a": (2, 4), "gain": (1,), "b": (3, 2)}


def flat() -> FlatLeaves:
    return FlatLeaves(mx.arange(18, dtype=mx.int32), SHAPES)


def test_matrices_come_first_and_names_keep_their_order():
    leaves = flat()
    assert flat_order(SHAPES) == ["a", "b", "bias", "gain"]
    assert list(leaves) == list(SHAPES)
    assert {name: leaf.shape for name, leaf in leaves.items()} == SHAPES
    values = {name: np.array(leaf).reshape(-1).tolist() for name, leaf in leaves.items()}
    numbers = list(range(18))
    expected = {"a": numbers[:8], "b": numbers[8:14], "bias": numbers[14:17], "gain": [17]}
    assert values == expected
    mx.eval(leaves)  # as any dict of arrays


@pytest.mark.parametrize("leaves", [flat(), dict(flat())], ids=["flat", "apart"])
def test_leaves_as_one_array(leaves: dict[str, mx.array]):
    assert np.array(whole_of(leaves, SHAPES)).tolist() == list(range(18))


@pytest.mark.parametrize("apart", [False, True])
def test_leaves_in_another_order_go_by_their_names(apart: bool):
    shapes = {name: SHAPES[name] for name in sorted(SHAPES, reverse=True)}
    leaves = flat()
    whole = whole_of(dict(leaves) if apart else leaves, shapes)
    found = FlatLeaves(whole, shapes)
    assert list(found) != list(leaves)
    for name in SHAPES:
        np.testing.assert_array_equal(np.array(found[name]), np.array(leaves[name]))


@pytest.mark.parametrize("name", SHAPES)
def test_a_leaf_that_was_replaced_is_in_the_whole(name: str):
    leaves = flat()
    leaves[name] = -leaves[name]
    assert leaves.whole is None
    expected = FlatLeaves(whole_of(leaves, SHAPES), SHAPES)
    for other in SHAPES:
        np.testing.assert_array_equal(np.array(expected[other]), np.array(leaves[other]))


def test_a_leaf_more_or_less_is_noticed():
    leaves = flat()
    leaves["more"] = mx.zeros(1, mx.int32)
    assert leaves.whole is None
    leaves = flat()
    del leaves["gain"]
    assert leaves.whole is None
    fewer = {name: SHAPES[name] for name in leaves}
    assert np.array(whole_of(leaves, fewer)).tolist() == list(range(17))


def test_votes_of_chunks_are_added():
    one, other = flat(), flat()
    assert added({}, one) is one
    for total in (added(one, other), added(dict(one), other), added(one, dict(other))):
        assert list(total) == list(SHAPES)
        np.testing.assert_array_equal(np.array(whole_of(total, SHAPES)), 2 * np.arange(18))
