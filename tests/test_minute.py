"""records/minute: a row is what its command gives, and another signature is found out."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest
from house import ROOT

SPEC = importlib.util.spec_from_file_location("minute", ROOT / "records" / "minute" / "minute.py")
minute = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(minute)

BYTES = """validation: 26 of 508 documents, by --val-share 0.05
validation: 1.661 bits per byte of text that training never reads
with its counted expert: 1.402 bits
signature: """
PAIRS = """validation: 6.187 bits per token of text that training never reads, 1.753 per byte
with its counted expert: 4.923 bits, 1.395 per byte
signature: """


@pytest.mark.parametrize(("output", "bits", "both"), [(BYTES, 1.661, 1.402), (PAIRS, 1.753, 1.395)])
def test_figures_are_read_from_the_output(output: str, bits: float, both: float):
    found = minute.said(f"{output}{'0a' * 32}\n")
    assert found == {"bits_per_byte": bits, "with_counts": both, "signature": "0a" * 32}


def test_floats_have_no_signature():
    found = minute.said("validation: 1.431 bits per byte, tokens of eggroll\n")
    assert found == {"bits_per_byte": 1.431, "with_counts": None, "signature": ""}
    with pytest.raises(ValueError, match="says no `validation"):
        minute.said("signature: 00")


def test_a_row_is_made_and_checked(tmp_path: Path, text: Path, monkeypatch, capsys):
    monkeypatch.setattr(minute, "ROWS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(minute, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(minute, "commit", lambda: "abc")
    words = ["python", "-m", "eggroll.train", "--pop", "32", "--width", "16", "--steps", "3",
             "--table-bits", "16", "--val-tokens", "512", "--sample-tokens", "0",
             "--expert", "counts", "--data", str(text)]  # fmt: skip
    command = ["minute.py", "run", "--name", "tiny", "--", *words]
    monkeypatch.setattr(sys, "argv", command)
    assert minute.main() == 0
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert shlex.split(row["command"]) == words
    assert row["text"].startswith("train ")
    assert row["signature"] in (tmp_path / "logs" / row["log"]).read_text()
    assert f"| 1 | {row['bits_per_byte']:.3f} |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["minute.py", "check", "1"])
    assert minute.main() == 0
    assert "gives the row" in capsys.readouterr().out
    for changed, says in (
        ({"signature": "0" * 64}, "gives something else"),
        ({"text": "train 0"}, "nothing can be compared"),
    ):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row | changed) + "\n")
        assert minute.main() == 1
        assert says in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["minute.py", "check", "2"])
    assert minute.main() == 2
    assert "rows are 1 to 1" in capsys.readouterr().err


def test_the_readme_has_the_table_of_the_rows():
    readme = (ROOT / "records" / "minute" / "README.md").read_text()
    rows = minute.rows()
    shown = minute.table(rows) if rows else "No row has been sent yet."
    assert shown in readme
    for row in rows:
        assert (ROOT / "records" / "minute" / "logs" / row["log"]).exists()
