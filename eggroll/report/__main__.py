"""`python -m eggroll.report`; the command is in command.py."""

import sys

from eggroll.cli import entry

if __name__ == "__main__":
    sys.exit(entry.run("eggroll.report.command"))
