"""`python -m experiments.tictactoe.evolution`: see training.py."""

import sys

from eggroll.cli import command as cli
from experiments.tictactoe.evolution.training import main

sys.exit(cli.run(main))
