"""Token credit: one body for all engines, each equal to the oracle bit for bit."""

from __future__ import annotations

import os

import mlx.core as mx
import numpy as np
import oracle_credit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks_credit import Credited, credited_case
from oracle import EXP2
from test_engines import BACKENDS

from eggroll import networks
from eggroll.engines import ENGINES
from eggroll.evolution.population import Population
from eggroll.spec import program as language
from eggroll.spec.credit import SILENT, CreditKind, CreditNoise, crediting, draw_signs
from eggroll.spec.noise import Noise

CREDITED = ["token-votes", "token-credit"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    name, _, isa = request.param.partition(":")
    monkeypatch.setenv("EGGROLL_ISA", isa) if isa else monkeypatch.delenv("EGGROLL_ISA", False)
    return name


def same(got, want, where: str = "") -> None:
    scores, state, Z = want
    np.testing.assert_array_equal(np.array(got[0]), scores, err_msg=where)
    np.testing.assert_array_equal(np.array(got[1]), state, err_msg=where)
    assert list(got[2]) == list(Z)
    for name, z in got[2].items():
        assert z.dtype == mx.int32
        np.testing.assert_array_equal(np.array(z), Z[name], err_msg=f"{where} {name}")


def check_backends(credited: Credited, threads: int = 2, block_tokens: int = 0):
    """Compares every engine and instruction set with the oracle, computed once."""
    want, before = credited.oracle(), os.environ.get("EGGROLL_ISA")
    try:
        for backend in BACKENDS:
            name, _, os.environ["EGGROLL_ISA"] = backend.partition(":")
            engine = ENGINES[name](credited.case.program, threads, block_tokens)
            same(credited.run(engine), want, backend)
    finally:
        os.environ.pop("EGGROLL_ISA")
        if before is not None:
            os.environ["EGGROLL_ISA"] = before
    return want


SHAPES = [
    {"V": 16, "D": 8, "L": 1, "T": 3, "P": 4},
    {"V": 5, "D": 1, "L": 2, "T": 3, "P": 2, "discount": 15},
    {"V": 300, "D": 20, "L": 1, "T": 3, "P": 6, "gates": "table"},
    {"V": 33, "D": 13, "L": 2, "T": 2, "P": 36, "gates": "table", "discount": 8},
    {"V": 9, "D": 7, "L": 1, "T": 33, "P": 4, "sigma_shift": 2},
    {"V": 7, "D": 5, "L": 1, "T": 65, "P": 2, "sigma_shift": 1, "discount": 15},
    {"V": 12, "D": 18, "L": 0, "T": 4, "P": 6},
    {"V": 17, "D": 16, "L": 1, "T": 4, "P": 34, "sigma_shift": 0, "extreme": True},
    {"V": 64, "D": 10, "L": 2, "T": 5, "P": 6, "sigma_shift": 8, "discount": 0},
    {"V": 24, "D": 6, "L": 1, "T": 8, "P": 4, "marks": 0.0},
    {"V": 8, "D": 130, "L": 1, "T": 2, "P": 2, "extreme": True, "sigma_shift": 1},
    # 292 inputs, whose noise does not fit 16 bits.
    {"V": 8, "D": 73, "L": 1, "T": 3, "P": 4, "extreme": True, "sigma_shift": 0},
    {"V": 11, "D": 9, "L": 1, "T": 4, "P": 6, "alike": False},
    {"V": 300, "D": 11, "L": 1, "T": 6, "P": 34, "sigma_shift": 2, "score_bits": 8},
    {"V": 20, "D": 8, "L": 1, "T": 5, "P": 4, "extreme": True, "score_bits": 8},
    {"V": 300, "D": 100, "L": 0, "T": 8, "P": 34, "alike": False},
]


@pytest.mark.parametrize("estimator", CREDITED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_oracle_on_chosen_networks(shape, estimator):
    want = check_backends(credited_case(1, estimator, **shape), block_tokens=2)
    moved = [name for name, z in want[2].items() if np.any(z)]
    assert "embedding" in moved
    assert "head" in moved


def test_draws_of_unlikely_tokens_equal_the_oracle():
    """Where all logits are at their lowest a tile weighs 128: what is drawn is often an end."""
    credited = credited_case(7, "token-credit", V=30, D=8, L=0, T=9, P=34, sigma_shift=8)
    for name, weight in credited.case.weights.items():
        weight[:] = -127 if name == "head" else 127
    check_backends(credited)


random_shapes = st.fixed_dictionaries(
    {
        "V": st.integers(5, 40),
        "D": st.integers(1, 20),
        "L": st.integers(0, 2),
        "T": st.sampled_from([1, 2, 3, 5]),
        "P": st.integers(1, 3).map(lambda n: 2 * n),
        "sigma_shift": st.integers(0, 8),
        "gates": st.sampled_from(["clip", "table"]),
        "extreme": st.booleans(),
        "score_bits": st.sampled_from([4, 8]),
        "discount": st.sampled_from([0, 8, 15]),
    }
)


@settings(max_examples=120, deadline=None)
@given(
    shape=random_shapes,
    estimator=st.sampled_from(CREDITED),
    seed=st.integers(0, 2**32 - 1),
    threads=st.integers(1, 3),
    block_tokens=st.integers(1, 4),
)
def test_equals_oracle_on_random_networks(shape, estimator, seed, threads, block_tokens):
    check_backends(credited_case(seed, estimator, **shape), threads, block_tokens)


@pytest.mark.parametrize("estimator", CREDITED)
@pytest.mark.parametrize("name", [*dict.fromkeys(b.partition(":")[0] for b in BACKENDS)])
def test_chunks_blocks_and_threads_change_no_bit(name, estimator):
    program, P, T = networks.egg(19, 12, 2), 72, 9
    noise = Noise([leaf.shape for leaf in program.leaves], seed=3, rank=1, shift=6, table_bits=12)
    by_leaf = crediting(
        program, nodes=estimator == "token-credit", sigma_shift=2, discount=12, seq_len=T
    )
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 19, (2, P // 2, T)).astype(np.int32)
    state = mx.array(rng.integers(-127, 128, (P, program.state_size)).astype(np.int8))
    weights, results = networks.initial_weights(program, 1), []
    cuts = [(72, 1, 0), (2, 1, 1), (10, 3, 4), (64, 2, 100)]
    for chunk, threads, block_tokens in cuts if name == "cpu" else cuts[0::2]:
        engine = ENGINES[name](program, threads, block_tokens)
        population = Population(engine, noise, members=P, group=2, chunk=chunk, crediting=by_leaf)
        results.append(population.credit(weights, 5, language.Batch(tokens, targets, state)))
    first = results[0]
    want = np.array(first[0]), np.array(first[1]), {k: np.array(z) for k, z in first[2].items()}
    for got in results[1:]:
        same(got, want)


def test_outputs_that_go_elsewhere_keep_their_own_noise():
    """One noise for two matrices is right only where their sum is all that is made of them."""
    net = language.Program(9, 4)
    net.stage()
    net.embed("in")
    x, s = net.stage("a.", state=True)
    first, second, both = (net.linear(x, name, 4) for name in ("first", "second", "both"))
    net.mix(net.add_bias(first, both, "p"), net.add_bias(second, both, "q"), s, out=s)
    net.add(x, net.add_bias(second, s, "r"), out=x)
    x, _ = net.stage()
    net.score(x, "out")
    by_leaf = crediting(net, nodes=True, sigma_shift=2, discount=8, seq_len=4)
    assert by_leaf.owners == tuple(range(len(net.leaves)))
    assert [
        leaf.name for leaf, shift in zip(net.leaves, by_leaf.shifts, strict=True) if shift == 63
    ] == ["out"]


def test_a_register_written_again_is_no_node():
    """What add_bias adds is no longer the product that the register held first."""
    net = language.Program(9, 4)
    x, _ = net.stage()
    net.embed("in")
    first, second = net.linear(x, "first", 4), net.linear(x, "second", 4)
    net.add(x, x, out=second)
    net.score(net.add_bias(first, second, "bias"), "out")
    by_leaf = crediting(net, nodes=True, sigma_shift=2, discount=8, seq_len=4)
    assert by_leaf.owners == tuple(range(len(net.leaves)))


@pytest.mark.parametrize("estimator", CREDITED)
def test_engines_agree_on_another_network(estimator):
    """Two scored layers without a state, a bias on one matrix, a state read late: not EGG."""
    net = language.Program(21, 6)
    net.stage()
    net.embed("in")
    x, s = net.stage("a.", state=True)
    wide = net.linear(net.norm(x, "norm"), "wide", 10)
    back = net.linear(wide, "back", 6)
    net.mix(net.add_bias(back, s, "bias"), net.lookup(back, "tanh"), s, out=s)
    net.add(x, net.linear(s, "late", 6), out=x)
    x, _ = net.stage("b.")
    left, right = net.linear(x, "left", 7), net.linear(x, "right", 7)
    net.score(net.add_bias(left, right, "both"), "out")

    by_leaf = crediting(
        net, nodes=estimator == "token-credit", sigma_shift=1, discount=9, seq_len=7
    )
    names, nodes = [leaf.name for leaf in net.leaves], estimator == "token-credit"
    assert by_leaf.owners[names.index("b.both")] == names.index("b.left" if nodes else "b.both")
    assert by_leaf.owners[names.index("a.bias")] == names.index("a.bias")
    behind = {"a.late", "b.left", "b.right", "b.both", "b.out"}
    assert {n for n, g in zip(names, by_leaf.discounts, strict=True) if g == 0} == behind
    rng = np.random.default_rng(0)
    noise = Noise([leaf.shape for leaf in net.leaves], seed=0, rank=1, shift=5, table_bits=10)
    arrays = [mx.array(rng.integers(0, 21, (12, 7)).astype(np.int32)) for _ in range(2)]
    batch = language.Batch(*arrays, mx.zeros((12, 6), mx.int8))
    credit_noise = draw_signs(by_leaf, seed=0, step=0, first_pair=0, pairs=6, seq_len=7)
    weights, results = networks.initial_weights(net, 0), []
    some = by_leaf._replace(kinds=(CreditKind.NONE, *by_leaf.kinds[1:]))  # and one leaf left out
    for name in ("portable", "cpu"):
        for way in (by_leaf, some):
            engine = ENGINES[name](net)
            given = engine.prepare(weights), noise.slices(0, 0, 6), batch, credit_noise, way
            results.append(engine.credit(*given))
    for got, want in zip(results[2:], results[:2], strict=True):
        same(got, (want[0], want[1], {k: np.array(z) for k, z in want[2].items()}))
    assert all(np.any(np.array(z)) for z in results[0][2].values())
    assert not np.any(np.array(results[1][2]["in"]))


NOISY = ["embedding", "layer0.norm1", "layer0.Wf", "layer0.Wh", "layer0.norm2", "layer0.up",
         "layer0.down", "norm"]  # fmt: skip


@pytest.mark.parametrize("leaf", NOISY)
def test_the_noise_of_the_forward_pass_is_the_noise_of_the_votes(backend, leaf):
    """Of one noisy leaf, for one token: what turns both the noise and the credit changes no vote.

    Another slice of any other leaf changes nothing either, and one of this leaf does.
    """
    made = credited_case(4, "token-credit", marks=0, V=16, D=8, T=1, P=32, sigma_shift=0)
    at = list(made.case.weights).index(leaf)
    shifts = tuple(s if i == at else SILENT for i, s in enumerate(made.crediting.shifts))
    by_leaf = made.crediting._replace(shifts=shifts)
    engine = ENGINES[backend](made.case.program)

    def run(signs, starts):
        credit_noise = CreditNoise(mx.array(signs), mx.array(made.draws))
        slices = made.case.slices._replace(starts=mx.array(starts))
        given = engine.prepare(made.case.leaves), slices, made.case.batch, credit_noise, by_leaf
        scores, _, Z = engine.credit(*given)
        return np.array(scores), np.array(Z[leaf])

    signs, starts = made.signs, made.case.starts
    made.case.state[1::2] = made.case.state[0::2]  # so that the noise alone tells members apart
    scores, Z = run(signs, starts)
    assert np.any(scores[0::2] != scores[1::2])
    assert np.any(Z)
    flipped = signs.copy()
    flipped[at] = ~flipped[at]
    exchanged, turned = run(flipped, starts)
    np.testing.assert_array_equal(exchanged, scores.reshape(-1, 2, 1)[:, ::-1].reshape(-1, 1))
    np.testing.assert_array_equal(turned, Z)
    elsewhere = np.roll(starts, 1, axis=1)
    elsewhere[at] = starts[at]
    again = run(signs, elsewhere)
    np.testing.assert_array_equal(again[0], scores)
    np.testing.assert_array_equal(again[1], Z)
    own = starts.copy()
    own[at] = np.roll(own[at], 1)
    assert np.any(run(signs, own)[0] != scores)


@pytest.mark.parametrize(("score_bits", "unit"), [(4, 4), (8, 2)])
def test_a_finer_unit_of_credit_is_for_the_tokens_alone(score_bits, unit):
    """Sums over tokens are as large as with the coarse one."""
    program = networks.egg(9, 6, 1)
    program.score_bits = score_bits
    by_leaf = crediting(program, nodes=True, sigma_shift=3, discount=7, seq_len=40)
    assert (by_leaf.unit_shift, by_leaf.credit_shift) == (unit, 1 + 4 - unit)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_crediting_is_derived_from_what_a_leaf_does(layers):
    program = networks.egg(9, 6, layers, "table")
    names = [leaf.name for leaf in program.leaves]
    for estimator in CREDITED:
        by_leaf = crediting(
            program, nodes=estimator == "token-credit", sigma_shift=3, discount=7, seq_len=40
        )
        nodes = estimator == "token-credit"
        assert (by_leaf.nodes, by_leaf.credit_shift) == (nodes, 1)
        for i, name in enumerate(names):
            vector = len(program.leaves[i].shape) == 1
            kind = (
                CreditKind.TOKENS if i == 0 else CreditKind.SCALAR if vector else CreditKind.INPUTS
            )
            kind = CreditKind.READOUT if nodes and name == "head" else kind
            owner = oracle_credit.owner(name) if nodes else name
            shift = 3 + (1 if i == 0 else 3 if vector else 0)
            if nodes and (owner != name or name == "head"):
                shift = SILENT
            assert (by_leaf.kinds[i], names[by_leaf.owners[i]]) == (kind, owner)
            assert by_leaf.shifts[i] == shift
            assert by_leaf.discounts[i] == oracle_credit.discount_of(name, layers, 7)
    assert names.index("head") == len(names) - 1


@pytest.mark.parametrize("T", [1, 15, 16, 31, 32, 63, 64, 127, 128, 511, 512, 65535])
def test_credit_shift_grows_by_one_per_fourfold_tokens(T):
    by_leaf = crediting(networks.egg(4, 4, 1), nodes=True, sigma_shift=0, discount=0, seq_len=T)
    fourfold = [i for i in range(9) if 32 * 4**i <= T]
    assert by_leaf.credit_shift == len(fourfold)


def test_credit_noise_is_a_matter_of_the_pair_alone():
    by_leaf = crediting(networks.egg(9, 6, 1), nodes=True, sigma_shift=2, discount=0, seq_len=70)
    whole = draw_signs(by_leaf, seed=1, step=2, first_pair=0, pairs=900, seq_len=70)
    part = draw_signs(by_leaf, seed=1, step=2, first_pair=31, pairs=7, seq_len=70)
    np.testing.assert_array_equal(np.array(part.signs), np.array(whole.signs)[:, 31:38])
    np.testing.assert_array_equal(np.array(part.draws), np.array(whole.draws)[31:38])
    signs = np.array(whole.signs).view(np.uint32)
    owners = [i for i, s in enumerate(by_leaf.shifts) if s != SILENT]
    assert signs.shape == (len(by_leaf.kinds), 900, 3)
    for i, leaf in enumerate(signs):
        bits = np.unpackbits(leaf.view(np.uint8)).mean()
        assert (abs(bits - 0.5) < 0.01) if i in owners else (bits == 0)
    assert len({signs[i].tobytes() for i in owners}) == len(owners)
    other = [
        draw_signs(by_leaf, seed=s, step=e, first_pair=0, pairs=900, seq_len=70)
        for s, e in ((1, 3), (2, 2))
    ]
    for credit_noise in other:
        assert np.mean(np.array(credit_noise.draws) == np.array(whole.draws)) < 0.01
        assert np.mean(np.array(credit_noise.signs)[owners] == np.array(whole.signs)[owners]) < 0.01


@pytest.mark.parametrize("name", [*dict.fromkeys(b.partition(":")[0] for b in BACKENDS)])
def test_the_readout_draws_as_the_softmax(name):
    """One row of logits, many draws: chi-square, and the head's error times its input."""
    N, T, V, target = 20_000, 3, 21, 5
    program = networks.egg(V, 12, 0)
    weights = {k: np.array(w) for k, w in networks.initial_weights(program, 2).items()}
    by_leaf = crediting(program, nodes=True, sigma_shift=0, discount=0, seq_len=T)
    by_leaf = by_leaf._replace(shifts=(SILENT,) * len(by_leaf.shifts))
    member = oracle_credit.Worker(weights, None, 0, None)
    logits, _ = member.token(7, np.zeros((0, 12), np.int64))
    odds = EXP2[16][logits + 128] / EXP2[16][logits + 128].sum()
    assert 0.1 < odds.max() < 0.9
    x = member.inputs["head", 0]
    noise = Noise([leaf.shape for leaf in program.leaves], seed=0, rank=1, shift=4, table_bits=12)
    engine = ENGINES[name](program)
    batch = language.Batch(
        mx.full((2 * N, T), 7, mx.int32),
        mx.full((2 * N, T), target, mx.int32),
        mx.zeros((2 * N, 0), mx.int8),
    )
    _, _, Z = engine.credit(
        engine.prepare({k: mx.array(w) for k, w in weights.items()}), noise.slices(0, 0, N), batch,
        draw_signs(by_leaf, seed=0, step=0, first_pair=0, pairs=N, seq_len=T), by_leaf,
    )  # fmt: skip
    z, n, hit = np.array(Z["head"]), N * T, np.arange(V) == target
    # Every draw took x from its row, every token gave x to the target's.
    counts = n * hit - z[:, np.abs(x).argmax()] // x[np.abs(x).argmax()]
    np.testing.assert_array_equal(z, np.outer(n * hit - counts, x))
    assert counts.sum() == n
    often = odds * n >= 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(odds[often], odds[~often].sum()) * n
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(observed) - 1
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)
    error = z / n - np.outer(hit - odds, x)
    deviation = np.sqrt(odds * (1 - odds) / n)[:, None] * np.abs(x)
    assert (np.abs(error) <= 5 * deviation + 1e-9).all()


def test_cpu_engine_refuses_crediting_it_could_misread():
    made = credited_case(7, "token-credit")
    by_leaf, engine, last = (
        made.crediting,
        ENGINES["cpu"](made.case.program),
        len(made.crediting.kinds) - 1,
    )

    def refused(match: str, **changes) -> None:
        made_of = {k: tuple(v.get(i, x) for i, x in enumerate(getattr(by_leaf, k)))
                   for k, v in changes.items()}  # fmt: skip
        credit_noise = CreditNoise(mx.array(made.signs), mx.array(made.draws))
        with pytest.raises(ValueError, match=match):
            engine.credit(
                engine.prepare(made.case.leaves), made.case.slices, made.case.batch, credit_noise,
                by_leaf._replace(**made_of),
            )  # fmt: skip

    for leaf, kind in ((0, 1), (0, 4), (2, 2), (2, 4), (1, 1), (last, 2), (last, 3)):
        refused("does not fit its operation", kinds={leaf: kind})
    refused("an embedding owns its noise", owners={0: last})
    refused("kinds are 0..5", kinds={0: 6})
    refused("does not fit its operation", kinds={0: 5})
    refused("shifts are 0..27 or silent", shifts={0: 28})
    refused("discounts are 0..15", discounts={0: 16})
    refused("an owner is no leaf", owners={2: 99})
    refused("other outputs", owners={2: last})
    short = made.signs
    made.signs = short[:, :, :0]
    refused(r"signs: \[leaves, pairs, ceil\(T / 32\)\]")
    made.signs, made.draws = short, made.draws[:, :1]
    refused(r"draws: \[pairs, T\]")


@pytest.mark.parametrize(("name", "most"), [("unit_shift", 8), ("credit_shift", 16)])
def test_shifts_of_credit_are_taken_from_0_to_the_most(name: str, most: int):
    made = credited_case(7, "token-credit")
    engine = ENGINES["cpu"](made.case.program)
    given = engine.prepare(made.case.leaves), made.case.slices, made.case.batch
    credit_noise = CreditNoise(mx.array(made.signs), mx.array(made.draws))
    for shift in (0, most):
        engine.credit(*given, credit_noise, made.crediting._replace(**{name: shift}))
    for shift in (-1, most + 1):
        with pytest.raises(ValueError, match=rf"{name} is in 0\.\.{most}"):
            engine.credit(*given, credit_noise, made.crediting._replace(**{name: shift}))
