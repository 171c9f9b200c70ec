"""Upper limits of a step's rate: the processor's int8 rates, measured between the steps.

Rates are in GMAC/s, 1e9 int8 multiply-adds per second. The same measurements tell a busy machine.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import mlx.core as mx

from eggroll import _extension, probe
from eggroll.engines import Engine
from eggroll.errors import InputError

GRANTED = 0.8  # of the processor time asked for; with less, other programs had the rest
SPREAD = 0.1  # (largest - smallest) / median of a limit, above which it is no limit


class Sample(NamedTuple):
    """Rates at one moment; granted: share of its threads' time that the first loop ran."""

    registers: float
    granted: float
    torch: float | None


class Rate(NamedTuple):
    """A limit's median, and its range, over a run."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        return (self.high - self.low) / self.median


class Limits:
    """Limits of the processor, sampled between steps; none for an engine on a GPU.

    samples: those taken so far.
    """

    def __init__(self, threads: int, *, on_cpu: bool) -> None:
        self.threads, self.samples = threads, list[Sample]()
        self.registers = register_loop(threads) if on_cpu else None
        self.torch = torch_loop(threads) if on_cpu else None

    def sample(self) -> Sample | None:
        if self.registers is None:
            return None
        wall, processor = time.perf_counter(), time.process_time()
        rate = self.registers()
        took = (time.perf_counter() - wall) * min(self.threads, probe.usable_cores())
        granted = (time.process_time() - processor) / took
        self.samples.append(Sample(rate, granted, self.torch() if self.torch else None))
        return self.samples[-1]

    def rates(self) -> dict[str, Rate]:
        """Limit by name, over all samples."""
        columns = {
            "registers": [s.registers for s in self.samples],
            "torch": [s.torch for s in self.samples if s.torch is not None],
        }
        return {
            name: Rate(statistics.median(rates), min(rates), max(rates))
            for name, rates in columns.items()
            if rates
        }

    def warning(self, of_limit: Sequence[float], of_torch: Sequence[float]) -> str:
        """A sentence if the figures of the run cannot be trusted, else empty.

        of_limit, of_torch: shares of a limit that steps reached.
        """
        if not self.samples:
            return ""
        rates, reasons = self.rates(), []
        granted = statistics.median(s.granted for s in self.samples)
        if granted < GRANTED:
            reasons.append(f"this program was given {granted:.0%} of its threads' time")
        for name, what in (("registers", "the register loop"), ("torch", "torch._int_mm")):
            if name in rates and rates[name].spread > SPREAD:
                reasons.append(f"{what} did {rates[name].low:.0f} to {rates[name].high:.0f} GMAC/s")
        if max(of_limit, default=0) > 1:
            reasons.append(f"steps reached {max(of_limit):.0%} of the limit")
        if max(of_torch, default=0) > 1:
            reasons.append(f"steps reached {max(of_torch):.0%} of torch._int_mm, which other "
                           "programs slow down most")  # fmt: skip
        if not reasons:
            return ""
        return (
            f"these figures are in doubt, as the machine seems busy ({'; '.join(reasons)}): repeat "
            "the run on an idle machine."
        )


def register_loop(threads: int) -> Callable[[], float]:
    """GMAC/s of the instruction set's dot product on registers alone, all threads at once."""
    native = _extension.load()
    try:
        native.isa()
    except ValueError as error:
        raise InputError(str(error)) from None
    return lambda: float(native.peak(threads)) / 1e9


def torch_loop(threads: int) -> Callable[[], float] | None:
    """GMAC/s of torch._int_mm (oneDNN) on 4096 x 256 times 256 x 1024, if torch is installed."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(threads)
    a = torch.randint(-127, 128, (4096, 256), dtype=torch.int8)
    b = torch.randint(-127, 128, (256, 1024), dtype=torch.int8)

    def batch() -> float:
        began = time.perf_counter()
        for _ in range(10):
            torch._int_mm(a, b)
        return 10 * 4096 * 256 * 1024 / (time.perf_counter() - began) / 1e9

    def measure() -> float:
        return max(batch() for _ in range(5))  # the first wakes the threads; a limit is a best

    return measure


def on_cpu(engine: Engine) -> bool:
    return engine.name == "cpu" or (engine.name == "portable" and mx.default_device() == mx.cpu)


def processor(engine: Engine) -> str:
    """The name of the processor or GPU that the engine computes on."""
    if on_cpu(engine):
        return str(probe.cpu(platform.system())["model"]) or platform.machine()
    return str(mx.device_info(mx.Device(mx.DeviceType.gpu, 0)).get("device_name", "GPU"))
