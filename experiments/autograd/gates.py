"""Acceptance: what a run must reach, what it reached, and whether that is enough."""

from __future__ import annotations

from typing import NamedTuple

from experiments.autograd.kernels import GELUS
from experiments.autograd.timing import Figure, Times, ratio

PARITY = 1e-5


class Gate(NamedTuple):
    """figure: median and range of the rounds; met: None where a peer is missing."""

    name: str
    wanted: str
    figure: Figure | None
    met: bool | None


def at_most(name: str, limit: float, figure: Figure) -> Gate:
    return Gate(name, f"<= {limit:g}", figure, figure.median <= limit)


def at_least(name: str, limit: float, figure: Figure | None) -> Gate:
    met = None if figure is None else figure.median >= limit
    return Gate(name, f">= {limit:g}", figure, met)


def of_mlp(mlp: Times, split: Times, products: Times) -> list[Gate]:
    """The tape's cost, the ReLU's share, and the step against PyTorch's."""
    found = [at_most("tape ÷ no tape, MLP", 1.05, ratio(mlp, CASE, "no tape", "total"))]
    for case, part, said in (
        ("two-layer node", "d_a1", "d_a1 and ReLU"),
        ("two-layer node, mask of bits", "d_a1", "d_a1 and ReLU"),
        ("plain nodes", "relu", "ReLU"),
    ):
        share = ratio(split, case, case, part, of="profiled")
        found.append(at_most(f"{said} ÷ backward, {case}", 0.10, share))
    if "PyTorch" not in mlp:
        return [*found, at_least("PyTorch ÷ own, MLP step", 1.37, None)]
    products_ratio = ratio(products, "PyTorch", "own", "products")
    limit = 1.37 if products_ratio.median >= 1.5 else 1.0
    quotient = ratio(mlp, "PyTorch", CASE, "total")
    said = f"PyTorch ÷ own, MLP step (own ÷ PyTorch sgemm {products_ratio.median:.2f})"
    return [*found, at_least(said, limit, quotient)]


CASE = "tape, two-layer node"


def of_ffn(ffn: Times) -> list[Gate]:
    """The fused backward call against plain nodes and PyTorch."""
    found = []
    for kind in GELUS:
        own = f"{kind}: fused, slope kept"
        unfused = ratio(ffn, f"{kind}: unfused", own, "backward")
        found.append(at_least(f"unfused ÷ fused, FFN backward, {kind}", 2.7, unfused))
        peer = f"{kind}: PyTorch"
        figure = ratio(ffn, peer, own, "backward") if peer in ffn else None
        found.append(at_least(f"PyTorch ÷ fused, FFN backward, {kind}", 2.5, figure))
    return found


def of_parity(errors: dict[str, float]) -> list[Gate]:
    """The largest error of every fused node against float64."""
    worst = max(errors, key=lambda name: errors[name])
    figure = Figure(errors[worst], errors[worst], errors[worst])
    return [at_most(f"parity, worst of {len(errors)}: {worst}", PARITY, figure)]
