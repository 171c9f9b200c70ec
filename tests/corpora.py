"""Texts, folders and corpora for the tests of data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from eggroll.data.corpus import TextCorpus
from eggroll.data.text import Text

PROSE = b"The hen laid an egg.\nThe egg rolled.\n\n"


def corpus_of(train: bytes, valid: bytes = b"\0valid") -> TextCorpus:
    return TextCorpus("sample", Text(*(np.frombuffer(b, np.uint8) for b in (train, valid)), {}))


def prose(size: int, word: bytes = b"") -> bytes:
    """Numbered paragraphs, so that no two cuts are equal."""
    lines = (word + b"%d " % i + PROSE for i in range(size))
    text = b""
    while len(text) < size:
        text += next(lines)
    return text[:size]


def documents(text: Text) -> dict[str, list[bytes]]:
    """The documents of both splits, which also shows that each begins with a mark."""
    found = {}
    for split in ("train", "valid"):
        data = getattr(text, split)
        assert data.dtype == np.uint8
        assert data[0] == 0
        found[split] = data.tobytes()[1:].split(b"\0")
        facts = text.about["splits"][split]
        assert facts["documents"] == len(found[split])
        assert facts["bytes"] == len(data)
        assert facts["sha256"] == hashlib.sha256(data.tobytes()).hexdigest()
    return found


def sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def write_tree(root: Path, names: list[str]) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%s " % name.encode() * 50)


STORIES = {
    "train": ["Once an egg", "", None, "rolled\0 away.", "Ünïcödé"]
    + [f"t{i}" for i in range(2000)],
    "validation": ["A hen looked on."],
}
CACHED = {  # what a corpus has of them
    "train": ["Once an egg", "rolled away.", "Ünïcödé"] + [f"t{i}" for i in range(2000)],
    "valid": ["A hen looked on."],
}


def hub_shaped(folder: Path, kind: str) -> Path:
    """A data set of the hub's shape, of parquet or jsonl."""
    data = folder / "data"
    data.mkdir(parents=True)
    for split, texts in STORIES.items():
        if kind == "parquet":
            import pyarrow as pa
            import pyarrow.parquet

            name = data / f"{split}-00000-of-00001.parquet"
            pyarrow.parquet.write_table(pa.table({"text": texts}), name)
        else:
            rows = (json.dumps({"text": text}) for text in texts)
            (data / f"{split}.jsonl").write_text("\n".join(rows))
    return folder
