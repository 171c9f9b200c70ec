"""Chooses the engine that runs: the one asked for, or the fastest that works here."""

from __future__ import annotations

from eggroll.engines import guard
from eggroll.engines.base import Engine
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.cuda import CudaEngine
from eggroll.engines.gpu.engine import StagedEngine
from eggroll.engines.metal import MetalEngine
from eggroll.engines.portable.engine import PortableEngine
from eggroll.errors import InputError, shown
from eggroll.spec.program import Program

# Fastest first: `auto` takes the first that is available.
ENGINES: dict[str, type[Engine]] = {
    "metal": MetalEngine,
    "cuda": CudaEngine,
    "cpu": CpuEngine,
    "portable": PortableEngine,
}


def unavailable_because(name: str, credit: bool = False) -> str:
    """The reason why an engine cannot run here, with what is asked for; empty if it can."""
    engine = ENGINES[name]
    return (
        guard.given_up.get(name)
        or engine.unavailable_because()
        or ("it has no token credit" if credit and not engine.credits else "")
    )


def available(credit: bool = False) -> dict[str, str]:
    """Engine name -> why it cannot run here, with what is asked for ("" if it can)."""
    return {name: unavailable_because(name, credit) for name in ENGINES}


def choose(
    name: str,
    program: Program,
    threads: int = 0,
    block_tokens: int = 0,
    credit: bool = False,
    *,
    replaceable: bool = True,
) -> tuple[Engine, str]:
    """The engine called `name` ("auto": the fastest available) and a phrase saying why.

    credit: whether the engine must have token credit; replaceable: whether another engine takes
    over from a GPU's that "auto" took and that fails, else EngineError is raised, as it is for an
    engine asked for.
    Raises InputError for a name that is unknown or an engine that cannot run here.
    """
    if not isinstance(name, str):
        raise InputError(f"engine is {shown(name)}: a name such as 'auto' or 'cpu' is needed.")
    # An engine asked for waits for no other's trial.
    if name in ENGINES and not unavailable_because(name, credit):
        return _made(name, program, threads, block_tokens, False), "as asked"
    unavailable = available(credit)
    usable = [n for n, why in unavailable.items() if not why]
    if name == "auto":
        passed_over = [f"{n}: {why}" for n, why in unavailable.items() if why]
        reason = "the fastest available here" + "".join(f"; {p}" for p in passed_over)
        return _made(usable[0], program, threads, block_tokens, replaceable), reason
    if name not in unavailable:
        raise InputError(f"engine {name!r} is unknown; available here: auto, {', '.join(usable)}.")
    raise InputError(
        f"engine {name!r} cannot run here ({unavailable[name]}); available: {', '.join(usable)}."
    )


def _made(name: str, program: Program, threads: int, block_tokens: int, goes_on: bool) -> Engine:
    """An engine; one of a GPU under guard.

    goes_on: whether another one takes over from a GPU that fails.
    """
    engine = ENGINES[name](program, threads, block_tokens)
    if not isinstance(engine, StagedEngine):
        return engine
    spare = "portable" if unavailable_because("cpu") else "cpu"
    return guard.Guarded(engine, ENGINES[spare](program, threads, block_tokens), goes_on=goes_on)
