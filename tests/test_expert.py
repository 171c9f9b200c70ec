"""A counted expert beside a network: its arithmetic to the bit, and a run that has one."""

from __future__ import annotations

import json
import shutil
from math import log2
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import oracle_counts as oracle
import pytest
from conftest import Command
from test_counting import texts

import eggroll
from eggroll import adamw, generate
from eggroll.data.counting import CountedModel
from eggroll.data.expert import (
    CountedExpert,
    Mixture,
    counted_weights,
    log2_16ths,
    network_probabilities,
)
from eggroll.engines import available, choose, zero_state
from eggroll.inference import sample
from eggroll.report import command as report
from eggroll.spec import fixed_point as fx
from eggroll.spec import rng
from eggroll.spec.program import Batch
from eggroll.training import loop as training
from eggroll.training.run import load_run_corpus, mixture_of

V, ORDER = 12, 4


def random_logits(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = np.clip(rng.normal(0, 40, (*shape, V)), -127, 127).astype(np.int8)
    logits[0] = -127  # alike, and as low as can be
    return logits


def test_a_validation_with_the_expert_is_the_oracles():
    train, rows = texts(V, 600, 0), texts(V, 84, 1).reshape(4, 21)
    model, logits = CountedModel(train, V, ORDER), random_logits((4, 20), 2)
    slow = oracle.Model(train.tolist(), V, ORDER)
    told = []
    for row, of_row in zip(rows.tolist(), logits.tolist(), strict=True):
        asked = zip(oracle.contexts(row, ORDER), row[1:], of_row, strict=True)
        told.append([(oracle.network_probability(ls, token), *slow.probability(h, token))
                     for h, token, ls in asked])  # fmt: skip
    expert = CountedExpert(model, rows)
    powers = fx.exact_exp2()[logits.astype(int) + 128]
    hits = np.take_along_axis(logits, rows[:, 1:, None].astype(int), 2)[..., 0]
    found = expert.beside(network_probabilities(powers.sum(axis=2), hits))
    bits = 0.0
    for scored, others in ((told[::2], told[1::2]), (told[1::2], told[::2])):
        w = oracle.weights([each for row in others for each in row], ORDER - 1)
        for row in scored:
            bits += sum(38 - log2(w[d] * p + (256 - w[d]) * q) for p, q, d in row)
    assert found.bits == pytest.approx(bits / hits.size, abs=1e-12)
    everything = oracle.weights([each for row in told for each in row], ORDER - 1)
    assert list(found.weights) == everything
    assert len(set(everything)) > 1


def test_mixed_logits_are_the_oracles():
    train = texts(V, 600, 0)
    model, slow = CountedModel(train, V, ORDER), oracle.Model(train.tolist(), V, ORDER)
    logits, weights = random_logits((6,), 3), [240, 200, 100, 30]
    history = np.stack([train[at : at + 5] for at in (0, 7, 50, 51, 200, 400)])
    found = Mixture(model, weights).logits(logits, history)
    for i, row in enumerate(history.tolist()):
        h = oracle.contexts([*row, 1], ORDER)[-1]
        asked = [slow.probability(h, v) for v in range(V)]
        weight = weights[asked[0][1]]
        assert found[i].tolist() == oracle.mixed_logits(
            logits[i].tolist(), [p for p, _ in asked], weight
        )


def test_logarithms_are_exact_at_every_edge():
    powers = [1 << k for k in range(53)]
    edges = [oracle_root(k) for k in range(16 * 52)]
    values = sorted({v + d for v in (*powers, *edges) for d in (-1, 0, 1) if 1 <= v + d < 1 << 53})
    found = log2_16ths(np.array(values, np.int64)).tolist()
    assert found == [oracle.log2_16ths(v) for v in values]


def oracle_root(k: int) -> int:
    """ceil(2^(k / 16))."""
    low, high = 0, 1 << 60
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle**16 >= 1 << k else (middle, high)
    return high


def test_weights_go_where_the_better_model_is():
    """One token of a depth tells of it, and none leaves it at the start."""
    good, bad = np.full(101, 1 << 28), np.full(101, 1 << 20)
    depths = np.repeat([0, 1, 3], [50, 50, 1])
    network = np.where(depths == 0, good, bad)
    weights = counted_weights(network, np.where(depths == 0, bad, good), depths, 3)
    assert weights.tolist() == [248, 8, 176, 8]


# A run with an expert.

SMALL = [
    *("--recipe", "feedback", "--pop", "8", "--width", "16", "--steps", "4", "--threads", "1"),
    *("--vocabulary", "300", "--val-tokens", "1024", "--validate-every", "2"),
    *("--sample-tokens", "6"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Path, Path]:
    """The same run without and with an expert."""
    from eggroll.training import loop

    folder = tmp_path_factory.mktemp("expert")
    for name, words in (("without", []), ("with", ["--expert", "counts"])):
        code = loop.main([*SMALL, *words, "--data", str(text), "--out", str(folder / name)])
        assert code == 0
    return folder / "without", folder / "with"


def last_row(folder: Path) -> dict:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_the_network_is_the_same_and_both_figures_are_shown(runs: tuple[Path, Path]):
    without, beside = (last_row(folder) for folder in runs)
    assert eggroll.load(runs[0]).signature == eggroll.load(runs[1]).signature
    assert beside["val_loss"] == without["val_loss"]
    assert "val_loss_with_counts" not in without
    assert beside["val_loss_with_counts"] < beside["val_loss"] - 1
    ratio = beside["val_loss_with_counts"] / beside["val_bits_per_byte_with_counts"]
    assert ratio == pytest.approx(beside["val_loss"] / beside["val_bits_per_byte"])
    samples = [(folder / "samples.txt").read_text() for folder in runs]
    assert samples[1].startswith(samples[0].rstrip("\n"))
    assert samples[1].count(", with counts ===") == 4


@pytest.mark.usefixtures("no_curves")
def test_the_last_lines_say_both(call: Command, text: Path, tmp_path: Path):
    ended = call(*SMALL, "--expert", "counts", "--data", text, "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    row = last_row(tmp_path / "run")
    assert f"validation: {row['val_loss']:.3f} bits per token" in ended.out
    said = f"with its counted expert: {row['val_loss_with_counts']:.3f} bits, "
    assert f"{said}{row['val_bits_per_byte_with_counts']:.3f} per byte" in ended.out
    assert "expert beside the network: frozen Kneser-Ney order-5, " in ended.out
    assert "per byte with counts" in ended.err


def test_the_report_has_both_figures(runs: tuple[Path, Path], call: Command, tmp_path: Path):
    assert call(*runs, "--out", tmp_path / "page.html", main=report.main).code == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count('<th scope="col">with counts</th>') == 1
    assert f"<td>{last_row(runs[1])['val_bits_per_byte_with_counts']:.3f} bits" in page


def test_text_is_drawn_with_the_expert_counted_anew(
    runs: tuple[Path, Path], call: Command, text: Path, tmp_path: Path
):
    """The run itself need not have had one; every engine draws the same."""
    words = (runs[0], "--prompt", "ae", "--tokens", 8)
    plain = call(*words, main=generate.main)
    names = ["auto", *(name for name, why in available().items() if not why)]
    drawn = [
        call(*words, "--expert", "counts", "--engine", name, main=generate.main) for name in names
    ]
    assert {ended.code for ended in drawn} == {0}, drawn[0].err
    assert len({ended.out for ended in drawn}) == 1
    assert drawn[0].out != plain.out
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    changed = tmp_path / "words.txt"
    changed.write_text(text.read_text())
    other = [*SMALL, "--data", changed, "--out", tmp_path / "run"]
    assert call(*other).code == 0
    changed.write_text(text.read_text() + "more")
    refused = call(tmp_path / "run", "--expert", "counts", main=generate.main)
    assert refused.code == 2
    assert "is another by now" in refused.err


def test_the_float_twin_may_have_it_too(call: Command, text: Path, tmp_path: Path):
    words = ["--streams", 4, "--width", 16, "--seq-len", 8, "--steps", 4, "--threads", 1,
             "--vocabulary", 300, "--val-tokens", 1024, "--sample-tokens", 6,
             "--data", text]  # fmt: skip
    for name, more in (("without", ()), ("with", ("--expert", "counts"))):
        ended = call(*words, *more, "--out", tmp_path / name, main=adamw.main)
        assert ended.code == 0, ended.err
    without, beside = (last_row(tmp_path / name) for name in ("without", "with"))
    assert beside["val_loss"] == without["val_loss"]
    assert beside["val_loss_with_counts"] < beside["val_loss"] - 1
    assert f"with its counted expert: {beside['val_loss_with_counts']:.3f} bits" in ended.out
    assert (tmp_path / "with" / "samples.txt").read_text().count(", with counts ===") == 4
    refused = call(tmp_path / "with", "--expert", "counts", main=generate.main)
    assert refused.code == 2
    assert "is a float network of eggroll.adamw" in refused.err


def test_samples_are_drawn_from_the_mixture(runs: tuple[Path, Path]):
    """Token by token, from logits of the network and counts of what was drawn."""
    stored = eggroll.load(runs[1])
    engine, _ = choose("portable", stored.program, 1)
    weights = {name: mx.array(leaf) for name, leaf in stored.weights.items()}
    corpus = load_run_corpus(eggroll.Config(**{
        "data": stored.config.data, "vocabulary": 300}))  # fmt: skip
    mixture = mixture_of(stored.config, corpus, engine, weights)
    drawn = sample(engine, weights, [5, 6], samples=2, seed=3, expert=mixture)
    tokens = np.stack([next(drawn) for _ in range(7)], axis=1)
    state = zero_state(engine.program, 2)
    whole = np.concatenate([np.repeat([[0, 5, 6]], 2, axis=0), tokens], axis=1).astype(np.int32)
    table = fx.exp2_table()
    for t in range(9):
        read = Batch(mx.array(whole[:, t : t + 1]), state=state)
        logits, state = engine.logits(engine.prepare(weights), read)
        both = mixture.logits(np.array(logits), whole[:, : t + 1])
        if t < 2:  # the prompt
            continue
        sums = table[both.astype(int) + 128].astype(object).cumsum(axis=1)
        words = rng.counters(rng.key(3, rng.SAMPLES, t - 2), 0, 2)
        for row, word, token in zip(sums, words, whole[:, t + 1], strict=True):
            drawn_at = int(word) * row[-1] >> 64
            assert token == sum(each <= drawn_at for each in row)


def test_the_library_has_the_mixture(runs: tuple[Path, Path], call: Command):
    plain, both = eggroll.load(runs[0]), eggroll.load(runs[0], expert="counts")
    assert plain.signature == both.signature
    rows = np.array([plain.tokens("aeiou run")[:6], plain.tokens("stern aria")[:6]])
    assert rows.shape == (2, 6)
    logits, alone = both.logits(rows), plain.logits(rows)
    assert (logits.max(axis=2) == 127).all()
    assert (logits != alone).any()
    mixture = both._mixture
    for t in range(6):
        assert (mixture.logits(alone[:, t], rows[:, : t + 1]) == logits[:, t]).all()
    odds = 2.0 ** (logits[:, :-1].astype(float) / 16)
    targets = rows[:, 1:, None]
    near = -np.log2(np.take_along_axis(odds, targets, 2)[..., 0] / odds.sum(axis=2)).mean()
    assert both.loss(rows) == pytest.approx(near, abs=1 / 16)
    assert abs(both.loss(rows) - plain.loss(rows)) > 0.5
    drawn = call(runs[0], "--prompt", "ae", "--tokens", 8, "--expert", "counts",
                 main=generate.main)  # fmt: skip
    assert both.sample("ae", tokens=8) + "\n" == drawn.out
    ids = both.sample_tokens(both.tokens("ae")[1:], tokens=8)[0]
    assert "ae" + b"".join(map(both.coding.bytes_of, ids.tolist())).decode() == drawn.out[:-1]
    with pytest.raises(eggroll.InputError, match="expert is 'count'"):
        eggroll.load(runs[0], expert="count")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--data", "count", "--expert", "counts"), "--expert is counts, which counts text"),
        (("--expert", "count"), "one of none, counts"),
    ],
)
def test_what_cannot_be_is_refused(call: Command, words: tuple[str, ...], says: str):
    ended = call(*words)
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_samples_are_drawn_twice_where_counts_were_weighed(monkeypatch: pytest.MonkeyPatch):
    """Which is when it was validated."""
    monkeypatch.setattr(training, "_drawn", lambda run, mixture: ["with" if mixture else "without"])
    expert = SimpleNamespace(model=None)
    for beside, drawn in ((None, "without"), (SimpleNamespace(weights=None), "without\nwith")):
        run = SimpleNamespace(expert=expert, beside=beside)
        assert training.draw_samples(run) == drawn
