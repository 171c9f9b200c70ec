"""The speed of learning by errors carried back: `python benchmarks/learning.py`

Tokens per second as a ratio to the engine's plain inference of the same members and tokens, without
noise, in turn in one run: of the kernels alone (forward, credit and votes), and of whole updates,
with the rule and all that the host does. Before anything is timed, a small run of each estimator is
compared with the portable engine. With one thread the clock is the process's CPU time, which other
processes disturb least; with more it is the wall's.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import mlx.core as mx
import numpy as np
import tyro
from checks import check_names, check_numbers, write_json
from estimators import NETWORKS, opened, verify

from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.evolution.estimators import SCALES, Local
from eggroll.files import check_place
from eggroll.spec.backward import Backward
from eggroll.spec.program import Batch
from eggroll.training.config import Config
from eggroll.training.run import TrainingRun

ESTIMATORS = {name: {"estimator": name, "rule": "adam"} for name in ("local", "feedback")}
WARM_UP = 3  # updates that are not counted: scales of credit settle

Work = Callable[[], object]


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/learning.py."""

    pops: tuple[int, ...] = (128, 256)
    """Members, even numbers."""
    seq_lens: tuple[int, ...] = (16, 64)
    """Tokens of an update."""
    threads: tuple[int, ...] = (1, 2)
    """Threads; 0 is all cores."""
    repeats: Annotated[int, Range(1, 10_000)] = 15
    """Rounds; the median counts."""
    networks: tuple[str, ...] = tuple(NETWORKS)
    """Networks, by these names."""
    estimators: tuple[str, ...] = tuple(ESTIMATORS)
    """Estimators, by these names."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the figures as JSON."""


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


def cases(args: Options) -> list[tuple[dict[str, Any], Config]]:
    """Every combination: its part of a row, and the options of its run.

    Raises:
        InputError: an option is out of range.
    """
    cli.check_ranges(args)
    check_place("--json", args.json)
    check_numbers("--pops", args.pops, 2, 1 << 24, even=True)
    check_numbers("--seq-lens", args.seq_lens, 1, 4096)
    check_numbers("--threads", args.threads, 0, 1024)
    check_names("--networks", args.networks, NETWORKS)
    check_names("--estimators", args.estimators, ESTIMATORS)
    found = []
    for network, threads, T, pop, name in product(
        args.networks, args.threads, args.seq_lens, args.pops, args.estimators
    ):
        width, layers = NETWORKS[network]
        options = Config(
            **ESTIMATORS[name], width=width, layers=layers, pop=pop, seq_len=T, threads=threads,
            engine="cpu",
        )  # fmt: skip
        options.check()
        shape = {"network": network, "threads": threads, "T": T, "pop": pop, "estimator": name}
        found.append((shape, options))
    return found


@cli.command(
    Options,
    name="benchmarks/learning.py",
    about="The speed of learning by errors carried back, over plain inference's; verified first.",
)
def main(args: Options) -> None:
    asked = cases(args)
    verify(ESTIMATORS, "cpu")
    rows = []
    for shape, options in asked:
        rows.append(shape | compare(options, args.repeats))
        print(", ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    facts = {"machine": platform.platform(), "repeats": args.repeats}
    write_json(args.json, facts | {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
