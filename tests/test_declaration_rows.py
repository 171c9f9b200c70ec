"""Declarations of programs that read rows and put out values: refusals, digests, files, C++."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from networks_random import every_operation, seeded_program
from test_declaration import native_program

from eggroll.errors import InputError
from eggroll.networks import mlp, nnue
from eggroll.spec.program import (
    MAX_ACTIVE,
    MAX_FEATURES,
    MAX_LISTS,
    MAX_SIZE,
    Batch,
    Op,
    Output,
    Program,
    ProgramError,
    program_of,
)


def begun(**options) -> tuple:
    """A program that has read three values, and its register of them."""
    net = Program(**options)
    return net, net.input(3)


def x_before_it_is_written():
    net = Program(width=3)
    x, _ = net.stage()
    net.input(3)
    net.relu(x)


def relu_of_nothing():
    net = Program()
    x, _ = net.stage("a.")
    net.relu(x)


def state_first():
    net = Program(width=3)
    _, s = net.stage(state=True)
    net.bias(s, "b")


def two_inputs():
    net, _ = begun()
    net.input(4)


def features(count: int = 9, size: int = 2, **options):
    return lambda: Program().features("E", count, size, **options)


def feature_names_twice():
    net = Program()
    net.features("E", 9, 2)
    net.features("E", 9, 2)


def out_of_another_size():
    net, x = begun()
    net.relu(x, out=net.linear(x, "W", 4))


def bias_out_of_another_size():
    net, x = begun()
    net.bias(x, "b", out=net.linear(x, "W", 4))


def concat_too_large():
    net, x = begun()
    wide = net.linear(x, "W", MAX_SIZE - 2)
    net.concat(wide, x)


def concat_of_three_too_large():
    net, x = begun()
    net.concat(net.linear(x, "W", MAX_SIZE - 6), x, x, x)


def of_another_stage(kind: str) -> Callable[[], object]:
    def declare():
        net, x = begun()
        net.embed("E")
        net.stage("b.")
        more = {"bias": ["b"], "concat": [x], "sums": ["W", 1]}.get(kind, [])
        getattr(net, kind)(x, *more)

    return declare


def same_outputs():
    net, x = begun()
    net.output(x)
    net.output(net.relu(x))


def same_output_and_sums():
    net, x = begun()
    net.output(x, "W")
    net.sums(x, "W", 1)


def sums_of_a_leaf_that_is_there():
    net, x = begun()
    net.linear(x, "W", 3)
    net.sums(x, "W", 1)


def outputs_hand_on_nothing():
    net, x = begun()
    net.output(x)
    net.stage()


def stage_after_score_and_output():
    net, x = begun()
    net.score(x, "head")
    net.output(x)
    net.stage()


def without_an_end():
    net, x = begun()
    net.relu(x)
    net.check()


def table(values: object, name: str = "mine"):
    return lambda: Program().table(name, values)


def two_tables_of_one_name():
    net = Program()
    net.table("mine", [0] * 255)
    net.table("mine", [1] * 255)


def table_of_another_program():
    Program().table("mine", [0] * 255)
    net, x = begun()
    net.lookup(x, "mine")


BEGIN = r"begin with input, features or embed\.$"
REFUSED: list[tuple[Callable[[], object], str]] = [
    (x_before_it_is_written, r"^Stage 0: relu uses register x, which holds nothing yet\.$"),
    (relu_of_nothing, r"^The program begins with relu: " + BEGIN),
    (state_first, r"^The program begins with bias: " + BEGIN),
    (lambda: Program().input(0), r"^The size of the input is 0: a number from 1 to 32767"),
    (lambda: Program().input(MAX_SIZE + 1), r"is 32768: a number from 1 to 32767 is needed\.$"),
    (two_inputs, r"^An input has 3 values already: 4 "),
    (features(0), r"^The number of features of 'E' is 0: a number from 1 to 1048576"),
    (features(MAX_FEATURES + 1), r"is 1048577: a number from 1 to 1048576 is needed\.$"),
    (features(size=0), r"^The size of 'E' is 0: a number from 1 to 32767"),
    (features(lists=0), r"^The number of lists of 'E' is 0: a number from 1 to 8"),
    (features(lists=MAX_LISTS + 1), r"is 9: a number from 1 to 8 is needed\.$"),
    (features(active=0), r"^The active features of 'E' is 0: a number from 1 to 256"),
    (features(active=MAX_ACTIVE + 1), r"is 257: a number from 1 to 256 is needed\.$"),
    (features(shift=-1), r"^The shift of 'E' is -1: a number from 0 to 7"),
    (features(shift=8), r"^The shift of 'E' is 8: a number from 0 to 7"),
    (features(99999, 16384, lists=2), r"^The size of all lists of 'E' is 32768: a number"),
    (features(7, 4, lists=3), r"^'E' has 7 features for 3 lists of size 4: at least 8 are needed"),
    (feature_names_twice, r"^Leaf 'E' is declared twice: give one another name\.$"),
    (out_of_another_size, r"^Stage 0: relu gives 3 values and out holds 4\.$"),
    (bias_out_of_another_size, r"^Stage 0: bias gives 3 values and out holds 4\.$"),
    (concat_too_large, r"^The size of what concat makes is 32768: a number from 1 to 32767"),
    (concat_of_three_too_large, r"^The size of what concat makes is 32770: a number"),
    *(
        (of_another_stage(kind), rf"^{kind} was given register 2 of another stage: only x passes")
        for kind in ("relu", "output", "sums", "bias", "concat")
    ),
    (same_outputs, r"^Output 'output' is declared twice: give one another name\.$"),
    (same_output_and_sums, r"^Output 'W' is declared twice: give one another name\.$"),
    (sums_of_a_leaf_that_is_there, r"^Leaf 'W' is declared twice: give one another name\.$"),
    (lambda: begun()[0].sums(None, "W", 1), r"^sums needs a register, as operations return it"),
    (
        lambda: (lambda net, x: net.sums(x, "W", 0))(*begun()),
        r"^The number of outputs of 'W' is 0: a number from 1 to 32767 is needed\.$",
    ),
    (outputs_hand_on_nothing, r"^Stage 0 never writes x, .* write x with out=x\.$"),
    (stage_after_score_and_output, r"^A stage follows the score: the score is in the last stage"),
    (without_an_end, r"neither score nor output: end it with score, output or sums\.$"),
    (table([0] * 254), r"^Table 'mine' is int64 \[254\]: 255 whole numbers are needed"),
    (table(np.zeros(255)), r"^Table 'mine' is float64 \[255\]: 255 whole numbers are needed"),
    (table([[0] * 255]), r"^Table 'mine' is int64 \[1, 255\]: 255 whole numbers"),
    (table([0] * 254 + [128]), r"^Table 'mine' has values beyond -127 to 127\.$"),
    (table([-128] + [0] * 254), r"^Table 'mine' has values beyond -127 to 127\.$"),
    (table([0] * 255, "tanh"), r"^Table 'tanh' is there already: give it another name\.$"),
    (two_tables_of_one_name, r"^Table 'mine' is there already: give it another name\.$"),
    (table_of_another_program, r"^Table 'mine' is unknown: choose one of sigmoid, tanh\.$"),
]


@pytest.mark.parametrize(("declare", "says"), REFUSED)
def test_one_sentence_says_what_is_wrong(declare: Callable[[], object], says: str):
    with pytest.raises(ProgramError, match=says) as refused:
        declare()
    assert isinstance(refused.value, InputError)
    assert "\n" not in str(refused.value)


REFUSING: list[Callable[[Program], object]] = [
    lambda net: net.input(99),
    lambda net: net.features("E", 9, 2, lists=99),
    lambda net: net.features("W", 9, 2),  # a name that is there
    lambda net: net.table("mine", [0] * 254),
    lambda net: net.linear(None, "V", 2),
]


@pytest.mark.parametrize("declare", REFUSING)
def test_what_is_refused_changes_nothing(declare: Callable[[Program], object]):
    net, x = begun()
    net.sums(x, "W", 2)
    before = net.digest()
    with pytest.raises(ProgramError):
        declare(net)
    assert net.digest() == before
    assert len(net.tables) == 2


def test_limits_themselves_are_allowed():
    net = Program()
    net.features("E", MAX_FEATURES, 4095, active=MAX_ACTIVE, lists=MAX_LISTS, shift=7)
    assert net.indices == MAX_ACTIVE * MAX_LISTS
    net.input(MAX_SIZE)
    net.features("F", 8, 4, lists=3)  # as few features as three lists of four need


def test_rows_of_a_program():
    """Lists of several operations lie one after another; an input is shown once."""
    net = Program()
    net.input(7)
    net.features("E", 9, 2, active=3, lists=2)
    net.input(7)
    x = net.features("F", 9, 2, active=4, shift=1)
    net.output(x)
    net.sums(x, "W", 2)
    ops = [op for op in net.stages[0].ops if op.kind == "features"]
    assert [op.numbers for op in ops] == [(2, 3, 0, 0), (1, 4, 6, 1)]
    assert (net.inputs, net.indices) == (7, 10)
    assert net.outputs == [Output("output", 2), Output("W", 2, True)]
    assert not net.scored
    assert set(Batch(None)[1:]) == {None}


def changed(change: str = "") -> Program:
    """A program, but for one thing the same."""
    net = Program()
    x = net.relu(net.input(4 if change == "input" else 3))
    options = {"active": 5, "lists": 2, "shift": 1}
    if change in options:
        options[change] += 1
    y = net.features("E", 9, 2, **options)
    values = [v // (3 if change == "table" else 2) for v in range(-127, 128)]
    y = net.lookup(net.concat(x, y), net.table("mine", values))
    if change == "unused":
        net.table("unused", [0] * 255)
    net.output(y, "other" if change == "name" else "output")
    if change == "kind":
        net.output(y, "sums")
    else:
        net.sums(y, "sums", 2)
    return net


def test_digest_tells_every_change():
    changes = ("", "input", "active", "lists", "shift", "table", "name", "kind")
    digests = [changed(change).digest() for change in changes]
    assert len(set(digests)) == len(digests)
    assert changed().digest() == digests[0]
    assert changed("unused").digest() == digests[0]


def test_digests_are_the_same_everywhere():
    assert mlp(64, [64], 10).digest() == (
        "981a74375b0ccc33551997055af81d2890c238049a535d3fa80f6cb4cb1eb81b"
    )
    assert nnue(768, 64).digest() == (
        "35f6a593ba7cffe06f987ddf60370af23ad0393511c7a0f3b11baf4bfe0e97c6"
    )


@pytest.mark.parametrize("program", [*range(60), None])
def test_declarations_survive_a_file(program: int | None):
    net = every_operation() if program is None else seeded_program(program)
    again = program_of(json.loads(json.dumps(net.declaration())), net.score_bits)
    assert again.digest() == net.digest()
    assert [stage.ops for stage in again.stages] == [stage.ops for stage in net.stages]
    assert (again.leaves, again.outputs) == (net.leaves, net.outputs)
    assert (again.inputs, again.indices) == (net.inputs, net.indices)
    assert again.policies == net.policies
    used = {op.table for stage in net.stages for op in stage.ops if op.table}
    for name in used:
        np.testing.assert_array_equal(again.tables[name], net.tables[name])


@pytest.mark.parametrize(
    "broken",
    [
        lambda d: d.pop("leaves"),
        lambda d: d.pop("width"),
        lambda d: d.update(stages=[[[["relu"]], [1, 1], -1]]),
        lambda d: d.update(leaves=[["W"]]),
        lambda d: d.update(tables=3),
        lambda d: d.update(stages=[]),
        lambda d: d.update(vocabulary=1),
        # What the methods of Program would not have made.
        lambda d: d.update(tables={"mine": [1 << 16] * 255}),
        lambda d: d.update(tables={"mine": [0] * 255}),
        lambda d: d.update(more=1),
        lambda d: d.update(width=True),
        lambda d: d.update(state=8),
        lambda d: d.update(policies=[[0, 7]]),
        lambda d: d["leaves"][0].__setitem__(1, [5, 3]),
        lambda d: d["leaves"][1].__setitem__(2, 3),
        lambda d: d["stages"][0].__setitem__(2, "x"),
        lambda d: d["stages"][0].__setitem__(1, [1, 1, 3, 4, 9, 4, 2]),
        lambda d: d["stages"][0][0][1].__setitem__(1, 7),
        lambda d: d["stages"][0][0][1].__setitem__(2, [-1]),
        lambda d: d["stages"][0][0][1].__setitem__(3, 0.0),
        lambda d: d["stages"][0][0][1].__setitem__(3, 9),
        lambda d: d["stages"][0][0][1].__setitem__(4, ["tanh"]),
        lambda d: d["stages"][0][0][0].__setitem__(0, "declaration"),
    ],
)
def test_what_is_no_declaration_is_refused(broken: Callable[[dict], object]):
    declared = mlp(3, [4], 2).declaration()
    program_of(declared)
    broken(declared)
    with pytest.raises(ProgramError):
        program_of(declared)


INPUT, FEATURES = ("input", 2, [], -1, 0), ("features", 3, [], 0, 0, [2, 3, 0, 1])
JOINED, SUMS = ("concat", 4, [2, 3], -1, 0), ("sums", 0, [4], 1, 0, [0])
ROWS, LEAVES = [INPUT, FEATURES, JOINED, SUMS], [(9, 4), (2, 13)]
SIZES = [8, 8, 5, 8, 13]
# (sentence, what one operation is instead, or what else differs)
MISREAD: list[tuple[str, dict]] = [
    ("input writes a register of the row's size", {"inputs": 6}),
    ("concat writes a register of both sizes", {2: ("concat", 4, [2, 2], -1, 0)}),
    ("concat takes 2 inputs", {2: ("concat", 4, [2], -1, 0)}),
    ("cannot be in place", {2: ("concat", 2, [2, 3], -1, 0)}),
    ("features has the wrong numbers", {1: ("features", 3, [], 0, 0, [2, 3, 0])}),
    ("features has the wrong leaf", {1: ("features", 3, [], -1, 0, [2, 3, 0, 1])}),
    ("numbers are out of range", {1: ("features", 3, [], 0, 0, [0, 3, 0, 1])}),
    ("numbers are out of range", {1: ("features", 3, [], 0, 0, [9, 3, 0, 1])}),
    ("numbers are out of range", {1: ("features", 3, [], 0, 0, [2, 0, 0, 1])}),
    ("numbers are out of range", {1: ("features", 3, [], 0, 0, [2, 3, 1, 1])}),
    ("numbers are out of range", {1: ("features", 3, [], 0, 0, [2, 3, -1, 1])}),
    ("numbers are out of range", {1: ("features", 3, [], 0, 0, [2, 3, 0, 8])}),
    ("numbers are out of range", {"indices": 5}),
    ("lists do not fit the leaf", {1: ("features", 3, [], 0, 0, [1, 3, 0, 1])}),
    ("lists do not fit the leaf", {"leaves": [(3, 4), (2, 13)]}),
    ("sums has the wrong numbers", {3: ("sums", 0, [4], 1, 0)}),
    ("a matrix does not fit", {3: ("sums", 0, [3], 1, 0, [0])}),
    ("an output is out of range", {3: ("sums", 0, [4], 1, 0, [1])}),
    ("an output has the wrong type", {"outputs": [(2, False)]}),
    ("an output has the wrong size", {"outputs": [(3, True)]}),
    ("an output is never given", {"outputs": [(2, True), (2, True)]}),
    ("two operations have one leaf", {4: SUMS}),
    (
        "two operations have one output",
        {4: ("sums", 0, [4], 2, 0, [0]), "leaves": [*LEAVES, (2, 13)]},
    ),
    ("is read before it is written", {1: ("relu", 3, [3], -1, 0)}),
    ("is read before it is written", {0: ("relu", 2, [2], -1, 0)}),
    ("one score or outputs", {3: ("relu", 4, [4], -1, 0), "outputs": []}),
]


def native_rows(change: dict) -> object:
    ops = [change.get(i, op) for i, op in enumerate([*ROWS, None])]
    ops = [op for op in ops if op]
    options = {"inputs": 5, "indices": 6, "outputs": [(2, True)]}
    options |= {key: change[key] for key in options if key in change}
    return native_program([(ops, SIZES, -1)], change.get("leaves", LEAVES), **options)


def test_cpp_takes_the_program_that_the_others_are_made_of():
    native_rows({})


@pytest.mark.parametrize(("says", "change"), MISREAD)
def test_cpp_refuses_what_it_would_misread(says: str, change: dict):
    with pytest.raises(ValueError, match=says):
        native_rows(change)


def test_results_write_no_register():
    assert not any(Op(kind, 0).writes for kind in ("score", "output", "sums"))
    assert Op("relu", 0).writes
