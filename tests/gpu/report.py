"""`make verify-metal`, `make verify-cuda`: what the owner of a GPU runs once, and one file.

Writes to e.g. metal-report.txt, to be attached to an issue: the machine, the probe, the engine's
trials, every kernel built and launched one by one, the engine tests with the engine on the GPU,
training runs on two engines and benchmarks. Each is a process of its own with a time limit, and the
file is written whole after each: so it tells most where most goes wrong.

python -m gpu.report ENGINE            all of it, from the beginning
python -m gpu.report ENGINE PIECE ..   some pieces, at most ten minutes each; a piece whose time was
                                       over goes on when it is named again
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import nax_check

from eggroll.engines import available, cuda, metal, trial
from eggroll.engines import trial as verdicts
from eggroll.files import write_whole
from gpu.report_kernels import DEVICES, Done, Kernels, run_step, try_kernels

TRAIN = ["-m", "eggroll.train", "--data", "count", "--pop", "512", "--steps", "20"]
# Runs whose signatures are compared: name -> what is added to TRAIN.
RUNS = {
    "": [],
    "of rank 4 ": ["--rank", "4"],
    "of six layers ": ["--layers", "6", "--width", "256", "--steps", "5"],
    "by token credit ": ["--recipe", "language", "--pop", "512", "--steps", "20"],
    "by group credit ": ["--estimator", "group-credit", "--group-size", "8", "--rule", "whitened"],
    "by feedback ": ["--recipe", "feedback", "--steps", "20"],
}
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
PIECE_SECONDS = 600  # of a piece that is named
LEAST_SECONDS = 20  # that a step is begun with
# Where tests, package and mlx-cpu lie for the driver's steps, as MLX for CUDA is one more unknown;
# and why that does not import. run.sh of a bundle sets them.
MLX_CPU, MLX_ERROR = "EGGROLL_MLX_CPU", "EGGROLL_MLX_ERROR"
UNFINISHED = 3  # the code of a piece that goes on when it is named again
SIDE_BY_SIDE = {"metal": 1, "cuda": 8}  # kernels that are tried at a time
# By CUDA's driver, without MLX's back-end: piece -> what it adds.
BY_DRIVER = {
    "look": {"look by the driver": ["look"]},
    "trial": {"trial by the driver": ["trial"]},
    "kernels": {"device times": ["time"]},
    "bench": {"device times of stages": ["stages"]},
}
POPULATIONS = ["4096", "16384", "65536", "131072", "262144"]


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


def driver_steps(engine: str, piece: str) -> dict[str, Step]:
    """What a piece has of CUDA's driver alone: the fewest unknowns, so it comes first."""
    found = BY_DRIVER.get(piece, {}) if engine == "cuda" else {}
    plain = {"PYTHONPATH": os.environ[MLX_CPU]} if os.environ.get(MLX_CPU) else {}
    return {name: Step(["-m", "gpu.driver", *words], plain, 600) for name, words in found.items()}


def steps(engine: str) -> dict[str, Step]:
    """What follows where the engine runs."""
    bench = ["-m", "eggroll.bench", "--quick", "--engine", engine]
    tests = {
        f"tests of {Path(file).stem}": Step(["-m", "pytest", "-q", file])
        for file in (*TESTS, *OWN_TESTS[engine])
    }
    runs = {
        f"training {name}on {kind}": Step(
            [*TRAIN, *more, "--engine", kind, "--out", f"{{folder}}/{name.replace(' ', '-')}{kind}"]
        )
        for name, more in RUNS.items()
        for kind in (engine, "cpu")
    }
    return {
        **tests,
        **runs,
        "benchmark": Step(bench),
        **{f"benchmark {name}": Step(bench, env) for name, env in VARIANTS[engine].items()},
        **(rates() if engine == "cuda" else {}),
    }


def rates() -> dict[str, Step]:
    """Both presets over growing populations, with the share of the int8 peak and the power."""
    words = ["-m", "gpu.rates", "--engine", "cuda", "--repeats", "3"]
    return {
        f"benchmark of preset {preset}, population {pop}": Step(
            [*words, "--preset", preset, "--pops", pop], {}, 600
        )
        for preset in ("seed", "paper")
        for pop in POPULATIONS
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
    """A file with parts that have titles; it is written whole with every change of any.

    What a later piece needs of an earlier one lies beside it. goes_on: with what is there.
    failed: names of what failed; done: of all that has a verdict.
    """

    def __init__(self, path: Path, goes_on: bool = False) -> None:
        self.path, self.kept = path, path.with_name(f".{path.stem}.json")
        self.parts, self.failed, self.done = dict[str, str](), list[str](), list[str]()
        self.kernels = Kernels([], [], [])  # of a piece that goes on
        if goes_on:
            with contextlib.suppress(OSError, ValueError):
                self.parts, self.failed, self.done, kernels = json.loads(self.kept.read_text())
                self.kernels = Kernels(*kernels)

    def put(self, title: str, text: str) -> None:
        """Adds a part, or replaces the one with the same title."""
        self.parts[title] = text
        text = "\n".join(f"=== {name}: {part.rstrip()}\n" for name, part in self.parts.items())
        write_whole(self.path, text.encode(errors="replace"))
        self.keep()

    def keep(self) -> None:
        kept = self.parts, self.failed, self.done, self.kernels
        write_whole(self.kept, json.dumps(kept).encode())

    def verdict(self, name: str, right: bool) -> None:
        """Tells what became of a step."""
        self.done = [*(each for each in self.done if each != name), name]
        self.failed = [each for each in self.failed if each != name] + [name] * (not right)
        self.keep()

    def begin(self, title: str) -> None:
        """Shows what runs now, on the screen and, if it ends all, as the file's last word."""
        print(f"{title} ...", flush=True)
        self.put(title, f"began at {time.strftime('%H:%M:%S')}; the report ends here if it hung")


class Clock:
    """The time that a piece has."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


def do_steps(
    report: Report, todo: dict[str, Step], folder: str, clock: Clock | None = None
) -> Iterator[str]:
    """Runs the steps that have no verdict yet; yields the names of those that failed.

    What the clock leaves no time for is left for later.
    """
    clock = clock or Clock()
    for name, step in todo.items():
        if name in report.done:
            continue
        if clock.left < min(LEAST_SECONDS, clock.seconds):
            report.put(name, "not yet: name the piece again")
            continue
        report.begin(name)
        words = [word.replace("{folder}", folder) for word in step.words]
        whole = clock.left > 0.9 * min(clock.seconds, step.seconds)
        began = time.monotonic()
        done = run_step(words, step.env, min(step.seconds, clock.left))
        if done.code == LATE and not whole:
            report.put(name, f"not yet: {done.why}; name the piece again")
            continue
        report.put(name, f"{told(done).rstrip()}\n{time.monotonic() - began:.1f} s\n")
        report.verdict(name, not done.code)
        if done.code:
            yield name


LATE = 124  # the code of a step whose time was over


def told(done: Done) -> str:
    return f"exit code {done.code}{f' ({done.why})' if done.why else ''}\n{done.said}"


def do_kernels(
    report: Report, engine: str, folder: str, variants: Sequence[str], clock: Clock | None = None
) -> bool:
    """Builds and launches every kernel that has no verdict yet; true if all of them ran."""
    clock = clock or Clock()
    report.begin("kernels")
    done = run_step([*LIST, engine, folder, *variants], {}, 300)
    files = sorted(Path(folder).glob("*.json"))
    if done.code or not files:
        report.put("kernels", f"they cannot be listed: {done.why}\n{done.said}")
        return False
    of = ", ".join(variant or "no NAX" for variant in variants)
    tried = len(report.kernels.ran) + len(report.kernels.failed)

    def tell(kernels: Kernels) -> None:
        report.kernels, count = kernels, len(kernels.ran) + len(kernels.failed)
        later = "; name the piece again for the others" if count < len(files) else ""
        report.put("kernels", f"{count} of {len(files)} ({of}){later}\n{kernels.text()}")

    kernels = try_kernels(
        DEVICES[engine], files[tried:], tell, before=report.kernels,
        side_by_side=SIDE_BY_SIDE[engine],
        most_seconds=clock.left if math.isfinite(clock.seconds) else None,
    )  # fmt: skip
    tell(kernels)
    if len(kernels.ran) + len(kernels.failed) == len(files):
        report.verdict("kernels", not kernels.failed)
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


class Piece(NamedTuple):
    """A part of all that is done, by a name."""

    name: str
    engine: str
    report: Report
    folder: str
    clock: Clock

    def forget(self, names: Sequence[str]) -> None:
        """Lets steps be made anew if all have a verdict, as of a piece that is named again."""
        report = self.report
        if all(name in report.done for name in names):
            report.done = [name for name in report.done if name not in names]
            if "kernels" in names:
                report.kernels = Kernels([], [], [])

    def run(self, todo: dict[str, Step]) -> None:
        """Runs steps; what failed is in the report."""
        self.forget([*todo])
        for _ in do_steps(self.report, todo, self.folder, self.clock):
            pass

    def engine_missing(self) -> str:
        """The reason why the engine cannot run, which the report then has; empty if it can."""
        missing = available()[self.engine]
        self.report.put("engine", f"{self.engine}: {missing or 'runs'}{nax_words(self.engine)}")
        return missing


def nax_words(engine: str) -> str:
    """What the report says of NAX where it is switched off or not there."""
    if engine != "metal" or not (why := metal.nax_unused_because()):
        return ""
    return f"; NAX is not used: {why}"


def look(piece: Piece) -> None:
    first = first_steps(piece.engine)
    machine = {k: v for k, v in first.items() if not k.startswith("trial")}
    piece.run(machine | driver_steps(piece.engine, "look"))


def try_trial(piece: Piece) -> None:
    trials = {k: v for k, v in first_steps(piece.engine).items() if k.startswith("trial")}
    piece.run(driver_steps(piece.engine, "trial") | trials)
    piece.report.begin("engine")
    piece.engine_missing()


def try_all_kernels(piece: Piece) -> None:
    report, engine, there = piece.report, piece.engine, has_gpu(piece.engine)
    timed = driver_steps(engine, "kernels")
    piece.forget([*timed, *["kernels"] * there])
    for _ in do_steps(report, timed, piece.folder, piece.clock):
        pass
    if there and "kernels" not in report.done:
        right = do_kernels(report, engine, piece.folder, kernel_variants(engine), piece.clock)
        if not right and "kernels" not in report.failed:
            report.failed.append("kernels")


def do_piece(piece: Piece) -> None:
    """Runs a piece of `steps`, where the engine runs."""
    todo = driver_steps(piece.engine, piece.name)
    if not piece.engine_missing():
        found = steps(piece.engine).items()
        todo |= {name: step for name, step in found if piece_of(name) == piece.name}
    piece.run(todo)


def piece_of(step: str) -> str:
    """The piece that has a step of `steps`."""
    return {"tests": "tests", "training": "runs"}.get(step.partition(" ")[0], "bench")


def put_together(piece: Piece) -> None:
    """The verdict on signatures."""
    report = piece.report
    signatures = signatures_of(report.parts)
    if signatures:
        agree = all(len(found) == 1 for found in signatures.values())
        lines = [f"{name}: {', '.join(sorted(found))}" for name, found in signatures.items()]
        word = "agree" if agree else "DIFFER"
        report.put("signatures of both engines", "\n".join([word, *lines]))
        report.verdict("signatures", agree)


def signatures_of(parts: dict[str, str]) -> dict[str, set[str]]:
    """The signatures of runs that should have one, by what they have in common."""
    found: dict[str, set[str]] = {}
    for title, part in parts.items():
        kind = re.sub(r" on \w+$", "", title) if title.startswith("training") else "training"
        for line in part.splitlines():
            if line.startswith("signature: ") and not title.startswith("signatures"):
                found.setdefault(kind, set()).add(line.removeprefix("signature: "))
    return found


PIECES: dict[str, Callable[[Piece], None]] = {
    "look": look,
    "trial": try_trial,
    "kernels": try_all_kernels,
    "tests": do_piece,
    "runs": do_piece,
    "bench": do_piece,
    "report": put_together,
}


def main(engine: str = "metal", *pieces: str) -> int:
    if unknown := [*({engine} - DEVICES.keys()), *(set(pieces) - PIECES.keys())]:
        print(f"error: {unknown[0]!r} is no engine or piece: {', '.join(DEVICES)}; then any of "
              f"{', '.join(PIECES)}.", file=sys.stderr)  # fmt: skip
        return 2
    if not pieces or "look" in pieces:
        verdicts.forget_verdicts()  # every engine is tried here and now
    report = Report(Path(f"{engine}-report.txt"), bool(pieces) and "look" not in pieces)
    if not report.parts:
        about = f"{platform.platform()}, {platform.machine()}, Python {platform.python_version()}"
        report.put("system", f"{about}\n{versions()}\nsources {verdicts.source_hash()}")
    if why := os.environ.get(MLX_ERROR):
        report.put("MLX for CUDA", f"it does not import: {trial.why_ended(why, 1)}\n{why}")
    with tempfile.TemporaryDirectory() as folder:
        for name in pieces or PIECES:
            clock = Clock(PIECE_SECONDS if pieces else math.inf)
            PIECES[name](Piece(name, engine, report, folder, clock))
    return end(report, engine, pieces)


def end(report: Report, engine: str, pieces: Sequence[str]) -> int:
    """Says what became of it; gives the exit code."""
    if not pieces or set(pieces) & {"trial", "tests", "runs", "bench"}:
        missing = available()[engine]
        if missing:
            text = f"the {engine} engine cannot run here ({missing}); {report.path} says more."
            print(f"error: {text}", file=sys.stderr)
            return 2
    later = [name for name, part in report.parts.items() if part.startswith("not yet")]
    later += ["kernels"] * ("name the piece again" in report.parts.get("kernels", "")[:200])
    named = f"failed: {', '.join(report.failed)}" if report.failed else "all passed"
    print(
        f"{report.path} is written; {named}" + (f"; not yet: {', '.join(later)}" if later else "")
    )
    if pieces and later:
        return UNFINISHED
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
