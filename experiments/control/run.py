"""Continuous and classic control beside evosax: `python -m experiments.control`

int8 is eg.Trainer with the settings of `eg.control` or those that are asked for, one for all tasks,
LunarLander's and MuJoCo's rows normalised; OpenES, SNES and CMA-ES are evosax's, on the same
network in float32, each with one setting for all tasks; PPO is stable-baselines3's with a setting
for each (ppo.py). A run ends when 100 unseen episodes reach the task's threshold; environment steps
are those of training, where members of a group play the same episode in an update; the strategies
have one group. int8's are the same on every machine; seconds are those of updates, without judging;
a strategy's first run of a task is compiled within them. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import eggroll as eg
from eggroll.spec import rng
from experiments.arguments import check_packages, experiment, new_file, positive, write_csv
from experiments.control import ppo
from experiments.control.peers import Peer, evolve
from experiments.control.tasks import TASKS, environment

HIDDEN = (32,)
FEW, MANY = 20, 100  # episodes that look whether a run is solved, and that decide
# Of all tasks; see tried.csv and swept.csv.
POP = 16
INT8 = {"span": 64, "squash": "tanh"}  # of rows and actions
# Settings of eg.control of which others may be asked for.
OWN = {"groups": int, "learning_rate": float, "first_rate": float, "weight_decay": float}
PEERS = {
    "OpenES": Peer(0.2, 0.3, 16),
    "SNES": Peer(0.8, 0, 16),
    "CMA-ES": Peer(0.2, 0, 16),
}
PPO = "PPO"
METHODS = ("int8", *PEERS, PPO)


class Run(NamedTuple):
    """A run until its end; steps: of environments; unseen: mean return of unseen episodes."""

    task: str
    method: str
    seed: int
    solved: bool
    updates: int
    steps: int
    seconds: float
    unseen: float


def int8(env: Any, seed: int, args: argparse.Namespace) -> Iterator[Any]:
    """eg.Trainer by the settings for control."""
    net = eg.networks.mlp(env.inputs, HIDDEN, env.outputs, bias=False)
    options = eg.control(**{name: value for name in OWN if (value := vars(args)[name]) is not None})
    es = eg.Trainer(
        net, pop=env.members, seed=seed, threads=args.threads,
        weights=eg.networks.small_outputs(net, seed), **options,
    )  # fmt: skip
    while True:
        es.tell(env.evaluate(es.ask(), es.keys(es.options.groups)))
        yield es.model


def solve(name: str, method: str, seed: int, args: argparse.Namespace) -> Run:
    """A run of one method on one task."""
    if method == PPO:
        return solve_ppo(name, seed, args)
    task, peer = TASKS[name], PEERS.get(method)
    if peer:
        peer = peer._replace(std=args.std or peer.std, rate=args.rate or peer.rate)
    normalise = {"normalise": args.normalise or task.normalise}
    options = normalise if peer else INT8 | normalise
    env = environment(task, args.pop, patience=args.patience, **options)
    updating = evolve(method, peer, env, HIDDEN, seed) if peer else int8(env, seed, args)
    few, many = (environment(task, n, **options) for n in (FEW, MANY))
    seconds, updates, unseen, solved = 0.0, 0, float("nan"), False
    most = args.steps or task.most
    while not solved and env.steps < most and updates < (args.updates or 1 << 30):
        began = time.perf_counter()
        model = next(updating)
        seconds += time.perf_counter() - began
        updates += 1
        for judge in (few, many):
            judge.restore(env.arrays())
        if few.evaluate(model, words(seed, 1, updates, FEW)).mean() >= task.threshold:
            unseen = float(many.evaluate(model, words(seed, 2, updates, MANY)).mean())
            solved = unseen >= task.threshold
    if not solved:
        unseen = float(many.evaluate(model, words(seed, 2, updates, MANY)).mean())
    return Run(name, method, seed, solved, updates, env.steps, seconds, unseen)


def solve_ppo(name: str, seed: int, args: argparse.Namespace) -> Run:
    """A run of PPO on one task."""
    task, looks, unseen = TASKS[name], count(), float("nan")

    def of(look: int) -> int:
        return int(words(seed, 1, look, 1)[0] >> 33)

    def solved(returns: ppo.Returns) -> bool:
        nonlocal unseen
        first = of(next(looks))
        if returns(FEW, first) < task.threshold:
            return False
        unseen = returns(MANY, first + FEW)
        return unseen >= task.threshold

    done = ppo.learn(name, task, seed, args.threads, args.steps or task.most, solved)
    found = unseen >= task.threshold
    if not found:
        unseen = done.returns(MANY, of(next(looks)))
    return Run(name, PPO, seed, found, done.rollouts, done.steps, done.seconds, unseen)


def words(seed: int, purpose: int, update: int, count: int) -> Any:
    """The keys of episodes that judge, other ones after each update."""
    return rng.counters(rng.key(seed, purpose, update), 0, count)


def summary(runs: list[Run]) -> str:
    """Median and range of what runs took."""

    def of(values: list[float], digits: int = 0) -> str:
        low, high = min(values), max(values)
        return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"

    return (
        f"{sum(run.solved for run in runs)} of {len(runs)} solved, {of([r.steps for r in runs])} "
        f"steps, {of([r.updates for r in runs])} updates, {of([r.seconds for r in runs], 2)} s, "
        f"unseen {of([r.unseen for r in runs], 1)}"
    )


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [name for name in TASKS if not TASKS[name].extra]
    parser.add_argument("--tasks", nargs="+", default=usual, choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--pop", type=positive, default=POP, help="members of every method, even")
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--steps", type=positive, help="most environment steps of a run")
    parser.add_argument("--updates", type=positive, help="most updates of a run")
    parser.add_argument("--normalise", action="store_true", help="rows of all tasks but PPO's")
    parser.add_argument("--patience", type=float, help="of all methods but PPO; see eg.envs.gym")
    parser.add_argument("--std", type=float, help="deviation of the strategies' first noise")
    parser.add_argument("--rate", type=float, help="OpenES' rate of Adam")
    for name, kind in OWN.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, help="of int8; see eg.control")
    parser.add_argument("--csv", type=new_file, help="file for a row per run")
    parser.add_argument("--smoke", action="store_true", help="one seed, few updates")
    return parser.parse_args(words)


def check_environment(args: argparse.Namespace) -> None:
    """Raises InputError where a task or a method lacks a package."""
    if PPO in args.methods:
        check_packages("peers", "torch", "stable-baselines3")
    if {*args.methods} & {*PEERS}:
        check_packages("peers", "jax", "optax", "evosax")
    for name in args.tasks:
        environment(TASKS[name], 2).close()


def bench(args: argparse.Namespace) -> list[Run]:
    """All runs, seed by seed in turn; each is printed when it ends."""
    runs = list[Run]()
    for name in args.tasks:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for method in args.methods:
                runs.append(solve(name, method, seed, args))
                print(f"{name}, {method}, seed {seed}: {summary(runs[-1:])}", flush=True)
    return runs


@experiment
def main(words: list[str] | None = None) -> None:
    args = parse(words)
    if args.smoke:
        args.seeds, args.updates = 1, 2
    check_environment(args)
    warnings.filterwarnings("ignore", message=".*hardly anything is learnt")  # seen in the result
    runs = bench(args)
    for name in args.tasks:
        for method in args.methods:
            found = [run for run in runs if (run.task, run.method) == (name, method)]
            print(f"{name}, {method}: {summary(found)}")
    if args.csv:
        write_csv(args.csv, Run._fields, runs)
