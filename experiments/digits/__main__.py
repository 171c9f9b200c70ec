"""`python -m experiments.digits`: see run.py."""

import sys

from experiments.digits.run import main

if __name__ == "__main__":
    sys.exit(main())
