"""Labels and errors: `learn` and `tell_errors` with the same bits everywhere, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import oracle_backward
import pytest
from networks_backward import net_of_outputs
from test_engines import BACKENDS

from eggroll.errors import InputError
from eggroll.library import learning
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp, nnue
from eggroll.spec import losses, rng
from eggroll.spec.backward import Learnt
from eggroll.spec.program import Program

R, T = 12, 5


def trainer(net: Program, **options: Any) -> Trainer:
    usual = {"pop": 4, "estimator": "feedback", "rule": "adam", "seed": 3, "engine": "portable"}
    return Trainer(net, **usual | {"table_bits": 16, "steps": 20} | options)


def dense() -> Program:
    return mlp(3, [8, 8], 4)


def inputs(seed: int, *lead: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-99, 99, (*lead, 3)).astype(np.int8)


def shown(net: Program, seed: int, *lead: int) -> dict[str, Any]:
    lists = np.random.default_rng(seed + 1).integers(-1, 9, (*lead, 3))
    return {"inputs": inputs(seed, *lead)} | ({"features": lists} if net.indices else {})


def targets_of(net: Program, seed: int, *lead: int) -> tuple[Any, Any]:
    """Targets and losses for every output."""
    random = np.random.default_rng(seed + 2)
    classes = random.integers(-1, 3, lead)
    if len(net.outputs) == 1:
        return classes, "softmax"
    return (
        {
            "class": classes,
            "out.worth": random.integers(-90, 90, (*lead, 2)),
            "act": random.integers(-1, 128, (*lead, 3)),
        },
        {"class": "softmax", "out.worth": "squared", "act": "sigmoid"},
    )


def run(es: Trainer, updates: int = 4) -> list[Any]:
    rows = []
    for step in range(es.step, es.step + updates):
        lead = (R, T) if es.program.state_size else (R * T,)
        targets, loss = targets_of(es.program, step, *lead)
        update = es.learn(**shown(es.program, step, *lead), targets=targets, loss=loss)
        rows.append((es.signature, update.step, update.loss, update.error, update.update_rate))
    return rows


@contextmanager
def engine_of(backend: str) -> Iterator[str]:
    """A backend's engine by name, whose instruction set is in force within the block."""
    name, _, isa = backend.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGGROLL_ISA", isa)
        yield name


@pytest.mark.parametrize("net", [net_of_outputs, dense])
@pytest.mark.parametrize(("estimator", "rule"), [("feedback", "adam"), ("local", "whitened")])
def test_no_engine_or_thread_or_save_changes_a_bit(
    net: Any, estimator: Any, rule: Any, tmp_path: Path
):
    known = run(trainer(net(), estimator=estimator, rule=rule))
    assert len({row[0] for row in known}) == 4  # weights move
    for backend in BACKENDS:
        with engine_of(backend) as name:
            for threads in (1, 2):
                options = {"engine": name, "threads": threads}
                es = trainer(net(), estimator=estimator, rule=rule, **options)
                assert run(es, 2) == known[:2]
                es.save(tmp_path / "es.safetensors")
                again = Trainer.load(tmp_path / "es.safetensors")
                assert run(again, 2) == known[2:]


def test_rows_may_be_dealt_to_readers_at_will():
    """A program without a state sees no difference between readers and their rows."""
    one, other, third = (trainer(dense()) for _ in range(3))
    x, y = inputs(0, 96), np.arange(96) % 4
    one.learn(x, y)
    other.learn(x.reshape(12, 8, 3), y.reshape(12, 8))
    third.learn(x[None], y[None])
    assert one.signature == other.signature == third.signature


def test_rows_of_features_may_be_dealt_to_readers_at_will(monkeypatch: pytest.MonkeyPatch):
    lists, y = np.random.default_rng(0).integers(-1, 20, (256, 2, 5)), np.arange(256)[:, None] % 90
    found = set()
    for fitting in (0, 80, 1 << 12):  # bytes, of no row, of two and of eight
        monkeypatch.setattr(learning, "PAGE", fitting)
        es = trainer(nnue(20, 10, 3, active=5), engine="cpu")
        es.learn(features=lists, targets=y, loss="squared")
        found.add(es.signature)
    assert len(found) == 1


def wide() -> Program:
    """Sums, whose values pass what int8 has, and an output without a target."""
    net = Program()
    x = net.input(3)
    net.sums(x, "near", 5)
    net.output(net.linear(x, "of none", 2), "none")
    net.sums(net.relu(net.linear(x, "between", 40)), "far", 3)
    return net


@pytest.mark.parametrize("losses_of", [("softmax", "sigmoid"), ("sigmoid", "softmax")])
@pytest.mark.parametrize("rows", [33, 96])
def test_errors_of_sums_are_the_same_on_every_engine(losses_of: Any, rows: int):
    """Of values far beyond int8 and of single rows, some of them without a target."""
    random, found = np.random.default_rng(rows), set()
    x = random.choice(np.array([-127, -60, 0, 5, 127], np.int8), (rows, 3))
    weights = {
        leaf.name: random.integers(-127, 128, leaf.shape).astype(np.int8) for leaf in wide().leaves
    }
    loss = dict(zip(("near", "far"), losses_of, strict=True))
    targets = {
        name: random.integers(-1, *((3, rows) if loss[name] == "softmax" else (128, (rows, n))))
        for name, n in (("near", 5), ("far", 3))
    }
    for backend in BACKENDS:
        with engine_of(backend) as name:
            es = trainer(wide(), engine=name, threads=1, weights=weights)
            reach = np.abs(es.model(x)["far"]).max()
            updates = [es.learn(x, targets, loss=loss) for _ in range(2)]
            found.add((es.signature, *((u.loss, u.error) for u in updates)))
    assert len(found) == 1
    assert reach > 2 * 127 * 96  # the divisor of 40 inputs


def words_of(es: Trainer, count: int) -> np.ndarray:
    drawn = rng.counters(rng.key(es.options.seed, rng.DRAWS, es.step), 0, count)
    return (drawn >> np.uint64(32)).astype(np.uint32)


def test_softmax_is_the_error_of_the_score():
    """Value by value as the oracle has it, with the words of a leaf behind the last one."""
    es = trainer(dense())
    x, y = inputs(1, 40), np.random.default_rng(1).integers(0, 4, 40)
    logits, given = es.model(x), []
    words = words_of(es, 40)
    for i in range(40):
        own = oracle_backward.random_words(words[i], len(es.program.leaves), 4)
        given.append(plain_error(logits[i].astype(int), y[i], own))
    other = trainer(dense())
    es.learn(x, y)
    other.learn(x, errors=np.array(given, np.int8))
    assert es.signature == other.signature
    assert np.abs(given).max() > 20


@pytest.mark.parametrize("outputs", [1, 3])
def test_sums_are_those_of_numpy(outputs: int, monkeypatch: pytest.MonkeyPatch):
    """Losses beyond 2^53 and int8 of either sign, by the extension and without it."""
    random = np.random.default_rng(outputs)
    errors = random.integers(-127, 128, (5, 3, 7)).astype(np.int8)
    lost = random.integers(0, 1 << 58, (5, 3, outputs), np.uint64)
    nothing = mx.zeros(0)
    learnt = Learnt(nothing, nothing, {}, nothing, mx.array(errors), mx.array(lost))
    want = (
        sum(abs(e) for e in errors.ravel().tolist()),
        [sum(lost[..., i].ravel().tolist()) for i in range(outputs)],
    )
    assert learning.sums(learnt) == want
    monkeypatch.setattr(learning, "native_module", lambda: None)
    assert learning.sums(learnt) == want


def plain_error(logits: np.ndarray, target: int, words: np.ndarray) -> np.ndarray:
    """`head_error` without the clip's part, which is the operation's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle_backward, "stuck", lambda logits, e: np.zeros(len(e), bool))
        return oracle_backward.head_error(logits, target, words)


def chance(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1 << 32, (50_000, 1, n), dtype=np.uint32)


@pytest.mark.parametrize("narrow", [True, False])
def test_errors_are_right_in_the_mean(narrow: bool):
    """Softmax and sigmoid, against real arithmetic."""
    u = np.array([40, -3, 0, -90], np.int32) * (1 if narrow else 3)
    many = np.broadcast_to(u, (50_000, 1, 4))
    soft = losses.softmax(many, np.full((50_000, 1), 1), narrow, chance)
    p = np.exp2(u / 16 - u.max() / 16)
    p /= p.sum()
    want = 127 * (np.eye(4)[1] - p)
    np.testing.assert_allclose(soft.errors.mean(axis=(0, 1)), want, atol=0.6)
    assert soft.lost.mean() / 65536 == pytest.approx(-math.log2(p[1]), abs=3 / 65536)
    wanted = np.array([127, 0, 64, losses.ABSENT])
    each = losses.sigmoid(many, np.broadcast_to(wanted, many.shape), narrow, chance)
    real = wanted - 127 / (1 + np.exp2(-np.clip(u, -127, 127) / 16))
    np.testing.assert_allclose(each.errors.mean(axis=(0, 1))[:3], real[:3], atol=0.6)
    assert not each.errors[..., 3].any()
    off = losses.squared(
        many, np.broadcast_to(u + np.array([1, -2, 300, 0]), many.shape), True, chance
    )
    assert off.errors[0, 0].tolist() == [1, -2, 127, 0]


def test_sums_are_read_as_linear_divides_them():
    net = Program()
    net.sums(net.input(9), "worth", 2)
    values = losses.values_of(net, 0, np.array([[[-1, 47]]], np.int32))
    assert values.tolist() == [[[-1, 0]]]


def test_real_errors_are_rounded_by_chance_and_errors_may_be_computed():
    es, other = trainer(dense()), trainer(dense())
    x, seen = inputs(2, 32), []

    def errors(outputs: np.ndarray) -> np.ndarray:
        seen.append(outputs)
        return 0.25 * np.ones(outputs.shape)

    update = es.learn(x, errors=errors)
    assert math.isnan(update.loss)
    assert 0.1 < update.error < 0.4
    np.testing.assert_array_equal(seen[0], other.model(x))
    other.learn(x, errors=errors(other.model(x)))
    assert es.signature == other.signature


def test_a_loss_of_no_target_is_none():
    es, x = trainer(dense()), inputs(2, 32)
    update = es.learn(x, -np.ones(len(x), int))
    assert math.isnan(update.loss)
    assert update.error == 0


def test_errors_of_members_equal_those_of_rows():
    """`ask`, their rows one by one, and `tell_errors` are `learn` of all rows."""
    options = {"pop": R}
    asked, learnt = trainer(net_of_outputs(), **options), trainer(net_of_outputs(), **options)
    given = shown(asked.program, 0, R, T)
    errors = {
        "class": np.random.default_rng(0).integers(-99, 99, (R, T, 4)).astype(np.int8),
        "out.worth": np.random.default_rng(1).integers(-99, 99, (R, T, 2)).astype(np.int8),
    }
    members = asked.ask()
    outputs = [members(**{k: a[:, t] for k, a in given.items()}) for t in range(T)]
    whole = learnt.model(**given)
    for name in whole:
        np.testing.assert_array_equal(np.stack([o[name] for o in outputs], axis=1), whole[name])
    asked.tell_errors(errors)
    learnt.learn(**given, errors=errors)
    assert asked.signature == learnt.signature


def test_a_carried_state_goes_on():
    """Two calls with `carry` read on where the first one ended."""
    es, other = (
        trainer(net_of_outputs(), pop=R, carry=True, estimator="local", rule="whitened")
        for _ in range(2)  # a rule that moves nothing without votes
    )
    whole = shown(es.program, 4, R, T)
    first, second = ({k: a[:, at] for k, a in whole.items()} for at in (slice(3), slice(3, T)))
    zeros = {"class": np.zeros((R, 3, 4), np.int8)}
    es.learn(**first, errors=zeros)
    seen = []
    es.learn(**second, errors=lambda out: seen.append(out) or {"class": np.zeros((R, 2, 4))})
    right = other.model(**whole)
    for name in right:
        np.testing.assert_array_equal(seen[0][name], right[name][:, 3:])


def test_a_policy_learns_by_the_errors_of_its_actions():
    """REINFORCE: the draw less the probabilities, by what it earned above the mean."""
    net = mlp(8, [16], 4, policy=True)
    es = trainer(net, pop=64, steps=150, learning_rate=1.5)
    random = np.random.default_rng(0)
    while es.step < 150:
        rows = random.integers(-40, 40, (64, 8, 8)).astype(np.int8)
        members = es.ask()
        actions = members.act(rows)
        logits = es.model(rows)
        p = np.exp2(logits / 16)
        p /= p.sum(axis=-1, keepdims=True)
        won = (actions == rows[..., :4].argmax(axis=-1)).astype(float)
        worth = (won - won.mean()) / (won.std() + 1e-6)
        es.tell_errors(40 * worth[..., None] * (np.eye(4)[actions] - p))
    rows = random.integers(-40, 40, (400, 8)).astype(np.int8)
    assert (es.model.act(rows) == rows[:, :4].argmax(axis=1)).mean() > 0.8


def test_rows_that_are_not_active_have_no_errors():
    net, x = mlp(3, [16], 4), inputs(3, 8, 5)
    errors = np.full((8, 5, 4), 50, np.int8)
    active = np.arange(40).reshape(8, 5) % 3 > 0

    def told(given: Any, masked: Any) -> tuple[str, float]:
        es = trainer(net, pop=8)
        es.ask()(x, active=given)
        return es.tell_errors(masked).error, es.signature

    assert told(active, errors) == told(None, errors * active[..., None])
    assert told(active, errors)[0] == pytest.approx(50 * active.mean())
    assert told(np.zeros(8, bool), errors)[0] == 0
    assert told(active, errors)[1] != told(None, errors)[1]


def test_the_size_of_errors_is_that_of_what_the_caller_has():
    """A policy's own inputs, which are outputs as well, have none."""
    net, x = mlp(3, [16], 4, policy=True), inputs(3, 40)
    assert trainer(net).learn(x, errors=np.full((40, 4), -50, np.int8)).error == 50
    p = np.exp2(trainer(net).model(x) / 16.0)
    wanted = np.abs(127 * (np.eye(4)[0] - p / p.sum(axis=-1, keepdims=True))).mean()
    assert trainer(net).learn(x, np.zeros(40, int)).error == pytest.approx(wanted, rel=0.02)


def test_labels_are_learnt():
    """Far more than evolution finds in as many updates."""
    random = np.random.default_rng(0)
    x = random.integers(-60, 60, (1024, 16)).astype(np.int8)
    y = (x.astype(int) @ random.normal(size=(16, 5))).argmax(axis=1)
    for estimator in ("feedback", "local"):
        es = trainer(mlp(16, [32], 5), estimator=estimator, steps=200, learning_rate=1.5)
        while es.step < 200:
            at = random.integers(0, 768, 64)
            update = es.learn(x[at], y[at])
        assert (es.model(x[768:]).argmax(axis=1) == y[768:]).mean() > 0.8
        assert update.loss < 1


WRONG: dict[str, tuple[Any, str]] = {
    "class beyond": (lambda es: es.learn(inputs(0, 4), [0, 1, 2, 4]), "0 to 3"),
    "shape": (lambda es: es.learn(inputs(0, 4), [0, 1]), r"\[4\]"),
    "real": (lambda es: es.learn(inputs(0, 4), [0.5] * 4), "whole numbers"),
    "loss": (lambda es: es.learn(inputs(0, 4), [0] * 4, loss="hinge"), "softmax, squared"),
    "neither": (lambda es: es.learn(inputs(0, 4)), "either targets or errors"),
    "both": (lambda es: es.learn(inputs(0, 4), [0] * 4, errors=[0]), "either"),
    "name": (lambda es: es.learn(inputs(0, 4), {"x": [0] * 4}), "'x'"),
    "none": (lambda es: es.learn(inputs(0, 4), {}), "empty"),
    "loss of none": (lambda es: es.learn(inputs(0, 4), {"output": [0] * 4}, loss={}), "loss"),
    "error shape": (lambda es: es.learn(inputs(0, 4), errors=[0] * 4), r"\[4, 4\]"),
    "NaN": (lambda es: es.learn(inputs(0, 4), errors=np.full((4, 4), np.nan)), "finite"),
    "rows": (lambda es: es.learn(inputs(0, 4)[:, :2], [0] * 4), "shape"),
    "values without ask": (lambda es: es.tell([0] * 4), "call tell_errors, or learn"),
    "without ask": (lambda es: es.tell_errors(np.zeros((4, 4))), "ask"),
    "values": (lambda es: (es.ask()(inputs(0, 4)), es.tell([0] * 4)), "tell_errors"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_gets_a_sentence_and_changes_nothing(what: str):
    es, (call, sentence) = trainer(dense()), WRONG[what]
    before = es.signature
    with pytest.raises(InputError, match=sentence):
        call(es)
    assert (es.step, es.signature) == (0, before)
    es.learn(inputs(0, 4), [0, 1, 2, -1])


def test_estimators_that_perturb_say_what_to_use():
    es = trainer(dense(), estimator="token-credit", rule="whitened")
    for call in (lambda: es.learn(inputs(0, 4), [0] * 4), lambda: es.tell_errors([0])):
        with pytest.raises(InputError, match='estimator="feedback"'):
            call()
    with pytest.raises(InputError, match="fitness"):
        trainer(dense(), fitness="ranks")
    with pytest.raises(InputError, match="pop is 4"):
        trainer(net_of_outputs(), carry=True).learn(
            **shown(net_of_outputs(), 0, 3, 2), errors={"class": np.zeros((3, 2, 4))}
        )


def test_a_folder_keeps_the_updates(tmp_path: Path):
    with trainer(dense(), out=tmp_path / "run") as es:
        run(es, 3)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert '"loss"' in lines[0]
    assert Trainer.load(tmp_path / "run").step == 3


@pytest.mark.parametrize("native", [True, False])
def test_losses_add_up_beyond_64_bits(native: bool, monkeypatch: pytest.MonkeyPatch):
    """2^48 of each of 2^17 rows."""
    net = Program()
    net.sums(net.input(2), "worth", 1)
    es = Trainer(net, pop=2, estimator="feedback", rule="adam")
    if not native:
        monkeypatch.setattr(learning, "native_module", lambda: None)
    targets = np.full((1 << 17, 1), 1 << 24)
    update = es.learn(np.zeros((1 << 17, 2), np.int8), targets, loss="squared")
    assert update.loss == 2.0**48
