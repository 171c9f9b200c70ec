"""The emulation is worth what it notices: faults and missing barriers in the kernels."""

from __future__ import annotations

from functools import partial

import numpy as np
import oracle
import oracle_program
import pytest
from emulator import EmulationError
from networks import Case, case_of, random_case
from networks_credit import Credited, credited_case, credited_of
from test_programs import same_credit, same_outputs

from eggroll import networks
from eggroll.spec.program import Program
from gpu.backend import (
    Gpu,
    at_the_end,
    beyond_float,
    check_credit,
    check_scores,
    check_votes,
    credit_source,
    engine,
    faulty,
    stage_source,
)

# GPU -> fault -> text of a kernel, and what it becomes.
FAULTS = {
    "metal": {
        "a slice read past its end": ("PERTURBED && o < O", "PERTURBED"),
        "a member that is not there": ("min(uint(M), members); m += 2 * S", "uint(M); m += 2 * S"),
        "an input too many": ("k < K; k += 32", "k <= K; k += 32"),
        "float sums of all inputs": ("min(from + 32, blocks)", "blocks"),
        "division toward zero": (
            "return clip(int(uint(clamp(v, least, -least - 1) - least) / uint(DIVISOR)) - 128);",
            "return clip(v / DIVISOR);",
        ),
        "shift toward zero": ("int(odd) >> SHIFT", "int(odd) / (1 << SHIFT)"),
        "the sign of the odd member": ("= -odd;", "= odd;"),
        "lanes that part": (
            "even = simd_sum(even);",
            "if (lane.index != 3) even = simd_sum(even);",
        ),
        "a state that is not restarted": ("tokens[m * T] == 0", "tokens[m * T] == -1"),
        "an edge of the votes": ("tile.column + c < tile.K", "true"),
        "an address space forgotten": ("const EGG_DEVICE int8_t* two =", "const int8_t* two ="),
        "signed and unsigned mixed": ("min(uint(M), members)", "min(M, members)"),
    },
    "cuda": {
        "a word beyond the table": ("words + i + 1", "words + i + 2"),
        "a member that is not there": ("i < D * min(uint32_t(M), members)", "i < D * uint32_t(M)"),
        "an input too many": ("STEPS = (K + 31) / 32", "STEPS = (K + 63) / 32"),
        "division toward zero": (
            "int(uint32_t(max(least, min(v, -least - 1)) - least) / uint32_t(DIVISOR)) - 128",
            "v / DIVISOR",
        ),
        "shift toward zero": ("int(odd[e]) >> SHIFT", "int(odd[e]) / (1 << SHIFT)"),
        "the sign of the odd member": ("row.odd ? -sum : sum;", "sum;"),
        "lanes that part": ("sum = over_row(sum);", "if (row.lane != 3) sum = over_row(sum);"),
        "a state that is not restarted": ("tokens[member * T] != 0", "tokens[member * T] != -1"),
        "an edge of the votes": ("first < count ?", "true ?"),
        "a sign of the votes": ("(signs.minus & 0x01010101u)", "0u"),
        "the other member's vector": ("uint32_t*>(mine) + row.odd", "uint32_t*>(mine)"),
        "bytes packed in another order": ('"r"(high), "r"(low)', '"r"(low), "r"(high)'),
        "operands in another order": ('"r"(a.x), "r"(a.y)', '"r"(a.y), "r"(a.x)'),
        "halves of inputs exchanged": ('"r"(b.x), "r"(b.y)', '"r"(b.y), "r"(b.x)'),
        "a shuffle of some lanes": ("__shfl_xor_sync(0xffffffffu", "__shfl_xor_sync(0xffffu"),
        "signed and unsigned mixed": ("min(uint32_t(M), members)", "min(M, members)"),
    },
}


def run_with(gpu: Gpu, edit) -> None:
    """Runs small cases with a fault in the kernels; returns only if nothing was noticed."""
    small = at_the_end(random_case(1, D=12, V=10, T=3, P=6))
    small.tokens[0] = 0
    quick = gpu.launcher(edit=edit)
    for case in (small, beyond_float()) if gpu.name == "metal" else (small,):
        made = engine(gpu, case.program, quick, 8)
        check_votes(made, case, oracle.pair_fitness(check_scores(made, case)))


def of_each(faults: dict[str, dict]):
    """Runs a test with every fault of each GPU."""
    pairs = [(gpu, fault) for gpu in faults for fault in faults[gpu]]
    return pytest.mark.parametrize(("gpu", "fault"), pairs, indirect=["gpu"])


@of_each(FAULTS)
def test_faults_are_found(gpu: Gpu, fault: str):
    found: list[bool] = []
    with pytest.raises((EmulationError, AssertionError)):
        run_with(gpu, faulty(*FAULTS[gpu.name][fault], found))
    assert any(found), "the fault did not get in"


RACE = "without a barrier between"
BARRIERS = {"metal": 11, "cuda": 10}  # of a layer's kernel


@pytest.mark.parametrize(
    ("gpu", "number"),
    [(gpu, number) for gpu, count in BARRIERS.items() for number in range(count)],
    indirect=["gpu"],
)
def test_every_barrier_of_a_layer_is_needed(gpu: Gpu, number: int):
    """Without one of them, two simdgroups meet at a byte: one order of them is enough to see it."""
    layer = gpu.plans(networks.egg(10, 12, 1), 8, 1)[1]
    parts = stage_source(gpu, layer).body.split(gpu.barrier)
    assert len(parts) == BARRIERS[gpu.name] + 1

    def edit(source):
        pieces = source.body.split(gpu.barrier)
        if len(pieces) != len(parts):
            return source
        pieces[number : number + 2] = [pieces[number] + pieces[number + 1]]
        return source._replace(body=gpu.barrier.join(pieces))

    with pytest.raises(EmulationError, match=RACE):
        run_with(gpu, edit)


COMMON = {
    "a sign of another token": ("noise.t / 32", "0"),
    "a readout that is not clipped": ("hits[m] == 255", "false"),
    "a draw without its last logits": ("(V + 7) / 8", "V / 8"),
    "a draw from sums without their own tile": ("before + up_to", "before + up_to - w"),
    "credit across documents": ("tokens[t] != 0 ? r : 0", "r"),
    "a token more": ("back < of.T", "back <= of.T"),
    "the first of equal rows left out": ("sorted[middle] < row", "sorted[middle] <= row"),
    "the noise of another leaf": ("uint32_t(at) + element", "element"),
    "x B of the odd member": ("sums[2 * i]", "sums[2 * i + 1]"),
}
CREDIT_FAULTS = {
    "metal": COMMON | {
        "the sign of the odd member": ("turn.second ? n : -n;", "turn.second ? -n : n;"),
        "noise rounded down": ("rounded(mine.B[k], mine.shift)", "mine.B[k] >> mine.shift"),
        "another member's inputs": ("get(x, k, member + 2).x", "get(x, k, member + 2).y"),
        "a pair that is not there": ("if (pair < of.pairs) sums", "sums"),
    },
    "cuda": COMMON | {
        "the sign of the odd member": ("odd ? !turn.second", "odd ? turn.second"),
        "noise rounded down": (
            "rounded(byte_of(b, e), mine.shift)", "byte_of(b, e) >> mine.shift",
        ),
        "another member's inputs": ("i % (M / 2) * 2)", "i % (M / 2) * 2 + 1)"),
        "a pair that is not there": ("if (lane >= of.pairs) return;", ""),
        "an input that is not there": ("if (trace.k + e < trace.K)", ""),
    },
}  # fmt: skip


def credit_with(gpu: Gpu, old: str, new: str, made: Credited) -> None:
    """Runs a case with a fault in the kernels; returns only if nothing was noticed."""
    found: list[bool] = []
    launcher = gpu.launcher(edit=faulty(old, new, found))
    try:
        check_credit(engine(gpu, made.case.program, launcher, 8), made)
    finally:
        assert any(found), "the fault did not get in"


@of_each(CREDIT_FAULTS)
def test_faults_of_credit_are_found(gpu: Gpu, fault: str):
    T = 34 if fault == "a sign of another token" else 4
    estimator = "token-votes" if fault == "x B of the odd member" else "token-credit"
    made = credited_case(3, estimator, V=20, D=6, T=T, P=6, sigma_shift=1, extreme=True)
    with pytest.raises((EmulationError, AssertionError)) as noticed:
        credit_with(gpu, *CREDIT_FAULTS[gpu.name][fault], made)
    assert "did not get in" not in str(noticed.value)


@pytest.mark.parametrize("number", range(4))
def test_every_barrier_of_a_head_is_needed(gpu: Gpu, number: int):
    """The same of a head that draws."""
    made = credited_case(1, "token-credit", V=40, D=12, T=3, P=6, sigma_shift=1)
    body = credit_source(gpu, gpu.credit_plans(made.case.program, made.crediting, 8)[-1], 0).body
    parts = body.split(gpu.barrier)
    assert len(parts) == 5
    joined = [*parts[:number], parts[number] + parts[number + 1], *parts[number + 2 :]]
    with pytest.raises(EmulationError, match=RACE):
        credit_with(gpu, body, gpu.barrier.join(joined), made)


ROW_FAULTS = {
    "metal": {
        "an index that names nothing": ("if (f >= 0) sum.x += rows", "sum.x += rows"),
        "noise of the odd member's indices": ("if (g >= 0) sum.y -= A", "if (g >= 0) sum.y += A"),
        "the least value shown": ("max(int(even[k]), -127)", "int(even[k])"),
        "an edge of an output": ("if (o >= N) return;", ""),
        "an edge of sums": ("if (o >= O) continue;", ""),
        "the last of a register": ("o < A ? get(a", "o <= A ? get(a"),
    },
    "cuda": {
        "an index that names nothing": ("if (f < 0) continue;", ""),
        "noise of the odd member's indices": ("  return row.odd ? -sum : sum;", "  return sum;"),
        "the least value shown": ("max(int(mine[4 * quad + e]), -127)", "int(mine[4 * quad + e])"),
        "an edge of an output": ("if (o >= N) return;", ""),
        "an edge of sums": ("if (o < O && member < members)", "if (member < members)"),
        "the last of a register": ("at = o < A ? o : o - A", "at = o <= A ? o : o - A"),
    },
}  # fmt: skip
CREDITED_ROWS = {
    "another list's noise": ("list * from.columns + column", "column"),
    "another row's credit": ("place % from.T * from.lanes", "0"),
}


def rows_case() -> Case:
    net = Program()
    x = net.concat(net.features("rows", 30, 8, active=3, lists=2), net.input(7))
    net.output(x, "joined")
    net.sums(x, "sums", 5)
    return case_of(net, np.random.default_rng(0), T=3, P=4, sigma_shift=0)


@of_each(ROW_FAULTS)
def test_faults_of_rows_are_found(gpu: Gpu, fault: str):
    case, found = rows_case(), list[bool]()
    launcher = gpu.launcher(edit=faulty(*ROW_FAULTS[gpu.name][fault], found))
    here = engine(gpu, case.program, launcher, 8)
    member = partial(oracle_program.Member, case.program, case.weights, case.noise())
    args = case.program, case.tokens, case.state, case.rows
    want = oracle_program.outputs(*args, member)
    with pytest.raises((EmulationError, AssertionError)):
        same_outputs(here.outputs(here.prepare(case.leaves), case.slices, case.batch), want)
    assert found == [False, True]  # packing, and the stage


@pytest.mark.parametrize("fault", CREDITED_ROWS)
def test_faults_of_credited_rows_are_found(gpu: Gpu, fault: str):
    made, found = credited_of(rows_case(), np.random.default_rng(0), "token-credit"), list[bool]()
    launcher = gpu.launcher(edit=faulty(*CREDITED_ROWS[fault], found))
    with pytest.raises(AssertionError):
        same_credit(made.run(engine(gpu, made.case.program, launcher, 8)), made.oracle_of_any())
    assert any(found)
