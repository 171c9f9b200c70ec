"""Draws of the extension equal NumPy's, and an update draws its noise once."""

from __future__ import annotations

import math
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eggroll import _extension, networks
from eggroll.engines import ENGINES
from eggroll.evolution.population import Population
from eggroll.spec import noise, rng
from eggroll.spec import rng as draws
from eggroll.spec.credit import SILENT, CreditNoise, Turns, crediting, draw_signs
from eggroll.spec.noise import Noise, Slices, slice_length
from eggroll.spec.program import Batch

FAR = [0, 1, (1 << 32) - 3, 1 << 32, (1 << 40) + 7, (1 << 63) - 2, (1 << 64) - 5]
STREAM = st.integers(0, (1 << 64) - 1)
ROOM = st.integers(0, draws.WHOLE) | st.sampled_from(
    [0, 1, (1 << 24) - 511, draws.WHOLE - 1, draws.WHOLE]
)


def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on as on a machine where the extension is not built."""
    monkeypatch.setattr(draws, "native_module", lambda: None)


@settings(max_examples=200, deadline=None)
@given(
    given=st.lists(st.tuples(STREAM, ROOM), min_size=1, max_size=4),
    first=st.sampled_from(FAR) | STREAM,
    shape=st.tuples(st.integers(0, 40), st.integers(1, 3)),
)
def test_the_extension_draws_what_numpy_does(given, first, shape):
    streams, rooms = (list(each) for each in zip(*given, strict=True))
    shape = (len(given), *shape)
    # Positions count modulo 2^64, which NumPy's range does not.
    index = np.arange(shape[1] * shape[2], dtype=np.uint64) + np.uint64(first)
    drawn = np.array(_extension.load().draws(streams, rooms, first, shape, 1))
    assert drawn.dtype == np.int32
    assert drawn.shape == shape
    for row, stream, room in zip(drawn.reshape(len(given), -1), streams, rooms, strict=True):
        want = (rng.words(stream, index) >> np.uint64(32)) * np.uint64(room) >> np.uint64(32)
        np.testing.assert_array_equal(row.view(np.uint32), want)
    if first + len(index) < 1 << 63:
        np.testing.assert_array_equal(drawn, draws.draws_numpy(streams, rooms, first, shape))


@pytest.mark.parametrize("threads", [1, 3, 0])
@pytest.mark.parametrize("streams", [1, 3])
def test_many_numbers_are_drawn_on_threads(threads: int, streams: int):
    """In parts, of which the last is shorter; a stream of room 0 among them."""
    keys, rooms = [7, 8, 9][:streams], [draws.WHOLE, 0, 1000][:streams]
    shape, first = (streams, (1 << 20) // streams + 77), (1 << 32) - 5
    drawn = np.array(draws.draws(keys, rooms, first, shape, threads))
    np.testing.assert_array_equal(drawn, draws.draws_numpy(keys, rooms, first, shape))
    bits = np.array(draws.draws(keys, rooms, first, shape, threads, unsigned=True))
    assert bits.dtype == np.uint32
    np.testing.assert_array_equal(bits.view(np.int32), drawn)


def test_parts_of_a_draw_are_parts_of_the_whole():
    """Whatever the cut, before position 2^32, across it and after, up to the last."""
    streams, rooms, count = [3, 1 << 63], [12345, draws.WHOLE], 1000
    for first in FAR[:-1]:
        whole = np.array(draws.draws(streams, rooms, first, (2, count)))
        for at, size in ((0, 1), (1, 17), (499, 501), (999, 1)):
            part = np.array(draws.draws(streams, rooms, first + at, (2, size)))
            np.testing.assert_array_equal(part, whole[:, at : at + size])


@pytest.mark.parametrize(
    "given",
    [
        ([1, 2], [3], 0, (2, 4)),
        ([1, 2], [3, 3], 0, (3, 5)),
        ([1], [draws.WHOLE + 1], 0, (1, 4)),
        ([1], [3], 0, (1, -4)),
        ([], [], 0, (1, 4)),
        ([1], [1], 0, (1 << 30, 1 << 30, 1 << 30)),
    ],
    ids=["rooms", "shares", "room", "negative", "no stream", "size"],
)
def test_the_extension_refuses_what_does_not_fit(given):
    with pytest.raises(ValueError, match="draws: "):
        _extension.load().draws(*given, 1)


def drawn_noise() -> tuple[Slices, Slices, CreditNoise, np.ndarray]:
    """Of the first pairs and of the last, the signs of some, and those of a caller's rows."""
    program = networks.egg(9, 6, 1)
    shared = Noise(
        [leaf.shape for leaf in program.leaves],
        seed=5, rank=2, shift=8, table_bits=12,
    )  # fmt: skip
    by_leaf = crediting(program, nodes=True, sigma_shift=2, discount=0, seq_len=70)
    signs = draw_signs(by_leaf, seed=1, step=2, first_pair=31, pairs=7, seq_len=70)
    turns = Turns(by_leaf, seed=1, step=2, pairs=7)
    last = shared.slices(3, (1 << 31) - 9, 9)
    return shared.slices(3, 0, 50), last, signs, turns.window(20, 70)


def test_noise_is_the_same_without_the_extension(monkeypatch):
    got = drawn_noise()
    by_numpy(monkeypatch)
    want = drawn_noise()
    for a, b in zip(got[:2], want[:2], strict=True):
        np.testing.assert_array_equal(np.array(a.starts), np.array(b.starts))
    for a, b in zip(got[2], want[2], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.array(a), np.array(b))
    np.testing.assert_array_equal(got[3], want[3])


def test_noise_is_drawn_by_the_extension(monkeypatch):
    """NumPy's draws, which take several times as long, are for machines without it."""
    monkeypatch.setattr(draws, "draws_numpy", lambda *given: pytest.fail("drawn by NumPy"))
    drawn_noise()


def test_signs_are_the_words_of_their_keys():
    """Of pairs 31 .. 37 at 70 tokens, and of rows whose number is not known beforehand."""
    by_leaf = crediting(
        networks.egg(9, 6, 1), nodes=True, sigma_shift=2, discount=0, seq_len=70
    )  # fmt: skip
    owners = [i for i, shift in enumerate(by_leaf.shifts) if shift != SILENT]
    _, _, (signs, drawn), _ = drawn_noise()
    turns = Turns(by_leaf, seed=1, step=2, pairs=7)

    def upper(first: int, shape: tuple[int, ...], *words: int) -> np.ndarray:
        found = rng.counters(rng.key(1, *words), first, math.prod(shape)) >> np.uint64(32)
        return found.reshape(shape)

    for leaf in range(len(by_leaf.kinds)):
        want = upper(31 * 3, (7, 3), rng.SIGNS, 2, leaf) if leaf in owners else 0
        np.testing.assert_array_equal(np.array(signs)[leaf].view(np.uint32), want)
        for word, block in enumerate(((), (1,), (2,))):
            got = turns.window(32 * word, 32)[leaf].view(np.uint32)
            want = upper(0, (7, 1), rng.SIGNS, 2, leaf, *block) if leaf in owners else 0
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.array(drawn), upper(31 * 70, (7, 70), rng.DRAWS, 2))


class Counted:
    """The draws of noise, counted by their first pair."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_pair = Counter[int]()
        monkeypatch.setattr(noise, "draws", self)

    def __call__(self, streams, rooms, first, shape, threads) -> mx.array:
        self.by_pair[first] += 1
        return draws.draws(streams, rooms, first, shape, threads)


def run(population: Population, step: int) -> dict[str, np.ndarray]:
    """An update: its votes."""
    program = population.engine.program
    weights = networks.initial_weights(program, 0)
    random = np.random.default_rng(0)
    tokens, targets = random.integers(0, 9, (2, population.members // 2, 3)).astype(np.int32)
    population.evaluate(weights, step, Batch(tokens, targets, population.initial_state()))
    fitness = mx.array(random.integers(-3, 4, population.members // 2).astype(np.int8))
    return {k: np.array(z) for k, z in population.votes(fitness, step).items()}


def population(chunk: int, reuse: int = 1) -> Population:
    program = networks.egg(9, 6, 1)
    shared = Noise(
        [leaf.shape for leaf in program.leaves],
        seed=0, rank=1, shift=8, reuse=reuse, table_bits=10,
    )  # fmt: skip
    return Population(ENGINES["cpu"](program), shared, members=40, group=2, chunk=chunk)


def test_an_update_draws_the_noise_of_every_chunk_once(monkeypatch):
    """Evaluation and both bits of the votes of four chunks take the same slices."""
    counted = Counted(monkeypatch)
    run(population(12), 0)
    assert counted.by_pair == {0: 1, 6: 1, 12: 1, 18: 1}
    frozen = population(12, reuse=3)
    for step in range(3, 6):
        run(frozen, step)
    assert set(counted.by_pair.values()) == {2}, "an epoch draws once"


def test_slices_that_are_kept_are_bounded(monkeypatch):
    """With room for two chunks of four, two are drawn again; no vote is another."""
    want, counted = run(population(12), 0), Counted(monkeypatch)
    part = population(12)
    leaves = len(part.noise.shapes)
    monkeypatch.setattr(noise, "KEPT", 2 * 4 * leaves * 6)
    got = run(part, 0)
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert sum(kept.starts.nbytes for kept in part.noise._kept.values()) <= noise.KEPT
    assert counted.by_pair[0] == 1, "those that are asked for next are kept"
    assert counted.by_pair[18] > 1
    monkeypatch.setattr(noise, "KEPT", 1)  # less than any chunk takes
    again = population(12)
    assert all(np.array_equal(run(again, 0)[name], want[name]) for name in want)
    assert len(again.noise._kept) == 1


def test_drawn_slices_lie_in_the_table():
    shared = population(12).noise
    starts = np.array(shared.slices(0, (1 << 31) - 500, 500).starts)
    lengths = [slice_length(shape, 1) for shape in shared.shapes]
    assert (starts >= 0).all()
    assert (starts.max(axis=1) + lengths <= shared.table.size).all()
