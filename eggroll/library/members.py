"""A population, or one model, as a caller meets it: rows go in, outputs come out.

Letters: P members, R readers (P of them, or one for every group of members that read the same), T
rows of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.engines import Engine, check_process, choose, unavailable_because, zero_state
from eggroll.errors import InputError, array_of, whole_number
from eggroll.evolution.estimators import Rollout
from eggroll.spec.credit import Acted, Turns, draw, other_words
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.noise import Slices, slice_length
from eggroll.spec.program import Batch, Leaves, Lists, Program, program_of, whole_numbers
from eggroll.spec.rng import counters, key

Whole = int | np.integer[Any]  # as `errors.is_whole` takes
Outputs = dict[str, NDArray[Any]]
# Runs a call's rows: a batch of R readers -> outputs [P, T, size].
Run = Callable[[Batch], dict[str, mx.array]]


class RowArrays(NamedTuple):
    """The arrays of a call as the caller gave them, see `Members.__call__`."""

    inputs: ArrayLike | None = None
    features: ArrayLike | Lists | None = None
    tokens: ArrayLike | None = None
    begins: ArrayLike | None = None


class CheckedRows(NamedTuple):
    """The rows of a call as engines need them."""

    batch: Batch  # of R readers, without targets and a state
    single: bool  # whether the caller left out the axis T, which is 1


def refusal(batch: Batch, error: ValueError) -> InputError:
    """The sentence of an engine that was shown indices beyond their range, with those values."""
    words = str(error).rstrip(".")
    shown: Any = getattr(batch, words.partition(" ")[0], None)
    if shown is not None and " must be in " in words:
        host = np.asarray(shown)
        words += f": {host.min()} to {host.max()} were given"
    return InputError(f"{words}.")


def wide(array: NDArray[Any], readers: int) -> NDArray[Any]:
    """Rows [R, ..] as rows of more readers, a multiple of R: neighbours read the same."""
    return array if len(array) == readers else np.repeat(array, readers // len(array), axis=0)


def joined(parts: list[NDArray[Any]]) -> NDArray[Any] | None:
    """Rows [R, T, ..] of several calls, one after another; None where there are none."""
    return np.concatenate(parts, axis=1) if parts else None


def check_readers(state: mx.array, readers: int) -> None:
    """Raises InputError where states [R, ..] that go on are those of another number of readers."""
    if state.shape[0] != readers:
        raise InputError(
            f"{readers} readers follow {state.shape[0]}, whose states go on: give as many, or call "
            "reset() first."
        )


class Store:
    """Copies of the rows of an update, in memory that the next update uses again.

    New memory for every call would cost more than the copies: the system hands it out page by page.
    """

    def __init__(self) -> None:
        self._used: list[NDArray[Any]] = []
        self._free: list[NDArray[Any]] = []

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array's values, which stay until `clear`."""
        at = len(self._used)
        copy = self._free[at] if at < len(self._free) else None
        if copy is None or copy.shape != array.shape or copy.dtype != array.dtype:
            copy = np.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        self._used.append(copy)
        return copy

    def clear(self) -> None:
        """Gives the copies up; those of the last update alone are used again."""
        self._used, self._free = [], self._used


class RowReader:
    """Checks what a program is shown, and runs it."""

    def __init__(self, program: Program, members: int | None, run: Run) -> None:
        self.program, self.members, self._run = program, members, run
        kinds = {op.kind for stage in program.stages for op in stage.ops}
        self._reads_tokens = "embed" in kinds
        self._ones = np.zeros((0, 0), np.int32)
        self._active = {op.numbers[1] for op in program.sparse_ops}
        # What policies are given is for their votes alone.
        inner = {program.outputs[policy.output + 1].name for policy in program.policies}
        self._public = [output.name for output in program.outputs if output.name not in inner]

    def __call__(self, arrays: RowArrays) -> Any:
        """The outputs of rows: an array if the program has one, else by name."""
        return self.public(self.run(self.check(arrays)))

    def public(self, outputs: Outputs) -> Any:
        """Those of all outputs that the caller gets."""
        if len(self._public) == 1:
            return outputs[self._public[0]]
        return {name: outputs[name] for name in self._public}

    def run(self, rows: CheckedRows) -> Outputs:
        """All outputs of rows by name."""
        try:
            arrays = self._run(rows.batch)
        except ValueError as error:
            raise refusal(rows.batch, error) from None
        outputs = {name: np.asarray(array) for name, array in arrays.items()}
        if rows.single:
            outputs = {name: array[:, 0] for name, array in outputs.items()}
        return outputs

    def policy(self) -> int:
        """The place of the logits of the program's one policy; an InputError without."""
        policies = self.program.policies
        if len(policies) != 1:
            raise InputError(
                f"act draws from one policy and the network has {len(policies)}: declare one, or "
                "call the network itself."
            )
        return policies[0].output

    def check(self, arrays: RowArrays, *, spans: bool = False) -> CheckedRows:
        """Arrays as engines need them, or an InputError that says what is wrong.

        spans: whether lists of features stay what they are, which the engine looks into; else they
        are filled up.
        """
        net, (inputs, features, tokens, begins) = self.program, arrays
        other = tokens if self._reads_tokens else features
        if inputs is not None and not net.inputs and other is None:  # all that the program reads
            inputs, features, tokens = (
                (None, features, inputs) if self._reads_tokens else (None, inputs, tokens)
            )
        taken: list[tuple[str, NDArray[Any], int]] = []
        index, size = None, net.indices
        if isinstance(features, Lists) and size:
            if spans:
                index, found = features.arrays(net)
                *lead, lists, _ = found.shape
                size, features = 2 * lists, found.reshape(*lead, 2 * lists)
            else:
                features = features.padded(net)
        values = self._take("inputs", inputs, net.inputs, np.int8, taken)
        indices = self._take("features", self._flat(features, size), size, np.int32, taken)
        read = self._take("tokens", tokens, self._reads_tokens, np.int32, taken)
        shapes = {array.shape[: array.ndim - tail] for _, array, tail in taken}
        if len(shapes) > 1:
            listed = ", ".join(f"{name} {list(array.shape)}" for name, array, _ in taken)
            raise InputError(f"{listed} do not go together: they need the same [R, T].")
        R, T = self._lead(*taken[0])
        single = taken[0][1].ndim == taken[0][2] + 1
        if read is not None and begins is not None:
            raise InputError(
                "begins was given to a network that reads tokens: token 0 says where an episode "
                "begins, leave begins out."
            )
        batch = Batch(
            self._marks(begins, R, T) if read is None else read.reshape(R, T),
            inputs=None if values is None else values.reshape(R, T, -1),
            features=None if indices is None else indices.reshape(R, T, -1),
            index=index,
        )
        return CheckedRows(batch, single)

    def _flat(self, features: ArrayLike | None, size: int) -> ArrayLike | None:
        """Lists of features side by side, where they have an axis of their own."""
        if features is None or isinstance(features, Lists):  # these to none that takes any
            return features
        array = array_of("features", features)
        *lead, lists, active = array.shape if array.ndim > 2 else (0, 0)
        axis = len(lead) == 2 or (lead and active != size)
        if axis and lists * active == size and self._active == {active}:
            return array.reshape(*lead, lists * active)
        return array

    def _take(
        self,
        name: str,
        given: ArrayLike | None,
        size: int,
        dtype: Any,
        taken: list[tuple[str, NDArray[Any], int]],
    ) -> NDArray[Any] | None:
        """One array that the program asks for: [R, T, size] or [R, size], without it for tokens."""
        if given is None and not size:
            return None
        tail = int(name != "tokens")
        axes = [f"{size // n}, {n}" for n in self._active if name == "features"]
        shape = "[R, T" + f", {axes[0] if len(axes) == 1 else size}" * tail + "]"
        if given is None:
            raise InputError(f"{name} are needed by this network: give an array {shape}.")
        if not size:
            raise InputError(f"{name} were given to a network that reads none: leave them out.")
        array = array_of(name, given)
        if dtype == np.int8 and array.dtype != np.int8:
            hint = "eggroll.quantise makes them of real numbers"
            raise InputError(f"{name} are {array.dtype}: int8 are needed; {hint}.")
        if dtype == np.int32:
            array = whole_numbers(name, array)
        if array.ndim not in (tail + 1, tail + 2) or (tail and array.shape[-1] != size):
            raise InputError(
                f"{name} have the shape {list(array.shape)}: {shape} is needed, or without T for "
                f"a single row."
            )
        if array.size == 0:
            raise InputError(f"{name} have the shape {list(array.shape)}: they are empty.")
        array = np.ascontiguousarray(array, dtype)
        taken.append((name, array, tail))
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


def member_weights(
    program: Program, weights: Leaves, noise: Slices, sign: int
) -> dict[str, NDArray[np.int8]]:
    """The weights of a member with noise on weights, int8 by name.

    noise: the slices of its pair alone; sign: 1 or -1. Vectors and embeddings are its own; the
    noise of other matrices is finer than a weight, and is rounded here.
    """
    rows = {op.leaf for stage in program.stages for op in stage.ops if op.kind == "embed"}
    table, starts, rank, shift = np.array(noise.table), np.array(noise.starts), *noise[2:]
    made = dict[str, NDArray[np.int8]]()
    for i, leaf in enumerate(program.leaves):
        count = slice_length(leaf.shape, rank)
        cut = table[starts[i, 0] : starts[i, 0] + count].astype(np.int64)
        if len(leaf.shape) == 1:
            change = sign * cut[0::2] * cut[1::2] >> shift
        else:
            O, K = leaf.shape
            A, B = cut[rank * K :].reshape(O, rank), cut[: rank * K].reshape(K, rank)
            half = 0 if i in rows else 1 << shift >> 1
            change = sign * (A @ B.T) + half >> shift
        whole = np.array(weights[leaf.name]) + change
        made[leaf.name] = np.clip(whole, -LIMIT, LIMIT).astype(np.int8)
    return made


class Members:
    """The perturbed networks of one update; nothing of them is copied or kept.

    Calling them shows them rows. Every call goes on where the one before ended: states of a
    recurrent program are carried, and token credit counts the rows of all calls, one after another.

    turns: signs of the rows, with token credit; perturbed: whether members have noise, else each is
    the network itself and carries the errors of its rows back.
    """

    def __init__(
        self,
        program: Program,
        members: int,
        run: Run,
        turns: Turns | None,
        state: mx.array,
        action_key: int,
        store: Store,
        perturbed: bool = True,
        weights_of: Callable[[int], dict[str, NDArray[np.int8]]] | None = None,
    ) -> None:
        self._reader, self._action_key = RowReader(program, members, run), action_key
        self.program, self._store = program, store
        self.members, self.turns, self._state = members, turns, state
        self._calls: list[Batch] = []
        self._acted: list[Acted] = []
        self._active: list[NDArray[np.bool_]] = []
        self._in_world: Rollout | None = None
        self._keeps, self._weights_of = turns is not None or not perturbed, weights_of
        self.rows, self.columns, self.calls = 0, 0, 0

    def __getstate__(self) -> NoReturn:
        raise InputError(
            "Members belong to their Trainer and cannot be copied or pickled: copy or pickle that, "
            "whose ask() gives the same members again."
        )

    def __call__(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | Lists | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
        active: ArrayLike | None = None,
    ) -> Any:
        """Runs every member on rows that are shown to it, and gives their outputs.

        R is P, or a number of groups that read the same. Without the axis T, a call is of one row.

        Args:
            inputs: int8 [R, T, n] or [R, n], for a program with an input of n values. The first
                argument may also be the tokens or features of a program that has no input.
            features: whole numbers [R, T, lists, active], -1 for none, or Lists.
            tokens: whole numbers [R, T], for a program that embeds tokens.
            begins: bool [R] or [R, T], where an episode begins: there the state is zero.
            active: bool [P] or [P, T], where something is at stake; rows without are not credited,
                by estimators that credit rows, and have no errors. A pair is credited with the rows
                of its first member.

        Returns:
            int8 or, of `sums`, int32 [P, T, size], or [P, size] for one row; a dict by name if the
            program has several outputs.

        Raises:
            InputError: a wrong shape, dtype or range; nothing has changed.
        """
        rows = self._reader.check(RowArrays(inputs, features, tokens, begins))
        return self._reader.public(self._show(rows, self._at_stake(active, rows.batch.size[1])))

    def act(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | Lists | None = None,
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
        rows = self._reader.check(RowArrays(inputs, features, tokens, begins))
        first, T = self.rows, rows.batch.size[1]
        outputs = list(self._show(rows, self._at_stake(active, T)).values())
        logits, entered = (a.reshape(self.members, T, -1) for a in outputs[at : at + 2])
        # A pair has the same chance where it is compared, and each member its own where what it
        # does is credited: else the two would do the same.
        share = 1 if self._keeps else 2
        chances = [key(self._action_key, t) for t in range(first, first + T)]
        words = np.stack([counters(c, 0, self.members // share) for c in chances], axis=1)
        words = np.repeat(words, share, axis=0)
        actions = draw(logits, words)
        if self.turns is not None:
            self._acted.append(Acted(actions, draw(logits, other_words(words)), entered.copy()))
        return actions[:, 0] if rows.single else actions

    def weights(self, member: Whole) -> dict[str, NDArray[np.int8]]:
        """The weights of a member, int8 by name, rebuilt from its noise; see `member_weights`.

        Raises:
            InputError: no such member, or members have no noise on weights.
        """
        if self._weights_of is None:
            raise InputError(
                "These members have no weights of their own, as their noise is on outputs or there "
                'is none: use estimator="eggroll", or es.weights.'
            )
        return self._weights_of(whole_number("member", member, 0, self.members - 1))

    def _show(self, rows: CheckedRows, at_stake: NDArray[np.bool_]) -> Outputs:
        outputs = self._reader.run(rows)
        T = rows.batch.size[1]
        if self._keeps:  # credit is counted from the rows, once their values are told
            self._calls.append(rows.batch.each(self._store.copy))
            self._active.append(np.broadcast_to(at_stake, (self.members, T)))
        # 0 once two calls were of different numbers of rows
        self.columns = T if self.calls == 0 or self.columns == T else 0
        self.rows, self.calls = self.rows + T, self.calls + 1
        return outputs

    @property
    def acts(self) -> bool:
        """True if policies drew actions in every call, or the program has none."""
        return not self._reader.program.policies or len(self._acted) == self.calls

    def _at_stake(self, active: ArrayLike | None, T: int) -> NDArray[np.bool_]:
        if active is None:
            return np.ones((1, 1), np.bool_)
        at = _check_active(active, self.members, T)
        return (at if at.ndim == 2 else at[:, None]).copy()  # the caller may reuse it

    @property
    def at_stake(self) -> NDArray[np.bool_]:
        """The rows that are active, bool [P, T]."""
        return np.concatenate(self._active, axis=1)

    def ran_in_world(self, rows: int, rollout: Rollout) -> None:
        """Takes note of rows that an engine ran by itself: all there are, see worlds.py."""
        self.rows, self.columns, self.calls, self._in_world = rows, rows, 1, rollout

    def ran_elsewhere(self) -> None:
        """Takes note of members that other processes ran, a row each."""
        self.rows, self.columns, self.calls = 1, 1, 1

    def rollout(self, after: mx.array) -> Rollout:
        """All rows of the update. after: the state after the last one."""
        if self._in_world is not None:
            return self._in_world
        if self.turns is None:
            return Rollout(None, after, None)
        batch = self.shown(lcm(*(call.size[0] for call in self._calls)))
        draws = zip(*self._acted, strict=True)
        acted = [Acted(*(np.concatenate(d, axis=1) for d in draws))] if self._acted else []
        return Rollout(batch, after, self.turns, self.at_stake[0::2], acted)

    def shown(self, readers: int) -> Batch:
        """All rows of the update, of so many readers, and the state before the first one."""
        parts = [call.each(lambda a: wide(a, readers)) for call in self._calls]
        columns = (
            joined([a for a in arrays if a is not None]) for arrays in zip(*parts, strict=True)
        )
        return Batch(*columns)._replace(state=self._state)


def _check_active(active: ArrayLike | None, R: int, T: int) -> NDArray[np.bool_]:
    """The rows at stake, bool [R] or [R, T]; all of them for None. An InputError for another."""
    if active is None:
        return np.ones((1, 1), np.bool_)
    at = array_of("active", active)
    if at.dtype != np.bool_ or at.shape not in ((R,), (R, T)):
        raise InputError(
            f"active is {at.dtype} {list(at.shape)}: bool [{R}] or [{R}, {T}] is needed."
        )
    return at


def kept_engine(engine: Engine) -> dict[str, Any]:
    """All that `engine_again` needs."""
    net = engine.program
    return {
        "declaration": net.declaration(), "score_bits": net.score_bits, "engine": engine.name,
        "threads": engine.threads,
    }  # fmt: skip


def engine_again(kept: Mapping[str, Any]) -> Engine:
    """The same engine, or another one where that cannot run; all give the same bits."""
    name = "auto" if unavailable_because(kept["engine"]) else kept["engine"]
    net = program_of(kept["declaration"], kept["score_bits"])
    return choose(name, net, kept["threads"])[0]


class Model:
    """The network itself, without noise, as it was when it was asked for.

    weights: int8 by name. Calls carry the state of a recurrent program on, for as many readers as
    the first call had; `reset` begins anew.
    """

    def __init__(self, engine: Engine, weights: Leaves) -> None:
        self.program, self._engine = engine.program, engine
        self._prepared, self._leaves = engine.prepare(weights), weights
        self._reader = RowReader(engine.program, None, self._outputs)
        self._state: mx.array | None = None

    @property
    def weights(self) -> dict[str, NDArray[np.int8]]:
        """int8 leaves by name, in declared order."""
        return {name: np.array(leaf) for name, leaf in self._leaves.items()}

    def __getstate__(self) -> dict[str, Any]:
        """All that copies and other processes need."""
        state = None if self._state is None else np.array(self._state)
        return kept_engine(self._engine) | {"weights": self.weights, "state": state}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        leaves = {name: mx.array(leaf) for name, leaf in kept["weights"].items()}
        Model.__init__(self, engine_again(kept), leaves)
        self._state = None if kept["state"] is None else mx.array(kept["state"])

    def export(self, path: str | Path) -> Path:
        """Writes the network as .py, .h, .onnx or .safetensors, by the path's ending.

        The file needs nothing of eggroll and computes the same bits; see docs/export.md.

        Raises:
            InputError: an unknown ending, a missing package, or the file cannot be written.
        """
        from eggroll.library.export import export

        return export(self.program, self._leaves, path)

    def reset(self) -> None:
        """Zeroes the state."""
        self._state = None

    def __call__(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | Lists | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
        active: ArrayLike | None = None,
    ) -> Any:
        """Outputs [R, T, size] of rows [R, T, ..], for any R; see `Members`.

        active: bool [R] or [R, T], as members take it; it changes nothing here.
        """
        rows = self._reader.check(RowArrays(inputs, features, tokens, begins))
        _check_active(active, *rows.batch.size)
        return self._reader.public(self._reader.run(rows))

    def act(
        self,
        inputs: ArrayLike | None = None,
        *,
        features: ArrayLike | Lists | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
        active: ArrayLike | None = None,
    ) -> NDArray[np.int32]:
        """The likeliest actions of the network's policy, int32 [R, T] or [R].

        active: as of a call.
        """
        at = self._reader.policy()
        rows = self._reader.check(RowArrays(inputs, features, tokens, begins))
        _check_active(active, *rows.batch.size)
        logits = list(self._reader.run(rows).values())[at]
        likeliest: NDArray[np.int32] = logits.argmax(axis=-1).astype(np.int32)
        return likeliest

    def _outputs(self, batch: Batch) -> dict[str, mx.array]:
        check_process()
        state, readers = self._state, batch.size[0]
        if state is None:
            state = zero_state(self.program, readers)
        check_readers(state, readers)
        read = batch.rows(mx.array)._replace(state=state)
        outputs, after = self._engine.outputs(self._prepared, None, read)
        mx.eval(outputs, after)
        self._state = after if self.program.state_size else None
        return outputs
