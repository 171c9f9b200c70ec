"""Checkpoints whose checksum fits and whose content cannot be: refused in a sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import TINY

import eggroll as eg
from eggroll import adamw
from eggroll.baseline import backprop as reader
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT
from eggroll.training import checkpoint
from eggroll.training import loop as training
from eggroll.training.checkpoint import Arrays

DIGITS = "9" * 5000
HOSTILE = (
    True, None, [], {}, [1, 2], "x", 10**30, -1, 1e308, float("nan"), "\0", "\ud800", "a" * 9000,
    [[["a"]]], {"a": {"b": []}}, 0, 2**31, 0.5, "count", "paper", "language", "feedback",
)  # fmt: skip
TEXTS = (
    "true", "[1, 2", "x", DIGITS, "", "null", "[]", "{}", "NaN", "-1", "٣", "[" * 20_000, '"a"',
    "0x1p9999", "nan", "\0", "a" * 9000, "12345678901", '{"a": ' + DIGITS + "}",
)  # fmt: skip
Metadata = dict[str, str]


class Kind:
    """A kind of checkpoint: an intact file of it, and what reads it."""

    def __init__(self, path: Path, name: str, load: Callable[[Path], object]) -> None:
        self.path, self.load = path, load
        self.metadata, self.arrays = checkpoint.read(path, name)

    def refused(self, metadata: Metadata, arrays: Arrays | None = None) -> str:
        """The sentence by which a doctored file is refused; empty if it is not."""
        kept = self.arrays if arrays is None else arrays
        digest = {"sha256": checkpoint._digest(metadata, kept)}
        doctored = self.path.with_name("doctored.safetensors")
        doctored.write_bytes(safetensors.numpy.save(kept, metadata | digest))
        try:
            self.load(doctored)
        except InputError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    root = tmp_path_factory.mktemp("doctored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eggroll.training.pictures.curves", lambda folder: folder)
        for rule in ("sign", "master", "whitened"):
            assert training.main([*TINY, "--rule", rule, "--out", str(root / rule)]) == 0
        words = ["--estimator", "feedback", "--rule", "adam", "--out", str(root / "adam")]
        assert training.main([*TINY, *words]) == 0
        words = ["--streams", "4", "--width", "8", "--seq-len", "4", "--steps", "3"]
        words += ["--val-tokens", "256", "--sample-tokens", "4", "--out", str(root / "float")]
        assert adamw.main(["--data", "count", *words]) == 0
    es = eg.Trainer(eg.networks.mlp(3, [8], 2), pop=8, table_bits=16, rule="whitened")
    es.ask()(np.ones((8, 1, 3), np.int8))
    es.tell(np.arange(8))
    es.save(root / "trainer.safetensors")
    found = {
        rule: Kind(root / rule / CHECKPOINT, checkpoint.FORMAT, checkpoint.load)
        for rule in ("sign", "master", "whitened", "adam")
    }
    found["float"] = Kind(
        root / "float" / CHECKPOINT, reader.FORMAT, lambda path: reader.load_run(path, 1)
    )
    found["trainer"] = Kind(root / "trainer.safetensors", checkpoint.LIBRARY, eg.Trainer.load)
    return found


def inside(value: Any, chance: random.Random) -> Any:
    """A JSON value with one thing in it changed."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        changed, key = value.copy(), chance.choice(keys)
        if chance.random() < 0.2:
            del changed[key]
        else:
            changed[key] = inside(changed[key], chance)
        return changed
    return chance.choice(HOSTILE)


def doctored(metadata: Metadata, chance: random.Random) -> Iterator[Metadata]:
    """Metadata with one entry missing, replaced or changed inside."""
    for name in metadata:
        yield {k: v for k, v in metadata.items() if k != name}
        for text in chance.sample(TEXTS, 6):
            yield metadata | {name: text}
        for _ in range(20 if name in ("config", "corpus", "declaration") else 0):
            yield metadata | {name: json.dumps(inside(json.loads(metadata[name]), chance))}


@pytest.mark.parametrize("name", ["master", "float", "trainer"])
def test_metadata_that_cannot_be_is_refused(kinds: dict[str, Kind], name: str):
    kind, refusals = kinds[name], []
    for metadata in doctored(kind.metadata, random.Random(0)):
        said = kind.refused(metadata)
        refusals += [said] if said else []
        assert len(said) <= 500
        assert not said or said.endswith((".", "?"))
    assert len(refusals) > 50
    assert not kind.refused(kind.metadata)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": "true"}, "its config is no object"),
        ({"corpus": "[1, 2"}, "its corpus cannot be read"),
        ({"corpus": "[1, 2]"}, "its corpus is no object"),
        ({"step": "x"}, "its step is 'x' and 0 to 6 is possible"),
        ({"step": DIGITS}, "its step is '99999999999999999999' and 0 to 6 is possible"),
        ({"step": "7"}, "its step is '7' and 0 to 6 is possible"),
        ({"version": DIGITS}, "it names no version"),
    ],
)
def test_it_says_what_is_wrong(kinds: dict[str, Kind], change: Metadata, says: str):
    kind = kinds["master"]
    assert says in kind.refused(kind.metadata | change)


def rows_swapped(array: Any) -> Any:
    return array[::-1].copy()


def plus(amount: int, place: tuple[int, ...] = ()) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        changed = array.copy()
        changed[place] += amount
        return changed

    return change


@pytest.mark.parametrize(
    ("rule", "name", "change", "says"),
    [
        ("sign", "weights/head", rows_swapped, "from its start after 6 updates"),
        ("master", "weights/head", rows_swapped, "are not their fine copy, rounded"),
        ("master", "memory/head", rows_swapped, "are not their fine copy, rounded"),
        ("master", "memory/head", lambda a: a | 1 << 30, "is beyond 8355839"),
        ("whitened", "memory/head/whitening", plus(1, (0, 0, 1)), "is not symmetric"),
        ("whitened", "memory/head/whitening", lambda a: a * 9, "is not within -524287 and 524287"),
        ("whitened", "memory/head/whitening", lambda a: -a * 9, "is not within -524287"),
        ("adam", "memory/head/size", lambda a: -a - 1, "mean or size of the votes on 'head'"),
        ("adam", "memory/head/mean", lambda a: a | 1 << 30, "mean or size of the votes on 'head'"),
        ("adam", "memory/head/feedback", lambda a: a | 1 << 30, "is beyond 8355839"),
        ("trainer", "weights/layer0.weights", rows_swapped, "are not their fine copy, rounded"),
    ],
)
def test_arrays_that_the_rule_never_leaves_are_refused(kinds, rule: str, name: str, change, says):
    kind = kinds[rule]
    arrays = kind.arrays | {name: change(kind.arrays[name])}
    assert says in kind.refused(kind.metadata, arrays)


def test_two_leaves_swapped_are_refused(kinds):
    kind = kinds["sign"]
    one, other = "weights/layer0.Uf", "weights/layer0.Wf"
    assert kind.arrays[one].shape == kind.arrays[other].shape
    swapped = kind.arrays | {one: kind.arrays[other], other: kind.arrays[one]}
    assert "from its start after 6 updates" in kind.refused(kind.metadata, swapped)


@pytest.mark.parametrize("rule", ["sign", "master", "whitened", "adam"])
def test_the_first_checkpoint_has_the_seed_s_weights(kinds, rule: str):
    kind = kinds[rule]
    said = kind.refused(kind.metadata | {"step": "0"})
    assert "update 0 has other weights" in said or "from its start after 0 updates" in said
