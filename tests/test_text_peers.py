"""experiments/text/peers.py: settings, a sweep's draws, and training where torch is installed."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from house import ROOT

from eggroll.data.corpus import TextCorpus
from eggroll.data.text import Text
from eggroll.errors import InputError

SPEC = importlib.util.spec_from_file_location("peers", ROOT / "experiments" / "text" / "peers.py")
peers = importlib.util.module_from_spec(SPEC)
sys.modules["peers"] = peers  # where dataclasses look their module up
SPEC.loader.exec_module(peers)

WORDS = np.frombuffer(b"\0" + b"abracadabra, said she. " * 2000, np.uint8)


def test_settings_are_read_from_words():
    found = peers.setting_of("lstm:rate=0.016,width=128,optimiser=muon")
    assert found == peers.Setting(kind="lstm", optimiser="muon", rate=0.016, width=128)
    for words in ("rnn", "gru:depth=2", "gru:optimiser=sgd", "gru:width=wide"):
        with pytest.raises(InputError, match=words):
            peers.setting_of(words)


@pytest.mark.parametrize("kind", peers.KINDS)
def test_a_sweep_draws_the_same_settings_again(kind: str):
    drawn = [peers.drawn(kind, "adamw", trial) for trial in range(20)]
    assert drawn == [peers.drawn(kind, "adamw", trial) for trial in range(20)]
    assert len(set(drawn)) == 20
    low, high = peers.RANGES[kind]["rate"]
    assert all(low <= setting.rate <= high for setting in drawn)


@pytest.mark.parametrize("kind", peers.KINDS)
def test_peers_learn(kind: str):
    """To far below the text's unigram entropy, 3.3 bits; the same updates give the same network."""
    torch = pytest.importorskip("torch")
    setting = peers.Setting(kind=kind, width=64, streams=8, seq_len=32, rate=0.01, threads=1)
    corpus = TextCorpus("words", Text(WORDS, WORDS[:5000], {}))
    model, update = peers.train(setting, corpus, 60, 0)
    assert update > 0
    bits = peers.validate(torch, model, corpus).mean()
    assert bits < 2
    again, _ = peers.train(setting, corpus, 60, 0)
    assert peers.validate(torch, again, corpus).mean() == bits
    assert torch.get_num_threads() == 1


def test_a_transformer_sees_the_context_that_it_is_given():
    """Windows of validation give what one pass over all tokens gives."""
    torch = pytest.importorskip("torch")
    setting = peers.Setting(kind="transformer", width=32, layers=2, seq_len=8)
    torch.manual_seed(0)
    model = peers.network(torch, setting, 20).eval()
    tokens = torch.randint(0, 20, (3, 8))
    with torch.no_grad():
        whole, _ = model(tokens, None)
        first, state = model(tokens[:, :4], None)
        second, _ = model(tokens[:, 4:], state)
    assert torch.allclose(whole, torch.cat([first, second], 1), atol=1e-5)


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch):
    trained = []

    def train(setting, corpus, updates, seed):
        trained.append((setting, updates, seed))
        return setting, 0.01

    monkeypatch.setattr(peers, "train", train)
    monkeypatch.setattr(peers, "load_torch", lambda threads: None)
    monkeypatch.setattr(
        peers, "validate", lambda torch, model, corpus: np.full((2, 3), 2.0 + model.rate)
    )
    files = ["--csv", str(tmp_path / "rows.csv"), "--pace", str(tmp_path / "pace.json")]
    words = ["--kinds", "gru", "--trials", "3"]
    corpus = TextCorpus("words", Text(WORDS, WORDS, {}))

    def called(*given: str):
        monkeypatch.setattr(sys, "argv", ["peers.py", *given])
        return peers.arguments()

    args = called("sweep", *words, "--finalists", "2", "--seeds", "2", *files)
    with pytest.raises(InputError, match="pace"):
        peers.sweep(args, corpus, 1.0)
    peers.pace(called("pace", *words, *files[2:]), corpus)
    assert [updates for _, updates, _ in trained] == [peers.PILOT] * 3
    trained.clear()
    peers.sweep(args, corpus, 1.0)
    whole = round((60 - peers.BESIDE) / 0.01)
    assert [updates for _, updates, _ in trained] == [round(whole * peers.SEARCH)] * 3 + [whole] * 4
    first, second, _ = sorted((setting for setting, _, _ in trained[:3]), key=lambda s: s.rate)
    assert [(s, seed) for s, _, seed in trained[3:]] == [
        (first, 0), (second, 0), (first, 1), (first, 2),
    ]  # fmt: skip
    peers.sweep(args, corpus, 1.0)
    assert len(trained) == 7, "rows that are there are not run again"
    with (tmp_path / "rows.csv").open(newline="") as file:
        phases = [row["phase"] for row in csv.DictReader(file)]
    assert phases == ["search"] * 3 + ["final"] * 2 + ["seeds"] * 2
