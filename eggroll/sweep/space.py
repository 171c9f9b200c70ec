"""The search space: axes declared beside the options, chosen and narrowed by words.

An option of a dataclass is swept where its annotation holds a Sweep; Range gives what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from eggroll.cli.command import NEAR, Range, flag
from eggroll.cli.help import hints_of
from eggroll.errors import InputError
from eggroll.training.config import Choice, Sweep

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Axis:
    """An option as a sweep tries it: one of `choices`, or a number from `low` to `high`."""

    name: str
    kind: Any  # type of its values
    allowed: Range | None
    low: float
    high: float
    log: bool  # even by ratio, not by difference
    choices: tuple[Choice, ...]
    when: tuple[Choice, ...]  # an option, and its values with which this one has an effect

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name}={','.join(map(_as_word, self.choices))}"
        return f"{self.name}={self.low:g}:{self.high:g}{':log' if self.log else ''}"

    def contains(self, value: Choice) -> bool:
        """True for a value that the axis can take."""
        return value in self.choices if self.choices else self.low <= value <= self.high  # type: ignore[operator]

    def has_effect(self, values: Mapping[str, Any], base: object) -> bool:
        """True if the option has an effect with these values, and those of `base` for the rest."""
        if not self.when:
            return True
        parent, *allowed = self.when
        return values.get(str(parent), getattr(base, str(parent))) in allowed

    def suggest(self, trial: optuna.Trial) -> Choice:
        """The value that Optuna wants to see tried."""
        if self.choices:
            value = trial.suggest_categorical(self.name, self.choices)
            assert value is not None
            return value
        if self.kind is float:
            return trial.suggest_float(self.name, self.low, self.high, log=self.log)
        step = self.allowed.step if self.allowed else 1
        low, high = int(self.low), int(self.high)
        return trial.suggest_int(self.name, low, high, step=step, log=self.log)

    def narrowed(self, text: str) -> Axis:
        """The axis that LOW:HIGH, LOW:HIGH:log or VALUE,VALUE... describes.

        Raises:
            InputError: it is none of these, or leaves what the option allows.
        """
        if ":" not in text:
            choices = tuple(self._value(word, text) for word in text.split(","))
            if len(set(choices)) < len(choices):
                raise self._bad(text, "a value comes twice", "name each once")
            return replace(self, choices=choices)
        low, high, *rest = text.split(":")
        if self.kind not in (int, float) or rest not in ([], ["log"]):
            raise self._bad(text, "that is no range", f"write {self.example()}")
        ends = tuple(float(self._value(word, text)) for word in (low, high))
        if not ends[0] < ends[1]:
            raise self._bad(text, f"{low} is not below {high}", "write LOW:HIGH")
        if rest and ends[0] <= 0:
            raise self._bad(
                text, f"a logarithm needs a number above 0, not {low}", "leave :log out"
            )
        if rest and self.kind is int and self.allowed and self.allowed.step > 1:
            raise self._bad(text, "even numbers have no :log", f"list them, as in {self.name}=2,8")
        return replace(self, low=ends[0], high=ends[1], log=bool(rest), choices=())

    def example(self) -> str:
        if self.kind in (int, float):
            return f"{self.name}=LOW:HIGH, {self.name}=LOW:HIGH:log or {self.name}=VALUE,VALUE"
        return f"{self.name}={','.join(map(_as_word, _members(self.kind)))}"

    def _value(self, word: str, text: str) -> Any:
        try:
            if self.kind in (int, float):
                value: Any = self.kind(word)
            else:
                value = {_as_word(member): member for member in _members(self.kind)}[word]
        except (KeyError, ValueError):
            raise self._bad(
                text, f"{word[:60]!r} is no value of it", f"write {self.example()}"
            ) from None
        if self.allowed and value not in self.allowed:
            needed = self.allowed.phrase(self.kind)
            raise self._bad(text, f"{word} is out of range", f"give {needed}")
        return value

    def _bad(self, text: str, why: str, way_out: str) -> InputError:
        return InputError(f"--search {self.name}={text[:60]}: {why}; {way_out}.")


def axes(kind: type) -> dict[str, Axis]:
    """Every axis that the options of a dataclass declare, by name, in declared order."""
    axes = {}
    for name, hint in hints_of(kind).items():
        value_type, *notes = get_args(hint) or (hint,)
        allowed = next((note for note in notes if isinstance(note, Range)), None)
        for low, high, log, choices, when in (note for note in notes if isinstance(note, Sweep)):
            members = choices or _members(value_type)
            axes[name] = Axis(name, value_type, allowed, low, high, log, members, when)
    return axes


def choose_axes(words: Sequence[str], base: object, *, strict: bool = True) -> list[Axis]:
    """The axes that words such as `alpha` or `alpha=1:8:log` name; one that decides comes first.

    base: the options as given. strict: complain of an axis without effect, else leave it out.

    Raises:
        InputError: an unknown, repeated, malformed or ineffective axis, or none.
    """
    declared, chosen = axes(type(base)), dict[str, Axis]()
    for word in words:
        name, equals, text = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name not in declared:
            similar = difflib.get_close_matches(name, declared, 1, NEAR)
            hint = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(declared)}."
            raise InputError(f"--search {word[:60]!r} is no option that can be swept: {hint}")
        if name in chosen:
            raise InputError(f"--search names {name} twice: name it once.")
        chosen[name] = declared[name].narrowed(text) if equals else declared[name]
    unused = [axis for axis in chosen.values() if not _has_effect_somewhere(axis, chosen, base)]
    if unused and strict:
        parent, *allowed = unused[0].when
        setting = chosen.get(str(parent)) or f"{parent}={_as_word(getattr(base, str(parent)))}"
        raise InputError(
            f"--search {unused[0].name} has no effect with {setting}: it needs {flag(str(parent))} "
            f"{' or '.join(map(_as_word, allowed))}."
        )
    if not chosen:
        raise InputError(f"--search is empty: name options to try, of {', '.join(declared)}.")
    return sorted((a for a in chosen.values() if a not in unused), key=lambda a: _depth(a, chosen))


def _has_effect_somewhere(axis: Axis, chosen: Mapping[str, Axis], base: object) -> bool:
    """True if the axis has an effect for some value of the option that it depends on."""
    if not axis.when or not (parent := chosen.get(str(axis.when[0]))):
        return axis.has_effect({}, base)
    possible = any(parent.contains(value) for value in axis.when[1:])
    return possible and _has_effect_somewhere(parent, chosen, base)


def _depth(axis: Axis, chosen: Mapping[str, Axis]) -> int:
    """The number of chosen axes that decide whether this one has an effect."""
    parent = chosen.get(str(axis.when[0])) if axis.when else None
    return 1 + _depth(parent, chosen) if parent else 0


def suggest(trial: optuna.Trial, space: Sequence[Axis], base: object) -> dict[str, Any]:
    """Values for the axes, without those that have no effect with the others' values."""
    values: dict[str, Any] = {}
    for axis in space:
        if axis.has_effect(values, base):
            values[axis.name] = axis.suggest(trial)
    return values


def baseline(space: Sequence[Axis], base: object) -> dict[str, Any]:
    """The options as given, as a first trial; empty if one lies outside its axis."""
    values = {axis.name: getattr(base, axis.name) for axis in space}
    return values if all(axis.contains(values[axis.name]) for axis in space) else {}


def _members(kind: Any) -> tuple[Choice, ...]:
    """The values of a type that has only some."""
    if kind is bool:
        return (False, True)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _as_word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
