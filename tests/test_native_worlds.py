"""Native worlds: asked row by row, replayed or stepped by the engine, the same weights bit for bit.

`Trial` is the world of tests/native/trial_world.h in NumPy, written again; what is right is what it
gives by ask and tell.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_engines import BACKENDS

from eggroll import native
from eggroll.errors import InputError
from eggroll.library.trainer import Trainer
from eggroll.networks import mlp
from eggroll.spec.program import Program

ESTIMATORS = ("eggroll", "token-votes", "token-credit")
P, UPDATES = 36, 3
SOURCE = Path(__file__).with_name("native") / "trial_world.cpp"
SHARED = np.array([40, 30, 0], np.int32)  # see trial::Shared
ON_CPU = [name for name in BACKENDS if name.startswith("cpu")]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGGROLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return native.build(SOURCE)


def mixed(v: NDArray[np.uint32]) -> NDArray[np.uint32]:
    v = (v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D)
    v = (v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B)
    return v ^ (v >> np.uint32(16))


class Trial:
    """The worlds of all members; idle, begins and shift as in trial::Shared."""

    def __init__(self, keys: NDArray[np.uint64], inputs: int, shared: NDArray[np.int32]) -> None:
        self.inputs, (self.idle, self.begins, self.shift) = inputs, shared.tolist()
        self.state = mixed((keys ^ (keys >> np.uint64(32))).astype(np.uint32))
        self.worth: list[NDArray[np.int32]] = []

    def observe(self, row: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
        self.state = mixed(self.state + np.uint32(row))
        self.worth.append((self.state % np.uint32(31)).astype(np.int32) - 15)
        at = np.arange(self.inputs, dtype=np.uint32)
        shown = mixed(self.state[:, None] + at).astype(np.uint8).view(np.int8)
        if self.inputs > 1:
            shown[:, -1] = 0
        chance = (self.state >> np.uint32(24)).astype(np.int32)
        flags = np.where(chance < self.idle, 0, np.where(chance < self.idle + self.begins, 2, 1))
        return shown, flags

    def act(self, outputs: NDArray[Any], flags: NDArray[np.int32]) -> None:
        odd = 2 * np.arange(outputs.shape[1], dtype=np.int64) + 1
        total = (outputs.astype(np.int64) * odd).sum(axis=1).astype(np.uint32)
        self.state = np.where(flags > 0, self.state ^ mixed(total), self.state)
        worth = self.worth[-1].astype(np.uint32) + total % np.uint32(7)
        worth = (worth << np.uint32(self.shift)).astype(np.int32)
        self.worth[-1] = np.where(flags > 0, worth, self.worth[-1])

    def values(self) -> NDArray[np.int64]:
        return np.clip(np.stack(self.worth, axis=1).astype(np.int64), -(1 << 30), 1 << 30)


def recurrent() -> Program:
    net = Program(width=5)
    _, s = net.stage(state=True)
    shown = net.relu(net.bias(net.linear(net.input(3), "in", 5), "b"))
    net.add(net.linear(s, "back", 5), shown, out=s)
    net.output(net.linear(s, "out", 2), "logits")
    net.sums(s, "worth", 1)
    return net


def stacked() -> Program:
    """Stages with and without state; the world is given sums of the first, which are wide."""
    net = Program(width=7)
    x, s = net.stage(state=True)
    net.add(net.linear(net.input(5), "in", 7), net.linear(s, "back", 7), out=x)
    net.relu(x, out=s)
    net.sums(s, "given", 3)
    x, _ = net.stage()
    net.output(x, "whole")
    net.add(x, net.bias(net.linear(x, "mid", 7), "b"), out=x)
    x, s = net.stage(state=True)
    net.norm(net.add(x, s, out=s), "norm")
    net.output(net.linear(s, "last", 2), "last")
    return net


def narrow() -> Program:
    return mlp(3, [8], 2)


def tall() -> Program:
    return mlp(17, [40, 9], 33)


NETWORKS = {"narrow": (narrow, 3), "recurrent": (recurrent, 3), "wide": (stacked, 5),
            "tall": (tall, 17)}  # fmt: skip


def world_of(worlds: native.Library, name: str) -> native.World:
    return getattr(worlds, "narrow" if name == "recurrent" else name)


def trainer(name: str, **options: Any) -> Trainer:
    given = {"pop": P, "seed": 3, "engine": "portable", "table_bits": 16, "steps": UPDATES}
    return Trainer(NETWORKS[name][0](), **given | options)


def first(outputs: Any) -> NDArray[Any]:
    return next(iter(outputs.values())) if isinstance(outputs, dict) else outputs


def asked(es: Trainer, rows: int, shared: NDArray[np.int32] = SHARED, group: int = 2) -> Any:
    """An update by ask and tell; what was shown, for a replay."""
    keys = np.repeat(es.keys(es.pop // group), group)
    world, members, seen = Trial(keys, es.program.inputs, shared), es.ask(), []
    for t in range(rows):
        inputs, flags = world.observe(t)
        world.act(first(members(inputs, begins=flags == 2, active=flags > 0)), flags)
        seen.append((inputs, flags))
    values = world.values()
    told = es.tell(values)
    return told, [np.stack(arrays, axis=1) for arrays in zip(*seen, strict=True)], values


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_asked_replayed_and_played_on_every_engine(name, estimator, worlds):
    rows = 35 if name == "recurrent" else 9  # beyond one word of signs
    discount = 12 if estimator != "eggroll" else 0
    options = {"estimator": estimator, "discount": discount}
    es, replayed = trainer(name, **options), trainer(name, **options)
    updates = []
    for _ in range(UPDATES):
        told, (inputs, flags), values = asked(es, rows)
        updates.append(told[:4])
        replayed.ask()(inputs, begins=flags == 2, active=flags > 0)
        replayed.tell(values)
    assert replayed.signature == es.signature
    for backend in BACKENDS:
        engine, _, isa = backend.partition(":")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EGGROLL_ISA", isa)
            parted = [{"chunk": 4, "threads": 2}] * (engine == "cpu")  # where it decides what runs
            for more in ({}, *parted):
                played = trainer(name, engine=engine, **options, **more)
                world = world_of(worlds, name)
                said = [played.play(world, rows, shared=SHARED)[:4] for _ in range(UPDATES)]
                assert said == updates, (backend, more)
                assert played.signature == es.signature, (backend, more)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("fitness", ["sign", "ranks"])
def test_ranks_of_noise_and_fitness(backend, rank, fitness, worlds, monkeypatch):
    monkeypatch.setenv("EGGROLL_ISA", backend.partition(":")[2])
    options = {"rank": rank, "fitness": fitness, "rule": "sign"}
    es, played = trainer("recurrent", **options), trainer("recurrent", engine="cpu", **options)
    for _ in range(UPDATES):
        asked(es, 5)
        played.play(worlds.narrow, 5, shared=SHARED)
    assert played.signature == es.signature


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("pop", [2, 34, 66, 96])
def test_populations_that_fill_no_block(estimator, pop, worlds):
    es, played = (
        trainer("wide", pop=pop, estimator=estimator, engine=e) for e in ("portable", "cpu")
    )
    for _ in range(UPDATES):
        assert asked(es, 6)[0][:4] == played.play(worlds.wide, 6, shared=SHARED)[:4]
    assert played.signature == es.signature


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("group", [2, 4, 12, P])
def test_members_of_a_group_are_given_one_key(estimator, group, worlds):
    es = trainer("narrow", estimator=estimator)
    known = [asked(es, 7, group=group)[0][:4] for _ in range(UPDATES)]
    for engine in ("cpu", "portable"):
        played = trainer("narrow", estimator=estimator, engine=engine)
        said = [played.play(worlds.narrow, 7, shared=SHARED, group=group) for _ in range(UPDATES)]
        assert [update[:4] for update in said] == known
        assert played.signature == es.signature


def test_another_group_is_another_chance(worlds):
    found = set()
    for group in (2, 4):
        es = trainer("narrow", engine="cpu")
        es.play(worlds.narrow, 7, shared=SHARED, group=group)
        found.add(es.signature)
    assert len(found) == 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_states_may_go_on_from_update_to_update(estimator, worlds):
    signatures = set()
    for carry in (False, True):
        es, played = (
            trainer("recurrent", estimator=estimator, engine=e, carry=carry)
            for e in ("portable", "cpu")
        )
        for _ in range(UPDATES):
            asked(es, 4, np.array([10, 0, 0], np.int32))
            played.play(worlds.narrow, 4, shared=np.array([10, 0, 0], np.int32))
        assert played.signature == es.signature
        signatures.add(es.signature)
    assert len(signatures) == 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("shift", [20, 26, 28])
def test_values_beyond_the_limit_are_clipped(estimator, shift, worlds):
    """Of rows here and there: the others' differences are small beside them."""
    shared = np.array([100, 30, shift], np.int32)
    es, played = (trainer("narrow", estimator=estimator, engine=e) for e in ("portable", "cpu"))
    most = 0
    for _ in range(UPDATES):
        values = asked(es, 30, shared)[2]
        most = max(most, int(abs(values).max()))
        played.play(worlds.narrow, 30, shared=shared)
    assert played.signature == es.signature
    assert (most == 1 << 30) == (shift > 24)


@pytest.mark.parametrize("engine", ["cpu", "portable"])
@pytest.mark.parametrize("estimator", ["token-votes", "token-credit"])
def test_rows_that_are_all_idle_teach_nothing(engine, estimator, worlds):
    es = trainer("narrow", estimator=estimator, engine=engine)
    before = es.signature
    assert es.play(worlds.narrow, 5, shared=np.array([256, 0, 0], np.int32)).nonzero_ratio == 0
    assert es.signature == before
    es.play(worlds.narrow, 5, shared=SHARED)
    assert es.signature != before


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ways_may_take_turns_and_stop_in_between(estimator, worlds, tmp_path):
    es, other = (trainer("recurrent", estimator=estimator, engine=e) for e in ("portable", "cpu"))
    for step in range(4):
        asked(es, 5)
        if step % 2:
            asked(other, 5)
        else:
            other.play(worlds.narrow, 5, shared=SHARED)
        other.save(tmp_path / "es.safetensors")
        other = Trainer.load(tmp_path / "es.safetensors")
    assert other.signature == es.signature


def test_the_cpu_engine_steps_worlds_itself(worlds, monkeypatch):
    """Members are called in the first update alone, which finds the scale of the values."""
    es, calls = trainer("narrow", estimator="token-credit", engine="cpu"), []
    engine, outputs = es.engine, es.engine.outputs
    monkeypatch.setattr(engine, "outputs", lambda *a, **k: calls.append(1) or outputs(*a, **k))
    for expected in (5, 5, 5):
        es.play(worlds.narrow, 5, shared=SHARED)
        assert len(calls) == expected


def test_the_engine_wants_a_row_and_keys_for_pairs(worlds, monkeypatch):
    """Also of a caller whose arguments Python has not looked at."""
    es, calls = trainer("narrow", engine="cpu"), []
    play = es.engine.play
    monkeypatch.setattr(es.engine, "play", lambda *given: calls.append(given) or play(*given))
    es.play(worlds.narrow, 1, shared=SHARED)  # one row does
    ((*before, (world, shared, keys, rows), scale, signs, crediting),) = calls
    assert rows == 1
    for keys_now, rows_now in (
        (keys, 0), (keys, -1), (keys[:33], 1), (keys[:0], 1), (keys.reshape(2, -1), 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="play: rows, and keys for an even number of members"):
            play(*before, (world, shared, keys_now, rows_now), scale, signs, crediting)


def embedding() -> Program:
    net = Program(5, 4)
    net.stage()
    shown = net.input(3)
    net.output(net.linear(net.concat(net.embed("tokens"), shown), "out", 2), "logits")
    return net


def sparse() -> Program:
    net = Program()
    net.output(net.linear(net.features("sparse", 9, 5, active=2), "out", 2), "logits")
    return net


def policy() -> Program:
    net = Program()
    net.policy(net.input(3), "move", 2)
    return net


Play = Callable[[native.Library], Any]
TRAINED: dict[str, tuple[Play, str]] = {
    "no world": (lambda w: trainer("narrow").play(len, 3), "world is of type builtin_function"),
    "rows": (lambda w: trainer("narrow").play(w.narrow, 0), "rows is 0: a whole number"),
    "real rows": (lambda w: trainer("narrow").play(w.narrow, 3.0), "rows is 3.0"),
    "too many rows": (
        lambda w: trainer("narrow").play(w.narrow, 1 << 26),
        "rows is 67108864: a whole number from 1 to 59652323 is needed, as pop is 36",
    ),
    "errors": (
        lambda w: trainer("narrow", estimator="feedback", rule="adam").play(w.narrow, 3),
        "tells values and estimator feedback learns from errors",
    ),
    "odd group": (lambda w: trainer("narrow").play(w.narrow, 3, group=3), "group is 3: an even"),
    "group": (lambda w: trainer("narrow").play(w.narrow, 3, group=8), "divides pop, 36"),
    "another size": (lambda w: trainer("narrow").play(w.tall, 3), "17 inputs and takes 33 outputs"),
    "tokens": (lambda w: Trainer(embedding()).play(w.narrow, 3), "tokens or features besides"),
    "features": (lambda w: Trainer(sparse()).play(w.narrow, 3), "the network reads none"),
    "policy": (
        lambda w: Trainer(policy(), estimator="token-credit").play(w.narrow, 3),
        "draws no actions",
    ),
    "shared": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared="a name"),
        "shared is 'a name': an array",
    ),
    "shared beyond memory": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=1 << 64),
        "shared is 18446744073709551616: an array",
    ),
    "shared apart": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=np.zeros((4, 4))[:, 0]),
        "no contiguous array",
    ),
    "shared number": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=np.int8(64)),
        "shared is .*64.*: an array",
    ),
    "shared pointer": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=ctypes.pointer(ctypes.c_int8(1))),
        "shared is a pointer, .*: give what it points to",
    ),
    "shared void pointer": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=ctypes.c_void_p(64)),
        "shared is a pointer",
    ),
    "shared objects": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=np.array([64], object)),
        "shared is an array of object: numbers",
    ),
    "shared from another machine": (
        lambda w: trainer("narrow").play(w.narrow, 3, shared=np.array([64], ">i4")),
        "shared is an array of >i4: numbers",
    ),
    "abi": (lambda w: w.old, "'old' .* is no eggroll_world of ABI 1 .it says 0."),
    "no inputs": (lambda w: w.empty, "has inputs 0, outputs 2 and bytes 8"),
    "no function": (lambda w: w.silent, "all four functions"),
    "missing": (lambda w: w.nothing, "exports no 'nothing'"),
}


@pytest.mark.parametrize("engine", ["portable", "cpu"])
def test_worlds_beyond_memory_are_one_sentence(
    worlds: native.Library, monkeypatch: pytest.MonkeyPatch, engine: str
):
    """Of engine cpu by hand, whose 64 GiB some machines have."""
    es = trainer("narrow", pop=1 << 17, engine=engine, table_bits=16)

    def full(*given: Any, **named: Any) -> Any:
        raise MemoryError("std::bad_alloc")

    if es.engine.plays:
        monkeypatch.setattr(es.engine, "play", full)
    sentence = "the world 'vast' takes 2,147,483,647 bytes for each of 131,072 members"
    with pytest.raises(InputError, match=f"memory ran out: {sentence}; let it take less"):
        es.play(worlds.vast, 2, shared=SHARED)
    assert es.step == 0


@pytest.mark.parametrize("name", TRAINED)
def test_one_sentence_for_what_does_not_fit(name, worlds):
    play, message = TRAINED[name]
    with pytest.raises(InputError, match=message) as caught:
        play(worlds)
    assert str(caught.value).endswith(".")
