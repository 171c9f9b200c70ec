"""CUDA kernels, from the text that we compile to their launch through MLX."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import mlx.core as mx

from eggroll.engines import nvrtc
from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.gpu.launch import Shape
from eggroll.errors import EngineWarning

# All that kernels need of headers.
PRELUDE = """\
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
"""
Dtypes = tuple[mx.Dtype, ...]  # of a kernel's arrays, inputs first
Outputs = Sequence[tuple[Shape, mx.Dtype]]


def cuda_text(source: KernelSource, dtypes: Dtypes, name: str) -> str:
    """The text of a kernel called `name`, with launch bounds where the source says of how many."""
    count, kinds = len(source.inputs), (str(dtype).rpartition(".")[2] for dtype in dtypes)
    parameters = ",\n".join(
        f"    {'const ' * (i < count)}{kind}_t* {array}"
        for i, (kind, array) in enumerate(zip(kinds, source.inputs + source.outputs, strict=True))
    )
    bounds = f" __launch_bounds__({source.threads}, {source.blocks})" if source.blocks else ""
    return (
        f'{PRELUDE}{source.header}extern "C" __global__ void{bounds} {name}(\n{parameters}) {{\n'
        f"{source.body}\n}}\n"
    )


def named_text(source: KernelSource, dtypes: Dtypes) -> tuple[str, str]:
    """A name with a hash of the text, as MLX's table of modules goes by names, and the text."""
    text = cuda_text(source, dtypes, source.name)
    name = f"{source.name}_{hashlib.sha256(text.encode('ascii')).hexdigest()[:16]}"
    return name, cuda_text(source, dtypes, name)


def code_name(architecture: int) -> str:
    """The architecture of machine code as NVRTC calls it; Hopper's with all that it has."""
    return f"sm_{architecture}{'a' * (architecture == 90)}"


class Kernel(NamedTuple):
    """A kernel in machine code, called as those that MLX compiles."""

    name: str
    text: str
    code: bytes
    shared: int  # bytes of shared memory

    def __call__(
        self,
        *,
        inputs: list[mx.array],
        output_shapes: list[Shape],
        output_dtypes: list[mx.Dtype],
        grid: Shape,
        threadgroup: Shape,
        verbose: bool = False,
    ) -> list[mx.array]:
        """verbose: prints the text."""
        if verbose:
            print(self.text, flush=True)
        precompiled: Any = mx.fast.precompiled_cuda_kernel
        arrays: list[mx.array] = precompiled(
            name=self.name, compiled_source=self.code, inputs=inputs, output_shapes=output_shapes,
            output_dtypes=output_dtypes, scalars=[], grid=grid, threadgroup=threadgroup,
            shared_memory=self.shared, ensure_row_contiguous=True,
        )  # fmt: skip
        return arrays


class KernelMissing(Exception):
    """A call needs a kernel that is not made yet, and perhaps more of them."""


class CudaLauncher:
    """Runs kernels on this machine's GPU, each compiled once in a process or taken from the cache.

    architecture: gives the GPU's, such as 90, or 0 without one. asked: how calls of this thread are
    meant.
    """

    class Asked(threading.local):
        """waits: whether a kernel that is not made yet ends the call; listed: kernels that are not
        made yet, while they are only listed.
        """

        waits = False
        listed: list[tuple[KernelSource, Dtypes]] | None = None

    def __init__(self, architecture: Callable[[], int]) -> None:
        self.architecture = architecture
        self.asked, self.warned = self.Asked(), False
        self._made: dict[tuple[KernelSource, Dtypes], Any] = {}

    def __call__(
        self,
        source: KernelSource,
        inputs: Sequence[mx.array],
        outputs: Outputs,
        grid: Shape,
        threadgroup: Shape,
    ) -> list[mx.array]:
        dtypes = (*(a.dtype for a in inputs), *(dtype for _, dtype in outputs))
        if (source, dtypes) not in self._made:
            if self.asked.listed is not None:
                self.asked.listed.append((source, dtypes))
                return [mx.zeros(shape, dtype) for shape, dtype in outputs]
            if self.asked.waits:
                raise KernelMissing
        arrays: list[mx.array] = self.compiled(source, dtypes)(
            inputs=list(inputs),
            output_shapes=[shape for shape, _ in outputs],
            output_dtypes=[dtype for _, dtype in outputs],
            grid=grid,
            threadgroup=threadgroup,
        )
        return arrays

    def compiled(self, source: KernelSource, dtypes: Dtypes) -> Any:
        """The kernel for arrays of these types."""
        if (source, dtypes) not in self._made:
            self.make([(source, dtypes)])
        return self._made[source, dtypes]

    def make(self, keys: Sequence[tuple[KernelSource, Dtypes]]) -> None:
        """Compiles kernels side by side, or finds them in the cache.

        MLX compiles them where NVRTC cannot be loaded, and says that there is no GPU.
        """
        if not self.architecture() or self._lacks_nvrtc():
            self._made |= {key: mlx_kernel(*key) for key in keys}
            return
        named = [named_text(*key) for key in keys]
        texts, architecture = [text for _, text in named], code_name(self.architecture())
        codes = nvrtc.machine_code(texts, architecture)
        for key, (name, text), code in zip(keys, named, codes, strict=True):
            self._made[key] = Kernel(name, text, code, key[0].shared)

    def _lacks_nvrtc(self) -> bool:
        why = nvrtc.unavailable_because()
        if why and not self.warned:
            self.warned = True
            warnings.warn(
                f"{why}; without it MLX compiles every kernel in every process, for a second or "
                "two each.", EngineWarning, stacklevel=2,
            )  # fmt: skip
        return bool(why)

    def make_for(self, works: Sequence[Callable[[], object]]) -> None:
        """Makes all kernels that calls would need, which are made with zeros for results."""
        self.asked.listed = []
        try:
            for work in works:
                work()
            keys = list(dict.fromkeys(self.asked.listed))
        finally:
            self.asked.listed = None
        self.make(keys)


def mlx_kernel(source: KernelSource, dtypes: Dtypes) -> Any:
    """The kernel as MLX compiles it, without launch bounds, for which it has no word."""
    return mx.fast.cuda_kernel(
        name=named_text(source, dtypes)[0],
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
        shared_memory=source.shared,
    )


def together(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an engine whose kernels are compiled side by side where some are not made yet.

    It is then called twice: first to list them, with zeros for results, then as ever.
    """

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        launcher = self.launcher
        if not isinstance(launcher, CudaLauncher) or launcher.asked.waits:
            return method(self, *arguments, **named)

        def listing() -> Any:
            paced, self.pace.waits = self.pace.waits, False
            try:
                return method(self, *arguments, **named)
            finally:
                self.pace.waits = paced

        if launcher.asked.listed is not None:
            return listing()
        try:
            launcher.asked.waits = True
            return method(self, *arguments, **named)
        except KernelMissing:
            pass
        finally:
            launcher.asked.waits = False
        launcher.make_for([listing])
        return method(self, *arguments, **named)

    return call
