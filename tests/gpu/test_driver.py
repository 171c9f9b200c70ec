"""The launcher by CUDA's driver API, on a driver that the emulation plays."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import emulator
import mlx.core as mx
import numpy as np
import pytest
from networks import random_case
from networks_credit import credited_case
from test_credit import same

from eggroll.engines import cuda, nvrtc, trial
from eggroll.engines.cuda import CudaEngine
from eggroll.engines.gpu import dialect
from eggroll.engines.gpu.dialect import KernelSource
from gpu import driver, rates
from gpu.backend import CudaGpu, check_scores, check_votes, on
from gpu.driver import Driver, DriverError
from gpu.every_kernel import Launched


class FakeCuda:
    """The driver's functions over memory of this process.

    wild: bytes beyond its last array that a kernel writes.
    """

    def __init__(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.wild, self.events = run, 0, 0
        self.memory: dict[int, np.ndarray] = {}
        self.sources: dict[str, tuple[KernelSource, tuple[mx.Dtype, ...]]] = {}
        self.names: list[str] = []
        self.shared: dict[int, int] = {}
        right = driver.named_text

        def recorded(source: KernelSource, dtypes: tuple[mx.Dtype, ...]) -> tuple[str, str]:
            name, text = right(source, dtypes)
            self.sources[name] = source, dtypes
            return name, text

        monkeypatch.setattr(driver, "named_text", recorded)
        monkeypatch.setattr(nvrtc, "machine_code", lambda texts, sm: [b"\x7fELF" for _ in texts])

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = 0
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 77
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        return 0 if context.value == 77 else 201

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_OF_%d" % code
        return 0

    def cuDeviceGetName(self, text: Any, size: int, device: int) -> int:
        text.value = b"NVIDIA Pretence"
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: int) -> int:
        value._obj.value = {75: 8, 76: 0, 16: 108, 13: 1_410_000}[number]
        return 0

    def cuModuleLoadData(self, module: Any, code: Any) -> int:
        module._obj.value = 5
        return 0 if code.value == b"\x7fELF" else 200

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.names.append(name.decode())
        function._obj.value = len(self.names)
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.shared[function.value] = value
        return 0 if attribute == 8 else 1

    def cuMemAlloc_v2(self, place: Any, size: Any) -> int:
        at = 4096 + 1_000_000_000 * len(self.memory)
        self.memory[at] = np.zeros(size.value, np.uint8)
        place._obj.value = at
        return 0

    def cuMemFree_v2(self, place: Any) -> int:
        self.memory[place.value] = np.zeros(0, np.uint8)
        return 0

    def cuMemsetD8_v2(self, place: Any, byte: Any, size: Any) -> int:
        self.memory[place.value][: size.value] = byte.value
        return 0

    def cuMemcpyHtoD_v2(self, place: Any, source: Any, size: Any) -> int:
        data = ctypes.string_at(source.value, size.value)
        self.memory[place.value][: size.value] = np.frombuffer(data, np.uint8)
        return 0

    def cuMemcpyDtoH_v2(self, to: Any, place: Any, size: Any) -> int:
        ctypes.memmove(to.value, self.memory[place.value].tobytes(), size.value)
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        self.events += 1
        event._obj.value = 9
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.events -= 1
        return 0

    def cuEventRecord(self, event: Any, stream: None) -> int:
        return 0

    def cuEventSynchronize(self, event: Any) -> int:
        return 0

    def cuEventElapsedTime(self, milliseconds: Any, start: Any, end: Any) -> int:
        milliseconds._obj.value = 0.25
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        *sizes, _stream, pointers, _extra = rest
        x, y, z, tx, ty, tz, shared = (size.value for size in sizes)
        source, dtypes = self.sources[self.names[function.value - 1]]
        if shared != source.shared or self.shared[function.value] != shared:
            return 1
        count, arrays = len(source.inputs), list[np.ndarray]()
        for i, dtype in enumerate(dtypes):
            place = ctypes.c_uint64.from_address(pointers[i]).value
            whole = self.memory[place]
            arrays.append(whole[: len(whole) - driver.CANARY].view(str(dtype).rpartition(".")[2]))
        inputs = [mx.array(array) for array in arrays[:count]]
        shapes = [((a.size,), d) for a, d in zip(arrays[count:], dtypes[count:], strict=True)]
        grid, threads = (x * tx, y * ty, z * tz), (tx, ty, tz)
        for array, made in zip(
            arrays[count:], self.run(source, inputs, shapes, grid, threads), strict=True
        ):
            array[:] = np.array(made)
        if self.wild:
            whole[len(whole) - driver.CANARY :][: self.wild] = 0
        return 0


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
def test_an_engine_runs_by_the_driver(gpu: CudaGpu, monkeypatch: pytest.MonkeyPatch):
    fake = FakeCuda(gpu.launcher(orders=(emulator.FORWARD,)), monkeypatch)
    driven = Driver(fake)
    case = random_case(3, V=9, D=8, T=2, P=6)
    made = CudaEngine(case.program, launcher=driven, members=8, on=on())
    check_scores(made, case)
    check_votes(made, case, np.array([1, -1, 1]))
    credited = credited_case(3, "token-credit", V=9, D=8, T=2, P=6)
    same(credited.run(made), credited.oracle())
    assert {launch.milliseconds for launch in driven.launches} == {0.25}
    assert len(driven.launches) > 8
    assert fake.events == 0
    assert not any(array.size for array in fake.memory.values())


def copies(source: KernelSource, inputs: Any, outputs: Any, grid: Any, threads: Any) -> list:
    """Every kernel copies its first input, or gives zeros."""
    assert grid[0] % threads[0] == 0
    found = [mx.zeros(shape, dtype) for shape, dtype in outputs]
    return [inputs[0]] if source.name == "copy" else found


def marked(source: KernelSource, inputs: Any, outputs: Any, grid: Any, threads: Any) -> list:
    """Every kernel gives zeros, but one with a mark in its header ones."""
    return [mx.full(shape, "MARK" in source.header, dtype) for shape, dtype in outputs]


COPY = KernelSource("copy", ("a",), ("b",), "", "b[threadIdx.x] = a[threadIdx.x];", shared=64)


def run_copy(driven: Driver, **options: Any) -> mx.array:
    numbers = mx.arange(40).astype(mx.int32)
    outputs = [((40,), mx.int32)]
    (found,) = driven(COPY, [numbers], outputs, (40, 1, 1), (64, 1, 1), **options)
    return found


def test_blocks_are_whole_and_times_are_of_every_repeat(monkeypatch: pytest.MonkeyPatch):
    driven = Driver(FakeCuda(copies, monkeypatch))
    assert run_copy(driven, repeats=3).tolist() == list(range(40))
    assert len(driven.launches) == 3
    assert driven.architecture == 80


def test_what_is_written_beyond_an_array_is_told(monkeypatch: pytest.MonkeyPatch):
    fake = FakeCuda(copies, monkeypatch)
    fake.wild = 1
    with pytest.raises(DriverError, match=r"copy_.* wrote beyond an array of 160 bytes"):
        run_copy(Driver(fake))
    assert not any(array.size for array in fake.memory.values())


def test_an_error_has_the_drivers_name(monkeypatch: pytest.MonkeyPatch):
    fake = FakeCuda(copies, monkeypatch)
    monkeypatch.setattr(fake, "cuLaunchKernel", lambda *given: 700)
    with pytest.raises(DriverError, match="cuLaunchKernel: error 700, CUDA_ERROR_OF_700"):
        run_copy(Driver(fake))


def test_its_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(source: KernelSource, inputs: Any, outputs: Any, grid: Any, threads: Any) -> list:
        if source.name == "egg_look":
            return [3 * inputs[0]]
        return copies(source, inputs, outputs, grid, threads)

    monkeypatch.setattr(nvrtc, "version", lambda: "13.0 7")
    driven = Driver(FakeCuda(run, monkeypatch))
    assert driver.main(["look"], driven) == 0
    said = capsys.readouterr().out
    assert "NVIDIA Pretence, sm_80, 108 multiprocessors at most 1410 MHz; NVRTC 13.0 7" in said
    assert "a kernel of one line is right" in said
    source = COPY._replace(name="egg_stage")
    launched = [
        Launched(name, source, (mx.zeros(8),), (((8,), mx.float32),), (8, 1, 1), (8, 1, 1))
        for name in ("paper layer", "paper head")
    ]
    monkeypatch.setattr(driver, "every_kernel", lambda kind, variants: launched)
    assert driver.main(["time", "paper", "layer", "--each", "4"], driven) == 0
    assert capsys.readouterr().out == "paper layer: 0.2500 ms, at least 0.2500, of 3\n"
    assert driver.main(["time", "lunch"], driven) == 2
    assert "no kernel has the words lunch" in capsys.readouterr().err


def test_times_of_stages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    driven = Driver(FakeCuda(copies, monkeypatch))
    assert driver.main(["stages", "64"], driven) == 0
    lines = capsys.readouterr().out.splitlines()
    # embedding, six layers, head, and two kernels of votes, a quarter of a millisecond each
    assert "preset paper, 64 members, 16 tokens: 0.41 M tokens/s by 2.500 ms of the device" in lines
    assert sum("6 launches, 1.500 ms" in line for line in lines) == 1


def test_a_kernel_file_is_timed_in_turn_with_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Half of an update's kernels have it, and what they give is compared."""
    cuda_gpu = Driver(FakeCuda(marked, monkeypatch))
    network = {"width": 8, "layers": 1, "vocabulary": 9, "seq_len": 16}
    monkeypatch.setattr(driver, "PRESETS", {"seed": network, "paper": network})
    for mark, code in (("// as before\n", 0), ("// MARK\n", 1)):
        file = tmp_path / "score.cu"
        file.write_text(mark + dialect.kernel_text("cuda/score.cu"))
        assert driver.main(["compare", f"cuda/score.cu={file}", "64"], cuda_gpu) == code
        lines = capsys.readouterr().out.splitlines()
        word = "OTHER BITS" if code else "the same bits"
        assert lines[0] == (
            "preset seed, 64 members: 1.250 ms, with these files 1.250, 1.000 of it (1.000 to "
            f"1.000, 5 turns); {word}"
        )
        assert lines[1:3] == [
            f"  {name}: 0.250 0.250 0.250 0.250 0.250" for name in ("as it is", "with these files")
        ]
    assert driver.main(["compare", f"cuda/scores.cu={file}", "64"], cuda_gpu) == 2
    assert "the kernel cuda/scores.cu is missing" in capsys.readouterr().err
    headers = [source.header for source, _ in cuda_gpu.cuda.sources.values()]
    for mark in ("// as before", "// MARK"):
        assert sum(mark in header for header in headers) == 1


def test_the_trial_by_the_driver(monkeypatch: pytest.MonkeyPatch, capsys):
    """It is the engine's own: here all kernels give zeros, and that is told."""
    rows = trial.trial_networks()["rows"]
    monkeypatch.setattr(trial, "trial_networks", lambda: {"rows": rows})
    monkeypatch.setattr(trial, "GROUPS", 1)
    driven = Driver(FakeCuda(copies, monkeypatch))
    assert driver.main(["trial"], driven) == 1
    said = capsys.readouterr().out
    assert "rows with m16n8k32: where slices begin: " in said
    assert "launches took" in said


@pytest.mark.skipif(cuda.has_gpu(), reason="this machine has a CUDA GPU")
@pytest.mark.parametrize("command", ["look", "trial", "time", "stages"])
def test_without_a_driver_a_sentence_says_so(command: str, capsys, monkeypatch):
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    assert driver.main([command]) == 2
    assert "error: libcuda.so.1: cannot open shared object file" in capsys.readouterr().err


def test_the_peak_is_that_of_the_data_sheet(monkeypatch: pytest.MonkeyPatch):
    """An A100: 624 TOPS of int8."""
    assert 2e-3 * rates.peak_gmacs(Driver(FakeCuda(copies, monkeypatch))) == pytest.approx(
        624, 1e-3
    )


def test_power_is_a_median():
    assert rates.sampled("100.0, 1410\n[N/A], [N/A]\n300.5, 1200\n200.0, 1380\n") == (
        "power 200 W, at most 300; clock 1380 MHz, of 3 samples"
    )
    assert rates.sampled("") == "nvidia-smi tells no power"
