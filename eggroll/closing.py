"""The last lines of a run: what its figures mean, and the commands that make sense now."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Final

from eggroll import runlog
from eggroll.anyrun import bytes_per_token
from eggroll.config import Common, Config
from eggroll.data import codings
from eggroll.data.corpus import TOKENS, Corpus
from eggroll.generate import TEXT_TEMPERATURE
from eggroll.help import invocation

# Recipes that learn text better, and the bits per byte they reach in a minute or two on stdlib:
# experiments/text/RESULTS.md.
RECIPES: Final = (
    ("language", "evolution by token credit", "about 2.5"),
    (
        "feedback --width 128 --layers 2",
        "errors carried back in integers, the best model per second",
        "about 1.65",
    ),
)


def last_words(
    folder: Path | None, config: Common, loss: float, corpus: Corpus, command: str
) -> str:
    """The report of a finished run.

    folder: None of a run that wrote nothing; loss: exact cross-entropy on validation, bits per
    token; command: the one that made the run.
    """
    if folder is None:
        return "\n".join(meaning(config, loss, corpus))
    files = (*runlog.FILES, codings.FILE)
    written = ", ".join(name for name in files if (folder / name).exists())
    lines = [*meaning(config, loss, corpus), f"written to {folder}: {written}", "next:"]
    for line, does in suggestions(folder, config, loss, corpus, command):
        lines += [f"  {line}", f"      {does}"]
    return "\n".join(lines)


def meaning(config: Common, loss: float, corpus: Corpus) -> Iterator[str]:
    """The loss above those of models that know little, and what follows from that."""
    count, known = config.data == "count", corpus.baselines()
    counted = "" if count else " counted on the training split"
    token = "token" if config.numbers else "token of text" if config.pairs else "byte of text"
    of = "token; 0 is perfect counting" if count else f"{token} that training never reads"
    byte = runlog.in_bits(loss / bytes_per_token(corpus, config)) if config.pairs else ""
    yield f"validation: {runlog.in_bits(loss)} bits per {of}{byte and f', {byte} per byte'}"
    yield f"{log2(corpus.vocabulary):17.3f} a uniform guess"
    yield from (f"{bits:17.3f} a {name} model{counted}" for name, bits in known.items())
    if not count and "bigram" in known and loss > known["bigram"]:
        yield "Above the bigram model, samples are hardly readable: it needs more training."
    elif not count and "bigram" in known:
        last = "token" if config.numbers or config.pairs else "byte"
        yield f"Below the bigram model: the network makes use of more than the last {last}."


def suggestions(
    folder: Path, config: Common, loss: float, corpus: Corpus, command: str
) -> Iterator[tuple[str, str]]:
    """Command lines that make sense after this run, and what each does."""
    run, data = shlex.quote(str(folder)), config.data
    by_token = not isinstance(config, Config) or config.estimator_class.by_token
    bigram = corpus.baselines().get("bigram", loss)
    if not config.numbers and not by_token and loss > bigram:
        other = "" if data == "stdlib" else f" --data {shlex.quote(data)}"
        for recipe, way, bits in RECIPES:
            does = f"{bits} bits per byte in a minute or two" if data == "stdlib" else "far better"
            yield f"{invocation('train')} --recipe {recipe}{other}", f"{way}: {does}"
    again = f"--resume {run} --steps {2 * config.steps}"
    if data != TOKENS:  # else the arrays are the caller's
        yield f"{invocation(command)} {again}", "trains as long again"
    prompts = {"count": "'3 4 5'", TOKENS: "'1 2 3'", "stdlib": "'def '"}
    drawn = f"--prompt {prompts.get(data, repr('The '))}"
    drawn += "" if data == "count" else f" --temperature {TEXT_TEMPERATURE}"
    yield f"{invocation('generate')} {run} {drawn}", "continues a prompt"
    yield f"{invocation('report')} {run}", "writes a page about it, to open in a browser"
    yield f"{invocation('plot')} {run} OTHER_RUN", "draws it beside another run"
