"""A run gives the same bits in one go or in pieces, however it was stopped and cut."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TINY, Command

from eggroll import _extension, generate
from eggroll.cli import command as cli
from eggroll.data import codings
from eggroll.evolution.population import Population
from eggroll.files import CHECKPOINT, FILES
from eggroll.inference import Decoder
from eggroll.training import checkpoint, pictures
from eggroll.training import loop as training

# Of the run TINY describes, on every machine and engine. Changes only with the algorithm.
SIGNATURE = "642b011c75ef229af8c33d96f80fbe952437516942181e66171d8d2d94c9c960"
RULES = {"sign": [], "master": ["--rule", "master", "--learning-rate", "1"]}
TIMES = ("seconds", "seconds_total", "tokens_per_second")


def metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what a clock measured."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.fixture
def stop_in(monkeypatch: pytest.MonkeyPatch):
    """Makes a signal arrive, once or twice, in the middle of the update of that index."""
    real = Population.votes

    def stop(step: int, number: signal.Signals = signal.SIGINT, times: int = 1) -> None:
        def votes(self: Population, fitness, epoch: int, **named):
            for _ in range(times * (epoch == step)):
                signal.raise_signal(number)
            return real(self, fitness, epoch, **named)

        monkeypatch.setattr(Population, "votes", votes)

    yield stop
    monkeypatch.setattr(Population, "votes", real)


def test_a_run_leaves_what_it_promises(call: Command, tmp_path: Path):
    ended = call(*TINY, "--out", tmp_path / "run")
    assert ended.signature == SIGNATURE
    assert ended.out.startswith("engine: ")
    assert {path.name for path in (tmp_path / "run").iterdir()} == set(FILES)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        needed = {"step", "loss", "update_rate", *TIMES}
        both = {"val_loss", "val_bits_per_byte"}
        validated = both if row["step"] % 2 == 0 else set()
        assert row.keys() == needed | validated
        assert row["tokens_per_second"] == pytest.approx(32 * 8 / row["seconds"], rel=0.01)
        assert 0 < row["loss"] < 16
        assert 0 <= row["update_rate"] <= 1
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    samples = (tmp_path / "run" / "samples.txt").read_text()
    assert samples.count("===") == 2 * training.DRAWN_SAMPLES
    assert "update 6/6" in ended.err


@pytest.mark.parametrize(
    "words",
    [
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
    call: Command, tmp_path: Path, no_curves: None, words: list[object]
):
    assert call(*TINY, *words, "--out", tmp_path / "run").signature == SIGNATURE


@pytest.mark.parametrize(
    "name", ["$\\frac$", "a b", *(["na\udcffme"] if sys.platform == "linux" else [])]
)
def test_a_folder_may_have_any_name(call: Command, tmp_path: Path, name: str):
    """The picture's title holds the name: no formula, no byte that a font cannot take."""
    assert call(*TINY, "--out", tmp_path / name).signature == SIGNATURE
    assert (tmp_path / name / "curves.png").exists()


@pytest.mark.parametrize("isa", _extension.load().usable_isas())
def test_no_instruction_set_changes_a_bit(
    call: Command, tmp_path: Path, no_curves: None, isa: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    ended = call(*TINY, "--out", tmp_path / "run")
    assert ended.signature == SIGNATURE
    assert f"cpu ({isa}, " in ended.out


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("step", range(5))
def test_stopped_and_resumed_is_the_same_run(
    call: Command, tmp_path: Path, text: Path, stop_in, rule: str, step: int
):
    words = [*TINY, *RULES[rule], "--data", text, "--layers", 2, "--checkpoint-every", 0]
    whole = call(*words, "--out", tmp_path / "whole")
    stop_in(step)
    ended = call(*words, "--out", tmp_path / "run")
    assert ended.code == 130
    assert f"after update {step + 1} of 6" in ended.err
    assert f"--resume {tmp_path / 'run'}" in ended.err
    stop_in(-1)
    other = ["--engine", "portable", "--chunk", 10] if step == 2 else []
    assert call("--resume", tmp_path / "run", *other).signature == whole.signature
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    one, two = (tmp_path / folder for folder in ("whole", "run"))
    assert (one / "samples.txt").read_bytes() == (two / "samples.txt").read_bytes()
    kept = [checkpoint.load(folder / CHECKPOINT) for folder in (one, two)]
    assert kept[0].state.tolist() == kept[1].state.tolist()


def test_resume_with_more_steps_is_the_longer_run(call: Command, tmp_path: Path, no_curves: None):
    short = [*TINY[: TINY.index("--steps")], *TINY[TINY.index("--steps") + 2 :], "--steps", "4"]
    assert call(*short, "--out", tmp_path / "run").code == 0
    assert call("--resume", tmp_path / "run", "--steps", 6).signature == SIGNATURE


def test_the_master_rule_says_that_more_steps_are_another_run(
    call: Command, tmp_path: Path, no_curves: None
):
    assert call(*TINY, *RULES["master"], "--out", tmp_path / "run").code == 0
    ended = call("--resume", tmp_path / "run", "--steps", 8)
    assert ended.signature
    assert "the learning rate falls over 8 updates instead of 6" in ended.out


def test_a_finished_run_is_finished_again(call: Command, tmp_path: Path, finished: Path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for name in ("samples.txt", "curves.png", "config.json"):
        (run / name).unlink()
    ended = call("--resume", run)
    assert ended.signature == SIGNATURE
    assert "All 6 updates are done" in ended.out
    assert metrics(run) == metrics(finished)
    assert (run / "samples.txt").read_bytes() == (finished / "samples.txt").read_bytes()
    assert {path.name for path in run.iterdir()} == set(FILES)


def test_a_second_signal_stops_at_once(call: Command, tmp_path: Path, stop_in, no_curves: None):
    stop_in(3, times=2)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    ended = call(*TINY, "--out", tmp_path / "run")
    assert ended.code == 130
    assert "Stopped at once" in ended.err
    assert checkpoint.load(tmp_path / "run" / CHECKPOINT).step == 3
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    stop_in(-1)
    assert call("--resume", tmp_path / "run").signature == SIGNATURE


def test_pictures_that_fail_leave_a_run_done(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(folder: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pictures, "curves", fails)
    ended = call(*TINY, "--out", tmp_path / "run")
    assert ended.signature == SIGNATURE
    assert "no curves.png: [Errno 24] Too many open files" in ended.err


def test_the_next_command_takes_any_folder(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_curves: None
):
    monkeypatch.chdir(tmp_path)
    ended = call(*TINY, "--out=-x")
    assert "generate ./-x " in ended.out
    assert call("./-x", "--tokens", 4, main=generate.main).code == 0


def test_a_second_signal_waits_for_what_pictures_import(monkeypatch: pytest.MonkeyPatch):
    """In the midst of matplotlib's own extensions it could end Python."""
    import matplotlib.ticker

    class Comes:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "matplotlib.ticker":
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(matplotlib, "ticker", matplotlib.ticker)
    monkeypatch.delitem(sys.modules, "matplotlib.ticker")
    monkeypatch.setattr(sys, "meta_path", [Comes(), *sys.meta_path])
    with cli.Stop("nothing is left") as stop:
        stop.asked = True
        with pytest.raises(KeyboardInterrupt, match="Stopped at once; nothing is left"):
            pictures.style()
    assert "matplotlib.ticker" in sys.modules


def test_a_signal_before_the_first_update_leaves_nothing(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "eggroll.training.run.load_corpus", lambda *_, **__: signal.raise_signal(signal.SIGTERM)
    )
    ended = call(*TINY, "--out", tmp_path / "run")
    assert ended.code == 130
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_earlier_checkpoint(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, run, kept = os.replace, tmp_path / "run", []

    def replace(source: Path, target: Path) -> None:
        kept.append(target.name)
        if kept.count(CHECKPOINT) == 5:  # the first is of step 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    ended = call(*TINY, "--out", run)
    assert ended.code == 2
    assert "checkpoint.safetensors' cannot be written (No space left on device)" in ended.err
    assert f"--resume {run}" in ended.err
    assert checkpoint.load(run / CHECKPOINT).step == 3
    monkeypatch.undo()
    monkeypatch.setattr("eggroll.training.pictures.curves", lambda folder: folder)
    assert call("--resume", run).signature == SIGNATURE
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4, 5, 6]


def start(*words: object, patch: str = "") -> subprocess.Popen[str]:
    """A training process of its own, with something changed in it before it begins."""
    code = (
        "import os, signal, sys, time\n"
        f"from eggroll.training import loop as training\n{patch}\nsys.exit(training.main())"
    )
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


LONG = [*TINY[: TINY.index("--checkpoint-every")], "--steps", "100000", "--checkpoint-every", "0"]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_a_process_that_is_told_to_stop(call: Command, tmp_path: Path, number: signal.Signals):
    run = tmp_path / "run"
    with start(*LONG, "--out", run) as process:
        deadline = time.monotonic() + 30
        while not (run / "metrics.jsonl").exists() or len(metrics(run)) < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "signature" not in out
    step = checkpoint.load(run / CHECKPOINT).step
    assert f"after update {step} of 100000" in err
    assert len(metrics(run)) == step
    resumed = call("--resume", run, "--steps", step + 3)
    whole = call(*LONG, "--steps", step + 3, "--out", tmp_path / "whole")
    assert resumed.signature == whole.signature


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("moment", ["before fsync", "before replace", "after replace"])
def test_killed_while_it_writes_a_checkpoint(call: Command, tmp_path: Path, moment: str):
    run, (when, name) = tmp_path / "run", moment.split()
    # Four checkpoints and five files that grow or tell are written before the tenth file.
    first, last = ("real(*a)", KILL) if when == "after" else (KILL, "real(*a)")
    patch = f"""
calls, real = [], os.replace
def replace(*a):
    calls.append(a)
    if len(calls) < 10: return real(*a)
    {first}; {last}
def fsync(*a):
    if len(calls) == 9 and os.path.exists({str(run / ".checkpoint.safetensors.partial")!r}): {KILL}
os.replace = replace
"""
    patch += "os.fsync = fsync" if name == "fsync" else ""
    with start(*TINY, "--out", run, patch=patch) as process:
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    step = checkpoint.load(run / CHECKPOINT).step
    assert step == (4 if when == "after" else 3)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # a line that was under way
    assert call("--resume", run).signature == SIGNATURE
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4, 5, 6]


def test_text_is_generated_the_same_everywhere(call: Command, finished: Path):
    def text(*words: object) -> str:
        ended = call(finished, "--tokens", 30, *words, main=generate.main)
        assert ended.code == 0, ended.err
        return ended.out

    plain = text("--prompt", "3 4 5")
    assert plain.split()[:3] == ["3", "4", "5"]
    assert len(plain.split()) == 33
    assert all(0 <= int(word) < 16 for word in plain.split())
    assert text("--prompt", "3 4 5", "--engine", "portable") == plain
    assert text("--prompt", "3 4 5", "--seed", 1) != plain
    assert text("--temperature", 0) == text("--temperature", 0, "--seed", 1)


def test_text_shows_no_bytes_that_steer_a_terminal():
    decode = Decoder(codings.Bytes())
    text = "".join(map(decode, b"a\0b\x1b[2J\r\xc3\xa9\xff\tc\n\xe2\x82")) + decode.end()
    assert text == "a\n\nb\ufffd[2J\ufffd\u00e9\ufffd\tc\n\ufffd\n"
