"""Disks that fill up, fail or end: one file operation of a run fails, and nothing is lost."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from pathlib import Path

from ended import Broken, Ended

from eggroll.files import CHECKPOINT
from faults.cases import Case
from faults.commands import DONE, REFUSED, Child, check_metrics, partials, preloaded, state_of

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES)


def operations(case: Case, folder: Path) -> int:
    """File operations of a run in its folder, counted."""
    count = folder.with_suffix(".count")
    env = preloaded(f"0 kill {folder}") | {"EGGROLL_FAULT_COUNT": str(count)}
    ended = Child(*case.words, "--out", folder, module=case.module, env=env).ended()
    if ended.signature != case.signature:
        raise Broken(f"another signature: {ended}")
    return count.stat().st_size


def failing(case: Case, folder: Path, number: int, chance: random.Random) -> Counter[str]:
    """Operation `number` fails, at times all later ones too; then the run goes on as if it had not.

    Returns counts.
    """
    error, stays = chance.choice(ERRORS), chance.random() < 0.5
    env = preloaded(f"{number} {error}{'+' * stays} {folder}")
    words = [*case.words, "--checkpoint-every", chance.choice([1, 2, 5])]
    ended = Child(*words, "--out", folder, module=case.module, env=env).ended()
    counts = Counter({f"{errno.errorcode[error]}{' from then on' * stays}": 1})
    if ended.code not in (DONE, REFUSED):
        raise Broken(f"operation {number}, {errno.errorcode[error]}: {ended}")
    counts["refused in a sentence"] += ended.code == REFUSED
    if ended.code == REFUSED and os.strerror(error) not in ended.err:
        raise Broken(f"operation {number}: the error is not named: {ended}")
    path = folder / CHECKPOINT
    if path.exists():
        counts["checkpoints verified"] += 1
        state = state_of(path)
        if not case.expects(state):
            raise Broken(f"operation {number}: update {state.step} is another than undisturbed")
    again = gone_on(case, folder, chance)
    if again.signature != case.signature:
        raise Broken(f"operation {number}: after it {again}")
    check_metrics(folder, state_of(path).step)
    if partials(folder):
        raise Broken(f"operation {number}: {partials(folder)} are left")
    counts["exact afterwards"] += 1
    return counts


def gone_on(case: Case, folder: Path, chance: random.Random) -> Ended:
    """The run resumed, or begun again where it had no checkpoint yet."""
    begun = (folder / CHECKPOINT).exists()
    words = ["--resume", folder] if begun else [*case.words, "--out", folder]
    return Child(*words, module=case.module).ended()
