"""Runs on a GPU that is wrong or fails end in a sentence, or the cpu engine goes on."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from conftest import Command, Ended

from eggroll import Config, EngineError, EngineWarning, Trainer, train
from eggroll.bench import command as bench
from eggroll.evolution.rules import SignRule
from eggroll.evolution.step import Learner
from eggroll.library import learning
from eggroll.networks import mlp
from eggroll.training.run import TrainingRun
from gpu.faulty import (
    COMPILE,
    KILLED,
    PIPELINE,
    at_call,
    raises,
    wrong_credit,
    wrong_learnt,
    wrong_rule,
    wrong_scores,
    wrong_sizes,
    wrong_votes,
)

RUN = (
    *("--data", "count", "--pop", "36", "--steps", "9", "--seq-len", "3", "--table-bits", "16"),
    *("--alpha", "0.5", "--validate-every", "0", "--val-tokens", "32", "--sample-tokens", "2"),
    *("--layers", "1", "--width", "16"),
)


def cpu_signature(call: Command, folder: Path, *words: str) -> str:
    return call(*RUN, *words, "--engine", "cpu", "--out", folder / "cpu").signature


FAULTS = {
    "wrong scores in one block": ("evaluate", 1, wrong_scores, (), "scores[33, 1] is"),
    "wrong votes": ("votes", 1, wrong_votes, (), "votes of head[2, 3] is"),
    "wrong credit": ("credit", 1, wrong_credit, ("--recipe", "language"), "votes of head[2, 3]"),
    "wrong credit carried back": (
        "learn",
        1,
        wrong_learnt,
        ("--recipe", "feedback"),
        "learn: votes of head[2, 3] is",
    ),
    "wrong sizes of it": (
        "learn",
        1,
        wrong_sizes,
        ("--recipe", "feedback"),
        "sums of their credit[0] is",
    ),
    "a wrong fine copy": (
        "adam",
        1,
        wrong_rule,
        ("--recipe", "feedback"),
        "rule adam leaves other numbers",
    ),
    "the same of credit": (
        "whitened",
        1,
        wrong_rule,
        ("--recipe", "language"),
        "rule whitened leaves other numbers",
    ),
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
def test_samples_that_fail_come_with_a_resume(call: Command, tmp_path: Path, faulty):
    out = tmp_path / "metal"
    faulty(at_call(2, "logits", raises(KILLED)))
    ended = call(*RUN, "--engine", "metal", "--out", out)
    assert_stopped(ended, "GPU Timeout")
    assert "All of update 9 is saved" in ended.err
    assert call("--resume", out, "--engine", "cpu").code == 0
    assert (out / "samples.txt").exists()


@pytest.mark.usefixtures("no_curves")
def test_what_a_gpu_holds_may_be_lost_with_it(
    call: Command, tmp_path: Path, faulty, monkeypatch: pytest.MonkeyPatch
):
    """Also where a checkpoint is due."""
    faulty(at_call(2, "likelihoods", raises(KILLED)))
    right = TrainingRun.save

    def save(run: TrainingRun) -> None:
        if run.step == 6:
            raise RuntimeError(KILLED)
        right(run)

    monkeypatch.setattr(TrainingRun, "save", save)
    words = ("--validate-every", "3", "--checkpoint-every", "3")
    ended = call(*RUN, *words, "--engine", "metal", "--out", tmp_path / "metal")
    assert_stopped(ended, "GPU Timeout")
    assert "The last checkpoint stays: go on with" in ended.err


def test_the_line_of_an_update_needs_no_gpu(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else an update that is made might have no line."""
    right = Learner.update

    def update(self: Learner, *given: Any) -> Any:
        made = right(self, *given)
        return made._replace(scores=np.array(made.scores))

    monkeypatch.setattr(Learner, "update", update)
    out = tmp_path / "run"
    assert call(*RUN, "--steps", "1", "--engine", "cpu", "--out", out).code == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.usefixtures("no_curves")
@pytest.mark.filterwarnings("always::eggroll.errors.EngineWarning")
@pytest.mark.parametrize("engine", ["auto", "metal"])
def test_what_fails_outside_the_engine(
    call: Command, tmp_path: Path, faulty, monkeypatch: pytest.MonkeyPatch, engine: str
):
    """MLX may tell of a command buffer that was killed in any later call of its own."""
    from eggroll.evolution.rules import RULES

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


@pytest.mark.parametrize("place", ["rule", "outputs of two chunks"])
def test_a_trainer_whose_gpu_fails_outside_the_engine(
    tmp_path: Path, faulty, monkeypatch: pytest.MonkeyPatch, place: str
):
    """It goes on too, or it has changed nothing: what is saved goes on as if all had been right."""

    def updates(es: Trainer, count: int) -> Trainer:
        while es.step < count:
            answers = es.ask()(np.ones((1, 4), np.int8))
            es.tell((np.arange(64.0) ** 2 % 7 + np.asarray(answers).sum(axis=1)) * 9.0**es.step)
        return es

    def made(engine: str, **more: Any) -> Trainer:
        options: dict[str, Any] = {"pop": 64, "chunk": 32, "alpha": 0.3, "threads": 1} | more
        return Trainer(mlp(4, [8], 2), estimator="token-credit", engine=engine, **options)

    faulty(lambda method, found: found)
    right = updates(made("cpu"), 5).signature
    killed_once(monkeypatch, place)
    with (
        pytest.raises(EngineError, match="GPU Timeout"),
        made("metal", out=tmp_path / "run") as es,
    ):
        updates(es, 5)
    assert es.step == 2
    assert updates(Trainer.load(tmp_path / "run", engine="cpu"), 5).signature == right
    killed_once(monkeypatch, place)
    with pytest.warns(EngineWarning, match="goes on, with the same bits"):
        assert updates(made("auto"), 5).signature == right


def test_a_trainer_whose_gpu_fails_as_errors_are_summed(faulty, monkeypatch: pytest.MonkeyPatch):
    """Then all of the update is made again."""
    rows = np.arange(-64, 64, dtype=np.int8).reshape(32, 4)

    def learnt(engine: str) -> tuple[float, str]:
        net = mlp(4, [8], 2)
        es = Trainer(net, pop=2, estimator="feedback", rule="adam", engine=engine, seed=1)
        return es.learn(rows, rows[:, 0] > 0).loss, es.signature

    faulty(lambda method, found: found)
    right, real, left = learnt("cpu"), learning.sums, [RuntimeError(KILLED)]

    def sums(found: Any) -> Any:
        if left:
            raise left.pop()
        return real(found)

    monkeypatch.setattr(learning, "sums", sums)
    with pytest.warns(EngineWarning, match="goes on, with the same bits"):
        assert learnt("auto") == right


def killed_once(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Lets MLX tell in the third update that the GPU failed, where arrays are put together."""
    owner, name = (SignRule, "__call__") if place == "rule" else (mx, "concatenate")
    made, right = [], getattr(owner, name)

    def once(*given: Any, **named: Any) -> Any:
        # Two joints an update: of the outputs and of the states.
        made.append(1)
        if len(made) == (3 if place == "rule" else 5):
            raise RuntimeError(KILLED)
        return right(*given, **named)

    monkeypatch.setattr(owner, name, once)


def test_what_python_is_told(tmp_path: Path, faulty):
    """The same error, in words of Python; it may come from another process."""
    faulty(at_call(1, "evaluate", raises(KILLED)))
    config = Config(data="count", pop=36, steps=1, seq_len=3, table_bits=16, layers=1, width=16)
    with pytest.raises(EngineError, match="take engine cpu, which gives the same bits") as told:
        train(replace(config, engine="metal"))
    passed_on = pickle.loads(pickle.dumps(told.value))
    assert (str(passed_on), passed_on.spare) == (str(told.value), "cpu")


def test_a_benchmark_measures_one_engine(call: Command, faulty):
    faulty(at_call(3, "evaluate", raises(KILLED)))
    words = ("--pops", 64, "--repeats", 2, "--seq-len", 2, "--preset", "seed")
    ended = call(*words, main=bench.main)
    assert ended.code == 2
    assert "GPU Timeout" in ended.err
