"""Products of a BLAS in the place of our own: right, chosen by measurement, and named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import float_kernels
import pytest

# A BLAS as obvious as can be, which may be slow or wrong.
SOURCE = r"""
#include <stdlib.h>
#include <unistd.h>
static int threads = 0;
void openblas_set_num_threads(int n) { threads = n; }
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  if (order != 101 || alpha != 1 || k < 1 || threads != 1) abort();
  if (SLOW) usleep(3000);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = WRONG;
      for (int l = 0; l < k; ++l)
        sum += (double)(ta == 112 ? a[l * lda + i] : a[i * lda + l]) *
               (tb == 112 ? b[j * ldb + l] : b[l * ldb + j]);
      c[i * ldc + j] = (float)(beta == 0 ? sum : beta * c[i * ldc + j] + sum);
    }
}
"""
PRODUCTS = """
import float_kernels
import numpy as np
from float_kernels import Kernels, products
print(products())
for seed, (m, n, k) in enumerate([(1, 1, 1), (3, 5, 7), (65, 33, 27), (20, 30, 40)]):
    draw = np.random.default_rng(seed).standard_normal
    a, b, c = (draw((r, w + 3)).astype(np.float32)[:, :w] for r, w in ((m, k), (k, n), (m, n)))
    ours, own = Kernels(), Kernels(float_kernels.isa())
    assert ours.table is not own.table
    for kind, left, right in (
        ("nn", a, b), ("nt", a, np.ascontiguousarray(b.T)), ("tn", np.ascontiguousarray(a.T), b)
    ):
        for kept in (False, True):
            wanted = a.astype(float) @ b.astype(float) + kept * c
            found = ours.matmul(kind, left, right, c.copy(), accumulate=kept)
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            given = np.full((m, n + 5), 7, np.float32)
            ours.matmul(kind, left, right, given[:, :n])
            assert (given[:, n:] == 7).all()
    w = np.ascontiguousarray(b.T)
    np.testing.assert_array_equal(ours.linear(a, w, None), own.linear(a, w, None))
c = np.ones((2, 3), np.float32)  # sums of nothing, which a BLAS may refuse
for kept in (1, 0):
    ours.table.sgemm(0, 2, 3, 0, None, 1, None, 3, c.ctypes.data, 3, kept, 1)
    assert (c == kept).all()
"""


def blas(folder: Path, slow: int = 0, wrong: int = 0) -> Path:
    source, library = folder / "blas.c", folder / "libslow.so"
    source.write_text(SOURCE)
    compiler = os.environ.get("CC", "cc")
    flags = [f"-DSLOW={slow}", f"-DWRONG={wrong}", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    return library


def asked(option: str, program: str = "", known: Path | None = None) -> tuple[str, str]:
    """What a process with that option prints, and its last word on stderr."""
    words = "import float_kernels, float_kernels.blas\n"
    if known:
        words += f"float_kernels.blas.KNOWN = ({str(known)!r},)\n"
    words += program or "print(float_kernels.products())"
    env = os.environ | {"FLOAT_KERNELS_BLAS": option}
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, env=env)
    return done.stdout, done.stderr.rstrip("\n").rpartition("\n")[2]


def test_products_of_a_blas_are_those_of_numpy(tmp_path: Path):
    out, error = asked(str(blas(tmp_path)), PRODUCTS)
    assert error == ""
    assert out.startswith("libslow.so (0.")
    assert out.endswith(" times as fast as own kernels)\n")


def test_the_faster_one_is_taken(tmp_path: Path):
    out, error = asked("auto", known=blas(tmp_path, slow=1))
    assert error == ""
    assert out.startswith("own kernels (libslow.so is 0.0")
    fast = "float_kernels.blas.measured = lambda own, other: {}\nprint(float_kernels.products())"
    out, error = asked("auto", fast.format(1.06), blas(tmp_path))
    assert (error, out) == ("", "libslow.so (1.06 times as fast as own kernels)\n")
    out, error = asked("auto", fast.format(1.04), blas(tmp_path))
    assert (error, out) == ("", "own kernels (libslow.so is 1.04 times as fast)\n")


def test_wrong_products_are_refused(tmp_path: Path):
    library = blas(tmp_path, wrong=1)
    _, error = asked(str(library))
    assert error.endswith("libslow.so', whose products are wrong: set it to own")
    out, error = asked("auto", known=library)
    assert (error, out) == ("", "own kernels (libslow.so gives wrong products)\n")


@pytest.mark.parametrize("name", ["absent.so", "empty.so"])
def test_what_is_no_blas_is_refused(tmp_path: Path, name: str):
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "/dev/null", "-o",
         str(tmp_path / "empty.so")], check=True,
    )  # fmt: skip
    _, error = asked(str(tmp_path / name))
    assert "is no library with cblas_sgemm: own, auto or the path of one is needed" in error


@pytest.mark.skipif(sys.platform == "darwin", reason="there Accelerate is tried")
def test_own_kernels_are_the_default():
    assert asked("") == ("own kernels\n", "")
    assert asked("own") == ("own kernels\n", "")
    assert str(float_kernels.products()).startswith("own kernels")
