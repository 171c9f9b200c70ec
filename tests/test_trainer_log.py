"""A Trainer's folder: files, exact resume, and one sentence for what cannot be."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eggroll.errors import InputError
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp
from eggroll.spec.program import Program, program_of
from eggroll.training import folder as runlog
from eggroll.training import trackers

P, T = 8, 3
STOPPED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_trainer_log import new, update
with new({out!r}) as es:
    update(es)
    tell = es._learner.adopt
    if {inside}:  # the signal comes while weights and step are being replaced
        def adopt(found):
            os.kill(os.getpid(), signal.{name})
            return tell(found)
        es._learner.adopt = adopt
        update(es)
    else:
        update(es)
        es.ask()
        os.kill(os.getpid(), signal.{name})
    update(es)
"""


def net() -> Program:
    program = Program(width=4)
    _, s = program.stage(state=True)
    shown = program.linear(program.input(3), "in", 4)
    program.add(program.linear(s, "back", 4), shown, out=s)
    program.output(program.linear(s, "out", 2))
    return program


def new(out: str | Path, **options: Any) -> Trainer:
    given = {"pop": P, "seed": 5, "engine": "portable", "table_bits": 16, "carry": True} | options
    return Trainer(net(), out=out, **given)


def update(es: Trainer) -> Any:
    """One update with values that the step decides."""
    random = np.random.default_rng(es.step)
    outputs = es.ask()(random.integers(-99, 99, (P, T, 3)).astype(np.int8))
    return es.tell(outputs[..., 0] - 2.0 * abs(outputs[..., 1].astype(np.float64)))


def signature(updates: int, **options: Any) -> str:
    """Of a trainer without a folder, which never stopped."""
    es = new("", **options)
    for _ in range(updates):
        update(es)
    return es.signature


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in lines(folder)]


def saved(folder: Path) -> int:
    return Trainer.load(folder / "checkpoint.safetensors").step


def test_files_of_a_folder(tmp_path: Path):
    out = tmp_path / "runs" / "catch"
    with new(out) as es:
        assert sorted(os.listdir(out)) == ["checkpoint.safetensors", "config.json", "metrics.jsonl"]
        made = [update(es) for _ in range(3)]
    assert [row["step"] for row in lines(out)] == [1, 2, 3]
    for row, told in zip(lines(out), made, strict=True):
        assert row == pytest.approx(told._asdict(), abs=1e-6)
        assert row["fitness_best"] > row["fitness"]
        assert row["rows_per_second"] == pytest.approx(P * T / told.seconds, abs=1e-6)
    config = json.loads((out / "config.json").read_text())
    program = program_of(json.loads(config["declaration"]), config["score_bits"])
    assert program.digest() == net().digest() == config["network"]
    assert {"pop": P, "seed": 5, "checkpoint_every": 50}.items() <= config.items()
    assert config["about"]["parameters"] == 4 * 4 + 4 * 3 + 2 * 4
    assert config["about"]["engine"] == es.engine.description
    assert {"eggroll", "python", "mlx", "numpy", "machine", "chunk"} <= config["about"].keys()


def test_the_documented_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "running.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(program, {})
    assert steps(Path("runs/catch")) == list(range(1, 31))
    table = page.split("its `metrics.jsonl` | ")[1].partition("\n\n")[0]
    named = " ".join(row.split("|")[1] for row in table.splitlines()[1:])
    assert set(re.findall(r"`(\w+)`", named)) == lines(Path("runs/catch"))[0].keys()


def test_the_best_member_has_the_largest_mean(tmp_path: Path):
    with new(tmp_path / "run") as es:
        for values in (np.arange(P), np.outer(np.arange(P), np.ones(T))):
            es.ask()(np.zeros((P, T, 3), np.int8))
            told = es.tell(values)
            assert (told.fitness, told.fitness_best) == (3.5, 7.0)


def test_without_out_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with new("", checkpoint_every=1) as es:
        update(es)
    es.close()
    update(es)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("estimator", ["eggroll", "token-credit"])
def test_a_folder_goes_on_exactly(tmp_path: Path, estimator: str):
    options = {"estimator": estimator, "rule": "whitened"}
    out = tmp_path / "run"
    with new(out, **options) as es:
        update(es)
        update(es)
    with Trainer.load(out, net(), chunk=4) as es:
        assert es.step == 2
        update(es)
        es.ask()
    with Trainer.load(str(out)) as es:
        assert es.options.chunk == 4
        assert json.loads((out / "config.json").read_text())["chunk"] == 4
        update(es)
        assert es.signature == signature(4, **options)
    assert steps(out) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("every", "planned", "after"),
    [(2, 9, [0, 2, 2, 4, 4]), (0, 9, [0, 0, 0, 0, 0]), (50, 3, [0, 0, 3, 3, 3])],
)
def test_checkpoints_are_written_as_asked(
    tmp_path: Path, every: int, planned: int, after: list[int]
):
    """And at the planned end; close saves what is new."""
    out = tmp_path / "run"
    with new(out, checkpoint_every=every, steps=planned) as es:
        assert saved(out) == 0
        for step in after:
            update(es)
            assert saved(out) == step
        es.save()
        assert saved(out) == 5
        update(es)
    assert saved(out) == 6


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path):
    out, copy = tmp_path / "run", tmp_path / "copy"
    with new(out, checkpoint_every=2) as es:
        for _ in range(3):
            update(es)
        shutil.copytree(out, copy)  # as a crash would leave it
    with (copy / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "fit')
    assert len((copy / "metrics.jsonl").read_bytes().splitlines()) == 4
    with Trainer.load(copy) as es:
        assert steps(copy) == [1, 2]
        for _ in range(2):
            update(es)
        assert es.signature == signature(4)
    assert steps(copy) == [1, 2, 3, 4]


def test_a_checkpoint_in_a_file_has_no_folder(tmp_path: Path):
    out = tmp_path / "run"
    with new(out) as es:
        update(es)
        es.save(tmp_path / "other.safetensors")
        assert saved(out) == 0
    for path in (out / "checkpoint.safetensors", tmp_path / "other.safetensors"):
        with Trainer.load(path) as es:
            update(es)
            assert es.signature == signature(2)
    assert steps(out) == [1]
    assert saved(out) == 1


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_leaves_a_checkpoint_of_whole_updates(tmp_path: Path, name: str, inside: bool):
    out = tmp_path / "run"
    script = STOPPED.format(
        tests=str(Path(__file__).parent), out=str(out), name=name, inside=inside
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == -signal.SIGINT, ended.stderr  # as of any interrupted Python
    assert f"Update 2 is saved; go on with Trainer.load({str(out)!r})." in ended.stderr
    assert steps(out) == [1, 2]
    with Trainer.load(out) as es:
        assert es.signature == signature(2)


def test_an_error_in_the_block_leaves_a_checkpoint_too(tmp_path: Path):
    def fail() -> None:
        with new(tmp_path / "run") as es:
            update(es)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert saved(tmp_path / "run") == 1


def test_signals_are_the_callers_again(tmp_path: Path):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with new(tmp_path / "run") as es:
        update(es)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_callers_own_handler_stays(tmp_path: Path):
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with new(tmp_path / "run") as es:
            update(es)
            signal.raise_signal(signal.SIGTERM)
            update(es)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert saved(tmp_path / "run") == 2


def test_a_full_disk_stops_nothing_that_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The line that found no room follows before the next, and no checkpoint knows more."""
    out, write = tmp_path / "run", os.write

    def no_room(handle: int, data: bytes) -> int:
        if handle == es._log._metrics._handle:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    with new(out) as es:
        update(es)
        monkeypatch.setattr(os, "write", no_room)
        says = (
            r"metrics.jsonl' cannot be written \(No space left on device\): make room or grant "
            r"access there and go on with Trainer\.load\('.*run'\); what was"
        )
        with pytest.raises(InputError, match=says):
            update(es)
        with pytest.raises(InputError, match=says):
            es.save()
        assert (es.step, saved(out), steps(out)) == (2, 0, [1])
        monkeypatch.undo()
        update(es)
        assert steps(out) == [1, 2, 3]
        assert es.signature == signature(3)


def test_a_folder_that_was_forgotten_is_free(tmp_path: Path):
    es = new(tmp_path / "run")
    update(es)
    del es
    gc.collect()
    Trainer.load(tmp_path / "run").close()


def held(out: Path) -> None:
    new(out).close()
    new(out)


def in_use(out: Path) -> None:
    with new(out):
        Trainer.load(out)


def empty(out: Path) -> None:
    out.mkdir()
    Trainer.load(out)


def other_network(out: Path) -> None:
    new(out).close()
    Trainer.load(out, mlp(3, [9], 2))


def another_option(out: Path) -> None:
    new(out).close()
    Trainer.load(out, seed=9)


def bad_option(out: Path) -> None:
    new(out).close()
    Trainer.load(out, chunk=3)


def damaged(out: Path) -> None:
    new(out).close()
    path = out / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    Trainer.load(out)


def told_after_close(out: Path) -> None:
    es = new(out)
    es.ask()(np.zeros((P, T, 3), np.int8))
    es.close()
    es.tell(np.zeros(P))


def asked_after_close(out: Path) -> None:
    es = new(out)
    es.close()
    es.close()
    assert es.model(np.zeros((1, 3), np.int8)).shape == (1, 2)
    es.save(out.with_name("other.safetensors"))
    es.ask()


def saved_after_close(out: Path) -> None:
    es = new(out)
    es.close()
    es.save()


def no_path(out: Path) -> None:
    new("").save()


def no_place(out: Path) -> None:
    new("").save(out / "es.safetensors")


REFUSED: dict[Callable[[Path], None], str] = {
    held: r"^out '.*run' already holds a run \(checkpoint\.safetensors\): go on with "
    r"Trainer\.load\('.*run'\), or give another out\.$",
    in_use: r"^folder '.*run' is in use by another run: wait .*, or give another out\.$",
    empty: r"^'.*run' holds no checkpoint: give .*, or start a new run with another out\.$",
    other_network: r"is of another network \(declaration \w{12}\) than was given",
    another_option: r"^seed belongs to the training in .*: other options may change, or start ",
    bad_option: r"^chunk is 3: an even number from 0 to \d+ is needed; try chunk 4\.$",
    damaged: r"^checkpoint '.*' is damaged or no checkpoint .* with another out\.$",
    told_after_close: r"^tell comes without ask: ",
    asked_after_close: r"^The folder '.*run' is closed: go on with Trainer\.load\('.*run'\)\.$",
    saved_after_close: r"^The folder '.*run' is closed: ",
    no_path: r"^save was given no path, and the Trainer no folder: give save a path, or Trainer ou",
    no_place: r"^'.*es.safetensors' cannot be written \(No such file or directory\): make room ",
    lambda out: Trainer.load(out): r"^'.*run' is no file or folder: give the path that save ",
    lambda out: new(out, checkpoint_every=-1): r"^checkpoint_every is -1: a whole number from 0",
    lambda out: new(out, pop=3): r"^pop is 3",
}


@pytest.mark.parametrize("act", REFUSED, ids=lambda act: act.__name__)
def test_one_sentence_and_the_folder_stays_free(act: Callable[[Path], None], tmp_path: Path):
    out = tmp_path / "run"
    with pytest.raises(InputError, match=REFUSED[act]) as refused:
        act(out)
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value)
    if out.is_dir() and act is not in_use:
        with runlog.Folder(out):
            pass


def test_runs_of_the_command_line_are_not_a_trainers(call: Any, finished: Path, tmp_path: Path):
    with pytest.raises(
        InputError, match=r"is of a run of eggroll\.train, which is not read here.*eggroll\.Trainer"
    ):
        Trainer.load(finished)
    new(tmp_path / "run").close()
    ended = call("--resume", tmp_path / "run")
    assert ended.code == 2
    assert "is of a run of eggroll.Trainer, which is not read here" in ended.err


def test_trackers_are_told_of_updates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told: list[Any] = []

    class Fake(trackers.Tracker):
        package = "json"  # which is installed

        def begin(self, run: trackers.Tracked) -> None:
            told.append((run.step, run.config["track"], run.id))

        def log(self, step: int, values: dict[str, float]) -> None:
            told.append((step, values))

        def text(self, step: int, name: str, text: str) -> None:
            raise AssertionError

        def end(self) -> None:
            told.append("end")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Fake)
    out = tmp_path / "run"
    with new(out, track="wandb") as es:
        update(es)
        update(es)
    with Trainer.load(out) as es:
        update(es)
    known = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    begun, *rows, end, again, last, end_again = told
    assert (begun[:2], again[:2]) == ((0, "wandb"), (2, "wandb"))
    assert begun[2] == again[2]
    assert [*rows, last] == [(row.pop("step"), row) for row in known]
    assert len(known) == 3
    assert end == end_again == "end"
    assert signature(3) == es.signature
    told.clear()
    Trainer.load(out, track="none").close()
    assert told == []
    with pytest.raises(InputError, match=r"^track is 'wandb' and trackers go with a folder"):
        new("", track="wandb")
    with pytest.raises(InputError, match=r"^track is .nobody.: none or one of"):
        new("", track="nobody")
