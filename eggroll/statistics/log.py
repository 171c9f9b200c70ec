"""The file statistics.jsonl of a run, which the updates that are recorded add a line to each.

Letters: R streams, T tokens.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eggroll import runlog
from eggroll.config import Config
from eggroll.data.corpus import Streams
from eggroll.statistics.nodes import STREAMS, TOKENS, Nodes
from eggroll.statistics.trouble import Watch
from eggroll.statistics.update import Observed, figures
from eggroll.step import Learner

# What lines that no run has written may lead to; they are left as they are.
FOREIGN = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)


class StatisticsLog(runlog.Metrics):
    """statistics.jsonl; opening cuts it back to the updates up to the learner's."""

    def __init__(
        self,
        path: Path,
        config: Config,
        learner: Learner,
        streams: Streams,
        observed: Callable[[], Observed | None],
        say: Callable[[str], None],
    ) -> None:
        """streams: of the whole run, whatever part of them is read here; observed: the last update,
        if it is to be recorded; say: is told every warning, once in a run."""
        super().__init__(path, learner.step)
        self._learner, self._observed, self._say = learner, observed, say
        self._streams = streams.only(0, min(STREAMS, config.streams))
        self._nodes = Nodes(learner.population.engine.program)
        self._watch = Watch(config, self._nodes.gates, self._nodes.logits)
        self._catch_up(path)

    def _catch_up(self, path: Path) -> None:
        """Shows the watch what it saw before the run was stopped, so that it says nothing twice."""
        losses = deque(row for _, row in runlog.read_lines(path.with_name(runlog.METRICS)))
        for _, record in runlog.read_lines(path):
            while losses and losses[0]["step"] <= record["step"]:
                self._watch.loss(losses.popleft().get("loss"))
            with contextlib.suppress(*FOREIGN):
                self._watch.troubles(record)
        for row in losses:
            self._watch.loss(row.get("loss"))

    def _tokens(self, step: int) -> NDArray[np.int32]:
        """Tokens that the first streams read from update `step` on, int32 [R, T]."""
        batches = range(step, step + -(-TOKENS // self._streams.seq_len))
        read = [self._streams.batch(number)[0] for number in batches]
        return np.ascontiguousarray(np.concatenate(read, axis=1)[:, :TOKENS])

    def append(self, row: runlog.Row) -> None:
        """Adds the lines of an update that is to be recorded; row: its line of metrics.jsonl."""
        self._watch.loss(row["loss"])
        seen = self._observed()
        if seen is None:
            return
        found = {
            "step": row["step"],
            **figures(self._learner, seen),
            "activations": self._nodes.figures(
                self._learner.weights, self._tokens(seen.given.step)
            ),
        }
        super().append(found)
        for sentence in self._watch.troubles(found):
            super().append({"step": row["step"], "warning": sentence})
            self._say(sentence)
