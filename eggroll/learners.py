"""The engine and the learner of a run, by its options."""

from __future__ import annotations

from eggroll import engines
from eggroll.chunks import fitting_chunk
from eggroll.config import Config
from eggroll.engines import Engine
from eggroll.estimator import Estimator
from eggroll.fixed_point import Q
from eggroll.networks import initial_weights
from eggroll.noise import Noise
from eggroll.population import Population
from eggroll.ranks import ALONE, Ranks
from eggroll.step import Learner


def engine_for(options: Config, ranks: Ranks = ALONE) -> tuple[Engine, str]:
    """The engine of a run, and why that one.

    No other takes over from a GPU that fails where ranks wait for it.

    Raises:
        InputError: it is unknown, cannot run here, or lacks what the estimator needs.
    """
    estimator = options.estimator_class
    return engines.choose(
        options.engine, options.program(), options.threads, options.block_tokens,
        credit=estimator.by_token, replaceable=ranks.size == 1,
    )  # fmt: skip


def new_learner(options: Config, engine: Engine, ranks: Ranks = ALONE) -> Learner:
    """The learner of a run before its first update."""
    program = engine.program
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
    weights = initial_weights(program, options.seed)
    state = population.initial_state()
    memory = rule.start(weights) | estimator.start()
    return Learner(population, estimator, rule, 0, weights, memory, state)


def chunk_size(options: Config, engine: Engine, estimator: Estimator) -> int:
    """Members evaluated at a time: as asked, else as many as a memory budget holds.

    Whole groups, where an estimator compares their members.
    """
    chunk = min(options.chunk, options.pop) or fitting_chunk(
        engine, members=options.pop, seq_len=options.seq_len, rank=options.rank,
        kept=estimator.inputs_kept(engine.program),
    )  # fmt: skip
    unit = options.group_size if estimator.grouped else 1
    return max(chunk // unit * unit, unit)
