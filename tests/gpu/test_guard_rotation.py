"""A GPU engine is compared with the cpu engine to the end: states, blocks in turn, for its time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from conftest import Command
from networks import Case, case_of, random_case
from networks_backward import carried_of
from networks_credit import credited_of

from eggroll import EngineError, EngineWarning, InputError, engines
from eggroll.engines import guard
from eggroll.engines.base import Engine
from eggroll.engines.guard import Guarded, Inspection, Subset, in_turn, ranges_of
from eggroll.networks import mlp
from eggroll.ranks import ALONE
from eggroll.spec.backward import Learnt
from eggroll.spec.noise import Noise
from eggroll.spec.program import Program
from eggroll.training.config import Config
from eggroll.training.learner import engine_for
from gpu.faulty import KILLED, Fault, off_by_one, raises, wrong_votes
from gpu.test_guarded_runs import RUN, cpu_signature

MEMBERS = 70


def recurrent_outputs() -> Program:
    """Outputs and a state, which EGG and a perceptron have one of each."""
    net = Program(2, 8)
    x, s = net.stage(state=True)
    hidden = net.relu(net.linear(net.input(6), "hidden", 8))
    net.mix(hidden, hidden, s, out=s)
    net.add(hidden, s, out=x)
    net.output(net.linear(x, "turn", 3), "turn")
    return net


def scored() -> Case:
    return random_case(1, V=8, D=8, T=3, P=MEMBERS)


def unscored() -> Case:
    return case_of(recurrent_outputs(), np.random.default_rng(1), T=2, P=MEMBERS)


def call_of(made: Engine, method: str, case: Case) -> Any:
    """What a method of the engine returns for the case."""
    prepared, rng = made.prepare(case.leaves), np.random.default_rng(2)
    match method:
        case "evaluate" | "outputs":
            return getattr(made, method)(prepared, case.slices, case.batch)
        case "likelihoods":
            return made.likelihoods(prepared, case.batch)
        case "logits":
            return made.logits(prepared, case.batch.window(slice(1)))
        case "credit":
            return credited_of(case, rng, "token-credit").run(made)
        case "learn":
            return carried_of(case, "feedback").run(made)
    fitness = mx.array((np.arange(MEMBERS // 2) % 3 - 1).astype(np.int8))
    return made.votes(fitness, case.slices, True)


def state_off(found: Any) -> Any:
    """Member 41's state, in which nothing else of the call has a part."""
    at = (41, 3)
    if isinstance(found, Learnt):
        there = len(found.state) == MEMBERS
        return found._replace(state=off_by_one(found.state, at)) if there else found
    place = 2 if len(found) == 3 and found[1].dtype == mx.int8 and found[1].ndim == 2 else 1
    place = 1 if isinstance(found[-1], dict) else place
    state = found[place]
    if len(state) < MEMBERS:
        return found
    return (*found[:place], off_by_one(state, at), *found[place + 1 :])


def every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the guard look at every call."""
    monkeypatch.setattr(guard, "SHARE", 1e12)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "method", ["evaluate", "outputs", "likelihoods", "logits", "credit", "learn"]
)
def test_a_wrong_state_is_noticed(method: str, late: bool, faulty, monkeypatch):
    """In the first call of a kind, and in a later one once the turn is its members'."""
    calls: list[str] = []

    def wrong(name: str, found: Any) -> Any:
        calls.append(name)
        return state_off(found) if name == method and len(calls) > late else found

    faulty(wrong)
    every_look(monkeypatch)
    case = unscored() if method == "outputs" else scored()
    made, _ = engines.choose("metal", case.program)
    if late:
        call_of(made, method, case)
    words = rf"{method}: state\[41, 3\] is .* instead of .*, stage . of ., of members 41\)"
    with pytest.raises(EngineError, match=words):  # noqa: PT012
        for _ in range(40):
            call_of(made, method, case)


def persistent(method: str, first: int, change: Callable[[Any], Any]) -> Fault:
    """A fault of all calls of a method but the first ones."""
    calls: list[str] = []

    def fault(name: str, found: Any) -> Any:
        calls.extend([name] * (name == method))
        return change(found) if name == method and len(calls) >= first else found

    return fault


def test_every_member_has_its_turn(faulty, monkeypatch: pytest.MonkeyPatch):
    """A member that goes wrong in the second update is named, with update and stage."""
    every_look(monkeypatch)
    for member in (0, 33, MEMBERS - 1):
        faulty(persistent("evaluate", 2, lambda found, m=member: (
            off_by_one(found[0], (m, 1)), found[1])))  # fmt: skip
        case = scored()
        made, _ = engines.choose("metal", case.program)
        given = made.prepare(case.leaves), case.slices, case.batch
        blocks = -(-MEMBERS // made.engine.group_members(MEMBERS, case.rank))
        assert blocks > 3
        with pytest.raises(EngineError) as told:  # noqa: PT012
            for made.step in range(1 + blocks):
                made.evaluate(*given)
        said = re.search(
            r"\(update (\d+), evaluate: scores\[(\d+), 1\] is -?\d+ instead of -?\d+, "
            r"stage 3 of 3, of members (\d+)\).*compared in update (\d+), and `eggroll verify`",
            str(told.value),
        )
        assert said, told.value
        update, first, named, right = map(int, said.groups())
        assert first == named == member
        assert update == right + 1


@pytest.mark.parametrize("method", ["votes", "credit"])
def test_votes_that_go_wrong_are_noticed(method: str, faulty, monkeypatch: pytest.MonkeyPatch):
    """All of them where the call counts nothing but votes, else those of a block."""
    every_look(monkeypatch)

    def change(found: Any) -> Any:
        return wrong_votes(found) if method == "votes" else (*found[:2], wrong_votes(found[2]))

    faulty(persistent(method, 2, change))
    case = scored()
    made, _ = engines.choose("metal", case.program)
    call_of(made, method, case)
    with pytest.raises(EngineError, match=r"votes of head\[2, 3\] is .*, stage 3 of 3"):
        call_of(made, method, case)


def test_votes_of_a_large_population_are_those_of_a_block(faulty, monkeypatch):
    monkeypatch.setattr(guard, "COMPARED_MACS", 1)
    monkeypatch.setattr(guard, "MIN_COMPARED", 8)
    every_look(monkeypatch)
    faulty(persistent("votes", 4, wrong_votes))  # the first call and its sample, and the second
    case = scored()
    made, _ = engines.choose("metal", case.program)
    call_of(made, "votes", case)
    with pytest.raises(EngineError, match=r"votes of head\[2, 3\] is .* of members \d+ to \d+\)"):
        call_of(made, "votes", case)


@pytest.mark.parametrize("first", [1, 2])
def test_slices_that_begin_elsewhere_are_noticed(
    first: int, faulty, monkeypatch: pytest.MonkeyPatch
):
    """Neither members nor votes would differ, as both engines take the slices they are given."""
    every_look(monkeypatch)
    faulty(lambda method, found: found)
    case = scored()
    made, _ = engines.choose("metal", case.program)
    noise = Noise([leaf.shape for leaf in case.program.leaves], seed=0, rank=1, shift=6)
    fault = persistent("starts", first, lambda found: off_by_one(found, (1, 2)))
    monkeypatch.setattr(
        made.engine, "starts", lambda noise, *given: fault("starts", noise.starts(*given))
    )
    monkeypatch.setattr(type(made.engine), "draws_starts", True)
    for epoch in range(first - 1):
        made.starts(noise, epoch, 0, 5)
    with pytest.raises(EngineError, match=r"\(slices of the noise begin elsewhere\)"):
        made.starts(noise, 9, 0, 5)


def test_slices_are_drawn_again_where_an_engine_takes_over(faulty, monkeypatch: pytest.MonkeyPatch):
    faulty(lambda method, found: found)
    case = scored()
    made, _ = engines.choose("metal", case.program, replaceable=True)
    noise = Noise([leaf.shape for leaf in case.program.leaves], seed=0, rank=1, shift=6)
    monkeypatch.setattr(type(made.engine), "draws_starts", True)
    given = noise.starts(0, 3, 5)
    fault = persistent("starts", 2, lambda _: mx.zeros((1, 1), mx.int32))
    monkeypatch.setattr(made.engine, "starts", lambda *_: fault("starts", given))
    every_look(monkeypatch)
    kept = noise.slices(0, 3, 5, made.starts)  # perhaps wrong, too, if all were looked at
    with pytest.warns(EngineWarning, match="begin elsewhere"):
        later = noise.slices(0, 8, 5, made.starts)
    assert noise.slices(0, 3, 5, made.starts) is not kept
    np.testing.assert_array_equal(np.array(later.starts), np.array(noise.starts(0, 8, 5)))


def test_slices_of_an_engine_that_fails_later_are_drawn_again(
    faulty, monkeypatch: pytest.MonkeyPatch
):
    """Nobody looked at all of them."""
    faulty(persistent("evaluate", 2, raises(KILLED)))
    case = scored()
    made, _ = engines.choose("metal", case.program, replaceable=True)
    noise = Noise([leaf.shape for leaf in case.program.leaves], seed=0, rank=1, shift=6)
    monkeypatch.setattr(type(made.engine), "draws_starts", True)
    call_of(made, "evaluate", case)
    kept = noise.slices(0, 3, 5, made.starts)
    assert noise.slices(0, 3, 5, made.starts) is kept
    with pytest.warns(EngineWarning, match="GPU Timeout"):
        call_of(made, "evaluate", case)
    again = noise.slices(0, 3, 5, made.starts)
    assert again is not kept
    np.testing.assert_array_equal(np.array(again.starts), np.array(noise.starts(0, 3, 5)))


class Clock:
    """Seconds that pass as calls are made: 10 for one of the GPU's, 1 for its block on the CPU."""

    def __init__(self, made: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.looks = 0.0, list[int]()
        gpu, spare = made.engine.evaluate, made.spare.evaluate

        def slow(*given: Any) -> Any:
            self.now += 10
            return gpu(*given)

        def repeated(*given: Any) -> Any:
            members = len(given[2].tokens)
            self.now += members / 8
            self.looks.append(members)
            return spare(*given)

        monkeypatch.setattr(made.engine, "evaluate", slow)
        monkeypatch.setattr(made.spare, "evaluate", repeated)
        monkeypatch.setattr(made, "_clock", lambda: self.now)


def test_looks_take_a_hundredth_of_the_time(faulty, monkeypatch: pytest.MonkeyPatch):
    faulty(lambda method, found: found)
    case = scored()
    made, _ = engines.choose("metal", case.program)
    monkeypatch.setattr(made.engine, "members", 8)
    clock = Clock(made, monkeypatch)
    given = made.prepare(case.leaves), case.slices, case.batch
    made.evaluate(*given)
    assert clock.looks == [MEMBERS]
    began, gaps, last = clock.now, [], 0
    for call in range(300):
        count = len(clock.looks)
        made.evaluate(*given)
        if len(clock.looks) > count:
            gaps.append(call - last)
            last = call
    spent = sum(clock.looks[1:]) / 8
    assert set(clock.looks[1:]) <= {8, MEMBERS % 8}
    assert 0.008 < spent / (clock.now - began) < 0.0105
    assert len(set(gaps)) > 3  # no rhythm that chunks of a population could have, too


def test_a_look_is_paid_for_before_it_is_taken():
    inspection = Inspection()
    inspection.looked(500.0, 1, 0.01)  # the long one, where the run begins, is not of these
    assert (inspection.cost, inspection.spent, inspection.due) == (5.0, 0.0, False)
    inspection.seconds = 249.0
    assert not inspection.due
    inspection.seconds = 250.0
    assert inspection.due
    inspection.looked(5.0, 2, 1.0)
    assert (inspection.spent, inspection.update, inspection.due) == (5.0, 2, False)


@pytest.mark.parametrize("count", [*range(1, 40), 584, 4096])
def test_blocks_take_turns(count: int):
    assert sorted(in_turn(turn, count) for turn in range(count)) == list(range(count))


def test_members_are_named_as_ranges():
    assert ranges_of(np.array([7])) == "7"
    assert ranges_of(np.array([3, 5, 6, 7, 9])) == "3, 5 to 7, 9"
    assert ranges_of(np.arange(0, 40, 3)) == "0, 3, 6, 9 and 10 more"


def test_a_subset_knows_its_members():
    assert Subset(9, np.array([1, 4], np.int32)).numbers.tolist() == [2, 3, 8]
    assert Subset(3).numbers.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.filterwarnings("always::eggroll.errors.EngineWarning")
def test_a_run_is_compared_to_its_end(call: Command, tmp_path, faulty, monkeypatch):
    """Its third update goes wrong; the warning says in which, and that nobody knows of others."""
    every_look(monkeypatch)
    seen: list[str] = []

    def wrong(name: str, found: Any) -> Any:
        seen.extend([name] * (name == "evaluate"))
        rows = name == "evaluate" and len(seen) >= 3
        return (off_by_one(found[0], (33, 1)), *found[1:]) if rows else found

    faulty(wrong)
    ended = call(*RUN, "--out", tmp_path / "auto")
    assert ended.code == 0, ended
    (warning,) = (line for line in ended.err.splitlines() if line.startswith("warning: "))
    update = re.search(r"\(update (\d), evaluate: scores\[33, 1\]", warning)
    assert update
    assert int(update[1]) >= 3
    assert "engine 'cpu' goes on; such calls were last compared in update " in warning
    assert "with the same bits" not in warning


@pytest.mark.usefixtures("no_curves")
@pytest.mark.filterwarnings("always::eggroll.errors.EngineWarning")
def test_an_option_says_what_a_wrong_gpu_ends_in(call: Command, tmp_path, faulty):
    def wrong(name: str, found: Any) -> Any:
        return (off_by_one(found[0], (33, 1)), *found[1:]) if name == "evaluate" else found

    faulty(wrong)
    went_on = call(*RUN, "--engine", "metal", "--guard", "cpu", "--out", tmp_path / "a")
    assert went_on.code == 0, went_on
    assert "engine 'cpu' goes on, with the same bits" in went_on.err
    assert went_on.signature == cpu_signature(call, tmp_path)


@pytest.mark.usefixtures("no_curves")
def test_auto_may_be_told_to_stop(call: Command, tmp_path, faulty):
    def wrong(name: str, found: Any) -> Any:
        return (off_by_one(found[0], (33, 1)), *found[1:]) if name == "evaluate" else found

    faulty(wrong)
    stopped = call(*RUN, "--guard", "stop", "--out", tmp_path / "b")
    assert stopped.code == 2, stopped
    assert "take --engine cpu, which gives the same bits" in stopped.err
    assert "All of update 0 is saved" in stopped.err
    unknown = call(*RUN, "--guard", "perhaps", "--out", tmp_path / "c")
    assert unknown.code == 2
    assert "--guard" in unknown.err


def test_ranks_wait_for_no_other_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(ALONE), "size", 2, raising=False)
    options = Config(data="count", guard="cpu")
    with pytest.raises(InputError, match="--guard is cpu and the run has 2 ranks"):
        engine_for(options, options.program(), ALONE)


def test_python_has_the_option_too(faulty):
    from eggroll import Trainer

    def wrong(name: str, found: Any) -> Any:
        if name != "outputs":
            return found
        outputs = {k: off_by_one(a, (1, 0, 0)) for k, a in found[0].items()}
        return outputs, found[1]

    faulty(wrong)
    goes_on = pytest.warns(EngineWarning, match="goes on")
    stops = pytest.raises(EngineError, match="other integers")
    for guarded, told in (("stop", stops), ("cpu", goes_on)):
        engine = "metal" if guarded == "cpu" else "auto"
        es = Trainer(mlp(4, [8], 2), pop=8, seed=1, engine=engine, threads=1, guard=guarded)
        with told:
            es.ask()(np.zeros((1, 4), np.int8))


def test_all_of_an_update_is_made_again(faulty, monkeypatch: pytest.MonkeyPatch):
    """Also what the GPU had computed of it before, which nobody had looked at."""
    every_look(monkeypatch)
    made_wrong: list[int] = []

    def wrong(name: str, found: Any) -> Any:
        made_wrong.extend([1] * (name == "evaluate"))
        late = name == "evaluate" and len(made_wrong) >= 2
        return (off_by_one(found[0], (41, 1)), *found[1:]) if late else found

    faulty(wrong)
    case = scored()
    made, _ = engines.choose("auto", case.program)
    given = made.prepare(case.leaves), case.slices, case.batch

    def update() -> list[np.ndarray]:
        return [np.array(made.evaluate(*given)[0]) for _ in range(12)]

    right = np.array(made.evaluate(*given)[0])
    with pytest.warns(EngineWarning, match="gives other integers"):
        found = made.run_guarded(update)
    assert all(np.array_equal(scores, right) for scores in found)
    assert made.engine is made.spare
