"""What is given by chance is refused in a sentence or taken; nothing else is ever raised."""

from __future__ import annotations

import random
import time

import pytest

from eggroll.errors import InputError
from faults import fuzz, fuzz_files, fuzz_positions, fuzz_values
from faults.fuzz import Target

TARGETS = (*fuzz_values.TARGETS, *fuzz_files.TARGETS, *fuzz_positions.TARGETS)
SECONDS = 0.05  # for each target, and a few attempts at least


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_but_a_sentence_is_raised(target: Target):
    """Many more by make torture."""
    began, done = time.process_time(), 0
    while done < 10 or (time.process_time() - began < SECONDS and done < 400):
        assert fuzz.fuzz(target, 10, "test", done).findings == {}
        done += 10


def test_what_should_not_be_raised_is_found():
    """What the others rely on."""

    def attempt(chance: random.Random) -> None:
        errors = [KeyError("x"), InputError("One sentence."), InputError("x" * 900 + " ."), None]
        if error := chance.choice(errors):
            raise error

    found = fuzz.fuzz(Target("it", attempt), 50, 0)
    assert found.tried == 50
    assert found.refused > 10
    assert len(found.findings) == 1
    assert "KeyError" in next(iter(found.findings))
