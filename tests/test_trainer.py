"""Ask and tell: the same bits however the rows are shown, and one sentence for what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_engines import BACKENDS

from eggroll.errors import InputError
from eggroll.library.trainer import Trainer
from eggroll.networks import egg, mlp
from eggroll.spec.program import Program

P, T = 12, 6
ESTIMATORS = ("eggroll", "token-votes", "token-credit")


def recurrent() -> Program:
    """A state, an input, sparse features and outputs of both kinds."""
    net = Program(width=5)
    _, s = net.stage(state=True)
    shown = net.relu(net.bias(net.linear(net.input(3), "in", 5), "b"))
    sparse = net.features("sparse", 9, 5, active=2)
    both = net.linear(net.concat(shown, sparse), "both", 5)
    net.add(net.linear(s, "back", 5), both, out=s)
    net.output(net.linear(s, "out", 2), "logits")
    net.sums(s, "worth", 1)
    return net


def feed_forward() -> Program:
    return mlp(3, [8], 2)


def trainer(net: Program, **options: Any) -> Trainer:
    return Trainer(net, **{"pop": P, "seed": 3, "engine": "portable", "table_bits": 16} | options)


def rows(seed: int, readers: int = P, count: int = T) -> NDArray[np.int8]:
    return np.random.default_rng(seed).integers(-99, 99, (readers, count, 3)).astype(np.int8)


def shown(net: Program, seed: int, **sizes: int) -> dict[str, Any]:
    """Random rows of everything that the program reads."""
    inputs = rows(seed, **sizes)
    lists = np.random.default_rng(seed + 1).integers(-1, 9, (*inputs.shape[:2], 2))
    return {"inputs": inputs} | ({"features": lists} if net.indices else {})


def worth(outputs: Any, T: int = T) -> NDArray[np.float64]:
    """A value of every row, [P, T]."""
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return logits[..., 0].astype(np.float64) - 2 * abs(logits[..., 1].astype(np.float64))


def run(es: Trainer, updates: int = 3, whole: bool = False) -> str:
    for _ in range(updates):
        given = worth(es.ask()(**shown(es.program, es.step)))
        es.tell(given.sum(axis=1) if whole else given)
    return es.signature


@pytest.mark.parametrize("net", [recurrent, feed_forward])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_signature_depends_on_no_engine_or_chunk_or_thread(net, estimator):
    rule = "sign" if estimator == "eggroll" else "whitened"
    known = run(trainer(net(), estimator=estimator, rule=rule))
    for backend in BACKENDS:
        name, _, isa = backend.partition(":")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EGGROLL_ISA", isa)
            for more in ({}, {"chunk": 4, "threads": 2}):
                es = trainer(net(), estimator=estimator, rule=rule, engine=name, **more)
                assert run(es) == known, (backend, more)


def test_repr_tells_how_far_it_is():
    es = trainer(feed_forward(), steps=5)
    parameters = sum(leaf.size for leaf in es.weights.values())
    run(es, 2)
    assert repr(es) == (
        f"<Trainer: {parameters:,} parameters, {P} members, estimator eggroll, rule sign, "
        "2 of 5 updates, engine portable>"
    )


@pytest.mark.parametrize("net", [recurrent, feed_forward])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_may_come_one_by_one(net, estimator):
    """Calls of one row or of some give what one call of all rows gives."""
    known, es, other = (trainer(net(), estimator=estimator) for _ in range(3))
    for _ in range(2):
        given = shown(known.program, known.step)
        outputs = known.ask()(**given)
        single, part = es.ask(), other.ask()
        for t in range(T):
            one = single(**{name: array[:, t] for name, array in given.items()})
            np.testing.assert_array_equal(worth(one), worth(outputs)[:, t])
        for at in (slice(0, 4), slice(4, 6)):
            part(**{name: array[:, at] for name, array in given.items()})
        for each in (known, es, other):
            each.tell(worth(outputs))
    assert known.signature == es.signature == other.signature


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("readers", [1, 2, 3, 6])
def test_groups_read_the_same_rows(estimator, readers):
    es, repeated = (trainer(recurrent(), estimator=estimator) for _ in range(2))
    given = shown(es.program, 1, readers=readers)
    outputs = es.ask()(**given)
    whole = {name: np.repeat(array, P // readers, axis=0) for name, array in given.items()}
    same = repeated.ask()(**whole)
    for name in outputs:
        np.testing.assert_array_equal(outputs[name], same[name])
    assert es.tell(worth(outputs))[1:4] == repeated.tell(worth(same))[1:4]
    assert es.signature == repeated.signature


def test_groups_of_several_sizes_in_one_update():
    one, other = (trainer(feed_forward(), estimator="token-credit") for _ in range(2))
    two, three = rows(1, 2, 4), rows(2, 3, 4)
    members, same = one.ask(), other.ask()
    members(two)
    members(three)
    same(np.repeat(two, 6, axis=0))
    same(np.repeat(three, 4, axis=0))
    given = np.random.default_rng(0).normal(size=(P, 8))
    one.tell(given)
    other.tell(given)
    assert one.signature == other.signature


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_games_side_by_side_are_credited_with_their_results(estimator):
    es, rowwise = (trainer(feed_forward(), estimator=estimator) for _ in range(2))
    members, same = es.ask(), rowwise.ask()
    for t in range(3):
        members(rows(t))
        same(rows(t))
    results = np.random.default_rng(0).normal(size=(P, T))
    es.tell(results)
    rowwise.tell(np.tile(results, (1, 3)))
    assert es.signature == rowwise.signature


def test_rows_at_no_stake_are_not_credited():
    """Values there change nothing: neither votes nor the mean that others are measured by."""
    signatures = set()
    for noise in (0, 1000):
        es = trainer(feed_forward(), estimator="token-credit")
        active = np.random.default_rng(1).random((P, T)) < 0.5
        active[1::2] = active[0::2]
        outputs = es.ask()(rows(0), active=active)
        update = es.tell(np.where(active, worth(outputs), noise * np.arange(P)[:, None]))
        assert update.nonzero_ratio <= 1
        signatures.add(es.signature)
    assert len(signatures) == 1


def test_state_begins_anew_with_every_update_unless_carried():
    outputs: dict[bool, list[Any]] = {False: [], True: []}
    for carry, kept in outputs.items():
        es = trainer(recurrent(), carry=carry, noise_reuse=0, alpha=1e-9)
        for _ in range(2):
            kept.append(es.ask()(**shown(es.program, 0))["logits"])
            es.tell(np.zeros(P))
    np.testing.assert_array_equal(outputs[False][0], outputs[False][1])
    np.testing.assert_array_equal(outputs[False][0], outputs[True][0])
    assert (outputs[True][0] != outputs[True][1]).any()


def test_an_episode_that_begins_forgets():
    es = trainer(recurrent())
    given, begins = shown(es.program, 0), np.zeros((P, T), np.bool_)
    begins[:, 4] = True
    cut = es.ask()(**given, begins=begins)
    fresh = es.ask()(**{name: array[:, 4:] for name, array in given.items()})
    np.testing.assert_array_equal(cut["logits"][:, 4:], fresh["logits"])
    begun = es.ask()
    begun(**given)
    again = begun(**{name: a[:, 4] for name, a in given.items()}, begins=np.ones(P, np.bool_))
    np.testing.assert_array_equal(again["logits"], fresh["logits"][:, 0])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_goes_on_exactly_after_save_and_load(estimator, tmp_path: Path):
    options = {"estimator": estimator, "rule": "whitened", "carry": True}
    known = run(trainer(recurrent(), **options), 5)
    es = trainer(recurrent(), **options)
    run(es, 2)
    es.ask()(**shown(es.program, 9))  # is no part of what is saved
    for folder in (".", "/", ".."):
        with pytest.raises(InputError, match="cannot be written"):
            es.save(folder)
    es.save(tmp_path / "es.safetensors")
    for more in ({}, {"net": recurrent(), "chunk": 4}):
        again = Trainer.load(tmp_path / "es.safetensors", **more)
        assert again.step == 2
        assert run(again, 3) == known


def test_model_is_the_network_without_noise():
    es = trainer(recurrent())
    run(es)
    model, given = es.model, shown(es.program, 0, readers=5)
    outputs = model(**given)
    assert outputs["logits"].dtype == np.int8
    assert outputs["worth"].dtype == np.int32
    assert outputs["worth"].shape == (5, T, 1)
    one = es.model
    for t in range(T):  # the state goes on from call to call
        step = one(**{name: array[:, t] for name, array in given.items()})
        np.testing.assert_array_equal(step["worth"], outputs["worth"][:, t])
    one.reset()
    np.testing.assert_array_equal(one(**given)["worth"], outputs["worth"])
    before = {name: leaf.copy() for name, leaf in model.weights.items()}
    run(es)
    for name, leaf in model.weights.items():
        np.testing.assert_array_equal(leaf, before[name])


@pytest.mark.parametrize("fitness", ["sign", "ranks", "centred", "log-ranks"])
def test_fitness_follows_values(fitness):
    """Members that are worth more pull the weights their way: the mean value rises."""
    es = trainer(feed_forward(), fitness=fitness, pop=128, alpha=0.5)
    first = last = 0.0
    for _ in range(25):
        last = es.tell(worth(es.ask()(rows(0, 1))).sum(axis=1)).fitness
        first = first or last
    assert last > first + 30


def test_values_of_any_kind_of_number_are_the_same():
    given = np.random.default_rng(0).integers(-3, 4, P)
    signatures = set()
    for kind in (np.int64, np.int8, np.float32, np.float64):
        es = trainer(feed_forward())
        es.ask()(rows(0))
        es.tell(given.astype(kind))
        signatures.add(es.signature)
    assert len(signatures) == 1


def test_scaling_values_changes_nothing():
    given = np.random.default_rng(0).integers(-3, 4, (P, T))
    signatures = set()
    for scale in (1, 2.0**-30, 2.0**40):
        es = trainer(feed_forward(), estimator="token-credit")
        es.ask()(rows(0))
        es.tell(given * scale)
        signatures.add(es.signature)
    assert len(signatures) == 1


def test_keys_are_a_function_of_the_update():
    es, other = trainer(feed_forward()), trainer(feed_forward())
    first = es.keys(4)
    np.testing.assert_array_equal(first, other.keys(6)[:4])
    assert (first != es.keys(4, 1)).all()
    run(es, 1)
    assert (first != es.keys(4)).all()


def test_warns_where_nothing_is_learnt():
    es = trainer(feed_forward())

    def still(updates: int) -> None:
        for _ in range(updates):
            es.ask()(rows(0))
            es.tell(np.ones(P))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        still(9)
        run(es, 1)
        still(9)
    with pytest.warns(UserWarning, match=r"^update 20: in 10 updates fewer than 1% of the pairs"):
        still(1)
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        still(9)


# What is done to a trainer, with rows asked for -> the sentence.
ASKED: dict[str, tuple[Callable[[Trainer, Any], object], str]] = {
    "float rows": (
        lambda es, m: m(rows(0).astype(np.float32)),
        r"inputs are float32: int8 are needed; eggroll\.quantise",
    ),
    "other size": (
        lambda es, m: m(rows(0)[..., :2]),
        r"inputs have the shape \[12, 6, 2\]: \[R, T",
    ),
    "no axis": (lambda es, m: m(rows(0)[0, 0]), r"inputs have the shape \[3\]"),
    "nothing": (lambda es, m: m(), r"inputs are needed by this network: give an array \[R, T, 3\]"),
    "empty": (lambda es, m: m(rows(0)[:, :0]), r"\[12, 0, 3\]: they are empty"),
    "readers": (lambda es, m: m(rows(0, 5)), r"inputs are for 5 readers: 12 are needed"),
    "odd group": (lambda es, m: m(rows(0, 4)), r"inputs are for 4 readers: .* divides 6"),
    "tokens": (
        lambda es, m: m(rows(0), tokens=[[1]]),
        r"tokens were given to a network that reads",
    ),
    "features": (lambda es, m: m(rows(0), features=[[[1]]]), r"features were given to a network"),
    "begins": (lambda es, m: m(rows(0), begins=[1] * P), r"begins is int64 \[12\]: bool \[12\]"),
    "active": (lambda es, m: m(rows(0), active=[True]), r"active is bool \[1\]: bool \[12\] or"),
    "act": (lambda es, m: m.act(rows(0)), r"act draws from one policy and the network has 0"),
    "too few values": (lambda es, m: es.tell([1.0, 2.0]), r"has the shape \[2\]: \[12\] is"),
    "rows of others": (lambda es, m: es.tell(np.zeros((P, 5))), r"\[12, 5\]: .* or \[12, 6\]"),
    "NaN": (
        lambda es, m: es.tell([0.0, float("nan"), *[0.0] * 10]),
        r"fitness is nan at \[1\]: every value must be a finite number",
    ),
    "infinite": (lambda es, m: es.tell(np.full((P, T), np.inf)), r"fitness is inf at \[0, 0\]"),
    "text": (lambda es, m: es.tell(["a"] * P), r"fitness is <U1: real numbers are needed"),
    "complex": (lambda es, m: es.tell([1j] * P), r"fitness is complex128: real numbers"),
}


@pytest.mark.parametrize("name", ASKED)
def test_one_sentence_and_nothing_changes(name: str):
    act, says = ASKED[name]
    es, same = trainer(feed_forward()), trainer(feed_forward())
    members, other = es.ask(), same.ask()
    outputs = members(rows(0))
    other(rows(0))
    with pytest.raises(InputError, match=says) as refused:
        act(es, members)
    assert "\n" not in str(refused.value)
    es.tell(worth(outputs))
    same.tell(worth(outputs))
    assert es.signature == same.signature


def told_twice() -> None:
    es = trainer(feed_forward())
    es.tell(worth(es.ask()(rows(0))))
    es.tell(np.zeros(P))


def told_without_a_call() -> None:
    es = trainer(feed_forward())
    es.ask()
    es.tell(np.zeros(P))


def asked_of_old_members() -> None:
    es = trainer(feed_forward())
    old = es.ask()
    es.ask()
    old(rows(0))


def feature_out_of_range() -> None:
    es = trainer(recurrent())
    es.ask()(rows(0), features=np.full((P, T, 2), 9))


def readers_that_change() -> None:
    model = trainer(recurrent()).model
    model(**shown(recurrent(), 0, readers=4))
    model(**shown(recurrent(), 0, readers=5))


REFUSED: dict[Callable[[], object], str] = {
    told_twice: r"^tell comes without ask: ",
    told_without_a_call: r"^tell comes without a call of the members",
    asked_of_old_members: r"^These members are of an update that is over: call ask",
    feature_out_of_range: r"9",
    readers_that_change: r"^5 readers follow 4, whose states go on",
    lambda: trainer(egg(16, 8, 1)): r"^The network has a score: a language model is trained by",
    lambda: trainer(feed_forward(), pop=7): r"^pop is 7: an even .*; try pop 8\.",
    lambda: trainer(feed_forward(), estimator="adam"): r"^estimator is 'adam': one of eggroll, ",
    lambda: trainer(feed_forward(), estimator="token-credit", rank=2): r"leave rank out",
    lambda: trainer(feed_forward(), estimator="token-credit", rule="master"): r"^rule master knows",
    lambda: trainer(
        feed_forward(), estimator="token-credit", fitness="ranks"
    ): r"^fitness is 'rank",
    lambda: trainer(
        feed_forward(), rule="master", fitness="ranks"
    ): r"^fitness is 'ranks': rule ma",
    lambda: trainer(feed_forward(), sigma=3): r"^Option 'sigma' is unknown: the options are pop, ",
    lambda: trainer(feed_forward(), engine="tpu"): r"^engine 'tpu' is unknown",
    lambda: Trainer.load("nowhere.safetensors"): r"^'nowhere.safetensors' is no file",
}


@pytest.mark.parametrize("act", REFUSED, ids=lambda act: act.__name__)
def test_one_sentence(act: Callable[[], object]):
    with pytest.raises(InputError, match=REFUSED[act]) as refused:
        act()
    assert "\n" not in str(refused.value)


def test_another_networks_checkpoint_is_refused(tmp_path: Path):
    path = tmp_path / "es.safetensors"
    trainer(feed_forward()).save(path)
    with pytest.raises(InputError, match=r"is of another network \(declaration \w{12}\)"):
        Trainer.load(path, net=mlp(3, [9], 2))
    with pytest.raises(InputError, match=r"^seed belongs to the training"):
        Trainer.load(path, seed=5)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="is damaged or no checkpoint"):
        Trainer.load(path)
