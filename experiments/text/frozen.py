"""What of recipe evolution learns what: `python experiments/text/frozen.py --learn embedding head`

Trains the recipe with all other weights held at their first values, for as many updates as the
recipe has in a minute. Members still perturb what is held, so an update costs what it costs the
recipe.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import pairwise

from eggroll.cli import command as cli
from eggroll.inference import loss_of, token_likelihoods
from eggroll.training.config import RECIPES, Config
from eggroll.training.learner import engine_for, new_learner
from eggroll.training.run import bytes_per_token, load_run_corpus, validation_batches

ENDS = ("embedding", "head")  # leaves that are no part of the core


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--learn",
        nargs="+",
        choices=ENDS,
        default=list(ENDS),
        help="leaves; all others keep their first values",
    )
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--updates", type=int, default=RECIPES["evolution"]["steps"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    threads = {"threads": args.threads} if args.threads else {}
    config = Config(
        recipe="evolution", data=args.data, seed=args.seed, steps=args.updates, **threads
    )
    config.check()
    corpus = load_run_corpus(config)
    program = config.program()
    learner = new_learner(config, engine_for(config, program)[0])
    held = {name: leaf for name, leaf in learner.weights.items() if name not in args.learn}
    streams = corpus.streams("train", config.streams, config.seq_len, config.seed)
    times = [time.perf_counter()]
    for step in range(args.updates):
        learner.update(streams.batch(step))
        learner.weights.update(held)
        times.append(time.perf_counter())
    batches = validation_batches(corpus, config)
    loss = loss_of(
        token_likelihoods(learner.population.engine, learner.weights, batches), corpus.warmup
    )
    update = statistics.median(b - a for a, b in pairwise(times))
    print(
        f"learnt: {', '.join(args.learn)}; {args.updates} updates of {1e3 * update:.2f} ms (median)"
    )
    print(f"validation: {loss / bytes_per_token(corpus, config):.3f} bits per byte")
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
