"""Input that means harm or comes from a broken machine: a sentence, or the right result."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY, Command, Ended

from eggroll import generate, plot, replay
from eggroll.data import text as corpora
from eggroll.files import CHECKPOINT, CONFIG, METRICS
from eggroll.sweep import command as sweep
from eggroll.training import checkpoint
from eggroll.training import folder as runlog

DIGITS = "9" * 5000  # more than Python makes a number of


def sentence(ended: Ended) -> str:
    """The refusal, one short line."""
    assert ended.code == 2, ended
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert len(ended.err) <= 510
    return ended.err


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "deep"
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)  # pytest would call itself as well


def test_a_tree_deeper_than_python_calls_is_read(deep: Path):
    """1,050 folders in one another, with a circle of links; the deepest file counts."""
    deep.mkdir()
    names = [f"{i:03x}"[-2:] for i in range(1050)]
    folder = os.open(deep, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=folder)
        inside = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inside
    os.symlink("loop", "loop", dir_fd=folder)
    os.symlink("..", "up", dir_fd=folder)
    with os.fdopen(os.open("deep.txt", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "w") as file:
        file.writelines(f"line {i} of the deepest file\n\n" for i in range(1000))
    os.close(folder)
    text = corpora.read_path(str(deep))
    assert text.about["files"] == 1
    assert text.about["skipped"]["unreadable"] == 1  # the link to itself


def test_a_folder_met_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As of a mount within itself: the folder of a file has the identity of its root."""
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (inside / "t.txt").write_text("some text\n\n" * 3000)
    real, root = os.stat, os.stat(tmp_path)
    monkeypatch.setattr(os, "stat", lambda p, **k: root if str(p) == str(inside) else real(p, **k))
    assert corpora._text_files(str(tmp_path))[0] == []


@pytest.mark.parametrize("name", ["config.json", "checkpoint.safetensors", "metrics.jsonl"])
def test_a_pipe_is_not_waited_for(call: Command, tmp_path: Path, finished: Path, name: str):
    for file in finished.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    where = tmp_path / name
    calls = {
        "config.json": lambda: [
            call("--config", where), call(tmp_path, "--out", tmp_path / "p.png", main=plot.main)
        ],
        "checkpoint.safetensors": lambda: [
            call("--resume", tmp_path), call(tmp_path, main=generate.main)
        ],
        "metrics.jsonl": lambda: [call(tmp_path, "--out", tmp_path / "p.png", main=plot.main)],
    }  # fmt: skip
    found: list[Ended] = []
    waiting = threading.Thread(target=lambda: found.extend(calls[name]()), daemon=True)
    waiting.start()
    waiting.join(20)
    alive = waiting.is_alive()
    with contextlib.suppress(OSError):  # lets it go, if it waits
        os.close(os.open(where, os.O_WRONLY | os.O_NONBLOCK))
    assert not alive
    assert found
    assert all("no regular file" in sentence(ended) for ended in found)


@pytest.mark.parametrize(
    "text",
    [
        "true", "[1, 2", "NaN", DIGITS, "[" * 100_000, '{"steps": ' + DIGITS + "}",
        '{"steps": 1e999}', '{"alpha": NaN}', '{"rule": ["sign"]}', '{"pop": true}',
        '{"seed": null}', '{"data": "a\\u0000b"}',
        '{"' + "a b " * 2000 + '": 1}', '{"rule": "' + "x" * 9000 + '"}',
        '{"data": "' + "x" * 9000 + '"}', '{"out": "a\\u0000b"}', '{"data": "\\ud800"}',
        '{"out": "' + "y/" * 4000 + '"}', '{"engine": "' + "q" * 9000 + '"}',
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_options_that_are_none(call: Command, tmp_path: Path, text: str):
    path = tmp_path / "config.json"
    path.write_text(text)
    words = [word for word in TINY if word not in ("--data", "count")]
    sentence(call("--config", path, *words))
    assert os.listdir(tmp_path) == ["config.json"]


def test_true_is_no_whole_number(call: Command, tmp_path: Path):
    for name in ("pop", "steps", "seed", "seq_len"):
        (tmp_path / "config.json").write_text(json.dumps({name: True}))
        said = sentence(call("--config", tmp_path / "config.json"))
        assert f"'{name}' is true, but a whole number is needed" in said


@pytest.mark.parametrize("word", [DIGITS, "-1", "16", "٣" * 5000, "1.5"])
def test_a_prompt_of_numbers_that_are_none(call: Command, finished: Path, word: str):
    said = sentence(call(finished, "--prompt", f"1 {word}", main=generate.main))
    assert "numbers from 0 to 15 are needed" in said


LONG = "long " * 2000
HOSTILE = [
    (generate.main, [LONG]),
    (generate.main, ["a" * 9000]),
    (replay.main, ["a" * 9000]),
    (replay.main, ["a" * 200, "--out", LONG]),
    (plot.main, [LONG]),
    (sweep.main, ["--search", LONG]),
    (sweep.main, ["--storage", "a" * 9000]),
    (None, ["--data", LONG]),
    (None, ["--data", "a" * 9000]),
    (None, ["--engine", LONG]),
    (None, ["--resume", LONG]),
    (None, ["--out", "/" + "a/" * 3000]),
    (None, ["--steps", DIGITS]),
    (None, ["--count-steps", DIGITS]),
    (None, ["--rule", LONG]),
    (None, ["--" + "z" * 9000]),
    (None, ["z" * 9000]),
]


@pytest.mark.parametrize(
    ("main", "words"), HOSTILE, ids=lambda v: v.__module__ if callable(v) else str(v)[:30]
)
def test_a_long_value_is_not_repeated_whole(call: Command, tmp_path: Path, main, words):
    ended = call(*words, main=main) if main else call(*TINY, *words)
    said = sentence(ended)
    assert said.endswith((".\n", "?\n"))


def test_a_sentence_keeps_both_ends():
    from eggroll.errors import InputError

    usual = "a" * 240 + " is usual: take another."
    assert str(InputError(usual)) == usual
    cut = str(InputError(f"x is {'a' * 999}: take another."))
    assert cut.startswith("x is aaa")
    assert cut.endswith("aaa: take another.")
    assert len(cut) < 300


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("step", [0.0, -1.0])
def test_a_clock_that_stands_or_goes_back(call: Command, tmp_path: Path, monkeypatch, step: float):
    now = [1e6]

    def clock() -> float:
        now[0] += step
        return now[0]

    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr("time.time", clock)
    ended = call(*TINY, "--out", tmp_path / "run")
    assert ended.signature
    assert "-" not in ended.err.replace(" - ", "")
    for _, row in runlog.read_lines(tmp_path / "run" / METRICS):
        assert row["seconds"] == 0
        assert row["tokens_per_second"] == 0
    assert call("--resume", tmp_path / "run", "--steps", 8).signature


def test_a_clock_that_stands_in_a_trainer(monkeypatch):
    import numpy as np

    import eggroll as eg

    net = eg.Program()
    net.output(net.linear(net.input(2), "w", 1))
    es = eg.Trainer(net, pop=4, table_bits=16)
    monkeypatch.setattr("time.perf_counter", lambda: 5.0)
    members = es.ask()
    members(np.ones((4, 1, 2), np.int8))
    update = es.tell(np.arange(4))
    assert (update.seconds, update.rows_per_second) == (0, 0)


COMMANDS = ["train", "generate", "replay", "plot", "report", "adamw", "sweep", "bench", "probe"]
INTERRUPTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["eggroll", *{words!r}]
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["eggroll", *(f"eggroll.{name}" for name in COMMANDS)])
def test_an_interrupt_while_modules_are_imported(module: str):
    """It ends in a word and code 130, wherever in the imports it comes."""
    words = ["train", "--help"] if module == "eggroll" else ["--help"]
    for name in ("numpy", "tyro", "mlx.core"):
        code = INTERRUPTING.format(name=name, words=words, module=module)
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 130, (name, ended.stderr)
        assert ended.stderr == "Interrupted.\n", name
        assert ended.stdout == ""


def test_lines_of_metrics_that_are_none(call: Command, tmp_path: Path, finished: Path):
    for file in finished.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    hostile = ["[" * 100_000, DIGITS, '{"step": ' + DIGITS + "}", '{"step": true}', "null"]
    with (tmp_path / METRICS).open("a") as file:
        file.write("\n".join(hostile) + "\n")
    assert len(runlog.read_lines(tmp_path / METRICS)) == 6
    assert call("--resume", tmp_path, "--steps", 7).signature
    assert checkpoint.load(tmp_path / CHECKPOINT).step == 7
    lines = (tmp_path / METRICS).read_text().splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    damaged = "".join([*lines[:3], lines[3][:-9] + "\n", *lines[4:]])
    (tmp_path / METRICS).write_text(damaged)
    config = (tmp_path / CONFIG).read_bytes()
    for ended in (call("--resume", tmp_path, "--steps", 8), call(tmp_path, main=plot.main)):
        assert ended.code == 2
        assert f"Line 4 of '{tmp_path / METRICS}' is damaged" in ended.err
    assert (tmp_path / METRICS).read_text() == damaged
    assert (tmp_path / CONFIG).read_bytes() == config
    # Behind the checkpoint nothing is read: those updates are made again.
    torn = "".join([*lines, "{\n", lines[6].replace('"step": 7', '"step": 8')])
    (tmp_path / METRICS).write_text(torn)
    assert call("--resume", tmp_path, "--steps", 8).signature
    assert [row["step"] for _, row in runlog.read_lines(tmp_path / METRICS)] == [*range(1, 9)]
