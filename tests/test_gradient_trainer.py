"""GradientTrainer: any declared network in float, by the gradient of any loss."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from eggroll.baseline import twin_numpy
from eggroll.errors import InputError
from eggroll.library.gradient_trainer import FloatModel, GradientTrainer, RealModel
from eggroll.library.trainer import Trainer
from eggroll.networks import egg, initial_weights, mlp, nnue
from eggroll.spec.program import Program


def recurrent() -> Program:
    """Remembers; two outputs."""
    net = Program(width=8)
    x, s = net.stage(state=True)
    x = net.linear(net.input(2), "in", 8)
    net.lookup(net.add(x, net.linear(s, "again", 8)), "tanh")
    net.add(x, net.linear(s, "kept", 8), out=s)
    net.output(net.linear(s, "out", 2), "value")
    net.sums(s, "total", 1)
    return net


def int8(shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


def test_first_weights_are_those_of_the_int8_network():
    trainer = GradientTrainer(mlp(3, [4], 2), seed=5)
    for name, leaf in initial_weights(trainer.program, 5).items():
        assert np.array_equal(np.array(trainer.weights[name]) * 16, np.array(leaf)), name


def trained_on_xor() -> tuple[GradientTrainer, NDArray[np.int8], NDArray[np.float32]]:
    """A trainer that has learnt exclusive or, its rows, and the outputs wanted."""
    trainer = GradientTrainer(mlp(2, [8], 1), learning_rate=0.05, seed=1)
    x = np.array([[-16, -16], [-16, 16], [16, -16], [16, 16]], np.int8)
    wanted = np.array([[-2], [2], [2], [-2]], np.float32)
    for _ in range(200):
        trainer.tell_gradient(2 * (trainer.ask(x) - wanted))
    return trainer, x, wanted


def test_exclusive_or_is_learnt():
    trainer, x, wanted = trained_on_xor()
    assert trainer.step == 200
    assert np.abs(trainer.model(x) - wanted).max() < 0.05


def test_sums_of_features_are_learnt():
    """The difference of the two lists' piece values."""
    rng, errors = np.random.default_rng(0), []
    features, worth = rng.integers(-1, 12, (256, 2, 4)), np.append(rng.normal(size=12), 0)
    wanted = worth[features].sum(axis=-1) @ np.array([1.0, -1.0])
    trainer = GradientTrainer(nnue(12, 8, 8, active=4), learning_rate=0.1)
    for step in range(300):
        trainer.learning_rate = 0.1 * (1 - step / 300)
        error = trainer.ask(features=features[:, None])[:, 0, 0] - wanted
        trainer.tell_gradient(2 * error[:, None, None] / 256)
        errors.append(np.square(error).mean())
    assert errors[-1] < 0.02 * wanted.var()


def test_adam_moves_every_weight_by_the_rate_at_first():
    """Its first update is the rate times the gradient's sign, whatever the loss's scale."""
    trainer = GradientTrainer(mlp(3, [], 2), learning_rate=0.25)
    before = {name: np.array(w) for name, w in trainer.weights.items()}
    outputs = trainer.ask(int8((1, 3)) // 8)
    assert np.abs(outputs).max() < 127 / 16, "a clip would stop the gradient"
    trainer.tell_gradient(np.array([[1000.0, -1000.0]]))
    moved = np.array(trainer.weights["layer0.bias"]) - before["layer0.bias"]
    np.testing.assert_allclose(moved, [-0.25, 0.25], rtol=1e-5)
    after = np.array(trainer.weights["layer0.bias"])
    trainer.learning_rate = 0.0
    trainer.ask(int8((1, 3)) // 8)
    trainer.tell_gradient(np.array([[1000.0, -1000.0]]))
    assert np.array_equal(np.array(trainer.weights["layer0.bias"]), after)


def test_state_is_carried_where_asked_and_begins_anew():
    x = int8((3, 4, 2))
    for carry in (False, True):
        trainer = GradientTrainer(recurrent(), carry=carry)
        whole = trainer.ask(x)
        assert {name: a.shape for name, a in whole.items()} == {
            "value": (3, 4, 2),
            "total": (3, 4, 1),
        }
        again = trainer.ask(x)
        assert np.array_equal(whole["value"], again["value"]) != carry
        anew = trainer.ask(x, begins=np.ones(3, bool))
        assert np.array_equal(whole["value"], anew["value"])
    model = trainer.model
    parts = [model(x[:, t])["total"] for t in range(4)]
    assert np.array_equal(np.stack(parts, axis=1), whole["total"])
    with pytest.raises(InputError, match=r"2 readers follow 3, .* call reset\(\) first"):
        model(x[:2, 0])
    model.reset()
    assert model(x[:2])["total"].shape == (2, 4, 1)


def test_gradient_reaches_back_through_the_rows():
    """The last row's loss moves what only the first row's input feeds."""
    trainer = GradientTrainer(recurrent())
    x = np.zeros((1, 5, 2), np.int8)
    x[0, 0] = 40, -30
    before, slopes = np.array(trainer.weights["in"]), np.zeros((1, 5, 1))
    slopes[0, -1] = 1
    trainer.ask(x)
    trainer.tell_gradient({"total": slopes})
    assert (np.array(trainer.weights["in"]) != before).any()


def test_model_stays_as_it_was_and_calls_change_nothing():
    x, told = int8((4, 3)), np.ones((4, 2))
    trainers = [GradientTrainer(mlp(3, [4], 2)) for _ in range(2)]
    for step, trainer in enumerate(trainers):
        outputs = trainer.ask(x)
        if step:
            model = trainer.model
            assert np.array_equal(model(x), outputs)
            model(int8((9, 3), 1))
        trainer.tell_gradient(told)
    assert np.array_equal(model(x), outputs)
    one, two = (trainer.weights for trainer in trainers)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(trainers[1].model(x), outputs)


def tell(trainer: GradientTrainer, slopes) -> None:
    trainer.ask(int8((4, 3)))
    trainer.tell_gradient(slopes)


WRONG = {
    "tell before ask": (lambda t: t.tell_gradient(np.ones((4, 2))), "call ask() first"),
    "no shape": (lambda t: tell(t, 0), "have the shape []: [4, 2] is needed"),
    "shape": (lambda t: tell(t, np.ones((4, 1, 2))), "[4, 1, 2]: [4, 2] is needed"),
    "nan": (lambda t: tell(t, np.full((4, 2), np.nan)), "'output' is not finite"),
    "name": (lambda t: tell(t, {"class": np.ones((4, 2))}), "'class' is no output"),
    "no name": (lambda t: tell(t, {}), "slopes is empty: give those of one output"),
    "inputs": (lambda t: t.ask(np.ones((4, 3))), "float64: int8 are needed"),
    "size": (lambda t: t.ask(int8((4, 2))), "[4, 2]: [R, T, 3] is needed"),
    "nothing": (lambda t: t.ask(), "inputs are needed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_sentence_and_changes_nothing(name: str):
    call, said = WRONG[name]
    trainer = GradientTrainer(mlp(3, [4], 2))
    with pytest.raises(InputError) as error:
        call(trainer)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert trainer.step == 0
    first = initial_weights(trainer.program, 0)
    assert all(np.array_equal(np.array(w) * 16, first[k]) for k, w in trainer.weights.items())


def test_an_update_needs_an_ask_of_its_own():
    trainer = GradientTrainer(mlp(3, [4], 2))
    tell(trainer, np.ones((4, 2)))
    with pytest.raises(InputError, match=r"call ask\(\) first"):
        trainer.tell_gradient(np.ones((4, 2)))
    assert trainer.step == 1


@pytest.mark.parametrize(
    ("net", "said"), [(egg(8, 4, 1), "has a score"), (Program(), "program is empty")]
)
def test_network_without_outputs_is_refused(net: Program, said: str):
    with pytest.raises(InputError, match=said):
        GradientTrainer(net)


def test_slopes_of_several_outputs_go_by_name():
    trainer = GradientTrainer(recurrent())
    trainer.ask(int8((1, 2)))
    with pytest.raises(InputError, match="give them by name, a dict of value, total"):
        trainer.tell_gradient(np.ones((1, 1)))


def test_weights_go_to_int8_and_back():
    """What was int8 stays what it is, and nothing else is taken."""
    weights = {leaf.name: int8(leaf.shape, 3) for leaf in mlp(3, [4], 2).leaves}
    for w in weights.values():
        w[w == -128] = 0
    back = GradientTrainer(mlp(3, [4], 2), weights=weights).quantised()
    assert all(np.array_equal(back.weights[name], w) for name, w in weights.items())
    assert back.clipped == 0
    assert np.isnan([back.before, back.after]).all()
    es = Trainer(mlp(3, [4], 2), pop=2, weights=back.weights)
    assert all(np.array_equal(es.weights[name], w) for name, w in weights.items())
    for wrong, said in (({}, "has no leaf"), (es.model, "a dict of int8 arrays")):
        with pytest.raises(InputError, match=said):
            GradientTrainer(mlp(3, [4], 2), weights=wrong)


def test_the_loss_before_and_after_is_that_of_both_networks():
    trainer, x, wanted = trained_on_xor()
    found = trainer.quantised(lambda model: float(np.square(model(x) - wanted).mean()))
    int8_model = Trainer(mlp(2, [8], 1), pop=2, weights=found.weights).model
    assert found.before == np.square(trainer.model(x) - wanted).mean() < 0.01
    assert found.after == np.square(int8_model(x) / 16 - wanted).mean()
    assert found.before < found.after < 0.3


def test_outputs_of_both_networks_are_in_real_units():
    """Those of a recurrent one, whose state begins at zero each time, and sums."""
    trainer, seen = GradientTrainer(recurrent()), []
    rows = int8((4, 6, 2)) // 2
    trainer.ask(rows)
    trainer.quantised(lambda model: seen.append(model(rows)) or 0.0)
    trainer.quantised(lambda model: seen.append(model(rows)) or 0.0)
    for name in ("value", "total"):
        one, other = (np.array(of[name]) for of in seen[:2])
        assert np.abs(one - other).mean() < 0.15 * np.abs(one).mean() + 0.1, name
        for first, again in zip(seen[:2], seen[2:], strict=True):
            assert np.array_equal(first[name], again[name])


def test_a_loss_may_begin_anew():
    trainer, rows, seen = GradientTrainer(recurrent()), int8((4, 6, 2)) // 2, []

    def loss(model: FloatModel | RealModel) -> float:
        seen.append([model(rows)["value"], model(rows)["value"]])
        model.reset()
        seen[-1].append(model(rows)["value"])
        return 0.0

    trainer.quantised(loss)
    for first, later, anew in seen:
        assert first.dtype == np.float32
        assert np.array_equal(first, anew)
        assert not np.array_equal(first, later)
    assert len(seen) == 2


def test_a_policy_has_one_output_for_the_caller():
    trainer = GradientTrainer(mlp(3, [4], 2, policy=True))
    tell(trainer, np.ones((4, 2)))
    shapes = []
    trainer.quantised(lambda model: shapes.append(model(int8((4, 3))).shape) or 0.0)
    assert (trainer.step, shapes) == (1, [(4, 2), (4, 2)])


def test_copies_are_as_before_a_call():
    trainer, x, wanted = trained_on_xor()
    trainer.ask(x)
    model = trainer.model
    known = model(x)
    for made in (copy.copy(trainer), copy.deepcopy(trainer), pickled(trainer)):
        with pytest.raises(InputError, match="without ask before it"):
            made.tell_gradient(wanted)
        made.tell_gradient(made.ask(x) - wanted)
        assert made.step == trainer.step + 1
        assert np.array_equal(trainer.model(x), known)
    assert np.array_equal(pickled(model)(x), known)


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_model_has_a_state_of_its_own(copied):
    x, model = int8((4, 1, 2)), GradientTrainer(recurrent()).model

    def called(made):
        return np.concatenate([a.ravel() for a in made(x).values()])

    called(model)
    made = copied(model)
    after = called(made)
    called(made)
    assert np.array_equal(called(model), after)
    made.reset()
    assert not np.array_equal(called(made), called(model))


def test_threads_may_take_turns():
    """What one thread begins another may go on with, and BLAS has its threads in the end."""
    made: list[GradientTrainer] = []
    x = int8((64, 3))

    def update():
        made[0].tell_gradient(made[0].ask(x) / 64)

    threads = twin_numpy._openblas()
    before = threads and threads[0]()
    for work in (lambda: made.append(GradientTrainer(mlp(3, [4], 2), threads=2)), update, update):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    update()
    assert made[0].step == 3
    others = [GradientTrainer(mlp(3, [4], 2), threads=1) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda es: [es.tell_gradient(es.ask(x) / 64) for _ in range(50)], others))
    assert all(np.array_equal(es.model(x), others[0].model(x)) for es in others)
    assert (threads and threads[0]()) == before


@pytest.mark.parametrize("loss", [3, lambda model: None, lambda model: np.ones(3)])
def test_a_loss_that_is_none_is_named(loss):
    with pytest.raises(InputError, match=r"^loss (is|returned) "):
        GradientTrainer(mlp(3, [4], 2)).quantised(loss)


def test_weights_beyond_int8_are_counted_and_nan_is_refused():
    trainer = GradientTrainer(mlp(3, [], 2, bias=False), learning_rate=9.0)
    trainer.ask(int8((4, 3)))
    trainer.tell_gradient(np.ones((4, 2)))  # Adam's first step: the rate, for every weight
    found = trainer.quantised()
    (real,), (whole,) = trainer.weights.values(), found.weights.values()
    assert found.clipped == np.mean(np.abs(np.array(real)) >= 127.5 / 16) > 0
    assert np.abs(whole).max() == 127
    trainer.learning_rate = 1e300  # beyond float32
    trainer.ask(int8((4, 3)))
    trainer.tell_gradient(np.ones((4, 2)))
    with pytest.raises(InputError, match=r"'layer0\.weights' is not finite: try a lower"):
        trainer.quantised()
