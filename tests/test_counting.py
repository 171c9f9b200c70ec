"""The counted model is that of the definition, to the bit."""

from __future__ import annotations

from collections import Counter
from math import log2

import numpy as np
import oracle_counts
import pytest

from eggroll.data import counting
from eggroll.data.corpus import load_corpus
from eggroll.data.counting import UNIT, CountedModel, places


def texts(vocabulary: int, size: int, seed: int) -> np.ndarray:
    """Tokens with marks, of which many follow from those before."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, vocabulary, size)
    for i in range(3, size):
        if rng.random() < 0.7:
            tokens[i] = tokens[i - 1 - tokens[i - 2] % 2]
    tokens[rng.random(size) < 0.05] = 0
    tokens[0] = 0
    return tokens.astype(np.uint16)


CASES = [(4, 6, 300), (256, 7, 900), (256, 2, 400), (5000, 4, 700), (65536, 4, 200), (3, 1, 50)]


@pytest.mark.parametrize(("vocabulary", "order", "size"), CASES)
def test_every_probability_is_the_oracles(vocabulary: int, order: int, size: int):
    used = min(vocabulary, 12)
    train, valid = texts(used, size, 0), texts(used, size // 2, 1)
    valid[5:8] = vocabulary - 1  # which training never saw
    model = CountedModel(train, vocabulary, order)
    oracle = oracle_counts.Model(train.tolist(), vocabulary, order)
    at = places(valid[None], model.bits, order)
    p, depth = model.probabilities(at)
    asked = zip(oracle_counts.contexts(valid.tolist(), order), valid[1:].tolist(), strict=True)
    expected = [oracle.probability(context, token) for context, token in asked]
    assert list(zip(p.tolist(), depth.tolist(), strict=True)) == expected
    assert depth.max() > 0 or order == 1
    bits = -sum(log2(each / UNIT) for each, _ in expected) / len(expected)
    assert model.bits_per_token(valid) == pytest.approx(bits, abs=1e-12)


@pytest.mark.parametrize(("vocabulary", "order", "size"), CASES[:4])
def test_distributions_hold_the_same_probabilities(vocabulary: int, order: int, size: int):
    used = min(vocabulary, 12)
    train, valid = texts(used, size, 0), texts(used, 40, 1)
    model = CountedModel(train, vocabulary, order)
    p, depth = model.probabilities(places(valid[None], model.bits, order))
    for i in range(1, len(valid)):
        rows, depths = model.distributions(np.stack([valid[:i], valid[:i]]))
        assert rows[:, valid[i]].tolist() == [p[i - 1]] * 2
        assert depths.tolist() == [depth[i - 1]] * 2
        assert (rows > 0).all()
        assert UNIT - UNIT // 1000 < rows[0].sum() <= UNIT
        late, _ = model.distributions(valid[None, max(i - order, 0) : i])
        assert (late == rows[:1]).all(), "a longer history tells nothing more"


def test_streams_do_not_look_beyond_their_beginning():
    train = texts(9, 500, 0)
    model, rows = CountedModel(train, 9, 4), texts(9, 60, 1).reshape(3, 20)
    together, _ = model.probabilities(places(rows, model.bits, 4))
    apart = [model.probabilities(places(row[None], model.bits, 4))[0] for row in rows]
    assert together.tolist() == np.concatenate(apart).tolist()


@pytest.mark.parametrize("text", [[0], [0, 0], [5], [5, 5], [0, 1, 2], [3] * 40])
def test_tiny_texts(text: list[int]):
    model = CountedModel(np.array(text, np.uint8), 256)
    oracle = oracle_counts.Model(text, 256, 7)
    assert model.bits_per_token(np.array([0, 3, 3, 0, 1], np.uint8)) > 0
    p, _ = model.probabilities(places(np.array([[0, 3, 3, 3]]), 8, 7))
    expected = [oracle.probability(h, 3)[0] for h in ((0,), (0, 3), (0, 3, 3))]
    assert p.tolist() == expected


def test_orders_fit_their_keys():
    assert [counting.usual_order(v) for v in (256, 1024, 4096, 8192, 65536)] == [7, 5, 5, 4, 4]


def test_a_long_text_is_counted_in_blocks(monkeypatch: pytest.MonkeyPatch):
    text = texts(9, 4000, 0)
    monkeypatch.setattr(counting, "BLOCK", 100)
    monkeypatch.setattr(counting, "MOST_COUNTED", 1000)
    model = CountedModel(text, 9, 3)
    sampled = [text[i : i + 101] for i in range(0, 3999, 400)]
    counts = sum((oracle_counts.counted(b.tolist(), 3)[2] for b in sampled), start=Counter())
    assert model.tables[2].counts.sum() == sum(counts.values())
    assert len(model.tables[2].keys) == len(counts)


# The figure in the cache.


def test_a_figure_is_found_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    text, made = texts(9, 500, 0), []

    def model() -> CountedModel:
        made.append(CountedModel(text, 9, 3))
        return made[-1]

    first = counting.kept_counts("one", model, text, "this text")
    assert first == counting.kept_counts("one", model, text, "this text")
    assert len(made) == 1
    assert capsys.readouterr().err == "counting the training text of this text, once ...\n"
    assert first.bits == made[0].bits_per_token(text)
    assert (first.order, first.entries) == (3, sum(len(t.keys) for t in made[0].tables))
    counting.kept_counts("another", model, text)
    counting.kept_counts("", model, text)
    counting.kept_counts("", model, text)
    assert len(made) == 4, "what nothing tells from others is not kept"
    assert capsys.readouterr().err == ""


def test_a_corpus_keeps_a_figure_for_every_order(tmp_path, monkeypatch):
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "words.txt").write_text("abracadabra, said she.\n" * 900)
    orders = []
    for order in (7, 3, 7):
        monkeypatch.setattr(counting, "BYTES_ORDER", order)
        (counts,) = load_corpus(str(tmp_path / "words.txt")).frozen_counts()
        orders.append(counts.order)
    assert orders == [7, 3, 7]
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2


@pytest.mark.parametrize(
    "damage",
    [b"", b"[1]", b"{}", b'{"order": 3}', b"\xff" * 99, b"[" * 4000,
     b'{"order": 3, "bits": NaN, "seconds": 1, "entries": 1, "size": 1}',
     b'{"order": "3", "bits": 1, "seconds": 1, "entries": 1, "size": 1}'],
)  # fmt: skip
def test_a_damaged_cache_is_none(tmp_path, monkeypatch, damage: bytes):
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    text = texts(9, 300, 0)
    first = counting.kept_counts("one", lambda: CountedModel(text, 9, 3), text)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(damage)
    again = counting.kept_counts("one", lambda: CountedModel(text, 9, 3), text)
    assert again._replace(seconds=0) == first._replace(seconds=0)
    file.unlink()
    file.mkdir()
    third = counting.kept_counts("one", lambda: CountedModel(text, 9, 3), text)
    assert third.bits == first.bits
