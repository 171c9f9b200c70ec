"""Draws tokens from a network's logits, in integers: a seed gives the same text everywhere.

Letters: P samples drawn side by side, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import fixed_point as fx
from eggroll import rng
from eggroll.engines import zero_state
from eggroll.program import Program

MARK = 0  # the token that begins a document
UNIT = 1 << 16  # in which shares of a probability are counted


class Sampled(Protocol):
    """The part of an engine that `sample` needs: logits, int8 [P, V], of the next token."""

    @property
    def program(self) -> Program: ...
    def prepare(self, weights: Any) -> Any: ...
    def logits(
        self, weights: Any, tokens: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]: ...


class Sampling(NamedTuple):
    """Which of the tokens are drawn from, and how boldly; applied in this order.

    temperature: below 1 likely tokens get likelier, 0 always takes the likeliest; top_k: the
    likeliest k alone, 0 all; top_p: the likeliest that together have this probability; min_p: those
    that have at least this share of the likeliest one's probability. Of equally likely tokens the
    smaller come first.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def weights(self, logits: NDArray[np.int8]) -> NDArray[np.int64]:
        """What tokens weigh in a draw, int64 [P, V], from their logits; 0 is never drawn."""
        u = logits.astype(np.int64) + 128
        if self.temperature != 1:
            u += 255 - u.max(axis=1, keepdims=True)
        weights = choice_weights(self.temperature)[u]
        if self.top_k or self.top_p < 1:
            order = np.argsort(-u, axis=1, kind="stable")
            ranked = np.take_along_axis(weights, order, axis=1)
            ranked[:, self.top_k or u.shape[1] :] = 0
            before = ranked.cumsum(axis=1) - ranked
            needed = _units(self.top_p) * ranked.sum(axis=1, keepdims=True)
            ranked[before * UNIT >= needed] = 0
            np.put_along_axis(weights, order, ranked, axis=1)
        if self.min_p:
            most = weights.max(axis=1, keepdims=True)
            weights[weights * UNIT < _units(self.min_p) * most] = 0
        return weights


PLAIN = Sampling()  # from the network's own probabilities


def _units(share: float) -> int:
    """A share in units, at least one, so that the likeliest token is always left."""
    return max(round(share * UNIT), 1)


def choice_weights(temperature: float) -> NDArray[np.int64]:
    """int64 [256]: entry 255 - d weighs a token whose logit is d below the highest one.

    At temperature 1 it is EXP2 itself; at 0 only the highest logit counts (the first of equals).
    """
    table: list[int] = fx.exp2_table().tolist()
    if temperature == 0:
        return np.array([0] * 255 + [1], np.int64)
    scaled = [255 - int(min((255 - i) / temperature, 255)) for i in range(256)]
    return np.array([table[i] for i in scaled], np.int64)


def sample(
    engine: Sampled,
    weights: Any,
    prompt: Sequence[int] = (),
    *,
    samples: int = 1,
    seed: int = 0,
    sampling: Sampling = PLAIN,
) -> Iterator[NDArray[np.int32]]:
    """Endless continuations of the mark and a prompt: int32 [P] for each token.

    At temperature 1 token v has weight EXP2[logit_v + 128], as in training; integer arithmetic and
    counter-based random words make a seed give the same text everywhere.
    """
    prepared, state = engine.prepare(weights), zero_state(engine.program, samples)

    def read(tokens: NDArray[np.int32]) -> mx.array:
        nonlocal state
        logits, state = engine.logits(prepared, mx.array(tokens), state)
        mx.eval(logits, state)  # else a long text would be one long graph
        return logits

    for token in (MARK, *prompt):
        logits = read(np.full(samples, token, np.int32))
    for position in itertools.count():
        sums = sampling.weights(np.array(logits)).cumsum(axis=1)
        words = rng.counters(rng.key(seed, rng.SAMPLES, position), 0, samples)
        drawn = [int(w) * int(row[-1]) >> 64 for w, row in zip(words, sums, strict=True)]
        drawn = drawn if sampling.temperature else [0] * samples
        picked = [np.searchsorted(row, r, side="right") for row, r in zip(sums, drawn, strict=True)]
        tokens = np.array(picked, np.int32)
        yield tokens
        logits = read(tokens)


class Stops:
    """Ends a text before the first of some strings, whatever pieces it comes in."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings, self._held, self.stopped = [s for s in strings if s], "", False

    def __call__(self, piece: str) -> str:
        """What can be shown now: what might be the beginning of a stop is kept back."""
        text, self._held = self._held + piece, ""
        found = [at for s in self.strings if (at := text.find(s)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        longest = max((len(s) for s in self.strings), default=1) - 1
        for at in range(max(len(text) - longest, 0), len(text)):
            if any(s.startswith(text[at:]) for s in self.strings):
                self._held = text[at:]
                return text[:at]
        return text

    def end(self) -> str:
        """What was kept back, at the end of a text that did not stop."""
        held, self._held = self._held, ""
        return "" if self.stopped else held
