"""Learning from errors: what `Trainer.learn` and `Trainer.tell_errors` are made of.

Letters: R readers, T rows of a call, n values of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError, shown
from eggroll.evolution.estimators import Estimate, UpdateInput
from eggroll.evolution.population import Population
from eggroll.evolution.step import Learner
from eggroll.library.members import Outputs
from eggroll.spec import losses, rng
from eggroll.spec.backward import Learnt
from eggroll.spec.losses import Targets
from eggroll.spec.program import Batch, Program
from eggroll.spec.rng import WHOLE, draws, native_module
from eggroll.training.learner import fitting_chunk

LANES = 32  # members of a block of the cpu engine
LENGTHS = 16, 8, 4, 2  # rows of a member, where rows may be dealt to members at will
PAGE = 4096  # bytes of a member's features at most: with more a block's members lie far apart

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


def visible(program: Program) -> list[str]:
    """Names of the outputs that the caller has: all but what policies read for their votes."""
    inner = {policy.output + 1 for policy in program.policies}
    return [output.name for i, output in enumerate(program.outputs) if i not in inner]


def by_name(names: list[str], what: str, given: Any) -> dict[str, Any]:
    """Something of outputs by their names, where it may be left bare if there is but one.

    Raises:
        InputError: a name is unknown, or several outputs share a bare one.
    """
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


class ErrorMaker:
    """Takes what the errors of rows are made of: targets and losses, or the caller's errors.

    lead, of its methods: the axes of a call's rows, [R, T], or [R] where the caller left out T.
    """

    def __init__(self, program: Program, seed: int, threads: int) -> None:
        self.program, self.seed, self.threads = program, seed, threads
        self._visible = visible(program)
        self._places = {output.name: i for i, output in enumerate(program.outputs)}
        # Values of a row that can have an error.
        self.width = sum(program.outputs[self._places[name]].size for name in self._visible)

    def targets(self, given: Any, loss: LossNames, lead: tuple[int, ...]) -> Targets:
        """The caller's targets, checked."""
        named = by_name(self._visible, "targets", given)
        if not isinstance(loss, str | Mapping):
            raise InputError(f"loss is {shown(loss)}: a name, or a dict of them, is needed.")
        names = dict.fromkeys(named, loss) if isinstance(loss, str) else loss
        if unknown := [name for name in names if name not in named]:
            raise InputError(f"loss has {unknown[0]!r}, which has no targets: leave it out.")
        if lacking := [name for name in named if name not in names]:
            raise InputError(f"loss has none for {lacking[0]!r}: give one for each of the targets.")
        outputs = [(o, o.name) for o in self.program.outputs if o.name in named]
        parts = [losses.checked_targets(names[k], o, named[k], lead) for o, k in outputs]
        parts = [part.reshape(*(*lead, 1)[:2], -1) for part in parts]
        by_output = tuple([names[o] if o in named else "" for o in self._places])
        return Targets(by_output, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1))

    def given(self, errors: Any, lead: tuple[int, ...], step: int) -> NDArray[np.int8]:
        """The caller's errors in update `step`, int8 [R, T, all outputs]."""
        size, made = (*lead, 1)[:2], dict[str, NDArray[np.int8]]()
        stream = rng.key(self.seed, rng.DRAWS, step)
        rows = np.asarray(draws([stream], [WHOLE], 0, size, self.threads, unsigned=True))
        for name, of in by_name(self._visible, "errors", errors).items():
            place = self._places[name]
            words = losses.words_for(self.program, place, rows)
            made[name] = losses.checked_errors(self.program.outputs[place], of, lead, words)
        return losses.side_by_side(self.program, made, size)


class Readers:
    """Populations of any number of readers without noise, made once for the same number."""

    def __init__(self, learner: Learner, threads: int) -> None:
        self._learner, self._threads = learner, threads
        self._made: tuple[tuple[int, int], Population, mx.array] | None = None

    def of(self, batch: Batch) -> tuple[Population, Batch]:
        """That of a batch's readers, and the batch as they read it.

        batch.state: that before the first row, None for zeros.
        """
        dealt = self._dealt(batch)
        if self._made is None or self._made[0] != dealt.size:
            like, kept = self._learner.population, self._learner.estimator.inputs_kept
            (R, T), program = dealt.size, like.engine.program
            chunk = fitting_chunk(like.engine, members=R, seq_len=T, rank=1, kept=kept(program))
            made = Population(like.engine, like.noise, members=R, group=R, chunk=chunk)
            self._made = (R, T), made, made.initial_state()
        _, population, zeros = self._made
        return population, dealt if dealt.state is not None else dealt._replace(state=zeros)

    def _dealt(self, batch: Batch) -> Batch:
        """Rows of a program without a state as rows of as many members as the engine likes.

        Row i T + t has the random word of that place however rows are dealt, so no bit changes.
        """
        R, T = batch.size
        if self._learner.population.engine.program.state_size:
            return batch
        least = LANES * max(self._threads or 1, 1)
        row = 0 if batch.features is None else batch.features.nbytes // (R * T)
        fits = [n for n in LENGTHS if R * T % n == 0 and R * T // n >= least and n * row <= PAGE]
        length = max(fits, default=1)
        lead = R * T // length, length
        return batch._replace(state=None).each(lambda a: a.reshape(*lead, *a.shape[2:]))


def sums(learnt: Learnt | None) -> tuple[int, list[int]]:
    """Of errors that were made of targets: the sum of their sizes, and by output what rows lost."""
    assert learnt is not None
    if mx.default_device() == mx.cpu and (native := native_module()):
        size, high, low = native.rated_sums(learnt.errors, learnt.lost)
    else:
        lost, errors = learnt.lost, learnt.errors
        assert lost is not None
        assert errors is not None
        size = mx.abs(errors).sum(axis=-1).astype(mx.int64).sum()
        high, low = np.array(mx.stack([lost >> 32, lost & 0xFFFFFFFF]).sum(axis=(1, 2))).tolist()
    # Of halves, as what all rows lost may be more than 64 bits hold.
    return int(size), [(h << 32) + l for h, l in zip(high, low, strict=True)]


def estimate(
    learner: Learner, readers: Readers, batch: Batch, targets: Targets | None = None
) -> Estimate:
    """The votes of rows by their errors, which are the batch's or are made of targets."""
    wanted, of_outputs = (None, ()) if targets is None else (targets.values, targets.losses)
    population, dealt = readers.of(batch._replace(wanted=wanted))
    start = UpdateInput(learner.weights, learner.step, dealt, learner.memory, of_outputs)
    return learner.estimator(population, start)


def plain_outputs(learner: Learner, readers: Readers, batch: Batch) -> Outputs:
    """Outputs of the unperturbed network by name, [R, T, n]."""
    population, dealt = readers.of(batch)
    outputs, _ = population.plain_outputs(learner.weights, dealt)
    return {name: np.asarray(a).reshape(*batch.size, -1) for name, a in outputs.items()}
