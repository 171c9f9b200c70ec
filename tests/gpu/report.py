"""`make verify-metal`, `make verify-cuda`: what the owner of a GPU runs once, and one file.

Writes to e.g. metal-report.txt, to be attached to an issue: the machine, the probe, the engine's
trials, every kernel built and launched one by one, the engine tests with the engine on the GPU, a
training run on two engines and quick benchmarks. Each is a process of its own with a time limit,
and the file is written whole after each: so it tells most where most goes wrong.
"""

from __future__ import annotations

import contextlib
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import nax_check

from eggroll.engines import available, cuda, metal, trial
from eggroll.engines import trial as verdicts
from eggroll.files import write_whole
from gpu.report_kernels import DEVICES, Kernels, run_step, try_kernels

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
# Programs that know the machine. None of them tells names of people or serial numbers.
ASKED = {
    "metal": [
        ["sw_vers"],
        ["sysctl", "machdep.cpu.brand_string", "hw.model", "hw.memsize", "hw.ncpu"],
        ["system_profiler", "SPDisplaysDataType", "-detailLevel", "mini"],
    ],
    "cuda": [
        ["nvidia-smi", "--format=csv",
         "--query-gpu=name,driver_version,compute_cap,memory.total,power.limit,clocks.max.sm"],
    ],
}  # fmt: skip
ASK = (
    "import subprocess, sys\n"
    "for words in {!r}:\n"
    "    print('$', *words, flush=True)\n"
    "    try: subprocess.run(words, stderr=subprocess.STDOUT, timeout=60, check=False)\n"
    "    except (OSError, subprocess.TimeoutExpired) as error: print(error, flush=True)\n"
)
DEVICE = "import mlx.core as mx; print(mx.device_info(mx.Device(mx.DeviceType.gpu, 0)))"
LIST = ["-m", "gpu.run_kernel", "list"]
HOUR = 3600


class Step(NamedTuple):
    """A Python command's words, what it has in its environment besides, seconds it may take."""

    words: list[str]
    env: dict[str, str] = {}  # noqa: RUF012 - of a tuple, so nobody changes it
    seconds: float = HOUR


def first_steps(engine: str) -> dict[str, Step]:
    """The machine, and what tells why the engine cannot run; these need no GPU."""
    return {
        "machine": Step(["-c", ASK.format(ASKED[engine])], {}, 300),
        "device": Step(["-c", DEVICE], {}, 60),
        "probe": Step(["-m", "eggroll.probe"], {}, 900),
        **{name: trial_step(engine, options) for name, options in trials(engine).items()},
    }


def trials(engine: str) -> dict[str, dict[str, bool]]:
    """Name -> options of the engine: with NAX only where that is there."""
    if engine == "cuda":
        return {"trial": {}}
    there = not nax_check.decide(metal.facts()).obstacles
    return {"trial": {"nax": False}} | ({"trial with NAX": {"nax": True}} if there else {})


def trial_step(engine: str, options: dict[str, bool]) -> Step:
    """The trial as an engine has it made, but with all that it says."""
    kind = {"metal": metal, "cuda": cuda}[engine]
    code = trial.trial_code(kind.ENGINE, options)
    return Step(["-c", code], dict(trial.EXACT), 5 * kind.TRIAL_SECONDS)


def steps(engine: str) -> dict[str, Step]:
    """What follows where the engine runs."""
    bench = ["-m", "eggroll.bench", "--quick", "--engine", engine]
    return {
        "tests": Step(["-m", "pytest", "-q", *TESTS, *OWN_TESTS[engine]]),
        f"training on {engine}": Step([*TRAIN, "--engine", engine, "--out", "{folder}/gpu"]),
        "training on cpu": Step([*TRAIN, "--engine", "cpu", "--out", "{folder}/cpu"]),
        "benchmark": Step(bench),
        **{f"benchmark {name}": Step(bench, env) for name, env in VARIANTS[engine].items()},
    }


def kernel_variants(engine: str) -> list[str]:
    """Variants of the product whose kernels this machine's compiler can be asked for."""
    if engine == "metal":  # Metal 4 compiles for NAX whether the GPU has it or not
        unmet = {reason.name for reason in nax_check.decide(metal.facts()).obstacles}
        return [""] if {"system", "macOS"} & unmet else ["", "nax"]
    has = cuda.architecture()
    least = {"m16n8k32": 80, "m8n8k16": 75, "dp4a": 61}
    return [f"{product} {has}" for product, needed in least.items() if has >= needed]


class Report:
    """A file with parts that have titles; it is written whole with every change of any."""

    def __init__(self, path: Path) -> None:
        self.path, self.parts = path, dict[str, str]()

    def put(self, title: str, text: str) -> None:
        """Adds a part, or replaces the one with the same title."""
        self.parts[title] = text
        text = "\n".join(f"=== {name}: {part.rstrip()}\n" for name, part in self.parts.items())
        write_whole(self.path, text.encode(errors="replace"))

    def begin(self, title: str) -> None:
        """Shows what runs now, on the screen and, if it ends all, as the file's last word."""
        print(f"{title} ...", flush=True)
        self.put(title, f"began at {time.strftime('%H:%M:%S')}; the report ends here if it hung")


def do_steps(report: Report, todo: dict[str, Step], folder: str) -> Iterator[str]:
    """Runs the steps; yields the names of those that failed."""
    for name, step in todo.items():
        report.begin(name)
        words = [word.replace("{folder}", folder) for word in step.words]
        done = run_step(words, step.env, step.seconds)
        why = f" ({done.why})" if done.why else ""
        report.put(name, f"exit code {done.code}{why}\n{done.said}")
        if done.code:
            yield name


def do_kernels(report: Report, engine: str, folder: str, variants: Sequence[str]) -> bool:
    """Builds and launches every kernel; true if all ran."""
    report.begin("kernels")
    done = run_step([*LIST, engine, folder, *variants], {}, 300)
    files = sorted(Path(folder).glob("*.json"))
    if done.code or not files:
        report.put("kernels", f"they cannot be listed: {done.why}\n{done.said}")
        return False
    of = ", ".join(variant or "no NAX" for variant in variants)

    def tell(kernels: Kernels) -> None:
        tried = len(kernels.ran) + len(kernels.failed)
        report.put("kernels", f"{tried} of {len(files)} ({of})\n{kernels.text()}")

    kernels = try_kernels(DEVICES[engine], files, tell)
    return not kernels.failed


def has_gpu(engine: str) -> bool:
    return mx.metal.is_available() if engine == "metal" else cuda.has_gpu()


def versions() -> str:
    """Versions of what has a part in building kernels."""
    packages = dict[str, str]()
    for each in metadata.distributions():
        with contextlib.suppress(Exception):  # pip leaves folders that tell no name
            packages[each.name] = each.version
    mine = [name for name in packages if str(name).startswith(("mlx", "nvidia-", "eggroll"))]
    return "\n".join(f"{name} {packages[name]}" for name in sorted(mine))


def main(engine: str = "metal") -> int:
    verdicts.forget_verdicts()  # every engine is tried here and now
    report = Report(Path(f"{engine}-report.txt"))
    about = f"{platform.platform()}, {platform.machine()}, Python {platform.python_version()}"
    report.put("system", f"{about}\n{versions()}\nsources {verdicts.source_hash()}")
    with tempfile.TemporaryDirectory() as folder:
        failed = list(do_steps(report, first_steps(engine), folder))
        report.begin("engine")
        missing = available()[engine]
        report.put("engine", f"{engine}: {missing or 'runs'}")
        if has_gpu(engine) and not do_kernels(report, engine, folder, kernel_variants(engine)):
            failed.append("kernels")
        failed += do_steps(report, steps(engine), folder) if not missing else []
    return end(report, engine, missing, failed)


def end(report: Report, engine: str, missing: str, failed: Sequence[str]) -> int:
    """Says what became of it, and compares the signatures of the runs; gives the exit code."""
    if missing:
        print(f"error: the {engine} engine cannot run here ({missing}); {report.path} says more.",
              file=sys.stderr)  # fmt: skip
        return 2
    lines = [line for part in report.parts.values() for line in part.splitlines()]
    signatures = {line for line in lines if line.startswith("signature: ")}
    report.put("signatures of both engines", "agree" if len(signatures) == 1 else "DIFFER")
    named = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"{report.path} is written; {named}")
    return 1 if failed or len(signatures) != 1 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
