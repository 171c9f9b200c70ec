"""Errors of outputs carried back: every engine that does it equals the oracle, bit for bit."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import oracle_backward
import pytest
from networks import case_of
from networks_backward import (
    ENGINES,
    ESTIMATORS,
    ISAS,
    Carried,
    carried_of,
    differing,
    net_of_outputs,
)
from networks_random import seeded_program, unscored_seeds

from eggroll import engines
from eggroll.errors import InputError
from eggroll.library.trainer import Trainer
from eggroll.networks import egg, mlp, nnue
from eggroll.spec import backward
from eggroll.spec.backward import final, heads
from eggroll.spec.program import Program

UNSCORED = unscored_seeds()


def case(program: Program, seed: int, estimator: str, *, scale: int | None = None, **options: Any):
    extreme = options.get("extreme", False)
    made = case_of(program, np.random.default_rng(seed), **{"T": 4} | options)
    return carried_of(made, estimator, scale=scale, extreme=extreme, seed=seed)


def engine_of(name: str, carried: Carried) -> engines.Engine:
    return engines.ENGINES[name](carried.case.program)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("seed", UNSCORED)
def test_random_programs_equal_the_oracle(name: str, estimator: str, seed: int):
    program = seeded_program(seed, joined=seed % 2 == 0)
    carried = case(program, seed, estimator, extreme=seed % 3 == 0)
    assert carried.differing(carried.run(engine_of(name, carried))) == set()


def test_credit_reaches_many_leaves_of_the_random_programs():
    """So that what is compared above is more than zeros."""
    reached = []
    for seed in UNSCORED[::2]:
        votes = case(seeded_program(seed, joined=True), seed, "feedback", scale=2).oracle()[2]
        reached += [bool(np.any(z)) for z in votes.values()]
    assert np.mean(reached) > 1 / 2


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", [0, 3, 8, 16, None])
@pytest.mark.parametrize("extreme", [False, True])
def test_a_recurrent_program_of_several_outputs_equals_the_oracle(
    name: str, estimator: str, scale: int | None, extreme: bool
):
    carried = case(net_of_outputs(), 7, estimator, scale=scale, T=6, extreme=extreme)
    found = carried.run(engine_of(name, carried))
    assert carried.differing(found) == set()
    assert not np.array(found.scores).any()
    if scale == 0:
        silent = {leaf for leaf, z in found.votes.items() if not np.array(z).any()}
        assert silent == (set() if estimator == "feedback" or extreme else silent)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "program", [net_of_outputs(13), mlp(33, [70, 20], 11), nnue(80, 76, 5, active=37)]
)
def test_instruction_sets_equal_the_portable_engine(
    isa: str, threads: int, program: Program, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    carried = case(program, 4, "feedback", P=102, T=5)
    want = carried.run(engine_of("portable", carried))
    made = engines.ENGINES["cpu"](program, threads)
    assert differing(carried.run(made), want) == set()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_lists_of_every_form(isa: str, threads: int, monkeypatch: pytest.MonkeyPatch):
    """With nothing behind, nothing between, nothing at all, and one row named several times."""
    monkeypatch.setenv("EGGROLL_ISA", isa)
    carried = case(nnue(190, 172, 5, active=37), 6, "feedback", P=102, T=5)
    random, lists = np.random.default_rng(1), carried.case.features.reshape(-1, 37)
    for i, row in enumerate(lists):
        if i % 5 < 2:
            row[:] = random.permutation(190)[:37]
        if i % 5 == 1:
            row[random.integers(37) :] = -1
        if i % 5 == 2:
            row[:] = -1
        if i % 5 == 3:
            row[:] = random.integers(190)
    want = carried.run(engine_of("portable", carried))
    assert (
        differing(carried.run(engines.ENGINES["cpu"](carried.case.program, threads)), want) == set()
    )


def test_heads_and_final_operations_are_those_next_to_an_output():
    assert set(heads(net_of_outputs())) == {"out.logits", "out.worth", "out.act"}
    assert heads(egg(7, 5, 2)) == ("head",)
    assert heads(mlp(3, [8], 2)) == (mlp(3, [8], 2).leaves[2].name,) or len(heads(mlp(3, [8], 2)))
    for seed in UNSCORED:
        for stage in seeded_program(seed).stages:
            own = tuple(oracle_backward.final(stage, i) for i in range(len(stage.ops)))
            assert final(stage) == own


def test_an_operation_that_passes_no_error_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backward, "FORWARD_ONLY", {"relu"})
    net = mlp(3, [8], 2)
    with pytest.raises(InputError, match="operation 'relu' of this network passes none: try est"):
        Trainer(net, pop=2, estimator="feedback", rule="adam", steps=1)
    Trainer(net, pop=2, estimator="token-credit", rule="whitened", steps=1)


def broken(name: str, value: Any) -> Any:
    def change(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(oracle_backward, name, value)

    change.__name__ = name
    return change


BROKEN = [
    broken("pushed_out", lambda op, y, c: c),
    broken("final", lambda stage, at: False),
    broken("SCORE_SCALE", 13),
]


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_the_comparison_notices_what_is_broken(change: Any, monkeypatch: pytest.MonkeyPatch):
    carried = case(net_of_outputs(), 7, "feedback", scale=3, T=6, extreme=True)
    found = carried.run(engine_of("portable", carried))
    assert carried.differing(found) == set()
    change(monkeypatch)
    assert carried.differing(found) - {"sizes"} != set()


@pytest.mark.parametrize("name", ENGINES)
def test_wrong_errors_are_refused(name: str):
    carried = case(mlp(3, [8], 2), 1, "feedback")
    good = carried.errors
    assert good is not None
    low = good.copy()
    low[0, 0, 0] = -128
    for wrong in (good[..., :1], good[:1], good.astype(np.int32), low):
        carried.errors = wrong
        with pytest.raises((ValueError, TypeError)):
            carried.run(engine_of(name, carried))
    scored = case(egg(7, 5, 1), 1, "feedback")
    scored.errors = np.zeros((*scored.case.tokens.shape, 0), np.int8)
    with pytest.raises(ValueError, match="score"):
        scored.run(engine_of(name, scored))
    assert mx.array(good).dtype == mx.int8


@pytest.mark.skipif("cpu" not in ENGINES, reason="the extension is not built")
def test_wrong_targets_are_refused():
    """By the extension, whatever the caller's own checks let through."""
    carried = case(net_of_outputs(), 1, "feedback")
    made, size = engine_of("cpu", carried), carried.case.tokens.shape
    good = np.zeros((*size, 1 + 2 + 3), np.int32)
    back = carried.backward._replace(losses=("softmax", "squared", "sigmoid", ""))

    def learn(wanted: np.ndarray, losses: tuple[str, ...] = back.losses, **given: Any) -> Any:
        batch = carried.case.batch._replace(wanted=mx.array(wanted), **given)
        words = mx.array(carried.words)
        return made.learn(
            made.prepare(carried.case.leaves), batch, words, back._replace(losses=losses)
        )

    assert learn(good).errors.shape == (*size, 15)
    for column, least, most in ((0, -1, 3), (2, -(1 << 24), 1 << 24), (5, -1, 127)):
        for value in (least, most):
            edge = good.copy()
            edge[-1, -1, column] = value
            learn(edge)
            edge[-1, -1, column] += 1 if value > 0 else -1
            with pytest.raises(ValueError, match="targets: a value is out of its loss's range"):
                learn(edge)
    for wrong in (good[..., 1:], good[:1], good.astype(np.int16)):
        with pytest.raises(ValueError, match="targets"):
            learn(wrong)
    with pytest.raises(ValueError, match="one loss per output"):
        learn(good, back.losses[:3])
    with pytest.raises(ValueError, match="errors are given, or made of targets"):
        learn(good, errors=mx.array(np.zeros((*size, 15), np.int8)))
