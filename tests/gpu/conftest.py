"""Fixtures of the GPU tests: every test that takes `gpu` runs for Metal and for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import emulator
import pytest
from conftest import REQUIRED

from eggroll import engines
from eggroll.engines import guard
from gpu.backend import GPUS, Gpu
from gpu.faulty import Fault, Faulty


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for compiled kernels; one that several tests need is compiled once."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session", params=list(GPUS))
def gpu(request: pytest.FixtureRequest, folder: Path, covered: set[str]) -> Gpu:
    """A GPU under emulation. Metal is covered by that; CUDA needs NVRTC besides."""
    name: str = request.param
    if sentence := emulator.unavailable_because():
        pytest.fail(sentence) if name in REQUIRED else pytest.skip(sentence)
    if name == "metal":
        covered.add("metal")
    (folder / name).mkdir(exist_ok=True)
    return GPUS[name](folder / name)


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
