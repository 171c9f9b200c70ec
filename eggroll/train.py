"""The training loop: `python -m eggroll.train`. What stands before it is in run.py.

Letters: P members, T tokens of a stream per update.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from eggroll import cli, closing, runlog
from eggroll.checkpoint import signature
from eggroll.config import Config
from eggroll.fitness import decided, pair_fitness
from eggroll.generate import Decoder, sample, usual_temperature
from eggroll.run import Run, open_run, options_from, unit, way_on

SAMPLES = 4


class Result(NamedTuple):
    """What a run came to; val_loss in bits per token, None where the last step has none."""

    folder: Path
    step: int
    signature: str
    val_loss: float | None
    way_on: str  # empty unless the run was interrupted


def train(options: Config) -> Result:
    """Trains from the start, or from the checkpoint in `options.resume`, up to `options.steps`.

    Raises:
        InputError: bad input or environment; what was on the disk before is intact.
    """
    with ExitStack() as stack:
        run = open_run(options, stack)
        metrics = stack.enter_context(runlog.Metrics(run.path(runlog.METRICS), run.step))
        display = runlog.Display(run.step, run.config.steps, unit(run.config), runlog.MEMBERS)
        stack.enter_context(display)
        stop = stack.enter_context(cli.Stop(way_on(run)))
        while run.step < run.config.steps:
            scores, rate, seconds = update(run)
            run.val_loss = run.validate() if run.due(run.config.validate_every) else None
            row = measured(run, scores, rate, seconds)
            metrics.append(row)
            display.update(row)
            asked = stop.asked  # once, as a signal may come between two looks
            if asked or run.due(run.config.checkpoint_every):
                metrics.sync()
                run.save()
            if asked:
                break
        left = ""
        if run.step < run.config.steps:
            left = f"Interrupted after update {run.step} of {run.config.steps}; {way_on(run)}"
        else:
            display.close()
            finish(run)
        return Result(run.folder.path, run.step, signature(run.weights), run.val_loss, left)


def update(run: Run) -> tuple[mx.array, float, float]:
    """Makes one update; scores: int16 [P, T] in 1/16 bit, share of weights that moved, seconds."""
    began, step = time.perf_counter(), run.step
    batch, deciding = run.streams.batch(step), None
    if run.config.estimator == "eggroll":
        scores, run.state = run.population.evaluate(run.weights, step, *batch, run.state)
        fitness = pair_fitness(scores)
        votes, deciding = run.population.votes(fitness, step), decided(fitness)
    else:
        scores, run.state, votes = run.population.credit(run.weights, step, *batch, run.state)
    run.weights, run.master, rate = run.rule(run.weights, run.master, votes, step, deciding)
    mx.eval(run.weights, run.master)
    run.step = step + 1
    return scores, rate, time.perf_counter() - began


def measured(run: Run, scores: mx.array, rate: float, seconds: float) -> runlog.Row:
    """One line of metrics.jsonl. scores: int16 [P, T] in 1/16 bit; seconds: of the whole step."""
    bits = (0 - scores.astype(mx.int64).sum()).item() / (16 * scores.size)
    row: runlog.Row = {
        "step": run.step,
        "loss": bits,
        "update_rate": rate,
        "tokens_per_second": round(scores.size / seconds, 1),
        "seconds": round(seconds, 6),
    }
    if run.val_loss is not None:
        row |= runlog.validated(run.val_loss, run.config.data)
    return row


def finish(run: Run) -> None:
    """Samples, curves and the last words of a run that has made all its updates."""
    if run.val_loss is None:
        run.val_loss = run.validate()
    if run.config.sample_bytes:
        runlog.write_whole(run.path(runlog.SAMPLES), samples(run).encode())
    if runlog.read_lines(run.path(runlog.METRICS)):
        from eggroll import plot  # here, as matplotlib is slow to import

        plot.curves(run.folder.path)
    print(closing.last_words(run.folder.path, run.config, run.val_loss, run.corpus))


def samples(run: Run) -> str:
    """Continuations of the document mark, side by side from one seed."""
    config, numbers = run.config, run.config.data == "count"
    temperature = usual_temperature(config.data)
    drawn = sample(
        run.engine, run.weights, samples=SAMPLES, seed=config.seed, temperature=temperature
    )
    tokens = list(itertools.islice(drawn, config.sample_bytes))
    parts = []
    for i in range(SAMPLES):
        decode = Decoder(numbers)
        text = "".join(decode(int(token[i])) for token in tokens) + decode.end()
        heading = (
            f"update {run.step}, temperature {temperature}, seed {config.seed}, sample {i + 1}"
        )
        parts.append(f"=== {heading} ===\n{text}")
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.train; returns its exit code."""

    def work() -> int:
        result = train(options_from(sys.argv[1:] if argv is None else argv))
        if result.way_on:
            raise KeyboardInterrupt(result.way_on)
        print(f"signature: {result.signature}")
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
