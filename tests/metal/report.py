"""`make verify-metal`: what an owner of a Mac runs once, and the one file that comes of it.

Runs the probe, the engine tests with the metal engine on the GPU, a training run on two engines and
a quick benchmark, and writes what they said to metal-report.txt, to be attached to an issue.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from eggroll.engines.choice import available
from eggroll.runlog import write_whole

REPORT = Path("metal-report.txt")
TRAIN = ["-m", "eggroll.train", "--data", "count", "--pop", "512", "--steps", "20"]
STEPS = {
    "probe": ["-m", "eggroll.probe"],
    "tests": [
        *("-m", "pytest", "-q", "tests/test_engines.py", "tests/test_golden.py"),
        *("tests/test_population.py", "tests/test_nax_check.py", "tests/test_credit.py"),
    ],
    "training on metal": [*TRAIN, "--engine", "metal", "--out", "{folder}/metal"],
    "training on cpu": [*TRAIN, "--engine", "cpu", "--out", "{folder}/cpu"],
    "benchmark": ["-m", "eggroll.bench", "--quick", "--engine", "metal"],
    "benchmark without NAX": ["-m", "eggroll.bench", "--quick", "--engine", "metal"],
}


def main() -> int:
    missing = available()["metal"]
    parts = [
        f"{platform.platform()}, Python {platform.python_version()}\nmetal: {missing or 'runs'}\n"
    ]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in STEPS.items() if not missing else [("probe", STEPS["probe"])]:
            print(f"{name} ...", flush=True)
            command = [sys.executable, *(word.format(folder=folder) for word in words)]
            env = ["env", "EGGROLL_NAX=0"] if name.endswith("without NAX") else []
            done = subprocess.run([*env, *command], capture_output=True, text=True, check=False)
            said = done.stdout + (done.stderr if done.returncode else "")
            parts.append(f"=== {name}: exit code {done.returncode}\n{said}")
            failed += [name] if done.returncode else []
    signatures = {
        line for part in parts for line in part.splitlines() if line.startswith("signature: ")
    }
    if not missing:
        parts.append(
            f"=== signatures of both engines {'agree' if len(signatures) == 1 else 'DIFFER'}"
        )
    write_whole(REPORT, "\n".join(parts).encode())
    if missing:
        print(f"error: the metal engine cannot run here ({missing}); {REPORT} has the probe alone.",
              file=sys.stderr)  # fmt: skip
        return 2
    print(f"{REPORT} is written; " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return 1 if failed or len(signatures) != 1 else 0


if __name__ == "__main__":
    sys.exit(main())
