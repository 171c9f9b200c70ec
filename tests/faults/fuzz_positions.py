"""Targets that read chess positions of experiments/nnue: packs and files of other programs."""

from __future__ import annotations

import random

import numpy as np
from nnue_positions import fixed_records, plain_text, raw_pack

from experiments.nnue.features import FEATURES
from experiments.nnue.formats import BULLET, READERS, read_foreign
from experiments.nnue.loader import Loader
from experiments.nnue.pack import read_pack
from faults.fuzz import Target, mutated_bytes
from faults.fuzz_files import file_of, place

# Twelve plies of a game, as nnue_binpack writes them.
BINPACK = bytes.fromhex(
    "42494e503e0000009100000000000091a6ed7f000000000000000000000000003820fffd00000000000ba3b583"
    "ebb583ecbffefeef82bbe09b7ffbd23af7fefbc34f45b4f8b0"
)


def packs(chance: random.Random) -> None:
    """A pack with anything changed; half of the time its records alone, whose checksum fits."""
    sound = raw_pack(place() / "sound.bin", fixed_records())
    path = file_of(mutated_bytes(sound.read_bytes(), chance), "some.bin")
    if chance.random() < 0.5:
        data = bytearray(fixed_records().tobytes())
        for _ in range(chance.choice([1, 2, 5])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        raw_pack(path, np.frombuffer(bytes(data), fixed_records().dtype))
    features = chance.choice(list(FEATURES))
    with Loader(path, features=features, batch=4, epochs=2, split="all") as loader:
        for batch in loader:
            for lists in (batch.white, batch.black):
                assert lists.starts[-1] == len(lists.index)
                assert lists.index.max(initial=0) < FEATURES[features]
    read_pack(path)


def foreign(chance: random.Random) -> None:
    """A file of another program with anything changed, read as what it was or as anything else."""
    bullet = np.zeros(2, BULLET)
    bullet["occupied"], bullet["codes"][:, 0] = 1 << 3 | 1 << 60, 0xD5  # kings on d1 and e8
    bullet["king"], bullet["other_king"] = 3, 60 ^ 56
    sound = {
        "plain": plain_text(fixed_records()[:3]).encode(),
        "binpack": BINPACK,
        "bullet": bullet.tobytes(),
    }
    name = chance.choice(list(sound))
    data = mutated_bytes(sound[name], chance)
    read_foreign(file_of(data, "foreign"), chance.choice([name, name, None, *READERS]))


TARGETS = (
    Target("packs of positions", packs, cost=5),
    Target("positions of other programs", foreign, cost=3),
)
