"""The float kernels against NumPy in double precision, for every instruction set that runs here."""

from __future__ import annotations

import float_kernels
import numpy as np
import pytest
from float_kernels import Kernels


@pytest.fixture(scope="module", params=float_kernels.isas())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (65, 33, 27), (150, 130, 300)])
def test_products(kernels: Kernels, shape: tuple[int, int, int]):
    m, n, k = shape
    a, b = random(m, k), random(k, n)
    expected = a.astype(float) @ b.astype(float)
    near = {"atol": 1e-6 * k, "rtol": 1e-5}
    np.testing.assert_allclose(kernels.matmul("nn", a, b), expected, **near)
    np.testing.assert_allclose(kernels.matmul("nt", a, b.T.copy()), expected, **near)
    np.testing.assert_allclose(kernels.matmul("tn", a.T.copy(), b), expected, **near)
    np.testing.assert_allclose(kernels.matmul_packed(a, kernels.pack(b), n), expected, **near)
