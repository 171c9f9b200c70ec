"""Lists of features as spans of one index give what arrays filled up with -1 do, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eggroll as eg
from eggroll.errors import InputError

LEAVES = ("ft", 50, 6, 2), ("gt", 30, 4, 1)  # name, rows, indices of a list, lists
R, T = 12, 3


def program(state: bool = False) -> eg.Program:
    net = eg.Program(width=12)
    x, s = net.stage(state=state)
    (f, rows, most, lists), (g, other, less, one) = LEAVES
    shown = net.concat(
        net.features(f, rows, 8, active=most, lists=lists, shift=1),
        net.features(g, other, 4, active=less, lists=one),
    )
    h = net.relu(net.bias(net.linear(shown, "in", 12), "b"), out=x)
    if state:
        gate = net.lookup(net.linear(h, "gate", 12), "sigmoid")
        net.mix(gate, h, s, out=s)
        net.add(h, s, out=x)
    net.sums(x, "v", 1)
    net.output(net.linear(x, "logits", 3), "class")
    return net


def both(seed: int = 0, lead: tuple[int, ...] = (R, T)) -> tuple[np.ndarray, eg.Lists]:
    """The same lists filled up, and as spans; in an index with numbers of nobody between them."""
    rng = np.random.default_rng(seed)
    rows = int(np.prod(lead))
    padded, index = np.full((rows, 16), -1, np.int32), [-7]
    spans = np.zeros((rows, 3, 2), np.int32)
    for row in range(rows):
        at = list_number = 0
        for _, count, most, lists in LEAVES:
            for _ in range(lists):
                found = rng.integers(0, count, rng.integers(0, most + 1))
                padded[row, at : at + len(found)] = found
                spans[row, list_number] = len(index), len(found)
                index += [*found.tolist(), 1 << 30]
                at, list_number = at + most, list_number + 1
    return padded.reshape(*lead, 16), eg.Lists(np.array(index), spans.reshape(*lead, 3, 2))


def trained(features: Any, *, state: bool, threads: int, **options: Any) -> tuple[Any, ...]:
    es = eg.Trainer(program(state), pop=R, seed=3, steps=20, threads=threads, **options)
    updates, labels = [], np.random.default_rng(9).integers(0, 3, (R, T))
    for _ in range(4):
        if es.options.estimator == "feedback":
            targets = {"v": labels[..., None] * 40, "class": labels}
            loss = {"v": "sigmoid", "class": "softmax"}
            update = es.learn(features=features, targets=targets, loss=loss)
            updates.append((update.loss, update.error, update.update_rate))
            es.learn(features=features, errors=lambda out: {"v": out["v"] % 7 - 3.0})
        members = es.ask()
        out = members(features=features)
        updates.append(out["v"].tolist())
        if es.options.estimator == "feedback":
            es.tell_errors({"class": np.sign(out["class"])})
        else:
            es.tell(out["v"].sum(axis=(1, 2)))
    weights = es.weights
    return updates, [weights[name].tobytes() for name in sorted(weights)]


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "feedback", "rule": "adam", "threads": 1},
        {"estimator": "feedback", "rule": "adam", "threads": 3},
        {"estimator": "feedback", "rule": "adam", "threads": 1, "engine": "portable"},
        {"estimator": "token-credit", "threads": 1},
        {"estimator": "eggroll", "threads": 1},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_lists_are_what_arrays_filled_up_are(options: dict[str, Any], state: bool):
    padded, lists = both()
    found = trained(lists, state=state, **options)
    assert found == trained(padded, state=state, **options)
    assert found != trained(both(1)[1], state=state, **options)


def test_models_and_gradients_read_them_too():
    padded, lists = both()
    model = eg.Trainer(program(), pop=2, seed=1).model
    for name, value in model(features=padded).items():
        np.testing.assert_array_equal(model(features=lists)[name], value)
    one_row = both(2, (5,))
    np.testing.assert_array_equal(model(one_row[1])["v"], model(one_row[0])["v"])
    outputs = [eg.GradientTrainer(program(), seed=1).ask(features=f) for f in (padded, lists)]
    for name, value in outputs[0].items():
        np.testing.assert_array_equal(outputs[1][name], value)


def test_rows_of_a_sparse_matrix_are_lists():
    """Of any kind of whole numbers; an empty index as well, and lists that share their numbers."""
    starts, index = np.array([0, 2, 2, 5], np.uint16), np.array([3, 1, 4, 0, 2], np.uint64)
    lists = eg.Lists.csr(starts, index)
    assert lists.spans.tolist() == [[[0, 2]], [[2, 0]], [[2, 3]]]
    assert eg.Lists.csr([0, 1, 3, 3, 4], range(4), lists=2).spans.shape == (2, 2, 2)
    net = eg.Program()
    net.sums(net.features("E", 5, 4, active=3), "v", 2)
    model = eg.Trainer(net, pop=2, estimator="feedback", rule="adam").model
    filled = np.array([[3, 1, -1], [-1, -1, -1], [4, 0, 2]])
    np.testing.assert_array_equal(model(features=lists), model(features=filled))
    empty = eg.Lists([], np.zeros((2, 1, 2), np.int8))
    assert not model(features=empty).any()
    shared = eg.Lists(index, [[[0, 3]], [[1, 3]], [[0, 3]]])
    np.testing.assert_array_equal(
        model(features=shared), model(features=[[3, 1, 4], [1, 4, 0], [3, 1, 4]])
    )
    for wrong in ([0], [[0, 1]], [0, 1, 2, 3]):
        with pytest.raises(InputError, match=r"starts has the shape .* \[R \* 2 \+ 1\] is needed"):
            eg.Lists.csr(wrong, index, lists=2)


def changed(at: tuple[int, ...], value: int) -> Callable[[eg.Lists], eg.Lists]:
    def change(lists: eg.Lists) -> eg.Lists:
        spans = lists.spans.copy()
        spans[at] = value
        return lists._replace(spans=spans)

    return change


def indexed(value: int) -> Callable[[eg.Lists], eg.Lists]:
    def change(lists: eg.Lists) -> eg.Lists:
        index = lists.index.copy()
        begin = next(b for b, n in lists.spans.reshape(-1, 2).tolist() if n)
        index[begin] = value
        return lists._replace(index=index)

    return change


def too_long(lists: eg.Lists) -> eg.Lists:
    """Of numbers that are all right."""
    spans = np.zeros_like(lists.spans)
    spans[7, 1, 1, 1] = 7
    return eg.Lists(np.zeros(20, np.int32), spans)


WRONG: list[tuple[Callable[[eg.Lists], eg.Lists], str]] = [
    (changed((3, 1, 0, 1), 7), r"List \[3, 1, 0\] of spans begins at \d+ and has 7: 'ft' takes"),
    (changed((11, 2, 2, 1), 5), r"has 5: 'gt' takes at most 4 of the \d+ numbers of index"),
    (changed((0, 0, 1, 1), -1), r"List \[0, 0, 1\] of spans begins at \d+ and has -1"),
    (changed((5, 0, 2, 0), -1), r"List \[5, 0, 0\] of spans begins at -1"),
    (changed((2, 0, 0, 0), 1 << 30), r"List \[2, 0, 0\] of spans begins at 1073741824"),
    (too_long, r"List \[7, 1, 1\] of spans begins at 0 and has 7: 'ft' takes at most 6 of the 20"),
    (indexed(50), r"index has 50 in a list of '[fg]t': 0 to \d+ is needed"),
    (indexed(-1), r"index has -1 in a list of '[fg]t': 0 to \d+ is needed"),
    (lambda lists: lists._replace(spans=lists.spans[..., :1]), r"\[R, T, 3, 2\] is needed"),
    (lambda lists: lists._replace(spans=lists.spans[0, 0]), r"\[R, T, 3, 2\] is needed"),
    (lambda lists: lists._replace(spans=lists.spans * 0.5), "spans are float64: whole numbers"),
    (lambda lists: lists._replace(index=lists.index[None]), r"index has the shape .* \[n\] is"),
    (lambda lists: lists._replace(index=lists.index << 20), "numbers of index reach .* 31 bits"),
    (lambda lists: lists._replace(index=[[1], [1, 2]]), "The numbers of index is no array"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_lists_are_named_and_change_nothing(number: int):
    change, message = WRONG[number]
    lists = change(both()[1])
    es = eg.Trainer(program(), pop=2, estimator="feedback", rule="adam", steps=9)
    before = es.weights
    labels = np.zeros((R, T), np.int32)
    for call in (
        lambda: es.learn(features=lists, targets={"class": labels}),
        lambda: es.learn(features=lists, errors={"class": np.ones((R, T, 3))}),
        lambda: es.learn(features=lists, errors=lambda out: {"class": out["class"]}),
        lambda: es.model(features=lists),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert es.step == 0
    for name, leaf in es.weights.items():
        np.testing.assert_array_equal(leaf, before[name])


def test_a_network_without_features_takes_none():
    es = eg.Trainer(eg.networks.mlp(3, [4], 2), pop=2, estimator="feedback", rule="adam")
    with pytest.raises(InputError, match="features were given to a network that reads none"):
        es.model(np.zeros((2, 3), np.int8), features=both()[1])


@pytest.mark.parametrize(
    ("actives", "given", "needed"),
    [
        ((3,), (R, T, 2, 4), r"\[12, 3, 2, 4\]: \[R, T, 2, 3\] is needed, or without T"),
        ((3,), (R, T, 3, 2), r"\[12, 3, 3, 2\]: \[R, T, 2, 3\] is needed"),
        ((3,), (R, 7), r"\[12, 7\]: \[R, T, 2, 3\] is needed"),
        ((3, 3), (R, T, 2, 3), r"\[12, 3, 2, 3\]: \[R, T, 4, 3\] is needed"),
        ((3, 4), (R, T, 2, 3), r"\[12, 3, 2, 3\]: \[R, T, 14\] is needed"),
    ],
)
def test_the_shape_that_is_needed_says_lists_and_indices(
    actives: tuple[int, ...], given: tuple[int, ...], needed: str
):
    """Where lists take numbers of indices that differ, they stand side by side."""
    net = eg.Program()
    parts = [
        net.features(f"f{i}", 50, 4, active=active, lists=2) for i, active in enumerate(actives)
    ]
    net.output(net.linear(net.concat(*parts) if len(parts) > 1 else parts[0], "out", 3), "class")
    model = eg.Trainer(net, pop=R).model
    with pytest.raises(InputError, match=needed):
        model(features=np.zeros(given, np.int32))
    lists = 2 * len(actives)
    if len(set(actives)) == 1:
        shown = np.arange(R * lists * 3).reshape(R, 1, lists, 3) % 50
        flat = model(features=shown.reshape(R, 1, -1))
        assert np.array_equal(model(features=shown), flat)
        assert np.array_equal(model(features=shown[:, 0]), flat[:, 0])
