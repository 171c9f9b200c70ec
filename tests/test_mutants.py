"""Faults that `make mutants` plants: those once unseen, and the reasons of others, are of today."""

from __future__ import annotations

import ast
import json
import random
import signal
import subprocess
from pathlib import Path

import pytest
from house import MODULES, ROOT
from mutants import counted, cpp, reach, run


def test_the_faults_once_unseen_can_still_be_planted():
    known = run.known_mutants()
    assert len(known) == len(run.KNOWN)
    for mutant in known:
        text = MODULES[mutant.module].read_text()
        ast.parse(text.replace(mutant.old, mutant.new, 1))
        assert all((ROOT / test).exists() for test in mutant.tests)


def test_the_faults_of_kernels_once_unseen_can_still_be_planted():
    assert [mutant.change for mutant in cpp.known_mutants()] == [*cpp.KNOWN]


def test_tests_that_are_named_for_modules_exist():
    for name, words in run.TESTS.items():
        assert any(module.startswith(name) for module in MODULES), name
        assert all((ROOT / test).exists() for test in run.files_of(words)), name
    assert run.files_of("edges gpu/pace") == ["tests/test_edges.py", "tests/gpu/test_pace.py"]


def test_mutants_that_a_record_has_are_dealt_first_and_others_evenly():
    decks = [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1"]]
    dealt = run.dealt(decks, 5, random.Random(0), {"b2", "b3"}.__contains__)
    assert {*dealt[:2]} == {"b2", "b3"}
    assert [name[0] for name in dealt[2:]] == ["a", "c", "a"]
    assert run.dealt(decks, 2, random.Random(0), {"b2"}.__contains__)[0] == "b2"
    assert len({*run.dealt(decks, 9, random.Random(0), "".__contains__)}) == 7


def test_the_function_of_a_line_is_the_innermost_that_runs_it():
    """By the line that the interpreter knows it by, the first decorator's."""
    path = MODULES["eggroll.training.replay_log"].relative_to(ROOT)
    lines = (ROOT / path).read_text().splitlines()

    def line(text: str) -> int:
        return next(i for i, row in enumerate(lines, 1) if text in row)

    def found(text: str) -> str:
        return reach.function_at("eggroll.training.replay_log", line(text))

    assert found("steps = self.facts") == f"{path}:{line('def planned') - 1}"
    assert found("def planned") == found("LONGEST_FACTS, MOST_PAIRS =") == ""


def test_tests_that_enter_a_function_come_first_and_files_that_do_not_are_left_out(monkeypatch):
    whole = {
        "a": reach.Reach({"a1": 0.1, "a2": 0.2, "a3": 9.0}, {"f": ["a3", "a2"]}, False),
        "b": reach.Reach({"b1": 0.1}, {"g": ["b1"]}, False),
        "c": reach.Reach({"c1": 0.5}, {}, True),
    }
    monkeypatch.setattr(reach, "reach_of", whole.__getitem__)
    files, seconds = reach.in_order("abc", "f")
    assert files == ["a", "c"]
    assert [*seconds.items()] == [("a2", 0.2), ("a3", 9.0), ("a1", 0.1), ("c1", 0.5)]
    assert reach.in_order("b", "f") == ([], {})
    files, seconds = reach.in_order("abc")
    assert (files, [*seconds]) == (["a", "b", "c"], ["a1", "a2", "b1", "c1", "a3"])


def test_of_the_kernels_only_tests_that_meet_a_line_are_run(monkeypatch):
    whole = {
        "a": reach.Reach(
            {"a1": 0.1, "a2": 0.2, "a3": 0.0}, {"x.h:3": ["a2"], "x.h:9": ["a1"]}, False
        ),
        "b": reach.Reach({"b1": 0.3}, {"x.h:3": [], "x.h:9": []}, False),
        "c": reach.Reach({"c1": 0.4}, {}, True),
        "d": reach.Reach({}, {}, True),
    }
    monkeypatch.setattr(reach, "reach_of", lambda test, isa: whole[test])
    monkeypatch.setattr(reach, "kept", whole.get)
    assert reach.kernels_in_order("ab", "x.h:3", "avx2") == (["a"], {"a2": 0.2})
    files, seconds = reach.kernels_in_order("abcd", "x.h:4", "avx2")  # nothing is made of it
    assert (files, [*seconds]) == (["a", "c", "d"], ["a1", "a2", "c1", "d"])
    assert reach.elsewhere("abcx", "x.h:3") == (["a"], {"a2": 0.2})
    assert reach.elsewhere("abcx", "x.h:3", 0.1) == ([], {})


def test_what_a_file_reaches_is_kept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(reach, "FOUND", tmp_path)
    found = reach.Reach({"a1": 0.5}, {"f": ["a1"], "g": [], "h": ["a1"]}, False)
    monkeypatch.setattr(reach, "measured_kernels", lambda test, isa: found)
    again = reach.reach_of.__wrapped__
    assert again("tests/test_mutants.py", "avx2") == found
    monkeypatch.delattr(reach, "measured_kernels")
    assert again("tests/test_mutants.py", "avx2") == found


def test_lines_that_ran_are_read_from_counts(tmp_path: Path):
    """Of a function that ran all, with those of what is inlined in it."""
    try:
        version = subprocess.run(["g++", "-dumpversion"], check=True, stdout=subprocess.PIPE)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no g++")
    if not version.stdout.strip().isdigit() or int(version.stdout) < 12:
        pytest.skip("g++ is another compiler, or older than 12")
    folder = tmp_path / "int8_gemm"
    folder.mkdir()
    (folder / "a.cpp").write_text(
        "static inline int twice(int x) {\n  return 2 * x;\n}\n"
        "int main(int n, char**) {\n  if (n > 1)\n    return twice(n);\n  return 0;\n}\n"
        "int never(int x) {\n  return x + 1;\n}\n"
    )
    flags = ["--coverage", "-O1", "-c", "-o", "a.cpp.o", str(folder / "a.cpp")]
    subprocess.run(["g++", *flags], cwd=tmp_path, check=True)
    subprocess.run(["g++", "--coverage", "a.cpp.o", "-o", "a"], cwd=tmp_path, check=True)
    counts = tmp_path / "counts"
    counts.mkdir()
    (counts / "names").write_text("t0\nt1")
    subprocess.run([tmp_path / "a"], env={"GCOV_PREFIX": str(counts / "1")}, check=True)
    found = counted.entered(tmp_path, counts, "avx2")
    assert found["a.cpp:5"] == found["a.cpp:2"] == ["t1"]
    assert found["a.cpp:10"] == []


@pytest.mark.parametrize(
    ("codes", "took", "without", "fate"),
    [
        ([0], 0, "", "survived"),
        ([1], 2.9, "", "caught"),  # sooner than it is known to pass: not for being slow
        ([1, 0], 9.0, "", "caught"),  # late, and passes without the change
        ([1, 1], 9.0, "", "unsure"),  # fails without it too
        ([1, None], 9.0, "", "unsure"),
        ([-14, None, 0], 0, "", "caught"),  # has no end alone either, and passes without
        ([None, None, 0], 0, "", "caught"),
        ([None, 0], 0, "", "unsure"),  # passes when it is alone
        ([-14, -11, 0], 0, "", "caught"),
        ([None, None, None], 0, "", "unsure"),
        ([1, 0], 2.9, "eggroll._int8_gemm:own.so", "caught"),
        ([1, 1], 2.9, "eggroll._int8_gemm:own.so", "unsure"),
    ],
)
def test_a_test_that_fails_for_a_busy_machine_catches_nothing(
    monkeypatch, codes: list[int | None], took: float, without: str, fate: str
):
    monkeypatch.setattr(reach, "PASSING", set())
    left = [*codes]

    def run(tests: list[str], env: dict[str, str], seconds: float, *words: str) -> int | None:
        if len(left) == len(codes):
            assert json.loads(Path(env["EGGROLL_ORDER"]).read_text()) == {"a1": 40}
            failed = ["a1"] if codes[0] == 1 else []
            found = {"seconds": {"a1": took}, "failed": failed, "now": "" if failed else "a1"}
            Path(env["EGGROLL_SECONDS"]).write_text(json.dumps(found))
        else:
            assert (tests, seconds) == (["a1"], 40)
            alone = len(left) == len(codes) - 1 and codes[0] in (None, -14)
            assert env["EGGROLL_MUTANT"] == ("m:changed" if alone else without)
        return left.pop(0)

    monkeypatch.setattr(reach, "run", run)
    assert reach.outcome(["a"], {"a1": 2.0}, "m:changed", without)[0] == fate
    assert not left


def test_a_test_is_known_when_it_is_killed(tmp_path: Path):
    """As one that has no end is."""
    test, told = tmp_path / "test_stuck.py", tmp_path / "told.json"
    test.write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\n")
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"test_stuck.py::test_a": 60, "test_stuck.py::test_b": 1}))
    env = {"EGGROLL_SECONDS": str(told), "EGGROLL_ORDER": str(order)}
    code = reach.run([str(test)], env, 90, "--rootdir", str(tmp_path))
    assert code == -signal.SIGALRM
    found = json.loads(told.read_text())
    assert found["now"] == "test_stuck.py::test_b"
    assert [*found["seconds"]] == ["test_stuck.py::test_a"]


def test_a_record_goes_on_with_what_was_caught(tmp_path: Path):
    mutants, path = run.mutants_of("eggroll.errors")[:3], MODULES["eggroll.errors"]
    record = run.Record(tmp_path / "out" / "mutants.jsonl")
    for mutant, fate in zip(mutants, ("caught", "survived", "unsure"), strict=True):
        record.add(mutant, path, fate, "a1", "")
    record = run.Record(tmp_path / "out" / "mutants.jsonl")
    assert [record.again(mutant, path) for mutant in mutants] == [True, False, False]
    assert record.counts == {"caught": 1}
    assert record.again(mutants[1], path, "none")
    assert record.counts == {"caught": 1, run.NO_CHANGE: 1}
    record.add(mutants[1], path, "caught", "a2", "")
    rows = [json.loads(line) for line in record.out.read_text().splitlines()]
    assert [(row["fate"], row["by"]) for row in rows] == [
        ("caught", "a1"), ("caught", "a2"), ("unsure", "a1"),
    ]  # fmt: skip


def test_functions_are_found_by_the_tests_that_enter_them_in_child_processes_too(tmp_path: Path):
    test, call = tmp_path / "test_two.py", "from eggroll.errors import shortened; shortened('a.')"
    test.write_text(
        "import subprocess, sys\n"
        f"def test_here(): {call}\n"
        f'def test_child(): subprocess.run([sys.executable, "-c", """{call}"""], check=True)\n'
        "def test_neither(): assert True\n"
    )
    found = reach.measured(str(test))
    rows = MODULES["eggroll.errors"].read_text().splitlines()
    first = next(i for i, row in enumerate(rows, 1) if row.startswith("def shortened"))
    names = [name.rpartition("::")[2] for name in found.entered[f"eggroll/errors.py:{first}"]]
    assert names == ["test_child", "test_here"]
    assert len(found.seconds) == 3
    assert not found.unsure


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


def test_what_may_be_computed_when_it_is_compiled_has_no_line():
    places = {mutant.text: mutant.where for mutant in cpp.mutants_of("lanes.h")}
    assert places["if (d > 2 << bits) ++bits;"] == ""  # within a constexpr function
    assert not any(where for text, where in places.items() if "constexpr" in text)
    (root,) = [where for text, where in places.items() if text.startswith("int root = isqrt(")]
    assert root.startswith("lanes.h:")


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
