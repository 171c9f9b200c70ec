"""Training in Python: `train` runs the loop of the command line, and returns what it made.

Letters: V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll import runlog, training
from eggroll.cli import check_ranges
from eggroll.config import Config, DeclaredConfig, with_program
from eggroll.data.corpus import TOKENS, Corpus
from eggroll.data.tokens import check_vocabulary, token_corpus
from eggroll.errors import InputError, in_python, shown
from eggroll.language import LanguageModel
from eggroll.options import from_dict
from eggroll.program import Program
from eggroll.run import open_run
from eggroll.trackers import NONE
from eggroll.training import Callback

Tokens = ArrayLike | tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True)
class Trained:
    """What `train` made.

    model: the network; history: the rows of metrics, one per update, those before a resume
    included; signature: sha256, hex, of all weights, as the command prints it; folder: of the run,
    None if nothing was written.
    """

    model: LanguageModel
    history: list[runlog.Row] = field(repr=False)  # else a notebook would show every row
    signature: str
    folder: Path | None

    @property
    def weights(self) -> dict[str, NDArray[np.int8]]:
        """Copies of the leaves: name -> int8, in Q4."""
        return self.model.weights

    @property
    def config(self) -> Config:
        """The options of the run."""
        return self.model.config

    @property
    def step(self) -> int:
        """Updates made: fewer than config.steps if the run was stopped."""
        return self.model.step

    @property
    def val_loss(self) -> float | None:
        """The last validation, exact bits per token; None if there was none."""
        found: list[float] = [row["val_loss"] for row in self.history if "val_loss" in row]
        return found[-1] if found else None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C (or SIGTERM) during `train`; result: what was trained until then."""

    def __init__(self, sentence: str, result: Trained) -> None:
        super().__init__(sentence)
        self.result = result


def train(
    config: Config | None = None,
    *,
    tokens: Tokens | None = None,
    vocabulary: int | None = None,
    network: Program | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    out: str | os.PathLike[str] | None = None,
    show: bool = False,
) -> Trained:
    """Trains a language model: the very run of `python -m eggroll.train` with the same options.

    config: the options; None takes the defaults.
    tokens: token ids [n] of an integer type to learn in place of `config.data`, or a pair of them,
        (train, validation); of one array the last val_share is held out. Token 0 begins a document.
    vocabulary: V of the tokens; None infers it, from the network or the highest id.
    network: a program with `embed` and `score` in place of `config.network`.
    callbacks: called with every row of metrics, a dict (docs/running.md); one that returns True
        stops the run after this update.
    out: new folder for the run's files. None writes nothing, unless `config` has an `out` or goes
        on with a run by `resume`.
    show: whether progress and results are printed, as the command does.

    The first Ctrl-C ends the update under way, writes the checkpoint if there is a folder, and
    raises `Interrupted`, which holds the result so far; the second stops at once.

    Raises:
        InputError: bad input or environment; what was on the disk before is intact.
        Interrupted: by Ctrl-C or SIGTERM.
    """
    history: list[runlog.Row] = []
    with in_python(), ExitStack() as stack:
        options, corpus = _options(config, tokens, vocabulary, network, out)
        told = [history.append, *_callables(callbacks)]
        write = bool(options.out or options.resume)
        run = open_run(options, stack, corpus=corpus, write=write, show=show)
        if run.folder:
            known = runlog.read_lines(run.path(runlog.METRICS))
            history += [row for _, row in known if row["step"] <= run.step]
        made = training.complete(run, stack, told, show=show)
        model = LanguageModel(run.config, run.engine, run.weights, run.step, run.corpus.coding)
    result = Trained(model, history, made.signature, made.folder)
    if made.resume_hint:
        raise Interrupted(made.resume_hint, result)
    return result


def _options(
    config: Config | None,
    tokens: Tokens | None,
    vocabulary: int | None,
    network: Program | None,
    out: str | os.PathLike[str] | None,
) -> tuple[Config, Corpus | None]:
    """The options of a run by the arguments of `train`, and its corpus if it is the caller's."""
    options = _plain(Config() if config is None else config)
    if out is not None:
        options = replace(options, out=_path(out))
    corpus: Corpus | None = None
    if tokens is not None:
        if vocabulary is None and isinstance(network, Program):
            vocabulary = network.vocabulary
        elif vocabulary is None and options.resume:
            vocabulary = options.vocabulary
        check_ranges(options)
        corpus = token_corpus(tokens, vocabulary, options.val_share)
        options = replace(options, data=TOKENS, vocabulary=corpus.vocabulary)
    elif vocabulary is not None:
        check_vocabulary(vocabulary)
        options = replace(options, vocabulary=int(vocabulary))
    if options.track != NONE and not (options.out or options.resume):
        raise InputError(
            f"track is {shown(options.track)}, and only a run with a folder is tracked: give out."
        )
    return (options if network is None else _with_network(options, network)), corpus


def _plain(config: Config) -> Config:
    """The options, with NumPy's numbers as Python's.

    Raises:
        InputError: an option is of another type.
    """
    if not isinstance(config, Config):
        raise InputError(
            f"config is of type {type(config).__name__}: an eggroll.Config is needed, as in "
            "train(Config(steps=100))."
        )
    hidden = ("out", "resume", "config")
    names = [option.name for option in fields(config) if option.name not in hidden]
    given = {name: _item(getattr(config, name)) for name in names}
    typed = from_dict(given | {"count_steps": _listed(config.count_steps)}, "config")
    return replace(typed, out=_path(config.out), resume=_path(config.resume))


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _listed(values: Any) -> Any:
    if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str):
        return [_item(value) for value in values]
    return values


def _path(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{shown(path)} is no path: give the folder of a run as a str or a Path.")
    return str(Path(path).expanduser()) if str(path) else ""


def _callables(callbacks: Any) -> list[Callback]:
    """The callbacks as a list, one or several.

    Raises:
        InputError: one cannot be called.
    """
    found = [callbacks] if callable(callbacks) else callbacks
    if not isinstance(found, Iterable):
        raise InputError(
            f"callbacks is {shown(callbacks)}: a function or a list of them is needed."
        )
    listed: list[Callback] = list(found)
    for callback in listed:
        if not callable(callback):
            raise InputError(
                f"the callback {shown(callback)} is no function: give one that takes a row."
            )
    return listed


def _with_network(options: Config, network: Program) -> DeclaredConfig:
    """The options of a run of this network.

    Raises:
        InputError: it is not finished, no language model, or of another vocabulary.
    """
    if not isinstance(network, Program):
        raise InputError(
            f"network is of type {type(network).__name__}: an eggroll.Program is needed; a named "
            "network is chosen by Config(network=...)."
        )
    network.check()
    if not network.scored:
        raise InputError(
            "network has no score, which a language model ends with: add score(x, name), or train "
            "it with eggroll.Trainer."
        )
    if network.inputs or network.indices:
        kind = "input" if network.inputs else "features"
        raise InputError(
            f"network has {kind}, which a language model is not shown: leave it out, or train it "
            "with eggroll.Trainer."
        )
    if network.vocabulary != options.symbols:
        raise InputError(
            f"network has the vocabulary {network.vocabulary} and the data {options.symbols}: "
            f"declare it as Program({options.symbols}, ...)."
        )
    return with_program(options, network)
