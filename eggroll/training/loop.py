"""The training loop: updates, validation, logs and checkpoints up to the last words of a run.

`complete` is the loop. run.py opens a run, evolution/step.py makes one update, and `main` is the
command `python -m eggroll.train`.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from math import isfinite, log2
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from eggroll.cli import command as cli
from eggroll.cli.help import CHANGEABLE, invocation
from eggroll.cli.screen import Display, in_bits
from eggroll.data import codings
from eggroll.data.corpus import Corpus
from eggroll.data.expert import WHOLE, Beside, Mixture
from eggroll.data.hub import TOKENS
from eggroll.errors import EngineError, missing_extra
from eggroll.files import (
    CHAIN,
    CHECKPOINT,
    CURVES,
    FILES,
    METRICS,
    REPLAY,
    SAMPLES,
    STATISTICS,
    Row,
    write_whole,
)
from eggroll.inference import TEXT_TEMPERATURE, Decoder, Sampling, sample, usual_temperature
from eggroll.ranks import launched
from eggroll.ranks.watch import WatchedRanks, join
from eggroll.training import checkpoint, pictures, trackers
from eggroll.training.chain import ChainLog, Link, drop_anchors
from eggroll.training.checkpoint import signature
from eggroll.training.clock import BY_TIME, RunClock
from eggroll.training.config import (
    RECIPES,
    TYPES,
    Common,
    Config,
    SeveralRanks,
    from_command_line,
    from_dict,
)
from eggroll.training.folder import Metrics, read_lines
from eggroll.training.replay_log import SignLog
from eggroll.training.run import (
    Run,
    TrainingRun,
    bytes_per_token,
    fingerprint,
    loss_unit,
    open_run,
    rulers,
)
from eggroll.training.statistics import StatisticsLog

# Is told every line of metrics; if it returns True, the run stops after this update.
Callback = Callable[[Row], object]


class RunResult(NamedTuple):
    """The end of a run."""

    folder: Path | None  # None if nothing was written
    step: int
    signature: str
    val_loss: float | None  # bits per token; None where the last update was not validated
    resume_hint: str  # empty unless the run was interrupted


def train(config: Config) -> RunResult:
    """Trains from the start, or from the checkpoint in `config.resume`, up to `config.steps`.

    Raises:
        InputError: bad input or environment; what was on the disk before is intact.
    """
    with ExitStack() as stack:
        return complete(open_run(config, stack), stack)


def complete(
    run: Run, stack: ExitStack, callbacks: Sequence[Callback] = (), *, show: bool = True
) -> RunResult:
    """Makes the updates that a run has left: the training loop, of eggroll.adamw as well.

    callbacks: told every line of metrics, after the file and the screen; show: whether there is a
    screen.
    """
    receivers: list[Callback] = []  # of every line of metrics
    saves, hint = [run.save], run.resume_hint()
    if run.folder:
        logs = open_logs(run, stack, warn_on_screen if show else warn_in_python)
        receivers += [log.append for log in logs]
        anchors = [log.keep_anchor for log in logs if isinstance(log, ChainLog)]
        saves = [*(log.sync for log in logs), *saves, *anchors]
        hint = f"the last checkpoint stays: {hint}"
        for note in notes_on_logs(logs) * show:
            print(note, file=sys.stderr, flush=True)
    if show:
        display = Display(run.step, run.config.steps, loss_unit(run.config), run.legend)
        receivers.append(stack.enter_context(display).update)
    folder = run.folder.path if run.folder else None
    tracking = stack.enter_context(trackers.tracking(run.config.track, folder, run.step))
    receivers += [tracking.log, *callbacks]
    stop = stack.enter_context(cli.Stop(hint, says=run.ranks.rank == 0))
    clock = RunClock(seconds_before(run))
    run.asked, run.wants_save = lambda: stop.asked, lambda: wants_save(run, clock)
    asked = ended = False
    while run.step < run.config.steps and not (asked or ended):
        row, error = make_update(run, clock)
        replies = [receive(row) for receive in receivers if row]  # all, whichever wants to stop
        ended = any(isinstance(reply, bool | np.bool_) and bool(reply) for reply in replies)
        # Once, as a signal may come between two looks; ranks stop after the same update.
        asked = stop.asked if run.ranks.size == 1 else run.stops
        if error:
            raise with_resume_hint(error, run, saves)
        if asked or ended or save_is_due(run, clock):
            with clock.spent_on(clock.checkpoints):
                for save in saves:
                    save()
    resume_hint = ""
    if run.step == run.config.steps:
        if show:
            display.close()
        try:
            if run.ranks.rank == 0:
                finish(run, show, tracking, clock)
        except EngineError as error:
            raise with_resume_hint(error, run, saves) from None
    elif asked:
        at = f"Interrupted after update {run.step} of {run.config.steps}"
        resume_hint = f"{at}; {run.resume_hint()}"
    return RunResult(folder, run.step, signature(run.weights), run.val_loss, resume_hint)


def make_update(run: Run, clock: RunClock) -> tuple[Row, EngineError | None]:
    """Makes an update: its line, empty if there is none, and the error of an engine that failed."""
    row: Row = {}
    failure: EngineError | None = None
    try:
        began = clock.elapsed
        row |= run.update()
        clock.updates += clock.elapsed - began
        if validation_is_due(run, row, clock):
            with clock.spent_on(clock.validations):
                row |= run.validation()
    except EngineError as error:
        failure = error
    if row:
        row["seconds_total"] = clock.total
    return row, failure


def validation_is_due(run: Run, row: Row, clock: RunClock) -> bool:
    """True if this update is validated: its turn has come, or there is time."""
    every, tokens = run.config.validate_every, run.config.val_tokens
    return run.due(every) or (every == BY_TIME and clock.validation_fits(row, tokens))


def wants_save(run: Run, clock: RunClock) -> bool:
    """True if the first rank has time for a checkpoint; asked before the ranks exchange results."""
    by_time = run.config.checkpoint_every == BY_TIME
    return by_time and run.ranks.rank == 0 and clock.checkpoint_fits()


def save_is_due(run: Run, clock: RunClock) -> bool:
    """True if this update is saved, on all ranks alike."""
    wanted = run.saves if run.ranks.size > 1 else wants_save(run, clock)
    return run.due(run.config.checkpoint_every) or wanted


def seconds_before(run: Run) -> float:
    """Seconds of the earlier parts of a run that goes on, as its metrics have them."""
    rows = read_lines(run.path(METRICS), run.step) if run.folder and run.step else []
    seconds = [row.get("seconds_total", 0.0) for _, row in rows]
    last = seconds[-1] if seconds else 0.0
    known = isinstance(last, int | float) and isfinite(last) and last > 0
    return float(last) if known else 0.0


def with_resume_hint(
    error: EngineError, run: Run, saves: Sequence[Callable[[], None]]
) -> EngineError:
    """The error that ends a run whose engine failed, with what there is of the run."""
    hint = run.resume_hint(error.spare)
    if run.ranks.size > 1:  # the others wait elsewhere
        return EngineError(f"{error} The last checkpoint stays: {hint}", error.spare)
    try:
        for save in saves:
            save()
    except RuntimeError:  # what a GPU holds may be lost with it
        return EngineError(f"{error} The last checkpoint stays: {hint}", error.spare)
    return EngineError(f"{error} All of update {run.step} is saved: {hint}", error.spare)


def warn_on_screen(sentence: str) -> None:
    """Prints a warning; a screen that is gone does not stop the run."""
    with suppress(OSError):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


def warn_in_python(sentence: str) -> None:
    """Gives a warning to the program that trains."""
    warnings.warn(sentence, stacklevel=2)


def finish(run: Run, show: bool, tracking: trackers.Tracking, clock: RunClock) -> None:
    """Samples, curves and the last words of a run that has made all its updates."""
    loss, start = run.val_loss, clock.elapsed
    if loss is None:
        with clock.spent_on(clock.validations):
            loss = run.validation()["val_loss"]
        start = clock.elapsed
    folder = run.folder.path if run.folder else None
    if folder and run.config.sample_tokens:
        texts = draw_samples(run)
        write_whole(run.path(SAMPLES), texts.encode())
        tracking.samples(texts)
    tracking.end()  # before matplotlib comes, which some would take half imported for whole
    if folder and read_lines(run.path(METRICS)):
        try:
            pictures.curves(folder)
        except ModuleNotFoundError as error:  # of a slim installation
            if not (sentence := missing_extra(error)):
                raise
            print(f"no {CURVES}: {sentence}", file=sys.stderr, flush=True)
        except OSError as error:  # of fonts, say; the run itself is done
            print(f"no {CURVES}: {error}", file=sys.stderr, flush=True)
    if show:
        print(clock.words(clock.elapsed - start))
        print(last_words(folder, run.config, loss, run.corpus, run.command, run.beside))


DRAWN_SAMPLES = 4


def draw_samples(run: Run) -> str:
    """Continuations of the document mark, side by side from one seed; with an expert, twice."""
    texts = _drawn(run, None)
    if run.expert and run.beside:
        texts += _drawn(run, Mixture(run.expert.model, run.beside.weights))
    return "\n".join(texts)


def _drawn(run: Run, expert: Mixture | None) -> list[str]:
    config = run.config
    temperature = usual_temperature(config.data)
    drawn = sample(
        run.engine, run.weights, samples=DRAWN_SAMPLES, seed=config.seed,
        sampling=Sampling(temperature), expert=expert,
    )  # fmt: skip
    tokens = list(itertools.islice(drawn, config.sample_tokens))
    texts = []
    for i in range(DRAWN_SAMPLES):
        decode = Decoder(run.corpus.coding)
        text = "".join(decode(int(token[i])) for token in tokens) + decode.end()
        heading = f"temperature {temperature}, seed {config.seed}, sample {i + 1}"
        heading += ", with counts" * (expert is not None)
        texts.append(f"=== update {run.step}, {heading} ===\n{text}")
    return texts


# The files that grow with a run: metrics, chain, statistics, and the replay log of some.

Log = Metrics | SignLog | ChainLog
MAY_CHANGE: Final = {name for name, hint in TYPES.items() if CHANGEABLE in get_args(hint)[1:]}


def open_logs(run: Run, stack: ExitStack, say: Callable[[str], None]) -> list[Log]:
    """The logs of a run with a folder, cut back to its present step; the stack closes them.

    say: is told what goes wrong in the run, a sentence at a time.
    """
    logs: list[Log] = [stack.enter_context(Metrics(run.path(METRICS), run.step))]
    if isinstance(run, TrainingRun) and run.config.estimator_class.replays:
        logs.append(stack.enter_context(_sign_log(run)))
    if isinstance(run, TrainingRun):
        logs.append(stack.enter_context(_chain_log(run)))
    if isinstance(run, TrainingRun) and _keeps_statistics(run):
        logs.append(stack.enter_context(_statistics_log(run, say)))
    return logs


def notes_on_logs(logs: list[Log]) -> list[str]:
    """Sentences on logs that are not kept."""
    missing = {SignLog: ("signs of pairs are", "replayed"), ChainLog: ("digests are", "verified")}
    notes = []
    for log in logs:
        if isinstance(log, SignLog | ChainLog) and log.lacks:
            what, use = missing[type(log)]
            notes.append(
                f"No more {what} recorded, as {log.lacks}: updates from here on cannot be {use}."
            )
    return notes


def _keeps_statistics(run: TrainingRun) -> bool:
    """True for those of an earlier part of a run as well, which are cut back at least."""
    return bool(run.config.statistics_every) or run.path(STATISTICS).exists()


def _statistics_log(run: TrainingRun, say: Callable[[str], None]) -> StatisticsLog:
    config = run.config
    streams = run.corpus.streams("train", config.streams, config.seq_len, config.seed)
    return StatisticsLog(
        run.path(STATISTICS), config, run.learner, streams, lambda: run.observed, say
    )


def _sign_log(run: TrainingRun) -> SignLog:
    return SignLog(
        run.path(REPLAY), replay_header(run.config), run.step, run.config.steps,
        lambda: run.learner.fitness, MAY_CHANGE | {"data"},  # whose contents were compared
    )  # fmt: skip


def _chain_log(run: TrainingRun) -> ChainLog:
    def made() -> Link:
        assert run.made
        return run.made

    drop_anchors(run.path(CHAIN).parent, run.step)
    return ChainLog(run.path(CHAIN), chain_header(run.config, run.corpus), run.step, made)


# Options that say where a run's data lie or which others it took: the chain is the same without.
PLACES: Final = {"data", "tokenizer", "recipe"}


def chain_header(config: Config, corpus: Corpus) -> dict[str, Any]:
    """The header of the chain of a run of eggroll.train with these options and data."""
    options = config.to_dict()
    return {
        "kind": checkpoint.FORMAT,
        "config": options,
        "bound": {k: v for k, v in options.items() if k not in MAY_CHANGE | PLACES},
        "corpus": fingerprint(corpus),
        "network": config.program().digest(),
    }


def replay_header(config: Config) -> dict[str, Any]:
    """The header of the replay log of a run of eggroll.train with these options."""
    return {
        "kind": checkpoint.FORMAT,
        "pairs": config.pop // 2,
        "config": config.to_dict(),
        "network": config.program().digest(),
    }


# The last lines of a run.

# Recipes that learn text better, and their ways: docs/figures.md has what they reach.
BETTER_RECIPES: Final = (
    ("evolution", "evolution by token credit"),
    ("text", "errors carried back in integers, no evolution"),
)
# Their words for a text too short for a byte-pair encoding of so many tokens.
ON_BYTES: Final = {"evolution": "language", "text": "feedback --width 128 --layers 2"}
ENOUGH_TEXT: Final = 1 << 20  # bytes from which it can be had
LEVEL: Final = 0.995  # of a bigram model's bits, above which a loss is no better


def last_words(
    folder: Path | None,
    config: Common,
    loss: float,
    corpus: Corpus,
    command: str,
    beside: Beside | None = None,
) -> str:
    """The report of a finished run.

    folder: None of a run that wrote nothing; loss: exact cross-entropy on validation, bits per
    token; command: the one that made the run; beside: the validation with an expert.
    """
    compared = [*compare_with_baselines(config, loss, corpus)]
    if beside:
        bits = beside.bits
        byte = f", {in_bits(bits / bytes_per_token(corpus, config))} per byte" * config.pairs
        shares = ", ".join(f"{weight / WHOLE:.2f}" for weight in beside.weights)
        compared.append(f"with its counted expert: {in_bits(bits)} bits{byte}")
        compared.append(f"  (the network's share by the depth of the counted context: {shares})")
    if folder is None:
        return "\n".join(compared)
    files = (*FILES, codings.TOKENIZER_FILE)
    written = ", ".join(name for name in files if (folder / name).exists())
    lines = [
        *compared,
        f"written to {folder}: {written}",
        "next:",
    ]
    for line, does in suggestions(folder, config, loss, corpus, command):
        lines += [f"  {line}", f"      {does}"]
    return "\n".join(lines)


def compare_with_baselines(config: Common, loss: float, corpus: Corpus) -> Iterator[str]:
    """The loss above those of models that only count, and what follows from that."""
    count, known = config.data == "count", rulers(corpus)
    counted = "" if count else " counted on the training split"
    cost = {counts.name: f" ({counts.cost})" for counts in corpus.frozen_counts()}
    token = "token" if config.numbers else "token of text" if config.pairs else "byte of text"
    of = "token; 0 is perfect counting" if count else f"{token} that training never reads"
    size = bytes_per_token(corpus, config) if config.pairs else 0.0

    def per_byte(bits: float) -> str:
        return f", {in_bits(bits / size)} per byte" if size else ""

    yield f"validation: {in_bits(loss)} bits per {of}{per_byte(loss)}"
    yield f"{log2(corpus.vocabulary):17.3f} a uniform guess"
    for name, bits in known.items():
        yield f"{bits:17.3f} a {name} model{counted}{per_byte(bits)}{cost.get(name, '')}"
    if count or not (line := bigram_of(corpus)):
        return
    name, bits = line
    if loss > bits:
        yield f"Above the {name} model, samples are hardly readable: it needs more training."
        return
    last = "token" if config.numbers or config.pairs else "byte"
    if loss > bits * LEVEL:
        yield f"On a level with the {name} model, which knows the last {last} alone."
        return
    yield f"Below the {name} model: the network makes use of more than the last {last}."
    name, bits = list(known.items())[-1]
    if cost and loss > bits:
        yield f"Above the {name} model: counting still knows this text better."


def bigram_of(corpus: Corpus) -> tuple[str, float] | None:
    """The name and bits of the model that knows one token of context, however it is smoothed."""
    models = corpus.baselines() | {m.name: m.bits for m in corpus.frozen_counts() if m.order == 2}
    return next(((n, b) for n, b in models.items() if n != "unigram"), None)


def suggestions(
    folder: Path, config: Common, loss: float, corpus: Corpus, command: str
) -> Iterator[tuple[str, str]]:
    """Command lines that make sense after this run, and what each does."""
    place = f"./{folder}" if str(folder).startswith("-") else str(folder)
    run, data = shlex.quote(place), config.data
    for words, way in better_recipes(config, loss, corpus):
        words += "" if data == "stdlib" else f" --data {shlex.quote(data)}"
        yield f"{invocation('train')} --recipe {words}", f"{way}: far better in the same time"
    again = f"--resume {run} --steps {2 * config.steps}"
    if data != TOKENS:  # else the arrays are the caller's
        yield f"{invocation(command)} {again}", "trains as long again"
    prompts = {"count": "'3 4 5'", TOKENS: "'1 2 3'", "stdlib": "'def '"}
    drawn = f"--prompt {prompts.get(data, repr('The '))}"
    drawn += "" if data == "count" else f" --temperature {TEXT_TEMPERATURE}"
    yield f"{invocation('generate')} {run} {drawn}", "continues a prompt"
    yield f"{invocation('report')} {run}", "writes a page about it, to open in a browser"
    yield f"{invocation('plot')} {run} OTHER_RUN", "draws it beside another run"


def better_recipes(config: Common, loss: float, corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The words after --recipe that learn this text better, and their ways.

    All of them after plain evolution that ended above the bigram model; after a run on bytes that
    are enough for byte pairs, its own way and what is better still.
    """
    if not isinstance(config, Config) or config.numbers:
        return
    estimator, line = config.estimator_class, bigram_of(corpus)
    plain = estimator.perturbs and not estimator.by_token
    above = line is not None and loss > line[1]
    enough = config.pairs or corpus.streams("train", 1, 1, 0).length >= ENOUGH_TEXT
    if not (plain and above) and (config.pairs or not enough):
        return
    own = f" --vocabulary {config.vocabulary}" * (config.pairs and not config.tokenizer)
    own += f" --tokenizer {shlex.quote(config.tokenizer)}" * bool(config.tokenizer)
    for recipe, way in BETTER_RECIPES if estimator.perturbs else BETTER_RECIPES[1:]:
        same = own == f" --vocabulary {RECIPES[recipe]['vocabulary']}"
        words = recipe + own * (not same) if enough else ON_BYTES[recipe]
        yield words, f"{way}{', on byte pairs' * enough}"


# The command.

EXAMPLES = (
    ("--recipe evolution", "learn Python's source by token credit"),
    (
        "--recipe text --data book.txt",
        "learn a text of your own by errors carried back in integers",
    ),
)


def resumed_options(folder: str) -> Config:
    """The options of the run in a folder."""
    return checkpoint.load_options(Path(folder) / CHECKPOINT)


def options_from(argv: Sequence[str], resumed: Config | None = None) -> Config:
    """The options of the command line; see config.from_command_line.

    resumed: those of the run that goes on, where its folder may lie on another machine.
    """
    about = (
        "Trains an int8 recurrent language model in integers alone: by evolution strategies, "
        "without gradients, or by errors carried back (--recipe text)."
    )
    return from_command_line(
        Config, argv, command="train", about=about, examples=EXAMPLES,
        resumed=(lambda folder: resumed) if resumed else resumed_options,
    )  # fmt: skip


def tell_result(result: RunResult) -> None:
    """Ends a command that trained: its last line is the signature.

    Raises:
        KeyboardInterrupt: the run was interrupted; says how it goes on.
    """
    if result.resume_hint:
        raise KeyboardInterrupt(result.resume_hint)
    print(f"signature: {result.signature}")


def train_and_tell(config: Config) -> None:
    """Command line of eggroll.train."""
    tell_result(train(config))


class TrainCommand(cli.Command[Config]):
    """eggroll.train, in one process or as one of the ranks that mlx.launch started."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        words = list(sys.argv[1:] if argv is None else argv)
        if launched():
            return cli.run(lambda: self._as_rank(words))
        return super().__call__(words)

    def _as_rank(self, words: Sequence[str]) -> int:
        if cli.asks_for_help(words) and os.environ[launched()] != "0":
            return cli.DONE
        rank = join(SeveralRanks.rank_timeout)
        if rank is None:
            return super().__call__(words)
        return rank.run(lambda: train_as_rank(rank, words))


def train_as_rank(rank: WatchedRanks, words: Sequence[str]) -> RunResult:
    """Trains on this rank; the words of the command line are those of all ranks."""
    folder = cli.word_of(words, "--resume")
    rank.alike(lambda: {"--resume": "given" if folder else "left out"})
    stored = rank.from_first(lambda: resumed_options(folder).to_dict() if folder else None)
    resumed = from_dict(stored, "the checkpoint") if stored else None
    config = rank.together(lambda: options_from(words, resumed))
    rank.watch.limit = config.rank_timeout
    first = rank.rank == 0
    with ExitStack() as stack:
        run = open_run(config, stack, show=first, ranks=rank)
        rank.watch.resume = f"; {rank.from_first(run.resume_hint)}"
        result = complete(run, stack, show=first)
    if first and not result.resume_hint:
        print(f"signature: {result.signature}")
    return result


main = TrainCommand(Config, train_and_tell, options_from)


if __name__ == "__main__":
    sys.exit(main())
