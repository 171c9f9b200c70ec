"""Every option of a run, declared once: default, range, unit and help.

The declaration becomes the command line, config.json, the metadata of a checkpoint and, where a
Sweep says so, an axis of a sweep.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

from eggroll.cli import Range, check_ranges, flag
from eggroll.credit import Estimator
from eggroll.data.hub import HUB
from eggroll.errors import InputError
from eggroll.networks import Gates, egg
from eggroll.noise import slice_length
from eggroll.program import Program
from eggroll.rules import Rule
from eggroll.sweep.space import Sweep

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

GIB = 1 << 30
BYTES = 256  # vocabulary of every corpus of text
Recipe = Literal["paper", "language"]
FREE = "free"  # marks the options that a resumed run may change: no past update depends on them


def place(metavar: str) -> Any:
    """How an option that may stay empty shows in the help."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


CREDITED = ("estimator", "token-votes", "token-credit")  # where token credit is given
# Recommended combinations, chosen by --recipe; the first is the paper's, which is the default.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "language": {
        "estimator": "token-credit",
        "rule": "whitened",
        "sigma_shift": 2,
        "pop": 4096,
        "seq_len": 32,
        "steps": 2000,
    },
}


class Common(Protocol):
    """The options that every kind of training run has."""

    @property
    def data(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def val_tokens(self) -> int: ...
    @property
    def out(self) -> str: ...
    @property
    def resume(self) -> str: ...


@dataclass(frozen=True)
class Config:
    """Options of a training run; `check` tells whether they make sense together."""

    pop: Annotated[int, Range(2, 1 << 24, 2), Sweep(choices=(640, 2560, 10240, 40960))] = 10240
    """Members of the population (even: two make a pair)."""
    data: Annotated[str, tyro.conf.arg(metavar="NAME|FILE|DIR")] = "stdlib"
    """stdlib, count, tinystories, minipile, or the path of a text file or a folder of them."""
    steps: Annotated[int, Range(1, 10**9), FREE] = 1500
    """Updates; with --resume the new total."""
    seq_len: Annotated[int, Range(1, 1 << 16), Sweep(4, 64, log=True)] = 16
    """Tokens every member reads per update."""
    layers: Annotated[int, Range(0, 256), Sweep(1, 4)] = 1
    """Blocks of GRU and MLP."""
    width: Annotated[int, Range(1, 8191), Sweep(choices=(32, 64, 128, 256))] = 64
    """Activations of a layer, int8 each."""
    gates: Annotated[Gates, Sweep()] = "clip"
    """What squashes the GRU's gates: the clip itself, or tables of sigmoid and tanh."""
    rank: Annotated[int, Range(1, 64), Sweep(1, 4)] = 1
    """Rank of a matrix's perturbation."""
    sigma_shift: Annotated[int, Range(0, 24), Sweep(1, 8)] = 4
    """Perturbations are shifted right by 4 + this many bits: one more halves the noise."""
    alpha: Annotated[
        float, Range(0, 64, above=True), Sweep(0.5, 12, log=True, when=("rule", "sign"))
    ] = 4.0
    """Rule sign: share of weights that pure noise moves; above 1 it falls from 1 to 2^-alpha."""
    alpha_decay: Annotated[
        int, Range(1, 10**9), Sweep(30, 10_000, log=True, when=("rule", "sign"))
    ] = 1000
    """Updates t after which an alpha above 1 is 2^-alpha: 1 / ((2^alpha - 1) t / this + 1)."""
    estimator: Annotated[Estimator, Sweep()] = "eggroll"
    """What a pair is credited for: whole sequences (the paper's), or token by token."""
    discount: Annotated[int, Range(0, 15), Sweep(0, 15, when=CREDITED)] = 12
    """Token credit: what a score is worth to the token before it, in sixteenths."""
    group_size: Annotated[int, Range(2, 1 << 24, 2), Sweep(choices=(2, 4, 8, 16))] = 2
    """Members that read the same stream (even, divides pop)."""
    rule: Annotated[Rule, Sweep()] = "sign"
    """How votes move weights: one bit past a z-test (the paper's), or through a finer copy of the
    weights, all votes on one scale (master), or turned until no direction of a layer's inputs is
    louder than others and each row on its own scale (whitened)."""
    learning_rate: Annotated[
        float, Range(0.001, 64), Sweep(0.1, 8, log=True, when=("rule", "master", "whitened"))
    ] = 1.5
    """Bits that a vote of usual size moves a weight by at the start; with rule whitened of a run of
    200 updates, and less by the root in a longer one."""
    rate_decay: Annotated[
        float, Range(0, 10**6), Sweep(1, 100, log=True, when=("rule", "master"))
    ] = 19.0
    """Rule master: the learning rate falls as 1 / (1 + this * share of the steps done)."""
    clt: Annotated[bool, Sweep()] = True
    """Votes are sums of the noise itself; without, of its signs."""
    noise_reuse: Annotated[int, Range(0, 10**9), Sweep(choices=(1, 2, 4, 8))] = 1
    """Updates that share one noise; 0 freezes it for the whole run."""
    table_bits: Annotated[int, Range(16, 28)] = 24
    """log2 of the bytes of the noise table."""
    vocabulary: Annotated[int, Range(2, 1 << 16)] = 16
    """Data count: symbols, the mark included."""
    count_steps: tuple[int, ...] = (1,)
    """Data count: the steps it counts in; every stream keeps to one."""
    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0
    """Of everything random: first weights, noise, count streams, samples."""

    engine: Annotated[str, tyro.conf.arg(metavar="auto|portable|cpu|metal|cuda"), FREE] = "auto"
    """What computes; all give the same bits, auto takes the fastest that works here."""
    chunk: Annotated[int, Range(0, 1 << 24, 2), FREE] = 0
    """Members evaluated at a time (even); 0 lets a memory budget decide."""
    threads: Annotated[int, Range(0, 1024), FREE] = 0
    """Threads of the cpu engine; 0 is all cores."""

    slab: Annotated[int, Range(0, 1 << 16), FREE] = 0
    """Tokens a block of the cpu engine runs through a layer at a time; 0 fits them to the cache."""

    validate_every: Annotated[int, Range(0, 10**9), FREE] = 25
    """Updates between validations; 0 only at the end."""
    val_tokens: Annotated[int, Range(1, 1 << 40), FREE] = 1 << 17
    """Tokens of the validation split that a validation reads at most."""
    checkpoint_every: Annotated[int, Range(0, 10**9), FREE] = 50
    """Updates between checkpoints; 0 only at the start and the end."""
    sample_bytes: Annotated[int, Range(0, 1 << 20), FREE] = 512
    """Tokens of each sample written at the end; 0 for none."""

    recipe: Recipe = "paper"
    """Recommended settings in one word: the paper's, or those for language (token credit)."""
    out: Annotated[str, place("DIR")] = ""
    """Folder for the run; a free runs/<data>-<number> if none is given."""
    resume: Annotated[str, place("DIR")] = ""
    """Folder of a run to go on with, under its own options."""
    config: Annotated[str, place("FILE.json")] = ""
    """File with options, such as a run's config.json; those given here win over it."""

    @property
    def streams(self) -> int:
        return self.pop // self.group_size

    def program(self) -> Program:
        """The network that these options declare."""
        symbols = self.vocabulary if self.data == "count" else BYTES
        return egg(symbols, self.width, self.layers, self.gates)

    def check(self) -> None:
        """Looks at every option, before any work is done.

        Raises:
            InputError: an option is out of its range, or two do not go together.
        """
        check_ranges(self)
        self._check_together()

    def _check_together(self) -> None:
        if self.pop % self.group_size:
            better = next(g for g in range(min(self.group_size, self.pop), 1, -1)
                          if g % 2 == 0 and self.pop % g == 0)  # fmt: skip
            raise InputError(
                f"--group-size is {self.group_size}: an even number that divides --pop "
                f"{self.pop} is needed; try --group-size {better}."
            )
        if not self.count_steps:
            raise InputError("--count-steps is empty: at least one is needed; try --count-steps 1.")
        if self.estimator != "eggroll" and (self.rank != 1 or not self.clt):
            raise InputError(
                f"--estimator {self.estimator} has noise of rank 1 and no signs of it: leave "
                f"{'--rank' if self.rank != 1 else '--no-clt'} out, or use --estimator eggroll."
            )
        if self.rule == "master" and self.estimator != "eggroll":
            raise InputError(
                f"--rule master knows the scale of --estimator eggroll's votes alone: use --rule "
                f"whitened or sign with --estimator {self.estimator}."
            )
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
        needed = self.memory(program)
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > present:
            raise InputError(
                f"--width {self.width}, --layers {self.layers}, --seq-len {self.seq_len} and --pop "
                f"{self.pop} with {self.cores()} threads need some "
                f"{needed / GIB:.1f} GiB and this machine has {present / GIB:.1f}: make one of "
                "them smaller."
            )

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
        credited = self.estimator != "eggroll"
        # Votes and what the rule makes of them.
        per_parameter = 12 if self.rule == "sign" and not credited else 24
        per_member = 2 * program.state_size + 12 * self.seq_len
        tokens = min(self.seq_len, self.slab or 256)
        lanes = 32 * (-(-self.width // 8) * 8) * tokens  # a thread's block of 32 members
        if credited:  # what 16 pairs' matrices were given, and a thread's sums of the readout
            lanes += 16 * self.seq_len * sum(math.prod(leaf.shape[1:]) for leaf in program.leaves)
            lanes += 4 * program.vocabulary * self.width
        threads = min(self.cores(), -(-self.pop // 32))
        table = 2 << self.table_bits
        return parameters * per_parameter + self.pop * per_member + threads * lanes + table

    def cores(self) -> int:
        """Threads of the cpu engine."""
        if self.threads:
            return self.threads
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1

    def to_dict(self) -> dict[str, Any]:
        """The options that make a run what it is, ready for JSON."""
        return to_dict(self)

    def at_home(self) -> Config:
        """Itself, with a path in `data` made absolute, so that a run can resume anywhere."""
        return replace(self, data=absolute(self.data))


INVOCATION = ("out", "resume", "config", "recipe")  # where a run lies is no part of what it is


def absolute(data: str) -> str:
    """The option `data`, made absolute where it is a path."""
    path = os.path.expanduser(data)
    known = data in ("stdlib", "count", *HUB)
    return data if known or not os.path.exists(path) else os.path.abspath(path)


def to_dict(options: DataclassInstance) -> dict[str, Any]:
    """The options that make a run what it is, ready for JSON."""
    kept = {name: value for name, value in asdict(options).items() if name not in INVOCATION}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in kept.items()}


def types(kind: type) -> dict[str, Any]:
    """An option's name -> its declared type and notes."""
    return get_type_hints(kind, include_extras=True)


TYPES = types(Config)
Kind = TypeVar("Kind", bound="DataclassInstance")


def check_resumed(old: Kind, new: Kind) -> None:
    """Looks whether a run with the options `old` can go on with `new`.

    Raises:
        InputError: an option differs that the weights depend on.
    """
    where = getattr(new, "resume", "")
    for name, hint in types(type(old)).items():
        before, now = getattr(old, name), getattr(new, name)
        if name not in INVOCATION and FREE not in get_args(hint)[1:] and before != now:
            raise InputError(
                f"{flag(name)} is {now}, but the run in {where!r} has {before}: leave "
                f"{flag(name)} out to go on with it, or start a new run without --resume."
            )


def from_dict(values: Mapping[str, Any], source: str) -> Config:
    """A Config from JSON values; see `options_of`."""
    return options_of(Config, values, source)


def options_of(kind_of_run: type[Kind], values: Mapping[str, Any], source: str) -> Kind:
    """Options from JSON values; what is missing takes its default, `about` is no option.

    Raises:
        InputError: an unknown option or a value of another type.
    """
    hints = types(kind_of_run)
    known = [name for name in hints if name not in ("resume", "config", "recipe")]
    options: dict[str, Any] = {}
    for name, value in values.items():
        if name == "about":
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
            raise InputError(f"{source} has the unknown option {name!r}: {hint}")
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
    else:
        right = type(value) is kind
        needed = {int: "a whole number", bool: "true or false", str: "a text"}[kind]
    if not right:
        raise InputError(f"{what} is {json.dumps(value)[:60]}, but {needed} is needed.")
    return value


def read(path: str) -> Config:
    """The options in a JSON file; see `options_in`."""
    return options_in(Config, path)


def options_in(kind_of_run: type[Kind], path: str) -> Kind:
    """The options in a JSON file.

    Raises:
        InputError: the file is missing, unreadable, no JSON object, or holds what is no option.
    """
    try:
        values = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(
            f"--config {path!r} cannot be read ({error.strerror}): give the path of a JSON file."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--config {path!r} is not valid JSON ({error}): correct it, or take the config.json "
            "of a run."
        ) from error
    if not isinstance(values, dict):
        raise InputError(
            f"--config {path!r} holds {json.dumps(values)[:60]}, but an object like "
            '{"width": 64} is needed.'
        )
    return options_of(kind_of_run, values, f"--config {path!r}")
