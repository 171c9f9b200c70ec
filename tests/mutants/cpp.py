"""Faults in the C++ kernels, one at a time, for `make mutants ARGS=--cpp`.

The sources are copied to build/mutants and built there with one instruction set, whose unit alone
is compiled anew after a change. A change that gives the same library is none, and one that does not
compile is left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from house import ROOT

SOURCES = Path("extensions/int8_gemm/cpu")
MODULE = "eggroll._int8_gemm"
SETS = ("generic", "avx2", "avx512vnni")
KERNELS = "cpu_rows rows engines credit backward programs"  # those that take less time first
# File -> the instruction set that it is tried with, and the tests that hold it.
FILES: dict[str, tuple[str, str]] = {
    "arguments.h": ("generic", "native_bounds engines rows"),
    "bindings.cpp": ("generic", "native_bounds es whitening native_worlds"),
    "block.h": ("generic", KERNELS),
    "count.h": ("generic", "engines credit population"),
    "credit.h": ("generic", "credit credit_groups programs rows"),
    "credit_isa.h": ("generic", "credit credit_groups programs rows"),
    "crediting.cpp": ("generic", "credit credit_groups programs rows"),
    "engine.cpp": ("generic", f"{KERNELS} draws native_bounds native_worlds"),
    "epilogue.h": ("generic", KERNELS),
    "lanes.h": ("generic", KERNELS),
    "layers.h": ("generic", f"{KERNELS} native_worlds"),
    "learn.h": ("generic", "backward programs labels"),
    "learn_credit.h": ("generic", "backward programs labels"),
    "learn_isa.h": ("generic", "backward programs"),
    "learn_losses.h": ("generic", "labels"),
    "learn_tape.h": ("generic", "backward programs"),
    "learning.h": ("generic", "backward native_bounds labels"),
    "leaves.h": ("generic", KERNELS),
    "machine.cpp": ("generic", "native_threads engines native"),
    "members.h": ("generic", KERNELS),
    "parts.cpp": ("generic", "programs native"),
    "portable_isa.h": ("generic", f"{KERNELS} draws es"),
    "program.cpp": ("generic", f"native_bounds {KERNELS}"),
    "rows.h": ("generic", "rows cpu_rows programs"),
    "rules.cpp": ("generic", "native_bounds whitening backward_rule es"),
    "rules_isa.h": ("generic", "native_bounds whitening backward_rule es"),
    "stepper.cpp": ("generic", "native_worlds worlds_examples"),
    "votes.h": ("generic", "engines programs credit"),
    "avx2_elements.h": ("avx2", KERNELS),
    "avx2_pairs.h": ("avx2", KERNELS),
    "x86.h": ("avx2", KERNELS),
    "x86_adam.h": ("avx2", "es backward_rule"),
    "x86_learn.h": ("avx2", "backward programs"),
    "x86_vector.h": ("avx2", f"{KERNELS} draws whitening"),
    "isa_avx2.cpp": ("avx2", KERNELS),
    "avx512.h": ("avx512vnni", KERNELS),
    "avx512_credit.h": ("avx512vnni", "credit credit_groups programs rows"),
    "avx512_elements.h": ("avx512vnni", KERNELS),
    "avx512_vector.h": ("avx512vnni", f"{KERNELS} draws whitening"),
}
# (file, line's text, old, new) -> why a change that no test sees is none.
REASONS: dict[tuple[str, str, str, str], str] = {
    (
        "rules.cpp",
        "for (int64_t row = 0; row < leaf.outputs; row += kWhitenedRows) rows.push_back({i, row});",
        " < ",
        " <= ",
    ): "a part of no rows does nothing",
    (
        "count.h",
        "size_t bytes = 0, largest = 0;",
        "0",
        "1",
    ): "more room than is used",
    (
        "credit.h",
        "rows = arena.take<int8_t>(static_cast<size_t>(words_of(widest)) * 4 * kPairs);",
        "4",
        "5",
    ): "more room than is used",
}
# Faults that went unseen once: file, line's text, old and new text.
KEYS = (
    "require(play.rows >= 1 && play.keys.ndim() == 1 && play.keys.size() && "
    "play.keys.size() % 2 == 0,"
)
KNOWN: tuple[tuple[str, str, str, str], ...] = (
    ("engine.cpp", KEYS, " >= ", " > "),
    ("engine.cpp", KEYS, "2", "3"),
)
# clang-format puts spaces around binary operators, and around neither brackets of templates nor
# signs of types.
SWAPS = {
    " + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ", " % ": " / ", " << ": " >> ",
    " >> ": " << ", " & ": " | ", " | ": " & ", " && ": " || ", " || ": " && ", " < ": " <= ",
    " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " += ": " -= ",
    " -= ": " += ", "std::min": "std::max", "std::max": "std::min",
}  # fmt: skip
OPERATOR = re.compile("|".join(map(re.escape, sorted(SWAPS, key=len, reverse=True))))
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
MINUS = re.compile(r"(?<=[(\[{ ])-(?=[\w(])")  # of one operand
SILENT = re.compile(r"//.*|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)'")
NO_CODE = ("#", "static_assert", "template", "using", "namespace", "alignas")


@dataclass(frozen=True)
class CppMutant:
    """A change of a file's text: at this offset, `old` becomes `new`."""

    file: str
    line: int
    at: int
    old: str
    new: str
    text: str  # of the line
    isa: str
    tests: tuple[str, ...]

    @property
    def change(self) -> tuple[str, str, str, str]:
        """The key of REASONS."""
        return self.file, self.text, self.old, self.new


def mutants_of(file: str) -> list[CppMutant]:
    """Every mutant of a file."""
    isa, words = FILES[file]
    tests = tuple(f"tests/test_{word}.py" for word in words.split())
    found, begin = [], 0
    for number, line in enumerate((ROOT / SOURCES / file).read_text().splitlines(True), 1):
        code = SILENT.sub(lambda quiet: "~" * len(quiet[0]), line)
        if not line.strip().startswith(NO_CODE):
            found += [
                CppMutant(file, number, begin + at, old, new, line.strip(), isa, tests)
                for at, old, new in changes_of(code)
            ]
        begin += len(line)
    return found


def known_mutants() -> list[CppMutant]:
    """Those of KNOWN, which must be mutants of their files."""
    found = []
    for known in KNOWN:
        alike = [mutant for mutant in mutants_of(known[0]) if mutant.change == known]
        if len(alike) != 1:
            raise ValueError(f"{known[0]} has {known[2]!r} in {known[1]!r} {len(alike)} times")
        found += alike
    return found


def changes_of(code: str) -> Iterator[tuple[int, str, str]]:
    """Where a line may be changed, and how."""
    for match in OPERATOR.finditer(code):
        yield match.start(), match[0], SWAPS[match[0]]
    for match in NUMBER.finditer(code):
        yield match.start(), match[0], str(int(match[0]) + 1)
    for match in MINUS.finditer(code):
        yield match.start(), "-", ""


class Build:
    """A copy of the sources, built with one instruction set beside what every build has."""

    def __init__(self, isa: str, jobs: int = 2) -> None:
        self.isa, self.jobs = isa, jobs
        self.tree = ROOT / "build" / "mutants" / isa
        self.sources = self.tree / SOURCES

    @cached_property
    def original(self) -> bytes:
        """The library without a mutant, built on the first call."""
        shutil.rmtree(self.tree, ignore_errors=True)
        self.tree.mkdir(parents=True)
        for name in ("extensions/isa.cmake", "extensions/int8_gemm", "eggroll/native"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, self.tree / name)
        shutil.copy(ROOT / "pyproject.toml", self.tree)
        whole = (ROOT / "CMakeLists.txt").read_text()
        own = whole.replace("add_subdirectory(extensions/float_kernels)\n", "")
        (self.tree / "CMakeLists.txt").write_text(own)
        for unit in self.sources.glob("isa_*.cpp"):
            if unit.stem not in (f"isa_{self.isa}", "isa_generic"):
                unit.unlink()
        rules = self.sources / "CMakeLists.txt"  # -O1 compiles in half of the time
        rules.write_text(rules.read_text().replace("-O3", "-O1"))
        configure = ["cmake", "-G", "Ninja", "-S", self.tree, "-B", self.tree / "build",
                     f"-DPython_EXECUTABLE={sys.executable}"]  # fmt: skip
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        if not self._compile():
            raise RuntimeError(f"the sources do not compile with {self.isa}: run make build")
        return self.library.read_bytes()

    @property
    def library(self) -> Path:
        (found,) = (self.tree / "build").rglob("_int8_gemm*.so")
        return found

    def _compile(self) -> bool:
        command = ["cmake", "--build", self.tree / "build", "-j", str(self.jobs),
                   "--target", "_int8_gemm"]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def build(self, mutant: CppMutant) -> bytes | None:
        """The library with a mutant; None if it does not compile."""
        assert self.original
        file = self.sources / mutant.file
        text = file.read_text()
        try:
            end = mutant.at + len(mutant.old)
            assert text[mutant.at : end] == mutant.old
            file.write_text(text[: mutant.at] + mutant.new + text[end:])
            return self.library.read_bytes() if self._compile() else None
        finally:
            file.write_text(text)
