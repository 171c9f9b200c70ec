"""The Metal engine: a threadgroup of members runs all T tokens of a stage in one launch.

Kernels are compiled at run time from the sources in extensions/int8_gemm; see docs/metal.md. NAX
are the newer matrix units. Letters: P members, M of a threadgroup, D width, K inputs, O outputs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx
import nax_check

from eggroll.engines import trial
from eggroll.engines.gpu.backward_plan import BackwardPlan, backward_plans
from eggroll.engines.gpu.credit import CreditPlan, credit_plans
from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.gpu.launch import Launcher, Pace, kernel_name, launcher, whole_portions
from eggroll.engines.gpu.plan import MEMBERS, Phase, StagePlan, best_members, padded, stage_plans
from eggroll.spec.credit import Crediting
from eggroll.spec.program import Op, Program

ENGINE = "eggroll.engines.metal:MetalEngine"
SWITCH = "EGGROLL_NAX"  # 0 leaves NAX unused
TRIAL_SECONDS = 300  # most of it for the compiler, which sees some 40 kernels


@cache
def compiled(source: KernelSource, dtypes: tuple[mx.Dtype, ...]) -> Any:
    """The kernel as MLX compiles it, for arrays of any types."""
    return mx.fast.metal_kernel(
        name=kernel_name(source),
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
    )


launch = launcher(compiled)


class MetalEngine(GpuEngine):
    """Custom Metal kernels.

    nax switches NAX on or off (None: on where a trial on this machine gives the right integers).
    """

    name = "metal"
    group_sizes: ClassVar[tuple[int, ...]] = MEMBERS

    @classmethod
    def unavailable_because(cls) -> str:
        """No GPU, or small networks do not come out as on the cpu engine; see trial.py."""
        if not mx.metal.is_available():
            return "MLX finds no Metal GPU"
        why = trial_error(False)
        return f"its trial on this GPU failed: {why}" if why else ""

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        block_tokens: int = 0,
        *,
        launcher: Launcher = launch,
        members: int = 0,
        nax: bool | None = None,
    ) -> None:
        pace = Pace(waits=launcher is launch)
        super().__init__(program, threads, block_tokens, Metal(), launcher, members, pace)
        if pace.waits:
            whole_portions()
        self.nax_failure = nax_failure() if nax is None else ""
        self.nax = not nax_unused_because() if nax is None else nax

    @property
    def description(self) -> str:
        unused = f"; NAX is not used: {self.nax_failure}" if self.nax_failure else ""
        return f"metal ({'NAX' if self.nax else 'simdgroup matrices'}{unused})"

    @property
    def remedy(self) -> str:
        return f"{SWITCH}=0 leaves NAX unused; " if self.nax else ""

    def plans(self, members: int, rank: int, puts_out: bool = False) -> list[StagePlan]:
        options = {"members": members, "rank": rank}
        return stage_plans(self.program, **options, nax=self.nax, puts_out=puts_out)

    def credit_plans(
        self, crediting: Crediting, members: int, puts_out: bool = False
    ) -> list[CreditPlan]:
        program, nax = self.program, self.nax
        return credit_plans(program, crediting, members=members, nax=nax, puts_out=puts_out)

    def backward_plans(self, feedback_leaves: frozenset[int], members: int) -> list[BackwardPlan]:
        return backward_plans(self.program, feedback_leaves, members=members, nax=self.nax)

    def choose_members(self, P: int, rank: int) -> int:
        return best_members(self.program, rank, P, self.nax)

    def packed(self, w: mx.array) -> mx.array:
        return pad_matrix(w) if self.nax else packed(w)

    def memory(self) -> int:
        """An eighth of the working set."""
        if not mx.metal.is_available():
            return 1 << 30
        return min(int(mx.device_info()["max_recommended_working_set_size"]) // 8, (1 << 31) - 1)


def nax_unused_because() -> str:
    """The reason why this engine does not use NAX here; empty if it does."""
    return nax_untried_because() or nax_failure()


def nax_untried_because() -> str:
    """The reason why this engine does not try NAX here; empty if it does.

    Its kernels are compiled at run time, so that MLX's own need not be there; see nax_check.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    if not mx.metal.is_available():
        return "MLX finds no Metal GPU"
    unmet = nax_check.decide(facts()).obstacles
    return "; ".join(f"{reason.name}: {reason.text}" for reason in unmet)


def nax_failure() -> str:
    """The reason why NAX failed its trial; empty if it passed or was not tried."""
    why = "" if nax_untried_because() else trial_error(True)
    return f"its trial failed: {why}" if why else ""


@cache
def trial_error(nax: bool) -> str:
    """The reason why the engine's trial failed; empty if it passed."""
    machine = facts()
    key = {
        "chip": machine.chip, "architecture": machine.architecture, "override": machine.override,
        "os": machine.os_version, "wheel": machine.wheel,
    }  # fmt: skip
    return trial.trial_error(ENGINE, TRIAL_SECONDS, facts=key, options={"nax": nax})


@cache
def facts() -> nax_check.Facts:
    """The facts of this machine, read once."""
    whole_portions()  # first, as MLX opens the GPU to tell of it
    return nax_check.read_facts()


def pad_matrix(w: mx.array) -> mx.array:
    """A matrix [O, K] as NAX reads it: rows after each other, with zeros up to multiples of PAD."""
    O, K = w.shape
    return mx.pad(w, [(0, padded(O) - O), (0, padded(K) - K)]).reshape(-1)


def packed(w: mx.array) -> mx.array:
    """A matrix [O, K] as `product` reads it: [O/8][K/32][lane][4 steps][2], flat.

    Lane bits 4, 2, 1 are the row of an 8 x 8 matrix, bits 3, 0 and the element its column.
    """
    O, K = w.shape
    w = pad_matrix(w).reshape(padded(O) // 8, 2, 2, 2, padded(K) // 32, 4, 2, 2, 2)
    return w.transpose(0, 4, 1, 6, 2, 3, 7, 5, 8).reshape(-1)


TRACES = """\
egg::Tape of;
of.tape = tape;
of.credits = credits;
of.pairs = sizes[2];
of.T = sizes[3];
of.begin = sizes[4];
of.total = sizes[5];
of.rows = sizes[6];
of.quads = sizes[7];
of.all_quads = sizes[8];
const uint inputs = sizes[1], at = $thread;
if (at < inputs * of.all_quads) {
  const uint group = at / (inputs * of.quads), rest = at % (inputs * of.quads);
  const uint input = rest / of.quads;
  const egg::Trace trace = egg::trace_at(work, sizes[0], input);
  egg::follow(sums, of, trace, input - trace.first, group * of.quads + rest % of.quads);
}
"""


@dataclass(frozen=True)
class Metal(Dialect):
    """MSL, for 8 x 8 simdgroup matrices or, where a plan has `nax`, for matmul2d."""

    folder, suffix = "metal", ".metal"
    includes = (
        "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
    )
    constant, simdgroups = "constant constexpr int", "SIMDGROUPS"
    uint, ulong = "uint", "ulong"
    device, threadgroup = "device ", "threadgroup "
    group, stage_group = "threadgroup_position_in_grid.x", "first / M"
    part, thread = "threadgroup_position_in_grid.y", "thread_position_in_grid.x"
    unit, logit, value = ("char2", 2), ("int8_t", 1), "char2"
    element, feature = "[i][j]", "o"
    adjacent, in_group, in_lane = 1, "lane.in_group", "lane.simdgroup"
    row, tile, tile_template = "member, lane", "tile, lane", ", TILES"
    # In an address space that a kernel's template can take.
    no_sums = "const int sums[1] = {0};", "sums"
    state_barrier = True
    vote_staging = {"carry_votes": ("stage_carried",)}  # noqa: RUF012
    vote_memory = """\
EGG_SHARED(int8_t, left, egg::SIDE * egg::LEFT);
EGG_SHARED(int8_t, right, egg::DEPTH * egg::RIGHT);
"""
    vote_bytes = 64 * (32 + 4) + 32 * (64 + 4)
    vote_lane = "thread_index_in_simdgroup, simdgroup_index_in_threadgroup"
    traces = TRACES
    # Units that are stored in an array of a larger type: its type and bytes, and the array's name.
    wider = {"char2": ("uint4", 16, "aligned"), "int8_t": ("char4", 4, "kept")}  # noqa: RUF012

    def array(self, kind: str, name: str, values: Sequence[int], *, gathered: bool = False) -> str:
        text = ", ".join(f"{v}{'ul' * (kind == 'ulong')}" for v in values)
        return f"constant {kind} {name}[{len(values)}] = {{{text}}};\n"

    def share(self, kind: str, name: str, count: int, offset: int) -> list[str]:
        if kind not in self.wider:
            return [f"EGG_SHARED({kind}, {name}, {count});"]
        # Of 16 bytes each, as matrix units may want their operands aligned.
        wide, size, array = self.wider[kind]
        units = size // (2 if kind == "char2" else 1)
        cast = f"reinterpret_cast<threadgroup {kind}*>({array})"
        return [
            f"EGG_SHARED({wide}, {array}, {-(-count // units)});",
            f"threadgroup {kind}* const {name} = {cast};",
        ]

    def barrier(self, device: bool) -> str:
        more = " | mem_flags::mem_device" * device
        return f"threadgroup_barrier(mem_flags::mem_threadgroup{more});"

    def lane(self, plan: StagePlan) -> str:
        spare = "nullptr"
        if plan.spare_bytes:
            each = plan.spare_bytes // 4 // plan.simdgroups
            spare = f"spare + simdgroup_index_in_threadgroup * {each}"
        return f"egg::lane_of(thread_index_in_simdgroup, simdgroup_index_in_threadgroup, {spare})"

    def product_files(self, plan: StagePlan) -> list[str]:
        return ["product_nax" if plan.nax else "product_simdgroup"]

    @property
    def vote_files(self) -> list[str]:
        return ["vote_product"]

    def product_input(self, plan: StagePlan, register: int) -> str:
        if not plan.nax:
            return f"r{register}"
        space = "threadgroup" if plan.places[register].shared else "device"
        return f"reinterpret_cast<{space} int8_t*>(r{register})"

    def tape_pointer(self, plan: StagePlan, values: str) -> str:
        return values if plan.nax else f"reinterpret_cast<device char2*>({values})"

    def row_loop(self, plan: StagePlan, phase: Phase) -> list[str]:
        return ["for (uint member = 2 * lane.simdgroup; member < M; member += 2 * SIMDGROUPS) {"]

    def tile_loop(self, plan: StagePlan, outputs: int, head: bool) -> list[str]:
        count = plan.tile_count(outputs)
        return [
            f"constexpr uint TILES = {plan.tiles(outputs)};",
            f"for (uint tile = lane.simdgroup; tile < {count}; tile += SIMDGROUPS) {{",
        ]

    def tile_values(self, plan: StagePlan, name: str, outputs: int, head: bool) -> str:
        return f"char2 {name}[TILES][M / 8];"

    def tile_sums(self, plan: StagePlan, name: str, outputs: int) -> str:
        return f"int2 {name}[TILES][M / 8];"

    def element_loop(self, plan: StagePlan, outputs: int, head: bool = False) -> list[str]:
        return [
            "EGG_EACH(i, TILES) EGG_EACH(j, M / 8) {",
            "const uint o = 8 * (tile * TILES + i) + lane.row, member = 8 * j + lane.column;",
        ]

    def elementwise(self, op: Op, operands: Sequence[str], argument: str) -> list[str]:
        pair = []
        for half in "xy":
            values = [f"{name}.{half}" for name in operands]
            values += [argument.replace("@", half)] if argument else []
            pair.append(f"egg::{op.kind}({', '.join(values)})")
        return [f"v{op.out}[i][j] = egg::both({pair[0]}, {pair[1]});"]

    def bias(self, name: str, size: int, arguments: str, stored: bool) -> tuple[str, str]:
        # Rows past the last output read the last bias; their results are never read.
        call = f"egg::perturbed({arguments}, member, min(o, {size - 1}u))"
        return f"const int2 {name} = {call};", f"{name}.@"

    def tile_bytes(self, width: int, members: int) -> int:
        """[D][M]"""
        return width * members
