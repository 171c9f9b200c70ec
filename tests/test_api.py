"""The library trains, loads and samples as the commands do, bit for bit."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from conftest import TINY, Command
from test_train import SIGNATURE, TIMES, metrics

import eggroll as eg
from eggroll import generate
from eggroll.data.corpus import token_corpus
from eggroll.files import CHECKPOINT, FILES, SAMPLES, Row
from eggroll.training import checkpoint
from eggroll.training import config as options
from eggroll.training import loop as training
from eggroll.training.run import validation_batches

CONFIG = training.options_from(TINY)  # the run whose bits test_train knows


def timeless(history: list[Row]) -> list[Row]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in history]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model(finished: Path) -> eg.LanguageModel:
    return eg.load(finished)


def test_training_is_the_commands_and_writes_nothing(folder: Path, finished: Path, capfd):
    made = eg.train(CONFIG)
    assert made.signature == made.model.signature == SIGNATURE
    assert timeless(made.history) == metrics(finished)
    assert (made.step, made.folder, made.config) == (6, None, CONFIG)
    assert made.val_loss == made.history[-1]["val_loss"]
    assert SIGNATURE in repr(made)
    assert "loss" not in repr(made)
    assert list(folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_training_writes_what_the_command_writes(folder: Path, finished: Path, capfd):
    made = eg.train(CONFIG, out=folder / "run")
    assert made.folder == folder / "run"
    assert {path.name for path in made.folder.iterdir()} == set(FILES)
    assert capfd.readouterr() == ("", "")
    mine, theirs = (
        checkpoint.read(path / CHECKPOINT, checkpoint.FORMAT) for path in (made.folder, finished)
    )
    assert mine[0] == theirs[0]
    assert {k: v.tobytes() for k, v in mine[1].items()} == {
        k: v.tobytes() for k, v in theirs[1].items()
    }
    samples = made.folder / SAMPLES
    assert samples.read_bytes() == (finished / SAMPLES).read_bytes()
    loaded = [eg.load(made.folder), eg.load(str(made.folder / CHECKPOINT))]
    for model in (made.model, *loaded):
        assert model.weights.keys() == made.weights.keys()
        assert all(np.array_equal(model.weights[k], v) for k, v in made.weights.items())
        assert {leaf.dtype for leaf in model.weights.values()} == {np.dtype(np.int8)}
        assert (model.step, model.signature) == (6, SIGNATURE)
    assert options.check_resumed(loaded[0].config, made.config) is None


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_models_and_results_are_copied(way: Callable[[Any], Any]):
    made = eg.train(replace(CONFIG, steps=2))
    made.model.logits("1 2")  # has the weights in the engine's layout
    again = way(made)
    assert (again.signature, again.config, again.history) == (
        made.signature, made.config, made.history,
    )  # fmt: skip
    for text in ("1 2 3", "4 4 4 4 4"):
        assert again.model.logits(text).tobytes() == made.model.logits(text).tobytes()
    assert again.model.sample("1", tokens=5) == made.model.sample("1", tokens=5)


def test_what_is_shown_is_what_the_command_shows(folder: Path, capsys, no_curves: None):
    eg.train(CONFIG, show=True)
    shown = capsys.readouterr()
    assert shown.out.startswith("engine: ")
    assert "run: not written, updates 0 to 6" in shown.out
    assert "validation: " in shown.out
    assert "update 6/6" in shown.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_callback_stops_the_run_and_it_goes_on(folder: Path, no_curves: None, answer):
    seen: list[int] = []
    stops = [lambda row: seen.append(row["step"]), lambda row: answer if row["step"] == 3 else None]
    made = eg.train(CONFIG, callbacks=stops, out=folder / "run")
    assert (seen, made.step, len(made.history)) == ([1, 2, 3], 3, 3)
    assert checkpoint.load(folder / "run" / CHECKPOINT).step == 3
    assert not (folder / "run" / SAMPLES).exists()
    ended = eg.train(replace(CONFIG, resume=str(folder / "run")), callbacks=stops[0])
    assert (seen, ended.signature) == ([1, 2, 3, 4, 5, 6], SIGNATURE)
    assert [row["step"] for row in ended.history] == seen


def test_options_left_out_are_those_of_the_run(folder: Path, no_curves: None):
    eg.train(CONFIG, callbacks=lambda row: row["step"] == 3, out=folder / "run")
    run = str(folder / "run")
    assert eg.train(eg.Config(resume=run)).signature == SIGNATURE
    longer = eg.Config(resume=run, steps=7)
    assert replace(longer, resume="", steps=6, out="") == replace(CONFIG, recipe=longer.recipe)
    assert eg.train(longer).step == 7
    with pytest.raises(eg.InputError, match=r"rank is 2, but the run in .* has 1: leave rank out"):
        eg.train(eg.Config(resume=run, rank=2))
    with pytest.raises(eg.InputError, match="'absent' cannot be used"):
        eg.train(eg.Config(resume="absent"))


def test_a_program_left_out_is_that_of_the_run(folder: Path, no_curves: None):
    tokens, run = np.arange(9000) % 7, folder / "run"
    net = eg.networks.egg(16, 8, 1)
    eg.train(eg.Config(pop=16, steps=1), tokens=tokens, network=net, out=run)
    assert eg.train(eg.Config(resume=str(run), steps=2), tokens=tokens).step == 2


@pytest.mark.parametrize("answer", ["yes", 1, [True], object()])
def test_no_other_answer_of_a_callback_stops_the_run(answer):
    assert eg.train(CONFIG, callbacks=lambda row: answer).signature == SIGNATURE


def press(row: Row) -> None:
    if row["step"] == 3:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_the_result(folder: Path, no_curves: None):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(eg.Interrupted, match="after update 3 of 6; nothing of it is") as stopped:
        eg.train(CONFIG, callbacks=press)
    assert isinstance(stopped.value, KeyboardInterrupt)
    assert (stopped.value.result.step, len(stopped.value.result.history)) == (3, 3)
    assert list(folder.iterdir()) == []
    with pytest.raises(eg.Interrupted, match=r"go on with: .*--resume") as written:
        eg.train(CONFIG, callbacks=press, out=folder / "run")
    assert written.value.result.signature == stopped.value.result.signature
    assert eg.load(folder / "run").signature == written.value.result.signature
    assert signal.getsignal(signal.SIGINT) is before
    assert eg.train(replace(CONFIG, resume=str(folder / "run"))).signature == SIGNATURE


def test_ctrl_c_twice_stops_at_once():
    with pytest.raises(KeyboardInterrupt, match="Stopped at once; nothing") as stopped:
        eg.train(CONFIG, callbacks=[press, press])
    assert not isinstance(stopped.value, eg.Interrupted)


def test_another_thread_than_the_main_one_may_train():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(eg.train, CONFIG).result().signature == SIGNATURE


def test_numbers_of_numpy_are_options():
    made = eg.train(replace(CONFIG, steps=np.int64(6), count_steps=[np.int32(1)], alpha=4))
    assert made.signature == SIGNATURE


def test_logits_are_the_oracles(model: eg.LanguageModel):
    tokens = np.random.default_rng(0).integers(0, 16, (3, 9), np.uint8)
    found = model.logits(tokens)
    assert (found.dtype, found.shape) == (np.int8, (3, 9, 16))
    state = np.zeros((3, 1, 16), np.int8)
    _, _, expected = oracle.evaluate(model.weights, tokens, tokens, state)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.logits(tokens[1].tolist()), found[1])


def test_loss_is_the_cross_entropy_of_the_logits(model: eg.LanguageModel):
    tokens = np.random.default_rng(1).integers(0, 16, (2, 150))
    bits = model.logits(tokens[:, :-1]).astype(np.float64) / 16
    hits = np.take_along_axis(bits, tokens[:, 1:, None], -1)[..., 0]
    expected = (np.log2(np.exp2(bits).sum(-1)) - hits).mean()
    assert model.loss(tokens) == pytest.approx(expected, rel=1e-9)  # two ways to sum floats
    assert model.loss("1 2 3") == model.loss([0, 1, 2, 3])


def test_loss_is_the_validation(folder: Path):
    ids = np.random.default_rng(2).integers(1, 7, 4000, np.int32)
    made = eg.train(replace(CONFIG, steps=1), tokens=(ids, ids[:700]))
    corpus = token_corpus((ids, ids[:700]))
    batches = list(validation_batches(corpus, made.config))
    rows = np.concatenate([batch.tokens for batch in batches] + [batches[-1][1][:, -1:]], axis=1)
    assert len(batches) == 1
    assert made.model.loss(rows) == made.val_loss


@pytest.mark.parametrize("extra", [{}, {"seed": 3, "temperature": 1.0}, {"temperature": 0.0}])
def test_samples_are_the_commands(call: Command, model: eg.LanguageModel, finished: Path, extra):
    words = [word for name, value in extra.items() for word in (f"--{name}", value)]
    command = finished, "--prompt", "1 2 3", "--tokens", 20, *words
    ended = call(*command, main=generate.main)
    assert ended.out == model.sample("1 2 3", tokens=20, **extra) + "\n"
    drawn = model.sample_tokens(np.array([1, 2, 3]), tokens=20, samples=4, **extra)
    assert (drawn.dtype, drawn.shape) == (np.int32, (4, 20))
    assert "".join(f"{v} " for v in (1, 2, 3, *drawn[0])) == ended.out[:-1]


def test_samples_of_text(call: Command, folder: Path, text: Path, no_curves: None):
    config = replace(CONFIG, data=str(text), steps=2)
    model = eg.train(config, out="run").model
    ended = call("run", "--prompt", "né", "--tokens", 30, main=generate.main)
    assert model.sample("né", tokens=30) + "\n" == ended.out
    np.testing.assert_array_equal(model.tokens("né"), [0, *"né".encode()])
    assert model.sample_tokens(tokens=3).shape == (1, 3)


def test_import_is_light_and_complete():
    code = (
        "import sys, eggroll as eg; heavy = {'mlx', 'numpy', 'tyro'} & sys.modules.keys();"
        "assert not heavy, heavy; assert set(eg.__all__) <= set(dir(eg));"
        "found = [getattr(eg, name) for name in eg.__all__];"
        "from eggroll import *; assert train is eg.train and 'eggroll.train' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert eg.networks.egg(16, 8, 1).vocabulary == 16
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = eg.trian


def test_train_stays_a_function(finished: Path):
    with pytest.raises(ImportError, match="is a function"):
        __import__("eggroll.train")
    assert callable(eg.train)
    code = "import sys; from eggroll.__main__ import main; main(['train', '--help']) "
    command = [sys.executable, "-c", code], [sys.executable, "-m", "eggroll.train", "--help"]
    pages = [subprocess.run(c, capture_output=True, text=True, check=False) for c in command]
    assert [page.returncode for page in pages] == [0, 0]
    assert pages[0].stdout == pages[1].stdout
    assert "-m eggroll.train" in pages[1].stdout


USER = """
import numpy as np
import eggroll as eg
from eggroll import native
made = eg.train(eg.Config(steps=1), tokens=np.zeros(9, np.uint16), callbacks=lambda row: None)
reveal_type(made.weights)
reveal_type(made.model.logits([1, 2]))
reveal_type(eg.load("runs/x").sample("def ", tokens=5))
reveal_type(eg.networks.egg(16, 8, 1))
eg.train(eg.Config(), callback=print)
net, n = eg.networks.mlp(3, [4], 2), np.int64(4)
es = eg.Trainer(net, pop=n, steps=n, **eg.control(sigma_shift=n, groups=n))
eg.Trainer(net, groups=n)
es.ask().weights(n)
es.keys(n, n)
es.play(native.build("world.c").world("game"), n, group=n)
es.map(lambda model, key: 0.0, processes=n)
eg.GradientTrainer(net, seed=n, threads=n).quantised(lambda model: float(callable(model.reset)))
eg.train(eg.Config(), vocabulary=n).model.sample_tokens(tokens=n, samples=n, top_k=n, seed=n)
eg.load("runs/x", threads=n).sample(tokens=n, top_k=n, seed=n)
eg.envs.gym("CartPole-v1", members=n, episodes=n, span=n)
eg.Trainer(net, estimator="group-credit")
eg.trian
"""


def test_a_users_type_checker_knows_it(tmp_path: Path):
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "user.py")]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    notes = [line.partition("user.py:")[2] for line in ended.stdout.splitlines()]
    types = [note.partition('Revealed type is "')[2][:-1] for note in notes if "Revealed" in note]
    assert len(types) == 4, ended.stdout
    assert types[0].startswith("dict[str, numpy.ndarray[")
    assert types[1].startswith("numpy.ndarray[")
    assert all("signedinteger" in kind and "8Bit" in kind for kind in types[:2])
    assert types[2:] == ["str", "eggroll.spec.program.Program"]
    errors = [note for note in notes if "error" in note]
    assert len(errors) == 3, ended.stdout
    assert 'argument "callback"' in errors[0]
    assert "Literal['group-credit']" in errors[1]
    assert '"trian"' in errors[2]


def test_a_vocabulary_of_numpy_is_one(tmp_path: Path):
    tokens = np.arange(4000, dtype=np.uint16) % 9
    found = eg.train(CONFIG, tokens=tokens, vocabulary=np.int64(9), out=tmp_path / "run")
    assert eg.load(tmp_path / "run").vocabulary == found.model.vocabulary == 9
