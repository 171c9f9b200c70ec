"""The house: one concept, one place; imports run one way; registries are asked in one place.

The measures and the budgets stand in house.py.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import house
import numpy as np
import pytest
from house import MODULES, PACKAGE, ROOT

import eggroll as eg
from eggroll.training.run import open_run


def test_imports_form_no_circle():
    graph = {name: house.imports_of(path) - {name} for name, path in MODULES.items()}
    assert len(graph) > 50
    assert sum(map(len, graph.values())) > 200, "the imports were not found"
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_name_of_an_import_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(house, "MODULES", {"eggroll": tmp_path, "eggroll.files": tmp_path})
    (tmp_path / "one.py").write_text("from eggroll import files, other\nimport eggroll.files")
    assert house.imports_of(tmp_path / "one.py") == {"eggroll.files", "eggroll"}


def test_arrows_between_rooms_are_listed():
    listed = {room: set(others.split()) for room, others in house.ARROWS.items()}
    assert house.arrows() == listed


def test_packages_keep_to_their_budgets():
    measured = {package: lines for package, (_, lines) in house.sizes().items()}
    assert measured.keys() == house.BUDGETS.keys()
    beyond = {name: n for name, n in measured.items() if n > house.BUDGETS[name]}
    assert beyond == {}, "take something away, or raise the budget and argue in the commit"


def test_code_lines_are_counted():
    text = '"""A module."""\n\nX = 1  # one\n"""Of X."""\n# a comment\nY = [\n    2,\n]\n'
    assert house.code_lines(text) == 4


def test_folders_have_few_rooms():
    folders = [PACKAGE, *(p for p in PACKAGE.rglob("*") if p.is_dir() and p.name != "__pycache__")]
    limits = {folder: house.ROOT_ROOMS if folder == PACKAGE else house.ROOMS for folder in folders}
    crowded = {str(f): len(house.rooms_in(f)) for f, most in limits.items()
               if len(house.rooms_in(f)) > most}  # fmt: skip
    assert crowded == {}


def test_few_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines())
               for path in MODULES.values() if not path.name.startswith("__")}  # fmt: skip
    short = {name: n for name, n in lengths.items() if n < house.SHORT_FILE}
    assert len(short) <= house.SHORT_FILES, short


def test_no_file_is_too_long():
    kinds = (".py", ".cpp", ".h", ".metal", ".cu")
    folders = ("eggroll", "extensions", "tests", "experiments", "benchmarks")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in kinds]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: n for name, n in lengths.items() if n > house.LONGEST_FILE} == {}


def definitions() -> Iterator[tuple[str, ast.AST]]:
    """Every class and function of the package, with the name of its module."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


def test_a_name_of_a_public_class_means_one_thing():
    places = defaultdict(list)
    for module, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(module)
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_an_argument_list_of_many_arrays_is_a_type():
    array = re.compile(r"\b(mx\.array|NDArray|ArrayLike|Array)\b")
    crowded = {}
    for module, node in definitions():
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            kinds = [ast.unparse(a.annotation) for a in arguments if a.annotation]
            count = sum(bool(array.search(kind)) for kind in kinds)
            if count > house.MOST_ARRAYS:
                crowded[f"{module}.{node.name}"] = count
    assert crowded == {}


def test_docstrings_open_with_the_thing():
    """Not with a question word: "The checkpoint of update 0.", not "What a run starts from."."""
    openings = {}
    nodes = [(module, ast.parse(path.read_text())) for module, path in MODULES.items()]
    for module, node in [*nodes, *definitions()]:
        text = ast.get_docstring(node) or ""  # type: ignore[arg-type]
        if text.split(" ")[0] in ("What", "Whether", "How", "Where", "Which", "Who", "Why"):
            openings[f"{module}.{getattr(node, 'name', '')}"] = text.split("\n")[0]
    assert openings == {}


def files_entered(work: Callable[[], object]) -> set[str]:
    """Files of the package whose functions run."""
    entered = set()

    def called(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            entered.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return entered


@pytest.mark.parametrize("recipe", ["paper", "language", "feedback"])
def test_one_update_enters_few_files(recipe: str):
    options = {"pop": 32, "width": 16, "steps": 3, "table_bits": 16, "data": "count"}
    with ExitStack() as stack:
        run = open_run(eg.Config(recipe=recipe, **options), stack, write=False, show=False)
        run.update()
        entered = files_entered(run.update)
    assert {"evolution/step.py", "engines/base.py"} <= entered
    assert len(entered) <= house.UPDATE_FILES, sorted(entered)


def test_one_tell_enters_few_files():
    trainer = eg.Trainer(eg.networks.mlp(4, [8], 2), pop=8, table_bits=16)
    for _ in range(2):  # the first loads what the second finds
        trainer.ask()(np.zeros((1, 1, 4), np.int8))
        entered = files_entered(lambda: trainer.tell(np.arange(8)))
    assert "evolution/step.py" in entered
    assert len(entered) <= house.TELL_FILES, sorted(entered)


def test_every_package_says_what_it_is():
    silent = [name for name, path in MODULES.items()
              if path.name == "__init__.py" and not inspect.cleandoc(
                  ast.get_docstring(ast.parse(path.read_text())) or "")]  # fmt: skip
    assert silent == []


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
