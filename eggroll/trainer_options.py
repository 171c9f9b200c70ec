"""The options of a Trainer, declared once: the checkpoint and config.json hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import numpy as np

from eggroll.cli import Range, check_names, check_ranges
from eggroll.config import Evolution
from eggroll.errors import InputError, in_python, shown
from eggroll.fitness import FitnessName
from eggroll.noise import slice_length
from eggroll.program import Program

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


@dataclass(frozen=True)
class Options(Evolution):
    """See Trainer, which has an argument for most of them."""

    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0
    threads: Annotated[int, Range(0, 1024)] = 0
    steps: Annotated[int, Range(1, 10**9)] = 1000
    fitness: FitnessName = "sign"
    carry: bool = False
    checkpoint_every: Annotated[int, Range(0, 10**9)] = 50

    group_size: ClassVar[int] = 2  # members that are compared: those of a pair
    seq_len: ClassVar[int] = 1  # rows of an update, as far as they are known when it begins

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Options of numbers of Python's or NumPy's.

        Raises:
            InputError: an option is unknown or of another type.
        """
        known, hints = [field.name for field in fields(cls)], get_type_hints(cls)
        if unknown := sorted(given.keys() - {*known}):
            raise InputError(
                f"Option {unknown[0]!r} is unknown: the options are {', '.join(known)}."
            )
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        for name, value in plain.items():
            kind = hints[name]
            if kind in WORDS and type(value) not in ((int, float) if kind is float else (kind,)):
                raise InputError(f"{name} is {shown(value)}: {WORDS[kind]} is needed.")
        return cls(**plain)

    def check(self, program: Program) -> None:
        """Raises InputError, in the words of a caller from Python."""
        with in_python():
            check_ranges(self)
            check_names(self)
        if reason := self.estimator_class.refuses_values:
            raise InputError(
                f'estimator is {self.estimator!r}: {reason}; use "eggroll" or "token-credit".'
            )
        with in_python():
            self.estimator_class.check(self)
            self.rule_class.check(self, self.estimator_class)
        if self.fitness != "sign" and self.estimator_class.by_token:
            raise InputError(
                f"fitness is {self.fitness!r}: estimator {self.estimator} credits the rows "
                'themselves; leave it out, or use estimator="eggroll".'
            )
        if self.fitness != "sign" and not self.rule_class.any_scale:
            raise InputError(
                f"fitness is {self.fitness!r}: rule {self.rule} knows the scale of the votes of "
                'fitness "sign" alone; use rule="sign" or "whitened".'
            )
        if self.estimator_class.by_token and len(program.policies) > 1:
            raise InputError(
                f"The network has {len(program.policies)} policies and estimator {self.estimator} "
                'credits the actions of one: declare one, or use estimator="eggroll".'
            )
        longest = max((slice_length(leaf.shape, self.rank) for leaf in program.leaves), default=0)
        if longest > 1 << (self.table_bits - 1):
            raise InputError(
                f"table_bits is {self.table_bits}: half of the noise table must hold the longest "
                f"slice, {longest} bytes; try table_bits={(longest - 1).bit_length() + 1}."
            )


def check_trainable(net: Program) -> None:
    """Raises InputError for a network that no values from outside can train."""
    if not isinstance(net, Program):
        raise InputError(
            f"net is of type {type(net).__name__}: an eggroll.Program is needed, such as "
            "networks.mlp(27, [64], 9)."
        )
    net.check()
    if net.scored:
        raise InputError(
            "The network has a score: a language model is trained by eggroll.train; leave the "
            "score out, and give its logits to a caller by output."
        )
    if not net.leaves:
        raise InputError("The network has no weights: give it a linear operation, for one.")
