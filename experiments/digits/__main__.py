"""`python -m experiments.digits`: see run.py."""

import sys

from eggroll.cli import command as cli
from experiments.digits.run import main

if __name__ == "__main__":
    sys.exit(cli.run(main))
