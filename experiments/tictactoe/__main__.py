"""`python -m experiments.tictactoe`: see run.py."""

import sys

from experiments.tictactoe.run import main

if __name__ == "__main__":
    sys.exit(main())
