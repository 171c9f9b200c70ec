"""Counts of errors carried back, beside those of plain scores.

`PYTHONPATH=tests:tests/metal python -m counting_carried` prints them: cycles of a member's token
besides the products, by kernel and by the model of counting.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from counting import Counting, Counts
from networks import random_case
from networks_backward import carried_of

from eggroll.engines.gpu.dialect import KernelSource
from eggroll.engines.metal import MetalEngine


def launched(folder: Path, carried: bool, **shape: int) -> dict[str, Counts]:
    """Counts of every kernel that a threadgroup's call launches, by name and number."""
    case, names, launcher = random_case(1, **shape), list[str](), Counting(folder)

    def launch(source: KernelSource, *rest):
        known, made = len(launcher.kernels), launcher(source, *rest)
        names.extend([f"{len(names)} {source.name}"] * (len(launcher.kernels) - known))
        return made

    engine = MetalEngine(case.program, launcher=launch, members=shape["P"], nax=False)
    if carried:
        carried_of(case, "feedback").run(engine)
    else:
        engine.evaluate(engine.prepare(case.leaves), None, case.batch)
    return dict(zip(names, launcher.counts(), strict=True))


def cycles(folder: Path, carried: bool, **shape: int) -> dict[str, float]:
    """Cycles of a member's token by kernel, from what 8 tokens take beyond 4."""
    few, more = (launched(folder, carried, T=T, **shape) for T in (4, 8))
    return {name: more[name].minus(few[name]).cycles / 4 / shape["P"] for name in more}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        totals = []
        for carried in (False, True):
            found = cycles(Path(made), carried, D=64, V=256, L=1, P=32)
            totals.append(sum(found.values()))
            for name, count in found.items():
                print(f"{name:22} {count:8.0f}")
            print(f"{'all':22} {totals[-1]:8.0f}\n")
        print(f"scores alone / errors carried back: {totals[0] / totals[1]:.3f}")
