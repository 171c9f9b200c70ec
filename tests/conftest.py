"""Tiny runs that several tests share."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ended import Ended

from eggroll import _extension, files
from eggroll.engines import available
from eggroll.training import loop as training

# Seconds matter: a run of these options takes hundredths of one.
TINY = [
    *("--data", "count", "--pop", "32", "--width", "16", "--seq-len", "8", "--steps", "6"),
    *("--table-bits", "16", "--val-tokens", "512", "--validate-every", "2"),
    *("--checkpoint-every", "1", "--sample-tokens", "8"),
]


Command = Callable[..., Ended]


# What must be covered, or the session fails: instruction sets by name, and `arm64` for all those
# that run under emulation elsewhere.
EMULATED = ["neon_i8mm", "neon_dotprod", "neon"]
REQUIRED = [name for name in os.environ.get("EGGROLL_REQUIRE", "").split(",") if name]
COVERED = pytest.StashKey[set[str]]()
# How kernels of GPUs are read without a GPU, and what each reading needs.
CLANG = "install clang 14 or newer with its sanitizers"
NVIDIA = "pip install '.[nvrtc]'"
READERS = {"emulation": CLANG, "OpenCL reading": CLANG, "NVRTC": NVIDIA, "machine code": NVIDIA}
READ, UNREAD = pytest.StashKey[set[str]](), pytest.StashKey[set[str]]()
KEPT = {"covered": COVERED, "read": READ, "unread": UNREAD}  # by the names that processes tell


def emulation_lacks() -> str | None:
    """The first tool that is missing for running arm64 kernels on another machine."""
    tools = "aarch64-linux-gnu-g++", "qemu-aarch64"
    return next((tool for tool in tools if not shutil.which(tool)), None)


def needs_emulation() -> None:
    """Skips a test of arm64 kernels that nobody asked for: compiled anew they take minutes.

    It fails where they are asked for and a tool is missing.
    """
    if "arm64" not in REQUIRED:
        pytest.skip("for make test-arm64")
    if lacking := emulation_lacks():
        pytest.fail(f"{lacking} is not installed")


def uncovered(config: pytest.Config) -> list[str]:
    """The required instruction sets that no test has compared with the reference."""
    if config.option.collectonly:
        return []
    units = [u for name in REQUIRED for u in (EMULATED if name == "arm64" else [name])]
    return [unit for unit in units if unit not in config.stash[COVERED]]


def pytest_configure(config: pytest.Config) -> None:
    # Whoever started the tests may have had these ignored, as nohup and shells' & do.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)
    ):  # fmt: skip
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    for key in KEPT.values():
        config.stash[key] = set()


@pytest.fixture(scope="session")
def covered(pytestconfig: pytest.Config) -> set[str]:
    """The instruction sets compared so far; a test that compares one adds its name."""
    return pytestconfig.stash[COVERED]


def pytest_report_header() -> list[str]:
    """Names what can be covered, so that a reader need not guess what a green run means."""
    found = [f"{name} ({why})" if why else name for name, why in available().items()]
    lacking = emulation_lacks()
    emulated = f"none ({lacking} is not installed)" if lacking else ", ".join(EMULATED)
    return [
        f"engines: {', '.join(found)}; cpu kernels: {', '.join(_extension.load().usable_isas())}",
        f"arm64 kernels under emulation: {emulated}",
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What one of several processes has covered counts for the session."""
    for name, key in KEPT.items():
        node.config.stash[key].update(getattr(node, "workeroutput", {}).get(name, ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of several, which does not judge
        for name, key in KEPT.items():
            session.config.workeroutput[name] = sorted(session.config.stash[key])
    elif exitstatus == pytest.ExitCode.OK and uncovered(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Names what was covered, and what EGGROLL_REQUIRE asks for and was not."""
    done, missing = sorted(config.stash[COVERED]), uncovered(config)
    if done:
        terminalreporter.write_line(f"kernels compared with the reference: {', '.join(done)}")
    if readers := readers_line(config.stash[READ], config.stash[UNREAD]):
        terminalreporter.write_line(readers)
    if missing:
        terminalreporter.write_line(
            f"EGGROLL_REQUIRE={','.join(REQUIRED)}: not covered: {', '.join(missing)}", red=True
        )


def readers_line(read: set[str], unread: set[str]) -> str:
    """The readers that kernels of GPUs had, and what others need; empty where none was asked."""
    if not read | unread:
        return ""
    done = ", ".join(name for name in READERS if name in read)
    left = dict[str, list[str]]()
    for name, need in READERS.items():
        if name in unread:
            left.setdefault(need, []).append(name)
    missing = "; ".join(f"{', '.join(names)} ({need})" for need, names in left.items())
    rest = f"; missing: {missing}" if missing else ""
    return f"kernels of GPUs were read by: {done or 'nobody'}{rest}"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command's main in this process; every argument becomes a word."""

    def run(*words: object, main: Callable[[list[str]], int] = training.main) -> Ended:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # --help
            code = int(end.code or 0)
        return Ended(code, *capsys.readouterr())

    return run


def replace_in_files(patch: pytest.MonkeyPatch, name: str, function: object) -> None:
    """Replaces a function of eggroll.files in every module that has it under that name."""
    real = getattr(files, name)
    for module in [m for key, m in sys.modules.items() if key.partition(".")[0] == "eggroll"]:
        if vars(module).get(name) is real:
            patch.setattr(module, name, function)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sweep: they take longer than a tiny one."""
    monkeypatch.setattr("eggroll.sweep.report.draw", lambda results, folder, unit: [])


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out curves.png, which takes longer than a tiny run."""
    monkeypatch.setattr("eggroll.training.pictures.curves", lambda folder: folder)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with 60 kB of made-up words."""
    chance = random.Random(0)
    words = ["".join(chance.choices("aeiounrst", k=chance.randint(1, 8))) for _ in range(300)]
    lines = [
        " ".join(chance.choices(words, k=10)) + "\n" * chance.randint(1, 2) for _ in range(1200)
    ]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny run; copy it before you change it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert training.main([*TINY, "--out", str(folder)]) == 0
    return folder
