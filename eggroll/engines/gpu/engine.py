"""Base of the engines on GPUs: a group of members runs all T tokens of a stage in one launch.

Letters: P members, N pairs, T tokens, D width, V vocabulary, M members of a threadgroup, which CUDA
calls a block.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from eggroll.backward import Backward, Learnt
from eggroll.credit import Crediting, CreditNoise
from eggroll.engines.gpu.carry import CarryRun, Chunk
from eggroll.engines.gpu.checks import (
    check_back,
    check_credit,
    check_draws,
    check_noise,
    check_tokens,
)
from eggroll.engines.gpu.counts import matrix_macs
from eggroll.engines.gpu.credit import CreditRun
from eggroll.engines.gpu.launch import pad_flat
from eggroll.engines.gpu.stage import RESULTS
from eggroll.engines.gpu.stages import Given, Stages
from eggroll.engines.gpu.vote_run import count_votes
from eggroll.engines.gpu.writer import Result
from eggroll.engines.rows import check_rows, check_scored, check_values
from eggroll.noise import Slices
from eggroll.program import NO_ROWS, Rows

LEAST_PAIRS = 32  # whose votes are counted in one launch


class Turned(NamedTuple):
    """Noise on nodes: how much each leaf has, and signs int32 [leaves, pairs, words of tokens]."""

    crediting: Crediting
    signs: mx.array


class StagedEngine(Stages):
    """An engine whose kernels are written from the plans of a program's stages."""

    @property
    def remedy(self) -> str:
        """What one may try where the GPU fails, the beginning of a sentence, or nothing."""
        return ""

    def evaluate(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        given = Given(tokens, targets, rows)
        (scores,), after = self._launches("scores", prepared, noise, given, state)
        return scores, after

    def likelihoods(
        self,
        prepared: Any,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, mx.array]:
        given = Given(tokens, targets, rows)
        (totals, hits), after = self._launches("likelihoods", prepared, None, given, state)
        return totals, hits, after

    def logits(
        self, prepared: Any, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        check_scored(self.program)
        given = Given(tokens[:, None], None, rows)
        self._check(None, given, state)
        (logits,), after = self._run("logits", prepared, None, given, state)
        return logits, after

    def outputs(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
        credit_noise: CreditNoise | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[dict[str, mx.array], mx.array]:
        given, turned = Given(tokens, None, rows), None
        if crediting is not None:
            if noise is None or credit_noise is None:
                raise ValueError("noise and credit_noise are needed for members that are credited.")
            check_credit(self.program, noise.rank, credit_noise.signs, crediting, *tokens.shape)
            turned = Turned(crediting, credit_noise.signs) if crediting.nodes else None
        found, after = self._launches("outputs", prepared, noise, given, state, turned)
        names = (out.name for out in self.program.outputs)
        return dict(zip(names, found, strict=True)), after

    def _launches(
        self,
        result: Result,
        prepared: Any,
        noise: Slices | None,
        given: Given,
        state: mx.array,
        turned: Turned | None = None,
    ) -> tuple[list[mx.array], mx.array]:
        """The results for P members and T tokens, each [P, T, ..], and the new state."""
        if result != "outputs":
            check_scored(self.program)
        self._check(noise, given, state)
        (P, T), rank = given.tokens.shape, noise.rank if noise and not turned else 0
        members, columns = self.launch_size(P, T, rank, result == "outputs")
        found, states = [], []
        for m in range(0, P, members):
            mine, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            part = noise._replace(starts=noise.starts[:, pairs]) if noise else None
            signs = turned._replace(signs=turned.signs[:, pairs]) if turned else None
            after, row = state[mine], []
            for t in range(0, T, columns):
                some = given.at(mine, slice(t, t + columns))
                left, after = self._run(result, prepared, part, some, after, signs, t)
                row.append(left)
            found.append([mx.concatenate(list(a), axis=1) for a in zip(*row, strict=True)])
            states.append(after)
        whole = [mx.concatenate(list(a)) for a in zip(*found, strict=True)]
        return whole, mx.concatenate(states)

    def _check(self, noise: Slices | None, given: Given, state: mx.array) -> None:
        """Raises ValueError for what a kernel would read beyond an array."""
        check_tokens(self.program, given.tokens, given.targets, state)
        check_rows(self.program, given.rows, *given.tokens.shape)
        if noise:
            check_noise(self.program, noise, given.tokens.shape[0])

    def _run(
        self,
        result: Result,
        prepared: list[mx.array],
        noise: Slices | None,
        given: Given,
        state: mx.array,
        turned: Turned | None = None,
        first: int = 0,
    ) -> tuple[list[mx.array], mx.array]:
        """One launch per stage, of tokens from `first` on. Its results, and the new state."""
        P, T = given.tokens.shape
        M = self.group_members(P, noise.rank if noise and not turned else 0)
        lanes, sizes, signs = -(-P // M) * M, [T, P, P // 2], None
        if turned and noise:
            signs = turned.signs
            sizes += [first, signs.shape[2], lanes // 2]
            kernels = self.turned_kernels(M, noise.shift, turned.crediting)
        else:
            kernels = self.kernels(M, noise, result)
        arrays, made = self.given_of(noise, given, sizes), self.outputs_of(P, T, lanes)
        got, after = self.run_stages(kernels, prepared, arrays, made, noise, state, T, signs)
        names = RESULTS.get(result) or [f"out{i}" for i in range(len(self.program.outputs))]
        return [next(left[name] for left in got if name in left) for name in names], after

    def credit(
        self,
        prepared: Any,
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        given = Given(tokens, targets, rows)
        self._check(noise, given, state)
        P, T = tokens.shape
        check_credit(self.program, noise.rank, credit_noise.signs, crediting, P, T)
        check_draws(credit_noise, P, T)
        check_values(self.program, values, P // 2, T)
        members, columns = self.credit_launch_size(crediting, P, T)
        scores, states, total = [], [], dict[str, mx.array]()
        for m in range(0, P, members):
            mine, pairs = slice(m, m + members), slice(m // 2, (m + members) // 2)
            some = noise._replace(starts=noise.starts[:, pairs])
            bits = CreditNoise(credit_noise.signs[:, pairs], credit_noise.draws[pairs])
            part = given.at(mine, slice(None)), state[mine]
            worth = None if values is None else values[pairs]
            score, after, Z = self._credit_members(
                prepared, some, bits, crediting, *part, worth, columns
            )
            scores.append(score)
            states.append(after)
            total = {name: total[name] + z if total else z for name, z in Z.items()}
            if members < P:  # so that the tapes of one launch are gone before the next one's come
                mx.eval(score, after, total)
        return mx.concatenate(scores), mx.concatenate(states), total

    def _credit_members(
        self,
        prepared: list[mx.array],
        noise: Slices,
        credit_noise: CreditNoise,
        crediting: Crediting,
        given: Given,
        state: mx.array,
        values: mx.array | None,
        columns: int,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """`credit` with all members in a launch, `columns` tokens at a time."""
        P, T = given.tokens.shape
        M = self.group_members(P, 0 if crediting.nodes else 1)
        work, sources = self.credit_kernels(M, noise.shift, crediting)
        kernels = list(zip(work.plans, sources, strict=True))
        run = CreditRun(self.launcher, work, noise, credit_noise, given.tokens, given.rows)
        words, scores = credit_noise.signs.shape[2], []
        for t in range(0, T, columns):
            at = slice(t, t + columns)
            some = given.at(slice(None), at)
            length = some.tokens.shape[1]
            sizes = [length, P, P // 2, t, words, run.lanes]
            arrays = self.given_of(noise, some, sizes)
            arrays["draws"] = pad_flat(credit_noise.draws[:, at])
            made, left = self.outputs_of(P, length, 2 * run.lanes), partial(run.outputs, length)
            got, state = self.run_stages(
                kernels, prepared, arrays, made, noise, state, length, credit_noise.signs, left
            )
            run.add(t, length, got)
            scores.append(got[-1].get("scores", mx.zeros((P, length), mx.int16)))
        score = worth = mx.concatenate(scores, axis=1)
        if values is not None:  # as scores of which the odd members have none
            worth = mx.stack([values, mx.zeros_like(values)], axis=1).reshape(P, T)
        self.pace.begin(work)
        Z = run.votes(worth)
        self.pace.launched(Z.values(), P // 2 * matrix_macs(self.program))
        return score, state, Z

    def learn(
        self,
        prepared: Any,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        words: mx.array,
        back: Backward,
        rows: Rows = NO_ROWS,
    ) -> Learnt:
        given = Given(tokens, targets, rows)
        check_scored(self.program)
        self._check(None, given, state)
        (P, T), leaves = tokens.shape, self.program.leaves
        check_back(self.program, words, back, P, T)
        passing = frozenset(i for i, leaf in enumerate(leaves) if leaf.name in back.matrices)
        members, columns = self.carry_launch_size(passing, P, T)
        parts, total = list[Learnt](), dict[str, mx.array]()
        for m in range(0, P, members):
            mine = slice(m, m + members)
            some = given.at(mine, slice(None)), state[mine], words[mine]
            part = self._learn_members(prepared, back, passing, *some, columns)
            total = {name: total[name] + z if total else z for name, z in part.votes.items()}
            parts.append(part)
            if members < P:  # so that the tapes of one launch are gone before the next one's come
                mx.eval(part, total)
        return Learnt(
            mx.concatenate([part.scores for part in parts]),
            mx.concatenate([part.state for part in parts]),
            total,
            mx.stack([part.sizes for part in parts]).sum(axis=0),
        )

    def _learn_members(
        self,
        prepared: list[mx.array],
        back: Backward,
        passing: frozenset[int],
        given: Given,
        state: mx.array,
        words: mx.array,
        columns: int,
    ) -> Learnt:
        """`learn` with all members in a launch, `columns` tokens at a time, there and back."""
        P, T = given.tokens.shape
        stages = self.carry_stages(self.group_members(P, 0), passing)
        matrices = [self.sending(stage.plan, back) for stage in stages]
        assert given.targets is not None
        run = CarryRun(
            self.launcher, self.pace, self.dialect, stages, prepared, matrices, back, given.tokens,
            given.targets, words, given.rows,
        )  # fmt: skip
        kernels, scores, chunks = [(stage.plan, stage.there) for stage in stages], [], []
        for t in range(0, T, columns):
            some = given.at(slice(None), slice(t, t + columns))
            length = some.tokens.shape[1]
            arrays = self.given_of(None, some, [length, P, P // 2])
            made, left = self.outputs_of(P, length, run.lanes), partial(run.outputs, length)
            got, state = self.run_stages(
                kernels, prepared, arrays, made, None, state, length, left=left
            )
            scores.append(got[-1]["scores"])
            chunks.append(Chunk(t, length, [each.get("tape") for each in got]))
        for chunk in reversed(chunks):
            run.back(chunk)
        return Learnt(mx.concatenate(scores, axis=1), state, *run.found())

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        N, table = fitness.size, self.table_of(noise)
        check_noise(self.program, noise, 2 * N)
        macs, first = noise.rank * matrix_macs(self.program), 0
        total: dict[str, mx.array] = {}
        while first < N:
            pairs = min(max(self.pace.macs // macs, LEAST_PAIRS), N - first)
            mine = slice(first, first + pairs)
            given = table, noise._replace(starts=noise.starts[:, mine]), fitness[mine]
            self.pace.begin(("votes", noise.rank, clt))
            Z = count_votes(self.launcher, self.dialect, self.program, *given, clt)
            total = {name: total[name] + z if total else z for name, z in Z.items()}
            self.pace.launched(total.values(), pairs * macs)
            first += pairs
        return total
