"""Export to ONNX in the integer operators of opset 13, one row of each of R readers per run.

Products are MatMulInteger on uint8 with zero point 128: signed kernels of some processors saturate
their sums in 16 bits. A division that rounds down is (a - Mod(a, d)) / d, as Div truncates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.library.export_parts import Network
from eggroll.spec.fixed_point import LIMIT, divisor
from eggroll.spec.program import Op

OPSET = 13
IR_VERSION = 8


class Graph:
    """An ONNX graph under construction; values are names of int32 tensors [R, n]."""

    def __init__(self, net: Network, onnx: Any) -> None:
        self.net, self.onnx = net, onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node; the name of its result."""
        name = output or f"v{len(self.nodes)}"
        made = self.onnx.helper.make_node(kind, list(inputs), [name], **attributes)
        self.nodes.append(made)
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.int32) -> str:
        if name not in self.constants:
            array = np.ascontiguousarray(values, dtype)
            self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def number(self, value: int) -> str:
        return self.constant(f"number_{value}".replace("-", "minus_"), value)

    def cast(self, x: str, dtype: Any, output: str = "") -> str:
        to = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", x, to=to, output=output)

    def clip(self, x: str) -> str:
        return self.node("Min", self.node("Max", x, self.number(-LIMIT)), self.number(LIMIT))

    def floor(self, x: str, by: str) -> str:
        """x / by, rounded down."""
        whole = self.node("Sub", x, self.node("Mod", x, by))
        return self.node("Div", whole, by)

    def leaf(self, op: Op, values: NDArray[Any] | None = None) -> str:
        name = self.net.program.leaves[op.leaf].name
        return self.constant(f"leaf/{name}", self.net.leaf(op) if values is None else values)

    def sums(self, op: Op, x: str) -> str:
        """W x, int32 [R, O]."""
        shifted = (self.net.leaf(op).T.astype(np.int32) + 128).astype(np.uint8)
        name = self.constant(f"leaf/{self.net.program.leaves[op.leaf].name}", shifted, np.uint8)
        zero = self.constant("zero_point", 128, np.uint8)
        bytes_of = self.cast(self.node("Add", x, self.number(128)), np.uint8)
        return self.node("MatMulInteger", bytes_of, name, zero, zero)

    def window(self, x: str, first: int, count: int) -> str:
        """Values first .. first + count - 1 of each row."""
        bounds = [self.constant(f"at_{v}", [v], np.int64) for v in (first, first + count, 1)]
        return self.node("Slice", x, bounds[0], bounds[1], bounds[2])


def _embed(g: Graph, op: Op) -> str:
    return g.node("Gather", g.leaf(op), "tokens", axis=0)


def _linear(g: Graph, op: Op, x: str) -> str:
    return g.clip(g.floor(g.sums(op, x), g.number(divisor(g.net.leaf(op).shape[1]))))


def _norm(g: Graph, op: Op, x: str) -> str:
    axes = g.constant("axis_1", [1], np.int64)
    total = g.node("ReduceSum", g.node("Abs", x), axes, keepdims=1)
    size = g.number(g.net.leaf(op).shape[0])
    mean = g.node("Max", g.floor(total, size), g.number(1))
    return g.clip(g.floor(g.node("Mul", x, g.leaf(op)), mean))


def _gated(g: Graph, f: str, x: str) -> str:
    """x times the gate (f + 127) / 256, rounded down."""
    return g.floor(g.node("Mul", g.node("Add", f, g.number(LIMIT)), x), g.number(256))


def _mix(g: Graph, op: Op, f: str, h: str, s: str) -> str:
    return g.node("Add", s, _gated(g, f, g.node("Sub", h, s)))


def _lookup(g: Graph, op: Op, x: str) -> str:
    table = g.constant(f"table/{op.table}", g.net.tables()[op.table])
    return g.node("Gather", table, g.node("Add", x, g.number(LIMIT)), axis=0)


def _input(g: Graph, op: Op) -> str:
    return g.node("Max", g.cast("inputs", np.int32), g.number(-LIMIT))


def _features(g: Graph, op: Op) -> str:
    lists, active, first, shift = op.numbers
    E = g.net.leaf(op).astype(np.int32)
    D = E.shape[1]
    # -1 counts from the end: there is a row of zeros.
    padded = g.leaf(op, np.vstack([E, np.zeros((1, D), np.int32)]))
    shape = g.constant(f"lists_{lists}_{active}", [-1, lists, active], np.int64)
    shown = g.node("Reshape", g.window("features", first, lists * active), shape)
    axes = g.constant("axis_2", [2], np.int64)
    total = g.node("ReduceSum", g.node("Gather", padded, shown, axis=0), axes, keepdims=0)
    side_by_side = g.constant(f"flat_{lists * D}", [-1, lists * D], np.int64)
    return g.clip(g.floor(g.node("Reshape", total, side_by_side), g.number(1 << shift)))


# Operation -> (graph, operation, its inputs) -> the name of its result.
NODES: dict[str, Callable[..., str]] = {
    "embed": _embed,
    "linear": _linear,
    "norm": _norm,
    "add": lambda g, op, a, b: g.clip(g.node("Add", a, b)),
    "add_bias": lambda g, op, a, b: g.clip(g.node("Add", g.node("Add", a, b), g.leaf(op))),
    "lookup": _lookup,
    "forget": lambda g, op, f, s: _gated(g, f, s),
    "mix": _mix,
    "score": _linear,
    "input": _input,
    "features": _features,
    "bias": lambda g, op, a: g.clip(g.node("Add", a, g.leaf(op))),
    "relu": lambda g, op, a: g.node("Max", a, g.number(0)),
    "concat": lambda g, op, a, b: g.node("Concat", a, b, axis=1),
    "output": lambda g, op, x: x,
    "sums": lambda g, op, x: g.sums(op, x),
}


def model(net: Network) -> bytes:
    """The network as a model of ONNX.

    Raises:
        InputError: the package onnx is missing, or an output has a name that the graph needs.
    """
    try:
        import onnx
    except ImportError as error:
        raise InputError(
            "the package onnx is needed to write .onnx: `pip install onnx` brings it."
        ) from error
    g, program = Graph(net, onnx), net.program
    state = _states(g)
    registers: list[str] = []
    at, x = None, ""
    after = dict[int, str]()
    for stage, op in net.operations():
        if stage is not at:
            x = registers[0] if registers else ""
            registers = [x, state.get(stage.state, ""), *[""] * (len(stage.registers) - 2)]
        at = stage
        made = NODES[op.kind](g, op, *(registers[i] for i in op.inputs))
        if op.writes:
            registers[op.out] = made
        else:
            result = net.result(op)
            wide = op.kind == "sums"
            g.cast(made, np.int32 if wide else np.int8, output=f"{result}")
        if stage.state >= 0:
            after[stage.state] = registers[1]
    if program.state_size:
        whole = list(after.values())
        joined = g.node("Concat", *whole, axis=1) if len(whole) > 1 else whole[0]
        g.cast(joined, np.int8, output="state_after")
    return bytes(_proto(g).SerializeToString())


def _states(g: Graph) -> dict[int, str]:
    """Offset in the state -> the state of a stage before the row, zero where an episode begins."""
    program, found = g.net.program, dict[int, str]()
    if not program.state_size:
        return found
    if g.net.reads_tokens:
        zero = g.node("Equal", "tokens", g.number(0))
        goes_on = g.node("Not", zero)
    else:
        goes_on = g.node("Not", "begins")
    axes = g.constant("axis_1", [1], np.int64)
    kept = g.node("Unsqueeze", g.cast(goes_on, np.int32), axes)
    state = g.node("Mul", g.cast("state", np.int32), kept)
    for stage in program.stages:
        if stage.state >= 0:
            found[stage.state] = g.window(state, stage.state, program.width)
    return found


def _proto(g: Graph) -> Any:
    onnx, net, program = g.onnx, g.net, g.net.program
    kinds = onnx.TensorProto
    value = onnx.helper.make_tensor_value_info
    state = program.state_size
    shown: Sequence[tuple[str, Any, list[Any], Any]] = [
        ("inputs", kinds.INT8, ["R", program.inputs], program.inputs),
        ("features", kinds.INT32, ["R", program.indices], program.indices),
        ("tokens", kinds.INT32, ["R"], net.reads_tokens),
        ("state", kinds.INT8, ["R", state], state),
        ("begins", kinds.BOOL, ["R"], state and not net.reads_tokens),
    ]
    inputs = [value(name, kind, shape) for name, kind, shape, there in shown if there]
    outputs = [
        value(output.name, kinds.INT32 if output.wide else kinds.INT8, ["R", output.size])
        for output in net.outputs()
    ]
    if state:
        outputs.append(value("state_after", kinds.INT8, ["R", state]))
    results = [name for node in g.nodes for name in node.output]
    names = Counter([*(info.name for info in inputs), *g.constants, *results])
    for output in net.outputs():
        if names[output.name] > 1 or not output.name:
            raise InputError(
                f"output {output.name!r} has a name that the graph needs itself: give it another "
                "one, or write another format."
            )
    graph = onnx.helper.make_graph(g.nodes, net.name, inputs, outputs, list(g.constants.values()))
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    made.ir_version = IR_VERSION
    onnx.checker.check_model(made)
    return made
