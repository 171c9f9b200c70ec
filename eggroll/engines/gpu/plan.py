"""The plan of a stage on a GPU: phases between barriers, places of registers, costs.

The figures are those of Apple GPUs; `CudaPlan` has those of NVIDIA's. Letters: M members of a
threadgroup, P members, T tokens, D width, V vocabulary, K inputs and O outputs of an operation, r
rank. Nothing here needs MLX or a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

from eggroll.spec.program import Op, Program, S, X

# A simdgroup per pair runs them, as they read across a member's features, its inputs or indices.
ROW_KINDS = ("embed", "norm", "input", "features")
PRODUCTS = ("linear", "score", "sums")
ALONE = ("score", "sums")  # products whose tiles no other operation shares
MEMBERS = (32, 16, 8)  # that a threadgroup may hold
SHARED_BYTES = 32768  # of threadgroup memory on every Apple GPU
NAX_BYTES = 1024  # of that, left to matmul2d
PAD = 32  # outputs and inputs of a packed matrix are multiples of it
GAP = 4  # bytes after a row of M, so that rows begin in different banks
FULL_GROUPS = 64  # threadgroups that keep a GPU of 40 cores busy, at least


class StagePlan:
    """One stage for threadgroups of M members with noise of rank r (0: without noise).

    nax: products by matmul2d, whose tiles are 16 x 16 n and lie in rows without gaps. puts_out:
    whether the caller has the program's outputs, and no score.
    """

    blocks = 0  # that a multiprocessor must have registers for; 0 if none is said
    left_out: ClassVar[tuple[str, ...]] = ("output", "sums")  # where the caller has no outputs

    def __init__(
        self,
        program: Program,
        index: int,
        *,
        members: int,
        rank: int,
        nax: bool = False,
        puts_out: bool = False,
    ) -> None:
        stage = program.stages[index]
        self.program, self.stage, self.members = program, stage, members
        self.rank, self.perturbed = rank, rank > 0
        self.first, self.passes_on = index == 0, index < len(program.stages) - 1
        self.sizes = stage.registers
        left_out = ("score",) if puts_out else self.left_out
        self.ops = [op for op in stage.ops if op.kind not in left_out]
        self.results = [op for op in self.ops if puts_out and op.kind in ("output", "sums")]
        self.phases = phases(self.ops, self.sizes)
        self.simdgroups = 8 if program.width >= 128 else 4
        self.shared_bytes = SHARED_BYTES - (NAX_BYTES if nax else 0)
        self.nax, self.stride = nax, members + (0 if nax else GAP)
        self.scores = any(op.kind == "score" for op in self.ops)
        self.layout = self._layout()

    def _layout(self) -> dict[int, Layout]:
        """Program leaf -> its layout; matrices of products are padded, the rest is as it is."""
        out: dict[int, Layout] = {}
        offset = 0
        for op in self.stage.ops:
            if op.leaf < 0 or op.leaf in out:
                continue
            shape = self.program.leaves[op.leaf].shape
            out[op.leaf] = Layout(offset, len(out), shape)
            size = shape[0] * (shape[1] if len(shape) == 2 else 1)
            offset += padded(shape[0]) * padded(shape[1]) if op.kind in PRODUCTS else padded(size)
        self.weight_bytes = offset
        return out

    def extent(self, op: Op) -> int:
        """Elements that an operation of a tile phase makes."""
        if op.kind in ALONE:
            return self.program.leaves[op.leaf].shape[0]
        return extent(op, self.sizes)

    def tiles(self, outputs: int) -> int:
        """Rows of 8 outputs that a simdgroup computes at a time: 4, or fewer to use them all."""
        if self.nax:
            return 2
        return next((n for n in (4, 2) if outputs >= 8 * n * self.simdgroups), 1)

    def tile_count(self, outputs: int) -> int:
        return -(-outputs // (8 * self.tiles(outputs)))

    @cached_property
    def lives(self) -> dict[int, tuple[int, int]]:
        """Register in memory -> first and last half-phase (rows, tiles) in which it is needed."""
        writes: dict[int, list[int]] = {}
        last_read: dict[int, int] = {}
        for i, phase in enumerate(self.phases):
            for half, ops in ((2 * i, phase.rows), (2 * i + 1, phase.tiles)):
                in_tile: set[int] = set()
                for op in ops:
                    for r in op.inputs:
                        if half % 2 == 0 or r not in in_tile or r in registers_read_across(op):
                            last_read[r] = half
                    if not op.writes:
                        continue
                    in_tile.add(op.out)
                    writes.setdefault(op.out, []).append(half)
                    if op.kind in ROW_KINDS:  # writes to memory, read or not
                        last_read.setdefault(op.out, half)
        end, both = 2 * len(self.phases), last_read.keys() & writes.keys()
        lives = {r: (writes[r][0], max(last_read[r], *writes[r])) for r in both}
        return lives | {r: (-1, end) for r in (X, S) if r in last_read or r in writes}

    def stores(self, op: Op) -> bool:
        """True if an operation's result goes to memory, not only on to its own tile."""
        return op.writes and op.out in self.lives

    @cached_property
    def traffic(self) -> dict[int, int]:
        """Register -> bytes a member reads and writes of it per token."""
        total = dict.fromkeys(self.lives, 0)
        for phase in self.phases:
            for op in (*phase.rows, *phase.tiles):
                if op.out in total:
                    total[op.out] += self.sizes[op.out]
                outputs = self.extent(op) if op.kind == "sums" else self.sizes[op.out]
                for r in op.inputs:
                    reads = self.tile_count(outputs) if op.kind in PRODUCTS else 1
                    if r in total:
                        total[r] += reads * self.sizes[r]
        return total

    @property
    def sums_bytes(self) -> int:
        """Bytes of x B, int32 [products of a phase][r][M]."""
        most = max((len(phase.products) for phase in self.phases), default=0)
        return 4 * most * self.rank * self.members if self.perturbed else 0

    @property
    def spare_bytes(self) -> int:
        """A tile of products, int32 [16][M], of every simdgroup."""
        products = any(phase.products for phase in self.phases)
        return 4 * 16 * self.members * self.simdgroups if self.nax and products else 0

    @property
    def likelihood_bytes(self) -> int:
        """Bytes of a head's sums of EXP2 per simdgroup, and of the targets' logits."""
        return (8 * self.simdgroups + 4) * self.members if self.scores else 0

    @property
    def extra_bytes(self) -> int:
        """Bytes of threadgroup memory that a derived plan needs besides."""
        return 0

    @property
    def noisy_vectors(self) -> dict[int, int]:
        """Leaf -> offset in device memory of a vector with its noise, where a launch keeps it."""
        return {}

    @property
    def sums_shared(self) -> bool:
        return self.sums_bytes <= self.shared_bytes // 4

    @cached_property
    def places(self) -> dict[int, Place]:
        """Home of every register: those that are read most stay in threadgroup memory."""
        fixed = self.spare_bytes + (self.sums_bytes if self.sums_shared else 0)
        fixed += self.likelihood_bytes + self.extra_bytes
        shared: set[int] = set()
        for r in sorted(self.lives, key=lambda r: (-self.traffic[r] / self.sizes[r], r)):
            if self.rows(self._pack(shared | {r})) * self.stride + fixed <= self.shared_bytes:
                shared.add(r)
        out = {r: Place(True, row) for r, row in self._pack(shared).items()}
        rest = self._pack(set(self.lives) - shared)
        return out | {r: Place(False, row) for r, row in rest.items()}

    def _pack(self, registers: set[int]) -> dict[int, int]:
        """First row of each register; registers that live at different times may share rows."""
        rows: dict[int, int] = {}
        for r in sorted(registers, key=lambda r: (self.lives[r], r)):
            (begin, end), size = self.lives[r], padded(self.sizes[r])
            occupied = sorted(
                (rows[o], rows[o] + padded(self.sizes[o]))
                for o in rows
                if self.lives[o][0] <= end and begin <= self.lives[o][1]
            )
            row = 0
            for low, high in occupied:
                if row + size <= low:
                    break
                row = max(row, high)
            rows[r] = row
        return rows

    def rows(self, packed: dict[int, int]) -> int:
        return max((row + padded(self.sizes[r]) for r, row in packed.items()), default=0)

    @property
    def shared_rows(self) -> int:
        return self.rows({r: p.row for r, p in self.places.items() if p.shared})

    @property
    def scratch_bytes(self) -> int:
        """Bytes of device memory of one threadgroup, for what threadgroup memory does not hold."""
        return self.spilled_rows * self.stride + (0 if self.sums_shared else self.sums_bytes)

    @cached_property
    def spilled_rows(self) -> int:
        """Rows of registers in device memory."""
        return self.rows({r: p.row for r, p in self.places.items() if not p.shared})

    @property
    def weights_read(self) -> float:
        """Bytes of weights per member and token; rows of embeddings and features are not shared."""
        ops = [op for op in self.stage.ops if op.kind in ("embed", "features")]
        shapes = [self.program.leaves[op.leaf].shape for op in ops]
        own = sum(rows_read(op) * D for op, (_, D) in zip(ops, shapes, strict=True))
        return (self.weight_bytes - sum(padded(n * D) for n, D in shapes)) / self.members + own

    @property
    def spilled(self) -> int:
        """Bytes of registers in device memory, read and written per member and token."""
        return sum(self.traffic[r] for r, place in self.places.items() if not place.shared)

    @property
    def barriers(self) -> int:
        """Threadgroup barriers per token: after each half of a phase, and after the token."""
        return 1 + sum(self.has_rows(p) + bool(p.tiles) for p in self.phases)

    def has_rows(self, phase: Phase) -> bool:
        return bool(phase.rows or (self.perturbed and phase.products))

    @property
    def noise_bytes(self) -> int:
        """Bytes of the noise table that a pair reads per token."""
        total = 0
        for op in self.stage.ops:
            if op.leaf < 0 or not self.perturbed:
                continue
            shape = self.program.leaves[op.leaf].shape
            if op.kind in ("embed", "features"):
                total += self.rank * (shape[1] + 2 * rows_read(op))
            else:
                total += self.rank * sum(shape) if len(shape) == 2 else 2 * shape[0]
        return total

    @property
    def macs(self) -> int:
        """Int8 multiply-adds per member and token: W x, and the low-rank x B and A (x B).

        The sum of a row of features counts as much as a product with one.
        """
        total = 0
        for op in self.ops:
            if op.kind in PRODUCTS:
                O, K = self.program.leaves[op.leaf].shape
                total += O * K + (self.rank * (O + K) if self.perturbed else 0)
            if op.kind == "features":
                total += rows_read(op) * self.program.leaves[op.leaf].shape[1]
        return total


@dataclass(frozen=True)
class Layout:
    """A leaf in a stage's packed weights: byte offset, and its place among the leaves."""

    offset: int
    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A register's home: in threadgroup memory or in device memory, from row `row`."""

    shared: bool
    row: int


def padded(n: int) -> int:
    """n rounded up to a multiple of PAD."""
    return -(-n // PAD) * PAD


def rows_read(op: Op) -> int:
    """Rows of its leaf that `embed` or `features` reads of a token, at most."""
    return op.numbers[0] * op.numbers[1] if op.kind == "features" else 1


@dataclass
class Phase:
    """Row operations, then a barrier, then operations that share output tiles, then a barrier."""

    rows: list[Op] = field(default_factory=list)
    tiles: list[Op] = field(default_factory=list)

    @property
    def products(self) -> list[Op]:
        return [op for op in self.tiles if op.kind in PRODUCTS]


def phases(ops: list[Op], sizes: list[int]) -> list[Phase]:
    """Operations in program order, cut where one needs what other lanes have just written."""
    out = [Phase()]
    for op in ops:
        tiles = out[-1].tiles
        if op.kind in ROW_KINDS:
            if tiles:
                out.append(Phase())
            out[-1].rows.append(op)
        else:
            if tiles and not joins(op, tiles, sizes):
                out.append(Phase())
            out[-1].tiles.append(op)
    return out


def joins(op: Op, tiles: list[Op], sizes: list[int]) -> bool:
    """True if `op` may share output tiles with `tiles`."""
    written = {other.out for other in [*tiles, op] if other.writes}
    read_across = {r for other in [*tiles, op] for r in registers_read_across(other)}
    same_extent = extent(op, sizes) == extent(tiles[0], sizes)
    alone = op.kind in ALONE or tiles[-1].kind in ALONE
    return same_extent and not alone and not read_across & written


def registers_read_across(op: Op) -> tuple[int, ...]:
    """Registers whose other elements the operation reads, not only the one it writes."""
    return op.inputs if op.kind in (*PRODUCTS, *ROW_KINDS, "concat") else ()


def extent(op: Op, sizes: list[int]) -> int:
    """Elements that an operation goes through; a product beside its tiles of outputs."""
    return sizes[op.inputs[0] if op.kind == "output" else op.out]


def stage_plans(
    program: Program, *, members: int, rank: int, nax: bool = False, puts_out: bool = False
) -> list[StagePlan]:
    """A plan per stage for threadgroups of `members`."""
    of = range(len(program.stages))
    return [
        StagePlan(program, i, members=members, rank=rank, nax=nax, puts_out=puts_out) for i in of
    ]


def best_members(program: Program, rank: int, population: int, nax: bool = False) -> int:
    """M for a network: the least traffic among those that give a GPU enough threadgroups."""

    def streamed(members: int) -> float:
        plans = stage_plans(program, members=members, rank=rank, nax=nax)
        return sum(plan.weights_read + plan.spilled for plan in plans)

    choice = [m for m in MEMBERS if m % 16 == 0 or not nax]
    full = [m for m in choice if -(-population // m) >= FULL_GROUPS] or choice[-1:]
    return min(full, key=streamed)


# Costs, counted from plans.


class StageCost(NamedTuple):
    """The cost of a stage: launches per update and chunk, the rest per member and token."""

    launches: int
    barriers: int  # of a threadgroup
    macs: int  # int8 multiply-adds
    weights: float  # bytes, M members share them
    noise: float  # bytes, a pair shares them
    registers: int  # bytes that do not stay in threadgroup memory
    passed: int  # bytes from the stage before and to the next one


def stage_cost(plan: StagePlan) -> StageCost:
    """Counts of a stage, from the plan that its kernel is generated from."""
    D = plan.program.width
    return StageCost(
        launches=1,
        barriers=plan.barriers,
        macs=plan.macs,
        weights=plan.weights_read,
        noise=plan.noise_bytes / 2,
        registers=plan.spilled,
        passed=D * (not plan.first) + D * plan.passes_on,
    )


def cost_table(program: Program, rank: int, population: int) -> str:
    """Markdown: the cost of every kind of stage of a network, as docs/metal.md has it."""
    M = best_members(program, rank, population)
    return format_costs(stage_plans(program, members=M, rank=rank))


def format_costs(plans: Sequence[StagePlan]) -> str:
    """The table of `cost_table`, from the plans of embedding, layers and head."""
    names = ["embedding", *["layer"] * (len(plans) - 2), "head"]
    rows = [
        "| stage | " + " | ".join(StageCost._fields) + " |",
        "|---|" + "---:|" * len(StageCost._fields),
    ]
    for name, plan in zip(names, plans, strict=True):
        counts = " | ".join(f"{count:,.0f}" for count in stage_cost(plan))
        row = f"| {name} | {counts} |"
        rows += [row] * (row not in rows)
    return f"M = {plans[0].members} members\n\n" + "\n".join(rows) + "\n"


def matrix_macs(program: Program) -> int:
    """Multiply-adds of all matrices, of a member's token or of a pair's votes; at least 1."""
    shapes = [leaf.shape for leaf in program.leaves]
    return max(1, sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2))
