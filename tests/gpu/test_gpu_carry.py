"""Errors carried back by both GPUs' kernels, on this CPU: they equal the oracle, bit for bit."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import Command
from emulator import FORWARD, REVERSE, SHUFFLED, Emulator
from networks import case_of, random_case
from networks_backward import Carried, carried_of, net_of_outputs
from networks_random import every_operation, seeded_program, unscored_seeds

from eggroll.engines.gpu.losses import Rating, rate_output
from eggroll.engines.portable.engine import PortableEngine
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp
from eggroll.spec import losses
from eggroll.spec.backward import Backward
from eggroll.spec.losses import LOSSES
from eggroll.spec.program import FORWARD_ONLY, Output, Program
from gpu.backend import Gpu, engine, faulty, install

RUN = (
    *("--recipe", "feedback", "--data", "count", "--vocabulary", "5", "--pop", "6", "--steps", "2"),
    *("--seq-len", "3", "--layers", "0", "--width", "8", "--validate-every", "0"),
    *("--val-tokens", "16", "--sample-tokens", "0"),
)
ORDERS = (FORWARD, REVERSE, SHUFFLED)
OTHER = {"metal": "nax", "cuda": "m8n8k16"}  # than the product that an engine takes by itself


def complete(estimator: str, **options) -> Carried:
    case = case_of(
        every_operation(without=FORWARD_ONLY), np.random.default_rng(1), T=5, P=options.pop("P", 4)
    )
    return carried_of(case, estimator, **options)


def same(carried: Carried, made) -> None:
    assert carried.differing(carried.run(made)) == set()


def test_every_operation_equals_the_oracle(gpu: Gpu):
    """Whatever the order of the threads; of members in two threadgroups."""
    carried = complete("feedback", P=9, scale=3)
    same(carried, engine(gpu, carried.case.program, gpu.launcher(orders=ORDERS), 8))


def test_a_random_program_equals_the_oracle(gpu: Gpu, launcher: Emulator):
    """With the other product of each GPU."""
    program, random = seeded_program(42), np.random.default_rng(42)
    case = case_of(program, random, T=2, P=5, extreme=True)
    carried = carried_of(case, "feedback", extreme=True, seed=42)
    same(carried, engine(gpu, program, launcher, gpu.largest, OTHER[gpu.name]))


def test_where_most_layers_pass_nothing_on(gpu: Gpu, launcher: Emulator):
    """EGG with `local`, and the other product of each GPU."""
    case = random_case(5, V=9, D=6, T=3, P=5)
    carried = carried_of(case, "local", scale=3, seed=5)
    same(carried, engine(gpu, case.program, launcher, gpu.largest, OTHER[gpu.name]))


def test_launches_of_some_members_and_tokens(gpu: Gpu, launcher: Emulator, monkeypatch):
    """However little a launch may do or tapes may take, the answer is the same."""
    carried = complete("feedback", scale=2, P=6, marks=0.1)
    made, sizes = engine(gpu, carried.case.program, launcher, 8), set()
    passing = frozenset(
        i for i, leaf in enumerate(made.program.leaves) if leaf.name in carried.backward.matrices
    )
    most = made.pace.macs
    for macs, memory in ((1, 1 << 30), (60_000, 1 << 30), (most, 20_000), (most, 1 << 30)):
        monkeypatch.setattr(made.pace, "macs", macs)
        monkeypatch.setattr(gpu.kind, "memory", lambda _, memory=memory: memory)
        sizes.add(made.backward_launch_size(passing, 6, 5))
        same(carried, made)
    assert {(2, 1), (6, 5)} < sizes, sizes
    assert len(sizes) == 4, sizes


def net_of_two() -> Program:
    """What several operations read, in place, twice, behind a write, or for nothing."""
    net = Program(21, 6)
    x, s = net.stage("a.", state=True)
    net.add(net.embed("in"), s, out=x)
    f = net.add_bias(net.linear(x, "first", 6), net.linear(s, "old", 6), "bias")
    net.mix(f, net.linear(x, "second", 6), s, out=s)
    net.relu(net.linear(s, "nowhere", 5))
    twice = net.concat(s, s)
    net.add(x, net.linear(net.add(twice, twice), "back", 6), out=x)
    n = net.norm(x, "gain")
    net.add(n, n, out=x)
    x, _ = net.stage("b.")
    net.score(net.add(net.linear(x, "left", 33), net.linear(x, "right", 33)), "out")
    return net


def test_registers_that_are_used_again(gpu: Gpu):
    """Credit adds up in the order of operations, also at its bound; odd sizes."""
    case = case_of(net_of_two(), np.random.default_rng(3), T=3, P=5, extreme=True)
    carried = carried_of(case, "feedback", scale=1, extreme=True, seed=3)
    made = engine(gpu, case.program, gpu.launcher(orders=ORDERS), 8)
    found = carried.run(made)
    assert carried.differing(found) == set()
    assert not np.array(found.votes["a.nowhere"]).any()


def of_outputs(program: Program, seed: int, **options) -> Carried:
    extreme = options.pop("extreme", False)
    case = case_of(program, np.random.default_rng(seed), extreme=extreme, **options)
    return carried_of(case, "feedback", scale=3, extreme=extreme, seed=seed)


@pytest.mark.parametrize("extreme", [False, True])
def test_errors_of_outputs_equal_the_oracle(gpu: Gpu, extreme: bool):
    """Of several outputs, divided and not, whatever the order of the threads; of two threadgroups.

    At the clip credit may pull a value next to an output back.
    """
    carried = of_outputs(net_of_outputs(), 7, T=6, P=9, extreme=extreme)
    same(carried, engine(gpu, carried.case.program, gpu.launcher(orders=ORDERS), 8))


@pytest.mark.parametrize("seed", unscored_seeds()[:4])
def test_errors_of_random_programs_equal_the_oracle(gpu: Gpu, launcher: Emulator, seed: int):
    """With the other product of each GPU."""
    carried = of_outputs(seeded_program(seed, joined=True), seed, T=2, P=5, extreme=True)
    same(carried, engine(gpu, carried.case.program, launcher, gpu.largest, OTHER[gpu.name]))


def test_errors_are_made_of_targets_as_by_the_portable_engine(
    gpu: Gpu, launcher: Emulator, monkeypatch
):
    """Also where a launch has some of the members and tokens."""
    carried, random = of_outputs(net_of_outputs(), 1, T=4, P=6), np.random.default_rng(5)
    program, shape = carried.case.program, carried.case.tokens.shape
    columns = [random.integers(-1, 4, (*shape, 1)), random.integers(-300, 300, (*shape, 2))]
    wanted = np.concatenate([*columns, random.integers(-1, 128, (*shape, 3))], axis=2)
    batch = carried.case.batch._replace(wanted=mx.array(wanted.astype(np.int32)))
    back = carried.backward._replace(losses=("softmax", "squared", "sigmoid", ""))
    words, found = mx.array(carried.words), list[dict[str, np.ndarray]]()
    made = engine(gpu, program, launcher, 8)
    for here, memory in ((PortableEngine(program), 0), (made, 1 << 30), (made, 20_000)):
        monkeypatch.setattr(gpu.kind, "memory", lambda _, memory=memory: memory)
        learnt = here.learn(here.prepare(carried.case.leaves), batch, words, back)
        arrays = {**learnt._asdict(), **learnt.votes}
        del arrays["votes"]
        found.append({name: np.array(array) for name, array in arrays.items()})
    assert found[0]["errors"].any()
    assert found[0]["lost"].any()
    for other in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)
    scored = complete("feedback")
    here, case = engine(gpu, scored.case.program, launcher), scored.case
    prepared = here.prepare(case.leaves)
    with pytest.raises(ValueError, match="has a score"):
        here.learn(prepared, case.batch, words, back)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_that_of_its_definition(gpu: Gpu, launcher: Emulator, loss: str, wide: bool):
    """Of one value, of ten that lie anywhere, and of many that are all the largest or equal."""
    rng, (P, T) = np.random.default_rng(3), (5, 30)
    words = rng.integers(0, 1 << 32, (P, T), dtype=np.uint32)
    for n in (1, 10, 300):
        kind, unit = np.int32 if wide else np.int8, 16 if wide else 1
        bits = rng.integers(0, 32 if wide else 8, (P, T, n))
        most = (1 << 31) - 1 if wide else 127
        values = (rng.integers(-most, most + 1, (P, T, n)) >> bits).astype(kind)
        values[0], values[1, :5], values[2, :, 0] = most, -most, -most
        of, least = LOSSES[loss], LOSSES[loss].least
        shape = (P, T, n) if of.by_value else (P, T)
        size = rng.integers(0, (of.most or n).bit_length() + 1, shape)
        wanted = np.clip(rng.integers(least, (of.most or n - 1) + 1, shape) >> size, least, None)
        wanted = wanted.astype(np.int32)
        net = Program()
        first = losses.first_word(net, 2)
        rating = Rating(loss, Output("out", n, wide), unit, first)
        columns = wanted if of.by_value else wanted[..., None]
        found = rate_output(
            launcher, gpu.dialect, rating, mx.array(values), mx.array(columns), mx.array(words)
        )
        right = of.of(values // np.int32(unit) if wide else values.astype(np.int32), wanted,
                      not wide, losses.words_for(net, 2, words))  # fmt: skip
        for ours, theirs in zip(found, right, strict=True):
            np.testing.assert_array_equal(np.array(ours), theirs)
            assert theirs.any() or n == 1


@pytest.mark.parametrize("gpu", ["metal"], indirect=True)
def test_a_trainer_learns_labels_as_with_the_cpu_engine(gpu: Gpu, launcher: Emulator, monkeypatch):
    """The guard compares errors and losses, too."""
    install(gpu, monkeypatch, launcher)
    random, signatures = np.random.default_rng(2), set[str]()
    rows = random.integers(-127, 128, (12, 9), np.int8)
    labels = random.integers(0, 3, 12)
    for name in ("cpu", gpu.name):
        es = Trainer(mlp(9, [8], 3), pop=2, estimator="feedback", rule="adam", steps=2, engine=name)
        for _ in range(2):
            es.learn(rows, targets=labels, loss="softmax")
        signatures.add(es.signature)
    assert len(signatures) == 1
    assert {"egg_carry", "egg_adam"} <= {*launcher.launches}


def test_what_a_kernel_would_misread_is_refused(gpu: Gpu, launcher: Emulator):
    carried = complete("feedback")
    case, back = carried.case, carried.backward
    here, words = engine(gpu, case.program, launcher), mx.array(carried.words)
    name = next(iter(back.matrices))
    for match, wrong, given in (
        ("words are", words[:, 1:], back),
        ("words are", words.astype(mx.int32), back),
        ("a scale in", words, back._replace(scales=back.scales[1:])),
        ("a scale in", words, back._replace(scales=(17, *back.scales[1:]))),
        ("the matrix of", words, Backward(back.scales, {name: back.matrices[name].T})),
        ("the matrix of", words, Backward(back.scales, {"none": back.matrices[name]})),
    ):
        with pytest.raises(ValueError, match=match):
            here.learn(here.prepare(case.leaves), case.batch, wrong, given)
    assert {*launcher.launches} <= {"egg_packing"}


def small() -> Program:
    """A stage that clips, keeps a state, and divides."""
    net = Program(9, 8)
    _, s = net.stage(state=True)
    x = net.embed("in")
    net.mix(net.add(net.linear(x, "x", 8), net.linear(s, "s", 8)), x, s, out=s)
    net.score(net.norm(s, "norm"), "out")
    return net


# Faults that a comparison must see: old text of the kernels, new text.
FAULTS = {
    "no mask at the clip": ("abs(y) == 127 ? 0 : c", "c"),
    "credit across documents": ("== 0) c1[i] = 0", "== 1) c1[i] = 0"),
    "votes of another token": ("token * terms.rows", "0 * terms.rows"),
    "a quotient toward zero": ("return q - (q * b > a ? 1 : 0)", "return q"),
}


@pytest.mark.parametrize("gpu", ["metal"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(gpu: Gpu, fault: str):
    found, case = list[bool](), case_of(small(), np.random.default_rng(2), T=5, P=6, extreme=True)
    carried = carried_of(case, "feedback", scale=1, seed=2)
    made = engine(gpu, case.program, gpu.launcher(edit=faulty(*FAULTS[fault], found)), 8)
    assert carried.differing(carried.run(made)) != set()
    assert any(found), "the fault did not get in"


def normed() -> Program:
    """An output that is a norm."""
    net = Program(width=8)
    net.output(net.norm(net.linear(net.input(5), "in", 8), "gain"), "normed")
    return net


# The same of errors of outputs, and of which program.
OUTPUT_FAULTS = {
    "nothing pulled back": (normed, "y == -127 && c < 0", "y == -127"),
    "a norm like any other": (normed, "LAST ? held", "!LAST ? held"),
    "errors of another token": (net_of_outputs, "int(errors[(read + t) *", "int(errors[(read) *"),
    "errors of nobody": (net_of_outputs, "mine < members ? int(err", "true ? int(err"),
    "errors of another output": (net_of_outputs, "* 15 + 4 + k", "* 15 + 5 + k"),
}


@pytest.mark.parametrize("gpu", ["metal"], indirect=True)
@pytest.mark.parametrize("fault", OUTPUT_FAULTS)
def test_faults_with_errors_of_outputs_are_found(gpu: Gpu, fault: str):
    net, old, new = OUTPUT_FAULTS[fault]
    found, carried = list[bool](), of_outputs(net(), 7, T=6, P=5, extreme=True)
    edit = faulty(old, new, found)
    made = engine(gpu, carried.case.program, gpu.launcher(edit=edit), 8)
    assert carried.differing(carried.run(made)) != set()
    assert any(found), "the fault did not get in"


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("gpu", ["metal"], indirect=True)
def test_a_run_has_the_cpu_engines_signature(
    gpu: Gpu, launcher: Emulator, call: Command, tmp_path: Path, monkeypatch
):
    install(gpu, monkeypatch, launcher)
    signatures = {
        call(*RUN, "--engine", name, "--out", tmp_path / name).signature
        for name in ("cpu", gpu.name)
    }
    assert len(signatures) == 1
    assert "egg_carry" in launcher.launches
