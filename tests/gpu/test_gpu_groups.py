"""Members compared with the mean of their group by both GPUs' kernels, on this CPU."""

from __future__ import annotations

import pytest
from emulator import Emulator
from networks_credit import credited_case
from test_credit import same

from gpu.backend import Gpu, at_the_end, check_credit, engine

# Group, M, CUDA's product, then a network.
CASES = [
    (4, 8, "m16n8k32", {"V": 9, "D": 8, "T": 3, "P": 12, "sigma_shift": 0, "discount": 8}),
    (8, 16, "dp4a", {"V": 20, "D": 8, "T": 34, "P": 16, "score_bits": 8, "gates": "table"}),
]


@pytest.mark.parametrize(("group", "members", "product", "shape"), CASES, ids=str)
def test_equals_oracle(
    gpu: Gpu, launcher: Emulator, group: int, members: int, product: str, shape: dict, monkeypatch
):
    """Also where a launch is of one group."""
    made = credited_case(1, "token-credit", group=group, **shape)
    program, variant = at_the_end(made.case).program, product if gpu.name == "cuda" else ""
    here = engine(gpu, program, launcher, members, variant)
    check_credit(here, made)
    monkeypatch.setattr(here.pace, "macs", 1)
    P, T = made.case.tokens.shape
    assert here.credit_launch_size(made.crediting, P, T) == (group, 1)
    if group < 8:
        same(made.run(here), made.oracle())


def test_groups_that_kernels_do_not_know_are_refused(gpu: Gpu, launcher: Emulator):
    case = credited_case(8, "token-credit", V=9, D=8, T=3, P=12)
    program = at_the_end(case.case).program
    for group in (3, 8):
        case.group = group
        with pytest.raises(ValueError, match="whole groups of 12 members"):
            case.run(engine(gpu, program, launcher))
