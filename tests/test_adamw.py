"""The baseline with gradients: the twin is the declared network, its gradients are true."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY, Command
from networks import rows_of
from networks_random import every_operation

from eggroll import adamw, generate, networks, plot
from eggroll.baseline import backprop
from eggroll.baseline import twin as float_twin
from eggroll.baseline import twin_numpy as float_numpy
from eggroll.baseline.backprop import AdamwOptions, AdamwTrainer
from eggroll.baseline.twin import ONE, Twin, by_token, dequantise
from eggroll.baseline.twin_numpy import NumpyTwin
from eggroll.data.corpus import load_corpus
from eggroll.engines import choose
from eggroll.evolution.population import Population
from eggroll.files import CHAIN, CHECKPOINT, FILES, REPLAY, STATISTICS
from eggroll.spec import program as language
from eggroll.training import checkpoint, curves

SMALL = [
    *("--data", "count", "--streams", "8", "--width", "16", "--seq-len", "8", "--steps", "6"),
    *("--val-tokens", "512", "--validate-every", "2", "--checkpoint-every", "1"),
    *("--sample-tokens", "8"),
]
TIMES = ("seconds", "seconds_total", "tokens_per_second")
TWINS = {"mlx": Twin, "numpy": NumpyTwin}


def unusual() -> language.Program:
    """Every operation where `egg` has none: in the recurrence, after it, beside it, twice."""
    net = language.Program(12, 6)
    net.stage()
    net.embed("embedding")
    x, s = net.stage("a.", state=True)
    n = net.norm(x, "n")
    f = net.lookup(net.linear(net.norm(s, "ns"), "Wf", 6), "sigmoid")
    h = net.lookup(net.add_bias(net.add(n, s), net.linear(n, "Wh", 6), "b"), "tanh")
    aside = net.linear(net.forget(f, s), "aside", 6)  # needs states, leads to none
    net.mix(f, h, s, out=s)
    net.add(x, net.add(aside, s), out=x)
    x, s = net.stage("b.", state=True)  # a state that only remembers its own input
    old = net.add(s, x)
    net.add(net.linear(x, "keep", 6), net.linear(x, "keep2", 6), out=s)
    net.add(x, net.linear(old, "use", 6), out=x)
    x, s = net.stage("c.", state=True)  # a state that never changes
    net.mix(x, s, s, out=s)
    net.add(x, net.linear(s, "dead", 6), out=x)
    x, _ = net.stage()
    net.score(net.norm(x, "norm"), "head")
    return net


NETWORKS = {
    "egg": networks.egg(12, 6, 2),
    "tables": networks.egg(12, 6, 1, "table"),
    "no layers": networks.egg(12, 6, 0),
    "unusual": unusual(),
    "every operation": every_operation(),
}


def case(program: language.Program, S: int, T: int, seed: int = 0):
    """Int8 weights, and a batch: tokens and targets [S, T] with marks among them, int8 state."""
    rng = np.random.default_rng(seed)
    weights = {
        leaf.name: np.clip(np.rint(rng.normal(leaf.init or 0, 16, leaf.shape)), -127, 127)
        for leaf in program.leaves
    }
    tokens, targets = rng.integers(0, program.vocabulary, (2, S, T)).astype(np.int32)
    state = np.rint(rng.normal(0, 16, (S, program.state_size))).astype(np.int8)
    batch = language.Batch(tokens, targets, state)
    return {k: w.astype(np.int8) for k, w in weights.items()}, batch


def read(batch: language.Batch) -> language.Batch:
    """As twins read it: by token, from a state in real units."""
    return by_token(batch)._replace(state=dequantise({"state": batch.state})["state"])


def integer_logits(program: language.Program, weights, batch: language.Batch) -> np.ndarray:
    """Logits [T, S, V] of the int8 network, in bits."""
    engine, _ = choose("portable", program, 1)
    leaves, given, rows = {k: mx.array(w) for k, w in weights.items()}, batch.each(mx.array), []
    state = given.state
    for t in range(batch.size[1]):
        row = given.window(slice(t, t + 1))._replace(state=state)
        logits, state = engine.logits(engine.prepare(leaves), row)
        rows.append(np.array(logits) / ONE)
    return np.stack(rows)


def test_both_twins_know_every_operation():
    assert set(float_twin.OPERATIONS) == set(language.OPERATIONS)
    assert set(float_numpy.OPERATIONS) | {"embed", "lookup"} == set(language.OPERATIONS)
    assert set(float_numpy.LOOKUPS) == set(float_twin.TABLE_FUNCTIONS)


@pytest.mark.parametrize("gates", ["clip", "table"])
@pytest.mark.parametrize("twin", TWINS)
def test_twin_is_near_the_integer_network(gates: networks.Gates, twin: str):
    """First weights, D 64, L 1: logits within 3 last bits on average, loss within 0.06 bits."""
    program = networks.egg(256, 64, 1, gates)
    weights = networks.initial_weights(program, 0)
    batch = case(program, 32, 16)[1]._replace(state=np.zeros((32, 64), np.int8))
    whole = integer_logits(program, weights, batch)
    logits, _ = TWINS[twin](program).logits(dequantise(weights), read(batch))
    assert np.corrcoef(np.array(logits).ravel(), whole.ravel())[0, 1] > 0.98
    assert np.abs(np.array(logits) - whole).mean() * ONE < 3
    engine, _ = choose("auto", program, 1)
    scores, _ = engine.evaluate(engine.prepare(weights), None, batch.each(mx.array))
    bits, _ = TWINS[twin](program).bits(dequantise(weights), read(batch))
    assert abs(np.array(bits).mean() + np.array(scores).mean() / ONE) < 0.06


@pytest.mark.parametrize("gates", ["clip", "table"])
def test_with_every_floor_the_twin_is_the_integer_network(
    gates: networks.Gates, monkeypatch: pytest.MonkeyPatch
):
    """Nothing but rounding lies between them: put it back, and every logit is equal."""

    def floored(real_operation):
        return lambda *a: mx.floor(real_operation(*a) * ONE) / ONE

    def norm(read, op, x):
        mean = mx.maximum(mx.floor(mx.abs(x).mean(axis=-1, keepdims=True) * ONE), 1) / ONE
        return float_twin.clip(mx.floor(x * read.leaf(op) / mean * ONE) / ONE)

    def lookup(read, op, x):
        return mx.round(float_twin.TABLE_FUNCTIONS[op.table](x) * ONE) / ONE

    new = {kind: floored(f) for kind, f in float_twin.OPERATIONS.items()}
    monkeypatch.setattr(float_twin, "OPERATIONS", new | {"norm": norm, "lookup": lookup})
    program = networks.egg(32, 16, 3, gates)  # 16 and 64 inputs: powers of two divide exactly
    weights, batch = case(program, 40, 9)
    logits, _ = Twin(program).logits(dequantise(weights), read(batch))
    assert np.array_equal(np.array(logits), integer_logits(program, weights, batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_both_twins_are_one(name: str):
    """NumPy's values and gradients against MLX's automatic ones, marks and threads included."""
    program = NETWORKS[name]
    slack = 10 if name == "every operation" else 1  # roundings pass through more divisions there
    weights, batch = case(program, 50, 5)
    inputs, features = rows_of(program, np.random.default_rng(1), 50, 5, False)
    args = dequantise(weights), read(batch._replace(inputs=inputs, features=features))
    mean, after, leaves = Twin(program).gradient(*args)
    logits, _ = Twin(program).logits(*args)
    for threads in (1, 3):
        twin = NumpyTwin(program, threads)
        mine, mine_after, mine_leaves = twin.gradient(*args)
        np.testing.assert_allclose(np.array(mine), np.array(mean), rtol=1e-5)
        np.testing.assert_allclose(np.array(mine_after), np.array(after), atol=slack * 1e-4)
        found = np.array(twin.logits(*args)[0])
        np.testing.assert_allclose(found, np.array(logits), atol=slack * 1e-4)
        assert mine_leaves.keys() == leaves.keys()
        for key, g in leaves.items():
            error = np.abs(np.array(mine_leaves[key]) - np.array(g)).max()
            assert error <= slack * 1e-4 * np.abs(np.array(g)).max() + 1e-7, key
        again = twin.gradient(*args)[2]
        assert all(np.array_equal(again[key], mine_leaves[key]) for key in again)


@pytest.mark.parametrize("name", ["egg", "tables", "unusual"])
def test_gradient_is_the_slope_of_the_loss(name: str):
    """Central differences of the MLX twin's loss along a random direction of every leaf."""
    program = NETWORKS[name]
    weights, batch = case(program, 6, 4, seed=2)
    gradient = backprop.gradient(program, weights, batch)
    rng, twin = np.random.default_rng(1), Twin(program)
    given = read(batch)

    def loss(key: str, step: np.ndarray) -> float:
        moved = dequantise(weights | {key: weights[key] + step})
        return float(np.array(twin.bits(moved, given)[0]).mean(dtype=np.float64))

    for key, g in gradient.items():
        direction = np.sign(g) + 0.1 * rng.normal(size=g.shape)  # a slope that stands out
        step = 0.02 * direction
        slope = (loss(key, step) - loss(key, -step)) / 0.04
        assert slope == pytest.approx(float((g * direction).sum()), rel=0.02, abs=1e-5), key


def test_log_likelihood_survives_far_apart_logits():
    """No overflow and no sentinel: far apart logits cost their distance."""
    run = float_numpy.Pass.__new__(float_numpy.Pass)
    run.logits = np.array([[[900.0, -900.0]]], np.float32)
    run.batch = language.Batch(np.array([[0]]), np.array([[1]]))
    bits, chances = float_numpy.token_bits(run)
    assert bits.tolist() == [[1800.0]]
    assert chances.tolist() == [[[1.0, 0.0]]]


@pytest.mark.usefixtures("no_curves")
def test_reads_the_batches_that_eggroll_reads(
    call: Command, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two members to a stream: a population of 16 reads what 8 streams are."""
    seen: dict[str, list[np.ndarray]] = {"es": [], "adamw": []}
    evaluate, update = Population.evaluate, AdamwTrainer.update

    def evaluating(self, weights, epoch, batch):
        seen["es"].append(np.stack(batch[:2]))
        return evaluate(self, weights, epoch, batch)

    def updating(self, batch):
        seen["adamw"].append(np.stack(batch[:2]))
        return update(self, batch)

    monkeypatch.setattr(Population, "evaluate", evaluating)
    monkeypatch.setattr(AdamwTrainer, "update", updating)
    for data in (["--data", text], ["--count-steps", 2, 3]):
        call(*TINY, *data, "--pop", 16, "--out", tmp_path / f"es{len(seen['es'])}")
        call(*SMALL, *data, "--out", tmp_path / f"a{len(seen['es'])}", main=adamw.main)
    assert len(seen["es"]) == 12
    assert np.array_equal(seen["es"], seen["adamw"])


@pytest.mark.parametrize("seed", [0, 1])
def test_count_is_learnt_in_44_updates(seed: int):
    """V = 16, D = 64, one layer, T = 16, 128 streams: below 0.05 bits per token."""
    options = AdamwOptions(data="count", seed=seed, steps=44)
    trainer = AdamwTrainer(options, NumpyTwin(options.program()))
    corpus = load_corpus("count", vocabulary=16)
    streams = corpus.streams("train", options.streams, options.seq_len, seed)
    for step in range(options.steps):
        trainer.update(streams.batch(step))
    start = mx.zeros((64, trainer.twin.program.state_size))
    batch = corpus.streams("valid", 64, 64, seed).batch(0)._replace(state=start)
    bits, _ = trainer.twin.bits(trainer.weights, by_token(batch))
    assert np.array(bits)[corpus.warmup :].mean() < 0.05


def test_learning_rate_rises_and_falls():
    options = AdamwOptions(steps=100, learning_rate=1.0, warmup=0.1, floor=0.2)
    rates = [options.rate(step) for step in range(100)]
    assert rates[:9] == pytest.approx(np.arange(1, 10) / 10)
    assert max(rates) == rates[9] == 1
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[99] == pytest.approx(0.2)
    assert AdamwOptions(steps=1).rate(0) > 0


def rows(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what a clock measured."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in TIMES} for row in lines]


def test_a_run_leaves_what_it_promises(call: Command, tmp_path: Path, finished: Path):
    run = tmp_path / "run"
    ended = call(*SMALL, "--out", run, main=adamw.main)
    assert len(ended.signature) == 64
    assert ended.out.startswith("engine: float twin")
    assert {path.name for path in run.iterdir()} == {*FILES} - {
        CHAIN,
        REPLAY,
        STATISTICS,
    }
    ours, theirs = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (run, finished)
    )
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    assert ours[0]["tokens_per_second"] == pytest.approx(64 / ours[0]["seconds"], rel=0.01)
    assert all(0 <= row["update_rate"] <= 1 for row in ours)
    assert (run / "samples.txt").read_text().count("===") == 8
    both = call(finished, run, "--out", tmp_path / "both.png", main=plot.main)
    assert (both.code, both.err) == (0, "")
    es, base = (curves.read_run(folder) for folder in (finished, run))
    assert es.tokens(es.valid_steps).tolist() == [2 * 16 * 8, 4 * 16 * 8, 6 * 16 * 8]
    assert base.tokens(base.valid_steps).tolist() == [2 * 8 * 8, 4 * 8 * 8, 6 * 8 * 8]
    seconds = np.cumsum([row["seconds"] for row in ours])
    assert base.elapsed(base.valid_steps) == pytest.approx(seconds[1::2])
    again = call("--config", run / "config.json", "--out", tmp_path / "again", main=adamw.main)
    assert again.signature == ended.signature


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("step", [0, 3])
def test_stopped_and_resumed_is_the_same_run(
    call: Command, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    words = [*SMALL, "--data", text, "--layers", 2, "--gates", "table", "--checkpoint-every", 0]
    whole = call(*words, "--out", tmp_path / "whole", main=adamw.main)
    update = AdamwTrainer.update

    def stopping(self, batch):
        if self.step == step:
            signal.raise_signal(signal.SIGTERM)
        return update(self, batch)

    monkeypatch.setattr(AdamwTrainer, "update", stopping)
    ended = call(*words, "--out", tmp_path / "run", main=adamw.main)
    assert ended.code == 130
    assert f"after update {step + 1} of 6; go on with: " in ended.err
    assert " -m eggroll.adamw --resume " in ended.err
    monkeypatch.setattr(AdamwTrainer, "update", update)
    resumed = call("--resume", tmp_path / "run", main=adamw.main)
    assert resumed.signature == whole.signature
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    one, two = (tmp_path / folder for folder in ("whole", "run"))
    assert (one / "samples.txt").read_bytes() == (two / "samples.txt").read_bytes()
    kept = [checkpoint.read(f / CHECKPOINT, adamw.FORMAT)[1] for f in (one, two)]
    assert all(np.array_equal(kept[0][name], kept[1][name]) for name in kept[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--learning-rate 0", "--learning-rate is 0.0|above 0 and up to 64"),
        ("--beta1 1", "--beta1 is 1.0|try --beta1 0.9"),
        ("--streams 0", "--streams is 0|try --streams 1"),
        ("--decay step", "'step' is given|one of cosine, linear, none"),
        ("--pop 8", "'--pop' is no option of eggroll.adamw"),
        ("--count-steps", "--count-steps is empty"),
        ("--data nowhere", "data 'nowhere' is unknown"),
        ("--data stdlib --streams 1000000", "--streams 1000000 of --seq-len 8 do not fit"),
        ("--width 8000 --layers 250", "GiB|make one of them smaller"),
        ("--resume nowhere", "'nowhere' holds no checkpoint"),
        ("--config nowhere", "'nowhere' cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
):
    monkeypatch.chdir(tmp_path)
    ended = call(*SMALL, *words.split(), main=adamw.main)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    for part in said.split("|"):
        assert part in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_curves")
def test_runs_of_the_two_commands_are_told_apart(call: Command, tmp_path: Path, finished: Path):
    run = tmp_path / "run"
    assert call(*SMALL, "--out", run, main=adamw.main).code == 0
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    ended = call("--resume", run)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "is of a run of eggroll.adamw" in ended.err
    ended = call("--resume", finished, main=adamw.main)
    assert "is of a run of eggroll.train" in ended.err
    ended = call("--resume", run, "--width", 32, main=adamw.main)
    assert (ended.code, "--width is 32, but the run in" in ended.err) == (2, True)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.usefixtures("no_curves")
def test_text_is_generated_from_the_twin(call: Command, tmp_path: Path):
    run = tmp_path / "run"
    assert call(*SMALL, "--out", run, main=adamw.main).code == 0

    def text(*words: object) -> str:
        ended = call(run, "--tokens", 20, *words, main=generate.main)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    plain = text("--prompt", "3 4 5")
    assert plain.split()[:3] == ["3", "4", "5"]
    assert len(plain.split()) == 23
    assert all(0 <= int(word) < 16 for word in plain.split())
    assert text("--prompt", "3 4 5") == plain
    assert text("--temperature", 2) != text("--temperature", 2, "--seed", 1)
    # The first sample of the run is what its checkpoint gives from the same seed.
    sample = (run / "samples.txt").read_text().splitlines()[1]
    assert text().startswith(sample)


@pytest.mark.usefixtures("no_curves")
def test_a_checkpoint_of_another_network_is_refused(call: Command, tmp_path: Path):
    run = tmp_path / "run"
    assert call(*SMALL, "--steps", 1, "--out", run, main=adamw.main).code == 0
    path = run / CHECKPOINT
    metadata, arrays = checkpoint.read(path, adamw.FORMAT)
    facts = (backprop.read_run(path)[0], json.loads(metadata["corpus"]))
    arrays["weights/head"] = arrays["weights/head"][:, :3].copy()
    checkpoint.write(path, adamw.FORMAT, 1, *facts, arrays)
    ended = call("--resume", run, "--steps", 2, main=adamw.main)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "has (16, 3) as 'weights/head' where its options need (16, 16)" in ended.err


@pytest.mark.usefixtures("no_curves")
def test_a_loss_that_is_no_number_ends_the_run(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(AdamwTrainer, "update", lambda *_: float("nan"))
    ended = call(*SMALL, "--out", tmp_path / "run", main=adamw.main)
    assert ended.code == 2
    assert "is nan: try a --learning-rate below" in ended.err


def test_the_update_rate_counts_weights_that_round_otherwise():
    run = SimpleNamespace(weights={"a": mx.array([[1.0, 0.5]]), "b": mx.zeros(2)}, rounded=None)
    assert adamw.BaselineRun.update_rate(run) == 0
    run.weights = {"a": mx.array([[1.01, 0.5 + 1 / ONE]]), "b": mx.zeros(2)}
    assert adamw.BaselineRun.update_rate(run) == 0.25
