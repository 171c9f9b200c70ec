"""Ranks as threads of one process, of which one runs at a time: they meet in every exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eggroll.ranks import RankError
from eggroll.ranks.joined import JoinedRanks


class Hub:
    """Where the threads meet.

    parts: what was brought to the exchange that is under way; sent: bytes of all exchanges.
    """

    def __init__(self, size: int) -> None:
        self.size, self.turn = size, threading.Condition()
        self.parts: dict[int, np.ndarray] = {}
        self.found: np.ndarray | None = None
        self.exchanges, self.broken, self.sent = 0, False, 0

    def met(self, rank: int, mine: np.ndarray) -> np.ndarray:
        """Arrays of all threads, [R, ..]; called and left by the thread whose turn it is."""
        number = self.exchanges
        self.parts[rank], self.sent = mine, self.sent + mine.nbytes
        if len(self.parts) == self.size:
            assert len({(a.shape, a.dtype) for a in self.parts.values()}) == 1
            self.found = np.stack([self.parts[r] for r in range(self.size)])
            self.parts, self.exchanges = {}, number + 1
            self.turn.notify_all()
        ended = self.turn.wait_for(lambda: self.broken or self.exchanges > number, timeout=60)
        assert ended, f"rank {rank} waits for the others"
        assert not self.broken, f"another rank failed before exchange {number}"
        assert self.found is not None
        return self.found


class Simulated(JoinedRanks):
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.seconds, self._exchanges = 0.0, 0
        self.lost = RankError

    def _all_gather(self, mine: np.ndarray) -> np.ndarray:
        return self.hub.met(self.rank, mine)

    def _all_sum(self, mine: np.ndarray) -> np.ndarray:
        return self.hub.met(self.rank, mine).sum(axis=0, dtype=np.uint32)


def run(size: int, work: Callable[[Simulated], Any]) -> list[Any]:
    """What `work` returns on every rank, in order."""
    hub, found = Hub(size), {}
    failed: list[BaseException] = []

    def turn(rank: int) -> None:
        with hub.turn:
            try:
                found[rank] = work(Simulated(hub, rank))
            except BaseException as error:
                failed.append(error)
                hub.broken = True
                hub.turn.notify_all()

    threads: Sequence[threading.Thread] = [
        threading.Thread(target=turn, args=(rank,)) for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [found[rank] for rank in range(size)]
