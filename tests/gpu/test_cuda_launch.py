"""CUDA kernels compiled by us: the cache of machine code, launches through a fake of MLX's call.

What MLX does with machine code on a GPU has not run; its call is the emulation's here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import emulator
import mlx.core as mx
import numpy as np
import pytest
from networks import random_case
from networks_backward import carried_of
from networks_credit import credited_case
from test_credit import same

from eggroll import EngineWarning
from eggroll.engines import cuda, cuda_launch, nvrtc
from eggroll.engines.cuda import CudaEngine
from eggroll.engines.cuda_launch import PRELUDE, CudaLauncher, cuda_text, named_text
from eggroll.engines.gpu.dialect import KernelSource
from gpu.backend import CudaGpu, check_scores, check_votes, on
from gpu.every_kernel import every_kernel

SOURCE = KernelSource(
    "copy", ("a",), ("b",), "", "b[threadIdx.x] = a[threadIdx.x];", shared=64, blocks=2, threads=32
)
INT8 = (mx.int8, mx.int8)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that turns text over; gives the texts that it was called for."""
    seen: list[str] = []

    def compiled(text: str, architecture: str, *options: str) -> tuple[bytes, str]:
        seen.append(text)
        if "wrong" in text:
            raise nvrtc.CompileError(f"kernel.cu(1): error: {text}")
        return f"{architecture} {text[::-1]}".encode(), ""

    monkeypatch.setattr(nvrtc, "version", lambda: "13.0 1")
    monkeypatch.setattr(nvrtc, "compiled", compiled)
    monkeypatch.setattr(nvrtc, "unavailable_because", lambda: "")
    return seen


def test_a_text_is_compiled_once(compiler: list[str], cache: Path):
    """Also where it is asked for twice; later processes find it on the disk."""
    codes = nvrtc.machine_code(["one", "two", "one"], "sm_80")
    assert codes == [b"sm_80 eno", b"sm_80 owt", b"sm_80 eno"]
    assert sorted(compiler) == ["one", "two"]
    assert nvrtc.machine_code(["two", "one"], "sm_80") == [b"sm_80 owt", b"sm_80 eno"]
    assert len(compiler) == 2
    assert {path.suffix for path in cache.iterdir()} == {".cubin"}


def test_what_code_depends_on_has_its_own_file(compiler: list[str], monkeypatch):
    def files() -> set[Path]:
        return {nvrtc.kept_file(text, sm) for text in ("one", "two") for sm in ("sm_80", "sm_90a")}

    before = files()
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0 2")
    after = files()
    monkeypatch.setattr(nvrtc, "OPTIONS", ("--std=c++20",))
    assert len(before | after | files()) == 12


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "of another", "a folder"])
def test_a_broken_file_is_compiled_again(compiler: list[str], harm: str):
    (code,) = nvrtc.machine_code(["one"], "sm_80")
    path = nvrtc.kept_file("one", "sm_80")
    content = path.read_bytes()
    match harm:
        case "cut":
            path.write_bytes(content[:-1])
        case "changed":
            path.write_bytes(content[:-1] + b"X")
        case "empty":
            path.write_bytes(b"")
        case "of another":
            path.chmod(0o666)
        case "a folder":
            path.unlink()
            path.mkdir()
    assert nvrtc.machine_code(["one"], "sm_80") == [code]
    assert compiler == ["one", "one"]


def test_what_was_used_longest_ago_goes_first(compiler: list[str], cache: Path, monkeypatch):
    texts = [f"text {i}" for i in range(8)]
    nvrtc.machine_code(texts, "sm_80")
    for i, text in enumerate(texts):
        os.utime(nvrtc.kept_file(text, "sm_80"), (1000 + i, 1000 + i))
    nvrtc.machine_code(texts[:1], "sm_80")  # used now
    each = next(cache.iterdir()).stat().st_size
    nvrtc.trim(3 * each)
    there = {text for text in texts if nvrtc.kept_file(text, "sm_80").exists()}
    assert there == {"text 0", "text 6", "text 7"}
    monkeypatch.setattr(nvrtc.trim, "__defaults__", (2 * each,))
    nvrtc.machine_code(["text 9"], "sm_80")
    assert len(list(cache.iterdir())) == 2


def test_where_nothing_can_be_kept_kernels_run_all_the_same(compiler, tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "file"))
    for _ in "ab":
        assert nvrtc.machine_code(["one"], "sm_80") == [b"sm_80 eno"]
    assert compiler == ["one", "one"]


def test_a_refused_text_is_told(compiler: list[str], cache: Path):
    with pytest.raises(nvrtc.CompileError, match="error: wrong"):
        nvrtc.machine_code(["wrong"], "sm_80")
    assert not cache.exists()


def test_texts_are_compiled_side_by_side(compiler: list[str], monkeypatch):
    """Each in a thread, as many as there are cores."""
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, threads: int) -> None:
            asked.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(nvrtc, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    nvrtc.machine_code([str(i) for i in range(9)], "sm_80")
    nvrtc.machine_code([str(i) for i in range(60)], "sm_80")
    nvrtc.machine_code([str(i) for i in range(70)], "sm_80", threads=2)
    nvrtc.machine_code([str(i) for i in range(70)], "sm_80")
    assert asked == [9, 16, 2]


def test_a_kernel_has_bounds_types_and_a_name_of_its_own():
    text = cuda_text(SOURCE, INT8, "copy")
    assert text.startswith(PRELUDE)
    assert 'extern "C" __global__ void __launch_bounds__(32, 2) copy(\n' in text
    assert "    const int8_t* a,\n    int8_t* b) {\n" in text
    assert "__launch_bounds__" not in cuda_text(SOURCE._replace(blocks=0), INT8, "copy")
    names = {
        named_text(source, dtypes)[0]
        for source in (SOURCE, SOURCE._replace(blocks=1), SOURCE._replace(body="b[0] = a[0];"))
        for dtypes in (INT8, (mx.uint64, mx.int8))
    }
    assert len(names) == 6
    name, text = named_text(SOURCE, INT8)
    assert f" {name}(\n" in text
    assert cuda_launch.code_name(80) == "sm_80"
    assert cuda_launch.code_name(90) == "sm_90a"


def test_without_nvrtc_mlx_compiles(monkeypatch: pytest.MonkeyPatch):
    """And one sentence says so, once."""
    monkeypatch.setattr(nvrtc, "load", lambda: (None, "NVRTC cannot be loaded (no such file)"))
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **given: asked.append(given) or str)
    launcher = CudaLauncher(lambda: 80)
    with pytest.warns(EngineWarning, match=r"NVRTC cannot be loaded .*MLX compiles every kernel"):
        assert launcher.compiled(SOURCE, INT8) is str
    launcher.compiled(SOURCE, (mx.int32, mx.int8))  # another warning would be an error
    one, other = asked
    assert one["name"] != other["name"]
    assert one["source"] == SOURCE.body
    assert one["shared_memory"] == SOURCE.shared
    assert (one["input_names"], one["output_names"]) == (["a"], ["b"])


def test_without_a_gpu_mlx_says_so():
    launcher = CudaLauncher(lambda: 0)
    if not mx.cuda.is_available():
        with pytest.raises(RuntimeError, match=r"(?i)no cuda back-end"):
            launcher(SOURCE, [mx.zeros(32, mx.int8)], [((32,), mx.int8)], (32, 1, 1), (32, 1, 1))


class FakeMlx:
    """MLX's call for machine code, which the emulation carries out by the kernel's name."""

    def __init__(self, launcher: emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources, self.launcher = dict[str, tuple[KernelSource, str]](), launcher
        self.batches: list[int] = []  # kernels that were made together
        right, together = cuda_launch.named_text, nvrtc.machine_code

        def recorded(source: KernelSource, dtypes: Any) -> tuple[str, str]:
            name, text = right(source, dtypes)
            self.sources[name] = source, text
            return name, text

        def machine_code(texts: Sequence[str], architecture: str) -> list[bytes]:
            self.batches.append(len(texts))
            return together(texts, architecture)

        monkeypatch.setattr(cuda_launch, "named_text", recorded)
        monkeypatch.setattr(nvrtc, "machine_code", machine_code)
        monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", self)

    def __call__(
        self,
        *,
        name: str,
        compiled_source: bytes,
        inputs: list[mx.array],
        output_shapes: list[tuple[int, ...]],
        output_dtypes: list[mx.Dtype],
        scalars: list[object],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        shared_memory: int,
        ensure_row_contiguous: bool,
    ) -> list[mx.array]:
        source, text = self.sources[name]
        assert compiled_source == f"sm_80 {text[::-1]}".encode()
        assert (scalars, shared_memory, ensure_row_contiguous) == ([], source.shared, True)
        outputs = list(zip(output_shapes, output_dtypes, strict=True))
        return self.launcher(source, inputs, outputs, grid, threadgroup)


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
def test_an_engine_runs_on_machine_code(
    gpu: CudaGpu, compiler: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Scores, votes, credit and errors carried back; kernels of a call are compiled together."""
    fake = FakeMlx(gpu.launcher(orders=(emulator.FORWARD,)), monkeypatch)
    launcher = CudaLauncher(lambda: 80)
    case = random_case(3, V=9, D=8, T=2, P=6)
    made = CudaEngine(case.program, launcher=launcher, members=8, on=on())
    check_scores(made, case)
    assert fake.batches == [1, 3]  # packing; embedding, layer and head
    check_scores(made, case)
    check_votes(made, case, np.array([1, -1, 1]))
    assert fake.batches == [1, 3, 2]
    credited = credited_case(3, "token-credit", V=9, D=8, T=2, P=6)
    same(credited.run(made), credited.oracle())
    assert len(fake.batches) == 4
    assert fake.batches[-1] > 5
    carried = carried_of(case, "feedback")
    assert carried.differing(carried.run(made)) == set()
    assert len(fake.batches) == 5
    count = len(compiler)
    assert count == sum(fake.batches) - (count < sum(fake.batches))  # a text may be of two kernels
    again = CudaEngine(case.program, launcher=CudaLauncher(lambda: 80), members=8, on=on())
    check_scores(again, case)  # as a later process, which compiles nothing
    assert len(compiler) == count


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
def test_kernels_of_several_calls_are_made_ahead(
    gpu: CudaGpu, compiler: list[str], monkeypatch: pytest.MonkeyPatch
):
    """All of them together; and calls are no others for it."""
    fake = FakeMlx(gpu.launcher(orders=(emulator.FORWARD,)), monkeypatch)
    monkeypatch.setattr(cuda, "launch", CudaLauncher(lambda: 80))
    case = random_case(3, V=9, D=8, T=2, P=6)
    made = CudaEngine(case.program, launcher=cuda.launch, members=8, on=on())
    prepared, fitness = made.prepare(case.leaves), mx.array([1, 0, -1], mx.int8)
    works = [
        lambda: made.evaluate(prepared, case.slices, case.batch),
        lambda: made.votes(fitness, case.slices, True),
    ]
    CudaEngine.ahead(works)  # no GPU, so nothing to do
    assert fake.batches == [1]  # packing
    monkeypatch.setattr(cuda, "architecture", lambda: 80)
    CudaEngine.ahead(works)
    assert fake.batches == [1, 5]
    check_scores(made, case)
    check_votes(made, case, np.array([1, 0, -1]))
    assert fake.batches == [1, 5]


def test_a_list_of_kernels_does_not_count_as_work(compiler, monkeypatch: pytest.MonkeyPatch):
    """What is only listed takes no time, from which the pace of launches would be learnt."""
    launcher, waits = CudaLauncher(lambda: 80), []
    case = random_case(3, V=9, D=8, T=2, P=6)
    made = CudaEngine(case.program, launcher=launcher, members=8, on=on())
    made.pace.waits = True
    right = made.pace.launched

    def launched(arrays: Any, macs: int) -> None:
        waits.append((launcher.asked.listed is not None, made.pace.waits))
        right(arrays, macs)

    monkeypatch.setattr(made.pace, "launched", launched)
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", lambda **given: [
        mx.zeros(s, d) for s, d in zip(given["output_shapes"], given["output_dtypes"], strict=True)
    ])  # fmt: skip
    made.evaluate(made.prepare(case.leaves), case.slices, case.batch)
    assert waits == [(True, False)] * 3 + [(False, True)] * 3
    assert launcher.asked.listed is None


def test_another_thread_knows_nothing_of_a_list():
    """Its calls would get zeros for results."""
    launcher = CudaLauncher(lambda: 80)
    launcher.asked.listed, launcher.asked.waits = [], True
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(lambda: (launcher.asked.listed, launcher.asked.waits)).result()
    assert asked == (None, False)


def refuse() -> None:
    if nvrtc.unavailable_because():
        pytest.skip("NVRTC is not installed: pip install '.[nvrtc]'")


def test_nvrtc_makes_machine_code_that_is_kept(cache: Path, monkeypatch):
    """Of every kernel for Hopper; those of the presets are compiled for all architectures."""
    refuse()
    architecture = 90
    launched = every_kernel("cuda", [f"m16n8k32 {architecture}"])
    launcher = CudaLauncher(lambda: architecture)
    keys = [
        (each.source, (*(a.dtype for a in each.inputs), *(dtype for _, dtype in each.outputs)))
        for each in launched
    ]
    launcher.make(keys)
    kernels = [launcher.compiled(*key) for key in keys]
    assert len({kernel.name for kernel in kernels}) == len(kernels) > 30
    for kernel in kernels:
        assert kernel.code.startswith(b"\x7fELF")
        assert kernel.name.encode() in kernel.code
    count = len(list(cache.iterdir()))
    assert count == len(kernels)
    forbid: Callable[..., Any] = lambda *given: pytest.fail("compiled again")  # noqa: E731
    monkeypatch.setattr(nvrtc, "compiled", forbid)
    later = CudaLauncher(lambda: architecture)
    later.make(keys)
    assert [later.compiled(*key).code for key in keys] == [kernel.code for kernel in kernels]


def test_nvrtc_tells_an_error_with_its_line(cache: Path):
    refuse()
    with pytest.raises(nvrtc.CompileError, match=r"error: identifier \"no_such\" is undefined"):
        nvrtc.machine_code([cuda_text(SOURCE._replace(body="no_such();"), INT8, "copy")], "sm_80")
    assert not list(cache.glob("*"))


def test_the_engine_of_this_machine_launches_so():
    """The module's launcher is the default, and the one whose launches are paced."""
    case = random_case(3, V=9, D=8, T=2, P=6)
    made = CudaEngine(case.program, on=on())
    assert made.launcher is cuda.launch
    assert made.pace.waits
    assert not CudaEngine(case.program, launcher=CudaLauncher(lambda: 80), on=on()).pace.waits
