"""Calls that are refused by one sentence, and leave everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eggroll as eg
from eggroll import InputError
from eggroll.envs.spaces import decode_for
from eggroll.networks import egg, mlp
from eggroll.spec.program import ProgramError

ROWS = np.arange(-64, 64, dtype=np.int8).reshape(32, 4)
CLASSES = np.arange(32) % 3


def trainer(**more: Any) -> eg.Trainer:
    options: dict[str, Any] = {"pop": 8, "table_bits": 16, "threads": 1, "seed": 1} | more
    return eg.Trainer(mlp(4, [8], 3), **options)


def learner(**more: Any) -> eg.Trainer:
    return trainer(estimator="feedback", rule="adam", **more)


@pytest.mark.parametrize("engine", ["cpu", "portable"])
@pytest.mark.parametrize("token", [9, -1, 10_000_000])
def test_tokens_beyond_the_vocabulary(engine: str, token: int):
    """They are no places of memory."""
    net = eg.Program(9, 4)
    net.stage()
    net.embed("e")
    h, _ = net.stage()
    net.output(net.linear(h, "w", 2))
    es = eg.Trainer(net, pop=2, table_bits=16, engine=engine, estimator="feedback", rule="adam")
    with pytest.raises(InputError, match=r"tokens .*0..8"):
        es.model(tokens=[[token], [1]])
    with pytest.raises(InputError, match=r"tokens .*0..8"):
        es.learn(tokens=[[token], [1]], targets=[[0], [1]])
    assert es.model(tokens=[[8], [0]]).shape == (2, 1, 2)


def test_carry_without_a_state_is_kept(tmp_path: Path):
    es = learner(pop=64, carry=True)
    shown = np.ones((64, 8, 4), np.int8)
    es.learn(shown, np.zeros((64, 8), int))
    es.save(tmp_path / "x.safetensors")
    again = eg.Trainer.load(tmp_path / "x.safetensors")
    for one in (es, again):
        one.learn(shown, np.ones((64, 8), int))
    assert es.signature == again.signature


class Kept:
    """Arrays that are not as a file has them."""

    def __init__(self) -> None:
        self.made: Any = {
            "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "big": np.arange(4, dtype=">i8"),
            "turned": np.arange(5)[::-1],
            "live": np.zeros(3, int),
        }

    def arrays(self) -> Any:
        return self.made

    def restore(self, arrays: Any) -> None:
        self.made = dict(arrays)


def test_arrays_of_any_layout_are_kept_as_they_were(tmp_path: Path):
    es, kept = trainer(), Kept()
    es.keep(kept)
    kept.made["live"] += 7  # since the last update
    es.save(tmp_path / "x.safetensors")
    other = Kept()
    eg.Trainer.load(tmp_path / "x.safetensors").keep(other)
    np.testing.assert_array_equal(other.made["fortran"], np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(other.made["big"], np.arange(4))
    np.testing.assert_array_equal(other.made["turned"], np.arange(5)[::-1])
    np.testing.assert_array_equal(other.made["live"], np.zeros(3))


@pytest.mark.parametrize("made", [3, {"a": "text"}, {"a": np.array([None])}, {"a": 1j}, {1: 1.0}])
def test_what_cannot_be_kept(made: Any):
    kept = Kept()
    kept.made = made
    with pytest.raises(InputError, match=r"dict by name|64 bits at most|names must be texts"):
        trainer().keep(kept)
    with pytest.raises(InputError, match="needs methods `arrays` and `restore`"):
        trainer().keep(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["b/mean", "b/size", "b/feedback", "b/whitening"])
def test_leaves_named_as_what_a_rule_keeps(name: str):
    """They would share memory with it."""
    net = eg.Program()
    h = net.bias(net.relu(net.bias(net.linear(net.input(4), "W", 8), "b")), name)
    net.output(net.linear(h, "V", 3))
    with pytest.raises(InputError, match=f"{name}.* of leaf 'b': give it another name"):
        eg.Trainer(net, pop=8, table_bits=16)


def sparse() -> eg.Trainer:
    net = eg.Program()
    net.output(net.linear(net.features("rows", 10, 8, active=4), "w", 3))
    return eg.Trainer(net, pop=8, table_bits=16, estimator="feedback", rule="adam")


def test_a_declaration_that_is_refused_leaves_nothing():
    net = eg.Program()
    x = net.input(4)
    net.output(x, "act")
    with pytest.raises(ProgramError):
        net.policy(x, "act", 4)
    net.policy(x, "act2", 4)
    assert (len(net.policies), [leaf.name for leaf in net.leaves]) == (1, ["act2"])
    with pytest.raises(ProgramError):
        net.concat(x, x, "bad")  # type: ignore[arg-type]
    operations = len(net.stages[-1].ops)
    with pytest.raises(ProgramError):
        net.stage(5)  # type: ignore[arg-type]
    assert (len(net.stages), len(net.stages[-1].ops)) == (1, operations)
    for name in (3, ""):
        with pytest.raises(ProgramError, match="name"):
            net.table(name, np.arange(-127, 128))  # type: ignore[arg-type]


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "an empty index": (
        lambda: sparse().model(features=eg.Lists([], [[[0, 1]]])), "an index that has none",
    ),
    "no lists": (lambda: eg.Lists.csr([0, 1], [0], 0), "lists is 0: a whole number from 1 on"),
    "starts of text": (lambda: eg.Lists.csr(["a", "b"], [0]), "starts are .*whole numbers"),
    "features of another shape": (
        lambda: sparse().model(features=np.zeros((5, 2, 2), int)), r"\[5, 2, 2\]",
    ),
    "a purpose": (lambda: trainer().keys(4, -1), "purpose is -1: a whole number from 0"),
    "no loss": (lambda: learner().learn(ROWS, CLASSES, loss=5), "loss is 5: a name, or a dict"),  # type: ignore[arg-type]
    "a loss of nothing": (
        lambda: learner().learn(ROWS, CLASSES, loss={"output": "softmax", "x": "softmax"}),
        "loss has 'x', which has no targets",
    ),
    "a timeout": (lambda: trainer().map(print, timeout=-1.0), "timeout is -1.0: a number of"),
    "a rate": (
        lambda: eg.GradientTrainer(mlp(4, [], 2), learning_rate=float("nan")),
        "learning_rate is nan: a number from 0 on",
    ),
    "betas": (lambda: eg.GradientTrainer(mlp(4, [], 2), betas=(0.9, 1.0)), "two numbers from 0 to"),
    "a carry": (
        lambda: eg.GradientTrainer(mlp(4, [], 2), carry="x"), "carry is 'x': True or False",  # type: ignore[arg-type]
    ),
    "a folder of nobody": (lambda: eg.train(eg.Config(resume="a\0b")), "is no path"),
    "numpy": (lambda: trainer().model.export("numpy.py"), "imported in NumPy's place"),
    "no text of a file": (lambda: trainer().save("a\0b"), "is no path: give a str or a Path"),
    "half a letter": (lambda: eg.load("a\ud800"), "is no path: give a str or a Path"),
    "a path of nobody": (lambda: trainer().model.export("a\0.h"), "is no path"),
    "layers": (lambda: mlp(4, 5.5, 3), "hidden layers are 5.5: give a list"),  # type: ignore[arg-type]
    "no layers": (lambda: egg(4, 4, -1), "layers is -1: a whole number from 0"),
    "gates": (lambda: egg(4, 4, 1, "foo"), "gates are 'foo': clip or table"),  # type: ignore[arg-type]
    "a seed": (lambda: eg.networks.small_outputs(mlp(4, [], 2), "a"), "seed is 'a'"),  # type: ignore[arg-type]
    "no actions": (
        lambda: eg.draw(np.zeros((2, 0), np.int8), np.zeros(2, np.uint64)), r"int8 \[2, 0\]",
    ),
    "members": (lambda: eg.envs.gym("CartPole-v1", members=True), "members is True"),
    "observe": (
        lambda: eg.envs.gym("CartPole-v1", members=2, observe=3), "observe is 3: a function",  # type: ignore[arg-type]
    ),
    "sums as actions": (
        lambda: decode_for(Box())[0](np.zeros((1, 1), np.int32)), "`output` in place of `sums`",
    ),
    "actions without bounds": (lambda: decode_for(Box(3e38)), "a Box space without bounds"),
}  # fmt: skip


class Box:
    """As Gymnasium has it."""

    def __init__(self, most: float = 2.0) -> None:
        self.low, self.high = np.full(1, -most), np.full(1, most)
        self.shape, self.dtype = (1,), np.dtype(np.float32)


@pytest.mark.parametrize("name", CALLS)
def test_bad_values_get_a_sentence(name: str):
    call, sentence = CALLS[name]
    with pytest.raises(InputError, match=sentence):
        call()


def test_a_refused_map_leaves_what_was_asked():
    es = trainer()
    members = es.ask()
    members(ROWS[None])
    with pytest.raises(InputError, match="top of a module"):
        es.map(lambda model, key: 1.0)
    es.tell(np.arange(8.0))
    assert es.step == 1


def test_a_refused_rate_leaves_the_rows_that_were_asked():
    es = eg.GradientTrainer(mlp(4, [], 2))
    es.ask(ROWS)
    es.learning_rate = "x"  # type: ignore[assignment]
    with pytest.raises(InputError, match="learning_rate is 'x'"):
        es.tell_gradient(np.ones((32, 2)))
    es.learning_rate = 0.01
    es.tell_gradient(np.ones((32, 2)))
    assert es.step == 1


def test_errors_of_one_row_by_name_are_those_without_names():
    one, other = learner(seed=3), learner(seed=3)
    errors = np.ones((8, 3), np.int8)
    for es, given in ((one, errors), (other, {"output": errors})):
        es.ask()(ROWS[:8])
        es.tell_errors(given)
    assert one.signature == other.signature
    one.ask()(ROWS[:8])
    with pytest.raises(InputError, match="rows of one length"):
        one.tell_errors([[1, 2, 3], [1]])
