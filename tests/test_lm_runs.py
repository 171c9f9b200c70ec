"""Fine-tunes as runs: adapters that mlx-lm loads, replay, resume, kills, the command, rewards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import lm_models
import mlx.core as mx
import numpy as np
import pytest
from ended import Ended
from lm_models import Letters, tiny
from test_ranks_processes import started

from eggroll import InputError
from eggroll.__main__ import main as all_commands
from eggroll.files import CHECKPOINT, CONFIG, METRICS, REPLAY
from eggroll.lm import Trainer, record, rewards
from eggroll.lm.command import read_rows, reward_of
from eggroll.lm.rewards import score
from eggroll.ranks import Ranks
from eggroll.training.replay_log import CHECK, header_of, records

Command = Callable[..., Ended]
SMALL: dict[str, Any] = {"sigma": 0.1, "pop": 8, "table_bits": 16, "steps": 6}
PROMPTS = ["abc", "hello there"]


def worth(answer: str) -> float:
    """A number that differs for almost all answers."""
    return sum(map(ord, answer)) % 101


def make_updates(es: Trainer, until: int) -> Trainer:
    while es.step < until:
        answers = es.ask().generate(PROMPTS, tokens=6, temperature=0.5)
        es.tell([[worth(answer) for answer in row] for row in answers])
    return es


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """Models in mlx-lm's format."""
    folder = tmp_path_factory.mktemp("models")
    names = [("llama", 32), ("qwen3", 4), ("gemma", 16), ("llama", 8)]
    return {(f, b): lm_models.save(folder / f"{f}-{b}", f, b) for f, b in names}


@pytest.mark.parametrize(
    ("name", "learn"),
    [
        (("llama", 32), "adapter:4"), (("qwen3", 4), "adapter:3"), (("gemma", 16), "adapter:2"),
        (("llama", 8), "biases"), (("gemma", 16), "dense"),
    ],
)  # fmt: skip
def test_mlx_lm_loads_the_adapter_with_the_same_results(
    saved: dict[tuple[str, int], Path], tmp_path: Path, name: Any, learn: str
) -> None:
    from mlx_lm import load

    es = make_updates(Trainer(str(saved[name]), learn=learn, **SMALL), 3)
    es.save_adapter(tmp_path / "adapter")
    model, _ = load(str(saved[name]), adapter_path=str(tmp_path / "adapter"))
    plain, _ = load(str(saved[name]))
    ids = mx.array([[5, 9, 33, 2, 7, 11]])
    with es.layers.members(None, 1):
        own = np.asarray(es.model(ids).astype(mx.float32))
    assert (np.asarray(model(ids).astype(mx.float32)) == own).all()
    assert (np.asarray(plain(ids).astype(mx.float32)) != own).any()
    with pytest.raises(InputError, match="not an empty folder"):
        es.save_adapter(tmp_path / "adapter")


def test_a_model_that_cannot_be_loaded_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mlx-lm cannot load the model"):
        Trainer(tmp_path)


def test_a_missing_mlx_lm_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    with pytest.raises(InputError, match=r"pip install 'eggroll-mlx\[lm\]'"):
        Trainer("somewhere")


# Replay and resume.


@pytest.mark.parametrize("fitness", ["sign", "z-scores", "ranks"])
@pytest.mark.parametrize("rule", ["master", "adam"])
def test_replay_equals_the_run(tmp_path: Path, fitness: Any, rule: Any) -> None:
    options = SMALL | {"fitness": fitness, "rule": rule, "decay": 0.01}
    model = tiny("llama", 4)
    with Trainer((model, Letters()), out=tmp_path / "run", **options) as es:
        make_updates(es, 6)
        es.save_adapter(tmp_path / "own")
    facts, learner = record.replayed(tmp_path / "run")
    assert learner.step == 6
    assert record.signature(learner) == es.signature
    assert all(np.asarray(learner.weights[leaf.name]).any() for leaf in facts.leaves)
    record.write_adapter(tmp_path / "again", facts, learner)
    for name in ("adapters.safetensors", "adapter_config.json"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    _, half = record.replayed(tmp_path / "run", 3)
    assert half.step == 3
    with pytest.raises(InputError, match="ends with update 6"):
        record.replayed(tmp_path / "run", 7)


@pytest.mark.parametrize("fitness", ["sign", "z-scores", "ranks"])
def test_an_update_takes_twenty_bytes_of_the_log(tmp_path: Path, fitness: Any) -> None:
    options: Any = {"sigma": 0.1, "pop": 64, "table_bits": 16, "steps": 8, "fitness": fitness}
    with Trainer((tiny(), Letters()), out=tmp_path / "run", **options) as es:
        make_updates(es, 8)
    path = tmp_path / "run" / REPLAY
    with open(path, "rb") as file:
        header = header_of(file, path)
        found = [abs(one.signs).max() for one in records(file, header)]
    assert len(found) == 8
    assert max(found) == 1 if fitness == "sign" else max(found) > 5
    assert path.stat().st_size - header.size <= 8 * 20


def test_another_total_is_in_the_log(tmp_path: Path) -> None:
    """A rate that falls over the updates planned: the replay takes those of each stretch."""
    with Trainer((tiny(), Letters()), out=tmp_path / "run", **SMALL) as es:
        make_updates(es, 3)
    for steps, until in ((9, 5), (300, 8)):
        with Trainer.load(tmp_path / "run", (tiny(), Letters()), steps=steps) as es:
            make_updates(es, until)
    _, learner = record.replayed(tmp_path / "run")
    assert learner.step == 8
    assert record.signature(learner) == es.signature
    path = tmp_path / "run" / REPLAY
    with open(path, "rb") as file:
        planned = [one.steps for one in records(file, header_of(file, path))]
    assert planned == [6] * 3 + [9] * 2 + [300] * 3


@pytest.mark.parametrize("learn", ["adapter:4", "dense", "biases"])
def test_resumed_runs_end_on_the_same_bits(tmp_path: Path, learn: str) -> None:
    bits = 4 if learn == "biases" else 32
    whole = make_updates(Trainer((tiny("llama", bits), Letters()), learn=learn, **SMALL), 6)
    model = tiny("llama", bits)
    with Trainer((model, Letters()), learn=learn, out=tmp_path / "run", **SMALL) as es:
        make_updates(es, 3)
    with Trainer.load(tmp_path / "run", (tiny("llama", bits), Letters()), chunk=2) as es:
        assert es.step == 3
        make_updates(es, 6)
    assert es.signature == whole.signature
    assert es.sigma_scale == whole.sigma_scale
    rows = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert record.signature(record.replayed(tmp_path / "run")[1]) == es.signature


def test_the_first_checkpoint_has_the_notes(tmp_path: Path) -> None:
    with Trainer((tiny(), Letters()), out=tmp_path / "run", notes={"a": 1}, **SMALL):
        assert record.read(tmp_path / "run" / CHECKPOINT).notes == {"a": 1}


def test_a_raised_sigma_stays(tmp_path: Path) -> None:
    options = SMALL | {"sigma": 1e-6}
    with Trainer((tiny(), Letters()), out=tmp_path / "run", **options) as es:
        while es.step < 6:
            es.ask().generate(PROMPTS, tokens=1)
            es.tell(np.zeros(8))
    other = Trainer.load(tmp_path / "run", (tiny(), Letters()))
    assert other.sigma_scale == es.sigma_scale == 2
    other.close()


def test_what_cannot_go_on_is_named(tmp_path: Path) -> None:
    with Trainer((tiny(), Letters()), out=tmp_path / "run", **SMALL) as es:
        make_updates(es, 1)
        with pytest.raises(InputError, match="in use"):
            Trainer.load(tmp_path / "run", (tiny(), Letters()))
    with pytest.raises(InputError, match="another model"):
        Trainer.load(tmp_path / "run", (tiny("llama", seed=1), Letters()))
    for name in ("model.embed_tokens", "model.layers.0.mlp.up_proj", "model.norm"):
        model = tiny()
        module = dict(model.named_modules())[name]
        module.weight[1] += 2.0**-10
        with pytest.raises(InputError, match="another model"):
            Trainer.load(tmp_path / "run", (model, Letters()))
    with pytest.raises(InputError, match="model in memory"):
        Trainer.load(tmp_path / "run")
    with pytest.raises(InputError, match="sigma belongs to the training"):
        Trainer.load(tmp_path / "run", (tiny(), Letters()), sigma=1.0)
    with pytest.raises(InputError, match="holds a run"):
        Trainer((tiny(), Letters()), out=tmp_path / "run", **SMALL)
    with pytest.raises(InputError, match="is closed"):
        es.ask()
    data = bytearray((tmp_path / "run" / CHECKPOINT).read_bytes())
    data[-5] ^= 1
    (tmp_path / "run" / CHECKPOINT).write_bytes(data)
    with pytest.raises(InputError, match="checksum"):
        Trainer.load(tmp_path / "run", (tiny(), Letters()))
    log = bytearray((tmp_path / "run" / REPLAY).read_bytes())
    log[-CHECK.size] ^= 1
    (tmp_path / "run" / REPLAY).write_bytes(log)
    assert record.replayed(tmp_path / "run")[1].step == 0


@pytest.fixture
def plain_signals() -> Iterator[None]:
    """Signals as a process begins with, whatever a library that other tests load made of them."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, usual[number] if handler is None else handler)


@pytest.mark.usefixtures("plain_signals")
def test_an_interrupt_leaves_a_checkpoint(tmp_path: Path) -> None:
    es = Trainer((tiny(), Letters()), out=tmp_path / "run", checkpoint_every=0, **SMALL)

    def interrupted() -> None:
        with es:
            make_updates(es, 2)
            es.ask()
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    assert "Update 2 is saved" in caught.value.__notes__[0]
    assert Trainer.load(tmp_path / "run", (tiny(), Letters())).step == 2


# The command.


@pytest.fixture
def task(tmp_path: Path, saved: dict[tuple[str, int], Path]) -> list[str]:
    """The words of a small run."""
    data = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"say {i}", "answer": str(i)} for i in range(20)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(
        "import time\ndef slow(prompt, answer):\n    time.sleep(0.005)\n"
        "    return sum(map(ord, answer)) % 101\n"
        "def good(prompt, answer):\n    return sum(map(ord, answer)) % 101\n"
        "def fails(prompt, answer, row):\n    return {}[row['answer']]\n"
        "def nan(prompt, answer):\n    return float('nan')\n"
        "def hangs(prompt, answer):\n    time.sleep(60)\n"
    )
    return [
        *("--model", str(saved["llama", 32]), "--data", str(data), "--pop", "8"),
        *("--reward", f"{tmp_path / 'mine.py'}:good", "--prompts", "2", "--tokens", "6"),
        *("--steps", "6", "--rows", "4", "--judge-every", "2", "--table-bits", "16"),
        *("--out", str(tmp_path / "run"), "--checkpoint-every", "1"),
    ]


@pytest.fixture
def eggroll(call: Command) -> Command:
    """Runs a command of eggroll in this process."""
    return partial(call, main=all_commands)


def changed(words: list[str], name: str, value: str) -> list[str]:
    at = words.index(name)
    return [*words[: at + 1], value, *words[at + 2 :]]


def test_the_command_tunes_and_its_run_is_replayed(
    task: list[str], tmp_path: Path, eggroll: Command, saved: dict[tuple[str, int], Path]
) -> None:
    ended = eggroll("finetune", *task)
    assert ended.code == 0, ended.err
    run = tmp_path / "run"
    assert {p.name for p in run.iterdir()} == {
        "adapter", "checkpoint.safetensors", "config.json", METRICS, REPLAY, "samples.txt",
    }  # fmt: skip
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    assert [row["step"] for row in rows if "held_out" in row] == [2, 4, 6]
    assert "--- before: " in (run / "samples.txt").read_text()
    replayed = eggroll("replay", str(run), "--adapter", str(tmp_path / "again"))
    assert replayed.code == 0, replayed.err
    assert "equal to the deltas in the checkpoint of update 6" in replayed.out
    assert replayed.out.splitlines()[-1] == ended.out.splitlines()[-1]
    for name in ("adapters.safetensors", "adapter_config.json"):
        assert (run / "adapter" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_killed_run_goes_on_to_the_same_end(
    task: list[str], tmp_path: Path, eggroll: Command
) -> None:
    task = changed(task, "--reward", f"{tmp_path / 'mine.py'}:slow")
    whole = eggroll("finetune", *task)
    assert whole.code == 0, whole.err
    for kind in (signal.SIGKILL, signal.SIGTERM):
        words = changed(task, "--out", str(tmp_path / kind.name))
        process = subprocess.Popen(
            [sys.executable, "-m", "eggroll", "finetune", *words],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        path, until = tmp_path / kind.name / METRICS, time.monotonic() + 60
        while not (path.exists() and path.read_bytes().count(b"\n") >= 2):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, kind)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if kind == signal.SIGKILL else 130)
        assert kind == signal.SIGKILL or "--resume" in err
        ended = eggroll("finetune", "--resume", str(tmp_path / kind.name))
        assert ended.code == 0, ended.err
        assert ended.out.splitlines()[-1] == whole.out.splitlines()[-1]


def as_ranks(count: int, words: list[str]) -> AbstractContextManager[subprocess.Popen[str]]:
    """eggroll finetune on so many ranks of this machine."""
    return started(count, words, program=(sys.executable, "-m", "eggroll", "finetune"))


def without_times(path: Path) -> list[dict[str, Any]]:
    """Lines of metrics, but for what depends on the clock."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    clocks = ("seconds", "rows_per_second", "seconds_total")
    return [{k: v for k, v in row.items() if k not in clocks} for row in rows]


def test_ranks_end_on_the_bits_of_one_process(
    task: list[str], tmp_path: Path, eggroll: Command
) -> None:
    one = eggroll("finetune", *task)
    assert one.code == 0, one.err
    with as_ranks(3, changed(task, "--out", str(tmp_path / "three"))) as launcher:
        out, err = launcher.communicate(timeout=120)
    assert out.splitlines()[-1] == one.out.splitlines()[-1], err
    assert out.count("signature: ") == 1
    assert (tmp_path / "run" / REPLAY).read_bytes() == (tmp_path / "three" / REPLAY).read_bytes()
    assert without_times(tmp_path / "run" / METRICS) == without_times(tmp_path / "three" / METRICS)


def test_stopped_ranks_go_on_as_one_process(
    task: list[str], tmp_path: Path, eggroll: Command
) -> None:
    task = [*changed(task, "--reward", f"{tmp_path / 'mine.py'}:slow"), "--fitness", "sign"]
    whole = eggroll("finetune", *task)
    path, until = tmp_path / "two" / METRICS, time.monotonic() + 60
    with as_ranks(2, changed(task, "--out", str(tmp_path / "two"))) as launcher:
        while not (path.exists() and path.read_bytes().count(b"\n") >= 2):
            assert time.monotonic() < until
            assert launcher.poll() is None
            time.sleep(0.02)
        os.kill(launcher.pid, signal.SIGTERM)
        _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, err
    assert f"go on with eggroll finetune --resume {tmp_path / 'two'}" in err
    assert len(path.read_text().splitlines()) < 6
    ended = eggroll("finetune", "--resume", str(tmp_path / "two"))
    assert ended.out.splitlines()[-1] == whole.out.splitlines()[-1], ended.err


def test_a_reward_that_fails_on_one_rank_ends_all(task: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import os\ndef good(prompt, answer):\n    return 1 / (os.environ['MLX_RANK'] == '0')\n"
    )
    with as_ranks(2, task) as launcher:
        _, err = launcher.communicate(timeout=120)
    assert launcher.returncode == 2
    assert err.count("ZeroDivisionError") == 1
    assert "rank 1" in err
    assert "Traceback" not in err


def test_more_ranks_than_pairs_are_refused(saved: dict[tuple[str, int], Path]) -> None:
    class Five(Ranks):
        size = 5

    with pytest.raises(InputError, match="5 ranks are too many for the 4 pairs of pop 8: give"):
        Trainer(saved["llama", 32], ranks=Five(), **SMALL)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("fails", 'raised "KeyError: '),
        ("nan", "gave nan"),
        ("hangs", "more than 0.2 seconds"),
    ],
)
def test_rewards_that_misbehave_are_named(
    task: list[str], tmp_path: Path, eggroll: Command, function: str, sentence: str
) -> None:
    words = changed(task, "--reward", f"{tmp_path / 'mine.py'}:{function}")
    ended = eggroll("finetune", *words, "--reward-seconds", "0.2")
    assert ended.code == 2
    assert sentence in ended.err
    assert "for prompt 'say " in ended.err


def test_a_reward_that_fails_later_loses_nothing(
    task: list[str], tmp_path: Path, eggroll: Command
) -> None:
    """The judge fails at update 4: four updates are kept, and a repaired reward goes on."""
    mine = tmp_path / "mine.py"
    sound = mine.read_text()
    mine.write_text(
        sound + "calls = 0\ndef good(prompt, answer):\n    global calls\n    calls += 1\n"
        f"    assert calls <= {4 + 2 * 16 + 4 + 2 * 16}\n    return len(answer)\n"
    )
    ended = eggroll("finetune", *task)
    assert ended.code == 2
    assert "raised" in ended.err
    assert len((tmp_path / "run" / METRICS).read_text().splitlines()) == 4
    mine.write_text(sound + "def good(prompt, answer):\n    return len(answer)\n")
    ended = eggroll("finetune", "--resume", str(tmp_path / "run"))
    assert ended.code == 0, ended.err
    assert record.replayed(tmp_path / "run")[1].step == 6


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("--reward", "nothing", "is no FILE.py:FUNCTION"),
        ("--reward", "mine.py:missing", "is no FILE.py:FUNCTION"),
        ("--data", "none.jsonl", "cannot be read"),
        ("--rows", "40", "the data have 20 prompts"),
        ("--model", "/nowhere", "mlx-lm cannot load"),
        ("--pop", "7", "an even number"),
    ],
)
def test_bad_words_are_sentences(
    task: list[str], eggroll: Command, name: str, value: str, sentence: str
) -> None:
    ended = eggroll("finetune", *changed(task, name, value))
    assert ended.code == 2
    assert sentence in ended.err


def test_options_of_a_run_stay(task: list[str], tmp_path: Path, eggroll: Command) -> None:
    assert eggroll("finetune", *task).code == 0
    run = tmp_path / "run"
    config = (run / CONFIG).read_bytes()
    for words, sentence in (
        (("--sigma", "0.5"), "--sigma is 0.5, but the run in"),
        (("--steps", "5"), "give the new total, 6 or more"),
        (("--out", str(tmp_path / "other")), "is not the folder of --resume"),
    ):
        ended = eggroll("finetune", "--resume", str(run), *words)
        assert ended.code == 2
        assert sentence in ended.err
    assert (run / CONFIG).read_bytes() == config
    ended = eggroll("finetune", "--resume", str(run), "--steps", "8")
    assert ended.code == 0, ended.err
    assert record.replayed(run)[1].step == 8
    assert eggroll("replay", str(run), "--adapter", str(tmp_path / "of8")).code == 0
    for name in ("adapters.safetensors", "adapter_config.json"):  # no longer that of update 6
        assert (run / "adapter" / name).read_bytes() == (tmp_path / "of8" / name).read_bytes()
    ended = eggroll("finetune", *task)
    assert (ended.code, f"--resume {run}, or give another --out" in ended.err) == (2, True)
    ended = eggroll("finetune", "--resume", str(tmp_path))
    assert (ended.code, "begin a new run with --out" in ended.err) == (2, True)


@pytest.mark.parametrize("name", ["prompts.jsonl", "mine.py"])
def test_a_changed_file_is_refused(
    task: list[str], tmp_path: Path, eggroll: Command, name: str
) -> None:
    assert eggroll("finetune", *changed(task, "--steps", "1")).code == 0
    resume = ("finetune", "--resume", str(tmp_path / "run"), "--steps", "2")
    path = tmp_path / name
    before = path.read_bytes()
    path.write_bytes(before.replace(b"say", b"tell").replace(b"101", b"99"))
    ended = eggroll(*resume)
    assert ended.code == 2
    assert f"'{path}' has changed since the run in" in ended.err
    path.write_bytes(before)
    assert eggroll(*resume).code == 0


@pytest.mark.parametrize(
    ("name", "given"), [("prompts.jsonl", "--data {}"), ("mine.py", "--reward {}:good")]
)
def test_files_that_moved_are_given_anew(
    task: list[str], tmp_path: Path, eggroll: Command, name: str, given: str
) -> None:
    assert eggroll("finetune", *changed(task, "--steps", "1")).code == 0
    moved = (tmp_path / name).rename(tmp_path / f"moved_{name}")
    words = given.format(moved).split()
    resume = ("finetune", "--resume", str(tmp_path / "run"), "--steps")
    for steps in ("2", "3"):  # the second finds them by the run's own options
        ended = eggroll(*resume, steps, *words * (steps == "2"))
        assert ended.code == 0, ended.err
    assert record.replayed(tmp_path / "run")[1].step == 3
    moved.rename(tmp_path / "again.py")
    (tmp_path / "again.py").write_bytes(b" " + (tmp_path / "again.py").read_bytes())
    again = given.format(tmp_path / "again.py").split()
    ended = eggroll(*resume, "4", *again)
    assert (ended.code, "has changed since the run in" in ended.err) == (2, True)


def test_another_function_of_a_reward_that_moved_is_refused(
    task: list[str], tmp_path: Path, eggroll: Command
) -> None:
    assert eggroll("finetune", *changed(task, "--steps", "1")).code == 0
    moved = (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    ended = eggroll("finetune", "--resume", str(tmp_path / "run"), "--reward", f"{moved}:slow")
    assert (ended.code, "mine.py:good: leave --reward out" in ended.err) == (2, True)


def test_a_model_that_moved_is_given_anew(
    task: list[str], tmp_path: Path, saved: dict[tuple[str, int], Path], eggroll: Command
) -> None:
    here = tmp_path / "here"
    shutil.copytree(saved["llama", 32], here)
    words = changed(changed(task, "--model", str(here)), "--steps", "1")
    assert eggroll("finetune", *words).code == 0
    resume = ("finetune", "--resume", str(tmp_path / "run"), "--steps", "2")
    there = here.rename(tmp_path / "there")
    ended = eggroll(*resume)
    assert (ended.code, f"cannot load the model '{here}'" in ended.err) == (2, True)
    ended = eggroll(*resume, "--model", str(saved["llama", 8]))
    assert ended.code == 2
    assert "another model" in ended.err
    ended = eggroll(*resume, "--model", str(there))
    assert ended.code == 0, ended.err


def test_a_run_without_digests_goes_on(task: list[str], tmp_path: Path, eggroll: Command) -> None:
    assert eggroll("finetune", *changed(task, "--steps", "1")).code == 0
    with Trainer.load(tmp_path / "run") as es:
        del es.notes["digests"]
        es.save()
    (tmp_path / "mine.py").write_text("def good(prompt, answer):\n    return len(answer)\n")
    ended = eggroll("finetune", "--resume", str(tmp_path / "run"), "--steps", "2")
    assert ended.code == 0, ended.err


def test_a_run_goes_on_from_anywhere(
    task: list[str], tmp_path: Path, eggroll: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun with paths from its directory, a space in one, and resumed from another."""
    place = tmp_path / "a place"
    place.mkdir()
    for name in ("prompts.jsonl", "mine.py"):
        (tmp_path / name).rename(place / name)
    monkeypatch.chdir(place)
    Path("model").symlink_to(task[task.index("--model") + 1])
    given = {"--model": "model", "--data": "prompts.jsonl", "--reward": "mine.py:good"}
    for name, value in (given | {"--out": "run", "--steps": "1"}).items():
        task = changed(task, name, value)
    ended = eggroll("finetune", *task)
    assert ended.code == 0, ended.err
    assert f"--model '{place / 'model'}' --adapter-path " in ended.out
    words = [word for pair in given.items() for word in pair]
    ended = eggroll("finetune", "--resume", "run", "--steps", "2", *words)
    assert ended.code == 0, ended.err
    monkeypatch.chdir(tmp_path)
    ended = eggroll("finetune", "--resume", str(place / "run"), "--steps", "3")
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("calls", [0, 4])
def test_a_run_that_failed_at_once_goes_on(
    task: list[str], tmp_path: Path, eggroll: Command, calls: int
) -> None:
    """The reward raises for the first held-out prompt, or in the first update."""
    whole = eggroll("finetune", *changed(task, "--out", str(tmp_path / "whole")))
    mine = tmp_path / "mine.py"
    sound = mine.read_text()
    mine.write_text(
        f"left = {calls}\ndef good(prompt, answer):\n    global left\n    left -= 1\n"
        "    assert left >= 0\n    return 0.0\n"
    )
    assert "AssertionError" in eggroll("finetune", *task).err
    mine.write_text(sound)
    ended = eggroll("finetune", "--resume", str(tmp_path / "run"))
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == whole.out.splitlines()[-1]


@pytest.mark.parametrize(("reward", "field"), [("countdown", "numbers"), ("exact", "answer")])
def test_a_field_that_rows_lack_is_named(
    task: list[str], tmp_path: Path, eggroll: Command, reward: str, field: str
) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "abc", "target": 3}\n' * 20)
    ended = eggroll("finetune", *changed(task, "--reward", reward))
    assert ended.code == 2
    assert f"has no field '{field}', which the reward needs" in ended.err
    assert "raised" not in ended.err
    row = {"prompt": "abc", "target": 3, "numbers": [1, 2], "answer": "3"}
    data.write_text(f"{json.dumps(row)}\n" * 20)
    ended = eggroll("finetune", "--resume", str(tmp_path / "run"))
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("more", [(), ("--sweep", "2")])
@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": ""}, "has no tokens"),
        ({"prompt": "a\ud800"}, "cannot be given to the model"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "chat_template"),
        ({"messages": [{"role": "user"}]}, 'or "messages", objects with "role" and "content"'),
        ({"messages": "hello"}, 'or "messages", objects with "role" and "content"'),
        ({"messages": [1, 2]}, 'or "messages", objects with "role" and "content"'),
    ],
)
def test_rows_that_no_model_takes_are_named_at_once(
    task: list[str],
    tmp_path: Path,
    eggroll: Command,
    row: dict[str, Any],
    sentence: str,
    more: tuple[str, ...],
) -> None:
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    ended = eggroll("finetune", *task, *more)
    assert ended.code == 2
    assert sentence in ended.err
    assert f"{row}"[:20] in ended.err or "line 21 of" in ended.err
    assert not (tmp_path / "run").exists()


def test_a_prompt_has_no_more_tokens_than_the_model_has_positions(
    task: list[str], tmp_path: Path, eggroll: Command, saved: dict[tuple[str, int], Path]
) -> None:
    model = shutil.copytree(saved["llama", 32], tmp_path / "model")
    facts = json.loads((model / "config.json").read_text())
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "a" * 33}) + "\n")
    for more, code in (
        ({"max_position_embeddings": 32}, 2),
        ({"max_position_embeddings": 33}, 0),
        ({"max_position_embeddings": 32, "rope_scaling": {"type": "linear", "factor": 2.0}}, 0),
    ):
        (model / "config.json").write_text(json.dumps(facts | more))
        out = str(tmp_path / f"run-{code}-{len(more)}")
        ended = eggroll("finetune", *changed(changed(task, "--model", str(model)), "--out", out),
                        *("--steps", "1"))  # fmt: skip
        assert ended.code == code, ended.err
        assert Path(out).exists() == (code == 0)
        said = "aaa' has 33 tokens, and the model has 32 positions: give 32 tokens or fewer."
        assert (said in ended.err) == (code == 2)


def test_lines_end_where_json_says(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    texts = ["one\u2028two", "three\u0085four"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [row["prompt"] for row in read_rows(str(path))] == texts


def test_a_reward_may_use_dataclasses_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_reward.py").write_text("WORTH = 3\n")
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from beside_the_reward import WORTH\n@dataclass\nclass Worth:\n    value: float\n"
        "def reward(prompt, answer):\n    return Worth(WORTH).value\n"
    )
    assert reward_of(f"{tmp_path / 'mine.py'}:reward")("", "") == 3


# Rewards.


def test_a_reward_that_leaves_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nsys.exit()\n")
    with pytest.raises(InputError, match="SystemExit"):
        reward_of(f"{tmp_path / 'mine.py'}:reward")
    with pytest.raises(InputError, match="the reward raised 'SystemExit: 3' for prompt 'p'"):
        score(lambda prompt, answer: sys.exit(3), "p", "a", {}, 0)


def test_a_reward_cannot_change_its_row() -> None:
    row = {"numbers": [1, 2, 3]}
    for _ in range(2):
        assert score(lambda prompt, answer, row: row["numbers"].pop(), "p", "a", row, 0) == 3
    assert row == {"numbers": [1, 2, 3]}


@pytest.mark.parametrize("value", ["3", b"3", 1e101, -1e300, float("inf"), None, [1]])
def test_what_is_no_reward_is_named(value: Any) -> None:
    with pytest.raises(InputError, match=r"the reward gave .* for prompt 'p' and answer 'a'"):
        score(lambda prompt, answer: value, "p", "a", {}, 0)


def test_ready_rewards() -> None:
    row = {"answer": "42", "target": 10, "numbers": [2, 3, 4]}
    cases = [
        (rewards.exact(), " 42\n", 1), (rewards.exact(), "421", 0),
        (rewards.contains(), "it is 42.", 1), (rewards.contains(), "it is 421", 0),
        (rewards.matches(r"[a-z]+"), "word", 1), (rewards.matches(r"[a-z]+"), "two words", 0),
        (rewards.valid_json(), '{"a": [1, 2]}', 1), (rewards.valid_json(), "{'a': 1}", 0),
        (rewards.valid_python(), "x = 1", 1), (rewards.valid_python(), "x =", 0),
        (rewards.valid_python(), "Here:\n```python\nf(2)\n```\nDone.", 1),
        (rewards.valid_python(), "", 0), (rewards.valid_json(), "[" * 100000, 0),
        (rewards.length(2, 4), "a b c", 1), (rewards.length(2, 4), "a b c d e f", 0.5),
        (rewards.length(1, 3, words=False), "", 0),
        (rewards.countdown(), "2 * 3 + 4", 1), (rewards.countdown(), "so\n(2*3)+4 = 10", 1),
        (rewards.countdown(), "2 + 3", 0.1), (rewards.countdown(), "5 + 5", 0),
        (rewards.countdown(), "2 * 2 + 3 + 3", 0), (rewards.countdown(), "2 / 0", 0),
        (rewards.countdown(), "__import__('os').getpid()", 0), (rewards.countdown(), "", 0),
        (rewards.countdown(), "2 ** 3", 0), (rewards.classified(len), "abc", 3),
        (rewards.weighted((1, rewards.exact()), (0.5, rewards.length(1, 1))), "42", 1.5),
        (rewards.weighted((2, lambda prompt, answer: len(answer))), "abc", 6),
        (rewards.contains(), "it is -42", 0), (rewards.contains(), "it is 42.5", 0),
        (rewards.contains(), "1.42", 0), (rewards.contains(), "$42, or", 1),
        (rewards.valid_json(), "NaN", 0), (rewards.valid_json(), '{"a": -Infinity}', 0),
        (rewards.valid_python(), "```Python3\nf(2)\n```", 1),
    ]  # fmt: skip
    for reward, answer, value in cases:
        assert reward("", answer, row) == pytest.approx(value), answer
    between = {"target": 2.5, "numbers": [5, 2]}
    assert [rewards.countdown()("", text, between) for text in ("5 / 2", "2")] == [1, 0.1]


def test_schemas() -> None:
    schema = {
        "type": "object", "required": ["name"], "additionalProperties": False,
        "properties": {
            "name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
            "count": {"type": "integer"},
        },
    }  # fmt: skip
    fits = rewards.valid_json(schema)
    for text, value in (
        ('{"name": "x", "tags": ["a"], "count": 2}', 1), ('{"tags": []}', 0.2), ("[]", 0.2),
        ('{"name": 3}', 0.2), ('{"name": "x", "more": 1}', 0.2), ("{", 0),
        ('{"name": "x", "tags": ["c"]}', 0.2), ('{"name": "x", "count": true}', 0.2),
    ):  # fmt: skip
        assert fits("", text, {}) == value, text
    with pytest.raises(InputError, match="'pattern', which is not checked"):
        rewards.valid_json({"type": "string", "pattern": "a"})
    for wrong, sentence in (
        ({"type": ["string", "null"]}, "the schema has type"),
        ({"enum": 5}, "the schema has enum 5: an array"),
        ({"required": 5}, "the schema has required 5: an array"),
        ({"properties": [1]}, r"the schema has properties \[1\]: an object"),
        ({"additionalProperties": {}}, "the schema has additionalProperties"),
    ):
        with pytest.raises(InputError, match=sentence):
            rewards.valid_json(wrong)
    with pytest.raises(InputError, match="no regular expression"):
        rewards.matches("(")


def test_a_reward_cannot_swallow_its_time_limit() -> None:
    def stubborn(prompt: str, answer: str) -> float:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                time.sleep(0.01)
        return 0.0

    began = time.monotonic()
    with pytest.raises(InputError, match=r"more than 0\.1 seconds for prompt 'p' and answer 'a'"):
        score(stubborn, "p", "a", {}, 0.1)
    assert time.monotonic() - began < 2
    backtracking = "a" * 40 + "!"
    with pytest.raises(InputError, match=r"more than 0\.1 seconds"):
        score(rewards.matches("(a+)+"), "p", backtracking, {}, 0.1)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_stalled_runs_warn() -> None:
    es = Trainer((tiny(), Letters()), **(SMALL | {"raise_sigma": False}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            es.ask().generate(["a"], tokens=1)
            es.tell(np.zeros(8))
    assert "in 10 updates fewer than 1% of the pairs differed" in str(caught[-1].message)
