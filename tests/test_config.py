"""Recipes are applied in one place, for the command line and for Python, and seen by everybody."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import TINY, Command

from eggroll.baseline.backprop import AdamwOptions
from eggroll.errors import InputError
from eggroll.sweep.plan import SweepOptions
from eggroll.training import config as options
from eggroll.training import loop as training
from eggroll.training.config import RECIPES, Common, Config

LANGUAGE = RECIPES["language"]


@pytest.mark.parametrize("kind", [Config, SweepOptions])
def test_a_recipe_lies_under_what_is_given(kind: type[Config]):
    plain = kind(recipe="language")
    assert {name: getattr(plain, name) for name in LANGUAGE} == LANGUAGE
    given = kind(recipe="language", pop=Config.pop)  # also where that is the paper's value
    assert (given.pop, given.rule) == (Config.pop, LANGUAGE["rule"])
    assert given.changed() == {"pop": Config.pop}


def test_a_recipe_in_json_lies_under_the_rest():
    found = options.from_dict({"recipe": "language", "pop": 64}, "here")
    assert found == Config(recipe="language", pop=64)


def test_a_name_put_on_other_settings_does_not_lie():
    """replace() gives every option, so the recipe's are not taken: what a run says tells so."""
    renamed = replace(Config(), recipe="language")
    assert renamed.changed().keys() == LANGUAGE.keys()


def test_python_trains_the_recipe_that_it_names(tmp_path: Path, call: Command):
    small = {"data": "count", "pop": 32, "steps": 2, "seq_len": 8, "width": 8, "table_bits": 16,
             "sample_tokens": 0}  # fmt: skip
    words = [w for k, v in small.items() for w in (f"--{k.replace('_', '-')}", v)]
    spoken = call("--recipe", "language", *words, "--out", tmp_path / "a")
    written = training.train(Config(recipe="language", **small, out=str(tmp_path / "b")))
    paper = training.train(Config(**small, out=str(tmp_path / "c")))
    assert spoken.signature == written.signature != paper.signature


@pytest.mark.usefixtures("no_curves")
def test_a_run_says_its_recipe(tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    said = call(*TINY, "--recipe", "language")
    assert "recipe: language but for" in said.out
    (folder,) = Path("runs").iterdir()
    assert folder.name.endswith("-language-000")
    assert json.loads((folder / "config.json").read_text())["recipe"] == "language"


@pytest.mark.usefixtures("no_curves")
def test_a_run_says_what_has_no_effect(tmp_path: Path, call: Command):
    """Options of another rule or estimator; not those that a recipe brings or that are read."""
    words = "--alpha", "0.2", "--rate-decay", "3", "--discount", "0"
    said = call(*TINY, "--rule", "whitened", *words, "--out", tmp_path / "a").out
    assert (
        "without effect: --alpha, --discount, --rate-decay (not read by --rule whitened and "
        "--estimator eggroll)"
    ) in said
    master = "--rule", "master", "--rate-decay", "3", "--estimator", "token-credit"
    said = call(*TINY, *master, "--discount", "0", "--out", tmp_path / "b").out
    assert "without effect" not in said
    said = call(*TINY, "--recipe", "language", "--rule", "sign", "--out", tmp_path / "c").out
    assert "without effect" not in said


def test_help_shows_the_defaults_of_the_recipe_named(call: Command):
    plain, named = (
        re.sub(r"[│\s]+", " ", call(*words, "--help").out)
        for words in ((), ("--recipe", "language"))
    )
    assert f"[{Config.pop}]" in plain
    assert f"[{LANGUAGE['pop']}]" in named


@pytest.mark.parametrize("name", ["recipe", "rule", "estimator", "network", "gates"])
def test_unknown_names_are_refused_in_python_too(name: str):
    with pytest.raises(InputError, match=f"--{name} is 'adagrad': one of .* is needed"):
        Config(**{name: "adagrad"}).check()


def test_options_of_all_runs_are_declared_once():
    common = Common.__annotations__.keys()
    assert len(common) > 15
    for kind in (Config, AdamwOptions):
        assert not common & kind.__annotations__.keys()


def test_a_command_line_without_options_is_one_of_defaults():
    """As of `make train`, which gives none."""
    assert training.options_from([]) == Config()


def test_a_rule_that_is_no_more_is_named_with_what_took_its_place():
    with pytest.raises(InputError, match="here is of an older version and has the rule rows, wh"):
        options.from_dict({"rule": "rows"}, "here")


def test_options_of_older_versions_are_read_by_their_new_names():
    found = options.from_dict({"sample_bytes": 7, "slab": 64}, "here")
    assert found == Config(sample_tokens=7, block_tokens=64)


def test_a_file_gives_options_in_python_too(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"width": 16, "data": "count", "pop": 64}))
    made = Config(config=str(file), steps=3)
    assert (made.width, made.data, made.pop, made.steps) == (16, "count", 64, 3)
    assert Config(config=str(file), pop=32).pop == 32
    for wrong, says in ((str(tmp_path / "none.json"), "cannot be read"), (3, "^3 is no path")):
        with pytest.raises(InputError, match=says):
            Config(config=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_sentence_is_one_whatever_the_screen_can_show(encoding: str):
    ended = subprocess.run(
        [sys.executable, "-m", "eggroll.train", "--rule", "foo"], capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert ended.returncode == 2
    words = "error: --rule: 'foo' is given, but one of sign, master, whitened, adam is needed; "
    assert ended.stderr.decode() == words + "see --help.\n"
