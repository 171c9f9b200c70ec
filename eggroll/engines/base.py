"""The interface of every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import fixed_point as fx
from eggroll.backward import Backward, Learnt
from eggroll.credit import Crediting, CreditNoise
from eggroll.noise import Slices
from eggroll.program import NO_ROWS, Program, Rows, Weights

T = TypeVar("T")


def zero_state(program: Program, rows: int) -> mx.array:
    """Where every reader begins: int8 [rows, state_size], of the host, which no GPU must make."""
    return mx.array(np.zeros((rows, program.state_size), np.int8))


class Engine(ABC):
    """Evaluates populations and single models of one program, and counts their votes.

    Arrays live in MLX. Members 2i and 2i+1 are pair i: they add and subtract the same noise.
    """

    name: str
    credits: ClassVar[bool] = True  # whether it has token credit
    plays: ClassVar[bool] = False  # whether its kernels step native worlds
    shares: ClassVar[bool] = False  # whether tokens and targets may be [R, T], each row of which
    # P / R members read
    # What the host may do while a GPU computes the next call; done once, or not at all.
    meanwhile: Callable[[], object] | None = None

    def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
        program.check()
        self.program = program
        self.threads = threads
        self.block_tokens = block_tokens

    @classmethod
    def unavailable_because(cls) -> str:
        """The reason why the engine cannot run on this machine; empty if it can."""
        return ""

    @property
    def description(self) -> str:
        """The device and kernels of the engine, for the run's first line."""
        return self.name

    def array(self, shared: NDArray[Any]) -> mx.array:
        """An array of a call's rows, which lives no longer than the call does."""
        return mx.array(shared)

    def guarding(self, work: Callable[[], T]) -> T:
        """The result of `work`, which calls this engine and may be done again if the GPU fails."""
        return work()

    def prepare(self, weights: Weights) -> Any:
        """Weights in the engine's own layout; made once per update, passed to `evaluate`."""
        return weights

    @abstractmethod
    def evaluate(
        self,
        prepared: Any,
        noise: Slices | None,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array]:
        """Runs P members over T tokens of a program that has a score.

        tokens, targets: int32 [P, T], or fewer rows where the engine `shares`; state: int8
        [P, program.state_size]; rows: what the members are shown besides.
        noise: the slices of P/2 pairs, or None for P copies of the unperturbed model.
        Returns token scores int16 [P, T] in 2^-program.score_bits bit, and the new state.
        """

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
        """Runs P members over T rows; gives what the program puts out of each.

        Arguments as of `evaluate`. crediting: members have the noise that `credit` would give them,
        with its signs from credit_noise, whose draws are not used.
        Returns output name -> int8 or int32 [P, T, size], and the new state.
        """
        raise NotImplementedError

    @abstractmethod
    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        """Z per leaf, int32 (mod 2^32): sum over pairs of fitness [N] int8 in {-1, 0, 1} x noise.

        Matrices: sum_i f_i A_i B_i^T; vectors: sum_i f_i n1 n2. `clt` False takes the signs of
        the noise (A and B, or the product) instead of its values.
        """

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
        """Runs P members over T tokens, as `evaluate`, and counts token-credited votes.

        noise: of rank 1; values: int32 [N, T] of at most 2^19, what member 2p earned at each token
        less what member 2p + 1 did, in the unit of scores; None: their scores.
        Returns scores int16 [P, T] (zeros without a score), the new state, and Z int32 (mod 2^32)
        per leaf; the arithmetic is that of docs/estimators.md.
        """
        raise NotImplementedError

    @abstractmethod
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
        """Runs P members without noise over T tokens, as `evaluate`, and carries their errors back.

        words: random, uint32 [P, T], to round credit by. See docs/estimators.md.
        """
        raise NotImplementedError

    def play(
        self,
        prepared: Any,
        noise: Slices,
        state: mx.array,
        world: tuple[int, int, mx.array, int],
        by: float = 0.0,
        signs: mx.array | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[mx.array, mx.array, mx.array, dict[str, mx.array]]:
        """Runs P members in native worlds (docs/native.md), if the engine `plays`.

        world: the address of the eggroll_world and of what it is given, keys uint64 [P], and T.
        by, signs, crediting: with token credit; by turns a difference of what a row was worth to
        members 2p and 2p + 1 into the value that `credit` takes.
        Returns values int32 [P, T], active bool [P, T], the new state and Z, empty without credit.
        """
        raise NotImplementedError

    def likelihoods(
        self,
        prepared: Any,
        tokens: mx.array,
        targets: mx.array,
        state: mx.array,
        rows: Rows = NO_ROWS,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """The integers that give the unperturbed model's exact losses; see `fixed_point.bits`.

        tokens, targets: int32 [P, T]; state: int8 [P, program.state_size].
        Returns totals uint64 [P, T], the sums over the vocabulary of 2^(31 + (logit + 128) / 16) in
        the integers of `fixed_point.exact_exp2`, hits int8 [P, T], the targets' logits, and the new
        state. Here token by token from `logits`: engines may do better, with the same integers.
        """
        table, totals, hits = fx.exact_exp2(), [], []
        for t in range(tokens.shape[1]):
            shown = Rows(*(a if a is None else a[:, t : t + 1] for a in rows))
            logits, state = self.logits(prepared, tokens[:, t], state, shown)
            mx.eval(logits, state)
            totals.append(table[np.array(logits).astype(np.int32) + 128].sum(axis=1))
            hits.append(mx.take_along_axis(logits, targets[:, t, None], axis=1)[:, 0])
        return mx.array(np.stack(totals, axis=1)), mx.stack(hits, axis=1), state

    @abstractmethod
    def logits(
        self, prepared: Any, tokens: mx.array, state: mx.array, rows: Rows = NO_ROWS
    ) -> tuple[mx.array, mx.array]:
        """The unperturbed model, one token: tokens int32 [P] -> logits int8 [P, V], new state.

        rows: of T = 1.
        """
