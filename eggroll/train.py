"""The command `python -m eggroll.train`; the loop is in training.py, the function in api.py.

It is run, never imported: once imported, a submodule takes the place of the package's function
`eggroll.train`, whatever the package says.
"""

import sys

from eggroll.cli import entry

if __name__ == "eggroll.train":
    raise ImportError(
        "eggroll.train is a function and no module to import: use `from eggroll import train`, or "
        "eggroll.training.loop for the loop; the command is `python -m eggroll.train`."
    )

if __name__ == "__main__":
    sys.exit(entry.run("eggroll.training.loop"))
