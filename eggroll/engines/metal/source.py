"""The Metal source of a stage, generated from its plan: constants, kernel files, then the body.

The operations themselves are written in extensions/int8_gemm/metal, one file each, ASCII.
Letters: M members of a threadgroup, T tokens, V vocabulary, K inputs and O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Callable

from eggroll import fixed_point as fx
from eggroll.engines.gpu.plan import Phase, StagePlan
from eggroll.engines.gpu.text import INCLUDES, Source, array, constants, kernel_file
from eggroll.program import Op, S, X

VOTE_SIDE = 64  # SIDE of vote_product.metal


class Writer:
    """Lines of a kernel body; what a derived one adds to a stage it adds in `opening` and so on."""

    def __init__(self, plan: StagePlan, logits: bool, shift: int = 0) -> None:
        self.plan, self.logits, self.shift = plan, logits, shift
        self.rank, self.perturbed = plan.rank, plan.perturbed
        self.lines: list[str] = []
        self.local: dict[int, str] = {}  # register -> what holds it within a tile group

    def __call__(self, *lines: str) -> None:
        self.lines += lines

    def weights(self, op: Op) -> str:
        return f"weights + {self.plan.layout[op.leaf].offset}"

    def leaf(self, op: Op) -> int:
        return self.plan.layout[op.leaf].index

    def barrier(self) -> None:
        memory = "mem_flags::mem_threadgroup"
        if self.plan.scratch_bytes:
            memory += " | mem_flags::mem_device"
        self(f"threadgroup_barrier({memory});")

    def inputs(self) -> list[str]:
        plan = self.plan
        names = ["weights", "table", "starts", "sizes", "tokens"]
        names += ["targets"] * (plan.scores and not self.logits)
        return names + ["passed"] * (not plan.first) + ["state"] * (plan.stage.state >= 0)

    def outputs(self) -> list[str]:
        plan = self.plan
        names = ["passed_on"] * plan.passes_on + ["state_after"] * (plan.stage.state >= 0)
        names += [("logits" if self.logits else "scores")] * plan.scores
        return names + ["scratch"] * bool(plan.scratch_bytes)

    def constants(self) -> str:
        plan = self.plan
        return constants(
            M=plan.members, LD=plan.stride, SIMDGROUPS=plan.simdgroups,
            THREADS=32 * plan.simdgroups, RANK=self.rank, SHIFT=self.shift,
            PERTURBED=self.perturbed,
        ) + tables(plan)  # fmt: skip

    def files(self) -> list[str]:
        """Kernel files, each after those it needs."""
        kinds = list(dict.fromkeys(op.kind for op in self.plan.stage.ops))
        names = ["product_nax" if self.plan.nax else "product_simdgroup"]
        return names + ["linear"] * ("score" in kinds and "linear" not in kinds) + kinds

    noise = "weights"  # the file that says what noise does

    def opening(self) -> None:
        """Declarations."""

    def token(self) -> None:
        """What a token begins with."""

    def products(self, phase: Phase) -> None:
        """What goes before the tiles of a phase, when all inputs of its products are there."""

    def scored(self, op: Op) -> None:
        """What is done with a tile of logits besides."""

    def finished(self) -> None:
        """What follows a token's scores."""


def row_embed(write: Writer, op: Op) -> None:
    D = write.plan.sizes[op.out]
    write(
        f"egg::embed<{D}>(r{op.out}, {write.weights(op)}, noise, {write.leaf(op)}, "
        "tokens + first * T + t, T, members, member, lane);"
    )


def row_norm(write: Writer, op: Op) -> None:
    D = write.plan.sizes[op.out]
    write(
        f"egg::norm<{D}>(r{op.out}, r{op.inputs[0]}, {write.weights(op)}, noise, "
        f"{write.leaf(op)}, member, lane);"
    )


def tile_linear(write: Writer, op: Op, out: str = "") -> None:
    O, K = write.plan.program.leaves[op.leaf].shape
    sums, x = sums_of(write.plan, op), f"r{op.inputs[0]}"
    if write.plan.nax:
        space = "threadgroup" if write.plan.places[op.inputs[0]].shared else "device"
        x = f"reinterpret_cast<{space} int8_t*>({x})"
    write(
        f"egg::linear<{K}, {O}, {fx.divisor(K)}, TILES>({out or f'v{op.out}'}, "
        f"{write.weights(op)}, {x}, {sums}, noise, {write.leaf(op)}, tile, lane);"
    )


def tile_score(write: Writer, op: Op) -> None:
    tile_linear(write, op, "logit")
    V = write.plan.program.leaves[op.leaf].shape[0]
    if write.logits:
        write(f"egg::store_logits<{V}>(logits, logit, tile, members, lane);")
    else:
        write(f"egg::score<{V}>(likelihood, hits, logit, tile, lane);")
        write.scored(op)


def elementwise(arguments: Callable[[Writer, Op], str]) -> Callable[[Writer, Op], None]:
    """An operation on two members' values at a time: x and y of what the registers hold."""

    def emit(write: Writer, op: Op) -> None:
        extra = arguments(write, op)
        parts = []
        for part in "xy":
            values = [f"{write.local[r]}.{part}" for r in op.inputs]
            values += [extra.replace("@", part)] if extra else []
            parts.append(f"egg::{op.kind}({', '.join(values)})")
        write(f"v{op.out}[i][j] = egg::both({parts[0]}, {parts[1]});")

    return emit


def bias(write: Writer, op: Op) -> str:
    # Rows past the last output read the last bias; nobody reads what they come to.
    last = write.plan.sizes[op.out] - 1
    w = f"w{write.leaf(op)}"
    write(
        f"const int2 {w} = egg::perturbed({write.weights(op)}, noise, {write.leaf(op)}, member, "
        f"min(o, {last}u));"
    )
    return f"{w}.@"


def nothing(write: Writer, op: Op) -> str:
    return ""


ROWS: dict[str, Callable[[Writer, Op], None]] = {"embed": row_embed, "norm": row_norm}
PRODUCTS: dict[str, Callable[[Writer, Op], None]] = {"linear": tile_linear, "score": tile_score}
ELEMENTS: dict[str, Callable[[Writer, Op], None]] = {
    "add": elementwise(nothing),
    "add_bias": elementwise(bias),
    "lookup": elementwise(lambda write, op: f"table_{op.table}"),
    "forget": elementwise(nothing),
    "mix": elementwise(nothing),
}
OPERATIONS = {**ROWS, **PRODUCTS, **ELEMENTS}


def sums_of(plan: StagePlan, op: Op) -> str:
    """Where x B of a product lies among those of its phase."""
    if not plan.perturbed:
        return "sums"
    phase = next(p for p in plan.phases if op in p.products)
    return f"sums + {phase.products.index(op) * plan.rank * plan.members}"


def row_part(write: Writer, phase: Phase) -> None:
    """Row operations and the low-rank sums of the coming products, a simdgroup per pair."""
    plan = write.plan
    if not plan.has_rows(phase):
        return
    write("for (uint member = 2 * lane.simdgroup; member < M; member += 2 * SIMDGROUPS) {")
    # No barrier between them: a lane has the same features of a pair in all of them.
    for op in phase.rows:
        ROWS[op.kind](write, op)
    for op in phase.products if plan.perturbed else []:
        K, x = plan.program.leaves[op.leaf].shape[1], op.inputs[0]
        write(f"egg::dots<{K}>({sums_of(plan, op)}, r{x}, noise, {write.leaf(op)}, member, lane);")
    write("}")
    write.barrier()


def tile_part(write: Writer, phase: Phase) -> None:
    """Products and what follows them element by element, in tiles of outputs x members."""
    plan = write.plan
    if not phase.tiles:
        return
    write.products(phase)
    outputs = plan.sizes[phase.tiles[0].out]
    if phase.tiles[0].kind == "score":
        outputs = plan.program.vocabulary
    write("{", f"constexpr uint TILES = {plan.tiles(outputs)};")
    scored = phase.tiles[0].kind == "score" and not write.logits
    if scored:
        write("egg::Likelihood likelihood;")
        write("egg::begin(likelihood, targets + first * T + t, T, members, lane);")
    count = plan.tile_count(outputs)
    write(f"for (uint tile = lane.simdgroup; tile < {count}; tile += SIMDGROUPS) {{")
    names = sorted({op.out for op in phase.tiles if op.kind != "score"})
    write(*(f"char2 v{r}[TILES][M / 8];" for r in names))
    if phase.tiles[0].kind == "score":
        write("char2 logit[TILES][M / 8];")
    for op in phase.products:
        PRODUCTS[op.kind](write, op)
    if names:
        element_loop(write, phase)
    write("}")
    if scored:
        write("egg::gather(parts, likelihood, lane);")
    write("}")
    write.barrier()
    if scored:
        write("egg::finish(scores + first * T + t, parts, hits, T, members, lane);")
        write.finished()


def element_loop(write: Writer, phase: Phase) -> None:
    """What follows the products: registers are read and written where a lane stands."""
    write("for (uint i = 0; i < TILES; ++i) for (uint j = 0; j < M / 8; ++j) {")
    write("const uint o = 8 * (tile * TILES + i) + lane.row, member = 8 * j + lane.column;")
    write.local = {op.out: f"v{op.out}[i][j]" for op in phase.products}
    for op in phase.tiles:
        if op.kind in PRODUCTS:
            if write.plan.kept(op):
                write(f"egg::put(r{op.out}, o, member, v{op.out}[i][j]);")
            continue
        for r in op.inputs:
            if r not in write.local:
                write(f"const char2 m{r} = egg::get(r{r}, o, member);")
                write.local[r] = f"m{r}"
        ELEMENTS[op.kind](write, op)
        write.local[op.out] = f"v{op.out}[i][j]"
        if write.plan.kept(op):
            write(f"egg::put(r{op.out}, o, member, v{op.out}[i][j]);")
    write("}")


def declare_memory(write: Writer) -> None:
    """Threadgroup memory and this threadgroup's share of device memory."""
    plan, members = write.plan, write.plan.members
    shared = plan.shared_rows * plan.stride
    if shared:
        # Of 16 bytes each, as matrix units may want their operands aligned.
        write(f"EGG_SHARED(uint4, aligned, {-(-shared // 16)});")
        write("threadgroup char2* const shared = reinterpret_cast<threadgroup char2*>(aligned);")
    if plan.sums_bytes and plan.sums_shared:
        write(f"EGG_SHARED(int, sums, {plan.sums_bytes // 4});")
    if plan.spare_bytes:
        write(f"EGG_SHARED(int, spare, {plan.spare_bytes // 4});")
    if plan.scores and not write.logits:
        write(f"EGG_SHARED(Total, parts, {plan.simdgroups * members});")
        write(f"EGG_SHARED(int, hits, {members});")
    if plan.scratch_bytes:
        mine = f"scratch + threadgroup_position_in_grid.x * {plan.scratch_bytes}u"
        write(f"device char2* const spilled = reinterpret_cast<device char2*>({mine});")
    if plan.sums_bytes and not plan.sums_shared:
        offset = (plan.scratch_bytes - plan.sums_bytes) // 2
        write(f"device int* const sums = reinterpret_cast<device int*>(spilled + {offset});")
    if not plan.sums_bytes:
        write("const int sums[1] = {0};")


def declare(write: Writer) -> None:
    """Registers and the coordinates of this threadgroup."""
    plan, spare = write.plan, "nullptr"
    for r, place in sorted(plan.places.items()):
        space, base = ("threadgroup", "shared") if place.shared else ("device", "spilled")
        write(f"{space} char2* const r{r} = {base} + {place.row * plan.stride // 2};")
    if plan.spare_bytes:
        each = plan.spare_bytes // 4 // plan.simdgroups
        spare = f"spare + simdgroup_index_in_threadgroup * {each}"
    write(
        "const uint first = threadgroup_position_in_grid.x * M;",
        "const uint T = sizes[0], members = sizes[1] - first;",
        "const egg::Lane lane = "
        f"egg::lane_of(thread_index_in_simdgroup, simdgroup_index_in_threadgroup, {spare});",
        "egg::Noise noise;",
        "noise.table = table;",
        "noise.starts = starts;",
        "noise.first = first / 2;",
        "noise.pairs = sizes[2];",
    )


def at_token(plan: StagePlan, t: str) -> str:
    """Where a token's activations lie in [threadgroup][T][D][M]."""
    return f"(first / M * T + {t}) * {plan.program.width * plan.members}"


def move_in(write: Writer, t: str) -> None:
    """The token's activations come in, and a document mark zeroes the state."""
    plan, D = write.plan, write.plan.program.width
    if X in plan.lives and not plan.first:
        write(f"egg::load_tile<{D}>(r{X}, passed + {at_token(plan, t)}, lane);")
    elif X in plan.lives and reads_first(plan, X):
        write(f"egg::fill<{D}>(r{X}, lane);")
    if S in plan.lives:
        write(f"egg::restart<{D}>(r{S}, tokens + first * T + {t}, T, members, lane);")


def reads_first(plan: StagePlan, register: int) -> bool:
    """Whether the stage reads a register before it writes it."""
    for op in plan.stage.ops:
        if register in op.inputs:
            return True
        if op.out == register:
            return False
    return False


def body(plan: StagePlan, logits: bool) -> str:
    """The kernel of a stage without credit."""
    return written(Writer(plan, logits))


def written(write: Writer) -> str:
    """The kernel: all T tokens of the stage, phase after phase."""
    plan, D = write.plan, write.plan.program.width
    declare_memory(write)
    declare(write)
    write.opening()
    if S in plan.lives and plan.stage.state >= 0:
        write(f"egg::load_state<{D}>(r{S}, state + first * {D}, members, lane);")
    elif S in plan.lives:
        write(f"egg::fill<{D}>(r{S}, lane);")
    if S in plan.lives:
        write.barrier()
    move_in(write, "0")
    write.barrier()
    write("for (uint t = 0; t < T; ++t) {")
    write.token()
    for phase in plan.phases:
        row_part(write, phase)
        tile_part(write, phase)
    if plan.passes_on:
        write(f"egg::store_tile<{D}>(r{X}, passed_on + {at_token(plan, 't')}, lane);")
    write("if (t + 1 < T) {")
    move_in(write, "t + 1")
    write("}")
    write.barrier()
    write("}")
    if plan.stage.state >= 0:
        write(f"egg::store_state<{D}>(r{S}, state_after + first * {D}, members, lane);")
    return "\n".join(write.lines) + "\n"


def stage_source(plan: StagePlan, shift: int, *, logits: bool = False) -> Source:
    """The kernel of a stage. shift: of the perturbation, Q + sigma_shift."""
    return source_of(Writer(plan, logits, shift))


def source_of(write: Writer) -> Source:
    """The kernel that a writer writes."""
    header = INCLUDES + write.constants()
    names = ["fixed", "common", write.noise, *write.files()]
    header += "".join(kernel_file(name) for name in names)
    inputs, outputs = tuple(write.inputs()), tuple(write.outputs())
    return Source("egg_stage", inputs, outputs, header, written(write))


def tables(plan: StagePlan) -> str:
    """The integer tables that the stage's operations look up."""
    names = sorted({op.table for op in plan.stage.ops if op.table})
    text = "".join(array("int8_t", f"table_{n}", fx.gate_tables()[n].tolist()) for n in names)
    if plan.scores:
        wide = plan.program.vocabulary > 4096  # EXP2 < 2^20
        text += f"typedef {'ulong' if wide else 'uint'} Total;\n"
        text += array("uint", "EXP2", fx.exp2_table().tolist())
        text += array("ulong", "LOG2", fx.log2_breakpoints().tolist(), "ul")
    return text


VOTE_INPUTS = ("table", "starts", "fitness", "work", "sizes")


def vote_sources(rank: int, clt: bool) -> tuple[Source, Source]:
    """The kernels that count the votes of matrices and of vectors."""
    header = INCLUDES + constants(RANK=rank, CLT=clt)
    header += "".join(kernel_file(name) for name in ("fixed", "vote_product", "votes"))
    matrices = """\
EGG_SHARED(int8_t, left, egg::SIDE * egg::LEFT);
EGG_SHARED(int8_t, right, egg::DEPTH * egg::RIGHT);
const uint begin = threadgroup_position_in_grid.y * sizes[1];
egg::PairTerms terms;
terms.fitness = fitness;
terms.table = table;
terms.starts = starts;
terms.pairs = sizes[0];
egg::matrix_votes(Z + threadgroup_position_in_grid.y * sizes[2], left, right,
                  egg::tile_of(work + 6 * threadgroup_position_in_grid.x), terms, begin,
                  min(begin + uint(sizes[1]), uint(sizes[0] * RANK)), thread_index_in_simdgroup,
                  simdgroup_index_in_threadgroup);
"""
    vectors = """\
const uint at = thread_position_in_grid.x;
if (at < uint(sizes[2])) {
  const uint begin = thread_position_in_grid.y * sizes[1];
  Z[thread_position_in_grid.y * sizes[2] + at] =
      egg::vector_vote(work[2 * at], work[2 * at + 1], fitness, table, starts, sizes[0], begin,
                       min(begin + uint(sizes[1]), uint(sizes[0])));
}
"""
    return (
        Source("egg_votes", VOTE_INPUTS, ("Z",), header, matrices),
        Source("egg_vector_votes", VOTE_INPUTS, ("Z",), header, vectors),
    )
