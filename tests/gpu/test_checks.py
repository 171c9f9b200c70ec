"""The host's work around launches is done once, and nothing wrong passes its range checks."""

from __future__ import annotations

import gc

import mlx.core as mx
import numpy as np
import pytest

from eggroll import networks
from eggroll.engines.gpu import engine as checks
from eggroll.engines.gpu.engine import check_noise, check_tokens
from eggroll.engines.gpu.votes import vote_work
from eggroll.engines.metal import MetalEngine
from eggroll.spec.noise import Noise, Slices, slice_length
from eggroll.spec.program import Batch

PROGRAM = networks.egg(9, 6, 1)
PAIRS = 5


@pytest.fixture
def slices() -> Slices:
    shapes = [leaf.shape for leaf in PROGRAM.leaves]
    return Noise(shapes, seed=0, rank=1, shift=8, table_bits=10).slices(0, 0, PAIRS)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[mx.array]:
    """The arrays whose values were looked at."""
    seen, look = list[mx.array](), checks.as_unsigned
    monkeypatch.setattr(checks, "as_unsigned", lambda a: (seen.append(a), look(a))[1])
    return seen


def test_starts_are_looked_at_once(slices: Slices, looks: list[mx.array]):
    for _ in range(3):  # evaluation and votes, and the next update of the same epoch
        check_noise(PROGRAM, slices, 2 * PAIRS)
    assert len(looks) == 1
    check_noise(PROGRAM, slices._replace(starts=slices.starts + 0), 2 * PAIRS)
    assert len(looks) == 2, "another array is looked at"


def changed(slices: Slices, leaf: int, pair: int, start: int) -> Slices:
    starts = np.array(slices.starts)
    starts[leaf, pair] = start
    return slices._replace(starts=mx.array(starts))


@pytest.mark.parametrize("leaf", [0, 3, 12])
@pytest.mark.parametrize("pair", [0, PAIRS - 1])
def test_starts_end_with_the_table(slices: Slices, leaf: int, pair: int):
    last = slices.table.size - slice_length(PROGRAM.leaves[leaf].shape, 1)
    for start in (0, last):
        check_noise(PROGRAM, changed(slices, leaf, pair, start), 2 * PAIRS)
    for start in (-1, last + 1, -(1 << 31), (1 << 31) - 1):
        with pytest.raises(ValueError, match="beyond the table"):
            check_noise(PROGRAM, changed(slices, leaf, pair, start), 2 * PAIRS)


def test_what_was_right_elsewhere_is_looked_at_again(slices: Slices):
    """The same starts in a shorter table, for longer slices, and for another program."""
    check_noise(PROGRAM, slices, 2 * PAIRS)
    short = slices._replace(table=slices.table[: int(slices.starts.max())])
    longer = slices._replace(rank=100)
    for wrong in (short, longer):
        with pytest.raises(ValueError, match="beyond the table"):
            check_noise(PROGRAM, wrong, 2 * PAIRS)
    with pytest.raises(ValueError, match="beyond the table"):
        check_noise(networks.egg(900, 6, 1), slices, 2 * PAIRS)
    with pytest.raises(ValueError, match="starts are"):
        check_noise(PROGRAM, slices, 4 * PAIRS)


def test_checked_starts_are_not_kept(slices: Slices):
    """Nor is another array taken for one that lay at the same address."""
    other = slices._replace(starts=slices.starts + 0)
    before = len(checks._checked)
    check_noise(PROGRAM, other, 2 * PAIRS)
    assert len(checks._checked) == before + 1
    del other
    gc.collect()
    assert len(checks._checked) == before


@pytest.mark.parametrize("dtype", [mx.int32, mx.int64, mx.int16, mx.uint8])
def test_tokens_are_in_the_vocabulary(dtype: mx.Dtype):
    right, state = mx.array([[0, 8], [3, 4]], dtype), mx.zeros((2, 6), mx.int8)
    check_tokens(PROGRAM, Batch(right, right, state))
    check_tokens(PROGRAM, Batch(right, None, state))
    for number in (9, 127, *([] if dtype == mx.uint8 else [-1, -(1 << 15)])):
        wrong = mx.array([[0, 8], [number, 4]], dtype)
        with pytest.raises(ValueError, match=r"tokens must be in 0\.\.8"):
            check_tokens(PROGRAM, Batch(wrong, right, state))
        with pytest.raises(ValueError, match=r"targets must be in 0\.\.8"):
            check_tokens(PROGRAM, Batch(right, wrong, state))


@pytest.mark.parametrize("dtype", [mx.int8, mx.int32])
def test_no_number_below_0_is_a_byte(dtype: mx.Dtype):
    tokens, state = mx.array([[-1]], dtype), mx.zeros((1, 8), mx.int8)
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.255"):
        check_tokens(networks.egg(256, 8, 1), Batch(tokens, None, state))


def test_tokens_are_integers():
    tokens, state = mx.array([[0.0, -1.0]]), mx.zeros((1, 6), mx.int8)
    with pytest.raises(ValueError, match="float32 was given"):
        check_tokens(PROGRAM, Batch(tokens, None, state))


def test_lists_of_votes_are_made_once(slices: Slices):
    """A launch's list of tiles and elements, of which a large network has tens of thousands."""

    def launch(source, inputs, outputs, grid, threadgroup) -> list[mx.array]:
        return [mx.zeros(shape, dtype) for shape, dtype in outputs]

    vote_work.cache_clear()
    for _ in range(3):
        engine = MetalEngine(PROGRAM, launcher=launch, nax=False)
        for _ in range(2):
            engine.votes(mx.ones(PAIRS, mx.int8), slices, True)
    assert vote_work.cache_info().misses == 1
