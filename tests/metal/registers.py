"""The local arrays of Metal kernels that an optimising compiler leaves in memory.

A kernel is compiled to LLVM's IR at -O2, where Apple's compiler begins, too. There an `alloca` is
an array of a thread that has no place in registers: on a GPU it lies in device memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from emulator import FLAGS, build, clang

INCLUDE = re.compile(r"^#include .*\n", re.M)


def together(kernels: Mapping[str, str]) -> str:
    """MSL of several kernels as one file, each in a namespace of its own."""
    includes = dict.fromkeys(line for msl in kernels.values() for line in INCLUDE.findall(msl))
    parts = [
        f"namespace kernel_{i}_ {{\n{INCLUDE.sub('', msl)}\n}}\n"
        for i, msl in enumerate(kernels.values())
    ]
    return "".join([*includes, *parts])


def optimised(kernels: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """Name of a kernel -> its instructions; of other functions by their C names."""
    source = folder / "kernels.cpp"
    source.write_text(together(kernels), "ascii")
    flags = ["-std=c++20", *FLAGS, "-O2", "-g0", "-DEMU_COUNT", "-S", "-emit-llvm"]
    build([str(clang()), *flags, str(source), "-o", str(source.with_suffix(".ll"))])
    names, found = list(kernels), dict[str, list[str]]()
    inside = ""
    for line in source.with_suffix(".ll").read_text().splitlines():
        if line.startswith("define "):
            symbol = re.search(r'@"?(\w+)', line)[1]  # type: ignore[index]
            number = re.search(r"kernel_(\d+)_", symbol)
            inside = names[int(number[1])] if number else symbol
            found.setdefault(inside, [])
        elif line == "}":
            inside = ""
        elif inside and line.startswith("  "):
            found[inside].append(line.strip())
    return found


def in_memory(kernels: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """Name of a kernel -> its arrays that are left in memory, as the IR declares them."""
    made = optimised(kernels, folder)
    return {name: [line for line in made[name] if " = alloca " in line] for name in made}
