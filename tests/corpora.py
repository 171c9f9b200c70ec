"""Texts, folders and corpora for the tests of data."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from eggroll.data.corpora import Text
from eggroll.data.streams import TextCorpus

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
