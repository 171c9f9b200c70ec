"""Text from a trained network: `python -m eggroll.generate DIR --prompt TEXT`.

Letters: P samples drawn side by side, V vocabulary.
"""

from __future__ import annotations

import codecs
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
import tyro
from numpy.typing import NDArray

from eggroll import checkpoint, cli, engines, rng
from eggroll import fixed_point as fx
from eggroll.baseline import reader
from eggroll.config import Common
from eggroll.engines import zero_state
from eggroll.errors import InputError
from eggroll.program import Program
from eggroll.runlog import CHECKPOINT

MARK = 0  # the token that begins a document
TEXT_TEMPERATURE: Final = 0.6
COUNT_TEMPERATURE: Final = 0.1
EXAMPLES: Final = (
    ('runs/stdlib-000 --prompt "def main("', "continue a line of Python"),
    ("runs/stdlib-000 --seed 1 --temperature 1", "draw from the network's own probabilities"),
)
HIDDEN = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f]")  # would steer a terminal


class Sampled(Protocol):
    """The part of an engine that `sample` needs: logits, int8 [P, V], of the next token."""

    @property
    def program(self) -> Program: ...
    def prepare(self, weights: Any) -> Any: ...
    def logits(
        self, weights: Any, tokens: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]: ...


def choice_weights(temperature: float) -> NDArray[np.int64]:
    """int64 [256]: entry 255 - d weighs a token whose logit is d below the highest one.

    At temperature 1 it is EXP2 itself; at 0 only the highest logit counts (the first of equals).
    """
    table: list[int] = fx.exp2_table().tolist()
    if temperature == 0:
        return np.array([0] * 255 + [1], np.int64)
    scaled = [255 - int(min((255 - i) / temperature, 255)) for i in range(256)]
    return np.array([table[i] for i in scaled], np.int64)


def sample(
    engine: Sampled,
    weights: Any,
    prompt: Sequence[int] = (),
    *,
    samples: int = 1,
    seed: int = 0,
    temperature: float = 1.0,
) -> Iterator[NDArray[np.int32]]:
    """Endless continuations of the mark and a prompt: int32 [P] for each token.

    Token v has weight EXP2[logit_v + 128], as in training; integer arithmetic and counter-based
    random words make a seed give the same text everywhere.
    """
    prepared, table = engine.prepare(weights), choice_weights(temperature)
    state = zero_state(engine.program, samples)

    def read(tokens: NDArray[np.int32]) -> mx.array:
        nonlocal state
        logits, state = engine.logits(prepared, mx.array(tokens), state)
        mx.eval(logits, state)  # else a long text would be one long graph
        return logits

    for token in (MARK, *prompt):
        logits = read(np.full(samples, token, np.int32))
    for position in itertools.count():
        u = np.array(logits).astype(np.int64) + 128
        if temperature != 1:
            u += 255 - u.max(axis=1, keepdims=True)
        sums = table[u].cumsum(axis=1)
        words = rng.counters(rng.key(seed, rng.SAMPLES, position), 0, samples)
        drawn = [int(w) * int(row[-1]) >> 64 for w, row in zip(words, sums, strict=True)]
        drawn = drawn if temperature else [0] * samples
        picked = [np.searchsorted(row, r, side="right") for row, r in zip(sums, drawn, strict=True)]
        tokens = np.array(picked, np.int32)
        yield tokens
        logits = read(tokens)


class Decoder:
    """Turns tokens into text piece by piece: bytes of UTF-8, or numbers for corpus count."""

    def __init__(self, numbers: bool) -> None:
        self._numbers = numbers
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, token: int) -> str:
        """The text a token completes. A mark becomes an empty line, undecodable bytes U+FFFD."""
        if self._numbers:
            return f"{token} "
        text = self._utf8.decode(bytes([token]))
        return HIDDEN.sub("\ufffd", text).replace("\0", "\n\n")

    def end(self) -> str:
        """The replacement of an unfinished character, and the last line's end."""
        return self._utf8.decode(b"", True) + "\n"


def prompt_tokens(prompt: str, vocabulary: int, numbers: bool, name: str = "--prompt") -> list[int]:
    """The prompt's bytes, or its numbers where tokens are numbers; name: what errors call it.

    Raises:
        InputError: a word is no number from 0 to V - 1, or a character has no bytes.
    """
    if not numbers:
        try:
            return list(prompt.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name} has {prompt[error.start : error.end]!r}, half of a character: give whole "
                "ones."
            ) from error
    wrong = [w for w in prompt.split() if not (w.isdecimal() and int(w) < vocabulary)]
    if wrong:
        raise InputError(
            f"{name} has {wrong[0][:60]!r}: this model's tokens are numbers, so numbers from 0 to "
            f"{vocabulary - 1} are needed; try {name} '1 2 3'."
        )
    return [int(word) for word in prompt.split()]


class Model(NamedTuple):
    """A trained network, ready to be sampled.

    numbers: whether its tokens are numbers, not bytes; temperature: the usual one.
    """

    engine: Sampled
    weights: Any
    numbers: bool
    temperature: float


def load(folder: Path, engine: str, threads: int) -> Model:
    """The network in the folder of a run of eggroll.train or eggroll.adamw, or in a file of it.

    Raises:
        InputError: the folder holds no sound checkpoint, or the engine cannot run here.
    """
    path = folder if folder.is_file() else folder / CHECKPOINT
    if checkpoint.kind_of(path) == reader.FORMAT:
        options, twin, weights = reader.load(path, threads)
        return model_of(options, twin, weights)
    kept = checkpoint.load_model(path)
    chosen, _ = engines.choose(engine, kept.config.program(), threads)
    return model_of(kept.config, chosen, kept.weights)


def model_of(config: Common, engine: Sampled, weights: Any) -> Model:
    """The network of a run with these options."""
    return Model(engine, weights, config.numbers, usual_temperature(config.data))


def text(
    model: Model, prompt: Sequence[int], *, tokens: int, seed: int, temperature: float | None
) -> Iterator[str]:
    """A prompt and so many tokens after it, piece by piece.

    temperature: see Options; None takes the model's usual one.
    """
    drawn = sample(
        model.engine, model.weights, prompt, seed=seed,
        temperature=model.temperature if temperature is None else temperature,
    )  # fmt: skip
    decode = Decoder(model.numbers)
    yield from (decode(token) for token in prompt)
    yield from (decode(int(token[0])) for token in itertools.islice(drawn, tokens))
    yield decode.end()


def usual_temperature(data: str) -> float:
    """At which what a trained network writes is readable: for count, nearly the likeliest token."""
    return COUNT_TEMPERATURE if data == "count" else TEXT_TEMPERATURE


@dataclass(frozen=True)
class Options:
    """Options of eggroll.generate."""

    folder: Annotated[str, tyro.conf.arg(metavar="DIR"), tyro.conf.Positional] = ""
    """Folder of a run of eggroll.train or eggroll.adamw."""
    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """The text to continue; for a network that counts, numbers such as "1 2 3"."""
    tokens: Annotated[int, cli.Range(1, 1 << 20)] = 512
    """Tokens to write after the prompt; in text, a token is a byte."""
    temperature: Annotated[float | None, cli.Range(0, 100)] = None
    """Below 1 likely tokens get likelier, above 1 rarer; 0 always takes the likeliest, 1 draws
    from the network's own probabilities. 0.6 for text and 0.1 for count if not given."""
    seed: Annotated[int, cli.Range(0, (1 << 63) - 1)] = 0
    """Another seed gives another text."""
    engine: Annotated[str, tyro.conf.arg(metavar="auto|portable|cpu|metal|cuda")] = "auto"
    """The engine that runs the network; all write the same text."""
    threads: Annotated[int, cli.Range(0, 1024)] = 1
    """Threads on a CPU; 0 is all cores."""


def generate(options: Options) -> Iterator[str]:
    """The prompt and its continuation, piece by piece.

    Raises:
        InputError: an option is out of range, or the folder holds no sound checkpoint.
    """
    cli.check_ranges(options)
    if not options.folder:
        raise InputError("no folder is given: name that of a run, as in runs/stdlib-000.")
    model = load(Path(options.folder), options.engine, options.threads)
    prompt = prompt_tokens(options.prompt, model.engine.program.vocabulary, model.numbers)
    yield from text(
        model, prompt,
        tokens=options.tokens, seed=options.seed, temperature=options.temperature,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.generate; returns its exit code."""

    def work() -> int:
        options = cli.parse(
            Options,
            sys.argv[1:] if argv is None else argv,
            command="generate",
            about="Writes text with a network that eggroll.train or eggroll.adamw trained.",
            examples=EXAMPLES,
        )
        for piece in generate(options):
            print(piece, end="", flush=True)
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
