"""Export to Python: a module of plain NumPy, which runs a row of each of R readers at a time."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from eggroll.library.export_parts import Network, identifiers
from eggroll.spec.fixed_point import divisor
from eggroll.spec.program import Op, Stage

HEAD = '''"""Network {name}, exported by eggroll: plain NumPy, with the bits of the engine.

step({arguments}) runs one row of each of R readers and returns {results}.
"""

import base64

import numpy as np


def _leaf(text, *shape):
    return np.frombuffer(base64.b85decode(text), np.int8).reshape(shape).astype(np.int64)


def _checked(values, name, low, high):
    values = np.asarray(values)
    whole = values.dtype.kind in "iu"
    if values.size and not (whole and low <= values.min() and values.max() <= high):
        raise ValueError(f"{{name}}: integers from {{low}} to {{high}} are needed")
    return values.astype(np.int64)


def _clip(v):
    return np.clip(v, -127, 127)


def _sums(x, W):  # exact: sums of int8 products are far below 2^53
    return (x.astype(np.float64) @ W.T.astype(np.float64)).astype(np.int64)


'''


def source(net: Network) -> bytes:
    """The network as a module of Python."""
    leaves = identifiers([leaf.name for leaf in net.program.leaves])
    outputs = [output.name for output in net.outputs()]
    arguments = _arguments(net)
    state = bool(net.program.state_size)
    after = f" and the new state, int8 [R, {net.program.state_size}]" * state
    results = f"a dict of outputs{after}"
    text = [HEAD.format(name=net.name, arguments=", ".join(arguments), results=results)]
    for name, leaf in net.leaves().items():
        packed = base64.b85encode(np.ascontiguousarray(leaf).tobytes()).decode()
        shape = ", ".join(map(str, leaf.shape))
        text.append(f'{leaves[name].upper()}_ = _leaf("{packed}", {shape})\n')
    for name, table in net.tables().items():
        text.append(f"TABLE_{net.table_name(name)} = np.array({table.tolist()})\n")
    text.append(f"\n\ndef step({', '.join(arguments)}):\n")
    text += [f"    {line}\n" for line in _body(net, leaves)]
    given = ", ".join(f"{name!r}: out_{net.output_name(name)}" for name in outputs)
    text.append(f"    return {{{given}}}" + ", state.astype(np.int8)" * state + "\n")
    return "".join(text).encode()


def _arguments(net: Network) -> list[str]:
    program = net.program
    return (
        ["inputs"] * bool(program.inputs)
        + ["features"] * bool(program.indices)
        + ["tokens"] * net.reads_tokens
        + ["state"] * bool(program.state_size)
        + ["begins=None"] * bool(program.state_size and not net.reads_tokens)
    )


def _body(net: Network, leaves: Mapping[str, str]) -> Iterator[str]:
    """The lines of `step`; registers are named by their stage and number, int64 [R, n]."""
    program = net.program
    if program.state_size:
        yield "state = np.array(state, np.int64)"
        if net.reads_tokens:
            yield "state[np.asarray(tokens) == 0] = 0"
        else:
            yield "if begins is not None:"
            yield "    state[np.asarray(begins, bool)] = 0"
    at: Stage | None = None
    for stage, op in net.operations():
        if stage is not at and stage.state >= 0:
            yield f"s = state[:, {stage.state} : {stage.state + program.width}]"
        at = stage
        names = ["x", "s"] + [f"r{i}" for i in range(2, len(stage.registers))]
        inputs = [names[i] for i in op.inputs]
        leaf = leaves[program.leaves[op.leaf].name].upper() + "_" if op.leaf >= 0 else ""
        value = EXPRESSIONS[op.kind](net, op, leaf, *inputs)
        to = names[op.out] if op.writes else f"out_{net.output_name(net.result(op))}"
        yield f"{to} = {value}"
        if op.writes and op.out == 1:
            yield f"state[:, {stage.state} : {stage.state + program.width}] = s"


def _features(net: Network, op: Op, leaf: str) -> str:
    lists, active, first, shift = op.numbers
    given = f"np.asarray(features)[:, {first} : {first + lists * active}]"
    rows = f'_checked({given}, "features", -1, {net.leaf(op).shape[0] - 1})'
    each = f"{rows}.reshape(-1, {lists}, {active})"
    total = f"(np.vstack([{leaf}, 0 * {leaf}[:1]])[{each}]).sum(axis=2)"  # -1 is the row of zeros
    return f"_clip({total} >> {shift}).reshape(-1, {lists * net.leaf(op).shape[1]})"


def _linear(net: Network, op: Op, leaf: str, x: str) -> str:
    return f"_clip(_sums({x}, {leaf}) // {divisor(net.leaf(op).shape[1])})"


def _norm(net: Network, op: Op, leaf: str, x: str) -> str:
    mean = f"np.maximum(abs({x}).sum(axis=1, keepdims=True) // {net.leaf(op).shape[0]}, 1)"
    return f"_clip({x} * {leaf} // {mean})"


# Operation -> (network, operation, its leaf's name, its inputs) -> an expression.
EXPRESSIONS: dict[str, Callable[..., str]] = {
    "embed": lambda net, op, leaf: (
        f'{leaf}[_checked(tokens, "tokens", 0, {net.leaf(op).shape[0] - 1})]'
    ),
    "linear": _linear,
    "norm": _norm,
    "add": lambda net, op, leaf, a, b: f"_clip({a} + {b})",
    "add_bias": lambda net, op, leaf, a, b: f"_clip({a} + {b} + {leaf})",
    "lookup": lambda net, op, leaf, x: f"TABLE_{net.table_name(op.table)}[{x} + 127]",
    "forget": lambda net, op, leaf, f, s: f"(({f} + 127) * {s}) >> 8",
    "mix": lambda net, op, leaf, f, h, s: f"{s} + ((({f} + 127) * ({h} - {s})) >> 8)",
    "score": lambda net, op, leaf, x: f"{_linear(net, op, leaf, x)}.astype(np.int8)",
    "input": lambda net, op, leaf: 'np.maximum(_checked(inputs, "inputs", -128, 127), -127)',
    "features": _features,
    "bias": lambda net, op, leaf, a: f"_clip({a} + {leaf})",
    "relu": lambda net, op, leaf, a: f"np.maximum({a}, 0)",
    "concat": lambda net, op, leaf, a, b: f"np.concatenate([{a}, {b}], axis=1)",
    "output": lambda net, op, leaf, x: f"{x}.astype(np.int8)",
    "sums": lambda net, op, leaf, x: f"_sums({x}, {leaf}).astype(np.int32)",
}
