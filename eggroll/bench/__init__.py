"""The population-scaling benchmark, `python -m eggroll.bench`; the command is in command.py.

Here are the networks it times, and rates of other programs for them.
"""

from typing import Literal, NamedTuple

Preset = Literal["seed", "paper", "small", "medium"]
PRESETS: dict[str, dict[str, int]] = {
    "seed": {"width": 256, "layers": 1, "vocabulary": 1024, "seq_len": 16},
    "paper": {"width": 256, "layers": 6, "vocabulary": 256, "seq_len": 16},
    "small": {"width": 64, "layers": 1, "vocabulary": 256, "seq_len": 16},
    "medium": {"width": 128, "layers": 2, "vocabulary": 256, "seq_len": 16},
}


class PublishedRate(NamedTuple):
    """Member-tokens per second of whole steps, rank 1, by another program on another machine."""

    name: str
    tokens_per_second: int


# By preset: a rate says nothing about another network.
PUBLISHED = {
    "seed": PublishedRate("MLX port, an Apple GPU", 97_000),
    "paper": PublishedRate(
        "JAX trainer, 2 Zen 4 cores, P 1,024", 1_770
    ),  # records/2026-11-21-bench
}
