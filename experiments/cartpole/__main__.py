"""`python -m experiments.cartpole`: see run.py."""

import sys

from eggroll.cli import command as cli
from experiments.cartpole.run import main

if __name__ == "__main__":
    sys.exit(cli.run(main))
