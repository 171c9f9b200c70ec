"""Whole runs with token credit: the same bits however they are computed, stopped and cut."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from conftest import TINY, Command

from eggroll import _extension
from eggroll.evolution.population import Population
from eggroll.files import CHECKPOINT
from eggroll.training import checkpoint
from eggroll.training.config import RECIPES

WAYS = {
    "token-votes": ["--estimator", "token-votes"],
    "token-credit": ["--estimator", "token-credit", "--sigma-shift", "2", "--rule", "whitened"],
}
WAYS["1/256 bit"] = [*WAYS["token-credit"], "--score-bits", "8"]  # as recipe language has it
WAYS["groups"] = [*WAYS["1/256 bit"], "--estimator", "group-credit", "--group-size", "4"]
# Of the runs TINY and WAYS describe, on every machine and engine. Change only with the algorithm.
SIGNATURES = {
    "token-votes": "91c3b58fb422491641070ea9779c1e6b686a90b5b135847b034d1996f169a3c3",
    "token-credit": "92a63e1c457f88558a03067ec3b93592f770f1e7010f64831c1f1fa35e3015f1",
    "groups": "51044dc8870c0a3e413f63b48c25fd539ea1a1b5b9061ff197ba96809c978c1a",
    "1/256 bit": "69e374153dbb0ff736fc1a8d31b51fcba8760fdc88f86681e84bf2750dba30df",
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--chunk", 2],
        ["--chunk", 6],
        ["--threads", 1],
        ["--threads", 3],
        ["--block_tokens", 3],
        ["--engine", "portable"],
    ],
    ids=str,
)
def test_how_it_is_computed_changes_no_bit(
    call: Command, tmp_path: Path, way: str, words: list[object]
):
    ended = call(*TINY, *WAYS[way], *words, "--out", tmp_path / "run")
    assert ended.signature == SIGNATURES[way]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("isa", _extension.load().usable_isas())
def test_no_instruction_set_changes_a_bit(
    call: Command, tmp_path: Path, way: str, isa: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    ended = call(*TINY, *WAYS[way], "--out", tmp_path / "run")
    assert ended.signature == SIGNATURES[way]
    assert f"cpu ({isa}, " in ended.out


@pytest.fixture
def stop_in(monkeypatch: pytest.MonkeyPatch):
    """Makes a signal arrive in the middle of the update of that index."""
    real = Population.credit

    def stop(step: int) -> None:
        def credit(self: Population, weights, epoch: int, *rest):
            if epoch == step:
                signal.raise_signal(signal.SIGINT)
            return real(self, weights, epoch, *rest)

        monkeypatch.setattr(Population, "credit", credit)

    return stop


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("step", [0, 2, 4])
def test_stopped_and_resumed_is_the_same_run(
    call: Command, tmp_path: Path, text: Path, stop_in, way: str, step: int
):
    words = [*TINY, *WAYS[way], "--data", text, "--layers", 2, "--checkpoint-every", 0]
    whole = call(*words, "--out", tmp_path / "whole")
    stop_in(step)
    ended = call(*words, "--out", tmp_path / "run")
    assert ended.code == 130
    assert f"after update {step + 1} of 6" in ended.err
    stop_in(-1)
    other = ["--engine", "portable", "--chunk", 10] if step == 2 else []
    assert call("--resume", tmp_path / "run", *other).signature == whole.signature
    one, two = (checkpoint.load(tmp_path / folder / CHECKPOINT) for folder in ("whole", "run"))
    assert one.state.tolist() == two.state.tolist()


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("sigma_shift", [0, 24])
def test_every_sigma_shift_is_exact(call: Command, tmp_path: Path, way: str, sigma_shift: int):
    words = [*TINY, *WAYS[way], "--sigma-shift", sigma_shift, "--steps", 2]
    one = call(*words, "--out", tmp_path / "cpu").signature
    two = call(*words, "--engine", "portable", "--out", tmp_path / "portable").signature
    assert one == two


BAD = {
    "--estimator token-credit --rank 2": "--rank",
    "--estimator token-votes --rank 3": "--rank",
    "--estimator token-credit --no-clt": "--no-clt",
    "--estimator token-credit --rule master": "--rule master",
    "--estimator token-credit --discount 16": "--discount",
    "--recipe language --rule master": "--rule master",
    "--recipe language --config config.json": "--config",
    "--recipe language --resume run": "--resume",
    "--recipe text --data count": "--recipe feedback",
    "--recipe evolution --data count": "--recipe language",
}


@pytest.mark.parametrize("words", BAD)
def test_what_does_not_go_together_is_refused(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    monkeypatch.chdir(tmp_path)
    ended = call(*TINY, *words.split(), "--out", "new")
    assert ended.code == 2
    assert BAD[words] in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def settings(folder: Path) -> dict[str, object]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.usefixtures("no_curves")
def test_a_recipe_is_its_settings(call: Command, tmp_path: Path):
    """Those named beside it win; a resumed run keeps them all."""
    run, spelled, recipe = tmp_path / "run", tmp_path / "spelled", RECIPES["language"]
    first = call(*TINY, "--recipe", "language", "--out", run)
    kept = settings(run)
    for name, value in recipe.items():
        given = {"pop": 32, "steps": 6, "seq_len": 8}.get(name, value)
        assert kept[name] == given, name
    assert kept["recipe"] == "language"
    assert "recipe: language but for " in first.out
    words = [w for n in ("estimator", "score_bits", "rule", "sigma_shift")
             for w in (f"--{n.replace('_', '-')}", recipe[n])]  # fmt: skip
    assert call(*TINY, *words, "--out", spelled).signature == first.signature
    assert call("--resume", run, "--steps", 7).signature != first.signature
    later = settings(run)
    assert {**later, "steps": 6, "about": 0} == {**kept, "about": 0}


@pytest.mark.usefixtures("no_curves")
def test_the_paper_recipe_is_the_default(call: Command, tmp_path: Path):
    plain = call(*TINY, "--out", tmp_path / "plain").signature
    named = call(*TINY, "--recipe", "paper", "--out", tmp_path / "paper").signature
    assert plain == named
