"""Faults in the C++ kernels, one at a time, for `make mutants ARGS=--cpp`.

The sources are copied to build/mutants and built there once. After a change the units that have it
are compiled anew, of instruction sets' units one alone, and linked with what was built before. A
change that gives the same library is none, and one that does not compile is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
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
    "bindings.cpp": ("generic", "native_bounds es backward_rule whitening native_worlds"),
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
    "machine.cpp": ("generic", "native_threads engines native_worlds"),
    "members.h": ("generic", KERNELS),
    "parts.cpp": ("generic", "programs"),
    "portable_isa.h": ("generic", f"{KERNELS} draws es"),
    "program.cpp": ("generic", f"native_bounds {KERNELS}"),
    "rows.h": ("generic", "rows cpu_rows programs"),
    "rules.cpp": ("generic", "native_bounds whitening backward_rule es"),
    "rules_isa.h": ("generic", "native_bounds whitening backward_rule es"),
    "stepper.cpp": ("generic", "native_bounds native_worlds"),
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
USES = "return (writes(op.kind) && op.out == reg) || std::find(op.in, op.in + 3, reg) != op.in + 3;"
# (file, line's text, old, new) -> why a change that no test sees is none.
REASONS: dict[tuple[str, str, str, str], str] = {
    (
        "rules.cpp",
        "for (int64_t row = 0; row < leaf.outputs; row += kWhitenedRows) rows.push_back({i, row});",
        " < ",
        " <= ",
    ): "a part of no rows does nothing",
    (
        "rules.cpp",
        "return sum_of_parts(leaves, 1 << 18, threads, kernels().sign);",
        " << ",
        " >> ",
    ): "how many threads move few weights",
    (
        "machine.cpp",
        "if (call.looks && call.at_work) {",
        " && ",
        " || ",
    ): "how it waits, not what for",
    (
        "parts.cpp",
        USES,
        " && ",
        " || ",
    ): "fewer parts of a stage, which are for speed; the same values",
    (
        "parts.cpp",
        USES,
        "3",
        "4",
    ): "fewer parts of a stage, which are for speed; the same values",
    (
        "learn_tape.h",
        "handed = arena.take<int32_t>(4 * step * tokens);",
        "4",
        "5",
    ): "more room than is used",
    (
        "rules_isa.h",
        "for (int64_t row = 0; row < leaf.outputs; row += kBlock) {",
        " < ",
        " <= ",
    ): "a block of no rows adds nothing",
    (
        "votes.h",
        "__builtin_prefetch(to + static_cast<int64_t>(o) * cols + count - 1, 1);",
        " - ",
        " + ",
    ): "what is fetched ahead, for speed",
    (
        "rules.cpp",
        "kWhiteningRoom + sizeof(int16_t) * 2 * kWhitenedRows * static_cast<size_t>(widest), most,",
        "2",
        "3",
    ): "more room than is used",
    (
        "rules_isa.h",
        "static_cast<double>(sum < 1 ? 1 : sum));",
        "1",
        "2",
    ): "where sizes add up to 0 every step is 0, whatever its share; 1 is 1 either way",
    (
        "avx512_credit.h",
        "const __m512i half = _mm512_set1_epi32(shift ? 1 << (shift - 1) : 0);",
        "0",
        "1",
    ): "shifts are four at least",
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
COMPILED = re.compile(r"(?<!if )constexpr")  # may be computed when it is compiled
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
    def where(self) -> str:
        """Its line, as counted.py knows it; empty where what runs does not tell who meets it."""
        lines = (ROOT / SOURCES / self.file).read_text().splitlines()[: self.line]
        inner = len(lines[-1]) + 1
        for line in reversed(lines):
            depth = len(line) - len(line.lstrip())
            if line.strip() and depth < inner:  # its own line, and those that it is within
                if COMPILED.search(line):
                    return ""
                inner = depth
        return f"{self.file}:{self.line}"

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


COUNTING = """// So that a process tells what it ran before it ends.
extern "C" {
void __gcov_dump();
void __gcov_reset();
__attribute__((visibility("default"))) void eggroll_dump() { __gcov_dump(); }
__attribute__((visibility("default"))) void eggroll_reset() { __gcov_reset(); }
}
"""


class Build:
    """A copy of the sources, built with the instruction sets of SETS; kept for later runs."""

    def __init__(self, counted: bool = False, jobs: int = 2) -> None:
        """counted: with GCC's counters of what runs, for mutants.counted."""
        self.counted, self.jobs = counted, jobs
        self.tree = ROOT / "build" / "mutants" / ("counted" if counted else "plain")
        self.folder, self.sources = self.tree / "build", self.tree / SOURCES
        self.stamp = self.tree / "built-of"  # absent while anything of it is changed

    @cached_property
    def library(self) -> Path:
        """Without a mutant, built where it is not built already."""
        names = ("extensions/isa.cmake", "extensions/int8_gemm", "eggroll/native",
                 "CMakeLists.txt", "pyproject.toml", "tests/mutants/cpp.py")  # fmt: skip
        paths = [p for name in names for p in (ROOT / name, *sorted((ROOT / name).rglob("*")))]
        of = hashlib.sha256(b"".join(p.read_bytes() for p in paths if p.is_file())).hexdigest()
        if not self.stamp.is_file() or self.stamp.read_text() != of:
            self._build_all(names[:-1])
            self.stamp.write_text(of)
        (found,) = self.folder.rglob("_int8_gemm*.so")
        return found

    def _build_all(self, names: tuple[str, ...]) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in names:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, self.tree / name)
        whole = self.tree / "CMakeLists.txt"
        own = whole.read_text().replace("add_subdirectory(extensions/float_kernels)\n", "")
        whole.write_text(own)
        for unit in self.sources.glob("isa_*.cpp"):
            if unit.stem.removeprefix("isa_") not in SETS:
                unit.unlink()
        rules = self.sources / "CMakeLists.txt"
        text = rules.read_text().replace("-O3 -Wall -Wextra", "-O1 -w")  # compiles sooner
        if self.counted:
            text = text.replace("-O1", "-O1 --coverage")
            text += "target_link_options(_int8_gemm PRIVATE --coverage)\n"
            (self.sources / "counting.cpp").write_text(COUNTING)
        rules.write_text(text)
        configure = ["cmake", "-G", "Ninja", "-S", self.tree, "-B", self.folder,
                     f"-DPython_EXECUTABLE={sys.executable}"]  # fmt: skip
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        build = ["cmake", "--build", self.folder, "-j", str(self.jobs), "--target", "_int8_gemm"]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)

    def _ninja(self, *words: str) -> list[str]:
        command = ["cmake", "--build", self.folder, "--", "-t", *words]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.splitlines()

    @cached_property
    def commands(self) -> dict[str, str]:
        """Unit, as engine.cpp -> the command that compiles it."""
        rows = json.loads((self.folder / "compile_commands.json").read_text())
        units = ((Path(row["file"]), row["command"]) for row in rows)
        return {path.name: line for path, line in units if path.parent == self.sources}

    @cached_property
    def linking(self) -> str:
        return self._ninja("commands", "_int8_gemm")[-1]

    @cached_property
    def users(self) -> dict[str, set[str]]:
        """File -> the units that have it."""
        users, unit = {unit: {unit} for unit in self.commands}, ""
        for row in self._ninja("deps"):
            if row[:1].strip():
                unit = Path(row.partition(":")[0]).stem  # without its .o
            elif unit in self.commands and row.strip():
                users.setdefault(Path(row.strip()).name, set()).add(unit)
        return users

    @cached_property
    def original(self) -> bytes:
        return self.library.read_bytes()

    def build(self, mutant: CppMutant) -> bytes | None:
        """The library with a mutant; None if it does not compile."""
        original, file = self.original, self.sources / mutant.file
        text, of = file.read_text(), self.stamp.read_text()
        kept = dict[Path, bytes]()
        end = mutant.at + len(mutant.old)
        assert text[mutant.at : end] == mutant.old
        lines = [
            self.commands[unit]
            for unit in sorted(self.users[mutant.file])
            if not unit.startswith("isa_") or unit == f"isa_{mutant.isa}.cpp"
        ]
        linking, library = self.linking, self.library
        self.stamp.unlink()
        try:
            file.write_text(text[: mutant.at] + mutant.new + text[end:])
            for line in lines:
                words = shlex.split(line)
                made = self.folder / words[words.index("-o") + 1]
                kept[made] = made.read_bytes()
                if not self._done(words):
                    return None
            return library.read_bytes() if self._done(["sh", "-c", linking]) else None
        finally:
            file.write_text(text)
            for path, content in (*kept.items(), (library, original)):
                partial = path.with_name(f"{path.name}.partial")
                partial.write_bytes(content)
                os.replace(partial, path)
            self.stamp.write_text(of)

    def _done(self, words: list[str]) -> bool:
        quiet = subprocess.DEVNULL
        return not subprocess.run(words, cwd=self.folder, stdout=quiet, stderr=quiet).returncode
