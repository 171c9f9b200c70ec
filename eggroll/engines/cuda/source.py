"""The CUDA source of a stage, generated from its plan: constants, kernel files, then the body.

The operations themselves are written in extensions/int8_gemm/cuda, one file each, ASCII.
Letters: M members of a block, T tokens, V vocabulary, K inputs and O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eggroll import fixed_point as fx
from eggroll.engines.cuda.plan import EXP2_BYTES, WARPS, CudaPlan
from eggroll.engines.gpu.plan import Phase
from eggroll.engines.gpu.text import Source, text_of
from eggroll.program import Op, S, X

VOTE_SIDE, VOTE_THREADS = 64, 128  # SIDE and THREADS of vote_product.cu
VOTE_SHARED = 2 * 16 * (64 + 8) * 4  # bytes of left and right there
VOTE_MEMORY = f"""\
EGG_SHARED_MEMORY;
EGG_SHARED(uint32_t, left, 0, {VOTE_SHARED // 8});
EGG_SHARED(uint32_t, right, {VOTE_SHARED // 2}, {VOTE_SHARED // 8});
"""


def kernel_file(name: str) -> str:
    """Text of `name`.cu; see `text_of`."""
    return text_of("cuda", f"{name}.cu")


def constants(**values: int) -> str:
    return "".join(f"constexpr int {k} = {int(v)};\n" for k, v in values.items())


def array(space: str, kind: str, name: str, values: Sequence[int], suffix: str = "") -> str:
    text = ", ".join(f"{v}{suffix}" for v in values)
    return f"{space} const {kind} {name}[{len(values)}] = {{{text}}};\n"


class Writer:
    """Lines of a kernel body; what a derived one adds to a stage it adds in `opening` and so on."""

    def __init__(self, plan: CudaPlan, logits: bool, shift: int = 0, product: str = "") -> None:
        self.plan, self.logits, self.shift, self.product = plan, logits, shift, product
        self.rank, self.perturbed = plan.rank, plan.perturbed
        self.lines: list[str] = []
        self.local: dict[int, str] = {}  # register -> what holds it within a tile
        self.shared = 0  # bytes given out

    def __call__(self, *lines: str) -> None:
        self.lines += lines

    def weights(self, op: Op) -> str:
        return f"weights + {self.plan.layout[op.leaf].offset}"

    def leaf(self, op: Op) -> int:
        return self.plan.layout[op.leaf].index

    def barrier(self) -> None:
        self("__syncthreads();")

    def share(self, kind: str, name: str, count: int, size: int) -> None:
        """An array of shared memory, aligned to 16 bytes."""
        self(f"EGG_SHARED({kind}, {name}, {self.shared}, {count});")
        self.shared += -(-count * size // 16) * 16

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
            M=plan.members, LD=plan.stride, WARPS=WARPS, THREADS=32 * WARPS,
            RANK=self.rank, SHIFT=self.shift, PERTURBED=self.perturbed,
        ) + tables(plan)  # fmt: skip

    def files(self) -> list[str]:
        """Kernel files, each after those it needs."""
        kinds = list(dict.fromkeys(op.kind for op in self.plan.stage.ops))
        names = [f"mma_{self.product}", "product_mma"]
        return names + ["linear"] * ("score" in kinds and "linear" not in kinds) + kinds

    noise = "weights"  # the file that says what noise does

    def opening(self) -> None:
        """Declarations."""

    def token(self) -> None:
        """What a token begins with."""

    def products_begin(self, phase: Phase) -> None:
        """What goes before the tiles of a phase, when all inputs of its products are there."""

    def scored(self, op: Op) -> None:
        """What is done with a tile of logits besides."""

    def finished(self) -> None:
        """What follows a token's scores."""


def row_embed(write: Writer, op: Op) -> None:
    D = write.plan.sizes[op.out]
    write(
        f"egg::embed<{D}>(r{op.out}, {write.weights(op)}, noise, {write.leaf(op)}, "
        "tokens + first * T + t, T, members, row);"
    )


def row_norm(write: Writer, op: Op) -> None:
    D = write.plan.sizes[op.out]
    write(
        f"egg::norm<{D}>(r{op.out}, r{op.inputs[0]}, {write.weights(op)}, noise, "
        f"{write.leaf(op)}, row);"
    )


def tile_linear(write: Writer, op: Op) -> None:
    O, K = write.plan.program.leaves[op.leaf].shape
    out = "logit" if op.kind == "score" else f"v{op.out}"
    write(
        f"egg::linear<{K}, {O}, {fx.divisor(K)}>({out}, {write.weights(op)}, r{op.inputs[0]}, "
        f"{sums_of(write.plan, op)}, noise, {write.leaf(op)}, tile, column, lane);"
    )


def tile_score(write: Writer, op: Op) -> None:
    tile_linear(write, op)
    V = write.plan.program.leaves[op.leaf].shape[0]
    if write.logits:
        write(f"egg::store_logits<{V}>(logits, logit, tile, members, lane);")
    else:
        write(f"egg::score<{V}>(likelihood, hits, exp2, logit, tile, lane);")
        write.scored(op)


def elementwise(arguments: Callable[[Writer, Op], str]) -> Callable[[Writer, Op], None]:
    """An operation on four features of two members: words x and y of what the registers hold."""

    def emit(write: Writer, op: Op) -> None:
        extra, out = arguments(write, op), f"v{op.out}[j]"
        held = [write.local[r] for r in op.inputs]
        if out in held:  # in place: what it held is read after the result has begun
            write("{", f"const uint2 before = {out};")
        write(f"{out} = make_uint2(0, 0);", "for (int e = 0; e < 4; ++e) {")
        for part in "xy":
            values = [f"egg::byte_of({v.replace(out, 'before')}.{part}, e)" for v in held]
            values += [extra.replace("@", part)] if extra else []
            call = f"egg::{op.kind}({', '.join(values)})"
            write(f"{out}.{part} |= egg::as_byte({call}, e);")
        write("}", *["}"] * (out in held))

    return emit


def bias(write: Writer, op: Op) -> str:
    w, n, leaf = f"w{write.leaf(op)}", write.plan.sizes[op.out], write.leaf(op)
    halves = (
        f"egg::perturbed<{n}>({write.weights(op)}, noise, {leaf}, member, quad, {odd})"
        for odd in ("false", "true")
    )
    write(f"const uint2 {w} = make_uint2({', '.join(halves)});")
    return f"egg::byte_of({w}.@, e)"


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


def sums_of(plan: CudaPlan, op: Op) -> str:
    """Where x B of a product lies among those of its phase."""
    if not plan.perturbed:
        return "nullptr"
    phase = next(p for p in plan.phases if op in p.products)
    return f"sums + {phase.products.index(op) * plan.rank * plan.members}"


def row_part(write: Writer, phase: Phase) -> None:
    """Row operations and the low-rank sums of the coming products, a warp per pair."""
    plan = write.plan
    if not plan.has_rows(phase):
        return
    write("for (uint32_t pair = lane.warp; pair < M / 2; pair += WARPS) {")
    write("const egg::Row row = egg::row_of(pair, lane);")
    # No barrier between them: a lane has the same features of a member in all of them.
    for op in phase.rows:
        ROWS[op.kind](write, op)
    for op in phase.products if plan.perturbed else []:
        K, x = plan.program.leaves[op.leaf].shape[1], op.inputs[0]
        write(f"egg::dots<{K}>({sums_of(plan, op)}, r{x}, noise, {write.leaf(op)}, row);")
    write("}")
    write.barrier()


def tile_part(write: Writer, phase: Phase) -> None:
    """Products and what follows them element by element, in tiles of outputs x members."""
    plan = write.plan
    if not phase.tiles:
        return
    write.products_begin(phase)
    is_score = phase.tiles[0].kind == "score"
    outputs = plan.program.vocabulary if is_score else plan.sizes[phase.tiles[0].out]
    groups = plan.members // 8
    # A warp that sums likelihoods has all members, so that it needs not tell which.
    columns = groups if is_score else plan.columns(outputs)
    tiles = plan.tile_count(outputs)
    scored = is_score and not write.logits
    write("{")
    if scored:
        write("egg::Likelihood likelihood;")
        write("egg::begin(likelihood, targets + first * T + t, T, members, lane);")
    count = tiles * groups // columns
    write(
        f"for (uint32_t item = lane.warp; item < {count}; item += WARPS) {{",
        f"const uint32_t tile = item % {tiles}, column = item / {tiles} * {8 * columns};",
    )
    names = sorted({op.out for op in phase.tiles if op.kind != "score"})
    write(*(f"uint2 v{r}[{columns}];" for r in names), *["uint2 logit[M / 8];"] * is_score)
    for op in phase.products:
        PRODUCTS[op.kind](write, op)
    if names:
        element_loop(write, phase, columns)
    write("}")
    if scored:
        write("egg::gather(parts, likelihood, lane);")
    write("}")
    write.barrier()
    if scored:
        write("egg::finish(scores + first * T + t, parts, hits, T, members, lane);")
        write.finished()


def element_loop(write: Writer, phase: Phase, columns: int) -> None:
    """What follows the products: registers are read and written where a lane stands."""
    write(
        "const uint32_t quad = 8 * tile + lane.group;",
        "#pragma unroll",
        f"for (int j = 0; j < {columns}; ++j) {{",
        "const uint32_t member = column + 8 * j + 2 * lane.quad;",
    )
    write.local = {op.out: f"v{op.out}[j]" for op in phase.products}
    for op in phase.tiles:
        if op.kind not in PRODUCTS:
            for r in op.inputs:
                if r not in write.local:
                    write(f"const uint2 m{r} = egg::get(r{r}, quad, member);")
                    write.local[r] = f"m{r}"
            ELEMENTS[op.kind](write, op)
            write.local[op.out] = f"v{op.out}[j]"
        if write.plan.kept(op):
            write(f"egg::put(r{op.out}, quad, member, v{op.out}[j]);")
    write("}")


def declare_memory(write: Writer) -> None:
    """Shared memory and this block's share of device memory."""
    plan, members = write.plan, write.plan.members
    write("EGG_SHARED_MEMORY;")
    shared = plan.shared_rows * plan.stride
    if shared:
        write.share("uint32_t", "shared", shared // 4, 4)
    if plan.sums_bytes and plan.sums_shared:
        write.share("int", "sums", plan.sums_bytes // 4, 4)
    if plan.scores and not write.logits:
        write.share("Total", "parts", WARPS * members, 8 if wide(plan) else 4)
        write.share("int", "hits", members, 4)
        write.share("uint32_t", "exp2", EXP2_BYTES // 4, 4)
    if plan.scratch_bytes:
        mine = f"scratch + blockIdx.x * {plan.scratch_bytes}u"
        write(f"uint32_t* const spilled = reinterpret_cast<uint32_t*>({mine});")
    if plan.sums_bytes and not plan.sums_shared:
        offset = (plan.scratch_bytes - plan.sums_bytes) // 4
        write(f"int* const sums = reinterpret_cast<int*>(spilled + {offset});")


def declare(write: Writer) -> None:
    """Registers and the coordinates of this block."""
    plan = write.plan
    for r, place in sorted(plan.places.items()):
        base = "shared" if place.shared else "spilled"
        write(f"uint32_t* const r{r} = {base} + {place.row * plan.stride // 4};")
    write(
        "const uint32_t first = blockIdx.x * M;",
        "const uint32_t T = sizes[0], members = sizes[1] - first;",
        "const egg::Lane lane = egg::lane_of(threadIdx.x);",
        "egg::Noise noise;",
        "noise.table = table;",
        "noise.starts = starts;",
        "noise.first = first / 2;",
        "noise.pairs = sizes[2];",
    )


def tile_bytes(width: int, members: int) -> int:
    """A token's activations of a block as they are passed on: [D / 8][M][8]."""
    return -(-width // 8) * 8 * members


def at_token(plan: CudaPlan, t: str) -> str:
    """Where a token's activations lie in [block][T][D / 8][M][8]."""
    return f"(blockIdx.x * T + {t}) * {tile_bytes(plan.program.width, plan.members)}"


def move_in(write: Writer, t: str) -> None:
    """The token's activations come in, and a document mark zeroes the state."""
    plan, D = write.plan, write.plan.program.width
    if X in plan.lives and not plan.first:
        write(f"egg::load_tile<{D}>(r{X}, passed + {at_token(plan, t)}, lane);")
    elif X in plan.lives and reads_first(plan, X):
        write(f"egg::fill<{D}>(r{X}, lane);")
    if S in plan.lives:
        write(f"egg::restart<{D}>(r{S}, tokens + first * T + {t}, T, members, lane);")


def reads_first(plan: CudaPlan, register: int) -> bool:
    """Whether the stage reads a register before it writes it."""
    for op in plan.stage.ops:
        if register in op.inputs:
            return True
        if op.out == register:
            return False
    return False


def body(write: Writer) -> str:
    """The kernel: all T tokens of the stage, phase after phase."""
    plan, D = write.plan, write.plan.program.width
    declare_memory(write)
    declare(write)
    write.opening()
    if plan.scores and not write.logits:
        write("egg::load_exp2(exp2, lane);")
    if S in plan.lives and plan.stage.state >= 0:
        write(f"egg::load_state<{D}>(r{S}, state + first * {D}, members, lane);")
    elif S in plan.lives:
        write(f"egg::fill<{D}>(r{S}, lane);")
    move_in(write, "0")
    write.barrier()
    write("for (uint32_t t = 0; t < T; ++t) {")
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


def stage_source(plan: CudaPlan, shift: int, product: str, *, logits: bool = False) -> Source:
    """The kernel of a stage. shift: of the perturbation, Q + sigma_shift; product: of PRODUCTS."""
    return source_of(Writer(plan, logits, shift, product))


def source_of(write: Writer) -> Source:
    """The kernel that a writer writes."""
    names = ["fixed", "common", write.noise, *write.files()]
    header = write.constants() + "".join(kernel_file(name) for name in names)
    inputs, outputs, text = tuple(write.inputs()), tuple(write.outputs()), body(write)
    return Source("egg_stage", inputs, outputs, header, text, write.shared)


def wide(plan: CudaPlan) -> bool:
    """Whether a sum of EXP2, which is below 2^20, needs 64 bits."""
    return plan.program.vocabulary > 4096


def tables(plan: CudaPlan) -> str:
    """The integer tables that the stage's operations look up."""
    names = sorted({op.table for op in plan.stage.ops if op.table})
    text = "".join(
        array("__device__", "int8_t", f"table_{n}", fx.gate_tables()[n].tolist()) for n in names
    )
    if plan.scores:
        text += f"typedef {'uint64_t' if wide(plan) else 'uint32_t'} Total;\n"
        last = fx.exp2_table()[-EXP2_BYTES // 4 :].tolist()
        text += array("__constant__", "uint32_t", "EXP2", last)
        breakpoints = fx.log2_breakpoints().tolist()
        text += array("__constant__", "uint64_t", "LOG2", breakpoints, "ull")
    return text


VOTE_INPUTS = ("table", "starts", "fitness", "work", "sizes")


def vote_header(product: str, *names: str, rank: int = 1, clt: bool = True) -> str:
    """What a kernel that counts votes by matrix products begins with."""
    # The constants of a stage that common.cu needs besides.
    header = constants(M=8, LD=8, RANK=rank, SHIFT=0, PERTURBED=1, CLT=clt)
    header += constants(WARPS=VOTE_THREADS // 32, THREADS=VOTE_THREADS)
    files = "fixed", "common", f"mma_{product}", "vote_product", *names
    return header + "".join(map(kernel_file, files))


def vote_sources(rank: int, clt: bool, product: str) -> tuple[Source, Source]:
    """The kernels that count the votes of matrices and of vectors."""
    header = vote_header(product, "votes", rank=rank, clt=clt)
    matrices = f"""\
{VOTE_MEMORY}const uint32_t begin = blockIdx.y * sizes[1];
egg::PairTerms terms;
terms.fitness = fitness;
terms.table = table;
terms.starts = starts;
terms.pairs = sizes[0];
egg::matrix_votes(Z + blockIdx.y * sizes[2], left, right, egg::tile_of(work + 6 * blockIdx.x),
                  terms, begin, min(begin + uint32_t(sizes[1]), uint32_t(sizes[0] * RANK)),
                  egg::lane_of(threadIdx.x));
"""
    vectors = """\
const uint32_t at = blockIdx.x * THREADS + threadIdx.x;
if (at < uint32_t(sizes[2])) {
  const uint32_t begin = blockIdx.y * sizes[1];
  Z[blockIdx.y * sizes[2] + at] =
      egg::vector_vote(work[2 * at], work[2 * at + 1], fitness, table, starts, sizes[0], begin,
                       min(begin + uint32_t(sizes[1]), uint32_t(sizes[0])));
}
"""
    return (
        Source("egg_votes", VOTE_INPUTS, ("Z",), header, matrices, VOTE_SHARED),
        Source("egg_vector_votes", VOTE_INPUTS, ("Z",), header, vectors),
    )
