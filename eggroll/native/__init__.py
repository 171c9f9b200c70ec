"""Worlds in C or C++: compiled once, loaded, and given to `Trainer.play`. See docs/native.md."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
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
FORBIDDEN_FLAGS = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations")


def build(*sources: str | Path, flags: Sequence[str] = ()) -> Library:
    """Compiles C (.c) or C++ (.cpp, .cc, .cxx) sources to a library, and loads it.

    It is compiled once: the result lies in the cache ($EGGROLL_CACHE, else eggroll/ in
    $XDG_CACHE_HOME or ~/.cache), under a name made of the sources with all that they include, the
    flags, the compiler and the machine. $CC and $CXX name compilers; eggroll_world.h is found.

    flags: more for the compiler and the linker, such as -Ifolder or -lm; files that they name count
        for the name of the result, libraries that the linker finds do not.

    Raises:
        InputError: a source or compiler is missing, a source does not compile, a flag would make
            results depend on the machine, or the cache cannot be written.
    """
    if others := [source for source in sources if not isinstance(source, (str, Path))]:
        raise InputError(f"the source {shown(others[0])} is no path: give that of a file.")
    paths = [Path(source) for source in sources]
    _check(paths, flags)
    compilers = [_compiler(path.suffix) for path in paths]
    commands = [_command(c, p, flags) for c, p in zip(compilers, paths, strict=True)]
    linker = next(
        (c for c, p in zip(compilers, paths, strict=True) if p.suffix != ".c"), compilers[0]
    )
    key = hashlib.sha256(repr((platform.machine(), platform.system(), flags)).encode())
    for linked in (Path(flag.removeprefix("@")) for flag in flags):
        if linked.is_file():
            key.update(hashlib.sha256(linked.read_bytes()).digest())
    for path, command, compiler in zip(paths, commands, compilers, strict=True):
        for output in (_run([*compiler, "--version"]), _run([*command, "-E", "-P", str(path)])):
            key.update(hashlib.sha256(output).digest())
    target = cache_folder() / "native" / f"{paths[0].stem}-{key.hexdigest()[:24]}.so"
    if not target.exists():
        with of_cache(target.parent):
            target.parent.mkdir(0o755, parents=True, exist_ok=True)
            check_own(target.parent, code=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / target.name
                _compile(paths, commands, linker, flags, made)
                if not made.is_file():
                    raise InputError(
                        f"{linker[0]} made no library with flags {shown(flags)}: leave out those "
                        "that ask for something else."
                    )
                os.chmod(made, 0o755)
                os.replace(made, target)
    check_own(target.parent, code=True)
    check_own(target, code=True)
    return Library(target)


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
    if forbidden := [flag for flag in flags if flag in FORBIDDEN_FLAGS]:
        raise InputError(
            f"the flag {forbidden[0]} makes results depend on compiler and machine: leave it out."
        )


def _command(compiler: list[str], path: Path, flags: Sequence[str]) -> list[str]:
    """The command that compiles a source, but for what to do with it."""
    standard = LANGUAGES[path.suffix][2]
    return [*compiler, standard, "-O3", "-fPIC", f"-I{include()}", *flags, *EXACT]


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


def _compile(
    paths: list[Path],
    commands: list[list[str]],
    linker: list[str],
    flags: Sequence[str],
    target: Path,
) -> None:
    """Compiles every source, and links them to the library `target`."""
    objects = []
    for i, (path, command) in enumerate(zip(paths, commands, strict=True)):
        objects.append(str(target.with_name(f"{i}.o")))
        _run([*command, "-c", str(path), "-o", objects[-1]])
    _run([*linker, "-shared", *objects, *flags, "-o", str(target)])


def _run(command: list[str]) -> bytes:
    """The output of a compiler.

    Raises:
        InputError: it ended with an error, whose first line is quoted.
    """
    process = subprocess.run(command, capture_output=True, check=False)
    if process.returncode:
        lines = process.stderr.decode(errors="replace").splitlines()
        message = next((line for line in lines if "error" in line), lines[0] if lines else "")
        raise InputError(f"{command[0]} does not compile this: {message.strip()}")
    return process.stdout


class Library:
    """A loaded library, whose attributes are the worlds that it exports, by name."""

    path: Path
    handle: ctypes.CDLL

    def __init__(self, path: str | Path) -> None:
        """Loads a library that was built elsewhere.

        Raises:
            InputError: it cannot be loaded.
        """
        self.path = path_of(path)
        try:
            self.handle = ctypes.CDLL(os.path.abspath(self.path))
        except OSError as error:
            raise InputError(
                f"the library {str(self.path)!r} cannot be loaded ({error}): build it anew for "
                "this machine."
            ) from None

    def symbol(self, name: str) -> int:
        """The address of anything else that the library exports.

        Raises:
            InputError: it exports no such name.
        """
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(self.handle, name))
        except ValueError:
            raise InputError(
                f"the library {self.path.name} exports no {name!r}: EGGROLL_WORLD({name}) makes a "
                "world, EGGROLL_EXPORT anything else."
            ) from None

    def __getattr__(self, name: str) -> World:
        if name.startswith("_") or name == "handle":
            raise AttributeError(name)
        address = self.symbol(name)
        struct = _Struct.in_dll(self.handle, name)
        if struct.abi != ABI:
            raise InputError(
                f"{name!r} of the library {self.path.name} is no eggroll_world of ABI {ABI} (it "
                f"says {struct.abi}): build it with the header in {include()}."
            )
        complete = all((struct.begin, struct.observe, struct.act, struct.value))
        if (
            min(struct.inputs, struct.outputs) < 1
            or not 0 <= struct.bytes < 1 << 31
            or not complete
        ):
            raise InputError(
                f"the world {name!r} has inputs {struct.inputs}, outputs {struct.outputs} and "
                f"bytes {struct.bytes}: at least 1, 1 and 0 are needed, bytes below 2^31, and all "
                "four functions."
            )
        return World(name, struct.inputs, struct.outputs, struct.bytes, address, self.handle)


@dataclass(frozen=True)
class World:
    """A world of a library, in which each member of a population has an episode of its own."""

    name: str
    inputs: int  # int8 values that a member is shown in a row
    outputs: int  # values of the network's first output
    bytes: int  # memory of a member
    address: int  # of the C struct
    library: Any = field(repr=False)  # the handle, which keeps it loaded


class _Struct(ctypes.Structure):
    """eggroll_world of eggroll_world.h."""

    _fields_ = (
        ("abi", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("begin", "observe", "act", "value")),
    )
