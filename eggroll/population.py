"""Evaluates a population chunk by chunk and counts its votes.

Letters: P members, N = P/2 pairs, T tokens, V vocabulary. A chunk bounds memory; because all sums
are integers, no chunk size changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import fsum

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.credit import Crediting, draw_signs
from eggroll.engines import Engine
from eggroll.fixed_point import total_bits
from eggroll.noise import Noise, Slices
from eggroll.program import Leaves, Weights


class Population:
    """P members of one network: `evaluate` gives their token scores, `votes` counts their noise.

    group: members that read the same stream (even); chunk: members evaluated at a time (even);
    crediting: noise and credit of each leaf where they are given token by token, for `credit`.
    """

    def __init__(
        self,
        engine: Engine,
        noise: Noise,
        *,
        members: int,
        group: int,
        chunk: int,
        clt: bool = True,
        crediting: Crediting | None = None,
    ) -> None:
        self.engine, self.noise, self.clt, self.crediting = engine, noise, clt, crediting
        self.members, self.group, self.chunk = members, group, chunk

    def initial_state(self) -> mx.array:
        """Zeros, int8 [P, state_size]."""
        return mx.zeros((self.members, self.engine.program.state_size), mx.int8)

    def _chunks(self, step: int) -> Iterator[tuple[int, int, Slices]]:
        """(first member, last + 1, slices of the pairs between) of every chunk."""
        for first in range(0, self.members, self.chunk):
            last = min(first + self.chunk, self.members)
            yield first, last, self.noise.slices(step, first // 2, (last - first) // 2)

    def evaluate(
        self,
        weights: Weights,
        step: int,
        tokens: NDArray[np.int32],
        targets: NDArray[np.int32],
        state: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """Runs every member over its group's stream.

        tokens, targets: [P / group, T]; state: int8 [P, state_size].
        Returns token scores int16 [P, T] in 2^-program.score_bits bit, and the new state.
        """
        prepared = self.engine.prepare(weights)
        scores, states = [], []
        for first, last, slices in self._chunks(step):
            rows = np.arange(first, last) // self.group
            chunk = (mx.array(tokens[rows]), mx.array(targets[rows]), state[first:last])
            score, after = self.engine.evaluate(prepared, slices, *chunk)
            mx.eval(score, after)
            scores.append(score)
            states.append(after)
        return mx.concatenate(scores), mx.concatenate(states)

    def credit(
        self,
        weights: Weights,
        step: int,
        tokens: NDArray[np.int32],
        targets: NDArray[np.int32],
        state: mx.array,
    ) -> tuple[mx.array, mx.array, Leaves]:
        """`evaluate`, with the token-credited votes Z per leaf, int32."""
        assert self.crediting is not None
        prepared = self.engine.prepare(weights)
        scores, states = [], []
        total: Leaves = {}
        for first, last, slices in self._chunks(step):
            rows = np.arange(first, last) // self.group
            credit_noise = draw_signs(
                self.crediting, seed=self.noise.seed, step=step,
                first_pair=first // 2, pairs=(last - first) // 2, seq_len=tokens.shape[1],
            )  # fmt: skip
            score, after, part = self.engine.credit(
                prepared, slices, credit_noise, self.crediting, mx.array(tokens[rows]),
                mx.array(targets[rows]), state[first:last],
            )  # fmt: skip
            total = {k: total[k] + z if total else z for k, z in part.items()}
            mx.eval(score, after, total)
            scores.append(score)
            states.append(after)
        return mx.concatenate(scores), mx.concatenate(states), total

    def votes(self, fitness: mx.array, step: int) -> Leaves:
        """Z per leaf, int32: the noise of every pair times its fitness [N] int8."""
        total: Leaves = {}
        for first, last, slices in self._chunks(step):
            part = self.engine.votes(fitness[first // 2 : last // 2], slices, self.clt)
            total = {k: total[k] + z if total else z for k, z in part.items()}
            mx.eval(total)
        return total


def model_loss(
    engine: Engine,
    weights: Weights,
    batches: Iterable[tuple[NDArray[np.int32], NDArray[np.int32]]],
    warmup: int = 0,
) -> float:
    """Exact cross-entropy of the unperturbed model, in bits per token, from its int8 logits.

    batches: (tokens, targets), each int32 [S, T]. The state begins at zero and is carried from
    batch to batch; the first `warmup` predictions of every stream are not scored.
    """
    prepared, state, count = engine.prepare(weights), None, 0
    bits: list[float] = []
    for i, (tokens, targets) in enumerate(batches):
        if state is None:
            state = mx.zeros((len(tokens), engine.program.state_size), mx.int8)
        given = mx.array(tokens), mx.array(targets)
        totals, hits, state = engine.likelihoods(prepared, *given, state)
        mx.eval(totals, hits, state)
        first = warmup if i == 0 else 0
        bits.append(total_bits(np.array(totals)[:, first:], np.array(hits)[:, first:]))
        count += len(tokens) * (tokens.shape[1] - first)
    return fsum(bits) / count
