"""Trainer: any declared network, any fitness, by ask and tell.

Letters: P members, N = P/2 pairs, R readers, T rows. The update is step.Learner's, as of every run
of the command line.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypedDict,
    Unpack,
    get_type_hints,
)

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.cli import command as cli
from eggroll.cli.command import Range, check_names, check_ranges
from eggroll.cli.screen import per_second
from eggroll.errors import InputError, array_of, in_python, is_real, shown, whole_number
from eggroll.evolution.estimators import MIN_DIFFERING, Estimate, FitnessName, as_values, within
from eggroll.evolution.rules import RuleName, rules_with
from eggroll.files import path_of
from eggroll.library import folder as trainer_log
from eggroll.library import learning, worlds
from eggroll.library.folder import TrainerLog
from eggroll.library.learning import ErrorUpdate
from eggroll.library.members import (
    Members,
    Model,
    RowArrays,
    RowReader,
    Store,
    Whole,
    member_weights,
    refusal,
)
from eggroll.library.pool import Pool
from eggroll.native import World
from eggroll.spec import rng
from eggroll.spec.credit import Turns
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.losses import LossName, Targets
from eggroll.spec.noise import slice_length
from eggroll.spec.program import Batch, Leaves, Lists, Program, program_of
from eggroll.training import checkpoint, trackers
from eggroll.training.config import Evolution, GuardName
from eggroll.training.learner import engine_for, new_learner

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
# Those of ESTIMATORS that learn from values or errors of a caller.
TrainerEstimator = Literal["eggroll", "token-votes", "token-credit", "local", "feedback"]
NONE = {"first_rate": 1.0, "weight_decay": 0.0}  # where a rule has none


@dataclass(frozen=True)
class TrainerOptions(Evolution):
    """See Trainer, which has an argument for most of them."""

    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0
    threads: Annotated[int, Range(0, 1024)] = 0
    steps: Annotated[int, Range(1, 10**9)] = 1000
    fitness: FitnessName = "sign"
    first_rate: Annotated[float, Range(1, 64)] = NONE["first_rate"]
    weight_decay: Annotated[float, Range(0, 0.5)] = NONE["weight_decay"]
    groups: Annotated[int, Range(1, 1 << 23)] = 1
    carry: bool = False
    checkpoint_every: Annotated[int, Range(0, 10**9)] = 50
    track: str = trackers.NONE

    group_size: ClassVar[int] = 2  # members that are compared: those of a pair
    seq_len: ClassVar[int] = 1  # rows of an update, as far as they are known when it begins

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Options of numbers of Python's or NumPy's.

        Raises:
            InputError: an option is unknown or of another type.
        """
        known, hints = [field.name for field in fields(cls)], get_type_hints(cls)
        if unknown := sorted(values.keys() - {*known}):
            raise InputError(
                f"Option {unknown[0]!r} is unknown: the options are {', '.join(known)}."
            )
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}
        for name, value in plain.items():
            kind = hints[name]
            if kind in WORDS and type(value) not in ((int, float) if kind is float else (kind,)):
                raise InputError(f"{name} is {shown(value)}: {WORDS[kind]} is needed.")
        return cls(**plain)

    def check(self, program: Program) -> None:
        """Raises InputError, in the words of a caller from Python."""
        with in_python():
            check_ranges(self)
            check_names(self)
            trackers.check_installed(self.track)
        reason = self.estimator_class.refuses_values
        if reason and self.estimator_class.perturbs:
            raise InputError(
                f'estimator is {self.estimator!r}: {reason}; use "eggroll" or "token-credit".'
            )
        with in_python():
            self.estimator_class.check(self)
            self.rule_class.check(self, self.estimator_class)
        if self.fitness != "sign" and self.estimator_class.by_token:
            raise InputError(
                f"fitness is {self.fitness!r}: estimator {self.estimator} credits the rows "
                'themselves; leave it out, or use estimator="eggroll".'
            )
        if self.fitness != "sign" and not self.estimator_class.perturbs:
            raise InputError(
                f"fitness is {self.fitness!r}: estimator {self.estimator} learns from errors, not "
                "from values; leave it out."
            )
        given = [name for name, none in NONE.items() if getattr(self, name) != none]
        if vain := [name for name in given if self.rule not in rules_with(name)]:
            what = " and ".join(f"{name} is {getattr(self, name):g}" for name in vain)
            instead = ", ".join(f"{name}={NONE[name]:g}" for name in vain)
            raise InputError(f"{what}: rule {self.rule} has none: give {instead}.")
        if self.groups > 1 and (self.estimator_class.by_token or not self.estimator_class.perturbs):
            raise InputError(
                f"groups is {self.groups}: estimator {self.estimator} does not compare members by "
                'their values; leave it out, or use estimator="eggroll".'
            )
        if self.pop % (2 * self.groups):
            raise InputError(
                f"groups is {self.groups} and pop {self.pop}: each group needs as many pairs; try "
                f"pop={2 * self.groups * -(-self.pop // (2 * self.groups))}, or groups=1."
            )
        others = self.rule_class.fitness
        if self.fitness != "sign" and others and self.fitness not in others:
            raise InputError(
                f"fitness is {self.fitness!r}: rule {self.rule} knows the scale of the votes of "
                f'fitness "sign" and {", ".join(others)} alone; use rule="sign" or "whitened".'
            )
        if self.estimator_class.by_token and len(program.policies) > 1:
            raise InputError(
                f"The network has {len(program.policies)} policies and estimator {self.estimator} "
                'credits the actions of one: declare one, or use estimator="eggroll".'
            )
        longest = max((slice_length(leaf.shape, self.rank) for leaf in program.leaves), default=0)
        if longest > 1 << (self.table_bits - 1):
            raise InputError(
                f"table_bits is {self.table_bits}: half of the noise table must hold the longest "
                f"slice, {longest} bytes; try table_bits={(longest - 1).bit_length() + 1}."
            )


def check_trainable(net: Program) -> None:
    """Raises InputError for a network that no values from outside can train."""
    if not isinstance(net, Program):
        raise InputError(
            f"net is of type {type(net).__name__}: an eggroll.Program is needed, such as "
            "networks.mlp(27, [64], 9)."
        )
    net.check()
    if net.scored:
        raise InputError(
            "The network has a score: a language model is trained by eggroll.train; leave the "
            "score out, and give its logits to a caller by output."
        )
    if not net.leaves:
        raise InputError("The network has no weights: give it a linear operation, for one.")


class MoreOptions(TypedDict, total=False):
    """Options of eggroll.train that a Trainer has, too; and three of its own."""

    clt: bool
    noise_reuse: Whole
    table_bits: Whole
    rate_decay: float
    first_rate: float
    weight_decay: float
    groups: Whole
    block_tokens: Whole
    guard: GuardName
    track: str


class Control(TypedDict):
    """The options of `control`."""

    rule: RuleName
    fitness: FitnessName
    sigma_shift: Whole
    learning_rate: float
    rate_decay: float
    first_rate: float
    weight_decay: float
    groups: Whole


def control(
    *,
    rule: RuleName = "master",
    fitness: FitnessName = "log-ranks",
    sigma_shift: Whole = 1,
    learning_rate: float = 3.2,
    rate_decay: float = 0.0,
    first_rate: float | None = None,
    weight_decay: float | None = None,
    groups: Whole = 2,
) -> Control:
    """Options of a Trainer that is told returns: `eg.Trainer(net, **eg.control())`.

    They were measured to hold over the tasks of experiments/control, with 16 members;
    docs/control.md says what each one does. Arguments replace them, as of `Trainer`; first_rate and
    weight_decay are 2.5 and 0.005 unless given, of rules that have none 1 and 0.
    """
    if first_rate is None:
        first_rate = 2.5 if rule in rules_with("first_rate") else NONE["first_rate"]
    if weight_decay is None:
        weight_decay = 0.005 if rule in rules_with("weight_decay") else NONE["weight_decay"]
    return {
        "rule": rule, "fitness": fitness, "sigma_shift": sigma_shift,
        "learning_rate": learning_rate, "rate_decay": rate_decay, "first_rate": first_rate,
        "weight_decay": weight_decay, "groups": groups,
    }  # fmt: skip


class CheckpointPart(Protocol):
    """An object whose arrays go into checkpoints; see `Trainer.keep`."""

    def arrays(self) -> dict[str, NDArray[Any]]: ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None: ...


def kept_arrays(thing: CheckpointPart, name: str) -> checkpoint.Arrays:
    """Copies of an object's arrays, as files have them.

    Raises:
        InputError: it has no such methods, or something else than arrays of numbers by name.
    """
    if not all(callable(getattr(thing, method, None)) for method in ("arrays", "restore")):
        raise InputError(f"{shown(thing)} cannot be kept: it needs methods `arrays` and `restore`.")
    given = thing.arrays()
    if not isinstance(given, Mapping):
        raise InputError(f"arrays of {name!r} are {shown(given)}: a dict by name is needed.")
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise InputError(f"arrays of {name!r} have {shown(wrong[0])}: names must be texts.")
    made = {key: array_of(f"{key!r} of {name!r}", a) for key, a in given.items()}
    for key, array in made.items():
        if array.dtype.kind not in "biuf" or array.itemsize > 8:
            raise InputError(
                f"{key!r} of {name!r} is {array.dtype}: numbers of 64 bits at most are needed."
            )
    return {key: np.array(a, a.dtype.newbyteorder("="), order="C") for key, a in made.items()}


def checked_weights(net: Program, given: Any) -> Leaves:
    """Weights of a caller as int8 arrays of MLX, in declared order.

    Raises:
        InputError: a leaf is missing, unknown, or of another shape, type or range.
    """
    if not isinstance(given, Mapping):
        raise InputError(
            f"weights is of type {type(given).__name__}: a dict of int8 arrays by the names of "
            "leaves is needed, such as the weights of a Trainer."
        )
    names = [leaf.name for leaf in net.leaves]
    for name in (*names, *given):
        if (name in given) != (name in names):
            what = "has no" if name in names else "has an unknown"
            raise InputError(f"weights {what} leaf {shown(name)}: {', '.join(names)} are needed.")
    made = Leaves()
    for leaf in net.leaves:
        array = array_of(f"weights of {leaf.name!r}", given[leaf.name])
        if array.dtype != np.int8 or array.shape != leaf.shape:
            hint = "; eggroll.quantise makes them of real numbers" * (array.dtype.kind == "f")
            raise InputError(
                f"weights of {leaf.name!r} are {array.dtype} {list(array.shape)}: int8 "
                f"{list(leaf.shape)} are needed{hint}."
            )
        if array.min(initial=0) < -LIMIT:
            raise InputError(f"weights of {leaf.name!r} have -128: -127 to 127 are allowed.")
        made[leaf.name] = mx.array(np.ascontiguousarray(array))
    return made


# Fitness, updates before, member, and what rebuilds the weights of a member then.
_BestSeen = tuple[float, int, int, Callable[[int], dict[str, NDArray[np.int8]]]]

STALLED_UPDATES = 10  # with hardly a difference between members, that are worth a warning
ACTIONS = -1  # the purpose of the words that policies draw by


class Update(NamedTuple):
    """The end of an update: its number, and what it was like.

    fitness: mean value of the members; update_rate: share of the weights that moved; nonzero_ratio:
    share of the pairs (with token credit: of their rows) whose two members were worth different
    values, below 0.01 nothing is learnt; seconds: since `ask`; fitness_best: that of the best
    member; rows_per_second: of all members together.
    """

    step: int
    fitness: float
    update_rate: float
    nonzero_ratio: float
    seconds: float
    fitness_best: float
    rows_per_second: float


class Best(NamedTuple):
    """The best member that `tell` was given a value of.

    step: updates made before its own; fitness: its mean value; weights: int8 by name, see Members.
    """

    step: int
    member: int
    fitness: float
    weights: dict[str, NDArray[np.int8]]


class Trainer:
    """Trains a declared network by evolution: `ask` for its members, `tell` what they were worth.

    step: updates made. The same seed and the same values told give the same weights on every
    engine, chunk and number of threads, and after `save` and `load`. A `with` block closes it, and
    what ends the block, Ctrl-C and SIGTERM too, leaves a checkpoint of the last update in `out`.
    """

    def __init__(
        self,
        net: Program,
        *,
        pop: Whole = 1024,
        estimator: TrainerEstimator = "eggroll",
        rule: RuleName = "sign",
        seed: Whole = 0,
        steps: Whole = 1000,
        fitness: FitnessName = "sign",
        sigma_shift: Whole = 1,
        rank: Whole = 1,
        alpha: float = 4.0,
        alpha_decay: Whole = 1000,
        learning_rate: float = 1.0,
        discount: Whole = 0,
        carry: bool = False,
        engine: str = "auto",
        threads: Whole = 0,
        chunk: Whole = 0,
        out: str | Path = "",
        checkpoint_every: Whole = 50,
        weights: Mapping[str, ArrayLike] | None = None,
        **more: Unpack[MoreOptions],
    ) -> None:
        """A trainer before its first update.

        Args:
            net: the network, with an output.
            pop: P, members of the population, even: 2i and 2i + 1 have opposite noise.
            estimator: "eggroll", noise on weights and one value per member; "token-credit" and
                "token-votes" credit every row; "feedback" and "local" carry errors back, without
                noise, see `learn`.
            rule: "sign", the paper's; "whitened" for token credit of larger networks; "master";
                "adam" for errors carried back.
            seed: of the initial weights and the noise.
            steps: updates planned, which shape the learning rate of rules whitened and master.
            fitness: what estimator eggroll makes of the values of a pair: "sign" of the difference;
                "ranks", "centred": their size counts; "log-ranks": that of the best most.
            sigma_shift: N of the noise scale 2^-(4 + N): 1 or 2 for decisions, 3 or 4 for
                smooth losses.
            rank: of the noise on a matrix, estimator eggroll.
            alpha, alpha_decay: rule sign, see eggroll.train --help.
            learning_rate: rules whitened, master and adam; of whitened about 0.7 x 64 / K for plain
                ReLU layers of K inputs.
            discount: token credit, what a value is worth to the row before, in sixteenths, in a
                recurrent network.
            carry: whether members' states go on from update to update.
            engine: "auto", "cpu", "portable", "metal" or "cuda"; all give the same bits.
            threads: of engine cpu; 0 takes all cores.
            chunk: members at a time, even; 0 fits them into a memory budget.
            out: a new folder, which gets config.json, a line of metrics.jsonl for every update and
                checkpoint.safetensors; without it nothing is written.
            checkpoint_every: updates from one checkpoint to the next; 0 leaves it to `close`.
            weights: what to begin with, int8 by the leaf's name, such as `weights` of a Trainer or
                of a model; None draws them by the seed.
            more: options of eggroll.train: clt, noise_reuse, table_bits, rate_decay, block_tokens,
                guard; first_rate, of rule master: what learning_rate is times in the first update,
                half of that in the eleventh and so on, down to 1; weight_decay, of rule master:
                the share by which matrices shrink in an update; groups, of as many neighbours
                each, which `tell` ranks among themselves, as by keys(groups) each plays another
                episode; and track, "tensorboard", "wandb" or "trackio", with `out`.

        Raises:
            InputError: an option out of range, a network that cannot be trained so, or a folder
                that cannot be made or holds a run.
        """
        given = dict(locals())
        for name in ("self", "net", "out", "more", "weights"):
            del given[name]
        self._begin(net, TrainerOptions.of(given | more), weights)
        if self.options.track != trackers.NONE and not out:
            raise InputError(
                f"track is {self.options.track!r} and trackers go with a folder: give out, too."
            )
        if out != "":
            self._write_into(TrainerLog.new(path_of(out)))

    def _begin(
        self,
        net: Program,
        options: TrainerOptions,
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        check_trainable(net)
        options.check(net)
        # Its own, whatever becomes of the given.
        net = program_of(net.declaration(), net.score_bits)
        self.program, self.options = net, options
        self.engine, self.reason = engine_for(options, net)
        self._learner = new_learner(options, self.engine)
        self._warm = weights is not None
        if weights is not None:
            self._learner.begin_with(checked_weights(net, weights))
        # What is not yet computed, only this thread could compute.
        mx.eval(self._learner.weights, self._learner.memory, self._learner.state)
        self._members: Members | None = None
        self._value_scale, self._stalled, self._still, self._store = 0.0, 0, 0, Store()
        self._beyond = False
        self._best: _BestSeen | None = None
        self._kept, self._kept_arrays = dict[str, CheckpointPart](), dict[str, checkpoint.Arrays]()
        self._pool: Pool | None = None
        self._readers = learning.Readers(self._learner, options.threads)
        self._errors = learning.ErrorMaker(net, options.seed, options.threads)
        self._row_reader = RowReader(net, None, lambda batch: {})
        self._log: TrainerLog | None = None

    def _write_into(self, log: TrainerLog) -> None:
        with log.closed_by_errors():
            self._log = log
            self.save()
            log.begin(self.program, asdict(self.options), self._learner.population)

    def __repr__(self) -> str:
        o, parameters = self.options, sum(leaf.size for leaf in self._learner.weights.values())
        return (
            f"<Trainer: {parameters:,} parameters, {o.pop:,} members, estimator {o.estimator}, "
            f"rule {o.rule}, {self.step} of {o.steps} updates, engine {self.engine.name}>"
        )

    @property
    def pop(self) -> int:
        """P, members."""
        return self.options.pop

    @property
    def step(self) -> int:
        """Updates made."""
        return self._learner.step

    @property
    def weights(self) -> dict[str, NDArray[np.int8]]:
        """int8 leaves by name, in declared order; copies."""
        return {name: np.array(leaf) for name, leaf in self._learner.weights.items()}

    @property
    def signature(self) -> str:
        """Hex sha256 of all int8 weights in declared order: equal for bit-identical models."""
        return checkpoint.signature(self._learner.weights)

    @property
    def model(self) -> Model:
        """The network as it is now, without noise; each of them begins with a zero state."""
        return Model(self.engine, self._learner.weights)

    @property
    def best(self) -> Best | None:
        """The best member so far, None before one; checkpoints keep it.

        Its weights are rebuilt from its noise, so noise must be on weights.

        Raises:
            InputError: members of this estimator have no weights of their own.
        """
        if self._weights_of(self._learner.weights, self.step) is None:
            raise InputError(
                f"Members of estimator {self.options.estimator} have no weights of their own: "
                'es.weights are those of the network, or use estimator="eggroll".'
            )
        if self._best is None:
            return None
        fitness, step, member, rebuild = self._best
        return Best(step, member, fitness, rebuild(member))

    def _weights_of(
        self, weights: Leaves, step: int
    ) -> Callable[[int], dict[str, NDArray[np.int8]]] | None:
        """Member -> its weights in update `step`; None where noise is not on weights."""
        population = self._learner.population
        crediting = population.crediting
        if not self.options.estimator_class.perturbs or (crediting and crediting.nodes):
            return None

        def rebuilt(member: int) -> dict[str, NDArray[np.int8]]:
            noise = population.noise.slices(step, member // 2, 1)
            return member_weights(self.program, weights, noise, 1 - 2 * (member % 2))

        return rebuilt

    def keys(self, readers: Whole, purpose: Whole = 0) -> NDArray[np.uint64]:
        """Random words [readers] of this update, for a caller's own chance.

        The same for the members of a group, as common random numbers are: reader i of R stands for
        members i P / R and on. A pure function of (seed, step, purpose, reader).
        """
        readers = whole_number("readers", readers, 1, 1 << 32)
        purpose = whole_number("purpose", purpose, 0, (1 << 32) - 1)
        stream = rng.key(self.options.seed, rng.CALLER, self.step, purpose)
        return rng.counters(stream, 0, readers)

    def ask(self) -> Members:
        """This update's perturbed networks; asking again begins the update anew."""
        if self._log:
            self._log.check_open()
        learner = self._learner
        population = learner.population
        self._state = learner.state if self.options.carry else population.initial_state()
        crediting, turns = population.crediting, None
        if crediting is not None:
            turns = Turns(
                crediting, seed=self.options.seed, step=self.step, pairs=self.options.pop // 2
            )
        nodes = crediting is not None and crediting.nodes
        self._began = time.perf_counter()
        perturbs = learner.estimator.perturbs

        def run(batch: Batch) -> dict[str, mx.array]:
            if members is not self._members:
                raise InputError(
                    "These members are of an update that is over: call ask() for the new ones."
                )
            if not perturbs:
                outputs, self._state = population.plain_outputs(
                    learner.weights, batch._replace(state=self._state)
                )
                return outputs
            signs = turns.window(members.rows, batch.size[1]) if turns and nodes else None
            outputs, self._state = population.outputs(
                learner.weights, learner.step, batch._replace(state=self._state), signs
            )
            return outputs

        action_key = rng.key(self.options.seed, rng.CALLER, self.step, ACTIONS)
        self._store.clear()
        members = Members(
            self.program, self.options.pop, run, turns, self._state, action_key, self._store,
            perturbs, self._weights_of(learner.weights, learner.step),
        )  # fmt: skip
        self._members = members
        return members

    def tell(self, values: ArrayLike) -> Update:
        """Makes the update, by what the members were worth: larger is better.

        values: real numbers [P]; or [P, T], one for every row that was shown since `ask`; or [P, G]
        where every call showed G rows, as of G games side by side, which are credited with it.
        Whole numbers below 2^53 are exact on every machine.

        Raises:
            InputError: another shape, a value that is not finite, or no `ask` with a call of its
                members before it; nothing has changed. Or a file of `out` cannot be written; the
                update is made.
        """
        if not self.options.estimator_class.perturbs:
            raise InputError(
                f"tell was given values and estimator {self.options.estimator} learns from errors: "
                'call tell_errors, or learn, or use estimator="token-credit".'
            )
        members = self._shown_members("tell")
        if self.options.estimator_class.by_token and not members.acts:
            raise InputError(
                "The policy's votes come from the actions that it drew: call members.act, not the "
                'members alone, or use estimator="eggroll".'
            )
        checked = self._checked(members, values)
        learner = self._learner
        rollout = members.rollout(self._state)._replace(value_scale=self._value_scale)
        fitness, groups = checked.reshape(self.pop, -1).mean(axis=1), self.options.groups
        compared = within(fitness, groups) if groups > 1 else checked
        result = learner.estimator.votes_from_values(
            learner.population, learner.weights, self.step, rollout, compared, self.options.fitness
        )
        after = self._state if self.options.carry else learner.state
        estimate = Estimate(mx.zeros(0, mx.int16), after, result.votes, result.decided)
        best, rebuild = int(fitness.argmax()), self._weights_of(learner.weights, learner.step)
        if rebuild and (self._best is None or fitness[best] > self._best[0]):
            self._best = float(fitness[best]), learner.step, best, rebuild
        with cli.uninterrupted() if self._log else nullcontext():
            rate = learner.adopt(estimate)
            self._members, self._value_scale = None, result.value_scale
            seconds = max(time.perf_counter() - self._began, 0.0)
            update = Update(
                self.step, float(checked.mean()), rate, result.differing, seconds,
                float(fitness[best]), per_second(self.pop * members.rows, seconds),
            )  # fmt: skip
            self._record(update)
        self._stalled = self._stalled + 1 if result.differing < MIN_DIFFERING else 0
        if self._stalled == STALLED_UPDATES:
            warnings.warn(
                f"update {self.step}: in {STALLED_UPDATES} updates fewer than "
                f"{MIN_DIFFERING:.0%} of the pairs differed in value: the task is solved, or all "
                "members fail alike; then try a smaller sigma_shift, a larger network or a finer "
                "fitness.",
                stacklevel=2,
            )
        self._still = 0 if rate or result.differing < MIN_DIFFERING else self._still + 1
        if self._still == STALLED_UPDATES:
            larger = self.options.rule_class.reads[0]
            warnings.warn(
                f"update {self.step}: in {STALLED_UPDATES} updates members differed in value and "
                f"rule {self.options.rule} moved no weight: try a larger {larger}.",
                stacklevel=2,
            )
        return update

    def learn(
        self,
        inputs: ArrayLike | None = None,
        targets: Any = None,
        *,
        loss: LossName | Mapping[str, LossName] = "softmax",
        errors: Any = None,
        features: ArrayLike | Lists | None = None,
        tokens: ArrayLike | None = None,
        begins: ArrayLike | None = None,
    ) -> ErrorUpdate:
        """Makes an update by the errors of rows, which estimators local and feedback carry back.

        Rows are those of a call of `model`, [R, T, ..] or [R, ..] for any R: a mini-batch. With
        `carry` states go on from the last update's, and R is pop.

        Args:
            inputs, features, tokens, begins: as of a call of the members.
            targets: of loss softmax whole numbers [R, T] or [R], the class, -1 for none; of squared
                and sigmoid [R, T, n] or [R, n]; a dict by output if there are several.
            loss: "softmax", "squared" or "sigmoid"; a dict by output to mix them.
            errors: in place of targets, what the outputs lack: int8 [R, T, n], 127 for a
                probability that is off by one, or real numbers, rounded by chance; a dict by
                output if there are several; or a function that makes them of the outputs.

        Raises:
            InputError: another estimator, shape or range; nothing has changed. Or a file of `out`
                cannot be written; the update is made.
        """
        self._check_learns("learn")
        if (targets is None) == (errors is None):
            raise InputError("learn needs either targets or errors: give one of them.")
        self._began = time.perf_counter()
        # A function of the outputs has the rows run before they are learnt.
        spans = self._learner.population.engine.looks_up and not callable(errors)
        arrays = RowArrays(inputs, features, tokens, begins)
        rows = self._row_reader.check(arrays, spans=spans)
        batch = rows.batch
        if self.options.carry:
            if batch.size[0] != self.pop:
                raise InputError(
                    f"{batch.size[0]} readers carry their states on and pop is {self.pop}: give "
                    "as many rows, or leave carry out."
                )
            batch = batch._replace(state=self._learner.state)
        lead = batch.size[:1] if rows.single else batch.size
        if targets is not None:
            return self._learn(batch, self._errors.targets(targets, loss, lead))
        if callable(errors):
            try:
                outputs = learning.plain_outputs(self._learner, self._readers, batch)
            except ValueError as error:
                raise refusal(batch, error) from None
            if rows.single:
                outputs = {name: array[:, 0] for name, array in outputs.items()}
            errors = errors(self._row_reader.public(outputs))
        return self._learn(batch._replace(errors=self._errors.given(errors, lead, self.step)))

    def tell_errors(self, errors: Any) -> ErrorUpdate:
        """Makes the update by the errors of all rows that the members of `ask` were shown.

        errors: as of `learn`, [P, T, n] of all T rows since `ask`, a dict if there are several
        outputs; so a policy learns from the actions that it drew. Of rows that were not `active`
        they are none.

        Raises:
            InputError: another estimator or shape, or no `ask` with a call of its members before
                it; nothing has changed. Or as of `tell`.
        """
        self._check_learns("tell_errors")
        members = self._shown_members("tell_errors")
        batch = members.shown(self.pop)
        some = next(iter(errors.values()), ()) if isinstance(errors, Mapping) else errors
        single = members.rows == 1 and array_of("errors", some).ndim == 2
        lead = batch.size[:1] if single else batch.size
        of_outputs = self._errors.given(errors, lead, self.step)
        return self._learn(batch._replace(errors=of_outputs * members.at_stake[..., None]))

    def _check_learns(self, name: str) -> None:
        if self._log:
            self._log.check_open()
        if self.options.estimator_class.perturbs:
            raise InputError(
                f"{name} carries errors back and estimator is {self.options.estimator!r}: use "
                'estimator="feedback" or "local", or ask and tell.'
            )

    def _learn(self, batch: Batch, targets: Targets | None = None) -> ErrorUpdate:
        learner, (R, T) = self._learner, batch.size

        def evaluated() -> tuple[Estimate, tuple[int, list[int]] | None]:
            estimate = learning.estimate(learner, self._readers, batch, targets)
            return estimate, learning.sums(estimate.learnt) if targets else None

        try:
            estimate, sums = learner.population.engine.run_guarded(evaluated)
        except ValueError as error:
            if batch.index is not None:  # says which
                Lists(batch.index, batch.features.reshape(R, T, -1, 2)).padded(self.program)
            raise refusal(batch, error) from None
        carries = self.options.carry and self.program.state_size
        after = estimate.state if carries else learner.state
        if targets and sums:
            size, loss = sums[0], targets.mean(self.program, sums[1])
        else:
            size, loss = int(np.abs(batch.errors).sum(dtype=np.int64)), math.nan
        mean = size / (R * T * self._errors.width)
        with cli.uninterrupted() if self._log else nullcontext():
            rate = learner.adopt(estimate._replace(state=after))
            self._members = None
            seconds = max(time.perf_counter() - self._began, 0.0)
            update = ErrorUpdate(self.step, loss, mean, rate, seconds, per_second(R * T, seconds))
            self._record(update)
        return update

    def _shown_members(self, name: str) -> Members:
        """The members of `ask`, which were shown rows."""
        members = self._members
        if members is None or not members.calls:
            what = "ask" if members is None else "a call of the members that ask returned"
            raise InputError(
                f"{name} comes without {what}: call ask(), then its members, then {name}."
            )
        return members

    def _record(self, update: Update | ErrorUpdate) -> None:
        """Adds an update to the folder, and a checkpoint where one is due.

        Warns of the first update of this process beyond the last one planned.
        """
        if self.step > self.options.steps and not self._beyond and self._learner.rule.by_steps:
            self._beyond = True
            warnings.warn(
                f"update {self.step}: {self.options.steps} were planned, by which rule "
                f"{self.options.rule} has let its rate fall as far as it goes; save and go on with "
                "Trainer.load(path, steps=...).",
                stacklevel=4,
            )
        present = {name: kept_arrays(thing, name) for name, thing in self._kept.items()}
        self._kept_arrays = {**self._kept_arrays, **present}
        if self._log:
            self._log.add({k: v for k, v in update._asdict().items() if v == v})  # without NaN
            every = self.options.checkpoint_every
            if self.step == self.options.steps or (every and self.step % every == 0):
                self.save()

    def play(self, world: World, rows: Whole, *, shared: Any = None, group: Whole = 2) -> Update:
        """Makes an update by a native world, in which every member has `rows` rows; docs/native.md.

        The weights are those of `ask`, a call of the members for every row and `tell`. On the cpu
        engine worlds are stepped within its kernels, on others row by row.

        shared: what the world reads, an array, ctypes object or address; group: members that are
        given the same key, even.

        Raises:
            InputError: they do not fit the network or the population, or the memory; nothing has
                changed.
        """
        call = worlds.world_call(self.program, self.options, world, rows, shared, self.keys, group)
        members, learner = self.ask(), self._learner
        with worlds.in_memory(world, self.pop):
            if worlds.plays_inside(learner.population, self._value_scale):
                values, self._state = worlds.inside(
                    learner, members, call, self._state, self._value_scale
                )
            else:
                values = worlds.lockstep(members, call, self.options.threads)
        return self.tell(values)

    def map(
        self,
        fitness: Callable[[Model, int], float],
        *,
        processes: Whole = 0,
        timeout: float = 0.0,
    ) -> Update:
        """Makes an update by a fitness in plain Python, called in worker processes.

        fitness(model, key) -> a number, larger is better, for every member; key: a random word,
        the same for all members of the update. model: a Model with the weights of
        `members.weights`. A member whose fitness crashes is worth as little as the worst of the
        others, and a warning names it; its process is replaced.

        Args:
            fitness: a function at the top of a module, which other processes can import.
            processes: workers; 0 for as many as cores. They live until `close`, or another fitness.
            timeout: seconds after which a fitness counts as crashed; 0 for none.

        Raises:
            InputError: another estimator than "eggroll", a fitness that cannot be sent, workers
                that do not start, or every member crashed; nothing has changed.
        """
        if not is_real(timeout) or timeout < 0:
            raise InputError(f"timeout is {shown(timeout)}: a number of seconds from 0 is needed.")
        if not self.options.estimator_class.replays:
            raise InputError(
                f"map gives members as networks, and those of estimator {self.options.estimator} "
                'have no weights of their own: use estimator="eggroll".'
            )
        if self._pool is None or not self._pool.serves(fitness, processes):
            self._close_pool()
            self._pool = Pool(fitness, processes, self.program, self.engine.name)
        members, key = self.ask(), int(self.keys(1)[0])
        values = self._pool.values(members.weights, self.pop, key, timeout)
        members.ran_elsewhere()
        return self.tell(values)

    def _close_pool(self) -> None:
        if self._pool:
            self._pool.close()
        self._pool = None

    def _checked(self, members: Members, values: ArrayLike) -> NDArray[np.float64]:
        """Values as float64, [P] or [P, rows]."""
        P, rows, columns = self.options.pop, members.rows, members.columns
        try:
            checked = as_values(values)
        except ValueError as error:
            raise InputError(f"{error}.") from None
        if checked.shape == (P, columns) and rows != columns and rows == columns * members.calls:
            return np.tile(checked, (1, members.calls))
        if checked.shape not in ((P,), (P, rows)):
            raise InputError(
                f"fitness has the shape {list(checked.shape)}: [{P}] is needed, a value for every "
                f"member, or [{P}, {rows}], for every row that was shown to it"
                + f", or [{P}, {columns}], for every game"
                * (rows == columns * members.calls > columns)
                + "."
            )
        return checked

    def save(self, path: str | Path = "") -> None:
        """Writes everything that `load` needs to go on, bit for bit, as one safetensors file.

        An update that was asked for and not told is no part of it. path: the file; if left out, the
        checkpoint of the folder `out`.

        Raises:
            InputError: the file cannot be written; what was there before is intact.
        """
        trainer_log.save(
            path_of(path) if path else self._log, self.program, asdict(self.options),
            self._learner, self._value_scale, warm=self._warm, extras=self._extras(),
        )  # fmt: skip

    def _extras(self) -> trainer_log.Extras:
        """The parts of a checkpoint beside the learner."""
        best = self._best and (*self._best[:3], self._best[3](self._best[2]))
        return trainer_log.Extras(self._kept_arrays, best)

    def _take_extras(self, extras: trainer_log.Extras) -> None:
        self._kept_arrays = extras.kept
        if extras.best:
            fitness, step, member, weights = extras.best
            self._best = fitness, step, member, lambda member: deepcopy(dict(weights))

    def keep(self, thing: CheckpointPart, name: str = "environment") -> None:
        """Puts what an object has learnt, such as an environment's normalisation, in checkpoints.

        It goes in as it was at the end of the last update. A trainer that was loaded gives the
        object what its checkpoint has under this name. thing: with methods `arrays` -> arrays by
        name, and `restore`, which takes them, as of `eg.envs.gym`.

        Raises:
            InputError: a name that is none, an object without such methods, something else than
                arrays of numbers, or arrays of another object.
        """
        if not isinstance(name, str) or not name or "/" in name:
            raise InputError(f"name is {shown(name)}: a text without / is needed.")
        kept_arrays(thing, name)  # refuses what cannot be kept before anything changes
        if name in self._kept_arrays:
            thing.restore(self._kept_arrays[name])
        self._kept[name] = thing
        self._kept_arrays = {**self._kept_arrays, name: kept_arrays(thing, name)}

    @classmethod
    def load(cls, path: str | Path, net: Program | None = None, **changes: Any) -> Self:
        """The trainer that was saved, which goes on as if it had never stopped.

        path: a file, or a folder `out`, where it goes on writing; net: the network that it must be
        of, if it is to be checked; changes: options that are to be others from now on, such as
        engine, which changes no bit, steps, pop, or estimator and rule for another phase; all but
        the seed. What a new rule or estimator keeps and the old one did not begins anew.

        Raises:
            InputError: missing, damaged, foreign, in use, of another network, or options that do
                not go together.
        """
        if net is not None:
            check_trainable(net)
        with trainer_log.opened(path_of(path)) as (file, log):
            saved = trainer_log.read(file, net, changes)
            self = cls.__new__(cls)
            before = TrainerOptions.of(saved.before)
            self._begin(saved.program, TrainerOptions.of(saved.options))
            self._value_scale, self._warm = saved.value_scale, saved.warm
            self._take_extras(saved.extras)
            saved.restore(self._learner, before.rule_class, before.estimator_class, before.pop)
            if log:
                self._write_into(log)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """All that copies and other processes need; a copy has no folder."""
        learner = self._learner
        return {
            "declaration": self.program.declaration(),
            "score_bits": self.program.score_bits,
            "options": asdict(self.options),
            "step": learner.step,
            "weights": {name: np.array(leaf) for name, leaf in learner.weights.items()},
            "memory": {name: np.array(leaf) for name, leaf in learner.memory.items()},
            "state": np.array(learner.state),
            "value_scale": self._value_scale,
            "warm": self._warm,
            "extras": self._extras(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        net = program_of(state["declaration"], state["score_bits"])
        self._begin(net, TrainerOptions.of(state["options"]))
        learner = self._learner
        learner.step, learner.state = state["step"], mx.array(state["state"])
        learner.weights = {name: mx.array(leaf) for name, leaf in state["weights"].items()}
        learner.memory = {name: mx.array(leaf) for name, leaf in state["memory"].items()}
        mx.eval(learner.weights, learner.memory, learner.state)
        self._value_scale, self._warm = state["value_scale"], state["warm"]
        self._take_extras(state["extras"])

    def close(self) -> None:
        """Saves what is new into the folder `out` and gives it free: no more updates are made.

        Without a folder it ends the processes of `map` alone.
        """
        self._close_pool()
        if self._log:
            try:
                self._log.finish(self.step, self.save)
            finally:
                self._members = None

    def __enter__(self) -> Self:
        if self._log:
            self._log.heed_signals()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if self._log:
            self._log.note_interrupt(error, self.step)
