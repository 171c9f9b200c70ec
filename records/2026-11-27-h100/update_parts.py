"""An update on a CUDA GPU taken apart: ms of each part, without those within it. `turn`: whole."""

import collections
import contextlib
import statistics
import sys
import time
from unittest import mock

import mlx.core as mx
import numpy as np

from eggroll.bench import PRESETS
from eggroll.engines import choose
from eggroll.engines.gpu import engine as gpu
from eggroll.evolution import estimators, population
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch
from eggroll.training.checkpoint import signature
from eggroll.training.config import Config
from eggroll.training.learner import new_learner

T0 = time.time()


def say(*a):
    print(f"[{time.time() - T0:6.1f}]", *a, flush=True)


class Clock:
    def __init__(self):
        self.own, self.calls, self.stack = collections.Counter(), collections.Counter(), [0.0]

    def wrap(self, name, f, only=None):
        def call(*a, **k):
            if only and not (a and isinstance(a[0], only)):
                return f(*a, **k)
            self.stack.append(0.0)
            b = time.perf_counter()
            try:
                return f(*a, **k)
            finally:
                t = time.perf_counter() - b
                self.own[name] += t - self.stack.pop()
                self.calls[name] += 1
                self.stack[-1] += t

        return call


def batch(o, seed=0):
    shape = 2, o.streams, o.seq_len
    tokens, targets = np.random.default_rng(seed).integers(0, o.symbols, shape).astype(np.int32)
    return Batch(tokens, targets)


def run(preset, pop, n, extra=(), **options):
    o = Config(**PRESETS[preset], pop=pop, **options)
    learner = new_learner(o, choose("cuda", o.program(), replaceable=False)[0])
    given = [batch(o, s) for s in range(4)]
    phases = collections.defaultdict(list)
    b = time.perf_counter()
    learner.update(given[0])
    first = time.perf_counter() - b
    for i in range(20):
        learner.update(given[i % 4])
    t = []
    last = [0.0]

    def timer(phase):
        now = time.perf_counter()
        phases[phase].append(now - last[0])
        last[0] = now

    for i in range(n):
        b = last[0] = time.perf_counter()
        learner.update(given[i % 4], timer)
        t.append(time.perf_counter() - b)
    t.sort()
    m = t[n // 2]
    say(
        f"{preset} {pop} {options}: first {first:.2f} s; {1e3 * m:.2f} ms "
        f"({1e3 * t[0]:.2f}..{1e3 * t[-1]:.2f}), "
        f"{pop * o.seq_len / m / 1e6:.1f} M tokens/s;",
        " ".join(f"{k} {1e3 * statistics.median(v):.2f}" for k, v in phases.items()),
        signature(learner.weights)[:12],
    )
    if "parts" in extra:
        clock = Clock()
        inner = learner.population.engine
        inner = getattr(inner, "engine", inner)
        E = type(inner)
        places = [
            (mx, "eval", None),
            (mx, "async_eval", None),
            (np, "asarray", mx.array),
            (np, "array", mx.array),
            (gpu, "check_tokens", None),
            (gpu, "check_noise", None),
            (E, "prepare", None),
            (E, "evaluate", None),
            (E, "votes", None),
            (E, "credit", None),
            (E, "learn", None),
            (E, "repeated", None),
            (E, "array", None),
            (population.Population, "_batch", None),
            (population.Population, "votes", None),
            (population.Population, "evaluate", None),
            (estimators, "pair_fitness", None),
            (estimators, "decided", None),
            (Noise, "slices", None),
            (Noise, "draw_ahead", None),
            (type(learner.rule), "__call__", None),
            (gpu, "count_votes", None),
            *(
                [(type(inner.launcher), "__call__", None)]
                if "CudaLauncher" in type(inner.launcher).__name__
                else []
            ),
        ]
        with contextlib.ExitStack() as stack:
            for place, name, only in places:
                key = f"{getattr(place, '__name__', '')}.{name}"
                stack.enter_context(
                    mock.patch.object(place, name, clock.wrap(key, getattr(place, name), only))
                )
            t = []
            for i in range(n):
                b = time.perf_counter()
                learner.update(given[i % 4])
                t.append(time.perf_counter() - b)
        say(f"  with clocks: {1e3 * statistics.median(t):.2f} ms, mean {1e3 * sum(t) / n:.2f}")
        for k, v in sorted(clock.own.items(), key=lambda kv: -kv[1]):
            print(f"    {k:34s} {1e3 * v / n:7.3f} ms in {clock.calls[k] / n:.1f} calls")
    return learner


if __name__ == "__main__":
    turn = sys.argv[1:] == ["turn"]
    parts = () if turn else ("parts",)
    run("seed", 10240, 100 if turn else 60, parts)
    run("paper", 10240, 60, parts)
    run("seed", 131072, 10)
    run("paper", 131072, 6, parts)
    run("seed", 10240, 20, parts, estimator="token-credit", rule="whitened")
