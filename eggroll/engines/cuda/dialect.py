"""The words of CUDA: a lane holds four outputs, a quad, of two members, as words x and y."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from eggroll.engines.cuda.plan import EXP2_WORDS, CudaPlan
from eggroll.engines.gpu.dialect import VOTE_THREADS, Dialect
from eggroll.engines.gpu.plan import StagePlan
from eggroll.program import Op

KINDS = {"uint": "uint32_t", "ulong": "uint64_t"}
WORDS = ("add", "add_bias", "bias", "forget", "mix")  # operations that take four features at once
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
    """CUDA C++, with the matrix product named `product` (of cuda.plan.PRODUCTS)."""

    product: str

    folder, suffix = "cuda", ".cu"
    constant, simdgroups = "constexpr int", "WARPS"
    uint, ulong = KINDS["uint"], KINDS["ulong"]
    group = stage_group = "blockIdx.x"
    part, thread = "blockIdx.y", f"blockIdx.x * {VOTE_THREADS} + threadIdx.x"
    unit, logit, value = ("uint32_t", 4), ("uint32_t", 4), "uint2"
    kept = "uint2", 8
    element, feature = "[j]", "quad"
    beside, in_group, in_lane = 8, "lane.thread", "lane.warp"
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
    vote_lane = "egg::lane_of(threadIdx.x)"
    traces = TRACES

    def array(self, kind: str, name: str, values: Sequence[int], *, gathered: bool = False) -> str:
        text = ", ".join(f"{v}{'ull' * (kind == 'ulong')}" for v in values)
        # Constant memory serves one address at a time.
        space, kind = "__device__" if gathered else "__constant__", KINDS.get(kind, kind)
        return f"{space} const {kind} {name}[{len(values)}] = {{{text}}};\n"

    def share(self, kind: str, name: str, count: int, offset: int) -> list[str]:
        declared = [f"EGG_SHARED({kind}, {name}, {offset}, {count});"]
        return declared if offset else ["EGG_SHARED_MEMORY;", *declared]

    def barrier(self, device: bool) -> str:
        return "__syncthreads();"

    def lane(self, plan: StagePlan) -> str:
        return "egg::lane_of(threadIdx.x)"

    def header(self, constants: str, files: Sequence[str]) -> str:
        pack = "pack_bytes" if self.product == "dp4a" else "pack_sat"
        return super().header(constants, [pack, *files])

    def product_files(self, plan: StagePlan) -> list[str]:
        return ["words", f"mma_{self.product}", "product_mma"]

    @property
    def vote_files(self) -> list[str]:
        return ["noise", "common", f"mma_{self.product}", "vote_product"]

    def product_input(self, plan: StagePlan, register: int) -> str:
        return f"r{register}"

    def rows_of(self, size: int) -> int:
        """Quads of whole octets."""
        return -(-size // 8) * 2

    def taped(self, plan: StagePlan, values: str) -> str:
        return f"reinterpret_cast<const uint32_t*>({values})"

    def row_loop(self) -> list[str]:
        return [
            "for (uint32_t pair = egg::lane_again(threadIdx.x).warp; "
            "pair < M / 2; pair += WARPS) {",
            "const egg::Row row = egg::row_of(pair, lane);",
        ]

    def _columns(self, plan: StagePlan, outputs: int, head: bool) -> int:
        """Groups of 8 members in a tile. A head's has all, so that sums need not tell which."""
        return plan.members // 8 if head else cast(CudaPlan, plan).columns(outputs)

    def tile_loop(self, plan: StagePlan, outputs: int, head: bool) -> list[str]:
        tiles, columns = plan.tile_count(outputs), self._columns(plan, outputs, head)
        parts = plan.members // 8 // columns
        # Neighbouring warps share a tile's weights.
        return [
            "const egg::Lane lane = egg::lane_again(threadIdx.x);",
            f"for (uint32_t item = lane.warp; item < {tiles * parts}; item += WARPS) {{",
            f"const uint32_t tile = item / {parts}, column = item % {parts} * {8 * columns};",
        ]

    def tile_values(self, plan: StagePlan, name: str, outputs: int, head: bool) -> str:
        return f"uint2 {name}[{'M / 8' if head else self._columns(plan, outputs, False)}];"

    def tile_sums(self, plan: StagePlan, name: str, outputs: int) -> str:
        return f"int {name}[2][{self._columns(plan, outputs, False)}][4];"

    def element_loop(self, plan: StagePlan, outputs: int, head: bool = False) -> list[str]:
        return [
            "const uint32_t quad = 8 * tile + lane.group;",
            "#pragma unroll",
            f"for (int j = 0; j < {self._columns(plan, outputs, head)}; ++j) {{",
            "const uint32_t member = column + 8 * j + 2 * lane.quad;",
        ]

    def elementwise(self, op: Op, operands: Sequence[str], argument: str) -> list[str]:
        lines, of_word = [], "@" in argument
        for part in "xy":
            words = [f"{name}.{part}" for name in operands]
            words += [argument.replace("@", part)] * of_word
            if op.kind in WORDS:
                made = f"egg::{op.kind}({', '.join(words)})"
            else:
                rest = [argument] * bool(argument and not of_word)
                each = (
                    [*(f"egg::byte_of({word}, {e})" for word in words), *rest] for e in range(4)
                )
                calls = (f"egg::{op.kind}({', '.join(values)})" for values in each)
                made = f"egg::packed({', '.join(calls)})"
            lines.append(f"const uint32_t {part} = {made};")
        return ["{", *lines, f"v{op.out}[j] = make_uint2(x, y);", "}"]

    def bias(self, name: str, size: int, arguments: str, kept: bool) -> tuple[str, str]:
        if kept:
            return (
                f"const uint2 {name} = egg::kept_of<{size}>({arguments}, member)[quad];",
                f"{name}.@",
            )
        halves = (
            f"egg::perturbed<{size}>({arguments}, member, quad, {odd})" for odd in ("false", "true")
        )
        return f"const uint2 {name} = make_uint2({', '.join(halves)});", f"{name}.@"

    def tile_bytes(self, width: int, members: int) -> int:
        """[D / 8][M][8]"""
        return -(-width // 8) * 8 * members
