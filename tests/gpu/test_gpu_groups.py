"""Members compared with the mean of their group by both GPUs' kernels, on this CPU."""

from __future__ import annotations

import pytest
from emulator import Emulator
from networks_credit import credited_case
from test_credit import same

from gpu.backend import Gpu, at_the_end, check_credit, engine

# Group, M, CUDA's product, then a network.
CASES = [
    (4, 8, "m16n8k32", {"V": 33, "D": 13, "L": 1, "T": 3, "P": 12, "discount": 8}),
    (8, 16, "m8n8k16", {"V": 20, "D": 8, "T": 34, "P": 16, "score_bits": 8, "gates": "table"}),
    (32, 16, "dp4a", {"V": 9, "D": 16, "T": 2, "P": 32, "sigma_shift": 0, "extreme": True}),
]


@pytest.mark.parametrize(("group", "members", "product", "shape"), CASES, ids=str)
def test_equals_oracle(
    gpu: Gpu, launcher: Emulator, group: int, members: int, product: str, shape: dict
):
    made = credited_case(1, "token-credit", group=group, **shape)
    program, variant = at_the_end(made.case).program, product if gpu.name == "cuda" else ""
    check_credit(engine(gpu, program, launcher, members, variant), made)


def test_launches_are_of_whole_groups(gpu: Gpu, launcher: Emulator, monkeypatch):
    case = credited_case(8, "token-credit", V=9, D=8, T=3, P=12, group=4)
    program, want = at_the_end(case.case).program, case.oracle()
    made = engine(gpu, program, launcher)
    monkeypatch.setattr(made.pace, "macs", 1)
    assert made.credit_launch_size(case.crediting, 12, 3)[0] == 4
    same(case.run(made), want)


def test_groups_that_kernels_do_not_know_are_refused(gpu: Gpu, launcher: Emulator):
    case = credited_case(8, "token-credit", V=9, D=8, T=3, P=12)
    program = at_the_end(case.case).program
    for group in (3, 8):
        case.group = group
        with pytest.raises(ValueError, match="whole groups of 12 members"):
            case.run(engine(gpu, program, launcher))
