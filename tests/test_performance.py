"""The predictions rest on counts: here the emulated kernels say what they really execute.

metal/counting.py says how. `python tests/test_performance.py` writes the tables of
docs/performance.md anew.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "metal"))
import emulator
from counting import CYCLES, token_counts, vote_counts

from eggroll import bench, networks
from eggroll.bench import prediction as performance
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.plan import PRODUCTS, StagePlan, stage_cost, stage_plans
from eggroll.spec.program import X

DOCS = Path(__file__).parents[1] / "docs" / "performance.md"
M4_PRO = next(chip for chip in performance.CHIPS if chip.name == "M4 Pro")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where kernels are compiled."""
    if sentence := emulator.unavailable_because():
        pytest.skip(sentence)
    return tmp_path_factory.mktemp("counted")


def beside(plan: StagePlan) -> int:
    """Bytes per member of spilled registers that are moved beyond what `stage_cost` counts.

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
    program, M = networks.egg(V, D, 1), 32
    plans = stage_plans(program, members=M, rank=rank)
    for plan, got in zip(plans, token_counts(folder, D=D, V=V, members=M, rank=rank), strict=True):
        counted = stage_cost(plan)
        matrices = [op for op in plan.stage.ops if op.kind in PRODUCTS]
        shapes = [program.leaves[op.leaf].shape for op in matrices]
        low_rank = sum(rank * (O + K) for O, K in shapes)
        assert got.products * performance.PRODUCT_MACS == M * (counted.macs - low_rank)
        if plan.first:  # the noise's A of a token is met at every feature, if the compiler likes
            assert M * counted.noise <= got.read["1"] <= M // 2 * rank * 3 * D
        else:
            assert got.read["1"] == M * counted.noise
        vectors = sum(program.leaves[leaf].shape[0] for leaf in plan.layout
                      if len(program.leaves[leaf].shape) == 1)  # fmt: skip
        # Of the weights, vectors are read by every pair, matrices once for all.
        assert got.read["0"] == M * counted.weights + (M // 2 - 1) * vectors
        threads = 32 * plan.simdgroups
        assert got.instructions["barrier"] == threads * counted.barriers
        inputs, outputs = 5 + plan.scores, 5 + plan.scores + (not plan.first)
        assert got.read[str(inputs)] == M * D * (not plan.first)
        outputs += plan.stage.state >= 0
        assert got.written[str(outputs)] == (M * D if plan.passes_on else 2 * M)
        scratch = str(outputs + 1 + (plan.stage.state >= 0))
        spilled = got.read[scratch] + got.written[scratch]
        assert spilled == M * (counted.registers + beside(plan))
        work = performance.stage_work(plan, performance.SIMDGROUP)
        assert got.products == M * work.products
        assert got.private == 0
        # Other compilers optimise otherwise, so not every cycle is the same.
        assert got.cycles == pytest.approx(M * work.cycles, rel=0.15)


def test_emulated_votes_do_what_is_counted(folder: Path):
    program, pairs = networks.egg(128, 64, 1), 64
    matrices, vectors = vote_counts(folder, D=64, V=128, rank=1)
    work = performance.votes_work(program, 1, performance.SIMDGROUP)
    assert matrices.products == 2 * pairs * work.products
    assert matrices.private == vectors.private == 0
    assert matrices.cycles + vectors.cycles == pytest.approx(2 * pairs * work.cycles, rel=0.2)


def not_unrolled(source: KernelSource) -> KernelSource:
    """The kernel as a compiler takes it that neither unrolls loops nor inlines all functions."""
    header = source.header.replace('_Pragma("clang loop unroll(full)")', "")
    return source._replace(header=header.replace("__attribute__((always_inline))", ""))


def test_local_arrays_in_memory_cost(folder: Path):
    """Accumulators and tiles that are indexed by a loop's counter at run time are no registers."""
    shape = {"D": 64, "V": 96, "members": 32, "rank": 4}
    registers = token_counts(folder, **shape)
    memory = token_counts(folder, **shape, edit=not_unrolled)
    for better, worse in zip(registers[1:], memory[1:], strict=True):
        assert better.products == worse.products
        assert better.private == 0 < worse.private
        assert worse.cycles > 1.2 * better.cycles
        assert 32 * (worse.cycles - better.cycles) > CYCLES["private"] * worse.private


def test_the_documentation_shows_what_is_computed():
    text = DOCS.read_text()
    for name, block in blocks().items():
        assert f"<!-- {name} -->\n{block}<!-- /{name} -->" in text
    figures = DOCS.with_name("figures.md").read_text()
    program = performance.network(bench.PRESETS["seed"])
    rate = performance.predict(M4_PRO, program, 16).tokens_per_second
    assert f"about {rate / 1e6:.1f} million tokens/s on an M4 Pro" in " ".join(figures.split())


def machine_table() -> str:
    """Markdown: what tests/gpu/test_cuda_machine.py records of CUDA's machine code."""
    found = json.loads((Path(__file__).parent / "cuda" / "counts.json").read_text())
    names = ("registers", "shared bytes", "blocks", "per token", "per launch", "model, per token")
    rows = [f"| kernel | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for name, counts in found.items():
        rows.append(f"| {name} | {' | '.join(f'{n:,.0f}' for n in counts.values())} |")
    return "\n".join(rows) + "\n"


def blocks() -> dict[str, str]:
    networks = {name: bench.PRESETS[name] for name in ("seed", "paper")}
    return {
        "worked": f"```\n{performance.worked_example(M4_PRO, networks['seed'])}```\n",
        "chips": performance.chip_table(networks),
        "counts": performance.counts_table(networks),
        "machine": machine_table(),
        "populations": performance.population_table(networks, (10240, 65536, 262144)),
    }


def test_ten_times_the_published_rate_on_an_m4_pro():
    published = bench.PUBLISHED["seed"].tokens_per_second
    program = performance.network(bench.PRESETS["seed"])
    assert performance.predict(M4_PRO, program, 16).tokens_per_second >= 10 * published


def test_twenty_million_on_an_h200():
    """Preset paper, by the instructions of its machine code and the issue rate assumed."""
    chip = next(chip for chip in performance.CHIPS if chip.name == "H200")
    program = performance.network(bench.PRESETS["paper"])
    assert performance.predict(chip, program, 16, population=262_144).tokens_per_second >= 20e6


def test_each_part_of_a_prediction_counts():
    """The parts are as large as their causes, the longest on the device and the rest add up."""
    program = performance.network(bench.PRESETS["paper"])
    base = performance.predict(M4_PRO, program, 16)
    assert base.seconds == pytest.approx(
        (base.matrix + base.other) / performance.BUSY + base.launches + base.waits + base.host
    )
    slow = performance.predict(M4_PRO._replace(memory=1e8), program, 16)
    assert slow.seconds - slow.memory == pytest.approx(base.seconds - base.compute)
    slow = performance.predict(M4_PRO._replace(cache=1e9), program, 16)
    assert slow.seconds - slow.cache == pytest.approx(base.seconds - base.compute)
    half = performance.predict(M4_PRO._replace(macs=M4_PRO.macs / 2), program, 16)
    assert half.matrix == 2 * base.matrix
    assert base.seconds < half.seconds < 2 * base.seconds
    long = performance.predict(M4_PRO, program, 100)
    assert long.host == base.host
    assert long.launches > base.launches  # a launch must not last too long
    assert performance.predict(M4_PRO._replace(cores=21), program, 16).uneven > 1


def test_more_of_a_chip_predicts_more():
    rates = {
        p.chip.name: p.tokens_per_second for p in performance.predictions(bench.PRESETS["seed"])
    }
    for family in ("M1", "M2", "M3", "M4", "M5"):
        sizes = [rates[name] for name in (family, f"{family} Pro", f"{family} Max")]
        assert sizes == sorted(sizes)
    assert rates["M5 Max"] < rates["H100 SXM"] <= rates["H200"]
    assert set(performance.DRAWN_CHIPS) <= set(rates)


if __name__ == "__main__":
    page = DOCS.read_text()
    for name, block in blocks().items():
        between = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        page = between.sub(lambda m, block=block: m[1] + block + m[2], page)
    DOCS.write_text(page)
