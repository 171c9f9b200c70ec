"""Cases for replay.cpp: training runs and token-credited updates, computed by the oracle alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import networks_random
import numpy as np
import oracle
import oracle_backward
from networks import Case, case_of, random_case
from networks_backward import Carried, carried_of, many_lists
from networks_credit import Credited, credited_case, credited_of

from eggroll.engines.cpu import lookup_tables
from eggroll.evolution.rules import vote_threshold
from eggroll.networks import mlp, nnue
from eggroll.spec import fixed_point as fx
from eggroll.spec.program import Program

UPDATES, Z_Q4 = 3, 8

SHAPES = [
    {"V": 20, "D": 16, "L": 1, "T": 3, "P": 34},
    {"V": 33, "D": 13, "L": 2, "T": 2, "P": 6, "rank": 3, "gates": "table"},
    {"V": 300, "D": 48, "L": 1, "T": 2, "P": 4, "sigma_shift": 2, "extreme": True},
    {"V": 7, "D": 130, "L": 1, "T": 1, "P": 4, "extreme": True},
    {"V": 5, "D": 1, "L": 0, "T": 1, "P": 2, "rank": 2},
    {"V": 300, "D": 12, "L": 1, "T": 2, "P": 6, "sigma_shift": 2, "score_bits": 8},
    {"V": 11, "D": 256, "L": 1, "T": 1, "P": 4},
]

CREDITED = [
    ("token-credit", {"V": 21, "D": 10, "L": 2, "T": 5, "P": 34, "sigma_shift": 2}),
    ("token-credit", {"V": 9, "D": 33, "L": 1, "T": 35, "P": 2, "gates": "table"}),
    ("token-credit", {"V": 300, "D": 5, "L": 0, "T": 2, "P": 4, "sigma_shift": 0, "extreme": True}),
    ("token-credit", {"V": 16, "D": 16, "L": 1, "T": 3, "P": 6, "sigma_shift": 0, "extreme": True}),
    ("token-votes", {"V": 18, "D": 18, "L": 1, "T": 4, "P": 36, "discount": 15}),
    ("token-credit", {"V": 290, "D": 9, "L": 1, "T": 4, "P": 6, "score_bits": 8}),
    ("token-votes", {"V": 13, "D": 6, "L": 1, "T": 5, "P": 4, "score_bits": 8}),
    ("token-credit", {"V": 13, "D": 9, "L": 1, "T": 4, "P": 40, "sigma_shift": 0, "group": 8}),
    ("token-credit", {"V": 7, "D": 256, "L": 1, "T": 2, "P": 4, "sigma_shift": 2}),
]


# Programs of any input and output; members of a pair are shown the same.
ROWS = [
    (estimator, program, shape)
    for estimator in ("token-credit", "token-votes")
    for program, shape in (
        (networks_random.every_operation, {"T": 4, "P": 34, "sigma_shift": 2}),
        (lambda: mlp(27, [70, 9], 130), {"T": 3, "P": 6, "sigma_shift": 1}),
        (lambda: nnue(120, 33, 10, active=5), {"T": 6, "P": 36, "sigma_shift": 3}),
        (lambda: nnue(80, 64, 4, active=3, lists=1), {"T": 33, "P": 4, "extreme": True}),
    )
]


# Credit carried back: of EGG, and of every operation.
CARRIED = [
    ("feedback", {"V": 21, "D": 10, "L": 2, "T": 5, "P": 34}, None),
    ("local", {"V": 300, "D": 33, "L": 1, "T": 35, "P": 4, "gates": "table"}, 2),
    ("feedback", {"V": 9, "D": 16, "L": 1, "T": 3, "P": 6, "extreme": True}, 0),
    ("feedback", {"V": 7, "D": 256, "L": 1, "T": 2, "P": 4}, None),
]


def carried_cases() -> Iterator[Carried]:
    for i, (estimator, shape, scale) in enumerate(CARRIED):
        case = random_case(300 + i, **shape)
        yield carried_of(case, estimator, scale=scale, seed=i)
    for i, estimator in enumerate(("local", "feedback")):
        case = case_of(networks_random.every_operation(), np.random.default_rng(i), T=4, P=34)
        yield carried_of(case, estimator, seed=i)
    yield from map(many_lists, (1, 2))


def credited_rows(
    seed: int, estimator: str, program: Callable[[], Program], shape: dict
) -> Credited:
    rng = np.random.default_rng(seed)
    return credited_of(case_of(program(), rng, **shape), rng, estimator, valued=seed % 2 == 0)


def put(file: BinaryIO, values: object, dtype: str = "<i4") -> None:
    array = np.ascontiguousarray(values, dtype).reshape(-1)
    file.write(np.int64(array.size).astype("<i8").tobytes() + array.tobytes())


def put_program(file: BinaryIO, case: Case) -> None:
    program = case.program
    names, tables = lookup_tables(program)
    put(file, len(program.stages))
    for stage in program.stages:
        put(file, len(stage.ops))
        for op in stage.ops:
            table = names.index(op.table) if op.table else 0
            put(file, np.frombuffer(op.kind.encode("ascii"), np.uint8), "u1")
            put(file, [op.out, op.leaf, table, *op.inputs])
            put(file, op.numbers)
        put(file, stage.registers)
        put(file, stage.state)
    put(file, len(program.leaves))
    for leaf in program.leaves:
        put(file, (*leaf.shape, 0)[:2])
    put(file, len(program.outputs))
    for output in program.outputs:
        put(file, [output.size, output.wide])
    sizes = program.width, program.vocabulary, program.state_size
    put(file, [*sizes, program.inputs, program.indices])
    put(file, len(tables))
    for table in tables:
        put(file, table)
    put(file, fx.exp2_mantissas(), "<u4")
    put(file, fx.log2_breakpoints(program.score_bits), "<u8")


def put_case(file: BinaryIO, shape: dict, seed: int) -> None:
    updates = [random_case(seed + i, **shape) for i in range(UPDATES)]
    case, pairs, rank = updates[0], shape["P"] // 2, shape.get("rank", 1)
    put_program(file, case)
    thresholds = [vote_threshold(Z_Q4, pairs, r, True) for r in (rank, 1)]
    shift = oracle.Q + case.sigma_shift
    put(file, [rank, shift, shape["P"], shape["T"], *thresholds])
    put(file, case.table, "i1")
    put(file, case.state, "i1")
    for w in case.weights.values():
        put(file, w, "i1")
    put(file, UPDATES)
    first, weights, state = None, case.weights, case.state
    for update in updates:
        put(file, update.starts)
        put(file, update.tokens)
        put(file, update.targets)
        update.table, update.weights, update.state = case.table, weights, state
        scores, state, _ = update.oracle()
        votes = oracle.votes(weights, update.noise(), oracle.pair_fitness(scores))
        weights = oracle.update(weights, votes, Z_Q4, pairs, rank)
        first = first or (scores, state, votes)
    assert first
    put(file, first[0], "<i2")
    put(file, first[1], "i1")
    for z in first[2].values():
        put(file, z)
    for w in weights.values():
        put(file, w, "i1")


def put_credited(file: BinaryIO, credited: Credited) -> None:
    case, crediting = credited.case, credited.crediting
    put_program(file, case)
    put(file, [oracle.Q + case.sigma_shift, *case.tokens.shape])
    shifts = [crediting.credit_shift, crediting.unit_shift]
    put(file, [2 if crediting.nodes else 1, *shifts, crediting.group])
    for numbers in (crediting.shifts, crediting.kinds, crediting.owners, crediting.discounts):
        put(file, numbers)
    for array in (case.table, case.state, *case.weights.values()):
        put(file, array, "i1")
    for array in (case.starts, credited.signs, case.tokens, case.targets):
        put(file, array)
    put(file, credited.draws, "<u4")
    for array, dtype in zip((*case.rows, credited.values), ("i1", "<i4", "<i4"), strict=True):
        put(file, () if array is None else array, dtype)
    outputs, _ = credited.oracle_outputs()
    for output in case.program.outputs:
        array = np.ascontiguousarray(outputs[output.name], "<i4" if output.wide else "i1")
        put(file, np.frombuffer(array.tobytes(), np.uint8), "u1")
    scores, state, Z = credited.oracle_of_any()
    put(file, scores, "<i2")
    put(file, state, "i1")
    for z in Z.values():
        put(file, z)


def put_carried(file: BinaryIO, carried: Carried) -> None:
    case, program = carried.case, carried.case.program
    put_program(file, case)
    put(file, case.tokens.shape)
    put(file, case.state, "i1")
    for w in case.weights.values():
        put(file, w, "i1")
    put(file, case.tokens)
    put(file, case.targets)
    put(file, carried.words, "<u4")
    for array, dtype in zip(case.rows, ("i1", "<i4"), strict=True):
        put(file, () if array is None else array, dtype)
    put(file, carried.scales)
    given = program, carried.estimator, case.weights, carried.feedback
    matrices = oracle_backward.passing(*given)
    for leaf in range(len(program.leaves)):
        put(file, matrices.get(leaf, ()), "i1")
    scores, state, votes, sizes = carried.oracle()
    put(file, scores, "<i2")
    put(file, state, "i1")
    put(file, sizes, "<i8")
    for z in votes.values():
        put(file, z)


def write(path: Path) -> None:
    with open(path, "wb") as file:
        put(file, len(SHAPES))
        for i, shape in enumerate(SHAPES):
            put_case(file, shape, 10 * i)
        credited = [
            *(credited_case(100 + i, name, **shape) for i, (name, shape) in enumerate(CREDITED)),
            *(credited_rows(200 + i, *given) for i, given in enumerate(ROWS)),
        ]
        put(file, len(credited))
        for case in credited:
            put_credited(file, case)
        carried = [*carried_cases()]
        put(file, len(carried))
        for each in carried:
            put_carried(file, each)
