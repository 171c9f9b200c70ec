"""Runs that go wrong on purpose say so, once and with the option to change; sound ones do not."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Command

import eggroll
from eggroll.files import STATISTICS
from eggroll.spec.program import Program
from eggroll.training.config import Config
from eggroll.training.statistics import TroubleWatch, option_for

EACH = ["--statistics-every", 10, "--validate-every", 0, "--checkpoint-every", 0]
# Options -> what is said of the run.
WRONG: dict[str, tuple[list[object], list[str]]] = {
    "everything moves": (
        ["--alpha", 1, "--steps", 70],
        ["100% of the weights move in every update", "a smaller --alpha (now 1)."],
    ),
    "everything moves far": (
        ["--rule", "master", "--learning-rate", 64, "--rate-decay", 0, "--steps", 70],
        ["of the weights move in every update", "a smaller --learning-rate (now 64)."],
    ),
    "nothing moves": (
        ["--alpha", 1e-9, "--steps", 80],
        ["hardly a weight moves (0 of them in an update)", "a larger --alpha (now 1e-09)."],
    ),
    "gates": (
        ["--estimator", "feedback", "--rule", "adam", "--learning-rate", 64, "--steps", 100],
        ["of the values of gate layer0.bf are at their limits", "a smaller --learning-rate"],
    ),
}
SOUND: list[list[object]] = [
    ["--pop", 512, "--width", 32, "--steps", 120],
    ["--estimator", "feedback", "--rule", "adam", "--pop", 64, "--steps", 150],
    ["--estimator", "token-credit", "--rule", "whitened", "--pop", 256, "--steps", 100],
]


def warnings_in(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / STATISTICS).read_text().splitlines()
    return [line for line in map(json.loads, lines) if "warning" in line]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("how", WRONG)
def test_a_run_that_goes_wrong_says_so_once(call: Command, tmp_path: Path, how: str):
    words, said = WRONG[how]
    ended = call(*TINY, *EACH, *words, "--out", tmp_path / "run")
    assert ended.code == 0
    (line,) = warnings_in(tmp_path / "run")
    assert 60 <= line["step"] <= 80
    assert all(part in line["warning"] for part in said)
    assert ended.err.count("warning: ") == 1
    assert f"warning: {line['warning']}\n" in ended.err


@pytest.mark.usefixtures("no_curves")
def test_what_was_said_is_not_said_again(call: Command, tmp_path: Path):
    run = tmp_path / "run"
    assert "warning" in call(*TINY, *EACH, "--alpha", 1, "--steps", 60, "--out", run).err
    before = warnings_in(run)
    assert "warning" not in call("--resume", run, "--steps", 130).err
    assert warnings_in(run) == before


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("words", SOUND, ids=["paper", "feedback", "language"])
@pytest.mark.parametrize("data", ["count", "text"])
def test_a_sound_run_is_not_warned_of(
    call: Command, tmp_path: Path, text: Path, data: str, words: list[object]
):
    given = (*TINY, *EACH, *words, "--data", data if data == "count" else text)
    ended = call(*given, "--out", tmp_path / "run")
    assert ended.code == 0
    assert "warning" not in ended.err
    assert warnings_in(tmp_path / "run") == []


def plain() -> Program:
    """Without norms, whose noise is never quite nil."""
    net = Program(16, 16)
    net.embed("embedding")
    x, _ = net.stage()
    net.score(net.linear(x, "w", 16), "head")
    return net


def rectified() -> Program:
    net = Program(16, 16)
    net.embed("embedding")
    x, _ = net.stage()
    net.score(net.relu(net.bias(net.linear(x, "w", 32), "b")), "head")
    return net


@pytest.mark.parametrize(
    ("net", "options", "said"),
    [
        (
            plain(),
            {"estimator": "token-credit", "sigma_shift": 24, "score_bits": 4},
            ["100.0% of the pairs tie", "--sigma-shift (now 24), or --score-bits 8."],
        ),
        (
            rectified(),
            {"estimator": "feedback", "rule": "adam", "learning_rate": 64.0},
            ["of the units of stage1.relu give the same value at every token", "--learning-rate"],
        ),
    ],
    ids=["ties", "dead units"],
)
@pytest.mark.usefixtures("no_curves")
def test_a_program_is_warned_in_its_own_way(
    tmp_path: Path, net: Program, options: dict[str, Any], said: list[str]
):
    tokens = np.random.default_rng(0).integers(1, 16, 5000)
    config = Config(
        pop=32, seq_len=8, steps=90, statistics_every=10, table_bits=16, val_tokens=256,
        validate_every=0, sample_tokens=0, checkpoint_every=0, **options,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eggroll.train(config, tokens=tokens, network=net, out=tmp_path / "run")
    found = [line["warning"] for line in warnings_in(tmp_path / "run")]
    assert [str(each.message) for each in caught] == found
    (sentence,) = [sentence for sentence in found if said[0] in sentence]
    assert said[1] in sentence


@pytest.mark.usefixtures("no_curves")
def test_votes_at_their_noise(call: Command, tmp_path: Path):
    """Nothing to learn, and weights that move by chance."""
    data = tmp_path / "random"
    data.write_bytes(np.random.default_rng(0).integers(1, 256, 50000).astype(np.uint8).tobytes())
    words = ["--data", data, "--pop", 128, "--alpha", 0.7, "--steps", 540]
    call(*TINY, *EACH, *words, "--statistics-every", 20, "--out", tmp_path / "run")
    (line,) = warnings_in(tmp_path / "run")
    assert "votes are as large as chance makes them" in line["warning"]
    assert "the loss has not fallen in 400 updates" in line["warning"]
    assert "a larger --pop (now 128)" in line["warning"]


def record(step: int, **figures: Any) -> dict[str, Any]:
    return {"step": step, **figures}


def test_a_sign_must_last():
    watch = TroubleWatch(Config())
    watch.loss(4.0)
    found = [watch.troubles(record(step, tied=0.99)) for step in (10, 50)]
    assert found == [[], []]
    watch.troubles(record(59, tied=0.1))  # and begins anew
    assert watch.troubles(record(60, tied=0.99)) == []
    assert watch.troubles(record(109, tied=0.99)) == []
    (sentence,) = watch.troubles(record(110, tied=0.99))
    assert sentence.startswith("updates 60 to 110: 99.0% of the pairs tie")
    assert watch.troubles(record(200, tied=0.99)) == []


def test_what_has_learnt_all_may_tie_and_rest():
    watch = TroubleWatch(Config())
    watch.loss(0.01)
    still = {"w": {"update_rate": 0.0, "weights": [7]}}
    for step in range(50, 500, 50):
        assert watch.troubles(record(step, tied=1.0, leaves=still)) == []


def test_a_schedule_begins_with_all_weights_and_ends_with_none():
    moved = {"w": {"update_rate": 0.95, "weights": [7]}}
    watch = TroubleWatch(Config())
    assert not any(watch.troubles(record(s, leaves=moved)) for s in range(50, 500, 50))
    watch = TroubleWatch(Config(alpha=0.9))
    assert [len(watch.troubles(record(s, leaves=moved))) for s in (50, 100, 150)] == [0, 1, 0]
    watch, most = TroubleWatch(Config(alpha=0.9)), {"w": {"update_rate": 0.8, "weights": [1]}}
    assert not any(watch.troubles(record(s, leaves=most)) for s in range(50, 500, 50))
    watch, rests = TroubleWatch(Config(steps=1000)), {"w": {"update_rate": 0.0, "weights": [7]}}
    assert not any(watch.troubles(record(s, leaves=rests)) for s in range(810, 1010, 50))


def test_the_option_to_change_is_one_that_the_rule_reads():
    assert "larger --alpha (now 4, a schedule)" in option_for(Config(), more=False)
    assert "smaller --alpha (now 4, a schedule)" in option_for(Config(), more=True)
    assert option_for(Config(alpha=0.5), more=False) == "a smaller --alpha (now 0.5)"
    assert option_for(Config(alpha=0.5), more=True) == "a larger --alpha (now 0.5)"
    assert option_for(Config(rule="whitened"), more=False) == "a smaller --learning-rate (now 1.5)"
    assert option_for(Config(rule="whitened"), more=True) == "a larger --learning-rate (now 1.5)"
