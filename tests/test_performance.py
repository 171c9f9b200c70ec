"""The predictions rest on counts: here the emulated kernels say what they really execute.

metal/counting.py says how. `python tests/test_performance.py` writes the tables of
docs/performance.md anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from test_metal import folder

sys.path.insert(0, str(Path(__file__).parent / "metal"))
from counting import token_counts, vote_counts

from eggroll import bench, model, performance
from eggroll.engines import metal_plan
from eggroll.engines.metal_plan import PRODUCTS, StagePlan
from eggroll.model import X

__all__ = ["folder"]  # the fixture
M4_PRO = next(chip for chip in performance.CHIPS if chip.name == "M4 Pro")


def beside(plan: StagePlan) -> int:
    """Bytes per member of spilled registers that are moved beyond what `cost` counts.

    A norm reads its input twice, a low-rank sum what its product reads again, and X comes and goes;
    what a tile has just computed or read is not read again.
    """
    spilled = {r: plan.sizes[r] for r, place in plan.places.items() if not place.shared}
    total = spilled.get(X, 0) * ((not plan.first) + plan.passes_on)
    for phase in plan.phases:
        inputs = [op.inputs[0] for op in phase.rows if op.kind == "norm"]
        inputs += [op.inputs[0] for op in phase.products]
        total += sum(spilled.get(r, 0) for r in inputs)
        at_hand = {op.out for op in phase.products}
        for op in phase.tiles:
            if op.kind not in PRODUCTS:
                total -= sum(spilled.get(r, 0) for r in op.inputs if r in at_hand)
                at_hand |= {op.out, *op.inputs}
    return total


@pytest.mark.parametrize(("D", "V", "rank"), [(256, 1024, 1), (64, 96, 4)])
def test_emulated_kernels_do_what_is_counted(folder: Path, D: int, V: int, rank: int):
    """A token of a threadgroup: products, noise, weights, barriers and activations are exact."""
    program, M = model.egg(V, D, 1), 32
    plans = metal_plan.stage_plans(program, members=M, rank=rank)
    for plan, got in zip(plans, token_counts(folder, D=D, V=V, members=M, rank=rank), strict=True):
        cost = metal_plan.cost(plan)
        matrices = [op for op in plan.stage.ops if op.kind in PRODUCTS]
        shapes = [program.leaves[op.leaf].shape for op in matrices]
        low_rank = sum(rank * (O + K) for O, K in shapes)
        assert got.products * performance.PRODUCT == M * (cost.macs - low_rank)
        if plan.first:  # the noise's A of a token is met at every feature, if the compiler likes
            assert M * cost.noise <= got.read["1"] <= M // 2 * rank * 3 * D
        else:
            assert got.read["1"] == M * cost.noise
        vectors = sum(program.leaves[leaf].shape[0] for leaf in plan.layout
                      if len(program.leaves[leaf].shape) == 1)  # fmt: skip
        # Of the weights, vectors are read by every pair, matrices once for all.
        assert got.read["0"] == M * cost.weights + (M // 2 - 1) * vectors
        threads = 32 * plan.simdgroups
        assert got.instructions["barrier"] == threads * cost.barriers
        inputs, outputs = 5 + plan.scores, 5 + plan.scores + (not plan.first)
        assert got.read[str(inputs)] == M * D * (not plan.first)
        outputs += plan.stage.state >= 0
        assert got.written[str(outputs)] == (M * D if plan.passes_on else 2 * M)
        scratch = str(outputs + 1 + (plan.stage.state >= 0))
        spilled = got.read[scratch] + got.written[scratch]
        assert spilled == M * (cost.registers + beside(plan))
        work = performance.stage_work(plan, performance.SIMDGROUP)
        assert got.products == M * work.products
        # Other compilers optimise otherwise, so not every cycle is the same.
        assert got.cycles == pytest.approx(M * work.cycles, rel=0.15)


def test_emulated_votes_do_what_is_counted(folder: Path):
    program, pairs = model.egg(128, 64, 1), 64
    matrices, vectors = vote_counts(folder, D=64, V=128, rank=1)
    work = performance.votes_work(program, 1)
    assert matrices.products == 2 * pairs * work.products
    assert matrices.cycles + vectors.cycles == pytest.approx(2 * pairs * work.cycles, rel=0.2)
