"""`make verify-metal`, `make verify-cuda`: what the owner of a GPU runs once, and one file.

Runs the probe, the engine tests with the engine on the GPU, a training run on two engines and quick
benchmarks, and writes what they said to e.g. metal-report.txt, to be attached to an issue.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from eggroll.engines.choice import available
from eggroll.runlog import write_whole

TRAIN = ["-m", "eggroll.train", "--data", "count", "--pop", "512", "--steps", "20"]
TESTS = ["tests/test_engines.py", "tests/test_golden.py", "tests/test_population.py"]
OWN_TESTS = {
    "metal": ["tests/test_nax_check.py", "tests/gpu/test_on_gpu.py"],
    "cuda": ["tests/gpu/test_cuda.py", "tests/gpu/test_on_gpu.py"],
}
# Benchmarks of what is not taken by itself: name -> environment.
VARIANTS = {
    "metal": {"without NAX": {"EGGROLL_NAX": "0"}},
    "cuda": {
        "with m8n8k16": {"EGGROLL_CUDA": "m8n8k16"},
        "without tensor cores": {"EGGROLL_CUDA": "dp4a"},
    },
}


class Step(NamedTuple):
    """A Python command's words, and what it has in its environment besides."""

    words: list[str]
    env: dict[str, str] = {}  # noqa: RUF012 - of a tuple, so nobody changes it


def steps(engine: str) -> dict[str, Step]:
    bench = ["-m", "eggroll.bench", "--quick", "--engine", engine]
    return {
        "probe": Step(["-m", "eggroll.probe"]),
        "tests": Step(["-m", "pytest", "-q", *TESTS, *OWN_TESTS[engine]]),
        f"training on {engine}": Step([*TRAIN, "--engine", engine, "--out", "{folder}/gpu"]),
        "training on cpu": Step([*TRAIN, "--engine", "cpu", "--out", "{folder}/cpu"]),
        "benchmark": Step(bench),
        **{f"benchmark {name}": Step(bench, env) for name, env in VARIANTS[engine].items()},
    }


def main(engine: str = "metal") -> int:
    missing, report = available()[engine], Path(f"{engine}-report.txt")
    about = f"{platform.platform()}, Python {platform.python_version()}"
    parts, failed, todo = [f"{about}\n{engine}: {missing or 'runs'}\n"], [], steps(engine)
    with tempfile.TemporaryDirectory() as folder:
        for name, step in todo.items() if not missing else [("probe", todo["probe"])]:
            print(f"{name} ...", flush=True)
            command = [sys.executable, *(word.format(folder=folder) for word in step.words)]
            env = {**os.environ, **step.env}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
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
    write_whole(report, "\n".join(parts).encode())
    if missing:
        print(f"error: the {engine} engine cannot run here ({missing}); {report} has the probe "
              "alone.", file=sys.stderr)  # fmt: skip
        return 2
    print(f"{report} is written; " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return 1 if failed or len(signatures) != 1 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
