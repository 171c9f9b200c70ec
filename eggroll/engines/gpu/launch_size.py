"""Members and tokens of one launch, bounded in memory and in time.

Letters: P members, T tokens, M members of a threadgroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eggroll.engines.gpu.carry_plan import CarryPlan
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.plan import StagePlan

SORTED = 12  # bytes of a member's token, half a pair's, where rows are sorted


class Limits(NamedTuple):
    """Bytes that arrays may take, multiply-adds of one launch, bytes a token passes to and fro."""

    memory: int
    macs: int
    passed: int


def scratch_of(plans: Sequence[StagePlan]) -> int:
    """Bytes of device memory for a member, at most."""
    return max(-(-plan.scratch_bytes // plan.members) for plan in plans)


class Need(NamedTuple):
    """Of a member, at most: bytes of device memory, and multiply-adds of a token in one launch."""

    scratch: int
    macs: int


def need_of(plans: Sequence[StagePlan]) -> Need:
    """plans: of every stage, for every M there may be."""
    return Need(scratch_of(plans), max(1, *(plan.macs for plan in plans)))


def launch_size(need: Need, limits: Limits, P: int, T: int) -> tuple[int, int]:
    """Members (even) and tokens of one launch.

    Fewer tokens at a time cost a launch more, fewer members leave the GPU half empty: so tokens are
    cut first.
    """
    kept = max(limits.passed, 1)
    tokens = min((limits.memory // P - need.scratch) // kept, limits.macs // (need.macs * P), T)
    tokens = max(tokens, 1)
    room = limits.memory // (tokens * kept + need.scratch)
    room = min(room, limits.macs // (need.macs * tokens))
    return min(P, max(room // 2 * 2, 2)), tokens


class TapeNeed(NamedTuple):
    """Of a member that is credited: bytes of every token, and of all; members of a threadgroup."""

    token: int
    member: int
    whole: int


def tape_need(plans: Sequence[Sequence[CreditPlan]]) -> TapeNeed:
    """plans: of every stage, for every M there may be, the largest first."""
    stages, program = plans[0], plans[0][0].program
    scratch = scratch_of([plan for each in plans for plan in each])
    tape = sum(plan.tape_bytes for plan in stages) // 2 + len(program.leaves)
    tape += SORTED * (1 + program.indices)
    inputs = max(sum(plan.sizes[op.inputs[0]] for op in plan.traced) for plan in stages)
    return TapeNeed(tape, 4 * inputs + scratch, stages[0].members)


def carry_need(plans: Sequence[Sequence[CarryPlan]]) -> TapeNeed:
    """The same of members that carry errors back; plans as of `tape_need`."""
    stages, program = plans[0], plans[0][0].program
    scratch = scratch_of([plan for each in plans for plan in each])
    back = max(-(-plan.back_bytes // plan.members) for each in plans for plan in each)
    vectors = sum(4 * plan.vector_rows for plan in stages)
    tape = sum(plan.carried_bytes for plan in stages) + 2 * SORTED * (1 + program.indices)
    return TapeNeed(tape, scratch + back + vectors, stages[0].members)


def tape_members(need: TapeNeed, limits: Limits, T: int) -> int:
    """Members (even) whose tapes of T tokens fit into memory; if many, of whole threadgroups."""
    room = limits.memory // (T * (limits.passed + need.token) + need.member)
    return room // need.whole * need.whole or max(room // 2 * 2, 2)
