"""Every pointer and reference of a Metal kernel names its address space: a check of the text.

Metal before 4.1 refuses one that does not; later it means a generic one, which is another type.
Types that a template deduces carry theirs.
"""

from __future__ import annotations

import re

SPACES = {"device", "threadgroup", "constant", "thread", "EGG_DEVICE", "EGG_CONSTANT"}
BESIDES = {"const", "volatile", "constexpr", "typename", "struct", "::", "metal"}
TYPES = {
    *("void", "bool", "char", "short", "int", "long", "half", "float", "auto", "signed"),
    *("uchar", "ushort", "uint", "ulong", "unsigned", "size_t", "ptrdiff_t"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("simdgroup_matrix", "tensor", "array", "dextents"),
}
OF_METAL = re.compile(r"(u?(char|short|int|long)|half|float)[234]|simdgroup_(half|float)8x8")
DECLARED = re.compile(
    r"\b(?:struct|class|union|enum(?:\s+class)?|typename|using)\s+(\w+)"
    r"|\btypedef\b[^;]*?(\w+)\s*;"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.M | re.S)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|::|&&|\|\||[-+*/%&|^<>=!]=|<<|->|\S")


def plain(text: str) -> str:
    """The text without comments and directives, lines as they were."""
    for kind in (COMMENT, DIRECTIVE):
        text = kind.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def arguments_begin(tokens: list[str], close: int) -> int:
    """Index of the < that belongs to the > at `close`; -1 if there is none."""
    depth = 0
    for at in range(close, -1, -1):
        depth += (tokens[at] == ">") - (tokens[at] == "<")
        if not depth:
            return at
        if tokens[at] in (";", "{", "}"):
            break
    return -1


def unnamed_spaces(text: str) -> list[str]:
    """Pointers and references that name no address space, as `line 7: int *`."""
    text = plain(text)
    declared = {name for pair in DECLARED.findall(text) for name in pair} - {"", "namespace"}
    found = list(TOKEN.finditer(text))
    tokens, out, pointers = [each[0] for each in found], [], set[int]()

    def is_type(token: str) -> bool:
        return token in TYPES | declared or bool(OF_METAL.fullmatch(token))

    for i, token in enumerate(tokens):
        if token not in ("*", "&"):
            continue
        at, typed = i - 1, False
        if tokens[at] == "(" and tokens[i + 2 : i + 4] == [")", "["]:
            at -= 1  # type (&name)[..]
        while at >= 0:
            if tokens[at] == ">" and not typed:
                begin = arguments_begin(tokens, at)
                if begin < 1 or not is_type(tokens[begin - 1]):
                    break
                at = begin - 1
            typed |= is_type(tokens[at])
            if not (is_type(tokens[at]) or tokens[at] in SPACES | BESIDES):
                break
            at -= 1
        if not typed and at not in pointers:
            continue  # a product, a bitwise and, what lies at an address
        pointers.add(i)
        if not SPACES & set(tokens[at + 1 : i]):
            line = text.count("\n", 0, found[i].start()) + 1
            out.append(f"line {line}: {' '.join(tokens[max(at + 1, 0) : i + 1])}")
    return out
