"""Sentences of errors: what is cut, what is shown, and what a package is missed for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eggroll import _extension, errors
from eggroll.errors import InputError, in_python, missing_extra, object_in, shown


@pytest.mark.parametrize(
    ("sentence", "cut"),
    [
        ("a" * 240, "a" * 240),
        ("ab" * 120 + "c", "ab" * 80 + " [...] " + ("ab" * 120 + "c")[-60:]),
        (" ".join("ab" * 25 for _ in range(9)) + "c" * 42, None),
        (" ".join("ab" * 25 for _ in range(9)) + "c" * 43, (310, 180)),
    ],
)
def test_long_words_and_sentences_lose_their_middle(sentence: str, cut: Any):
    if isinstance(cut, tuple):
        assert len(sentence) == 501
        cut = f"{sentence[: cut[0]]} [...] {sentence[-cut[1] :]}"
    assert str(InputError(sentence)) == (cut or sentence)


def test_values_are_shown_up_to_sixty_characters():
    assert shown("x" * 58) == repr("x" * 58)
    assert shown("x" * 59) == repr("x" * 59)[:60] + "..."
    assert shown([1, 2], most=5) == "[1, 2..."
    assert shown(10**5000) == "a int"


def test_options_are_named_as_python_has_them():
    with pytest.raises(InputError) as caught, in_python():
        raise InputError("--group-size is 3 at --pop 8: give --group-size 4.")
    assert str(caught.value) == "group_size is 3 at pop 8: give group_size 4."


@pytest.mark.parametrize("name", [None, "", "numpy", "numpy.optuna"])
def test_other_packages_are_no_extras(name: str | None):
    assert missing_extra(ModuleNotFoundError(name=name)) is None


@pytest.mark.parametrize("package", errors.EXTRAS)
def test_a_missing_extra_is_named(package: str):
    for name in (package, f"{package}.inner"):
        said = str(missing_extra(ModuleNotFoundError(name=name)))
        assert f"the package {package}, by which {errors.EXTRAS[package]}," in said
        assert f"pip install {package}`" in said


def test_what_is_no_array_is_one_sentence():
    """NumPy's own first sentence without its point, in ours."""
    with pytest.raises(InputError) as caught:
        errors.array_of("rows", [[1, 2], [3]])
    assert str(caught.value) == (
        "rows is no array (setting an array element with a sequence): give rows of one length, of "
        "a type that NumPy has."
    )


SCHEMA = {"n": int, "word": str, "maybe": str | None}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"n": 1, "word": "a"}', ""),
        ('{"n": 1, "word": "a", "maybe": null, "more": []}', ""),
        ('{"n": true, "word": "a"}', "has True as 'n' where"),
        ('{"word": "a"}', "has None as 'n' where"),
        ('{"n": 1, "word": 2}', "has 2 as 'word' where"),
        ("[1]", "holds \\[1\\] where an object is needed"),
    ],
)
def test_objects_are_read_by_their_schema(text: str, says: str):
    if not says:
        assert object_in(text, SCHEMA)["n"] == 1
        assert object_in(text)["word"] == "a"
        return
    with pytest.raises(ValueError, match=says):
        object_in(text, SCHEMA)


@pytest.mark.parametrize(
    ("value", "fits"),
    [(1, True), (np.int8(3), True), (3, True), (0, False), (4, False), (True, False), (2.0, False)],
)
def test_whole_numbers_within_bounds(value: object, fits: bool):
    if fits:
        found = errors.whole_number("steps", value, 1, 3)
        assert (type(found), found) == (int, value)
        return
    with pytest.raises(InputError, match=r"^steps is .*: a whole number .* is needed"):
        errors.whole_number("steps", value, 1, 3)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ModuleNotFoundError("none", name=_extension.NAME), "is missing: run `make build`"),
        (ModuleNotFoundError("none", name="other"), "none"),
        (ImportError("symbol"), r"does not load with mlx [\d.]+ \(symbol\): run `make build`"),
        (None, r"was built with mlx 0\.0 and mlx [\d.]+ is installed: run `make build`"),
    ],
)
def test_a_compiled_extension_that_does_not_fit_is_told(monkeypatch, fault, says: str):
    def import_module(name: str) -> object:
        if name != _extension.NAME:
            return None
        if fault:
            raise fault
        return SimpleNamespace(built_with=lambda: {"mlx": "0.0"})

    monkeypatch.setattr(_extension.importlib, "import_module", import_module)
    other = isinstance(fault, ModuleNotFoundError) and fault.name == "other"
    with pytest.raises(ModuleNotFoundError if other else InputError, match=says):
        _extension.load()
