"""How many members a memory budget holds at a time."""

from __future__ import annotations

from eggroll.engines import Engine
from eggroll.noise import slice_length

BUDGET, PORTABLE_BUDGET = 1 << 28, 1 << 26  # bytes that the arrays of a chunk may take


def fitting_chunk(engine: Engine, *, members: int, seq_len: int, rank: int, kept: int) -> int:
    """Members to evaluate at a time, as many as a memory budget holds.

    seq_len: rows of an update; kept: values that are stored per pair and row until the credit.
    """
    program = engine.program
    shown = program.inputs + 4 * program.indices + sum(4 * size for _, size, _ in program.outputs)
    if engine.name == "portable":  # int32 registers and slices, int64 sums over the vocabulary
        registers = sum(sum(stage.registers) for stage in program.stages)
        longest = max(slice_length(leaf.shape, rank) for leaf in program.leaves)
        budget, member = PORTABLE_BUDGET, 4 * registers + 24 * (longest + program.vocabulary)
        member += seq_len * (4 * kept + shown)
    else:
        arrays = seq_len * (10 + shown) + 2 * program.state_size + 4 * len(program.leaves)
        credit_noise = 10 * seq_len * (kept > 0)
        budget, member = BUDGET, arrays + kept + credit_noise
    return min(max(budget // member // 2 * 2, 2), members)
