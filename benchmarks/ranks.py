"""What several ranks cost: measured on this machine, and a model up to 1,024 of them.

    python benchmarks/ranks.py measure   constants of the ring on this machine, and of votes
    python benchmarks/ranks.py model     the tables of docs/scaling-out.md, by CONSTANTS
    python benchmarks/ranks.py pair      two ranks of one thread beside one process of two

Letters: R ranks, P members, N = P/2 pairs, W weights, T tokens.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from checks import output_of

from eggroll import engines
from eggroll.bench import PRESETS
from eggroll.bench.command import macs_per_token
from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.ranks import PRODUCTS_PER_BYTE
from eggroll.spec.program import Batch
from eggroll.training import config
from eggroll.training import learner as learners

POP = 10240
HOPS, LARGE = 2000, 12 << 20  # small exchanges that are timed, and bytes of the large ones


class Constants(NamedTuple):
    """hop: seconds of a small exchange between two ranks; bytes_per_second: of a connection in one
    direction; votes: products of votes in a second of one thread; evaluation: multiply-adds there.
    """

    hop: float
    bytes_per_second: float
    votes: dict[str, float]
    evaluation: dict[str, float]


def options(preset: str, pop: int = POP, **given: Any) -> config.Config:
    return config.Config(**{**PRESETS[preset], "pop": pop, "data": "count", **given})  # type: ignore[arg-type]


def weights_of(preset: str) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in options(preset).program().leaves)


def timed_ring() -> None:
    """As a rank: prints the seconds of small and of large exchanges."""
    group = mx.distributed.init(strict=True)
    small, large = np.zeros(64, np.uint8), np.zeros(LARGE // 4, np.uint32)

    def seconds(work: Any, repeats: int) -> float:
        found = []
        for _ in range(repeats):
            began = time.perf_counter()
            mx.eval(work())
            found.append(time.perf_counter() - began)
        return min(found)  # what else runs here makes it no faster

    def gather() -> mx.array:
        return mx.distributed.all_gather(mx.array(small), group=group, stream=mx.cpu)

    def add() -> mx.array:
        return mx.distributed.all_sum(mx.array(large), group=group, stream=mx.cpu)

    hop, whole = seconds(gather, HOPS), seconds(add, 40)
    if group.rank() == 0:  # of two ranks, each sends half of it twice
        print(json.dumps({"hop": hop, "bytes_per_second": LARGE / whole}))


def measured() -> Constants:
    """On this machine, one thread; the ring between two processes."""
    launch = [sys.executable, "-m", "eggroll.launch", "-n", "2", "--starting-port", port()]
    ring = json.loads(output_of([*launch, "--", sys.executable, __file__, "ring"]))
    votes, evaluation = {}, {}
    for preset in ("paper", "seed"):
        pop = 1024
        chosen = options(preset, pop, threads=1)
        engine, _ = engines.choose("cpu", chosen.program(), 1)
        learner = learners.new_learner(chosen, engine)
        rng = np.random.default_rng(0)
        shape = (pop // 2, chosen.seq_len)
        tokens = rng.integers(0, chosen.symbols, shape, np.int32)
        batch = Batch(tokens, tokens, learner.state)
        fitness = mx.array(rng.integers(-1, 2, pop // 2).astype(np.int8))
        people, weights = learner.population, learner.weights
        for step in range(2):  # the first is not timed
            began = time.process_time()
            mx.eval(people.evaluate(weights, step, batch))
            between = time.process_time()
            mx.eval(people.votes(fitness, step))
            ended_at = time.process_time()
        macs = pop * chosen.seq_len * macs_per_token(chosen.program())
        evaluation[preset] = macs / (between - began)
        votes[preset] = pop / 2 * weights_of(preset) / (ended_at - between)
    return Constants(ring["hop"], ring["bytes_per_second"], votes, evaluation)


def port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


class Cost(NamedTuple):
    """Seconds of an update on each of R ranks, and bytes that each sends."""

    evaluation: float
    signs_votes: float
    signs_sent: float
    sum_votes: float
    sum_sent: float
    signs_bytes: float
    sum_bytes: float


def cost(of: Constants, preset: str, R: int, pop: int = POP) -> Cost:
    """The model of docs/scaling-out.md."""
    N, W, chosen = pop // 2, weights_of(preset), options(preset)
    macs = pop * chosen.seq_len * macs_per_token(chosen.program())
    share, way = -(-N // R), R - 1  # pairs of a rank; hops of an exchange around the ring
    gathers = 2 * way * of.hop  # the signs, and what ends an update
    signs = way * (-(-share // 5) + 64 + 2 * 16)
    votes = 2 * way * 4 * W / R
    return Cost(
        macs / R / of.evaluation[preset],
        N * W / of.votes[preset],
        gathers + signs / of.bytes_per_second,
        share * W / of.votes[preset],
        gathers + 2 * way * of.hop + (signs + votes) / of.bytes_per_second,
        signs,
        signs + votes,
    )


def table(of: Constants, preset: str, pop: int) -> str:
    rows = [
        "| ranks | evaluation | signs: sent, time, votes | sums: sent, time, votes | less |",
        "|---|---|---|---|---|",
    ]
    for R in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        c = cost(of, preset, R, pop)
        signs, sums = c.signs_votes + c.signs_sent, c.sum_votes + c.sum_sent
        less = "signs" if signs <= sums else "sums"
        rows.append(
            f"| {R:,} | {_s(c.evaluation)} | {_b(c.signs_bytes)}, {_s(c.signs_sent)}, "
            f"{_s(c.signs_votes)} | {_b(c.sum_bytes)}, {_s(c.sum_sent)}, {_s(c.sum_votes)} | "
            f"{less if R > 1 else ''} |"
        )
    return "\n".join(rows)


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _b(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"


# Nominal rates of connections that were not there to be measured.
LINKS = {"1 Gbit/s Ethernet": 1.25e8, "10 Gbit/s Ethernet": 1.25e9, "Thunderbolt, 40 Gbit/s": 5e9}
# Measured by `measure`; the record says where and when.
CONSTANTS = Constants(
    hop=62e-6,
    bytes_per_second=1.12e9,
    votes={"paper": 84e9, "seed": 80e9},
    evaluation={"paper": 96e9, "seed": 89e9},
)


def model() -> None:
    for preset in ("paper", "seed"):
        print(f"\nPreset {preset}, population {POP:,}, {weights_of(preset):,} weights:\n")
        print(table(CONSTANTS, preset, POP))
    print(
        f"\nUp to this population signs are faster; the package takes {16 * PRODUCTS_PER_BYTE:,}:\n"
    )
    print("| connection | bytes/s | 1 thread | 8 threads | 64 threads |\n|---|---|---|---|---|")
    for name, rate in {**LINKS, "the ring here": CONSTANTS.bytes_per_second}.items():
        each = 16 * min(CONSTANTS.votes.values()) / rate
        print(f"| {name} | {rate:.3g} | {each:,.0f} | {8 * each:,.0f} | {64 * each:,.0f} |")


def pair(rounds: int = 3, steps: int = 4) -> None:
    """Whole updates of preset paper, interleaved; the first of each run is left out."""
    chosen = PRESETS["paper"]
    words = [f"--{k.replace('_', '-')}={v}" for k, v in {**chosen, "pop": POP}.items()]
    words += [f"--steps={steps}", "--validate-every=0", "--checkpoint-every=0", "--sample-tokens=0"]
    words += ["--val-tokens=256"]
    found: dict[str, list[float]] = {"one": [], "two": []}
    for _ in range(rounds):
        for name, before, threads in (
            ("one", [], 2),
            ("two", ["-m", "eggroll.launch", "-n", "2", "--starting-port", port(), "--"], 1),
        ):
            with tempfile.TemporaryDirectory() as folder:
                out = f"{folder}/run"
                train = [sys.executable, "-m", "eggroll.train", *words]
                begin = [sys.executable, *before] if before else []
                output_of([*begin, *train, f"--threads={threads}", f"--out={out}"])
                rows = Path(out, "metrics.jsonl").read_text().splitlines()
                found[name] += [json.loads(row)["tokens_per_second"] for row in rows[1:]]
    for name, rates in found.items():
        print(f"{name}: {statistics.median(rates):,.0f} tokens/s ({min(rates):,.0f} to "
              f"{max(rates):,.0f})")  # fmt: skip
    ratio = statistics.median(found["two"]) / statistics.median(found["one"])
    print(f"two ranks of one thread / one process of two threads: {ratio:.1%}")


def measure() -> None:
    print(json.dumps(measured()._asdict(), indent=1))


def main(argv: Sequence[str] | None = None) -> int:
    tasks = {"measure": measure, "model": model, "pair": pair, "ring": timed_ring}

    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        if cli.asks_for_help(words):
            print(__doc__)
        elif len(words) == 1 and words[0] in tasks:
            tasks[words[0]]()
        else:
            raise InputError(
                f"{' '.join(words)!r} is given: one of measure, model and pair is needed; see "
                "--help."
            )
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
