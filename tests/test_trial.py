"""Trials of engines: why one failed, in a sentence; what is tried; verdicts that are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from gpu.report_kernels import run_step

from eggroll.engines import metal, trial
from eggroll.engines import trial as failure
from eggroll.engines import trial as verdicts
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.portable import engine as portable
from eggroll.errors import InputError
from eggroll.files import cache_folder
from eggroll.spec.losses import LOSSES
from eggroll.spec.program import OPERATIONS

COMPILER = """[metal::Device] Unable to build metal library from source
program_source:7:3: warning: unused variable 'y'
  int y;
  ^
program_source:9:3: error: unknown type name 'fooo'
  fooo x;
  ^
program_source:12:20: error: no matching function for call to 'bar'
  bar(x);
  ^~~
program_source:2:6: note: candidate function not viable
program_source:9:3: error: unknown type name 'fooo'
program_source:30:1: error: expected ';'
program_source:31:1: error: expected '}'
2 warnings and 4 errors generated.
"""
PIPELINE = """[metal::Device] Unable to load kernel egg_stage_01
Compute function exceeds available stack space
"""
BUFFER = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
)
ABORTED = f"libc++abi: terminating due to uncaught exception of type std::runtime_error: {BUFFER}"
RAISED = "def launch():\n    raise RuntimeError({!r})\nlaunch()"
SAID = "import sys; sys.stderr.write({!r}); sys.stderr.flush(); "

# name -> code of a child, the sentence that its trial ends in, words of the whole text
CHILDREN = {
    "a compiler's errors": (
        RAISED.format(COMPILER),
        "program_source:9:3: error: unknown type name 'fooo'; program_source:12:20: error: no "
        "matching function for call to 'bar'; program_source:30:1: error: expected ';'; and 1 more",
        "candidate function not viable",
    ),
    "one error": (
        RAISED.format("Unable to build\nprogram_source:7:3: error: no type\n  fooo x\n  ^\n"),
        "program_source:7:3: error: no type",
        "  fooo x\n  ^",
    ),
    "a pipeline": (
        RAISED.format(PIPELINE),
        "RuntimeError: [metal::Device] Unable to load kernel egg_stage_01 Compute function exceeds "
        "available stack space",
        "in launch",
    ),
    "a command buffer": (RAISED.format(BUFFER), f"RuntimeError: {BUFFER}", "in launch"),
    "a command buffer whose error nobody catches": (
        SAID.format(f"metal: votes\n{ABORTED}\n") + "import os; os.abort()",
        f"the process was ended by SIGABRT: {ABORTED}",
        "Fatal Python error: Aborted",
    ),
    "a signal": (
        SAID.format("metal: votes\n") + "import os; os.kill(os.getpid(), 11)",
        "the process was ended by SIGSEGV: metal: votes",
        "most recent call first",
    ),
    "a signal before anything is said": (
        "import os; os.kill(os.getpid(), 9)", "the process was ended by SIGKILL", "",
    ),
    "an assertion": (
        "def check():\n    assert False\ncheck()",
        "AssertionError in check (<string>, line 2)",
        "Traceback",
    ),
    "an import": (
        "import no_such_module_here",
        "ModuleNotFoundError: No module named 'no_such_module_here'",
        "Traceback",
    ),
    "an error out of another": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('no such grid')",
        "ValueError: no such grid",
        "ZeroDivisionError",
    ),
    "wrong integers": (
        SAID.format("warning: cold\n") + "print('all'); sys.exit('other integers')",
        "other integers",
        "all",
    ),
    "a code alone": ("raise SystemExit(3)", "the process ended with code 3", ""),
    "nothing": ("print('fine')", "", "fine"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHILDREN)
def test_a_failed_child_says_why(name: str):
    """One line for the run, the whole text for the report."""
    code, why, words = CHILDREN[name]
    ended = trial.run_in_child(code, 60, {})
    assert ended.why == why
    assert words in ended.text


def test_a_child_that_hangs_says_where():
    code = SAID.format("metal: exact likelihoods\n") + "import time; time.sleep(600)"
    ended = trial.run_in_child(code, 2, {})
    assert ended.why == "no answer in 2 seconds; last it said: metal: exact likelihoods"
    assert "exact likelihoods" in ended.text


def test_what_a_child_says_has_no_colours(monkeypatch: pytest.MonkeyPatch):
    """Those of Python 3.13 would hide the lines that count."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = "import os; print(os.environ['PYTHON_COLORS'])"
    assert trial.run_in_child(code, 60, {}).text == "0\n"
    assert run_step(["-c", code], {}, 60).said == "0\n"


def test_a_child_that_does_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "No such file" in trial.run_in_child("", 5, {}).why


def test_bytes_that_are_no_text_do_not_hide_the_reason():
    code = "import sys; sys.stderr.buffer.write(b'\\xff error: odd\\n'); sys.exit(1)"
    assert trial.run_in_child(code, 60, {}).why.endswith("error: odd")


def test_long_lines_are_cut():
    lines = failure.sentence("\n".join("error: " + letter * 9000 for letter in "abcde"))
    assert len(lines) < 800
    assert lines.endswith("...; and 2 more")
    assert failure.sentence("") == ""


def test_yardstick_is_the_cpu_engine_or_exact_float(monkeypatch: pytest.MonkeyPatch):
    """Plain MLX on the GPU under trial takes its place only without the extension, and exactly."""
    assert trial.reference_engine() is CpuEngine
    monkeypatch.setattr(CpuEngine, "unavailable_because", classmethod(lambda cls: "no extension"))
    assert trial.reference_engine() is portable.PortableEngine
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    said = trial.run_in_child("import os; print(os.environ['MLX_ENABLE_TF32'])", 60, {})
    assert said.text.strip() == "0"


def test_portable_on_a_gpu_is_exact(monkeypatch: pytest.MonkeyPatch):
    """MLX reads the switch before its first product: on a CPU nobody else's is changed."""
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    program = trial.trial_networks()["rows"]
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.cpu))
    portable.PortableEngine(program)
    assert os.environ["MLX_ENABLE_TF32"] == "1"
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
    portable.PortableEngine(program)
    assert os.environ["MLX_ENABLE_TF32"] == "0"


def test_every_operation_is_tried():
    kinds = {op.kind for net in trial.trial_networks().values() for s in net.stages for op in s.ops}
    assert kinds == set(OPERATIONS)


def test_every_loss_is_tried_of_int8_and_of_sums():
    outputs = trial.trial_networks()["outputs"].outputs
    tried = [(loss, out.wide) for loss, out in zip(trial.OUTPUT_LOSSES, outputs, strict=True)]
    assert sorted(tried) == sorted((loss, wide) for loss in LOSSES for wide in (False, True))


@pytest.mark.parametrize("name", trial.trial_networks())
def test_engines_of_this_machine_pass(name: str):
    """Plain MLX stands for an engine of its own: both yardsticks agree on all that is tried."""
    assert trial.differences(portable.PortableEngine(trial.trial_networks()[name]), 34) == []


class Wrong(portable.PortableEngine):
    """The scores of the first members are off by one each."""

    group_sizes = (8,)

    def __init__(self, program, members: int = 0, off: int = 1) -> None:
        super().__init__(program)
        self.off = off

    def evaluate(self, *given):
        scores, state = super().evaluate(*given)
        return mx.array(np.array(scores) + np.eye(*scores.shape, dtype=np.int16) * self.off), state


def test_a_wrong_engine_is_told_what_is_wrong(capsys: pytest.CaptureFixture[str]):
    name = f"{__name__}:Wrong"
    with pytest.raises(SystemExit) as end:
        trial.main(name, {})
    sentence = str(end.value)
    assert sentence.startswith("the kernels give other integers than engine cpu: egg, scores of ")
    assert "2 of 84 differ, the first is " in sentence  # of five threadgroups and a rest
    out, err = capsys.readouterr()
    assert "rows, scores of rank 3: 2 of 84" in out
    assert out.count("\n") == 3
    assert "Wrong" not in err
    assert "portable: votes by the noise's signs" in err
    trial.main(name, {"off": 0})


def test_the_kept_verdict_spares_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A trial that passed is not repeated with the same facts; one that failed always is."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "none yet"))
    monkeypatch.delenv(verdicts.SWITCH, raising=False)
    ends, tried = [1, 0], []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        tried.append(command[-1])
        return subprocess.CompletedProcess(command, ends.pop(0) if ends else 0, b"", b"")

    def error(chip: str = "M4", **options: object) -> str:
        facts = {"chip": chip, "os": "26.2"}
        return trial.trial_error("some:Engine", 9, facts=facts, options=options)

    monkeypatch.setattr(subprocess, "run", run)
    assert error() == "the process ended with code 1"
    assert not verdicts.verdicts_path().exists()  # a failure is not kept
    assert [error(), error()] == ["", ""]
    assert len(tried) == 2
    assert [error("M5"), error(nax=True)] == ["", ""]  # another chip, another path
    assert len(tried) == 4
    monkeypatch.setenv(verdicts.SWITCH, "1")
    assert error() == ""
    assert len(tried) == 5
    monkeypatch.delenv(verdicts.SWITCH)
    verdicts.forget_verdicts()
    verdicts.forget_verdicts()
    assert error() == ""
    assert len(tried) == 6
    # Another text of the kernels or of what writes them.
    files = dict(verdicts.source_files())
    names = "engines/gpu/stage.py", "spec/program.py", "gpu/mix.h", "metal/linear.metal"
    assert set(names) <= set(files)
    changed = {**files, "gpu/mix.h": files["gpu/mix.h"] + b" "}
    monkeypatch.setattr(verdicts, "source_files", lambda: iter(changed.items()))
    verdicts.source_hash.cache_clear()
    try:
        assert error() == ""
    finally:
        verdicts.source_hash.cache_clear()
    assert len(tried) == 7


def test_who_waits_for_a_trial_is_told(tmp_path: Path, monkeypatch, capsys):
    """On a terminal, where somebody waits; and not where a verdict is kept."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    monkeypatch.delenv(verdicts.SWITCH, raising=False)
    monkeypatch.setattr(trial, "run_in_child", lambda *given: trial.ChildEnd("", ""))
    with monkeypatch.context() as windowed:
        windowed.setattr(sys, "stderr", None)
        assert not trial.trial_error(metal.ENGINE, 9, facts={"chip": "M3"})
    for terminal, chip, told in ((True, "M4", 1), (True, "M4", 0), (False, "M5", 0)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert not trial.trial_error(metal.ENGINE, 9, facts={"chip": chip})
        said = capsys.readouterr().err
        assert said.count("trying the metal engine on this GPU, for at most 9 s") == told


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1', "[" * 100_000, "\x00"])
def test_an_unreadable_verdict_does_not_count(content: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    monkeypatch.delenv(verdicts.SWITCH, raising=False)
    verdicts.verdicts_path().write_text(content)
    assert not verdicts.passed_before({"chip": "M4"})
    verdicts.keep_verdict({"chip": "M4"})
    assert verdicts.passed_before({"chip": "M4"})


def test_a_user_without_a_home_keeps_no_verdict(monkeypatch: pytest.MonkeyPatch):
    """As in a container, where every process tries anew."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("EGGROLL_CACHE", "XDG_CACHE_HOME", verdicts.SWITCH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    verdicts.keep_verdict({})
    assert not verdicts.passed_before({})
    verdicts.forget_verdicts()
    with pytest.raises(InputError, match="set EGGROLL_CACHE to a folder"):
        cache_folder()


def test_only_the_last_verdicts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    for i in range(verdicts.MAX_VERDICTS + 3):
        verdicts.keep_verdict({"chip": str(i)})
    found = json.loads(verdicts.verdicts_path().read_text())
    assert next(iter(found.values())) == {"chip": "3"}
    assert len(found) == verdicts.MAX_VERDICTS


def test_where_no_file_can_be_written_nothing_is_kept(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "file"))
    verdicts.keep_verdict({})
    assert not verdicts.passed_before({})
    verdicts.forget_verdicts()
