"""Tiny programs around one operation of the cpu engine, and their verification.

Letters: P members, N pairs, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.engines.base import Engine
from eggroll.engines.cpu import LANES, CpuEngine
from eggroll.engines.portable.engine import PortableEngine
from eggroll.spec import rng
from eggroll.spec.noise import Slices, slice_length
from eggroll.spec.program import Batch, Program, Register

# operation -> copies in the two programs; those of a matrix weigh together what a layer does. A
# program has one head: instead of none there is that of the smallest vocabulary.
COPIES = {
    "DxD": (1, 9), "4DxD": (1, 3), "Dx4D": (1, 3), "head": (0, 1), "embed": (1, 9),
    "norm": (4, 24), "add": (4, 24), "add_bias": (4, 24), "lookup": (4, 24), "forget": (4, 24),
    "mix": (4, 24),
}  # fmt: skip
PRODUCTS = ("DxD", "4DxD", "Dx4D", "head")
VECTORS = ("norm", "add_bias")
VOTED = ("DxD", "4DxD", "Dx4D", "embed", "norm")  # whose votes are timed; a head's are embed's
BY_VOCABULARY = ("embed", "head")
OBSERVED = 2  # copies to verify: after many, the state saturates and hides a wrong one
SHIFT = 8  # of every perturbation: Q 4 + sigma_shift 4
SMALL = 8  # vocabulary of programs that measure neither embedding nor head
LEAST = 2  # the smallest vocabulary


class Disagreement(Exception):
    """A kernel's result is not the portable engine's."""


@dataclass(frozen=True)
class Kernel:
    """One operation at one width; `vocabulary` matters to embed and head only."""

    operation: str
    width: int
    vocabulary: int = SMALL

    @property
    def shape(self) -> tuple[int, ...]:
        D = self.width
        known = {"DxD": (D, D), "4DxD": (4 * D, D), "Dx4D": (D, 4 * D)}
        if self.operation in BY_VOCABULARY:
            return self.vocabulary, D
        return known.get(self.operation, (D,))

    def program(self, copies: int, *, observed: bool = False) -> Program:
        """`copies` of the operation, each on its own input; `observed` adds them to the state.

        What makes the inputs does not depend on `copies`.
        """
        head = self.operation == "head"
        net = Program(self.vocabulary if copies or not head else LEAST, self.width)
        x, s = net.stage(state=True)
        net.embed("embedding")
        inputs = [self._input(net, i, x, s) for i in range(COPIES[self.operation][1])]
        net.add(s, x, out=s)
        for i in range(copies * (not head)):
            y = self._emit(net, i, inputs[i], s)
            if observed and self.operation == "4DxD":
                y = net.linear(y, f"fold{i}", self.width)
            if observed and y != s:
                net.add(s, y, out=s)
        net.score(inputs[0] if head and copies else x, "end")
        return net

    @property
    def copies(self) -> float:
        """By how many copies the two programs differ; of heads, by their outputs' share of one."""
        low, high = COPIES[self.operation]
        return 1 - LEAST / self.vocabulary if self.operation == "head" else high - low

    def _input(self, net: Program, i: int, x: Register, s: Register) -> Register:
        if self.operation == "Dx4D":
            return net.linear(x, f"input{i}", 4 * self.width)
        return net.add(x, s) if self.operation in PRODUCTS else x

    def _emit(self, net: Program, i: int, x: Register, s: Register) -> Register:
        """The i-th copy; returns the register of its result."""
        name = f"copy{i}"
        match self.operation:
            case "embed":
                return net.embed(name)
            case "norm":
                return net.norm(x, name)
            case "add":
                return net.add(x, s, out=x)
            case "add_bias":
                return net.add_bias(x, s, name)
            case "lookup":
                return net.lookup(x, "sigmoid")
            case "forget":
                return net.forget(x, s)
            case "mix":
                return net.mix(x, x, s, out=s)
        return net.linear(x, name, self.shape[0])

    def ranks(self, wanted: Sequence[int]) -> list[int]:
        """Those that make a difference: a vector's noise has no rank, other operations no noise."""
        if len(self.shape) == 2:
            return sorted(set(wanted))
        with_noise = self.operation in VECTORS
        return sorted({min(r, 1) for r in wanted if with_noise or r == 0})


def numbers(count: int, below: int, stream: int) -> Any:
    """int32 [count], uniform in 0 .. below - 1."""
    words = rng.counters(rng.key(0, rng.COUNT, stream), 0, count) >> np.uint64(32)
    return ((words * np.uint64(below)) >> np.uint64(32)).astype(np.int32)


class Subject:
    """A program with random weights on an engine, and inputs for any number of members.

    table: the shared noise, int8.
    """

    def __init__(self, engine: Engine, table: mx.array) -> None:
        self.engine, self.table = engine, table
        self.slices = lru_cache(maxsize=None)(self._slices)
        self.inputs = lru_cache(maxsize=None)(self._inputs)
        self.fitness = lru_cache(maxsize=None)(self._fitness)
        self.weights, self._prepared = {}, dict[str, Any]()
        for i, leaf in enumerate(engine.program.leaves):
            flat = rng.normal_bytes(rng.key(0, rng.WEIGHTS, i), prod(leaf.shape))
            self.weights[leaf.name] = mx.array(flat.reshape(leaf.shape))

    @property
    def prepared(self) -> Any:
        """The weights as the instruction set in use has them."""
        isa = os.environ.get("EGGROLL_ISA", "")
        if isa not in self._prepared:
            self._prepared[isa] = self.engine.prepare(self.weights)
        return self._prepared[isa]

    def _slices(self, rank: int, pairs: int) -> Slices:
        leaves = self.engine.program.leaves
        room = [self.table.size - slice_length(leaf.shape, rank) + 1 for leaf in leaves]
        starts = np.stack([numbers(pairs, n, 3 + i) for i, n in enumerate(room)])
        return Slices(self.table, mx.array(starts), rank, SHIFT)

    def _inputs(self, members: int, seq_len: int) -> Batch:
        """Tokens (never the mark 0), targets, state."""
        program, n = self.engine.program, members * seq_len
        tokens = 1 + numbers(n, program.vocabulary - 1, 0)
        targets = numbers(n, program.vocabulary, 1)
        state = rng.normal_bytes(rng.key(0, rng.TABLE, 1), members * program.state_size)
        return Batch(
            mx.array(tokens.reshape(members, seq_len)),
            mx.array(targets.reshape(members, seq_len)),
            mx.array(state.reshape(members, program.state_size)),
        )

    def _fitness(self, pairs: int) -> mx.array:
        return mx.array((2 * numbers(pairs, 2, 2) - 1).astype(np.int8))

    def evaluate(self, rank: int, members: int, seq_len: int) -> list[mx.array]:
        """Scores int16 [P, T] and state int8 [P, D]."""
        noise = self.slices(rank, members // 2) if rank else None
        found = self.engine.evaluate(self.prepared, noise, self.inputs(members, seq_len))
        mx.eval(found)
        return list(found)

    def votes(self, rank: int, pairs: int) -> list[mx.array]:
        """Z of every leaf, int32."""
        found = self.engine.votes(self.fitness(pairs), self.slices(rank, pairs), True)
        mx.eval(found)
        return list(found.values())


@contextlib.contextmanager
def using(isa: str) -> Iterator[None]:
    """Kernels of one instruction set: the extension asks the environment at every call."""
    before = os.environ.get("EGGROLL_ISA")
    os.environ["EGGROLL_ISA"] = isa
    try:
        yield
    finally:
        os.environ.pop("EGGROLL_ISA")
        if before is not None:
            os.environ["EGGROLL_ISA"] = before


def verify(kernel: Kernel, isas: Sequence[str], ranks: Sequence[int], table: mx.array) -> None:
    """Compares scores, state and votes with the portable engine's, bit by bit.

    Raises:
        Disagreement: they differ.
    """
    program, members = kernel.program(OBSERVED, observed=True), LANES + 2
    right = Subject(PortableEngine(program), table)
    found = Subject(CpuEngine(program, threads=1), table)

    def results(subject: Subject, rank: int) -> list[mx.array]:
        votes = subject.votes(rank, members) if rank else []
        return subject.evaluate(rank, members, 2) + votes

    for rank in kernel.ranks(ranks):
        expected = results(right, rank)
        for isa in isas:
            with using(isa):
                same = map(np.array_equal, expected, results(found, rank))
                if not all(same):
                    raise Disagreement(
                        f"{kernel.operation} {kernel.shape} at rank {rank} with {isa} gives "
                        "another result than the portable engine: nothing was timed."
                    )
