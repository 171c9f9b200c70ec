"""A trial of an engine: small networks in a process of its own, against the cpu engine.

The engine is named as "module:Class", so that engines can ask for their trial. A trial is passed or
not; it says nothing of shapes that it does not try, and a real run compares its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from os import environ
from typing import Any, NamedTuple

import numpy as np

from eggroll.engines import verdicts
from eggroll.engines.base import Engine
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.failure import why_ended, why_late
from eggroll.engines.portable.engine import PortableEngine
from eggroll.engines.trial_networks import Results, rows_network, trial_results
from eggroll.networks import egg
from eggroll.program import Program

# float32 products as they are, for a yardstick that MLX computes on the same GPU.
EXACT = {"MLX_ENABLE_TF32": "0"}
PLAIN = {"PYTHON_COLORS": "0"}  # no escape sequences in tracebacks, even under FORCE_COLOR


class Ended(NamedTuple):
    """The end of a child: why it failed (empty if it did not), and all that it said."""

    why: str
    text: str


def trial_error(
    engine: str,
    seconds: int,
    *,
    facts: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The reason why the trial of "module:Class" failed in its own process; empty if it passed.

    facts: of the device and its system; where the trial passed with the same before, it is not
    repeated (see verdicts.py). options: keyword arguments of the class; environment: set for the
    process besides.
    """
    tried = {"engine": engine, **facts, **{k: str(v) for k, v in (options or {}).items()}}
    if verdicts.passed_before(tried):
        return ""
    if sys.stderr and sys.stderr.isatty():  # a program with windows may have none
        name = engine.split(".")[-2]
        print(f"trying the {name} engine on this GPU, for at most {seconds} s; if it passes, this "
              "is not repeated", file=sys.stderr, flush=True)  # fmt: skip
    why = run_in_child(trial_code(engine, options), seconds, environment or {}).why
    if not why:
        verdicts.keep_passed(tried)
    return why


def trial_code(engine: str, options: Mapping[str, Any] | None = None) -> str:
    """Python code that tries "module:Class" and ends with a code other than 0 if that fails."""
    return f"from eggroll.engines.trial import main; main({engine!r}, {dict(options or {})!r})"


def run_in_child(code: str, seconds: float, environment: Mapping[str, str]) -> Ended:
    """Runs Python code in a process of its own, as a kernel can end its process, or never end."""
    command, env = [sys.executable, "-X", "faulthandler", "-c", code], {**environ, **EXACT, **PLAIN}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
            env={**env, **environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said, errors = (_text(each) for each in (late.stdout, late.stderr))
        return Ended(why_late(errors, seconds), said + errors)
    except OSError as error:
        return Ended(str(error), "")
    said, errors = _text(done.stdout), _text(done.stderr)
    return Ended(why_ended(errors, done.returncode) if done.returncode else "", said + errors)


def _text(said: bytes | None) -> str:
    return (said or b"").decode(errors="replace")


def networks() -> dict[str, Program]:
    """What is tried: wide enough that registers leave threadgroup memory; and every operation."""
    return {"egg": egg(40, 256, 1), "rows": rows_network()}


def yardstick() -> type[Engine]:
    """The cpu engine, or plain MLX where its extension is missing."""
    return PortableEngine if CpuEngine.unavailable_because() else CpuEngine


def differences(engine: Engine, members: int) -> list[str]:
    """Every result of P members that is not the yardstick's, by name, with its first number."""
    other = yardstick()(engine.program)
    pairs = zip(trial_results(engine, members), trial_results(other, members), strict=True)
    return [f"{a[0]}: {found}" for a, b in pairs if (found := difference(a, b))]


def difference(a: Results, b: Results) -> str:
    """How an array differs from the one that it should be; empty if it does not."""
    (_, found), (_, wanted) = a, b
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {list(found.shape)} for {wanted.dtype} {list(wanted.shape)}"
    wrong = np.argwhere(found != wanted)
    if not len(wrong):
        return ""
    at = tuple(wrong[0])
    place = f"{found[at]} for {wanted[at]} at {[int(i) for i in at]}"
    return f"{len(wrong)} of {wanted.size} differ, the first is {place}"


def main(engine: str, options: Mapping[str, Any]) -> None:
    """Ends the process with a sentence unless the trial of "module:Class" passes.

    Members share a threadgroup as in runs: as many as one may hold, and some that are left over.
    """
    module, _, name = engine.partition(":")
    kind, wrong = getattr(import_module(module), name), []
    for title, program in networks().items():
        print(f"trying {title}", file=sys.stderr, flush=True)
        group = max(kind.group_sizes)
        made: Engine = kind(program, members=group, **options)
        wrong += [f"{title}, {each}" for each in differences(made, group + 2)]
    print("\n".join(wrong))
    if wrong:
        sys.exit(f"the kernels give other integers than engine {yardstick().name}: {wrong[0]}")
