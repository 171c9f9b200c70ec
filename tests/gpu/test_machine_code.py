"""CUDA's kernels in machine code, executed on this CPU: bit for bit what the oracles say.

cuda/lanes.py says how; it needs NVRTC and nvdisasm. What the compiler makes of addresses, shared
memory and matrix products is what runs here.
"""

from __future__ import annotations

from functools import partial

import machine
import mlx.core as mx
import numpy as np
import oracle_program
import pytest
from lanes import MachineError
from machine_launcher import MachineLauncher
from networks import case_of, random_case
from networks_backward import carried_of, net_of_outputs
from networks_credit import credited_case
from test_engines import check_likelihoods
from test_programs import complete_case, same_outputs

from eggroll.engines.cuda import CudaEngine, target
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.spec.noise import Noise
from eggroll.spec.program import Program
from gpu.backend import at_the_end, check_credit, check_scores, check_votes
from gpu.test_planted import asked, moved

# Architecture -> compute capability, product.
SMALL = {"D": 12, "V": 10}
TARGETS = {"sm_90a": (90, "m16n8k32"), "sm_80": (80, "m16n8k32"), "sm_75": (75, "m8n8k16")}


@pytest.fixture(autouse=True)
def refuse(reader) -> None:
    reader("machine code", "cuda", machine.unavailable_because())


def engine(program: Program, launcher: MachineLauncher, product: str = "", members: int = 8):
    number, fastest = TARGETS[launcher.architecture]
    on = target(number, product or fastest)
    return CudaEngine(program, launcher=launcher, members=members, on=on)


def run(launcher: MachineLauncher, members: int = 8, product: str = "", **shape: int) -> None:
    """Embedding, layer, head and votes of matrices and of vectors."""
    case = at_the_end(random_case(1, L=1, T=2, P=members + 2, **shape))
    made = engine(case.program, launcher, product, members)
    check_scores(made, case)
    check_votes(made, case, np.arange(members // 2 + 1) % 3 - 1)
    votes = ["egg_votes", "egg_vector_votes"]
    assert launcher.launches == ["egg_packing", *["egg_stage"] * 3, *votes]
    assert launcher.issued > 1000


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_80"])
def test_preset_seed_equals_the_oracle(architecture: str):
    """The kernels of its shapes, as test_cuda_compile.py compiles them: once for both."""
    run(MachineLauncher(architecture), members=32, D=64, V=256)


def test_lanes_with_octets_of_pairs_equal_the_oracle():
    """Tiles of 64 outputs, norms and x B of whole warps, in a block that lacks a pair."""
    case = at_the_end(random_case(1, L=1, T=1, P=30, D=256, V=40))
    made = engine(case.program, MachineLauncher("sm_90a"), members=32)
    layer = made.plans(32, 1)[1]
    assert layer.octet_tile(256) == (4, 2)
    assert all(layer.has_octet_rows(phase) for phase in layer.phases)
    check_scores(made, case)


@pytest.mark.parametrize(("architecture", "product"), [("sm_75", ""), ("sm_80", "dp4a")])
def test_other_products_equal_the_oracle(architecture: str, product: str):
    """Ragged shapes, with true divisions."""
    run(MachineLauncher(architecture), product=product, **SMALL)


def test_exact_losses_equal_the_oracle():
    case = random_case(6, V=11, D=12, L=0, T=1, P=10)
    check_likelihoods(engine(case.program, MachineLauncher("sm_90a")), case)


@pytest.mark.parametrize(
    ("architecture", "estimator", "group"),
    [("sm_90a", "token-votes", 0), ("sm_80", "token-credit", 4)],
)
def test_credit_equals_the_oracle(architecture: str, estimator: str, group: int):
    """Stages that leave tapes, a head that draws, credits, traces, and the votes of all leaves."""
    made = credited_case(3, estimator, V=20, D=8, T=4, P=8, sigma_shift=1, group=group)
    check_credit(engine(made.case.program, MachineLauncher(architecture)), made)


def test_errors_carried_back_equal_the_oracle():
    case = random_case(4, V=20, D=8, T=3, P=6)
    carried = carried_of(case, "feedback")
    assert carried.differing(carried.run(engine(case.program, MachineLauncher("sm_90a")))) == set()


def test_errors_of_outputs_equal_the_oracle():
    case = case_of(net_of_outputs(), np.random.default_rng(4), T=2, P=6)
    carried = carried_of(case, "feedback", seed=4)
    assert carried.differing(carried.run(engine(case.program, MachineLauncher("sm_90a")))) == set()


def test_every_operation_equals_the_oracle():
    """Rows, features, tables, what puts out and what is summed."""
    case = complete_case()
    made = engine(case.program, MachineLauncher("sm_80"))
    got = made.outputs(made.prepare(case.leaves), case.slices, case.batch)
    member = partial(oracle_program.Member, case.program, case.weights, case.noise())
    args = case.program, case.tokens, case.state, case.rows
    same_outputs(got, oracle_program.outputs(*args, member))


ARITHMETIC = """
const unsigned t = threadIdx.x + 64 * blockIdx.x;
const long long a = given[2 * t], b = given[2 * t + 1];
const int x = int(a), y = int(b) | 1;
const unsigned u = unsigned(a), v = unsigned(b) | 1;
int64_t* to = out + 16 * t;
to[0] = a * b + (a >> 7);
to[1] = __mul64hi(a, b);
to[2] = (long long)(__umul64hi(a, b));
to[3] = a - b;
to[4] = a < b ? -a : b ^ a;
to[5] = (long long)(x) * y + a;
to[6] = __mulhi(x, y);
to[7] = u / v + u % v;
to[8] = x / y;
to[9] = (a << (t % 64)) | ((unsigned long long)(b) >> (63 - t % 64));
to[10] = __clzll(a) + __popc(u);
to[11] = __funnelshift_r(u, v, t) ^ __byte_perm(u, v, 0x7531);
int turns = 0;
for (unsigned n = t % 37; n > 0; n = n % 2 ? n - 1 : n / 2) ++turns;
to[12] = turns;
unsigned sum = u;
for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
to[13] = sum;
to[14] = (unsigned long long)(a) / (unsigned long long)(b | 1);
to[15] = max(min(x, y), -100) + abs(x >> 1);
"""


def test_arithmetic_is_that_of_python():
    """Numbers of 32 and 64 bits, divisions, shifts, loops in which lanes part, in two blocks."""
    rng = np.random.default_rng(0)
    given = rng.integers(-(2**63), 2**63, (128, 2)) >> rng.integers(0, 64, (128, 2))
    source = KernelSource("arithmetic", ("given",), ("out",), "", ARITHMETIC)
    for architecture in ("sm_90a", "sm_80"):
        call = [mx.array(given)], [((128, 16), mx.int64)], (128, 1, 1), (64, 1, 1)
        (out,) = MachineLauncher(architecture)(source, *call)
        got = np.array(out)
        for t in range(128):
            want = [wrapped(v) for v in expected(t, *map(int, given[t]), given)]
            assert got[t].tolist() == want, (architecture, t)


def wrapped(v: int, bits: int = 64) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def expected(t: int, a: int, b: int, given: np.ndarray) -> list[int]:
    """What ARITHMETIC makes of the numbers of thread t."""
    M, W = (1 << 64) - 1, (1 << 32) - 1
    x, y, u, v = wrapped(a, 32), wrapped(b | 1, 32), a & W, b & W | 1
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    turns, n = 0, t % 37
    while n > 0:
        n, turns = (n - 1 if n % 2 else n // 2), turns + 1
    both, pool = (v << 32 | u) >> t % 32 & W, (v << 32 | u).to_bytes(8, "little")
    first = t // 32 * 32
    total = sum(int(n) for n in given[first : first + 32, 0]) & W
    return [
        a * b + (a >> 7), a * b >> 64, (a & M) * (b & M) >> 64, a - b, -a if a < b else a ^ b,
        x * y + a, x * y >> 32, (u // v + u % v) & W, wrapped(quotient, 32),
        a << t % 64 | (b & M) >> 63 - t % 64, 64 - (a & M).bit_length() + u.bit_count(),
        both ^ int.from_bytes(pool[1::2], "little"), turns, total, (a & M) // (b & M | 1),
        wrapped(max(min(x, y), -100) + abs(x >> 1), 32),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (asked(lambda size: size // 2, "egg_votes"), "bytes of shared memory"),
        (asked(lambda size: size // 2, "egg_stage"), "bytes of shared memory"),
        (moved(lambda at: at // 32 * 16, "egg_stage"), "not equal"),
        (moved(lambda at: max(at - 288, 0), "egg_votes"), "not equal"),
    ],
)
def test_faults_of_shared_memory_are_found(edit, said: str):
    """By an access beyond what the launch asks for, or by other integers than the oracle's."""
    with pytest.raises((MachineError, AssertionError), match=said):
        run(MachineLauncher("sm_75", edit), **SMALL)


BOUNDS = {
    "past the end of an input": ("out[t] = given[t + 1];", "outside every array"),
    "into an input": ("((int*)given)[t] = 1;", "only read"),
    "not aligned": ("out[t] = *(const int*)((const char*)given + t);", "misaligned"),
    "a byte that nobody writes": ("if (t != 9) out[t] = 1;", "nobody writes a byte of out"),
    "one place written twice": ("out[t] = 0; out[7] = t;", "different values"),
    "a warp that waits for ever": (
        "out[t] = 0; if (t < 8) __syncthreads(); else out[t] = __shfl_sync(0xffffffffu, t, 0);",
        "wait for each other",
    ),
}


@pytest.mark.parametrize("fault", BOUNDS)
def test_bounds_are_kept(fault: str):
    body, said = BOUNDS[fault]
    body = f"const unsigned t = threadIdx.x;\n{body}\n"
    source = KernelSource("memory", ("given",), ("out",), "", body)
    with pytest.raises(MachineError, match=said):
        MachineLauncher("sm_90a")(
            source, [mx.arange(64)], [((64,), mx.int32)], (64, 1, 1), (64, 1, 1)
        )


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_75"])
def test_slices_begin_where_the_host_says(architecture: str):
    """Products of 64 bits."""
    case = random_case(1, V=9, D=8, L=1)
    launcher = MachineLauncher(architecture)
    noise = Noise([leaf.shape for leaf in case.program.leaves], seed=5, rank=1, shift=6)
    starts = engine(case.program, launcher).starts(noise, 3, (1 << 31) - 5, 9)
    np.testing.assert_array_equal(np.array(starts), np.array(noise.starts(3, (1 << 31) - 5, 9)))
    assert launcher.launches == ["egg_drawing"]
