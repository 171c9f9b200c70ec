"""The speed of learning by errors carried back: `python benchmarks/learning.py`

Tokens per second as a ratio to the engine's plain inference of the same members and tokens, without
noise, in turn in one run: of the kernels alone (forward, credit and votes), and of whole updates,
with the rule and all that the host does. Before anything is timed, a small run of each estimator is
compared with the portable engine. With one thread the clock is the process's CPU time, which other
processes disturb least; with more it is the wall's.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from estimators import NETWORKS, opened, verify

from eggroll.evolution.estimators import SCALES, Local
from eggroll.spec.backward import Backward
from eggroll.spec.program import Batch
from eggroll.training.config import Config
from eggroll.training.run import TrainingRun

ESTIMATORS = {name: {"estimator": name, "rule": "adam"} for name in ("local", "feedback")}
WARM_UP = 3  # updates that are not counted: scales of credit settle

Work = Callable[[], object]


def given(run: TrainingRun) -> Batch:
    """What members read in an update, as engines take it."""
    return run.learner.start_of(run.streams.batch(0)).batch.rows(mx.array)


def inference(run: TrainingRun) -> Work:
    """The same members over the same tokens, without noise and without credit."""
    learner = run.learner
    engine, batch = learner.population.engine, given(run)
    prepared = engine.prepare(learner.weights)
    return lambda: mx.eval(engine.evaluate(prepared, None, batch))


def learning(run: TrainingRun) -> Work:
    """The kernels of an update alone."""
    learner = run.learner
    engine, batch, estimator = learner.population.engine, given(run), learner.estimator
    assert isinstance(estimator, Local)
    prepared = engine.prepare(learner.weights)
    words = mx.array(np.random.default_rng(0).integers(0, 1 << 32, batch.size, np.uint32))
    scales = tuple[int, ...](np.array(learner.memory[SCALES]).tolist())
    back = Backward(scales, estimator.matrices(learner.weights, learner.memory))
    mx.eval(back.matrices)
    return lambda: mx.eval(engine.learn(prepared, batch, words, back))


def compare(options: Config, repeats: int) -> dict[str, Any]:
    """Medians, and their spread, of inference's time over that of learning and of updates."""
    clock = time.process_time if options.threads == 1 else time.perf_counter

    def seconds(work: Work) -> float:
        began = clock()
        work()
        return clock() - began

    with opened(options) as run:
        for _ in range(WARM_UP):
            run.update()
        works = inference(run), learning(run), run.update
        for work in works:
            work()
        rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    row: dict[str, Any] = {
        "inference_tokens_per_second": round(
            options.pop * options.seq_len / statistics.median(r[0] for r in rounds)
        )
    }
    for name, at in ("kernels", 1), ("update", 2):
        ratios = [r[0] / r[at] for r in rounds]
        row[name] = round(statistics.median(ratios), 3)
        row[f"{name}_spread"] = round((max(ratios) - min(ratios)) / statistics.median(ratios), 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pops", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS), choices=ESTIMATORS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    verify(ESTIMATORS, "cpu")
    rows = []
    for network in args.networks:
        width, layers = NETWORKS[network]
        for threads in args.threads:
            for T in args.seq_lens:
                for pop in args.pops:
                    for name in args.estimators:
                        options = Config(
                            **ESTIMATORS[name], width=width, layers=layers, pop=pop, seq_len=T,
                            threads=threads, engine="cpu",
                        )  # fmt: skip
                        shape = {"network": network, "threads": threads, "T": T, "pop": pop}
                        row = {**shape, "estimator": name, **compare(options, args.repeats)}
                        rows.append(row)
                        print(", ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    if args.json:
        facts = {"machine": platform.platform(), "repeats": args.repeats}
        args.json.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
