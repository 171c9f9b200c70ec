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
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from eggroll.training import loop, verify
from eggroll.training.chain import EVERY, ChainLog
from eggroll.training.run import TrainingRun

PLAIN = "--sample-tokens 0 --validate-every 0 --val-tokens 512 --checkpoint-every 0"
PLAIN += " --statistics-every 0"


def timed(owner: type, name: str, seconds: list[float]) -> None:
    """Replaces a method by one that also writes down how long each call took."""
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = method(*arguments, **named)
        seconds.append(time.perf_counter() - began)
        return result

    setattr(owner, name, call)


def main() -> None:
    words = sys.argv[1:]
    updates = 2 * EVERY
    if "--updates" in words:
        at = words.index("--updates")
        updates = int(words[at + 1])
        del words[at : at + 2]
    whole, links, records = list[float](), list[float](), list[float]()
    timed(TrainingRun, "update", whole)
    timed(TrainingRun, "_link", links)
    timed(ChainLog, "append", records)
    with tempfile.TemporaryDirectory() as place:
        run = Path(place, "run")
        options = [*PLAIN.split(), *words, "--steps", str(updates), "--out", str(run)]
        loop.train(loop.options_from(options))
        began = time.perf_counter()
        verify.verify(verify.VerifyOptions(str(run)))
        verified = time.perf_counter() - began
    step = statistics.median(whole)
    chain = (sum(links) + sum(records)) / updates
    print(f"step {1e3 * step:.3f} ms, chain {1e6 * chain:.1f} us, {100 * chain / step:.3f} % of it")
    print(
        f"training {sum(whole):.2f} s, verify {verified:.2f} s, start included, {updates} updates"
    )


if __name__ == "__main__":
    main()
