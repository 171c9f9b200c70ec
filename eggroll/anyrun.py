"""A run of whatever is trained: what it does and has, and the words for it.

run.py has those of eggroll.train, adamw.py those of the float network.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from eggroll import __version__, runlog
from eggroll.config import Common
from eggroll.data.codings import FILE, Pairs
from eggroll.data.corpora import VAL_SHARE
from eggroll.data.corpus import TOKENS, Batch, Corpus, Streams
from eggroll.data.streams import load_corpus
from eggroll.errors import InputError
from eggroll.help import invocation
from eggroll.program import Leaves, Program
from eggroll.ranks import ALONE, Ranks

VALID_STREAMS, VALID_TOKENS = 256, 64  # of validation: most streams, most tokens of a batch


@dataclass
class Run(ABC):
    """A run under way, of whatever is trained: its options, its folder and its data.

    folder: None if nothing of it is written;
    val_loss: the validation after the last update, in bits per token; None if there was none;
    asked: tells whether it is to stop; stops: whether it does, as of the last update.
    """

    config: Common
    folder: runlog.Folder | None
    corpus: Corpus
    streams: Streams
    val_loss: float | None = field(default=None, init=False)
    asked: Callable[[], bool] = field(default_factory=lambda: lambda: False, init=False)
    stops: bool = field(default=False, init=False)

    command: ClassVar[str]
    legend: ClassVar[str]  # what the loss in metrics.jsonl and on the screen is

    @property
    @abstractmethod
    def step(self) -> int:
        """Updates made."""

    @property
    @abstractmethod
    def weights(self) -> Leaves: ...

    @property
    @abstractmethod
    def engine(self) -> Any:
        """The engine that draws samples from the weights, or something with its `logits`."""

    @property
    def ranks(self) -> Ranks:
        """The processes that share its work."""
        return ALONE

    @abstractmethod
    def update(self) -> runlog.Row:
        """Makes one update; returns its line of metrics.jsonl, but for the validation."""

    @abstractmethod
    def validate(self) -> float:
        """Exact bits per token of the model on the validation split."""

    @abstractmethod
    def save(self) -> None:
        """Replaces the checkpoint by one of the present step; nothing without a folder."""

    def validation(self) -> runlog.Row:
        """Validates, and returns what the line of metrics.jsonl gets by it."""
        self.val_loss = self.validate()
        per_byte = self.val_loss / self.bytes_per_token
        return {"val_loss": self.val_loss, "val_bits_per_byte": per_byte}

    @cached_property
    def bytes_per_token(self) -> float:
        """Of the text that validation reads."""
        return bytes_per_token(self.corpus, self.config)

    def path(self, name: str) -> Path:
        """The path of one of the files; only of a run with a folder."""
        assert self.folder
        return self.folder.path / name

    def due(self, every: int) -> bool:
        """True if something done `every` so many updates is due; it always is at the end."""
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    def resume_hint(self, engine: str = "") -> str:
        """How the run goes on; engine: another than its own."""
        if not self.folder:
            return "nothing of it is written without an out."
        folder = str(self.folder.path)
        if self.config.data == TOKENS:
            changed = f", engine={engine!r}" if engine else ""
            return f"go on with Config(resume={folder!r}{changed}, ...) and the same tokens"
        changed = f" --engine {engine}" if engine else ""
        return f"go on with: {invocation(self.command)} --resume {shlex.quote(folder)}{changed}"

    @property
    def by_steps(self) -> bool:
        """True if an update depends on the total of updates."""
        return True

    def details(self) -> Sequence[str]:
        """Words of the first lines that belong to this kind of run."""
        return ()

    def facts(self) -> dict[str, Any]:
        """Facts in config.json that belong to this kind of run."""
        return {}


def fingerprint(corpus: Corpus) -> Any:
    """The identity of the data: the digest of each split, or the options of corpus count."""
    splits = corpus.about.get("splits")
    facts = {k: v["sha256"] for k, v in splits.items()} if splits else corpus.about
    if tokenizer := corpus.about.get("tokenizer"):
        facts["tokenizer"] = tokenizer
    return json.loads(json.dumps(facts))


def unit(options: Common) -> str:
    return "bits per token" if options.numbers or options.pairs else "bits per byte"


def corpus_of(options: Common) -> Corpus:
    """The corpus of a run; one that goes on reads it by the tokenizer that it has.

    Raises:
        InputError: there is none, or none of it.
    """
    tokenizer = options.tokenizer
    if options.resume and options.pairs:
        tokenizer = str(Path(options.resume) / FILE)
    return load_corpus(
        options.data, vocabulary=options.vocabulary, steps=options.count_steps,
        tokenizer=tokenizer, val_share=options.val_share,
    )  # fmt: skip


def bytes_per_token(corpus: Corpus, options: Common) -> float:
    """Bytes of a token of the validation, a mark counted as one; of numbers, 1."""
    coding, size, count = corpus.coding, 0, 0
    if not isinstance(coding, Pairs):
        return 1.0
    for i, (_, targets) in enumerate(validation_batches(corpus, options)):
        scored = targets[:, corpus.warmup if i == 0 else 0 :]
        size, count = size + int(coding.sizes[scored].sum()), count + scored.size
    return size / count


def validation_batches(corpus: Corpus, options: Common) -> Iterator[Batch]:
    """At most val_tokens of the validation split, spread over at most 256 streams.

    A small split gives fewer streams, so that each is long, as each begins without a memory.
    """
    most = max(min(VALID_STREAMS, options.val_tokens // VALID_TOKENS), 1).bit_length()
    shapes: list[Streams] = []
    for bits in reversed(range(most)):
        try:
            shapes.append(corpus.streams("valid", 1 << bits, 1, options.seed))
        except InputError:  # too small for so many
            if bits == 0:
                raise
    long = (shape for shape in shapes if shape.length > VALID_TOKENS)
    shape = next(long, max(shapes, key=lambda shape: shape.tokens_per_epoch))
    length = min(VALID_TOKENS, shape.length - 1, options.val_tokens)
    length = max(length, corpus.warmup + 1)  # something must be scored
    streams = corpus.streams("valid", shape.streams, length, options.seed)
    batches = min(options.val_tokens // shape.streams, shape.length - 1) // length
    return (streams.batch(i) for i in range(max(batches, 1)))


def parameters(program: Program) -> int:
    return sum(math.prod(leaf.shape) for leaf in program.leaves)


def print_header(run: Run, reason: str, steps_before: int) -> None:
    """Tells on stdout what runs where, and why there."""
    options, engine, streams = run.config, run.engine, run.streams
    print(f"engine: {engine.description}{', ' * bool(reason)}{reason}")
    parts = (
        f"network: {options.network_words}, {parameters(engine.program):,} parameters",
        *run.details(),
        f"data: {streams.streams:,} streams x {options.seq_len} tokens of {options.data}, "
        f"{streams.tokens_per_epoch:,} in all",
        *validation_words(run.corpus, options),
    )
    print("\n".join(parts))
    where = run.folder.path if run.folder else "not written"
    print(f"run: {where}, updates {run.step} to {options.steps}")
    if options.resume and run.step == options.steps:
        print(f"All {run.step} updates are done; a larger --steps goes on.")
    elif run.by_steps and steps_before != options.steps:
        print(
            f"From here the learning rate falls over {options.steps} updates instead of "
            f"{steps_before}, which is not the run of {options.steps} updates from the start."
        )
    sys.stdout.flush()


def validation_words(corpus: Corpus, options: Common) -> Sequence[str]:
    """A line on where the validation split comes from; none of streams without end."""
    if "val_share" not in corpus.about:  # or a cache of an older version
        return ()
    splits, share = corpus.about["splits"], corpus.about["val_share"]
    counted = "documents" if "documents" in splits["valid"] else "tokens"
    held = splits["valid"][counted]
    if share is not None:
        whole = held + splits["train"][counted]
        return (f"validation: {held:,} of {whole:,} {counted}, by --val-share {share}",)
    unused = f"; --val-share {options.val_share} is not used" * (options.val_share != VAL_SHARE)
    return (f"validation: a split of its own, {held:,} {counted}{unused}",)


def write_facts(run: Run) -> None:
    """Writes config.json, and the tokenizer where there is one; nothing without a folder."""
    if not run.folder:
        return
    if isinstance(run.corpus.coding, Pairs):
        runlog.write_whole(run.path(FILE), run.corpus.coding.data)
    runlog.write_whole(run.path(runlog.CONFIG), config_json(run))


def config_json(run: Run) -> bytes:
    """The options, and under `about` what else explains the results."""
    corpus = run.corpus
    # In bits per byte of text, as pictures are.
    baselines = {name: bits / run.bytes_per_token for name, bits in corpus.baselines().items()}
    data = {"corpus": corpus.about, "baselines": baselines}
    return described(run.config.to_dict(), run.engine, run.facts() | data)


def described(options: Mapping[str, Any], engine: Any, facts: Mapping[str, Any]) -> bytes:
    """A config.json of these options; facts: what `about` says beside versions and engine."""
    about = {
        "eggroll": __version__,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "engine": engine.description,
        "parameters": parameters(engine.program),
        **facts,
    }
    return json.dumps({**options, "about": about}, indent=1).encode() + b"\n"
