"""Several processes on MLX's own engine of distribution. Letters: R ranks, N pairs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import files as ternary
from eggroll.errors import InputError
from eggroll.ranks import RankError, Ranks, SharedError, share
from eggroll.spec.program import Leaves

T = TypeVar("T")

MOST_TOLD = 4  # differences of ranks
PIECE = 1 << 24  # bytes that a rank sends at a time where states are gathered


class Joined(Ranks):
    """A rank of R.

    lost: waits for the reason once the connection to another rank is gone, and raises it.
    """

    def __init__(self, group: mx.distributed.Group, lost: Callable[[str], RankError]) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.seconds, self._exchanges = 0.0, 0
        self.lost = lost
        self._group = group
        # MLX moves bytes between hosts by NCCL alone from a GPU's stream.
        self._stream = mx.gpu if mx.cuda.is_available() else mx.cpu

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:  # MLX's: a connection that is gone
            raise self.lost(str(error)) from None
        self.seconds += time.perf_counter() - began

    def _gathered(self, mine: NDArray[Any]) -> NDArray[Any]:
        """Arrays of one shape [R, ..], by that of this rank.

        Framed by the number of the exchange: where a rank is lost, MLX may return, before it
        raises, an array that nobody has filled. So it may from a sum, too; but an update ends with
        this, and if that sum failed, so does this.
        """
        self._exchanges += 1
        number = np.array([self._exchanges], np.int64).view(np.uint8)
        body = np.ascontiguousarray(mine).reshape(-1).view(np.uint8)
        rows = self._all(np.concatenate([number, body, number]))
        if (rows[:, :8] != number).any() or (rows[:, -8:] != number).any():
            raise self.lost("what came was not whole")
        found = rows[:, 8:-8].copy().reshape(-1).view(mine.dtype)
        return found.reshape(self.size, *mine.shape)

    def _all(self, mine: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bytes of all ranks [R, n], by as many of this one."""
        with self._exchanging():
            found = mx.distributed.all_gather(
                mx.array(mine[None]), group=self._group, stream=self._stream
            )
            return np.array(found)

    def _summed(self, mine: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The sum of the arrays of all ranks, mod 2^32."""
        with self._exchanging():
            found = mx.distributed.all_sum(mx.array(mine), group=self._group, stream=self._stream)
            return np.array(found)

    def _bytes(self, mine: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Bytes of every rank, of any number each."""
        counts = self.table([len(mine)])[:, 0].tolist()
        return self._uneven(mine, counts)

    def _uneven(self, mine: NDArray[np.uint8], counts: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Bytes of every rank, as many as `counts` says; they are padded to the longest."""
        padded = np.zeros(max(*counts, 1), np.uint8)
        padded[: len(mine)] = mine
        found = self._gathered(padded)
        return [row[:count] for row, count in zip(found, counts, strict=True)]

    def _shares(self, count: int) -> list[int]:
        """How many of `count` things every rank has."""
        ends = (share(count, rank, self.size) for rank in range(self.size))
        return [last - first for first, last in ends]

    def signs(self, mine: NDArray[np.int8], pairs: int, unit: int) -> NDArray[np.int8]:
        counts = [units * unit for units in self._shares(pairs // unit)]
        parts = self._uneven(ternary.pack(mine), [ternary.packed_size(n) for n in counts])
        return np.concatenate([ternary.unpack(*of) for of in zip(parts, counts, strict=True)])

    def rows(self, mine: NDArray[Any], members: int, unit: int) -> NDArray[Any]:
        width = mine[0].nbytes
        counts = [units * unit for units in self._shares(members // unit)]
        flat = np.ascontiguousarray(mine).view(np.uint8).reshape(-1)
        kept: list[list[NDArray[np.uint8]]] = [[] for _ in counts]
        piece = max(PIECE // max(width, 1), 1)
        for first in range(0, max(counts), piece):
            sizes = [min(max(n - first, 0), piece) * width for n in counts]
            part = flat[first * width :][: sizes[self.rank]]
            found = self._uneven(part, sizes)
            if self.rank == 0:
                for whole, row in zip(kept, found, strict=True):
                    whole.append(row.copy())
        if self.rank:
            return mine[:0]
        whole_rows = np.concatenate([row for rows in kept for row in rows])
        return whole_rows.view(mine.dtype).reshape(members, *mine.shape[1:])

    def sums(self, arrays: Leaves) -> Leaves:
        flat = [np.asarray(a).reshape(-1) for a in arrays.values()]
        # Unsigned, as the sum of signed ones may pass 2^31 on its way.
        total = self._summed(np.concatenate(flat).view(np.uint32)).view(np.int32)
        ends = np.cumsum([len(a) for a in flat])[:-1]
        parts = np.split(total, ends)
        return {
            name: mx.array(part.reshape(a.shape))
            for (name, a), part in zip(arrays.items(), parts, strict=True)
        }

    def table(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        return self._gathered(np.array(numbers, np.int64)).reshape(self.size, -1)

    def all_of(self, facts: Any) -> list[Any]:
        """Plain data of every rank."""
        mine = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self._bytes(mine)]

    def alike(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        first, *others = self.all_of(facts())
        told = [
            f"{self.name_of(rank)} has {name} {_short(theirs.get(name))} where rank 0 has "
            f"{_short(first.get(name))}"
            for rank, theirs in enumerate(others, 1)
            for name in {**first, **theirs}
            if theirs.get(name) != first.get(name)
        ]
        if told:
            more = f"; and {len(told) - MOST_TOLD} more differences" * (len(told) > MOST_TOLD)
            raise SharedError(
                f"{'; '.join(told[:MOST_TOLD])}{more}: give all ranks the same, as they would not "
                "train one model."
            )

    def from_first(self, work: Callable[[], T]) -> T:
        error: InputError | None = None
        said: Any = None
        if self.rank == 0:
            try:
                said = {"found": work()}
            except InputError as raised:
                error, said = raised, {"failed": str(raised)}
        told = self.all_of(said)[0]
        if error:
            raise error
        if "failed" in told:
            raise SharedError(told["failed"])
        return told["found"]  # type: ignore[no-any-return]

    def arrays_from_first(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        shapes = self.from_first(
            lambda: {name: (list(a.shape), str(a.dtype)) for name, a in arrays.items()}
        )
        return {
            name: self._array_from_first(arrays.get(name), shape, np.dtype(dtype))
            for name, (shape, dtype) in shapes.items()
        }

    def _array_from_first(
        self, array: NDArray[Any] | None, shape: Sequence[int], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """An array of rank 0: the sum of its bytes and zeros."""
        out = np.zeros(shape, dtype)
        words = np.zeros(-(-out.nbytes // 4), np.uint32)
        if self.rank == 0 and array is not None:
            words.view(np.uint8)[: out.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        for first in range(0, len(words), PIECE // 4):
            part = slice(first, first + PIECE // 4)
            words[part] = self._summed(words[part])
        out.reshape(-1).view(np.uint8)[:] = words.view(np.uint8)[: out.nbytes]
        return out

    def together(self, work: Callable[[], T]) -> T:
        found: T | None = None
        said = ""
        try:
            found = work()
        except InputError as error:
            said = str(error) or "failed"
        failed = {rank: told for rank, told in enumerate(self.all_of(said)) if told}
        if not failed:
            return found  # type: ignore[return-value]
        if self.rank:
            raise SharedError(said or "another rank failed")
        everywhere = len(failed) == self.size and len(set(failed.values())) == 1
        if everywhere or list(failed) == [0]:
            raise InputError(failed[0])
        raise SharedError("; ".join(f"rank {rank}: {told}" for rank, told in failed.items()))


def _short(value: Any) -> str:
    """A fact in a sentence."""
    return "none" if value is None else str(value)[:40]
