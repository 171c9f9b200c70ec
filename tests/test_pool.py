"""A fitness in plain Python over processes: equal values, and crashes that are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import eggroll as eg
from eggroll.library.pool import Pool

P = 6
ROWS = np.arange(-60, 60, 5, dtype=np.int8).reshape(8, 3)


def net() -> eg.Program:
    return eg.networks.mlp(3, [4], 1)


def trainer(**options: Any) -> eg.Trainer:
    return eg.Trainer(net(), pop=P, seed=3, **{"table_bits": 16, "sigma_shift": 1} | options)


def total(model: Any, key: int) -> float:
    return float(model(ROWS).sum(dtype=np.int64)) + key % 7


def member(model: Any) -> int:
    """Which one it is, in the first update."""
    es = trainer()
    members = es.ask()
    (found,) = (
        i for i in range(P)
        if all(np.array_equal(model.weights[k], w) for k, w in members.weights(i).items())
    )  # fmt: skip
    return found


def crashes(model: Any, key: int) -> float:
    at = member(model)
    if at == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if at == 2:
        raise ValueError("no\nnumber")
    if at == 3:
        return float("nan")
    if at == 4:
        os._exit(7)
    return float(10 + at)


def sleeps(model: Any, key: int) -> float:
    if member(model) == 2:
        time.sleep(60)
    return total(model, key)


def fails(model: Any, key: int) -> float:
    raise KeyError("nothing")


def test_values_are_those_of_the_members():
    """And the update is that of `tell`."""
    with trainer() as es:
        assert es.map(total, processes=2).step == 1
        pool = es._pool
        again = es.map(total, processes=2)
        assert es._pool is pool
        known = trainer()
        for _ in range(2):
            members, key = known.ask(), int(known.keys(1)[0])
            members(ROWS[:1])
            values: NDArray[Any] = np.array([
                total(eg.Trainer(net(), pop=2, weights=members.weights(i)).model, key)
                for i in range(P)
            ])  # fmt: skip
            told = known.tell(values)
        assert known.signature == es.signature
        assert (told.fitness, told.fitness_best) == (again.fitness, again.fitness_best)
        assert es.best is not None
    assert es._pool is None


def test_a_worker_that_ended_between_updates_is_replaced():
    es, other = trainer(), trainer()
    for one in (es, other):
        one.map(total, processes=2)
    assert es._pool
    ended = [worker for worker in es._pool._workers if worker.begun]
    for worker in ended:
        worker.process.kill()
        worker.process.join()
    for one in (es, other):
        one.map(total, processes=2)
    assert ended
    assert es.signature == other.signature
    for one in (es, other):
        one.close()


def test_crashes_are_survived_and_named():
    es = trainer()
    with pytest.warns(UserWarning, match="the fitness of member 1 crashed: its process ended wi"
                      "th signal 11, and 3 more; it counts as the worst") as seen:  # fmt: skip
        update = es.map(crashes, processes=2)
    assert len(seen) == 1
    assert update.fitness == (4 * 10 + 10 + 15) / P
    assert es.map(total, processes=1).step == 2
    es.close()


def test_every_kind_of_crash_has_its_words():
    es = trainer()
    members = es.ask()
    pool = Pool(crashes, 1, es.program, "cpu")
    for at, why in (
        (2, "ValueError: no number"), (3, "it gave nan"), (4, "its process ended with exit code 7")
    ):  # fmt: skip
        order = [at, 0]
        with pytest.warns(UserWarning, match=f"member 0 crashed: {why}; it counts"):
            found = pool.values(lambda i, order=order: members.weights(order[i]), 2, 0, 0)
        assert found.tolist() == [10, 10]
    pool.close()


def test_a_fitness_that_hangs_is_ended():
    es = trainer()
    with pytest.warns(UserWarning, match="member 2 crashed: it took more than 5 s"):
        es.map(sleeps, processes=2, timeout=5)
    assert es.step == 1
    es.close()


REFUSED = {
    "a lambda": (lambda es: es.map(lambda model, key: 1.0), "define it at the top of a module"),
    "processes": (lambda es: es.map(total, processes=-1), "processes is -1: a whole number from 0"),
    "all crash": (lambda es: es.map(fails, processes=1), "KeyError: 'nothing'; so did all 6"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_one_sentence(what: str):
    act, says = REFUSED[what]
    es = trainer()
    before = es.signature
    with pytest.raises(eg.InputError, match=says) as refused:
        act(es)
    assert "\n" not in str(refused.value)
    assert (es.step, es.signature) == (0, before)
    es.close()


def test_members_without_weights_are_refused():
    with pytest.raises(eg.InputError, match="no weights of their own"):
        trainer(estimator="token-credit", rule="whitened").map(total)


def test_a_script_without_a_guard_gets_a_sentence(tmp_path: Path):
    script = tmp_path / "bare.py"
    script.write_text(
        "import eggroll as eg\n"
        "def fitness(model, key):\n    return 1.0\n"
        "es = eg.Trainer(eg.networks.mlp(3, [4], 1), pop=2, table_bits=16)\n"
        "es.map(fitness, processes=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert "InputError: a worker process did not begin (exit code 1)" in last
    assert "if __name__ == '__main__':" in last
