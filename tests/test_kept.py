"""Promises that hold only if somebody looks: what is synced, drawn anew, remembered and bounded."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY
from test_trainer import recurrent, trainer
from test_trainer import run as run_trainer
from test_whitening import updated_in_integers

import eggroll as eg
from eggroll import networks
from eggroll.engines import ENGINES
from eggroll.evolution import whitening
from eggroll.evolution.population import Population
from eggroll.evolution.whitening import ONE
from eggroll.files import write_whole
from eggroll.spec.credit import crediting
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch
from eggroll.training import loop as training

CONFIG = training.options_from(TINY)


@pytest.mark.parametrize("reuse", [0, 3])
def test_signs_are_drawn_anew_though_noise_is_kept(reuse: int):
    """Token credit of two updates of one noise, on the same weights, tokens and states."""
    program, P, T = networks.egg(9, 6, 1), 8, 5
    shapes = [leaf.shape for leaf in program.leaves]
    noise = Noise(shapes, seed=0, rank=1, shift=6, reuse=reuse, table_bits=10)
    by_leaf = crediting(program, nodes=True, sigma_shift=2, discount=12, seq_len=T)
    engine = ENGINES["cpu"](program, 1)
    members = Population(engine, noise, members=P, group=2, chunk=P, crediting=by_leaf)
    weights = networks.initial_weights(program, 0)
    tokens, targets = np.random.default_rng(0).integers(0, 9, (2, P // 2, T)).astype(np.int32)
    votes = [
        members.credit(weights, step, Batch(tokens, targets, members.initial_state()))[2]
        for step in (0, 1, 0)
    ]
    found = [{name: np.array(z).tolist() for name, z in of.items()} for of in votes]
    assert found[0] == found[2]
    assert all(found[0][name] != found[1][name] for name in ("layer0.Wf", "head", "embedding"))


def test_a_rename_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file before its rename, the folder after it."""
    events: list[tuple[str, object]] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        about = os.fstat(handle)
        kind = "folder" if stat.S_ISDIR(about.st_mode) else "file"
        events.append((kind, about.st_ino))
        sync(handle)

    def replaced(source: Path, target: Path) -> None:
        events.append(("rename", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    write_whole(tmp_path / "file", b"data")
    file, folder = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert events == [("file", file), ("rename", file), ("folder", folder)]


@pytest.mark.parametrize("split", [0, 1])
def test_a_run_resumes_only_with_both_its_splits(tmp_path: Path, split: int):
    ids = np.random.default_rng(0).integers(0, 7, (2, 3000))
    run = tmp_path / "run"
    eg.train(CONFIG, tokens=tuple(ids), out=run, callbacks=lambda row: row["step"] == 2)
    changed = ids.copy()
    changed[split, -1] = (changed[split, -1] + 1) % 7
    again = replace(CONFIG, data="tokens", vocabulary=7, resume=str(run))
    with pytest.raises(eg.InputError, match="'tokens' has changed since the run"):
        eg.train(again, tokens=tuple(changed))
    assert eg.train(again, tokens=tuple(ids)).step == 6


@pytest.mark.parametrize("size", [2, 20, 64])
def test_a_whitening_matrix_ends_at_its_bound(size: int):
    """Votes that all oppose one another make every step of P as large as it can be."""
    u = np.full((size, size), 30).astype(object)
    y = np.array(32_000 * np.eye(size) - 32_000 // size, np.int64).astype(object)
    p = (whitening.start(size) * 7).astype(object)
    want = updated_in_integers(p, u, y)
    mean = int((u * u).sum()) // (256 * size)
    power = whitening.power(y.astype(np.float64), size)
    got = whitening.updated(p.astype(np.int32), power, float(mean))
    np.testing.assert_array_equal(got, want.astype(np.int64))
    assert abs(got).max() <= 8 * ONE - 1
    if size > 2:  # two can only oppose each other once
        assert got.max() == 8 * ONE - 1


def test_the_discount_of_a_trainer_is_the_one_given():
    """None where none is given; and each gives other weights, as the network has a state."""
    found = [
        run_trainer(trainer(recurrent(), estimator="token-credit", alpha=1.0, **given))
        for given in ({}, {"discount": 0}, {"discount": 1}, {"discount": 15})
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3
