"""Learning from errors: what `Trainer.learn` and `Trainer.tell_errors` are made of.

Letters: R readers, T rows of a call, n values of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.engines import zero_state
from eggroll.errors import InputError
from eggroll.evolution.estimators import Estimate, UpdateInput
from eggroll.evolution.population import Population
from eggroll.evolution.step import Learner
from eggroll.library.members import Outputs
from eggroll.spec import losses, rng
from eggroll.spec.program import Batch, Output, Program
from eggroll.spec.rng import WHOLE, draws
from eggroll.training.learner import fitting_chunk

LANES = 32  # members of a block of the cpu engine
LONGEST = 32  # rows of a member, where rows may be dealt to members at will

Errors = ArrayLike | Mapping[str, ArrayLike]  # of the one output, or by name
ErrorsOf = Callable[[Any], Errors]  # outputs -> errors
LossNames = str | Mapping[str, str]


class ErrorUpdate(NamedTuple):
    """The end of an update by errors: its number, and what it was like.

    loss: the mean of the built-in losses' values, NaN without one; error: mean size of the errors
    of 127; update_rate: share of the weights that moved; seconds: of the update; rows_per_second:
    of all readers.
    """

    step: int
    loss: float
    error: float
    update_rate: float
    seconds: float
    rows_per_second: float


def visible(program: Program) -> list[Output]:
    """The outputs that errors may be given for: but what policies read for their votes."""
    inner = {policy.output + 1 for policy in program.policies}
    return [output for i, output in enumerate(program.outputs) if i not in inner]


def by_name(program: Program, what: str, given: Any) -> dict[str, Any]:
    """Something of outputs by their names, where it may be left bare if there is but one.

    Raises:
        InputError: a name is unknown, or several outputs share a bare one.
    """
    names = [output.name for output in visible(program)]
    if not isinstance(given, Mapping):
        if len(names) > 1:
            raise InputError(
                f"{what} is one for {len(names)} outputs: give a dict by their names, of "
                f"{', '.join(names)}."
            )
        return {names[0]: given}
    if unknown := [name for name in given if name not in names]:
        raise InputError(
            f"{what} has {unknown[0]!r}, which is no output: there are {', '.join(names)}."
        )
    if not given:
        raise InputError(f"{what} is empty: give one at least, of {', '.join(names)}.")
    return dict(given)


def row_words(seed: int, step: int, R: int, T: int, threads: int) -> NDArray[np.uint32]:
    """The random words of an update's rows, uint32 [R, T]."""
    drawn = draws([rng.key(seed, rng.DRAWS, step)], [WHOLE], 0, (R, T), threads)
    return np.array(drawn).view(np.uint32)


class ErrorMaker:
    """Makes the errors of rows from targets by losses, or takes the caller's.

    words: uint32 [R, T] of the rows; single: whether the caller left out the axis T.
    """

    def __init__(self, program: Program, words: NDArray[np.uint32], single: bool) -> None:
        self.program, self.words = program, words
        self.lead = words.shape[:1] if single else words.shape
        self._places = {output.name: i for i, output in enumerate(program.outputs)}

    def of_targets(
        self, outputs: Outputs, targets: Mapping[str, Any], loss: LossNames
    ) -> tuple[NDArray[np.int8], float]:
        """Errors int8 [R, T, all outputs], and the mean loss. outputs: [R, T, n] or [R, n]."""
        names = dict.fromkeys(targets, loss) if isinstance(loss, str) else loss
        errors, total, count = dict[str, NDArray[np.int8]](), 0.0, 0
        for name, given in targets.items():
            if name not in names:
                raise InputError(f"loss has none for {name!r}: give one for each of the targets.")
            place = self._places[name]
            output, kind = self.program.outputs[place], losses.loss_called(names[name])
            checked = losses.checked_targets(names[name], output, given, self.lead)
            values = losses.values_of(self.program, place, outputs[name])
            shape = (*self.words.shape, output.size)
            found = kind.of(
                values.reshape(shape),
                checked.reshape(shape if kind.by_value else shape[:-1]),
                not output.wide,
                losses.words_for(self.program, place, self.words),
            )
            errors[name] = found.errors
            total, count = total + found.total, count + found.rated
        return self._joined(errors), total / max(count, 1)

    def given(self, errors: Any) -> NDArray[np.int8]:
        """The caller's errors, int8 [R, T, all outputs]."""
        made = dict[str, NDArray[np.int8]]()
        for name, of in by_name(self.program, "errors", errors).items():
            place = self._places[name]
            words = losses.words_for(self.program, place, self.words)
            made[name] = losses.checked_errors(self.program.outputs[place], of, self.lead, words)
        return self._joined(made)

    def _joined(self, errors: Mapping[str, NDArray[np.int8]]) -> NDArray[np.int8]:
        return losses.side_by_side(self.program, errors, self.words.shape)


class Readers:
    """Populations of any number of readers without noise, made once for the same number."""

    def __init__(self, learner: Learner, threads: int) -> None:
        self._learner, self._threads = learner, threads
        self._made: tuple[tuple[int, int], Population] | None = None

    def of(self, R: int, T: int) -> Population:
        """That of R readers with T rows."""
        if self._made is None or self._made[0] != (R, T):
            like, kept = self._learner.population, self._learner.estimator.inputs_kept
            chunk = fitting_chunk(
                like.engine, members=R, seq_len=T, rank=1, kept=kept(like.engine.program)
            )
            made = Population(like.engine, like.noise, members=R, group=R, chunk=chunk)
            self._made = (R, T), made
        return self._made[1]

    def dealt(self, batch: Batch) -> Batch:
        """Rows of a program without a state as rows of as many members as the engine likes.

        Row i T + t has the random word of that place however rows are dealt, so no bit changes.
        """
        R, T = batch.size
        if self._learner.population.engine.program.state_size:
            return batch
        least = LANES * max(self._threads or 1, 1)
        length = next((n for n in (32, 16, 8, 4, 2) if R * T % n == 0 and R * T // n >= least), 1)
        return batch.each(lambda a: a.reshape(R * T // length, length, *a.shape[2:]))


def estimate(learner: Learner, readers: Readers, batch: Batch) -> Estimate:
    """The votes of rows by their errors; batch.state is that before the first row, or None."""
    dealt = _with_state(learner, readers, batch)
    start = UpdateInput(learner.weights, learner.step, dealt, learner.memory)
    return learner.estimator(readers.of(*dealt.size), start)


def plain_outputs(learner: Learner, readers: Readers, batch: Batch) -> Outputs:
    """Outputs of the unperturbed network by name, [R, T, n]; batch.state as of `estimate`."""
    dealt = _with_state(learner, readers, batch)
    outputs, _ = readers.of(*dealt.size).plain_outputs(learner.weights, dealt)
    return {name: np.asarray(a).reshape(*batch.size, -1) for name, a in outputs.items()}


def _with_state(learner: Learner, readers: Readers, batch: Batch) -> Batch:
    state = batch.state
    dealt = readers.dealt(batch._replace(state=None))
    program = learner.population.engine.program
    if state is None or not program.state_size:
        state = zero_state(program, dealt.size[0])
    return dealt._replace(state=state)
