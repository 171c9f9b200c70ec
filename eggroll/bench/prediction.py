"""Predicts the speed of a training step, from counts, on GPUs that it never ran on.

docs/performance.md shows the arithmetic and where each figure is from. Letters: P members, T
tokens, M members of a threadgroup, K inputs and O outputs of an operation, r rank. A product is one
of 8 x 8 x 8 multiply-adds; a cycle is one of a scheduler, which serves one simdgroup at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple

from eggroll.engines import cuda as cuda_plan
from eggroll.engines.gpu.engine import LaunchLimits, launch_need, launch_size
from eggroll.engines.gpu.plan import PRODUCTS, StagePlan, best_members, stage_plans
from eggroll.networks import egg
from eggroll.spec.program import Program

POPULATION = 10240  # of the predictions in docs and pictures
HOPPER = 90  # compute capability of H100 and H200
PRODUCT_MACS = 512  # multiply-adds of a product

# Cycles beside the products, fitted to what the emulated kernels execute (tests/metal/counting.py),
# accesses to local arrays in memory included: there are none.
# The unit is 64 results: 32 lanes, a pair of members each.
OUTPUT = 62.0  # of a linear operation: sum, noise, division, clip
LOW_RANK = 40.0  # more per output and rank: the noise's A
ELEMENT = 77.0  # of an operation element by element
NORM = 274.0
EMBED, EMBED_RANK = 86.0, 41.0
SUMS = 62.0  # x B, per input and rank
PHASE = 18.0  # per half a phase and member
VOTE = 37.0  # per product of the votes: staging both matrices
VECTOR = 1.6  # per vote of a vector's element and pair

# The same of CUDA, counted in its machine code (tests/cuda/machine.py): warp instructions, products
# and all. A product takes some per 8192 multiply-adds, per output, per output and rank. Where lanes
# have octets of pairs they are CUDA_OCTETS, and those of a norm and of x B CUDA_OCTET_ROWS.
# CUDA_KEPT is of a vector that a launch keeps with its noise.
CUDA_PRODUCT = 5.0, 9.0, 6.0
CUDA_OCTETS = 3.2, 3.0, 4.3
CUDA_ROWS, CUDA_OCTET_ROWS = (31.0, 5.5), (17.0, 2.1)
SCORE, CUDA_ELEMENT = 20.0, 9.5
CUDA_EMBED, CUDA_EMBED_RANK = 21.0, 9.3
CUDA_KEPT = 34.0
CUDA_BYTES = 3.5  # more per rank from rank 2 on, whose factors are read by bytes
CUDA_PASSED = 55.0  # per member: activations, state and targets come and go
CUDA_VOTE, CUDA_VECTOR = 3.4, 0.47
# Of the four instructions that a multiprocessor could issue in a cycle: 1.37 by the in-order model
# of tests/cuda/in_order.py, for two blocks of a layer of preset paper.
ISSUE_SHARE = 0.34

BUSY = 0.85  # assumed: the rest is latency and waiting at barriers
# Seconds of the host: per update, and per pair and leaf (slices drawn, streams copied). Measured.
HOST, HOST_SLICE = 1.5e-3, 6e-9
NOISE_BYTES = 1 << 24  # of the noise table, read from memory once an update
# Multiply-adds of a launch at most, by whether the GPU is CUDA's: about those of gpu/launch.py.
LAUNCH_MACS = {False: 1 << 38, True: 1 << 42}

Networks = Mapping[str, Mapping[str, int]]  # name -> width, layers, vocabulary, seq_len


def predictions(sizes: Mapping[str, int], *, rank: int = 1, seq_len: int = 0) -> list[Prediction]:
    """Predictions for all chips at POPULATION; seq_len 0 is the network's."""
    program, T = network(sizes), seq_len or sizes["seq_len"]
    return [predict(chip, program, T, rank=rank) for chip in CHIPS]


def predict(
    chip: Chip, program: Program, seq_len: int, *, population: int = POPULATION, rank: int = 1
) -> Prediction:
    """A whole training step of `population` members and `seq_len` tokens each."""
    P, T, kind = population, seq_len, chip.kind
    M, plans, launch_macs = plans_of(kind, program, rank, P)
    stages, votes = [stage_work(plan, kind) for plan in plans], votes_work(program, rank, kind)
    products = PRODUCT_MACS * P * T * sum(s.products for s in stages)
    launches = max(1, ceil(P * T * max(plan.macs for plan in plans) / launch_macs))
    if kind is CUDA:  # a launch has an eighth of the memory, at most 2 GiB, tokens are cut first
        limits = LaunchLimits(memory=(1 << 31) - 1, macs=launch_macs, passed=2 * program.width)
        members, tokens = launch_size(launch_need(plans), limits, P, T)
        launches = ceil(P / members) * ceil(T / tokens)
    cycles = P * (T * sum(s.cycles for s in stages) + votes.cycles)
    cycles += P * launches * sum(map(kept_instructions, plans))
    bytes_moved = P * (T * sum(s.cache for s in stages) + votes.cache)
    per_core = ceil(P / M) / chip.cores
    return Prediction(
        chip,
        M,
        matrix=products / chip.macs + PRODUCT_MACS * P * votes.products / chip.vote_macs,
        other=cycles / chip.cycles,
        uneven=ceil(per_core) / per_core,
        cache=bytes_moved / chip.cache,
        memory=(P * T * sum(s.passed for s in stages) + NOISE_BYTES) / chip.memory,
        launches=(len(plans) * launches + 2) * kind.launch,
        waits=3 * kind.wait,  # for scores, votes and update
        host=HOST + HOST_SLICE * P / 2 * len(program.leaves),
        tokens=P * T,
    )


class Prediction(NamedTuple):
    """Seconds of a whole step, by their cause, and its rate."""

    chip: Chip
    members: int  # M
    matrix: float  # matrix units
    other: float  # everything else that simdgroups execute
    uneven: float  # factor: the last threadgroups leave cores idle
    cache: float
    memory: float
    launches: float
    waits: float
    host: float
    tokens: int  # of a step, over all members

    @property
    def compute(self) -> float:
        """On Apple's GPUs matrix units and the rest take turns; CUDA's are issued with the rest."""
        if self.chip.kind is CUDA:
            return max(self.matrix, self.other / ISSUE_SHARE) * self.uneven
        return (self.matrix + self.other) / BUSY * self.uneven

    @property
    def seconds(self) -> float:
        device = max(self.compute, self.cache, self.memory)
        return device + self.launches + self.waits + self.host

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def portions(self) -> tuple[float, float, float]:
        """Portions of a step: matrix units, other instructions, and the rest beside the device."""
        beside = self.launches + self.waits + self.host
        return self.matrix / self.seconds, self.other / self.seconds, beside / self.seconds


def plans_of(
    kind: GpuKind, program: Program, rank: int, population: int
) -> tuple[int, Sequence[StagePlan], int]:
    """M, a plan per stage, and the multiply-adds of a launch at most, as the engine has them."""
    if kind is CUDA:
        hopper_target = cuda_plan.target(HOPPER)
        M = cuda_plan.block_members(program, hopper_target, rank, population)
        return (
            M,
            cuda_plan.cuda_plans(program, hopper_target, members=M, rank=rank),
            LAUNCH_MACS[True],
        )
    M = best_members(program, rank, population, kind.nax)
    return M, stage_plans(program, members=M, rank=rank, nax=kind.nax), LAUNCH_MACS[False]


def network(sizes: Mapping[str, int]) -> Program:
    """The language model of these sizes."""
    return egg(sizes["vocabulary"], sizes["width"], sizes["layers"])


# The work of a step, counted.


class StageWork(NamedTuple):
    """Work of a stage per member and token; votes: per member and update."""

    products: float  # of the matrix units
    cycles: float  # of everything else
    cache: float  # bytes from the caches, or to them
    passed: float  # bytes from the stage before and to the next one


def stage_work(plan: StagePlan, kind: GpuKind) -> StageWork:
    """Counts of a stage, from the plan that its kernel is generated from."""
    products, cycles = 0.0, PHASE / 2 * len(plan.phases)
    for phase in plan.phases:
        for op in phase.rows:
            cycles_each = NORM if op.kind == "norm" else EMBED + EMBED_RANK * plan.rank
            cycles += cycles_each * plan.sizes[op.out] / 64
        for op in phase.tiles:
            if op.kind not in PRODUCTS:
                cycles += ELEMENT * plan.sizes[op.out] / 64
                continue
            O, K = plan.program.leaves[op.leaf].shape
            tiles, count, steps = plan.tiles(O), plan.tile_count(O), ceil(K / 32) * 4
            products += count * tiles * steps / 8
            cycles += kind.operand * count * steps * (tiles / plan.members + 1 / 8)
            cycles += (OUTPUT + LOW_RANK * plan.rank + kind.result) * count * tiles / 8
            cycles += SUMS * plan.rank * K / 64
    if kind is CUDA:
        cycles = instructions(plan)
    noise, D = plan.noise_bytes / 2, plan.program.width
    bytes_moved = plan.weights_read + noise + plan.spilled
    return StageWork(products, cycles, bytes_moved, D * (not plan.first) + D * plan.passes_on)


def instructions(plan: StagePlan) -> float:
    """Warp instructions of a CUDA stage per member and token."""
    total = CUDA_PASSED * (not plan.first)
    by_bytes = CUDA_BYTES * (plan.rank > 1)
    of_cuda = plan if isinstance(plan, cuda_plan.CudaPlan) else None
    for phase in plan.phases:
        octet_rows = of_cuda and of_cuda.has_octet_rows(phase)
        norm, sums = CUDA_OCTET_ROWS if octet_rows else CUDA_ROWS
        for op in phase.rows:
            each = norm if op.kind == "norm" else CUDA_EMBED + CUDA_EMBED_RANK * plan.rank
            total += each * plan.sizes[op.out] / 64
        for op in phase.tiles:
            if op.kind not in PRODUCTS:
                total += CUDA_ELEMENT * plan.sizes[op.out] / 64
                continue
            O, K = plan.program.leaves[op.leaf].shape
            octets = of_cuda and op.kind == "linear" and of_cuda.octet_tile(O)[0]
            mac, output, low_rank = CUDA_OCTETS if octets else CUDA_PRODUCT
            outputs, inputs = plan.tile_count(O) * 32, ceil(K / 32) * 32
            total += mac * outputs * inputs / 8192
            each = output + (low_rank + by_bytes) * plan.rank + SCORE * (op.kind == "score")
            total += (each * outputs + (sums + by_bytes) * plan.rank * K) / 64
    return total


def kept_instructions(plan: StagePlan) -> float:
    """The same once per launch, for the vectors that it keeps."""
    return CUDA_KEPT * sum(plan.layout[leaf].shape[0] for leaf in plan.noisy_vectors) / 64


def votes_work(program: Program, rank: int, kind: GpuKind) -> StageWork:
    """Counts of the votes per member and update: half of a pair's."""
    cells = sum(prod(leaf.shape) for leaf in program.leaves if len(leaf.shape) == 2)
    elements = sum(prod(leaf.shape) for leaf in program.leaves if len(leaf.shape) == 1)
    products = cells * rank / PRODUCT_MACS / 2
    # A tile of 64 x 64 votes reads 64 + 64 bytes of noise and two starts per pair.
    bytes_moved = cells / 4096 * (128 * rank + 8) / 2
    vote, vector = (CUDA_VOTE, CUDA_VECTOR) if kind is CUDA else (VOTE, VECTOR)
    return StageWork(products, vote * products + vector / 2 * elements, bytes_moved, 0)


# GPUs.


class GpuKind(NamedTuple):
    """Constants of a kind of GPUs. Seconds, bytes; cycles are per simdgroup."""

    operand: float  # cycles to bring 8 x 8 values of an operand into the matrix units
    result: float  # cycles that an output takes to leave them, per 64
    launch: float  # seconds of a launch
    wait: float  # seconds until the host sees that the GPU is done
    nax: bool  # kernels for NAX


SIMDGROUP = GpuKind(operand=24, result=0, launch=20e-6, wait=2.5e-3, nax=False)
NAX = GpuKind(operand=4, result=40, launch=20e-6, wait=2.5e-3, nax=True)
CUDA = GpuKind(operand=4, result=0, launch=20e-6, wait=20e-6, nax=False)


class Chip(NamedTuple):
    """A GPU."""

    name: str
    kind: GpuKind
    cores: int  # of four schedulers each
    clock: float  # Hz
    macs: float  # int8 multiply-adds per second that products reach
    cache: float  # bytes/s of the last cache that holds weights and noise
    memory: float  # bytes/s

    @property
    def cycles(self) -> float:
        """Per second, of all schedulers."""
        return 4 * self.cores * self.clock

    @property
    def vote_macs(self) -> float:
        """The rate `macs` for votes, which do not use NAX."""
        return self.cycles * PRODUCT_MACS / MATRIX_CYCLES if self.kind.nax else self.macs


MATRIX_CYCLES = 20.87  # of a product, measured on an M1; 16 is what the arithmetic takes
APPLE_CACHE = 15.4  # bytes per cycle and core from the system-level cache, measured on an M1
NAX_MACS = 1.1e12  # per core: int8, 44 TOPS measured on 20 cores
NAX_SHARE = 0.5  # assumed, as tiles of 16 x 32 are smaller than the 32 x 32 that are best


def apple(name: str, cores: int, gigahertz: float, gigabytes: float, nax: bool = False) -> Chip:
    """A GPU of Apple's; gigabytes: of memory per second."""
    clock = gigahertz * 1e9
    macs = cores * (NAX_MACS * NAX_SHARE if nax else 4 * clock * PRODUCT_MACS / MATRIX_CYCLES)
    cache = max(APPLE_CACHE * cores * clock, gigabytes * 1e9)
    return Chip(name, NAX if nax else SIMDGROUP, cores, clock, macs, cache, gigabytes * 1e9)


def hopper(name: str, gigabytes: float) -> Chip:
    """A GPU of NVIDIA's Hopper; gigabytes: of memory per second."""
    # 1979 TOPS dense, of which mma.sync reaches 62.9 %; the cache was measured for XLA.
    return Chip(name, CUDA, 132, 1.755e9, 1979e12 / 2 * 0.629, 6.65e12, gigabytes * 1e9)


CHIPS = (
    apple("M1", 8, 1.278, 68), apple("M1 Pro", 16, 1.296, 200), apple("M1 Max", 32, 1.296, 400),
    apple("M1 Ultra", 64, 1.296, 800), apple("M2", 10, 1.398, 100),
    apple("M2 Pro", 19, 1.398, 200), apple("M2 Max", 38, 1.398, 400),
    apple("M2 Ultra", 76, 1.398, 800), apple("M3", 10, 1.38, 100), apple("M3 Pro", 18, 1.38, 150),
    apple("M3 Max", 40, 1.38, 400), apple("M3 Ultra", 80, 1.38, 819), apple("M4", 10, 1.578, 120),
    apple("M4 Pro", 20, 1.578, 273), apple("M4 Max", 40, 1.578, 546),
    apple("M5", 10, 1.62, 153, nax=True), apple("M5 Pro", 20, 1.62, 307, nax=True),
    apple("M5 Max", 40, 1.62, 614, nax=True), hopper("H100 SXM", 3350), hopper("H200", 4800),
)  # fmt: skip
DRAWN_CHIPS = ("M1", "M4 Pro", "M5 Max", "H100 SXM")  # in pictures


# The tables of docs/performance.md.


def chip_table(networks: Networks) -> str:
    """Markdown: tokens per second of every chip and network, and the portions of a step."""
    names = " | ".join(f"{name}: tokens/s | of the step" for name in networks)
    rows = [f"| chip | cores | GHz | TMAC/s | GB/s | {names} |"]
    rows += ["|---|" + "---:|" * (4 + 2 * len(networks))]
    columns = [predictions(sizes) for sizes in networks.values()]
    for row in zip(*columns, strict=True):
        chip = row[0].chip
        constants = f"{chip.cores} | {chip.clock / 1e9:.3f} | {chip.macs / 1e12:,.2f}"
        cells = " | ".join(
            f"{two_digits(p.tokens_per_second)} | {percent(p.portions)}" for p in row
        )
        rows.append(f"| {chip.name} | {constants} | {chip.memory / 1e9:,.0f} | {cells} |")
    return "\n".join(rows) + "\n"


def population_table(networks: Networks, populations: Sequence[int]) -> str:
    """Markdown: tokens per second of an H100 over populations."""
    chip = next(chip for chip in CHIPS if chip.kind is CUDA)
    rows = [f"| {chip.name}, population | " + " | ".join(networks) + " |"]
    rows += ["|---:|" + "---:|" * len(networks)]
    for population in populations:
        row = [
            predict(chip, network(sizes), sizes["seq_len"], population=population)
            for sizes in networks.values()
        ]
        cells = " | ".join(
            f"{two_digits(p.tokens_per_second)} ({percent(p.portions)})" for p in row
        )
        rows.append(f"| {population:,} | {cells} |")
    return "\n".join(rows) + "\n"


def counts_table(networks: Networks) -> str:
    """Markdown: launches per update; multiply-adds and the rest per member and token."""
    columns = ("launches", "multiply-adds", "products", "other cycles", "cache", "passed")
    rows = ["| network, kernels | stage | " + " | ".join(columns) + " |"]
    rows += ["|---|---|" + "---:|" * len(columns)]
    for name, sizes in networks.items():
        program = network(sizes)
        for kernels, kind in (("simdgroup", SIMDGROUP), ("NAX", NAX), ("CUDA", CUDA)):
            _, plans, _ = plans_of(kind, program, 1, POPULATION)
            example_stages = {"embedding": plans[0], "a layer": plans[1], "head": plans[-1]}
            for stage, plan in example_stages.items():
                counts = (1, plan.macs, *stage_work(plan, kind))
                cells = " | ".join(f"{count:,.0f}" for count in counts)
                rows.append(f"| {name}, {kernels} | {stage} | {cells} |")
        for kernels, kind in (("Metal", SIMDGROUP), ("CUDA", CUDA)):
            votes = votes_work(program, 1, kind)
            cells = " | ".join(f"{n:,.0f}" for n in (2, PRODUCT_MACS * votes.products, *votes))
            rows.append(f"| {name}, {kernels} | votes, per update | {cells} |")
    return "\n".join(rows) + "\n"


def worked_example(chip: Chip, sizes: Mapping[str, int]) -> str:
    """The arithmetic of one prediction, line by line."""
    program, T, P, kind = network(sizes), sizes["seq_len"], POPULATION, chip.kind
    p = predict(chip, program, T)
    _, plans, _ = plans_of(kind, program, 1, P)
    stages, votes = [stage_work(plan, kind) for plan in plans], votes_work(program, 1, kind)

    def total(field: str) -> str:
        values = [getattr(stage, field) for stage in stages]
        tokens = " + ".join(f"{value:,.0f}" for value in values)
        total_value = f"{sum(values) + getattr(votes, field) / T:,.0f}"
        return f"{tokens} + {getattr(votes, field):,.0f} / {T} = {total_value}"

    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:,.2f} ms"

    device = max(("compute", "cache", "memory"), key=lambda name: float(getattr(p, name)))
    return f"""\
P = {P:,} members, T = {T} tokens, M = {p.members}: {p.tokens:,} member-tokens a step
per member-token, stages in order + votes / T:
  products      {total("products")}
  other cycles  {total("cycles")}
  cache bytes   {total("cache")}
matrix rate     {chip.macs / 1e12:.3f} TMAC/s
schedulers      4 x {chip.cores} x {chip.clock / 1e9} GHz = {chip.cycles / 1e9:.2f} G cycles/s
matrix          products x 512 x {p.tokens:,} / matrix rate = {ms(p.matrix)}
other           cycles x {p.tokens:,} / schedulers = {ms(p.other)}
compute         (matrix + other) / {BUSY} x {p.uneven:.3f} (last threadgroups) = {ms(p.compute)}
cache           bytes x {p.tokens:,} / {chip.cache / 1e9:,.0f} GB/s = {ms(p.cache)}
memory          {ms(p.memory)} at {chip.memory / 1e9:,.0f} GB/s
device          the longest of the three, {device}: {ms(max(p.compute, p.cache, p.memory))}
launches        {p.launches / kind.launch:.0f} x {1e6 * kind.launch:.0f} us = {ms(p.launches)}
waits           3 x {ms(kind.wait)} = {ms(p.waits)}
host            {ms(HOST)} + {P // 2:,} pairs x {len(program.leaves)} leaves x 6 ns = {ms(p.host)}
step            {ms(p.seconds)}: {p.tokens_per_second:,.0f} tokens/s
"""


def percent(shares: tuple[float, ...]) -> str:
    """Shares of 1 in percent."""
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def two_digits(value: float) -> str:
    """A prediction in two digits, as no more are known."""
    return f"{float(f'{value:.2g}'):,.0f}"
