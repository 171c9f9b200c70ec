"""What an NVIDIA device does beside a measurement: its power state and power, by nvidia-smi.

Standard library alone, so that it runs wherever nvidia-smi does.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

NOT_MEASURED = "not measured"
P0, POWER = "share of P0", "power in W"
NO_KERNELS = "these pipelines run no code of their own on a device, so there is nothing to launch"
# What needs a pipeline on a device, and why it has no figure.
LAUNCHES = dict.fromkeys(
    ("graph capture and replay", "launches per second", "share of launches"), NO_KERNELS
)
MILLISECONDS = 500  # from one sample to the next


@contextmanager
def watched() -> Iterator[Callable[[], dict[str, Any]]]:
    """Samples the devices while what is within runs; gives a function that answers afterwards.

    Its answer: the share of samples in power state P0 and the mean of watts, both of all devices,
    or a sentence that begins with "not measured" and says why; and the sentences of LAUNCHES.
    """
    lines: list[str] = []
    missing = {name: f"{NOT_MEASURED}: {why}" for name, why in LAUNCHES.items()}

    def answer() -> dict[str, Any]:
        return figures(lines) | missing

    command = shutil.which("nvidia-smi")
    if not command:
        yield answer
        return
    with tempfile.TemporaryFile("w+") as file:
        asked = [command, "--query-gpu=pstate,power.draw", "--format=csv,noheader,nounits"]
        process = subprocess.Popen(
            [*asked, "-lms", str(MILLISECONDS)], stdout=file, stderr=subprocess.DEVNULL
        )
        try:
            yield answer
        finally:
            process.terminate()
            process.wait()
            file.seek(0)
            lines += file.read().splitlines()


def figures(lines: list[str]) -> dict[str, Any]:
    """Share of P0 and mean power of lines as `P0, 71.5`; those that are none are left out."""
    states, watts = [], []
    for line in lines:
        state, comma, power = line.partition(",")
        if not (comma and state[:1] == "P" and state[1:].isdecimal()):
            continue
        states.append(state == "P0")
        with suppress(ValueError):  # a device that does not tell
            watts.append(float(power))
    none = f"{NOT_MEASURED}: nvidia-smi, which tells it, is missing or answers with none"
    return {
        P0: statistics.fmean(states) if states else none,
        POWER: statistics.fmean(watts) if watts else none,
    }


def shown(found: dict[str, Any]) -> list[str]:
    """Lines of what was found, name by name."""
    names = (P0, POWER, *LAUNCHES)
    return [
        f"{name}: {found[name]}" if isinstance(found[name], str) else f"{name}: {found[name]:.3g}"
        for name in names
    ]
