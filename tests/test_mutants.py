"""Faults that `make mutants` plants: those once unseen, and the reasons of others, are of today."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from house import MODULES, ROOT
from mutants import cpp, run


def test_the_faults_once_unseen_can_still_be_planted():
    known = run.known_mutants()
    assert len(known) == len(run.KNOWN)
    for mutant in known:
        text = MODULES[mutant.module].read_text()
        ast.parse(text.replace(mutant.old, mutant.new, 1))
        assert all((ROOT / test).exists() for test in mutant.tests)


def test_every_reason_is_of_a_line_that_can_be_changed():
    for module, line in run.REASONS:
        assert line in {mutant.text for mutant in run.mutants_of(module)}, module
    for change in cpp.REASONS:
        assert change in {mutant.change for mutant in cpp.mutants_of(change[0])}


@pytest.mark.parametrize("file", cpp.FILES)
def test_the_kernels_have_mutants_and_tests(file: str):
    mutants = cpp.mutants_of(file)
    text = (ROOT / cpp.SOURCES / file).read_text()
    assert len(mutants) > 10
    assert all(text[m.at : m.at + len(m.old)] == m.old != m.new for m in mutants)
    assert all(Path(ROOT / test).exists() for test in mutants[0].tests)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("  if (a < b) c = x << 2;", {(" < ", " <= "), (" << ", " >> "), ("2", "3")}),
        ("  const int8_t* p = f(-y, 127);", {("-", ""), ("127", "128")}),
        ("  p->n = std::min(a, b) && -1;", {
            ("std::min", "std::max"), (" && ", " || "), ("-", ""), ("1", "2"),
        }),
        ("  std::array<int, N> x16 = 0x80;", set()),
    ],
)  # fmt: skip
def test_changes_of_a_line(code: str, changes: set[tuple[str, str]]):
    assert {(old, new) for _, old, new in cpp.changes_of(code)} == changes
