"""One sentence for why a kernel, or the process that tried it, failed; whole texts are for reports.

MLX says in a RuntimeError of several lines that a kernel does not build (with the compiler's
messages and the code that each points at), that no pipeline takes it, or that the GPU ended a
launch. Where nobody catches that, the process is ended, and the same is somewhere on its stderr.
"""

from __future__ import annotations

import re

from nax_check.product import death

LINES, WIDTH = 3, 240  # of what goes into a sentence
TRACEBACK = "Traceback (most recent call last):"
FAULT = "Fatal Python error:"  # faulthandler's; what follows says where, at length
FRAME = re.compile(r'  File "(?:.*/)?(.+)", line (\d+), in (.+)')


def sentence(message: str) -> str:
    """The lines of an exception's message that say why, cut to a length that can be read.

    A compiler's errors if there are any, without the code and the marks beneath; else the first
    lines.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = list(dict.fromkeys(line for line in lines if "error:" in line))
    if not errors:
        return " ".join(map(_cut, lines[:LINES]))
    more = len(errors) - LINES
    return "; ".join(map(_cut, errors[:LINES])) + (f"; and {more} more" if more > 0 else "")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."


def why_ended(stderr: str, code: int) -> str:
    """The reason why a process ended with a code other than 0, out of its stderr."""
    said = stderr.partition(FAULT)[0].splitlines()
    heads = [i for i, line in enumerate(said) if line == TRACEBACK]
    after = range(heads[-1] + 1 if heads else len(said), len(said))
    begin = next((i for i in after if said[i][:1] not in ("", " ")), None)
    if begin is not None:  # the exception that nobody caught
        text = sentence("\n".join(said[begin:]))
        if re.fullmatch(r"\w+", text):  # its name is all it says
            text += _place(said[heads[-1] : begin])
    else:  # warnings may come before the line that counts
        errors = [line for line in said if "error:" in line]
        text = sentence("\n".join(errors or _last(said)))
    if code < 0:
        return death(code) + (f": {text}" if text else "")
    return text or death(code)


def why_late(stderr: str, seconds: float) -> str:
    """The reason why a process was ended that had this on its stderr when its time was up."""
    last = _last(stderr.splitlines())
    return f"no answer in {seconds:g} seconds" + "".join(f"; last it said: {_cut(x)}" for x in last)


def _place(traceback: list[str]) -> str:
    found = [match for line in traceback if (match := FRAME.match(line))]
    return " in {2} ({0}, line {1})".format(*found[-1].groups()) if found else ""


def _last(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()][-1:]
