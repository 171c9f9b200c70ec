"""Every option of a run, declared once: default, range, unit and help.

The declaration becomes the command line, config.json, the metadata of a checkpoint and, where a
Sweep says so, an axis of a sweep.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args, get_origin

import tyro

from eggroll.cli import command as cli
from eggroll.cli.command import Range, check_names, check_ranges, flag
from eggroll.cli.help import CHANGEABLE, Group, hints_of
from eggroll.data import codings
from eggroll.data.codings import BYTES
from eggroll.data.expert import ExpertName
from eggroll.data.hub import NUMBERED, absolute
from eggroll.data.text import VAL_SHARE
from eggroll.errors import InputError, in_python, object_in, shown
from eggroll.evolution.estimators import ESTIMATORS, Estimator, EstimatorName, estimators_with
from eggroll.evolution.rules import RULES, RuleName, UpdateRule, rules_with
from eggroll.files import CONFIG, open_regular, path_of
from eggroll.networks import NETWORKS, Gates, NetworkName
from eggroll.spec.backward import values_kept
from eggroll.spec.noise import slice_length
from eggroll.spec.program import Program, program_in
from eggroll.training import trackers
from eggroll.training.clock import BY_TIME

Choice = int | float | str | bool
GuardName = Literal["auto", "stop", "cpu"]


class Sweep(NamedTuple):
    """Marks an option that a sweep may change: numbers from `low` to `high`, or `choices`.

    Without either, all values of a Literal or bool. log: tried evenly by ratio. when: an option
    and its values; with any other value this option has no effect and is not tried.
    """

    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple[Choice, ...] = ()
    when: tuple[Choice, ...] = ()


GIB = 1 << 30
INVOCATION = ("out", "resume", "config")  # where a run lies is no part of what it is
ENGINE_NAMES = "auto|portable|cpu|metal|cuda"  # written out, so that no engine is imported here


def hidden_default(metavar: str) -> Any:
    """For an option that may stay empty: the help shows no default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def one_of(about: str, entries: Mapping[str, Any]) -> Any:
    """The help of an option that names an entry of a registry: what each of them is."""
    summaries = "; ".join(f"{name}: {entry.summary}" for name, entry in entries.items())
    return tyro.conf.arg(help=f"{about}: {summaries}.")


@dataclass(frozen=True)
class Common:
    """The options that every kind of training run has."""

    data: Annotated[str, Group.DATA, tyro.conf.arg(metavar="NAME|FILE|DIR")] = "stdlib"
    """The corpus: stdlib (source text of Python's standard library), count (numbers that count up),
    tinystories or minipile (streamed once from the Hugging Face hub), hf:NAME[:CONFIG][:COLUMN]
    (any of its data sets), or the path of a text file, of a folder of them, or of a table (parquet,
    jsonl, csv, arrow)."""
    steps: Annotated[int, Group.RUN, Range(1, 10**9), CHANGEABLE] = 1500
    """Updates to make; with --resume the total, earlier ones included."""
    seq_len: Annotated[int, Group.DATA, Range(1, 1 << 16), Sweep(4, 64, log=True)] = 16
    """Tokens read from every stream in one update."""
    network: Annotated[NetworkName, Group.NETWORK] = "egg"
    """The network, by name; egg is the paper's recurrent language model."""
    layers: Annotated[int, Group.NETWORK, Range(0, 256), Sweep(1, 4)] = 1
    """Layers, each a GRU and an MLP."""
    width: Annotated[int, Group.NETWORK, Range(1, 8191), Sweep(choices=(32, 64, 128, 256))] = 64
    """Activations of a layer."""
    gates: Annotated[Gates, Group.NETWORK, Sweep()] = "clip"
    """Nonlinearity of the GRU's gates: clipping itself, or tables of sigmoid and tanh."""
    vocabulary: Annotated[int, Group.DATA, Range(2, 1 << 16)] = 16
    """Data count: number of symbols, the mark that begins a document included. Text: above 256,
    tokens of a byte-pair encoding, which is trained on the corpus; else bytes."""
    tokenizer: Annotated[str, Group.DATA, hidden_default("FILE.json")] = ""
    """Text: a byte-level tokenizer.json, whose tokens are read instead of bytes."""
    count_steps: Annotated[tuple[int, ...], Group.DATA] = (1,)
    """Data count: the steps it counts in; every document keeps to one."""
    val_share: Annotated[float, Group.DATA, Range(0, 0.5, above=True)] = VAL_SHARE
    """Share of the documents that is held out for validation (rounded up), where the data have no
    validation split of their own; of token ids in Python, the last part."""
    seed: Annotated[int, Group.RUN, Range(0, (1 << 63) - 1)] = 0
    """Seed of the initial weights, the noise, data count and the samples."""
    threads: Annotated[int, Group.ENGINE, Range(0, 1024), CHANGEABLE] = 0
    """Threads on a CPU; 0 takes all cores."""
    validate_every: Annotated[int, Group.OUTPUT, Range(BY_TIME, 10**9), CHANGEABLE] = BY_TIME
    """Updates from one validation to the next; 0 validates at the end only, -1 as time allows: at
    most 3 % of the run's, sparse at first."""
    val_tokens: Annotated[int, Group.OUTPUT, Range(1, 1 << 40), CHANGEABLE] = 1 << 17
    """Most tokens of the validation split that one validation reads."""
    checkpoint_every: Annotated[int, Group.OUTPUT, Range(BY_TIME, 10**9), CHANGEABLE] = BY_TIME
    """Updates from one checkpoint to the next; 0 saves at the start and the end only, -1 as time
    allows: at most 1 % of the run's, 5 seconds apart or more."""
    sample_tokens: Annotated[int, Group.OUTPUT, Range(0, 1 << 20), CHANGEABLE] = 512
    """Tokens of each sample that is written at the end; 0 writes none."""
    expert: Annotated[ExpertName, Group.OUTPUT, CHANGEABLE] = "none"
    """A model beside the network in validation and samples, which are shown with and without it.
    counts: text counted on the training split, mixed in integers; no weight depends on it."""
    track: Annotated[
        str, Group.OUTPUT, tyro.conf.arg(metavar="none|tensorboard|wandb|trackio"), CHANGEABLE
    ] = trackers.NONE
    """Also logs metrics, options and samples there; several with commas."""
    out: Annotated[str, Group.RUN, hidden_default("DIR")] = ""
    """New folder for the run; if not given, a numbered one in runs."""
    resume: Annotated[str, Group.RUN, hidden_default("DIR")] = ""
    """Folder of an earlier run to continue, under that run's options."""
    config: Annotated[str, Group.RUN, hidden_default("FILE.json")] = ""
    """JSON file with options, such as the config.json of a run; the command line wins over it."""

    def program(self) -> Program:
        """The network that these options declare."""
        return NETWORKS[self.network](self.symbols, self.width, self.layers, self.gates)

    @property
    def symbols(self) -> int:
        """V, the tokens that there are."""
        return self.vocabulary if self.numbers or self.pairs else BYTES

    @property
    def numbers(self) -> bool:
        """True if tokens are numbers, not bytes of text."""
        return self.data in NUMBERED

    @property
    def pairs(self) -> bool:
        """True if tokens are those of a byte-pair encoding of text."""
        return not self.numbers and self.vocabulary > BYTES

    @property
    def network_words(self) -> str:
        """The network in a few words."""
        return f"{self.network}, {self.layers} x {self.width}"

    def check(self) -> None:
        """Looks at every option, before any work is done.

        Raises:
            InputError: an option is out of its range, or two do not go together.
        """
        check_ranges(self)
        check_names(self)
        trackers.names_in(self.track)
        if not self.count_steps:
            raise InputError("--count-steps is empty: at least one is needed; try --count-steps 1.")
        if (
            not self.numbers
            and self.vocabulary not in (codings.DEFAULT_VOCABULARY, BYTES)
            and not self.pairs
        ):
            raise InputError(
                f"--vocabulary is {self.vocabulary}: tokens of text are bytes, or those of a "
                f"byte-pair encoding, above {BYTES}; try --vocabulary 1024, or leave it out."
            )
        if self.tokenizer and self.numbers:
            raise InputError(f"--tokenizer is for text, and --data {self.data} has numbers.")
        if self.expert != "none" and self.numbers:
            raise InputError(
                f"--expert is {self.expert}, which counts text, and --data {self.data} has "
                "numbers: leave --expert out."
            )
        if self.data == "count" and self.val_share != VAL_SHARE:
            raise InputError(
                f"--val-share is {self.val_share}, but --data count holds nothing out, as its "
                "validation streams never end: leave --val-share out."
            )

    def check_memory(self, needed: int, names: Sequence[str], more: str = "") -> None:
        """Raises InputError if so many bytes, which these options ask for, are not there."""
        present, whose = cli.memory()
        if needed > present:
            *first, last = (f"{flag(name)} {getattr(self, name)}" for name in names)
            raise InputError(
                f"{', '.join(first)} and {last}{more} need some {needed / GIB:.1f} GiB and "
                f"{whose} {present / GIB:.1f}: make one of them smaller."
            )

    def to_dict(self) -> dict[str, Any]:
        """The options that make a run what it is, ready for JSON."""
        options = {name: value for name, value in asdict(self).items() if name not in INVOCATION}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in options.items()}

    def at_home(self) -> Self:
        """Itself, with paths made absolute, so that a run can resume anywhere."""
        home = replace(self, data=absolute(self.data))
        return home if self.resume or self.numbers else codings.with_tokenizer(home)


@dataclass(frozen=True)
class Evolution:
    """The options of every population: its noise, its votes and its engine."""

    pop: Annotated[
        int, Group.EVOLUTION, Range(2, 1 << 24, 2), Sweep(choices=(640, 2560, 10240, 40960))
    ] = 10240
    """Members of the population (even, as two with opposite noise make a pair)."""
    estimator: Annotated[
        EstimatorName, Group.EVOLUTION, Sweep(), one_of("How scores become votes", ESTIMATORS)
    ] = "eggroll"
    discount: Annotated[
        int,
        Group.EVOLUTION,
        Range(0, 15),
        Sweep(0, 15, when=("estimator", *estimators_with("discount"))),
    ] = 12
    """Token credit: a token is credited with its own score and this many sixteenths of the next
    token's credit."""
    rank: Annotated[int, Group.EVOLUTION, Range(1, 64), Sweep(1, 4)] = 1
    """Rank of the noise on a matrix."""
    sigma_shift: Annotated[int, Group.EVOLUTION, Range(0, 24), Sweep(1, 8)] = 4
    """Noise scale 2^-(4 + N): a larger N means less noise, one more half of it."""
    clt: Annotated[bool, Group.EVOLUTION, Sweep()] = True
    """Votes are sums of noise values, near normal by the central limit theorem (hence CLT);
    without, of their signs."""
    noise_reuse: Annotated[int, Group.EVOLUTION, Range(0, 10**9), Sweep(choices=(1, 2, 4, 8))] = 1
    """Updates in a row that share one noise; 0 keeps one for the whole run."""
    table_bits: Annotated[int, Group.EVOLUTION, Range(16, 28)] = 24
    """The table that all noise is cut from has 2^this bytes."""
    rule: Annotated[RuleName, Group.EVOLUTION, Sweep(), one_of("How votes move weights", RULES)] = (
        "sign"
    )
    alpha: Annotated[
        float,
        Group.EVOLUTION,
        Range(0, 64, above=True),
        Sweep(0.5, 12, log=True, when=("rule", *rules_with("alpha"))),
    ] = 4.0
    """Rule sign: share of the weights that votes of pure noise would move; above 1 it is a schedule
    that falls from 1 to 2^-alpha."""
    alpha_decay: Annotated[
        int,
        Group.EVOLUTION,
        Range(1, 10**9),
        Sweep(30, 10_000, log=True, when=("rule", *rules_with("alpha_decay"))),
    ] = 1000
    """Rule sign: update t at which 1 / (1 + (2^alpha - 1) t / alpha_decay) reaches 2^-alpha."""
    learning_rate: Annotated[
        float,
        Group.EVOLUTION,
        Range(0.001, 64),
        Sweep(0.1, 8, log=True, when=("rule", *rules_with("learning_rate"))),
    ] = 1.5
    """Rules master and whitened: bits an average vote moves a weight at the start; rule whitened
    scales it by sqrt(200 / steps). Rule adam: bits a vote that is always the same moves it, less in
    runs of more than 500 updates, half from 8,000 on."""
    rate_decay: Annotated[
        float,
        Group.EVOLUTION,
        Range(0, 10**6),
        Sweep(1, 100, log=True, when=("rule", *rules_with("rate_decay"))),
    ] = 19.0
    """Rule master: the learning rate falls as 1 / (1 + this * share of the steps done)."""
    engine: Annotated[
        str, Group.ENGINE, tyro.conf.arg(metavar="auto|portable|cpu|metal|cuda"), CHANGEABLE
    ] = "auto"
    """The engine that computes; all give the same bits. auto takes the fastest that works here."""
    guard: Annotated[GuardName, Group.ENGINE, CHANGEABLE] = "auto"
    """What a GPU that fails, or whose integers are not the cpu engine's, ends in: stop ends the run
    after a checkpoint, cpu lets the cpu engine go on; auto is stop for an engine that --engine
    names, else cpu."""
    chunk: Annotated[int, Group.ENGINE, Range(0, 1 << 24, 2), CHANGEABLE] = 0
    """Members evaluated at a time (even); 0 fits them into a memory budget."""
    block_tokens: Annotated[int, Group.ENGINE, Range(0, 1 << 16), CHANGEABLE] = 0
    """Engine cpu: tokens that a block of members runs through a layer at a time; 0 fits them into
    the cache."""

    @property
    def estimator_class(self) -> type[Estimator]:
        return ESTIMATORS[self.estimator]

    @property
    def rule_class(self) -> type[UpdateRule]:
        return RULES[self.rule]


@dataclass(frozen=True)
class SeveralRanks:
    """The options by which ranks look after each other; a process alone reads none of them."""

    rank_timeout: Annotated[float, Group.RANKS, Range(1, 10**6), CHANGEABLE] = 8.0
    """Seconds without a sign of life after which a rank hangs, which ends all of them."""
    rank_check: Annotated[int, Group.RANKS, Range(0, 10**9), CHANGEABLE] = 50
    """Updates from one comparison of all ranks' weights to the next; 0 compares them before
    checkpoints only."""


RecipeName = Literal["paper", "text", "evolution", "language", "feedback"]
# Recommended combinations, chosen by --recipe; the first is the paper's, which is the default.
LANGUAGE: dict[str, Any] = {
    "estimator": "token-credit",
    "score_bits": 8,
    "rule": "whitened",
    "sigma_shift": 2,
    "pop": 4096,
    "seq_len": 32,
    "steps": 2000,
}
FEEDBACK: dict[str, Any] = {
    "estimator": "feedback",
    "rule": "adam",
    "pop": 128,
    "seq_len": 16,
    "steps": 6000,
}
# text and evolution: a minute of two cores, byte pairs; docs/figures.md has what was compared.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "text": FEEDBACK
    | {"vocabulary": 4096, "width": 128, "seq_len": 32, "expert": "counts", "steps": 1200},
    "evolution": LANGUAGE | {"vocabulary": 4096, "steps": 330},
    "language": LANGUAGE,
    "feedback": FEEDBACK,
}
# Recipes that read byte pairs, and those that are the same on any tokens.
OF_TEXT = {"text": "feedback", "evolution": "language"}


class OverRecipe(type):
    """Makes a class whose options not given are those of a run to resume, a file or a recipe."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        recipe, resume = options.get("recipe"), options.get("resume")
        left_out = not args and len(options) < len(fields(Config))  # dataclasses.replace gives all
        if cls is Config and resume and left_out:
            for kind in (Config, DeclaredConfig):
                with suppress(InputError, TypeError):  # training says what is wrong there
                    return replace(options_in(kind, f"{resume}/{CONFIG}"), **options)
        if cls is Config and left_out and (config := options.get("config", "")) != "":
            with in_python():
                return replace(
                    options_in(Config, str(path_of(config))), **{**options, "config": ""}
                )
        brings = RECIPES.get(recipe, {}) if isinstance(recipe, str) else {}
        return super().__call__(*args, **brings | options)


@dataclass(frozen=True)
class Config(Evolution, SeveralRanks, Common, metaclass=OverRecipe):
    """Options of a training run; `check` tells whether they make sense together.

    Config(recipe="language", width=128) has the recipe's settings but for the width, and
    Config(resume="runs/a", steps=80) those of the run in that folder but for the steps, as
    Config(config="a.json", steps=80) has those of the file.
    """

    recipe: Annotated[RecipeName, Group.RUN] = "paper"
    """Settings that go well together. paper: those of the paper; text: the lowest loss on text in a
    minute, by errors carried back in integers, on byte pairs, with counts beside the network;
    evolution: the lowest by evolution, credited token by token, on byte pairs; feedback and
    language: the same two ways on bytes, 64 wide, without counts."""
    group_size: Annotated[
        int, Group.EVOLUTION, Range(2, 1 << 24, 2), Sweep(choices=(2, 4, 8, 16))
    ] = 2
    """Members that read the same stream (even, divides --pop)."""
    score_bits: Annotated[int, Group.EVOLUTION, Range(4, 8, 4), Sweep(choices=(4, 8))] = 4
    """Members' scores count in 2^-this bits: 1/16 as the paper's, or 1/256, which still tells
    members apart where a model is nearly right."""

    statistics_every: Annotated[int, Group.OUTPUT, Range(0, 10**9), CHANGEABLE] = 50
    """Updates from one line of statistics.jsonl to the next; 0 records and warns of nothing."""

    @property
    def streams(self) -> int:
        return self.pop // (self.group_size if self.estimator_class.perturbs else 1)

    def program(self) -> Program:
        program = super().program()
        program.score_bits = self.score_bits
        return program

    def check(self) -> None:
        if self.numbers and self.recipe in OF_TEXT:
            raise InputError(
                f"--recipe is {self.recipe}, which is for text, and --data {self.data} has "
                f"numbers: try --recipe {OF_TEXT[self.recipe]}."
            )
        super().check()
        self._check_together()

    def _check_together(self) -> None:
        if self.pop % self.group_size:
            better = next(g for g in range(min(self.group_size, self.pop), 1, -1)
                          if g % 2 == 0 and self.pop % g == 0)  # fmt: skip
            raise InputError(
                f"--group-size is {self.group_size}: an even number that divides --pop "
                f"{self.pop} is needed; try --group-size {better}."
            )
        self.estimator_class.check(self)
        self.rule_class.check(self, self.estimator_class)
        program = self.program()
        longest = max(slice_length(leaf.shape, self.rank) for leaf in program.leaves)
        if longest > 1 << (self.table_bits - 1):
            raise InputError(
                f"--table-bits is {self.table_bits}: half of the noise table must hold the longest "
                f"slice, {longest} bytes at --width {self.width} and --rank {self.rank}; try "
                f"--table-bits {(longest - 1).bit_length() + 1}."
                if longest <= 1 << 27
                else f"--width {self.width} with --rank {self.rank} is too large for any noise "
                "table; try a smaller --width."
            )
        self._check_sizes(program)
        names = ("width", "layers", "seq_len", "pop")
        self.check_memory(self.memory(program), names, f" with {self.cores()} threads")

    def _check_sizes(self, program: Program) -> None:
        """No array may have 2^31 elements, as MLX counts them in 32 bits; packing pads weights."""
        parameters = sum(math.prod(leaf.shape) for leaf in program.leaves)
        sizes = (
            (parameters, 30, f"--width {self.width} and --layers {self.layers} make", "weights"),
            (self.pop * self.seq_len, 31, f"--pop {self.pop} times --seq-len {self.seq_len} makes",
             "scores"),
            (self.pop * program.state_size, 31, f"--pop {self.pop} members have", "state bytes"),
        )  # fmt: skip
        for count, bits, what, which in sizes:
            if count >= 1 << bits:
                raise InputError(
                    f"{what} {count:,} {which}: fewer than {1 << bits:,} are possible, so make one "
                    "of the options smaller."
                )

    def memory(self, program: Program) -> int:
        """A low estimate of the bytes a run takes at its height."""
        parameters = sum(math.prod(leaf.shape) for leaf in program.leaves)
        by_token = self.estimator_class.by_token
        per_parameter = 24 if by_token else self.rule_class.bytes_per_parameter
        per_member = 2 * program.state_size + 12 * self.seq_len
        tokens = min(self.seq_len, self.block_tokens or 256)
        lanes = 32 * (-(-self.width // 8) * 8) * tokens  # a thread's block of 32 members
        if not self.estimator_class.perturbs:  # a block's results and credit
            lanes += 32 * self.seq_len * (values_kept(program) + 5 * self.width)
            lanes += 4 * parameters  # a thread's votes
        if by_token:  # what 16 pairs' matrices were given, and a thread's sums of the readout
            lanes += 16 * self.seq_len * sum(math.prod(leaf.shape[1:]) for leaf in program.leaves)
            lanes += 4 * program.vocabulary * self.width
        threads = min(self.cores(), -(-self.pop // 32))
        table = 2 << self.table_bits
        return parameters * per_parameter + self.pop * per_member + threads * lanes + table

    def cores(self) -> int:
        """Threads of the cpu engine."""
        return self.threads or cli.usable_cores()

    def at_home(self) -> Self:
        """As of every run; a tokenizer's vocabulary takes the place of the recipe's."""
        own = self.tokenizer and self.vocabulary == RECIPES[self.recipe].get("vocabulary")
        options = replace(self, vocabulary=codings.DEFAULT_VOCABULARY) if own else self
        return super(Config, options).at_home()

    def changed(self) -> dict[str, Any]:
        """The settings of its recipe that are not as the recipe has them."""
        settings = RECIPES[self.recipe].items()
        return {
            name: getattr(self, name) for name, value in settings if getattr(self, name) != value
        }

    def unread(self) -> list[str]:
        """Options that only other rules and estimators read, and that are not as in its recipe."""
        own = {*self.rule_class.reads, *self.estimator_class.reads}
        read = [*(kind.reads for kind in RULES.values()), *(e.reads for e in ESTIMATORS.values())]
        others, plain = sorted({*sum(read, ())} - own), Config(recipe=self.recipe)
        return [name for name in others if getattr(self, name) != getattr(plain, name)]


@dataclass(frozen=True)
class DeclaredConfig(Config):
    """Options of a run whose network is a program of the caller's own, in place of a named one."""

    declaration: Annotated[str, tyro.conf.Suppress, CHANGEABLE] = field(default="", repr=False)
    """The program's declaration as JSON; a resumed run compares programs by their digests."""

    def program(self) -> Program:
        return program_in(self.declaration, self.score_bits)

    @property
    def network_words(self) -> str:
        stages = len(self.program().stages)
        return f"a declared program of {stages} stage{'s' * (stages > 1)}"

    def to_dict(self) -> dict[str, Any]:
        """Without the options that describe a named network."""
        unused = ("network", "layers", "gates")
        return {name: v for name, v in super().to_dict().items() if name not in unused}


def with_program(config: Config, program: Program) -> DeclaredConfig:
    """The options with this network in place of the named one."""
    options = {option.name: getattr(config, option.name) for option in fields(Config)}
    options |= {"width": program.width, "declaration": json.dumps(program.declaration())}
    return DeclaredConfig(**options)


# Options from JSON and from the command line.

TYPES = hints_of(Config)
LONGEST_FILE = 1 << 24  # bytes of options
Kind = TypeVar("Kind", bound=Common)
# Options of runs that began under older versions.
RENAMED = {"sample_bytes": "sample_tokens", "slab": "block_tokens"}
# (option, value) that runs of older versions may have -> what took its place.
GONE = {("rule", "rows"): "whitened"}
PLACES = ("data", "model", "reward")  # options that name files, which may move


def place(name: str, value: object) -> tuple[Path, str]:
    """The path that an option is, and the function that a reward names in it."""
    text = str(value or "")
    path, _, function = text.rpartition(":") if name == "reward" else (text, "", "")
    return Path(path), function


def check_resumed(old: Kind, new: Kind) -> None:
    """Looks whether a run with the options `old` can go on with `new`.

    Raises:
        InputError: an option differs that the weights depend on.
    """
    where = getattr(new, "resume", "")
    declared = DeclaredConfig in (type(old), type(new))
    if declared and old.program().digest() != new.program().digest():
        raise InputError(
            f"the network is another one than that of the run in {where!r}: give the program that "
            "it began with, or start a new run."
        )
    for name, hint in hints_of(type(old)).items():
        before, now = getattr(old, name), getattr(new, name, None)
        if name in PLACES:
            (was, function), (lies, same) = place(name, before), place(name, now)
            if not was.exists() and lies.exists() and function == same:
                continue  # it moved, or is another, which shows where it is read
        if name not in INVOCATION and CHANGEABLE not in get_args(hint)[1:] and before != now:
            raise InputError(
                f"{flag(name)} is {now}, but the run in {where!r} has {before}: leave "
                f"{flag(name)} out to go on with it, or start a new run without --resume."
            )


def from_dict(values: Mapping[str, Any], source: str) -> Config:
    """A Config from JSON values; see `options_of`."""
    return options_of(DeclaredConfig if "declaration" in values else Config, values, source)


def options_of(kind_of_run: type[Kind], values: Mapping[str, Any], source: str) -> Kind:
    """Options from JSON values; what is missing takes its default, `about` is no option.

    Raises:
        InputError: an unknown option or a value of another type.
    """
    hints = hints_of(kind_of_run)
    names = [name for name in hints if name not in ("resume", "config")]
    options: dict[str, Any] = {}
    for word, value in values.items():
        name = RENAMED.get(word, word)
        if name == "about":
            continue
        if name in ("resume", "config"):
            raise InputError(
                f"{source} has the option {name!r}, which stands in no file: leave it out."
            )
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, cli.NEAR)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}."
            raise InputError(f"{source} has the unknown option {name!r}: {hint}")
        if isinstance(value, str) and (instead := GONE.get((name, value))):
            raise InputError(
                f"{source} is of an older version and has the {name} {value}, which is no more: "
                f"train anew with {flag(name)} {instead}, which took its place."
            )
        kind = get_args(hints[name])[0] if get_origin(hints[name]) is Annotated else hints[name]
        options[name] = _typed(kind, value, f"{source}: option {name!r}")
    return kind_of_run(**options)


def _typed(kind: Any, value: Any, what: str) -> Any:
    """The value if it is of that type; int passes for float and a list for a tuple of int."""
    if get_origin(kind) is Literal:
        right, needed = value in get_args(kind), f"one of {', '.join(get_args(kind))}"
    elif get_origin(kind) is tuple:
        right = isinstance(value, list) and all(type(v) is int for v in value)
        needed, value = "a list of whole numbers", tuple(value) if right else value
    elif kind is float:
        right, needed = type(value) in (int, float), "a number"
        value = float(value) if right and abs(value) < 2**1023 else value
    elif kind is str:
        right, needed = isinstance(value, str) and _names_files(value), "a text"
    else:
        right, needed = type(value) is kind, {int: "a whole number", bool: "true or false"}[kind]
    if not right:
        try:
            text = json.dumps(value, default=repr)[:60]
        except (RecursionError, ValueError):
            text = shown(value)
        raise InputError(f"{what} is {text}, but {needed} is needed.")
    return value


def _names_files(text: str) -> bool:
    """True unless no file can have that name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False


def read(path: str) -> Config:
    """The options in a JSON file; see `options_in`."""
    return options_in(Config, path)


def options_in(kind_of_run: type[Kind], path: str) -> Kind:
    """The options in a JSON file.

    Raises:
        InputError: the file is missing, unreadable, no JSON object, or holds what is no option.
    """
    try:
        with open_regular(Path(path)) as file:
            data = file.read(LONGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"--config {path!r} cannot be read ({reason}): give the path of a JSON file."
        ) from error
    try:
        if len(data) > LONGEST_FILE:
            raise ValueError(f"has more than {LONGEST_FILE:,} bytes")
        values = object_in(data)
    except ValueError as error:
        raise InputError(
            f"--config {path!r} {error}: correct it, or take the config.json of a run."
        ) from error
    return options_of(kind_of_run, values, f"--config {path!r}")


def from_command_line(
    kind: type[Kind],
    argv: Sequence[str],
    *,
    command: str,
    about: str,
    examples: Sequence[tuple[str, str]] = (),
    resumed: Callable[[str], Kind] | None = None,
) -> Kind:
    """The command line over one of --config FILE, --recipe NAME and the run in --resume DIR.

    resumed: DIR -> the options of the run there.

    Raises:
        InputError: an option, the file or the checkpoint is no good.
    """
    recipe, file, folder = (cli.word_of(argv, f"--{n}") for n in ("recipe", "config", "resume"))
    recipe = recipe if recipe in RECIPES and issubclass(kind, Config) else ""
    named = [f"--{n} {v!r}" for n, v in (("config", file), ("resume", folder)) if v]
    if recipe and named:
        raise InputError(
            f"--recipe {recipe} and {named[0]} are both given, and each brings settings of its "
            "own: leave one of them out."
        )
    if len(named) > 1:
        raise InputError(
            f"{named[0]} and {named[1]} are both given: a resumed run keeps its own options, so "
            "leave one of them out."
        )
    base: Kind | None = None
    if recipe:
        base = kind(recipe=recipe)  # type: ignore[call-arg]
    elif file:
        base = options_in(kind, file)
    elif folder and resumed:
        base = resumed(folder)
    kind = kind if base is None else type(base)  # of a declared program, if the run has one
    return cli.parse(kind, argv, command=command, about=about, examples=examples, base=base)
