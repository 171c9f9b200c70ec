"""Batches of positions for training: an iterator over the native loader (extensions/nnue_loader).

    with Loader("train.bin", features="halfkp+p", epochs=1) as loader:
        for batch in loader:
            ...

Threads build whole batches ahead; the order depends on the seed alone. A batch's arrays lie in the
native batch's memory, which is freed when the last of them is gone; they outlive the loader.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError, shown, whole_number
from experiments.nnue import loader_calls as native
from experiments.nnue.features import BLOCKS, FEATURES, blocks_of, coalesce, reference_lists
from experiments.nnue.pack import read_pack

__all__ = ["FEATURES", "SPLITS", "Batch", "Lists", "Loader", "coalesce", "reference_lists"]

SPLITS = {"all": 0, "train": 1, "validation": 2}
Split = Literal["train", "validation", "all"]
MOST_BATCH, MOST_THREADS = 1 << 22, 256


class Lists(NamedTuple):
    """Active rows of a batch for one side; position i has index[starts[i] : starts[i + 1]].

    Both sides' lists may lie in one index, where black's begin behind white's.
    """

    starts: NDArray[np.int32]  # [B + 1]
    index: NDArray[np.int32]  # [n], ascending within a position
    count: NDArray[np.int8] | None  # [n], values; None in sets without K, where all are 1


class _Fields(NamedTuple):
    stm: NDArray[np.int8]  # [B], 1: white moves, 0: black moves
    score: NDArray[np.int16]  # [B], centipawns, from the side to move
    result: NDArray[np.int8]  # [B], -1, 0, 1, from the side to move
    white: Lists
    black: Lists


class Batch(_Fields):
    """A batch of positions: stm, score, result, and the active rows as white and black see them."""

    rows: int = 0  # of the feature set

    def get_tensors(self, device: Any = "cpu") -> tuple[Any, Any, Any, Any, Any]:
        """White's and black's features as sparse tensors [B, rows], stm, score, result [B, 1].

        The sparse tensors are marked as coalesced without a look, as rows ascend.

        Raises:
            InputError: torch is missing.
        """
        torch = _torch()
        sparse = [self._sparse(torch, lists).to(device) for lists in (self.white, self.black)]
        columns = [
            torch.from_numpy(column.astype(np.float32)).reshape(-1, 1).to(device)
            for column in (self.stm, self.score, self.result)
        ]
        return (*sparse, *columns)

    def _sparse(self, torch: Any, lists: Lists) -> Any:
        part = slice(lists.starts[0], lists.starts[-1])
        rows = lists.index[part]
        index = np.empty((2, len(rows)), np.int64)  # as torch stores it: transposed, 64 bits
        index[0] = np.repeat(np.arange(len(self.stm)), np.diff(lists.starts))
        index[1] = rows
        if lists.count is None:
            values = torch.ones(len(rows))
        else:
            values = torch.from_numpy(lists.count[part].astype(np.float32))
        given = torch.from_numpy(index), values, (len(self.stm), self.rows)
        if not hasattr(torch, "_sparse_coo_tensor_unsafe"):  # newer ones say so by arguments
            return torch.sparse_coo_tensor(*given, check_invariants=False, is_coalesced=True)
        found = torch._sparse_coo_tensor_unsafe(*given)
        found._coalesced_(True)
        return found


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise InputError("torch is missing: pip install '.[experiments]' brings it.") from None
    return torch


def data_loader(loader: Loader) -> Any:
    """PyTorch's DataLoader as a mere wrapper, which passes whole batches on.

    Raises:
        InputError: torch is missing.
    """
    torch = _torch()

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Batch]:
            return iter(loader)

    return torch.utils.data.DataLoader(Batches(), batch_size=None, collate_fn=_as_it_is)


def _as_it_is(batch: Batch) -> Batch:
    return batch


class _Memory:
    """A native batch; destroyed with the last array that lies in it."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.destroy = native.library().nnue_batch_destroy  # lives on at the interpreter's end

    def __del__(self) -> None:
        self.destroy(self.pointer)

    def array(self, address: int | None, count: int, kind: type[np.generic]) -> NDArray[Any]:
        if not count or address is None:
            return np.empty(0, kind)
        return np.asarray(_View(self, address, count, np.dtype(kind).str))


class _View:
    """Part of a native batch, as NumPy asks for it; an array keeps it, and it keeps the batch."""

    def __init__(self, memory: _Memory, address: int, count: int, kind: str) -> None:
        self.memory = memory
        self.__array_interface__ = {
            "data": (address, False), "shape": (count,), "typestr": kind, "version": 3,
        }  # fmt: skip


class Loader:
    """An iterator of batches of a pack's positions; close it, or use it as a context."""

    def __init__(
        self,
        path: str | Path,
        *,
        features: str = "halfkp+p",
        batch: int = 8192,
        threads: int = 1,
        seed: int = 0,
        epochs: int | None = None,
        split: Split = "train",
        shuffle: bool = True,
    ) -> None:
        """Opens a pack, sees that it is whole, and starts the threads.

        features: a name of FEATURES; batch: positions of a batch, fewer in the last one of all
        epochs; epochs: None goes on without end; split: one game in 20 is for validation, whatever
        the seed; shuffle: False takes positions in the order of the file.

        Raises:
            InputError: an option is out of range, the pack cannot be used, or it has no position of
                that split.
        """
        if split not in SPLITS:
            raise InputError(f"split is {shown(split)}: one of {', '.join(SPLITS)} is needed.")
        bits = sum(BLOCKS[block][0] for block in blocks_of(features))
        settings = native.Settings(
            features=bits,
            batch=whole_number("batch", batch, 1, MOST_BATCH),
            threads=whole_number("threads", threads, 1, MOST_THREADS),
            seed=whole_number("seed", seed, 0, 2**64 - 1),
            epochs=-1 if epochs is None else whole_number("epochs", epochs, 1, 2**31 - 1),
            split=SPLITS[split],
            shuffle=bool(shuffle),
        )
        self._handle: int | None = None
        self._calls = native.library()
        pack = read_pack(path)
        self.path, self.about, self.features = pack.path, pack.about, features
        self.rows = FEATURES[features]
        settings.offset, settings.records = pack.offset, len(pack.records)
        error = native.error_text()
        self._handle = self._calls.nnue_loader_create(
            os.fsencode(self.path), ctypes.byref(settings), error
        )
        if not self._handle:
            raise InputError(
                f"{str(self.path)!r}, split {split}: {error.value.decode()}: give another pack or "
                "split."
            )
        self.positions: int = self._calls.nnue_loader_positions(self._handle)  # of an epoch
        self._lock, self._process = threading.Lock(), os.getpid()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: the epochs are over, or the loader is closed.
            InputError: a record is bad, or a worker died.
        """
        with self._lock:
            if not self._handle:
                raise StopIteration
            if os.getpid() != self._process:
                raise InputError(
                    "the loader's threads are in the process that was forked: make a Loader after "
                    "the fork."
                )
            found, error = ctypes.POINTER(native.Batch)(), native.error_text()
            state = self._calls.nnue_loader_next(self._handle, ctypes.byref(found), error)
        if state == 0:
            raise StopIteration
        if state < 0:
            way = "make the pack again" if state == -1 else "ask for smaller batches"
            raise InputError(f"{str(self.path)!r}: {error.value.decode(errors='replace')}: {way}.")
        return self._batch(found)

    def _batch(self, found: Any) -> Batch:
        memory, struct = _Memory(found), found.contents
        size = struct.size
        lists = [
            Lists(
                memory.array(each.starts, size + 1, np.int32),
                memory.array(each.index, each.active, np.int32),
                memory.array(each.counts, each.active, np.int8) if each.counts else None,
            )
            for each in (struct.white, struct.black)
        ]
        batch = Batch(
            memory.array(struct.stm, size, np.int8),
            memory.array(struct.score, size, np.int16),
            memory.array(struct.result, size, np.int8),
            *lists,
        )
        batch.rows = self.rows
        return batch

    def close(self) -> None:
        """Ends the threads and frees what they built; batches that were taken live on."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle and os.getpid() == self._process:
            self._calls.nnue_loader_destroy(handle)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_lock", None):
            self.close()
