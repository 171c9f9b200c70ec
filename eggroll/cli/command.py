"""One way for every command: it reads its options, checks them, runs, and ends with an exit code.

0 done, 2 bad input or environment, 130 interrupted, 141 if the reader of its output went away.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, make_dataclass
from functools import partial
from itertools import dropwhile, takewhile
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

from eggroll import _extension
from eggroll.cli import entry, help
from eggroll.cli.help import hints_of
from eggroll.cli.screen import HASTE, put, say
from eggroll.errors import EngineWarning, InputError, missing_extra, shortened, shown
from eggroll.files import VERSION, check_alone

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


DONE: Final = 0
REFUSED, INTERRUPTED = entry.REFUSED, entry.INTERRUPTED
READER_GONE: Final = 128 + 13  # as of a program that SIGPIPE ended
T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")


class Command(Generic[T]):
    """A command line: called with words, it reads its options, works, and ends as all commands do.

    options: the dataclass that declares them; read: words -> what the work is given; prepare: is
    called before they are read.
    """

    def __init__(
        self,
        options: type[Any],
        work: Callable[[T], int | None],
        read: Callable[[Sequence[str]], T],
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.options, self._work, self._read, self._prepare = options, work, read, prepare
        self.__doc__ = work.__doc__

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command on these words, else on those of the command line; its exit code."""
        words = list(sys.argv[1:] if argv is None else argv)

        def work() -> int:
            if self._prepare:
                self._prepare()
            return self._work(self._read(words)) or DONE

        return run(work)


def command(
    options: type[D],
    *,
    name: str,
    about: str,
    examples: Sequence[tuple[str, str]] = (),
) -> Callable[[Callable[[D], int | None]], Command[D]]:
    """Makes a function of options a command, `python -m eggroll.NAME`.

    about, examples: for --help, see `parse`. The function returns the exit code, None for 0.
    """

    def decorate(work: Callable[[D], int | None]) -> Command[D]:
        read = partial(parse, options, command=name, about=about, examples=examples)
        return Command(options, work, read)

    return decorate


def run(main: Callable[[], int]) -> int:
    """Runs a command; whatever stops it becomes a sentence on stderr and an exit code.

    0 done, 2 bad input or environment, 130 interrupted, 141 without a word if the reader of its
    output went away. SIGTERM stops it as Ctrl-C does.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        stops = signal.SIGINT, signal.SIGTERM
        with (
            handling(lambda number, frame: _interrupt(), *stops),
            plain_warnings(),
            last_words(),
        ):
            check_alone()
            code = main()
            sys.stdout.flush()
            return code
    except InputError as error:
        return _end(REFUSED, f"error: {error}")
    except ModuleNotFoundError as error:
        if missing := missing_extra(error):
            return _end(REFUSED, f"error: {missing}")
        raise
    except KeyboardInterrupt as stop:
        return _end(INTERRUPTED, str(stop) or "Interrupted.")
    except BrokenPipeError:
        _give_up_stdout()
        return READER_GONE  # in silence, as `| head` wants no more
    except MemoryError:
        return _end(REFUSED, "error: memory ran out; try a smaller population, width or chunk.")
    except RuntimeError as error:
        if any(words in str(error) for words in entry.NO_THREADS):
            return _end(REFUSED, f"error: {entry.limit_reached(error)}.")
        raise
    except OSError as error:
        where = f"{error.filename!r}: " if error.filename else "stdout: " * _give_up_stdout()
        reason = error.strerror or type(error).__name__
        sentence = f"{where}{reason}; correct this and run the command again."
        return _end(REFUSED, f"error: {shortened(sentence)}")


def _give_up_stdout() -> bool:
    """True if stdout takes no more; what it did not take goes nowhere, as Python tries at exit."""
    try:
        print(flush=True)  # a line of its own, as nothing waits where there is no buffer
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def end_with(error: Exception) -> int:
    """Ends a command that an error kept from its start, as `run` does."""

    def work() -> int:
        raise error

    return run(work)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Engines' warnings are sentences to the user, without the place in the source."""
    before = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any
    ) -> None:
        if issubclass(category, EngineWarning):
            print(f"warning: {message}", file=sys.stderr, flush=True)
        else:
            before(message, category, filename, lineno, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before


def _interrupt() -> None:
    raise KeyboardInterrupt


def _end(code: int, sentence: str) -> int:
    say(sentence)
    return code


# Reading options.


def parse(
    kind: type[D],
    argv: Sequence[str],
    *,
    command: str,
    about: str,
    examples: Sequence[tuple[str, str]] = (),
    base: D | None = None,
) -> D:
    """Options of a dataclass from the command line; those not given come from `base`.

    command: a module of eggroll, or the path of a script; examples: (words after the command, what
    they do). Prints help or the version and leaves by SystemExit(0) where asked to.

    Raises:
        InputError: an unknown option, or a value that is missing or of another type.
    """
    if asks_for_help(argv):
        page = help.page(kind, command=command, about=about, examples=examples, base=base)
        print(page, flush=True)
        raise SystemExit(DONE)
    if "--version" in argv:
        print(f"eggroll {VERSION}", flush=True)
        raise SystemExit(DONE)
    name = command if command.endswith(".py") else f"eggroll.{command}"
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_value)
    complaint = io.StringIO()
    options: D
    try:
        with contextlib.redirect_stderr(complaint):
            options, unknown = tyro.cli(
                kind,
                prog=name,
                args=list(argv),
                default=tyro.MISSING_NONPROP if base is None else base,
                return_unknown_args=True,
                add_help=False,
                registry=registry,
            )
    except SystemExit:
        raise InputError(f"{_sentence(complaint.getvalue())}; see --help.") from None
    if unknown:
        near = similar_option(unknown[0], [field.name for field in fields(kind)])
        hint = f"did you mean {near}?" if near else "see --help."
        raise InputError(f"{unknown[0]!r} is no option of {name}: {hint}")
    return options


# Words that other programs have for options; a word may stand for the first that a command has.
ALIASES: Final = {
    "learning_rate": "lr rate step-size eta",
    "engine": "device backend gpu cuda cpu accelerator",
    "pop": "population population-size pop-size popsize batch-size batch members",
    "width": "hidden hidden-size hidden-dim dim d-model n-embd embed-dim size",
    "layers": "n-layers num-layers n-layer depth blocks",
    "seq_len": "block-size context context-length sequence-length max-length ctx",
    "steps": "epochs iterations max-steps num-steps updates iters max-iters",
    "step": "update",
    "tokens": "max-tokens max-new-tokens n-tokens length",
    "sample_tokens": "max-tokens max-new-tokens",
    "vocabulary": "vocab vocab-size n-vocab",
    "data": "dataset corpus input file train-data",
    "out": "output output-dir out-dir save-dir folder",
    "resume": "checkpoint load from-checkpoint continue",
    "recipe": "preset profile mode",
    "sigma_shift": "sigma noise std noise-scale",
    "estimator": "algorithm algo method",
    "rule": "optimizer optim optimiser",
    "val_share": "val-split validation-split test-size val-fraction",
    "validate_every": "eval-every eval-interval val-every",
    "checkpoint_every": "save-every save-interval ckpt-every",
    "threads": "num-threads n-threads jobs num-workers cores",
    "workers": "jobs n-jobs num-workers parallel",
    "track": "wandb tensorboard logger log-to",
    "trials": "n-trials num-trials",
    "temperature": "temp t",
    "samples": "num-samples n-samples",
}
NEAR: Final = 0.72  # likeness from which on a word counts as mistyped


def similar_option(word: str, names: Sequence[str]) -> str:
    """The option of a command that a word may mean, by another name or mistyped; else nothing."""
    plain = word.partition("=")[0].lstrip("-").lower().replace("_", "-")
    known = [name for name in names if plain in ALIASES.get(name, "").split()]
    near = difflib.get_close_matches(plain, [flag(name)[2:] for name in names], 1, NEAR)
    return flag(known[0]) if known else f"--{near[0]}" if near else ""


def asks_for_help(argv: Sequence[str]) -> bool:
    """True if the command line asks for help, whatever else it says."""
    return bool({"-h", "--help"} & set(argv))


def _value(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Reads numbers and choices; what is neither is refused in words that people understand."""
    many = info.type == tuple[int, ...]
    inner = [part for part in get_args(info.type) if part is not type(None)]
    optional = type(None) in get_args(info.type) and len(inner) == 1
    kind = int if many else inner[0] if optional else info.type
    if kind in (int, float):
        needed, metavar = ("a whole number", "N") if kind is int else ("a number", "X")
        convert: Callable[[str], Any] = kind
    elif get_origin(kind) is Literal:
        choices = get_args(kind)
        needed, metavar = f"one of {', '.join(choices)}", "|".join(choices)
        convert = {choice: choice for choice in choices}.__getitem__
    else:
        return None

    def read(words: list[str]) -> Any:
        values = []
        for word in words:
            try:
                values.append(convert(word))
            except (KeyError, ValueError):
                raise ValueError(f"{word[:60]!r} is given, but {needed} is needed") from None
        return tuple(values) if many else values[0]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*" if many else 1,
        metavar=f"{metavar} {metavar} ..." if many else metavar,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(v) for v in value] if many else [str(value)],
    )


def _sentence(box: str) -> str:
    """The first sentence in the frame that tyro draws around a complaint."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    begun = dropwhile(_is_rule, lines)
    text = " ".join(takewhile(lambda line: not _is_rule(line), begun)) or " ".join(box.split())
    return re.split(r"\.(?:\s|$)", text.removeprefix("Error parsing "), maxsplit=1)[0]


def _is_rule(line: str) -> bool:
    """True of a line across the frame, of hyphens where stdout has no others; and of none."""
    return set(line) <= {*"─-"}


def flag(name: str) -> str:
    """An option's name on the command line."""
    return "--" + name.replace("_", "-")


def word_of(argv: Sequence[str], name: str) -> str:
    """The word given to an option, the last if there are several.

    Empty if the option is not there, or another follows it at once.
    """
    chosen = ""
    for word, after in zip(argv, [*argv, ""][1:], strict=True):
        option, equals, value = word.partition("=")
        if option == name:
            chosen = value if equals else after * (not after.startswith("--"))
    return chosen


class Range(NamedTuple):
    """Numbers from `low` (itself left out if `above`) to `high`, in multiples of `step`."""

    low: float
    high: float
    step: int = 1
    above: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, int | float)
        whole = isinstance(value, float) or value % self.step == 0
        return self.low <= value <= self.high and whole and not (self.above and value == self.low)

    def phrase(self, kind: type) -> str:
        noun = (
            {1: "a whole number", 2: "an even number"}.get(self.step, f"a multiple of {self.step}")
            if kind is int
            else "a number"
        )
        low = f"above {self.low} and up to" if self.above else f"from {self.low} to"
        return f"{noun} {low} {self.high}"

    def nearest(self, value: int) -> float:
        return min(max(-(-value // self.step) * self.step, self.low), self.high)


def check_ranges(options: DataclassInstance) -> None:
    """Looks at every option that is declared with a Range.

    Raises:
        InputError: one lies outside.
    """
    defaults = {field.name: field.default for field in fields(options)}
    for name, hint in hints_of(type(options)).items():
        kind, *notes = get_args(hint) or (hint,)
        value = getattr(options, name)
        for limits in (note for note in notes if isinstance(note, Range)):
            if value is not None and value not in limits:
                default = defaults[name]
                if default is None:  # it depends on other things
                    default = limits.high if value > limits.high else limits.low
                better = limits.nearest(value) if kind is int else default
                raise InputError(
                    f"{flag(name)} is {value}: {limits.phrase(kind)} is needed; "
                    f"try {flag(name)} {better}."
                )


def check_names(options: DataclassInstance) -> None:
    """Checks names as the command line does, for options made in Python.

    Raises:
        InputError: one is none of those that its option may be.
    """
    for name, hint in hints_of(type(options)).items():
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if get_origin(kind) is Literal and getattr(options, name) not in get_args(kind):
            value, known = shown(getattr(options, name)), ", ".join(get_args(kind))
            raise InputError(f"{flag(name)} is {value}: one of {known} is needed.")


# Signals.


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    """Handles signals inside a `with` block, except those this process was told to ignore.

    Signals handled outside Python are left alone: their handlers could not be restored.
    Only the main thread can; elsewhere nothing changes.
    """
    before: dict[signal.Signals, Any] = {}
    try:
        with contextlib.suppress(ValueError):
            for number in signals:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C, SIGTERM and a lost terminal wait for the end of the block."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        with handling(lambda number, frame: came.append(number), *numbers):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


class Stop:
    """Turns the first Ctrl-C, SIGTERM or lost terminal into a request; the second stops at once.

    asked: true once a signal asked to stop at the next good moment; left: said of what there is
    if a second one stops at once; says: whether it says that it was asked.
    """

    def __init__(self, left: str, *, says: bool = True) -> None:
        self.asked, self._left, self._says = False, left, says
        self._handlers = handling(self._signal, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> Self:
        self._handlers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.__exit__(None, None, None)

    def _signal(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt(f"Stopped at once; {self._left}")
        self.asked = True
        reply = b"\nStopping soon; once more stops at once.\n" if self._says else b""
        with contextlib.suppress(OSError):  # not print, which the signal may have interrupted
            put(sys.stderr.fileno(), reply, HASTE)


# Functions of users as commands.


def script(main: Callable[..., object]) -> NoReturn:
    """Runs a function with the options of the command line, and ends the program as commands end.

    `--steps 40` calls `main(steps=40)`. Every parameter has a default, and is annotated as int,
    float, str or bool. `--help` lists them below the first paragraph of the function's docstring,
    or of its module's. What is wrong, an InputError in `main` included, is one sentence and exit
    code 2; Ctrl-C ends with 130.
    """

    def work() -> int:
        main(**asdict(parse(options_of(main), sys.argv[1:], command=sys.argv[0], about=about)))
        return DONE

    text = inspect.getdoc(main) or inspect.getdoc(inspect.getmodule(main)) or ""
    about = " ".join(text.split("\n\n")[0].split())
    sys.exit(run(work))


def options_of(main: Callable[..., object]) -> type[Any]:
    """A dataclass that has the function's parameters as fields.

    Raises:
        TypeError: a parameter has no annotation or no default.
    """
    hints, parameters = get_type_hints(main), inspect.signature(main).parameters
    for name, parameter in parameters.items():
        if name not in hints or parameter.default is parameter.empty:
            raise TypeError(f"parameter {name!r} of {main.__name__} needs a type and a default")
    return make_dataclass("Options", [(n, hints[n], p.default) for n, p in parameters.items()])


# Limits of this process's memory.

GIB = 1 << 30


def address_space() -> int | None:
    """Bytes of the limit on this process's address space (`ulimit -v`), or None."""
    return entry.limit("RLIMIT_AS")


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def memory() -> tuple[int, str]:
    """Bytes that a run may take, and the words for whose they are."""
    page = os.sysconf("SC_PAGE_SIZE")
    present, limit = page * os.sysconf("SC_PHYS_PAGES"), address_space()
    if limit is None:
        return present, "this machine has"
    return min(present, max(0, limit - _taken(page))), "the limit of `ulimit -v` leaves"


def _taken(page: int) -> int:
    """Bytes of address space that this process has by now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * page
    except (OSError, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """Under a limit, makes a crash for want of memory a sentence and exit code 2.

    MLX writes to the null pointer where malloc has nothing left, and other libraries abort or
    exit: none of that is an exception that could be caught.
    """
    limit = address_space()
    if limit is None:
        yield
        return
    try:
        native = _extension.load()
    except InputError:
        yield
        return
    sentence = (
        f"memory ran out, or so it seems: `ulimit -v` lets this process take {limit / GIB:.2f} "
        "GiB; raise that limit, or try a smaller population, width or chunk"
    )
    native.last_words(f"error: {sentence}.\n")
    try:
        yield
    except (ImportError, SystemError) as error:
        raise InputError(f"{sentence} ({type(error).__name__}: {error!s:.100}).") from error
    finally:
        native.last_words("")
