"""What a replay costs beside training: seconds of processor time and bytes per update.

    python benchmarks/replay.py [options of eggroll.train]

Trains a run of the given options on one thread and replays it, each for two numbers of updates:
their difference is without the start. The replay must end on the signature of the run.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, MANY = 2, 22  # updates
PLAIN = "--threads 1 --sample-tokens 0 --validate-every 0 --val-tokens 512 --checkpoint-every 0"


def seconds(*words: object) -> tuple[float, str]:
    """Processor time of a command, and the last line that it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-m", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return took, ended.stdout.splitlines()[-1]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        train = ["eggroll.train", *PLAIN.split(), *sys.argv[1:]]
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


if __name__ == "__main__":
    main()
