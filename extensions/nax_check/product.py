"""A real int8 product in a process of its own: whatever becomes of that, here is a sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["exact", "wrong", "failed", "not tried"]
SECONDS = 60.0  # the first use compiles; a hung compiler is not waited for


@dataclass(frozen=True)
class Outcome:
    """The outcome of a product: exact, wrong numbers, failed without an answer, or not tried."""

    state: State
    text: str


def try_product(kernel: str, *, seconds: float = SECONDS) -> Outcome:
    """Compiles and runs one product on this machine's GPU and compares it with NumPy's.

    kernel: "tensor" for Metal 4's int8 x int8 -> int32, "simdgroup" for the 8 x 8 half products
    that every Apple GPU has.
    """
    child = Path(__file__).with_name("child.py")
    return run_child([sys.executable, "-P", str(child), kernel], seconds)


def run_child(command: Sequence[str], seconds: float) -> Outcome:
    """Runs a command that prints one JSON object, {"exact": bool, "text": str}, as its last line.

    A crash, an exit code, a time limit or another answer become an outcome; nothing is raised.
    """
    try:
        ended = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome("failed", f"no answer within {seconds:g} seconds")
    except (OSError, ValueError) as error:
        return Outcome("failed", f"the process did not start ({error})")
    said = ended.stderr.decode(errors="replace")
    if ended.returncode:
        return Outcome("failed", death(ended.returncode) + _last_line(said))
    return _answer(ended.stdout.decode(errors="replace"))


def death(code: int) -> str:
    """The end of a process by its code, which is negative for a signal."""
    if code > 0:
        return f"the process ended with code {code}"
    try:
        return f"the process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was ended by signal {-code}"


def _last_line(text: str) -> str:
    lines = text.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:200]}" if last else ""


def _answer(text: str) -> Outcome:
    last = text.strip().rpartition("\n")[2]
    try:
        answer = json.loads(last)
    except (ValueError, RecursionError):
        answer = None
    if (
        not isinstance(answer, dict)
        or type(answer.get("exact")) is not bool
        or type(answer.get("text")) is not str
    ):
        return Outcome("failed", f"the process answered {last[:80]!r}, which is no result")
    return Outcome("exact" if answer["exact"] else "wrong", answer["text"])
