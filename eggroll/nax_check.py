"""`nax_check` under eggroll's roof: MLX's use of this Apple GPU's matrix units, with reasons."""

from nax_check import (
    Decision,
    Facts,
    Outcome,
    Reason,
    decide,
    effective_architecture,
    gate,
    generation,
    is_nax_available,
    read_facts,
    run_child,
    tf32_enabled,
    try_product,
)

__all__ = [
    "Decision",
    "Facts",
    "Outcome",
    "Reason",
    "decide",
    "effective_architecture",
    "gate",
    "generation",
    "is_nax_available",
    "read_facts",
    "run_child",
    "tf32_enabled",
    "try_product",
]
