"""Worlds are compiled once, one sentence says why they are not; the guide runs."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

from eggroll import native
from eggroll.errors import InputError

ROOT = Path(__file__).parents[1]
WORLD = ROOT / "tests" / "native" / "trial_world.cpp"
IN_C = """
#include "eggroll_world.h"
#include "size.h"
static void begin(const void* s, void* m, uint64_t k) { (void)s, (void)m, (void)k; }
static int32_t observe(const void* s, void* m, int32_t t, int8_t* x) {
  (void)s, (void)m, (void)t, (void)x;
  return EGGROLL_IDLE;
}
static void act(const void* s, void* m, int32_t t, const void* y) {
  (void)s, (void)m, (void)t, (void)y;
}
static void value(const void* s, void* m, int32_t n, int32_t* v) {
  (void)s, (void)m, (void)n, (void)v;
}
EGGROLL_WORLD(still) = {EGGROLL_WORLD_ABI, SIZE, 1, 0, begin, observe, act, value};
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@pytest.fixture
def in_c(tmp_path: Path) -> Path:
    (tmp_path / "size.h").write_text("#define SIZE 3\n")
    (tmp_path / "still.c").write_text(IN_C)
    return tmp_path / "still.c"


def test_a_library_has_worlds_and_other_symbols(cache: Path):
    library = native.build(WORLD)
    tall = library.tall
    assert (tall.name, tall.inputs, tall.outputs) == ("tall", 17, 33)
    assert tall.bytes % 8 == 1
    assert tall.address == library.symbol("tall")
    assert library.symbol("answer") not in (0, tall.address)
    assert not hasattr(library, "_nothing")
    assert list(cache.iterdir()) == [library.path]
    assert native.Library(library.path).tall.inputs == 17


def test_sources_are_compiled_once(cache: Path, in_c: Path, monkeypatch: pytest.MonkeyPatch):
    first = native.build(in_c)
    assert first.still.inputs == 3
    at = first.path.stat().st_mtime_ns
    assert native.build(in_c).path.stat().st_mtime_ns == at
    os.utime(in_c)
    assert native.build(in_c).path == first.path
    assert native.build(in_c, flags=["-DOTHER"]).path != first.path
    (in_c.parent / "size.h").write_text("#define SIZE 4\n")
    assert native.build(in_c).still.inputs == 4
    assert len(list(cache.iterdir())) == 3


def test_files_that_flags_name_count(in_c: Path):
    """What is linked is part of the library."""
    said = in_c.with_name("said.c")
    found = []
    for number in (1, 7):
        said.write_text(f"int said(void) {{ return {number}; }}\n")
        subprocess.run(["cc", "-fPIC", "-c", said, "-o", said.with_suffix(".o")], check=True)
        built = native.build(in_c, flags=[str(said.with_suffix(".o"))])
        found.append((built.path, ctypes.CDLL(str(built.path)).said()))
    assert [number for _, number in found] == [1, 7]
    assert found[0][0] != found[1][0]


def test_c_and_cpp_go_together(in_c: Path):
    library = native.build(in_c, WORLD)
    assert (library.still.inputs, library.narrow.inputs) == (3, 3)


def test_a_world_in_c_needs_no_other_compiler(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native.build(in_c).still.inputs == 3


def test_a_compiler_may_have_words_before_it(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = in_c.with_name("launch")
    launcher.write_text('#!/bin/sh\nexec "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("CC", f"{launcher} cc")
    monkeypatch.setenv("CXX", "env c++")
    assert native.build(in_c, WORLD).still.inputs == 3


def test_products_are_rounded_whatever_the_flags(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    """All machines have the same numbers, so no later flag may have the last word."""
    commands: list[list[str]] = []
    real = native._run
    monkeypatch.setattr(native, "_run", lambda command: commands.append(command) or real(command))
    native.build(in_c, flags=["-ffp-contract=fast", "-fassociative-math"])
    (compiled,) = (command for command in commands if "-c" in command)
    assert compiled.index("-ffp-contract=off") > compiled.index("-ffp-contract=fast")
    assert compiled.index("-fno-associative-math") > compiled.index("-fassociative-math")


def test_a_library_in_the_current_folder(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    built = native.build(in_c)
    built.path.rename(in_c.with_name("mine.so"))
    monkeypatch.chdir(in_c.parent)
    assert native.Library("mine.so").still.inputs == 3


def test_one_sentence_for_what_is_not_built(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    bad = in_c.with_name("bad.cpp")
    bad.write_text("#include <vector>\nint f() { return unheard; }\nint g() { return unseen; }\n")
    text = in_c.with_name("world.txt")
    text.write_text("")
    cases = [
        ((), {}, "build was given no sources"),
        ((text,), {}, r"world.txt' is neither C nor C\+\+"),
        ((in_c.with_name("none.c"),), {}, "none.c' is no file"),
        ((3,), {}, "the source 3 is no path"),
        ((bad,), {}, r"does not compile this: .*bad.cpp:2:.*unheard"),
        ((in_c,), {"flags": ["-DA", "-ffast-math"]}, "-ffast-math makes results depend"),
        ((in_c,), {"flags": "-DA"}, "give a list of them"),
        ((in_c,), {"flags": [3]}, "flags is .3.: a list of texts is needed"),
        ((in_c,), {"flags": None}, "flags is None: a list of texts"),
        ((in_c,), {"flags": ["--version"]}, "made no library with flags .'--version'."),
    ]
    for sources, more, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            native.build(*sources, **more)
        assert "unseen" not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be loaded"):
        native.Library(text)
    monkeypatch.setenv("CC", '"cc')
    with pytest.raises(InputError, match=r"CC is '\"cc' .*: give a compiler"):
        native.build(in_c)
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(InputError, match="No compiler answers to 'no-such-compiler'"):
        native.build(in_c)


def test_a_cache_that_cannot_be_written(in_c: Path, cache: Path):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot be read or written .* set EGGROLL_CACHE"):
        native.build(in_c)


def test_the_header_is_beside_the_module_and_says_the_same_abi():
    header = (native.include() / "eggroll_world.h").read_text()
    assert f"#define EGGROLL_WORLD_ABI {native.ABI}\n" in header


def test_the_guide_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of docs/native.md, one after another; those in C++ name their file."""
    blocks = re.findall(
        r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/native.md").read_text(), re.M | re.S
    )
    assert [kind for kind, _ in blocks] == ["cpp", "python", "python"]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for kind, text in blocks:
        if kind == "cpp":
            name = re.match(r"// (\S+):", text)
            assert name
            Path(name[1]).write_text(text)
        else:
            exec(compile(text, "docs/native.md", "exec"), names)
