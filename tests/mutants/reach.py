"""Which tests enter which functions, and how long they take: what is run for a mutant, in order.

A file of tests is run once with calls traced, and again when it or the package has changed; what it
found lies in build/mutants/reach. For a mutant within a function the files that never enter it, in
no process, are left out. Of the others every test is run, those that enter it first and quick ones
before slow ones, until one fails.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from house import MODULES, PACKAGE, ROOT

from eggroll import _extension

HERE = Path(__file__).parent
FOUND = ROOT / "build" / "mutants" / "reach"
SECONDS = 600  # that the tests of a mutant may take at most before it counts as caught
QUICK = 1.0  # seconds of a test that is run before those of other files


@dataclass(frozen=True)
class Reach:
    """What a file of tests did.

    seconds: by test, set-up and all; entered: by function, as "eggroll/files.py:12", the tests that
    entered it, "" where it was outside of any; unsure: True if a test failed for being traced.
    """

    seconds: dict[str, float]
    entered: dict[str, list[str]]
    unsure: bool


class Failing(Exception):
    """Tests fail without a mutant."""


def run(tests: Sequence[str], env: Mapping[str, str], seconds: float, *words: str) -> int | None:
    """The exit code of pytest; None after so many seconds."""
    paths = f"{HERE / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    own = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
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
def reach_of(test: str) -> Reach:
    """What a file of tests reaches, measured where it is not known.

    Raises:
        Failing: its tests fail, traced and not.
    """
    now = hashlib.sha256(digest() + (ROOT / test).read_bytes()).hexdigest()
    kept = FOUND / f"{test.replace('/', '-')}.json"
    if kept.is_file() and (found := json.loads(kept.read_text()))["of"] == now:
        return Reach(found["seconds"], found["entered"], found["unsure"])
    found = measured(test)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"of": now, **asdict(found)}))
    return found


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


def in_order(tests: Sequence[str], where: str = "") -> tuple[list[str], list[str], float]:
    """The files to run for a change of that function, or of what all tests meet; their tests in
    order, and the seconds of all of them."""
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
    return files, [row[-1] for row in sorted(rows)], sum(row[3] for row in rows)


def outcome(
    tests: Sequence[str], where: str, env: Mapping[str, str], words: Sequence[str] = ("-x",)
) -> str:
    """The fate of a change: caught, survived, or slow."""
    files, order, seconds = in_order(tests, where)
    if not files:
        return "survived"  # nothing enters the function
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(order, file)
        file.flush()
        limit = min(SECONDS, 60 + 5 * seconds)
        code = run(files, {**env, "EGGROLL_ORDER": file.name}, limit, *words)
    return "slow" if code is None else "caught" if code else "survived"
