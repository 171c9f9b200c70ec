"""`python -m experiments.cartpole`: see run.py."""

import sys

from eggroll.cli import entry

if __name__ == "__main__":
    sys.exit(entry.run("experiments.cartpole.run"))
