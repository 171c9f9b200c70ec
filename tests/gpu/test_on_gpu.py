"""Rows, outputs and their credit, and errors carried back, on the GPU of this machine.

EGG's rows and credit are with each engine's tests.
"""

from __future__ import annotations

import numpy as np
import pytest
from networks import case_of
from networks_backward import ESTIMATORS, carried_of
from networks_credit import credited_of
from networks_random import every_operation
from test_programs import CREDITED, check, check_credit, marked

from eggroll.engines import ENGINES, available
from eggroll.networks import egg
from eggroll.spec.program import Program
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


@pytest.mark.parametrize("program", [every_operation(), egg(70, 36, 2), egg(256, 64, 1, "table")])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", GPUS)
def test_errors_carried_back_equal_the_oracle_on_this_gpu(
    name: str, estimator: str, program: Program
):
    if missing := available()[name]:
        pytest.skip(missing)
    case = case_of(program, np.random.default_rng(2), T=5, P=70)
    carried = carried_of(case, estimator)
    assert carried.differing(carried.run(ENGINES[name](program))) == set()
