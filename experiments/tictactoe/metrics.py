"""The file of a run's figures, the same for every method: metrics.jsonl, one object per line.

The first line says what was run: method, net ("4x256", "64x64"), arithmetic ("float32", "int8"),
seed, settings, machine. Every later one is an iteration or update: `step` counts them from 1,
`seconds` are those of training so far, judging apart, `games` those played, `rows` boards that a
network evaluated (a backward pass left out) and `multiply_adds` its arithmetic (with it). Methods
add figures of their own, as PPO its losses. Lines of a look have what the judges say of the greedy
policy: judges.Judged.row().
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.tictactoe import game, judges

NAME = "metrics.jsonl"


class Run(NamedTuple):
    """A run read back: its first line, and the others."""

    about: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def name(self) -> str:
        about = self.about
        settings = about.get("settings", "strict")
        return f"{about['method']} {about['net']}" + (
            "" if settings == "strict" else f" ({settings})"
        )

    def looks(self) -> list[dict[str, Any]]:
        """Lines with the judges' figures."""
        return [line for line in self.lines if "optimal_draw" in line]

    def column(self, key: str, judged: bool = False) -> NDArray[np.float64]:
        """One figure of all lines that have it, or of those with a look."""
        lines = self.looks() if judged else self.lines
        return np.array([line[key] for line in lines if key in line], float)


class Writer:
    """Writes metrics.jsonl in a folder, line by line."""

    def __init__(self, folder: Path, **about: Any) -> None:
        """Makes the folder and writes the first line: method, net, arithmetic, seed, settings.

        Raises:
            InputError: the folder cannot be written.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = (folder / NAME).open("w")
        except OSError as error:
            raise InputError(
                f"--out {str(folder)!r} cannot be written ({error.strerror}): name another folder."
            ) from None
        self.write(**about, machine=machine())

    def write(self, **figures: Any) -> None:
        json.dump({key: _plain(value) for key, value in figures.items()}, self.file)
        self.file.write("\n")
        self.file.flush()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.7g}")
    return value.item() if isinstance(value, np.generic) else value


def read(folder: Path) -> Run:
    """The run of a folder, or of a metrics file.

    Raises:
        InputError: there is no such file, or it is none of these.
    """
    path = folder / NAME if folder.is_dir() else folder
    try:
        about, *lines = (json.loads(line) for line in path.read_text().splitlines())
        about["method"], about["net"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{str(path)!r} is no metrics file: give folders that 'run --out' has written."
        ) from None
    return Run(about, lines)


def judge(logits: NDArray) -> dict[str, float]:
    """The judges' figures of the greedy policy, of logits [5478, 9] for all states."""
    return judges.judge(game.greedy_moves(logits)).row()


def machine() -> str:
    """The processor, as the system names it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names: Iterator[str] = (
        line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")
    )
    return next(names, platform.machine())
