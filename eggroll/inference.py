"""Samples and exact losses of a trained network, both from its int8 logits in integers.

A seed gives the same text everywhere.

Letters: P samples drawn side by side, V vocabulary.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from math import fsum
from typing import Any, Final, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.data.codings import Coding
from eggroll.data.expert import Mixture
from eggroll.engines import Engine, zero_state
from eggroll.spec import fixed_point as fx
from eggroll.spec import rng
from eggroll.spec.fixed_point import total_bits
from eggroll.spec.program import Batch, Program, Weights

TEXT_TEMPERATURE: Final = 0.6
COUNT_TEMPERATURE: Final = 0.1
MARK = 0  # the token that begins a document
UNIT = 1 << 16  # in which shares of a probability are counted


def usual_temperature(data: str) -> float:
    """The temperature that gives readable text; of count, nearly always the likeliest token."""
    return COUNT_TEMPERATURE if data == "count" else TEXT_TEMPERATURE


Likelihoods = tuple[NDArray[np.uint64], NDArray[np.int8]]  # of tokens: totals and hits, [S, T]


def model_loss(
    engine: Engine,
    weights: Weights,
    batches: Iterable[Batch],
    warmup: int = 0,
) -> float:
    """Exact cross-entropy of the unperturbed model, in bits per token, from its int8 logits.

    batches: tokens and targets, int32 [S, T]. The state begins at zero and is carried from
    batch to batch; the first `warmup` predictions of every stream are not scored.
    """
    return loss_of(token_likelihoods(engine, weights, batches), warmup)


def token_likelihoods(
    engine: Engine, weights: Weights, batches: Iterable[Batch]
) -> Iterator[Likelihoods]:
    """Totals and hits of `Engine.likelihoods` for batches that follow each other."""
    prepared, state = engine.prepare(weights), None
    for batch in batches:
        if state is None:
            state = zero_state(engine.program, batch.size[0])
        read = batch.rows(mx.array)._replace(state=state)
        totals, hits, state = engine.likelihoods(prepared, read)
        mx.eval(totals, hits, state)
        yield np.array(totals), np.array(hits)


def loss_of(likelihoods: Iterable[Likelihoods], warmup: int = 0) -> float:
    """Cross-entropy in bits per token; the first `warmup` tokens of every stream are not scored."""
    bits, count = list[float](), 0
    for i, (totals, hits) in enumerate(likelihoods):
        scored = slice(warmup if i == 0 else 0, None)
        bits.append(total_bits(totals[:, scored], hits[:, scored]))
        count += hits[:, scored].size
    return fsum(bits) / count


# Samples.


class Sampled(Protocol):
    """The part of an engine that `sample` needs: logits, int8 [P, V], of the next token."""

    @property
    def program(self) -> Program: ...
    def prepare(self, weights: Any) -> Any: ...
    def logits(self, weights: Any, batch: Batch) -> tuple[mx.array, mx.array]: ...


class Sampling(NamedTuple):
    """The choice of tokens that are drawn from, and its boldness; applied in this order.

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
        """The weights of tokens in a draw, int64 [P, V], from their logits; 0 is never drawn."""
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


def sample(
    engine: Sampled,
    weights: Any,
    prompt: Sequence[int] = (),
    *,
    samples: int = 1,
    seed: int = 0,
    sampling: Sampling = PLAIN,
    expert: Mixture | None = None,
) -> Iterator[NDArray[np.int32]]:
    """Endless continuations of the mark and a prompt: int32 [P] for each token.

    expert: a counted one, whose mixture with the network is drawn from.

    At temperature 1 token v has weight EXP2[logit_v + 128], as in training; integer arithmetic and
    counter-based random words make a seed give the same text everywhere.
    """
    prepared, state = engine.prepare(weights), zero_state(engine.program, samples)
    history = np.zeros((samples, 0), np.int32)

    def read(tokens: NDArray[np.int32]) -> NDArray[np.int8]:
        nonlocal state, history
        logits, state = engine.logits(prepared, Batch(mx.array(tokens[:, None]), state=state))
        mx.eval(logits, state)  # else a long text would be one long graph
        own = np.array(logits)
        if expert is None:
            return own
        history = np.concatenate([history, tokens[:, None]], axis=1)[:, -expert.model.order :]
        return expert.logits(own, history)

    for token in (MARK, *prompt):
        logits = read(np.full(samples, token, np.int32))
    for position in itertools.count():
        sums = sampling.weights(logits).cumsum(axis=1)
        words = rng.counters(rng.key(seed, rng.SAMPLES, position), 0, samples)
        drawn = [int(w) * int(row[-1]) >> 64 for w, row in zip(words, sums, strict=True)]
        drawn = drawn if sampling.temperature else [0] * samples
        picked = [np.searchsorted(row, r, side="right") for row, r in zip(sums, drawn, strict=True)]
        tokens = np.array(picked, np.int32)
        yield tokens
        logits = read(tokens)


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


# Text from tokens.

HIDDEN = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f]")  # would steer a terminal


class Decoder:
    """Turns tokens into text piece by piece."""

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, token: int) -> str:
        """The text a token completes. A mark becomes an empty line, undecodable bytes U+FFFD."""
        text = self._utf8.decode(self._coding.bytes_of(token))
        return HIDDEN.sub("\ufffd", text).replace("\0", "\n\n")

    def end(self) -> str:
        """The replacement of an unfinished character, and the last line's end."""
        return self._utf8.decode(b"", True) + "\n"


class Stops:
    """Ends a text before the first of some strings, whatever pieces it comes in."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings, self._held, self.stopped = [s for s in strings if s], "", False

    def __call__(self, piece: str) -> str:
        """The text that can be shown now; a possible beginning of a stop is held back."""
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
        """The text that was held back, at the end of one that did not stop."""
        held, self._held = self._held, ""
        return "" if self.stopped else held
