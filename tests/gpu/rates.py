"""A benchmark on an NVIDIA GPU, with its power and its share of the int8 peak.

PYTHONPATH=tests python -m gpu.rates OPTIONS    those of eggroll.bench, but for --json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eggroll.bench import command as bench
from gpu.driver import CLOCK, MULTIPROCESSORS, Driver

ASKED = ["nvidia-smi", "--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits"]
# Multiply-adds of int8 that a multiprocessor's tensor cores do in a cycle, by data sheets.
PEAK = {75: 1024, 80: 2048, 86: 1024, 87: 1024, 89: 1024, 90: 4096, 100: 8192, 120: 1024}


def peak_gmacs(driver: Driver) -> float:
    """1e9 int8 multiply-adds a second at the highest clock; 0 where no data sheet was read."""
    each = PEAK.get(driver.architecture, 0)
    return each * driver.attribute(MULTIPROCESSORS) * driver.attribute(CLOCK) * 1e3 / 1e9


def sampled(text: str) -> str:
    """Medians of what nvidia-smi said twice a second: watts and MHz."""
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 1]
    watts, clocks = (
        [float(row[i]) for row in rows if row[i].strip()[:1].isdigit()] for i in (0, 1)
    )
    if not watts or not clocks:
        return "nvidia-smi tells no power"
    return (
        f"power {statistics.median(watts):.0f} W, at most {max(watts):.0f}; clock "
        f"{statistics.median(clocks):.0f} MHz, of {len(watts)} samples"
    )


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rates.json"
        with open(Path(folder) / "power", "w+") as power:
            try:
                watching = subprocess.Popen([*ASKED, "-lms", "500"], stdout=power)
            except OSError as error:
                print(f"no power: {error}")
                watching = None
            try:
                code = bench.main([*words, "--json", str(path)])
            finally:
                if watching:
                    watching.terminate()
                    watching.wait()
            power.seek(0)
            print(sampled(power.read()))
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
    try:
        peak = peak_gmacs(Driver())
    except (OSError, RuntimeError) as error:
        peak = 0.0
        print(f"no peak: {error}")
    for row in rows:
        share = f", {row['gmacs'] / peak:.2%} of the int8 peak" if peak else ""
        print(f"population {row['population']:,}: {row['tokens_per_second']:,.0f} tokens/s{share}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
