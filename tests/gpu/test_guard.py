"""A GPU engine under guard: what is wrong or fails ends in a sentence, or the cpu engine goes on.

The engine here is the cpu engine under a GPU's name, with faults put in: no kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from conftest import Command, Ended
from networks import random_case

from eggroll import EngineError, EngineWarning, Trainer, engines
from eggroll.bench import command as bench
from eggroll.engines import choice, guard
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.metal.engine import MetalEngine
from eggroll.networks import mlp
from eggroll.program import Program

METHODS = ("evaluate", "outputs", "votes", "credit", "likelihoods", "logits")
COMPILE = """[metal::Device] Unable to build metal library from source
program_source:7:3: error: no matching function for call to 'product'
  product<K>(x);
  ^"""
PIPELINE = "[metal::Device] Unable to load kernel egg_stage_0123456789abcdef"
KILLED = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)
RUN = (
    *("--data", "count", "--pop", "36", "--steps", "9", "--seq-len", "3", "--table-bits", "16"),
    *("--alpha", "0.5", "--validate-every", "0", "--val-tokens", "32", "--sample-tokens", "2"),
    *("--layers", "1", "--width", "16"),
)

Fault = Callable[[str, Any], Any]  # of a method's name and result: what the caller gets


class Faulty(MetalEngine):
    """Engine `metal` with the integers of the cpu engine, but for its faults."""

    fault: Fault = staticmethod(lambda method, found: found)  # type: ignore[assignment]

    @classmethod
    def unavailable_because(cls) -> str:
        return ""

    def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
        super().__init__(program, launcher=lambda *_: [], nax=False)
        self.right = CpuEngine(program, threads, block_tokens)
        self.prepare = self.right.prepare  # type: ignore[method-assign]
        for method in METHODS:
            setattr(self, method, self.faulty(method))

    def faulty(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return type(self).fault(method, getattr(self.right, method)(*arguments, **named))

        return call


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Engine metal has this fault from now on."""

    def put(fault: Fault) -> None:
        monkeypatch.setattr(Faulty, "fault", staticmethod(fault))

    monkeypatch.setitem(choice.ENGINES, "metal", Faulty)
    monkeypatch.setattr(guard, "given_up", {})
    return put


def at_call(number: int, method: str, change: Callable[[Any], Any]) -> Fault:
    """A fault of one call of a method; the first has number 1."""
    calls = []

    def fault(name: str, found: Any) -> Any:
        calls.extend([name] * (name == method))
        return change(found) if name == method and len(calls) == number else found

    return fault


def raises(message: str) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        raise RuntimeError(message)

    return change


def off_by_one(a: mx.array, at: tuple[int, ...]) -> mx.array:
    changed = np.array(a)
    changed[at] += 1
    return mx.array(changed)


def wrong_scores(found: tuple) -> tuple:
    """A score of member 33, which a threadgroup of 32 members leaves to the next."""
    return off_by_one(found[0], (33, 1)), *found[1:]


def wrong_votes(Z: dict) -> dict:
    return Z | {"head": off_by_one(Z["head"], (2, 3))}


def wrong_credit(found: tuple) -> tuple:
    return *found[:2], wrong_votes(found[2])


def cpu_signature(call: Command, folder: Path, *words: str) -> str:
    return call(*RUN, *words, "--engine", "cpu", "--out", folder / "cpu").signature


FAULTS = {
    "wrong scores in one block": ("evaluate", 1, wrong_scores, (), "scores[33, 1] is"),
    "wrong votes": ("votes", 1, wrong_votes, (), "votes of head[2, 3] is"),
    "wrong credit": ("credit", 1, wrong_credit, ("--recipe", "language"), "votes of head[2, 3]"),
    "compile error": ("evaluate", 1, raises(COMPILE), (), "error: no matching function for call"),
    "pipeline error": ("votes", 1, raises(PIPELINE), (), "Unable to load kernel egg_stage"),
    "RuntimeError in update 7": ("evaluate", 7, raises(KILLED), (), "Caused GPU Timeout Error"),
    "in a validation": ("likelihoods", 1, raises(KILLED), ("--validate-every", "4"), "GPU Timeout"),
}
DONE = {"RuntimeError in update 7": 6, "in a validation": 4}  # updates before the fault


@pytest.mark.usefixtures("no_curves")
@pytest.mark.filterwarnings("always::eggroll.errors.EngineWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_auto_goes_on_with_the_cpu_engine(call: Command, tmp_path: Path, faulty, name: str):
    method, number, change, words, says = FAULTS[name]
    faulty(at_call(number, method, change))
    ended = call(*RUN, *words, "--out", tmp_path / "auto")
    assert ended.code == 0, ended
    (warning,) = (line for line in ended.err.splitlines() if line.startswith("warning: "))
    assert warning.startswith("warning: engine 'metal' ")
    assert says in warning
    assert warning.endswith("with the same bits; `make verify-metal` writes a report.")
    assert ended.signature == cpu_signature(call, tmp_path, *words)


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("name", FAULTS)
def test_an_engine_asked_for_ends_with_a_checkpoint(
    call: Command, tmp_path: Path, faulty, name: str
):
    method, number, change, words, says = FAULTS[name]
    faulty(at_call(number, method, change))
    out = tmp_path / "metal"
    ended = call(*RUN, *words, "--engine", "metal", "--out", out)
    assert_stopped(ended, says)
    assert f"All of update {DONE.get(name, 0)} is saved" in ended.err
    assert ended.err.endswith(f"--resume {out} --engine cpu\n")
    assert "Traceback" not in ended.err
    resumed = call("--resume", out, "--engine", "cpu")
    assert resumed.signature == cpu_signature(call, tmp_path, *words)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 9


def assert_stopped(ended: Ended, says: str) -> None:
    assert ended.code == 2, ended
    (error,) = (line for line in ended.err.splitlines() if "error: engine" in line)
    assert error.startswith("error: engine 'metal' ")
    assert says in error
    assert "take --engine cpu, which gives the same bits" in error


@pytest.mark.usefixtures("no_curves")
@pytest.mark.filterwarnings("always::eggroll.errors.EngineWarning")
@pytest.mark.parametrize("engine", ["auto", "metal"])
def test_what_fails_outside_the_engine(
    call: Command, tmp_path: Path, faulty, monkeypatch: pytest.MonkeyPatch, engine: str
):
    """MLX may tell of a command buffer that was killed in any later call of its own."""
    from eggroll.rules import RULES

    rule, made = RULES["sign"], []
    right = rule.__call__

    def once(self: Any, *given: Any) -> Any:
        made.append(1)
        if len(made) == 7:
            raise RuntimeError(KILLED)
        return right(self, *given)

    faulty(lambda method, found: found)
    monkeypatch.setattr(rule, "__call__", once)
    ended = call(*RUN, "--engine", engine, "--out", tmp_path / "run")
    if engine == "metal":
        assert_stopped(ended, "GPU Timeout")
        assert "All of update 6 is saved" in ended.err
    else:
        assert ended.code == 0
        assert ended.signature == cpu_signature(call, tmp_path)


def test_a_trainer_goes_on_or_raises(faulty):
    """By ask and tell, too."""
    killed = raises(KILLED)

    def trained(engine: str) -> Trainer:
        faulty(at_call(3, "outputs", killed))
        es = Trainer(mlp(4, [8], 2), pop=8, seed=1, engine=engine, threads=1)
        for _ in range(4):
            answers = es.ask()(np.zeros((1, 4), np.int8))
            es.tell(np.arange(8.0) % 3 + np.asarray(answers).reshape(8, -1).sum(axis=1))
        return es

    with pytest.raises(EngineError, match="engine 'metal' failed"):
        trained("metal")
    with pytest.warns(EngineWarning, match="goes on, with the same bits"):
        auto = trained("auto")
    assert auto.signature == trained("cpu").signature


def test_a_benchmark_measures_one_engine(call: Command, faulty):
    faulty(at_call(3, "evaluate", raises(KILLED)))
    words = ("--pops", 64, "--repeats", 2, "--seq-len", 2, "--preset", "seed")
    ended = call(*words, main=bench.main)
    assert ended.code == 2
    assert "GPU Timeout" in ended.err


def test_without_nax_there_is_a_third_way(faulty):
    faulty(at_call(1, "evaluate", raises(KILLED)))
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    made.engine.nax = True
    with pytest.raises(EngineError, match="EGGROLL_NAX=0 leaves NAX unused; `make verify-metal`"):
        made.evaluate(made.prepare(case.leaves), case.slices, *case.arrays)


def test_large_calls_are_compared_in_part(faulty, monkeypatch: pytest.MonkeyPatch):
    """The first members and some of the rest, the last one among them, in groups as large."""
    monkeypatch.setattr(guard, "COMPARED_MACS", 1)
    case = random_case(1, V=8, D=8, T=3, P=4098)
    for member in (7, 4097):

        def wrong(found: tuple, member: int = member) -> tuple:
            rows = len(found[0])
            return (off_by_one(found[0], (member, 0)) if rows == 4098 else found[0]), found[1]

        faulty(at_call(1, "evaluate", wrong))
        made, _ = engines.choose("metal", case.program)
        seen = counting(made.spare, monkeypatch)
        with pytest.raises(EngineError, match=r"evaluate: scores\["):
            made.evaluate(made.prepare(case.leaves), case.slices, *case.arrays)
        assert seen == [(128, 3)]
        large = made.engine.group_members(4098, case.rank)
        assert made.engine.group_members(128, case.rank) == large > 8


def counting(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the tokens that an engine evaluates from now on."""
    seen: list[tuple[int, ...]] = []
    right = engine.evaluate

    def evaluate(*given: Any) -> Any:
        seen.append(given[2].shape)
        return right(*given)

    monkeypatch.setattr(engine, "evaluate", evaluate)
    return seen


def test_the_same_call_is_compared_once(faulty):
    faulty(at_call(2, "evaluate", wrong_scores))  # so the second call is believed
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    given = made.prepare(case.leaves), case.slices, *case.arrays
    first, second = (np.array(made.evaluate(*given)[0]) for _ in range(2))
    assert (first != second).sum() == 1
    with pytest.raises(NotImplementedError):  # no failure of the GPU
        made.guarding(raises_not_implemented)


def test_a_difference_is_told_every_time(faulty):
    """Who catches the error and asks again does not get the wrong integers."""
    faulty(lambda method, found: wrong_scores(found) if method == "evaluate" else found)
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    given = made.prepare(case.leaves), case.slices, *case.arrays
    for _ in range(3):
        with pytest.raises(EngineError, match="gives other integers"):
            made.evaluate(*given)


def test_new_kernels_are_compared(faulty):
    """A later launch may have other threadgroups, as its size follows the time that launches take.

    Then the call before is no proof.
    """
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)

    def another(found: tuple) -> tuple:
        made.engine._kernels[8, case.rank, 6, "scores"] = []
        return wrong_scores(found)

    faulty(at_call(2, "evaluate", another))
    given = made.prepare(case.leaves), case.slices, *case.arrays
    made.evaluate(*given)
    with pytest.raises(EngineError, match="gives other integers"):
        made.evaluate(*given)


def test_a_gpu_that_failed_is_left_alone(faulty):
    """Its kernels cannot be launched once MLX computes on the CPU."""
    faulty(at_call(1, "evaluate", raises(KILLED)))
    case = random_case(1, V=8, D=8, T=3, P=36)
    first, second = (engines.choose("auto", case.program)[0] for _ in "ab")
    given = first.prepare(case.leaves), case.slices, *case.arrays
    with pytest.warns(EngineWarning, match="GPU Timeout"):
        right = np.array(first.evaluate(*given)[0])

    def launched(method: str, found: Any) -> Any:
        raise ValueError("[metal_kernel] Only supports the GPU.")

    faulty(launched)
    with pytest.warns(EngineWarning, match="is not used again, as it failed"):
        assert np.array_equal(second.evaluate(*given)[0], right)
    third, why = engines.choose("auto", case.program)
    assert (third.name, "metal: is not used again" in why) == ("cpu", True)


def test_a_failure_within_a_failure_is_told_once(faulty):
    """What waited for the GPU before a call of it failed may fail after it."""
    faulty(at_call(1, "evaluate", raises(KILLED)))
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("auto", case.program)
    pending = [RuntimeError(KILLED)]

    def update() -> Any:
        scores, _ = made.evaluate(made.prepare(case.leaves), case.slices, *case.arrays)
        if pending:
            raise pending.pop()
        return scores

    with pytest.warns(EngineWarning) as told:
        made.guarding(update)
    assert len(told) == 1


def raises_not_implemented() -> None:
    raise NotImplementedError


def test_an_error_of_the_caller_stays_one(faulty):
    faulty(lambda method, found: found)
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("auto", case.program)
    tokens, *rest = case.arrays
    with pytest.raises(ValueError, match="tokens"):
        made.evaluate(made.prepare(case.leaves), case.slices, tokens + 100, *rest)
