"""Settings that make NumPy fast in a long run on a CPU: one BLAS thread, and memory it may keep."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@cache
def _openblas() -> tuple[Any, Any] | None:
    """The functions (get, set) for the threads of the OpenBLAS in NumPy's wheel; None without."""
    site = Path(np.__file__).parent
    for folder in (site.parent / "numpy.libs", site / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            with contextlib.suppress(OSError):
                library = ctypes.CDLL(str(path))
                for end in ("64_", ""):
                    names = (f"scipy_openblas_{verb}_num_threads{end}" for verb in ("get", "set"))
                    found = [getattr(library, name, None) for name in names]
                    if all(found):
                        return found[0], found[1]
    return None


@cache
def keep_memory() -> None:
    """Lets this process keep what it frees, so that large arrays cost no page faults every time.

    For good; glibc only, elsewhere nothing happens.
    """
    mmap_threshold, trim_threshold = -3, -1  # of malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(mmap_threshold, 1 << 25)
            library.mallopt(trim_threshold, 1 << 30)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's BLAS on one thread inside, on as many as before outside; only OpenBLAS is known.

    Its threads spin while they wait: beside other work, small products then take far longer than
    with one. Whoever shares out larger pieces needs no more.
    """
    if not (functions := _openblas()):
        yield
        return
    get, put = functions
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
