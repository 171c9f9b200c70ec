"""PPO by self-play in native code (ppo.cpp), bound by ctypes.

Games in lockstep, advantages, loss, gradient and Adam are C++ on memory that is taken once; matrix
products and Adam's loop are those of extensions/float_kernels, whose table it is handed. Chance is
xoshiro128+, a stream for each (seed, iteration, game). With `distinct`, equal boards of a batch are
one row of the network: they have equal outputs, and their gradients by the outputs are added before
the backward pass, which is linear in them. With `sparse`, units that no board of a batch activates
are left out of products (net.h). Both change roundings alone.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll import native
from eggroll.errors import InputError
from experiments.tictactoe.ppo.network import INPUTS, MOVES, PARAMETERS, initial
from experiments.tictactoe.ppo.settings import Settings
from experiments.tictactoe.ppo.transitions import Collected, Iteration, Losses, Transitions

HERE = Path(__file__).parent
MOST_BATCH, MOST_TRANSITIONS, MOST_GAMES = 1024, 8192, 1024  # of layout.h
OPEN_BOARDS = 4520  # that a snapshot is asked about
PARTS = ("backward", "adam", "forward", "collection", "loss", "other")


class _Settings(ctypes.Structure):
    """ppo::Settings."""

    _fields_ = (
        *((n, ctypes.c_int32) for n in ("games", "epochs", "batch", "normalise")),
        *((n, ctypes.c_int32) for n in ("distinct", "sparse", "threads")),
        *((n, ctypes.c_float) for n in ("clip", "entropy", "value", "discount", "decay", "norm")),
        *((n, ctypes.c_float) for n in ("beta1", "beta2", "epsilon")),
        ("reward", ctypes.c_float * 3),
    )


class _Report(ctypes.Structure):
    """ppo::Report."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("policy", "value", "entropy")),
        ("results", ctypes.c_int64 * 3),
        *((name, ctypes.c_int64) for name in ("transitions", "rows", "trained_rows")),
        *((name, ctypes.c_double) for name in PARTS),
    )


def kernels() -> Any:
    """The package float_kernels.

    Raises:
        InputError: it is not built, or FLOAT_KERNELS_ISA names what does not run here.
    """
    try:
        import float_kernels

        float_kernels.table()
    except (ImportError, ValueError) as error:
        raise InputError(f"The float kernels cannot be used ({error}): `make build`.") from None
    return float_kernels


def library() -> native.Library:
    """ppo.cpp and its parts, compiled once.

    Raises:
        InputError: there is no compiler, or the cache cannot be written.
    """
    sources = [HERE / name for name in ("ppo.cpp", "net.cpp", "collect.cpp", "update.cpp")]
    return native.build(*sources, flags=[f"-I{kernels().include()}"])


def pointer(array: NDArray | None) -> ctypes.c_void_p:
    """The address of a contiguous array, for as long as it lives."""
    assert array is None or array.flags.c_contiguous
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


class NativePPO:
    """A run in native code: `iterate` plays an iteration's games and learns from them."""

    def __init__(
        self,
        settings: Settings,
        seed: int,
        threads: int = 1,
        distinct: bool = True,
        sparse: bool = True,
    ) -> None:
        """Memory, first weights and a pool of them.

        Raises:
            InputError: more games or a larger batch than the memory has room for, or the float
                kernels are not built.
        """
        _check(settings, threads)
        self.settings, self.seed, self.threads, self.iteration = settings, seed, threads, 0
        self.calls: Any = library().handle
        self.calls.ppo_new.restype = ctypes.c_void_p
        self.kernels = ctypes.c_void_p(kernels().table())
        self.products = str(kernels().products())  # who computes them
        first = initial(seed)
        of = _struct(settings, threads, distinct, sparse)
        self.room = settings.iterations // settings.snapshot + 2  # the last for any opponent
        memory = self.calls.ppo_new(ctypes.byref(of), pointer(first), self.room)
        if not memory:
            raise MemoryError("a run of PPO needs some 50 MB of memory")
        self.memory = ctypes.c_void_p(memory)
        self.pool: list[NDArray[np.float32]] = []
        self.snapshot()
        self.work = self.total_work()

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            self.calls.ppo_delete(self.memory)

    def iterate(self) -> Iteration:
        report = _Report()
        frozen = min(len(self.pool), self.room - 1)
        self._collect(0, frozen, True, report)
        self._update(report)
        rows, trained = report.rows, report.trained_rows
        if len(self.pool) > frozen:
            rows += OPEN_BOARDS
        done, self.work = self.work, self.total_work()
        return Iteration(
            Losses(report.policy, report.value, report.entropy), tuple(report.results),
            report.transitions, rows + trained,
            int(self.work[0] - done[0]),
            {name: getattr(report, name) for name in PARTS},
        )  # fmt: skip

    def total_work(self) -> NDArray[np.int64]:
        """Multiply-adds and products so far; units left out are not counted."""
        found = np.empty(2, np.int64)
        self.calls.ppo_get_work(self.memory, pointer(found))
        return found

    def collect(self, opponent: NDArray[np.float32], regrouped: bool = True) -> Collected:
        """Games of the learner against weights [207114]."""
        report = _Report()
        self._freeze(self.room - 1, opponent)
        self._collect(self.room - 1, 1, regrouped, report)
        return Collected(self.transitions(), tuple(report.results), report.rows)

    def update(self, found: Transitions) -> Losses:
        """Learns from transitions that lie game by game, and counts an iteration."""
        self.set_transitions(found)
        report = _Report()
        self._update(report)
        return Losses(report.policy, report.value, report.entropy)

    def snapshot(self) -> None:
        """Adds the learner to the pool of opponents."""
        self.pool.append(self.weights())
        if len(self.pool) < self.room:
            self._freeze(len(self.pool) - 1, self.pool[-1])

    def _freeze(self, index: int, flat: NDArray[np.float32]) -> None:
        self.calls.ppo_freeze(self.kernels, self.memory, index, pointer(flat))

    def _collect(self, first: int, count: int, regrouped: bool, report: _Report) -> None:
        self.calls.ppo_collect(
            self.kernels, self.memory, first, count, ctypes.c_uint64(self.seed),
            ctypes.c_uint64(self.iteration), int(regrouped), ctypes.byref(report),
        )  # fmt: skip

    def _update(self, report: _Report) -> None:
        self.calls.ppo_update(
            self.kernels, self.memory, ctypes.c_uint64(self.seed), ctypes.c_uint64(self.iteration),
            ctypes.c_float(self.settings.rate(self.iteration)), ctypes.byref(report),
        )  # fmt: skip
        self.iteration += 1
        if self.iteration % self.settings.snapshot == 0:
            self.snapshot()

    def train_batch(
        self, advantages: NDArray[np.float32], returns: NDArray[np.float32], rate: float
    ) -> tuple[NDArray[np.float32], Losses]:
        """One minibatch of all transitions there are: its gradient before the bound, and losses."""
        gradient, report = np.empty(PARAMETERS, np.float32), _Report()
        self.calls.ppo_train_batch(
            self.kernels, self.memory, pointer(advantages), pointer(returns), ctypes.c_float(rate),
            pointer(gradient), ctypes.byref(report),
        )  # fmt: skip
        return gradient, Losses(report.policy, report.value, report.entropy)

    def forward(self, observations: NDArray[np.float32]) -> tuple[NDArray, NDArray]:
        """Logits [B, 9] and values [B] of observations [B, 27]."""
        seen = np.ascontiguousarray(observations, np.float32)
        heads = np.empty((len(seen), MOVES + 1), np.float32)
        for i in range(0, len(seen), MOST_BATCH):
            part = seen[i : i + MOST_BATCH]
            self.calls.ppo_forward(
                self.kernels, self.memory, len(part), pointer(part), pointer(heads[i:])
            )
        return heads[:, :MOVES], heads[:, MOVES]

    def weights(self) -> NDArray[np.float32]:
        flat = np.empty(PARAMETERS, np.float32)
        self.calls.ppo_get_weights(self.memory, pointer(flat))
        return flat

    def set_weights(self, flat: NDArray[np.float32]) -> None:
        if flat.shape != (PARAMETERS,) or flat.dtype != np.float32:
            raise InputError(
                f"The weights are {flat.dtype} {flat.shape}: give float32 ({PARAMETERS},)."
            )
        self.calls.ppo_set_weights(self.memory, pointer(np.ascontiguousarray(flat)))

    def transitions(self) -> Transitions:
        boards = np.empty((MOST_TRANSITIONS, 2), np.uint16)
        kinds = (np.int32, np.int32, np.float32, np.float32, np.float32, np.int32)
        parts = [np.empty(MOST_TRANSITIONS, kind) for kind in kinds]
        count = self.calls.ppo_get_transitions(self.memory, pointer(boards), *map(pointer, parts))
        move, game, log_prob, value, reward, last = (part[:count].copy() for part in parts)
        stones = boards[:count, :, None] >> np.arange(9, dtype=np.uint16) & 1
        mine, theirs = stones[:, 0], stones[:, 1]
        seen = np.stack((mine, theirs, np.ones_like(mine)), -1).reshape(-1, INPUTS)
        return Transitions(
            seen.astype(np.float32), (mine | theirs) == 0, move.astype(np.int64), log_prob, value,
            reward, last.astype(bool), game.astype(np.int64),
        )  # fmt: skip

    def set_transitions(self, found: Transitions) -> None:
        cells = found.observations.reshape(-1, 9, 3)[:, :, :2].astype(np.uint16)
        boards = (cells << np.arange(9, dtype=np.uint16)[:, None]).sum(axis=1).astype(np.uint16)
        if len(boards) > MOST_TRANSITIONS:
            raise InputError(
                f"{len(boards)} transitions are given: there is room for {MOST_TRANSITIONS}."
            )
        ints = [part.astype(np.int32) for part in (found.moves, found.game)]
        last = found.last.astype(np.int32)
        self.calls.ppo_set_transitions(
            self.memory, len(boards), pointer(boards), *map(pointer, ints),
            pointer(found.log_probs), pointer(found.values), pointer(found.rewards), pointer(last),
        )  # fmt: skip


def advantages(
    values: NDArray[np.float32],
    rewards: NDArray[np.float32],
    last: NDArray[np.bool_],
    discount: float,
    decay: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns [T] by the native GAE."""
    found, returns = np.empty_like(values), np.empty_like(values)
    ends = last.astype(np.int32)
    library().handle.ppo_advantages(
        len(values), pointer(values), pointer(rewards), pointer(ends), ctypes.c_float(discount),
        ctypes.c_float(decay), pointer(found), pointer(returns),
    )  # fmt: skip
    return found, returns


def _struct(s: Settings, threads: int, distinct: bool, sparse: bool) -> _Settings:
    return _Settings(
        s.games, s.epochs, s.batch, s.normalise, distinct, sparse, threads, s.clip, s.entropy,
        s.value, s.discount, s.decay, s.norm, s.beta1, s.beta2, s.epsilon, (s.win, s.draw, s.loss),
    )  # fmt: skip


def _check(s: Settings, threads: int) -> None:
    for name, value, most in (
        ("games", s.games, MOST_GAMES), ("batch", s.batch, MOST_BATCH), ("threads", threads, 16),
    ):  # fmt: skip
        if not 1 <= value <= most:
            raise InputError(f"{name} is {value}: the native backend takes 1 to {most}.")
