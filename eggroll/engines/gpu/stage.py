"""The kernel of a stage, written from its plan: constants, kernel files, then the body.

The operations themselves are in extensions/int8_gemm/{gpu,metal,cuda}, one file each, ASCII.
Letters: M members of a threadgroup, T tokens, V vocabulary, K inputs and O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.plan import ALONE, PRODUCTS, Phase, StagePlan, registers_read_across
from eggroll.spec import fixed_point as fx
from eggroll.spec.program import Op, Program, S, X

StageResult = Literal["scores", "logits", "likelihoods", "outputs"]
TYPE_BYTES = {
    "uint2": 8,
    "int": 4,
    "uint": 4,
    "uint32_t": 4,
    "char2": 2,
    "int8_t": 1,
}  # in shared arrays
# Names of a head's outputs: of every token, or the last one's logits.
RESULT_OUTPUTS: dict[StageResult, tuple[str, ...]] = {
    "scores": ("scores",),
    "logits": ("logits",),
    "likelihoods": ("totals", "target_logits"),
}


class KernelWriter:
    """Collects the lines of a kernel: `write(line)` adds one.

    result: of the head, which the stage leaves; shift: of the noise, Q + sigma_shift.
    """

    def __init__(
        self, plan: StagePlan, dialect: Dialect, result: StageResult = "scores", *, shift: int = 0
    ) -> None:
        self.plan, self.dialect, self.result, self.shift = plan, dialect, result, shift
        self.rank, self.perturbed = plan.rank, plan.perturbed
        self.scored = plan.scores and result != "logits"
        self.exact = result == "likelihoods"
        self.lines: list[str] = []
        self.local: dict[int, str] = {}  # register -> the value that a lane holds of it
        self.shared = 0  # bytes of threadgroup memory given out

    def __call__(self, *lines: str) -> None:
        self.lines += lines

    def scored_tile(self, op: Op) -> None:
        """Hook: after a tile of logits."""

    def node_shift(self, op: Op) -> int:
        """Shift of an operation's noise on nodes; -1 where its weights have the noise."""
        return -1

    @property
    def wide(self) -> bool:
        """True if a sum of EXP2, each below 2^(16 + score bits), needs 64 bits."""
        program = self.plan.program
        return self.exact or program.vocabulary > 1 << (16 - program.score_bits)

    @property
    def exp2(self) -> str:
        """The argument for EXP2, where threadgroup memory has a copy."""
        return "exp2, " if self.dialect.exp2_words else ""

    def barrier(self) -> None:
        self(self.dialect.barrier(bool(self.plan.scratch_bytes)))

    def share(self, kind: str, name: str, size: int) -> None:
        """Declares an array of `size` bytes in threadgroup memory, aligned to 16."""
        each = (8 if self.wide else 4) if kind == "Total" else TYPE_BYTES[kind]
        self(*self.dialect.share(kind, name, size // each, self.shared))
        self.shared += -(-size // 16) * 16

    def spilled(self, kind: str, name: str, memory: str, at: int = 0) -> None:
        """Declares a pointer into this threadgroup's device memory."""
        pointer, offset = f"{self.dialect.device}{kind}*", f" + {at}" if at else ""
        self(f"{pointer} const {name} = reinterpret_cast<{pointer}>({memory}){offset};")

    def at_token(self, t: str) -> str:
        """Offset of a token's activations in [threadgroup][T][tile_bytes]."""
        size = self.dialect.tile_bytes(self.plan.program.width, self.plan.members)
        return f"({self.dialect.stage_group} * T + {t}) * {size}"

    def row_of(self, array: str, size: int) -> str:
        """A pointer to this token's row of the first member, in an array [P, T, size]."""
        return f"{array} + (first * T + t) * {size}"

    def weights(self, op: Op) -> str:
        return f"weights + {self.plan.layout[op.leaf].offset}"

    def leaf(self, op: Op) -> int:
        return self.plan.layout[op.leaf].index

    def vector(self, op: Op) -> str:
        """Arguments that give an operation its vector: with its noise, or weights and noise."""
        if op.leaf in self.plan.noisy_vectors:
            return f"kept{self.leaf(op)}"
        return f"{self.weights(op)}, noise, {self.leaf(op)}"

    def sums_of(self, op: Op) -> str:
        """A pointer to x B of a product, among those of its phase."""
        plan = self.plan
        if not plan.perturbed:
            return self.dialect.no_sums[1]
        phase = next(p for p in plan.phases if op in p.products)
        return f"sums + {phase.products.index(op) * plan.rank * plan.members}"


class StageWriter(KernelWriter):
    """Writes the kernel of a stage; a derived writer adds to it by the hooks."""

    noise_files: Sequence[str] = ("weights",)  # the kernel files with the noise's functions

    def source(self) -> KernelSource:
        """The kernel."""
        names = ["noise", "common", *self.noise_files, *self.files()]
        header = self.dialect.header(self.constants(), names)
        inputs, outputs, body = tuple(self.inputs()), tuple(self.outputs()), self.body()
        size = self.shared, self.plan.blocks, 32 * self.plan.simdgroups
        return KernelSource("egg_stage", inputs, outputs, header, body, *size)

    def inputs(self) -> list[str]:
        plan = self.plan
        names = ["weights", "table", "starts", "sizes", "tokens"]
        names += ["targets"] * self.scored
        names += ["shown"] * self.has("input") + ["listed"] * self.has("features")
        return names + ["passed"] * (not plan.first) + ["state"] * (plan.stage.state >= 0)

    def outputs(self) -> list[str]:
        plan = self.plan
        names = ["passed_on"] * plan.passes_on + ["state_after"] * (plan.stage.state >= 0)
        names += RESULT_OUTPUTS[self.result] if plan.scores else map(output_name, plan.results)
        return names + ["scratch"] * bool(plan.scratch_bytes)

    def has(self, kind: str) -> bool:
        """True if the stage has an operation of this kind."""
        return any(op.kind == kind for op in self.plan.ops)

    def files(self) -> list[str]:
        """Kernel files of the stage's operations, each after those it needs."""
        kinds = list(dict.fromkeys(op.kind for op in self.plan.ops))
        linear = ["linear"] * (bool({*ALONE} & {*kinds}) and "linear" not in kinds)
        log2 = ["log2"] * ("score" in kinds)
        return [*self.dialect.product_files(self.plan), *linear, *log2, *kinds]

    def constants(self) -> str:
        plan, dialect = self.plan, self.dialect
        text = dialect.constants(M=plan.members, LD=plan.stride)
        text += dialect.constants(**{dialect.simdgroups: plan.simdgroups})
        return text + dialect.constants(
            THREADS=32 * plan.simdgroups, RANK=self.rank, SHIFT=self.shift,
            PERTURBED=self.perturbed,
        ) + self.tables()  # fmt: skip

    def tables(self) -> str:
        """The integer tables that the stage's operations look up."""
        program, array = self.plan.program, self.dialect.array
        names = sorted({op.table for op in self.plan.ops if op.table})
        values = [program.tables[name].tolist() for name in names]
        text = "".join(
            array("int8_t", table_name(program, name), of, gathered=True)
            for name, of in zip(names, values, strict=True)
        )
        if self.plan.scores:
            text += self.score_tables()
        return text

    def score_tables(self) -> str:
        """EXP2 and LOG2 of the score's unit, 2^-SCORE_BITS; if exact, EXP2 of the exact loss."""
        dialect, bits = self.dialect, self.plan.program.score_bits
        text = dialect.constants(SCORE_BITS=bits, EXACT=self.exact)
        text += f"typedef {dialect.ulong if self.wide else dialect.uint} Total;\n"
        if not self.exact:
            powers = fx.exp2_table(bits).tolist()[-dialect.exp2_words :]
        else:
            powers = (fx.exp2_mantissas() if dialect.exp2_words else fx.exact_exp2()).tolist()
        wide = self.exact and not dialect.exp2_words
        text += dialect.array("ulong" if wide else "uint", "EXP2", powers)
        breakpoints = fx.log2_breakpoints(bits).tolist()
        return text + dialect.array("ulong", "LOG2", breakpoints, gathered=True)

    def opening(self) -> None:
        """Hook: declarations."""

    def token(self) -> None:
        """Hook: the start of a token."""

    def products(self, phase: Phase) -> None:
        """Hook: before the tiles of a phase, when all inputs of its products are there."""

    def row_written(self, op: Op) -> None:
        """Hook: after a row operation, of whose result each lane has the same features."""

    def element_written(self, op: Op, value: str) -> None:
        """Hook: after an operation's value of an element, which a lane holds."""

    def scored_token(self) -> None:
        """Hook: after a token's scores."""

    def body(self) -> str:
        """All T tokens of the stage, phase after phase."""
        plan, D = self.plan, self.plan.program.width
        self.declare_memory()
        self.declare()
        self.opening()
        if self.scored and self.dialect.exp2_words:
            self("egg::load_exp2(exp2, lane);")
        self.keep_vectors()
        self.load_state()
        self.move_in("0")
        self.barrier()
        self(f"for ({self.dialect.uint} t = 0; t < T; ++t) {{")
        self.token()
        for phase in plan.phases:
            self.row_part(phase)
            self.tile_part(phase)
        if plan.passes_on:
            self(f"egg::store_tile<{D}>(r{X}, passed_on + {self.at_token('t')}, lane);")
        self("if (t + 1 < T) {")
        self.move_in("t + 1")
        self("}")
        self.barrier()
        self("}")
        if plan.stage.state >= 0:
            self(f"egg::store_state<{D}>(r{S}, state_after + first * {D}, members, lane);")
        return "\n".join(self.lines) + "\n"

    def declare_memory(self) -> None:
        """Threadgroup memory and this threadgroup's share of device memory."""
        plan, dialect = self.plan, self.dialect
        unit, unit_bytes = dialect.unit
        shared = plan.shared_rows * plan.stride
        if shared:
            self.share(unit, "shared", shared)
        if plan.sums_bytes and plan.sums_shared:
            self.share("int", "sums", plan.sums_bytes)
        if plan.spare_bytes:
            self.share("int", "spare", plan.spare_bytes)
        if self.scored:
            self.share("Total", "parts", plan.simdgroups * plan.members * (8 if self.wide else 4))
            self.share("int", "hits", 4 * plan.members)
            if dialect.exp2_words:
                self.share("uint32_t", "exp2", 4 * dialect.exp2_words)
        if plan.scratch_bytes:
            self.spilled(unit, "spilled", f"scratch + {dialect.group} * {plan.scratch_bytes}u")
        if plan.sums_bytes and not plan.sums_shared:
            at = plan.spilled_rows * plan.stride // unit_bytes
            self.spilled("int", "sums", f"spilled + {at}")
        if not plan.sums_bytes and dialect.no_sums[0]:
            self(dialect.no_sums[0])

    def declare(self) -> None:
        """Registers and the coordinates of this threadgroup."""
        plan, dialect = self.plan, self.dialect
        unit, unit_bytes = dialect.unit
        for r, place in sorted(plan.places.items()):
            space = dialect.threadgroup if place.shared else dialect.device
            base, at = "shared" if place.shared else "spilled", place.row * plan.stride
            self(f"{space}{unit}* const r{r} = {base} + {at // unit_bytes};")
        self(
            f"const {dialect.uint} first = {dialect.group} * M;",
            f"const {dialect.uint} T = sizes[0], members = sizes[1] - first;",
            f"const egg::Lane lane = {dialect.lane(plan)};",
            f"{dialect.noise(plan).kind} noise;",
            "noise.table = table;",
            "noise.starts = starts;",
            "noise.first = first / 2;",
            "noise.pairs = sizes[2];",
            *dialect.noise(plan).lines,
        )

    def keep_vectors(self) -> None:
        """Stores vectors with their noise once, where it is the same at every token."""
        for leaf, at in self.plan.noisy_vectors.items():
            place, (size,) = self.plan.layout[leaf], self.plan.program.leaves[leaf].shape
            kept = f"kept{place.index}"
            kind, size_of = self.dialect.vector
            self.spilled(kind, kept, "spilled", at // size_of)
            arguments = f"weights + {place.offset}, noise, {place.index}"
            self(f"egg::keep_vector<{size}>({kept}, {arguments}, lane);")

    def load_state(self) -> None:
        """Loads the state, or zeros where the stage has none."""
        D = self.plan.program.width
        if S not in self.plan.lives:
            return
        if self.plan.stage.state >= 0:
            self(f"egg::load_state<{D}>(r{S}, state + first * {D}, members, lane);")
        else:
            self(f"egg::fill<{D}>(r{S}, lane);")
        if self.dialect.state_barrier:
            self.barrier()

    def move_in(self, t: str) -> None:
        """Loads the token's activations; a document mark zeroes the state."""
        plan, D = self.plan, self.plan.program.width
        if X in plan.lives and not plan.first:
            self(f"egg::load_tile<{D}>(r{X}, passed + {self.at_token(t)}, lane);")
        elif X in plan.lives and reads_first(plan, X):
            self(f"egg::fill<{D}>(r{X}, lane);")
        if S in plan.lives:
            self(f"egg::restart<{D}>(r{S}, tokens + first * T + {t}, T, members, lane);")

    def row_part(self, phase: Phase) -> None:
        """Row operations and the low-rank sums of the coming products, a simdgroup per pair."""
        plan, row = self.plan, self.dialect.row
        if not plan.has_rows(phase):
            return
        self(*self.dialect.row_loop(plan, phase))
        # No barrier between them: a lane has the same features of a member in all of them.
        for op in phase.rows:
            ROWS[op.kind](self, op)
            self.row_written(op)
        for op in phase.products if plan.perturbed else []:
            K, x = plan.program.leaves[op.leaf].shape[1], op.inputs[0]
            matrix = self.dialect.matrix_argument(plan, op.leaf)
            self(f"egg::dots<{K}>({self.sums_of(op)}, r{x}, noise, {matrix}, {row});")
        self("}")
        self.barrier()

    def tile_part(self, phase: Phase) -> None:
        """Products and what follows them element by element, in tiles of outputs x members."""
        plan, dialect = self.plan, self.dialect
        if not phase.tiles:
            return
        self.products(phase)
        kind, outputs = phase.tiles[0].kind, plan.extent(phase.tiles[0])
        if kind == "sums" and phase.tiles[0] not in plan.results:  # only its inputs are asked for
            self.barrier()
            return
        head = kind == "score"
        scored = head and self.scored
        self("{")
        if scored:
            self("egg::Likelihood likelihood;")
            self("egg::begin(likelihood, targets + first * T + t, T, members, lane);")
        self(*dialect.tile_loop(plan, outputs, head))
        written = sorted({op.out for op in phase.tiles if op.writes})
        names = ["logit"] if head else [f"v{r}" for r in written]
        self(*(dialect.tile_values(plan, name, outputs, head) for name in names))
        if kind == "sums":
            self(dialect.tile_sums(plan, "total", outputs))
        for ops in dialect.tile_turns(plan, phase):
            for op in ops:
                if op.kind in PRODUCTS:
                    TILES[op.kind](self, op)
            if kind not in ALONE:
                self.element_loop(ops, outputs)
        self("}")
        if scored:
            self("egg::gather(parts, likelihood, lane);")
        self("}")
        self.barrier()
        if scored:
            results = ", ".join(f"{name} + first * T + t" for name in RESULT_OUTPUTS[self.result])
            self(f"egg::finish({results}, parts, hits, T, members, lane);")
            self.scored_token()

    def element_loop(self, ops: Sequence[Op], outputs: int) -> None:
        """The operations that follow the products, on a lane's own values of the registers."""
        dialect, value = self.dialect, self.dialect.value
        self(*dialect.element_loop(self.plan, outputs))
        products = [op for op in ops if op.kind in PRODUCTS]
        self.local = {op.out: f"v{op.out}{dialect.element}" for op in products}
        for op in ops:
            if op.kind not in PRODUCTS:
                for r in op.inputs:
                    if r not in self.local and r not in registers_read_across(op):
                        self(f"const {value} m{r} = egg::get(r{r}, {dialect.feature}, member);")
                        self.local[r] = f"m{r}"
                self.element(op)
            self.element_written(op, self.local[op.out] if op.writes else "")
            if self.plan.stores(op):
                self(f"egg::put(r{op.out}, {dialect.feature}, member, {self.local[op.out]});")
        self("}")

    def element(self, op: Op) -> None:
        """An operation on the lane's value of one element of each member of a pair."""
        if op.kind in COPIES:
            COPIES[op.kind](self, op)
            return
        argument = ELEMENTS[op.kind](self, op)
        self(*self.dialect.elementwise(op, [self.local[r] for r in op.inputs], argument))
        self.local[op.out] = f"v{op.out}{self.dialect.element}"


def reads_first(plan: StagePlan, register: int) -> bool:
    """True if the stage reads a register before it writes it."""
    for op in plan.ops:
        if register in op.inputs:
            return True
        if op.writes and op.out == register:
            return False
    return False


def table_name(program: Program, name: str) -> str:
    """The identifier of a table: its name, or a number if that is no identifier."""
    plain = name.isidentifier() and name.isascii()
    return f"table_{name if plain else list(program.tables).index(name)}"


# The text of each operation: calls of the functions in its kernel file.


def row_embed(write: KernelWriter, op: Op) -> None:
    write(
        f"egg::embed<{write.plan.sizes[op.out]}>(r{op.out}, {write.weights(op)}, noise, "
        f"{write.leaf(op)}, tokens + first * T + t, T, members, {write.dialect.row});"
    )


def row_norm(write: KernelWriter, op: Op) -> None:
    write(
        f"egg::norm<{write.plan.sizes[op.out]}>(r{op.out}, r{op.inputs[0]}, {write.vector(op)}, "
        f"{write.dialect.row});"
    )


def row_input(write: KernelWriter, op: Op) -> None:
    size = write.plan.sizes[op.out]
    write(
        f"egg::input<{size}>(r{op.out}, {write.row_of('shown', size)}, T, members, "
        f"{write.dialect.row});"
    )


def row_features(write: KernelWriter, op: Op) -> None:
    program, (lists, active, at, shift) = write.plan.program, op.numbers
    D, indices = program.leaves[op.leaf].shape[1], program.indices
    write(
        f"egg::features<{D}, {lists}, {active}, {shift}, {write.node_shift(op)}>(r{op.out}, "
        f"{write.weights(op)}, noise, {write.leaf(op)}, {write.row_of('listed', indices)} + {at}, "
        f"T * {indices}, members, {write.dialect.row});"
    )


def tile_linear(write: KernelWriter, op: Op) -> None:
    (O, K), dialect = write.plan.program.leaves[op.leaf].shape, write.dialect
    out = "logit" if op.kind == "score" else f"v{op.out}"
    x = dialect.product_input(write.plan, op.inputs[0])
    matrix = dialect.matrix_argument(write.plan, op.leaf)
    write(
        f"egg::linear<{K}, {O}, {fx.divisor(K)}{dialect.tile_template}>({out}, "
        f"{write.weights(op)}, {x}, {write.sums_of(op)}, noise, {matrix}, {dialect.tile});"
    )


def tile_score(write: KernelWriter, op: Op) -> None:
    tile_linear(write, op)
    V = write.plan.program.leaves[op.leaf].shape[0]
    if not write.scored:
        write(f"egg::store_logits<{V}>(logits + first * {V}, logit, tile, members, lane);")
    else:
        write(f"egg::score<{V}>(likelihood, hits, {write.exp2}logit, tile, lane);")
        write.scored_tile(op)


def tile_sums(write: KernelWriter, op: Op) -> None:
    (O, K), dialect = write.plan.program.leaves[op.leaf].shape, write.dialect
    x, to = dialect.product_input(write.plan, op.inputs[0]), write.row_of(output_name(op), O)
    write(
        f"egg::sums<{K}, {O}, {fx.divisor(K)}{dialect.tile_template}>({to}, total, "
        f"{write.weights(op)}, {x}, {write.sums_of(op)}, noise, {write.leaf(op)}, T, members, "
        f"{dialect.tile});"
    )


def output_name(op: Op) -> str:
    """The kernel's name for the operation's output to the caller."""
    return f"out{op.numbers[0]}"


def bias(write: KernelWriter, op: Op) -> str:
    """Declares the bias; returns it as an argument."""
    name, size = f"w{write.leaf(op)}", write.plan.sizes[op.out]
    stored = op.leaf in write.plan.noisy_vectors
    declaration, argument = write.dialect.bias(name, size, write.vector(op), stored)
    write(declaration)
    return argument


def no_argument(write: KernelWriter, op: Op) -> str:
    return ""


def copy_concat(write: KernelWriter, op: Op) -> None:
    a, b = op.inputs
    sizes = f"{write.plan.sizes[a]}, {write.plan.sizes[b]}"
    out = f"v{op.out}{write.dialect.element}"
    write(f"{out} = egg::concat<{sizes}>(r{a}, r{b}, {write.dialect.feature}, member);")
    write.local[op.out] = out


def copy_output(write: KernelWriter, op: Op) -> None:
    size = write.plan.sizes[op.inputs[0]]
    write(
        f"egg::output<{size}>({write.row_of(output_name(op), size)}, {write.local[op.inputs[0]]}, "
        f"{write.dialect.feature}, member, T, members);"
    )


ROWS: dict[str, Callable[[KernelWriter, Op], None]] = {
    "embed": row_embed,
    "norm": row_norm,
    "input": row_input,
    "features": row_features,
}
TILES: dict[str, Callable[[KernelWriter, Op], None]] = {
    "linear": tile_linear,
    "score": tile_score,
    "sums": tile_sums,
}
# Operations element by element: their argument besides the registers that they read, if any.
ELEMENTS: dict[str, Callable[[KernelWriter, Op], str]] = {
    "add": no_argument,
    "add_bias": bias,
    "bias": bias,
    "relu": no_argument,
    "lookup": lambda write, op: table_name(write.plan.program, op.table),
    "forget": no_argument,
    "mix": no_argument,
}
# Operations that only move a value: from other elements, or to the caller.
COPIES: dict[str, Callable[[KernelWriter, Op], None]] = {
    "concat": copy_concat,
    "output": copy_output,
}
OPERATIONS = {**ROWS, **TILES, **ELEMENTS, **COPIES}
