"""Fixtures of the GPU tests: every test that takes `gpu` runs for Metal and for CUDA."""

from __future__ import annotations

from collections.abc import Callable, Generator

import emulator
import pytest
from conftest import READ, READERS, REQUIRED, UNREAD

from eggroll import engines
from eggroll.engines import guard
from gpu.backend import GPUS, Gpu
from gpu.faulty import Fault, Faulty

REASONS: set[str] = set()  # why kernels have no reader


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets all tests that miss a reader share a line of the summary, as one place skips them."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if reason.removeprefix("Skipped: ") in REASONS:
            report.longrepr = __file__, 1, reason
    return report


@pytest.fixture(scope="session")
def reader(pytestconfig: pytest.Config) -> Callable[[str, str, str], None]:
    """Notes that kernels of a GPU have a reader, or skips for the reason why they have not.

    It fails where EGGROLL_REQUIRE names the GPU.
    """

    def note(name: str, gpu: str, unavailable_because: str) -> None:
        assert name in READERS
        pytestconfig.stash[UNREAD if unavailable_because else READ].add(name)
        if unavailable_because:
            REASONS.add(unavailable_because)
            (pytest.fail if gpu in REQUIRED else pytest.skip)(unavailable_because)

    return note


@pytest.fixture(scope="session", params=list(GPUS))
def gpu(
    request: pytest.FixtureRequest, covered: set[str], reader: Callable[[str, str, str], None]
) -> Gpu:
    """A GPU under emulation. Metal is covered by that; CUDA needs NVRTC besides."""
    name: str = request.param
    reader("emulation", name, emulator.unavailable_because())
    if name == "metal":
        covered.add("metal")
    folder = emulator.built_folder() / name
    folder.mkdir(exist_ok=True)
    return GPUS[name](folder)


@pytest.fixture
def launcher(gpu: Gpu) -> emulator.Emulator:
    """Runs every launch in one order of the threads."""
    return gpu.launcher()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Engine metal has this fault from now on."""

    def put(fault: Fault) -> None:
        monkeypatch.setattr(Faulty, "fault", staticmethod(fault))

    monkeypatch.setitem(engines.ENGINES, "metal", Faulty)
    monkeypatch.setattr(guard, "failed_engines", {})
    return put
