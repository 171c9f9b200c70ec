"""Gymnasium's environments, vectorised: populations and models play all episodes in lockstep.

Letters: P players, members of a population or copies of a model; E episodes of each; R keys.
"""

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

__all__ = ["Gym", "argmax", "box", "gym", "scales"]

# Outputs [n, size] -> actions [n] or [n, ..], as the environment takes them.
Decode = Callable[[NDArray[Any]], NDArray[Any]]
# Observations of many environments, [n, ..] -> int8 [n, inputs].
Observe = Callable[[NDArray[Any]], NDArray[np.int8]]
# Members, a model, or a function of rows int8 [P, E, inputs] -> outputs [P, E, size].
Players = Members | Model | Callable[[NDArray[np.int8]], NDArray[Any]]
SEED_MASK = np.uint64((1 << 31) - 1)  # of seeds that every environment takes
OWN_VECTORISED = "vector_entry_point"  # mode of make_vec: the environment's own form
UNBOUNDED_FROM = 1e6  # bounds from here on count as none
UNBOUNDED_SCALE = (
    32.0  # scale of a value without bounds: 1.0 is 32, and values beyond 4 are clipped
)


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
                name, num_envs=members * episodes, vectorization_mode=mode or _fastest_mode(name),
                **options,
            )  # fmt: skip
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError, ValueError) as error:
            raise InputError(f"environment {name!r} cannot be made: {error}.") from None
        self.observe = observe or observe_for(self._env.single_observation_space)
        decoder = decode_for(self._env.single_action_space) if decode is None else (decode, 0)
        self.decode, self.outputs = decoder
        self._native = mode == "" and _fastest_mode(name) == OWN_VECTORISED
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
        values, P, E = array_of("keys", keys), self.members, self.episodes
        if values.dtype.kind not in "iu" or (values < 0).any():
            raise InputError(f"keys are {values.dtype}: words of Trainer.keys are needed.")
        words = values.astype(np.uint64, copy=False).reshape(-1)
        if not len(words) or P % len(words):
            raise InputError(f"keys are {len(words)} words: a number that divides {P} is needed.")
        if E > 1 and isinstance(members, Members | Model) and _program(members).state_size:
            raise InputError(
                f"episodes is {E} and the network is recurrent: it plays one at a time; use "
                "episodes=1 and more members or updates."
            )
        observations, returns = self._reset(words), np.zeros(P * E)
        active, first = np.ones(P * E, np.bool_), True
        while active.any():
            actions = self._act(members, observations, active.reshape(P, E), first)
            observations, reward, terminated, truncated, _ = self._env.step(actions)
            returns[active] += reward[active]
            self.steps += int(np.count_nonzero(active))
            active &= ~(terminated | truncated)
            first = False
        return returns.reshape(P, E)

    def close(self) -> None:
        """Ends the environments."""
        self._env.close()

    def _act(
        self, members: Players, observations: NDArray[Any], active: NDArray[np.bool_], first: bool
    ) -> NDArray[Any]:
        """Actions of all players for what they see, [P E, ..]."""
        P, E = active.shape
        rows = self.observe(observations).reshape(P, E, -1)
        begins = np.full((P, E), first)
        if isinstance(members, Members):
            if _program(members).policies and self.outputs:
                actions = members.act(rows, begins=begins, active=active).reshape(P * E)
                return self.decode(np.eye(self.outputs, dtype=np.int8)[actions])
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
            seeds = np.stack([rng.counters(int(word), 0, E) & SEED_MASK for word in words])
            return np.asarray(
                self._env.reset(seed=seeds.repeat(P // R, axis=0).ravel().tolist())[0]
            )
        # One generator draws all starts: those of the first R x E are handed out to the groups.
        observations, _ = self._env.reset(seed=rng.key(*words.tolist()) & int(SEED_MASK))
        starts = np.arange(R * E).reshape(R, E).repeat(P // R, axis=0).ravel()
        environment = self._env.unwrapped
        environment.state = np.ascontiguousarray(environment.state[..., starts])
        return np.asarray(observations)[starts]


def _fastest_mode(name: str) -> str:
    """The environment's own vectorised form, where it has one that can be started by state."""
    spec = _gymnasium().registry.get(name)
    startable = spec is not None and str(spec.vector_entry_point).endswith(":CartPoleVectorEnv")
    return OWN_VECTORISED if startable else "sync"


def _gymnasium() -> Any:
    """The package gymnasium.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module("gymnasium")
    except ModuleNotFoundError:
        raise InputError(
            "Gymnasium is missing: install it with pip install 'eggroll-mlx[gym]'."
        ) from None


def _program(members: Members | Model) -> Program:
    return members.program if isinstance(members, Model) else members._reader.program


# Observations.


def observe_for(space: Any) -> Observe:
    """The function that makes int8 of observations of a Gymnasium space.

    Box: `quantise` with `scales` of its bounds, flat. Discrete: 64 at the place of the number, 0
    elsewhere.

    Raises:
        InputError: another space.
    """
    kind = type(space).__name__
    if kind == "Box":
        factors = scales(space.low, space.high)
        return lambda observations: quantise(observations.reshape(len(observations), -1), factors)
    if kind == "Discrete":
        one_hot = np.diag(np.full(int(space.n), 64, np.int8))
        return lambda observations: one_hot[observations - int(space.start)]
    raise InputError(
        f"observations are of a {kind} space: pass observe, a function that makes int8 [n, inputs] "
        "of them."
    )


def scales(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float32]:
    """Scales for `quantise` of values within low..high [..]: the wider bound becomes 127.

    A value without bounds has the scale 32. float32 [n], of the values side by side.
    """
    bound = np.maximum(abs(low.astype(np.float64)), abs(high.astype(np.float64))).reshape(-1)
    bounded = (bound > 0) & (bound < UNBOUNDED_FROM)
    return np.where(bounded, LIMIT / np.where(bounded, bound, 1), UNBOUNDED_SCALE).astype(
        np.float32
    )


# Actions.


def decode_for(space: Any) -> tuple[Decode, int]:
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
    actions: NDArray[np.float32] = bottom + share * (top - bottom)
    return actions
