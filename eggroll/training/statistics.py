"""Statistics of an update: ties, threshold and rate, votes and weights per leaf, activations.

Letters: P members, N = P/2 pairs, T tokens, Z votes (int32, one array per leaf).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import exp, lgamma, pi, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll.data.corpus import Streams
from eggroll.engines import ENGINES, zero_state
from eggroll.errors import EngineError
from eggroll.evolution.estimators import UpdateInput
from eggroll.evolution.population import Population
from eggroll.evolution.step import Learner, Step
from eggroll.files import METRICS, Row
from eggroll.spec.credit import Crediting, CreditKind, draw_signs
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.program import (
    MAX_OPERATIONS,
    MAX_REGISTERS,
    MAX_SIZE,
    Batch,
    Leaves,
    Op,
    Output,
    Program,
    Stage,
    X,
)
from eggroll.training.config import Config
from eggroll.training.folder import Metrics, read_lines


class Observed(NamedTuple):
    """An update as it was made."""

    start: UpdateInput
    made: Step
    tied: float | None  # share of the pairs of all ranks whose scores tie; None without noise


def observe(learner: Learner, start: UpdateInput, made: Step) -> Observed:
    """Observes the update that was just made, on all ranks together."""
    population = learner.population
    if not learner.estimator.perturbs:
        return Observed(start, made, None)
    if learner.fitness is not None:  # of all pairs, on every rank
        fitness = np.asarray(learner.fitness)
        return Observed(start, made, share(int(np.count_nonzero(fitness == 0)), fitness.size))
    scores = np.asarray(made.scores)
    here = int(np.count_nonzero(scores[0::2] == scores[1::2])), scores.size // 2
    ties, of = population.ranks.table(here).sum(axis=0).tolist()
    return Observed(start, made, share(ties, of))


def figures(learner: Learner, observed: Observed) -> dict[str, Any]:
    """The fields of a line of statistics.jsonl that are about votes and weights."""
    made, step = observed.made, observed.start.step
    threshold, rate = learner.rule.used(step, made.decided)
    tied = {} if observed.tied is None else {"tied": observed.tied}
    return {
        **tied,
        "threshold": threshold,
        "rate": None if rate is None else float(f"{rate:.{DIGITS}g}"),
        "leaves": leaves(
            observed.start.weights, learner.weights, made.votes, noise_of(learner, observed)
        ),
    }


def noise_of(learner: Learner, observed: Observed) -> dict[str, float]:
    """Mean |Z| of votes that were pure chance, for the leaves where it is known."""
    population, made = learner.population, observed.made
    if not learner.estimator.perturbs:
        return {}
    if learner.estimator.known_scale:
        return of_pairs(population, made.decided or 0)
    return of_credit(population, observed.start, made.scores)


def leaves(before: Any, after: Leaves, votes: Leaves, noise: dict[str, float]) -> dict[str, Any]:
    """The figures of every leaf, by its name."""
    rows = {}
    for name, weights in after.items():
        host = np.asarray(weights)
        row: dict[str, Any] = {"update_rate": share(changed(before[name], host), host.size)}
        if noise.get(name):
            mean = total_size(votes[name]) / host.size
            row["vote_over_noise"] = round(mean / noise[name], DIGITS)
        rows[name] = row | distribution(host, "weights")
    return rows


# What lines that no run has written may lead to; they are left as they are.
FOREIGN = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)


class StatisticsLog(Metrics):
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
        self._watch = TroubleWatch(config, self._nodes.gates, self._nodes.logits)
        self._catch_up(path)

    def _catch_up(self, path: Path) -> None:
        """Shows the watch what it saw before the run was stopped, so that it says nothing twice."""
        losses = deque(row for _, row in read_lines(path.with_name(METRICS)))
        for _, record in read_lines(path):
            while losses and losses[0]["step"] <= record["step"]:
                self._watch.loss(losses.popleft().get("loss"))
            with contextlib.suppress(*FOREIGN):
                self._watch.troubles(record)
        for row in losses:
            self._watch.loss(row.get("loss"))

    def _tokens(self, step: int) -> NDArray[np.int32]:
        """Tokens that the first streams read from update `step` on, int32 [R, T]."""
        batches = range(step, step + -(-TOKENS // self._streams.seq_len))
        read = [self._streams.batch(number).tokens for number in batches]
        return np.ascontiguousarray(np.concatenate(read, axis=1)[:, :TOKENS])

    def append(self, row: Row) -> None:
        """Adds the lines of an update that is to be recorded; row: its line of metrics.jsonl."""
        self._watch.loss(row["loss"])
        observed = self._observed()
        if observed is None:
            return
        record = {
            "step": row["step"],
            **figures(self._learner, observed),
            "activations": self._nodes.figures(
                self._learner.weights, self._tokens(observed.start.step)
            ),
        }
        super().append(record)
        for sentence in self._watch.troubles(record):
            super().append({"step": row["step"], "warning": sentence})
            self._say(sentence)


# Warnings where training goes wrong.

LASTING = 50  # updates, and at least two records, for which a sign must show itself
TIED = 0.8  # share of pairs that tie; sound runs have below 0.1
SATURATED = 0.6  # share of a gate's values at +-127; sound runs have below 0.4
DEAD = 0.5  # share of a node's units; sound runs have below 0.4
STILL, LATE = 1e-4, 0.8  # share of weights that move; share of the steps after which few may
WILD = 0.8  # share of weights that move; sound runs have that in their first updates alone
NOISE, RECORDS = 1.03, 5  # mean |Z| over that of chance in so many records: no signal to be seen
WINDOW, WINDOW_PART, GAIN = (
    400,
    4,
    0.002,
)  # updates or part of the steps in which loss falls by this share
SOLVED = 0.1  # bits per token below which there is nothing left to learn


class TroubleWatch:
    """Looks at the records of a run, in order, and finds what is to be said of it, once each."""

    def __init__(
        self, config: Config, gates: Collection[str] = (), logits: Collection[str] = ()
    ) -> None:
        """gates: names of the nodes that gate a state; logits: of those of the score, of which a
        token that never occurs keeps one value."""
        self._config, self._gates, self._logits = config, gates, logits
        self._losses = deque[float](maxlen=max(WINDOW, config.steps // WINDOW_PART))
        self._sizes = deque[float](maxlen=RECORDS)  # of votes, over those of chance
        self._since: dict[Callable[..., str], int] = {}  # update of the first record in a row
        self._said: set[Callable[..., str]] = set()

    def loss(self, loss: Any) -> None:
        """Is told the loss of every update, recorded or not."""
        if isinstance(loss, int | float):
            self._losses.append(loss)

    def troubles(self, record: Record) -> list[str]:
        """The sentences that this record gives rise to, most often none."""
        step, sentences = record["step"], []
        for sign in (self._tied, self._gated, self._dead, self._still, self._wild, self._noise):
            sentence = sign(record)
            if not sentence:
                self._since.pop(sign, None)
                continue
            since = self._since.setdefault(sign, step)
            if step - since >= LASTING and sign not in self._said:
                self._said.add(sign)
                sentences.append(f"updates {since} to {step}: {sentence}")
        return sentences

    @property
    def _solved(self) -> bool:
        return bool(self._losses) and self._losses[-1] <= SOLVED

    def _tied(self, record: Record) -> str:
        if record.get("tied", 0) <= TIED or self._solved:
            return ""
        finer = "" if self._config.score_bits == 8 else ", or --score-bits 8"
        return (
            f"{record['tied']:.1%} of the pairs tie, so that few of them vote: the noise is too "
            f"small to change a score, or scores are too coarse; try a smaller --sigma-shift (now "
            f"{self._config.sigma_shift}){finer}."
        )

    def _gated(self, record: Record) -> str:
        nodes = record.get("activations", {})
        found = {name: nodes[name]["saturated"] for name in self._gates if name in nodes}
        name, most = _largest(found)
        if most <= SATURATED:
            return ""
        less = option_for(self._config, more=False)
        return (
            f"{most:.0%} of the values of gate {name} are at their limits, so that it is open or "
            f"closed whatever it reads: weights grew too large; try {less}, in a new run."
        )

    def _dead(self, record: Record) -> str:
        nodes = record.get("activations", {})
        found = {name: nodes[name]["dead"] for name in nodes if name not in self._logits}
        name, most = _largest(found)
        if most <= DEAD:
            return ""
        less = option_for(self._config, more=False)
        return (
            f"{most:.0%} of the units of {name} give the same value at every token, so that they "
            f"say nothing: training diverged; try {less}, in a new run, or another --seed."
        )

    def _still(self, record: Record) -> str:
        late = record["step"] > LATE * self._config.steps
        moved = update_rate(record)
        if moved is None or moved >= STILL or late or self._solved:
            return ""
        return (
            f"hardly a weight moves ({moved:.2g} of them in an update): the steps are too small "
            f"for weights of int8; try {option_for(self._config, more=True)}."
        )

    def _wild(self, record: Record) -> str:
        config, moved = self._config, update_rate(record)
        # A schedule begins with all of them.
        falls = "alpha" in config.rule_class.reads and config.alpha > 1
        if moved is None or moved <= WILD or (falls and 2 * record["step"] <= config.alpha_decay):
            return ""
        return (
            f"{moved:.0%} of the weights move in every update, also those whose votes are chance: "
            f"the steps are too large; try {option_for(config, more=False)}."
        )

    def _noise(self, record: Record) -> str:
        size = vote_over_noise(record)
        if size is None:
            return ""
        self._sizes.append(size)
        size = sum(self._sizes) / len(self._sizes)
        if size >= NOISE or self._solved or not self._stalled():
            return ""
        return (
            f"votes are as large as chance makes them ({size:.3f} times) and the loss has not "
            f"fallen in {len(self._losses)} updates: too few members to tell what helps, or "
            f"nothing is left to learn; try a "
            f"larger --pop (now {self._config.pop}) or another --sigma-shift (now "
            f"{self._config.sigma_shift})."
        )

    def _stalled(self) -> bool:
        """True if the loss of the window's second half is not below that of its first."""
        count = len(self._losses)
        if count < (self._losses.maxlen or 0):
            return False
        halves = (islice(self._losses, i * count // 2, (i + 1) * count // 2) for i in range(2))
        first, second = (sum(half) for half in halves)
        return second > first * (1 - GAIN)


def _largest(shares: Mapping[str, float]) -> tuple[str, float]:
    """The name and value of the largest; ("", 0) of none."""
    return max(shares.items(), key=lambda item: item[1], default=("", 0.0))


def _mean(record: Record, figure: str) -> float | None:
    """A figure's mean over the weights of all leaves that have it."""
    leaves: Sequence[Any] = [leaf for leaf in record.get("leaves", {}).values() if figure in leaf]
    sizes = [sum(leaf["weights"]) for leaf in leaves]
    pairs = zip(leaves, sizes, strict=True)
    return sum(leaf[figure] * size for leaf, size in pairs) / sum(sizes) if sizes else None


def update_rate(record: Record) -> float | None:
    """The share of all weights that moved."""
    return _mean(record, "update_rate")


def vote_over_noise(record: Record) -> float | None:
    """Mean |Z| over that of chance, of all weights for which it is known."""
    return _mean(record, "vote_over_noise")


def option_for(config: Config, *, more: bool) -> str:
    """Words for the option by which weights move more, or less."""
    towards, away = ("larger", "smaller") if more else ("smaller", "larger")
    if "alpha" not in config.rule_class.reads:
        return f"a {towards} --learning-rate (now {config.learning_rate:g})"
    if config.alpha <= 1:
        return f"a {towards} --alpha (now {config.alpha:g})"
    return (
        f"a {away} --alpha (now {config.alpha:g}, a schedule) or a {towards} --alpha-decay (now "
        f"{config.alpha_decay})"
    )


# Votes of pure chance.

NORMAL = sqrt(2 / pi)  # mean size of a normal value over its deviation
BYTE = 256 + 1 / 12  # variance of a noise byte, rounding included
SIGN = 0.975  # share of noise bytes that are not 0, and so the variance of their signs
LARGEST, SHARE = 256, 8  # pairs of a sample: this many at most, and one of so many
LEAST = 4  # pairs of a sample


def of_pairs(population: Population, decided: int) -> dict[str, float]:
    """Of votes that follow from the fitness of pairs: each that decided adds its noise.

    decided: their number. A sum of k products of two normal values is normal, given the one factor
    of each, with the deviation that these have together, which is distributed as chi of k degrees.
    """
    power = BYTE if population.clt else SIGN
    ranks = {2: population.noise.rank, 1: 1}
    terms = ((leaf.name, decided * ranks[len(leaf.shape)])
             for leaf in population.engine.program.leaves)  # fmt: skip
    return {name: NORMAL * power * _mean_chi(k) for name, k in terms if k}


Record = Mapping[str, Any]


def _mean_chi(k: int) -> float:
    """The mean length of k normal values; sqrt(k) of many."""
    return sqrt(2) * exp(lgamma((k + 1) / 2) - lgamma(k / 2))


def of_credit(population: Population, start: UpdateInput, scores: mx.array) -> dict[str, float]:
    """Of votes credited token by token: some pairs are credited with the scores of others.

    Their votes have the size of real ones and know nothing of their own noise. The leaves of
    layers alone: a rare token's row has too few of them, and a readout has no noise. Empty where
    there are too few pairs, or where members are compared with a group.
    scores: int16 [P, T], of the update that began with `start`.
    """
    crediting, all_pairs = population.crediting, population.everyone // 2
    pairs = min(LARGEST, all_pairs // SHARE, population.members // 2)
    if crediting is None or crediting.group or pairs < LEAST:
        return {}
    try:
        work = partial(_sample, population, crediting, start, scores, pairs)
        votes = population.engine.run_guarded(work)
    except EngineError:  # of which the next update will tell
        return {}
    scale = NORMAL * sqrt(all_pairs / pairs)
    kinds = zip(population.engine.program.leaves, crediting.kinds, strict=True)
    names = [leaf.name for leaf, kind in kinds if kind in (CreditKind.INPUTS, CreditKind.SCALAR)]
    return {name: scale * _deviation(np.asarray(votes[name])) for name in names}


def _sample(
    population: Population, crediting: Crediting, start: UpdateInput, scores: mx.array, pairs: int
) -> dict[str, mx.array]:
    """Votes of the first pairs here, each by the next one's score differences."""
    engine, noise, batch = population.engine, population.noise, start.batch
    first, T = population.before // 2, batch.size[1]
    signs = draw_signs(
        crediting, seed=noise.seed, step=start.step, first_pair=first, pairs=pairs, seq_len=T,
        threads=engine.threads,
    )  # fmt: skip
    scores_here = np.asarray(scores)[: 2 * pairs].astype(np.int32)
    values = np.roll(scores_here[0::2] - scores_here[1::2], 1, axis=0)
    rows = np.arange(2 * pairs) * len(batch.tokens) // population.members
    shown = batch.rows(lambda shared: mx.array(np.take(shared, rows, axis=0)))
    votes = engine.credit(
        population.prepared(start.weights), noise.slices(start.step, first, pairs),
        shown._replace(state=batch.state[: 2 * pairs]), signs, crediting, mx.array(values),
    )[2]  # fmt: skip
    mx.eval(votes)
    return votes


def _deviation(votes: NDArray[np.int32]) -> float:
    """The deviation of votes [O, K] or [n] about 0, in the mean over the inputs."""
    power = (votes.astype(np.float64) ** 2).mean(axis=0)
    return float(np.sqrt(power).mean())


# The values inside a network.

STREAMS, TOKENS = 16, 8  # looked at: enough to tell, and little beside an update
PLAIN = ("input", "concat")  # operations whose values were shown by the caller or elsewhere
GATED = ("forget", "mix")  # operations whose first input is a gate


class Nodes:
    """Looks into a network.

    names: of the nodes, a leaf's or stage and operation; gates: those that gate a state; logits:
    those of the score.
    """

    def __init__(self, program: Program) -> None:
        self.names: list[str] = []
        self.gates: set[str] = set()
        self.logits: set[str] = set()
        looked_at = self._with_outputs(program)
        name = "portable" if ENGINES["cpu"].unavailable_because() else "cpu"
        self._engine = ENGINES[name](looked_at, threads=1)

    def _with_outputs(self, program: Program) -> Program:
        """The program with an output behind every operation that makes values."""
        looked_into = replace(
            program, stages=[], outputs=[], policies=[], leaves=list(program.leaves), prefix=""
        )
        for number, stage in enumerate(program.stages):
            looked_into.stages.append(self._stage(program, number, stage, looked_into.outputs))
        return looked_into

    def _stage(self, program: Program, number: int, stage: Stage, outputs: list[Output]) -> Stage:
        """A stage whose values are put out, as far as it has room for that."""
        ops, registers, last = list[Op](), list(stage.registers), dict[int, str]()
        room = MAX_OPERATIONS - sum(op.kind not in ("output", "sums") for op in stage.ops)
        prefix = _prefix(program, number, stage)
        for op in (op for op in stage.ops if op.kind not in ("output", "sums")):
            if op.kind == "score":
                rows = program.leaves[op.leaf].shape[0]
                if rows > MAX_SIZE or len(registers) == MAX_REGISTERS:
                    continue
                registers.append(rows)
                op = op._replace(kind="linear", out=len(registers) - 1)
                self.logits.add(program.leaves[op.leaf].name)
            ops.append(op)
            name = self._name(program, prefix, op)
            if op.kind in GATED and op.inputs[0] in last:
                self.gates.add(last[op.inputs[0]])
            last[op.out] = name
            if op.kind in PLAIN or room == 0:
                continue
            room -= 1
            ops.append(Op("output", X, (op.out,), numbers=(len(outputs),)))
            outputs.append(Output(name, registers[op.out]))
            self.names.append(name)
        return Stage(ops, registers, stage.state)

    def _name(self, program: Program, prefix: str, op: Op) -> str:
        """The leaf's, or that of the operation, with a number from the second one on."""
        plain = program.leaves[op.leaf].name if op.leaf >= 0 else f"{prefix}{op.kind}"
        taken, number, name = set(self.names), 1, plain
        while name in taken:
            number += 1
            name = f"{plain}{number}"
        return name

    def values(self, weights: Leaves, tokens: NDArray[np.int32]) -> dict[str, NDArray[np.int8]]:
        """Of every node, int8 [R, T, n], of streams that begin with a zero state.

        tokens: int32 [R, T].
        """
        engine = self._engine
        with mx.stream(mx.cpu):
            state = zero_state(engine.program, len(tokens))
            prepared = engine.prepare(weights)
            outputs, _ = engine.outputs(prepared, None, Batch(mx.array(tokens), state=state))
            mx.eval(outputs)
        return {name: np.asarray(outputs[name]) for name in self.names}

    def figures(self, weights: Leaves, tokens: NDArray[np.int32]) -> dict[str, Any]:
        """The figures of every node, by its name."""
        return {name: figures_of(v) for name, v in self.values(weights, tokens).items()}


def _prefix(program: Program, number: int, stage: Stage) -> str:
    """The common beginning of the names of a stage's leaves, or its number."""
    names = [program.leaves[op.leaf].name for op in stage.ops if op.leaf >= 0]
    if names and "." in names[0]:
        return names[0].rpartition(".")[0] + "."
    return f"stage{number}."


def figures_of(values: NDArray[np.int8]) -> dict[str, Any]:
    """Of a node's values [R, T, n]; a unit is dead if all R * T of its values are the same."""
    rows = values.reshape(-1, values.shape[-1])
    dead = int(np.count_nonzero((rows == rows[0]).all(axis=0))) if len(rows) > 1 else 0
    shares = distribution(np.ascontiguousarray(rows), "values")
    return {"saturated": shares["saturated"], "dead": share(dead, rows.shape[1]), **shares}


# Counts of values.

BINS = 32  # of a histogram over -128 .. 127, each of 8 values
PART = 1 << 16  # values counted at a time, so that what is made of them stays in the cache
DIGITS = 6  # of a share


def parts(values: Any) -> Iterator[NDArray[Any]]:
    """The values of an array, some PART at a time."""
    flat = np.asarray(values).reshape(-1)
    return (flat[first : first + PART] for first in range(0, flat.size, PART))


def by_value(values: Any) -> NDArray[np.int64]:
    """Counts of -128, -127 .. 127 in an int8 array: int64 [256]."""
    total = np.zeros(256, np.int64)
    for part in parts(values):
        total += np.bincount(part.view(np.uint8) ^ 0x80, minlength=256)
    return total


def distribution(values: Any, name: str) -> dict[str, Any]:
    """The share of int8 values at +-127, and under `name` the counts of all, 32 bins."""
    counts = by_value(values)
    beyond = int(counts[128 - LIMIT] + counts[128 + LIMIT])
    return {
        "saturated": share(beyond, int(counts.sum())),
        name: counts.reshape(BINS, -1).sum(axis=1).tolist(),
    }


def share(count: int, of: int) -> float:
    """A share in [0, 1], of nothing 0."""
    return round(count / max(of, 1), DIGITS)


def changed(before: Any, after: Any) -> int:
    """Values that differ between two arrays of one shape."""
    return int(np.count_nonzero(np.asarray(before) != np.asarray(after)))


def total_size(votes: Any) -> int:
    """The sum of |Z| of int32 votes; that of -2^31 wraps to itself, which is 2^31 unsigned."""
    sizes = (np.abs(part).view(np.uint32) for part in parts(votes))
    return sum(int(size.sum(dtype=np.uint64)) for size in sizes)
