"""Bad input gives one sentence and exit code 2, before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Command, Ended, replace_in_files

from eggroll import __main__, generate, plot, replay
from eggroll.cli import command as cli
from eggroll.files import open_regular
from eggroll.training import folder as runlog
from eggroll.training.config import Config, from_dict

PROGRAM = Config().program()


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file and name of every folder below one."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes() if path.is_file() else b""
        ).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def assert_refused(ended: Ended, says: str) -> None:
    """One sentence on stderr that holds every part of `says` (separated by |), nothing else."""
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert ended.err.rstrip().endswith((".", "?"))
    for part in says.split("|"):
        assert part in ended.err


@pytest.fixture
def place(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a finished run and with files of all bad kinds."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, "run")
    Path("empty.txt").touch()
    Path("short.txt").write_text("a few words\n")
    Path("file").write_text("no folder\n")
    Path("vacant").mkdir()
    Path("nothing").mkdir()
    Path("nothing", "picture.png").write_bytes(b"\x89PNG\0\0\0")
    Path("begun").mkdir()
    Path("begun", "config.json").write_text("{}")
    Path("torn.json").write_text('{"pop": ')
    Path("latin.json").write_bytes(b'{"data": "\xff"}')
    Path("list.json").write_text("[1, 2]")
    Path("twice.json").write_text('{"pop": 64, "about": {"a": 1, "a": 2}, "pop": 32}')
    for name, options in {
        "resume": {"resume": "run"},
        "unknown": {"popp": 64},
        "text": {"pop": "64"},
        "float": {"steps": 2.5},
        "bool": {"clt": 1},
        "choice": {"rule": "adagrad"},
        "range": {"rank": 0},
        "steps": {"count_steps": 1},
        "nan": {"alpha": float("nan")},
    }.items():
        Path(f"{name}.json").write_text(json.dumps(options))
    return tmp_path


# (words of the command line, what the sentence must hold); TINY goes before those of a new run.
NEW = [
    ("--pop 7", "--pop is 7|even number|try --pop 8"),
    ("--pop 0", "--pop is 0|2 to 16777216|try --pop 2"),
    ("--pop -4", "--pop is -4"),
    ("--pop 33554432", "--pop is 33554432|try --pop 16777216"),
    ("--pop many", "--pop|'many'|whole number"),
    ("--pop 1e4", "--pop|'1e4'|whole number"),
    ("--pop", "--pop|Missing value"),
    ("--popp 4", "'--popp'|did you mean --pop?"),
    ("--lr 1", "'--lr'|did you mean --learning-rate?"),
    ("--device cpu", "did you mean --engine?"),
    ("--population 4", "did you mean --pop?"),
    ("--batch-size=4", "did you mean --pop?"),
    ("--batch_size 4", "did you mean --pop?"),
    ("--hidden 64", "did you mean --width?"),
    ("--n-layers 2", "did you mean --layers?"),
    ("--max-tokens 9", "did you mean --sample-tokens?"),
    ("--lerning-rate 9", "did you mean --learning-rate?"),
    ("--sampler tpe", "'--sampler' is no option of eggroll.train: see --help."),
    ("--foo 9", "'--foo' is no option of eggroll.train: see --help."),
    ("surplus", "'surplus'|no option"),
    ("--group-size 3", "--group-size is 3|even|try --group-size 4"),
    ("--group-size 6", "--group-size is 6|divides --pop 32|try --group-size 4"),
    ("--group-size 64", "--group-size is 64|try --group-size 32"),
    ("--rank 0", "--rank is 0|1 to 64|try --rank 1"),
    ("--width 0", "--width is 0|1 to 8191"),
    ("--width 8192", "--width is 8192|try --width 8191"),
    ("--layers -1", "--layers is -1|0 to 256"),
    ("--sigma-shift -1", "--sigma-shift is -1|0 to 24"),
    ("--alpha 0", "--alpha is 0.0|above 0|try --alpha 4.0"),
    ("--alpha nan", "--alpha is nan"),
    ("--alpha inf", "--alpha is inf"),
    ("--alpha-decay 0", "--alpha-decay is 0"),
    ("--rule adagrad", "--rule|'adagrad'|sign, master"),
    ("--rule master --estimator token-credit", "--rule master|--rule whitened or sign"),
    ("--gates soft", "--gates|'soft'|clip, table"),
    ("--rule master --learning-rate 65", "--learning-rate is 65.0|to 64"),
    ("--seq-len 0", "--seq-len is 0"),
    ("--steps 0", "--steps is 0"),
    ("--seed -1", "--seed is -1"),
    ("--seed 9223372036854775808", "--seed is 9223372036854775808"),
    ("--chunk 3", "--chunk is 3|even"),
    ("--threads -1", "--threads is -1"),
    ("--table-bits 29", "--table-bits is 29|16 to 28"),
    ("--width 8000 --rank 2", "--table-bits is 16|80000 bytes|try --table-bits 18"),
    (
        "--width 8191 --pop 32000 --seq-len 65536 --threads 1000 --table-bits 24",
        "GiB|this machine has|smaller",
    ),
    ("--width 8191 --layers 3 --table-bits 24", "make 2,4|weights: fewer than 1,073,741,824"),
    ("--pop 16777216 --seq-len 128", "makes 2,147,483,648 scores"),
    ("--vocabulary 1", "--vocabulary is 1|2 to 65536"),
    ("--count-steps", "--count-steps is empty"),
    ("--count-steps 1 99", "99|1 to 14"),
    ("--count-steps one", "--count-steps|'one'|whole number"),
    ("--engine tpu", "'tpu' is unknown|available"),
    ("--engine cuda", "'cuda'|available"),
    ("--data absent.txt", "'absent.txt'|existing file or folder"),
    ("--data empty.txt", "empty.txt|empty"),
    ("--data short.txt", "short.txt|too small"),
    ("--data nothing", "nothing' holds no text"),
    ("--out run", "'run' already holds a run|--resume run"),
    ("--out begun", "'begun' already holds a run (config.json)"),
    ("--out file", "'file' is a file"),
    ("--out file/run", "'file/run'|another --out"),
    ("--config absent.json", "'absent.json' cannot be read"),
    ("--config vacant", "'vacant' cannot be read"),
    ("--config torn.json", "'torn.json' is not valid JSON"),
    ("--config latin.json", "'latin.json' is not valid JSON"),
    ("--config list.json", "'list.json' holds [1, 2]|object"),
    ("--config twice.json", "'twice.json' has 'a' twice"),
    ("--config resume.json", "'resume', which stands in no file"),
    ("--config --pop 8", "Missing value for argument '--config'"),
    ("--resume --pop 8", "Missing value for argument '--resume'"),
    ("--config unknown.json", "unknown option 'popp'|did you mean 'pop'?"),
    ("--config text.json", "'pop'|\"64\"|a whole number"),
    ("--config float.json", "'steps'|2.5|a whole number"),
    ("--config bool.json", "'clt'|true or false"),
    ("--config choice.json", "'rule'|one of sign, master"),
    ("--config range.json", "--rank is 0"),
    ("--config steps.json", "'count_steps'|list of whole numbers"),
    ("--config nan.json", "--alpha is nan"),
]
RESUME = [
    ("--resume run --width 32", "--width is 32|'run' has 16"),
    ("--resume run --seed 1", "--seed is 1|has 0"),
    ("--resume run --data stdlib", "--data is stdlib|has count"),
    ("--resume run --steps 5", "--steps is 5|6 updates already"),
    ("--resume run --out vacant", "--out 'vacant'|leave --out out"),
    ("--resume run --config range.json", "both given"),
    ("--resume absent", "'absent' holds no checkpoint"),
    ("--resume vacant", "'vacant' holds no checkpoint"),
    ("--resume file", "'file' is a file: give the folder of a run, such as '.'"),
]
GENERATE = [
    ("", "no folder is given"),
    ("vacant", "'vacant' holds no checkpoint"),
    ("run --tokens 0", "--tokens is 0"),
    ("run --temperature -1", "--temperature is -1.0|try --temperature 0."),
    ("run --temperature 200", "--temperature is 200.0|try --temperature 100."),
    ("run --temperature nan", "--temperature is nan"),
    ("run --temperature warm", "--temperature|'warm'|a number is needed"),
    ("run --bytes 9", "'--bytes'|no option"),
    ("run --top-k -1", "--top-k is -1|try --top-k 0"),
    ("run --top-p 0", "--top-p is 0.0|above 0 and up to 1"),
    ("run --top-p nan", "--top-p is nan"),
    ("run --min-p 1.5", "--min-p is 1.5|try --min-p 0.0"),
    ("run --samples 0", "--samples is 0|try --samples 1"),
    ("run --prompt 1 --prompt-file file", "--prompt-file 'file'|one of them"),
    ("run --prompt-file absent.txt", "'absent.txt' cannot be read"),
    ("run --prompt-file vacant", "'vacant' cannot be read"),
    ("run --seed -1", "--seed is -1"),
    ("run --prompt 16", "'16'|0 to 15"),
    ("run --prompt hello", "'hello'"),
    ("run --engine tpu", "'tpu' is unknown"),
    ("run --promt a", "'--promt'|did you mean --prompt?"),
    ("run --max-tokens 5", "did you mean --tokens?"),
    ("run --device cpu", "did you mean --engine?"),
]
PLOT = [
    ("", "no folder is given"),
    ("vacant", "'vacant' holds no run"),
    ("begun", "has made no update yet"),
    ("run run --out picture.doc", "'picture.doc'|.png"),
    ("run run --label one", "1 names for 2 folders"),
    ("run --metric speed", "'speed'|one of val_loss, loss, fitness"),
    ("run --out absent/picture.png", "'absent/picture.png' cannot be written"),
]


@pytest.mark.parametrize(("words", "says"), NEW)
def test_a_new_run_refuses(call: Command, place: Path, words: str, says: str):
    before = contents(place)
    assert_refused(call(*TINY, *words.split()), says)
    assert contents(place) == before


@pytest.mark.parametrize(("words", "says"), RESUME)
def test_resuming_refuses(call: Command, place: Path, words: str, says: str):
    before = contents(place)
    assert_refused(call(*words.split()), says)
    assert contents(place) == before


@pytest.mark.parametrize(
    ("main", "words", "says"),
    [(generate.main, *case) for case in GENERATE] + [(plot.main, *case) for case in PLOT],
)
def test_other_commands_refuse(
    call: Command, place: Path, main: Callable[[list[str]], int], words: str, says: str
):
    before = contents(place)
    assert_refused(call(*words.split(), main=main), says)
    assert contents(place) == before


def test_an_unreadable_file_is_refused(call: Command, place: Path, monkeypatch: pytest.MonkeyPatch):
    def denying(real: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def read(path: Path) -> Any:
            if path.name in ("file", "checkpoint.safetensors", "metrics.jsonl"):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        return read

    before = contents(place)
    monkeypatch.setattr(Path, "read_bytes", denying(Path.read_bytes))
    replace_in_files(monkeypatch, "open_regular", denying(open_regular))
    assert_refused(call(*TINY, "--data", "file"), "file' cannot be read|Permission denied")
    assert_refused(call("--resume", "run"), "cannot be read|Permission denied")
    assert_refused(call("run", main=plot.main), "cannot be read|Permission denied")
    monkeypatch.undo()
    assert contents(place) == before


def test_a_folder_that_denies_writing_is_refused(
    call: Command, place: Path, monkeypatch: pytest.MonkeyPatch
):
    # Not chmod: root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert_refused(call(*TINY, "--out", "vacant/run"), "'vacant/run' cannot be written|denies")
    assert contents(place / "vacant") == {}


def test_the_engine_that_cannot_run_here_is_refused(
    call: Command, place: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "eggroll.engines.cpu.CpuEngine.unavailable_because", lambda: "it was not built"
    )
    assert_refused(
        call(*TINY, "--engine", "cpu"), "'cpu' cannot run here|it was not built|portable"
    )


def test_data_that_changed_is_refused_on_resume(
    call: Command, tmp_path: Path, text: Path, no_curves: None
):
    data, run = tmp_path / "words.txt", tmp_path / "run"
    shutil.copy(text, data)
    assert call(*TINY, "--data", data, "--out", run).code == 0
    with data.open("a") as file:
        file.write("one more line\n" * 50)
    assert_refused(call("--resume", run, "--steps", 9), "words.txt' has changed since the run")


def test_data_that_moved_are_given_anew(call: Command, tmp_path: Path, text: Path, no_curves: None):
    """Others are refused as those that have changed; the replay log goes on."""
    data, moved, run = tmp_path / "words.txt", tmp_path / "moved.txt", tmp_path / "run"
    shutil.copy(text, data)
    assert call(*TINY, "--data", data, "--out", run).code == 0
    shutil.copy(data, moved)
    assert_refused(call("--resume", run, "--data", moved, "--steps", 9), "leave --data out")
    data.rename(moved)
    assert_refused(call("--resume", run, "--steps", 9), "words.txt' is unknown: give --data")
    other = tmp_path / "other.txt"
    other.write_bytes(moved.read_bytes() + b"one more line\n" * 50)
    assert_refused(call("--resume", run, "--data", other, "--steps", 9), "has changed since")
    ended = call("--resume", run, "--data", moved, "--steps", 7)
    assert ended.code == 0
    assert "recorded" not in ended.err
    assert call(run, main=replay.main).code == 0
    assert call("--resume", run, "--steps", 8).code == 0


def test_a_folder_in_use_is_refused(call: Command, place: Path):
    with runlog.Folder(Path("run")), runlog.Folder(Path("vacant")):
        assert_refused(call("--resume", "run", "--steps", 9), "'run' is in use by another run")
        assert_refused(call(*TINY, "--out", "vacant"), "'vacant' is in use")


def test_bytes_that_are_no_utf8_are_fine(
    call: Command, tmp_path: Path, text: Path, no_curves: None
):
    data = tmp_path / "mixed.txt"
    data.write_bytes(text.read_bytes().replace(b"e", b"\xff\xe9"))
    ended = call(*TINY, "--data", data, "--out", tmp_path / "run")
    assert ended.signature
    assert "bits per byte" in ended.out


def test_a_command_in_a_process_of_its_own(tmp_path: Path):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    for words, says in [
        (["eggroll.train", "--pop", "7"], "error: --pop is 7: an even number"),
        (["eggroll.generate", "nowhere"], "error: 'nowhere' holds no checkpoint"),
        (["eggroll.plot"], "error: no folder is given"),
    ]:
        ended = run(*words)
        assert_refused(Ended(ended.returncode, ended.stdout, ended.stderr), says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux's own device")
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    "words", ["eggroll", "eggroll.probe", "eggroll.train --version", "eggroll.generate --help"]
)
def test_a_full_stdout_is_named(words: str, buffered: str):
    command = [sys.executable, "-m", *words.split()]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env=os.environ | {"PYTHONUNBUFFERED": buffered},
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (
        cli.REFUSED, "error: stdout: No space left on device; correct this and run the command "
        "again.\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "words"), [(10, ("generate", "run", "--tokens", "20000")), (0, ("probe",))]
)
def test_a_reader_that_leaves_ends_it_without_a_word(
    place: Path, read: int, words: tuple[str, ...]
):
    command = [sys.executable, "-m", f"eggroll.{words[0]}", *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(read)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == cli.READER_GONE


def test_a_command_runs_by_its_name(call: Command, place: Path):
    words = ["run", "--tokens", "5"]
    assert call("generate", *words, main=__main__.main) == call(*words, main=generate.main)
    assert_refused(call("trian", main=__main__.main), "'trian' is no command|did you mean train?")
    assert_refused(
        call("fly", main=__main__.main),
        "'fly' is no command|train, generate, replay, finetune, plot",
    )


def test_options_survive_json():
    config = Config(pop=64, count_steps=(1, 3), alpha=0.5, rule="master", clt=False)
    options = json.loads(json.dumps(config.to_dict() | {"about": {"any": "thing"}}))
    assert from_dict(options, "test") == config


def test_the_command_line_wins_over_the_file(
    call: Command, place: Path, finished: Path, no_curves: None
):
    first = call("--resume", "run").signature
    same = call("--config", "run/config.json", "--out", "same")
    other = call("--config", "run/config.json", "--out", "other", "--seed", "1")
    assert same.signature == first
    assert other.signature != first
    assert json.loads(Path("other/config.json").read_text())["seed"] == 1


def test_runs_without_out_are_numbered(call: Command, place: Path, text: Path, no_curves: None):
    for words in ([], [], ["--data", text]):
        assert call(*TINY, *words).code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "count-000", "count-001", "words-000",
    ]  # fmt: skip
