"""`python -m experiments.black_box`: see run.py."""

import sys

from eggroll.cli import command as cli
from experiments.black_box.run import main

if __name__ == "__main__":
    sys.exit(cli.run(main))
