"""What callers give, and what they do with it later: arrays, names and numbers of any kind."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from eggroll.errors import InputError
from eggroll.library.gradient_trainer import GradientTrainer
from eggroll.library.members import Store
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp
from eggroll.spec.credit import draw
from eggroll.spec.fixed_point import quantise
from eggroll.spec.program import Program

P = 12


def answering(inputs: Any = 3, hidden: Any = 8) -> Program:
    net = Program()
    net.output(net.linear(net.relu(net.linear(net.input(inputs), "hidden", hidden)), "out", 2))
    return net


def sparse(lists: int = 1, state: bool = False) -> Program:
    net = Program(width=lists * 4)
    _, s = net.stage(state=state)
    x = net.features("rows", 9, 4, active=3, lists=lists)
    net.output(net.add(x, s, out=s) if state else x)
    return net


def reading() -> Program:
    net = Program(vocabulary=5, width=4)
    net.stage()
    net.output(net.linear(net.embed("embedding"), "out", 2))
    return net


def trainer(net: Any, **options: Any) -> Trainer:
    return Trainer(net, **{"pop": P, "engine": "cpu"} | options)


def rows(seed: int) -> Any:
    return np.random.default_rng(seed).integers(-100, 100, (P, 3)).astype(np.int8)


def test_arrays_may_be_reused_after_a_call():
    """An environment's own mask of episodes under way is changed in place, step by step."""
    signatures = []
    for reuse in (False, True):
        es = trainer(answering(), estimator="token-credit", sigma_shift=0)
        members, shown, active = es.ask(), rows(0), np.ones(P, np.bool_)
        for _ in range(3):
            members(shown if reuse else shown.copy(), active=active if reuse else active.copy())
            active[4:8], shown[:] = False, 0
        active[:] = False
        es.tell(np.arange(P) ** 2 % 7)
        signatures.append(es.signature)
    assert signatures[0] == signatures[1] != trainer(answering()).signature


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_members_belong_to_their_trainer(copied: Callable[[Any], Any]):
    es = trainer(answering())
    with pytest.raises(InputError, match="Members belong to their Trainer and cannot be copied"):
        copied(es.ask())
    again = pickle.loads(pickle.dumps(es)).ask()
    assert np.array_equal(es.ask()(rows(0)), again(rows(0)))


def test_a_model_takes_active_as_members_do():
    """So that the same function plays both; it changes nothing."""
    es = trainer(answering(), estimator="token-credit")
    shown, active = rows(0), np.arange(P) % 3 > 0
    one, other = es.model(shown, active=active), es.model(shown)
    np.testing.assert_array_equal(one, other)
    drawing = trainer(mlp(3, [4], 2, policy=True)).model
    np.testing.assert_array_equal(drawing.act(shown, active=active), drawing.act(shown))
    for wrong in (active[:2], active.astype(int)):
        for call in (es.model, drawing.act):
            with pytest.raises(InputError, match=rf"^active is .*: bool \[{P}\] or \[{P}, 1\]"):
                call(shown, active=wrong)


@pytest.mark.parametrize("lists", [1, 2])
def test_lists_of_features_have_an_axis_of_their_own(lists):
    given = np.random.default_rng(0).integers(-1, 9, (P, 5, lists, 3))
    flat = given.reshape(P, 5, -1)
    net = sparse(lists)
    want = trainer(net).ask()(features=flat)
    assert want.shape == (P, 5, lists * 4)
    assert (trainer(net).ask()(features=given) == want).all()
    assert (trainer(net).ask()(given.astype(">i8")) == want).all()
    assert (trainer(net).ask()(features=flat[:, 0]) == want[:, 0]).all()


def test_a_call_that_failed_leaves_a_model_as_it_was():
    model = trainer(sparse(state=True)).model
    with pytest.raises(InputError, match=r"must be in 0\.\.8, .* none: 9 to 9 were given\.$"):
        model(features=np.full((3, 3), 9))
    with pytest.raises(InputError, match=r"are 9 to 9: 0 to 8 is needed, or -1 for none\.$"):
        trainer(sparse(state=True), engine="portable").model(features=np.full((3, 3), 9))
    assert model(features=np.full((4, 3), 1)).shape == (4, 4)


@pytest.mark.parametrize("rule", ["sign", "master", "whitened"])
def test_another_thread_may_go_on_with_a_trainer(rule: str, tmp_path: Path):
    """What MLX has not computed, no other thread can; a bias begins so."""
    net, saved = Program(), tmp_path / "es.safetensors"
    net.output(net.bias(net.linear(net.input(3), "out", 2), "bias"))

    def update(es: Trainer) -> None:
        es.ask()(rows(0))
        es.tell(np.arange(P))

    def work() -> None:
        es.save(saved)
        update(es)
        es.save(saved)
        es.model(rows(0))

    es, same = trainer(net, rule=rule), trainer(net, rule=rule)
    other = threading.Thread(target=work)
    other.start()
    other.join()
    update(es)
    update(same)
    assert Trainer.load(saved).signature == same.signature
    update(same)
    assert es.signature == same.signature


def test_numbers_may_be_numpys(tmp_path: Path):
    net = answering(np.prod((3, 1)), np.int64(8))
    assert net.digest() == answering().digest()
    es = trainer(net, pop=np.int64(P), alpha=np.float32(2), seed=np.uint8(3), carry=np.bool_(True))
    es.save(tmp_path / "es.safetensors")
    assert Trainer.load(tmp_path / "es.safetensors").options == es.options


def test_differences_too_small_to_divide_by_count_as_none():
    es = trainer(answering(), estimator="token-credit")
    before = es.signature
    es.ask()(rows(0))
    es.tell(np.arange(P) * 5e-324)
    assert es.signature == before


def uneven_calls() -> None:
    es = trainer(answering())
    members = es.ask()
    for count in (1, 3, 2):
        members(np.repeat(rows(0)[:, None], count, axis=1))
    es.tell(np.zeros((P, 2)))


def told(values: Any) -> None:
    es = trainer(answering())
    es.ask()(rows(0))
    es.tell(values)


def slopes(values: Any) -> None:
    float_trainer = GradientTrainer(answering())
    float_trainer.ask(rows(0)[:1])
    float_trainer.tell_gradient(values)


RAGGED = [[1], [1, 2]]
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "ragged rows": (lambda: trainer(answering()).ask()(RAGGED), r"^inputs is no array \(setting"),
    "bfloat16": (
        lambda: trainer(answering()).ask()(mx.ones((P, 3), mx.bfloat16)),
        r"^inputs is no array \(.*bfloat16",
    ),
    "ragged features": (lambda: trainer(sparse()).ask()(RAGGED), "^features is no array"),
    "ragged begins": (
        lambda: trainer(answering()).ask()(rows(0), begins=RAGGED),
        "^begins is no array",
    ),
    "ragged active": (
        lambda: trainer(answering()).ask()(rows(0), active=RAGGED),
        "^active is no array",
    ),
    "ragged fitness": (lambda: told(RAGGED), "^fitness is no array"),
    "ragged x": (lambda: quantise(RAGGED), "^x is no array"),
    "ragged slopes": (lambda: slopes(RAGGED), "^slopes of 'output' is no array"),
    "complex slopes": (lambda: slopes([[1j, 1j]]), "^slopes of 'output' are complex128: real"),
    "huge fitness": (lambda: told([1e308, -1e308] * 6), r"^fitness reaches 1e\+308: 1e\+290 is"),
    "rows of some calls": (uneven_calls, r"^fitness has the shape \[12, 2\]"),
    "begins of tokens": (
        lambda: trainer(reading()).ask()(np.ones((P, 2), int), begins=np.ones(P, np.bool_)),
        "^begins was given to a network that reads tokens: token 0",
    ),
    "tokens twice": (
        lambda: trainer(reading()).ask()(np.ones((P, 2), int), tokens=np.ones((P, 3), int)),
        "^inputs were given to a network that reads none",
    ),
    "no network": (lambda: trainer(None), "^net is of type NoneType: an eggroll.Program"),
    "pop of text": (lambda: trainer(answering(), pop="8"), "^pop is '8': a whole number is"),
    "pop of a float": (lambda: trainer(answering(), pop=8.0), "^pop is 8.0: a whole number"),
    "no seed": (lambda: trainer(answering(), seed=None), "^seed is None: a whole number"),
    "carry of text": (lambda: trainer(answering(), carry="yes"), "^carry is 'yes': True or False"),
    "rows planned": (lambda: trainer(answering(), seq_len=5), "^Option 'seq_len' is unknown"),
    "no folder": (lambda: trainer(answering(), out=3), "^3 is no path: give a str or a Path"),
    "no folder, empty": (lambda: trainer(answering(), out=None), "^None is no path"),
    "no file": (lambda: Trainer.load(3), "^3 is no path"),  # type: ignore[arg-type]
    "no readers": (lambda: trainer(answering()).keys(0), "^readers is 0: a whole number from 1"),
    "half a size": (lambda: answering(2.5), "^The size of the input is 2.5: a number from 1"),
    "size of text": (lambda: answering(3, "8"), "^The number of outputs of 'hidden' is '8'"),
    "no name": (
        lambda: (net := Program()).linear(net.input(3), None, 2),  # type: ignore[arg-type]
        "^The name None is of type NoneType: give a str",
    ),
    "ragged table": (lambda: Program().table("t", RAGGED), "^Table 't' is no array"),  # type: ignore[arg-type]
    "words to draw by": (
        lambda: draw(np.ones((2, 3), np.int8), np.ones(5, np.uint64)),
        r"^logits are int8 \[2, 3\] and words uint64 \[5\]: int8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence(name: str):
    act, says = REFUSED[name]
    with pytest.raises(InputError, match=says) as refused:
        act()
    assert "\n" not in str(refused.value)


def test_a_program_that_goes_on_growing_is_not_the_trainers():
    net = Program()
    h = net.linear(net.input(3), "hidden", 4)
    net.output(h)
    es = trainer(net)
    net.sums(h, "extra", 2)
    assert es.ask()(np.ones((es.pop, 1, 3), np.int8)).shape == (es.pop, 1, 4)


def test_token_credit_has_one_policy():
    net = Program()
    h = net.input(3)
    net.policy(h, "a", 2)
    net.policy(h, "b", 2)
    with pytest.raises(InputError, match=r"^The network has 2 policies and est"):
        trainer(net, estimator="token-credit")
    assert trainer(net).program.policies == net.policies


def test_stored_rows_stay_until_the_next_update():
    """Copies are of the call's values, and memory is used again without a row of one in another."""
    store, rows = Store(), [np.full((2, 3), i, np.int8) for i in range(3)]
    first = [store.copy(row) for row in rows]
    rows[0][:] = 9
    assert [int(kept[0, 0]) for kept in first] == [0, 1, 2]
    store.clear()
    again = [store.copy(row) for row in (rows[2], np.ones((4, 1), np.int8), rows[1])]
    assert [int(kept[0, 0]) for kept in again] == [2, 1, 1]
    assert again[0] is first[0]
    assert again[1].shape == (4, 1)
    assert len({kept.ctypes.data for kept in again}) == 3
