"""The text of every Metal kernel, read by upstream clang as C++ for OpenCL and by a check of ours.

Address spaces are real there, so it shows what reading a kernel as plain C++ cannot.
"""

from __future__ import annotations

import re
from pathlib import Path

import emulator
import pytest
from metal_lint import plain, unnamed_spaces
from metal_parse import refused

from gpu.every_kernel import every_kernel

KERNELS = Path(__file__).parents[2] / "extensions" / "int8_gemm"
MATRICES = "MetalPerformancePrimitives"  # Metal 4's header of matrix operations
FILES = sorted(p for folder in ("metal", "gpu") for p in (KERNELS / folder).iterdir())


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Name of a kernel -> the text that MLX generates for it."""
    return {
        each.name: emulator.generated(each.source, each.inputs, each.outputs)
        for each in every_kernel("metal")
    }


@pytest.fixture(scope="module")
def compiler(reader) -> str:
    found = emulator.clang()
    reader("OpenCL reading", "metal", "" if found else "clang++ is not installed")
    assert found
    return found


@pytest.mark.parametrize("nax", [False, True])
def test_every_kernel_is_taken(texts: dict[str, str], compiler: str, tmp_path: Path, nax: bool):
    some = {name: text for name, text in texts.items() if (MATRICES in text) is nax}
    assert len(some) > 25
    assert refused(compiler, some, tmp_path) == ""


# What Metal refuses and C++ takes -> a kernel, its text, what it becomes, what is said.
REFUSED = {
    "an operand's type in the thread address space": (
        "seed nax layer",
        r"get_destination_cooperative_tensor<.*?, int32_t>",
        "get_destination_cooperative_tensor<decltype(a), decltype(b), int32_t>",
        "is_operand<__private",
    ),
    "the same in the NAX check": (
        "nax_check tensor",
        r"get_destination_cooperative_tensor<.*?, int32_t>",
        "get_destination_cooperative_tensor<decltype(some_left), decltype(some_right), int32_t>",
        "is_operand<__private",
    ),
    "a threadgroup's pointer for the device's": (
        "seed layer",
        r"Lane lane_of\(uint index, uint simdgroup, threadgroup int",
        "Lane lane_of(uint index, uint simdgroup, device int",
        "changes address space",
    ),
    "a cast that leaves its address space": (
        "seed layer",
        r"reinterpret_cast<const device char2\*>",
        "reinterpret_cast<const threadgroup char2*>",
        "is not allowed",
    ),
    "a member that gives a thread's reference of what may lie anywhere": (
        "seed layer",
        r"struct Lane \{",
        "struct Lane {\n  thread uint& first() { return index; }",
        "'__generic",
    ),
    "a tensor of an address space that is not named": (
        "seed nax layer",
        r"metal::tensor<device int8_t, ",
        "metal::tensor<int8_t, ",
        "static_assert failed",
    ),
    "threadgroup memory that is not the kernel's": (
        "seed layer",
        r"FUNCTION Lane lane_of\(.*?\) \{",
        r"\g<0> threadgroup int own[4];",
        "non-kernel function variable",
    ),
    "signed and unsigned mixed": (
        "seed layer", r"min\(uint\(M\), members\)", "min(M, members)", "'min' is ambiguous",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_what_metal_refuses_is_refused(
    texts: dict[str, str], compiler: str, tmp_path: Path, fault: str
):
    name, old, new, said = REFUSED[fault]
    text, count = re.subn(old, new, texts[name], flags=re.S)
    assert count, "the fault did not get in"
    assert said in refused(compiler, {name: text}, tmp_path)


def test_every_pointer_names_its_address_space(texts: dict[str, str]):
    assert {
        name: unnamed_spaces(text) for name, text in texts.items() if unnamed_spaces(text)
    } == {}
    assert {path.name: unnamed_spaces(path.read_text()) for path in FILES} == {
        path.name: [] for path in FILES
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_address_space_left_out_is_seen(path: Path):
    """Each that a file names for a pointer or a reference, one after the other."""
    text = "typedef int Score; typedef int Value;" + plain(path.read_text())
    for found in re.finditer(r"\b(device|threadgroup|thread|EGG_DEVICE) (?=[\w ]+\(?[*&])", text):
        without = text[: found.start()] + text[found.end() :]
        assert unnamed_spaces(without), text[found.start() :].partition("\n")[0]


@pytest.mark.parametrize(
    "text",
    [
        "x = a * b + int(3) * c; if (d > e * 2 && (f & g)) h[i * K] = *p * *q;",
        "template <typename T> void f(thread T& x, T y) { y = y * x; }",
        "const device int8_t *a, *b; device int* threadgroup* p;",
        "thread char2 (&y)[TILES][M / 8]; w = uint(M) * q; // int* p",
        "thread float2& m = reinterpret_cast<thread float2&>(s.thread_elements());",
    ],
)
def test_what_is_right_is_let_pass(text: str):
    assert unnamed_spaces(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "int* p;",
        "void f(threadgroup int* a, uint *b);",
        "char2 (&y)[TILES][M / 8];",
        "device int* * p;",
        "simdgroup_matrix<half, 8, 8>& m;",
        "struct A { int v; }; const A& f(device A& x);",
        "template <typename T> void f(T& x);",
        "device int x; auto& y = x;",
        "reinterpret_cast<float2&>(x);",
    ],
)
def test_what_names_none_is_found(text: str):
    assert len(unnamed_spaces(f"\n{text}")) == 1
    assert unnamed_spaces(f"\n{text}")[0].startswith("line 2: ")
