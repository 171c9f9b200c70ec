"""A run that is killed and resumed ends on the signature of one that was left alone."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from ended import Broken

from faults import kills
from faults.cases import case
from faults.commands import State

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are preloaded on Linux")


def test_killed_over_and_over(tmp_path: Path):
    """Longer by make torture, for every estimator and rule."""
    chain = kills.Chain(case("sign", 60), tmp_path / "run", random.Random(2))
    for fault in (kills.OPERATION, kills.KILL, kills.TERM):
        kills.refused_without_checkpoint(chain)
        if chain.attack(fault):
            break
    assert chain.counts["checkpoints verified"] >= 2
    assert chain.counts["exact resumes"] >= 1


def test_a_checkpoint_that_is_lost_or_another_is_noticed(tmp_path: Path):
    """What the other tests rely on."""
    true = case("sign", 60)
    chain = kills.Chain(true, tmp_path / "run", random.Random(0))
    chain.attack(kills.KILL)
    while chain.last is None:
        chain.attack(kills.KILL)
    ended = kills.Ended(-9, "", "")
    chain.case = true._replace(states=dict.fromkeys(true.states, "another"))
    with pytest.raises(Broken, match="is another than undisturbed"):
        chain._look(ended)
    chain.case, chain.last = true, State(60, "")
    with pytest.raises(Broken, match="from update 60 back to"):
        chain._look(ended)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(Broken, match="is lost"):
        chain._look(ended)
