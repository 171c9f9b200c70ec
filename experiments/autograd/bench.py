"""`python -m experiments.autograd bench`: every table in one process, cases in turn."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from eggroll.errors import InputError
from eggroll.files import write_whole
from experiments.autograd import ffn_tables, gates, mlp_tables, peers, report, tried
from experiments.autograd.kernels import GELUS, Kernels
from experiments.autograd.native import Native, peak_rate
from experiments.autograd.nodes import MASKS
from experiments.autograd.timing import CLOCKS, Figure, Times, interleave

MLP = (256, 784, 1024, 10)
FFN = (8 * 16, 64, 256)
FFN_STEPS = 30


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((x.partition(": ")[2] for x in lines if x.startswith("model name")), "unknown")


def milliseconds(times: Times) -> dict[str, dict[str, Figure]]:
    """Median and range over the rounds, by case and part."""
    return {
        case: {part: Figure.of(values).times(1e3) for part, values in parts.items()}
        for case, parts in times.items()
    }


def errors(mlp: mlp_tables.Problem, block: mlp_tables.Problem, torch: Any) -> dict[str, float]:
    """Largest error of the fused nodes' gradients against float64, by own and PyTorch's."""
    native, exact = Native(), Kernels()
    wanted = {"float64": mlp_tables.gradients(mlp, exact, "output", np.float64)}
    if torch is not None:
        wanted["PyTorch in float64"] = peers.mlp_gradients(torch, mlp.x, mlp.labels, mlp.layers)
    found = {
        f"two-layer node, mask of {mask}, {name}": mlp_tables.largest_error(
            mlp_tables.gradients(mlp, native, mask, np.float32), gradients
        )
        for mask in MASKS
        for name, gradients in wanted.items()
    }
    for kind in GELUS:
        words = kind, False, np.float64
        wanted = {"float64": ffn_tables.gradients(block, exact, *words)}
        if torch is not None:
            given = block.x, block.layers, block.labels
            wanted["PyTorch in float64"] = peers.ffn_gradients(torch, kind, *given)
        for slope, said in ((False, ""), (True, ", slope kept")):
            gradients = ffn_tables.gradients(block, native, kind, slope, np.float32)
            for name, right in wanted.items():
                error = mlp_tables.largest_error(gradients, right)
                found[f"FFN {kind}{said}, {name}"] = error
    return found


def one_thread() -> Any:
    """NumPy's products on one thread, as long as the answer lives.

    Raises:
        InputError: threadpoolctl is missing.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise InputError(
            "threadpoolctl is missing: pip install '.[examples]' brings it with scikit-learn."
        ) from None
    return threadpool_limits(1)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All tables; results are checked before anything is timed."""
    limits = one_thread()
    native = Native(threads=1, isa=args.isa)
    try:
        torch = peers.load_torch(1)
    except InputError as error:
        print(f"{error} Its rows are left out.", file=sys.stderr)
        torch = None
    clock = CLOCKS[args.clock]
    mlp, block = mlp_tables.problem(*MLP, clock), ffn_tables.problem(*FFN, clock)
    found: dict[str, Any] = {"parity": errors(mlp, block, torch)}

    def run(cases: Any, steps: int) -> Times:
        return interleave(cases, args.rounds, steps)

    products = run(mlp_tables.sgemm_cases(mlp, native, torch), args.steps)
    steps = run(mlp_tables.steps(mlp, native, torch, args.compile), args.steps)
    split = run(mlp_tables.in_tape(mlp, native), args.steps)
    alone = run(mlp_tables.isolated(mlp, native), 2 * args.steps)
    ffn = run(ffn_tables.steps(block, native, torch, args.compile), FFN_STEPS)
    rows = run(tried.all_cases(mlp, native), args.steps)
    operations = 2 * 2 * MLP[0] * MLP[1] * MLP[2]
    found |= {
        "machine": machine(), "isa": native.isa, "rounds": args.rounds, "steps": args.steps,
        "clock": args.clock,
        "peak": peak_rate(native, clock),
        "rates": {
            name: Figure.of(1e-9 * operations / x for x in parts["products"])
            for name, parts in products.items()
        },
        "mlp": milliseconds(steps), "in tape": milliseconds(split),
        "isolated": milliseconds(alone), "ffn": milliseconds(ffn),
        "tried": tried.answers(rows), "not here": tried.NOT_HERE,
        "gates": [
            gate._asdict()
            for gate in (
                *gates.of_mlp(steps, split, products), *gates.of_ffn(ffn),
                *gates.of_parity(found["parity"]),
            )
        ],
    }  # fmt: skip
    limits.restore_original_limits()
    return found


def main(args: argparse.Namespace) -> None:
    found = measure(args)
    if args.json:
        write_whole(args.json, json.dumps(found, indent=1).encode() + b"\n")
    print(report.tables(found))
