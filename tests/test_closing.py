"""The last lines of a run say what it came to and what to do now."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, Command

from eggroll import adamw, generate, plot
from eggroll.data.corpus import CountCorpus, TextCorpus
from eggroll.data.text import Text
from eggroll.report import command as report
from eggroll.training import loop as closing
from eggroll.training import loop as training
from eggroll.training.config import Config

MAINS = {
    **{"train": training.main, "adamw": adamw.main, "generate": generate.main},
    **{"plot": plot.main, "report": report.main},
}
WORDS = np.frombuffer(b"\0abracadabra" * 100, np.uint8)
CORPUS = TextCorpus("stdlib", Text(WORDS, WORDS, {}))
LINE = CORPUS.baselines()["bigram"]

SMALL = [
    *("--streams", "8", "--width", "16", "--seq-len", "8", "--steps", "4", "--threads", "1"),
    *("--val-tokens", "512", "--validate-every", "2", "--sample-tokens", "8"),
]


def commands(out: str) -> list[list[str]]:
    """The command lines below `next:`, without the interpreter."""
    lines = out.partition("next:\n")[2].splitlines()
    return [line.partition(" -m eggroll.")[2].split() for line in lines if " -m eggroll." in line]


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["train.py"])


@pytest.mark.parametrize(
    ("options", "loss", "recipe"),
    [
        ({}, LINE + 0.1, True),
        ({}, LINE - 0.1, False),
        ({}, 0.998 * LINE, False),
        ({"estimator": "token-credit", "rule": "whitened"}, LINE + 0.1, False),
        ({"data": "some file.txt"}, LINE + 0.1, True),
    ],
)
def test_a_run_above_the_bigram_line_is_shown_the_recipes(
    tmp_path: Path, options: dict, loss: float, recipe: bool
):
    text = closing.last_words(tmp_path, Config(**options), loss, CORPUS, "train")
    for name, way in closing.BETTER_RECIPES:
        assert (f"--recipe {closing.ON_BYTES[name]}" in text) == recipe
        assert (f"{way}: far better in the same time" in text) == recipe
    assert ("Above the bigram model" in text) == (loss > LINE)
    assert ("Below the bigram model" in text) == (loss < 0.99 * LINE)
    assert ("On a level with the bigram model" in text) == (0.99 * LINE < loss < LINE)
    assert f"{LINE:.3f} a bigram model counted on the training split\n" in text
    assert "8.000 a uniform guess\n" in text
    assert f"--resume {tmp_path} --steps 3000" in text
    assert "--temperature 0.6" in text
    assert ("--data 'some file.txt'" in text) == ("data" in options)


BY_CREDIT = {"estimator": "token-credit", "rule": "whitened"}
BACKWARD = {"recipe": "feedback"}


@pytest.mark.parametrize(
    ("times", "options", "loss", "recipes"),
    [
        (1, {}, 9.0, ["language", "feedback --width 128 --layers 2"]),
        (1000, {}, 9.0, ["evolution", "text"]),
        (1000, {"vocabulary": 1024}, 9.0,
         ["evolution --vocabulary 1024", "text --vocabulary 1024"]),
        (1000, {"vocabulary": 4096}, 9.0, ["evolution", "text"]),
        (1000, {"vocabulary": 300, "tokenizer": "my own.json"}, 9.0,
         ["evolution --tokenizer 'my own.json'", "text --tokenizer 'my own.json'"]),
        (1000, {"vocabulary": 1024}, 0.0, []),
        (1000, BY_CREDIT, 0.0, ["evolution", "text"]),
        (1000, BACKWARD, 0.0, ["text"]),
        (1000, BACKWARD | {"vocabulary": 4096}, 9.0, []),
        (1, BACKWARD, 9.0, []),
    ],
)  # fmt: skip
def test_a_text_is_recommended_what_is_better_for_it(
    tmp_path: Path, times: int, options: dict, loss: float, recipes: list[str]
):
    corpus = TextCorpus("stdlib", Text(np.tile(WORDS, times), WORDS, {}))
    lines = closing.suggestions(tmp_path, Config(**options), loss, corpus, "train")
    found = [line.partition("--recipe ")[2] for line, _ in lines if "--recipe" in line]
    assert found == recipes


def test_a_strong_counting_model_stands_beside(tmp_path: Path):
    (strong,) = CORPUS.frozen_counts()
    text = closing.last_words(tmp_path, Config(), strong.bits + 0.01, CORPUS, "train")
    line = f"{strong.bits:.3f} a frozen Kneser-Ney order-7 model counted on the training split ("
    assert line in text
    assert f"({strong.seconds:.1f} s, {strong.entries:,} entries, " in text
    assert "counting still knows this text better" in text
    text = closing.last_words(tmp_path, Config(), strong.bits - 0.01, CORPUS, "train")
    assert "counting still knows" not in text


def test_counting_has_a_scale_of_its_own(tmp_path: Path):
    corpus = CountCorpus(16, (1,))
    text = closing.last_words(tmp_path, Config(data="count"), 0.25, corpus, "train")
    assert "validation: 0.250 bits per token; 0 is perfect counting" in text
    assert "3.907 a unigram model\n" in text
    assert "0.000 a bigram model\n" in text
    assert "recipe" not in text
    assert "byte" not in text


def test_folders_are_quoted(tmp_path: Path):
    folder = tmp_path / "my run"
    text = closing.last_words(folder, Config(), 1.0, CORPUS, "train")
    assert f"--resume '{folder}'" in text
    assert f"eggroll.plot '{folder}' OTHER_RUN" in text


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("name", ["train", "adamw"])
def test_the_commands_that_are_shown_work(
    call: Command, tmp_path: Path, name: str, text: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    words = TINY if name == "train" else SMALL
    ended = call(*words, "--data", text, "--out", "run", main=MAINS[name])
    assert ended.signature
    again, drawn, page, picture = commands(ended.out)[-4:]
    assert again[0] == name
    assert drawn[0] == "generate"
    assert (page[0], picture[0]) == ("report", "plot")
    assert call(*page[1:], main=MAINS["report"]).code == 0
    assert call(*again[1:], main=MAINS[name]).code == 0
    assert call("run", "--prompt", "The ", "--temperature", "0.6", main=generate.main).code == 0
