"""The house: imports run one way, files stay small, registries are asked in one place."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "eggroll"
LONGEST = 400  # lines of a file


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a module imports, at its head or later, for types or not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inside & MODULES.keys()) or {node.module}
    return found & MODULES.keys()


def test_imports_form_no_circle():
    graph = {name: imports_of(path) - {name} for name, path in MODULES.items()}
    assert len(graph) > 50
    assert sum(map(len, graph.values())) > 200, "the imports were not found"
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_file_is_too_long():
    kinds = (".py", ".cpp", ".h", ".metal", ".cu")
    folders = ("eggroll", "extensions", "tests", "experiments", "benchmarks")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in kinds]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_the_order_of_a_units_parts_is_written_once():
    """Headers without a guard are included by one other, but for those that units begin with."""
    headers = sorted((ROOT / "extensions" / "int8_gemm" / "cpu").glob("*.h"))
    parts = {p.name for p in headers if "#pragma once" not in p.read_text()}
    shared = {"portable.h", "x86.h", "avx512.h", "neon.h", "unit.h"}
    included = [n for p in headers for n in re.findall(r'^#include "(.*)"', p.read_text(), re.M)]
    assert shared < parts
    assert {n: included.count(n) for n in parts - shared if included.count(n) != 1} == {}


@pytest.mark.parametrize(
    ("choice", "places"), [(r"ESTIMATORS\[", 1), (r"RULES\[", 1), (r"NETWORKS\[", 1)]
)
def test_chosen_in_one_place(choice: str, places: int):
    found = [name for name, path in MODULES.items() if re.search(choice, path.read_text())]
    assert len(found) == places, found


def test_no_name_of_an_estimator_or_rule_decides_anywhere_else():
    """Comparisons such as `options.rule == "sign"` are what the registries are there to replace."""
    chosen = re.compile(r"""\b(estimator|rule)\s*(==|!=|in)\s*["'(]""")
    found = [name for name, path in MODULES.items() if chosen.search(path.read_text())]
    assert found == []
