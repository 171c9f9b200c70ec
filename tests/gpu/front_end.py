"""Has Apple's compiler read every Metal kernel. With PYTHONPATH=tests: python -m gpu.front_end

For Macs whose GPU cannot run them all, as those of hosted runners, which lack simdgroup matrices:
there making a pipeline of a kernel fails, which is let pass; an error in its text is not. A process
of its own launches the kernels one after the other, and a new one goes on where one dies. Texts go
to the folder that is named, if one is. Kernels for NAX are read from macOS 26 on, which has their
header.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx
from nax_check.facts import macos_version

from eggroll.engines import metal as device
from gpu.every_kernel import Launched, every_kernel, uses_nax

NAX_MACOS = 26
SECONDS = 180  # for one kernel, Apple's compiler included
STARTING = 60  # more, for a process
NO_PIPELINE = "no pipeline"
GOOD = ("runs", NO_PIPELINE)
Evaluate = Callable[[Launched], None]


def on_gpu(kernel: Launched) -> None:
    """Compiles and launches a kernel. Raises RuntimeError with what MLX says."""
    mx.eval(list(kernel.inputs))
    with mx.stream(mx.gpu):
        outputs = device.launch(*kernel[1:])
    mx.eval(outputs)


def outcome(kernel: Launched, evaluate: Evaluate) -> str:
    """`runs`, `no pipeline`, or what went wrong."""
    try:
        evaluate(kernel)
    except RuntimeError as error:
        # It names the kernel, so that none of MLX's own is meant.
        if re.search(rf"Unable to load kernel \w*{kernel.source.name}", str(error)):
            return NO_PIPELINE
        return str(error) or type(error).__name__
    return "runs"


def listed(macos: str) -> list[Launched]:
    """The kernels that this version of macOS can read."""
    number = re.match(r"\d+", macos)
    nax = bool(number) and int(number[0]) >= NAX_MACOS
    with mx.stream(mx.cpu):  # where their arrays are made
        return [kernel for kernel in every_kernel("metal") if nax or not uses_nax(kernel.source)]


def child(first: int, macos: str, evaluate: Evaluate = on_gpu) -> None:
    """Prints a line for every kernel from number `first` on: its outcome as JSON."""
    for kernel in listed(macos)[first:]:
        print(json.dumps(outcome(kernel, evaluate)), flush=True)


def lines_of(command: Sequence[str], seconds: float) -> Iterator[str]:
    """What a process prints, line by line, then how it died if it did; silence ends it."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    silent, patience = False, seconds + STARTING

    def kill() -> None:
        nonlocal silent
        silent = True
        process.kill()

    while True:
        timer = threading.Timer(patience, kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            break
        yield line
        patience = seconds
    code = process.wait()
    if silent:
        yield json.dumps(f"no answer in {seconds:g} s")
    elif code:
        yield json.dumps(f"the process ended with exit code {code}")


def outcomes(command: Callable[[int], Sequence[str]], count: int, seconds: float) -> list[str]:
    """The outcomes of `count` kernels; command: that of a process from a kernel's number on."""
    found: list[str] = []
    while len(found) < count:
        before = len(found)
        found += map(json.loads, lines_of(command(before), seconds))
        if len(found) == before:
            found.append("the process said nothing of it")
    return found[:count]


def own_command(first: int) -> list[str]:
    return [sys.executable, "-m", "gpu.front_end", "--from", str(first)]


def report(kernels: Sequence[Launched], found: Sequence[str]) -> int:
    """Prints a line for every kernel, and all that was said of those that failed; exit code."""
    pairs = list(zip(kernels, found, strict=True))
    for kernel, how in pairs:
        print(f"{kernel.name}: {how if how in GOOD else 'FAILED'}")
    failed = [(kernel, how) for kernel, how in pairs if how not in GOOD]
    for kernel, how in failed:
        print(f"\n=== {kernel.name}\n{how}")
    counts = ", ".join(f"{found.count(how)} {how}" for how in GOOD)
    print(f"\n{len(kernels)} kernels: {counts}, {len(failed)} failed")
    return 1 if failed or not kernels else 0


def write_texts(kernels: Sequence[Launched], folder: Path) -> None:
    """Each kernel's header and body in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in kernels:
        name = re.sub(r"\W+", "-", kernel.name)
        (folder / f"{name}.metal").write_text(kernel.source.header + kernel.source.body, "ascii")


def main(words: Sequence[str]) -> int:
    macos = macos_version()
    if words[:1] == ["--from"]:
        child(int(words[1]), macos)
        return 0
    if not mx.metal.is_available():
        print("error: MLX finds no Metal GPU, through which Apple's compiler is reached.")
        return 2
    print(f"macOS {macos}, {mx.device_info()}, MLX {mx.__version__}, {platform.python_version()}")
    kernels = listed(macos)
    if words:
        write_texts(kernels, Path(words[0]))
    return report(kernels, outcomes(own_command, len(kernels), SECONDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
