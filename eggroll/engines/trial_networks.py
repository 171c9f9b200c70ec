"""The networks that engines are tried with, and all that an engine computes of one.

Letters: P members, T tokens, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.backward import MOST, Backward
from eggroll.credit import Crediting, CreditNoise, crediting, draw_signs
from eggroll.engines.base import Engine
from eggroll.noise import Noise, Slices
from eggroll.program import Program, Rows

Results = tuple[str, NDArray[np.generic]]
SHIFT, TABLE_BITS, T = 6, 18, 2
ESTIMATORS = {"token-votes": False, "token-credit": True}  # whether the noise is on nodes


def rows_network() -> Program:
    """Every operation but EGG's embedding, on sizes that fill no tile, with a score and outputs."""
    net = Program(29, 40)
    x, s = net.stage(state=True)
    shown = net.features("rows", 61, 20, active=5, lists=2, shift=1)
    joined = net.concat(shown, net.input(13))
    hidden = net.relu(net.bias(net.linear(joined, "hidden", 40), "bias"))
    forgotten = net.forget(hidden, s)
    sums = net.add_bias(net.linear(hidden, "from_x", 40), net.linear(forgotten, "from_s", 40), "b")
    net.mix(net.lookup(sums, "sigmoid"), hidden, s, out=s)
    net.add(net.norm(hidden, "norm"), s, out=x)
    net.output(net.linear(x, "turn", 9), "turn")
    net.sums(x, "value", 3)
    net.score(x, "head")
    net.check()
    return net


class Case:
    """What P members of a program read over T tokens, and their noise; always the same."""

    def __init__(self, program: Program, members: int) -> None:
        words = np.random.Generator(np.random.PCG64(1))
        V, shape = program.vocabulary, (members, T)
        self.weights = {
            leaf.name: mx.array(words.integers(-40, 41, leaf.shape, np.int8))
            for leaf in program.leaves
        }
        self.tokens, self.targets = (mx.array(words.integers(0, V, shape, np.int32)) for _ in "ab")
        self.state = mx.array(words.integers(-127, 128, (members, program.state_size), np.int8))
        inputs = words.integers(-128, 128, (*shape, program.inputs), np.int8)
        features = np.full((*shape, program.indices), -1, np.int32)
        for op in (op for stage in program.stages for op in stage.ops if op.kind == "features"):
            lists, active, first, _ = op.numbers
            size, count = lists * active, program.leaves[op.leaf].shape[0]
            features[..., first : first + size] = words.integers(-1, count, (*shape, size))
        self.rows = Rows(
            mx.array(inputs) if program.inputs else None,
            mx.array(features) if program.indices else None,
        )
        self.fitness = mx.array((np.arange(members // 2) % 3 - 1).astype(np.int8))
        self.words = mx.array(words.integers(0, 1 << 32, shape, np.uint32))
        matrices = [leaf for leaf in program.leaves if len(leaf.shape) == 2]
        self.matrices = {
            leaf.name: mx.array(words.integers(-127, 128, leaf.shape, np.int8)) for leaf in matrices
        }

    def noise(self, program: Program, rank: int) -> Slices:
        """The slices of all pairs."""
        shapes = [leaf.shape for leaf in program.leaves]
        table = Noise(shapes, seed=0, rank=rank, shift=SHIFT, table_bits=TABLE_BITS)
        return table.slices(0, 0, self.fitness.size)

    def back(self, program: Program) -> Backward:
        """Scales from fine to coarse, and a matrix wherever one can send credit on."""
        ops = [op for stage in program.stages for op in stage.ops]
        names = [program.leaves[op.leaf].name for op in ops if op.kind in ("linear", "score")]
        scales = tuple(i % (MOST + 1) for i in range(len(program.leaves)))
        return Backward(scales, {name: self.matrices[name] for name in names})

    def credited(self, program: Program, nodes: bool) -> tuple[CreditNoise, Crediting]:
        """What token credit needs besides."""
        made = crediting(program, nodes=nodes, sigma_shift=2, discount=12, seq_len=T)
        return draw_signs(
            made, seed=0, step=0, first_pair=0, pairs=self.fitness.size, seq_len=T
        ), made


def trial_results(engine: Engine, members: int) -> Iterator[Results]:
    """All that the engine computes for P members, by name; says on stderr what comes next."""
    program = engine.program
    case = Case(program, members)
    prepared, slices = engine.prepare(case.weights), case.noise(program, 1)
    read = case.tokens, case.targets, case.state, case.rows

    def named(title: str, arrays: dict[str, mx.array]) -> Iterator[Results]:
        for name, array in arrays.items():
            yield f"{title}, {name}" if name else title, np.array(array)

    def begin(title: str) -> str:
        print(f"{engine.name}: {title}", file=sys.stderr, flush=True)
        return title

    for rank in (1, 3) if program.outputs else (1,):
        title = begin(f"scores of rank {rank}")
        found = engine.evaluate(prepared, case.noise(program, rank), *read)
        yield from named(title, dict(zip(("", "state"), found, strict=True)))
    title = begin("exact likelihoods")
    exact = engine.likelihoods(prepared, *read)
    yield from named(title, dict(zip(("totals", "hits", "state"), exact, strict=True)))
    for clt in (True, False):
        title = begin("votes by the noise's " + ("values" if clt else "signs"))
        yield from named(title, engine.votes(case.fitness, slices, clt))
    for estimator, nodes in ESTIMATORS.items():
        noise, made = case.credited(program, nodes)
        title = begin(estimator)
        scores, state, votes = engine.credit(prepared, slices, noise, made, *read)
        yield from named(title, {"scores": scores, "state": state, **votes})
    title = begin("errors carried back")
    tokens, targets, state, rows = read
    back = case.back(program)
    learnt = engine.learn(prepared, tokens, targets, state, case.words, back, rows)
    arrays = {"scores": learnt.scores, "state": learnt.state, "sizes": learnt.sizes}
    yield from named(title, arrays | learnt.votes)
    if program.outputs:
        shown = case.tokens, case.state, case.rows
        for title, turned in (("outputs", ()), ("outputs of token-credit", (noise, made))):
            begin(title)
            outputs, state = engine.outputs(prepared, slices, *shown, *turned)
            yield from named(title, {**outputs, "state": state})
