"""What is broken: one tiny run for every estimator and rule, and its states when undisturbed."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eggroll import adamw
from eggroll.files import CHECKPOINT
from eggroll.training import loop as training
from eggroll.training import run as runs
from eggroll.training.checkpoint import signature
from faults.commands import TINY, State, state_of

CREDIT = ["--estimator", "token-credit", "--sigma-shift", "2"]
WAYS = {
    "sign": [],
    "master": ["--rule", "master"],
    "whitened": [*CREDIT, "--rule", "whitened"],
    "adam": ["--rule", "adam"],
    "token-votes": ["--estimator", "token-votes"],
    "group-credit": [*CREDIT, "--estimator", "group-credit", "--group-size", "4"],
    "local": ["--estimator", "local", "--rule", "adam"],
    "feedback": ["--estimator", "feedback", "--rule", "adam"],
    "reused noise": ["--noise-reuse", "3", "--rank", "2", "--no-clt"],
}


class Case(NamedTuple):
    """A run: the module of its command, its options, every state it goes through, its signature."""

    module: str
    words: list[str]
    states: dict[int, str]
    signature: str

    def expects(self, state: State) -> bool:
        return self.states.get(state.step) == state.digest


def corpus(folder: Path, size: int = 30_000) -> Path:
    """A file of made-up words."""
    chance, path = np.random.default_rng(7), folder / "some words.txt"
    words = [bytes(chance.integers(97, 107, chance.integers(1, 7)).tolist()) for _ in range(60)]
    ends = (b" ", b" ", b" ", b".\n", b"\n\n")
    drawn = chance.integers(0, 60, size // 4), chance.integers(0, len(ends), size // 4)
    text = b"".join(words[i] + ends[k] for i, k in zip(*drawn, strict=True))[:size]
    path.write_bytes(text)
    return path


def as_baseline(words: list[str]) -> list[str]:
    """The words of eggroll.train as those of eggroll.adamw."""
    words = list(words)
    for name, instead in (("--pop", ["--streams", "16"]), ("--table-bits", [])):
        while name in words:
            at = words.index(name)
            words[at : at + 2] = instead
    return words


@functools.cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="eggroll-faults-"))


@functools.cache
def case(name: str, steps: int) -> Case:
    """name: one of WAYS, `text` or `adamw`; the states are those of a run in this process."""
    words = [*TINY, "--steps", str(steps), *WAYS.get(name, [])]
    if name == "text":
        words += ["--data", str(corpus(scratch())), "--seq-len", "4"]
    if name == "adamw":
        words = as_baseline(words)
    module = "eggroll.adamw" if name == "adamw" else "eggroll.train"
    place = Path(tempfile.mkdtemp(dir=scratch())) / "run"
    states = {}
    with ExitStack() as stack:
        given = [*words, "--out", str(place)]
        if name == "adamw":
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            run: runs.Run = adamw.open_run(adamw.options_from(given), stack)
        else:
            run = runs.open_run(training.options_from(given), stack, show=False)
        while True:
            run.save()
            state = state_of(place / CHECKPOINT)
            states[state.step] = state.digest
            if run.step == steps:
                return Case(module, words, states, signature(run.weights))
            run.update()


NAMES = (*WAYS, "text", "adamw")
