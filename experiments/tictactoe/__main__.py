"""`python -m experiments.tictactoe`: see run.py."""

import os
import sys

# NumPy's BLAS reads these when it is loaded; with more threads CPU seconds would exceed seconds.
if sys.argv[1:2] == ["run"]:
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ[f"{library}_NUM_THREADS"] = "1"

from eggroll.cli import entry

if __name__ == "__main__":
    sys.exit(entry.run("experiments.tictactoe.run"))
