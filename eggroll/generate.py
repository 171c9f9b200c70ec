"""Text from a trained network: `python -m eggroll.generate DIR --prompt TEXT`."""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.generate"))

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import tyro

from eggroll import engines
from eggroll.baseline import backprop
from eggroll.cli import command as cli
from eggroll.data import codings
from eggroll.data.codings import Coding
from eggroll.data.expert import ExpertName, Mixture
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT
from eggroll.inference import Decoder, Sampled, Sampling, Stops, sample, usual_temperature
from eggroll.training import checkpoint
from eggroll.training.config import Common
from eggroll.training.run import fingerprint, load_run_corpus, mixture_of

LONGEST_PROMPT = 1 << 20  # bytes
EXAMPLES: Final = (
    ('runs/stdlib-000 --prompt "def main("', "continue a line of Python"),
    ("runs/stdlib-000 --seed 1 --temperature 1", "draw from the network's own probabilities"),
)


@dataclass(frozen=True)
class GenerateOptions:
    """Options of eggroll.generate."""

    folder: Annotated[str, tyro.conf.arg(metavar="DIR"), tyro.conf.Positional] = ""
    """Folder of a run of eggroll.train or eggroll.adamw, or a checkpoint file of one."""
    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT")] = ""
    """The text to continue; for a network that counts, numbers such as "1 2 3"."""
    prompt_file: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """A file that holds the prompt instead; - reads it from standard input."""
    tokens: Annotated[int, cli.Range(1, 1 << 20)] = 512
    """Tokens to write after the prompt; in text, a token is a byte."""
    samples: Annotated[int, cli.Range(1, 1 << 12)] = 1
    """Texts to write, each with random numbers of its own; more than one are shown when all are
    done."""
    stop: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT TEXT ...")] = ()
    """A text ends before the first of these that it comes to."""
    temperature: Annotated[float | None, cli.Range(0, 100)] = None
    """Below 1 likely tokens get likelier, above 1 rarer; 0 always takes the likeliest, 1 draws
    from the network's own probabilities. 0.6 for text and 0.1 for count if not given."""
    top_k: Annotated[int, cli.Range(0, 1 << 16)] = 0
    """Draw from the likeliest so many tokens alone; 0 draws from all."""
    top_p: Annotated[float, cli.Range(0, 1, above=True)] = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    min_p: Annotated[float, cli.Range(0, 1)] = 0.0
    """Draw from tokens that have at least this share of the likeliest one's probability."""
    seed: Annotated[int, cli.Range(0, (1 << 63) - 1)] = 0
    """Another seed gives another text."""
    expert: ExpertName = "none"
    """counts: draw from the network mixed with a model that is counted on its training text, which
    must be where the run found it."""
    engine: Annotated[str, tyro.conf.arg(metavar="auto|portable|cpu|metal|cuda")] = "auto"
    """The engine that runs the network; all write the same text."""
    threads: Annotated[int, cli.Range(0, 1024)] = 1
    """Threads on a CPU; 0 is all cores."""

    def sampling(self, default: float) -> Sampling:
        """The sampling that is asked for; default: the temperature where none is given."""
        warm = default if self.temperature is None else self.temperature
        return Sampling(warm, self.top_k, self.top_p, self.min_p)

    def check(self) -> None:
        """Raises InputError where an option is out of range or two exclude each other."""
        cli.check_ranges(self)
        if "" in self.stop:
            raise InputError("--stop has an empty text, at which every text ends: leave it out.")
        if self.prompt and self.prompt_file:
            raise InputError(
                f"--prompt and --prompt-file {self.prompt_file!r} are both given: give one of them."
            )


def generate(options: GenerateOptions) -> Iterator[str]:
    """The prompt and its continuation, piece by piece.

    Raises:
        InputError: an option is out of range, or the folder holds no sound checkpoint.
    """
    options.check()
    if not options.folder:
        raise InputError("no folder is given: name that of a run, as in runs/stdlib-000.")
    model = load(Path(options.folder), options.engine, options.threads, options.expert)
    name = "--prompt-file" if options.prompt_file else "--prompt"
    yield from texts(
        model, model.coding.tokens(prompt_of(options), name),
        tokens=options.tokens, seed=options.seed, sampling=options.sampling(model.temperature),
        samples=options.samples, stops=options.stop,
    )  # fmt: skip


def prompt_of(options: GenerateOptions) -> str:
    """The prompt, from wherever it comes; a byte that is no UTF-8 stays what it is.

    Raises:
        InputError: its file cannot be read, or is too long to be continued.
    """
    name = options.prompt_file
    if not name:
        return options.prompt
    try:
        if name == "-" and not sys.stdin:
            raise OSError(0, "it is closed")
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
            data = file.read(LONGEST_PROMPT + 1)
    except OSError as error:
        raise InputError(
            f"--prompt-file {name!r} cannot be read ({error.strerror}): name a file, or - for "
            "standard input."
        ) from None
    if len(data) > LONGEST_PROMPT:
        raise InputError(
            f"--prompt-file {name!r} has more than {LONGEST_PROMPT:,} bytes, each of which the "
            "network must read: give its last part."
        )
    return data.decode("utf-8", "surrogateescape")


class SampledModel(NamedTuple):
    """A trained network, ready to be sampled."""

    engine: Sampled
    weights: Any
    coding: Coding  # of its tokens
    temperature: float  # where none is given
    expert: Mixture | None = None


def load(where: Path, engine: str, threads: int, expert: ExpertName = "none") -> SampledModel:
    """The network of a run of eggroll.train or eggroll.adamw: its folder, or the checkpoint itself.

    expert: counts adds the counted one, which is counted anew.

    Raises:
        InputError: there is no sound checkpoint, the engine cannot run here, or the expert's text
            is not there.
    """
    path = where if where.is_file() else where / CHECKPOINT
    if checkpoint.kind_of(path) == backprop.FORMAT:
        if expert != "none":
            raise InputError(
                f"--expert is {expert}, and {str(where)!r} is a float network of eggroll.adamw: "
                "give a run of eggroll.train, or leave --expert out."
            )
        options, facts, twin, weights = backprop.load_run(path, threads)
        return model_of(options, twin, weights, codings.coding_of(options, path.parent, facts))
    model = checkpoint.load_model(path)
    coding = codings.coding_of(model.config, path.parent, model.corpus)
    sampler, _ = engines.choose(engine, model.config.program(), threads)
    made = model_of(model.config, sampler, model.weights, coding)
    return made._replace(expert=mixture_in(model, sampler, path)) if expert != "none" else made


def mixture_in(model: checkpoint.StoredModel, engine: Engine, path: Path) -> Mixture:
    """The network of a checkpoint with the expert, which is counted anew on its run's text.

    Raises:
        InputError: the tokens are no text, or the text is not there any more.
    """
    config = replace(model.config, expert="counts")
    config.check()
    corpus = load_run_corpus(replace(config, resume=str(path.parent)))
    if model.corpus is not None and fingerprint(corpus) != model.corpus:
        raise InputError(
            f"--expert counts needs the text that the run in {str(path.parent)!r} learned, and "
            f"--data {config.data!r} is another by now: bring it back, or leave --expert out."
        )
    return mixture_of(config, corpus, engine, model.weights)


def model_of(config: Common, engine: Sampled, weights: Any, coding: Coding) -> SampledModel:
    """The network of a run with these options."""
    return SampledModel(engine, weights, coding, usual_temperature(config.data))


def texts(
    model: SampledModel,
    prompt: Sequence[int],
    *,
    tokens: int,
    seed: int,
    sampling: Sampling,
    samples: int = 1,
    stops: Sequence[str] = (),
) -> Iterator[str]:
    """A prompt and at most so many tokens after it, piece by piece; several one below the other.

    A text ends before the first of `stops` that its new part has. Sample 0 does not depend on how
    many there are.
    """
    batches = sample(
        model.engine, model.weights, prompt, samples=samples, seed=seed, sampling=sampling,
        expert=model.expert,
    )  # fmt: skip
    rows = itertools.islice(batches, tokens)
    if samples == 1:
        yield from _sample_text(model, prompt, (int(row[0]) for row in rows), stops)
        return
    for number, column in enumerate(zip(*(row.tolist() for row in rows), strict=True), 1):
        yield f"--- sample {number} of {samples}\n"
        yield from _sample_text(model, prompt, column, stops)


def _sample_text(
    model: SampledModel, prompt: Sequence[int], tokens: Iterable[int], stops: Sequence[str]
) -> Iterator[str]:
    decode, until_stop = Decoder(model.coding), Stops(stops)
    yield from (decode(token) for token in prompt)
    for token in tokens:
        yield until_stop(decode(token))
        if until_stop.stopped:
            break
    yield until_stop.end() + decode.end()


@cli.command(
    GenerateOptions,
    name="generate",
    about="Writes text with a network that eggroll.train or eggroll.adamw trained.",
    examples=EXAMPLES,
)
def main(options: GenerateOptions) -> None:
    """Command line of eggroll.generate."""
    for text in generate(options):
        print(text, end="", flush=True)
