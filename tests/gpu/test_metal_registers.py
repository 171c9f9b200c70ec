"""Every local array of every Metal kernel is in registers, as far as LLVM's optimiser can say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import emulator
import mlx.core as mx
import pytest
from counting import opcode
from emulator import generated
from registers import in_memory, optimised
from test_programs import complete_case, small_case

from eggroll import networks
from eggroll.engines.gpu import plan
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.stage import RESULT_OUTPUTS, StageWriter
from eggroll.engines.gpu.votes import vote_sources
from eggroll.engines.metal import Metal
from eggroll.spec.program import Program
from gpu.test_cuda_compile import BYTES, KINDS
from gpu.test_gpu_programs import in_place, padded, unscored, wide
from gpu.test_gpu_sources import metal_sources

pytestmark = pytest.mark.skipif(
    bool(emulator.unavailable_because()), reason=emulator.unavailable_because() or "it is there"
)


def whole_text(source: KernelSource, program: Program | None = None) -> str:
    """The MSL that MLX prints, for arrays of the engine's types; the outputs are the program's."""
    outputs = {f"out{i}": out.dtype for i, out in enumerate(program.outputs if program else ())}
    kinds = KINDS | outputs | ({"sums": mx.int8} if source.name in BYTES else {})
    kinds |= {"scores": mx.int32} if source.name == "egg_value_credits" else {}
    kinds |= {"output": mx.int32} if "int32_t Value;" in source.header else {}
    inputs = [mx.zeros(8, kinds.get(name, mx.int8)) for name in source.inputs]
    return generated(source, inputs, [((8,), kinds.get(name, mx.int8)) for name in source.outputs])


def odd_kernels() -> Iterator[tuple[str, str]]:
    """Rank 4, few and many members, exact losses and logits, programs unlike EGG."""
    for V, D, L in ((1024, 256, 1), (5000, 64, 1)):
        program = networks.egg(V, D, L)
        for i, each in enumerate(plan.stage_plans(program, members=32, rank=4)):
            for result in RESULT_OUTPUTS if each.scores else ("scores",):
                name = f"V {V}, D {D}, stage {i}, {result}"
                yield name, whole_text(StageWriter(each, Metal(), result, shift=8).source())
    for source in vote_sources(Metal(), 4, False):
        yield f"{source.name}, rank 4", whole_text(source)
    programs = {"in place": in_place(), "padded": padded(12), "unscored": unscored()}
    programs |= {"wide": wide(), "complete": complete_case().program}
    programs |= {"random": small_case(3).program}
    for name, program in programs.items():
        for members, rank, nax in ((8, 4, False), (16, 0, True), (32, 4, True)):
            options = {"members": members, "rank": rank, "nax": nax}
            for i, each in enumerate(plan.stage_plans(program, **options, puts_out=True)):
                source = StageWriter(each, Metal(), "outputs", shift=8).source()
                if source.outputs:
                    yield f"{name}, M {members}, stage {i}", whole_text(source, program)


def test_no_array_is_left_in_memory(tmp_path: Path):
    """Of matrices, sums, tiles: an index that is not known would move the array to memory."""
    kernels = {name: whole_text(source) for name, source in metal_sources()} | dict(odd_kernels())
    assert len(kernels) > 70
    found = in_memory(kernels, tmp_path)
    assert kernels.keys() <= found.keys()
    assert {name: arrays for name, arrays in found.items() if arrays} == {}


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        ("seed layer", 'EGG_UNROLL _Pragma("clang loop unroll(full)")', "EGG_UNROLL"),
        ("egg_votes", 'EGG_UNROLL _Pragma("clang loop unroll(full)")', "EGG_UNROLL"),
        ("seed layer", "inline __attribute__((always_inline))", "__attribute__((noinline))"),
        ("seed layer nax", "always_inline", "noinline"),
    ],
)
def test_an_array_in_memory_is_seen(tmp_path: Path, kernel: str, old: str, new: str):
    source = dict(metal_sources())[kernel]
    assert old in source.header
    faulty = source._replace(header=source.header.replace(old, new))
    assert in_memory({kernel: whole_text(faulty)}, tmp_path)[kernel]


def test_a_division_by_a_power_of_two_is_a_shift(tmp_path: Path):
    """And a clip to either side; other divisors take a product."""
    text = whole_text(dict(metal_sources())["seed layer"])
    for divisor in (16, 64, 512, 48):
        text += f'extern "C" int by{divisor}(int v) {{ return egg::divide<{divisor}>(v); }}\n'
    made = optimised({"layer": text}, tmp_path)
    for divisor in (16, 64, 512):
        kinds = Counter(opcode(line) for line in made[f"by{divisor}"])
        assert kinds.pop("ashr") == kinds.pop("ret") == 1
        assert kinds.keys() <= {"smin", "smax", "icmp", "select"}, kinds
    assert len(made["by48"]) > len(made["by64"])
