"""Programs out of their declarations, as files keep them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eggroll.errors import shown
from eggroll.program import Program
from eggroll.stage import OPERATIONS, Leaf, Policy, ProgramError, Register, as_table

Parts = Sequence[Any]
IN_PLACE = ("add", "bias", "mix", "relu")  # may write a register that is there
FOREIGN = (
    AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def program_of(declared: Mapping[str, Any], score_bits: int = 4) -> Program:
    """The program whose `declaration()` this is, built anew by the methods of Program.

    So what they refuse, and what they would not have made, is refused in a file as well.

    Raises:
        ProgramError: it is none.
    """
    try:
        net = _built(declared, score_bits)
        same = _text(net.declaration()) == _text(declared)
    except ProgramError as error:
        raise ProgramError(f"That is no declaration of a program: {error}") from error
    except FOREIGN as error:
        reason = f"{type(error).__name__}: {error}"
        raise ProgramError(f"That is no declaration of a program ({reason:.200}).") from error
    if not same:
        raise ProgramError(
            "That is no declaration of a program: its operations make another one than it says."
        )
    return net


def program_in(text: str, score_bits: int = 4) -> Program:
    """The program whose declaration a text has as JSON.

    Raises:
        ProgramError: it has none.
    """
    try:
        declared = json.loads(text)
    except FOREIGN as error:
        raise ProgramError(f"That is no declaration of a program ({error}).") from error
    return program_of(declared, score_bits)


def _text(declared: Mapping[str, Any]) -> str:
    """As JSON, in which true is not 1."""
    return json.dumps(declared, sort_keys=True)


def _built(declared: Mapping[str, Any], score_bits: int) -> Program:
    net = Program(declared["vocabulary"], declared["width"], score_bits)
    tables = {name: as_table(name, values) for name, values in declared["tables"].items()}
    net.tables = net.tables | tables
    leaves = [Leaf(name, tuple(shape), init) for name, shape, init in declared["leaves"]]
    for ops, registers, state in declared["stages"]:
        net.stage(state=state != -1)
        for op in ops:
            _operation(net, (*op, ())[:6], registers, leaves, declared)
    net.policies = [Policy(*policy) for policy in declared.get("policies", ())]
    _check_policies(net)
    net.check()
    return net


def _operation(
    net: Program, op: Parts, registers: Parts, leaves: Sequence[Leaf], declared: Mapping[str, Any]
) -> None:
    """Adds an operation to the last stage by the method of its kind."""
    kind, out, inputs, leaf, table, numbers = op
    if kind not in OPERATIONS:
        raise ProgramError(f"Operation {shown(kind)} is unknown.")
    made = net.stages[-1].registers
    given: list[Any] = [_register(net, index) for index in inputs]
    options: dict[str, Any] = {}
    if kind == "input":
        given.append(registers[_place(out)])
    if kind == "output":
        given.append(declared["outputs"][_place(numbers[0])][0])
    if kind == "lookup":
        given.append(table)
    if leaf != -1:
        given.append(leaves[_place(leaf)].name)
    if kind in ("linear", "sums"):
        given.append(leaves[leaf].shape[0])
    if kind == "features":
        given += leaves[leaf].shape
        options["lists"], options["active"], _, options["shift"] = numbers
    if kind in IN_PLACE and _place(out) < len(made):
        options["out"] = _register(net, out)
    getattr(net, kind)(*given, **options)


def _register(net: Program, index: Any) -> Register:
    stage = net.stages[-1]
    return Register(stage, _place(index), stage.registers[index])


def _place(index: Any) -> int:
    """An index that counts from the front."""
    if type(index) is not int or index < 0:
        raise IndexError(f"{shown(index)} is no index")
    return index


def _check_policies(net: Program) -> None:
    """Raises ProgramError unless each is the leaf and the output of one linear operation."""
    for policy in net.policies:
        leaf = net.leaves[_place(policy.leaf)]
        logits, given = net.outputs[_place(policy.output)], net.outputs[policy.output + 1]
        if (logits.size, given.size) != leaf.shape or given.name != f"{logits.name}.inputs":
            raise ProgramError(f"Policy {shown(logits.name)} has not the outputs of one.")
