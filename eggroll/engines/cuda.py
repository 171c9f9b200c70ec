"""The CUDA engine: a block of members runs all T tokens of a stage in one launch.

Kernels are compiled from the sources in extensions/int8_gemm where they are first needed, and kept;
see docs/cuda.md.
Letters: P members, M of a block, D width, K inputs, O outputs, r rank.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import mlx.core as mx

from eggroll.engines import nvrtc, trial
from eggroll.engines.cuda_launch import CudaLauncher, together
from eggroll.engines.gpu.backward_plan import BackwardPlan, plans_from_last
from eggroll.engines.gpu.credit import CreditPlan
from eggroll.engines.gpu.dialect import VOTE_THREADS, BlockNoise, Dialect
from eggroll.engines.gpu.engine import GpuEngine, lie_within
from eggroll.engines.gpu.launch import Launcher, Pace, kept_numbers, pad_flat
from eggroll.engines.gpu.plan import Phase, StagePlan, padded
from eggroll.engines.gpu.votes import drawing, launch_counts
from eggroll.errors import InputError
from eggroll.spec.credit import Crediting
from eggroll.spec.noise import Noise
from eggroll.spec.program import Op, Program

ENGINE = "eggroll.engines.cuda:CudaEngine"
SWITCH = "EGGROLL_CUDA"  # m16n8k32, m8n8k16 or dp4a: another product than the fastest
TRIAL_SECONDS = 300  # most of it where MLX has to compile the kernels
DEVICE_FACTS = (
    "device_name",
    "compute_capability_major",
    "compute_capability_minor",
    "architecture",
)
PACKAGES = (
    *("mlx-cuda-13", "mlx-cuda-12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    *("nvidia-cuda-nvrtc-cu13", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
)
PRODUCTS = ("m16n8k32", "m8n8k16", "dp4a")  # fastest first; kernels are mma_<name>.cu
WARPS = 8  # of a block; a thread may then have as many registers as there can be
MEMBERS = (64, 32, 16, 8)  # that a block may hold
TILE = 32  # outputs of a warp's tile, for 8 members or more
EXP2_WORDS = 16  # of shared memory, beside those that the plan counts
SPILL = 4  # bytes of weights that one of a register in device memory is worth
MIN_SHARED = 48 << 10  # bytes of shared memory that every block may have
# Of a block that asks for it, by architecture; from the CUDA programming guide's table.
SHARED = {
    75: 64 << 10,
    **dict.fromkeys((80, 87), 163 << 10),
    **dict.fromkeys((86, 89, 120, 121), 99 << 10),
    **dict.fromkeys((90, 100, 101, 103, 110), 227 << 10),
}
# The same where two blocks share a multiprocessor; each takes 1 KiB besides, from sm_80 on.
HALF = {
    75: 32 << 10,
    **dict.fromkeys((80, 87), 81 << 10),
    **dict.fromkeys((86, 89, 120, 121), 49 << 10),
    **dict.fromkeys((90, 100, 101, 103, 110), 113 << 10),
}
MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 100: 148}  # of a large GPU, as MLX does not tell
OTHER_MULTIPROCESSORS = 132  # of an H100, and of those not in the table
NEAR, FAR = 1024, 47  # multiply-adds, and bytes from the second cache, in a cycle of one of them
WAIT = 100  # cycles of a block at a barrier
LOW = (1 << 32) - 1  # the lower half of a word
CACHED = 64 << 10  # bytes of a stage's weights that may stay in a multiprocessor's own cache


class CudaEngine(GpuEngine):
    """Custom CUDA kernels.

    on: the GPU that kernels are generated for (None: this machine's).
    """

    name = "cuda"
    group_sizes: ClassVar[tuple[int, ...]] = MEMBERS
    draws_starts: ClassVar[bool] = True

    @classmethod
    def unavailable_because(cls) -> str:
        """No GPU, or small networks do not come out as on the cpu engine; see trial.py."""
        if not has_gpu():
            return "MLX finds no CUDA GPU"
        why = trial_error(chosen_product())
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        block_tokens: int = 0,
        *,
        launcher: Launcher | None = None,
        members: int = 0,
        on: Target | None = None,
    ) -> None:
        self.on, launcher = on or target(architecture(), chosen_product()), launcher or launch
        dialect, pace = Cuda(self.on.product), Pace(waits=launcher is launch)
        super().__init__(program, threads, block_tokens, dialect, launcher, members, pace)

    @classmethod
    def ahead(cls, works: Sequence[Callable[[], object]]) -> None:
        if architecture() and not nvrtc.unavailable_because():
            with contextlib.suppress(nvrtc.CompileError):  # a call that needs it will say so
                launch.make_for(works)

    @property
    def description(self) -> str:
        return f"cuda (sm_{self.on.architecture}, {self.on.product})"

    def plans(self, members: int, rank: int, puts_out: bool = False) -> list[CudaPlan]:
        options = {"members": members, "rank": rank}
        return cuda_plans(self.program, self.on, **options, puts_out=puts_out)

    def credit_plans(
        self, crediting: Crediting, members: int, puts_out: bool = False
    ) -> list[CudaCreditPlan]:
        program, on = self.program, self.on
        return cuda_credit_plans(program, crediting, on, members=members, puts_out=puts_out)

    def backward_plans(
        self, feedback_leaves: frozenset[int], members: int
    ) -> list[CudaBackwardPlan]:
        return cuda_backward_plans(self.program, feedback_leaves, self.on, members=members)

    evaluate = together(GpuEngine.evaluate)
    outputs = together(GpuEngine.outputs)
    votes = together(GpuEngine.votes)
    credit = together(GpuEngine.credit)
    learn = together(GpuEngine.learn)
    adam = together(GpuEngine.adam)
    master = together(GpuEngine.master)
    whitened = together(GpuEngine.whitened)
    prepare = together(GpuEngine.prepare)
    likelihoods = together(GpuEngine.likelihoods)
    logits = together(GpuEngine.logits)

    def choose_members(self, P: int, rank: int) -> int:
        return block_members(self.program, self.on, rank, P)

    def packed(self, w: mx.array) -> mx.array:
        return packed(w)

    def table_words(self, table: mx.array) -> mx.array:
        return words(table)

    def starts(self, noise: Noise, epoch: int, first_pair: int, pairs: int) -> mx.array:
        """By a kernel, as memory that the host has written is slow to come to the GPU."""
        stream, rooms, leaves = noise.stream(epoch), noise.rooms, len(noise.shapes)
        if not leaves * pairs:
            return super().starts(noise, epoch, first_pair, pairs)
        halves = (n >> shift & LOW for n in (stream, first_pair) for shift in (32, 0))
        sizes = leaves, pairs, *(n - (n >> 31 << 32) for n in halves)
        (starts,) = launch_counts(
            self.launcher, drawing(self.dialect), [kept_numbers(*rooms)], sizes,
            [((leaves, pairs), mx.int32)], leaves * pairs,
        )  # fmt: skip
        lie_within(rooms, starts)
        return starts

    def memory(self) -> int:
        """An eighth of the GPU's memory."""
        if not has_gpu():
            return 1 << 30
        return min(total_memory() // 8, (1 << 31) - 1)


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/32][K/32][2][lane][16 bytes], flat.

    A lane is 4 group + quad; its bytes are [input half][row half][4], of outputs 4 group + 2 i +
    row half and inputs 8 quad + 4 input half + 0..3. Where O is whole 64s it is
    [O/64][K/32][2 t + i][lane], of outputs 8 group + 4 t + 2 i + row half.
    """
    O, K = w.shape
    w = mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)])
    inputs = padded(K) // 32, 4, 2, 4
    if O % 64:
        w = w.reshape(padded(O) // 32, 8, 2, 2, *inputs)
        return w.transpose(0, 4, 2, 1, 5, 6, 3, 7).reshape(-1)
    w = w.reshape(O // 64, 8, 2, 2, 2, *inputs)
    return w.transpose(0, 5, 2, 3, 1, 6, 7, 4, 8).reshape(-1)


def words(a: mx.array) -> mx.array:
    """Bytes, flat, as whole words and one more, at an address of its own.

    Kernels read the noise by words, of which two hold four bytes from anywhere.
    """
    return pad_flat(a, -(-a.size // 4) * 4 + 4)


# The device and its trial.


class Target(NamedTuple):
    """The GPU that kernels are written for."""

    architecture: int  # 10 major + minor compute capability
    product: str  # of PRODUCTS
    shared_bytes: int  # of shared memory that a block may have
    half_bytes: int  # the same, with which two blocks fit on a multiprocessor


def target(architecture: int, product: str = "") -> Target:
    """The target of a compute capability such as 80; product: another than its fastest."""
    fastest = "m16n8k32" if architecture >= 80 else "m8n8k16" if architecture >= 75 else "dp4a"
    shared = (of.get(architecture, MIN_SHARED) for of in (SHARED, HALF))
    return Target(architecture, product or fastest, *shared)


def has_gpu() -> bool:
    """True if MLX is built for CUDA and finds a GPU."""
    module: Any = getattr(mx, "cuda", None)
    return module is not None and bool(module.is_available())


def device_info() -> dict[str, Any]:
    """MLX's facts of the GPU; empty without one."""
    if not has_gpu():
        return {}
    return dict(mx.device_info(mx.Device(mx.DeviceType.gpu, 0)))


@cache
def architecture() -> int:
    """Compute capability, 10 major + minor; 0 without a GPU."""
    info = device_info()
    major, minor = (info.get(f"compute_capability_{name}", 0) for name in ("major", "minor"))
    return 10 * int(major) + int(minor)


launch = CudaLauncher(architecture)
compiled = launch.compiled


def total_memory() -> int:
    """Bytes of the GPU's memory."""
    return int(device_info().get("total_memory", 0))


def chosen_product() -> str:
    """The product that EGGROLL_CUDA names; empty for the fastest of the GPU.

    Raises InputError for any other name.
    """
    name = os.environ.get(SWITCH, "")
    if name and name not in PRODUCTS:
        raise InputError(
            f"{SWITCH}={name!r} is no product of the cuda engine: set it to one of "
            f"{', '.join(PRODUCTS)}, or unset it."
        )
    return name


def versions() -> dict[str, str]:
    """Versions of the driver and of CUDA's packages, which compile and run kernels besides MLX."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    with contextlib.suppress(OSError):
        versions["driver"] = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    return versions


@cache
def trial_error(product: str) -> str:
    """The reason why the trial with a product (empty: the fastest) failed; empty if it passed."""
    device = {name: str(value) for name, value in device_info().items() if name in DEVICE_FACTS}
    facts = {**device, **versions(), "product": product}
    return trial.trial_error(ENGINE, TRIAL_SECONDS, facts=facts, environment={SWITCH: product})


# Plans.


class Factors(NamedTuple):
    """Places where a launch keeps A and B of a matrix, and their end: bytes; -1 for none."""

    A: int
    B: int
    end: int


class CudaPlan(StagePlan):
    """One stage for blocks of M members with noise of rank r (0: without noise)."""

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        rank: int,
        puts_out: bool = False,
    ) -> None:
        super().__init__(program, index, members=members, rank=rank, puts_out=puts_out)
        self.simdgroups = WARPS

    def on(self, gpu: Target) -> Self:
        """The plan for a GPU: for two blocks on a multiprocessor, unless too much would leave it.

        Where one waits for memory or at a barrier, the other one goes on.
        """
        exp2_bytes = 4 * EXP2_WORDS if self.scores else 0
        half, whole = copy(self), copy(self)
        # Higher ranks need more registers than half of them.
        half.shared_bytes, half.blocks = gpu.half_bytes - exp2_bytes, 2 if self.rank <= 1 else 1
        whole.shared_bytes, whole.blocks = gpu.shared_bytes - exp2_bytes, 1
        spilled = SPILL * (half.spilled - whole.spilled)
        return half if spilled <= self.weights_read else whole

    octets: ClassVar[bool] = True  # whether lanes may have eight neighbouring features of pairs

    def tiles(self, outputs: int) -> int:
        """Rows of 8 outputs that a warp computes at a time."""
        return TILE // 8

    def octet_tile(self, outputs: int) -> tuple[int, int]:
        """Tiles of 64 outputs, and groups of 8 members in one, if each warp has one; else 0, 0."""
        tiles, groups = outputs // 64, self.members // 8
        fits = self.octets and outputs % 64 == 0 and all(op.kind != "sums" for op in self.ops)
        choice = [n for n in (4, 2) if n <= groups and tiles * (groups // n) >= self.simdgroups]
        return (tiles, choice[0]) if fits and choice else (0, 0)

    def has_octet_rows(self, phase: Phase) -> bool:
        """True if a phase's row operations are of octets: norms and x B of many whole ones."""
        inputs = [self.sizes[op.inputs[0]] for op in (*phase.rows, *phase.products) if op.inputs]
        norms = all(op.kind == "norm" for op in phase.rows)
        return self.octets and self.rank == 1 and norms and not any(K % 256 for K in inputs)

    @cached_property
    def factors(self) -> dict[int, Factors]:
        """Leaf -> what a launch keeps of its noise for lanes with octets; only of rank 1.

        A head has too few registers, and takes it from the table.
        """
        out = dict[int, Factors]()
        if not (self.octets and self.rank == 1) or self.scores:
            return out
        sizes = dict[int, tuple[int, int]]()
        for phase in self.phases:
            for op in phase.products:
                O, K = self.program.leaves[op.leaf].shape
                of_A = O * bool(op.kind == "linear" and self.octet_tile(O)[0])
                of_B = K * self.has_octet_rows(phase)
                before = sizes.get(op.leaf, (0, 0))
                sizes[op.leaf] = max(of_A, before[0]), max(of_B, before[1])
        at = 0
        for leaf, (of_A, of_B) in sizes.items():
            ends = at + of_A * self.members // 2, at + (of_A + of_B) * self.members // 2
            if of_A or of_B:
                out[leaf] = Factors(at if of_A else -1, ends[0] if of_B else -1, ends[1])
            at = ends[1]
        return out

    @property
    def factor_bytes(self) -> int:
        return max((of.end for of in self.factors.values()), default=0)

    @property
    def vectors_offset(self) -> int:
        """Bytes of device memory before the vectors that a launch stores."""
        return -(-super().scratch_bytes // 16) * 16 + self.factor_bytes

    @property
    def factors_offset(self) -> int:
        """Bytes of device memory before the factors that a launch keeps."""
        return self.vectors_offset - self.factor_bytes

    @cached_property
    def noisy_vectors(self) -> dict[int, int]:
        """Each as words [pairs][quads][2], where the noise is the same at every token."""
        if not self.perturbed:
            return {}
        vectors = [leaf for leaf, at in self.layout.items() if len(at.shape) == 1]
        sizes = [padded(self.layout[leaf].shape[0]) * self.members for leaf in vectors]
        starts = accumulate(sizes[:-1], initial=self.vectors_offset)
        return dict(zip(vectors, starts, strict=False))

    @property
    def scratch_bytes(self) -> int:
        vectors = (padded(self.layout[leaf].shape[0]) for leaf in self.noisy_vectors)
        return self.vectors_offset + sum(vectors) * self.members

    def columns(self, outputs: int) -> int:
        """Groups of 8 members that a warp computes at a time: 4, or fewer to use every warp.

        More than 4 take all its registers, and the weights of a tile stay near for the next 4.
        """
        groups = self.members // 8
        choice = [n for n in (4, 2, 1) if n <= groups]
        return next(
            (n for n in choice if self.tile_count(outputs) * (groups // n) >= self.simdgroups), 1
        )


class CudaCreditPlan(CreditPlan, CudaPlan):
    """A stage whose pairs are credited, for blocks of M members."""

    octets = False
    element_rows = 4  # a member's inputs in a word, as in registers

    def __init__(
        self,
        program: Program,
        index: int,
        crediting: Crediting,
        *,
        members: int,
        puts_out: bool = False,
    ) -> None:
        CudaPlan.__init__(
            self, program, index,
            members=members, rank=0 if crediting.nodes else 1, puts_out=puts_out,
        )  # fmt: skip
        self.trace(crediting, puts_out)


class CudaBackwardPlan(BackwardPlan, CudaPlan):
    """A stage whose members carry errors back, for blocks of M members."""

    adjacent, octets = 8, False

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        feedback_leaves: Collection[int],
        receives_x: bool,
    ) -> None:
        puts_out = not program.scored
        CudaPlan.__init__(self, program, index, members=members, rank=0, puts_out=puts_out)
        self.plan_backward(feedback_leaves, receives_x)


def cuda_plans(
    program: Program, on: Target, *, members: int, rank: int, puts_out: bool = False
) -> list[CudaPlan]:
    """A plan per stage for blocks of `members`."""
    of = range(len(program.stages))
    return [CudaPlan(program, i, members=members, rank=rank, puts_out=puts_out).on(on) for i in of]


def cuda_credit_plans(
    program: Program, crediting: Crediting, on: Target, *, members: int, puts_out: bool = False
) -> list[CudaCreditPlan]:
    """A plan per stage for blocks of `members`."""
    of = range(len(program.stages))
    return [
        CudaCreditPlan(program, i, crediting, members=members, puts_out=puts_out).on(on) for i in of
    ]


def cuda_backward_plans(
    program: Program, feedback_leaves: Collection[int], on: Target, *, members: int
) -> list[CudaBackwardPlan]:
    """A plan per stage for blocks of `members`."""

    def plan(index: int, receives_x: bool) -> CudaBackwardPlan:
        return CudaBackwardPlan(
            program, index, members=members, feedback_leaves=feedback_leaves, receives_x=receives_x
        ).on(on)

    return plans_from_last(plan, len(program.stages))


def block_members(program: Program, on: Target, rank: int, population: int) -> int:
    """M for a network: the least cycles of the multiprocessor that gets most blocks.

    A member takes those of its products, twice as many where a block is alone, those of what comes
    from the second cache, and its part of the block's barriers.
    """
    multiprocessors = MULTIPROCESSORS.get(on.architecture, OTHER_MULTIPROCESSORS)

    def cycles(members: int) -> float:
        total = 0.0
        for plan in cuda_plans(program, on, members=members, rank=rank):
            far = plan.weights_read if plan.weight_bytes > CACHED else 0  # bytes
            total += plan.macs * (2 / plan.blocks) / NEAR + (far + plan.spilled) / FAR
            total += WAIT * plan.barriers / members
        blocks = -(-population // members)
        return -(-blocks // multiprocessors) * members * total

    return min(MEMBERS, key=lambda m: (cycles(m), -m))


# The language.

TYPES = {"uint": "uint32_t", "ulong": "uint64_t"}  # Metal's names -> CUDA's
WORD_OPERATIONS = ("add", "add_bias", "bias", "forget", "mix")  # on four features at once
VOTE_STAGE = 16 * (64 + 8) * 4  # bytes of a staged matrix: DEPTH / 4 quads, LINE words

TRACES = """\
egg::Tape of;
of.tape = tape;
of.credits = credits;
of.pairs = sizes[2];
of.T = sizes[3];
of.begin = sizes[4];
of.total = sizes[5];
of.rows = sizes[6];
of.of_block = 4 * sizes[7];
of.lanes = 4 * sizes[8];
const uint32_t at = $thread;
const egg::Trace trace = egg::trace_at(work, sizes[0], at / of.lanes);
if (trace.K > 0) egg::follow(sums, of, trace, at % of.lanes);
"""


@dataclass(frozen=True)
class Cuda(Dialect):
    """CUDA C++, with the matrix product named `product` (of PRODUCTS)."""

    product: str

    folder, suffix = "cuda", ".cu"
    constant, simdgroups = "constexpr int", "WARPS"
    uint, ulong = TYPES["uint"], TYPES["ulong"]
    group = stage_group = "blockIdx.x"
    part, thread = "blockIdx.y", f"blockIdx.x * {VOTE_THREADS} + threadIdx.x"
    unit, logit, value = ("uint32_t", 4), ("uint32_t", 4), "auto"
    vector = "uint2", 8
    element, feature = "[j]", "quad"
    adjacent, in_group, in_lane = 8, "lane.thread", "lane.warp"
    row, tile = "row", "tile, column, lane"
    no_sums = "", "nullptr"
    state_barrier = False
    exp2_words = EXP2_WORDS
    # Those of a stage that common.cu needs.
    vote_constants = {  # noqa: RUF012
        "M": 8, "LD": 8, "SHIFT": 0, "PERTURBED": 1,
        "WARPS": VOTE_THREADS // 32, "THREADS": VOTE_THREADS,
    }  # fmt: skip
    vote_staging = {  # noqa: RUF012
        "votes": ("turn", "stage_pairs"),
        "carry_votes": ("turn", "stage_carried"),
    }
    vote_memory = f"""\
EGG_SHARED_MEMORY;
EGG_SHARED(uint32_t, left, 0, {VOTE_STAGE // 4});
EGG_SHARED(uint32_t, right, {VOTE_STAGE}, {VOTE_STAGE // 4});
"""
    vote_bytes = 2 * VOTE_STAGE
    vote_groups = 1024  # some 7 of them share a multiprocessor
    vote_lane = "egg::lane_of(threadIdx.x)"
    traces = TRACES

    def array(self, kind: str, name: str, values: Sequence[int], *, gathered: bool = False) -> str:
        text = ", ".join(f"{v}{'ull' * (kind == 'ulong')}" for v in values)
        # Constant memory serves one address at a time.
        space, kind = "__device__" if gathered else "__constant__", TYPES.get(kind, kind)
        return f"{space} const {kind} {name}[{len(values)}] = {{{text}}};\n"

    def share(self, kind: str, name: str, count: int, offset: int) -> list[str]:
        lines = [f"EGG_SHARED({kind}, {name}, {offset}, {count});"]
        return lines if offset else ["EGG_SHARED_MEMORY;", *lines]

    def barrier(self, device: bool) -> str:
        return "__syncthreads();"

    def lane(self, plan: StagePlan) -> str:
        return "egg::lane_of(threadIdx.x)"

    def header(self, constants: str, files: Sequence[str]) -> str:
        pack = "pack_bytes" if self.product == "dp4a" else "pack_sat"
        return super().header(constants, [pack, *files])

    def product_files(self, plan: StagePlan) -> list[str]:
        octets = ["octets"] * cast(CudaPlan, plan).octets
        return ["words", f"mma_{self.product}", "product_mma", *octets]

    @property
    def vote_files(self) -> list[str]:
        return ["noise", "common", f"mma_{self.product}", "vote_product"]

    def product_input(self, plan: StagePlan, register: int) -> str:
        return f"r{register}"

    def rows_of(self, size: int) -> int:
        """Quads of whole octets."""
        return -(-size // 8) * 2

    def tape_pointer(self, plan: StagePlan, values: str) -> str:
        return f"reinterpret_cast<const uint32_t*>({values})"

    def row_loop(self, plan: StagePlan, phase: Phase) -> list[str]:
        kind = "Pair" if cast(CudaPlan, plan).has_octet_rows(phase) else "Row"
        return [
            "for (egg::Lane of = egg::lane_again(threadIdx.x); "
            "of.warp < M / 2; of.warp += WARPS) {",
            f"const egg::{kind} row = egg::{kind.lower()}_of(of.warp, of);",
        ]

    def _columns(self, plan: StagePlan, outputs: int, head: bool) -> tuple[int, int, bool]:
        """Tiles, groups of 8 members in one, and whether lanes have octets.

        A head's tile has all groups, so that sums need not tell which.
        """
        tiles, columns = (0, 0) if head else cast(CudaPlan, plan).octet_tile(outputs)
        if tiles:
            return tiles, columns, True
        columns = plan.members // 8 if head else cast(CudaPlan, plan).columns(outputs)
        return plan.tile_count(outputs), columns, False

    def noise(self, plan: StagePlan) -> BlockNoise:
        if not (of := cast(CudaPlan, plan).factors):
            return super().noise(plan)
        at = cast(CudaPlan, plan).factors_offset
        pointer = "reinterpret_cast<uint4*>(spilled)"
        lines = [f"uint4* const factors = {pointer} + {at // 16};", "noise.kept = factors;"]
        for leaf, kept in of.items():
            O, K = plan.program.leaves[leaf].shape
            matrix = self.matrix_argument(plan, leaf)
            lines += [f"egg::keep_A<{K}, {O}>(factors, noise, {matrix}, lane);"] * (kept.A >= 0)
            lines += [f"egg::keep_B<{K}>(factors, noise, {matrix}, lane);"] * (kept.B >= 0)
        return BlockNoise("egg::BlockNoise", lines)

    def matrix_argument(self, plan: StagePlan, leaf: int) -> str:
        index, kept = plan.layout[leaf].index, cast(CudaPlan, plan).factors.get(leaf)
        if kept is None:
            return str(index)
        A, B = (max(at, 0) // 16 for at in kept[:2])
        return f"egg::Leaf{{{index}, {A}, {B}}}"

    def tile_turns(self, plan: StagePlan, phase: Phase) -> list[list[Op]]:
        """Products that no other operation takes come first, as their values take registers."""
        if not cast(CudaPlan, plan).octets:
            return [phase.tiles]
        taken = {r for op in phase.tiles for r in op.inputs}
        alone = [[op] for op in phase.products if op.writes and op.out not in taken]
        rest = [op for op in phase.tiles if [op] not in alone]
        return [*alone, *[rest] * bool(rest)]

    def tile_loop(self, plan: StagePlan, outputs: int, head: bool) -> list[str]:
        tiles, columns, _ = self._columns(plan, outputs, head)
        groups = plan.members // 8 // columns
        # Neighbouring warps share a tile's weights.
        return [
            "const egg::Lane lane = egg::lane_again(threadIdx.x);",
            f"for (uint32_t item = lane.warp; item < {tiles * groups}; item += WARPS) {{",
            f"const uint32_t tile = item / {groups}, column = item % {groups} * {8 * columns};",
        ]

    def tile_values(self, plan: StagePlan, name: str, outputs: int, head: bool) -> str:
        _, columns, octets = self._columns(plan, outputs, head)
        return f"{'uint4' if octets else 'uint2'} {name}[{columns}];"

    def tile_sums(self, plan: StagePlan, name: str, outputs: int) -> str:
        return f"int {name}[2][{self._columns(plan, outputs, False)[1]}][4];"

    def element_loop(self, plan: StagePlan, outputs: int, head: bool = False) -> list[str]:
        _, columns, octets = self._columns(plan, outputs, head)
        of_quad, of_octet = "column + 8 * j + 2 * lane.quad", "egg::member_of(column, j, lane)"
        return [
            "#pragma unroll",
            f"for (int j = 0; j < {columns}; ++j) {{",
            f"const {'egg::Octet' if octets else 'uint32_t'} quad = {{8 * tile + lane.group}};",
            f"const uint32_t member = {of_octet if octets else of_quad};",
        ]

    def elementwise(self, op: Op, operands: Sequence[str], argument: str) -> list[str]:
        of_word = argument[:1] == "@"
        values = [*operands, *[argument[1:]] * of_word]
        names = "abcd"[: len(values)]
        if op.kind in WORD_OPERATIONS:
            result = f"egg::{op.kind}({', '.join(names)})"
        else:
            rest = [argument] * bool(argument and not of_word)
            features = (
                [*(f"egg::byte_of({name}, {e})" for name in names), *rest] for e in range(4)
            )
            calls = (f"egg::{op.kind}({', '.join(values)})" for values in features)
            result = f"egg::packed({', '.join(calls)})"
        function = f"[]({', '.join(f'uint32_t {n}' for n in names)}) {{ return {result}; }}"
        return [f"v{op.out}[j] = egg::each({function}, {', '.join(values)});"]

    def bias(self, name: str, size: int, arguments: str, stored: bool) -> tuple[str, str]:
        function = "kept_at" if stored else "made_at"
        return (
            f"const auto {name} = egg::{function}<{size}>({arguments}, member, quad);",
            f"@{name}",
        )

    def tile_bytes(self, width: int, members: int) -> int:
        """[D / 8][M][8]"""
        return -(-width // 8) * 8 * members
