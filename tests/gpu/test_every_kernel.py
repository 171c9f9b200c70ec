"""The list of all kernels is whole: what is recorded is in it, each once, with arrays that fit."""

from __future__ import annotations

import hashlib
import json

import pytest

from gpu.every_kernel import every_kernel, uses_nax
from gpu.test_gpu_sources import TESTS

# Exact losses have no noise; the recorded text of their head is one that nothing launches.
NOT_LAUNCHED = {"seed head, exact"}


@pytest.mark.parametrize("kind", ["metal", "cuda"])
def test_every_recorded_kernel_is_listed(kind: str):
    listed = every_kernel(kind)
    texts = [each.source.header + each.source.body for each in listed]
    digests = {hashlib.sha256(text.encode("ascii")).hexdigest() for text in texts}
    golden = json.loads((TESTS / kind / "golden.json").read_text())
    missing = {name.partition(" sm_")[0] for name, found in golden.items() if found not in digests}
    assert missing == NOT_LAUNCHED
    assert len(digests) == len(listed)
    for each in listed:
        assert len(each.inputs) == len(each.source.inputs), each.name
        assert len(each.outputs) == len(each.source.outputs), each.name
        assert not each.grid[0] % each.threadgroup[0], each.name


def test_variants_are_listed_alone():
    plain, nax = every_kernel("metal", [""]), every_kernel("metal", ["nax"])
    assert [each.name for each in plain if uses_nax(each.source)] == ["nax_check tensor"]
    layers = [each for each in nax if each.name.endswith(" layer")]
    assert layers
    assert all(uses_nax(each.source) for each in layers)
