"""`python -m experiments.black_box`: see run.py."""

import sys

from experiments.black_box.run import main

if __name__ == "__main__":
    sys.exit(main())
