"""The float kernels beside OpenBLAS (NumPy), MKL and oneDNN (PyTorch), one thread each.

Every round measures all of them in turn, and `peak`, multiply-adds on registers alone, between;
ratios are of the same round. Seconds are CPU time of the one thread, so that a shared machine
disturbs less. Results are compared with double precision first. Without PyTorch its columns are
left out, which is said.

    python benchmarks/float_kernels.py --rounds 15 --json float_kernels.json
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import tyro
from checks import write_json

from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.errors import InputError
from eggroll.files import check_place

ONE = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "MKL", "OMP")}
Calls = dict[str, Callable[[], Any]]

# (kind, m, n, k, where it occurs); nt: forward, nn: inputs' gradient, tn: weights' gradient.
SHAPES = [
    ("nt", 64, 256, 256, "PPO hidden layer, batch 64"),
    ("nt", 256, 256, 256, "batch 256"),
    ("nt", 512, 256, 256, "batch 512"),
    ("nt", 1024, 256, 256, "batch 1,024"),
    ("nn", 64, 256, 256, "its backward, dX"),
    ("nn", 1024, 256, 256, "its backward, dX"),
    ("tn", 256, 256, 64, "its backward, dW"),
    ("tn", 256, 256, 1024, "its backward, dW"),
    ("nt", 64, 256, 27, "PPO first layer"),
    ("nt", 512, 256, 27, "PPO first layer"),
    ("tn", 256, 27, 64, "its backward, dW"),
    ("nt", 64, 10, 256, "PPO heads"),
    ("nn", 64, 256, 10, "its backward, dX"),
    ("tn", 10, 256, 64, "its backward, dW"),
    ("nt", 256, 1024, 784, "MLP first layer"),
    ("tn", 1024, 784, 256, "its backward, dW1"),
    ("nt", 256, 10, 1024, "MLP second layer"),
    ("tn", 10, 1024, 256, "its backward, dW2"),
    ("nn", 256, 1024, 10, "its backward, d_a1"),
    ("nt", 128, 256, 64, "FFN first layer"),
    ("nt", 128, 64, 256, "FFN second layer"),
]
ADAM = 207_114  # parameters of 27-4x256-9+1
ELEMENTS = 128 * 256  # the FFN's hidden layer


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/float_kernels.py."""

    rounds: Annotated[int, Range(1, 1000)] = 15
    """Rounds over everything; the median counts."""
    isa: str = ""
    """Instruction set; empty is the fastest."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the figures as JSON."""


class Product:
    """One shape, by everybody."""

    def __init__(self, kernels: Any, shape: tuple[str, int, int, int, str], torch: Any) -> None:
        import numpy as np

        kind, m, n, k, _ = shape
        rng = np.random.default_rng(0)
        sides = (k, m) if kind == "tn" else (m, k), (n, k) if kind == "nt" else (k, n)
        self.a, self.b = (rng.standard_normal(s).astype(np.float32) for s in sides)
        self.out = np.empty((m, n), np.float32)
        self.flops = 2 * m * n * k
        left = self.a.T if kind == "tn" else self.a
        right = self.b.T if kind == "nt" else self.b
        self.exact = left.astype(float) @ right.astype(float)
        self.calls: Calls = {"ours": self._ours(kernels, kind)}
        if kind != "tn":
            self.calls["ours, packed"] = self._packed(kernels, kind)
        self.calls["OpenBLAS"] = lambda: np.matmul(left, right, out=self.out)
        if torch is not None:
            self._torch(torch, kind)

    def _ours(self, kernels: Any, kind: str) -> Callable[[], Any]:
        m, n = self.out.shape
        k, code = self.a.size // m, {"nn": 0, "nt": 1, "tn": 2}[kind]
        a, b, c = (x.ctypes.data for x in (self.a, self.b, self.out))
        function = kernels.table.sgemm
        return lambda: function(
            code, m, n, k, a, self.a.shape[1], b, self.b.shape[1], c, n, 0, 1
        )  # fmt: skip

    def _packed(self, kernels: Any, kind: str) -> Callable[[], Any]:
        (m, n), k = self.out.shape, self.a.shape[1]
        panels = kernels.pack(self.b, transposed=kind == "nt")
        self.panels = panels  # kept alive
        a, b, c = (x.ctypes.data for x in (self.a, panels, self.out))
        function = kernels.table.sgemm_packed
        return lambda: function(m, n, k, a, k, b, c, n, 0, 1)

    def _torch(self, torch: Any, kind: str) -> None:
        a, b, out = (torch.from_numpy(x) for x in (self.a, self.b, self.out))
        left, right = a.T if kind == "tn" else a, b.T if kind == "nt" else b
        self.calls["MKL"] = lambda: torch.mm(left, right, out=out)
        if kind != "nt" or not torch.backends.mkldnn.is_available():
            return
        ops = torch.ops.mkldnn
        weights = ops._reorder_linear_weight(b, self.a.shape[0])  # packed once, like ours
        self.calls["oneDNN"] = lambda: ops._linear_pointwise(a, weights, None, "none", [], "")

    def check(self) -> None:
        """Every call's result against double precision."""
        import numpy as np

        k = self.flops // 2 // self.out.size
        for name, call in self.calls.items():
            self.out[:] = np.nan
            result = call()
            got = result.numpy() if name == "oneDNN" else self.out
            worst = np.abs(got - self.exact).max()
            if not worst < 1e-6 * (k + 10):
                sys.exit(f"{name}: a product of depth {k} is off by {worst:.2g}")


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of one call."""
    call()  # not timed: brings its operands into the caches
    began = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - began) / repeats


def peak(kernels: Any) -> float:
    """Floating-point operations a second on registers."""
    began = time.thread_time()
    done = kernels.table.peak(300_000)
    return 2 * done / (time.thread_time() - began)


def middle(values: list[float], scale: float) -> list[float]:
    """[median, least, most], scaled."""
    return [round(f(values) * scale, 3) for f in (statistics.median, min, max)]


def products(kernels: Any, torch: Any, rounds: int) -> list[dict[str, Any]]:
    """GF/s and share of the peak of every shape."""
    cases = [(shape, Product(kernels, shape, torch)) for shape in SHAPES]
    for _, case in cases:
        case.check()
    rates: list[dict[str, list[float]]] = [{n: [] for n in c.calls} for _, c in cases]
    shares: list[dict[str, list[float]]] = [{n: [] for n in c.calls} for _, c in cases]
    peaks: list[float] = []
    for _ in range(rounds):
        for (_, case), rate, share in zip(cases, rates, shares, strict=True):
            peaks.append(peak(kernels))
            for name, call in case.calls.items():
                per_second = case.flops / seconds(call, max(1, 40_000_000 // case.flops))
                rate[name].append(per_second)
                share[name].append(per_second / peaks[-1])
    print(f"peak: {statistics.median(peaks) / 1e9:.1f} GF/s (multiply-adds on registers)")
    return [
        {
            "kind": kind, "m": m, "n": n, "k": k, "what": what,
            "gflops": {name: middle(v, 1e-9) for name, v in rate.items()},
            "of_peak": {name: middle(v, 1) for name, v in share.items()},
        }
        for ((kind, m, n, k, what), _), rate, share in zip(cases, rates, shares, strict=True)
    ]  # fmt: skip


def print_products(rows: list[dict[str, Any]]) -> None:
    """A Markdown table of medians in GF/s; the share of the peak follows ours."""
    names = ["ours", "ours, packed", "OpenBLAS", "MKL", "oneDNN"]
    names = [name for name in names if any(name in row["gflops"] for row in rows)]
    print("| product | m x n x k | " + " | ".join([*names, "of peak"]) + " |")
    print("|" + "---|" * (len(names) + 3))
    for row in rows:
        cells = []
        for name in names:
            found = row["gflops"].get(name)
            cells.append(f"{found[0]:.0f} ({found[1]:.0f}-{found[2]:.0f})" if found else "")
        size = f"{row['kind']} {row['m']} x {row['n']} x {row['k']}"
        print(f"| {row['what']} | {size} | " + " | ".join(cells), end="")
        print(f" | {row['of_peak']['ours'][0]:.2f} |")


def element_calls(kernels: Any, torch: Any) -> dict[str, Calls]:
    """Adam, GELU and softmax, ours beside PyTorch's."""
    import numpy as np

    rng, table = np.random.default_rng(0), kernels.table
    state = [rng.standard_normal(ADAM).astype(np.float32) for _ in range(4)]
    np.abs(state[3], out=state[3])
    x, dy, y = (rng.standard_normal(ELEMENTS).astype(np.float32) for _ in range(3))
    logits, out = rng.standard_normal((512, 9)).astype(np.float32), np.empty((512, 9), np.float32)
    at = {id(v): v.ctypes.data for v in (*state, x, dy, y, logits, out)}
    keep = [*state, x, dy, y, logits, out]
    w, g, m, v, px, pdy, py, pl, po = (at[id(a)] for a in keep)

    def ours(call: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        return lambda: (keep, call(*arguments))

    adam = ours(table.adam, ADAM, w, g, m, v, 3e-4, 0.9, 0.999, 1e-8, 1.0, 1000)
    calls: dict[str, Calls] = {"Adam, 207,114 parameters": {"ours": adam}}
    calls["sum of squares, 207,114"] = {"ours": ours(table.sum_squares, ADAM, g)}
    for code, kind in enumerate(("erf", "tanh")):
        calls[f"GELU {kind}, 128 x 256"] = {"ours": ours(table.gelu, code, ELEMENTS, px, py, None)}
        backward = ours(table.gelu_backward, code, ELEMENTS, px, pdy, py)
        calls[f"GELU {kind} backward"] = {"ours": backward}
    calls["softmax, 512 x 9"] = {"ours": ours(table.softmax, 512, 9, pl, 9, po, 9)}
    if torch is not None:
        add_torch(calls, torch, state, x, dy, logits)
    return calls


def add_torch(
    calls: dict[str, Calls], torch: Any, state: list[Any], x: Any, dy: Any, logits: Any
) -> None:
    """PyTorch's versions of the same."""
    weights = torch.nn.Parameter(torch.from_numpy(state[0].copy()))
    weights.grad = torch.from_numpy(state[1])
    for fused in (False, True):
        adam = torch.optim.Adam([weights], lr=3e-4, fused=fused)
        name = "PyTorch, fused" if fused else "PyTorch"
        calls["Adam, 207,114 parameters"][name] = adam.step
    gradient = weights.grad
    calls["sum of squares, 207,114"]["PyTorch"] = lambda: torch.linalg.vector_norm(gradient)
    tx, tdy, tl = (torch.from_numpy(a) for a in (x, dy, logits))
    aten = torch.ops.aten
    for kind, name in (("erf", "none"), ("tanh", "tanh")):

        def forward(name: str = name) -> Any:
            return torch.nn.functional.gelu(tx, approximate=name)

        def backward(name: str = name) -> Any:
            return aten.gelu_backward(tdy, tx, approximate=name)

        calls[f"GELU {kind}, 128 x 256"]["PyTorch"] = forward
        calls[f"GELU {kind} backward"]["PyTorch"] = backward
    calls["softmax, 512 x 9"]["PyTorch"] = lambda: torch.softmax(tl, 1)


def elements(kernels: Any, torch: Any, rounds: int) -> list[dict[str, Any]]:
    """Microseconds a call."""
    calls = element_calls(kernels, torch)
    taken = {what: {name: [] for name in group} for what, group in calls.items()}
    for i in range(rounds + 1):  # the first warms up
        for what, group in calls.items():
            for name, call in group.items():
                value = seconds(call, 20)
                if i:
                    taken[what][name].append(value)
    return [
        {"what": what, "microseconds": {name: middle(v, 1e6) for name, v in group.items()}}
        for what, group in taken.items()
    ]


def print_elements(rows: list[dict[str, Any]]) -> None:
    """A Markdown table of medians in microseconds."""
    names = list(dict.fromkeys(name for row in rows for name in row["microseconds"]))
    print("\n| microseconds | " + " | ".join(names) + " |")
    print("|" + "---|" * (len(names) + 1))
    for row in rows:
        found = (row["microseconds"].get(name) for name in names)
        cells = (f"{f[0]:.1f} ({f[1]:.1f}-{f[2]:.1f})" if f else "" for f in found)
        print(f"| {row['what']} | " + " | ".join(cells) + " |")


def load_torch() -> Any:
    """PyTorch on one thread, or None, which is said."""
    if not find_spec("torch"):
        print("torch is missing: pip install '.[experiments]' brings it; its columns are left out.")
        return None
    import torch

    torch.set_num_threads(1)
    return torch


def check(options: Options) -> Any:
    """The kernels that the options name.

    Raises:
        InputError: an option is out of range, or the kernels were not built.
    """
    from float_kernels import Kernels, isas

    cli.check_ranges(options)
    check_place("--json", options.json)
    try:
        if options.isa and options.isa not in isas():
            raise InputError(
                f"--isa is {options.isa!r}: one of {', '.join(isas())} is needed here."
            )
        return Kernels(options.isa or None)
    except (ImportError, ValueError) as error:  # FLOAT_KERNELS_ISA names none
        raise InputError(str(error)) from None


@cli.command(
    Options,
    name="benchmarks/float_kernels.py",
    about="The float kernels beside OpenBLAS, MKL and oneDNN, one thread each, checked first.",
)
def main(options: Options) -> None:
    kernels = check(options)
    from float_kernels import isas

    torch = load_torch()
    print(f"{platform.processor() or platform.machine()}; ours: {kernels.table.isa.decode()} of "
          f"{', '.join(isas())}; {options.rounds} rounds, medians (range)")  # fmt: skip
    found = {"products": products(kernels, torch, options.rounds)}
    print_products(found["products"])
    found["elements"] = elements(kernels, torch, options.rounds)
    print_elements(found["elements"])
    write_json(options.json, found)


if __name__ == "__main__":
    if not ONE.items() <= os.environ.items():  # before a library reads them
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE)
    sys.exit(main())
