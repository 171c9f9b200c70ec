"""Edges at which a planted fault went unseen: each test names the line that it holds."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY

from eggroll import replay
from eggroll.engines.base import MAX_VALUE, check_values
from eggroll.evolution import rules
from eggroll.evolution.estimators import (
    ESTIMATORS,
    centred,
    log_ranks,
    log_worth,
    ranks,
    scaled,
)
from eggroll.files import REPLAY
from eggroll.networks import egg, initial_weights, small_outputs
from eggroll.ranks import rendezvous
from eggroll.spec.backward import MOST, next_scale
from eggroll.spec.credit import CreditKind, Turns, crediting
from eggroll.spec.fixed_point import gate_tables, log2_fixed
from eggroll.spec.noise import Noise, slice_length
from eggroll.spec.program import Program
from eggroll.training import loop, replay_log
from eggroll.training.config import Config


def test_the_last_start_of_a_slice_occurs():
    """A table of one byte more than a slice has two starts."""
    shape, rank = (100, 155), 1
    noise = Noise([shape], seed=0, rank=rank, shift=0, table_bits=8)
    assert slice_length(shape, rank) == noise.table.size - 1
    starts = np.array(noise.slices(0, 0, 200).starts)
    assert set(starts.ravel().tolist()) == {0, 1}
    whole = Noise([(100, 156)], seed=0, rank=rank, shift=0, table_bits=8)
    assert set(np.array(whole.slices(0, 0, 50).starts).ravel().tolist()) == {0}


def test_alpha_of_exactly_one_does_not_fall():
    assert [rules.alpha_at(1.0, step, 10) for step in (0, 1, 10, 1000)] == [1.0] * 4
    assert rules.alpha_at(1.0 + 2**-40, 1000, 10) < 1


def test_the_difference_of_ranks_is_rounded_to_the_nearest():
    """By fractions: halves away from zero, on either side."""
    values = np.array([3, 0, 1, 5, 4, 2, 9, 7, 8, 6, 6, 11], np.float64)
    order = np.sort(values)
    mean_rank = [
        Fraction(int(np.flatnonzero(order == v).sum()), (order == v).sum()) for v in values
    ]
    want = []
    for i in range(0, len(values), 2):
        exact = 7 * (mean_rank[i] - mean_rank[i + 1]) / (len(values) - 1)
        size = (2 * abs(exact) + 1) // 2
        want.append(int(size) if exact > 0 else -int(size))
    assert ranks(values).tolist() == want


def test_centred_differences_are_rounded_to_the_nearest():
    values = np.array([1, 0, 4, 0, 0, 1, 0, 4], np.float64)  # 1.2 and 4.8 on either side
    assert centred(values).tolist() == [1, 5, -1, -5]


def test_values_are_taken_up_to_the_limit():
    """2^19, on either side; what is scaled ends there."""
    program = egg(4, 4, 1)
    for sign in (1, -1):
        check_values(program, mx.array([[sign << 19]], mx.int32), 1, 1)
        beyond = mx.array([[sign * ((1 << 19) + 1)]], mx.int32)
        with pytest.raises(ValueError, match="beyond 524288"):
            check_values(program, beyond, 1, 1)
    assert MAX_VALUE == 1 << 19
    assert scaled(np.array([1e9, -1e9, 1.0]), 1, 1.0).tolist() == [1 << 19, -(1 << 19), 1]


@pytest.mark.parametrize("name", ["token-votes", "token-credit", "group-credit"])
def test_floors_follow_from_the_size_of_noise(name: str):
    """Of one byte, of standard deviation 16, or of a product of two; times the root of N."""
    options = Config(
        data="count", estimator=name, pop=128, width=8, layers=1, seq_len=4, group_size=4
    )
    program = options.program()
    estimator = ESTIMATORS[name](options, program)
    deviation = np.array(Noise([(8, 8)], seed=1, rank=1, shift=0).table).astype(np.float64).std()
    assert abs(deviation - 16) < 0.1
    floors, crediting = estimator.floors(), estimator.crediting
    for i, leaf in enumerate(program.leaves):
        kind, owner = crediting.kinds[i], crediting.owners[i]
        bytes_of_noise = 1 if kind == CreditKind.INPUTS or owner != i else 2
        summed = kind in (CreditKind.INPUTS, CreditKind.SCALAR)
        assert floors[leaf.name] == (8 * 16**bytes_of_noise if summed else 16), leaf.name
    assert {8 * 16, 16} < set(floors.values())


@pytest.mark.parametrize("name", ["token-votes", "token-credit", "group-credit"])
@pytest.mark.parametrize("discount", [0, 11, 15])
def test_the_discount_reaches_the_credit_of_every_leaf_that_recurs(name: str, discount: int):
    options = Config(
        data="count", estimator=name, pop=128, width=8, layers=1, seq_len=4, group_size=4,
        discount=discount,
    )  # fmt: skip
    program = options.program()
    given = dict(
        zip(
            [leaf.name for leaf in program.leaves],
            ESTIMATORS[name](options, program).crediting.discounts,
            strict=True,
        )
    )
    assert given["embedding"] == given["layer0.Wf"] == given["layer0.bh"] == discount
    assert given["head"] == given["layer0.down"] == 0


@pytest.mark.usefixtures("no_curves")
def test_records_out_of_order_end_the_log(tmp_path: Path, capsys):
    """Each is whole and of this run."""
    run = tmp_path / "run"
    assert loop.main([*TINY, "--out", str(run)]) == 0
    data = (run / REPLAY).read_bytes()
    with open(run / REPLAY, "rb") as file:
        header = replay_log.header_of(file, run)
    size, one = header.size, header.record
    second, third = data[size + one : size + 2 * one], data[size + 2 * one : size + 3 * one]
    shutil.copytree(run, tmp_path / "swapped")
    swapped = data[: size + one] + third + second + data[size + 3 * one :]
    (tmp_path / "swapped" / REPLAY).write_bytes(swapped)
    capsys.readouterr()
    assert replay.main([str(tmp_path / "swapped"), "--step", "6"]) == 2
    assert "is damaged after update 1" in capsys.readouterr().err
    (tmp_path / "swapped" / REPLAY).write_bytes(data[:size] + second + data[size + one :])
    assert replay.main([str(tmp_path / "swapped"), "--step", "6"]) == 2
    assert "is damaged after update 0" in capsys.readouterr().err


# The watch of ranks.


def test_a_rank_hangs_from_its_limit_on_and_not_before(monkeypatch):
    from eggroll.ranks import watch
    from eggroll.ranks.rendezvous import Connection, Peer

    ended: list[int] = []
    monkeypatch.setattr(watch.Watch, "_end_silent", lambda self, rank, now: ended.append(rank))
    monkeypatch.setattr(watch.Watch, "_work", lambda self: None)
    pair = socket.socketpair()
    peers = [Peer(r, "here", "machine", 0, "") for r in range(2)]
    watching = watch.Watch(1, peers, {0: Connection(pair[0])}, 8.0)
    watching._heard = {0: 100.0}
    for now, silent in ((107.99, []), (108.01, [0])):
        watching._check_alive(now)
        assert ended == silent
    for end in pair:
        end.close()


WATCHES = """
import socket, sys, time
from eggroll.ranks.rendezvous import Connection, own_peer
from eggroll.ranks.watch import Watch
own = own_peer(1, None)
peers = [own._replace(rank=0, pid=1), own]
connection = Connection(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
Watch(1, peers, {0: connection}, 2.0)
time.sleep(60)
"""


def test_a_rank_that_was_stopped_itself_does_not_blame_another():
    """As where a whole machine sleeps: nothing came, as nobody was awake to send."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        watcher = subprocess.Popen(
            [sys.executable, "-c", WATCHES, port], stderr=subprocess.PIPE, text=True
        )
        try:
            server.settimeout(120)
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"{}\n")
                connection.recv(1)  # it watches
                connection.sendall(b"{}\n")
                time.sleep(0.2)
                os.kill(watcher.pid, signal.SIGSTOP)
                time.sleep(5)  # more than twice the limit, in which nothing is sent
                os.kill(watcher.pid, signal.SIGCONT)
                time.sleep(0.6)
                connection.sendall(b"{}\n")
                time.sleep(0.6)
                connection.settimeout(0)
                assert b"failed" not in connection.recv(1 << 16)  # its last line, if it ends
                assert watcher.poll() is None
        finally:
            watcher.kill()
            watcher.communicate()


def test_log_ranks_by_fractions_of_logarithms():
    """By Python's own logarithm; the worse half is worth nothing."""
    values = np.array([3, 0, 1, 5, 4, 2, 9, 7, 8, 6, 6, 11, 12, 12, -1, -2], np.float64)
    P = len(values)
    worth = [max(0.0, math.log2(P / 2 + 1) - math.log2(k)) for k in range(P, 0, -1)]
    order = np.sort(values).tolist()
    of = [sum(w for w, o in zip(worth, order, strict=True) if o == v) / order.count(v)
          for v in values.tolist()]  # fmt: skip
    want = [round(15 * (of[i] - of[i + 1]) / worth[-1]) for i in range(0, P, 2)]
    assert log_ranks(values).tolist() == want
    assert want[5] < want[1] == 0 < want[3]
    assert log_ranks(np.zeros(6)).tolist() == [0, 0, 0]
    n = np.array([1, 2, 3, 5, 1000, 8193, (1 << 53) - 1])
    assert np.abs(log2_fixed(n) / 65536 - np.log2(n)).max() < 2**-15
    assert log2_fixed(np.array([1024, 1 << 46])).tolist() == [10 << 16, 46 << 16]
    assert log_worth(20000)[0] == 0


def test_feedback_starts_with_the_matrices_that_were_drawn():
    """As whole numbers of the fine copies that learn."""
    options = Config(estimator="feedback", width=8, pop=2)
    estimator = ESTIMATORS["feedback"](options, options.program())
    found = estimator.matrices({}, estimator.start())
    assert len(found) > 1
    for name, matrix in found.items():
        np.testing.assert_array_equal(np.array(matrix), np.array(estimator.first[name]))


@pytest.mark.parametrize("first", [0, 1, 31, 32, 40])
@pytest.mark.parametrize("count", [1, 20, 32, 45])
def test_a_window_of_turns_begins_at_any_row(first: int, count: int):
    credited = crediting(
        Config(width=8).program(), nodes=True, sigma_shift=4, discount=0, seq_len=8
    )
    turns = Turns(credited, seed=3, step=5, pairs=2)
    whole = np.stack([np.array(turns._word(i)) for i in range(4)])  # [words, leaves, N]
    bits = np.unpackbits(whole[..., None].view(np.uint8), axis=-1, bitorder="little")
    rows = np.concatenate(bits, axis=-1)  # [leaves, N, rows]
    assert 0 < rows.sum() < rows.size
    found = np.unpackbits(turns.window(first, count).view(np.uint8), axis=-1, bitorder="little")
    np.testing.assert_array_equal(found[..., :count], rows[..., first : first + count])


@pytest.mark.parametrize("rule", rules.RULES)
def test_no_rule_refuses_its_own_start(rule: str):
    options = Config(rule=rule, width=8, pop=2)
    program = options.program()
    kind, weights = options.rule_class, initial_weights(program, options.seed)
    start = kind.make(options, program, ESTIMATORS[options.estimator](options, program)).start(
        weights
    )
    assert kind.impossible(weights, start, weights, 0) == ""


def test_small_outputs_may_be_divided_by_one():
    program = Config(width=8).program()
    whole, same = initial_weights(program, 3), small_outputs(program, 3, 1)
    assert all(np.array_equal(same[name], np.array(whole[name])) for name in whole)


def test_the_next_scale_is_of_the_mean_of_as_few_as_one():
    assert [next_scale(9, total, 1) for total in (0, 1, 7, 8, 16, 1 << 40)] == [9, 0, 1, 2, 3, MOST]
    assert [next_scale(9, 16, count) for count in (0, 1, 2, 3, 16, 17)] == [3, 3, 2, 1, 0, 9]


@pytest.mark.parametrize("hosts", ["", "{}", '[["a:1"], []]', '[["a:1"], [2]]', '["a:1"]', "[["])
def test_a_hostfile_that_names_not_all_is_none(tmp_path: Path, monkeypatch, hosts: str):
    path = tmp_path / "hosts.json"
    monkeypatch.setenv("MLX_HOSTFILE", str(path))
    path.write_text(hosts)
    assert rendezvous.ring_hosts() == (None if hosts else [])
    path.write_text('[["a:1"], ["b:2", "c:3"]]')
    assert rendezvous.ring_hosts() == [["a:1"], ["b:2", "c:3"]]


def test_tables_of_gates_are_those_of_real_numbers():
    """The sigmoid by tanh, tanh by exponentials."""
    v = np.arange(-127, 128)
    tables, up = gate_tables(), np.exp(v / 32)
    np.testing.assert_array_equal(tables["sigmoid"], np.rint(127 * np.tanh(v / 32)))
    np.testing.assert_array_equal(tables["tanh"], np.rint(64 * (up - 1) / (up + 1)))


def test_what_the_last_write_of_a_state_reads_is_seen_by_later_tokens():
    """A state may be written twice; what comes after the second is seen by no later token."""
    net = Program(16, 8)
    net.stage()
    net.embed("embedding")
    x, s = net.stage("a.", state=True)
    for name in ("first", "second"):
        net.add(s, net.linear(x, name, 8), out=s)
    net.add(x, net.linear(s, "after", 8), out=x)
    x, _ = net.stage()
    net.score(x, "head")
    found = crediting(net, nodes=True, sigma_shift=4, discount=3, seq_len=8)
    later = {leaf.name: d for leaf, d in zip(net.leaves, found.discounts, strict=True)}
    assert later == {"embedding": 3, "a.first": 3, "a.second": 3, "a.after": 0, "head": 0}
