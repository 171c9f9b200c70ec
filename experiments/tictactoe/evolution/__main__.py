"""`python -m experiments.tictactoe.evolution`: see training.py."""

import sys

from eggroll.cli import entry

sys.exit(entry.run("experiments.tictactoe.evolution.training"))
