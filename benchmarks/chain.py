"""What the chain of a run costs: seconds per update beside the update itself.

    python benchmarks/chain.py [--updates N] [options of eggroll.train]

Trains a run of the given options in a temporary folder and times, update by update, the whole step,
the digests and the record of the chain. Then it times `verify` over the same updates. Medians, and
for the chain means, as the digest of the whole state comes every 50 updates.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

from checks import check_own, finished

from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.training import loop, verify
from eggroll.training.chain import EVERY, ChainLog
from eggroll.training.run import TrainingRun

PLAIN = "--sample-tokens 0 --validate-every 0 --val-tokens 512 --checkpoint-every 0"
PLAIN += " --statistics-every 0"


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/chain.py."""

    updates: Annotated[int, Range(1, 10**9)] = 2 * EVERY
    """Updates that are trained and verified."""


def read(words: Sequence[str]) -> tuple[int, list[str]]:
    """The number of updates, and the words for eggroll.train."""
    own, rest = list[str](), list[str]()
    for before, word in zip(["", *words], words, strict=False):
        mine = word.partition("=")[0] == "--updates" or before == "--updates"
        (own if mine or cli.asks_for_help([word]) else rest).append(word)
    about = "What the chain of a run costs; all other options are those of eggroll.train."
    options = cli.parse(Options, own, command="benchmarks/chain.py", about=about)
    cli.check_ranges(options)
    check_own(rest, "--resume", "--out", "--steps")
    return options.updates, rest


def timed(owner: type, name: str, seconds: list[float]) -> Any:
    """Puts, within a block, what also writes down how long each call took in a method's place."""
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = method(*arguments, **named)
        seconds.append(time.perf_counter() - began)
        return result

    return mock.patch.object(owner, name, call)


def report(updates: int, words: Sequence[str]) -> None:
    """Trains, verifies and prints.

    Raises:
        KeyboardInterrupt: training was interrupted.
    """
    whole, links, records = list[float](), list[float](), list[float]()
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        run = Path(place, "run")
        given = [*PLAIN.split(), *words, "--steps", str(updates), "--out", str(run)]
        options = loop.options_from(given)
        stack.enter_context(timed(TrainingRun, "update", whole))
        stack.enter_context(timed(TrainingRun, "_link", links))
        stack.enter_context(timed(ChainLog, "append", records))
        finished(loop.train, options)
        began = time.perf_counter()
        verify.verify(verify.VerifyOptions(str(run)))
        verified = time.perf_counter() - began
    step = statistics.median(whole)
    chain = (sum(links) + sum(records)) / updates
    print(f"step {1e3 * step:.3f} ms, chain {1e6 * chain:.1f} us, {100 * chain / step:.3f} % of it")
    print(
        f"training {sum(whole):.2f} s, verify {verified:.2f} s, start included, {updates} updates"
    )


def main(argv: Sequence[str] | None = None) -> int:
    def work() -> int:
        report(*read(sys.argv[1:] if argv is None else argv))
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
