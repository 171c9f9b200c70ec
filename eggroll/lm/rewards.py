"""Ready rewards: functions of (prompt, answer, row) that give a number, larger for better answers.

row: the object of a line of prompts.jsonl, in which a reward may find the right answer. All are in
0 to 1 unless said.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import Any, Final, NamedTuple

from eggroll.errors import InputError, shown

Row = Mapping[str, Any]
Reward = Callable[[str, str, Row], float]
JSON_TYPES: Final[dict[str, Any]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip


class RewardError(InputError):
    """A reward failed, or gave no number."""


def exact(field: str = "answer") -> Reward:
    """1 if the answer is that of the row, apart from spaces at its ends."""

    def reward(prompt: str, answer: str, row: Row) -> float:
        return float(answer.strip() == str(_field(row, field)).strip())

    return reward


def contains(field: str = "answer") -> Reward:
    """1 if the row's answer stands somewhere in the text, as a whole word."""

    def reward(prompt: str, answer: str, row: Row) -> float:
        wanted = str(_field(row, field)).strip()
        # A number is no part of another.
        before, after = (r"(?<![\w.-])", r"(?!\w|\.\d)") if _is_number(wanted) else WHOLE
        return float(re.search(before + re.escape(wanted) + after, answer) is not None)

    return reward


def matches(pattern: str) -> Reward:
    """1 if the whole answer, apart from spaces at its ends, fits a regular expression."""
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise InputError(
            f"the pattern {shown(pattern)} is no regular expression ({error}): correct it."
        ) from None
    return lambda prompt, answer, row: float(compiled.fullmatch(answer.strip()) is not None)


def valid_json(schema: Mapping[str, Any] | None = None) -> Reward:
    """1 if the answer is JSON, and fits the schema; 0.2 if it is JSON that does not.

    schema: of JSON Schema the words type, required, properties, items, enum and
    additionalProperties: false.
    """
    if schema is not None:
        _check_schema(schema)

    def reward(prompt: str, answer: str, row: Row) -> float:
        try:
            value = json.loads(answer, parse_constant=_number_of_json)
        except (ValueError, RecursionError):
            return 0.0
        return 1.0 if schema is None or _fits(value, schema) else 0.2

    return reward


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+", text) is not None


def _number_of_json(name: str) -> float:
    raise ValueError(f"{name} is none of JSON's numbers")


WHOLE: Final = r"(?<!\w)", r"(?!\w)"
KNOWN: Final = {"type", "required", "properties", "items", "enum", "additionalProperties"}


def _check_schema(schema: Any) -> None:
    if not isinstance(schema, Mapping):
        raise InputError(f"a schema is {shown(schema)}: an object is needed.")
    if unknown := sorted(schema.keys() - KNOWN - {"title", "description", "$schema"}):
        raise InputError(
            f"the schema has {unknown[0]!r}, which is not checked: use {', '.join(sorted(KNOWN))}, "
            "or a reward of your own."
        )
    kinds = {"enum": list, "required": list, "properties": Mapping, "items": Mapping}
    for name, kind in kinds.items():
        if name in schema and not isinstance(schema[name], kind):
            raise InputError(
                f"the schema has {name} {shown(schema[name])}: "
                f"{'an array' if kind is list else 'an object'} is needed."
            )
    if not isinstance(more := schema.get("additionalProperties", True), bool):
        raise InputError(
            f"the schema has additionalProperties {shown(more)}: true and false are checked."
        )
    if "type" in schema and not (isinstance(schema["type"], str) and schema["type"] in JSON_TYPES):
        raise InputError(
            f"the schema has type {shown(schema['type'])}: one of {', '.join(JSON_TYPES)} is "
            "needed."
        )
    for inner in [*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])]:
        _check_schema(inner)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema and value not in schema["enum"]:
        return False
    if kind := schema.get("type"):
        number = kind in ("integer", "number")
        if not isinstance(value, JSON_TYPES[kind]) or (number and isinstance(value, bool)):
            return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if any(name not in value for name in schema.get("required", ())):
            return False
        if schema.get("additionalProperties") is False and value.keys() - properties.keys():
            return False
        return all(_fits(value[name], inner) for name, inner in properties.items() if name in value)
    if isinstance(value, list) and "items" in schema:
        return all(_fits(item, schema["items"]) for item in value)
    return True


def valid_python() -> Reward:
    """1 if the answer, or the first fenced block in it, is Python that parses; it is never run."""

    def reward(prompt: str, answer: str, row: Row) -> float:
        fenced = re.search(r"```(?:python3?|py)?\s*\n(.*?)```", answer, re.DOTALL | re.IGNORECASE)
        text = fenced[1] if fenced else answer
        if not text.strip():
            return 0.0
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return 0.0
        return 1.0

    return reward


def length(low: int, high: int, *, words: bool = True) -> Reward:
    """1 for an answer of low to high words, or letters; less by its distance over the bound."""
    if not 0 <= low <= high:
        raise InputError(f"length is {low} to {high}: 0 <= low <= high is needed.")

    def reward(prompt: str, answer: str, row: Row) -> float:
        count = len(answer.split()) if words else len(answer)
        beyond = max(low - count, count - high, 0)
        return max(0.0, 1.0 - beyond / max(low if count < low else high, 1))

    return reward


def countdown(target: str = "target", numbers: str = "numbers") -> Reward:
    """1 if the last line of the answer is arithmetic on the row's numbers, each used at most once,
    that makes its target; 0.1 if it is arithmetic on these numbers that makes another.

    Numbers, + - * / and brackets alone are computed, exactly.
    """

    def reward(prompt: str, answer: str, row: Row) -> float:
        given = Counter(Fraction(str(number)) for number in _field(row, numbers))
        wanted = Fraction(str(_field(row, target)))
        lines = [line for line in answer.strip().splitlines() if line.strip()]
        text = lines[-1].split("=")[0] if lines else ""
        try:
            value, used = _computed(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return 0.0
        if Counter(map(Fraction, used)) - given:
            return 0.0
        return 1.0 if value == wanted else 0.1

    return reward


def _computed(node: ast.expr) -> tuple[Fraction, list[int]]:
    """The value of an expression and its numbers; a ValueError for anything but arithmetic."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 10**9:
        return Fraction(node.value), [node.value]
    if isinstance(node, ast.BinOp):
        (a, left), (b, right) = _computed(node.left), _computed(node.right)
        for kind, value in ((ast.Add, a + b), (ast.Sub, a - b), (ast.Mult, a * b)):
            if isinstance(node.op, kind):
                return value, left + right
        if isinstance(node.op, ast.Div):
            return a / b, left + right
    raise ValueError("no arithmetic")


def classified(score: Callable[[str], float]) -> Reward:
    """The number that a classifier of one's own gives the answer."""
    return lambda prompt, answer, row: float(score(answer))


def weighted(*parts: tuple[float, Reward]) -> Reward:
    """The sum of rewards times their weights."""
    if not parts:
        raise InputError("weighted was given no reward: give pairs of weight and reward.")
    counted = [(weight, part, arity(part)) for weight, part in parts]
    return lambda *given: sum(weight * part(*given[:count]) for weight, part, count in counted)


def _field(row: Row, name: str) -> Any:
    if name not in row:
        raise RewardError(
            f"the row {shown(dict(row))} has no field {name!r}, which the reward needs: add it to "
            "the data, or use another reward."
        )
    return row[name]


BY_NAME: Final[dict[str, Callable[[], Reward]]] = {
    "exact": exact,
    "contains": contains,
    "json": valid_json,
    "python": valid_python,
    "countdown": countdown,
}


# Calls of a reward that may fail.


MOST: Final = 1e100  # of a reward: sums of many fit a float


class _TooLong(BaseException):  # no Exception, which a reward may catch
    pass


def score(reward: Callable[..., Any], prompt: str, answer: str, row: Row, seconds: float) -> float:
    """The reward of an answer.

    reward: of (prompt, answer) or (prompt, answer, row); seconds: most that it may take, where this
    is the main thread, whose Python code alone can be interrupted.

    Raises:
        RewardError: it raised, hung, or gave what is no finite number; names prompt and answer.
    """
    # A reward may change the row that it is given.
    arguments = (prompt, answer, *([copy.deepcopy(row)] if arity(reward) == 3 else []))
    where = f"for prompt {shown(prompt, 80)} and answer {shown(answer, 80)}"
    try:
        with time_limit(seconds):
            value = reward(*arguments)
    except _TooLong:
        raise RewardError(
            f"the reward took more than {seconds:g} seconds {where}: make it faster, or raise "
            "--reward-seconds."
        ) from None
    except RewardError:
        raise
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        raise RewardError(f"the reward raised {shown(text, 120)} {where}: correct it.") from error
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, str | bytes) and abs(number := float(value)) <= MOST:
            return number
    raise RewardError(
        f"the reward gave {shown(value)} {where}: a finite number is needed, up to {MOST:g}."
    )


def arity(reward: Callable[..., Any]) -> int:
    """Arguments that a reward takes: 2, or 3 if it can be given the row as well."""
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return 3 if len(placed) >= 3 else 2


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the block by _TooLong after so many seconds, where this is the main thread."""
    alarm = signal.getsignal(signal.SIGALRM)
    if seconds <= 0 or threading.current_thread() is not threading.main_thread() or alarm is None:
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, if the first is swallowed
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)


class Answered(NamedTuple):
    """Prompts, answers to them, and the rows they came from, equally many."""

    prompts: Sequence[str]
    answers: Sequence[str]
    rows: Sequence[Row]


def scores(reward: Callable[..., Any], answered: Answered, seconds: float) -> list[float]:
    """The rewards of answers, one each; see `score`."""
    return [
        score(reward, prompt, answer, row, seconds)
        for prompt, answer, row in zip(*answered, strict=True)
    ]
