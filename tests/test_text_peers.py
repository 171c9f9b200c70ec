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
    """Within a second, to far below the text's unigram entropy: 3.3 bits."""
    torch = pytest.importorskip("torch")
    setting = peers.Setting(kind=kind, width=64, streams=8, seq_len=32, rate=0.01, threads=1)
    corpus = TextCorpus("words", Text(WORDS, WORDS[:5000], {}))
    bits, updates, spent = peers.train(setting, corpus, 3.0, 0)
    assert updates > 10
    assert spent >= 3.0
    assert bits < 2
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

    def train(setting, corpus, seconds, seed):
        trained.append((setting, seed))
        return 2.0 + setting.rate, 1, seconds

    monkeypatch.setattr(peers, "train", train)
    words = ["peers.py", "sweep", "--kinds", "gru", "--trials", "3", "--seeds", "2",
             "--csv", str(tmp_path / "rows.csv")]  # fmt: skip
    monkeypatch.setattr(sys, "argv", words)
    args, corpus = peers.arguments(), TextCorpus("words", Text(WORDS, WORDS, {}))
    peers.sweep(args, corpus, 1.0)
    assert len(trained) == 5
    best = min((setting for setting, _ in trained[:3]), key=lambda setting: setting.rate)
    assert trained[3:] == [(best, 1), (best, 2)]
    peers.sweep(args, corpus, 1.0)
    assert len(trained) == 5, "rows that are there are not run again"
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [row["phase"] for row in csv.DictReader(file)] == ["search"] * 3 + ["seeds"] * 2
