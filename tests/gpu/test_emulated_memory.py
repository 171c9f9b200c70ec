"""What the emulation sees of memory, in kernels of a few lines: races, bounds, what is left out.

One order of the threads is enough: every byte keeps who touched it since the last barrier.
"""

from __future__ import annotations

import re
from pathlib import Path

import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulator import FORWARD, REVERSE, EmulationError

from eggroll.engines.gpu.dialect import KernelSource, kernel_text
from gpu.backend import CudaGpu, MetalGpu

metal_only = pytest.mark.parametrize("gpu", ["metal"], indirect=True)
cuda_only = pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
HEADER = "#include <metal_stdlib>\nusing namespace metal;\n" + kernel_text("metal/language.metal")
OPENING = """\
const uint t = simdgroup_index_in_threadgroup * 32 + thread_index_in_simdgroup;
const uint g = threadgroup_position_in_grid.x;
EGG_SHARED(int, own, 64);
"""
OUT = "out[64 * g + t] = int(t);\n"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
OF_DEVICE = "threadgroup_barrier(mem_flags::mem_device);\n"
OF_LANES = "simdgroup_barrier(mem_flags::mem_threadgroup);\n"
CLEAR = "own[t] = 0;\n" + BARRIER


def exchanged(between: str, with_thread: int) -> str:
    """Threads write, and read what another one wrote."""
    return f"own[t] = 1;\n{between}out[64 * g + t] = own[t ^ {with_thread}];\n"


def in_device_memory(between: str) -> str:
    return f"scratch[t] = 1;\n{between}out[t] = scratch[t ^ 32];\n"


def run_cuda(launcher: emulator.Emulator) -> None:
    body = "out[threadIdx.x] = given[threadIdx.x];\n"
    source = KernelSource("memory", ("given",), ("out",), "", body)
    launcher(source, [mx.arange(64)], [((64,), mx.int32)], (64, 1, 1), (64, 1, 1))


def run(
    gpu: MetalGpu,
    body: str,
    groups: int = 1,
    order: int = FORWARD,
    launcher: emulator.Emulator | None = None,
) -> None:
    """Runs a kernel of 64 threads a threadgroup: `given`, 64 int32, and `out`, 64 for each."""
    names = ("out", "scratch") if "scratch" in body else ("out",)
    source = KernelSource("memory", ("given",), names, HEADER, OPENING + body, 4 * 64)
    outputs = [((64 * groups,), mx.int32)] * len(names)
    launcher = launcher or gpu.launcher(orders=(order,))
    for _ in range(2):  # what one launch did is nothing to the next one
        launcher(source, [mx.arange(64)], outputs, (64 * groups, 1, 1), (64, 1, 1))


@metal_only
@pytest.mark.parametrize("order", [FORWARD, REVERSE])
@pytest.mark.parametrize(
    ("body", "groups"),
    [
        (OUT, 2),
        (exchanged(BARRIER, 32), 2),
        (exchanged(OF_LANES, 1), 1),
        (exchanged("", 0), 1),
        (in_device_memory(OF_DEVICE), 1),
        # Read by many, and written by one when all are past a barrier.
        (f"{CLEAR}int v = own[5];\n{BARRIER}if (t == 5) own[5] = v;\n{OUT}", 1),
        # A byte for each, side by side in a word.
        (f"reinterpret_cast<threadgroup char2*>(own)[t].x = int8_t(t);\n{OUT}", 1),
    ],
)
def test_what_barriers_order_is_let_pass(gpu: MetalGpu, body: str, groups: int, order: int):
    run(gpu, body, groups, order)


RACES = {
    "no barrier between simdgroups": exchanged("", 32),
    "only a barrier of lanes": exchanged(OF_LANES, 32),
    "no barrier between lanes": exchanged("", 1),
    "a sum of lanes, which orders no memory": exchanged("int sum = simd_sum(1);\n", 1),
    "a barrier for other memory": exchanged(OF_DEVICE, 32),
    "no barrier for device memory": in_device_memory(BARRIER),
    "two write the same": f"own[7] = 1;\n{OUT}",
    "written by one of another simdgroup than the readers": (
        f"{CLEAR}int v = t < 32 ? own[5] : 0;\nif (t == 40) own[5] = v;\n{OUT}"
    ),
    "written by one of the readers": (
        f"{CLEAR}int v = own[5];\n{OF_LANES}if (t == 63) own[5] = v;\n{OUT}"
    ),
    "written by a lane that read, too": (
        f"{CLEAR}int v = t < 32 ? own[5] : 0;\nif (t == 31) own[5] = v;\n{OUT}"
    ),
    "written by the first of several lanes that read": (
        f"{CLEAR}int v = t < 32 ? own[5] : 0;\nint sum = simd_sum(1);\n"
        f"if (t == 0) own[5] = v;\n{OUT}"
    ),
    "written by the first of several simdgroups that read": (
        f"{CLEAR}int v = t % 32 == 0 ? own[5] : 0;\n{OF_DEVICE}if (t == 0) own[5] = v;\n{OUT}"
    ),
    "a word over another's byte": (
        f"reinterpret_cast<threadgroup int8_t*>(own)[4 * (t ^ 1) + 3] = 1;\nown[t] = 0;\n{OUT}"
    ),
    "a copy of a struct": (
        "struct Four { int v[4]; };\nFour four = {{1, 2, 3, 4}};\n"
        f"*reinterpret_cast<threadgroup Four*>(own + t / 2 * 4 % 64) = four;\n{OUT}"
    ),
}


@metal_only
@pytest.mark.parametrize("fault", RACES)
def test_races_of_threads_are_found_in_one_run(gpu: MetalGpu, fault: str):
    """Whichever order that run has; who comes later says so."""
    for order in (FORWARD, REVERSE):
        with pytest.raises(EmulationError, match="touched without a barrier between"):
            run(gpu, RACES[fault], order=order)


@metal_only
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{OUT}if (t == 5) out[5] = 5;\n", "writes what another threadgroup wrote"),
        (f"{OUT}if (g == 1 && out[t] == 7) out[70] = 7;\n", "reads what another threadgroup wrote"),
        (
            "int v = out[64 + t];\nout[64 * g + t] = v;\n",
            "writes what another threadgroup read",
        ),
    ],
)
def test_threadgroups_do_not_share_bytes(gpu: MetalGpu, body: str, said: str):
    with pytest.raises(EmulationError, match=said):
        run(gpu, body, 2)
    with pytest.raises(EmulationError, match=r"what another threadgroup (wrote|read)"):
        run(gpu, body, 2, REVERSE)


BYTES = "reinterpret_cast<const device int8_t*>(given)"
BOUNDS = {
    "past the end of an input": ("out[t] = given[t + 1];\n", "reads byte 256 of given"),
    "before its beginning": ("out[t] = given[int(t) - 1];\n", "outside every array"),
    "past the end of an output": (f"{OUT}out[t + 1] = 1;\n", "writes"),
    "past the end of what is shared": (f"{OUT}own[t + 1] = 1;\n", "writes"),
    "far from everything": ("out[t] = given[t + (1 << 28)];\n", "outside every array"),
    "into an input": (f"((device int*)given)[t] = 1;\n{OUT}", "writes byte 0 of given"),
    "an own array": ("int v[4] = {0, 0, 0, 0};\nout[t] = v[given[t]];\n", "out of bounds"),
    "not aligned": (f"out[t] = *(const device int*)({BYTES} + t);\n", "misaligned"),
    "a byte of an output that nobody writes": (
        f"if (t != 9) {OUT}",
        "nobody writes byte 36 of out",
    ),
}


@metal_only
@pytest.mark.parametrize("fault", BOUNDS)
def test_bounds_are_kept(gpu: MetalGpu, fault: str):
    body, said = BOUNDS[fault]
    with pytest.raises(EmulationError, match=re.escape(said)):
        run(gpu, body)


PLACES = {
    "side by side": ("EGG_SHARED(int, own, 0, 64); EGG_SHARED(int8_t, more, 256, 5);", 261, ""),
    "one over another": (
        "EGG_SHARED(int, own, 0, 64); EGG_SHARED(int, more, 240, 4);", 256,
        "more of threadgroup memory overlaps own",
    ),
    "within 16 bytes": ("EGG_SHARED(int, own, 4, 64);", 260, "own of threadgroup memory begins"),
    "beyond what is asked for": (
        "EGG_SHARED(int, own, 0, 64);", 252, "own of threadgroup memory ends behind",
    ),
    "less than is asked for": (
        "EGG_SHARED(int, own, 0, 64);", 272, "asks for 272 bytes of threadgroup memory",
    ),
    "a name twice": (
        "EGG_SHARED(int, own, 0, 64); { EGG_SHARED(int, own, 256, 64); own[t] = 1; }", 512,
        "two arrays of threadgroup memory have the name own",
    ),
    "more than there is": ("EGG_SHARED(int, own, 0, 64);", 1 << 18, "more threadgroup memory"),
}  # fmt: skip


@cuda_only
@pytest.mark.parametrize("places", PLACES)
def test_shared_memory_is_one_block(gpu: CudaGpu, places: str):
    declared, size, said = PLACES[places]
    body = f"const uint32_t t = threadIdx.x;\n{declared}\nown[t] = 0;\nout[t] = own[t];\n"
    source = KernelSource("memory", ("given",), ("out",), "", body, size)
    call = [mx.arange(64)], [((64,), mx.int32)], (64, 1, 1), (64, 1, 1)
    if not said:
        gpu.launcher()(source, *call)
        return
    with pytest.raises(EmulationError, match=said):
        gpu.launcher()(source, *call)


@cuda_only
def test_arrays_lie_where_their_offsets_say(gpu: CudaGpu):
    """In one block; bounds are those of the array that a pointer was made from."""
    declared = "EGG_SHARED(int, own, 0, 64);\nEGG_SHARED(int, more, 256, 64);\n"
    body = f"const uint32_t t = threadIdx.x;\n{declared}more[t] = int(t);\n__syncthreads();\n"
    source = KernelSource("memory", ("given",), ("out",), "", "", 512)
    call = [mx.arange(64)], [((64,), mx.int32)], (64, 1, 1), (64, 1, 1)
    with pytest.raises(EmulationError, match="reads byte 256 of own"):
        gpu.launcher()(source._replace(body=body + "out[t] = own[64 + t];\n"), *call)
    (out,) = gpu.launcher()(source._replace(body=body + "out[t] = own[t] + more[t];\n"), *call)
    garbage = set((np.array(out) - np.arange(64)).tolist())
    assert garbage in ({int(np.int32(0x5A5A5A5A))}, {0x80808080 - (1 << 32)})


def test_processes_of_kernels_are_few(gpu: MetalGpu | CudaGpu, monkeypatch: pytest.MonkeyPatch):
    """Each has three pipes: thousands of them would leave this process no files to open."""
    monkeypatch.setattr(emulator, "MOST_RUNNING", 3)
    launchers = [gpu.launcher() for _ in range(6)]
    before = open_files()
    for launcher in launchers * 2:
        run(gpu, OUT, launcher=launcher) if gpu.name == "metal" else run_cuda(launcher)
    assert len(emulator.running) == 3
    assert open_files() <= before + 9


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@cuda_only
@pytest.mark.parametrize(
    ("between", "race"),
    [("__syncthreads();", False), ("__shfl_sync(0xffffffffu, 1u, 0u);", True), ("", True)],
)
def test_races_of_cuda_are_found(gpu: CudaGpu, between: str, race: bool):
    """A shuffle orders no memory."""
    body = "const uint32_t t = threadIdx.x;\nEGG_SHARED_MEMORY;\nEGG_SHARED(int, own, 0, 64);\n"
    body += f"own[t] = 1;\n{between}\nout[t] = own[t ^ 1];\n"
    source = KernelSource("memory", ("given",), ("out",), "", body, 4 * 64)
    call = [mx.arange(64)], [((64,), mx.int32)], (64, 1, 1), (64, 1, 1)
    if not race:
        gpu.launcher()(source, *call)
        return
    with pytest.raises(EmulationError, match="of own, which thread"):
        gpu.launcher()(source, *call)
