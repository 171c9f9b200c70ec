"""Rows, outputs and their credit on the GPU of this machine; EGG's are with each engine's tests."""

from __future__ import annotations

import numpy as np
import pytest
from networks import case_of
from networks_credit import credited_of
from networks_random import every_operation
from test_programs import CREDITED, check, check_credit, marked

from eggroll.engines import ENGINES, available
from eggroll.program import Program
from gpu.backend import GPUS
from gpu.test_gpu_programs import unscored, wide


@pytest.mark.parametrize("program", [every_operation(), unscored(), wide()])
@pytest.mark.parametrize("name", GPUS)
def test_equals_oracle_on_this_gpu(name: str, program: Program):
    if missing := available()[name]:
        pytest.skip(missing)
    rng = np.random.default_rng(2)
    here = ENGINES[name](program)
    check(here, marked(case_of(program, rng, T=3, P=70, rank=2, sigma_shift=2), rng))
    for estimator in CREDITED:
        case = case_of(program, rng, T=34, P=10, sigma_shift=1)
        check_credit(here, credited_of(case, rng, estimator))
