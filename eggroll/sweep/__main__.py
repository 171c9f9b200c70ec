"""`python -m eggroll.sweep`; the command is in command.py."""

import sys

from eggroll.sweep.command import main

if __name__ == "__main__":
    sys.exit(main())
