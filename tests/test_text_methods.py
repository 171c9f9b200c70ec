"""experiments/text/methods.py reads what commands print."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from house import ROOT

from eggroll.errors import InputError

TEXT = ROOT / "experiments" / "text"
SPEC = importlib.util.spec_from_file_location("text_methods", TEXT / "methods.py")
methods = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(methods)

PAIRS = """validation: 4.691 bits per token of text that training never reads, 1.329 per byte
           12.000 a uniform guess
            9.493 a unigram model counted on the training split, 2.690 per byte
            6.118 a frozen Kneser-Ney order-2 model counted on the training split, 1.734 per byte (0.4 s)
with its counted expert: 4.404 bits, 1.248 per byte
"""  # noqa: E501
OF_BYTES = """validation: 1.698 bits per byte of text that training never reads
            4.692 a unigram model counted on the training split
            1.560 a frozen Kneser-Ney order-7 model counted on the training split (2.6 s)
"""


def test_figures_are_bits_per_byte_with_counts_and_without():
    assert methods.figures(PAIRS) == (1.329, 1.248)
    assert methods.figures(OF_BYTES) == (1.698, None)


def test_counting_models_are_kept_by_what_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rows are made once, and a stopped table goes on."""
    outputs = {"pairs": PAIRS, "bytes": OF_BYTES}
    asked: list[str] = []

    def call(words: list[str]) -> tuple[str, float]:
        asked.append(words[-1])
        return outputs["pairs" if "pairs" in words else "bytes"], 3.21

    settings = {"pairs": ["--recipe", "pairs"], "bytes": ["peers.py", "run"]}
    monkeypatch.setattr(methods, "call", call)
    monkeypatch.setattr(methods, "METHODS", settings)
    (tmp_path / "pace.json").write_text(json.dumps({"pairs": 7, "bytes": 9}))
    args = SimpleNamespace(
        pace=tmp_path / "pace.json", csv=tmp_path / "rows.csv", data="stdlib", seeds=2, threads=0,
        methods=None, idle=True,
    )  # fmt: skip
    methods.run(args)
    methods.run(args)
    assert len(asked) == 4
    rows = methods.rows_in(args.csv)
    assert [r["seconds"] for r in rows if r["method"] == "pairs"] == ["3.2", "3.2"]
    found = {r["method"]: r["bits_per_byte"] for r in rows if r["method"].startswith("counted")}
    assert found == {
        "counted: unigram": "2.690",
        "counted: frozen Kneser-Ney order-2": "1.734",
        "counted: unigram, bytes": "4.692",
        "counted: frozen Kneser-Ney order-7, bytes": "1.560",
    }


def test_other_commands_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = {
        "narrow": ["--width", "8"],
        "torch": ["peers.py", "run", "gru"],
        "twin": ["-m", "x"],
    }
    (tmp_path / "some.json").write_text(json.dumps(settings))
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    monkeypatch.setattr(methods, "pace", lambda args: None)
    words = ["methods.py", "pace", "--settings", str(tmp_path / "some.json"), "--methods"]
    monkeypatch.setattr(sys, "argv", [*words, "narrow", "twin"])
    methods.main()
    known = methods.METHODS
    assert known == {
        "narrow": ("-m", "eggroll.train", "--width", "8"),
        "torch": (str(TEXT / "peers.py"), "run", "gru"),
        "twin": ["-m", "x"],
    }
    monkeypatch.setattr(sys, "argv", [*words, "wide"])
    with pytest.raises(InputError, match="'wide' is no method: narrow, torch, twin"):
        methods.main()


@pytest.mark.parametrize("page", ["docs/figures.md", "experiments/text/RESULTS.md"])
def test_pages_show_the_table_of_the_rows(page: str):
    """Each line as `methods.py table` prints it, in its order."""
    table = methods.table(methods.rows_in(TEXT / "methods.csv"), "stdlib")
    assert table in (ROOT / page).read_text()


@pytest.mark.parametrize(
    ("page", "line", "names"),
    [
        ("README.md", "errors carried back in integers, `--recipe text`", [
            "errors carried back (recipe text), with counts", "errors carried back (recipe text)"]),
        ("README.md", "PyTorch, the best of", [
            "float: PyTorch GRU, AdamW, with counts", "float: PyTorch GRU, AdamW"]),
        ("README.md", "evolution's network in float, AdamW", ["float: AdamW, evolution's network"]),
        ("README.md", "evolution, `--recipe evolution`", ["evolution (recipe evolution)"]),
        ("README.md", "bigram model of the pairs", ["counted: frozen Kneser-Ney order-2"]),
        ("README.md", "Kneser-Ney of order 5", ["counted: frozen Kneser-Ney order-5"]),
        ("README.md", "the paper's settings |", ["evolution, the paper's rule"]),
        ("docs/good-for.md", "the paper's settings (", [
            "evolution, the paper's rule", "evolution, the paper's rule, bytes"]),
        ("docs/good-for.md", "`--recipe evolution`; on bytes", [
            "evolution (recipe evolution)", "evolution (recipe language), bytes"]),
        ("docs/good-for.md", "the same with the core held", ["evolution, the core frozen"]),
        ("docs/good-for.md", "AdamW in float, evolution's network", [
            "float: AdamW, evolution's network", "float: AdamW, evolution's network, bytes"]),
        ("docs/good-for.md", "PyTorch, a GRU by AdamW", [
            "float: PyTorch GRU, AdamW", "float: PyTorch GRU, AdamW, bytes"]),
        ("docs/good-for.md", "errors carried back in integers, `--recipe text`", [
            "errors carried back (recipe text)", "errors carried back, bytes"]),
        ("docs/good-for.md", "a bigram model", [
            "counted: frozen Kneser-Ney order-2", "counted: bigram, bytes"]),
        ("docs/good-for.md", "a Kneser-Ney model of order 5 and 7", [
            "counted: frozen Kneser-Ney order-5", "counted: frozen Kneser-Ney order-7, bytes"]),
    ],
)  # fmt: skip
def test_figures_of_a_minute_are_those_of_the_rows(page: str, line: str, names: list[str]):
    rows = methods.summaries(methods.rows_in(TEXT / "methods.csv"), "stdlib")
    means = {name: statistics.mean(bits) for name, bits, _ in rows}
    lines = [one for one in (ROOT / page).read_text().splitlines() if one.startswith(f"| {line}")]
    assert len(lines) == 1
    found = re.findall(r"(?<=[| *])\d\.\d{3}(?=[;| *])", lines[0])
    assert found == [f"{means[name]:.3f}" for name in names]
