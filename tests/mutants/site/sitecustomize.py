"""Puts a mutant in the place of one module, in a process that runs tests and in all it starts.

EGGROLL_MUTANT is NAME:PATH of the module and of the file with its changed text, or with a library.
Python imports this file at its start where its folder is in PYTHONPATH.
"""

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader, PathFinder, SourceFileLoader
from pathlib import Path

NAME, _, CHANGED = os.environ.get("EGGROLL_MUTANT", "").partition(":")


class MutantLoader(SourceFileLoader):
    """Reads the changed text where the module's own is asked for, and caches no bytecode."""

    def path_stats(self, path):
        raise OSError(path)

    def get_data(self, path):
        return Path(CHANGED if path == self.path else path).read_bytes()


class MutantFinder:
    """Finds the module where the others would, so that its __file__ is as ever."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != NAME:
            return None
        if CHANGED.endswith(".so"):
            loader = ExtensionFileLoader(name, CHANGED)
            return importlib.util.spec_from_file_location(name, CHANGED, loader=loader)
        others = (f.find_spec(name, path, target) for f in sys.meta_path if f is not MutantFinder)
        found = next((spec for spec in others if spec), None) or PathFinder.find_spec(name, path)
        return importlib.util.spec_from_file_location(
            name, found.origin, loader=MutantLoader(name, found.origin),
            submodule_search_locations=found.submodule_search_locations,
        )  # fmt: skip


if NAME:
    sys.meta_path.insert(0, MutantFinder)
if "EGGROLL_REACHED" in os.environ:
    import reached  # noqa: F401
