"""A sweep tries what is declared, as words narrow it, and refuses other words in one sentence."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import optuna
import pytest
from conftest import Command
from optuna.trial import FixedTrial
from sweeps import QUICK

from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.errors import InputError
from eggroll.sweep import command, space
from eggroll.sweep import plan as options
from eggroll.sweep.study import redacted
from eggroll.training.config import Config, Sweep

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_every_declared_axis_lies_in_what_the_option_allows():
    found = space.axes(Config)
    assert {"sigma_shift", "alpha", "learning_rate", "rule", "width", "clt"} <= found.keys()
    for axis in found.values():
        assert axis.choices or axis.low < axis.high
        values = axis.choices or (axis.low, axis.high)
        assert not axis.log or axis.low > 0
        assert all(axis.allowed is None or value in axis.allowed for value in values)
        assert axis.contains(getattr(Config(), axis.name))
        if axis.when:
            parent, *needed = axis.when
            assert set(needed) <= set(found[str(parent)].choices)
    assert found["rule"].choices == ("sign", "master", "whitened", "adam")
    assert found["clt"].choices == (False, True)
    assert "seed" not in found
    assert "data" not in found


@dataclass(frozen=True)
class Mixture:
    depth: Annotated[int, Sweep(1, 3, when=("kind", "b"))] = 2
    kind: Annotated[Literal["a", "b", "c"], Sweep(when=("on", True))] = "a"
    on: Annotated[bool, Sweep()] = False
    even: Annotated[int, Range(2, 10, 2), Sweep(2, 6)] = 2
    fixed: int = 0


def test_a_marker_is_all_an_option_needs():
    assert list(space.axes(Mixture)) == ["depth", "kind", "on", "even"]
    found = space.choose_axes(["depth", "kind", "even", "on"], Mixture())
    assert [axis.name for axis in found] == ["even", "on", "kind", "depth"]
    for given, expected in [
        ({"on": False, "even": 4}, {"on": False, "even": 4}),
        ({"on": True, "even": 4, "kind": "c"}, {"on": True, "even": 4, "kind": "c"}),
        ({"on": True, "even": 2, "kind": "b", "depth": 3},) * 2,
    ]:
        assert (
            space.suggest(FixedTrial(given | {"kind": "b"} | given), found, Mixture()) == expected
        )
    drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    values = {space.suggest(drawn.ask(), found, Mixture())["even"] for _ in range(50)}
    assert values == {2, 4, 6}


@pytest.mark.parametrize(
    ("word", "axis"),
    [
        ("alpha=1:8", "alpha=1:8"),
        ("--alpha=0.5:8:log", "alpha=0.5:8:log"),
        ("sigma-shift=2:5", "sigma_shift=2:5"),
        ("rule=sign", "rule=sign"),
        ("clt=true", "clt=true"),
        ("width=16,48", "width=16,48"),
        ("seq_len=8:16:log", "seq_len=8:16:log"),
        ("gates", "gates=clip,table"),
    ],
)
def test_words_narrow_an_axis(word: str, axis: str):
    assert [str(found) for found in space.choose_axes([word], Config())] == [axis]


def test_an_unknown_axis_raises_in_code_too():
    with pytest.raises(InputError, match="did you mean rank"):
        space.choose_axes(["rnk"], Config())


BAD = [
    ("--search steps=1,2", "'steps=1,2' is no option that can be swept|there are seq_len"),
    ("--search alpa", "'alpa' is no option that can be swept|did you mean alpha?"),
    ("--search seed=1:4", "'seed=1:4' is no option that can be swept|alpha_decay"),
    ("--search", "--search is empty"),
    ("--search alpha alpha=1:2", "names alpha twice"),
    ("--search alpha=5:1", "alpha=5:1: 5 is not below 1"),
    ("--search alpha=nan:1", "nan is out of range"),
    ("--search alpha=0.5:99", "99 is out of range; give a number above 0 and up to 64"),
    ("--search alpha=1:2:lin", "that is no range; write alpha=LOW:HIGH"),
    ("--search alpha=1:x", "'x' is no value of it"),
    ("--search sigma_shift=0:4:log", "a logarithm needs a number above 0"),
    ("--search sigma_shift=1.5:4", "'1.5' is no value of it"),
    ("--search group_size=3,4", "3 is out of range; give an even number"),
    ("--search group_size=2:8:log", "even numbers have no :log; list them"),
    ("--search width=16,16", "a value comes twice"),
    ("--search rule=sign,adagrad", "'adagrad' is no value of it; write rule=sign,master"),
    ("--search rule=a:b", "that is no range"),
    ("--search learning_rate", "has no effect with rule=sign: it needs --rule master"),
    ("--search alpha rule=master", "alpha has no effect with rule=master"),
    ("--pop 7", "--pop is 7|try --pop 8"),
    ("--data absent.txt", "'absent.txt'"),
    ("--engine tpu", "'tpu' is unknown"),
    ("--trials 0", "--trials is 0|try --trials 1"),
    ("--budget 0", "--budget is 0.0"),
    ("--budget nan", "--budget is nan"),
    ("--budget-tokens -1", "--budget-tokens is -1|try --budget-tokens 0"),
    ("--budget-tokens 999", "--budget 0.1 and --budget-tokens 999 are both given|leave the other"),
    ("--confirm -1", "--confirm is -1"),
    ("--confirm-seeds 0", "--confirm-seeds is 0|try --confirm-seeds 1"),
    ("--workers 0", "--workers is 0"),
    ("--pruner never", "one of median, hyperband, none"),
    ("--steps 5", "--steps is no option of eggroll.sweep, as a trial makes"),
    ("--resume=x", "--resume is no option of eggroll.sweep, as the same command goes on"),
    ("--trails 5", "did you mean --trials?"),
    ("--config absent.json", "'absent.json' cannot be read"),
    ("--json absent/all.json", "'absent/all.json' is no place for a file"),
    ("--json -", "'-' is no place for a file"),
    ("--storage what", "'what' names no storage: give sqlite:///FILE"),
    ("--storage redis://host", "'redis://host' names no database: give sqlite:///FILE"),
    ("--storage sqlite:////absent/a.db", "'sqlite:////absent/a.db' cannot be used (unable to open"),
    ("--storage absent/a.log", "'absent/a.log' cannot be used"),
    ("--storage postgresql+absent://me:secret@host/x", "'postgresql+absent://me@host/x' names"),
]


@pytest.mark.parametrize(("words", "says"), BAD)
def test_bad_input(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, says: str
):
    monkeypatch.chdir(tmp_path)
    ended = call(*QUICK, *words.split(), main=command.main)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert "secret" not in ended.err
    for part in says.split("|"):
        assert part in ended.err
    assert not list(tmp_path.iterdir())


def test_a_missing_driver_is_named(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    url = "postgresql+psycopg2://me:secret@host/x"
    ended = call(*QUICK, "--out", tmp_path, "--storage", url, main=command.main)
    assert ended.code == 2
    assert "needs the driver 'psycopg2', which is not installed" in ended.err
    assert "secret" not in ended.err


def test_passwords_are_redacted():
    assert redacted("postgresql://me:se:cr@et@host/x") == "postgresql://me@host/x"
    assert redacted("postgresql://host/x") == "postgresql://host/x"
    assert redacted("dir/study.db") == "dir/study.db"


def test_help_names_every_option(call: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    ended = call("--help", main=command.main)
    assert ended.code == 0
    for name in options.SweepOptions.__dataclass_fields__:
        shown = re.search(rf"^. {cli.flag(name)}[ ,]", ended.out, re.M) is not None
        assert shown == (name not in ("steps", "resume", "track"))
    assert "a free runs/" not in ended.out


def test_the_package_has_what_it_names():
    package = importlib.import_module("eggroll.sweep")
    assert (package.Options, package.search) == (options.SweepOptions, command.search)
    with pytest.raises(AttributeError, match=r"'eggroll\.sweep' has no attribute 'other'"):
        _ = package.other


def test_a_sweep_has_failed_where_no_trial_made_an_update():
    study, given = optuna.create_study(), SimpleNamespace(budget_tokens=0)
    refused = {command.REFUSED: "no time."}
    study.add_trial(optuna.trial.create_trial(value=8.0, user_attrs=refused))
    says = r"none of the 1 trials .* \(trial 0: no time\): give a larger --budget,"
    with pytest.raises(InputError, match=says):
        command.check_trained(study, given)
    study.add_trial(optuna.trial.create_trial(value=7.0))
    command.check_trained(study, given)
