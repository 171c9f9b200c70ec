"""Positions of a pack in memory, dealt to every trainer as the same batches in the same order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.nnue import native
from experiments.nnue.loader import Batch, Lists, Loader, Split

READ = 8192  # positions of a loader's batch


class Positions:
    """All positions of a split as one batch, and batches drawn from it.

    Trainers that are compared must not pay for each other's reading, so it is done once, before
    any clock runs. `python -m experiments.nnue bench` times the loader itself.
    """

    def __init__(self, all_of_them: Batch, batch: int, seed: int = 0) -> None:
        """all_of_them: see Loader; batch: positions of one that is dealt.

        Raises:
            InputError: there are fewer positions than a batch has.
        """
        self.all, self.batch, self.seed = all_of_them, batch, seed
        if len(self) < batch:
            raise InputError(
                f"--batch is {batch} and there are {len(self)} positions to train on: make it "
                "smaller, or give more data."
            )
        self._epoch, self._order = -1, np.empty(0, np.int64)

    @classmethod
    def read(
        cls, path: Path, features: str, split: Split, batch: int = 1, seed: int = 0
    ) -> Positions:
        """Those of a pack.

        Raises:
            InputError: the file is missing or bad.
        """
        with Loader(path, features=features, batch=READ, seed=seed, epochs=1, split=split) as read:
            return cls(joined(list(read)), batch, seed)

    def __len__(self) -> int:
        return len(self.all.stm)

    def deal(self, i: int, most: int = 0) -> Batch:
        """Batch i: every epoch has an order of its own, and leaves out what fills no batch.

        most: of its positions, the first ones; 0 for all.
        """
        per_epoch = len(self) // self.batch
        epoch, at = divmod(i, per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(len(self))
        return self.take(self._order[at * self.batch :][: most or self.batch])

    def __getitem__(self, i: int) -> Batch:
        """Batch i."""
        return self.deal(i)

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Some positions, in that order."""
        stm, score, result, white, black = self.all
        lists = native.take(white, black, rows)
        made = Batch(stm[rows], score[rows], result[rows], *lists)
        made.rows = self.all.rows
        return made

    def parts(self, size: int) -> list[Batch]:
        """All positions in their order, `size` at a time."""
        n = len(self)
        return [self.take(np.arange(i, min(i + size, n))) for i in range(0, n, size)]


def joined(batches: list[Batch]) -> Batch:
    """Batches one after another as a single one."""
    if not batches:
        raise InputError("The split has no position: give more data.")
    flat = [np.concatenate([b[i] for b in batches]) for i in range(3)]
    made = Batch(*flat, *(joined_lists([b[i] for b in batches]) for i in (3, 4)))
    made.rows = batches[0].rows
    return made


def joined_lists(lists: list[Lists]) -> Lists:
    """Lists of several batches as those of one."""
    parts = [slice(one.starts[0], one.starts[-1]) for one in lists]
    sizes = np.cumsum([0] + [int(part.stop - part.start) for part in parts])
    if sizes[-1] >= 1 << 31:
        raise InputError(
            f"{sizes[-1]} active features are more than memory here holds: give a smaller file."
        )
    moved = [size - part.start for size, part in zip(sizes, parts, strict=False)]
    starts = [one.starts[:-1] + by for one, by in zip(lists, moved, strict=True)]
    counts = [
        one.count[part] for one, part in zip(lists, parts, strict=True) if one.count is not None
    ]
    return Lists(
        np.concatenate([*starts, sizes[-1:]]).astype(np.int32),
        np.concatenate([one.index[part] for one, part in zip(lists, parts, strict=True)]),
        np.concatenate(counts) if counts else None,
    )
