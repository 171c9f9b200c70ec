"""Evaluates a population chunk by chunk and counts its votes.

Letters: P members, N = P/2 pairs, T tokens, V vocabulary. A chunk bounds memory; because all sums
are integers, no chunk size changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.engines import Engine, zero_state
from eggroll.evolution.rules import arrays
from eggroll.ranks import ALONE, Ranks, counts_all
from eggroll.spec import rng
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.credit import Crediting, CreditNoise, credit_shift, draw_signs
from eggroll.spec.flat import added
from eggroll.spec.noise import Noise, Slices
from eggroll.spec.program import Batch, Leaves, Weights
from eggroll.spec.rng import WHOLE, draws

A = ParamSpec("A")
R = TypeVar("R")


class WorldCall(NamedTuple):
    """The native world of an update, its keys and its number of rows."""

    world: int  # address of the eggroll_world
    shared: int  # address of what it reads
    keys: NDArray[np.uint64]  # [P]
    rows: int  # T
    owners: object  # what must live as long as the addresses are used


class Played(NamedTuple):
    """The end of an update in a native world."""

    values: NDArray[np.int32]  # [P, T]
    active: NDArray[np.bool_]  # [P, T]
    state: mx.array  # int8 [P, state_size]
    votes: Leaves  # Z per leaf, empty without credit


def evaluated(
    work: Callable[Concatenate[Population, A], R],
) -> Callable[Concatenate[Population, A], R]:
    """A method whose arrays are computed when it returns, or again where a GPU fails at them."""

    @wraps(work)
    def method(self: Population, *arguments: A.args, **named: A.kwargs) -> R:
        def forced() -> R:
            result = work(self, *arguments, **named)
            mx.eval(result)
            return result

        return self.engine.run_guarded(forced)

    return method  # type: ignore[return-value]


class Population:
    """P members of one network: what they say and score, and the votes of their noise.

    group: members that read the same stream (even); chunk: members evaluated at a time (even);
    crediting: noise and credit of each leaf where they are given token by token, for `credit`;
    ranks: among which groups are dealt. P is of the members here; `everyone` is of all ranks.
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
        ranks: Ranks = ALONE,
    ) -> None:
        self.engine, self.noise, self.clt, self.crediting = engine, noise, clt, crediting
        self.everyone, self.group, self.chunk = members, group, chunk
        first, last = ranks.share(members, group)
        self.ranks, self.members, self.before = ranks, last - first, first
        self._prepared: tuple[Weights, Any] | None = None

    def initial_state(self) -> mx.array:
        """Zeros, int8 [P, state_size]."""
        return zero_state(self.engine.program, self.members)

    def prepared(self, weights: Weights) -> Any:
        """The weights in the engine's layout, made once for the same weights."""
        if self._prepared is None or self._prepared[0] is not weights:
            self._prepared = weights, self.engine.prepare(weights)
        return self._prepared[1]

    def _chunks(self, step: int, *, every: bool = False) -> Iterator[tuple[int, int, Slices]]:
        """(first member, last + 1, slices of the pairs between) of every chunk.

        every: of all members, else of those here, which are counted from 0.
        """
        self.engine.step = step
        draw = partial(self.noise.slices, step, draw=self.engine.starts)
        members, skip = (self.everyone, 0) if every else (self.members, self.before // 2)
        first_chunk = skip, min(self.chunk, members) // 2
        later = partial(self.noise.draw_ahead, step + 1, *first_chunk, self.engine.starts)
        for first in range(0, members, self.chunk):
            last = min(first + self.chunk, members)
            slices = draw(skip + first // 2, (last - first) // 2)
            ahead = (min(last + self.chunk, members) - last) // 2
            self.engine.host_work = partial(draw, skip + last // 2, ahead) if ahead else later
            yield first, last, slices

    def _of(self, shared: NDArray[Any], first: int, last: int) -> mx.array:
        """The rows of members first .. last - 1, of an array of one row per group of any size."""
        if len(shared) == self.members:
            return self.engine.array(shared[first:last])
        group, rest = divmod(self.members, len(shared))
        if not rest and first % group == last % group == 0:  # twice as fast
            part = shared[first // group : last // group]
            return self.engine.repeated(part, group)
        rows = np.arange(first, last) * len(shared) // self.members
        return self.engine.array(np.take(shared, rows, axis=0))

    def _streams(self, shared: NDArray[np.int32], first: int, last: int) -> mx.array:
        """The same of tokens or targets: of whole groups one row each where the engine shares."""
        group = self.members // len(shared)
        if self.engine.shares and first % group == last % group == 0:
            return self.engine.array(shared[first // group : last // group])
        return self._of(shared, first, last)

    def _state(self, state: mx.array, first: int, last: int) -> mx.array:
        """That of members first .. last - 1; as it is where they are all."""
        return state if last - first == self.members else state[first:last]

    def _batch(self, batch: Batch, first: int, last: int) -> Batch:
        """The batch of members first .. last - 1, in the engine's arrays."""
        members = first, last
        return Batch(
            self._streams(batch.tokens, *members),
            None if batch.targets is None else self._streams(batch.targets, *members),
            self._state(batch.state, *members),
            None if batch.inputs is None else self._of(batch.inputs, *members),
            None if batch.features is None else self._of(batch.features, *members),
            None if batch.errors is None else self._of(batch.errors, *members),
            None if batch.wanted is None else self._of(batch.wanted, *members),
            None if batch.index is None else self.engine.array(batch.index),
        )

    @evaluated
    def evaluate(self, weights: Weights, step: int, batch: Batch) -> tuple[mx.array, mx.array]:
        """Runs every member over its group's stream.

        Returns token scores int16 [P, T] in 2^-program.score_bits bit, and the new state.
        """
        prepared = self.prepared(weights)
        scores, states = [], []
        for first, last, slices in self._chunks(step):
            chunk = self._batch(batch, first, last)
            score, after = self.engine.evaluate(prepared, slices, chunk)
            mx.eval(score, after)
            scores.append(score)
            states.append(after)
        return _joined(scores), _joined(states)

    @evaluated
    def outputs(
        self,
        weights: Weights,
        step: int,
        batch: Batch,
        signs: NDArray[np.int32] | None = None,
    ) -> tuple[dict[str, mx.array], mx.array]:
        """Runs every member on the rows it is shown.

        signs: int32 [leaves, N, ceil(T / 32)] for members that are credited row by row.
        Returns output name -> int8 or int32 [P, T, size], and the new state.
        """
        prepared, parts, states = self.prepared(weights), [], []
        for first, last, slices in self._chunks(step):
            credited = self._credited(signs, first // 2, last // 2, batch.size[1])
            chunk = self._batch(batch, first, last)
            outputs, after = self.engine.outputs(prepared, slices, chunk, *credited)
            mx.eval(outputs, after)
            parts.append(outputs)
            states.append(after)
        return {k: _joined([part[k] for part in parts]) for k in parts[0]}, _joined(states)

    @evaluated
    def plain_outputs(self, weights: Weights, batch: Batch) -> tuple[dict[str, mx.array], mx.array]:
        """`outputs` of members without noise, each of which is the unperturbed network."""
        prepared, parts, states = self.prepared(weights), [], []
        for first in range(0, self.members, self.chunk):
            last = min(first + self.chunk, self.members)
            outputs, after = self.engine.outputs(prepared, None, self._batch(batch, first, last))
            mx.eval(outputs, after)
            parts.append(outputs)
            states.append(after)
        return {k: _joined([part[k] for part in parts]) for k in parts[0]}, _joined(states)

    def _credited(
        self, signs: NDArray[np.int32] | None, first: int, last: int, T: int
    ) -> tuple[CreditNoise, Crediting] | tuple[()]:
        if signs is None or self.crediting is None:
            return ()
        draws = mx.zeros((last - first, T), mx.uint32)
        return CreditNoise(mx.array(signs[:, first:last]), draws), self.crediting

    @evaluated
    def credit(
        self, weights: Weights, step: int, batch: Batch
    ) -> tuple[mx.array, mx.array, Leaves]:
        """`evaluate`, with the token-credited votes Z per leaf, int32."""
        assert self.crediting is not None
        prepared = self.prepared(weights)
        scores, states = [], []
        total: Leaves = {}
        for first, last, slices in self._chunks(step):
            credit_noise = draw_signs(
                self.crediting, seed=self.noise.seed, step=step,
                first_pair=(self.before + first) // 2, pairs=(last - first) // 2,
                seq_len=batch.size[1], threads=self.engine.threads,
            )  # fmt: skip
            score, after, part = self.engine.credit(
                prepared, slices, self._batch(batch, first, last), credit_noise, self.crediting
            )
            total = added(total, part)
            mx.eval(score, after, total)
            scores.append(score)
            states.append(after)
        return _joined(scores), _joined(states), self.ranks.sums(total)

    @evaluated
    def learn(self, weights: Weights, step: int, batch: Batch, back: Backward) -> Learnt:
        """Runs every member without noise over a stream of its own, and carries its errors back."""
        prepared, parts = self.prepared(weights), list[Learnt]()
        total: Leaves = {}
        stream, T = rng.key(self.noise.seed, rng.DRAWS, step), batch.size[1]
        self.engine.step = step
        for first in range(0, self.members, self.chunk):
            last = min(first + self.chunk, self.members)
            at = (self.before + first) * T
            words = draws(
                [stream], [WHOLE], at, (last - first, T), self.engine.threads, unsigned=True
            )
            part = self.engine.learn(prepared, self._batch(batch, first, last), words, back)
            total = added(total, part.votes)
            if last < self.members:  # else all is evaluated at the end
                mx.eval(part[:4], total)
            parts.append(part)
        if len(parts) == self.ranks.size == 1:
            return parts[0]
        by_leaf = zip(*(np.asarray(part.sizes).tolist() for part in parts), strict=True)
        sizes = self.ranks.table([*map(sum, by_leaf)]).sum(axis=0)
        rated = zip(*[(part.errors, part.lost) for part in parts if back.losses], strict=True)
        return Learnt(
            _joined([part.scores for part in parts]),
            _joined([part.state for part in parts]),
            self.ranks.sums(total),
            mx.array(sizes),
            *map(_joined, rated),
        )

    @evaluated
    def credit_values(
        self,
        weights: Weights,
        step: int,
        batch: Batch,
        signs: NDArray[np.int32],
        values: NDArray[np.int32],
    ) -> Leaves:
        """Z per leaf, int32, of members whose rows were worth `values` to the caller.

        batch, signs: as of `outputs`, of all rows since the update began;
        values: [N, T], what member 2p earned less what member 2p + 1 did; see Engine.credit.
        """
        assert self.crediting is not None
        prepared, T = self.prepared(weights), batch.size[1]
        crediting = self.crediting._replace(credit_shift=credit_shift(self.crediting, T))
        total: Leaves = {}
        for first, last, slices in self._chunks(step):
            pairs = slice(first // 2, last // 2)
            draws = mx.zeros(((last - first) // 2, T), mx.uint32)
            chunk = self._batch(batch, first, last)
            part = self.engine.credit(
                prepared, slices, chunk._replace(targets=chunk.tokens),  # which nobody reads
                CreditNoise(mx.array(signs[:, pairs]), draws), crediting, mx.array(values[pairs]),
            )[2]  # fmt: skip
            total = added(total, part)
            mx.eval(total)
        return total

    def play(
        self,
        weights: Weights,
        step: int,
        state: mx.array,
        call: WorldCall,
        scale: float = 0.0,
        signs: NDArray[np.int32] | None = None,
    ) -> Played:
        """Runs every member in its world, on an engine that plays.

        scale: with crediting, from differences of what rows were worth to values; signs: as of
        `outputs`.
        """
        prepared, crediting = self.prepared(weights), self.crediting
        if crediting is not None:
            crediting = crediting._replace(credit_shift=credit_shift(crediting, call.rows))
        parts, total = [], dict[str, mx.array]()
        for first, last, slices in self._chunks(step):
            signs_here = None if signs is None else mx.array(signs[:, first // 2 : last // 2])
            *part, Z = self.engine.play(
                prepared, slices, self._state(state, first, last),
                (call.world, call.shared, mx.array(call.keys[first:last]), call.rows),
                scale, signs_here, crediting,
            )  # fmt: skip
            total = added(total, Z)
            mx.eval(total)
            parts.append(part)
        values, active, states = zip(*parts, strict=True)
        joined = [np.concatenate([np.asarray(a) for a in arrays]) for arrays in (values, active)]
        return Played(joined[0], joined[1], _joined(states), total)

    def signs(self, fitness: mx.array) -> mx.array:
        """The fitness of all pairs, int8 [N] of signs, by that of the pairs here."""
        if self.ranks.size == 1:
            return fitness
        return mx.array(self.ranks.signs(np.array(fitness), self.everyone // 2, self.group // 2))

    @evaluated
    def votes(self, fitness: mx.array, step: int, *, signs: bool = False) -> Leaves:
        """Z per leaf, int32: the noise of every pair times its fitness, int8 [N], of all ranks'.

        Engines count fitness -1, 0 and 1, so a larger one is counted bit by bit. signs: there is
        none, so what a GPU made stays there.
        """
        total: Leaves = {}
        every = self.ranks.size == 1 or counts_all(fitness.size)
        planes: list[Any] = [fitness]
        if not signs or not every or arrays()[0] is np:
            f: NDArray[np.int8] = np.array(fitness)
            f = f if every else f[self.before // 2 :][: self.members // 2]
            bits = max(int(abs(f).max()).bit_length(), 1)
            planes = [np.sign(f) * ((abs(f) >> i) & 1) for i in range(bits)] if bits > 1 else [f]
        for bit, plane in enumerate(planes):
            for first, last, slices in self._chunks(step, every=every):
                fitness_here = mx.array(plane[first // 2 : last // 2])
                part = self.engine.votes(fitness_here, slices, self.clt)
                part = {k: z << bit for k, z in part.items()} if bit else part
                total = added(total, part)
                mx.eval(total)
        return total if every else self.ranks.sums(total)


def _joined(parts: Sequence[mx.array]) -> mx.array:
    """Arrays of all chunks as one; that of a single chunk as it is."""
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts))
