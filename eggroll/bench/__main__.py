"""`python -m eggroll.bench`; the command is in command.py."""

import sys

from eggroll.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
