"""Rows and outputs on the cpu engine, where it goes its own ways: shared sums and rows, parts."""

from __future__ import annotations

import gc
import weakref

import mlx.core as mx
import numpy as np
import pytest
from networks import Case, case_of
from networks_credit import credited_case, credited_of
from test_credit import CREDITED, same
from test_engines import ISAS
from test_programs import check, check_outputs, running

from eggroll.engines import ENGINES
from eggroll.engines.cpu import lookup_tables
from eggroll.networks import mlp, nnue
from eggroll.spec.program import Batch, Program

pytestmark = pytest.mark.skipif(not ISAS, reason="the cpu engine does not run here")


def with_features(case: Case, features: np.ndarray) -> Case:
    case.features = features.astype(np.int32)
    return case


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 68])
@pytest.mark.parametrize(("width", "active"), [(7, 3), (76, 37)])
def test_sums_shared_by_members_that_are_shown_the_same(
    isa: str, rank: int, group: int, width: int, active: int
):
    """Groups of members, whether or not they end where pairs and blocks do."""
    program = nnue(80, width, 3, active=active)
    case = case_of(program, np.random.default_rng(group), T=2, P=68, rank=rank, sigma_shift=1)
    shown = np.asarray(case.features)
    same = np.arange(68) // group * group
    with running(f"cpu:{isa}", program, 2) as engine:
        check(engine, with_features(case, shown[same]))


class Memory(np.ndarray):
    """Of a class of its own, as those of NumPy itself are not told of by weak references."""


def placed(values: np.ndarray, at: int) -> np.ndarray:
    """A copy that begins so many bytes behind a cache line."""
    memory = np.zeros(values.size + 128, np.int8)
    first = -memory.ctypes.data % 64 + at
    copy = memory[first : first + values.size].reshape(values.shape).view(Memory)
    copy[:] = values
    return copy


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("rows", "at", "kept"), [(4096, 0, 1), (4096, 4, 0), (4092, 0, 0), (4097, 0, 0)]
)
def test_large_tables_at_a_cache_line_are_read_where_they_lie(
    isa: str, rows: int, at: int, kept: int
):
    """From 64 KiB on, in whole lines; then they live as long as what was prepared of them."""
    case = case_of(nnue(rows, 16, 3, active=5), np.random.default_rng(rows), T=2, P=36)
    table = placed(case.weights["accumulator"], at)
    wrong, alive = placed(np.where(table == table[-1, -1], -128, table), at), weakref.ref(table)
    with running(f"cpu:{isa}", case.program, 2) as engine:
        leaves = case.leaves | {"accumulator": engine.array(table)}
        prepared = engine.prepare(leaves)
        del table, leaves
        gc.collect()
        assert (alive() is not None) == kept
        check_outputs(engine, prepared, case)
        del prepared
        gc.collect()
        assert alive() is None
        with pytest.raises(ValueError, match="a weight is -128"):
            engine.prepare(case.leaves | {"accumulator": engine.array(wrong)})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [63, 64, 65, 67, 127, 128, 200])
def test_wide_rows_in_and_out(isa: str, size: int):
    program = mlp(size, [], size + 1)
    case = case_of(program, np.random.default_rng(size), T=2, P=36, sigma_shift=1)
    with running(f"cpu:{isa}", program, 2) as engine:
        check(engine, case)


@pytest.mark.parametrize("estimator", ["token-votes", "token-credit"])
def test_votes_of_features_in_several_parts(estimator: str):
    """Many pairs are shared by threads, each with votes of its own until they are added up."""
    program, rng = nnue(30, 5, 3, active=3), np.random.default_rng(1)
    case = case_of(program, rng, T=1, P=8192, sigma_shift=1)
    credited = credited_of(case, rng, estimator)
    one, four = (credited.run(ENGINES["cpu"](program, threads)) for threads in (1, 4))
    assert np.any(np.array(one[2]["accumulator"]))
    for name, z in one[2].items():
        np.testing.assert_array_equal(np.array(four[2][name]), np.array(z), err_msg=name)


@pytest.mark.parametrize("isa", ISAS)
def test_a_program_without_leaves(isa: str):
    net = Program()
    net.output(net.relu(net.input(5)))
    inputs = mx.array([[[-128, -1, 0, 1, 127]]] * 3, mx.int8)
    tokens, state = mx.ones((3, 1), mx.int32), mx.zeros((3, 0), mx.int8)
    with running(f"cpu:{isa}", net) as engine:
        got, _ = engine.outputs(engine.prepare({}), None, Batch(tokens, None, state, inputs))
    assert got["output"].tolist() == [[[0, 0, 0, 1, 127]]] * 3


def test_tables_by_byte_are_those_of_the_program():
    net = Program()
    x = net.input(2)
    net.lookup(x, net.table("mine", [v // 2 for v in range(-127, 128)]))
    net.output(net.lookup(x, "tanh"))
    names, tables = lookup_tables(net)
    assert names == ["mine", "tanh"]
    assert (tables[0][0], tables[0][127]) == (0, 63)
    assert [tables[0][v % 256] for v in (1, 2, -1, -2, -127, -128)] == [0, 1, -1, -1, -64, -64]
    assert tables[1][5] == net.tables["tanh"][132]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("readers", [2, 3, 6, 38])
@pytest.mark.parametrize("estimator", CREDITED)
def test_members_may_share_rows_of_tokens(monkeypatch, isa, estimator, readers):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    credited = credited_case(
        readers, estimator, V=9, D=7, L=1, T=5, P=readers * (38 // readers), alike=False
    )
    case = credited.case
    for array in (case.tokens, case.targets):
        array[:] = np.repeat(array[::readers], readers, axis=0)
    engine = ENGINES["cpu"](case.program, 2)
    assert engine.shares
    batch = case.batch
    shared = batch._replace(tokens=batch.tokens[::readers], targets=batch.targets[::readers])
    got = engine.credit(
        engine.prepare(case.leaves), case.slices, shared, credited.credit_noise, credited.crediting
    )
    same(got, credited.oracle())
