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

from eggroll.errors import InputError
from eggroll.files import pack, packed_size, unpack
from eggroll.ranks import RankError, Ranks, SharedError, share
from eggroll.spec.program import Leaves

T = TypeVar("T")

MOST_DIFFERENCES = 4  # differences of ranks
PIECE_BYTES = 1 << 24  # bytes that a rank sends at a time where states are gathered


class JoinedRanks(Ranks):
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

    def signs(self, local: NDArray[np.int8], pairs: int, unit: int) -> NDArray[np.int8]:
        counts = [units * unit for units in self._counts(pairs // unit)]
        rows = self._gather_uneven(pack(local), [packed_size(n) for n in counts])
        return np.concatenate([unpack(*row) for row in zip(rows, counts, strict=True)])

    def rows(self, local: NDArray[Any], members: int, unit: int) -> NDArray[Any]:
        width = local[0].nbytes
        counts = [units * unit for units in self._counts(members // unit)]
        flat = np.ascontiguousarray(local).view(np.uint8).reshape(-1)
        columns: list[list[NDArray[np.uint8]]] = [[] for _ in counts]
        step = max(PIECE_BYTES // max(width, 1), 1)
        for first in range(0, max(counts), step):
            sizes = [min(max(n - first, 0), step) * width for n in counts]
            block = flat[first * width :][: sizes[self.rank]]
            blocks = self._gather_uneven(block, sizes)
            if self.rank == 0:
                for column, row in zip(columns, blocks, strict=True):
                    column.append(row.copy())
        if self.rank:
            return local[:0]
        joined = np.concatenate([block for column in columns for block in column])
        return joined.view(local.dtype).reshape(members, *local.shape[1:])

    def sums(self, arrays: Leaves) -> Leaves:
        flat = [np.asarray(a).reshape(-1) for a in arrays.values()]
        # Unsigned, as the sum of signed ones may pass 2^31 on its way.
        total = self._all_sum(np.concatenate(flat).view(np.uint32)).view(np.int32)
        ends = np.cumsum([len(a) for a in flat])[:-1]
        sums = np.split(total, ends)
        return {
            name: mx.array(values.reshape(a.shape))
            for (name, a), values in zip(arrays.items(), sums, strict=True)
        }

    def table(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        return self._gather(np.array(numbers, np.int64)).reshape(self.size, -1)

    def alike(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        first, *others = self.all_of(facts())
        differences = [
            f"{self.name_of(rank)} has {name} {_short(theirs.get(name))} where rank 0 has "
            f"{_short(first.get(name))}"
            for rank, theirs in enumerate(others, 1)
            for name in {**first, **theirs}
            if theirs.get(name) != first.get(name)
        ]
        if differences:
            more = f"; and {len(differences) - MOST_DIFFERENCES} more differences" * (
                len(differences) > MOST_DIFFERENCES
            )
            raise SharedError(
                f"{'; '.join(differences[:MOST_DIFFERENCES])}{more}: give all ranks the same, "
                "as they would not train one model."
            )

    def from_first(self, work: Callable[[], T]) -> T:
        error: InputError | None = None
        message: Any = None
        if self.rank == 0:
            try:
                message = {"result": work()}
            except InputError as raised:
                error, message = raised, {"failed": str(raised)}
        answer = self.all_of(message)[0]
        if error:
            raise error
        if "failed" in answer:
            raise SharedError(answer["failed"])
        return answer["result"]  # type: ignore[no-any-return]

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
        for first in range(0, len(words), PIECE_BYTES // 4):
            span = slice(first, first + PIECE_BYTES // 4)
            words[span] = self._all_sum(words[span])
        out.reshape(-1).view(np.uint8)[:] = words.view(np.uint8)[: out.nbytes]
        return out

    def together(self, work: Callable[[], T]) -> T:
        result: T | None = None
        failure = ""
        try:
            result = work()
        except InputError as error:
            failure = str(error) or "failed"
        failed = {rank: sentence for rank, sentence in enumerate(self.all_of(failure)) if sentence}
        if not failed:
            return result  # type: ignore[return-value]
        if self.rank:
            raise SharedError(failure or "another rank failed")
        everywhere = len(failed) == self.size and len(set(failed.values())) == 1
        if everywhere or list(failed) == [0]:
            raise InputError(failed[0])
        raise SharedError(
            "; ".join(f"rank {rank}: {sentence}" for rank, sentence in failed.items())
        )

    def all_of(self, facts: Any) -> list[Any]:
        """Plain data of every rank."""
        local = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        return [json.loads(row.tobytes()) for row in self._gather_bytes(local)]

    def _gather_bytes(self, local: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Bytes of every rank, of any number each."""
        counts = self.table([len(local)])[:, 0].tolist()
        return self._gather_uneven(local, counts)

    def _gather_uneven(
        self, local: NDArray[np.uint8], counts: Sequence[int]
    ) -> list[NDArray[np.uint8]]:
        """Bytes of every rank, as many as `counts` says; they are padded to the longest."""
        padded = np.zeros(max(*counts, 1), np.uint8)
        padded[: len(local)] = local
        rows = self._gather(padded)
        return [row[:count] for row, count in zip(rows, counts, strict=True)]

    def _counts(self, count: int) -> list[int]:
        """The number of `count` things that every rank has."""
        ends = (share(count, rank, self.size) for rank in range(self.size))
        return [last - first for first, last in ends]

    def _gather(self, local: NDArray[Any]) -> NDArray[Any]:
        """Arrays of one shape [R, ..], by that of this rank.

        Framed by the number of the exchange: where a rank is lost, MLX may return, before it
        raises, an array that nobody has filled. So it may from a sum, too; but an update ends with
        this, and if that sum failed, so does this.
        """
        self._exchanges += 1
        number = np.array([self._exchanges], np.int64).view(np.uint8)
        body = np.ascontiguousarray(local).reshape(-1).view(np.uint8)
        rows = self._all_gather(np.concatenate([number, body, number]))
        if (rows[:, :8] != number).any() or (rows[:, -8:] != number).any():
            raise self.lost("what came was not whole")
        values = rows[:, 8:-8].copy().reshape(-1).view(local.dtype)
        return values.reshape(self.size, *local.shape)

    def _all_gather(self, local: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bytes of all ranks [R, n], by as many of this one."""
        with self._exchanging():
            rows = mx.distributed.all_gather(
                mx.array(local[None]), group=self._group, stream=self._stream
            )
            return np.array(rows)

    def _all_sum(self, local: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The sum of the arrays of all ranks, mod 2^32."""
        with self._exchanging():
            total = mx.distributed.all_sum(mx.array(local), group=self._group, stream=self._stream)
            return np.array(total)

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:  # MLX's: a connection that is gone
            raise self.lost(str(error)) from None
        self.seconds += time.perf_counter() - began


def _short(value: Any) -> str:
    """A fact in a sentence."""
    return "none" if value is None else str(value)[:40]
