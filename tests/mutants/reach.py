"""Which tests enter which functions, and how long they take: what is run for a mutant, in order.

A file of tests is run once with calls traced, and again when it or the package has changed; what it
found lies in build/mutants/reach. For a mutant within a function the files that never enter it, in
no process, are left out. Of the others every test is run, those that enter it first and quick ones
before slow ones, until one fails. For the kernels a file is run with a library that counts, and the
tests are run that meet a function with the mutant's line.

A test may fail because the machine is busy. So one that fails later than it is known to pass is
run again without the change, and one that does not end is run again alone, with the change and
without. What the change alone does not explain is no catch.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from house import MODULES, PACKAGE, ROOT
from mutants import counted, cpp

from eggroll import _extension

HERE = Path(__file__).parent
FOUND = ROOT / "build" / "mutants" / "reach"
BYTECODE = ROOT / "build" / "mutants" / "bytecode"
SECONDS = 600  # that the tests of a mutant may take at most
QUICK = 1.0  # seconds of a test that is run before those of other files
PASSING: set[tuple[str, str]] = set()  # tests that passed, and what was in the module's place
LATER = 1.0  # seconds beyond those known that a failing test takes on an idle machine


@dataclass(frozen=True)
class Reach:
    """What a file of tests did.

    seconds: by test, set-up and all; entered: by function, as "eggroll/files.py:12", or by line of
    the kernels, as "block.h:41", the tests that entered it, "" where it was outside of any; unsure:
    True if a test failed for being traced.
    """

    seconds: dict[str, float]
    entered: dict[str, list[str]]
    unsure: bool


class Failing(Exception):
    """Tests fail without a mutant."""


def run(tests: Sequence[str], env: Mapping[str, str], seconds: float, *words: str) -> int | None:
    """The exit code of pytest; None after so many seconds."""
    paths = f"{HERE / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # Bytecode of its own folder makes a start take half as long; a mutant has none.
    own = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(BYTECODE)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "-p", "planted", *words, *tests], cwd=ROOT, env={**os.environ, **own, **env},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


@cache
def digest() -> bytes:
    """Of the package, its library, and what tests have in common."""
    own = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and HERE not in path.parents
    ]
    library = Path(_extension.load().__file__ or "")
    paths = sorted([*MODULES.values(), *own, library])
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()


@cache
def reach_of(test: str, isa: str = "") -> Reach:
    """What a file of tests reaches of the package or of the kernels with an instruction set,
    measured where it is not known.

    Raises:
        Failing: its tests fail, traced and not.
    """
    if old := kept(test, isa):
        return old
    found = measured_kernels(test, isa) if isa else measured(test)
    places = dict[tuple[str, ...], list[str]]()
    for where, names in found.entered.items():
        places.setdefault(tuple(names), []).append(where)
    file, of = _file(test, isa)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"of": of, **asdict(found), "entered": [*places.items()]}))
    return found


def kept(test: str, isa: str = "") -> Reach | None:
    """What a file of tests was measured to reach; None where it or the package has changed."""
    file, of = _file(test, isa)
    if not file.is_file() or (found := json.loads(file.read_text()))["of"] != of:
        return None
    entered = {where: names for names, places in found["entered"] for where in places}
    return Reach(found["seconds"], entered, found["unsure"])


def _file(test: str, isa: str) -> tuple[Path, str]:
    """Where it is kept, and what it is of."""
    of = hashlib.sha256(digest() + (ROOT / test).read_bytes()).hexdigest()
    return FOUND / f"{isa}{test.replace('/', '-')}.json", of


@cache
def counting() -> cpp.Build:
    """The kernels that count what runs."""
    return cpp.Build(counted=True)


def measured_kernels(test: str, isa: str) -> Reach:
    """Runs a file of tests with kernels that count."""
    library = counting().library
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "seconds.json"
        env = {
            "EGGROLL_COUNTED": folder,
            "EGGROLL_SECONDS": str(told),
            "EGGROLL_ISA": isa,
            "EGGROLL_MUTANT": f"{cpp.MODULE}:{library}",
            "GCOV_PREFIX": f"{folder}/ends",
        }
        code = run([test], env, 3 * SECONDS)
        if code and run([test], {}, SECONDS, "-x"):
            raise Failing(test)
        if code is None:
            return Reach({}, {}, True)
        seconds = json.loads(told.read_text())["seconds"]
        entered = counted.entered(counting().folder, Path(folder), isa)
    return Reach(seconds, entered, code != 0)


def measured(test: str) -> Reach:
    """Runs a file of tests with its calls traced."""
    with tempfile.TemporaryDirectory() as folder:
        lines, told = Path(folder) / "reached", Path(folder) / "seconds.json"
        lines.touch()
        env = {"EGGROLL_REACHED": str(lines), "EGGROLL_PACKAGE": f"{PACKAGE}{os.sep}"}
        code = run([test], {**env, "EGGROLL_SECONDS": str(told)}, 3 * SECONDS)
        if code and run([test], {}, SECONDS, "-x"):
            raise Failing(test)
        seconds = json.loads(told.read_text())["seconds"] if code is not None else {}
        entered: dict[str, set[str]] = {}
        for line in lines.read_text().splitlines():
            name, file, first = line.split("\t")
            where = f"{Path(file).relative_to(ROOT)}:{first}"
            entered.setdefault(where, set()).add(name)
    return Reach(seconds, {where: sorted(names) for where, names in entered.items()}, code != 0)


@cache
def tree_of(module: str) -> ast.AST:
    return ast.parse(MODULES[module].read_text())


def function_at(module: str, line: int) -> str:
    """The innermost function whose body has a line; empty for what runs when it is imported."""
    first = 0
    for node in ast.walk(tree_of(module)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.body[0].lineno <= line <= (node.end_lineno or 0):
            first = max(first, min(n.lineno for n in (node, *node.decorator_list)))
    return f"{MODULES[module].relative_to(ROOT)}:{first}" if first else ""


def in_order(tests: Sequence[str], where: str = "") -> tuple[list[str], dict[str, float]]:
    """The files to run for a change of that function, or of what all tests meet, and their tests in
    order, with the seconds of each."""
    files, rows = [], []
    for i, file in enumerate(tests):
        reach = reach_of(file)
        entering = set(reach.entered.get(where, ()))
        if where and not entering and not reach.unsure:
            continue
        files.append(file)
        rows += [
            (bool(where) and name not in entering, seconds > QUICK, i, seconds, name)
            for name, seconds in reach.seconds.items()
        ]
    return files, {row[-1]: row[3] for row in sorted(rows)}


def elsewhere(
    tests: Iterable[str], where: str, seconds: float = 15
) -> tuple[list[str], dict[str, float]]:
    """The same for files of tests that are not named for a function, as far as it is known what
    they reach: the tests that enter it alone, quick ones first, of so many seconds altogether."""
    rows = []
    for file in tests:
        reach = kept(file)
        for name in reach.entered.get(where, ()) if reach else ():
            if name in reach.seconds:
                rows.append((reach.seconds[name], name, file))
    known, files = dict[str, float](), dict[str, None]()
    for took, name, file in sorted(rows):
        if (seconds := seconds - took) < 0:
            break
        known[name], files[file] = took, None
    return [*files], known


def kernels_in_order(
    tests: Sequence[str], where: str, isa: str
) -> tuple[list[str], dict[str, float]]:
    """The same for a line of the kernels: the tests that meet it alone, or all that meet any where
    nothing is made of this line."""
    reaches = {test: reach_of(test, isa) for test in tests}
    if not any(where in reach.entered for reach in reaches.values()):
        where = ""
    rows = []
    for file, reach in reaches.items():
        lines = [reach.entered.get(where, [])] if where else reach.entered.values()
        meeting = {*reach.seconds} if reach.unsure else set[str]().union(*lines)
        rows += [
            (seconds, name, file) for name, seconds in reach.seconds.items() if name in meeting
        ]
        rows += [] if reach.seconds else [(float(SECONDS), file, file)]  # as a whole
    rows.sort()
    files = dict.fromkeys(file for _, _, file in rows)
    return [*files], {name: seconds for seconds, name, _ in rows}


def outcome(
    files: Sequence[str],
    known: Mapping[str, float],
    change: str,
    without: str = "",
    isa: str = "",
    only: bool = False,
) -> tuple[str, str]:
    """The fate of a change, "caught", "survived" or "unsure", and the test that decided it.

    files, known: of `in_order` or the like; change, without: NAME:PATH of a module and of the file
    in its place, with the change and, where that is not the package's own, without; only: the
    tests that are known, and no others of the files.
    """
    if not files:
        return "survived", ""  # nothing enters the function
    env = {"EGGROLL_ISA": isa} if isa else {}
    changed, plain = env | {"EGGROLL_MUTANT": change}, env | {"EGGROLL_MUTANT": without}
    with tempfile.TemporaryDirectory() as folder:
        order, told = Path(folder) / "order.json", Path(folder) / "seconds.json"
        order.write_text(json.dumps({test: int(limit_of(known[test])) for test in known}))
        told.write_text('{"seconds": {}, "failed": [], "now": ""}')
        more = {"EGGROLL_ORDER": str(order), "EGGROLL_SECONDS": str(told)}
        more |= {"EGGROLL_ONLY": "1"} if only else {}
        code = run(files, changed | more, SECONDS, "-x")
        if code == 0:
            return "survived", ""
        ended = code not in (None, -signal.SIGALRM)
        found = json.loads(told.read_text())
    test = [*found["failed"], found["now"]][0]
    if not test:
        return "caught" if ended else "unsure", "imports"
    usual = known.get(test, 0)
    if not ended and run([test], changed, limit_of(usual)) == 0:
        return "unsure", test
    late = not ended or found["seconds"].get(test, 0) > usual + LATER
    if late or (without and (test, without) not in PASSING):
        if run([test], plain, limit_of(usual)) != 0:
            return "unsure", test
        PASSING.add((test, without))
    return "caught", test


def limit_of(seconds: float) -> float:
    """The seconds after which tests that are known to take so many do not end."""
    return min(SECONDS, 20 + 10 * seconds)
