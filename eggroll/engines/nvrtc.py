"""NVRTC, NVIDIA's compiler as a library: text of kernels to machine code, which the cache keeps.

MLX calls the same compiler, but in every process anew, and with headers that take most of its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from eggroll.errors import InputError
from eggroll.files import cache_folder, check_own, open_regular, write_whole

LIBRARY = "EGGROLL_NVRTC"  # names libnvrtc.so
NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")  # that MLX may have loaded already
TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
OPTIONS = ("--std=c++17",)
MOST_BYTES = 256 << 20  # of kept machine code; a kernel has some 50 KiB
DIGEST = hashlib.sha256().digest_size  # before the machine code in a file


class CompileError(RuntimeError):
    """NVRTC refused a text; the message is its log."""


# The library.


def library_paths() -> Iterator[str]:
    """Places of libnvrtc.so: as told, in pip's wheels, in a toolkit, where the linker looks."""
    if named := os.environ.get(LIBRARY):
        yield named
        return
    spec = importlib.util.find_spec("nvidia")
    for root in map(Path, (spec.submodule_search_locations or []) if spec else []):
        yield from map(str, sorted(root.glob("*/lib/libnvrtc.so.*"), reverse=True))
    roots = [os.environ[name] for name in TOOLKITS if os.environ.get(name)]
    for root in map(Path, (*roots, "/usr/local/cuda")):
        yield from (
            str(root / "lib64" / name) for name in NAMES if (root / "lib64" / name).exists()
        )
    yield from NAMES


@cache
def load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and the reason why there is none."""
    why = ""
    for path in library_paths():
        try:
            for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*"):
                if "/" in path:  # NVRTC looks for these by name alone
                    ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(path), ""
        except OSError as error:
            why = why or str(error)
    return None, f"NVRTC cannot be loaded ({why}): run `pip install nvidia-cuda-nvrtc`"


def unavailable_because() -> str:
    """The reason why nothing can be compiled here; empty if it can."""
    return load()[1]


def library() -> ctypes.CDLL:
    """Raises CompileError where there is none."""
    found, why = load()
    if found is None:
        raise CompileError(why)
    return found


@cache
def version() -> str:
    """NVRTC's version and the size of its file, as builds of one version may differ."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    size = 0
    with contextlib.suppress(OSError):
        size = os.stat(library()._name).st_size
    return f"{major.value}.{minor.value} {size}"


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode("ascii") for text in texts))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    """One of the results of a program: its ProgramLog or CUBIN."""
    size = ctypes.c_size_t()
    getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def compiled(text: str, architecture: str, *options: str) -> tuple[bytes, str]:
    """Machine code of e.g. sm_80, and NVRTC's log.

    Raises CompileError with the log.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode("ascii"), b"kernel.cu", 0, None, None
    )
    if code:
        raise CompileError(f"error: nvrtcCreateProgram ended with code {code}")
    words = [f"--gpu-architecture={architecture}", *OPTIONS, *options]
    try:
        code = nvrtc.nvrtcCompileProgram(program, len(words), _texts(words))
        log = _read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code:
            raise CompileError(log or f"error: nvrtcCompileProgram ended with code {code}")
        return _read(program, "CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


# The cache.


def folder() -> Path:
    """The folder of kept machine code."""
    return cache_folder() / "kernels"


def kept_file(text: str, architecture: str) -> Path:
    """The file by the hash of all that its content depends on."""
    facts = "\0".join((version(), architecture, *OPTIONS, text))
    return folder() / f"{hashlib.sha256(facts.encode()).hexdigest()}.cubin"


def kept(text: str, architecture: str) -> bytes:
    """Machine code from the cache; empty where it has none that is whole and our own."""
    path = kept_file(text, architecture)
    try:
        check_own(path, code=True)
        with open_regular(path) as file:
            content = file.read()
        os.utime(path)  # used now, so that others go first
    except (OSError, InputError):
        return b""
    digest, code = content[:DIGEST], content[DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else b""


def keep(text: str, architecture: str, code: bytes) -> None:
    """Puts machine code into the cache. Where no file can be written, nothing is kept."""
    with contextlib.suppress(OSError, InputError):
        folder().mkdir(parents=True, exist_ok=True)
        write_whole(kept_file(text, architecture), hashlib.sha256(code).digest() + code)


def trim(most: int = MOST_BYTES) -> None:
    """Removes what was not used for longest, until at most so many bytes are kept."""
    with contextlib.suppress(OSError, InputError):
        found = [(path, path.stat()) for path in folder().glob("*.cubin")]
        room = most - sum(facts.st_size for _, facts in found)
        for path, facts in sorted(found, key=lambda each: each[1].st_mtime):
            if room >= 0:
                break
            path.unlink(missing_ok=True)
            room += facts.st_size


def machine_code(texts: Sequence[str], architecture: str, threads: int = 0) -> list[bytes]:
    """Machine code of every text, from the cache or compiled side by side and kept.

    threads: 0 for as many as there are cores.
    Raises CompileError for the first text that NVRTC refuses.
    """
    found = {text: kept(text, architecture) for text in dict.fromkeys(texts)}
    missing = [text for text, code in found.items() if not code]
    if missing:
        with ThreadPoolExecutor(min(threads or os.cpu_count() or 1, len(missing))) as pool:
            for text, (code, _) in zip(
                missing, pool.map(lambda text: compiled(text, architecture), missing), strict=True
            ):
                keep(text, architecture, code)
                found[text] = code
        trim()
    return [found[text] for text in texts]
