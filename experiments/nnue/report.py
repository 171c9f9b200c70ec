"""Tables of a run, from its looks alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.nnue.training import Look

Key = tuple[str, str]  # features, way


def groups(looks: Sequence[Look]) -> dict[Key, dict[int, list[Look]]]:
    """Looks by feature set and way, then by seed."""
    found: dict[Key, dict[int, list[Look]]] = {}
    for look in looks:
        found.setdefault((look.features, look.way), {}).setdefault(look.seed, []).append(look)
    return found


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and the range where there are several values."""
    mean, ends = form.format(statistics.fmean(values)), (min(values), max(values))
    if len(values) == 1:
        return mean
    low, high = (form.format(end) for end in ends)
    return f"{mean} ({low} to {high})"


def at_share(looks: Sequence[Look], share: float) -> Look:
    """The look next to a share of the run's seconds."""
    wanted = share * looks[-1].seconds
    return min(looks[1:], key=lambda look: abs(look.seconds - wanted))


def best_torch(found: dict[Key, dict[int, list[Look]]], features: str, seed: int) -> float | None:
    """The least squared error at the end of PyTorch's ways; None without any."""
    ends = [
        of[seed][-1].squares
        for (which, way), of in found.items()
        if which == features and way.startswith("torch") and seed in of
    ]
    return min(ends, default=None)


def drops(
    found: dict[Key, dict[int, list[Look]]], key: Key, variance: dict[str, float]
) -> list[float]:
    """The drop of each seed's squared error from the constant's, in that of PyTorch's best way."""
    made = []
    for seed, looks in found[key].items():
        torch, start = best_torch(found, key[0], seed), variance.get(key[0])
        if torch is not None and start is not None:
            made.append((start - looks[-1].squares) / (start - torch))
    return made


def table(looks: Sequence[Look], variance: dict[str, float]) -> str:
    """The end of every way: squared error, drop, positions."""
    lines = [
        "| features | way | seeds | squared error | cross entropy | drop, of PyTorch's "
        "| positions | positions/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = groups(looks)
    for key, seeds in found.items():
        ends = [of[-1] for of in seeds.values()]
        dropped = drops(found, key, variance)
        cells = [
            *key, str(len(seeds)), spread([x.squares for x in ends], "{:.5f}"),
            spread([x.entropy for x in ends], "{:.5f}"),
            spread(dropped, "{:.1%}") if dropped else "not measured",
            spread([x.positions / 1e6 for x in ends], "{:.1f} M"),
            spread([x.positions / max(x.seconds, 1e-9) / 1e3 for x in ends], "{:.0f} k"),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def factoriser_table(looks: Sequence[Look]) -> str:
    """Squared error at a tenth and at the end of the run, and pace, of each feature set."""
    lines = [
        "| way | features | at 10 % | at the end | positions/s |",
        "|---|---|---|---|---|",
    ]
    for (features, way), seeds in sorted(groups(looks).items(), key=lambda item: item[0][::-1]):
        if not features.startswith("half"):
            continue
        rows = list(seeds.values())
        early = spread([at_share(row, 0.1).squares for row in rows], "{:.5f}")
        late = spread([row[-1].squares for row in rows], "{:.5f}")
        pace = [row[-1].positions / max(row[-1].seconds, 1e-9) / 1e3 for row in rows]
        lines.append(f"| {way} | {features} | {early} | {late} | {spread(pace, '{:.0f} k')} |")
    return "\n".join(lines)
