"""Small random networks and the recorded reference runs, as every engine test needs them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import oracle

from eggroll import networks
from eggroll.networks import Gates
from eggroll.spec.fixed_point import gate_tables
from eggroll.spec.noise import Slices, slice_length
from eggroll.spec.program import Batch, Program

GOLDEN = Path(__file__).parent / "golden"

Rows = tuple[np.ndarray | None, np.ndarray | None]  # inputs and features, as oracles take them


@dataclass
class Case:
    """One evaluation, as engines and oracle take it; arrays are NumPy."""

    program: Program
    weights: dict[str, np.ndarray]
    table: np.ndarray
    starts: np.ndarray  # [leaves, N]
    rank: int
    sigma_shift: int
    tokens: np.ndarray
    targets: np.ndarray
    state: np.ndarray
    gates: str = "clip"
    inputs: np.ndarray | None = None
    features: np.ndarray | None = None

    @property
    def slices(self) -> Slices:
        shift = oracle.Q + self.sigma_shift
        return Slices(mx.array(self.table), mx.array(self.starts), self.rank, shift)

    @property
    def rows(self) -> Rows:
        return self.inputs, self.features

    @property
    def batch(self) -> Batch:
        """As engines take it."""
        return Batch(self.tokens, self.targets, self.state, *self.rows).each(mx.array)

    @property
    def leaves(self) -> dict[str, mx.array]:
        return {k: mx.array(w) for k, w in self.weights.items()}

    def noise(self) -> oracle.Noise:
        names = [leaf.name for leaf in self.program.leaves]
        starts = dict(zip(names, self.starts, strict=True))
        return oracle.Noise(self.table, starts, self.rank, self.sigma_shift)

    def oracle(self, noise: bool = True):
        """Scores [P, T], state [P, state_size], logits [P, T, V] by the oracle."""
        P, layers = len(self.tokens), self.program.state_size // self.program.width
        tables = None if self.gates == "clip" else gate_tables()
        scores, state, logits = oracle.evaluate(
            self.weights,
            self.tokens,
            self.targets,
            self.state.reshape(P, layers, self.program.width),
            self.noise() if noise else None,
            tables,
            1 << self.program.score_bits,
        )
        return scores, state.reshape(P, layers * self.program.width), logits


def int8(rng: np.random.Generator, shape, extreme: bool = False) -> np.ndarray:
    """Normal Q4 values, or only the extremes -127, -1, 0, 1, 127."""
    if extreme:
        return rng.choice(np.array([-127, -1, 0, 1, 127], np.int8), shape)
    return np.clip(np.rint(rng.normal(0, 16, shape)), -127, 127).astype(np.int8)


def case_of(
    program: Program,
    rng: np.random.Generator,
    *,
    T: int = 3,
    P: int = 4,
    rank: int = 1,
    sigma_shift: int = 4,
    extreme: bool = False,
    score_bits: int = 4,
) -> Case:
    """Random weights, noise and inputs for any program."""
    program.score_bits = score_bits
    V, lengths = program.vocabulary, [slice_length(p.shape, rank) for p in program.leaves]
    table = int8(rng, 4 * max(lengths), extreme)
    starts = np.stack([rng.integers(0, table.size - n + 1, P // 2) for n in lengths])
    case = Case(
        program,
        {leaf.name: int8(rng, leaf.shape, extreme) for leaf in program.leaves},
        table,
        starts.astype(np.int32),
        rank,
        sigma_shift,
        rng.integers(0, V, (P, T)).astype(np.int32),
        rng.integers(0, V, (P, T)).astype(np.int32),
        int8(rng, (P, program.state_size), extreme),
    )
    case.inputs, case.features = rows_of(program, rng, P, T, extreme)
    return case


def rows_of(program: Program, rng: np.random.Generator, P: int, T: int, extreme: bool) -> Rows:
    """What members are shown: inputs with a -128 here and there, and features of few values.

    So that lists have the same index twice, and the absent mark -1 anywhere.
    """
    inputs = int8(rng, (P, T, program.inputs), extreme)
    inputs[rng.random(inputs.shape) < 0.05] = -128
    features = np.zeros((P, T, program.indices), np.int32)
    for op in (op for stage in program.stages for op in stage.ops if op.kind == "features"):
        lists, active, first, _ = op.numbers
        shape, count = (P, T, lists * active), program.leaves[op.leaf].shape[0]
        indices = rng.integers(0, rng.integers(1, count + 1), shape)
        indices[rng.random(shape) < 0.1] = count - 1
        indices[rng.random(shape) < rng.random()] = -1
        features[:, :, first : first + lists * active] = indices
    return inputs if program.inputs else None, features if program.indices else None


def random_case(
    seed: int, *, V: int = 16, D: int = 8, L: int = 1, gates: Gates = "clip", **options
) -> Case:
    """A case of EGG; options as in `case_of`."""
    case = case_of(networks.egg(V, D, L, gates), np.random.default_rng(seed), **options)
    case.gates = gates
    return case


_GLOBAL = {"emb": "embedding", "ln_out/weight": "norm", "head": "head"}
_LAYER = {
    "ln1/weight": "norm1",
    "att/Wf": "Wf",
    "att/Uf": "Uf",
    "att/bf": "bf",
    "att/Wh": "Wh",
    "att/Uh": "Uh",
    "att/bh": "bh",
    "ln2/weight": "norm2",
    "mlp/0/weight": "up",
    "mlp/1/weight": "down",
}


@dataclass
class Recorded:
    """A recorded reference run: update -> what was put in and what came out."""

    arrays: dict[str, np.ndarray]
    facts: dict

    def leaves(self, prefix: str) -> dict[str, np.ndarray]:
        out = {}
        for name in (k.removeprefix(prefix) for k in self.arrays if k.startswith(prefix)):
            array = self.arrays[prefix + name]
            if name in _GLOBAL:
                out[_GLOBAL[name]] = array
            else:
                for i, layer in enumerate(array):
                    out[f"layer{i}.{_LAYER[name.removeprefix('blocks/')]}"] = layer
        return out

    def case(self, update: int, weights: dict[str, np.ndarray]) -> Case:
        f, e = self.facts, f"e{update}/"
        program = networks.egg(f["vocabulary"], f["width"], f["layers"])
        starts, state = self.leaves(e + "start/"), self.arrays[e + "state_in"]
        return Case(
            program,
            weights,
            self.arrays["noise_table"],
            np.stack([starts[leaf.name] for leaf in program.leaves]),
            f["rank"],
            f["sigma_shift"],
            self.arrays[e + "tokens"].astype(np.int32),
            self.arrays[e + "targets"].astype(np.int32),
            state.reshape(len(state), -1),
        )


def recorded(path: Path) -> Recorded:
    with np.load(path) as data:
        arrays = dict(data)
    return Recorded(arrays, json.loads(path.with_suffix(".json").read_text()))
