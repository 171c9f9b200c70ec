"""Worlds in C or C++: compiled once, loaded, and given to `Trainer.play`. See docs/native.md."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eggroll.errors import InputError, shown
from eggroll.files import cache_folder, check_own, of_cache, path_of

__all__ = ["Library", "World", "build", "include"]

ABI = 1  # EGGROLL_WORLD_ABI
# Suffix -> (variable that names a compiler, the default one, language standard).
LANGUAGES = {
    ".c": ("CC", "cc", "-std=c11"),
    **dict.fromkeys((".cpp", ".cc", ".cxx"), ("CXX", "c++", "-std=c++20")),
}
# No product is added without rounding, which would differ between machines; after other flags.
EXACT = ("-ffp-contract=off", "-fno-associative-math", "-fno-reciprocal-math")
# Nothing is linked that flushes small numbers to zero in the whole process; after other flags.
UNFLUSHED = ("-O3", "-fno-fast-math", "-fno-unsafe-math-optimizations")
FORBIDDEN_FLAGS = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-mdaz-ftz")
FAST = re.compile(rb"^#define __(FAST_MATH__|FINITE_MATH_ONLY__ [^0]|NO_SIGNED_ZEROS__)", re.M)
UNFIT = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]")  # a NUL, surrogates that are no byte's
# The line of an error, unless a warning quotes it or it says no more than that the linker failed.
FAILED = "(?!ld returned|linker command failed)"
ERROR = re.compile(rf"(?!\s)((?:(?!warning: ).)*?: )?(fatal )?error: {FAILED}", re.I)


def build(*sources: str | Path, flags: Sequence[str] = ()) -> Library:
    """Compiles C (.c) or C++ (.cpp, .cc, .cxx) sources to a library, and loads it.

    It is compiled once: the result lies in the cache ($EGGROLL_CACHE, else eggroll/ in
    $XDG_CACHE_HOME or ~/.cache), under a name made of the sources with all that they include, the
    flags, the compiler and the machine. $CC and $CXX name compilers; eggroll_world.h is found.

    flags: more for the compiler and the linker, such as -Ifolder or -lm; files that they name count
        for the name of the result, libraries that the linker finds do not.

    Raises:
        InputError: a source or compiler is missing, a source does not compile, a flag or a word of
            $CC or $CXX would make results depend on the machine, the cache cannot be written, or
            the library cannot be loaded.
    """
    if others := [source for source in sources if not isinstance(source, (str, Path))]:
        raise InputError(f"the source {shown(others[0])} is no path: give that of a file.")
    paths = [Path(source) for source in sources]
    _check(paths, flags)
    compilers = [_compiler(path.suffix) for path in paths]
    commands = [_command(c, p, flags) for c, p in zip(compilers, paths, strict=True)]
    linker = _compiler(next((path.suffix for path in paths if path.suffix != ".c"), ".c"))
    facts = platform.machine(), platform.system(), compilers, list(flags), EXACT
    key = hashlib.sha256(repr(facts).encode())
    for linked in (flag.removeprefix("@") for flag in flags):
        if os.path.isfile(linked):
            key.update(hashlib.sha256(Path(linked).read_bytes()).digest())
    for command, compiler in zip(commands, compilers, strict=True):
        preprocess = [*command, "-E", "-o", "-"]  # wherever flags would have it
        _check_exact(_run([*preprocess, "-dM"]), [*compiler, *flags])
        for output in (_run([*compiler, "--version"]), _run([*preprocess, "-P"])):
            key.update(hashlib.sha256(output).digest())
    target = cache_folder() / "native" / f"{paths[0].stem}-{key.hexdigest()[:24]}.so"
    if not target.exists():
        with of_cache(target.parent):
            target.parent.mkdir(0o755, parents=True, exist_ok=True)
            check_own(target.parent, code=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / target.name
                _compile(commands, linker, flags, made)
                if not made.is_file():
                    raise InputError(
                        f"{linker[0]} made no library with flags {shown(flags)}: leave out those "
                        "that ask for something else."
                    )
                os.chmod(made, 0o755)
                os.replace(made, target)
    check_own(target.parent, code=True)
    check_own(target, code=True)
    try:
        return Library(target)
    except InputError:
        with of_cache(target.parent):
            target.unlink(missing_ok=True)  # as it would be found again
        raise


def _check(paths: list[Path], flags: Sequence[str]) -> None:
    """Raises InputError for sources or flags that cannot be used."""
    if not paths:
        raise InputError("build was given no sources: name the C or C++ files of a world.")
    for path in paths:
        if path.suffix not in LANGUAGES:
            raise InputError(
                f"the source {str(path)!r} is neither C nor C++: its name must end in "
                f"{', '.join(LANGUAGES)}."
            )
        if not path.is_file():
            raise InputError(f"the source {str(path)!r} is no file: give the path of one.")
    if isinstance(flags, str):
        raise InputError(f'flags is {flags!r}: give a list of them, as flags=["{flags}"].')
    if not isinstance(flags, Sequence) or not all(isinstance(flag, str) for flag in flags):
        raise InputError(f"flags is {shown(flags)}: a list of texts is needed, as in ['-lm'].")
    if unfit := [flag for flag in flags if UNFIT.search(flag)]:
        raise InputError(f"the flag {shown(unfit[0])} has a NUL or a lone surrogate: leave it out.")
    if forbidden := [flag for flag in flags if flag in FORBIDDEN_FLAGS]:
        raise InputError(
            f"the flag {forbidden[0]} makes results depend on compiler and machine: leave it out."
        )


def _check_exact(macros: bytes, words: list[str]) -> None:
    """Raises InputError where macros are those of fast mathematics; words: of the command."""
    if FAST.search(macros):
        raise InputError(
            "-ffast-math makes results depend on compiler and machine, and the command "
            f"{shown(shlex.join(words), 200)} has it or a part of it: leave it out."
        )


def _command(compiler: list[str], path: Path, flags: Sequence[str]) -> list[str]:
    """The command that compiles a source, but for the output."""
    standard = LANGUAGES[path.suffix][2]
    return [*compiler, standard, "-O3", "-fPIC", f"-I{include()}", *flags, *EXACT, str(path)]


def _compiler(suffix: str) -> list[str]:
    """The words of a language's compiler.

    Raises:
        InputError: there is none.
    """
    variable, default, _ = LANGUAGES[suffix]
    given = os.environ.get(variable, "")
    try:
        command = shlex.split(given) or [default]
    except ValueError as error:
        raise InputError(f"{variable} is {given!r} ({error}): give a compiler.") from None
    if not shutil.which(command[0]):
        raise InputError(
            f"No compiler answers to {command[0]!r}: install one (Debian and Ubuntu: 'apt install "
            f"g++', macOS: 'xcode-select --install') or set {variable}."
        )
    return command


def include() -> Path:
    """The folder of eggroll_world.h, for a build of one's own."""
    return Path(__file__).parent


def _compile(commands: list[list[str]], linker: list[str], flags: Sequence[str], to: Path) -> None:
    """Compiles every source, and links them to the library `to`."""
    objects = [str(to.with_name(f"{i}.o")) for i in range(len(commands))]
    for command, made in zip(commands, objects, strict=True):
        _run([*command, "-c", "-o", made])
    _run([*linker, "-shared", *objects, *flags, *UNFLUSHED, "-o", str(to)])


def _run(command: list[str]) -> bytes:
    """The output of a compiler, which speaks English.

    Raises:
        InputError: it cannot be run, or ended with an error, whose first line is quoted.
    """
    english = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.run(command, capture_output=True, check=False, env=english)
    except OSError as error:
        raise InputError(f"{command[0]} cannot be run ({error}): set CC or CXX anew.") from None
    if process.returncode:
        silent = f"it ended with exit code {process.returncode} and said nothing: try another."
        reason = _reason(process.stderr.decode(errors="replace")) or silent
        raise InputError(f"{command[0]} does not compile this: {reason}")
    return process.stdout


def _reason(said: str) -> str:
    """The first error of a compiler, or the first line of a linker that is more than a warning."""
    errors = [line for line in said.splitlines() if ERROR.match(line)]
    lines = re.sub(r":\n\s*", ": ", said).splitlines()  # a line that ends so heads the next
    others = [line for line in lines if not re.search("warning: |note: ", line, re.I)]
    return next((line.strip() for line in errors + others + lines if line.strip()), "")


class MissingError(InputError, AttributeError):
    """A library does not have what it was asked for, so `hasattr` is False."""


class Library:
    """A loaded library, whose attributes are the worlds that it exports, by name.

    `world(name)` has those, too, whose names begin with _ or are attributes already. Pickled, it
    is its path.
    """

    path: Path
    handle: ctypes.CDLL

    def __init__(self, path: str | Path) -> None:
        """Loads a library that was built elsewhere.

        Raises:
            InputError: it cannot be loaded.
        """
        self.path = Path(os.path.abspath(path_of(path)))
        try:
            self.handle = ctypes.CDLL(str(self.path))
        except OSError as error:
            undefined = re.search("undefined symbol|symbol not found", str(error), re.I)
            way = "define it or link what has it" if undefined else "build it anew for this machine"
            raise InputError(
                f"the library {str(self.path)!r} cannot be loaded ({error}): {way}."
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Library, (self.path,)

    def symbol(self, name: str) -> int:
        """The address of anything else that the library exports.

        Raises:
            InputError: the name is no text.
            MissingError: it exports no such name.
        """
        if not isinstance(name, str):
            raise InputError(f"the name {shown(name)} is no text: give a name that is exported.")
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(self.handle, name))
        except ValueError:
            raise MissingError(
                f"the library {self.path.name} exports no {shown(name)}: EGGROLL_WORLD(name) makes "
                "a world, EGGROLL_EXPORT anything else."
            ) from None

    def __getattr__(self, name: str) -> World:
        if name.startswith("_") or name == "handle":
            raise AttributeError(name)
        return self.world(name)

    def world(self, name: str) -> World:
        """A world that the library exports.

        Raises:
            InputError: the name is no text, or the world has impossible sizes or lacks functions.
            MissingError: it exports no such name, or no world of this ABI by it.
        """
        address = self.symbol(name)
        struct = _Struct.in_dll(self.handle, name)
        if struct.abi != ABI:
            raise MissingError(
                f"{name!r} of the library {self.path.name} is no eggroll_world of ABI {ABI} (it "
                f"says {struct.abi}): build it with the header in {include()}."
            )
        complete = all((struct.begin, struct.observe, struct.act, struct.value))
        sized = min(struct.inputs, struct.outputs) > 0 and 0 <= struct.bytes < 1 << 31
        if not (sized and complete):
            raise InputError(
                f"the world {name!r} has inputs {struct.inputs}, outputs {struct.outputs} and "
                f"bytes {struct.bytes}: at least 1, 1 and 0 are needed, bytes below 2^31, and all "
                "four functions."
            )
        return World(name, struct.inputs, struct.outputs, struct.bytes, address, self)


@dataclass(frozen=True)
class World:
    """A world of a library, in which each member of a population has an episode of its own.

    Pickled, it is its library and its name.
    """

    name: str
    inputs: int  # int8 values that a member is shown in a row
    outputs: int  # values of the network's first output
    bytes: int  # memory of a member
    address: int  # of the C struct
    library: Library = field(repr=False, compare=False)  # which stays loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return Library.world, (self.library, self.name)


class _Struct(ctypes.Structure):
    """eggroll_world of eggroll_world.h."""

    _fields_ = (
        ("abi", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("begin", "observe", "act", "value")),
    )
