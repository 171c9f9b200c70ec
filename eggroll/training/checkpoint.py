"""A run's state as one safetensors file: written whole or not at all, refused unless intact.

Tensors: `weights/<leaf>` int8, `memory/<name>` int32 (of rule and estimator) and `state` int8 [P,
state_size]. Version 1 called the memory `master`, and knew the network by its shapes alone.
Metadata: format, version, step, config and corpus (JSON), network (digest of its declaration),
sha256 of all the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from eggroll.errors import InputError, NoObjectError, object_in
from eggroll.files import open_regular, write_whole
from eggroll.networks import initial_weights
from eggroll.spec.program import Leaves, Program
from eggroll.training.config import Common, Config, from_dict

FORMAT, VERSION = "eggroll", 2
LIBRARY = "eggroll-trainer"
WEIGHTS = "eggroll-weights"  # without the members' states
FINE_TUNE = "eggroll-lm"
COMMANDS = {
    FORMAT: "eggroll.train",
    "eggroll-adamw": "eggroll.adamw",
    LIBRARY: "eggroll.Trainer",
    WEIGHTS: "eggroll.replay",
    FINE_TUNE: "eggroll.lm.Trainer",
}

LONGEST_HEADER = 100_000_000  # bytes, as of every safetensors file

Arrays = dict[str, NDArray[Any]]


class StoredModel(NamedTuple):
    """A trained network, as a checkpoint has it; weights: int8 leaves in declared order.

    corpus: facts of its data, None where they are not known.
    """

    config: Config
    step: int
    weights: Leaves
    corpus: Any = None


class Checkpoint(NamedTuple):
    """Everything an exact resume needs; data positions and schedules follow from step and config.

    step: updates done; weights: int8 leaves in declared order; memory: of rule and
    estimator; state: int8 [P, state_size]; corpus: the facts that tell this data from other data.
    """

    config: Config
    step: int
    weights: Leaves
    memory: Leaves
    state: mx.array
    corpus: Any


def signature(weights: Mapping[str, mx.array]) -> str:
    """Hex sha256 of all int8 weights in declared order: equal for bit-identical models."""
    digest = hashlib.sha256()
    for leaf in weights.values():
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Replaces the file at `path` as a whole.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    arrays = tensors(checkpoint.weights, checkpoint.memory)
    arrays["state"] = np.array(checkpoint.state)
    write(path, FORMAT, checkpoint.step, checkpoint.config, checkpoint.corpus, arrays)


def tensors(weights: Leaves, memory: Leaves) -> Arrays:
    """Leaves under the names that files have them by."""
    groups = (("weights", weights), ("memory", memory))
    return {f"{group}/{name}": np.array(leaf) for group, leaves in groups
            for name, leaf in leaves.items()}  # fmt: skip


def write(path: Path, kind: str, step: int, config: Common, corpus: Any, arrays: Arrays) -> None:
    """Replaces the file of a run of that kind as a whole; config and corpus go in as JSON.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    facts = {
        "config": json.dumps(config.to_dict()),
        "corpus": json.dumps(corpus),
        "network": config.program().digest(),
    }
    store(path, kind, step, facts, arrays)


def save_weights(path: Path, step: int, config: Config, weights: Leaves, memory: Leaves) -> None:
    """Writes weights of a run and its rule's memory, which a model needs but no run can go on from.

    Raises:
        InputError: the file cannot be written.
    """
    write(path, WEIGHTS, step, config, {}, tensors(weights, memory))


def store(path: Path, kind: str, step: int, facts: Mapping[str, str], arrays: Arrays) -> None:
    """Replaces the file at `path` as a whole; facts: metadata beside format, version and step.

    Raises:
        InputError: it cannot be written; what was there before is intact.
    """
    metadata = {"format": kind, "version": str(VERSION), "step": str(step), **facts}
    metadata["sha256"] = _digest(metadata, arrays)
    write_whole(path, safetensors.numpy.save(arrays, metadata))


def load(path: Path) -> Checkpoint:
    """Reads and verifies a checkpoint.

    Raises:
        InputError: missing, unreadable, damaged, foreign, of a newer version, or not fitting the
            network that its own options declare.
    """
    config, metadata, arrays = _opened(path)
    arrays = {re.sub("^master/", "memory/", name): array for name, array in arrays.items()}
    step, weights, memory, state = _sound(config, metadata, arrays, path)
    return Checkpoint(config, step, weights, memory, state, json_of(metadata, "corpus", path))


def load_model(path: Path) -> StoredModel:
    """Reads and verifies the weights of a checkpoint, or of a file of `save_weights`.

    Raises:
        InputError: as of `load`.
    """
    if kind_of(path) != WEIGHTS:
        stored = load(path)
        return StoredModel(stored.config, stored.step, stored.weights, stored.corpus)
    config, metadata, arrays = _opened(path, WEIGHTS)
    arrays["state"] = np.zeros((config.pop, config.program().state_size), np.int8)
    step, weights, _, _ = _sound(config, metadata, arrays, path)
    return StoredModel(config, step, weights)


def kind_of(path: Path) -> str:
    """The kind of run that a file is of, by its metadata; empty where it cannot be read."""
    return fact_of(path, "format")


def fact_of(path: Path, name: str) -> str:
    """A fact of a file's metadata; empty where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            data = file.read(size) if size <= LONGEST_HEADER else b""
            return str(object_in(data, {"__metadata__": dict})["__metadata__"][name])
    except (OSError, ValueError, KeyError):
        return ""


def load_options(path: Path) -> Config:
    """The options alone. Makes no array, as MLX opens the GPU for the first one.

    Before that an engine may have something to tell MLX.
    """
    return _opened(path)[0]


def _opened(path: Path, kind: str = FORMAT) -> tuple[Config, dict[str, str], Arrays]:
    metadata, arrays = read(path, kind)
    # An option that is younger than the run has its plain default, not the recipe's.
    options = Config().to_dict() | json_of(metadata, "config", path)
    config = from_dict(options, f"checkpoint {str(path)!r}")
    config.check()
    check_network(metadata, config, path)
    return config, metadata, arrays


def check_network(metadata: Mapping[str, str], config: Common, path: Path) -> None:
    """Raises InputError if the weights are of another network than its options declare here."""
    now = config.program().digest()
    then = metadata.get("network", now)
    if then != now:
        raise InputError(
            f"checkpoint {str(path)!r} is of another network {config.network!r} (declaration "
            f"{then[:12]!r}) than is declared here ({now[:12]}): use the declaration that its run "
            "began with, or start a new run."
        )


def json_of(metadata: Mapping[str, str], name: str, path: Path) -> dict[str, Any]:
    """A JSON object of the metadata; an InputError where it is none."""
    try:
        return object_in(metadata[name])
    except (KeyError, ValueError) as error:
        how = "is no object" if isinstance(error, NoObjectError) else "cannot be read"
        raise damaged(path, f"its {name} {how}") from error


def step_of(metadata: Mapping[str, str], most: int, path: Path) -> int:
    """The updates made, a whole number up to `most`; an InputError where it is none."""
    return number_of(metadata, "step", most, path)


def number_of(metadata: Mapping[str, str], name: str, most: int, path: Path) -> int:
    """A whole number of the metadata, from 0 to `most`; an InputError where it is none."""
    text = metadata.get(name, "")
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
        raise damaged(path, f"its {name} is {text[:20]!r} and 0 to {most} is possible")
    return int(text)


def read(path: Path, kind: str) -> tuple[dict[str, str], Arrays]:
    """Metadata and tensors of the file of a run of that kind, verified by their checksum.

    Raises:
        InputError: missing, unreadable, damaged, foreign, or of a newer version.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError as error:
        raise InputError(
            f"{str(path.parent)!r} holds no checkpoint: give the folder of a run that began, or "
            "start a new run with another --out."
        ) from error
    except OSError as error:
        place = path.parent
        raise InputError(
            f"{str(place)!r} is a file: give the folder of a run, such as {str(place.parent)!r}."
            if place.is_file()
            else f"checkpoint {str(path)!r} cannot be read ({error.strerror}): make it readable or "
            "give the folder of another run."
        ) from error
    metadata = _metadata(data, path, kind)
    try:
        arrays: Arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, "its tensors cannot be read") from error
    if metadata.pop("sha256", "") != _digest(metadata, arrays):
        raise damaged(path, "its checksum is wrong")
    return metadata, arrays


def _metadata(data: bytes, path: Path, kind: str) -> dict[str, str]:
    """The metadata of a checkpoint that this version can read."""
    size = int.from_bytes(data[:8], "little")
    try:
        if len(data) < 8 or 8 + size > len(data):
            raise ValueError("shorter than its header")
        header = object_in(data[8 : 8 + size], {"__metadata__": dict | None})
        metadata: dict[str, str] = header.get("__metadata__") or {}
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            raise ValueError("metadata that is no text")
    except ValueError as error:
        raise damaged(path, "its header cannot be read") from error
    if (other := metadata.get("format")) != kind and other in COMMANDS:
        raise InputError(
            f"checkpoint {str(path)!r} is of a run of {COMMANDS[other]}, which is not read here: "
            f"give the folder of one of {COMMANDS[kind]}."
        )
    if other != kind:
        raise InputError(
            f"checkpoint {str(path)!r} is a safetensors file, but not one of eggroll's: give the "
            "folder of a run."
        )
    version = metadata.get("version", "")
    if not re.fullmatch("[0-9]{1,10}", version):
        raise damaged(path, "it names no version")
    if int(version) > VERSION:
        raise InputError(
            f"checkpoint {str(path)!r} has version {version} and this eggroll reads up to "
            f"{VERSION}: update eggroll to go on with it."
        )
    return metadata


def _digest(metadata: Mapping[str, str], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def damaged(path: Path, how: str) -> InputError:
    """The error for a checkpoint whose content cannot be."""
    return InputError(
        f"checkpoint {str(path)!r} is damaged or no checkpoint ({how}): restore it from a copy, or "
        "start a new run with another --out."
    )


def _sound(
    config: Config, metadata: Mapping[str, str], arrays: Arrays, path: Path
) -> tuple[int, Leaves, Leaves, mx.array]:
    """The update, weights and memory in declared order, and the state, as the run's rule leaves."""
    program = config.program()
    memory_shapes = config.estimator_class.memory(program) | config.rule_class.memory(program)
    weights, memory, state = fitting(program, memory_shapes, config.pop, arrays, path)
    step = step_of(metadata, config.steps, path)
    start = initial_weights(program, config.seed)
    if wrong := config.rule_class.impossible(weights, memory, start, step):
        raise damaged(path, wrong)
    return step, weights, memory, state


def fitting(
    program: Program,
    memory_shapes: Mapping[str, tuple[int, ...]],
    members: int,
    arrays: Arrays,
    path: Path,
) -> tuple[Leaves, Leaves, mx.array]:
    """Weights and memory in declared order, and the state, of arrays that must be these alone.

    memory_shapes: of the arrays that rule and estimator keep.

    Raises:
        InputError: an array is missing, too many, or of another shape or range.
    """
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "state": ((members, program.state_size), "int8")
    }
    shapes |= {f"weights/{leaf.name}": (leaf.shape, "int8") for leaf in program.leaves}
    shapes |= {f"memory/{name}": (shape, "int32") for name, shape in memory_shapes.items()}
    present = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
    for name in sorted(shapes.keys() | present.keys()):
        if shapes.get(name) != present.get(name):
            needed, has = (_described(d.get(name)) for d in (shapes, present))
            raise InputError(
                f"checkpoint {str(path)!r} has {has} as {name!r} where its options need {needed}: "
                "it is not from this version of the network, so start a new run."
            )
        if present[name][1] == "int8" and bool((arrays[name] == -128).any()):
            raise InputError(
                f"checkpoint {str(path)!r} has -128 in {name!r} where -127 to 127 are allowed: "
                "restore it from a copy, or start a new run."
            )
    weights = {leaf.name: mx.array(arrays[f"weights/{leaf.name}"]) for leaf in program.leaves}
    memory = {name: mx.array(arrays[f"memory/{name}"]) for name in memory_shapes}
    return weights, memory, mx.array(arrays["state"])


def _described(array: tuple[tuple[int, ...], str] | None) -> str:
    return f"{array[1]} {list(array[0])}" if array else "nothing"
