"""The engine and the learner of a run, by its options."""

from __future__ import annotations

from eggroll import engines
from eggroll.engines import Engine
from eggroll.errors import InputError
from eggroll.evolution.estimators import Estimator
from eggroll.evolution.population import Population
from eggroll.evolution.rules import RunOptions, check_names
from eggroll.evolution.step import Learner
from eggroll.networks import initial_weights
from eggroll.ranks import ALONE, Ranks
from eggroll.spec.fixed_point import Q
from eggroll.spec.noise import Noise, slice_length
from eggroll.spec.program import Program

BUDGET = 1 << 28  # bytes that the arrays of a chunk may take
BUDGETS = {"portable": 1 << 26, "cuda": 1 << 30}  # of other engines than most, by name


def fitting_chunk(engine: Engine, *, members: int, seq_len: int, rank: int, kept: int) -> int:
    """Members to evaluate at a time, as many as a memory budget holds, in chunks of one size.

    seq_len: rows of an update; kept: values that are stored per pair and row until the credit.
    """
    program = engine.program
    shown = program.inputs + 4 * program.indices + sum(4 * size for _, size, _ in program.outputs)
    if engine.name == "portable":  # int32 registers and slices, int64 sums over the vocabulary
        registers = sum(sum(stage.registers) for stage in program.stages)
        longest = max(slice_length(leaf.shape, rank) for leaf in program.leaves)
        member = 4 * registers + 24 * (longest + program.vocabulary)
        member += seq_len * (4 * kept + shown)
    else:
        arrays = seq_len * (10 + shown) + 2 * program.state_size + 4 * len(program.leaves)
        credit_noise = 10 * seq_len * (kept > 0)
        member = arrays + kept + credit_noise
    pairs, budget = -(-members // 2), BUDGETS.get(engine.name, BUDGET)
    chunks = -(-pairs // max(budget // member // 2, 1))
    return min(-(-pairs // chunks) * 2, members)


def engine_for(options: RunOptions, program: Program, ranks: Ranks = ALONE) -> tuple[Engine, str]:
    """The engine that runs a program, and why that one.

    No other takes over from a GPU that fails where ranks wait for it.

    Raises:
        InputError: it is unknown or cannot run here.
    """
    if ranks.size > 1 and options.guard == "cpu":
        raise InputError(
            f"--guard is cpu and the run has {ranks.size} ranks, which cannot wait for one that "
            "goes on more slowly: leave --guard out, or start one process."
        )
    replaceable = {"auto": None, "stop": False, "cpu": True}[options.guard]
    return engines.choose(
        options.engine, program, options.threads, options.block_tokens,
        replaceable=False if ranks.size > 1 else replaceable,
    )  # fmt: skip


def new_learner(options: RunOptions, engine: Engine, ranks: Ranks = ALONE) -> Learner:
    """The learner of a run before its first update."""
    program = engine.program
    check_names(program)
    noise = Noise(
        [leaf.shape for leaf in program.leaves],
        seed=options.seed,
        rank=options.rank,
        shift=Q + options.sigma_shift,
        reuse=options.noise_reuse,
        table_bits=options.table_bits,
    )
    estimator = options.estimator_class(options, program)
    population = Population(
        engine,
        noise,
        crediting=estimator.crediting,
        members=options.pop,
        group=options.group_size,
        chunk=chunk_size(options, engine, estimator),
        clt=options.clt,
        ranks=ranks,
    )
    rule = options.rule_class.make(options, program, estimator)
    rule.use(engine)
    weights = initial_weights(program, options.seed)
    state = population.initial_state()
    memory = rule.start(weights) | estimator.start()
    return Learner(population, estimator, rule, 0, weights, memory, state)


def chunk_size(options: RunOptions, engine: Engine, estimator: Estimator) -> int:
    """Members evaluated at a time: as asked, else as many as a memory budget holds.

    Whole groups, where an estimator compares their members.
    """
    chunk = min(options.chunk, options.pop) or fitting_chunk(
        engine, members=options.pop, seq_len=options.seq_len, rank=options.rank,
        kept=estimator.inputs_kept(engine.program),
    )  # fmt: skip
    unit = options.group_size if estimator.grouped else 1
    return max(chunk // unit * unit, unit)
