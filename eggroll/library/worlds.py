"""Members in a native world: inside an engine's kernels, or in lockstep on any engine.

Letters: P members, T rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import _extension
from eggroll.errors import InputError, is_whole, shown
from eggroll.evolution.estimators import CREDIT, Rollout
from eggroll.evolution.population import Population, WorldCall
from eggroll.evolution.step import Learner
from eggroll.library.members import Members, Whole
from eggroll.native import World
from eggroll.spec.program import Program
from eggroll.training.config import Evolution

BEGINS = 2  # EGGROLL_BEGINS of eggroll_world.h


def world_call(
    net: Program,
    options: Evolution,
    world: World,
    rows: Whole,
    shared: Any,
    keys: Callable[[int], NDArray[np.uint64]],
    group: Whole,
) -> WorldCall:
    """The call that runs every member in a world.

    shared: an array or ctypes object that the world reads, an address, or None; keys: of as many
    groups, uint64; group: members of a group.

    Raises:
        InputError: they do not fit the network or the population.
    """
    if not isinstance(world, World):
        raise InputError(
            f"world is of type {type(world).__name__}: a world of eggroll.native.build is needed."
        )
    if not options.estimator_class.perturbs:
        raise InputError(
            f"A world tells values and estimator {options.estimator} learns from errors: use "
            'estimator="eggroll" or "token-credit".'
        )
    most = ((1 << 31) - 1) // options.pop  # of what rows were worth, values of all members
    if not is_whole(rows) or not 1 <= rows <= most:
        raise InputError(
            f"rows is {rows!r}: a whole number from 1 to {most} is needed, as pop is {options.pop}."
        )
    if not is_whole(group) or group < 2 or group % 2 or options.pop % group:
        raise InputError(
            f"group is {group!r}: an even number that divides pop, {options.pop}, is needed, as "
            "the members of a pair are given the same key."
        )
    _check(net, world, options.estimator_class.by_token)
    repeated = np.repeat(keys(options.pop // int(group)), group)
    return WorldCall(world.address, _address(shared), repeated, int(rows), (world, shared))


def _check(net: Program, world: World, by_token: bool) -> None:
    kinds = {op.kind for stage in net.stages for op in stage.ops}
    if not net.inputs or kinds & {"embed", "features"}:
        raise InputError(
            "A world shows inputs alone, and the network reads "
            + ("tokens or features besides" if net.inputs else "none")
            + ": declare it with net.input(n)."
        )
    first = net.outputs[0]
    if (world.inputs, world.outputs) != (net.inputs, first.size):
        raise InputError(
            f"The world {world.name!r} shows {world.inputs} inputs and takes {world.outputs} "
            f"outputs, and the network has {net.inputs} and {first.size} (of {first.name!r}): "
            "they must be the same."
        )
    if by_token and net.policies:
        raise InputError(
            "A world draws no actions for the network's policy, whose votes come from them: use "
            'net.output in its place, or estimator="eggroll".'
        )


def _address(shared: Any) -> int:
    if shared is None:
        return 0
    if isinstance(shared, np.ndarray):
        if not shared.flags.c_contiguous:
            raise InputError("shared is no contiguous array: give np.ascontiguousarray(shared).")
        if shared.dtype.hasobject or not shared.dtype.isnative:
            raise InputError(
                f"shared is an array of {shared.dtype}: numbers in this machine's order are needed."
            )
        return shared.ctypes.data
    if type(shared) is int and 0 <= shared < 1 << 64:
        return shared
    if isinstance(shared, (ctypes._Pointer, ctypes.c_void_p)):
        raise InputError(
            f"shared is a pointer, {shown(shared)}: give what it points to, or its address."
        )
    try:
        return ctypes.addressof(shared)
    except TypeError:
        raise InputError(
            f"shared is {shown(shared)}: an array, a ctypes object or an address is needed."
        ) from None


def plays_inside(population: Population, value_scale: float) -> bool:
    """True if the engine can run members in worlds by itself.

    value_scale: mean difference of values in the update before. It is the scale of credit, which is
    counted as soon as the last row was run.
    """
    return population.engine.plays and (population.crediting is None or value_scale > 0)


@contextmanager
def in_memory(world: World, members: int) -> Iterator[None]:
    """Within, memory that runs out is a sentence with the sizes of the world.

    Raises:
        InputError: it ran out.
    """
    try:
        yield
    except MemoryError:
        raise InputError(
            f"memory ran out: the world {world.name!r} takes {world.bytes:,} bytes for each of "
            f"{members:,} members; let it take less, or try a smaller pop or fewer threads."
        ) from None


def inside(
    learner: Learner, members: Members, call: WorldCall, state: mx.array, value_scale: float
) -> tuple[NDArray[np.int32], mx.array]:
    """Runs the members in their worlds within the engine's kernels.

    Returns what every row was worth, [P, T], and the new state.
    """
    turns, population = members.turns, learner.population
    signs = turns.window(0, call.rows) if turns and turns.crediting.nodes else None
    scale = CREDIT / value_scale if turns else 0.0
    played = population.play(learner.weights, learner.step, state, call, scale, signs)
    rollout = Rollout(None, played.state, None, played.active[0::2], votes=played.votes)
    members.ran_in_world(call.rows, rollout)
    return played.values, played.state


def lockstep(members: Members, call: WorldCall, threads: int) -> NDArray[np.int32]:
    """Steps the worlds of all members row by row, on any engine.

    Returns what every row was worth, [P, T].
    """
    P, program = members.members, members.program
    worlds = _extension.load().Worlds(call.world, call.shared, call.keys, threads)
    inputs, flags = np.zeros((P, program.inputs), np.int8), np.zeros(P, np.uint8)
    for t in range(call.rows):
        worlds.observe(t, inputs, flags)
        begins = flags == BEGINS
        outputs = members(inputs, begins=begins if begins.any() else None, active=flags != 0)
        first = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
        worlds.act(t, np.ascontiguousarray(first).view(np.uint8), flags)
    values = np.zeros((P, call.rows), np.int32)
    worlds.value(values)
    return values
