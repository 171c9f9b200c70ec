"""Trained language models in Python: logits, losses and samples; `load` reads those of a run.

Letters: S streams, T tokens, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll import checkpoint, engines, generate
from eggroll.baseline import reader
from eggroll.config import Config
from eggroll.data.codings import Coding, coding_of
from eggroll.data.tokens import token_ids
from eggroll.engines import Engine, zero_state
from eggroll.errors import InputError, in_python, shown
from eggroll.likelihood import model_loss
from eggroll.program import Leaves, Program
from eggroll.runlog import CHECKPOINT
from eggroll.sampling import MARK, sample

BLOCK = 64  # tokens of a stream that a loss reads at a time
# Checkpoints of another format: what they are, and what reads them.
FOREIGN = {
    checkpoint.LIBRARY: "of eggroll.Trainer: read it by eggroll.Trainer.load",
    reader.FORMAT: "a float network of eggroll.adamw, without int8 weights: the command generate "
    "samples it",
}


class LanguageModel:
    """A network that predicts the next token, unperturbed.

    Tokens are ids 0..V-1; of text they are bytes, V = 256. Token 0 is the mark that begins a
    document: the network's state is zero where a stream begins, and zeroed again at every mark. All
    results are the same bits on every engine and machine.

    config: options of its run; step: updates made; coding: what tokens stand for.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        weights: Leaves,
        step: int,
        coding: Coding,
    ) -> None:
        self.config, self.step, self.coding = config, step, coding
        self._engine, self._weights = engine, weights
        self._prepared: Any = None

    def __repr__(self) -> str:
        return (
            f"<LanguageModel: {self.config.network_words}, vocabulary {self.vocabulary}, "
            f"{self.step} updates>"
        )

    @property
    def program(self) -> Program:
        """The network's declaration."""
        return self._engine.program

    @property
    def vocabulary(self) -> int:
        """V, the number of tokens."""
        return self.program.vocabulary

    @property
    def weights(self) -> dict[str, NDArray[np.int8]]:
        """Copies of the leaves, in declared order: name -> int8, in Q4 (16 stands for 1.0)."""
        return {name: np.array(leaf) for name, leaf in self._weights.items()}

    @property
    def signature(self) -> str:
        """Sha256, hex, of all weights, as `python -m eggroll.train` prints it."""
        return checkpoint.signature(self._weights)

    def tokens(self, text: str) -> NDArray[np.int32]:
        """The mark, then the tokens of a text: its bytes in UTF-8, or its numbers ("1 2 3").

        Raises:
            InputError: a word is no number below V where tokens are numbers.
        """
        return np.array([MARK, *self._prompt(text)], np.int32)

    def logits(self, tokens: ArrayLike | str) -> NDArray[np.int8]:
        """Logits of the next token after each of these, in Q4: 16 stand for one bit.

        tokens: integers [T] or [S, T], or a text. The probability of token v after token t is
        2^(logits[t, v] / 16), divided by the sum of that over v.
        Returns int8 [T, V] or [S, T, V].

        Raises:
            InputError: the tokens are of another shape or type, or outside 0..V-1.
        """
        rows, single = self._rows(tokens)
        state = zero_state(self.program, len(rows))
        found = np.empty((*rows.shape, self.vocabulary), np.int8)
        for t in range(rows.shape[1]):
            logits, state = self._engine.logits(self._ready(), mx.array(rows[:, t]), state)
            mx.eval(logits, state)
            found[:, t] = np.array(logits)
        return found[0] if single else found

    def loss(self, tokens: ArrayLike | str) -> float:
        """Exact cross-entropy in bits per token, of every token but the first of each stream.

        tokens: integers [T] or [S, T] with T > 1, or a text, all of whose tokens are predicted, as
        a mark stands before them. Validation is the same figure.

        Raises:
            InputError: the tokens are of another shape or type, outside 0..V-1, or too few.
        """
        rows, _ = self._rows(tokens)
        if rows.shape[1] < 2:
            raise InputError(
                f"tokens is {list(rows.shape)}: two or more are needed in a row, as each is "
                "predicted from those before it."
            )
        inputs, targets = rows[:, :-1], rows[:, 1:]
        cuts = (slice(i, i + BLOCK) for i in range(0, inputs.shape[1], BLOCK))
        batches = ((inputs[:, cut], targets[:, cut]) for cut in cuts)
        return model_loss(self._engine, self._weights, batches)

    def sample(
        self,
        prompt: str = "",
        *,
        tokens: int = 512,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        stop: Sequence[str] = (),
        seed: int = 0,
    ) -> str:
        """A text: the prompt and its continuation, as `python -m eggroll.generate` has it.

        prompt: text, or numbers such as "1 2 3" where tokens are numbers; tokens: the most after
        it; temperature: 1 draws from the network's own probabilities, below 1 likely tokens get
        likelier, 0 takes the likeliest; None: 0.6 for text, 0.1 for count; top_k, top_p, min_p: see
        Sampling; stop: the text ends before the first of these.

        Raises:
            InputError: an argument is of another type or out of its range.
        """
        drawn = _options(tokens, temperature, top_k, top_p, min_p, seed, stop)
        model = generate.model_of(self.config, self._engine, self._weights, self.coding)
        pieces = generate.texts(
            model, self._prompt(prompt), tokens=drawn.tokens, seed=drawn.seed,
            sampling=drawn.sampling(model.temperature), stops=drawn.stop,
        )  # fmt: skip
        return "".join(pieces)[:-1]  # without the line's end

    def sample_tokens(
        self,
        prompt: ArrayLike = (),
        *,
        tokens: int = 512,
        samples: int = 1,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> NDArray[np.int32]:
        """Several continuations of one prompt, each with random numbers of its own.

        prompt: integers [T], to which a mark is put in front, or none; temperature to seed: as of
        `sample`. Sample 0 is the one that `sample` draws.
        Returns int32 [samples, tokens], without the prompt.

        Raises:
            InputError: an argument is of another shape or type, or out of its range.
        """
        drawn = _options(tokens, temperature, top_k, top_p, min_p, seed)
        wide = _whole("samples", samples, 1, 1 << 20)
        begin: Sequence[int] = ()
        if np.size(np.asarray(prompt, dtype=object)):
            begin = token_ids(prompt, self.vocabulary, "prompt", shape="[n]").tolist()
        stream = sample(
            self._engine, self._weights, begin, samples=wide, seed=drawn.seed,
            sampling=drawn.sampling(generate.usual_temperature(self.config.data)),
        )  # fmt: skip
        return np.stack([next(stream) for _ in range(drawn.tokens)], axis=1)

    def _prompt(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise InputError(
                f"a text is needed, not {type(text).__name__} {shown(text)}: give a str, or tokens "
                "to sample_tokens."
            )
        return self.coding.tokens(text, "the text")

    def _rows(self, tokens: ArrayLike | str) -> tuple[NDArray[np.int32], bool]:
        """Tokens [S, T] int32, and whether they were given as [T]."""
        given = self.tokens(tokens) if isinstance(tokens, str) else tokens
        array = token_ids(given, self.vocabulary, "tokens")
        return np.atleast_2d(array).astype(np.int32, order="C"), array.ndim == 1

    def _ready(self) -> Any:
        """The weights in the engine's own layout, made once."""
        if self._prepared is None:
            self._prepared = self._engine.prepare(self._weights)
        return self._prepared


def load(path: str | os.PathLike[str], *, engine: str = "auto", threads: int = 0) -> LanguageModel:
    """The model of a run: of its folder, or of a checkpoint file.

    engine: auto, portable, cpu, metal or cuda; threads: on a CPU, 0 takes all cores.

    Raises:
        InputError: there is no sound checkpoint of eggroll.train, or the engine cannot run here.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"{shown(path)} is no path: give the folder of a run as a str or a Path, as in "
            "load('runs/stdlib-000')."
        )
    where = Path(path).expanduser()
    file = where if where.is_file() else where / CHECKPOINT
    if way_out := FOREIGN.get(checkpoint.kind_of(file)):
        raise InputError(f"{str(path)!r} is {way_out}.")
    with in_python():
        kept = checkpoint.load_model(file)
        coding = coding_of(kept.config, file.parent, kept.corpus)
    chosen, _ = engines.choose(engine, kept.config.program(), _whole("threads", threads, 0, 1024))
    return LanguageModel(kept.config, chosen, kept.weights, kept.step, coding)


def _options(
    tokens: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    min_p: Any,
    seed: Any,
    stop: Any = (),
) -> generate.Options:
    """Options of a sample, checked as those of the command."""
    given = {"temperature": (temperature, 100), "top_p": (top_p, 1), "min_p": (min_p, 1)}
    numbers = dict[str, Any]()
    for name, (value, high) in given.items():
        if name == "temperature" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise InputError(f"{name} is {shown(value)}: a number from 0 to {high} is needed.")
        numbers[name] = float(value)
    if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
        raise InputError(f"stop is {shown(stop)}: a list of texts is needed, as in ['\\n\\n'].")
    plain = generate.Options(
        tokens=_whole("tokens", tokens, 1, 1 << 20), top_k=_whole("top_k", top_k, 0, 1 << 16),
        seed=_whole("seed", seed, 0, (1 << 63) - 1), stop=tuple(stop),
    )  # fmt: skip
    options = replace(plain, **numbers)
    with in_python():
        options.check()
    return options


def _whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number, of Python's or NumPy's.

    Raises:
        InputError: it is none, or out of range.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise InputError(
            f"{name} is {shown(value)}: a whole number from {low} to {high} is needed."
        )
    return int(value)
