"""The interface of every engine, and the checks of what it is given.

Letters: P members, N = P/2 pairs, T tokens or rows, V vocabulary, K inputs, O outputs, R rows of
arrays that groups of members share, Z votes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Noise, Slices
from eggroll.spec.program import Batch, Program, Weights

T = TypeVar("T")
RuleLeaves = list[tuple[Any, ...]]  # arrays and numbers of every leaf, for an update rule
RuleArrays = tuple[list[list[mx.array]], mx.array | int]  # those after it; weights that moved

# The process that made the first engine.
_owner: list[int] = []


def check_process() -> None:
    """Raises InputError in a fork of a process that had an engine, where MLX runs on a GPU."""
    if not _owner:
        serve_forks()
        _owner.append(os.getpid())
    if _owner[0] != os.getpid() and mx.default_device() != mx.Device(mx.cpu):
        raise InputError(
            f"process {os.getpid()} is a fork of process {_owner[0]}, which had used eggroll, and "
            "a GPU serves none but the process that opened it: fork before the first Trainer or "
            'model, or start processes by multiprocessing.get_context("spawn").'
        )


MAX_VALUE = 1 << 19  # 15 times its discounted sum, in 1/256 bit, is below 2^31


@cache
def serve_forks() -> None:
    """Lets forked children go on: a thread of MLX serves a stream, so they get a new stream."""

    def new_stream() -> None:
        if mx.default_device() == mx.Device(mx.cpu):
            mx.set_default_stream(mx.new_stream(mx.cpu))

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=new_stream)


class Engine(ABC):
    """Evaluates populations and single models of one program, and counts their votes.

    Arrays live in MLX. Members 2i and 2i+1 are pair i: they add and subtract the same noise.
    """

    name: str
    plays: ClassVar[bool] = False  # whether its kernels step native worlds
    # Whether tokens and targets may be [R, T], each row of which P / R members read.
    shares: ClassVar[bool] = False
    looks_up: ClassVar[bool] = False  # whether `learn` takes a batch with an index
    # Run on the host while a GPU computes the next call: once, or not at all.
    host_work: Callable[[], object] | None = None
    rules: tuple[str, ...] = ()  # update rules that it has methods for, of their names
    step: int | None = None  # updates made before those that calls belong to; None outside of any

    def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
        check_process()
        program.check()
        self.program = program
        self.threads = threads
        self.block_tokens = block_tokens

    @classmethod
    def unavailable_because(cls) -> str:
        """The reason why the engine cannot run on this machine; empty if it can."""
        return ""

    @classmethod  # noqa: B027 - most engines need nothing
    def ahead(cls, works: Sequence[Callable[[], object]]) -> None:
        """Makes what calls of engines of this class will need, if that is done faster together."""

    @property
    def description(self) -> str:
        """The device and kernels of the engine, for the run's first line."""
        return self.name

    def array(self, shared: NDArray[Any]) -> mx.array:
        """An array of a call's rows, as the engine reads it; it lives as long as the call."""
        return mx.array(shared)

    def repeated(self, shared: NDArray[Any], times: int) -> mx.array:
        """The same with every row repeated."""
        return self.array(np.repeat(shared, times, axis=0))

    def starts(self, noise: Noise, epoch: int, first_pair: int, pairs: int) -> mx.array:
        """Starts of the slices of some pairs, as `Noise.starts` has them."""
        return noise.starts(epoch, first_pair, pairs, self.threads)

    def run_guarded(self, work: Callable[[], T]) -> T:
        """The result of `work`, which calls this engine and may be done again if the GPU fails."""
        check_process()
        return work()

    def prepare(self, weights: Weights) -> Any:
        """Weights in the engine's own layout; made once per update, passed to `evaluate`."""
        return weights

    @abstractmethod
    def evaluate(
        self, prepared: Any, noise: Slices | None, batch: Batch
    ) -> tuple[mx.array, mx.array]:
        """Runs P members over T tokens of a program that has a score.

        batch: tokens and targets may have fewer rows than members where the engine `shares`.
        noise: the slices of P/2 pairs, or None for P copies of the unperturbed model.
        Returns token scores int16 [P, T] in 2^-program.score_bits bit, and the new state.
        """

    def outputs(
        self,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
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
        batch: Batch,
        credit_noise: CreditNoise,
        crediting: Crediting,
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
    def learn(self, prepared: Any, batch: Batch, words: mx.array, back: Backward) -> Learnt:
        """Runs P members without noise over T tokens, as `evaluate`, and carries errors back.

        The errors are those of the score, if there is one, and of the outputs, if batch has them;
        without a score, scores are zeros. words: random, uint32 [P, T], to round credit by. See
        docs/estimators.md.
        """
        raise NotImplementedError

    def play(
        self,
        prepared: Any,
        noise: Slices,
        state: mx.array,
        world: tuple[int, int, mx.array, int],
        scale: float = 0.0,
        signs: mx.array | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[mx.array, mx.array, mx.array, dict[str, mx.array]]:
        """Runs P members in native worlds (docs/native.md), if the engine `plays`.

        world: the address of the eggroll_world and of its shared array, keys uint64 [P], and T.
        scale, signs, crediting: with token credit; scale turns a difference of what a row was worth
        to members 2p and 2p + 1 into the value that `credit` takes.
        Returns values int32 [P, T], active bool [P, T], the new state and Z, empty without credit.
        """
        raise NotImplementedError

    def adam(self, leaves: RuleLeaves, factor: int) -> RuleArrays:
        """Makes an update by rule adam, if that is one of `rules`.

        leaves: of each votes, weights, fine copy, mean, size, feedback or None, and decay; factor:
        lr in last bits of a fine copy. Returns of each all but votes, decay and a missing feedback
        after the update, and how many weights moved.
        """
        raise NotImplementedError

    def master(self, leaves: RuleLeaves) -> RuleArrays:
        """The same by rule master.

        leaves: of each votes, weights, fine copy, what votes are multiplied by in 2^-24 of a fine
        copy's last bit, and decay.
        """
        raise NotImplementedError

    def whitened(self, leaves: RuleLeaves, learns: bool) -> RuleArrays:
        """The same by rule whitened.

        leaves: of each votes, weights, fine copy, feedback or None, whitening matrices or None, lr
        in 2^-24 bits and the least mean size; learns: whether matrices do. Returns of each weights,
        fine copy, feedback if there is one and, if they learn, matrices; and how many weights
        moved.
        """
        raise NotImplementedError

    def likelihoods(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array]:
        """The integers that give the unperturbed model's exact losses; see `fixed_point.bits`.

        Returns totals uint64 [P, T], the sums over the vocabulary of 2^(31 + (logit + 128) / 16) in
        the integers of `fixed_point.exact_exp2`, hits int8 [P, T], the targets' logits, and the new
        state. Here token by token from `logits`: engines may do better, with the same integers.
        """
        table, totals, hits, state = fx.exact_exp2(), [], [], batch.state
        for t in range(batch.size[1]):
            row = batch.window(slice(t, t + 1))._replace(state=state)
            logits, state = self.logits(prepared, row)
            mx.eval(logits, state)
            totals.append(table[np.array(logits).astype(np.int32) + 128].sum(axis=1))
            hits.append(mx.take_along_axis(logits, row.targets, axis=1)[:, 0])
        return mx.array(np.stack(totals, axis=1)), mx.stack(hits, axis=1), state

    @abstractmethod
    def logits(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array]:
        """The unperturbed model on one row, T = 1: logits int8 [P, V], and the new state."""


def zero_state(program: Program, rows: int) -> mx.array:
    """The state before the first row, int8 [rows, state_size]: of the host, so no GPU makes it."""
    return mx.array(np.zeros((rows, program.state_size), np.int8))


def as_unsigned(a: mx.array) -> NDArray[Any]:
    """An array's integers as unsigned ones: one below 0 is larger than 2^31.

    Those of 32 bits or more are not copied, and arrays of the host need not wait for a GPU.
    """
    host = np.asarray(a)
    if host.dtype.kind not in "biu":
        raise ValueError(f"{host.dtype} was given: integers are needed")
    if host.dtype.kind != "i":
        return host
    host = host if host.itemsize >= 4 else host.astype(np.int32)  # else -1 would be 255
    return host.view(f"u{host.itemsize}")


def check_ids(name: str, ids: mx.array, vocabulary: int) -> None:
    """Raises ValueError unless all are in 0..vocabulary - 1."""
    if as_unsigned(ids).max() >= vocabulary:
        raise ValueError(f"{name} must be in 0..{vocabulary - 1}")


def check_rows(program: Program, batch: Batch) -> None:
    """Raises ValueError unless inputs and features are what the program reads."""
    members, length = batch.size
    if program.inputs:
        _check("inputs", batch.inputs, mx.int8, (members, length, program.inputs))
    if not program.indices:
        return
    features = batch.features
    _check("features", features, mx.int32, (members, length, program.indices))
    host = np.asarray(features)
    for op in program.sparse_ops:
        lists, active, first, _ = op.numbers
        leaf, indices = program.leaves[op.leaf], host[..., first : first + lists * active]
        if indices.size and not -1 <= indices.min() <= indices.max() < leaf.shape[0]:
            raise ValueError(
                f"features of {leaf.name!r} are {indices.min()} to {indices.max()}: "
                f"0 to {leaf.shape[0] - 1} is needed, or -1 for none."
            )


def check_values(program: Program, values: mx.array | None, pairs: int, length: int) -> None:
    """Raises ValueError unless there is a score, or values [N, T] in its place."""
    if values is None and program.scored:
        return
    _check("values", values, mx.int32, (pairs, length))
    assert values is not None
    host = np.asarray(values)
    if host.size and not -MAX_VALUE <= host.min() <= host.max() <= MAX_VALUE:
        raise ValueError(f"values are beyond {MAX_VALUE}: scale them down.")


def check_errors(program: Program, batch: Batch, losses: Sequence[str] = ()) -> None:
    """Raises ValueError unless there are errors to carry back: a score's, or the outputs'.

    losses: by output, if the errors of outputs are made of targets.
    """
    if batch.errors is None and not losses:
        return check_scored(program)
    if program.scored:
        raise ValueError("The program has a score: its own error is carried back, no other.")
    if losses:
        return None
    size = sum(output.size for output in program.outputs)
    _check("errors", batch.errors, mx.int8, (*batch.size, size))
    if np.asarray(batch.errors).min(initial=0) < -fx.LIMIT:
        raise ValueError("errors have -128: -127..127 are allowed.")
    return None


def arrays_of_members(learnt: Learnt) -> dict[str, mx.array]:
    """The arrays that `learn` returns of every member; errors and lost if they were made."""
    named = {name: getattr(learnt, name) for name in ("scores", "state", "errors", "lost")}
    return {name: array for name, array in named.items() if array is not None}


def check_scored(program: Program) -> None:
    """Raises ValueError for a program without a score."""
    if not program.scored:
        raise ValueError("The program has no score: ask for its outputs.")


def _check(name: str, array: mx.array | None, dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    needed = f"{str(dtype).removeprefix('mlx.core.')} {list(shape)} is needed."
    if array is None:
        raise ValueError(f"{name} is missing: {needed}")
    if array.dtype != dtype or tuple(array.shape) != shape:
        actual = f"{str(array.dtype).removeprefix('mlx.core.')} {list(array.shape)}"
        raise ValueError(f"{name} is {actual}: {needed}")
