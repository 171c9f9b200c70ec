"""A file operation that fails ends the run in a sentence, and costs nothing that was there."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from faults import disks
from faults.cases import case

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are preloaded on Linux")


def test_an_operation_fails(tmp_path: Path):
    """Operation 12 is within the first checkpoints; all of them by make torture."""
    counts = disks.failing(case("sign", 6), tmp_path / "run", 12, random.Random(1))
    assert counts["refused in a sentence"] == 1
    assert counts["checkpoints verified"] == 1
    assert counts["exact afterwards"] == 1
