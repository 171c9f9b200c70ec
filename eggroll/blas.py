"""NumPy's BLAS on one thread for a while.

Its own threads spin while they wait: on a machine with other work, small products then take
hundreds of times as long. Whoever shares out larger pieces wants it single-threaded.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside, as many as before outside; does nothing with another BLAS."""
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
