"""What a replay costs beside training: seconds of processor time and bytes per update.

    python benchmarks/replay.py [options of eggroll.train]

Trains a run of the given options on one thread and replays it, each for two numbers of updates:
their difference is without the start. The replay must end on the signature of the run.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from checks import check_own, output_of

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.training import loop

FEW, MANY = 2, 22  # updates
PLAIN = "--threads 1 --sample-tokens 0 --validate-every 0 --val-tokens 512 --checkpoint-every 0"


def seconds(*words: object) -> tuple[float, str]:
    """Processor time of a command, and the last line that it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = output_of([sys.executable, "-m", *map(str, words)])
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return took, out.splitlines()[-1]


def report(words: Sequence[str]) -> None:
    """Trains, replays and prints.

    Raises:
        InputError: an option of eggroll.train is no good, or its runs are not replayed.
    """
    check_own(words, "--resume", "--out", "--steps")
    options = loop.options_from(words)
    options.check()
    if not options.estimator_class.replays:
        raise InputError(
            f"--estimator is {options.estimator}, whose runs are not replayed: leave it out."
        )
    with tempfile.TemporaryDirectory() as place:
        train = ["eggroll.train", *PLAIN.split(), *words]
        trained = [seconds(*train, "--steps", n, "--out", Path(place, str(n))) for n in (FEW, MANY)]
        run = Path(place, str(MANY))
        replay = ["eggroll.replay", run, "--threads", 1]
        replayed = [seconds(*replay, "--step", n) for n in (FEW, MANY)]
        assert replayed[1][1] == trained[1][1], "another signature"
        updates = MANY - FEW
        of_one = [(made[1][0] - made[0][0]) / updates for made in (trained, replayed)]
        sizes = [Path(place, str(n), "replay.bin").stat().st_size for n in (FEW, MANY)]
        print(f"training: {1e3 * of_one[0]:.1f} ms of a thread per update")
        print(f"replay:   {1e3 * of_one[1]:.1f} ms, 1/{of_one[0] / of_one[1]:.0f} of it")
        whole = (run / "checkpoint.safetensors").stat().st_size
        grown = (sizes[1] - sizes[0]) / updates
        print(
            f"replay.bin: {grown:.0f} bytes per update, {sizes[1]:,} in all; checkpoint: {whole:,}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        if cli.asks_for_help(words):
            print(__doc__)
        else:
            report(words)
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
