"""Faults that the tests of GPUs once let pass, planted: each is noticed now.

Those of threadgroup memory are planted in the text of kernels, as the emulation runs it. The
mutants of tests/mutants/run.py are the same and others in the package's text; tests here see them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulator import EmulationError
from networks import Case, random_case
from networks_backward import carried_of
from networks_credit import credited_case

from eggroll import EngineError, engines, networks
from eggroll.engines.cuda import Cuda, cuda_plans, target
from eggroll.engines.cuda_launch import cuda_text
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.plan import MEMBERS, best_members
from eggroll.engines.gpu.stage import StageWriter
from gpu.backend import Gpu, check_scores, check_votes, engine
from gpu.faulty import at_call, off_by_one, wrong_scores

Edit = Callable[[KernelSource], KernelSource]
PLACE = re.compile(r"(EGG_SHARED\(\w+, \w+, )(\d+)(, \d+\))")  # of CUDA's arrays, in bytes
METAL = re.compile(r"(EGG_SHARED\(\w+, \w+, )(\d+)\)")  # an array's elements


def run_small(gpu: Gpu, edit: Edit = lambda source: source) -> None:
    """A network of a layer with its votes. Raises for what the emulation or the oracle sees."""
    case = random_case(1, D=12, V=10, T=2, P=6)
    made = engine(gpu, case.program, gpu.launcher(edit=edit), 8)
    check_scores(made, case)
    check_votes(made, case, np.arange(3) - 1)


def test_a_small_network_is_exact(gpu: Gpu):
    run_small(gpu)


def moved(place: Callable[[int], int], only: str = "") -> Edit:
    """Arrays of CUDA's shared memory at other distances from its beginning."""

    def edit(source: KernelSource) -> KernelSource:
        if only not in source.name:
            return source
        body = PLACE.sub(lambda m: f"{m[1]}{place(int(m[2]))}{m[3]}", source.body)
        return source._replace(body=body)

    return edit


def asked(bytes_of: Callable[[int], int], only: str = "") -> Edit:
    """Launches that ask for other sizes of threadgroup memory."""

    def edit(source: KernelSource) -> KernelSource:
        other = only in source.name and source.shared
        return source._replace(shared=bytes_of(source.shared)) if other else source

    return edit


def halved_first(source: KernelSource) -> KernelSource:
    """Metal's first array of a stage has half of its elements."""
    body = METAL.sub(lambda m: f"{m[1]}{int(m[2]) // 2})", source.body, count=1)
    return source._replace(body=body, shared=source.shared)


LINE = 4 * (64 + 8)  # bytes of a quad of staged terms
FAULTS: dict[str, dict[str, tuple[Edit, str]]] = {
    "cuda": {
        "a stage's arrays at half their distance": (moved(lambda at: at // 32 * 16), "overlaps"),
        "votes' arrays overlap by a line": (
            moved(lambda at: max(at - LINE, 0), "votes"), "right of threadgroup memory overlaps",
        ),
        "votes ask for half of their memory": (
            asked(lambda size: size // 2, "votes"), "right of threadgroup memory ends behind",
        ),
        "arrays that are not aligned": (moved(lambda at: at + 4 * (at > 0)), "within 16 bytes"),
        "arrays 16 bytes further on": (moved(lambda at: at + 16 * (at > 0)), "ends behind"),
    },
    "metal": {
        "an array with half its elements": (halved_first, "takes? |writes byte|reads byte"),
        "a stage that asks for half": (asked(lambda size: size // 2), "ends behind"),
    },
}  # fmt: skip
FAULTS["cuda"]["a launch that asks for more"] = FAULTS["metal"]["a launch that asks for more"] = (
    asked(lambda size: size + 16), "and its arrays take",
)  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "fault"), [(gpu, fault) for gpu in FAULTS for fault in FAULTS[gpu]], indirect=["gpu"]
)
def test_faults_of_threadgroup_memory_are_found(gpu: Gpu, fault: str):
    edit, said = FAULTS[gpu.name][fault]
    with pytest.raises(EmulationError, match=said):
        run_small(gpu, edit)


# Method of an engine -> a call of it that returns a state.


def wrong_state(found: Any) -> Any:
    """The state of member 33 is another, in whatever a method returns."""
    if hasattr(found, "_fields"):
        return found._replace(state=off_by_one(found.state, (33, 0)))
    at = 2 if len(found) == 3 and found[0].dtype == mx.uint64 else 1
    return *found[:at], off_by_one(found[at], (33, 0)), *found[at + 1 :]


def call(made: Any, method: str, case: Case) -> Any:
    prepared = made.prepare(case.leaves)
    match method:
        case "evaluate":
            return made.evaluate(prepared, case.slices, case.batch)
        case "likelihoods":
            return made.likelihoods(prepared, case.batch)
        case "logits":
            return made.logits(prepared, case.batch.window(slice(1)))
        case "credit":
            return credited_case(1, "token-credit", V=8, D=8, T=3, P=36).run(made)
    return carried_of(case, "feedback").run(made)


@pytest.mark.parametrize("method", ["evaluate", "likelihoods", "logits", "credit", "learn"])
def test_a_guard_looks_at_the_state(faulty, method: str):
    """Every method's results have one, which the next update begins with."""
    faulty(at_call(1, method, wrong_state))
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    with pytest.raises(EngineError, match=rf"{method}: state\[33, 0\] is"):
        call(made, method, case)


def test_a_difference_of_new_kernels_is_told_every_time(faulty):
    """Whoever catches the error and asks again does not get the wrong integers."""
    case, calls = random_case(1, V=8, D=8, T=3, P=36), list[str]()
    made, _ = engines.choose("metal", case.program)

    def fault(method: str, found: Any) -> Any:
        calls.append(method)
        if len(calls) == 2:
            made.engine._kernels[8, case.rank, 6, "scores"] = []
        return wrong_scores(found) if len(calls) > 1 else found

    faulty(fault)
    given = made.prepare(case.leaves), case.slices, case.batch
    made.evaluate(*given)
    for _ in range(2):
        with pytest.raises(EngineError, match="gives other integers"):
            made.evaluate(*given)


def test_nax_has_no_threadgroups_of_8_members():
    """Its tiles are of 16, however few members there are."""
    for program in (networks.egg(16, 8, 1), networks.egg(256, 256, 1)):
        chosen = {best_members(program, 1, P, nax=True) for P in (2, 8, 36, 700, 10240)}
        assert chosen <= {m for m in MEMBERS if m % 16 == 0}
    assert best_members(networks.egg(16, 8, 1), 1, 8) == 8


def test_stages_declare_the_blocks_that_registers_must_leave_room_for():
    """As MLX's signature of a kernel says nothing of them."""
    for plan in cuda_plans(networks.egg(256, 64, 1), target(90), members=32, rank=1):
        source = StageWriter(plan, Cuda("m16n8k32"), shift=8).source()
        kinds = [mx.int8] * (len(source.inputs) + len(source.outputs))
        declared = cuda_text(source, kinds, source.name)
        assert f"__launch_bounds__({32 * plan.simdgroups}, {plan.blocks})" in declared
        assert plan.blocks == 2
