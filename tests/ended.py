"""What a command left when it ended; for tests that call one and tests that break one."""

from __future__ import annotations

from typing import NamedTuple


class Broken(AssertionError):
    """A promise that a command did not keep."""


class Ended(NamedTuple):
    """The end of a command: exit code (negative: the signal that ended it), stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def signature(self) -> str:
        """What the last line of a run that is done says."""
        name, _, value = self.out.rstrip().rpartition("\n")[2].partition(": ")
        if self.code != 0 or name != "signature" or len(value) != 64:
            raise Broken(f"no signature, but {self}")
        return value
