"""The words of Metal: a lane holds outputs o of two members, as half of an 8 x 8 matrix's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eggroll.engines.gpu.dialect import Dialect
from eggroll.engines.gpu.plan import StagePlan
from eggroll.program import Op

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
    beside, in_group, in_lane = 1, "lane.in_group", "lane.simdgroup"
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
    # Units that are kept in an array of a larger type: its type and bytes, and the array's name.
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

    def taped(self, plan: StagePlan, values: str) -> str:
        return values if plan.nax else f"reinterpret_cast<device char2*>({values})"

    def row_loop(self) -> list[str]:
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
        for part in "xy":
            values = [f"{name}.{part}" for name in operands]
            values += [argument.replace("@", part)] if argument else []
            pair.append(f"egg::{op.kind}({', '.join(values)})")
        return [f"v{op.out}[i][j] = egg::both({pair[0]}, {pair[1]});"]

    def bias(self, name: str, size: int, arguments: str, kept: bool) -> tuple[str, str]:
        # Rows past the last output read the last bias; their results are never read.
        call = f"egg::perturbed({arguments}, member, min(o, {size - 1}u))"
        return f"const int2 {name} = {call};", f"{name}.@"

    def tile_bytes(self, width: int, members: int) -> int:
        """[D][M]"""
        return width * members
