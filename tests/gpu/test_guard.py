"""A GPU engine under guard: it is compared, and another engine goes on if it is wrong or fails."""

from __future__ import annotations

import os
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from networks import random_case

from eggroll import EngineError, EngineWarning, InputError, Trainer, engines
from eggroll.engines import base, guard
from eggroll.evolution.population import Population
from eggroll.networks import mlp
from eggroll.spec.backward import Learnt
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch
from gpu.faulty import KILLED, at_call, off_by_one, raises, wrong_scores


def test_without_nax_there_is_a_third_way(faulty):
    faulty(at_call(1, "evaluate", raises(KILLED)))
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    made.engine.nax = True
    with pytest.raises(EngineError, match="EGGROLL_NAX=0 leaves NAX unused; `make verify-metal`"):
        made.evaluate(made.prepare(case.leaves), case.slices, case.batch)


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
            made.evaluate(made.prepare(case.leaves), case.slices, case.batch)
        assert seen == [(128, 3)]
        large = made.engine.group_members(4098, case.rank)
        assert made.engine.group_members(128, case.rank) == large > 8


def counting(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the tokens that an engine evaluates from now on."""
    seen: list[tuple[int, ...]] = []
    right = engine.evaluate

    def evaluate(*given: Any) -> Any:
        seen.append(given[2].size)
        return right(*given)

    monkeypatch.setattr(engine, "evaluate", evaluate)
    return seen


def test_the_same_call_is_compared_once(faulty):
    faulty(at_call(2, "evaluate", wrong_scores))  # so the second call is believed
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    given = made.prepare(case.leaves), case.slices, case.batch
    first, second = (np.array(made.evaluate(*given)[0]) for _ in range(2))
    assert (first != second).sum() == 1
    with pytest.raises(NotImplementedError):  # no failure of the GPU
        made.run_guarded(raises_not_implemented)


def test_rows_are_repeated_alike_here_and_there(faulty):
    """By MLX while a GPU is in use, as less goes there; by NumPy for the engine that goes on."""
    case = random_case(1, V=8, D=8, T=3, P=36)
    faulty(at_call(1, "evaluate", raises(KILLED)))
    made, _ = engines.choose("metal", case.program, replaceable=True)
    rows = np.arange(12, dtype=np.int32).reshape(4, 3)
    here = made.repeated(rows, 5)
    with pytest.warns(EngineWarning):
        made.evaluate(made.prepare(case.leaves), case.slices, case.batch)
    for found in (here, made.repeated(rows, 5)):
        assert found.dtype == mx.int32
        np.testing.assert_array_equal(np.array(found), np.repeat(rows, 5, axis=0))


def test_a_difference_is_told_every_time(faulty):
    """Who catches the error and asks again does not get the wrong integers."""
    faulty(lambda method, found: wrong_scores(found) if method == "evaluate" else found)
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    given = made.prepare(case.leaves), case.slices, case.batch
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
    given = made.prepare(case.leaves), case.slices, case.batch
    made.evaluate(*given)
    with pytest.raises(EngineError, match="gives other integers"):
        made.evaluate(*given)


def test_a_gpu_that_failed_is_left_alone(faulty):
    """Its kernels cannot be launched once MLX computes on the CPU."""
    faulty(at_call(1, "evaluate", raises(KILLED)))
    case = random_case(1, V=8, D=8, T=3, P=36)
    first, second = (engines.choose("auto", case.program)[0] for _ in "ab")
    rest = case.slices, case.batch
    packed = [engine.prepare(case.leaves) for engine in (first, second)]
    with pytest.warns(EngineWarning, match="GPU Timeout"):
        right = np.array(first.evaluate(packed[0], *rest)[0])

    def launched(method: str, found: Any) -> Any:
        raise ValueError("[metal_kernel] Only supports the GPU.")

    faulty(launched)
    with pytest.warns(EngineWarning, match="is not used again, as it failed"):
        assert np.array_equal(second.evaluate(packed[1], *rest)[0], right)
    third, why = engines.choose("auto", case.program)
    assert (third.name, "metal: is not used again" in why) == ("cpu", True)


def test_a_failure_within_a_failure_is_told_once(faulty):
    """What waited for the GPU before a call of it failed may fail after it."""
    faulty(at_call(1, "evaluate", raises(KILLED)))
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("auto", case.program)
    pending = [RuntimeError(KILLED)]

    def update() -> Any:
        scores, _ = made.evaluate(made.prepare(case.leaves), case.slices, case.batch)
        if pending:
            raise pending.pop()
        return scores

    with pytest.warns(EngineWarning) as told:
        made.run_guarded(update)
    assert len(told) == 1


def raises_not_implemented() -> None:
    raise NotImplementedError


def test_an_error_of_the_caller_stays_one(faulty):
    faulty(lambda method, found: found)
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("auto", case.program)
    wrong = case.batch._replace(tokens=case.batch.tokens + 100)
    with pytest.raises(ValueError, match="tokens"):
        made.evaluate(made.prepare(case.leaves), case.slices, wrong)


def test_noise_is_drawn_while_the_gpu_computes(faulty, monkeypatch: pytest.MonkeyPatch):
    """That of the next chunk, or update, between the launches of one and the wait for them."""
    faulty(lambda method, found: found)
    case = random_case(1, V=8, D=8, T=3, P=10)
    made, _ = engines.choose("metal", case.program)
    shapes = [leaf.shape for leaf in case.program.leaves]
    noise = Noise(shapes, seed=0, rank=1, shift=6, table_bits=16)
    told: list[object] = []
    drawn, launched, waited = noise.starts, made.engine.evaluate, mx.eval

    def starts(epoch: int, first: int, *rest: Any) -> mx.array:
        told.append(first)
        return drawn(epoch, first, *rest)

    def evaluate(*given: Any) -> Any:
        told.append("launch")
        return launched(*given)

    def wait(*arrays: Any) -> None:
        if told[-1] != "wait":
            told.append("wait")
        waited(*arrays)

    monkeypatch.setattr(noise, "starts", starts)
    monkeypatch.setattr(made.engine, "evaluate", evaluate)
    population = Population(made, noise, members=10, group=2, chunk=4)
    monkeypatch.setattr(mx, "eval", wait)
    population.evaluate(case.leaves, 0, Batch(case.tokens, case.targets, mx.array(case.state)))
    expected = [0, "launch", 2, "wait", "launch", 4, "wait", "launch", 0, "wait"]
    assert told == expected
    population.votes(mx.ones(5, mx.int8), 0)
    assert [each for each in told if each not in ("launch", "wait")] == [0, 2, 4, 0]
    told.clear()
    population.evaluate(case.leaves, 1, Batch(case.tokens, case.targets, mx.array(case.state)))
    assert told == ["launch", 2, *expected[3:]]  # the first chunk's is there


def test_a_call_with_a_fitness_per_pair_is_of_two_members_each():
    assert guard.Call("votes", (mx.zeros(6, mx.int8), None, True)).size == (12, 1)


def test_what_mlx_finds_fault_with_is_a_failure(faulty, monkeypatch: pytest.MonkeyPatch):
    """It says so when kernels are launched, of threadgroups that are too large for one of them."""
    faulty(lambda method, found: found)
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("metal", case.program)
    given = made.prepare(case.leaves), case.slices, case.batch

    def launched(*arrays: Any) -> None:
        raise ValueError("Thread group size (256) is greater than  the maximum allowed (192)")

    monkeypatch.setattr(mx, "async_eval", launched)
    with pytest.raises(EngineError, match=r"failed .*\(256\)"):
        made.evaluate(*given)


def test_a_fork_gets_a_sentence(faulty, monkeypatch: pytest.MonkeyPatch):
    faulty(lambda method, found: found)
    case = random_case(1, V=8, D=8, T=3, P=36)
    made, _ = engines.choose("auto", case.program)
    prepared = made.prepare(case.leaves)
    monkeypatch.setattr(base, "_owner", [os.getpid() + 1])
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    with pytest.raises(InputError, match=r"is a fork of process.*get_context\("):
        made.evaluate(prepared, case.slices, case.batch)


ROWS = np.arange(-64, 64, dtype=np.int8).reshape(32, 4)


@pytest.mark.parametrize(
    "given", [{"targets": ROWS[:, :2] > 0, "loss": "sigmoid"}, {"errors": ROWS[:, :2]}]
)
def test_errors_made_in_another_way_are_compared(
    faulty, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
):
    """Other kernels make them."""
    monkeypatch.setattr(guard.Inspection, "due", False)  # however long calls take here
    faulty(lambda method, found: found)
    es = Trainer(mlp(4, [8], 2), pop=2, estimator="feedback", rule="adam", engine="metal", seed=1)
    es.learn(ROWS, ROWS[:, 0] > 0)

    def wrong(found: Learnt) -> Learnt:
        return found._replace(scores=found.scores + 1)

    faulty(lambda method, found: wrong(found) if method == "learn" else found)
    es.learn(ROWS, ROWS[:, 0] > 0)  # its like was compared
    with pytest.raises(EngineError, match="gives other integers"):
        es.learn(ROWS, **given)
