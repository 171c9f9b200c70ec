"""Gymnasium's environments, vectorised: populations and models play all episodes in lockstep.

Letters: P players, members of a population or copies of a model; E episodes of each; R keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.envs.classic import CLASSIC, Classic
from eggroll.envs.lockstep import Lockstep, Makers, Processes
from eggroll.envs.normalisation import Normalisation
from eggroll.envs.spaces import (
    Decode,
    Observe,
    Squash,
    decode_for,
    kind_of,
    numbers_for,
    observe_for,
)
from eggroll.errors import InputError, array_of, is_real, is_whole, shown, whole_number
from eggroll.library.members import Members, Model, Whole
from eggroll.spec import rng
from eggroll.spec.fixed_point import LIMIT

# Members, a model, or a function of rows int8 [P, E, inputs] -> outputs [P, E, size].
Players = Members | Model | Callable[[NDArray[np.int8]], NDArray[Any]]
SEED_MASK = np.uint64((1 << 31) - 1)  # of seeds that every environment takes
OWN_VECTORISED = "vector_entry_point"  # mode of make_vec: the environment's own form
LIMIT_OPTION = "max_episode_steps"
SHARE = 8  # one of so many must have ended before others are cut


def gym(
    name: Any,
    *,
    members: Whole,
    episodes: Whole = 1,
    observe: Observe | None = None,
    decode: Decode | None = None,
    mode: str = "",
    normalise: bool = False,
    squash: Squash = "clip",
    span: Whole = LIMIT,
    patience: float | None = None,
    **options: Any,
) -> Gym:
    """An environment of Gymnasium's, as many times as a population plays it.

    Args:
        name: an id as gymnasium.make takes it, such as "CartPole-v1"; a function that makes an
            environment; an environment, of which copies are played; or a vector environment of
            members x episodes.
        members: P, of the population; or the episodes that a model is to play.
        episodes: E, of every member, each with another start.
        observe: observations [n, ..] -> int8 [n, inputs]; default: `observe_for` the space.
        decode: outputs [n, size] -> actions; default: `decode_for` the space.
        mode: "sync": one after another; "async": in as many processes as cores, for slow ones; or
            another of gymnasium.make_vec; default: the fastest that is not "async", for classic
            control a form of eggroll's own that is tested to be Gymnasium's.
        normalise: whether rows are observations less their running mean, over their deviation, in
            integers; see `Gym.normalisation`, and `Trainer.keep`, which puts it into checkpoints.
        span: what the wider bound of a number becomes, 127 or less; 64 keeps sums of a network
            with few inputs from the clip.
        squash: of actions between bounds: "clip", in a straight line, or "tanh", by a table.
        patience: 1 or more: once an eighth of the members that play the same start have ended, the
            others have so many times their steps; who then has a smaller return than each of that
            eighth is cut, as by a time limit. Default: nobody is. A model is never cut.
        options: of gymnasium.make, or of the function; max_episode_steps is a limit for either.

    Raises:
        InputError: Gymnasium is missing, or it has no such environment.
    """
    span = whole_number("span", span, 1, LIMIT)
    for what, function in (("observe", observe), ("decode", decode)):
        if function is not None and not callable(function):
            raise InputError(f"{what} is {shown(function)}: a function is needed, or None.")
    if not isinstance(normalise, bool):
        raise InputError(f"normalise is {shown(normalise)}: True or False is needed.")
    if patience is not None and not (is_real(patience) and patience >= 1):
        raise InputError(f"patience is {patience!r}: a number from 1 on is needed, or None.")
    if (limit := options.pop(LIMIT_OPTION, None)) is not None:
        options[LIMIT_OPTION] = whole_number(LIMIT_OPTION, limit, 1)
    how = _Functions(observe, decode, normalise, squash, span, patience)
    return Gym(_Source(name, mode, options), members, episodes, how)


class _Source(NamedTuple):
    """The caller's environment, and how many of it are made."""

    given: Any  # id, function, environment or vector environment
    mode: str
    options: dict[str, Any]


class _Functions(NamedTuple):
    """The caller's functions, and what stands for those that are None."""

    observe: Observe | None
    decode: Decode | None
    normalise: bool
    squash: Squash
    span: int
    patience: float | None


def _check_actions(space: Any, actions: Any, n: int) -> None:
    """Raises InputError unless `decode` gave an action for each of n environments."""
    if (kind := kind_of(space)) in ("Dict", "Tuple"):
        return
    given, shape = np.asarray(actions), [n, *space.shape]
    if list(given.shape) != shape:
        raise InputError(
            f"decode gave actions {list(given.shape)}: {shape} are needed, one for every episode."
        )
    if kind != "Discrete":
        return
    least, most = int(space.start), int(space.start + space.n) - 1
    if given.dtype.kind not in "iu" or not least <= given.min() <= given.max() <= most:
        raise InputError(
            f"decode gave actions {given.dtype} {given.min()} to {given.max()}: whole numbers from "
            f"{least} to {most} are needed."
        )


class Gym:
    """P x E environments of one kind, which all players step in lockstep.

    inputs: values of an observation as int8; outputs: values that `decode` needs, 0 if it is the
    caller's; steps: environment steps of all episodes so far; lengths, truncated: of the last
    play's episodes [P, E], their steps, and whether a time limit or `patience` ended them;
    normalisation: mean and deviation of observations, None without `normalise`.
    """

    def __init__(
        self, source: _Source, members: Whole, episodes: Whole, functions: _Functions
    ) -> None:
        _gymnasium()
        whole = is_whole(members) and is_whole(episodes)
        if not whole or members < 1 or episodes < 1:
            raise InputError(
                f"members is {members!r} and episodes is {episodes!r}: whole numbers from 1 on are "
                "needed."
            )
        members, episodes = int(members), int(episodes)
        self.members, self.episodes, self.steps = members, episodes, 0
        self._source, self._functions = source, functions
        self._env, self._alone = _environments(source, members * episodes), list[Gym]()
        self.normalisation: Normalisation | None = None
        seen_space, action_space = (
            self._env.single_observation_space, self._env.single_action_space
        )  # fmt: skip
        self.draws = kind_of(action_space) == "Discrete"
        if functions.normalise:
            self._use_normalisation(seen_space)
        else:
            self.observe = functions.observe or observe_for(seen_space, functions.span)
        if functions.decode is None:
            self.decode, self.outputs = decode_for(action_space, functions.squash)
        else:
            self.decode, self.outputs = functions.decode, 0
        self.lengths = np.zeros((members, episodes), np.int64)
        self.truncated = np.zeros((members, episodes), np.bool_)
        self.inputs = self.observe(self._reset(np.zeros(1, np.uint64))).shape[-1]

    def _use_normalisation(self, space: Any) -> None:
        if self._functions.observe is not None:
            raise InputError(
                "observe and normalise are both given: leave one of them out, or normalise in "
                "observe."
            )
        self._numbers = numbers_for(space)
        size = self._numbers(self._reset(np.zeros(1, np.uint64))).shape[-1]
        normalisation = Normalisation(size)
        self.normalisation = normalisation
        self.observe = lambda seen: normalisation.rows(self._numbers(seen))

    def evaluate(self, members: Players, keys: ArrayLike) -> NDArray[np.float64]:
        """Mean return of every player's episodes, [P]; see `play`."""
        means: NDArray[np.float64] = self.play(members, keys).mean(axis=1)
        return means

    def play(self, members: Players, keys: ArrayLike) -> NDArray[np.float64]:
        """Plays an episode in every environment: returns [P, E], the sums of rewards.

        Episodes of a network without state run side by side, as T = E rows of one call; those of a
        recurrent one follow each other. An episode that ended, or that a time limit ended, is not
        credited any more. Members with a policy draw their actions, a model takes the likeliest.
        What members see is counted by `normalise`, and changes their rows from the next play on.

        Args:
            members: of `ask`, P of them; a model, which begins with a zero state; or a function of
                rows int8 [P, E, inputs].
            keys: random words [R], of `Trainer.keys`, where R divides P: players of a group, as
                2i and 2i + 1, play the same episodes, a pure function of the words.

        Raises:
            InputError: keys or members of another number, or outputs or actions that do not fit the
                environment.
        """
        values, P, E = array_of("keys", keys), self.members, self.episodes
        if isinstance(members, Members) and members.members != P:
            raise InputError(
                f"the environment was made for members={P}, and ask gave {members.members}: make "
                "it for as many as pop."
            )
        if values.dtype.kind not in "iu" or (values < 0).any():
            raise InputError(f"keys are {values.dtype}: words of Trainer.keys are needed.")
        words = values.astype(np.uint64, copy=False).reshape(-1)
        if not len(words) or P % len(words):
            raise InputError(f"keys are {len(words)} words: a number that divides {P} is needed.")
        if E > 1 and isinstance(members, Members | Model) and members.program.state_size:
            return self._one_by_one(members, words)
        counts = self.normalisation if isinstance(members, Members) else None
        race, patience = None, self._functions.patience
        if patience is not None and not isinstance(members, Model):
            race = _Race(patience, (len(words), P // len(words), E))
        observations, returns = self._reset(words), np.zeros(P * E)
        active, steps = np.ones(P * E, np.bool_), 0
        self.lengths[:], self.truncated[:] = 0, False
        with counts.counted() if counts else nullcontext():
            while active.any():
                if counts:
                    counts.add(self._numbers(observations)[active])
                actions = self._act(members, observations, active.reshape(P, E), not steps)
                observations, reward, terminated, truncated, _ = self._env.step(actions)
                returns[active] += reward[active]
                steps += 1
                self.steps += int(np.count_nonzero(active))
                self.lengths += active.reshape(P, E)
                self.truncated |= (active & truncated & ~terminated).reshape(P, E)
                active &= ~(terminated | truncated)
                if race is not None and (lost := race.lost(steps, active, returns)).any():
                    if isinstance(self._env, Lockstep | Processes):  # others step on, unheeded
                        self._env.rest(lost)
                    self.truncated |= lost.reshape(P, E)
                    active &= ~lost
        return returns.reshape(P, E)

    def _one_by_one(
        self, members: Members | Model, words: NDArray[np.uint64]
    ) -> NDArray[np.float64]:
        """`play` of a recurrent network, whose members have one state each."""
        if not self._alone:
            if _is_vector(self._source.given):
                raise InputError(
                    f"episodes is {self.episodes} and the network is recurrent: it plays one at a "
                    "time; give a vector environment of as many as members, and episodes=1."
                )
            alone = Gym(self._source, self.members, 1, self._functions)
            alone.normalisation, alone.observe = self.normalisation, self.observe
            self._alone.append(alone)
        (alone,) = self._alone
        each = np.stack([rng.counters(int(word), 0, self.episodes) for word in words])
        before, returns = alone.steps, list[NDArray[np.float64]]()
        for e in range(self.episodes):
            returns.append(alone.play(members, each[:, e])[:, 0])
            self.lengths[:, e] = alone.lengths[:, 0]
            self.truncated[:, e] = alone.truncated[:, 0]
        self.steps += alone.steps - before
        return np.stack(returns, axis=1)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """The normalisation's arrays for a checkpoint, none without; see `Trainer.keep`."""
        return self.normalisation.arrays() if self.normalisation else {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes what `arrays` gave; an InputError where it is of another environment."""
        if self.normalisation:
            self.normalisation.restore(arrays)
        elif arrays:
            raise InputError(
                "the checkpoint has a normalisation of observations, and the environment none: "
                "make it with normalise=True."
            )

    def close(self) -> None:
        """Ends the environments."""
        for env in (self._env, *self._alone):
            env.close()

    def _act(
        self, members: Players, observations: Any, active: NDArray[np.bool_], first: bool
    ) -> NDArray[Any]:
        """Actions of all players for what they see, [P E, ..]."""
        P, E = active.shape
        rows = self.observe(observations).reshape(P, E, -1)
        begins = np.full((P, E), first)
        if isinstance(members, Members):
            if members.program.policies and self.outputs:
                if not self.draws:
                    raise InputError(
                        "the network has a policy, which draws one of several actions, and the "
                        "environment takes others: declare an output in its place."
                    )
                actions = members.act(rows, begins=begins, active=active).reshape(P * E)
                return self.decode(np.eye(self.outputs, dtype=np.int8)[actions])
            outputs = members(rows, begins=begins, active=active)
        elif isinstance(members, Model):
            if first:
                members.reset()
            outputs = members(rows, begins=begins)
        else:
            outputs = members(rows)
        if isinstance(outputs, np.ndarray) and (outputs.ndim, *outputs.shape[:2]) != (3, P, E):
            raise InputError(
                f"outputs are {list(outputs.shape)}: [{P}, {E}, size] are needed, of every player."
            )
        if not isinstance(outputs, np.ndarray) or self.outputs not in (0, outputs.shape[-1]):
            shapes = outputs.shape[-1] if isinstance(outputs, np.ndarray) else sorted(outputs)
            raise InputError(
                f"outputs are {shapes}: one output of {self.outputs or 'any'} values is needed, or "
                "a decode of your own."
            )
        actions = self.decode(outputs.reshape(P * E, -1))
        if self._functions.decode:
            _check_actions(self._env.single_action_space, actions, P * E)
        return actions

    def _reset(self, words: NDArray[np.uint64]) -> Any:
        """Begins all episodes anew; environment (p, e) by word p // (P / R) and e."""
        P, E, R = self.members, self.episodes, len(words)
        env = self._env
        own = isinstance(env, Classic)
        if not own and not _starts_by_state(env):
            seeds = np.stack([rng.counters(int(word), 0, E) & SEED_MASK for word in words])
            return env.reset(seed=seeds.repeat(P // R, axis=0).ravel().tolist())[0]
        # One generator draws all starts: those of the first R x E are handed out to the groups.
        seed = rng.key(*words.tolist()) & int(SEED_MASK)
        starts = np.arange(R * E).reshape(R, E).repeat(P // R, axis=0).ravel()
        if own:
            return env.begin(env.starts(np.random.default_rng(seed), R * E)[:, starts])
        observations, _ = env.reset(seed=seed)
        environment = env.unwrapped
        environment.state = np.ascontiguousarray(environment.state[..., starts])
        return np.asarray(observations)[starts]


class _Race:
    """Players that have lost: they go on long after others of their start ended, and have less.

    Letters: R starts, N players of each, E episodes.
    """

    def __init__(self, patience: float, shape: tuple[int, int, int]) -> None:
        """shape: R, N, E."""
        R, _, E = self._shape = shape
        self._patience = patience
        self._until = np.full((R, 1, E), np.inf)  # steps that those who have less may play
        self._least = np.zeros((R, 1, E))  # return of those that ended first

    def lost(
        self, steps: int, active: NDArray[np.bool_], returns: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Those of all active ones [R N E] who are to be cut after so many steps."""
        going, so_far = active.reshape(self._shape), returns.reshape(self._shape)
        ended = np.count_nonzero(~going, axis=1, keepdims=True)
        new = np.isinf(self._until) & (ended * SHARE >= self._shape[1])
        least = np.where(going, np.inf, so_far).min(axis=1, keepdims=True)
        self._until = np.where(new, self._patience * steps, self._until)
        self._least = np.where(new, least, self._least)
        return (going & (steps >= self._until) & (so_far < self._least)).reshape(-1)


# Making environments.


def _environments(source: _Source, n: int) -> Any:
    """n environments that step together.

    Raises:
        InputError: they cannot be made.
    """
    gymnasium = _gymnasium()
    given, mode, options = source
    named = isinstance(given, str)
    about = f"environment {given!r}" if named else f"the environment {shown(given)}"
    try:
        if named:
            return _by_id(gymnasium, given, n, mode, options)
        if _is_vector(given):
            return _checked_vector(given, n, source)
        if mode not in ("", "sync", "async"):
            raise InputError(f'mode is {mode!r}: "sync" or "async" is needed.')
        return _together(mode, [_maker(gymnasium, given, options)] * n)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError, ValueError) as error:
        raise InputError(f"{about} cannot be made: {error}.") from None


def _by_id(gymnasium: Any, name: str, n: int, mode: str, options: dict[str, Any]) -> Any:
    if mode == "" and name in CLASSIC and not options:
        single = gymnasium.make(name)
        try:
            return CLASSIC[name](n, single, single.spec.max_episode_steps)
        finally:
            single.close()
    mode = mode or _fastest_mode(name)
    if mode in ("sync", "async"):
        return _together(mode, [lambda: gymnasium.make(name, **options)] * n)
    return gymnasium.make_vec(name, num_envs=n, vectorization_mode=mode, **options)


def _together(mode: str, makers: Makers) -> Lockstep | Processes:
    return Processes(makers) if mode == "async" else Lockstep(makers)


def _maker(gymnasium: Any, given: Any, options: dict[str, Any]) -> Callable[[], Any]:
    """The function that makes one environment of a function or of an environment."""
    more = {name: value for name, value in options.items() if name != LIMIT_OPTION}
    if isinstance(given, gymnasium.Env):
        if more:
            raise InputError(
                f"option {next(iter(more))!r} was given to an environment that is made already: "
                "give its id, or a function that makes it."
            )
        make = _copier(gymnasium, given)
    elif callable(given):

        def make() -> Any:
            return given(**more)
    else:
        raise InputError(
            f"name is {shown(given)}: an id, a function that makes an environment, an environment "
            "or a vector environment is needed."
        )
    limit = options.get(LIMIT_OPTION)

    def limited() -> Any:
        env = make()
        if not isinstance(env, gymnasium.Env):
            raise InputError(f"the function made {shown(env)}: an environment is needed.")
        return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)

    return limited


def _copier(gymnasium: Any, env: Any) -> Callable[[], Any]:
    """Copies of an environment; by its spec where it cannot be copied, as of Box2D."""
    try:
        copy.deepcopy(env)
    except Exception as error:  # of anybody's code
        if env.spec is None:
            raise InputError(
                f"the environment {shown(env)} cannot be copied ({error}): give a function that "
                "makes it."
            ) from None
        return lambda: gymnasium.make(env.spec)
    return lambda: copy.deepcopy(env)


def _is_vector(given: Any) -> bool:
    return isinstance(given, _gymnasium().vector.VectorEnv)


def _checked_vector(env: Any, n: int, source: _Source) -> Any:
    if env.num_envs != n:
        raise InputError(
            f"the vector environment has {env.num_envs} environments: members x episodes, {n}, are "
            "needed."
        )
    if source.mode or source.options:
        raise InputError(
            "mode and options are for environments that are still to be made: leave them out with "
            "a vector environment."
        )
    return env


def _starts_by_state(env: Any) -> bool:
    """True for Gymnasium's vectorised CartPole, which draws all starts by one seed."""
    return type(getattr(env, "unwrapped", env)).__name__ == "CartPoleVectorEnv"


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
