"""A population, or one model, as a caller meets it: rows go in, outputs come out.

Letters: P members, R readers (P of them, or one for every group of members that read the same), T
rows of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.arrays import Store, array_of, joined, wide
from eggroll.credit import Turns
from eggroll.engines import Engine, zero_state
from eggroll.errors import InputError
from eggroll.estimator import Record
from eggroll.policy import Acted, draw, other_words
from eggroll.population import Shown
from eggroll.program import Leaves, Program, Rows
from eggroll.rng import counters, key

Outputs = dict[str, NDArray[Any]]
# Runs a call's rows: tokens [R, T], shown [R, T, ..] -> outputs [P, T, size].
Run = Callable[[NDArray[np.int32], Shown], dict[str, mx.array]]


class Given(NamedTuple):
    """A call's rows, checked: [R, T, ..]; single: given without the axis T, which is 1."""

    tokens: NDArray[np.int32]
    shown: Shown
    single: bool


class Reader:
    """Checks what a program is shown, and runs it."""

    def __init__(self, program: Program, members: int | None, run: Run) -> None:
        self.program, self.members, self._run = program, members, run
        kinds = {op.kind for stage in program.stages for op in stage.ops}
        self._reads_tokens = "embed" in kinds
        self._ones = np.zeros((0, 0), np.int32)
        # What policies are given is for their votes alone.
        inner = {program.outputs[policy.output + 1].name for policy in program.policies}
        self._shown = [output.name for output in program.outputs if output.name not in inner]

    def __call__(self, given: Given) -> Any:
        """The outputs of checked rows: an array if the program has one, else by name."""
        return self.shown(self.run(given))

    def shown(self, found: Outputs) -> Any:
        """What the caller has of all outputs."""
        if len(self._shown) == 1:
            return found[self._shown[0]]
        return {name: found[name] for name in self._shown}

    def run(self, given: Given) -> Outputs:
        """All outputs of checked rows by name."""
        try:
            made = self._run(given.tokens, given.shown)
        except ValueError as error:  # indices beyond their range, which engines look at
            raise InputError(f"{error}.") from None
        found = {name: np.asarray(array) for name, array in made.items()}
        if given.single:
            found = {name: array[:, 0] for name, array in found.items()}
        return found

    def policy(self) -> int:
        """The place of the logits of the program's one policy; an InputError without."""
        found = self.program.policies
        if len(found) != 1:
            raise InputError(
                f"act draws from one policy and the network has {len(found)}: declare one, or call "
                "the network itself."
            )
        return found[0].output

    def given(
        self,
        inputs: ArrayLike | None,
        features: ArrayLike | None,
        tokens: ArrayLike | None,
        begins: ArrayLike | None,
    ) -> Given:
        """Arrays as engines need them, or an InputError that says what is wrong."""
        net = self.program
        other = tokens if self._reads_tokens else features
        if inputs is not None and not net.inputs and other is None:  # all that the program reads
            inputs, features, tokens = (
                (None, features, inputs) if self._reads_tokens else (None, inputs, tokens)
            )
        found: list[tuple[str, NDArray[Any], int]] = []
        shown = Shown(
            self._take("inputs", inputs, net.inputs, np.int8, found),
            self._take("features", self._flat(features), net.indices, np.int32, found),
        )
        read = self._take("tokens", tokens, self._reads_tokens, np.int32, found)
        shapes = {array.shape[: array.ndim - tail] for _, array, tail in found}
        if len(shapes) > 1:
            listed = ", ".join(f"{name} {list(array.shape)}" for name, array, _ in found)
            raise InputError(f"{listed} do not go together: they need the same [R, T].")
        R, T = self._lead(*found[0])
        single = found[0][1].ndim == found[0][2] + 1
        shown = shown.each(lambda array: array.reshape(R, T, -1))
        if read is not None and begins is not None:
            raise InputError(
                "begins was given to a network that reads tokens: token 0 says where an episode "
                "begins, leave begins out."
            )
        read = self._marks(begins, R, T) if read is None else read.reshape(R, T)
        return Given(read, shown, single)

    def _flat(self, features: ArrayLike | None) -> ArrayLike | None:
        """Lists of features side by side, where they have an axis of their own."""
        if features is None:
            return None
        array = array_of("features", features)
        *lead, lists, active = array.shape if array.ndim > 2 else (0, 0)
        if len(lead) == 2 or (lead and active != self.program.indices):
            return array.reshape(*lead, lists * active)
        return array

    def _take(
        self,
        name: str,
        given: ArrayLike | None,
        size: int,
        dtype: Any,
        found: list[tuple[str, NDArray[Any], int]],
    ) -> NDArray[Any] | None:
        """One array that the program asks for: [R, T, size] or [R, size], without it for tokens."""
        tail = int(name != "tokens")
        shape = "[R, T" + f", {size}" * tail + "]"
        if (given is not None) != bool(size):
            raise InputError(
                f"{name} are needed by this network: give an array {shape}."
                if size
                else f"{name} were given to a network that reads none: leave them out."
            )
        if given is None:
            return None
        array = array_of(name, given)
        whole = array.dtype.kind in "iu" if dtype == np.int32 else array.dtype == np.int8
        if not whole:
            kind = "whole numbers" if dtype == np.int32 else "int8"
            hint = "; eggroll.quantise makes them of real numbers" * (dtype == np.int8)
            raise InputError(f"{name} are {array.dtype}: {kind} are needed{hint}.")
        if array.ndim not in (tail + 1, tail + 2) or (tail and array.shape[-1] != size):
            raise InputError(
                f"{name} have the shape {list(array.shape)}: {shape} is needed, or without T for "
                f"a single row."
            )
        if array.size == 0:
            raise InputError(f"{name} have the shape {list(array.shape)}: they are empty.")
        if dtype == np.int32 and array.dtype != np.int32:
            low, high = int(array.min()), int(array.max())
            if low < -(1 << 31) or high >= 1 << 31:
                raise InputError(
                    f"{name} reach from {low} to {high}: numbers of 31 bits are needed."
                )
        array = np.ascontiguousarray(array, dtype)
        found.append((name, array, tail))
        return array

    def _lead(self, name: str, array: NDArray[Any], tail: int) -> tuple[int, int]:
        """R and T of an array, R being right for the population."""
        R, T = array.shape[0], array.shape[1] if array.ndim == tail + 2 else 1
        P = self.members
        if P is not None and R != P and (P % R or P // R % 2):
            raise InputError(
                f"{name} are for {R} readers: {P} are needed, one for each member, or a number "
                f"that divides {P // 2}, for groups of members that read the same."
            )
        return R, T

    def _marks(self, begins: ArrayLike | None, R: int, T: int) -> NDArray[np.int32]:
        """Token 0 where an episode begins, 1 elsewhere."""
        if begins is None:
            if self._ones.shape != (R, T):
                self._ones = np.ones((R, T), np.int32)
            return self._ones
        marks = array_of("begins", begins)
        if marks.dtype != np.bool_ or marks.shape not in ((R,), (R, T)):
            raise InputError(
                f"begins is {marks.dtype} {list(marks.shape)}: bool [{R}] or [{R}, {T}] is needed."
            )
        out = np.ones((R, T), np.int32)
        if marks.ndim == 1:
            out[marks, 0] = 0
        else:
            out[marks] = 0
        return out


class Members:
    """The perturbed networks of one update; nothing of them is copied or kept.

    Calling them shows them rows. Every call goes on where the one before ended: states of a
    recurrent program are carried, and token credit counts the rows of all calls, one after another.

    turns: signs of the rows, with token credit.
    """

    def __init__(
        self,
        program: Program,
        members: int,
        run: Run,
        turns: Turns | None,
        state: mx.array,
        chance: int,
        store: Store,
    ) -> None:
        self._reader, self._chance = Reader(program, members, run), chance
        self.program, self._store = program, store
        self.members, self.turns, self._state = members, turns, state
        self._calls: list[Given] = []
        self._acted: list[Acted] = []
        self._active: list[NDArray[np.bool_]] = []
        self._met: Record | None = None
        self.rows, self.columns, self.calls = 0, 0, 0

    def __call__(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
        active: ArrayLike | None = None,
    ) -> Any:
        """What every member puts out of rows that are shown to it.

        R is P, or a number of groups that read the same. Without the axis T, a call is of one row.

        Args:
            inputs: int8 [R, T, n] or [R, n], for a program with an input of n values. The first
                argument may also be the tokens or features of a program that has no input.
            features: whole numbers [R, T, lists, active], -1 for none.
            tokens: whole numbers [R, T], for a program that embeds tokens.
            begins: bool [R] or [R, T], where an episode begins: there the state is zero.
            active: bool [P] or [P, T], where something is at stake; rows without are not credited.
                A pair is credited with the rows of its first member.

        Returns:
            int8 or, of `sums`, int32 [P, T, size], or [P, size] for one row; a dict by name if the
            program has several outputs.

        Raises:
            InputError: a wrong shape, dtype or range; nothing has changed.
        """
        given = self._reader.given(inputs, features, tokens, begins)
        return self._reader.shown(self._show(given, self._stake(active, given.tokens.shape[1])))

    def act(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
        active: ArrayLike | None = None,
    ) -> NDArray[np.int32]:
        """Actions that the policy of every member draws for its rows, int32 [P, T] or [P].

        For a program with `policy`; arguments as of a call. The odds are 2^(logit / 16), and the
        chance is a function of the seed, the update, the member (its pair, with estimator eggroll)
        and the row.
        """
        at = self._reader.policy()
        given = self._reader.given(inputs, features, tokens, begins)
        first, T = self.rows, given.tokens.shape[1]
        outputs = list(self._show(given, self._stake(active, T)).values())
        logits, entered = (a.reshape(self.members, T, -1) for a in outputs[at : at + 2])
        # A pair has the same chance where it is compared, and each member its own where what it
        # does is credited: else the two would do the same.
        share = 2 if self.turns is None else 1
        chances = [key(self._chance, t) for t in range(first, first + T)]
        words = np.stack([counters(c, 0, self.members // share) for c in chances], axis=1)
        words = np.repeat(words, share, axis=0)
        actions = draw(logits, words)
        if self.turns is not None:
            self._acted.append(Acted(actions, draw(logits, other_words(words)), entered.copy()))
        return actions[:, 0] if given.single else actions

    def _show(self, given: Given, at: NDArray[np.bool_]) -> Outputs:
        outputs = self._reader.run(given)
        T = given.tokens.shape[1]
        if self.turns is not None:  # credit is counted from the rows, once their worth is told
            kept, read = given.shown.each(self._store.copy), self._store.copy(given.tokens)
            self._calls.append(Given(read, kept, given.single))
            self._active.append(np.broadcast_to(at, (self.members // 2, T)))
        # 0 once two calls were of different numbers of rows
        self.columns = T if self.calls == 0 or self.columns == T else 0
        self.rows, self.calls = self.rows + T, self.calls + 1
        return outputs

    @property
    def acts(self) -> bool:
        """Whether policies drew actions in every call, if the program has any."""
        return not self._reader.program.policies or len(self._acted) == self.calls

    def _stake(self, active: ArrayLike | None, T: int) -> NDArray[np.bool_]:
        if active is None:
            return np.ones((1, 1), np.bool_)
        at, P = array_of("active", active), self.members
        if at.dtype != np.bool_ or at.shape not in ((P,), (P, T)):
            raise InputError(
                f"active is {at.dtype} {list(at.shape)}: bool [{P}] or [{P}, {T}] is needed."
            )
        return (at if at.ndim == 2 else at[:, None])[0::2].copy()  # the caller may reuse it

    def met(self, rows: int, record: Record) -> None:
        """Takes note of rows that an engine ran by itself: all there are, see playing.py."""
        self.rows, self.columns, self.calls, self._met = rows, rows, 1, record

    def record(self, after: mx.array) -> Record:
        """What estimators know of the update."""
        if self._met is not None:
            return self._met
        if self.turns is None:
            return Record(None, Shown(), self._state, after, None)
        readers = lcm(*(len(call.tokens) for call in self._calls))
        tokens = np.concatenate([wide(call.tokens, readers) for call in self._calls], axis=1)
        shown = [call.shown.each(lambda a: wide(a, readers)) for call in self._calls]
        inputs = [s.inputs for s in shown if s.inputs is not None]
        features = [s.features for s in shown if s.features is not None]
        whole = Shown(joined(inputs), joined(features))
        active = np.concatenate(self._active, axis=1)
        parts = zip(*self._acted, strict=True)
        acted = [Acted(*(np.concatenate(p, axis=1) for p in parts))] if self._acted else []
        return Record(tokens, whole, self._state, after, self.turns, active, acted)


class Model:
    """The network itself, without noise, as it was when it was asked for.

    weights: int8 by name. Calls carry the state of a recurrent program on, for as many readers as
    the first call had; `reset` begins anew.
    """

    def __init__(self, engine: Engine, weights: Leaves) -> None:
        self.program, self._engine = engine.program, engine
        self._prepared, self._leaves = engine.prepare(weights), weights
        self._reader = Reader(engine.program, None, self._outputs)
        self._state: mx.array | None = None

    @property
    def weights(self) -> dict[str, NDArray[np.int8]]:
        """int8 leaves by name, in declared order."""
        return {name: np.array(leaf) for name, leaf in self._leaves.items()}

    def reset(self) -> None:
        """Zeroes the state."""
        self._state = None

    def __call__(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
    ) -> Any:
        """Outputs [R, T, size] of rows [R, T, ..], for any R; see `Members`."""
        return self._reader(self._reader.given(inputs, features, tokens, begins))

    def act(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
    ) -> NDArray[np.int32]:
        """The likeliest actions of the network's policy, int32 [R, T] or [R]."""
        at = self._reader.policy()
        found = self._reader.run(self._reader.given(inputs, features, tokens, begins))
        taken: NDArray[np.int32] = list(found.values())[at].argmax(axis=-1).astype(np.int32)
        return taken

    def _outputs(self, tokens: NDArray[np.int32], shown: Shown) -> dict[str, mx.array]:
        state = self._state
        if state is None:
            state = zero_state(self.program, len(tokens))
        if state.shape[0] != len(tokens):
            raise InputError(
                f"{len(tokens)} readers follow {state.shape[0]}, whose states go on: give as many, "
                "or call reset() first."
            )
        rows = Rows(*(None if a is None else mx.array(a) for a in shown))
        found, after = self._engine.outputs(self._prepared, None, mx.array(tokens), state, rows)
        mx.eval(found, after)
        self._state = after if self.program.state_size else None
        return found
