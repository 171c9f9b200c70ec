"""Rows/s of members that write, over those of the plain model in the same batch of rows.

    OPENBLAS_NUM_THREADS=1 LD_PRELOAD=libopenblas.so.0 python -m experiments.lm.speed

Llamas of random weights, 64 rows of 32 + 32 tokens, greedy, in turn with the plain model's: medians
of ROUNDS. MLX's own BLAS on a CPU of Linux is a plain loop, hence OpenBLAS.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import nullcontext
from typing import Any

from eggroll import lm
from eggroll.cli import command as cli
from eggroll.lm import generation
from eggroll.lm.generation import DrawSettings, Requests
from experiments.arguments import check_packages, only_help
from experiments.lm.memory import Numbers, model_of

ROWS, PROMPT, NEW, ROUNDS = 64, 32, 32, 7
WIDTHS = (256, 576)


def seconds(es: Any, requests: Requests, pairs: int) -> float:
    """Of writing once; pairs: of members, 0 for the model as it was given."""
    began = time.perf_counter()
    with es.running(0, pairs, ROWS) if pairs else nullcontext():
        generation.generate(es.model, es.tokenizer, requests, DrawSettings(), PROMPT)
    return time.perf_counter() - began


def main() -> int:
    check_packages("lm", "mlx-lm")
    for width in WIDTHS:
        for learn in ("adapter:8", "dense"):
            model = model_of(width, 32)
            prompts = [[(7 * row + 3 * at) % 1000 for at in range(PROMPT)] for row in range(ROWS)]
            requests = Requests(prompts, [*range(ROWS)], generation.at_once(ROWS), NEW)
            es = lm.Trainer((model, Numbers()), pop=64, steps=1, learn=learn)
            ways = {"plain": 0, "P 64": 32, "P 16": 8}
            spent: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(ROUNDS + 1):
                for way, pairs in ways.items():
                    one = seconds(es, requests, pairs)
                    if turn:
                        spent[way].append(one)
            plain = statistics.median(spent["plain"])
            for way in ("P 64", "P 16"):
                ratios = [p / m for p, m in zip(spent["plain"], spent[way], strict=True)]
                print(
                    f"width {width}, {learn}, {way}: {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f}) of the plain model's "
                    f"{ROWS / plain:.1f} rows/s"
                )
            es.close()
    return cli.DONE


if __name__ == "__main__":
    only_help(__doc__)
    sys.exit(cli.run(main))
