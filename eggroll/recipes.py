"""Settings of a run that go well together, by name."""

from __future__ import annotations

from typing import Any, Literal

RecipeName = Literal["paper", "language", "feedback"]

# Recommended combinations, chosen by --recipe; the first is the paper's, which is the default.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "language": {
        "estimator": "token-credit",
        "score_bits": 8,
        "rule": "whitened",
        "sigma_shift": 2,
        "pop": 4096,
        "seq_len": 32,
        "steps": 2000,
    },
    "feedback": {
        "estimator": "feedback",
        "rule": "adam",
        "pop": 128,
        "seq_len": 16,
        "steps": 6000,
    },
}


class OverRecipe(type):
    """Makes a class whose options not given are those of the recipe that is, by name."""

    def __call__(cls, *args: Any, **given: Any) -> Any:
        recipe = given.get("recipe")
        brings = RECIPES.get(recipe, {}) if isinstance(recipe, str) else {}
        return super().__call__(*args, **brings | given)
