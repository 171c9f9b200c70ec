"""Programs out of their declarations, as files keep them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from eggroll.program import Program
from eggroll.stage import Leaf, Op, Output, Policy, ProgramError, Stage


def program_of(declared: Mapping[str, Any], score_bits: int = 4) -> Program:
    """The program whose `declaration()` this is.

    Raises:
        ProgramError: it is none.
    """
    try:
        net = Program(declared["vocabulary"], declared["width"], score_bits)
        net.leaves = [Leaf(name, tuple(shape), init) for name, shape, init in declared["leaves"]]
        for ops, registers, state in declared["stages"]:
            net.stages.append(Stage([_operation(*op) for op in ops], list(registers), state))
        net.state_size = declared["state"]
        net.inputs, net.indices = declared.get("inputs", 0), declared.get("indices", 0)
        net.outputs = [Output(*output) for output in declared.get("outputs", ())]
        net.policies = [Policy(*policy) for policy in declared.get("policies", ())]
        tables = {name: np.array(v, np.int8) for name, v in declared["tables"].items()}
        net.tables = net.tables | tables
        net.check()
    except ProgramError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ProgramError(f"That is no declaration of a program ({error!r}).") from error
    return net


def program_in(text: str, score_bits: int = 4) -> Program:
    """The program whose `declaration()` this is, as JSON.

    Raises:
        ProgramError: it is none.
    """
    try:
        declared = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"The declaration of the program is no JSON ({error}).") from error
    return program_of(declared, score_bits)


def _operation(kind: str, out: int, inputs: Any, leaf: int, table: str, numbers: Any = ()) -> Op:
    return Op(kind, out, tuple(inputs), leaf, table, tuple(numbers))
