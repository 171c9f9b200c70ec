"""Credit carried back: every engine that does it equals the oracle, bit for bit."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import oracle_backward
import pytest
from networks import case_of, random_case
from networks_backward import (
    ENGINES,
    ESTIMATORS,
    ISAS,
    Carried,
    carried_of,
    differing,
    many_lists,
    words_of,
)
from networks_random import every_operation, passable, seeded_program

from eggroll import engines
from eggroll.engines import Engine
from eggroll.evolution.population import Population
from eggroll.networks import egg
from eggroll.spec.backward import Learnt, next_scale, values_credited
from eggroll.spec.noise import Noise
from eggroll.spec.program import FORWARD_ONLY, Batch, Program

SCALES = [0, 3, 8, 16, None]
SCORED = [seed for seed in range(64) if seeded_program(seed).scored and passable(seed)]


def engine_of(name: str, program: Program) -> Engine:
    return engines.ENGINES[name](program)


def egg_case(
    estimator: str, scale: int | None = None, *, seed: int = 0, marks: float = 0.2, **shape: Any
) -> Carried:
    case = random_case(seed, **{"V": 16, "D": 8, "L": 2, "T": 6} | shape)
    extreme = shape.get("extreme", False)
    return carried_of(case, estimator, scale=scale, marks=marks, extreme=extreme, seed=seed)


def test_an_engine_carries_errors_back():
    assert "portable" in ENGINES


def test_credit_passes_where_it_should():
    """In EGG: everywhere, or through the head and `down` alone."""
    program = egg(7, 5, 2)
    passing = {name: egg_case(name, V=7, D=5).backward.matrices for name in ESTIMATORS}
    assert passing["feedback"].keys() == {
        leaf.name for leaf in program.leaves if len(leaf.shape) == 2
    } - {"embedding"}
    assert passing["local"].keys() == {"layer0.down", "layer1.down", "head"}
    case = egg_case("local", V=7, D=5).case
    assert passing["local"]["head"].tolist() == case.weights["head"].tolist()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("gates", ["clip", "table"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_egg_equals_the_oracle(name: str, estimator: str, gates: str, scale: int | None):
    carried = egg_case(estimator, scale, gates=gates, seed=3)
    found = carried.run(engine_of(name, carried.case.program))
    assert carried.differing(found) == set()
    credited = {k for k, z in found.votes.items() if np.array(z).any()}
    if scale in (0, 3):  # none is so coarse that nothing is left
        norms = {"layer0.norm1", "layer0.norm2", "layer1.norm1", "layer1.norm2"}
        assert carried.case.weights.keys() - credited == (norms if estimator == "local" else set())


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "shape",
    [{}, {"score_bits": 8}, {"V": 300, "T": 2}, {"D": 33, "L": 1}, {"V": 1200, "score_bits": 8}],
)
def test_saturated_values_equal_the_oracle(name: str, estimator: str, shape: dict[str, Any]):
    carried = egg_case(estimator, 2, extreme=True, seed=5, **shape)
    found = carried.run(engine_of(name, carried.case.program))
    assert carried.differing(found) == set()
    assert clipped_share(carried) > 0.1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("times", [1, 2])
def test_votes_of_more_than_16_bits_equal_the_oracle(name: str, times: int):
    carried = many_lists(times)
    found = carried.run(engine_of(name, carried.case.program))
    assert carried.differing(found) == set()
    assert np.abs(np.array(found.votes["rows"])).max(initial=0) > 2 * 32767


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [1, 15, 16, 31, 32, 33, 63, 64, 65, 95, 96, 127, 128, 129, 191])
def test_rows_of_every_width_equal_the_oracle(isa: str, cols: int, monkeypatch: Any):
    """Of lists of every length, with sums beyond the clip."""
    monkeypatch.setenv("EGGROLL_ISA", isa)
    net, random = Program(5, 7), np.random.default_rng(cols)
    net.stage()
    sums = net.features("rows", 200, cols, active=9, lists=2, shift=cols % 3)
    net.score(sums, "head")
    case = case_of(net, random, P=34, T=3, extreme=True)
    for row in case.features.reshape(-1, 9):
        count = random.integers(0, 10)
        row[:count], row[count:] = np.sort(random.choice(200, count, replace=False)), -1
    carried = carried_of(case, "feedback", scale=3, extreme=True)
    found = carried.run(engine_of("cpu", net))
    assert carried.differing(found) == set()


def clipped_share(carried: Carried) -> float:
    """The share of results of operations that are at the clip."""
    case, at = carried.case, []
    member = oracle_backward.Recorder(case.program, case.weights)
    oracle_backward.run(member, 0, case.tokens, case.state[0].astype(np.int64), case.rows)
    for row in member.rows:
        at += [np.abs(y) == 127 for op, _, y in row.ran if op.kind in oracle_backward.CLIPPED]
    return float(np.concatenate(at).mean())


def random_carried(seed: int, estimator: str) -> Carried:
    program, extreme = seeded_program(seed, joined=True), seed % 3 == 0
    random, score_bits = np.random.default_rng(seed), (4, 8)[seed % 2]
    case = case_of(program, random, T=4, extreme=extreme, score_bits=score_bits)
    return carried_of(case, estimator, extreme=extreme, seed=seed)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("seed", SCORED)
def test_random_programs_equal_the_oracle(name: str, estimator: str, seed: int):
    carried = random_carried(seed, estimator)
    assert carried.differing(carried.run(engine_of(name, carried.case.program))) == set()


def test_credit_reaches_most_leaves_of_the_random_programs():
    """So that what is compared above is more than zeros."""
    votes = [random_carried(seed, "feedback").oracle()[2] for seed in SCORED]
    reached = [bool(np.any(z)) for leaves in votes for z in leaves.values()]
    assert np.mean(reached) > 2 / 3


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", [0, 5])
def test_every_operation_equals_the_oracle(name: str, estimator: str, scale: int):
    program = every_operation(without=FORWARD_ONLY)
    carried = carried_of(case_of(program, np.random.default_rng(1), T=5), estimator, scale=scale)
    assert carried.differing(carried.run(engine_of(name, program))) == set()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("marks", [0.0, 1.0])
def test_a_document_ends_what_a_state_carries(name: str, estimator: str, marks: float):
    """Without a mark credit crosses every row, with marks everywhere none."""
    carried = egg_case(estimator, 1, seed=2, marks=marks)
    assert carried.differing(carried.run(engine_of(name, carried.case.program))) == set()


def scales_differ(program: Program) -> bool:
    """With sizes of all magnitudes."""
    random, rows, differ = np.random.default_rng(4), 24, False
    counts = [rows * n for n in values_credited(program)]
    for size in (0, 1, 2, 3, 4, 7, 8, 1000, 2**17, 2**18, 2**21):
        sizes = [int(n * size + random.integers(0, n)) for n in counts]
        before = [int(h) for h in random.integers(0, 17, len(counts))]
        after = [next_scale(*of) for of in zip(before, sizes, counts, strict=True)]
        differ |= after != oracle_backward.next_scales(program, before, sizes, rows)
    return differ


def test_the_scales_of_the_next_update_equal_the_oracle():
    """One scale per leaf, whatever members it came from."""
    for program in (egg(7, 5, 2), every_operation(without=FORWARD_ONLY)):
        assert values_credited(program) == tuple(oracle_backward.values_of(program))
        assert not scales_differ(program)


BROKEN_SCALES = {
    "one more": lambda h, mean: min(16, max(0, mean.bit_length() - 1)) if mean else h,
    "one less": lambda h, mean: min(16, max(0, mean.bit_length() - 3)) if mean else h,
    "without a bound": lambda h, mean: max(0, mean.bit_length() - 2) if mean else h,
    "negative": lambda h, mean: min(16, mean.bit_length() - 2) if mean else h,
    "lost without credit": lambda h, mean: min(16, max(0, mean.bit_length() - 2)),
}


@pytest.mark.parametrize("broken", BROKEN_SCALES)
def test_a_broken_scale_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oracle_backward, "next_scale", BROKEN_SCALES[broken])
    assert scales_differ(egg(7, 5, 2))


def population(name: str, program: Program, members: int, chunk: int) -> Population:
    noise = Noise([leaf.shape for leaf in program.leaves], seed=7, rank=1, shift=8, table_bits=16)
    return Population(engine_of(name, program), noise, members=members, group=members, chunk=chunk)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("chunk", [2, 4, 6, 10])
def test_chunks_of_members_change_nothing(name: str, chunk: int):
    """Each member rounds by its own words, wherever its chunk begins."""
    carried = egg_case("feedback", seed=1, P=10, T=5)
    carried.words = words_of(7, 4, 10, 5)
    case, back = carried.case, carried.backward
    found = population(name, case.program, 10, chunk).learn(
        case.leaves, 4, Batch(case.tokens, case.targets, mx.array(case.state)), back
    )
    assert carried.differing(found) == set()


@pytest.fixture(scope="module", params=ESTIMATORS)
def many(request: pytest.FixtureRequest) -> tuple[Carried, Learnt]:
    """Members in four blocks of the kernels, the last of six, and what is right of them."""
    carried = egg_case(request.param, seed=4, V=33, D=24, P=102, T=16)
    return carried, carried.run(engine_of("portable", carried.case.program))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("isa", ISAS)
def test_what_threads_found_adds_up(
    many: tuple[Carried, Learnt], isa: str, threads: int, monkeypatch: pytest.MonkeyPatch
):
    """Each has votes and sizes of its own until the end, whatever it takes of the members."""
    carried, want = many
    monkeypatch.setenv("EGGROLL_ISA", isa)
    made = engines.ENGINES["cpu"](carried.case.program, threads)
    for _ in range(1 if threads == 1 else 5):  # others may come late to a block
        assert differing(carried.run(made), want) == set()


def broken_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_backward, "crosses", lambda token: True)


def broken_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_backward, "clipped_away", lambda op, y, c: c)


def broken_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_backward, "C", 2**60)


def broken_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    real = oracle_backward.to_int8
    monkeypatch.setattr(oracle_backward, "to_int8", lambda c, h, words: real(c, h + 1, words))


def broken_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        oracle_backward, "to_int8",
        lambda c, h, words: np.clip((c + (1 << h >> 1)) >> h, -127, 127),
    )  # fmt: skip


def broken_divisor(monkeypatch: pytest.MonkeyPatch) -> None:
    real = oracle_backward.reciprocal
    monkeypatch.setattr(oracle_backward, "reciprocal", lambda K: (real(K)[0], real(K)[1] + 1))


def broken_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = oracle_backward.head_error
    monkeypatch.setattr(
        oracle_backward, "head_error", lambda u, c, words: real(u, c, words * 0 + (1 << 31))
    )


def broken_slope(kind: str):
    """Breaks an operation: its first input gets one more than its credit."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        right = oracle_backward.SLOPES[kind]

        def wrong(*given: Any) -> list[Any]:
            first, *more = right(*given)
            return [first + 1, *more]

        monkeypatch.setitem(oracle_backward.SLOPES, kind, wrong)

    broken.__name__ = f"broken_{kind}"
    return broken


def broken_constant(name: str, value: int):
    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(oracle_backward, name, value)

    broken.__name__ = f"broken_{name}"
    return broken


def broken_push(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_backward, "stuck", lambda logits, e: np.zeros(len(e), bool))


def broken_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_backward, "stuck", lambda logits, e: np.abs(logits) == 127)


BROKEN = [
    broken_mark, broken_mask, broken_scale, broken_chance, broken_divisor, broken_error,
    broken_constant("SCORE_SCALE", 13),
    *map(broken_slope, ("linear", "norm", "add", "add_bias", "lookup", "forget", "mix")),
]  # fmt: skip
FAR_OUT = [broken_bound, broken_push, broken_pull]  # seen where values are at the clip


@pytest.mark.parametrize("broken", [*BROKEN, *FAR_OUT], ids=lambda broken: broken.__name__)
def test_the_comparison_notices_what_is_broken(broken: Any, monkeypatch: pytest.MonkeyPatch):
    carried = egg_case("feedback", 4, gates="table", seed=3, extreme=broken in FAR_OUT)
    found = carried.run(engine_of("portable", carried.case.program))
    assert carried.differing(found) == set()
    broken(monkeypatch)
    assert carried.differing(found) - {"sizes"} != set()
