"""Token ids and networks of the caller's own, and what is said of those that cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, Command
from corpora import corpus_of, prose
from test_train import SIGNATURE

import eggroll as eg
from eggroll import adamw, generate, networks
from eggroll.data.corpus import token_corpus
from eggroll.training import curves
from eggroll.training import loop as training

CONFIG = training.options_from(TINY)
IDS = np.random.default_rng(0).integers(0, 7, 4000, np.uint16)


def test_streams_are_those_of_text():
    """Bytes as token ids, of whichever type, are the corpus that text is."""
    train, valid = prose(2000), prose(900, b"word ")
    text = corpus_of(train, valid)
    for dtype in (np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64):
        arrays = tuple(np.frombuffer(b, np.uint8).astype(dtype) for b in (train, valid))
        corpus = token_corpus(arrays, 256)
        for split in ("train", "valid"):
            mine, theirs = (c.streams(split, 3, 8, 0) for c in (corpus, text))
            for step in (0, 1, 100):
                for a, b in zip(mine.batch(step)[:2], theirs.batch(step)[:2], strict=True):
                    assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
        assert corpus.baselines() == text.baselines()
        assert corpus.about == token_corpus((list(train), list(valid)), 256).about


def test_of_one_array_the_last_twentieth_is_held_out():
    corpus = token_corpus(IDS)
    pair = token_corpus((IDS[:3800], IDS[3800:]), 7)
    assert corpus.vocabulary == 7
    assert corpus.about["splits"] == pair.about["splits"]
    assert corpus.about != token_corpus(IDS[::-1]).about
    assert token_corpus(np.zeros(40, np.int32)).vocabulary == 2


def test_another_share_of_one_array_is_held_out():
    corpus = token_corpus(IDS, share=0.25)
    assert corpus.about["splits"] == token_corpus((IDS[:3000], IDS[3000:])).about["splits"]
    assert corpus.about["val_share"] == 0.25
    with pytest.raises(eg.InputError, match=r"^val_share is 0\.75: .* up to 0\.5 is needed"):
        eg.train(eg.Config(val_share=0.75), tokens=IDS)


def test_a_large_vocabulary_has_no_bigram_model():
    ids = np.arange(5000) % 1500
    known = token_corpus(ids, 1500).baselines()
    assert known.keys() == {"unigram"}
    assert known["unigram"] == pytest.approx(np.log2(1500), rel=1e-3)


def test_runs_on_tokens_resume_exactly(tmp_path: Path, call: Command):
    whole = eg.train(CONFIG, tokens=IDS)
    assert (whole.config.data, whole.config.vocabulary) == ("tokens", 7)
    part = eg.train(CONFIG, tokens=IDS, out=tmp_path / "r", callbacks=lambda r: r["step"] == 2)
    again = replace(part.config, out="", resume=str(tmp_path / "r"))
    assert eg.train(again, tokens=IDS.astype(np.int64)).signature == whole.signature
    assert eg.load(tmp_path / "r").config == replace(whole.config, out="")
    assert curves.read_run(tmp_path / "r").unit == "bits per token"
    with pytest.raises(eg.InputError, match="'tokens' has changed since the run"):
        eg.train(replace(again, steps=9), tokens=IDS[::-1])
    drawn = call(tmp_path / "r", "--prompt", "1 2", "--tokens", 5, main=generate.main)
    assert drawn.out == eg.load(tmp_path / "r").sample("1 2", tokens=5) + "\n"
    ended = call("--resume", tmp_path / "r", "--steps", 9)
    assert ended.code == 2
    assert "given in Python: use eggroll.train" in ended.err


def test_a_program_of_ones_own_is_the_named_network(tmp_path: Path, call: Command, no_curves: None):
    """The declaration decides, not where it came from: same bits, saved, loaded and resumed."""
    net = eg.networks.egg(16, 16, 1)
    made = eg.train(CONFIG, network=net, out=tmp_path / "r", callbacks=lambda r: r["step"] == 2)
    assert net.score_bits == 4
    model = eg.load(tmp_path / "r")
    assert model.signature == made.signature
    assert model.program.declaration() == net.declaration()
    assert "network" not in model.config.to_dict()
    ended = call("--resume", tmp_path / "r")
    assert ended.signature == SIGNATURE
    assert "network: a declared program of 3 stages, 3,664 parameters" in ended.out
    other = replace(CONFIG, steps=9, resume=str(tmp_path / "r"))
    with pytest.raises(eg.InputError, match="the network is another one than that of the run"):
        eg.train(other, network=eg.networks.egg(16, 16, 2))
    more = eg.train(replace(other, rule="sign"), network=eg.networks.egg(16, 16, 1))
    assert more.signature == eg.train(replace(CONFIG, steps=9)).signature


def scoreless() -> eg.Program:
    net = eg.Program(7, 8)
    net.output(net.embed("e"))
    return net


def with_rows() -> eg.Program:
    net = eg.Program(7, 8)
    net.score(net.concat(net.embed("e"), net.input(4)), "head")
    return net


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"config": {"steps": 3}}, "config is of type dict: an eggroll.Config is needed"),
        ({"config": replace(CONFIG, pop="5")}, "option 'pop' is \"5\", but a whole number is"),
        ({"config": replace(CONFIG, pop=7)}, "^pop is 7: an even number .* try pop 8"),
        ({"config": replace(CONFIG, network="eg")}, "option 'network' is \"eg\", but one of egg"),
        ({"config": replace(CONFIG, data=Path("x"))}, "'data' is .* but a text is needed"),
        ({"config": replace(CONFIG, data="tokens")}, "given in Python: use eggroll.train"),
        ({"config": replace(CONFIG, resume="nowhere")}, "folder 'nowhere' cannot be used"),
        ({"tokens": IDS / 2}, r"tokens is float64 \[4000\]: token ids are whole numbers"),
        ({"tokens": IDS > 2}, r"tokens is bool \[4000\]: token ids are whole numbers"),
        ({"tokens": "a text"}, r"tokens is <U6 \[\]: token ids of shape \[n\]"),
        ({"tokens": None, "vocabulary": 1}, "vocabulary is 1: a whole number from 2 to 65536"),
        ({"tokens": IDS, "vocabulary": 2.5}, "vocabulary is 2.5: a whole number from 2"),
        ({"tokens": IDS, "vocabulary": 6}, "has the token 6: ids from 0 to 5 .* larger vocab"),
        ({"tokens": IDS.astype(int) - 1}, "tokens has the token -1: ids from 0 to 65535"),
        ({"tokens": IDS.astype(int) + 65536}, "ids from 0 to 65535 are needed"),
        ({"tokens": IDS.reshape(2, -1)}, r"uint16 \[2, 2000\]: token ids of shape \[n\]"),
        ({"tokens": []}, r"tokens is empty \(float64 \[0\]\)"),
        ({"tokens": (IDS, IDS[:0])}, r"tokens\[1\] is empty"),
        ({"tokens": (IDS, IDS, IDS)}, "tokens is a tuple of 3: one array or a pair"),
        ({"tokens": [[1, 2], [3]]}, "tokens is no array"),
        ({"tokens": {"a": 1}}, r"tokens is object \[\]: token ids of shape"),
        ({"tokens": IDS[:20]}, "there are 1 validation tokens: 2 or more are needed"),
        ({"tokens": IDS[:100]}, "the training tokens are 95, too few for 16 streams .* 144 are"),
        ({"network": "egg"}, "network is of type str: an eggroll.Program is needed"),
        ({"network": eg.Program()}, "The program is empty: begin with"),
        ({"network": scoreless(), "tokens": IDS}, "network has no score"),
        ({"network": with_rows(), "tokens": IDS}, "network has input, which a language model is"),
        ({"network": eg.networks.egg(9, 8, 1)}, r"vocabulary 9 and the data 16: .*Program\(16"),
        ({"callbacks": 3}, "callbacks is 3: a function or a list of them is needed"),
        ({"callbacks": [print, "x"]}, "the callback 'x' is no function"),
        ({"out": 3}, "3 is no path"),
        ({"out": __file__}, "is no folder"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, monkeypatch, given: dict, sentence: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(eg.InputError, match=sentence) as refused:
        eg.train(given.pop("config", CONFIG), **given)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "args", "sentence"),
    [
        ("logits", ([1.5],), r"tokens is float64 \[1\]: token ids are whole numbers"),
        ("logits", ([],), r"tokens is empty \(float64 \[0\]\): token ids of shape \[T\] or"),
        ("logits", ([[[1]]],), r"int64 \[1, 1, 1\]: token ids of shape \[T\] or \[S, T\]"),
        ("logits", ([3, 16],), "tokens has the token 16: ids from 0 to 15"),
        ("logits", ([-1],), "tokens has the token -1: ids from 0 to 15"),
        ("logits", ([[1], [1, 2]],), "tokens is no array"),
        ("logits", (None,), "tokens is object"),
        ("logits", ("1 x",), "the text has 'x': this model's tokens are numbers"),
        ("loss", ([3],), r"tokens is \[1, 1\]: two or more are needed in a row"),
        ("loss", ("",), r"tokens is \[1, 1\]: two or more"),
        ("tokens", ("99",), "numbers from 0 to 15 are needed"),
        ("sample", ([1],), "a text is needed, not list"),
        ("sample", ("1", {"tokens": 0}), "tokens is 0: a whole number from 1"),
        ("sample", ("1", {"tokens": 2.0}), "tokens is 2.0: a whole number from 1"),
        ("sample", ("1", {"seed": -1}), "seed is -1: a whole number from 0"),
        ("sample", ("1", {"temperature": -1}), "^temperature is -1.0: a number from 0 to 100"),
        ("sample", ("1", {"temperature": "hot"}), "temperature is 'hot': a number from 0"),
        ("sample", ("1", {"top_p": 0}), "^top_p is 0.0: a number above 0"),
        ("sample", ("1", {"top_p": None}), "^top_p is None: a number from 0 to 1"),
        ("sample", ("1", {"top_k": 1.5}), "^top_k is 1.5: a whole number"),
        ("sample", ("1", {"stop": "a"}), "^stop is 'a': a list of texts"),
        ("sample", ("1", {"stop": 3}), "^stop is 3: a list of texts"),
        ("sample_tokens", ([16],), "prompt has the token 16: ids from 0 to 15"),
        ("sample_tokens", ([[1]],), r"prompt is int64 \[1, 1\]: token ids of shape \[n\]"),
        ("sample_tokens", ("1 2",), r"prompt is <U3 \[\]: token ids of shape \[n\]"),
        ("sample_tokens", ([1], {"samples": 0}), "samples is 0: a whole number from 1"),
        ("sample_tokens", ([1], {"temperature": 101}), "temperature is 101.0: a number from 0"),
    ],
)
def test_a_model_refuses_in_one_sentence(finished: Path, method: str, args: tuple, sentence: str):
    model = eg.load(finished)
    given = args[1] if len(args) > 1 else {}
    with pytest.raises(eg.InputError, match=sentence) as refused:
        getattr(model, method)(args[0], **given)
    assert "\n" not in str(refused.value)


def test_load_names_what_reads_another_checkpoint(tmp_path: Path, call: Command, no_curves: None):
    words = "--data count --steps 1 --width 8 --streams 4 --sample-tokens 0 --val-tokens 64"
    assert call(*words.split(), "--out", tmp_path / "float", main=adamw.main).code == 0
    with pytest.raises(eg.InputError, match="is a float network of eggroll"):
        eg.load(tmp_path / "float")
    es = eg.Trainer(networks.mlp(4, [8], 2), pop=4, engine="portable", table_bits=16)
    es.save(tmp_path / "policy.safetensors")
    with pytest.raises(eg.InputError, match=r"read it by eggroll\.Trainer\.load"):
        eg.load(tmp_path / "policy.safetensors")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("nowhere",), "'nowhere' holds no checkpoint: .* with another out"),
        ((__file__,), "is damaged or no checkpoint"),
        ((3,), "3 is no path"),
        (("", {"engine": "abacus"}), "engine 'abacus' is unknown"),
        (("", {"threads": -1}), "threads is -1: a whole number from 0"),
    ],
)
def test_load_refuses_in_one_sentence(finished: Path, args: tuple, sentence: str):
    given = args[1] if len(args) > 1 else {}
    with pytest.raises(eg.InputError, match=sentence):
        eg.load(args[0] or finished, **given)
