"""The GPU of a Mac: compiles and launches kernels, tries them with and without NAX.

NAX are the matrix units of M5 and later; nax_check decides whether they are there.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import mlx.core as mx
import nax_check

from eggroll.engines import trial
from eggroll.engines.gpu.launch import kernel_name, launcher
from eggroll.engines.gpu.pace import whole_portions
from eggroll.engines.gpu.source import Source

ENGINE = "eggroll.engines.metal.engine:MetalEngine"
SWITCH = "EGGROLL_NAX"  # 0 leaves NAX unused, so that both paths can be compared
TRIAL_SECONDS = 300  # most of it for the compiler, which sees some 40 kernels


@cache
def compiled(source: Source, dtypes: tuple[mx.Dtype, ...]) -> Any:
    """The kernel as MLX compiles it, for arrays of any types."""
    return mx.fast.metal_kernel(
        name=kernel_name(source),
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
    )


launch = launcher(compiled)


@cache
def facts() -> nax_check.Facts:
    """The facts of this machine, read once."""
    whole_portions()  # first, as MLX opens the GPU to tell of it
    return nax_check.read_facts()


def nax_missing() -> str:
    """The reason why this engine does not try NAX here; empty if it does.

    Its kernels are compiled at run time, so that MLX's own need not be there; see nax_check.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    if not mx.metal.is_available():
        return "MLX finds no Metal GPU"
    unmet = nax_check.decide(facts()).obstacles
    return "; ".join(f"{reason.name}: {reason.text}" for reason in unmet)


def nax_failure() -> str:
    """The reason why NAX failed its trial, where it is there to be tried; empty if it did not."""
    why = "" if nax_missing() else trial_error(True)
    return f"its trial failed: {why}" if why else ""


def nax_unused_because() -> str:
    """The reason why this engine does not use NAX here; empty if it does."""
    return nax_missing() or nax_failure()


@cache
def trial_error(nax: bool) -> str:
    """The reason why the engine's trial failed; empty if it passed."""
    found = facts()
    known = {
        "chip": found.chip, "architecture": found.architecture, "override": found.override,
        "os": found.os_version, "wheel": found.wheel,
    }  # fmt: skip
    return trial.trial_error(ENGINE, TRIAL_SECONDS, facts=known, options={"nax": nax})
