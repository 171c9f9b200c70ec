"""Engines run the declared program, all with the same bits; `choose` takes one of them.

Letters: P members, N = P/2 pairs, T tokens, V vocabulary, Z votes.
"""

from __future__ import annotations

import os

from eggroll.engines import guard
from eggroll.engines.base import Engine, check_process, zero_state
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.cuda import CudaEngine
from eggroll.engines.gpu.engine import GpuEngine
from eggroll.engines.metal import MetalEngine
from eggroll.engines.portable.engine import PortableEngine
from eggroll.errors import InputError, shown
from eggroll.spec.program import Program

__all__ = [
    "ENGINES",
    "Engine",
    "available",
    "check_process",
    "choose",
    "unavailable_because",
    "zero_state",
]

# Fastest first: `auto` takes the first that is available.
ENGINES: dict[str, type[Engine]] = {
    "metal": MetalEngine,
    "cuda": CudaEngine,
    "cpu": CpuEngine,
    "portable": PortableEngine,
}


def choose(
    name: str,
    program: Program,
    threads: int = 0,
    block_tokens: int = 0,
    *,
    replaceable: bool | None = None,
) -> tuple[Engine, str]:
    """The engine called `name` ("auto": the fastest available) and a phrase saying why.

    replaceable: whether another engine takes over from a GPU's that fails or is wrong, or
    EngineError is raised; None: it takes over from one that "auto" took.
    Raises InputError for a name that is unknown or an engine that cannot run here.
    """
    if not isinstance(name, str):
        raise InputError(f"engine is {shown(name)}: a name such as 'auto' or 'cpu' is needed.")
    # An engine asked for waits for no other's trial.
    if name in ENGINES and not unavailable_because(name):
        return _build(name, program, threads, block_tokens, bool(replaceable)), "as asked"
    reasons = available()
    usable = [n for n, why in reasons.items() if not why]
    if name == "auto":
        passed_over = [f"{n}: {why}" for n, why in reasons.items() if why]
        isa = os.environ.get("EGGROLL_ISA", "") if usable[0] == "cpu" else ""
        reason = f"the {isa} kernels as EGGROLL_ISA asks" if isa else "the fastest available here"
        reason += "".join(f"; {p}" for p in passed_over)
        return _build(usable[0], program, threads, block_tokens, replaceable is not False), reason
    if name not in reasons:
        raise InputError(f"engine {name!r} is unknown; available here: auto, {', '.join(usable)}.")
    raise InputError(
        f"engine {name!r} cannot run here ({reasons[name]}); available: {', '.join(usable)}."
    )


def available() -> dict[str, str]:
    """Engine name -> why it cannot run here ("" if it can)."""
    return {name: unavailable_because(name) for name in ENGINES}


def unavailable_because(name: str) -> str:
    """The reason why an engine cannot run here; empty if it can."""
    return guard.failed_engines.get(name) or ENGINES[name].unavailable_because()


def _build(
    name: str, program: Program, threads: int, block_tokens: int, replaceable: bool
) -> Engine:
    """An engine; one of a GPU under guard."""
    engine = ENGINES[name](program, threads, block_tokens)
    if not isinstance(engine, GpuEngine):
        return engine
    spare = ENGINES["portable" if unavailable_because("cpu") else "cpu"]
    return guard.Guarded(engine, spare(program, threads, block_tokens), replaceable=replaceable)
