"""A declaration that no engine could run is refused in one sentence, in Python and again in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from eggroll import _extension
from eggroll.engines import ENGINES
from eggroll.errors import InputError
from eggroll.networks import NETWORKS, NetworkName, egg, mlp
from eggroll.spec import fixed_point as fx
from eggroll.spec import program
from eggroll.spec.program import Program, ProgramError


def begun(**options) -> tuple:
    """A program of width 8 whose token is embedded, and its registers."""
    net = Program(16, 8)
    x, s = net.stage("a.", **options)
    net.embed("embedding")
    return net, x, s


def without_embed():
    net = Program(16, 8)
    x, _ = net.stage()
    net.linear(x, "W", 8)


def state_without_stage_state():
    net, x, s = begun()
    net.add(x, s)


def written_without_stage_state():
    net, x, s = begun()
    net.add(x, x, out=s)


def of_another_stage():
    net, x, _ = begun()
    y = net.linear(x, "W", 8)
    net.stage("b.")
    net.norm(y, "norm")


def x_of_the_stage_before():
    net, x, _ = begun()
    net.stage("b.")
    net.norm(x, "norm")


def of_another_program():
    _, x, _ = begun()
    other, _, _ = begun()
    other.add(x, x)


def an_index():
    net, _, _ = begun()
    net.norm(0, "norm")


def of_other_sizes():
    net, x, _ = begun()
    net.add(x, net.linear(x, "W", 12))


def bias_of_other_sizes():
    net, x, _ = begun()
    net.add_bias(net.linear(x, "W", 12), x, "b")


def out_of_another_size():
    net, x, _ = begun()
    y = net.linear(x, "W", 12)
    net.add(y, y, out=x)


def unknown_table():
    net, x, _ = begun()
    net.lookup(x, "relu")


def same_leaf():
    net, x, _ = begun()
    net.linear(x, "W", 8)
    net.norm(x, "W")


def surrogate():
    net, x, _ = begun()
    net.linear(x, "\ud800", 8)


def surrogate_output():
    net, x, _ = begun()
    net.output(x, "a\udfff")


def no_outputs():
    net, x, _ = begun()
    net.linear(x, "W", 0)


def too_many_outputs():
    net, x, _ = begun()
    net.linear(x, "W", 32768)


def too_many_registers():
    net, x, _ = begun()
    for _ in range(31):
        net.add(x, x)


def too_many_operations():
    net, x, _ = begun()
    for _ in range(64):
        net.add(x, x, out=x)


def second_score():
    net, x, _ = begun()
    net.score(x, "head")
    net.score(x, "other")


def stage_after_score():
    net, x, _ = begun()
    net.score(x, "head")
    net.stage()


def stage_that_hands_on_nothing():
    net, x, _ = begun()
    x, s = net.stage("b.", state=True)
    net.add(x, s, out=s)
    net.stage("c.")


def empty_stage():
    net, _, _ = begun()
    net.stage("b.")
    net.stage("c.")


def state_never_written():
    net, x, s = begun(state=True)
    net.add(x, s, out=x)
    net.stage("b.")


def last_state_never_written():
    net, x, s = begun(state=True)
    net.score(net.add(x, s), "head")
    net.check()


def without_score():
    begun()[0].check()


def without_anything():
    Program(16, 8).check()


def of_another_unit():
    net, x, _ = begun()
    net.score(x, "head")
    net.score_bits = 5
    net.check()


def written_to_a_number():
    net, x, _ = begun()
    net.relu(x, out=7)


def no_name_of_a_table():
    net, x, _ = begun()
    net.lookup(x, ["tanh"])


def no_name_of_a_stage():
    begun()[0].stage(3)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (without_embed, r"^The program begins with linear: begin with input, features or embed\.$"),
    (state_without_stage_state, r"^Stage 0 \('a\.'\): add uses register s .* state=True\.$"),
    (written_without_stage_state, r"^Stage 0 \('a\.'\): add uses register s .* state=True\.$"),
    (of_another_stage, r"^norm was given register 2 of another stage: only x passes"),
    (x_of_the_stage_before, r"^norm was given register 0 of another stage: only x passes"),
    (of_another_program, r"^add was given register 0 of another stage"),
    (an_index, r"^norm needs a register, as operations return it, not 0\.$"),
    (of_other_sizes, r"^Stage 0 \('a\.'\): add needs registers of one size, not 8, 12\.$"),
    (bias_of_other_sizes, r"add_bias needs registers of one size, not 12, 8\.$"),
    (out_of_another_size, r"add gives 12 values and out holds 8\.$"),
    (unknown_table, r"^Table 'relu' is unknown: choose one of sigmoid, tanh\.$"),
    (same_leaf, r"^Leaf 'a\.W' is declared twice: give one another name\.$"),
    (surrogate, r"^The name '.ud800' is no text that a file can hold: give another\.$"),
    (surrogate_output, r"^The name 'a.udfff' is no text that a file can hold: give another\.$"),
    (no_outputs, r"^The number of outputs of 'W' is 0: a number from 1 to 32767 is needed\.$"),
    (too_many_outputs, r"is 32768: a number from 1 to 32767 is needed\.$"),
    (too_many_registers, r"^Stage 0 \('a\.'\) has 32 registers: begin another stage, or reuse"),
    (too_many_operations, r"^Stage 0 \('a\.'\) has 64 operations: begin another one\.$"),
    (second_score, r"^The score 'other' is a second one: a program has one\.$"),
    (stage_after_score, r"^A stage follows the score: the score is in the last stage\.$"),
    (stage_that_hands_on_nothing, r"^Stage 1 \('b\.'\) never writes x, .* write x with out=x\.$"),
    (empty_stage, r"^Stage 1 \('b\.'\) is empty"),
    (state_never_written, r"^Stage 0 \('a\.'\) has a state and never writes it"),
    (last_state_never_written, r"^Stage 0 \('a\.'\) has a state and never writes it"),
    (
        without_score,
        r"^The program has neither score nor output: end it with score, output or sums\.$",
    ),
    (written_to_a_number, r"^relu needs a register, as operations return it, not 7\.$"),
    (no_name_of_a_table, r"^Table \['tanh'\] is unknown: choose one of sigmoid, tanh\.$"),
    (no_name_of_a_stage, r"^The name 3 is of type int: give a str\.$"),
    (without_anything, r"^The program is empty: begin with input, features or embed\.$"),
    (of_another_unit, r"^score_bits is 5: 4 or 8 is needed\.$"),
    (lambda: Program(1, 8), r"^The vocabulary is 1: a number from 2 to 65536 is needed\.$"),
    (lambda: Program(65537, 8), r"^The vocabulary is 65537: a number from 2 to 65536 is needed\.$"),
    (lambda: Program(16, 0), r"^The width is 0: a number from 1 to 32767 is needed\.$"),
    (lambda: mlp(4, 8, 2), r"^The hidden layers are 8: give a list of their sizes\.$"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("declare", "says"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_one_sentence_says_what_is_wrong(declare: Callable[[], object], says: str):
    with pytest.raises(ProgramError, match=says) as refused:
        declare()
    assert isinstance(refused.value, InputError)
    assert isinstance(refused.value, ValueError)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("engine", ["portable", "cpu"])
def test_engines_refuse_a_program_that_is_not_finished(engine: str):
    with pytest.raises(ProgramError, match="has neither score"):
        ENGINES[engine](begun()[0])


def test_limits_are_those_of_the_kernels():
    native = _extension.load()
    assert native.max_registers == program.MAX_REGISTERS
    assert native.max_operations == program.MAX_OPERATIONS
    assert native.max_size == program.MAX_SIZE


def test_a_stage_may_be_full():
    """As many registers and operations as the sentences allow, on every engine that runs here."""
    net, x, s = begun(state=True)
    for _ in range(program.MAX_REGISTERS - 2):
        x = net.add(x, s)
    while len(net.stages[-1].ops) < program.MAX_OPERATIONS - 1:
        net.add(x, s, out=s)
    net.score(x, "head")
    for engine in ("portable", "cpu"):
        ENGINES[engine](net)


def native_program(stages, leaves, state_size: int = 0, *, inputs=0, indices=0, outputs=()):
    """The C++ program of vocabulary 4 and width 8, whatever the declaration's checks would say.

    Operations are (kind, out, inputs, leaf, table) and, if they have any, numbers.
    """
    stages = [([(*op, [])[:6] for op in ops], *more) for ops, *more in stages]
    return _extension.load().Program(
        stages, leaves, 8, 4, state_size, [[0] * 256], fx.exp2_mantissas().tolist(),
        fx.log2_breakpoints().tolist(), inputs, indices, outputs,
    )  # fmt: skip


EMBED, SCORE = ("embed", 0, [], 0, 0), ("score", 0, [0], 1, 0)
LEAVES = [(4, 8)] * 3
LATE = ("embed", 2, [], 0, 0)
# (sentence, stages), each but for one fault the program [EMBED, SCORE].
MISREAD = [
    ("is read before it is written", [([EMBED, ("add", 0, [0, 2], -1, 0), SCORE], [8, 8, 8], -1)]),
    ("is read before it is written", [([("add", 0, [0, 0], -1, 0), EMBED, SCORE], [8, 8], -1)]),
    ("is read before it is written", [([EMBED, ("add", 0, [0, 1], -1, 0), SCORE], [8, 8], -1)]),
    ("s is written in a stage", [([EMBED, ("add", 1, [0, 0], -1, 0), SCORE], [8, 8], -1)]),
    ("one score", [([EMBED], [8, 8], -1)]),
    ("one score", [([EMBED, SCORE, ("score", 0, [0], 2, 0)], [8, 8], -1)]),
    (
        "in the last stage",
        [([EMBED, SCORE], [8, 8], -1), ([("add", 0, [0, 0], -1, 0)], [8, 8], -1)],
    ),
    ("does not write x", [([LATE], [8, 8, 8], -1), ([SCORE], [8, 8], -1)]),
    ("lie one after another", [([EMBED, SCORE], [8, 8], 8)]),
    ("state_size is not", [([EMBED, SCORE], [8, 8], 0)]),
    ("have the program's width", [([EMBED, SCORE], [8], -1)]),
    ("have the program's width", [([EMBED, SCORE], [9, 8], -1)]),
    ("a register's size", [([EMBED, SCORE], [8, 8, 32768], -1)]),
    ("input register is out", [([EMBED, ("add", 0, [0, 5], -1, 0), SCORE], [8, 8], -1)]),
    ("output register is out", [([EMBED, ("add", 5, [0, 0], -1, 0), SCORE], [8, 8], -1)]),
    ("differ in size", [([EMBED, ("add", 2, [0, 0], -1, 0), SCORE], [8, 8, 9], -1)]),
    ("add takes 2 inputs", [([EMBED, ("add", 0, [0], -1, 0), SCORE], [8, 8], -1)]),
    ("linear cannot be in place", [([EMBED, ("linear", 0, [0], 2, 0), SCORE], [8, 8], -1)]),
    ("two operations have one leaf", [([EMBED, ("score", 0, [0], 0, 0)], [8, 8], -1)]),
    ("embed has the wrong leaf", [([("embed", 0, [], -1, 0), SCORE], [8, 8], -1)]),
    ("score has the wrong leaf", [([EMBED, ("score", 0, [0], 3, 0)], [8, 8], -1)]),
    ("add has the wrong leaf", [([EMBED, ("add", 0, [0, 0], 2, 0), SCORE], [8, 8], -1)]),
    ("the index of a lookup table is 1", [([EMBED, ("lookup", 0, [0], -1, 1), SCORE], [8, 8], -1)]),
    ("'swap' is not known", [([EMBED, ("swap", 0, [0], -1, 0), SCORE], [8, 8], -1)]),
    ("too many operations", [([EMBED] + [("add", 0, [0, 0], -1, 0)] * 63 + [SCORE], [8, 8], -1)]),
    ("too many operations", [([EMBED, SCORE], [8] * 33, -1)]),
]


def test_cpp_takes_the_program_that_the_others_are_made_of():
    native_program([([EMBED, SCORE], [8, 8], -1)], LEAVES[:2])


@pytest.mark.parametrize(("says", "stages"), MISREAD)
def test_cpp_refuses_what_it_would_misread(says: str, stages: list):
    with pytest.raises(ValueError, match=says):
        native_program(stages, LEAVES)


def test_digest_is_the_same_everywhere():
    assert egg(256, 64, 1).digest() == (
        "2e817aeed1358d466694e980e151159eb115119bd16acc820e16b3d1496f77af"
    )


def changed(change: str) -> Program:
    """A program, but for one thing the same."""
    net = Program(16 + (change == "vocabulary"), 8)
    x, s = net.stage("b." if change == "leaf" else "a.", state=change != "state")
    net.embed("embedding")
    y = net.linear(x, "W", 8)
    if change == "out":
        net.add(x, y, out=x)
    else:
        y = net.add(x, y)
    y = net.lookup(y, "tanh" if change == "table" else "sigmoid")
    if change != "state":
        net.mix(y, x, y, out=s) if change == "operation" else net.add(y, x, out=s)
    if change == "stage":
        net.add(x, y, out=x)
        x, _ = net.stage()
    net.score(y if change == "input" else x, "head")
    return net


def test_digest_tells_every_change():
    changes = ("", "vocabulary", "leaf", "state", "out", "table", "operation", "stage", "input")
    digests = [changed(change).digest() for change in changes if change != "input"]
    assert len(set(digests)) == len(digests)
    assert changed("input").digest() not in digests
    assert changed("").digest() == digests[0]


def test_digest_tells_tables_of_other_content(monkeypatch: pytest.MonkeyPatch):
    before = egg(16, 8, 1, "table").digest()
    clip = egg(16, 8, 1).digest()
    tables = fx.gate_tables()
    tables["tanh"][0] += 1
    monkeypatch.setattr(program, "gate_tables", lambda: tables)
    assert egg(16, 8, 1, "table").digest() != before
    assert egg(16, 8, 1).digest() == clip


@pytest.mark.parametrize("name", get_args(NetworkName))
def test_networks_have_digests_of_their_own(name: str):
    made = [NETWORKS[name](*sizes) for sizes in ((16, 8, 1), (17, 8, 1), (16, 9, 1), (16, 8, 2))]
    assert len({net.digest() for net in made}) == 4
