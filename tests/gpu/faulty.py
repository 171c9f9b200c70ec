"""The cpu engine under a GPU's name, with faults put in: no kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from eggroll.engines.cpu import CpuEngine
from eggroll.engines.metal import MetalEngine
from eggroll.spec.backward import Learnt
from eggroll.spec.program import Program

METHODS = (
    "evaluate",
    "outputs",
    "votes",
    "credit",
    "learn",
    "likelihoods",
    "logits",
    "adam",
    "master",
    "whitened",
)
COMPILE = """[metal::Device] Unable to build metal library from source
program_source:7:3: error: no matching function for call to 'product'
  product<K>(x);
  ^"""
PIPELINE = "[metal::Device] Unable to load kernel egg_stage_0123456789abcdef"
KILLED = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)
Fault = Callable[[str, Any], Any]  # of a method's name and result: what the caller gets


class Faulty(MetalEngine):
    """Engine `metal` with the integers of the cpu engine, but for its faults."""

    fault: Fault = staticmethod(lambda method, found: found)  # type: ignore[assignment]

    @classmethod
    def unavailable_because(cls) -> str:
        return ""

    def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
        super().__init__(program, launcher=lambda *_: [], nax=False)
        self.right = CpuEngine(program, threads, block_tokens)
        self.prepare = self.right.prepare  # type: ignore[method-assign]
        for method in METHODS:
            setattr(self, method, self.faulty(method))

    def faulty(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return type(self).fault(method, getattr(self.right, method)(*arguments, **named))

        return call


def at_call(number: int, method: str, change: Callable[[Any], Any]) -> Fault:
    """A fault of one call of a method; the first has number 1."""
    calls = []

    def fault(name: str, found: Any) -> Any:
        calls.extend([name] * (name == method))
        return change(found) if name == method and len(calls) == number else found

    return fault


def raises(message: str) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        raise RuntimeError(message)

    return change


def off_by_one(a: mx.array, at: tuple[int, ...]) -> mx.array:
    changed = np.array(a)
    changed[at] += 1
    return mx.array(changed)


def wrong_scores(found: tuple) -> tuple:
    """A score of member 33, which a threadgroup of 32 members leaves to the next."""
    return off_by_one(found[0], (33, 1)), *found[1:]


def wrong_votes(Z: dict) -> dict:
    return Z | {"head": off_by_one(Z["head"], (2, 3))}


def wrong_credit(found: tuple) -> tuple:
    return *found[:2], wrong_votes(found[2])


def wrong_learnt(found: Learnt) -> Learnt:
    return found._replace(votes=wrong_votes(found.votes))


def wrong_rule(found: tuple) -> tuple:
    """A number of the first leaf's fine copy."""
    made, moved = found
    weights, fine, *memory = made[0]
    return [[weights, off_by_one(fine, (0, 0)), *memory], *made[1:]], moved


def wrong_sizes(found: Learnt) -> Learnt:
    return found._replace(sizes=off_by_one(found.sizes, (0,)))
