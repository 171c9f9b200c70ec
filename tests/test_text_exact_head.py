"""experiments/text/exact_head.py: the head's arithmetic, the norm's slope, and tiny trials."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import ROOT

torch = pytest.importorskip("torch")
SPEC = importlib.util.spec_from_file_location(
    "exact_head", ROOT / "experiments" / "text" / "exact_head.py"
)
exact_head = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(exact_head)

RNG = np.random.default_rng(0)
TINY = [
    "--vocabulary", "256", "--width", "32", "--streams", "16", "--group", "4", "--seq-len", "16",
    "--share", "0.0006",
]  # fmt: skip


def test_the_head_gives_the_loss_and_the_error():
    """Against float64: bits to their last digits, errors and votes as means of many draws.

    No logit at the clip is pushed further out.
    """
    V, D, n = 64, 32, 48
    W = RNG.integers(-90, 91, (V, D)).astype(np.int8)
    y = RNG.integers(-90, 91, (n, D)).astype(np.int8)
    targets = RNG.integers(0, V, n)
    logits = np.clip((y.astype(int) @ W.T.astype(int)) // (16 * 5), -127, 127)
    p = 2.0 ** (logits / 16)
    p /= p.sum(axis=1, keepdims=True)
    head = exact_head.Head(V, D, 0)
    drawn = [head(W, torch.from_numpy(y), torch.from_numpy(targets)) for _ in range(400)]
    assert drawn[0][0] == pytest.approx(-np.log2(p[np.arange(n), targets]).mean(), rel=1e-5)
    error = np.eye(V)[targets] - p
    beyond = ((logits == -127) & (error < 0)) | ((logits == 127) & (error > 0))
    assert beyond.any(axis=0).sum() > 10
    assert (beyond & (targets[:, None] == np.arange(V))).any()
    error[beyond] = 0
    lacks, votes = (np.mean([each[i] for each in drawn], axis=0) for i in (1, 2))
    assert apart(lacks, error @ W) < 0.02
    assert apart(votes, exact_head.ERROR * error.T @ y) < 0.02


def test_no_logit_is_pushed_beyond_the_clip():
    """All are at their lowest: the targets' rise, and no other falls."""
    W, y = np.full((16, 32), -127, np.int8), np.full((4, 32), 127, np.int8)
    targets = np.array([3, 3, 5, 9])
    head = exact_head.Head(16, 32, 0)
    bits, lacks, Z = head(W, torch.from_numpy(y), torch.from_numpy(targets))
    assert bits == pytest.approx(4)
    assert np.nonzero(Z.any(axis=1))[0].tolist() == [3, 5, 9]
    assert (Z[3] >= 119 * 127 * 2).all()
    assert (lacks < 0).all()


def apart(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_what_is_lacking_passes_the_norm():
    """It is the slope of g y in x, where y = x w / mean|x|, but for the mean's floor."""
    x = RNG.integers(-100, 101, (5, 64))
    w, g = RNG.integers(10, 20, 64), RNG.normal(size=(5, 64)).astype(np.float32)

    def worth(x: Any) -> Any:
        return (g * x * w / abs(x).mean(axis=1, keepdims=True)).sum(axis=1)

    step = 1e-4
    slopes = [(worth(x + step * e) - worth(x - step * e)) / (2 * step) for e in np.eye(64)]
    free = np.zeros((5, 64), np.int8)
    found = exact_head.through_norm(g, free, x.astype(np.int8), w.astype(np.int8))
    sides = np.sign(x) != 0  # at 0 the mean's slope has two sides
    assert apart(found[sides], np.stack(slopes, axis=1)[sides]) < 0.05
    clipped = np.where(g > 0, 127, -127).astype(np.int8)
    nothing = exact_head.through_norm(g, clipped, x.astype(np.int8), w.astype(np.int8))
    assert not nothing.any(), "a value at the clip is pushed no further out"


def trial(tmp_path: Path, *words: str) -> Any:
    text = tmp_path / "text.txt"
    text.write_text("abracadabra, said she. " * 3000)
    made = exact_head.Trial(exact_head.arguments([*TINY, "--data", str(text), *words]))
    return made, [made.update(step) for step in range(made.steps)]


@pytest.mark.parametrize(
    ("words", "moves"),
    [
        ((), {"embedding", "head", "layer0.Wh"}),
        (("--embedding", "error"), {"embedding", "head", "layer0.Wh"}),
        (("--embedding", "error", "--core", "frozen"), {"embedding", "head"}),
    ],
)
def test_tiny_trials_learn(tmp_path: Path, words: tuple[str, ...], moves: set[str]):
    """To below the text's unigram entropy, 3.3 bits, and only what is meant to learn moves."""
    made, bits = trial(tmp_path, *words)
    assert bits[-1] < 3
    assert made.validate() < 3
    first = exact_head.initial_weights(exact_head.egg(256, 32, 1), 0)
    moved = {k for k, w in made.weights.items() if (np.array(w) != np.array(first[k])).any()}
    assert moves <= moved
    if "frozen" in words:
        assert moved == moves
    _, again = trial(tmp_path, *words)
    assert again == bits, "the same updates give the same figures"


def test_a_share_buys_more_updates_of_a_frozen_core(tmp_path: Path):
    """A token of the frozen core costs 1 + 3 V D / CORE', of the evolved one G more."""
    steps = {
        core: exact_head.updates(exact_head.arguments(["--core", core, "--share", "0.25"]))
        for core in ("evolved", "frozen")
    }
    assert steps == {"evolved": 233, "frozen": 493}
