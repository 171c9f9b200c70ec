"""Worlds are compiled once, one sentence says why they are not; the guide runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import shutil
import subprocess
import sys
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
        ((in_c,), {"flags": ["-DA", "-lm\0"]}, r"the flag '-lm.x00' has a NUL or a lone surrogate"),
        ((in_c,), {"flags": ["\ud800"]}, r"the flag '.ud800' has a NUL or a lone surrogate"),
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
    monkeypatch.setenv("CC", "false")
    with pytest.raises(
        InputError, match=r"false does .* exit code 1 and said nothing: try another"
    ):
        native.build(in_c)
    text.chmod(0o755)
    text.write_text("\0")
    monkeypatch.setenv("CC", str(text))
    with pytest.raises(InputError, match=r"world.txt cannot be run .*: set CC or CXX anew\.$"):
        native.build(in_c)
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(InputError, match="No compiler answers to 'no-such-compiler'"):
        native.build(in_c)


@pytest.mark.parametrize("flag", ["-ffast-math", "--fast-math", "-ffinite-math-only"])
@pytest.mark.parametrize("place", ["flags", "file", "CC", "CXX"])
def test_fast_mathematics_are_refused_wherever_the_flag_is(
    flag: str, place: str, in_c: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    """A library linked with such a flag flushes small numbers to zero in the whole process."""
    variable = "CXX" if place == "CXX" else "CC"
    compiler = os.environ.get(variable, native.LANGUAGES[".cpp" if place == "CXX" else ".c"][1])
    known = subprocess.run([*compiler.split(), flag, "-E", in_c.with_name("size.h")])
    if known.returncode:
        pytest.skip(f"{compiler} knows no {flag}")
    given = [flag]
    if place == "file":
        in_c.with_name("opts").write_text(flag)
        given = [f"@{in_c.with_name('opts')}"]
    elif place == variable:
        given = []
        monkeypatch.setenv(variable, f"{compiler} {flag}")
    message = "makes results depend on compiler and machine.*: leave it out."
    with pytest.raises(InputError, match=message) as caught:
        native.build(WORLD if place == "CXX" else in_c, flags=given)
    assert (given[0] if given else os.environ[place]) in str(caught.value)
    assert not cache.exists()


@pytest.mark.parametrize("compiler", ["cc", "cc -Ofast", "clang"])
def test_nothing_linked_flushes_small_numbers_to_zero(compiler: str, in_c: Path):
    """Also with flags that take back what tells of -ffast-math, in a process of its own."""
    if not shutil.which(compiler.split()[0]):
        pytest.skip(f"{compiler} is missing")
    options = in_c.with_name("opts")
    options.write_text("" if "-Ofast" in compiler else "-ffast-math -fno-finite-math-only")
    if compiler == "cc":
        options.write_text(options.read_text() + " -fsigned-zeros")
    program = (
        "import sys; from eggroll import native; "
        "assert native.build(sys.argv[1], flags=['@' + sys.argv[2]]).still.inputs == 3; "
        "assert float(sys.argv[3]) / 2 > 0"
    )
    command = [sys.executable, "-c", program, in_c, options, "2.3e-308"]
    subprocess.run(command, env=os.environ | {"CC": compiler}, check=True)


def test_the_words_of_a_compiler_count(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    first = native.build(in_c).path
    monkeypatch.setenv("CC", "cc -O1")
    assert native.build(in_c).path != first


def test_a_flag_may_be_longer_than_the_name_of_a_file(in_c: Path):
    assert native.build(in_c, flags=["-D" + "A" * 300]).still.inputs == 3


def test_flags_that_write_elsewhere_hide_no_source(in_c: Path):
    """gcc refuses a second output, clang takes the last."""
    found = []
    for size in (3, 4):
        in_c.write_text(IN_C.replace("SIZE", str(size)))
        with contextlib.suppress(InputError):
            built = native.build(in_c, flags=["-o", str(in_c.with_name("elsewhere"))])
            found.append(built.still.inputs)
    assert found in ([], [3, 4])


def test_the_error_is_quoted_and_no_warning(in_c: Path):
    warned = in_c.with_name("warned.c")
    warned.write_text('#warning "this is no error"\nint f(void) { return unheard; }\n')
    twice = in_c.with_name("twice.c")
    twice.write_text(IN_C)
    cases = [
        ((warned,), [], "does not compile this: .*warned.c:2:.*unheard"),
        ((in_c,), ["-lnope"], "does not compile this: .*nope"),
        ((in_c, twice), [], "does not compile this: .*(multiple|duplicate).*still"),
    ]
    for sources, flags, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            native.build(*sources, flags=flags)
        assert "no error" not in str(caught.value)
        assert "ld returned" not in str(caught.value)


SAID = {
    'a.c:1:2: warning: #warning "x: error: y" [-Wcpp]\n    1 | #warning "x: error: y"\n'
    "a.c: In function 'f':\na.c:2:3: error: 'g' undeclared\n": "a.c:2:3: error: 'g' undeclared",
    "In file included from a.c:1:\na.h:1:9: fatal error: b.h: No such file\n": (
        "a.h:1:9: fatal error: b.h: No such file"
    ),
    "error: the '387' unit is not supported\n": "error: the '387' unit is not supported",
    "a.s: Assembler messages:\na.s:9: Error: no such instruction\n": (
        "a.s:9: Error: no such instruction"
    ),
    "/usr/bin/ld: warning: a.o: missing .note\n/usr/bin/ld: NOTE: This is deprecated\n"
    "/usr/bin/ld: a.o: in function `f':\na.c:(.text+0x5): undefined reference to `g'\n"
    "collect2: error: ld returned 1 exit status\n": (
        "/usr/bin/ld: a.o: in function `f': a.c:(.text+0x5): undefined reference to `g'"
    ),
    "ld.lld: error: unable to find library -lnope\nclang: error: linker command failed with exit "
    "code 1\n": "ld.lld: error: unable to find library -lnope",
    'Undefined symbols for architecture arm64:\n  "_g", referenced from:\n      _f in a.o\n'
    "ld: symbol(s) not found for architecture arm64\nclang: error: linker command failed with exit "
    "code 1\n": 'Undefined symbols for architecture arm64: "_g", referenced from: _f in a.o',
    "launch: no such place\n": "launch: no such place",
    "collect2: error: ld returned 1 exit status\n": "collect2: error: ld returned 1 exit status",
    "a.c:1:2: warning: odd\n": "a.c:1:2: warning: odd",
    "\n": "",
}


def test_the_reason_among_what_compilers_say():
    assert {said: native._reason(said) for said in SAID} == SAID


def test_a_library_that_lacks_a_function_says_so_and_is_not_kept(in_c: Path, cache: Path):
    in_c.write_text(IN_C + "int nope(void);\nint calls(void) { return nope(); }\n")
    for _ in range(2):
        with pytest.raises(InputError, match="nope") as caught:
            native.build(in_c)
        if sys.platform == "linux":  # elsewhere the linker says it
            assert str(caught.value).endswith("define it or link what has it.")
        assert not list(cache.iterdir())
    in_c.with_name("has.c").write_text("int nope(void) { return 1; }\n")
    assert native.build(in_c, in_c.with_name("has.c")).still.inputs == 3


def test_a_library_that_was_cut_off_is_built_anew(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(native, "Library", Path)  # what was loaded once is not read again
        native.build(in_c).write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot be loaded .*: build it anew for this machine"):
        native.build(in_c)
    assert native.build(in_c).still.inputs == 3


def test_what_a_library_lacks_is_no_attribute():
    library = native.build(WORLD)
    for name in ("nothere", "old", "answer"):  # nothing, of another ABI, no world
        assert not hasattr(library, name)
        assert getattr(library, name, None) is None
    with pytest.raises(InputError, match=r"no 'nothere': EGGROLL_WORLD.name. makes a world"):
        _ = library.nothere
    for ask in (library.symbol, library.world):
        for name, message in (
            (5, "the name 5 is no text"),
            (b"tall", "the name b'tall' is no text"),
            ("nothere", "exports no 'nothere'"),
            ("tall\0", "exports no 'tall.x00'"),
            ("\ud800", "exports no '.ud800'"),
        ):
            with pytest.raises(InputError, match=message):
                ask(name)  # type: ignore[arg-type]


def test_worlds_of_any_name(in_c: Path):
    names = ("path", "handle", "symbol", "world", "_mine", "__reduce__")
    line = IN_C.splitlines()[-1]
    in_c.write_text(IN_C + "\n".join(line.replace("still", name) for name in names) + "\n")
    library = native.build(in_c)
    for name in names:
        world = library.world(name)
        assert (world.name, world.inputs, world.address) == (name, 3, library.symbol(name))
        assert pickle.loads(pickle.dumps(world)) == world
    assert library.world("still") == library.still


def test_libraries_and_worlds_are_pickled(in_c: Path, monkeypatch: pytest.MonkeyPatch):
    built = native.build(in_c)
    monkeypatch.chdir(built.path.parent)
    library = native.Library(built.path.name)
    monkeypatch.chdir(in_c.parent)  # the path is that of then
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(library, protocol))
        assert (again.path, again.still) == (built.path, built.still)
        assert pickle.loads(pickle.dumps(library.still, protocol)) == built.still
    world = library.still
    library.path = in_c.with_name("gone.so")
    with pytest.raises(InputError, match=r"cannot be loaded .*: build it anew for this machine"):
        pickle.loads(pickle.dumps(world))


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
