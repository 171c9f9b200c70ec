"""Checks of what kernels are given: they would read beyond an array."""

from __future__ import annotations

from weakref import WeakValueDictionary

import mlx.core as mx
import numpy as np

from eggroll.engines.base import on_host
from eggroll.spec.backward import MOST, Backward
from eggroll.spec.credit import OF, SILENT, Crediting, CreditKind, CreditNoise
from eggroll.spec.noise import Slices, slice_length
from eggroll.spec.program import Batch, Program

MOST_SHIFT = 27  # of a vector's noise at the largest sigma_shift

# Starts that were found to lie in their table, for as long as they live: evaluation and votes of an
# update have the same, and a look at them may take as long as a launch.
_inside: WeakValueDictionary[tuple[int, ...], mx.array] = WeakValueDictionary()


def check_draws(credit_noise: CreditNoise, P: int, T: int) -> None:
    """Raises ValueError for draws that a kernel would read beyond their array."""
    if credit_noise.draws.shape != (P // 2, T):
        raise ValueError(f"draws are {credit_noise.draws.shape}, not [pairs, T] = {(P // 2, T)}")


def check_credit(
    program: Program, rank: int, signs: mx.array, crediting: Crediting, P: int, T: int
) -> None:
    """Raises ValueError for what a kernel would read beyond an array."""
    leaves, N = program.leaves, P // 2
    if rank != 1:
        raise ValueError(f"noise is of rank {rank}: token credit has rank 1")
    if signs.shape != (len(leaves), N, -(-T // 32)):
        raise ValueError(f"signs are {signs.shape}, not [leaves, pairs, ceil(T / 32)]")
    if any(len(each) != len(leaves) for each in crediting[1:5]):
        raise ValueError("crediting: one number per leaf is needed")
    if any(not 0 <= s <= MOST_SHIFT and s != SILENT for s in crediting.shifts):
        raise ValueError(f"crediting: shifts are 0..{MOST_SHIFT} or silent")
    if any(not 0 <= g <= 15 for g in crediting.discounts):
        raise ValueError("crediting: discounts are 0..15")
    if not (0 <= crediting.credit_shift <= 16 and 0 <= crediting.unit_shift <= 16):
        raise ValueError("crediting: credit_shift and unit_shift are 0..16")
    if crediting.group:
        check_groups(program, crediting, P)
    for stage in program.stages:
        for op in (op for op in stage.ops if op.leaf >= 0):
            fitting = CreditKind.NONE, OF[op.kind][0], *[CreditKind.READOUT] * (op.kind == "score")
            if crediting.kinds[op.leaf] not in fitting:
                raise ValueError("crediting: a leaf's kind does not fit its operation")
    for i, owner in enumerate(crediting.owners):
        if not 0 <= owner < len(leaves):
            raise ValueError("crediting: an owner is no leaf")
        shape = leaves[owner].shape
        if owner != i and (len(shape) != 2 or shape[0] != leaves[i].shape[0]):
            raise ValueError("crediting: a leaf's owner has other outputs")
        if owner != i and crediting.kinds[i] in (CreditKind.TOKENS, CreditKind.FEATURES):
            raise ValueError("crediting: an embedding owns its noise")


def check_groups(program: Program, crediting: Crediting, P: int) -> None:
    """Raises ValueError for members that cannot be compared with the mean of their group."""
    group, nodes = crediting.group, crediting.nodes
    if group < 2 or group % 2 or P % group or not nodes or not program.scored or program.indices:
        raise ValueError(
            f"crediting: groups of {group} need noise on nodes, a score, no features and whole "
            f"groups of {P} members"
        )


def check_back(program: Program, words: mx.array, back: Backward, P: int, T: int) -> None:
    """Raises ValueError for what a kernel would misread on the way back."""
    shapes = {leaf.name: leaf.shape for leaf in program.leaves}
    if words.shape != (P, T) or words.dtype != mx.uint32:
        raise ValueError(f"words are {words.dtype} {words.shape}, not uint32 [P, T] = {(P, T)}")
    if len(back.scales) != len(shapes) or any(not 0 <= h <= MOST for h in back.scales):
        raise ValueError(f"a scale in 0..{MOST} is needed for every leaf")
    for name, F in back.matrices.items():
        if len(F.shape) != 2 or F.shape != shapes.get(name) or F.dtype != mx.int8:
            raise ValueError(f"the matrix of {name!r} that sends credit is not as its leaf")


def check_tokens(program: Program, batch: Batch) -> None:
    """Raises ValueError unless tokens, targets (if there are any) and state are the program's."""
    V, size = program.vocabulary, program.state_size
    tokens, targets, state = batch.tokens, batch.targets, batch.state
    if tokens.ndim != 2 or tokens.size == 0:
        raise ValueError(f"tokens {tokens.shape} must be [P, T]")
    if targets is not None and targets.shape != tokens.shape:
        raise ValueError(f"tokens {tokens.shape} and targets {targets.shape} must be [P, T]")
    if state.shape != (tokens.shape[0], size):
        needed = tokens.shape[0], size
        raise ValueError(f"state is {state.shape}, not [P, state_size] = {needed}")
    for name, array in (("tokens", tokens), ("targets", targets)):
        if array is None:
            continue
        if on_host(array).max() >= V:
            raise ValueError(f"{name} must be in 0..{V - 1}")


def check_noise(program: Program, noise: Slices, members: int) -> None:
    """Raises ValueError unless every slice of members / 2 pairs lies in the table."""
    if members % 2 or noise.starts.shape != (len(program.leaves), members // 2):
        raise ValueError(f"starts are {noise.starts.shape} for {members} members")
    lengths = [slice_length(leaf.shape, noise.rank) for leaf in program.leaves]
    room = np.array([noise.table.size - length for length in lengths])
    known = (id(noise.starts), *room.tolist())
    if known in _inside:
        return
    if (on_host(noise.starts).max(axis=1, initial=0) > room).any():
        raise ValueError("a slice of the noise lies beyond the table")
    _inside[known] = noise.starts
