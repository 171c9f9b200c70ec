"""Every kernel of the GPU engines, as an engine launches it: source, arrays that fit, grid.

For whoever compiles or runs them one by one. Engines run small cases with the plans of the presets
at full size; what they would launch is kept, and each launch's results are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from nax_check import child
from networks import Case, case_of
from networks_backward import carried_of
from networks_credit import credited_of

from eggroll import networks
from eggroll.engines.cuda import CudaEngine, block_members, target
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.gpu.launch import Shape
from eggroll.engines.gpu.losses import Rating, rate_output
from eggroll.engines.gpu.plan import best_members
from eggroll.engines.metal import MetalEngine
from eggroll.engines.trial import TrialCase
from eggroll.spec.losses import LOSSES
from eggroll.spec.noise import Noise
from eggroll.spec.program import Output, Program

PRESETS = {"seed": (256, 64, 1), "paper": (256, 256, 6)}
POPULATION = 10240
ESTIMATORS = ("token-votes", "token-credit")
GROUP = 4


class Launched(NamedTuple):
    """A kernel by a name of its own, and one launch of it: inputs, shapes and types of outputs.

    grid counts threads.
    """

    name: str
    source: KernelSource
    inputs: tuple[mx.array, ...]
    outputs: tuple[tuple[Shape, mx.Dtype], ...]
    grid: Shape
    threadgroup: Shape


def part_of(source: KernelSource) -> str:
    """What a kernel is for; of a stage, by whether activations come in and go out."""
    if source.name == "egg_carry":
        hands = "handed" in source.inputs, "handed_on" in source.outputs
        return {(True, False): "embedding", (False, True): "head"}.get(hands, "layer") + " back"
    if source.name != "egg_stage":
        feedback = " with feedback" * ("new_feedback" in source.outputs)
        wide = " of sums" * ("int32_t Value;" in source.header)
        return source.name.removeprefix("egg_").replace("_", " ") + feedback + wide
    passes = "passed" in source.inputs, "passed_on" in source.outputs
    names = {(False, True): "embedding", (True, True): "layer", (True, False): "head"}
    return names.get(passes, "stage")


class Recorder:
    """A launcher that keeps the first launch of every source, and gives zeros."""

    def __init__(self) -> None:
        self.found: dict[KernelSource, Launched] = {}
        self.of = ""  # what the engine does now

    def __call__(self, source: KernelSource, inputs, outputs, grid, threadgroup) -> list[mx.array]:
        if source not in self.found:
            name, given, made = f"{self.of} {part_of(source)}", tuple(inputs), tuple(outputs)
            self.found[source] = Launched(name, source, given, made, grid, threadgroup)
        return [mx.zeros(shape, dtype) for shape, dtype in outputs]


def game() -> Program:
    """A network of what EGG has not: rows that are shown, a table of its own, outputs."""
    net = Program()
    x = net.features("rows", 700, 32, active=8, lists=2, shift=1)
    x = net.relu(net.bias(net.linear(net.concat(x, net.input(27)), "hidden", 64), "bias"))
    steps = net.table("steps", [v // 2 for v in range(-127, 128)])
    net.output(net.lookup(net.linear(x, "policy", 9), steps), "policy")
    net.sums(x, "value", 1)
    return net


def small(program: Program, members: int, **options) -> Case:
    """A case of one threadgroup and two tokens, members of a pair reading the same."""
    return case_of(program, np.random.default_rng(0), T=2, P=members, **options)


def run_case(engine: GpuEngine, case: Case, recorder: Recorder) -> None:
    """All that an engine launches for whole sequences and for text, with every rank of noise."""
    prepared, batch = engine.prepare(case.leaves), case.batch
    of, shapes = recorder.of, [leaf.shape for leaf in case.program.leaves]
    if engine.draws_starts:
        engine.starts(Noise(shapes, seed=0, rank=1, shift=6, table_bits=12), 0, 0, 9)
    if case.program.outputs:
        recorder.of = f"{of} outputs"
        engine.outputs(prepared, case.slices, batch)
        return
    engine.evaluate(prepared, case.slices, batch)
    engine.votes(mx.ones(len(batch.tokens) // 2, mx.int8), case.slices, True)
    recorder.of = f"{of} exact"
    engine.likelihoods(prepared, batch)
    recorder.of = f"{of} logits"
    engine.logits(prepared, batch.window(slice(1)))


def run_credit(engine: GpuEngine, case: Case, recorder: Recorder) -> None:
    """The same of token credit."""
    of = recorder.of
    for estimator in ESTIMATORS:
        made = credited_of(case, np.random.default_rng(1), estimator)
        recorder.of = f"{of} {estimator}"
        made.run(engine)
        if case.program.outputs and made.crediting.nodes:
            recorder.of = f"{of} {estimator} outputs"
            made.outputs(engine)
    if case.program.scored and not case.program.indices and not len(case.tokens) % GROUP:
        made = credited_of(case, np.random.default_rng(1), "token-credit", group=GROUP)
        recorder.of = f"{of} group-credit"
        made.run(engine)


def run_carry(engine: GpuEngine, case: Case, recorder: Recorder) -> None:
    """The same of errors carried back."""
    recorder.of += " feedback"
    carried_of(case, "feedback").run(engine)
    shape = 2, 3
    for loss, wide in product(LOSSES, (False, True)):
        of = Rating(loss, Output("out", 5, wide), 16, 7)
        rate_output(
            engine.launcher, engine.dialect, of, mx.zeros((*shape, 5), of.output.dtype),
            mx.zeros((*shape, 5 if LOSSES[loss].by_value else 1), mx.int32),
            mx.zeros(shape, mx.uint32),
        )  # fmt: skip
    for rule, given in TrialCase(engine.program, 2).before_rules().items():
        getattr(engine, rule)(*given)


def engine_of(kind: str, variant: str, program: Program, recorder: Recorder, members: int = 0):
    """An engine that launches nothing. members 0: as for a population of full size.

    variant: of the matrix product; for CUDA with a compute capability behind it, e.g. dp4a 90.
    """
    if kind == "metal":
        nax = variant == "nax"
        members = members or best_members(program, 1, POPULATION, nax)
        return MetalEngine(program, launcher=recorder, members=members, nax=nax)
    product, _, architecture = variant.partition(" ")
    on = target(int(architecture or (75 if product == "m8n8k16" else 80)), product)
    members = members or block_members(program, on, 1, POPULATION)
    return CudaEngine(program, launcher=recorder, members=members, on=on)


def run_all(kind: str, variant: str, recorder: Recorder) -> None:
    """Both presets, a head in 1/256 bit, token credit, and the network of outputs."""
    for preset, (V, D, L) in PRESETS.items():
        recorder.of = f"{preset} {variant}".strip()
        program = networks.egg(V, D, L)
        engine = engine_of(kind, variant, program, recorder)
        run_case(engine, small(program, engine.members), recorder)
    program = networks.egg(256, 64, 1)
    recorder.of = f"1/256 bit {variant}".strip()
    case = small(program, 32, score_bits=8)
    run_case(engine_of(kind, variant, program, recorder, 32), case, recorder)
    for of, program in (("seed", networks.egg(256, 64, 1)), ("game", game())):
        recorder.of = f"{of} {variant}".strip()
        engine = engine_of(kind, variant, program, recorder, 16)
        case, name = small(program, 16, sigma_shift=2), recorder.of
        run_credit(engine, case, recorder)
        recorder.of = name
        run_carry(engine, case, recorder)
    recorder.of = f"game {variant}".strip()
    run_case(engine, small(program, 16), recorder)


def nax_checks() -> Iterator[Launched]:
    """The kernels by which the NAX check multiplies."""
    for name, kernel in child.KERNELS.items():
        named = ("left", "right"), ("product",)
        source = KernelSource(f"nax_check_{name}", *named, child.defines(kernel), kernel.source)
        grid = kernel.n // kernel.tile_n * kernel.threads, kernel.m // kernel.tile_m, 1
        inputs = tuple(map(mx.array, child.operands(kernel)))
        outputs = (((kernel.m, kernel.n), mx.int32),)
        yield Launched(f"nax_check {name}", source, inputs, outputs, grid, (kernel.threads, 1, 1))


def uses_nax(source: KernelSource) -> bool:
    """True for a kernel that needs Metal 4's header of matrix operations."""
    return "MetalPerformancePrimitives" in source.header


def every_kernel(kind: str = "metal", variants: Sequence[str] = ()) -> list[Launched]:
    """All kernels of an engine, each once, by names that differ.

    variants: of the matrix product; all there are if none is named.
    """
    recorder = Recorder()
    every = ("", "nax") if kind == "metal" else ("m8n8k16", "m16n8k32", "dp4a")
    for variant in variants or every:
        run_all(kind, variant, recorder)
    found = [*recorder.found.values(), *(nax_checks() if kind == "metal" else ())]
    assert len({each.name for each in found}) == len(found)
    return found
