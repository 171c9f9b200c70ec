"""Export to C99: one header of constants and functions, without heap, floats or dependencies.

A row runs in `NAME_step`; registers are on the stack, stage by stage. Inner loops are plain sums of
int8 products over contiguous memory, which compilers turn into vector instructions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.library.export_parts import Network, identifiers
from eggroll.spec.fixed_point import divisor
from eggroll.spec.program import Op, S, Stage, X

PER_LINE = 24  # numbers of a constant
HELPERS = """
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define {N}_MAYBE static inline __attribute__((unused))
#else
#define {N}_MAYBE static inline
#endif

{N}_MAYBE int8_t {n}_clip(int32_t v) {{ return (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v); }}

/* a / d, rounded down; d is above 0 */
{N}_MAYBE int32_t {n}_floor(int32_t a, int32_t d) {{ return a / d - (a % d < 0); }}

/* W x of a matrix [O, K] */
{N}_MAYBE int32_t {n}_dot(const int8_t *w, const int8_t *x, int K) {{
  int32_t sum = 0;
  for (int k = 0; k < K; ++k) sum += (int32_t)w[k] * x[k];
  return sum;
}}

{N}_MAYBE void {n}_linear(const int8_t *w, const int8_t *x, int O, int K, int32_t d, int8_t *y) {{
  for (int o = 0; o < O; ++o) y[o] = {n}_clip({n}_floor({n}_dot(w + (int64_t)o * K, x, K), d));
}}

{N}_MAYBE void {n}_norm(const int8_t *w, const int8_t *x, int K, int8_t *y) {{
  int32_t sum = 0;
  for (int k = 0; k < K; ++k) sum += x[k] < 0 ? -x[k] : x[k];
  const int32_t mean = sum / K > 1 ? sum / K : 1;
  for (int k = 0; k < K; ++k) y[k] = {n}_clip({n}_floor((int32_t)x[k] * w[k], mean));
}}

/* sums [D] of the rows of E [count, D] that a list of indices names; -1 names none */
{N}_MAYBE void {n}_sum_up(const int8_t *E, const int32_t *index, int active, int D,
                          int16_t *sums) {{
  for (int d = 0; d < D; ++d) sums[d] = 0;
  for (int i = 0; i < active; ++i) {{
    if (index[i] < 0) continue;
    const int8_t *row = E + (int64_t)index[i] * D;
    for (int d = 0; d < D; ++d) sums[d] = (int16_t)(sums[d] + row[d]);
  }}
}}

/* sums plus a row of E, or less it where sign is -1 */
{N}_MAYBE void {n}_change(const int8_t *E, int32_t index, int sign, int D, int16_t *sums) {{
  const int8_t *row = E + (int64_t)index * D;
  for (int d = 0; d < D; ++d) sums[d] = (int16_t)(sums[d] + sign * row[d]);
}}

/* the sums of lists, shifted right and rounded down */
{N}_MAYBE void {n}_features(const int16_t *const *sums, int lists, int D, int shift, int8_t *y) {{
  for (int l = 0; l < lists; ++l)
    for (int d = 0; d < D; ++d)
      y[l * D + d] = {n}_clip({n}_floor(sums[l][d], (int32_t)1 << shift));
}}
"""


def header(net: Network) -> bytes:
    """The network as a header of C99."""
    n, N = net.name, net.name.upper()
    leaves = identifiers([leaf.name for leaf in net.program.leaves])
    text = [HELPERS.format(n=n, N=N), *_sizes(net, N)]
    for leaf, values in net.leaves().items():
        text.append(_constant(f"{n}_leaf_{leaves[leaf]}", values))
    for name, table in net.tables().items():  # by the value plus 127
        text.append(_constant(f"{n}_table_{net.table_name(name)}", table))
    lists = _lists(net)
    text += _accumulators(net, leaves, lists) if lists else ()
    name = f"{n}_step_sums" if lists else f"{n}_step"
    text += _function(
        N, name, _parameters(net, "sums" if lists else "features"), _body(net, leaves)
    )
    if lists:
        text += _function(N, f"{n}_step", _parameters(net, "features"), _whole_step(net, lists))
    # Two networks of one name are an error of the compiler: each has a guard of its own.
    body = "".join(text)
    guard = f"{N}_{hashlib.sha256(body.encode()).hexdigest()[:12].upper()}_H"
    return (
        f"/* Network {n}, exported by eggroll: C99, equal to the engine in every bit.\n"
        f"   {n}_step runs one row. It needs no heap, no floats and no library. */\n"
        f"#ifndef {guard}\n#define {guard}\n{body}\n#endif  /* {guard} */\n"
    ).encode()


def _function(N: str, name: str, parameters: Sequence[str], body: Iterable[str]) -> Iterator[str]:
    yield f"\n{N}_MAYBE void {name}({', '.join(parameters)}) {{\n"
    yield from (f"  {line}\n" for line in body)
    yield "}\n"


def _lists(net: Network) -> list[tuple[int, Op]]:
    """Operations of features, and the number of the first list of each; lists count through."""
    found, first = list[tuple[int, Op]](), 0
    for _, op in net.operations():
        if op.kind == "features":
            found.append((first, op))
            first += op.numbers[0]
    return found


def _accumulators(
    net: Network, leaves: Mapping[str, str], lists: Sequence[tuple[int, Op]]
) -> Iterator[str]:
    """Functions that keep the sums of a list: from all its indices, or by the difference."""
    n, N, last = net.name, net.name.upper(), lists[-1]
    widest = max(net.leaf(op).shape[1] for _, op in lists)
    yield (
        "\n/* Accumulators: the sums of a list's rows, which a caller may keep and change by the\n"
        "   indices that come and go; lists count through all features of the network. */\n"
        f"#define {N}_LISTS {last[0] + last[1].numbers[0]}\n"
        f"#define {N}_SUMS {widest}  /* of a list, at most */\n"
    )
    for name, given, call in (
        (
            "refresh",
            "const int32_t *index, int16_t *sums",
            "sum_up({leaf}, index, {active}, {D}, sums)",
        ),
        ("add", "int32_t index, int16_t *sums", "change({leaf}, index, 1, {D}, sums)"),
        ("remove", "int32_t index, int16_t *sums", "change({leaf}, index, -1, {D}, sums)"),
    ):
        body = ["(void)list;"]
        for first, op in reversed(lists):
            leaf = f"{n}_leaf_{leaves[net.program.leaves[op.leaf].name]}"
            made = call.format(leaf=leaf, active=op.numbers[1], D=net.leaf(op).shape[1])
            body.append(f"if (list >= {first}) {{ {n}_{made}; return; }}")
        yield from _function(N, f"{n}_{name}", ["int list", *given.split(", ")], body)


def _whole_step(net: Network, lists: Sequence[tuple[int, Op]]) -> Iterator[str]:
    """A step from the indices of all lists."""
    n, N = net.name, net.name.upper()
    yield f"int16_t made[{N}_LISTS][{N}_SUMS];"
    yield f"const int16_t *sums[{N}_LISTS];"
    yield f"for (int l = 0; l < {N}_LISTS; ++l) sums[l] = made[l];"
    for first, op in lists:
        count, active, at, _ = op.numbers
        yield f"for (int l = 0; l < {count}; ++l)"
        yield f"  {n}_refresh({first} + l, features + {at} + l * {active}, made[{first} + l]);"
    given = [text.split()[-1].lstrip("*") for text in _parameters(net, "sums")]
    yield f"{n}_step_sums({', '.join(given)});"


def _sizes(net: Network, N: str) -> Iterator[str]:
    """Constants by which a caller declares its arrays."""
    program = net.program
    sizes = {
        "INPUTS": program.inputs,
        "FEATURES": program.indices,
        "VOCABULARY": program.vocabulary if net.reads_tokens else 0,
        "STATE": program.state_size,
    } | {f"{net.output_name(output.name).upper()}_SIZE": output.size for output in net.outputs()}
    yield "\n"
    for name, size in sizes.items():
        if size:
            yield f"#define {N}_{name} {size}\n"


def _constant(name: str, values: NDArray[Any]) -> str:
    flat = np.asarray(values).reshape(-1).tolist()
    lines = (flat[i : i + PER_LINE] for i in range(0, len(flat), PER_LINE))
    body = ",\n".join("  " + ", ".join(map(str, line)) for line in lines)
    return f"\nstatic const int8_t {name}[{len(flat)}] = {{\n{body}}};\n"


def _parameters(net: Network, sparse: str) -> list[str]:
    """Arguments of a step. sparse: "features", indices, or "sums" of their rows."""
    program = net.program
    kind = "const int16_t *const *" if sparse == "sums" else "const int32_t *"
    given = [
        ("const int8_t *inputs", program.inputs),
        (kind + sparse, program.indices),
        ("int32_t token", net.reads_tokens),
        ("int begins", program.state_size and not net.reads_tokens),
        ("int8_t *state", program.state_size),
    ]
    outputs = [
        f"{'int32_t' if output.wide else 'int8_t'} *{_out(net, output.name)}"
        for output in net.outputs()
    ]
    return [text for text, there in given if there] + outputs


def _out(net: Network, name: str) -> str:
    return f"out_{net.output_name(name)}"


def _body(net: Network, leaves: Mapping[str, str]) -> Iterator[str]:
    program, at = net.program, None
    many = any(X in op.inputs or (op.writes and op.out == X) for _, op in net.operations())
    if program.state_size:
        begins = "token == 0" if net.reads_tokens else "begins"
        yield f"if ({begins}) memset(state, 0, {program.state_size});"
    kinds = {op.kind for _, op in net.operations()}
    for what, size, kind in (
        ("inputs", program.inputs, "input"),
        ("features", program.indices, "features"),
    ):
        if size and kind not in kinds:  # no result needs them
            yield f"(void){what};"
    if many:
        yield f"int8_t x[{program.width}] = {{0}};"
    for stage, op in net.operations():
        if stage is not at:
            if at is not None:
                yield "}"
            yield "{"
            here = [o for of, o in net.operations() if of is stage]
            used = {r for o in here for r in (*o.inputs, *([o.out] if o.writes else []))}
            for i, size in enumerate(stage.registers):
                if i > S and i in used:
                    yield f"  int8_t r{i}[{size}];"
            if S in used:
                yield f"  int8_t *s = state + {stage.state};"
        at = stage
        for line in _operation(net, leaves, stage, op):
            yield "  " + line
    yield "}"


def _operation(net: Network, leaves: Mapping[str, str], stage: Stage, op: Op) -> Iterator[str]:
    n, program = net.name, net.program
    names = ["x", "s"] + [f"r{i}" for i in range(2, len(stage.registers))]
    inputs = [names[i] for i in op.inputs]
    y = names[op.out] if op.writes else _out(net, net.result(op))
    size = stage.registers[op.out]
    leaf = f"{n}_leaf_{leaves[program.leaves[op.leaf].name]}" if op.leaf >= 0 else ""
    loop = f"for (int i = 0; i < {size}; ++i) {y}[i] = "
    if op.kind in ELEMENTS:
        value = ELEMENTS[op.kind](n, leaf, *(f"{name}[i]" for name in inputs))
        yield f"{loop}{value.format(table=op.table and net.table_name(op.table))};"
    elif op.kind in ("linear", "score", "sums"):
        O, K = net.leaf(op).shape
        if op.kind == "sums":
            yield f"for (int o = 0; o < {O}; ++o)"
            yield f"  {y}[o] = {n}_dot({leaf} + (int64_t)o * {K}, {inputs[0]}, {K});"
        else:
            yield f"{n}_linear({leaf}, {inputs[0]}, {O}, {K}, {divisor(K)}, {y});"
    elif op.kind == "norm":
        yield f"{n}_norm({leaf}, {inputs[0]}, {size}, {y});"
    elif op.kind == "features":
        first = next(first for first, other in _lists(net) if other is op)
        lists, D, shift = op.numbers[0], net.leaf(op).shape[1], op.numbers[3]
        yield f"{n}_features(sums + {first}, {lists}, {D}, {shift}, {y});"
    elif op.kind == "concat":
        sizes = [stage.registers[i] for i in op.inputs]
        yield f"memcpy({y}, {inputs[0]}, {sizes[0]});"
        yield f"memcpy({y} + {sizes[0]}, {inputs[1]}, {sizes[1]});"
    else:
        assert op.kind == "output"
        yield f"memcpy({y}, {inputs[0]}, {stage.registers[op.inputs[0]]});"


# Operations on single values -> (name, leaf, inputs) -> an expression of value i.
ELEMENTS: dict[str, Callable[..., str]] = {
    "embed": lambda n, leaf: (
        f"{leaf}[(int64_t)token * (int64_t)(sizeof {leaf} / {n.upper()}_VOCABULARY) + i]"
    ),
    "add": lambda n, leaf, a, b: f"{n}_clip({a} + {b})",
    "add_bias": lambda n, leaf, a, b: f"{n}_clip({a} + {b} + {leaf}[i])",
    "lookup": lambda n, leaf, a: f"{n}_table_{{table}}[{a} + 127]",
    "forget": lambda n, leaf, f, s: f"(int8_t){n}_floor(({f} + 127) * {s}, 256)",
    "mix": lambda n, leaf, f, h, s: f"(int8_t)({s} + {n}_floor(({f} + 127) * ({h} - {s}), 256))",
    "input": lambda n, leaf: "inputs[i] < -127 ? -127 : inputs[i]",
    "bias": lambda n, leaf, a: f"{n}_clip({a} + {leaf}[i])",
    "relu": lambda n, leaf, a: f"{a} > 0 ? {a} : 0",
}
