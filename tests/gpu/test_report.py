"""make verify-metal and make verify-cuda: one report, whatever its steps say or do."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import nax_check
import numpy as np
import pytest
from test_nax_check import M5

from eggroll.engines import trial as verdicts
from eggroll.engines.gpu.dialect import KernelSource
from gpu import report, report_kernels, run_kernel
from gpu.every_kernel import Launched, every_kernel
from gpu.report_kernels import run_step


def step(text: str, code: int = 0) -> report.Step:
    return report.Step(["-c", f"print({text!r}); raise SystemExit({code})"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the report is written; no GPU, and nothing that asks the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(report, "first_steps", lambda engine: {"probe": step("probed")})
    monkeypatch.setattr(report, "has_gpu", lambda engine: False)
    monkeypatch.setattr(report, "driver_steps", lambda engine, piece: {})
    return tmp_path


def test_a_broken_package_spoils_no_report(tmp_path: Path, monkeypatch):
    for name, told in (
        ("~lx-1.dist-info", ""),
        ("mlx_egg-2.dist-info", "Name: mlx-egg\nVersion: 2"),
    ):
        (tmp_path / name).mkdir()
        if told:
            (tmp_path / name / "METADATA").write_text(told)
    monkeypatch.syspath_prepend(tmp_path)
    assert "mlx-egg 2" in report.versions().splitlines()


def never(*_: object) -> bool:
    raise AssertionError("a step that must not be made")


@pytest.mark.parametrize("engine", ["metal", "cuda"])
def test_without_its_gpu_it_says_so(folder: Path, monkeypatch, capsys, engine: str):
    """The report is there, with all that tells why."""
    monkeypatch.setattr(report, "available", lambda: {engine: "no GPU"})
    monkeypatch.setattr(report, "steps", never)
    monkeypatch.setattr(report, "try_kernels", never)
    assert report.main(engine) == 2
    assert "cannot run here (no GPU)" in capsys.readouterr().err
    said = (folder / f"{engine}-report.txt").read_text()
    assert "probed" in said
    assert f"=== engine: {engine}: no GPU" in said
    assert "mlx 0." in said
    assert f"sources {verdicts.source_hash()}" in said


def test_a_failed_trial_is_in_it_with_every_kernel(folder: Path, monkeypatch):
    """Then it is needed most: the kernels are tried although the engine cannot run."""
    error = "Unable to build\nprogram_source:7:3: error: no type\n  fooo x\n  ^"
    first = {"trial": report.Step(["-c", f"raise RuntimeError({error!r})"])}
    monkeypatch.setattr(report, "first_steps", lambda engine: first)
    monkeypatch.setattr(report, "available", lambda: {"metal": "its trial failed"})
    monkeypatch.setattr(report, "has_gpu", lambda engine: True)
    monkeypatch.setattr(report, "steps", never)
    tried = []
    monkeypatch.setattr(report, "do_kernels", lambda *given: tried.append(given[1]))
    assert report.main() == 2
    said = (folder / "metal-report.txt").read_text()
    assert "=== trial: exit code 1 (program_source:7:3: error: no type)\nTraceback" in said
    assert "  fooo x\n  ^" in said
    assert re.search(r"^\d+\.\d s$", said, re.M)  # that it took
    assert tried == ["metal"]


@pytest.mark.parametrize(
    ("other", "code", "exit_code", "words"),
    [("a", 0, 0, "agree"), ("b", 0, 1, "DIFFER"), ("a", 3, 1, "agree")],
)
def test_it_compares_signatures_and_names_failures(
    folder: Path, monkeypatch, capsys, other: str, code: int, exit_code: int, words: str
):
    monkeypatch.setattr(report, "available", lambda: {"metal": ""})
    steps = {
        "one": step("signature: a"), "two": step(f"signature: {other}"), "three": step("", code),
    }  # fmt: skip
    monkeypatch.setattr(report, "steps", lambda engine: steps)
    monkeypatch.setattr(report, "piece_of", lambda name: "runs")
    assert report.main() == exit_code
    assert f"signatures of both engines: {words}" in (folder / "metal-report.txt").read_text()
    assert ("failed: three" in capsys.readouterr().out) == (code > 0)


@pytest.mark.parametrize("engine", ["metal", "cuda"])
def test_its_steps_name_what_is_there(engine: str):
    root, todo = Path(__file__).parents[2], report.steps(engine)
    tests = [word for step in todo.values() for word in step.words if word.startswith("tests/")]
    assert len(tests) == 5
    assert all((root / test).is_file() for test in tests)
    assert sum(bool(step.env) for step in todo.values()) == len(report.VARIANTS[engine])
    assert f"-m gpu.report {engine} $(ARGS)\n" in (root / "Makefile").read_text()
    assert {report.piece_of(name) for name in todo} == {"tests", "runs", "bench"}


def test_first_steps_of_a_machine_without_a_gpu(monkeypatch):
    """They run anywhere; each ends, and the trial says what is missing."""
    for engine, word in (("metal", "No Metal back-end"), ("cuda", "No CUDA back-end")):
        first = report.first_steps(engine)
        assert list(first) == ["machine", "device", "probe", "trial"]
        done = run_step(first["trial"].words, first["trial"].env, 60)
        assert word in done.why
        assert f"{engine}: weights in order" in done.said
    done = run_step(first["machine"].words, {}, 60)
    assert done.code == 0
    assert "$ nvidia-smi --format=csv" in done.said


def test_nax_is_part_of_it_where_it_can_be(monkeypatch):
    def asked(**changes: object) -> tuple[list[str], list[str]]:
        facts = SimpleNamespace(**{**vars(M5), **changes})
        monkeypatch.setattr(report.metal, "facts", lambda: facts)
        return list(report.trials("metal")), report.kernel_variants("metal")

    assert asked() == (["trial", "trial with NAX"], ["", "nax"])
    assert asked(architecture="applegpu_g16s") == (["trial"], ["", "nax"])
    assert asked(os_version="15.5") == (["trial"], [""])
    assert asked(system="Linux") == (["trial"], [""])
    assert nax_check.decide(M5).obstacles == ()
    for architecture, variants in ((90, 3), (75, 2), (61, 1)):
        monkeypatch.setattr(report.cuda, "architecture", lambda a=architecture: a)
        found = report.kernel_variants("cuda")
        assert len(found) == variants
        assert found[-1] == f"dp4a {architecture}"


def test_environments_of_steps_reach_them(folder: Path, monkeypatch):
    told = report.Step(["-c", "import os; print('signature:', os.environ['SAID'])"], {"SAID": "x"})
    monkeypatch.setattr(report, "available", lambda: {"cuda": ""})
    monkeypatch.setattr(report, "steps", lambda engine: {"one": told})
    assert report.main("cuda") == 0
    assert "signature: x" in (folder / "cuda-report.txt").read_text()


def test_kernels_of_the_gpu_at_hand_are_listed():
    """With the shared memory that its compute capability lends: more on sm_90 than on sm_75."""
    shared = {a: max(each.source.shared for each in every_kernel("cuda", [f"dp4a {a}"]))
              for a in (75, 90)}  # fmt: skip
    assert shared[75] <= 32 << 10 < shared[90]  # two blocks share a multiprocessor


@pytest.mark.parametrize("engine", report_kernels.DEVICES)
def test_devices_take_the_kernels_of_the_report(tmp_path: Path, engine: str):
    """As far as MLX comes without the GPU, which it then says is missing."""
    file = tmp_path / "0.json"
    run_kernel.write_kernel(file, next(iter(every_kernel(engine))))
    missing = pytest.raises(RuntimeError, match=f"(?i)no {engine} back-end")
    with contextlib.nullcontext() if report.has_gpu(engine) else missing:
        run_kernel.run(report_kernels.DEVICES[engine], file)


# A device whose compiler, pipelines and launches fail as those of a GPU do.
FAKE = """
import ctypes, os, time
def compiled(source, dtypes):
    def kernel(*, inputs, output_shapes, output_dtypes, grid, threadgroup, verbose):
        assert verbose and grid == (64, 1, 1) and inputs[0].tolist() == [3, 4]
        text = f"Generated source code:\\n{source.header}\\n[[kernel]] {source.body}"
        ctypes.CDLL(None).puts(text.encode())  # as MLX does, which has a buffer of its own
        if source.name == "crashes":
            os.abort()
        if source.name == "hangs":
            time.sleep(600)
        if source.name == "fails":
            raise RuntimeError("Unable to build metal library from source\\n"
                               "program_source:9:1: error: no type\\n  fooo x\\n  ^\\n"
                               "program_source:12:1: note: declared here")
        import mlx.core as mx
        return [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes)]
    return kernel
"""
NAMES = ("runs", "fails", "crashes", "hangs", "runs, too")


@pytest.fixture
def kernels(folder: Path, monkeypatch) -> Callable[[], list[Path]]:
    """Writes files of kernels for the fake device."""
    (folder / "fake_device.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setitem(report_kernels.DEVICES, "metal", "fake_device")

    def write() -> list[Path]:
        (folder / "kernels").mkdir()
        files = [folder / "kernels" / f"{i}.json" for i in range(len(NAMES))]
        for file, name in zip(files, NAMES, strict=True):
            source = KernelSource(name, ("a",), ("b",), "// header", f"b[0] = a[0]; // {name}")
            made = Launched(name, source, (mx.array([3, 4]),), (((2,), mx.int32),), (64, 1, 1),
                            (64, 1, 1))  # fmt: skip
            run_kernel.write_kernel(file, made)
        return files

    return write


def test_every_kernel_is_tried_whatever_the_others_do(kernels, folder: Path, monkeypatch):
    """One fails with a message of several lines, one crashes, one hangs: all of it is told."""
    kernels()
    real = report_kernels.run_step

    def hurried(words: list[str], env: dict[str, str], seconds: float) -> report_kernels.Done:
        return real(words, env, 2 if words[-1].endswith("3.json") else seconds)

    monkeypatch.setattr(report_kernels, "run_step", hurried)
    copy = f"import shutil, sys; shutil.copytree({str(folder / 'kernels')!r}, sys.argv[2],"
    monkeypatch.setattr(report, "LIST", ["-c", f"{copy} dirs_exist_ok=True)"])
    monkeypatch.setattr(report, "has_gpu", lambda engine: True)
    monkeypatch.setattr(report, "kernel_variants", lambda engine: [""])
    monkeypatch.setattr(report, "available", lambda: {"metal": "its trial failed"})
    assert report.main() == 2
    said = (folder / "metal-report.txt").read_text()
    assert "5 of 5 (no NAX)\n2 kernels ran, 3 failed\n" in said
    for line in (
        "fails: program_source:9:1: error: no type\n",
        "crashes: the process was ended by SIGABRT",
        "hangs: no answer in 2 seconds",
        "runs: built and ran in ",
        "runs, too: built and ran in ",
    ):
        assert f"\n{line}" in said
    # Of what failed, the whole message and the text that was compiled.
    assert "  fooo x\n  ^\nprogram_source:12:1: note: declared here" in said
    for name in ("fails", "crashes", "hangs"):
        assert f"b[0] = a[0]; // {name}\n" in said
        digest = hashlib.sha256(f"// headerb[0] = a[0]; // {name}".encode()).hexdigest()
        assert f"sha256 {digest}, grid [64, 1, 1], threadgroup [64, 1, 1]" in said
    assert "[[kernel]] b[0] = a[0]; // crashes\n" in said  # the text that MLX compiles
    assert "b[0] = a[0]; // runs\n" not in said
    assert "Fatal Python error: Aborted" in said


def test_the_report_is_whole_at_any_time(kernels, folder: Path):
    """Whatever ends the report itself, what was found before is in the file."""
    said = []
    found = report.Report(folder / "r.txt")

    def tell(so_far: report.Kernels) -> None:
        found.put("kernels", so_far.text())
        said.append((folder / "r.txt").read_text())
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.try_kernels("fake_device", kernels(), tell, 60)
    assert "1 kernels ran, 0 failed" in said[0]
    assert "1 kernels ran, 1 failed" in said[1]
    found.begin("tests")
    assert "the report ends here if it hung" in (folder / "r.txt").read_text()


def test_time_for_all_kernels_is_bounded(kernels, monkeypatch):
    monkeypatch.setattr(report_kernels, "MOST_SECONDS", -1)
    done = report.try_kernels("fake_device", kernels(), lambda so_far: None)
    assert len(done.failed) == len(NAMES)
    assert "not tried" in done.names[0]
    assert "// header\nb[0] = a[0]; // runs" in done.failed[0]  # the source, told all the same


def test_kernels_that_cannot_be_listed_are_told(folder: Path, monkeypatch):
    monkeypatch.setattr(report, "LIST", ["-c", "raise ValueError('no list')"])
    found = report.Report(folder / "r.txt")
    assert not report.do_kernels(found, "metal", str(folder), [""])
    assert "they cannot be listed: ValueError: no list" in (folder / "r.txt").read_text()


@pytest.mark.skipif(mx.metal.is_available(), reason="there they run")
def test_real_kernels_reach_the_real_device(tmp_path: Path):
    """As files and back; here the device says that it is not there."""
    launched = every_kernel("metal", [""])[1]
    file = tmp_path / "0.json"
    run_kernel.write_kernel(file, launched)
    done = report.try_kernels(report_kernels.DEVICES["metal"], [file], lambda so_far: None)
    assert "No Metal back-end" in done.names[0]
    found = report_kernels.json.loads(file.read_text())
    assert run_kernel.source_of(found) == launched.source
    arrays = np.load(file.with_suffix(".npz"))
    assert [arrays[name].dtype for name in arrays.files] == [
        np.array(a).dtype for a in launched.inputs
    ]


def test_a_step_that_hangs_ends_with_all_that_it_started(tmp_path: Path):
    """Its children hold the GPU, too; here a lock."""
    held = tmp_path / "held"
    child = f"import fcntl, time; held = open({str(held)!r}, 'w'); "
    child += "fcntl.flock(held, fcntl.LOCK_EX); print('so far', flush=True); time.sleep(60)"
    code = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}])"
    done = run_step(["-c", code], {}, 2)
    assert (done.code, done.why) == (124, "no answer in 2 seconds; last it said: so far")
    end = time.monotonic() + 20
    with open(held) as file:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            assert time.monotonic() < end, "it goes on"
            time.sleep(0.01)


def test_a_piece_goes_on_where_its_time_was_over(folder: Path, monkeypatch, capsys):
    """A step that did not get its time has no verdict; one that had it all has one."""
    ran = folder / "ran"
    count = f"open({str(ran)!r}, 'a').write('x'); "
    todo = {
        "tests one": report.Step(  # a fifth of the time: the next does not have all of it
            ["-c", f"import time; time.sleep(0.6); {count}print('signature: a')"]
        ),
        "tests two": report.Step(["-c", "import time; time.sleep(60)"]),
        "tests three": report.Step(["-c", f"{count}print('three')"]),
        "training on cpu": report.Step(["-c", f"{count}print('runs')"]),
    }
    monkeypatch.setattr(report, "available", lambda: {"metal": ""})
    monkeypatch.setattr(report, "steps", lambda engine: todo)
    monkeypatch.setattr(report, "PIECE_SECONDS", 3)
    monkeypatch.setattr(report, "LEAST_SECONDS", 1)
    assert report.main("metal", "look") == 0
    assert report.main("metal", "tests") == report.UNFINISHED
    said = (folder / "metal-report.txt").read_text()
    assert "probed" in said
    assert ran.read_text() == "x"
    assert "not yet: tests two, tests three" in capsys.readouterr().out
    todo["tests two"] = report.Step(["-c", "raise SystemExit(4)"])
    assert report.main("metal", "tests") == 1
    assert ran.read_text() == "xx"  # the first has its verdict
    said = (folder / "metal-report.txt").read_text()
    assert "=== tests two: exit code 4" in said
    assert "three" in said
    assert report.main("metal", "runs", "report") == 1  # what failed stays so
    assert ran.read_text() == "xxx"
    out = capsys.readouterr().out
    assert "failed: tests two" in out
    todo["tests two"] = report.Step(["-c", "print('mended')"])
    assert report.main("metal", "tests") == 0  # a piece that was done is done anew
    assert ran.read_text() == "xxxxx"
    assert "not yet" not in out.splitlines()[-1]
    assert report.main("metal", "look") == 0  # all of it begins anew
    assert "tests" not in (folder / "metal-report.txt").read_text()


def test_a_step_that_has_a_whole_piece_and_hangs_gets_its_verdict(folder: Path, monkeypatch):
    todo = {"tests one": report.Step(["-c", "import time; time.sleep(60)"])}
    monkeypatch.setattr(report, "available", lambda: {"metal": ""})
    monkeypatch.setattr(report, "steps", lambda engine: todo)
    monkeypatch.setattr(report, "PIECE_SECONDS", 2)
    monkeypatch.setattr(report, "LEAST_SECONDS", 1)
    assert report.main("metal", "tests") == 1
    assert "=== tests one: exit code 124 (no answer in" in (
        (folder / "metal-report.txt").read_text()
    )


def test_kernels_go_on_too(kernels, folder: Path, monkeypatch):
    """Some side by side; those tried before are not tried again."""
    kernels()
    copy = f"import shutil, sys; shutil.copytree({str(folder / 'kernels')!r}, sys.argv[2],"
    monkeypatch.setattr(report, "LIST", ["-c", f"{copy} dirs_exist_ok=True)"])
    monkeypatch.setattr(report, "has_gpu", lambda engine: True)
    monkeypatch.setattr(report, "kernel_variants", lambda engine: [""])
    monkeypatch.setattr(report, "SIDE_BY_SIDE", {"metal": 3})
    monkeypatch.setattr(report, "available", lambda: {"metal": ""})
    real, tried = report_kernels.run_step, []

    def run(words: list[str], env: dict[str, str], seconds: float) -> report_kernels.Done:
        tried.append(Path(words[-1]).stem)
        if words[-1].endswith("3.json"):
            return report_kernels.Done(124, "", "no answer")
        return real(words, env, seconds)

    monkeypatch.setattr(report_kernels, "run_step", run)
    monkeypatch.setattr(report, "PIECE_SECONDS", 1e12)
    # The first three begin in time: each looks at the clock once.
    monkeypatch.setattr(report_kernels, "time", SimpleNamespace(monotonic=clock_of(4, 1e13)))
    assert report.main("metal", "kernels") == report.UNFINISHED
    assert sorted(tried) == ["0", "1", "2"]
    assert "3 of 5 (no NAX); name the piece again" in (folder / "metal-report.txt").read_text()
    monkeypatch.setattr(report_kernels, "time", SimpleNamespace(monotonic=clock_of(99, 1e13)))
    assert report.main("metal", "kernels") == 1
    assert sorted(tried) == ["0", "1", "2", "3", "4"]
    assert "5 of 5 (no NAX)\n2 kernels ran, 3 failed" in (folder / "metal-report.txt").read_text()


def clock_of(looks: int, then: float) -> Callable[[], float]:
    """A clock that stands still for so many looks at it."""
    seen: list[int] = []

    def look() -> float:
        seen.append(1)
        return 0.0 if len(seen) <= looks else then

    return look


@pytest.mark.parametrize("words", [["silver"], ["metal", "runs", "walks"]])
def test_an_unknown_piece_is_refused(folder: Path, capsys, words: list[str]):
    assert report.main(*words) == 2
    error = capsys.readouterr().err
    assert repr(words[-1]) in error
    assert "look, trial, kernels, tests, runs, bench, report" in error
    assert not list(folder.glob("*.txt"))


def test_runs_are_compared_kind_by_kind():
    parts = {
        "training by feedback on cuda": "signature: a",
        "training by feedback on cpu": "signature: b",
        "training on cuda": "signature: c", "training on cpu": "signature: c",
    }  # fmt: skip
    assert report.signatures_of(parts) == {"training by feedback": {"a", "b"}, "training": {"c"}}


def test_the_report_tells_that_nax_is_off(folder: Path, monkeypatch):
    monkeypatch.setenv("EGGROLL_NAX", "0")
    monkeypatch.setattr(report, "available", lambda: {"metal": ""})
    monkeypatch.setattr(report, "steps", lambda engine: {})
    assert report.main("metal", "trial") == 0
    said = (folder / "metal-report.txt").read_text()
    assert "=== engine: metal: runs; NAX is not used: EGGROLL_NAX=0" in said


def test_steps_run_in_the_checkout(folder: Path):
    """Wherever the report is written."""
    said = run_step(["-c", "import os; print(os.getcwd())"], {}, 60).said
    assert Path(said.strip()) == Path(__file__).parents[2]
