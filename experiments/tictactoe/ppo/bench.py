"""Times of PPO's three stages, one iteration each in turn, and what bounds the native one.

Before it times, it checks that the stages' networks agree. Stages play on as they are timed, from a
pool of one snapshot. Nothing else should run on the machine: medians of rounds do not help against
a neighbour.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eggroll.errors import InputError
from experiments.tictactoe import game, metrics
from experiments.tictactoe.ppo import network, training
from experiments.tictactoe.ppo.settings import SETTINGS
from experiments.tictactoe.ppo.transitions import Iteration

Say = Callable[[str], None]
STRICT = SETTINGS["strict"]
WARM_UP = 2  # iterations before the first that counts
# Quotient -> (slower stage, faster stage, at least, threads).
GATES = {
    "native / sequential": ("ppo-sequential", "ppo-native", 10.0),
    "native / lockstep": ("ppo-lockstep", "ppo-native", 4.0),
    "lockstep / sequential": ("ppo-sequential", "ppo-lockstep", 2.5),
}
TWO_THREADS = 14.9  # native / sequential with two idle threads, the C-backend report's speedup
DENSE = "ppo-native, every row and unit"
BATCH, HIDDEN = STRICT.batch, network.HIDDEN


def run(rounds: int, threads: int, compiled: bool, file: Path | None, say: Say) -> None:
    """Prints the tables, and writes all times to a JSON file. compiled: torch.compile too.

    Raises:
        InputError: rounds or threads are below 1, torch is missing, or the file cannot be written.
    """
    for name, value in (("rounds", rounds), ("threads", threads)):
        if value < 1:
            raise InputError(f"--{name} is {value}: at least 1 is needed.")
    training.require_torch()
    stages = make_stages(threads)
    check(stages)
    found = {
        "machine": metrics.machine(), "threads": threads, **time_stages(stages, rounds, say),
    }  # fmt: skip
    found["networks"] = networks(rounds, compiled, say)
    if file:
        try:
            file.write_text(json.dumps(found, indent=1) + "\n")
        except OSError as error:
            raise InputError(
                f"--json {str(file)!r} cannot be written ({error.strerror})."
            ) from None


def make_stages(threads: int) -> dict[str, Any]:
    from experiments.tictactoe.ppo.native import NativePPO

    stages = {name: training.backend(name, STRICT, 0, threads) for name in training.METHODS}
    dense = NativePPO(STRICT, 0, threads, distinct=False, sparse=False)
    return stages | {DENSE: dense}


def check(stages: dict[str, Any]) -> None:
    """Weights and outputs of the stages are equal."""
    seen = game.observations(game.states().boards[:1000])
    flats = [stage.weights() for stage in stages.values()]
    assert all(np.array_equal(flats[0], flat) for flat in flats[1:])
    expected = network.forward(flats[0], seen)
    for stage in (stages["ppo-native"], stages[DENSE]):
        for own, wanted in zip(stage.forward(seen), expected, strict=True):
            np.testing.assert_allclose(own, wanted, atol=1e-6)


def time_stages(stages: dict[str, Any], rounds: int, say: Say) -> dict[str, Any]:
    for stage in stages.values():
        for _ in range(WARM_UP):
            stage.iterate()
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    native: list[Iteration] = []
    for _ in range(rounds):
        for name, stage in stages.items():
            began = time.perf_counter()
            done = stage.iterate()
            seconds[name].append(time.perf_counter() - began)
            if name == "ppo-native":
                native.append(done)
    threads = stages["ppo-native"].threads
    say(f"{metrics.machine()}, {threads} thread(s), {rounds} rounds of one iteration each\n")
    say("| stage | ms per iteration, median (range) |\n|---|---|")
    for name, times in seconds.items():
        say(f"| {name} | {spread([1e3 * t for t in times])} |")
    quotients = {name: ratio(seconds, *pair[:2]) for name, pair in GATES.items()}
    say("\n| quotient of medians | found | at least | |\n|---|---|---|---|")
    for name, (_, _, least) in GATES.items():
        least = TWO_THREADS if threads == 2 and name == "native / sequential" else least
        say(f"| {name} | {quotients[name]:.1f} | {least} | {met(quotients[name], least)} |")
    for name in ("ppo-sequential", "ppo-lockstep"):
        found = ratio(seconds, name, DENSE)
        say(f"| native, every row and unit / {name.removeprefix('ppo-')} | {found:.1f} | - | |")
    parts = breakdown(native, say)
    floors(stages["ppo-native"], native, parts, say)
    return {"seconds": seconds, "quotients": quotients, "parts_ms": parts}


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    return statistics.median(seconds[slow]) / statistics.median(seconds[fast])


def met(found: float, least: float) -> str:
    return "met" if found >= least else "not met"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def breakdown(native: list[Iteration], say: Say) -> dict[str, float]:
    """Milliseconds of the native parts, medians."""
    names = native[0].parts
    parts = {name: 1e3 * statistics.median(i.parts[name] for i in native) for name in names}
    say("\n| part of a native iteration | ms | share |\n|---|---|---|")
    for name, ms in parts.items():
        say(f"| {name} | {ms:.1f} | {ms / sum(parts.values()):.0%} |")
    return parts


def floors(stage: Any, native: list[Iteration], parts: dict[str, float], say: Say) -> None:
    """What the machine allows at best: arithmetic, memory and calls, each measured here."""
    from float_kernels import best

    count = statistics.median(i.transitions for i in native)
    batches = STRICT.epochs * -(-count // STRICT.batch)
    rows = STRICT.epochs * count
    whole = 3 * network.multiply_adds(rows)
    left = statistics.median(i.multiply_adds for i in native)
    rate = peak(best())
    bytes_moved = batches * 7 * 4 * network.PARAMETERS  # Adam: w, m, v read and written, g read
    speed = bandwidth()
    calls = stage.total_work()[1] / stage.iteration
    each = call_seconds(stage)
    say("\n| floor | ms | of |\n|---|---|---|")
    for name, work in (
        ("arithmetic, every row and unit", whole),
        ("arithmetic that is left", left),
    ):
        say(f"| {name} | {1e3 * work / rate:.1f} | {2e-9 * work:.1f} GFLOP at "
            f"{2e-9 * rate:.0f} GFLOP/s, the peak |")  # fmt: skip
    say(f"| memory | {1e3 * bytes_moved / speed:.1f} | {1e-6 * bytes_moved:.0f} MB of Adam at "
        f"{1e-9 * speed:.0f} GB/s, that of arrays of {MEGABYTES} MB |")  # fmt: skip
    say(f"| calls | {1e3 * calls * each:.2f} | {calls:.0f} products, {1e9 * each:.0f} ns each |")
    update = sum(ms for name, ms in parts.items() if name != "collection")
    say(f"| update as measured | {update:.1f} | |")


MEGABYTES = 64


def peak(table: Any, rounds: int = 1_000_000) -> float:
    """Multiply-adds per second on registers alone."""
    table.peak(rounds)
    began = time.perf_counter()
    return float(table.peak(10 * rounds)) / (time.perf_counter() - began)


def bandwidth() -> float:
    """Bytes per second of a += b, too large for the cache."""
    a, b = np.ones((2, MEGABYTES << 18), np.float32)
    times = [clocked(lambda: np.add(a, b, out=a)) for _ in range(5)]
    return 3 * a.nbytes / min(times)


def call_seconds(stage: Any) -> float:
    stage.calls.ppo_call_seconds.restype = ctypes.c_double
    return float(stage.calls.ppo_call_seconds(stage.kernels, 100_000))


def clocked(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def networks(rounds: int, compiled: bool, say: Say) -> dict[str, list[float]]:
    """A minibatch forwards and backwards by torch: as it is, compiled, and on every GPU that it
    reaches. Microseconds per call, interleaved.
    """
    import torch

    from experiments.tictactoe.ppo.policy import TicTacToeNet

    there = {"mps": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    gpus = [name for name, found in there.items() if found]
    calls = {"torch": passes(TicTacToeNet())}
    calls |= {f"torch, {device}": passes(TicTacToeNet(), device) for device in gpus}
    if compiled:
        calls["torch.compile"] = passes(torch.compile(TicTacToeNet()))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(20 * rounds):
        for name, call in calls.items():
            found[name].append(1e6 * clocked(call))
    say("\n| forward and backward of a minibatch | µs per call, median (range) |\n|---|---|")
    for name, times in found.items():
        say(f"| {name} | {spread(times)} |")
    if not compiled:
        say("| torch.compile (bench --compile measures it) | not measured |")
    if not gpus:
        say("| GPU (torch reaches none here) | not measured |")
    return found


def passes(net: Any, device: str = "cpu") -> Callable[[], None]:
    """A call that is done when it returns, on a GPU as well."""
    import torch

    seen, net = torch.ones(BATCH, 27, device=device), net.to(device)
    wait = {"mps": torch.mps, "cuda": torch.cuda}.get(device)

    def both() -> None:
        net.zero_grad()
        logits, values = net(seen)
        (logits.square().mean() + values.square().mean()).backward()
        if wait:
            wait.synchronize()

    return both
