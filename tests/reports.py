"""Folders of runs as reports read them: made-up ones, with statistics if asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from test_plot import made_up, trained

__all__ = ["histogram", "made_up", "observed", "trained"]


def histogram(width: float) -> list[int]:
    """Counts of 32 bins over -128..127, about normal with this deviation."""
    middle = np.arange(-124, 128, 8)
    return np.rint(1000 * np.exp(-((middle / width) ** 2) / 2)).astype(int).tolist()


def observed(
    folder: Path,
    *,
    steps: Iterable[int] = (10, 20, 30, 40),
    leaf: str = "layer0.Wf",
    warning: str = "few weights move; try --alpha 2.",
) -> Path:
    """Adds statistics.jsonl to a run's folder: figures that grow with the update."""
    with (folder / "statistics.jsonl").open("w") as file:
        for step in steps:
            one = {"update_rate": step / 1000, "vote_over_noise": 1, "saturated": 0.0}
            leaves = {
                leaf: one | {"weights": histogram(8 + step)},
                "head": {"vote_over_noise": 2.0, "weights": histogram(30)},
            }
            if leaf != "layer0.Wf":
                del leaves["head"]
            gate = {"saturated": step / 400, "dead": 0.5, "values": histogram(20 + step)}
            row = {"step": step, "tied": step / 100, "threshold": 10 * step, "rate": None}
            row |= {"leaves": leaves, "activations": {"layer0.forget": gate}}
            file.write(json.dumps(row) + "\n")
            if step == 20:
                file.write(json.dumps({"step": step, "warning": warning}) + "\n")
    return folder
