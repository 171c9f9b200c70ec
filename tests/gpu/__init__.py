"""Tests of the GPU engines; the emulators in ../metal and ../cuda are imported by their names."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("metal", "cuda")]
