"""Going on: given weights, other options after a checkpoint, copies, other processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import oracle
import oracle_program
import pytest
from test_trainer import P, feed_forward, recurrent, run, shown, trainer, worth

from eggroll import networks
from eggroll.engines import base
from eggroll.errors import InputError
from eggroll.library.trainer import MoreOptions, Trainer, TrainerOptions
from eggroll.networks import mlp
from eggroll.spec.backward import heads
from eggroll.spec.program import Program
from eggroll.training import checkpoint


def test_a_trainer_begins_with_given_weights(tmp_path: Path):
    first = trainer(feed_forward(), seed=5)
    run(first, 2)
    for rule in ("sign", "whitened"):
        es = trainer(feed_forward(), rule=rule, learning_rate=30.0, weights=first.weights)
        assert es.signature == first.signature
        assert run(es, 3) != first.signature
        es.save(tmp_path / "es.safetensors")
        again = Trainer.load(tmp_path / "es.safetensors")
        assert run(again, 2) == run(es, 2)


def test_given_weights_are_the_only_difference():
    """Those of the seed itself change nothing."""
    plain, given = trainer(feed_forward()), trainer(feed_forward())
    given = trainer(feed_forward(), weights=given.weights)
    assert run(plain) == run(given)


BAD_WEIGHTS: dict[str, tuple[Any, str]] = {
    "a list": (lambda w: [1], "a dict"),
    "one leaf less": (lambda w: dict(list(w.items())[1:]), "has no leaf"),
    "one more": (lambda w: w | {"more": w["hidden"]} if "hidden" in w else w | {"more": 1}, "more"),
    "real": (lambda w: {k: v.astype(float) for k, v in w.items()}, "quantise"),
    "shape": (lambda w: {k: v[..., :1] for k, v in w.items()}, r"int8 \["),
    "-128": (lambda w: {k: np.full_like(v, -128) for k, v in w.items()}, "-128"),
}


def test_weights_that_run_backwards_are_taken():
    weights = {k: v[::-1] for k, v in trainer(feed_forward()).weights.items()}
    es = trainer(feed_forward(), weights=weights)
    assert all(np.array_equal(es.weights[name], leaf) for name, leaf in weights.items())


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights_get_a_sentence(what: str):
    change, sentence = BAD_WEIGHTS[what]
    weights = trainer(feed_forward()).weights
    with pytest.raises(InputError, match=sentence) as refused:
        trainer(feed_forward(), weights=change(weights))
    assert "\n" not in str(refused.value)


def test_a_checkpoint_goes_on_with_other_options(tmp_path: Path):
    path = tmp_path / "es.safetensors"
    es = trainer(recurrent(), estimator="token-credit", rule="whitened", steps=10)
    run(es, 3)
    es.save(path)
    longer = Trainer.load(path, steps=100)
    assert (longer.step, longer.options.steps, longer.signature) == (3, 100, es.signature)
    assert run(longer, 2) != run(Trainer.load(path), 2)
    larger = Trainer.load(path, pop=2 * P)
    assert larger.pop == 2 * P
    larger.tell(worth(larger.ask()(**shown(larger.program, 3, readers=2 * P))).sum(axis=1))
    other = Trainer.load(path, estimator="eggroll", rule="sign", sigma_shift=3)
    run(other, 1, whole=True)
    other.save(path)
    assert Trainer.load(path).options.estimator == "eggroll"
    with pytest.raises(InputError, match="seed belongs"):
        Trainer.load(path, seed=1)
    with pytest.raises(InputError, match="unknown"):
        Trainer.load(path, sigma=1)


def test_phases_of_evolution_and_of_errors_take_turns(tmp_path: Path):
    """Each phase goes on with weights and fine copies, to the same bits on every engine."""
    x = np.random.default_rng(0).integers(-99, 99, (64, 3)).astype(np.int8)
    y = (x[:, 0] > 0).astype(int)
    found = set()
    for engine in ("portable", "cpu"):
        es = trainer(mlp(3, [8], 2), estimator="token-credit", rule="whitened", engine=engine)
        for phase in range(4):
            for _ in range(3):
                if phase % 2:
                    es.learn(x, y)
                else:
                    es.tell(es.ask()(np.broadcast_to(x, (P, 64, 3)))[..., 0] * (1 - 2 * y))
            path = tmp_path / f"{engine}{phase}.safetensors"
            es.save(path)
            after = "token-credit" if phase % 2 else "feedback"
            kept = {name: np.array(v) for name, v in es._learner.memory.items()}
            es = Trainer.load(path, estimator=after)
            for name in es.weights:
                np.testing.assert_array_equal(kept[name], np.array(es._learner.memory[name]))
        assert es.step == 12
        found.add(es.signature)
    assert len(found) == 1


@pytest.mark.parametrize("estimator", ["eggroll", "token-votes"])
@pytest.mark.parametrize("sigma_shift", [0, 4])
def test_a_members_weights_are_rebuilt(estimator: str, sigma_shift: int):
    """Vectors and embeddings exactly; matrices within half a last bit of W + A B."""
    net = Program(16, 6)
    x, _ = net.stage()
    x = net.embed("table")
    net.output(net.bias(net.linear(x, "W", 5), "b"))
    es = trainer(net, estimator=estimator, sigma_shift=sigma_shift)
    members, learner = es.ask(), es._learner
    names = [leaf.name for leaf in net.leaves]
    noise = learner.population.noise.slices(0, 0, P // 2)
    table = np.array(noise.table).astype(int)
    starts = dict(zip(names, np.array(noise.starts), strict=True))
    own = oracle.Noise(table, starts, 1, sigma_shift)
    for i in range(P):
        found, member = members.weights(i), oracle_program.Member(net, es.weights, own, i)
        (of_bias,) = (op for op in net.stages[0].ops if op.kind == "bias")
        np.testing.assert_array_equal(found["b"], member.vector(of_bias))
        (of_embed,) = (op for op in net.stages[0].ops if op.kind == "embed")
        for member.token in range(16):
            row = oracle_program.embed(member, of_embed)
            np.testing.assert_array_equal(found["table"][member.token], row)
        A, B = member.factors("W", (5, 6))
        whole = np.clip(es.weights["W"] + A @ B.T / 2.0 ** (4 + sigma_shift), -127, 127)
        assert abs(found["W"] - whole).max() <= 0.5
        assert (found["W"] != es.weights["W"]).any()


def test_the_best_member_is_kept():
    es = trainer(feed_forward())
    assert es.best is None
    seen = []
    for _ in range(4):
        members = es.ask()
        given = worth(members(**shown(es.program, es.step)))
        best = int(given.mean(axis=1).argmax())
        seen.append((given.mean(axis=1).max(), es.step, best, members.weights(best)))
        es.tell(given)
    fitness, step, member, weights = max(seen, key=lambda one: one[0])
    found = es.best
    assert found is not None
    assert found[:3] == (step, member, fitness)
    for name, leaf in weights.items():
        np.testing.assert_array_equal(found.weights[name], leaf)
    trainer(feed_forward(), weights=found.weights)


def test_checkpoints_and_copies_have_the_best_member(tmp_path: Path):
    es = trainer(feed_forward())
    run(es, 3)
    known = es.best
    assert known is not None
    es.save(tmp_path / "es.safetensors")
    again = Trainer.load(tmp_path / "es.safetensors")
    again.save(tmp_path / "again.safetensors")
    loaded = Trainer.load(tmp_path / "again.safetensors", pop=4)
    for made in (again, loaded, copy.deepcopy(es)):
        assert made.best is not None
        next(iter(made.best.weights.values()))[:] = 99  # a copy
        found = made.best
        assert found is not None
        assert found[:3] == known[:3]
        assert list(found.weights) == list(es.weights)
        for name, leaf in known.weights.items():
            np.testing.assert_array_equal(found.weights[name], leaf)
    assert run(es, 3) == run(again, 3)
    assert es.best[:3] == again.best[:3]
    assert trainer(feed_forward()).best is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("best", lambda facts, arrays: facts.update(best='{"fitness": "0x1p+0"}')),
        ("best", lambda facts, arrays: facts.update(best="3")),
        ("best", lambda facts, arrays: facts.update(best='{"fitness": "nan", "step": 0, "memb'
                                                    'er": 0}')),
        ("shape", lambda facts, arrays: arrays.update({"best/hidden": np.zeros(2, np.int8)})),
        ("missing", lambda facts, arrays: [arrays.pop(k) for k in list(arrays) if "best/" in k]),
        ("more", lambda facts, arrays: facts.pop("best")),
    ],
)  # fmt: skip
def test_another_best_member_is_refused(tmp_path: Path, name: str, change: Any):
    path = tmp_path / "es.safetensors"
    es = trainer(feed_forward())
    run(es, 2)
    es.save(path)
    metadata, arrays = checkpoint.read(path, checkpoint.LIBRARY)
    change(metadata, arrays)
    facts = {k: v for k, v in metadata.items() if k not in ("format", "version", "step")}
    checkpoint.store(path, checkpoint.LIBRARY, 2, facts, arrays)
    with pytest.raises(InputError, match="damaged") as refused:
        Trainer.load(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("least", [-127, -128])
def test_the_best_member_may_have_the_least_weight_there_is(tmp_path: Path, least: int):
    path, es = tmp_path / "es.safetensors", trainer(feed_forward())
    run(es, 2)
    es.save(path)
    metadata, arrays = checkpoint.read(path, checkpoint.LIBRARY)
    name = next(name for name in arrays if name.startswith("best/"))
    arrays[name] = np.full(arrays[name].shape, least, np.int8)
    facts = {k: v for k, v in metadata.items() if k not in ("format", "version", "step")}
    checkpoint.store(path, checkpoint.LIBRARY, 2, facts, arrays)
    if least == -128:
        with pytest.raises(InputError, match="damaged"):
            Trainer.load(path)
    else:
        assert (Trainer.load(path).best.weights[name.partition("/")[2]] == least).all()


def test_a_rule_that_moves_nothing_is_warned_of():
    es = trainer(feed_forward(), rule="whitened", learning_rate=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(es, 9, whole=True)
    with pytest.warns(UserWarning, match="rule whitened moved no weight: try a larger learning_ra"):
        run(es, 1, whole=True)


def test_members_without_weights_of_their_own_say_so():
    for estimator, rule in (("token-credit", "whitened"), ("feedback", "adam")):
        es = trainer(feed_forward(), estimator=estimator, rule=rule)
        for ask in (lambda es=es: es.best, lambda es=es: es.ask().weights(0)):
            with pytest.raises(InputError, match="weights of their own"):
                ask()
    with pytest.raises(InputError, match="from 0 to 11"):
        trainer(feed_forward()).ask().weights(12)


def test_updates_beyond_the_plan_are_warned_of_once():
    es = trainer(feed_forward(), estimator="token-credit", rule="whitened", steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(es, 3)
    with pytest.warns(UserWarning, match="3 were planned.*steps=") as seen:
        run(es, 3)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(trainer(feed_forward(), steps=1), 3)  # rule sign asks for no number of updates


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_go_on_alike(way: str, tmp_path: Path):
    es = trainer(recurrent(), estimator="token-credit", rule="whitened", out=tmp_path / "run")
    run(es, 2)
    es.ask()
    copied = copy.deepcopy(es) if way == "deepcopy" else pickle.loads(pickle.dumps(es))
    assert (copied.step, copied.signature) == (2, es.signature)
    assert run(copied) == run(es)
    model = es.model
    model(**shown(es.program, 1))
    again = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    one, other = (m(**shown(es.program, 2)) for m in (model, again))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def signature_of(es: Trainer) -> str:
    return run(es, 1)


def test_what_is_no_network_is_named(tmp_path: Path):
    trainer(feed_forward()).save(tmp_path / "es.safetensors")
    with pytest.raises(InputError, match=r"net is of type int: an eggroll\.Program is needed"):
        Trainer.load(tmp_path / "es.safetensors", net=3)  # type: ignore[arg-type]


def test_a_spawned_process_goes_on():
    es = trainer(feed_forward())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(signature_of, (es,)) == run(es, 1)


FORK = """
import os, sys, threading
import mlx.core as mx
import numpy as np
import eggroll as eg
net = eg.networks.mlp(3, [8], 2)
x = np.ones((4, 3), np.int8)
if sys.argv[1] == "after":
    es = eg.Trainer(net, pop=4, engine=sys.argv[2])
    model = es.model
    known = model(x)
child = os.fork()
if child == 0:
    threading.Timer(20, lambda: os._exit(3)).start()
    try:
        if sys.argv[1] == "before":
            es = eg.Trainer(net, pop=4, engine=sys.argv[2])
            es.tell(es.ask()(x)[:, 0])
            os._exit(es.step - 1)
        assert (model(x) == known).all() and (es.model(x) == known).all()
        es.tell(es.ask()(x)[:, 0])
        os._exit(es.step - 1)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(5)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("engine", ["portable", "cpu"])
def test_a_fork_goes_on(when: str, engine: str):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, when, engine], timeout=100, check=False
    )
    assert done.returncode == 0


FLOAT_FORK = """
import os, sys, threading
import numpy as np
import eggroll as eg
x = np.ones((4, 3), np.int8)
es = eg.GradientTrainer(eg.networks.mlp(3, [8], 2))
for _ in range(int(sys.argv[1])):
    es.tell_gradient(es.ask(x))
child = os.fork()
if child == 0:
    threading.Timer(20, lambda: os._exit(3)).start()
    try:
        es.tell_gradient(es.ask(x))
        os._exit(es.step - 1 - int(sys.argv[1]))
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(5)
es.tell_gradient(es.ask(x))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("updates", [0, 1])
def test_a_fork_of_a_gradient_trainer_goes_on(updates: int):
    command = [sys.executable, "-W", "ignore", "-c", FLOAT_FORK, str(updates)]
    assert subprocess.run(command, timeout=100, check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_writes_into_no_folder_of_its_parent(tmp_path: Path):
    es = trainer(feed_forward(), out=tmp_path / "run", checkpoint_every=0)  # update 1 is unsaved
    run(es, 1)
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(InputError, match=r"is written by process [0-9]+, of which"):
                run(es, 1)
            with pytest.raises(InputError, match=r"is written by process"):
                es.save()
            es.close()
            run(copy.deepcopy(es), 1)
            os.write(write, b"as told")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) == b"as told"
    os.close(read)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == files
    run(es, 1)
    es.close()
    assert Trainer.load(tmp_path / "run" / "checkpoint.safetensors").step == 2


def test_a_fork_with_a_gpu_gets_a_sentence(monkeypatch: pytest.MonkeyPatch):
    es = trainer(feed_forward())
    monkeypatch.setattr(base, "_owner", [os.getpid() + 1])
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    with pytest.raises(InputError, match=r"is a fork of process.*get_context\("):
        run(es, 1)


def test_more_options_are_all_that_no_argument_has():
    known = {field.name for field in fields(TrainerOptions)}
    arguments = set(Trainer.__init__.__annotations__)
    assert known - arguments == set(MoreOptions.__annotations__)


def test_small_outputs_are_the_seeds_weights_divided():
    net = mlp(3, [8, 8], 2)
    first, small = trainer(net).weights, networks.small_outputs(net, 3)
    assert list(first) == list(small)
    for name, leaf in first.items():
        by = 5 if name == "layer2.weights" else 1
        np.testing.assert_array_equal(small[name], np.trunc(leaf / by))
        assert small[name].dtype == np.int8
    recurrent_net = recurrent()
    divided = networks.small_outputs(recurrent_net, 3, 127)
    changed = [n for n, w in trainer(recurrent_net).weights.items() if (w != divided[n]).any()]
    assert len(changed) == len(heads(recurrent_net)) > 0
    with pytest.raises(InputError, match="divisor is 0: a whole number from 1 to 127"):
        networks.small_outputs(net, 3, 0)
