"""The measure of the house: packages, the arrows between them, and their budgets of code lines.

`python tests/house.py` prints the table, as `make check` does. A feature that breaks a budget takes
something away, or raises it here and argues in its commit; a new arrow needs its line in ARROWS.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "eggroll"

# Room (a package, or a file at the root) -> the rooms that it imports from.
ARROWS: dict[str, str] = {
    "__main__": "cli errors files",
    "_extension": "errors",
    "adamw": "baseline cli data errors files ranks spec training",
    "baseline": "cli errors networks spec training",
    "bench": "_extension cli engines errors files networks probe spec training",
    "cli": "_extension errors files",
    "completion": "__main__ cli errors",
    "data": "errors files spec",
    "eggroll": "cli envs errors library lm networks spec sweep training",
    "engines": "_extension errors files networks spec",
    "envs": "cli errors library spec",
    "evolution": "engines errors ranks spec",
    "files": "errors",
    "generate": "baseline cli data engines errors files inference training",
    "inference": "data engines spec",
    "launch": "cli errors",
    "library": "_extension baseline cli data engines errors evolution files "
    "generate inference native networks spec training",
    "lm": "cli errors evolution files library ranks spec sweep training",
    "native": "errors files",
    "networks": "errors spec",
    "plot": "cli errors files training",
    "probe": "_extension cli engines errors files",
    "ranks": "cli errors files spec",
    "replay": "cli errors evolution files lm training",
    "report": "baseline cli errors files library spec training",
    "spec": "_extension errors",
    "sweep": "cli errors files ranks training",
    "train": "cli",
    "training": "cli data engines errors evolution files inference networks ranks spec",
}

# Package -> the most code lines that it may have: no comments, docstrings or empty lines. Files at
# the root count together.
BUDGETS: dict[str, int] = {
    "baseline": 850,
    "bench": 750,
    "cli": 810,
    "data": 1565,
    "engines": 6380,
    "envs": 890,
    "evolution": 1290,
    "library": 3015,
    "lm": 2145,
    "native": 205,
    "ranks": 695,
    "report": 630,
    "root": 1880,
    "spec": 1240,
    "sweep": 1420,
    "training": 3695,
}

LONGEST_FILE = 1000  # lines
ROOMS, ROOT_ROOMS = 15, 30  # files and folders in a folder of the package, and in its root
SHORT_FILE, SHORT_FILES = 60, 5  # files below so many lines, __init__ and __main__ apart
MOST_ARRAYS = 5  # of an argument list
UPDATE_FILES, TELL_FILES = 40, 15  # that one update of a run, and one `tell`, may enter


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a module imports, at its head or later, for types or not.

    Each name of `from eggroll import a, b` counts: a module as itself, another name as the module
    that has it.
    """
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                imported.add(inner if inner in MODULES else node.module)
    return imported & MODULES.keys()


def room_of(module: str) -> str:
    """The package of a module, or its own name if it lies at the root."""
    return module.split(".")[1] if "." in module else module


def arrows() -> dict[str, set[str]]:
    """Room -> the other rooms that it imports from."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        room = room_of(module)
        rooms = {room_of(other) for other in imports_of(path)} - {room}
        graph.setdefault(room, set()).update(rooms)
    return {room: others for room, others in graph.items() if others}


def code_lines(text: str) -> int:
    """Lines that hold code: no comments, docstrings or empty lines."""
    tree, docstrings = ast.parse(text), set[int]()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for each in body:  # also the strings that describe options
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    docstrings |= set(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def sizes() -> dict[str, tuple[int, int]]:
    """Package -> files and code lines; files at the root together."""
    files, lines = Counter[str](), Counter[str]()
    for path in MODULES.values():
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else "root"
        files[package] += 1
        lines[package] += code_lines(path.read_text())
    return {package: (files[package], lines[package]) for package in sorted(files)}


def main() -> None:
    measured, graph = sizes(), arrows()
    print(f"{'package':<12}{'files':>6}{'code lines':>12}{'budget':>8}")
    for package, (files, lines) in measured.items():
        print(f"{package:<12}{files:>6}{lines:>12,}{BUDGETS.get(package, 0):>8,}")
    files, lines = (sum(column) for column in zip(*measured.values(), strict=True))
    print(f"{'all':<12}{files:>6}{lines:>12,}{sum(BUDGETS.values()):>8,}")
    rooms = len(list(rooms_in(PACKAGE)))
    longest = max(len(path.read_text().splitlines()) for path in MODULES.values())
    total = sum(len(path.read_text().splitlines()) for path in MODULES.values())
    print(
        f"{rooms} rooms at the root, {sum(map(len, graph.values()))} arrows between rooms, "
        f"{total:,} lines, the longest file {longest}"
    )


def rooms_in(folder: Path) -> list[Path]:
    """Python files and folders with some in a folder; __init__ and __main__ are no rooms."""
    inside = [p for p in folder.iterdir() if not p.name.startswith("__")]
    return [p for p in inside if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))]


if __name__ == "__main__":
    sys.exit(main())
