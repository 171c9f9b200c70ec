"""The paper in one page of NumPy is the package, bit for bit: examples/eggroll_in_a_page.py."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

import eggroll as eg

PAGE = Path(__file__).parents[1] / "examples" / "eggroll_in_a_page.py"
SOURCE = PAGE.read_text()
LONGEST = 120  # lines, so that it can be read in one go
DOCSTRING = ast.get_docstring(ast.parse(SOURCE)) or ""
(SHOWN,) = re.findall(r"python -m eggroll\.train (.*)", DOCSTRING)
WORDS = SHOWN.split()  # the options that the page names as its own
SIZES = "256, 128, 8, 32, 16, 1 << 16, 100, 4"  # as the page gives them: P, N, T, D, V ..
SMALL = "32, 16, 3, 20, 3, 1 << 17, 30, 5"
QUICK = {"val_tokens": 256, "validate_every": 0, "threads": 1}  # they change no bit


def printed_by_page(
    capsys: pytest.CaptureFixture[str], *changes: tuple[str, str], **given: int
) -> tuple[list[str], str]:
    """The losses that the page prints and its signature, with parts of its text replaced."""
    text = SOURCE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    names: dict[str, Any] = {"__name__": PAGE.stem}
    exec(compile(text, str(PAGE), "exec"), names)
    capsys.readouterr()
    signature = names["train"](**given)
    out = capsys.readouterr().out
    return re.findall(r"^update \d+: (.*) bits per token$", out, re.M), signature


def of_package(**given: int) -> tuple[list[str], str]:
    """The same of the package, with the options of the page and others in their place."""
    flags = zip(WORDS[::2], WORDS[1::2], strict=True)
    named = {name[2:].replace("-", "_"): word for name, word in flags}
    options = {name: word if name == "data" else int(word) for name, word in named.items()}
    made = eg.train(eg.Config(**options | QUICK | given))
    return [f"{row['loss']:.3f}" for row in made.history if row["step"] % 10 == 0], made.signature


def test_the_page_ends_with_the_signature_of_the_command_it_names(
    call: Command, tmp_path: Path, no_curves: None, capsys: pytest.CaptureFixture[str]
):
    exec(compile(SOURCE, str(PAGE), "exec"), {"__name__": "__main__"})
    *lines, last = capsys.readouterr().out.splitlines()
    ended = call(*WORDS, "--out", tmp_path / "run")
    assert last == f"signature: {ended.signature}"
    losses = [float(line.split()[2]) for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 3
    assert losses[-1] < 0.2


def test_page_and_package_agree_on_every_seed(capsys: pytest.CaptureFixture[str]):
    seeds = 0, 1, (1 << 63) - 1
    pages = [printed_by_page(capsys, seed=seed, steps=10) for seed in seeds]
    assert pages == [of_package(seed=seed, steps=10) for seed in seeds]
    assert len({signature for _, signature in pages}) == len(seeds)
    assert all(len(losses) == 1 for losses, _ in pages)


def small() -> tuple[list[str], str]:
    """Of a width that is no square, and of data so easy that most pairs tie before the end."""
    return of_package(
        pop=32, seq_len=3, width=20, vocabulary=3, table_bits=17, alpha_decay=30, sigma_shift=5,
        steps=40,
    )  # fmt: skip


def test_page_and_package_agree_on_other_sizes(capsys: pytest.CaptureFixture[str]):
    assert printed_by_page(capsys, (SIZES, SMALL), steps=40) == small()


@pytest.mark.parametrize(
    "change",
    [
        ("sign * A, B", "A, B"),
        ("(seed, FOR_SLICES, step, leaf)", "(seed, FOR_SLICES, leaf)"),
        ("TABLE_SIZE - size + 1", "TABLE_SIZE - size"),
        ("(cut[:, 1::2], cut[:, ::2])", "(cut[:, shape[0] :], cut[:, : shape[0]])"),
        ("* 32768 - 0.5", "* 32768"),
        ("place -= cut * (document == 0)", "pass"),
        ("[[[0]], [[1]]]", "[[[0]], [[2]]]"),
        ("np.where(token[:, None] == 0, 0, s)", "s"),
        (".sum(1, keepdims=True) >> SHIFT", ".sum(1, keepdims=True) // -(2**SHIFT) * -1"),
        ("f * s >> 8", "-(-f * s >> 8)"),
        ("(16 * isqrt(x.shape[1]))", "int(16 * sqrt(x.shape[1]))"),
        ("[logits + 128] // 1", "[logits + 128]"),
        ("np.sign(scores[::2] - scores[1::2])", "scores[::2] - scores[1::2]"),
        ("decided if 2 * decided < N else N", "N"),
        ("np.where(votes > 0, 1, -1)", "np.sign(votes)"),
        ("factor[::2]", "factor[1::2]"),
        (" >= threshold", " > threshold"),
    ],
    ids=lambda change: change[0],
)
def test_a_page_that_does_something_else_has_another_signature(
    capsys: pytest.CaptureFixture[str], change: tuple[str, str]
):
    assert printed_by_page(capsys, (SIZES, SMALL), change, steps=40)[1] != small()[1]


def test_the_page_is_short_and_needs_numpy_alone():
    assert len(SOURCE.splitlines()) <= LONGEST
    found = set()
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert "numpy" in found
    assert {name.split(".")[0] for name in found} <= {"numpy"} | sys.stdlib_module_names
