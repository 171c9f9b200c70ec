"""CUDA's driver API as a launcher: kernels without MLX's back-end, timed by the GPU's clock.

PYTHONPATH=tests python -m gpu.driver look                   the GPU, and a kernel of one line
PYTHONPATH=tests python -m gpu.driver trial [PRODUCT]        the engine's trial by this launcher
PYTHONPATH=tests python -m gpu.driver time [WORDS] [--each N]    device times of kernels so named
PYTHONPATH=tests python -m gpu.driver stages [P]             device times of updates of both presets
PYTHONPATH=tests python -m gpu.driver compare cuda/NAME.cu=FILE .. [P]    the same, in turn with
                                                             other files in place of kernel files
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np

from eggroll import networks
from eggroll.bench import PRESETS
from eggroll.engines import nvrtc, trial, zero_state
from eggroll.engines.cuda import CudaEngine, chosen_product, target
from eggroll.engines.cuda_launch import code_name, named_text
from eggroll.engines.gpu import dialect
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.launch import MAX_MACS, Shape
from eggroll.engines.gpu.votes import vote_sources
from eggroll.errors import InputError
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch
from gpu.every_kernel import every_kernel

TOKENS = 16  # of an update
CANARY, POISON = 256, 0xA5  # bytes after every array, and what they and outputs begin with
MAX_SHARED, MULTIPROCESSORS, CLOCK, MAJOR, MINOR = 8, 16, 13, 75, 76  # of the driver's attributes


class DriverError(RuntimeError):
    """A call of the driver failed, or a kernel wrote beyond an array."""


class Launch(NamedTuple):
    """A launch that was made."""

    name: str
    milliseconds: float


class Driver:
    """The first GPU of this machine. cuda: the driver's functions; None loads libcuda.so.1."""

    def __init__(self, cuda: Any = None) -> None:
        self.cuda, self.launches = cuda or ctypes.CDLL("libcuda.so.1"), list[Launch]()
        self._functions: dict[str, c_void_p] = {}
        device, context = c_int(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.device = device.value
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self.architecture = 10 * self.attribute(MAJOR) + self.attribute(MINOR)

    def call(self, function: str, *arguments: Any) -> None:
        """Raises DriverError unless the driver's function returns 0."""
        if code := getattr(self.cuda, function)(*arguments):
            name = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, byref(name))
            raise DriverError(f"{function}: error {code}, {(name.value or b'').decode()}")

    def attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, self.device)
        return text.value.decode()

    def function(self, source: KernelSource, dtypes: tuple[mx.Dtype, ...]) -> tuple[str, c_void_p]:
        """A kernel's name and its function, compiled by NVRTC or taken from the cache."""
        name, text = named_text(source, dtypes)
        if name not in self._functions:
            (code,) = nvrtc.machine_code([text], code_name(self.architecture))
            module, function = c_void_p(), c_void_p()
            self.call("cuModuleLoadData", byref(module), ctypes.c_char_p(code))
            self.call("cuModuleGetFunction", byref(function), module, name.encode())
            self.call("cuFuncSetAttribute", function, MAX_SHARED, source.shared)
            self._functions[name] = function
        return name, self._functions[name]

    def __call__(
        self,
        source: KernelSource,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[Shape, mx.Dtype]],
        grid: Shape,
        threadgroup: Shape,
        repeats: int = 1,
    ) -> list[mx.array]:
        """A launcher of engines; the device's time of every repeat is kept in `launches`."""
        dtypes = (*(a.dtype for a in inputs), *(dtype for _, dtype in outputs))
        name, function = self.function(source, dtypes)
        given = [np.ascontiguousarray(np.array(a)) for a in inputs]
        made = [np.zeros(shape, str(dtype).rpartition(".")[2]) for shape, dtype in outputs]
        places = [self._upload(a, fill=i >= len(given)) for i, a in enumerate((*given, *made))]
        try:
            blocks = [-(-count // size) for count, size in zip(grid, threadgroup, strict=True)]
            threads = [min(pair) for pair in zip(grid, threadgroup, strict=True)]
            for _ in range(repeats):
                self._run(name, function, (*blocks, *threads, source.shared), places)
            for array, place in zip(made, places[len(given) :], strict=True):
                self._download(name, array, place)
        finally:
            for place in places:
                self.call("cuMemFree_v2", place)
        return [mx.array(array) for array in made]

    def _upload(self, array: np.ndarray, fill: bool) -> c_uint64:
        """The address of a copy on the GPU, with more behind it; fill: poison in its place."""
        place = c_uint64()
        self.call("cuMemAlloc_v2", byref(place), c_size_t(array.nbytes + CANARY))
        self.call("cuMemsetD8_v2", place, ctypes.c_ubyte(POISON), c_size_t(array.nbytes + CANARY))
        if not fill and array.nbytes:
            self.call("cuMemcpyHtoD_v2", place, c_void_p(array.ctypes.data), c_size_t(array.nbytes))
        return place

    def _download(self, name: str, array: np.ndarray, place: c_uint64) -> None:
        whole = np.zeros(array.nbytes + CANARY, np.uint8)
        self.call("cuMemcpyDtoH_v2", c_void_p(whole.ctypes.data), place, c_size_t(whole.nbytes))
        if (whole[array.nbytes :] != POISON).any():
            raise DriverError(f"{name} wrote beyond an array of {array.nbytes} bytes")
        array.reshape(-1).view(np.uint8)[:] = whole[: array.nbytes]

    def _run(self, name: str, function: c_void_p, sizes: Sequence[int], places: list) -> None:
        pointers = (c_void_p * len(places))(*(ctypes.addressof(place) for place in places))
        start, end, milliseconds = c_void_p(), c_void_p(), c_float()
        for event in (start, end):
            self.call("cuEventCreate", byref(event), 0)
        self.call("cuEventRecord", start, None)
        self.call("cuLaunchKernel", function, *map(c_uint, sizes), None, pointers, None)
        self.call("cuEventRecord", end, None)
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", byref(milliseconds), start, end)
        for event in (start, end):
            self.call("cuEventDestroy_v2", event)
        self.launches.append(Launch(name, milliseconds.value))


ONE_LINE = KernelSource("egg_look", ("a",), ("b",), "", "b[threadIdx.x] = 3 * a[threadIdx.x];")


def look(driver: Driver) -> int:
    """Tells of the GPU, and whether a kernel of one line gives what it should."""
    print(
        f"{driver.name}, sm_{driver.architecture}, {driver.attribute(MULTIPROCESSORS)} "
        f"multiprocessors at most {driver.attribute(CLOCK) / 1000:g} MHz; NVRTC {nvrtc.version()}"
    )
    numbers = np.arange(-64, 64, dtype=np.int32)
    (found,) = driver(ONE_LINE, [mx.array(numbers)], [((128,), mx.int32)], (128, 1, 1), (128, 1, 1))
    right = np.array_equal(found, 3 * numbers)
    print(f"a kernel of one line {'is right' if right else 'is WRONG'}")
    return 0 if right else 1


def try_engine(driver: Driver, product: str = "") -> int:
    """The engine's trial by this launcher; MLX computes on the CPU."""
    driven, wrong = target(driver.architecture, product or chosen_product()), list[str]()
    for title, program in trial.trial_networks().items():
        group = max(CudaEngine.group_sizes)
        engine = CudaEngine(program, launcher=driver, members=group, on=driven)
        found = trial.differences(engine, trial.GROUPS * group + 2)
        wrong += [f"{title}, {each}" for each in found]
        print(f"{title} with {driven.product}: {'; '.join(found) or 'all is right'}", flush=True)
    total = sum(launch.milliseconds for launch in driver.launches)
    print(f"{len(driver.launches)} launches took {total:.2f} ms of the device")
    return 1 if wrong else 0


def time_kernels(driver: Driver, words: Sequence[str], each: int) -> int:
    """Device times of the kernels whose names have all these words."""
    product = target(driver.architecture, chosen_product()).product
    found = [
        launched
        for launched in every_kernel("cuda", [f"{product} {driver.architecture}"])
        if all(word in launched.name for word in words)
    ]
    for launched in found:
        count = len(driver.launches)
        driver(*launched[1:], repeats=each)
        times = [launch.milliseconds for launch in driver.launches[count:]][1:]
        least, middle = min(times), statistics.median(times)
        print(
            f"{launched.name}: {middle:.4f} ms, at least {least:.4f}, of {len(times)}", flush=True
        )
    if not found:
        print(f"error: no kernel has the words {', '.join(words)} in its name.", file=sys.stderr)
    return 0 if found else 2


class Update:
    """Scores and votes of P members of a preset, 16 tokens each, as often as it is called."""

    def __init__(self, driver: Driver, preset: str, P: int) -> None:
        network = PRESETS[preset]
        V, self.P, self.driver = network["vocabulary"], P, driver
        program = networks.egg(V, network["width"], network["layers"])
        self.engine = CudaEngine(program, launcher=driver, on=target(driver.architecture))
        self.engine.pace.macs = MAX_MACS  # it times no portions, by which it would become so
        shapes = [leaf.shape for leaf in program.leaves]
        noise = Noise(shapes, seed=0, rank=1, shift=8, table_bits=24)
        self.slices = noise.slices(0, 0, P // 2)
        tokens = mx.array(np.random.default_rng(0).integers(0, V, (P, TOKENS), np.int32))
        self.batch = Batch(tokens, tokens, zero_state(program, P))
        self.prepared = self.engine.prepare(networks.initial_weights(program, 0))

    def __call__(self) -> tuple[list[Launch], list[np.ndarray]]:
        """The launches of it, and what they gave."""
        count = len(self.driver.launches)
        scores, _ = self.engine.evaluate(self.prepared, self.slices, self.batch)
        votes = self.engine.votes(mx.ones(self.P // 2, mx.int8), self.slices, True)
        return self.driver.launches[count:], [np.array(a) for a in (scores, *votes.values())]


def time_stages(driver: Driver, P: int) -> int:
    """Device times of scores and votes of P members, launch by launch, and the tokens/s of them."""
    for preset in ("seed", "paper"):
        update = Update(driver, preset, P)
        update()  # not timed
        made, _ = update()
        total = sum(launch.milliseconds for launch in made)
        rate = P * TOKENS / total / 1e3
        what = f"preset {preset}, {P:,} members, {TOKENS} tokens"
        print(f"{what}: {rate:.2f} M tokens/s by {total:.3f} ms of the device")
        for name in dict.fromkeys(launch.name for launch in made):
            times = [launch.milliseconds for launch in made if launch.name == name]
            print(f"  {name}: {len(times)} launches, {sum(times):.3f} ms", flush=True)
    return 0


@contextmanager
def in_place(files: Mapping[str, Path]) -> Iterator[None]:
    """Kernels that are written now have these files in place of those of such a name."""
    right = dialect.kernel_text
    for name in files:
        right(name)  # a wrong name would change nothing, and nobody would see it

    def kernel_text(*names: str) -> str:
        found = next((files[name] for name in names if name in files), None)
        return found.read_text("ascii") if found else right(*names)

    vote_sources.cache_clear()  # they are kept from engine to engine
    with mock.patch.object(dialect, "kernel_text", kernel_text):
        yield
    vote_sources.cache_clear()


def compare(driver: Driver, files: Mapping[str, Path], P: int, turns: int = 5) -> int:
    """Device times of updates as the kernels are and with other files, one after the other."""
    worst = 0
    for preset in ("seed", "paper"):
        updates = [Update(driver, preset, P) for _ in range(2)]
        times: list[list[list[float]]] = [[], []]  # of both, of every turn, of its launches
        for turn in range(turns + 1):
            found = []
            for each, update in zip(times, updates, strict=True):
                with in_place(files if update is updates[1] else {}):
                    launches, arrays = update()
                found.append(arrays)
                if turn:  # the first one is not timed
                    each.append([launch.milliseconds for launch in launches])
        same = all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
        worst = max(worst, not same)
        before, after = (statistics.median(map(sum, each)) for each in times)
        shares = sorted(sum(b) / sum(a) for a, b in zip(*times, strict=True))
        print(
            f"preset {preset}, {P:,} members: {before:.3f} ms, with these files {after:.3f}, "
            f"{statistics.median(shares):.3f} of it ({shares[0]:.3f} to {shares[-1]:.3f}, {turns} "
            f"turns); {'the same bits' if same else 'OTHER BITS'}"
        )
        for name, each in zip(("as it is", "with these files"), times, strict=True):
            launches = [statistics.median(column) for column in zip(*each, strict=True)]
            print(f"  {name}: {' '.join(f'{ms:.3f}' for ms in launches)}", flush=True)
    return worst


def main(words: Sequence[str], driver: Driver | None = None) -> int:
    command, *rest = words or ["look"]
    each = 20
    if "--each" in rest:
        at = rest.index("--each")
        each = int(rest[at + 1])
        del rest[at : at + 2]
    try:
        driver = driver or Driver()
        if command == "time":
            return time_kernels(driver, rest, each)
        P = int(rest.pop()) if rest and rest[-1].isdigit() else 16384
        if command == "stages":
            return time_stages(driver, P)
        if command == "compare":
            return compare(driver, {a: Path(b) for a, _, b in (w.partition("=") for w in rest)}, P)
        return look(driver) if command == "look" else try_engine(driver, *rest)
    except (OSError, DriverError, InputError, nvrtc.CompileError) as error:
        print(f"error: {trial.sentence(str(error))}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    sys.exit(main(sys.argv[1:]))
