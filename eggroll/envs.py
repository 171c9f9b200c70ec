"""Environments: populations and models play them, all episodes in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError, array_of
from eggroll.library.members import Members, Model
from eggroll.spec import rng
from eggroll.spec.fixed_point import LIMIT, quantise
from eggroll.spec.program import Program

# Outputs [n, size] -> actions [n] or [n, ..], as the environment takes them.
Decode = Callable[[NDArray[Any]], NDArray[Any]]


def argmax(outputs: NDArray[Any]) -> NDArray[np.int64]:
    """The place of the largest output, the first of equals: int [..] of [.., actions]."""
    best: NDArray[np.int64] = outputs.argmax(axis=-1)
    return best


def box(outputs: NDArray[Any], low: ArrayLike, high: ArrayLike) -> NDArray[np.float32]:
    """Outputs int8 [.., n], -127..127, as float32 from low to high, in a straight line.

    The clip of int8 bounds them, as a tanh would.
    """
    bottom, top = np.asarray(low, np.float32), np.asarray(high, np.float32)
    share = (outputs.astype(np.float32) + LIMIT) / np.float32(2 * LIMIT)
    made: NDArray[np.float32] = bottom + share * (top - bottom)
    return made


def decoding(space: Any) -> tuple[Decode, int]:
    """The function that makes actions of outputs for a Gymnasium space, and the outputs it needs.

    Discrete: `argmax`. Box with bounds: `box`.

    Raises:
        InputError: another space.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        start = int(space.start)
        return lambda outputs: argmax(outputs) + start, int(space.n)
    if kind == "Box" and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        shape = space.shape
        return (
            lambda outputs: box(outputs.reshape(-1, *shape), space.low, space.high).astype(
                space.dtype
            ),
            int(np.prod(shape)),
        )
    raise InputError(
        f"actions are of a {kind} space{' without bounds' * (kind == 'Box')}: pass decode, a "
        "function that makes actions of outputs [n, size]."
    )


# Observations of many environments, [n, ..] -> int8 [n, inputs].
Observe = Callable[[NDArray[Any]], NDArray[np.int8]]

FAR = 1e6  # a bound beyond which a value is as good as unbounded
UNBOUNDED = 32.0  # scale of a value without bounds: 1.0 is 32, what is beyond 4 is clipped


def scales(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float32]:
    """Scales for `quantise` of values within low..high [..]: the wider bound becomes 127.

    A value without bounds has the scale 32. float32 [n], of the values side by side.
    """
    bound = np.maximum(abs(low.astype(np.float64)), abs(high.astype(np.float64))).reshape(-1)
    known = (bound > 0) & (bound < FAR)
    return np.where(known, LIMIT / np.where(known, bound, 1), UNBOUNDED).astype(np.float32)


def observing(space: Any) -> Observe:
    """The function that makes int8 of observations of a Gymnasium space.

    Box: `quantise` with `scales` of its bounds, flat. Discrete: 64 at the place of the number, 0
    elsewhere.

    Raises:
        InputError: another space.
    """
    kind = type(space).__name__
    if kind == "Box":
        by = scales(space.low, space.high)
        return lambda seen: quantise(seen.reshape(len(seen), -1), by)
    if kind == "Discrete":
        hot = np.diag(np.full(int(space.n), 64, np.int8))
        return lambda seen: hot[seen - int(space.start)]
    raise InputError(
        f"observations are of a {kind} space: pass observe, a function that makes int8 [n, inputs] "
        "of them."
    )


# Members, a model, or a function of rows int8 [P, E, inputs] -> outputs [P, E, size].
Players = Members | Model | Callable[[NDArray[np.int8]], NDArray[Any]]

SEEDS = np.uint64((1 << 31) - 1)  # that every environment takes


class Gym:
    """P x E environments of one kind, which all players step in lockstep.

    inputs: values of an observation as int8; outputs: values that `decode` needs, 0 if it is the
    caller's; steps: environment steps of all episodes so far.
    """

    def __init__(
        self, name: str, members: int, episodes: int, observe: Observe | None,
        decode: Decode | None, mode: str, options: dict[str, Any],
    ) -> None:  # fmt: skip
        gymnasium = _gymnasium()
        whole = all(isinstance(n, int | np.integer) for n in (members, episodes))
        if not whole or members < 1 or episodes < 1:
            raise InputError(
                f"members is {members!r} and episodes is {episodes!r}: whole numbers from 1 on are "
                "needed."
            )
        self.members, self.episodes, self.steps = members, episodes, 0
        try:
            self._env = gymnasium.make_vec(
                name, num_envs=members * episodes, vectorization_mode=mode or _fastest(name),
                **options,
            )  # fmt: skip
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError, ValueError) as error:
            raise InputError(f"environment {name!r} cannot be made: {error}.") from None
        self.observe = observe or observing(self._env.single_observation_space)
        made = decoding(self._env.single_action_space) if decode is None else (decode, 0)
        self.decode, self.outputs = made
        self._native = mode == "" and _fastest(name) == NATIVE
        self.inputs = self.observe(self._reset(np.zeros(1, np.uint64))).shape[-1]

    def evaluate(self, members: Players, keys: ArrayLike) -> NDArray[np.float64]:
        """Mean return of every player's episodes, [P]; see `play`."""
        means: NDArray[np.float64] = self.play(members, keys).mean(axis=1)
        return means

    def play(self, members: Players, keys: ArrayLike) -> NDArray[np.float64]:
        """Plays an episode in every environment: returns [P, E], the sums of rewards.

        Episodes of a network without state run side by side, as T = E rows of one call; of a
        recurrent one, E must be 1. An episode that ended is not credited any more. Members with a
        policy draw their actions, a model takes the likeliest.

        Args:
            members: of `ask`, P of them; a model, which begins with a zero state; or a function of
                rows int8 [P, E, inputs].
            keys: random words [R], of `Trainer.keys`, where R divides P: players of a group, as
                2i and 2i + 1, play the same episodes, a pure function of the words.

        Raises:
            InputError: keys of another number, or outputs that do not fit the environment.
        """
        given, P, E = array_of("keys", keys), self.members, self.episodes
        if given.dtype.kind not in "iu" or (given < 0).any():
            raise InputError(f"keys are {given.dtype}: words of Trainer.keys are needed.")
        words = given.astype(np.uint64, copy=False).reshape(-1)
        if not len(words) or P % len(words):
            raise InputError(f"keys are {len(words)} words: a number that divides {P} is needed.")
        if E > 1 and isinstance(members, Members | Model) and _program(members).state_size:
            raise InputError(
                f"episodes is {E} and the network is recurrent: it plays one at a time; use "
                "episodes=1 and more members or updates."
            )
        seen, total = self._reset(words), np.zeros(P * E)
        active, first = np.ones(P * E, np.bool_), True
        while active.any():
            actions = self._act(members, seen, active.reshape(P, E), first)
            seen, reward, terminated, truncated, _ = self._env.step(actions)
            total[active] += reward[active]
            self.steps += int(np.count_nonzero(active))
            active &= ~(terminated | truncated)
            first = False
        return total.reshape(P, E)

    def close(self) -> None:
        """Ends the environments."""
        self._env.close()

    def _act(
        self, members: Players, seen: NDArray[Any], active: NDArray[np.bool_], first: bool
    ) -> NDArray[Any]:
        """Actions of all players for what they see, [P E, ..]."""
        P, E = active.shape
        rows = self.observe(seen).reshape(P, E, -1)
        begins = np.full((P, E), first)
        if isinstance(members, Members):
            if _program(members).policies and self.outputs:
                taken = members.act(rows, begins=begins, active=active).reshape(P * E)
                return self.decode(np.eye(self.outputs, dtype=np.int8)[taken])
            outputs = members(rows, begins=begins, active=active)
        elif isinstance(members, Model):
            if first:
                members.reset()
            outputs = members(rows, begins=begins)
        else:
            outputs = members(rows)
        if isinstance(outputs, np.ndarray) and outputs.shape[:2] != (P, E):
            raise InputError(
                f"outputs are {list(outputs.shape)}: [{P}, {E}, size] are needed, of every player."
            )
        if not isinstance(outputs, np.ndarray) or self.outputs not in (0, outputs.shape[-1]):
            shapes = outputs.shape[-1] if isinstance(outputs, np.ndarray) else sorted(outputs)
            raise InputError(
                f"outputs are {shapes}: one output of {self.outputs or 'any'} values is needed, or "
                "a decode of your own."
            )
        return self.decode(outputs.reshape(P * E, -1))

    def _reset(self, words: NDArray[np.uint64]) -> NDArray[Any]:
        """Begins all episodes anew; environment (p, e) by word p // (P / R) and e."""
        P, E, R = self.members, self.episodes, len(words)
        if not self._native:
            seeds = np.stack([rng.counters(int(word), 0, E) & SEEDS for word in words])
            return np.asarray(
                self._env.reset(seed=seeds.repeat(P // R, axis=0).ravel().tolist())[0]
            )
        # One generator draws all starts: those of the first R x E are handed out to the groups.
        seen, _ = self._env.reset(seed=rng.key(*words.tolist()) & int(SEEDS))
        source = np.arange(R * E).reshape(R, E).repeat(P // R, axis=0).ravel()
        inside = self._env.unwrapped
        inside.state = np.ascontiguousarray(inside.state[..., source])
        return np.asarray(seen)[source]


def gym(
    name: str,
    *,
    members: int,
    episodes: int = 1,
    observe: Observe | None = None,
    decode: Decode | None = None,
    mode: str = "",
    **options: Any,
) -> Gym:
    """Gymnasium's environment `name`, as many times as a population plays it.

    Args:
        name: as gymnasium.make takes it, such as "CartPole-v1".
        members: P, of the population; or the episodes that a model is to play.
        episodes: E, of every member, each with another start.
        observe: observations [n, ..] -> int8 [n, inputs]; default: `quantise` by `scales` of the
            space's bounds.
        decode: outputs [n, size] -> actions; default: `argmax`, or `box` between bounds.
        mode: of gymnasium.make_vec: "sync", "async" for slow environments; default: the fastest.
        options: of gymnasium.make.

    Raises:
        InputError: Gymnasium is missing, or it has no such environment.
    """
    return Gym(name, members, episodes, observe, decode, mode, options)


NATIVE = "vector_entry_point"


def _fastest(name: str) -> str:
    """The environment's own vectorised form, where it has one that can be started by state."""
    spec = _gymnasium().registry.get(name)
    own = spec is not None and str(spec.vector_entry_point).endswith(":CartPoleVectorEnv")
    return NATIVE if own else "sync"


def _gymnasium() -> Any:
    try:
        return import_module("gymnasium")
    except ModuleNotFoundError:
        raise InputError(
            "Gymnasium is missing: install it with pip install 'eggroll-mlx[gym]'."
        ) from None


def _program(members: Members | Model) -> Program:
    return members.program if isinstance(members, Model) else members._reader.program


__all__ = ["Gym", "argmax", "box", "gym", "scales"]
