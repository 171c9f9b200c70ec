"""Language models in Python: `train` makes one, `load` reads that of a run.

Letters: S streams, T tokens, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll import engines, generate
from eggroll.baseline import backprop as reader
from eggroll.cli.command import check_ranges
from eggroll.data.codings import Coding, coding_of
from eggroll.data.corpus import Corpus, check_vocabulary, token_corpus, token_ids
from eggroll.data.expert import ExpertName, Mixture
from eggroll.data.hub import TOKENS
from eggroll.engines import Engine, zero_state
from eggroll.errors import InputError, in_python, shown, whole_number
from eggroll.files import CHECKPOINT, METRICS, Row, path_of
from eggroll.inference import MARK, model_loss, sample, token_likelihoods, usual_temperature
from eggroll.library.members import Whole, engine_again, kept_engine
from eggroll.spec.program import Batch, Leaves, Program
from eggroll.training import checkpoint, loop
from eggroll.training.config import Config, DeclaredConfig, from_dict, with_program
from eggroll.training.folder import read_lines
from eggroll.training.loop import Callback
from eggroll.training.run import open_run
from eggroll.training.trackers import NONE

Tokens = ArrayLike | tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True)
class Trained:
    """The result of `train`.

    model: the network; history: the rows of metrics, one per update, those before a resume
    included; signature: sha256, hex, of all weights, as the command prints it; folder: of the run,
    None if nothing was written.
    """

    model: LanguageModel
    history: list[Row] = field(repr=False)  # else a notebook would show every row
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
    vocabulary: Whole | None = None,
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
    history: list[Row] = []
    with in_python(), ExitStack() as stack:
        options, corpus = run_options(config, tokens, vocabulary, network, out)
        receivers = [history.append, *_callables(callbacks)]
        write = bool(options.out or options.resume)
        run = open_run(options, stack, corpus=corpus, write=write, show=show)
        if run.folder:
            history += [row for _, row in read_lines(run.path(METRICS), run.step)]
        end = loop.complete(run, stack, receivers, show=show)
        model = LanguageModel(run.config, run.engine, run.weights, run.step, run.corpus.coding)
    result = Trained(model, history, end.signature, end.folder)
    if end.resume_hint:
        raise Interrupted(end.resume_hint, result)
    return result


def run_options(
    config: Config | None,
    tokens: Tokens | None,
    vocabulary: Any,
    network: Program | None,
    out: str | os.PathLike[str] | None,
) -> tuple[Config, Corpus | None]:
    """Builds the Config and, if the caller passed tokens, the corpus."""
    options = _plain(Config() if config is None else config)
    if out is not None:
        options = replace(options, out=_path(out))
    corpus: Corpus | None = None
    if vocabulary is not None:
        check_vocabulary(vocabulary)
        vocabulary = int(vocabulary)
    if tokens is not None:
        if vocabulary is None and isinstance(network, Program):
            vocabulary = network.vocabulary
        elif vocabulary is None and options.resume:
            vocabulary = options.vocabulary
        check_ranges(options)
        corpus = token_corpus(tokens, vocabulary, options.val_share)
        options = replace(options, data=TOKENS, vocabulary=corpus.vocabulary)
    elif vocabulary is not None:
        options = replace(options, vocabulary=vocabulary)
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
    values = {name: _item(getattr(config, name)) for name in names}
    typed = from_dict(values | {"count_steps": _listed(config.count_steps)}, "config")
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
    several = [callbacks] if callable(callbacks) else callbacks
    if not isinstance(several, Iterable):
        raise InputError(
            f"callbacks is {shown(callbacks)}: a function or a list of them is needed."
        )
    listed: list[Callback] = list(several)
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


# Checkpoints of another format: what they are, and what reads them.
FOREIGN = {
    checkpoint.LIBRARY: "of eggroll.Trainer: read it by eggroll.Trainer.load",
    reader.FORMAT: "a float network of eggroll.adamw, without int8 weights: the command generate "
    "samples it",
}


def load(
    path: str | os.PathLike[str],
    *,
    engine: str = "auto",
    threads: Whole = 0,
    expert: ExpertName = "none",
) -> LanguageModel:
    """The model of a run: of its folder, or of a checkpoint file.

    engine: auto, portable, cpu, metal or cuda; threads: on a CPU, 0 takes all cores; expert: counts
    mixes it with a model that is counted anew on its text, as docs/estimators.md says.

    Raises:
        InputError: there is no sound checkpoint of eggroll.train, the engine cannot run here, or
            the expert's text is not there.
    """
    where = path_of(path).expanduser()
    file = where if where.is_file() else where / CHECKPOINT
    if way_out := FOREIGN.get(checkpoint.kind_of(file)):
        raise InputError(f"{str(path)!r} is {way_out}.")
    with in_python():
        stored = checkpoint.load_model(file)
        config, coding = stored.config, coding_of(stored.config, file.parent, stored.corpus)
    cores = whole_number("threads", threads, 0, 1024)
    if expert not in get_args(ExpertName):
        raise InputError(f"expert is {shown(expert)}: one of none, counts is needed.")
    chosen, _ = engines.choose(engine, config.program(), cores)
    with in_python():
        mixture = generate.mixture_in(stored, chosen, file) if expert == "counts" else None
    return LanguageModel(config, chosen, stored.weights, stored.step, coding, mixture)


BLOCK = 64  # tokens of a stream that a loss reads at a time


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
        mixture: Mixture | None = None,
    ) -> None:
        self.config, self.step, self.coding = config, step, coding
        self._mixture = mixture
        self._engine, self._weights = engine, weights
        self._prepared: Any = None

    def __repr__(self) -> str:
        return (
            f"<LanguageModel: {self.config.network_words}, vocabulary {self.vocabulary}, "
            f"{self.step} updates>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_engine": kept_engine(self._engine), "_prepared": None}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept, _engine=engine_again(kept["_engine"]))

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

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes the network, which gives logits token by token; see `Model.export`.

        Raises:
            InputError: an unknown ending, a missing package, or the file cannot be written.
        """
        from eggroll.library.export import export

        return export(self.program, self._weights, path)

    def tokens(self, text: str) -> NDArray[np.int32]:
        """The mark, then the tokens of a text: its bytes in UTF-8, or its numbers ("1 2 3").

        Raises:
            InputError: a word is no number below V where tokens are numbers.
        """
        return np.array([MARK, *self._prompt(text)], np.int32)

    def logits(self, tokens: ArrayLike | str) -> NDArray[np.int8]:
        """Logits of the next token after each of these, in Q4: 16 stand for one bit.

        tokens: integers [T] or [S, T], or a text. The probability of token v after token t is
        2^(logits[t, v] / 16), divided by the sum of that over v. With an expert they are the
        mixture's, rounded to 16ths of a bit.
        Returns int8 [T, V] or [S, T, V].

        Raises:
            InputError: the tokens are of another shape or type, or outside 0..V-1.
        """
        rows, single = self._rows(tokens)
        state = zero_state(self.program, len(rows))
        all_logits = np.empty((*rows.shape, self.vocabulary), np.int8)
        for t in range(rows.shape[1]):
            read = Batch(mx.array(rows[:, t : t + 1]), state=state)
            logits, state = self._engine.logits(self._ready(), read)
            mx.eval(logits, state)
            own = np.array(logits)
            if self._mixture:
                own = self._mixture.logits(own, rows[:, : t + 1][:, -self._mixture.model.order :])
            all_logits[:, t] = own
        return all_logits[0] if single else all_logits

    def loss(self, tokens: ArrayLike | str) -> float:
        """Exact cross-entropy in bits per token, of every token but the first of each stream.

        tokens: integers [T] or [S, T] with T > 1, or a text, all of whose tokens are predicted, as
        a mark stands before them. Validation is the same figure. With an expert it is that of the
        mixture, whose weights were counted on validation.

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
        batches = (Batch(inputs[:, cut], targets[:, cut]) for cut in cuts)
        if self._mixture:
            return self._mixture.loss(token_likelihoods(self._engine, self._weights, batches), rows)
        return model_loss(self._engine, self._weights, batches)

    def sample(
        self,
        prompt: str = "",
        *,
        tokens: Whole = 512,
        temperature: float | None = None,
        top_k: Whole = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        stop: Sequence[str] = (),
        seed: Whole = 0,
    ) -> str:
        """A text: the prompt and its continuation, as `python -m eggroll.generate` has it.

        prompt: text, or numbers such as "1 2 3" where tokens are numbers; tokens: the most after
        it; temperature: 1 draws from the network's own probabilities, below 1 likely tokens get
        likelier, 0 takes the likeliest; None: 0.6 for text, 0.1 for count; top_k, top_p, min_p: see
        Sampling; stop: the text ends before the first of these.

        Raises:
            InputError: an argument is of another type or out of its range.
        """
        drawn = sampling_options(tokens, temperature, top_k, top_p, min_p, seed, stop)
        model = generate.model_of(self.config, self._engine, self._weights, self.coding)
        model = model._replace(expert=self._mixture)
        pieces = generate.texts(
            model, self._prompt(prompt), tokens=drawn.tokens, seed=drawn.seed,
            sampling=drawn.sampling(model.temperature), stops=drawn.stop,
        )  # fmt: skip
        return "".join(pieces)[:-1]  # without the line's end

    def sample_tokens(
        self,
        prompt: ArrayLike = (),
        *,
        tokens: Whole = 512,
        samples: Whole = 1,
        temperature: float | None = None,
        top_k: Whole = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: Whole = 0,
    ) -> NDArray[np.int32]:
        """Several continuations of one prompt, each with random numbers of its own.

        prompt: integers [T], to which a mark is put in front, or none; temperature to seed: as of
        `sample`. Sample 0 is the one that `sample` draws.
        Returns int32 [samples, tokens], without the prompt.

        Raises:
            InputError: an argument is of another shape or type, or out of its range.
        """
        drawn = sampling_options(tokens, temperature, top_k, top_p, min_p, seed)
        wide = whole_number("samples", samples, 1, 1 << 20)
        begin: Sequence[int] = ()
        if np.size(np.asarray(prompt, dtype=object)):
            begin = token_ids(prompt, self.vocabulary, "prompt", shape="[n]").tolist()
        stream = sample(
            self._engine, self._weights, begin, samples=wide, seed=drawn.seed,
            sampling=drawn.sampling(usual_temperature(self.config.data)), expert=self._mixture,
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


def sampling_options(
    tokens: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    min_p: Any,
    seed: Any,
    stop: Any = (),
) -> generate.GenerateOptions:
    """Options of a sample, checked as those of the command."""
    real = {"temperature": (temperature, 100), "top_p": (top_p, 1), "min_p": (min_p, 1)}
    numbers = dict[str, Any]()
    for name, (value, high) in real.items():
        if name == "temperature" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise InputError(f"{name} is {shown(value)}: a number from 0 to {high} is needed.")
        numbers[name] = float(value)
    ends = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (None,)
    if not all(isinstance(text, str) for text in ends):
        raise InputError(f"stop is {shown(stop)}: a list of texts is needed, as in ['\\n\\n'].")
    plain = generate.GenerateOptions(
        tokens=whole_number("tokens", tokens, 1, 1 << 20),
        top_k=whole_number("top_k", top_k, 0, 1 << 16),
        seed=whole_number("seed", seed, 0, (1 << 63) - 1),
        stop=ends,
    )
    options = replace(plain, **numbers)
    with in_python():
        options.check()
    return options
