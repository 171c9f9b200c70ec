"""`python -m experiments.cartpole`: see run.py."""

import sys

from experiments.cartpole.run import main

if __name__ == "__main__":
    sys.exit(main())
