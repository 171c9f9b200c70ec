"""`make torture`: every fault many times, and a record of the counts.

A part that finds a broken promise says how to repeat it, and the others go on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from ended import Broken

from eggroll import __version__
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.errors import InputError
from faults import (
    disks,
    fuzz,
    fuzz_files,
    fuzz_positions,
    fuzz_values,
    kills,
    load,
    rank_faults,
    sweeps,
)
from faults.cases import NAMES, case

ROOT = Path(__file__).parents[2]
Found = dict[str, Any]
FUZZED = (*fuzz_values.TARGETS, *fuzz_files.TARGETS, *fuzz_positions.TARGETS)
TARGETS = {target.name: target for target in FUZZED}
EXAMPLES = (
    ("--parts kills --kills 20", "twenty kills, each followed by a resume"),
    ("--parts fuzz --fuzz 10000", "some inputs for every parser"),
)


@dataclass(frozen=True)
class Options:
    """Options of make torture."""

    parts: tuple[str, ...] = ()
    """Which of the parts; all of them if none is named."""
    kills: Annotated[int, Range(1, 10**6)] = 200
    """Kills, interrupts and pauses of single runs, and as many exact resumes."""
    rank_faults: Annotated[int, Range(1, 10**6)] = 60
    """Kills, interrupts and stops of single ranks of runs of several."""
    sweeps: Annotated[int, Range(1, 10**6)] = 24
    """Kills, interrupts and pauses of sweeps."""
    disk_faults: Annotated[int, Range(1, 10**6)] = 60
    """File operations that fail."""
    updates: Annotated[int, Range(1000, 10**8)] = 100_000
    """Updates of the long run."""
    fuzz: Annotated[int, Range(1, 10**9)] = 1_000_000
    """Inputs for the parsers, all together."""
    native: Annotated[int, Range(1, 10**9)] = 1_000_000
    """Inputs for the native entry points, which need clang."""
    jobs: Annotated[int, Range(1, 64)] = 2
    """Commands or parsers that are tried at the same time."""
    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0
    """Another seed tries other moments and inputs."""
    out: str = ""
    """Folder for the record; none if not given."""


def killed_runs(options: Options) -> Found:
    """So many faults and exact resumes, over chains of starts, over every case in turn."""
    counts: Counter[str] = Counter()

    def done() -> int:
        return min(sum(counts[fault] for fault in kills.ENDS), counts["exact resumes"])

    for name in NAMES:
        case(name, 120)

    def chain_of(turn: int) -> None:
        chance = random.Random(f"{options.seed} {turn}")
        place = Path(tempfile.mkdtemp(prefix="eggroll-killed-"))
        chain = kills.Chain(case(NAMES[turn % len(NAMES)], 120), place / "run", chance)
        while not chain.attack(chance.choice(list(kills.ENDS))):
            kills.refused_without_checkpoint(chain)
        counts.update(chain.counts)
        counts["chains that ended on the exact signature"] += 1
        shutil.rmtree(place)

    return dict(chains(chain_of, done, options.kills, counts, options.jobs))


def chains(
    run: Callable[[int], None],
    done: Callable[[], int],
    wanted: int,
    counts: Counter[str],
    jobs: int,
) -> Counter[str]:
    """Runs chains 0, 1 .. side by side until enough is done; counts those that broke a promise."""

    def one(turn: int) -> None:
        if done() >= wanted:
            return
        try:
            run(turn)
        except Exception as error:
            counts["broken promises"] += 1
            said = error if isinstance(error, Broken) else traceback.format_exc()
            print(f"chain {turn}: {said}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, range(wanted)):
            pass
    counts["broken promises"] += 0
    return counts


def attacked_sweeps(options: Options) -> Found:
    """Sweeps with every kind of storage, by one worker and by two, each attacked a few times."""
    counts: Counter[str] = Counter()
    each = 4

    def one(turn: int) -> None:
        counts.update(sweeps.attacked(turn, options.seed, each))

    wanted = options.sweeps

    def done() -> int:
        return sum(counts[name] for name in sweeps.SIGNALS)

    return dict(chains(one, done, wanted, counts, options.jobs))


def failing_disks(options: Options) -> Found:
    """One file operation fails in each of many short runs, in turn over all there are."""
    counts: Counter[str] = Counter()
    chosen = [case(name, 6) for name in NAMES]
    place = Path(tempfile.mkdtemp(prefix="eggroll-disk-"))
    most = disks.operations(chosen[0], place / "counted")
    chance = random.Random(f"disk {options.seed}")
    numbers = [chance.randint(1, most) for _ in range(options.disk_faults)]

    def one(turn: int) -> None:
        own = random.Random(f"disk {options.seed} {turn}")
        run = chosen[turn % len(chosen)]
        counts.update(disks.failing(run, place / f"run{turn}", numbers[turn], own))
        counts["operations that failed"] += 1

    done = chains(one, lambda: 0, options.disk_faults, counts, options.jobs)
    shutil.rmtree(place)
    return dict(done)


def under_load(options: Options) -> Found:
    """A population of 1,048,576 in half a gibibyte, and a long run in memory that does not grow."""
    found: Found = {"broken promises": 0}
    for name, run in (
        ("large population", lambda: load.large_population(1 << 20, 1 << 29)),
        ("long run", lambda: load.many_updates(options.updates)),
    ):
        try:
            found[name] = run()
        except Broken as error:
            found["broken promises"] += 1
            print(f"{name}: {error}", flush=True)
    return found


def places_and_limits(options: Options) -> Found:
    """The tests of test_places.py, those that `make test` leaves out as well."""
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", "-rs", "tests/faults/test_places.py"]
    env = {**os.environ, "EGGROLL_TORTURE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=env, capture_output=True, text=True
    )
    if done.returncode:
        print(done.stdout[-8000:], flush=True)
    last = done.stdout.rstrip().rpartition("\n")[2]
    return {"tests": last, "broken promises": int(done.returncode != 0)}


# What surroundings may do to a run -> the tests that do it.
SURROUNDINGS: dict[str, tuple[str, ...]] = {
    "a table's name taken for a pattern": (
        "test_tables.py::test_a_table_is_its_name_and_no_pattern",
    ),
    "tables that reach out": ("test_tables.py::test_metadata_of_a_table_open_nothing",),
    "tables of no rows": ("test_safety.py::test_a_table_of_no_rows_is_one_sentence",),
    "tokenizers that panic": ("test_safety.py::test_a_tokenizer_that_panics_is_one_sentence",),
    "headers of other types": (
        "test_safety.py::test_objects_have_the_types_that_their_readers_count_on",
        "test_safety.py::test_a_replay_log_of_other_types_is_one_sentence",
        "test_doctored.py",
    ),
    "strangers among ranks": ("test_ranks_rendezvous.py",),
    "limits of the shell": ("test_limits.py",),
    "native calls of what does not fit": (
        "test_native_bounds.py",
        "test_engines.py::test_weights_packed_for_another_instruction_set_are_refused",
    ),
    "links and shared folders": (
        "test_safety.py::test_a_planted_link_is_neither_followed_nor_kept",
        "test_safety.py::test_what_cannot_be_removed_is_left_alone",
        "test_safety.py::test_many_writers_leave_one_whole_file",
        "test_safety.py::test_a_lock_is_no_link_and_empties_no_file",
        "test_safety.py::test_a_cache_of_another_user_is_not_believed",
        "test_safety.py::test_a_compiled_world_that_all_may_write_is_not_loaded",
    ),
    "forks after the first use": ("test_native_threads.py",),
}


def surroundings(options: Options) -> Found:
    """The tests of SURROUNDINGS, and for each how they ended."""
    found: Found = {"broken promises": 0}
    for name, tests in SURROUNDINGS.items():
        words = ["-q", "-n", "0", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, cwd=ROOT
        )
        if done.returncode:
            found["broken promises"] += 1
            print(f"{name}: {done.stdout[-4000:]}", flush=True)
        found[name] = done.stdout.rstrip().rpartition("\n")[2]
    return found


def attacked_ranks(options: Options) -> Found:
    """So many faults of one rank of a run, each resumed on another number of ranks."""
    counts, slowest = rank_faults.attacked(options.rank_faults, options.seed)
    return {**counts, "seconds from a fault to the end of all, at most": round(slowest, 1)}


def signed_ranks(options: Options) -> Found:
    """One signature for every estimator and rule, on any number of ranks."""
    return dict(rank_faults.signatures())


def fuzzed_parsers(options: Options) -> Found:
    """Inputs for every parser; cheap ones get more of them."""
    whole = sum(1 / target.cost for target in TARGETS.values())
    work = []
    for name, target in TARGETS.items():
        number = round(options.fuzz / (target.cost * whole)) + 1
        work += [(name, min(5000, number - i), options.seed, i) for i in range(0, number, 5000)]
    counts: dict[str, Counter[str]] = {name: Counter() for name in TARGETS}
    findings: dict[str, str] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for name, outcome in pool.map(slice_of, work):
            counts[name].update(tried=outcome.tried, refused=outcome.refused)
            for where, how in outcome.findings.items():
                if where not in findings:
                    findings[where] = how
                    print(f"finding {where}\n{how}", flush=True)
    tried = sum(count["tried"] for count in counts.values())
    return {
        "inputs": tried,
        "findings": len(findings),
        "by parser": {k: dict(v) for k, v in counts.items()},
    }


def slice_of(work: tuple[str, int, int, int]) -> tuple[str, fuzz.Outcome]:
    name, number, seed, first = work
    return name, fuzz.fuzz(TARGETS[name], number, seed, first)


def fuzzed_kernels(options: Options) -> Found:
    """Inputs for the native entry points, under sanitizers; see tests/fuzz/run.py."""
    script = Path(__file__).parents[1] / "fuzz" / "run.py"
    words = ("--inputs", str(options.native), "--seed", str(options.seed % (1 << 31) or 1))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts.json")
        done = subprocess.run([sys.executable, script, *words, "--out", out], check=False)
        if done.returncode == cli.REFUSED:
            return {"left out": "clang is not installed"}
        counts = json.loads(out.read_text())
    return {"findings": counts.pop("found"), **counts}


PARTS: dict[str, Callable[[Options], Found]] = {
    "kills": killed_runs,
    "ranks": attacked_ranks,
    "signatures": signed_ranks,
    "sweeps": attacked_sweeps,
    "disks": failing_disks,
    "places": places_and_limits,
    "surroundings": surroundings,
    "load": under_load,
    "fuzz": fuzzed_parsers,
    "native": fuzzed_kernels,
}


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def torture(options: Options) -> bool:
    """Runs the parts and writes their record; returns whether every promise was kept."""
    cli.check_ranges(options)
    for part in options.parts:
        if part not in PARTS:
            raise InputError(f"--parts {part[:60]!r} is none: give some of {', '.join(PARTS)}.")
    record: Found = {"eggroll": __version__, "machine": machine(), "options": asdict(options)}
    del record["options"]["out"]
    for part in options.parts or PARTS:
        print(f"{part} ...", flush=True)
        began = time.monotonic()
        record[part] = PARTS[part](options) | {"seconds": round(time.monotonic() - began)}
        print(json.dumps({part: record[part]}, indent=1), flush=True)
        if options.out:
            Path(options.out).mkdir(parents=True, exist_ok=True)
            Path(options.out, "torture.json").write_text(json.dumps(record, indent=1) + "\n")
    return not any(broken(record))


def broken(record: Found) -> Iterator[int]:
    """The numbers that should be zero."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from broken(value)
        elif key in ("broken promises", "findings"):
            yield value


def main(argv: Sequence[str] | None = None) -> int:
    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        about = "Breaks runs on purpose, many times, and counts what becomes of them."
        options = cli.parse(
            Options, words, command="faults/torture.py", about=about, examples=EXAMPLES
        )
        return 0 if torture(options) else 1

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
