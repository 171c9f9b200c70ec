"""The text of each operation in a stage's kernel: calls of the functions in its kernel file.

Letters: D width, V vocabulary, K inputs and O outputs of an operation.
"""

from __future__ import annotations

from collections.abc import Callable

from eggroll import fixed_point as fx
from eggroll.engines.gpu.writer import KernelWriter
from eggroll.program import Op, Program


def table_name(program: Program, name: str) -> str:
    """The identifier of a table; one whose name is none gets a number."""
    plain = name.isidentifier() and name.isascii()
    return f"table_{name if plain else list(program.tables).index(name)}"


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
    write(
        f"egg::linear<{K}, {O}, {fx.divisor(K)}{dialect.tile_template}>({out}, "
        f"{write.weights(op)}, {x}, {write.sums_of(op)}, noise, {write.leaf(op)}, {dialect.tile});"
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
    """The kernel's name for what the operation gives to the caller."""
    return f"out{op.numbers[0]}"


def bias(write: KernelWriter, op: Op) -> str:
    """Declares the bias; gives it as an argument."""
    name, size = f"w{write.leaf(op)}", write.plan.sizes[op.out]
    kept = op.leaf in write.plan.kept_vectors
    declaration, argument = write.dialect.bias(name, size, write.vector(op), kept)
    write(declaration)
    return argument


def nothing(write: KernelWriter, op: Op) -> str:
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
# Operations element by element: one more argument than the registers that they read, or none.
ELEMENTS: dict[str, Callable[[KernelWriter, Op], str]] = {
    "add": nothing,
    "add_bias": bias,
    "bias": bias,
    "relu": nothing,
    "lookup": lambda write, op: table_name(write.plan.program, op.table),
    "forget": nothing,
    "mix": nothing,
}
# The same, but only moving a value: of other elements, or to the caller.
COPIES: dict[str, Callable[[KernelWriter, Op], None]] = {
    "concat": copy_concat,
    "output": copy_output,
}
