"""The native entry points refuse what does not fit, in one sentence and before it is touched."""

from __future__ import annotations

import copy
import ctypes
import pickle
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

from eggroll import _extension
from eggroll.spec import fixed_point as fx

native = _extension.load()
WIDTH, VOCABULARY, P, T = 8, 20, 4, 3
HUGE = [2**23, 2**24 - 1, 2**31 - 1, -1, -(2**31)]


def declared() -> dict[str, Any]:
    """embed, a lookup, a state and a score: fields to be spoilt."""
    ops = [
        ("embed", 0, [], 0, 0, []),
        ("lookup", 2, [0], -1, 0, []),
        ("linear", 3, [2], 1, 0, []),
        ("add", 1, [1, 3], -1, 0, []),
        ("score", 0, [1], 2, 0, []),
    ]
    return {
        "stages": [(ops, [WIDTH] * 4, 0)],
        "leaves": [(VOCABULARY, WIDTH), (WIDTH, WIDTH), (VOCABULARY, WIDTH)],
        "width": WIDTH,
        "vocabulary": VOCABULARY,
        "state_size": WIDTH,
        "tables": [[v % 100 for v in range(256)]],
        "exp2_mantissas": fx.exp2_mantissas().tolist(),
        "log2_breakpoints": fx.log2_breakpoints(4).tolist(),
        "inputs": 0,
        "indices": 0,
        "outputs": [],
    }


def spoilt(op: int, field: int, value: Any) -> dict[str, Any]:
    given = declared()
    ops, registers, state = given["stages"][0]
    ops[op] = (*ops[op][:field], value, *ops[op][field + 1 :])
    return {**given, "stages": [(ops, registers, state)]}


PROGRAMS = {
    **{f"table {n}": spoilt(1, 4, n) for n in HUGE},
    **{f"out {n}": spoilt(2, 1, n) for n in HUGE},
    **{f"input {n}": spoilt(2, 2, [n]) for n in HUGE},
    **{f"leaf {n}": spoilt(2, 3, n) for n in HUGE},
    "inputs missing": spoilt(3, 2, [1]),
    "inputs too many": spoilt(2, 2, [2, 2]),
    "numbers": spoilt(2, 5, [1]),
    "no such operation": spoilt(2, 0, "nothing"),
    **{f"state {n}": {**declared(), "stages": [(*declared()["stages"][0][:2], n)]} for n in HUGE},
    **{f"state_size {n}": {**declared(), "state_size": n} for n in HUGE},
    **{f"width {n}": {**declared(), "width": n} for n in HUGE},
    **{f"vocabulary {n}": {**declared(), "vocabulary": n} for n in HUGE},
    **{f"inputs {n}": {**declared(), "inputs": n} for n in HUGE},
    **{f"indices {n}": {**declared(), "indices": n} for n in HUGE},
    "a leaf that nothing uses": {**declared(), "leaves": [*declared()["leaves"], (4, 4)]},
    "a leaf of many rows": {**declared(), "leaves": [(2**31 - 1, 8), (8, 8), (20, 8)]},
    "a table's entry": {**declared(), "tables": [[128] * 256]},
    "a short table": {**declared(), "tables": [[0] * 255]},
    "no mantissa": {**declared(), "exp2_mantissas": [0] * 16},
    "breakpoints that fall": {
        **declared(),
        "log2_breakpoints": fx.log2_breakpoints(4).tolist()[::-1],
    },
    "an output that nothing gives": {**declared(), "outputs": [(8, False)]},
    "no stages": {**declared(), "stages": []},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_a_wrong_field_is_refused(name: str):
    with pytest.raises(ValueError, match=r"^[^\n]{10,200}$"):
        native.Program(**PROGRAMS[name])


def given(program: Any) -> dict[str, Any]:
    """Arguments of `evaluate` that fit."""
    leaves = [mx.ones(shape, mx.int8) for shape in declared()["leaves"]]
    table, starts = mx.ones(100, mx.int8), mx.zeros((3, P // 2), mx.int32)
    tokens = mx.ones((P, T), mx.int32)
    return {
        "program": program,
        "packed": program.pack(leaves),
        "noise": native.Noise(table, starts, 1, 8),
        "tokens": tokens,
        "targets": tokens,
        "state": mx.zeros((P, WIDTH), mx.int8),
        "rows": (None, None),
        "threads": 1,
        "block_tokens": 4,
    }


def noise(starts: mx.array | None, table: int = 100, rank: int = 1, shift: int = 8) -> Any:
    return native.Noise(mx.ones(table, mx.int8), starts, rank, shift)


START = mx.zeros((3, P // 2), mx.int32)
ARGUMENTS = {
    "tokens beyond": ("tokens", lambda a: mx.full((P, T), VOCABULARY, mx.int32)),
    "targets below": ("targets", lambda a: mx.full((P, T), -1, mx.int32)),
    "targets of another shape": ("targets", lambda a: mx.ones((P, T + 1), mx.int32)),
    "tokens of int64": ("tokens", lambda a: mx.ones((P, T), mx.int64)),
    "a state of -128": ("state", lambda a: mx.full((P, WIDTH), -128, mx.int8)),
    "a short state": ("state", lambda a: mx.zeros((P, WIDTH - 1), mx.int8)),
    "too many threads": ("threads", lambda a: 1025),
    "threads below none": ("threads", lambda a: -1),
    "no block": ("block_tokens", lambda a: 0),
    "rank 65": ("noise", lambda a: noise(START, 10000, rank=65)),
    "rank 0": ("noise", lambda a: noise(START, rank=0)),
    "rank -5 without noise": ("noise", lambda a: noise(None, rank=-5)),
    "shift 32": ("noise", lambda a: noise(START, shift=32)),
    "starts for other pairs": ("noise", lambda a: noise(mx.zeros((3, P), mx.int32))),
    "a start below": ("noise", lambda a: noise(START - 1)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_does_not_fit_is_refused(name: str):
    arguments = given(native.Program(**declared()))
    mx.eval(native.evaluate(**arguments))
    field, change = ARGUMENTS[name]
    arguments[field] = change(arguments)
    with pytest.raises(ValueError, match=r"^[^\n]{10,300}$"):
        native.evaluate(**arguments)


def test_packed_weights_are_opaque():
    """Kernels trust every byte of them, so Python can neither read, change nor make them."""
    arguments = given(native.Program(**declared()))
    packed = arguments["packed"]
    for look in (memoryview, bytes, copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            look(packed)
    with pytest.raises(TypeError):
        native.Packed()
    assert [name for name in dir(packed) if not name.startswith("__")] == []
    for other in (mx.zeros(4096, mx.int8), np.zeros(4096, np.int8), b"", None):
        with pytest.raises(TypeError):
            native.evaluate(**{**arguments, "packed": other})


def test_packed_weights_are_of_one_program():
    """Also of one that is declared alike, or that took the place of one that is gone."""
    arguments = given(native.Program(**declared()))
    for _ in range(20):
        other = given(native.Program(**declared()))["packed"]
        with pytest.raises(ValueError, match="not packed for this program and"):
            native.evaluate(**{**arguments, "packed": other})


@pytest.mark.parametrize("rows", [P - 1, 2 * P, 0])
def test_rows_of_tokens_must_divide_the_members(rows: int):
    arguments = given(native.Program(**declared()))
    read = mx.ones((rows, T), mx.int32)
    with pytest.raises(ValueError, match=rf"{rows} rows .* {P} members|at least one"):
        native.evaluate(**{**arguments, "tokens": read, "targets": read})


def test_a_noise_slice_may_end_with_the_table_and_not_one_past_it():
    arguments = given(native.Program(**declared()))
    for leaf, (rows, cols) in enumerate(declared()["leaves"]):
        last = 100 - rows - cols
        starts = np.zeros((3, P // 2), np.int32)
        starts[leaf, -1] = last
        mx.eval(native.evaluate(**{**arguments, "noise": noise(mx.array(starts))}))
        starts[leaf, -1] = last + 1
        with pytest.raises(ValueError, match="a noise slice reaches beyond the table"):
            native.evaluate(**{**arguments, "noise": noise(mx.array(starts))})


def test_a_vectors_slice_is_two_bytes_a_value():
    spec = spoilt(1, 0, "norm")
    spec["stages"][0][0][1] = ("norm", 2, [0], 3, 0, [])
    spec["leaves"] = [*spec["leaves"], (WIDTH, 0)]
    program = native.Program(**spec)
    for start, fits in ((100 - 2 * WIDTH, True), (100 - 2 * WIDTH + 1, False)):
        starts = mx.array(np.full((4, 1), [[0], [0], [0], [start]], np.int32))
        fitness, table = mx.ones(1, mx.int8), mx.ones(100, mx.int8)
        if fits:
            mx.eval(native.votes(program, fitness, table, starts, 1, False, 1))
            continue
        with pytest.raises(ValueError, match="a noise slice reaches beyond the table"):
            native.votes(program, fitness, table, starts, 1, False, 1)


def test_more_logits_than_an_array_holds_are_refused_before_memory_is_asked_for():
    spec = declared()
    spec["leaves"][0] = spec["leaves"][2] = (1 << 16, WIDTH)
    program = native.Program(**{**spec, "vocabulary": 1 << 16})
    packed = program.pack([mx.zeros(shape, mx.int8) for shape in spec["leaves"]])
    tokens = mx.zeros((1 << 12, 8), mx.int32)
    with pytest.raises(ValueError, match=r"\[4096, 8, 65536\] is too large a result"):
        native.logits(program, packed, tokens, mx.zeros((1 << 12, WIDTH), mx.int8), (None, None),
                      1, 8)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "threads"), [([2**31 - 1, 2**31 - 1], 1), ([2**31 - 1, 2], 1), ([2], -1)]
)
def test_draws_beyond_an_array_are_refused(shape: list[int], threads: int):
    with pytest.raises(ValueError, match=r"fewer than 2\^31|threads is -1"):
        native.draws([1], [5], 0, shape, threads)


def test_no_world_is_refused():
    with pytest.raises(ValueError, match="no world of this ABI"):
        native.Worlds(0, 0, np.zeros(4, np.uint64), 1)
    lying = np.zeros(16, np.int32)
    lying[:3] = 1, 3, 2  # of this ABI, with no functions
    with pytest.raises(ValueError, match="a world lacks one of its functions"):
        native.Worlds(lying.ctypes.data, 0, np.zeros(4, np.uint64), 1)


def test_leaves_of_adam_have_one_size():
    ints, bytes_ = mx.zeros(5, mx.int32), mx.zeros(5, mx.int8)
    leaf = [ints, bytes_, ints, ints, ints, None, 0]
    native.adam([tuple(leaf)], 1, 1)
    for i in range(5):
        short = [a[:4] if j == i else a for j, a in enumerate(leaf)]
        with pytest.raises(ValueError, match="adam: the arrays of a leaf have its size"):
            native.adam([tuple(short)], 1, 1)
    for factor, decay in ((-1, 0), (2**40, 0), (1, -1), (1, 2**25)):
        with pytest.raises(ValueError, match="adam: "):
            native.adam([(*leaf[:6], decay)], factor, 1)


def test_leaves_of_sign_have_one_size():
    votes, weights = mx.zeros(5, mx.int32), mx.zeros(5, mx.int8)
    assert native.sign([(votes, weights, 1, 0)], 1)[1] == 5
    for short in ((votes[:4], weights), (votes, weights[:4])):
        with pytest.raises(ValueError, match="sign: the arrays of a leaf have its size"):
            native.sign([(*short, 1, 1)], 1)
    for up, down in ((0, 1), (-1, 1), (1, -1), (2**63 - 1, 1), (1, 2**63 - 1)):
        with pytest.raises(ValueError, match="sign: "):
            native.sign([(votes, weights, up, down)], 1)


@pytest.mark.parametrize("isa", native.usable_isas())
@pytest.mark.parametrize("n", [1, 63, 64, 8191, 8192, 300_001])
def test_sign_at_the_ends_of_its_range(isa: str, n: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    rng, ends = np.random.default_rng(n), (-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 1)
    votes = rng.choice(np.array(ends, np.int32), n)
    weights = rng.choice(np.array((-127, -126, 0, 126, 127), np.int8), n)
    for up, down in (
        (1, 0),
        (1, 1),
        (2, 2),
        (2**31 - 1, 2**31 - 1),
        (2**31, 2**31),
        (2**40, 2**31 + 1),
    ):
        z, w = votes.astype(np.int64), weights.astype(np.int64)
        want = (w + (z >= up) - (z <= -down)).clip(-127, 127)
        (made,), moved = native.sign([(mx.array(votes), mx.array(weights), up, down)], 2)
        np.testing.assert_array_equal(np.array(made), want)
        assert moved == np.count_nonzero(want != w)


def whitened_leaf(**changed: Any) -> tuple[Any, ...]:
    """A leaf [2, 3] as `whitened` takes it, with a whitening matrix."""
    zeros = np.zeros((2, 3), np.int32)
    given = {
        "votes": zeros, "weights": zeros.astype(np.int8), "fine": zeros, "feedback": zeros,
        "matrices": np.zeros((1, 3, 3), np.int32), "factor": 1, "floor": 1,
    }  # fmt: skip
    values = {**given, **changed}.values()
    return tuple([mx.array(a) if isinstance(a, np.ndarray) else a for a in values])


WHITENED: dict[str, dict[str, Any]] = {
    "fewer weights": {"weights": np.zeros(5, np.int8)},
    "fewer fine copies": {"fine": np.zeros((1, 3), np.int32)},
    "more feedback": {"feedback": np.zeros((3, 3), np.int32)},
    "no votes": dict.fromkeys(("votes", "fine", "feedback"), np.zeros((0, 3), np.int32))
    | {"weights": np.zeros((0, 3), np.int8)},
    "a flat matrix": {"matrices": np.zeros((3, 3), np.int32)},
    "a matrix too many": {"matrices": np.zeros((2, 3, 3), np.int32)},
    "no matrix": {"matrices": np.zeros((0, 3, 3), np.int32)},
    "an oblong matrix": {"matrices": np.zeros((1, 2, 3), np.int32)},
    "an empty matrix": {"matrices": np.zeros((1, 0, 0), np.int32)},
    "a wide matrix": {"matrices": np.zeros((1, 65, 65), np.int32)},
    "numbers": dict.fromkeys(("votes", "fine", "feedback"), np.array(0, np.int32))
    | {"weights": np.array(0, np.int8)},
    "numbers without a matrix": dict.fromkeys(("votes", "fine"), np.array(0, np.int32))
    | {"weights": np.array(0, np.int8), "feedback": None, "matrices": None},
    "a negative factor": {"factor": -1},
    "a large factor": {"factor": 2**30 + 1},
    "no factor": {"factor": float("nan")},
    "no floor": {"floor": 0},
    "a high floor": {"floor": 2**40},
}


@pytest.mark.parametrize("what", WHITENED)
def test_rule_whitened_refuses_what_does_not_fit(what: str):
    native.whitened([whitened_leaf()], True, 1)
    with pytest.raises(ValueError, match="whitened: "):
        native.whitened([whitened_leaf(), whitened_leaf(**WHITENED[what])], True, 1)


class GivenWorld(ctypes.Structure):
    """eggroll_world of eggroll_world.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in ("abi", "inputs", "outputs")),
        ("bytes", ctypes.c_int64),
        ("begin", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)),
        *((name, ctypes.CFUNCTYPE(None)) for name in ("observe", "act", "value")),
    ]


@pytest.mark.parametrize("size", [1, 64, 65, 128, 129])
def test_a_member_has_memory_of_its_own(size: int):
    """At multiples of 64, as worlds are promised."""
    places = list[int]()
    types = dict(GivenWorld._fields_)
    begin = types["begin"](lambda shared, mine, key: places.append(mine))
    never = types["act"](lambda: None)
    world = GivenWorld(1, 1, 1, size, begin, never, never, never)
    native.Worlds(ctypes.addressof(world), 0, np.zeros(5, np.uint64), 1)
    assert len(places) == 5
    assert not any(place % 64 for place in places)
    assert min(np.diff(places)) >= size
