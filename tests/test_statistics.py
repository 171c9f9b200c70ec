"""statistics.jsonl: what it says is so, it changes no weight, and it is the same however made."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import simulated_ranks
from conftest import TINY, Command

from eggroll import networks
from eggroll.engines import zero_state
from eggroll.engines.portable.backward import RecordedPass
from eggroll.engines.portable.engine import PortableEngine
from eggroll.evolution.population import Population
from eggroll.files import CHECKPOINT, METRICS, REPLAY, STATISTICS
from eggroll.ranks import ALONE, Ranks
from eggroll.spec.credit import draw_signs
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch
from eggroll.training import checkpoint, replay_log
from eggroll.training import folder as runlog
from eggroll.training import loop as logs
from eggroll.training import statistics as chance
from eggroll.training import statistics as counts
from eggroll.training.config import Config
from eggroll.training.learner import engine_for, new_learner
from eggroll.training.run import open_run
from eggroll.training.statistics import Nodes, figures_of

KINDS: dict[str, list[object]] = {
    "eggroll": [],
    "master": ["--rule", "master", "--rank", 2],
    "tokens": ["--estimator", "token-credit", "--rule", "whitened", "--score-bits", 8],
    "votes": ["--estimator", "token-votes", "--pop", 64],
    "groups": ["--estimator", "group-credit", "--group-size", 4],
    "local": ["--estimator", "local", "--rule", "adam"],
    "feedback": ["--estimator", "feedback", "--rule", "adam"],
}
EACH = ["--statistics-every", 2]


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / STATISTICS
    return [json.loads(line) for line in path.read_text().splitlines()]


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    kept = checkpoint.load(folder / CHECKPOINT).weights
    return {name: np.array(leaf) for name, leaf in kept.items()}


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_says_what_is_in_the_checkpoint(call: Command, tmp_path: Path, kind: str):
    run = tmp_path / "run"
    plain = call(*TINY, *KINDS[kind], "--statistics-every", 0, "--out", tmp_path / "plain")
    assert not (tmp_path / "plain" / STATISTICS).exists()
    ended = call(*TINY, *KINDS[kind], *EACH, "--out", run)
    assert ended.signature == plain.signature
    found = lines(run)
    assert [line["step"] for line in found] == [2, 4, 6]
    last, weights = found[-1], weights_of(run)
    assert list(last["leaves"]) == list(weights)
    for name, leaf in weights.items():
        said = last["leaves"][name]
        assert said["weights"] == np.histogram(leaf, bins=32, range=(-128, 128))[0].tolist()
        assert said["saturated"] == pytest.approx((abs(leaf.astype(int)) == 127).mean(), abs=1e-6)
    moved = sum(said["update_rate"] * weights[k].size for k, said in last["leaves"].items())
    rows = [row for _, row in runlog.read_lines(run / METRICS)]
    size = sum(leaf.size for leaf in weights.values())
    assert moved / size == pytest.approx(rows[-1]["update_rate"], abs=1e-6)
    assert ("tied" in last) == (kind not in ("local", "feedback"))
    known = {"eggroll", "master", "votes"}  # of a population as small as that
    assert any("vote_over_noise" in leaf for leaf in last["leaves"].values()) == (kind in known)
    # PHI^-1(1 - 0.930 / 2) is 0.088, or 1/16 rounded down; times 256 sqrt(16 pairs).
    assert last["threshold"] == (64 if kind == "eggroll" else None)
    if kind == "eggroll":
        assert last["rate"] == pytest.approx(1 / (15 * 5 / 1000 + 1), abs=1e-6)
    else:
        assert last["rate"] > 0
    nodes = last["activations"]
    assert {"embedding", "layer0.bf", "layer0.forget", "layer0.add2", "head"} <= nodes.keys()
    for node in nodes.values():
        assert len(node["values"]) == 32
        assert 0 <= node["saturated"] <= 1 and 0 <= node["dead"] <= 1  # noqa: PT018


def test_ties_are_those_of_the_replay_log(finished: Path):
    path = finished / REPLAY
    with path.open("rb") as file:
        header = replay_log.header_of(file, path)
        signs = [np.array(record.signs) for record in replay_log.records(file, header)]
    (line,) = lines(finished)
    assert line["tied"] == pytest.approx((signs[5] == 0).mean(), abs=1e-6)


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("eggroll", ["--chunk", 6]),
        ("votes", ["--threads", 3]),
        ("votes", ["--engine", "portable"]),
    ],
)
def test_the_lines_are_the_same_however_it_is_computed(
    call: Command, tmp_path: Path, kind: str, words: list[object]
):
    for name, more in (("one", []), ("two", words)):
        given = (*TINY, *KINDS[kind], "--steps", 2, *EACH, *more)
        assert call(*given, "--out", tmp_path / name).code == 0
    assert lines(tmp_path / "one") == lines(tmp_path / "two")


@pytest.mark.parametrize("kind", ["eggroll", "tokens"])
def test_the_lines_are_the_same_on_any_number_of_ranks(tmp_path: Path, kind: str):
    more = {"eggroll": {}, "tokens": {"estimator": "token-credit", "rule": "whitened"}}[kind]

    def trained(out: str, ranks: Ranks = ALONE) -> None:
        config = Config(
            data="count", pop=20, width=8, seq_len=3, steps=4, table_bits=16, val_tokens=64,
            sample_tokens=0, threads=1, checkpoint_every=2, statistics_every=2, out=out, **more,
        )  # fmt: skip
        with ExitStack() as stack:
            run = open_run(config, stack, show=False, ranks=ranks)
            kept = logs.open_logs(run, stack, pytest.fail) if run.folder else []
            for _ in range(config.steps):
                row = run.update()
                for log in kept:
                    log.append(row)

    trained(str(tmp_path / "one"))
    simulated_ranks.run(3, lambda ranks: trained(str(tmp_path / "three"), ranks))
    assert len(lines(tmp_path / "one")) == 2
    assert lines(tmp_path / "one") == lines(tmp_path / "three")


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("step", [2, 3])
def test_stopped_and_resumed_has_the_same_lines(
    call: Command, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
):
    words = [*TINY, *EACH, "--checkpoint-every", 0]
    whole = call(*words, "--out", tmp_path / "whole")
    real = Population.votes

    def votes(self: Population, fitness: mx.array, epoch: int, **named: Any) -> Any:
        if epoch == step:
            signal.raise_signal(signal.SIGINT)
        return real(self, fitness, epoch, **named)

    monkeypatch.setattr(Population, "votes", votes)
    run = tmp_path / "run"
    assert call(*words, "--out", run).code == 130
    monkeypatch.setattr(Population, "votes", real)
    with (run / STATISTICS).open("a") as file:  # a later line, and what no run wrote
        file.write('{"step": 5, "tied": 1}\n{"step": 2, "leaves": [7], "tied": "x"}\n{"st')
    assert call("--resume", run).signature == whole.signature
    found = lines(run)
    assert found.pop(1 if step == 2 else 2)["leaves"] == [7]
    assert found == lines(tmp_path / "whole")


@pytest.mark.usefixtures("no_curves")
def test_a_resumed_run_without_statistics_keeps_none_of_later_updates(
    call: Command, tmp_path: Path, finished: Path
):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with (run / STATISTICS).open("a") as file:
        file.write('{"step": 7}\n')
    assert call("--resume", run, "--steps", 8, "--statistics-every", 0).code == 0
    assert [line["step"] for line in lines(run)] == [6]


@pytest.mark.parametrize(
    "program",
    [
        networks.egg(20, 16, 2),
        networks.egg(300, 12, 1, gates="table"),
    ],
    ids=["two layers", "tables"],
)
def test_activations_are_those_of_every_operation(program: Any):
    weights = networks.initial_weights(program, 3)
    tokens = np.random.default_rng(0).integers(0, 20, (5, 9)).astype(np.int32)
    found = Nodes(program)
    values = found.values(weights, tokens)
    engine, done = PortableEngine(program), list[Any]()

    def begin(t: int, row: Any) -> RecordedPass:
        done.append(RecordedPass(program, weights, None, row))
        return done[-1]

    states = engine._split(zero_state(program, 5))
    for _ in engine._rows(begin, Batch(mx.array(tokens)), states):
        pass
    kinds = [op.kind for stage in program.stages for op in stage.ops]
    assert len(values) == len(kinds)
    for place, name in enumerate(found.names):
        right = np.stack([np.array(run.records[place].y) for run in done], axis=1)
        assert (values[name] == right).all(), name
    assert found.logits == {"head"}
    gate = "layer0.bf" if "lookup" not in kinds else "layer0.lookup"
    assert gate in found.gates
    assert len(found.gates) == sum(stage.state >= 0 for stage in program.stages)


def test_figures_of_a_node():
    values = np.array([[[127, 5, -127], [127, 6, 3]]], np.int8)
    found = figures_of(values)
    assert found["saturated"] == 0.5
    assert found["dead"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["values"][31] == 2
    assert found["values"][(3 + 128) // 8] == 3


@pytest.mark.parametrize("size", [0, 1, counts.PART + 3])
def test_counts_of_values(size: int):
    values = np.random.default_rng(1).integers(-128, 128, size).astype(np.int8)
    right = np.histogram(values, bins=256, range=(-128, 128))[0]
    assert counts.by_value(values).tolist() == right.tolist()
    votes = np.full(size, -(2**31), np.int32)
    assert counts.total_size(votes) == size << 31


@pytest.mark.parametrize(("pairs", "rank", "clt"), [(2, 1, True), (6, 2, True), (400, 1, False)])
def test_votes_of_chance_have_the_size_of_chance(pairs: int, rank: int, clt: bool):
    program = networks.egg(64, 32, 1)
    noise = Noise([leaf.shape for leaf in program.leaves], seed=5, rank=rank, shift=8,
                  reuse=1, table_bits=20)  # fmt: skip
    people = Population(PortableEngine(program), noise, members=2 * pairs, group=2,
                        chunk=2 * pairs, clt=clt)  # fmt: skip
    size, expected = chance.of_pairs(people, pairs), 0.0
    drawn, total = np.random.default_rng(0), 0
    for step in range(max(20 // pairs, 3)):
        fitness = mx.array(drawn.choice([-1, 1], pairs).astype(np.int8))
        votes = people.votes(fitness, step)
        total += sum(counts.total_size(votes[name]) for name in votes)
        expected += sum(size[name] * np.array(votes[name]).size for name in votes)
    assert total / expected == pytest.approx(1, abs=0.04)


def test_votes_credited_by_chance_have_the_size_of_chance():
    """Real score differences, given to other pairs: for all of them, and as the sample says."""
    config = Config(
        data="count", pop=1024, width=16, seq_len=8, table_bits=18, estimator="token-credit",
        rule="whitened", engine="cpu", score_bits=8,
    )  # fmt: skip
    learner = new_learner(config, engine_for(config, config.program())[0])
    tokens = np.random.default_rng(2).integers(1, 16, (512, 9)).astype(np.int32)
    batch = Batch(*(np.ascontiguousarray(a) for a in (tokens[:, :-1], tokens[:, 1:])))
    start = learner.start_of(batch)
    made = learner.update(batch)
    found = chance.of_credit(learner.population, start, made.scores)
    scores = np.array(made.scores).astype(np.int32)
    values = np.roll(scores[0::2] - scores[1::2], 7, axis=0)
    people = learner.population
    assert people.crediting
    signs = draw_signs(
        people.crediting, seed=people.noise.seed, step=0, first_pair=0, pairs=512, seq_len=8
    )
    read = start.batch.rows(lambda a: mx.array(np.repeat(a, 2, axis=0)))
    votes = people.engine.credit(
        people.prepared(start.weights), people.noise.slices(0, 0, 512), read, signs,
        people.crediting, values=mx.array(values),
    )[2]  # fmt: skip
    assert {"layer0.Wf", "layer0.up", "layer0.norm1"} <= found.keys()
    assert not {"embedding", "head"} & found.keys()
    for name in ("layer0.Wf", "layer0.Uh", "layer0.up", "layer0.down"):
        size = counts.total_size(votes[name]) / np.array(votes[name]).size
        assert size / found[name] == pytest.approx(1, abs=0.2), name
