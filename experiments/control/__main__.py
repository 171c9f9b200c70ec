"""`python -m experiments.control`: see run.py."""

import os
import sys

# BLAS and XLA read these when they are loaded: one thread on all sides.
if "numpy" not in sys.modules:
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", flags)

from eggroll.cli import entry

if __name__ == "__main__":
    sys.exit(entry.run("experiments.control.run"))
