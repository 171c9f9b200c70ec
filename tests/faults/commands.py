"""Real commands in processes of their own: started, broken at a moment, looked at afterwards."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ended import Broken, Ended

from eggroll.files import METRICS
from eggroll.training import checkpoint
from eggroll.training import folder as runlog

PATIENCE = 120.0  # seconds until a command counts as hung; the machine may be busy
PACKAGE = str(Path(runlog.__file__).parent)
LINGER = 10.0  # that a command's children may take to see that it is gone
STEPS = 400
# An update takes about a millisecond.
TINY = [
    *("--data", "count", "--pop", "32", "--width", "8", "--seq-len", "8", "--threads", "1"),
    *("--table-bits", "16", "--val-tokens", "256", "--validate-every", "0"),
    *("--sample-tokens", "0", "--steps", str(STEPS)),
]
DONE, REFUSED, INTERRUPTED = 0, 2, 130


class Child:
    """A command under way; whatever it starts is in its process group."""

    def __init__(
        self,
        *words: object,
        module: str = "eggroll.train",
        env: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
        cwd: Path | None = None,
        command: Sequence[str] = (),
    ) -> None:
        """before: called in the new process; command: what runs in place of the module."""
        self.said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        begin = list(command) or [sys.executable, "-m", module]
        self.words = [*begin, *map(str, words)]
        self.process = subprocess.Popen(
            self.words, stdin=subprocess.DEVNULL, stdout=self.said[0], stderr=self.said[1],
            env={**os.environ, **(env or {})}, preexec_fn=before, cwd=cwd, start_new_session=True,
        )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Waits until something is so; False if the command ended before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                self.end_all()
                raise Broken(f"{self.words} does not get on")
            time.sleep(0.002)
        return True

    def ended(self) -> Ended:
        """Waits for the end, and sees that no process and no traceback is left of it."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.end_all()
            raise Broken(f"{self.words} hangs: {self.texts()}") from None
        out, err = self.texts()
        if self.process.returncode == -signal.SIGKILL:
            self.end_all()  # a killed parent cannot end its children; they see it by themselves
        elif self.left_over():
            self.end_all()
            raise Broken(f"{self.words} left processes behind: {err}")
        if "KeyboardInterrupt" in err and PACKAGE not in err and not out:
            return Ended(-signal.SIGINT, out, "")  # in Python's own start, before the package's
        for sign in ("Traceback", "Exception ignored", "terminate called", "Fatal Python"):
            if sign in err or sign in out:
                raise Broken(f"{self.words} says: {err}{out}")
        return Ended(self.process.returncode, out, err)

    def texts(self) -> tuple[str, str]:
        found = []
        for file in self.said:
            file.seek(0)
            found.append(file.read().decode(errors="replace"))
        return found[0], found[1]

    def left_over(self) -> bool:
        """True if a process of the group is still there some seconds after the command."""
        deadline = time.monotonic() + LINGER
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.01)
        return True

    def end_all(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


def run(*words: object, **options: object) -> Ended:
    return Child(*words, **options).ended()  # type: ignore[arg-type]


@functools.cache
def shim() -> Path:
    """The library of shim.c, built once."""
    source = Path(__file__).with_name("shim.c")
    tag = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"eggroll-faults-{os.getuid()}-{tag}.so"
    if not path.exists():
        new = path.with_suffix(f".{os.getpid()}")
        words = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(new)]
        subprocess.run([os.environ.get("CC", "cc"), *words, str(source), "-ldl"], check=True)
        os.replace(new, path)
    return path


def preloaded(fault: str = "", clock: str = "") -> dict[str, str]:
    """The environment of a command with a fault of shim.c in it."""
    orders = {"EGGROLL_FAULT": fault, "EGGROLL_CLOCK": clock}
    return {"LD_PRELOAD": str(shim())} | {name: order for name, order in orders.items() if order}


class State(NamedTuple):
    """What a checkpoint holds: the update, and a digest of every array and its name."""

    step: int
    digest: str


def state_of(path: Path) -> State:
    """Of a checkpoint of any kind, its checksum verified."""
    kind = next(
        (k for k in checkpoint.COMMANDS if f'"{k}"'.encode() in path.read_bytes()[:4096]), ""
    )
    metadata, arrays = checkpoint.read(path, kind or checkpoint.FORMAT)
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return State(int(metadata["step"]), digest.hexdigest())


def lines_of(folder: Path) -> int:
    """Whole lines of metrics.jsonl."""
    try:
        return (folder / METRICS).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def check_metrics(folder: Path, step: int) -> None:
    """Rows of every update from 1 on, at least up to that of the checkpoint."""
    steps = [row["step"] for _, row in runlog.read_lines(folder / METRICS)]
    if steps != list(range(1, len(steps) + 1)) or len(steps) < step:
        raise Broken(f"{folder}: metrics of {steps[:3]}..{steps[-3:]}, checkpoint of {step}")


def partials(folder: Path) -> list[str]:
    """Files that a start should have cleaned away."""
    return [name for name in os.listdir(folder) if name.startswith(".")]


def some(chance: random.Random, low: float, high: float) -> float:
    """Between two bounds, evenly by ratio."""
    return float(low * (high / low) ** chance.random())
