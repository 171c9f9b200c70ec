"""A checkpoint is read back exactly or refused in a sentence, and written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import safetensors.numpy

from eggroll.errors import InputError
from eggroll.files import CHECKPOINT, METRICS
from eggroll.networks import NETWORKS, Gates, egg, initial_weights
from eggroll.spec.program import Program
from eggroll.training import checkpoint
from eggroll.training import folder as runlog
from eggroll.training.checkpoint import Checkpoint
from eggroll.training.config import RECIPES, Config

CONFIG = Config(data="count", seed=1, pop=6, width=4, layers=2, rule="master", table_bits=16)


@pytest.fixture
def sound() -> Checkpoint:
    weights = initial_weights(CONFIG.program(), 1)
    master = {name: leaf.astype(mx.int32) << 16 for name, leaf in weights.items()}
    state = mx.array(np.arange(-24, 24, dtype=np.int8).reshape(6, 8))
    return Checkpoint(CONFIG, 7, weights, master, state, {"vocabulary": 16, "steps": [1]})


@pytest.fixture
def path(tmp_path: Path, sound: Checkpoint) -> Path:
    path = tmp_path / CHECKPOINT
    checkpoint.save(path, sound)
    return path


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    def plain(c: Checkpoint) -> list[object]:
        leaves = [*c.weights.items(), *c.memory.items(), ("state", c.state)]
        return [(name, str(leaf.dtype), leaf.tolist()) for name, leaf in leaves]

    facts = [(c.config.to_dict(), c.step, c.corpus) for c in (a, b)]
    return plain(a) == plain(b) and facts[0] == facts[1]


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        checkpoint.load(path)
    sentence = str(caught.value)
    assert sentence.endswith((".", "?"))
    assert str(path.parent) in sentence
    return sentence


def test_everything_comes_back(path: Path, sound: Checkpoint):
    read = checkpoint.load(path)
    assert equal(read, sound)
    assert list(read.weights) == list(sound.weights)
    assert checkpoint.signature(read.weights) == checkpoint.signature(sound.weights)


def test_no_layers_no_state(tmp_path: Path):
    config = replace(CONFIG, layers=0, rule="sign")
    weights = initial_weights(config.program(), 1)
    kept = Checkpoint(config, 0, weights, {}, mx.zeros((6, 0), mx.int8), {})
    checkpoint.save(tmp_path / CHECKPOINT, kept)
    assert equal(checkpoint.load(tmp_path / CHECKPOINT), kept)


def test_signature_tells_one_changed_weight(sound: Checkpoint):
    changed = {k: v + (k == "layer1.bf") for k, v in sound.weights.items()}
    assert checkpoint.signature(changed) != checkpoint.signature(sound.weights)


def test_a_flipped_bit_is_refused_or_harmless(path: Path, sound: Checkpoint):
    data, chance = path.read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    places = [*range(8), *chance.sample(range(8, header), 150)]
    places += chance.sample(range(header, len(data)), 50)
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            read = checkpoint.load(path)
        except InputError:
            continue
        assert equal(read, sound), place
        assert place < header, place  # of what the file says, only its spelling may differ


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, -1000, -1])
def test_a_truncated_file_is_refused(path: Path, length: int):
    path.write_bytes(path.read_bytes()[:length])
    assert "is damaged or no checkpoint" in refused(path)


@pytest.mark.parametrize(
    "data", [b"PK\3\4" * 100, b"\0" * 64, b"\2" + b"\0" * 7 + b"[]", b"{}" * 9]
)
def test_another_kind_of_file_is_refused(path: Path, data: bytes):
    path.write_bytes(data)
    assert "is damaged or no checkpoint" in refused(path)


def test_foreign_safetensors_are_refused(path: Path):
    arrays = {"weights/head": np.zeros((4, 4), np.int8)}
    for metadata in (None, {"format": "pt"}):
        path.write_bytes(safetensors.numpy.save(arrays, metadata))
        assert "not one of eggroll's" in refused(path)


def test_version_1_is_read(path: Path, sound: Checkpoint):
    """It had another name for the rule's memory, and no digest of the network."""
    metadata, arrays = checkpoint.read(path, checkpoint.FORMAT)
    arrays = {name.replace("memory/", "master/"): array for name, array in arrays.items()}
    metadata = {k: v for k, v in metadata.items() if k != "network"} | {"version": "1"}
    metadata["sha256"] = checkpoint._digest(metadata, arrays)
    path.write_bytes(safetensors.numpy.save(arrays, metadata))
    again = checkpoint.load(path)
    assert (again.config, again.step) == (sound.config, sound.step)
    assert again.memory.keys() == sound.memory.keys()
    for name, array in sound.memory.items():
        assert (np.array(again.memory[name]) == np.array(array)).all()


def test_what_a_recipe_gained_later_is_not_put_on_an_old_run(path: Path, sound: Checkpoint):
    config = replace(sound.config, recipe="language")
    checkpoint.save(path, sound._replace(config=config))
    metadata, arrays = checkpoint.read(path, checkpoint.FORMAT)
    options = json.loads(metadata["config"])
    assert options.pop("score_bits") == 4 != RECIPES["language"]["score_bits"]
    metadata["config"] = json.dumps(options)
    metadata["sha256"] = checkpoint._digest(metadata, arrays)
    path.write_bytes(safetensors.numpy.save(arrays, metadata))
    assert checkpoint.load(path).config.score_bits == 4


def test_another_network_of_the_same_shapes_is_refused(path: Path, monkeypatch):
    """Table gates have the same leaves as clipped ones; so may any edit of the declaration."""

    def edited(vocabulary: int, width: int, layers: int, gates: Gates) -> Program:
        return egg(vocabulary, width, layers, "table")

    monkeypatch.setitem(NETWORKS, "egg", edited)
    assert "is of another network 'egg'" in refused(path)


def test_another_kind_of_run_is_named(path: Path, sound: Checkpoint):
    checkpoint.write(path, checkpoint.LIBRARY, 0, sound.config, {}, {})
    says = r"of a run of eggroll\.Trainer, which is not read here: give .* one of eggroll\.train\."
    with pytest.raises(InputError, match=says):
        checkpoint.load(path)


def test_a_newer_version_is_refused(path: Path, sound: Checkpoint, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 3)
    checkpoint.save(path, sound)
    monkeypatch.undo()
    assert "has version 3 and this eggroll reads up to 2" in refused(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head": None}, "has nothing as 'weights/head'"),
        ({"tail": mx.zeros(3, mx.int8)}, "as 'weights/tail' where its options need nothing"),
        ({"head": mx.zeros((16, 5), mx.int8)}, "int8 [16, 5] as 'weights/head'"),
        ({"head": mx.zeros((16, 4), mx.int16)}, "int16 [16, 4] as 'weights/head'"),
        ({"head": mx.full((16, 4), -128, mx.int8)}, "-128 in 'weights/head'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(path: Path, sound: Checkpoint, change, says: str):
    leaves = {k: v for k, v in (dict(sound.weights) | change).items() if v is not None}
    checkpoint.save(path, sound._replace(weights=leaves))
    assert says in refused(path)


def test_state_and_memory_that_do_not_fit_are_refused(path: Path, sound: Checkpoint):
    checkpoint.save(path, sound._replace(memory={}))
    assert "has nothing as 'memory/" in refused(path)
    checkpoint.save(path, sound._replace(state=mx.zeros((4, 8), mx.int8)))
    assert "int8 [4, 8] as 'state' where its options need int8 [6, 8]" in refused(path)
    checkpoint.save(path, sound._replace(state=mx.full((6, 8), -128, mx.int8)))
    assert "-128 in 'state'" in refused(path)


def test_options_that_are_none_are_refused(path: Path, sound: Checkpoint):
    checkpoint.save(path, sound._replace(config=replace(CONFIG, pop=7)))
    with pytest.raises(InputError, match="--pop is 7"):
        checkpoint.load(path)
    checkpoint.save(path, sound._replace(config=replace(CONFIG, rule="adagrad")))  # type: ignore[arg-type]
    assert "'rule' is \"adagrad\"" in refused(path)


def failing(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failed_write_leaves_what_was_there(
    path: Path, sound: Checkpoint, monkeypatch: pytest.MonkeyPatch, call: str, number: int
):
    monkeypatch.setattr(os, call, failing(number))
    with pytest.raises(InputError, match=rf"cannot be written \({os.strerror(number)}\)"):
        checkpoint.save(path, sound._replace(step=8))
    monkeypatch.undo()
    assert equal(checkpoint.load(path), sound)
    assert os.listdir(path.parent) == [path.name]


def test_a_leftover_of_a_killed_writer_does_no_harm(path: Path, sound: Checkpoint):
    path.with_name(f".{path.name}.partial").write_bytes(b"half a checkpoint")
    assert equal(checkpoint.load(path), sound)
    checkpoint.save(path, sound)
    assert os.listdir(path.parent) == [path.name]


def test_metrics_are_cut_back_to_whole_lines_of_the_past(tmp_path: Path):
    path = tmp_path / METRICS
    lines = [json.dumps({"step": step, "loss": 1.5}) + "\n" for step in range(1, 6)]
    path.write_text("".join(lines) + 'null\n{"step": 3}\n' + '{"step": 2')
    with runlog.Metrics(path, 2) as metrics:
        metrics.append({"step": 3, "loss": 2.5})
    assert path.read_text() == "".join(lines[:2]) + '{"step": 3, "loss": 2.5}\n'


def test_a_line_that_does_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, real = tmp_path / METRICS, os.write
    with runlog.Metrics(path, 0) as metrics:
        metrics.append({"step": 1})
        monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
        with pytest.raises(InputError, match="No space left on device"):
            metrics.append({"step": 2})
        monkeypatch.undo()
    assert path.read_text() == '{"step": 1}\n'
