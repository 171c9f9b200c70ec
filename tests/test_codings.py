"""Tokens of byte-pair encodings: lossless, the same everywhere, and bits per byte that compare."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from corpora import sentence
from hypothesis import given
from hypothesis import strategies as st

import eggroll
from eggroll import adamw, generate
from eggroll.data import codings
from eggroll.data import corpus as pairs
from eggroll.data import text as corpora
from eggroll.data.corpus import load_corpus
from eggroll.errors import InputError
from eggroll.training.config import Config
from eggroll.training.run import TrainingRun

SMALL = (
    *("--pop", "8", "--steps", "2", "--seq-len", "4", "--width", "8", "--layers", "1"),
    *("--val-tokens", "512", "--sample-tokens", "8", "--engine", "portable"),
)


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some prose, of which 300 tokens can be made; with a few bytes that are no UTF-8."""
    random = np.random.default_rng(0)
    letters = list("abcdefghiklmnoprstuvyäï")
    words = ["the", "hen", *("".join(random.choice(letters, 6)) for _ in range(60))]
    lines = (" ".join(random.choice(words, 9)) + "\n\n" for _ in range(2000))
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_bytes("".join(lines).encode() + b"\xff\xfe end\n")
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGGROLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def coding(text: Path) -> codings.BytePairs:
    return codings.train_tokenizer("prose", corpora.read_path(str(text)), 300)


@given(st.text())
def test_a_text_comes_back_from_its_tokens(coding: codings.BytePairs, written: str):
    tokens = coding.tokens(written, "it")
    found = b"".join(map(coding.bytes_of, tokens))
    assert found == written.encode("utf-8", "replace")
    assert all(0 < token < coding.vocabulary == 300 for token in tokens)
    assert int(coding.sizes[tokens].sum()) == len(found)


def test_a_corpus_in_pairs_has_the_text_of_one_in_bytes(text: Path, coding: codings.BytePairs):
    plain = corpora.read_path(str(text))
    corpus = load_corpus(str(text), vocabulary=300)
    assert isinstance(corpus, pairs.BytePairCorpus)
    for split, data in (("train", plain.train), ("valid", plain.valid)):
        tokens = corpus._arrays[split]
        assert len(tokens) < 0.75 * len(data)
        found = b"".join(map(coding.bytes_of, tokens.tolist()))
        assert found == data.tobytes().decode("utf-8", "replace").encode()
        assert int(coding.sizes[tokens].sum()) == len(found)
    again = load_corpus(str(text), vocabulary=300)
    assert again.about == corpus.about
    assert corpus.about["tokenizer"] == coding.digest
    assert set(corpus.baselines()) == {"unigram", "bigram"}


def test_training_is_the_same_again(text: Path, coding: codings.BytePairs, tmp_path, monkeypatch):
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path))
    assert codings.train_tokenizer("prose", corpora.read_path(str(text)), 300).data == coding.data


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from eggroll.training import loop as training

    folder = tmp_path_factory.mktemp("pairs") / "run"
    words = (*SMALL, "--data", str(text), "--vocabulary", "300", "--out", str(folder))
    assert training.main(list(words)) == 0
    return folder


def test_bits_per_byte_are_those_of_the_same_text(run: Path, text: Path):
    row = metrics(run)[-1]
    config = eggroll.load(run).config
    corpus = load_corpus(str(text), vocabulary=300)
    from eggroll.training.run import validation_batches

    targets = np.concatenate([b.targets.ravel() for b in validation_batches(corpus, config)])
    size = sum(len(corpus.coding.bytes_of(int(token))) for token in targets)
    assert row["val_bits_per_byte"] == pytest.approx(row["val_loss"] * targets.size / size)
    about = json.loads((run / "config.json").read_text())["about"]
    assert about["corpus"]["tokenizer"] == corpus.coding.digest
    known = corpus.baselines()["unigram"] * targets.size / size
    assert about["baselines"]["unigram"] == pytest.approx(known)


def test_a_run_goes_on_and_is_sampled_by_its_own_tokenizer(run, call: Command, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    whole = call(*SMALL[:2], *SMALL[4:], "--steps", 4, "--data", eggroll.load(run).config.data,
                 "--vocabulary", 300, "--out", tmp_path / "whole")  # fmt: skip
    assert call("--resume", copy, "--steps", 4).signature == whole.signature
    drawn = call(run, "--prompt", "the hen", "--tokens", 12, main=generate.main)
    assert drawn.code == 0, drawn.err
    assert drawn.out.startswith("the hen")
    model = eggroll.load(run)
    assert model.sample("the hen", tokens=12) + "\n" == drawn.out
    assert len(model.tokens("the hen")) < 1 + len("the hen")
    (copy / codings.TOKENIZER_FILE).write_bytes((run / codings.TOKENIZER_FILE).read_bytes() + b"\n")
    for words, main in (((copy, "--prompt", "a"), generate.main), (("--resume", copy), None)):
        ended = call(*words, **({"main": main} if main else {}))
        assert ended.code == 2
        assert "is not the one of this run" in ended.err or "has changed since" in ended.err
    (copy / codings.TOKENIZER_FILE).unlink()
    ended = call("--resume", copy)
    assert ended.code == 2
    assert "tokenizer.json" in ended.err


def test_another_tokenizer_is_not_written_over(run: Path, call: Command, tmp_path: Path):
    words = (*SMALL, "--data", eggroll.load(run).config.data, "--vocabulary", 300)
    (tmp_path / codings.TOKENIZER_FILE).write_text('{"mine": 1}')
    ended = call(*words, "--out", tmp_path)
    assert ended.code == 2
    assert "is another tokenizer than that of this run, and would be written over" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == [codings.TOKENIZER_FILE]
    shutil.copy(run / codings.TOKENIZER_FILE, tmp_path)  # the same may lie there
    assert call(*words, "--out", tmp_path).signature


@pytest.mark.parametrize("kind", [TrainingRun, adamw.BaselineRun])
def test_a_checkpoint_has_its_tokenizer(
    run: Path, call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
):
    """Whenever a run ends, it can go on."""
    words = ["--data", eggroll.load(run).config.data, "--vocabulary", 300, "--steps", 2]
    words += ["--width", 16, "--seq-len", 8, "--val-tokens", 512, "--out", tmp_path / "run"]
    main = {"main": adamw.main} if kind is adamw.BaselineRun else {}
    words += [] if main else ["--pop", 32]
    save = kind.save

    def stopped(self: Any) -> None:
        save(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "save", stopped)
    assert call(*words, **main).code == 130
    monkeypatch.setattr(kind, "save", save)
    assert call("--resume", tmp_path / "run", **main).code == 0


@pytest.mark.parametrize("recipe", ["text", "evolution"])
def test_a_tokenizer_takes_the_place_of_the_recipes_vocabulary(run: Path, recipe: str):
    file = str(run / codings.TOKENIZER_FILE)
    assert Config(recipe=recipe, tokenizer=file).at_home().vocabulary == 300
    with pytest.raises(InputError, match="--vocabulary is 400"):
        Config(recipe=recipe, tokenizer=file, vocabulary=400).at_home()


def test_a_tokenizer_of_others(run: Path, text: Path, call: Command, tmp_path: Path):
    """And the float network by the same."""
    words = (*SMALL[2:-2], "--data", text, "--tokenizer", run / codings.TOKENIZER_FILE)
    ended = call(*SMALL[:2], *words, "--out", tmp_path / "own")
    assert ended.code == 0, ended.err
    assert ended.signature == call("--resume", run).signature
    assert eggroll.load(tmp_path / "own").config.vocabulary == 300
    twin = call(*words, "--streams", 4, "--out", tmp_path / "twin", main=adamw.main)
    assert twin.code == 0, twin.err
    row = metrics(tmp_path / "twin")[-1]
    assert row["val_bits_per_byte"] < row["val_loss"]
    drawn = call(tmp_path / "twin", "--prompt", "the", "--tokens", 3, main=generate.main)
    assert drawn.out.startswith("the")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--vocabulary 100", "--vocabulary is 100|above 256|try --vocabulary 1024"),
        ("--vocabulary 60000", "gives no more than|use --vocabulary"),
        ("--tokenizer absent.json", "absent.json' cannot be read"),
        ("--tokenizer list.json", "is no tokenizer.json"),
        ("--tokenizer words.json", "is not byte-level"),
        ("--tokenizer own.json --vocabulary 400", "--vocabulary is 400|has 300 tokens"),
        ("--tokenizer own.json --data count", "--tokenizer is for text"),
    ],
)
def test_what_cannot_be_is_refused(
    call: Command, run: Path, text: Path, tmp_path: Path, monkeypatch, words: str, says: str
):
    import tokenizers

    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text("[1, 2]")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save("words.json")
    shutil.copy(run / codings.TOKENIZER_FILE, "own.json")
    ended = call(*SMALL, "--data", text, *words.split())
    assert ended.code == 2, ended.err
    assert ended.err.count("\n") == 1
    for part in says.split("|"):
        assert part in ended.err
    assert not (tmp_path / "runs").exists()


def test_a_cache_that_cannot_be_written_is_named(call: Command, text: Path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "file"))
    ended = call(*SMALL, "--data", text, "--vocabulary", 301, "--out", tmp_path / "run")
    assert (ended.code, ended.err.count("\n"), (tmp_path / "run").exists()) == (2, 1, False)
    assert f"'{tmp_path / 'file' / 'tokenizers'}" in ended.err
    assert "set EGGROLL_CACHE to another folder" in ended.err


def test_without_the_package_one_sentence_says_so(monkeypatch, text: Path):
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="pip install tokenizers") as error:
        load_corpus(str(text), vocabulary=301)
    sentence(error)


@pytest.mark.parametrize(("size", "documents"), [(1 << 26, 16), ((1 << 26) + 1, 9)])
def test_a_tokenizer_learns_from_64_mib_at_most(size: int, documents: int):
    """Of a longer text every second document, and so on."""
    data = np.full(size, ord("a"), np.uint8)
    data[:: 1 << 22] = corpora.MARK[0]
    assert sum(1 for _ in codings._sample(data)) == documents
