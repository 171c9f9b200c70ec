"""How to find a bug that only makes a learner worse, on the three that this experiment once had.

Five steps, each with the bugs planted: which half is wrong, are the networks equal, what is drawn,
does a flag of the compiler matter, and what does the expression become. See BUGS.md.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.tictactoe import game, metrics
from experiments.tictactoe.ppo import network
from experiments.tictactoe.ppo import transitions as tr
from experiments.tictactoe.ppo.settings import SETTINGS
from experiments.tictactoe.ppo.training import logits_of

Say = Callable[[str], None]
STRICT = SETTINGS["strict"]
FEW = replace(STRICT, games=128, snapshot=8)
SOURCE = Path(__file__).with_name("mask.cpp")
# A board's outputs [9] and its legal moves, to be drawn from.
LOGITS = np.array([0.05, 1.5, -2, 0.3, 3, 0, -1, 2, 0.7], np.float32)
LEGAL = np.array([1, 0, 1, 1, 1, 0, 1, 1, 0], np.float32)
DRAWS = 60_000
COMPILERS = ("g++", "clang++", "c++")
ASSOCIATIVE = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
FLAGS = {"-O3": [], "-O3 -fassociative-math": ASSOCIATIVE, "-O3 -ffast-math": ["-ffast-math"]}


def run(step: str, iterations: int, say: Say) -> None:
    """Prints what a step finds, or what all of them do.

    Raises:
        InputError: iterations are below 1, or there are no float kernels or no compiler.
    """
    if iterations < 1:
        raise InputError(f"--iterations is {iterations}: at least 1 is needed.")
    for name in STEPS if step == "all" else (step,):
        say(f"\n{STEPS[name].__doc__.splitlines()[0]}\n")
        STEPS[name](iterations, say)


def without_policy(flat: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights whose logits are all 0, which is what the third bug made of them; values stay."""
    changed = flat.copy()
    for name in ("policy.weight", "policy.bias"):
        network.unflatten(changed)[name][...] = 0
    return changed


def collected(native: Any, bug: str, opponent: NDArray[np.float32]) -> tr.Collected:
    """An iteration's games, with a bug of the collection planted."""
    if bug != "mask":
        right: tr.Collected = native.collect(opponent, regrouped=bug != "order")
        return right
    flat = native.weights()
    native.set_weights(without_policy(flat))
    found: tr.Collected = native.collect(opponent)
    native.set_weights(flat)
    return found


def isolate(iterations: int, say: Say) -> None:
    """1. Which half is wrong: one update, with collections of games that have a bug or none."""
    from experiments.tictactoe.ppo.native import NativePPO

    say("| collection | won against random, judged before | after | won of the last games played |")
    say("|---|---|---|---|")
    settings = replace(FEW, iterations=iterations)
    for bug in ("none", "order", "mask"):
        native = NativePPO(settings, seed=0)
        before = metrics.judge(logits_of(native.weights()))["random_win"]
        for _ in range(iterations):
            games = collected(native, bug, native.pool[0])
            native.update(games.transitions)
        after = metrics.judge(logits_of(native.weights()))["random_win"]
        told = {"none": "right", "order": "not regrouped", "mask": "every logit 0"}[bug]
        won = games.results[0] / sum(games.results)
        say(f"| {told} | {before:.1%} | {after:.1%} | {won:.1%} |")


def compare(iterations: int, say: Say) -> None:
    """2. Are the networks equal: outputs of native code and NumPy for the same inputs."""
    from experiments.tictactoe.ppo.native import NativePPO

    native = NativePPO(STRICT, seed=1)
    seen = game.observations(game.states().boards)
    expected = network.forward(native.weights(), seen)
    grouped = seen.reshape(-1, 9, 3).transpose(0, 2, 1).reshape(-1, 27)
    say("| inputs of native code | largest difference of a logit | of a value |\n|---|---|---|")
    for name, given in (("cell by cell", seen), ("channel by channel", grouped)):
        own = native.forward(given)
        apart = [f"{abs(a - b).max():.1e}" for a, b in zip(own, expected, strict=True)]
        say(f"| {name} | {' | '.join(apart)} |")
    opponent = network.initial(2)
    right = native.collect(opponent).transitions
    native.iteration = 0
    wrong = native.collect(opponent, regrouped=False).transitions
    for name, found in (("game by game", right), ("in lockstep's order", wrong)):
        ahead, _ = tr.advantages(
            found.values, found.rewards, found.last, STRICT.discount, STRICT.decay
        )
        mixed = np.mean(found.game[1:] != found.game[:-1])
        say(
            f"\nTransitions {name}: {mixed:.0%} are followed by another game's; advantages have a "
            f"deviation of {ahead.std():.3f}."
        )


def inspect(iterations: int, say: Say) -> None:
    """3. What is drawn: moves of one board, by every way to mask illegal ones."""
    expected = network.probabilities(LOGITS[None], LEGAL[None] > 0)[0]
    rows = {"softmax over legal moves": expected}
    with tempfile.TemporaryDirectory() as folder:
        calls = compiled(found_compilers()[0], [], Path(folder))
        for name in ("branch", "arithmetic", "reordered"):
            rows[f"{name}, -O3"] = shares(calls, name)
    say("| move | " + " | ".join(map(str, range(9))) + " |")
    say("|---" * 10 + "|")
    say("| logit | " + " | ".join(f"{x:.2f}" for x in LOGITS) + " |")
    for name, row in rows.items():
        say(f"| {name} | " + " | ".join(f"{100 * x:.1f} %" for x in row) + " |")


def bisect(iterations: int, say: Say) -> None:
    """4. Does a flag of the compiler matter: the largest error of a move's probability."""
    expected = network.probabilities(LOGITS[None], LEGAL[None] > 0)[0]
    say("| compiler, flags | by the branch | by the arithmetic mask |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for compiler in found_compilers():
            for name, flags in FLAGS.items():
                calls = compiled(compiler, flags, Path(folder))
                ways = shares(calls, "branch"), shares(calls, "arithmetic")
                apart = [abs(way - expected).max() for way in ways]
                say(f"| {compiler} {name} | {apart[0]:.3f} | {apart[1]:.3f} |")


def explain(iterations: int, say: Say) -> None:
    """5. What the expression becomes: x + (1 - m) * -1e8 and (x - 1e8) + m * 1e8, at m = 1."""
    far, one = np.float32(1e8), np.float32(1)
    say("| x | as written | reordered |\n|---|---|---|")
    for x in (np.float32(0.05), np.float32(3), np.float32(5), np.float32(20)):
        say(f"| {x:g} | {x + (one - one) * -far:g} | {(x - far) + one * far:g} |")
    say(f"\nFloats next to 1e8 are {np.spacing(far):g} apart.")


def found_compilers() -> list[str]:
    """Compilers that are installed, each once.

    Raises:
        InputError: there is none.
    """
    paths = {Path(path).resolve(): name for name in COMPILERS if (path := shutil.which(name))}
    if not paths:
        raise InputError(f"No compiler is found ({', '.join(COMPILERS)}): install one.")
    return list(paths.values())


def compiled(compiler: str, flags: list[str], folder: Path) -> ctypes.CDLL:
    """mask.cpp as a library."""
    library = folder / f"mask{len(list(folder.iterdir()))}.so"
    words = [compiler, "-std=c++20", "-O3", *flags, "-shared", "-fPIC", SOURCE, "-o", library]
    subprocess.run(words, check=True)
    return ctypes.CDLL(str(library))


def shares(calls: ctypes.CDLL, way: str) -> NDArray[np.float64]:
    """Shares [9] of DRAWS moves that are drawn in a way: branch, arithmetic or reordered."""
    counts = np.zeros(9, np.int32)
    call = getattr(calls, f"count_by_{way}")
    call(*(ctypes.c_void_p(a.ctypes.data) for a in (LOGITS, LEGAL)), DRAWS,
         ctypes.c_void_p(counts.ctypes.data))  # fmt: skip
    return counts / DRAWS


STEPS: dict[str, Callable[[int, Say], None]] = {
    "isolate": isolate,
    "compare": compare,
    "inspect": inspect,
    "bisect": bisect,
    "explain": explain,
}
