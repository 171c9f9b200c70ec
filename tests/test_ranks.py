"""A run has the same bits on any number of ranks, whatever they exchange."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import simulated_ranks

from eggroll import ranks as ranks_module
from eggroll.errors import InputError
from eggroll.evolution import population as population_module
from eggroll.files import CHECKPOINT
from eggroll.ranks import ALONE, RankError, Ranks, counts_all, joined, share
from eggroll.ranks.joined import JoinedRanks
from eggroll.training.checkpoint import load, signature
from eggroll.training.config import Config
from eggroll.training.run import gather_state, open_run

SMALL: dict[str, Any] = {
    "data": "count", "pop": 20, "width": 8, "seq_len": 3, "steps": 4, "table_bits": 16,
    "val_tokens": 64, "sample_tokens": 0, "threads": 1, "checkpoint_every": 2, "rank_check": 1,
}  # fmt: skip
# Every estimator and every rule, and options that change what is drawn or exchanged.
RUNS: dict[str, dict[str, Any]] = {
    "sign": {},
    "master": {"rule": "master", "rank": 2, "group_size": 4},
    "whitened": {"rule": "whitened", "clt": False},
    "reuse": {"noise_reuse": 2, "chunk": 6, "layers": 2},
    "votes": {"estimator": "token-votes", "rule": "whitened"},
    "tokens": {"estimator": "token-credit", "rule": "whitened", "score_bits": 8, "chunk": 6},
    "tokens by sign": {"estimator": "token-credit"},
    "groups": {"estimator": "group-credit", "rule": "whitened", "group_size": 4},
    "local": {"estimator": "local", "rule": "adam", "chunk": 4},
    "feedback": {"estimator": "feedback", "rule": "adam"},
}


def made(options: Mapping[str, Any], ranks: Ranks = ALONE) -> tuple[Any, ...]:
    """Signature, memory, losses and the states of all members after a run."""
    with ExitStack() as stack:
        run = open_run(Config(**options), stack, write=False, show=False, ranks=ranks)
        losses = [run.update()["loss"] for _ in range(run.config.steps)]
        made = run.learner
        memory = {name: np.array(leaf).tolist() for name, leaf in made.memory.items()}
        state = np.array(gather_state(ranks, made)).tolist()
        return signature(made.weights), memory, losses, state


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[Any, ...]]:
    return {name: made(SMALL | options) for name, options in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_any_number_of_ranks_has_the_bits_of_one_process(name: str, alone: Any):
    options = SMALL | RUNS[name]
    for size in (2, 3, 4) if name in ("sign", "tokens", "feedback") else (3,):  # ten pairs
        first, *others = simulated_ranks.run(size, lambda ranks: made(options, ranks))
        assert first == alone[name]
        assert all(found[:3] == first[:3] for found in others), "ranks differ"


def test_all_estimators_and_rules_are_tried():
    tried = [Config(**SMALL | options) for options in RUNS.values()]
    from eggroll.evolution.estimators import ESTIMATORS
    from eggroll.evolution.rules import RULES

    assert {config.estimator for config in tried} == ESTIMATORS.keys()
    assert {config.rule for config in tried} == RULES.keys()
    assert len({found.pop // found.group_size % 3 for found in tried}) > 1, "no uneven shares"


@pytest.mark.parametrize("name", ["sign", "master", "whitened", "reuse"])
@pytest.mark.parametrize("every", [True, False])
def test_counting_all_pairs_and_summing_votes_are_the_same(
    name: str, every: bool, alone: Any, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(population_module, "counts_all", lambda n: asked.append(n) or every)
    found = simulated_ranks.run(3, lambda ranks: made(SMALL | RUNS[name], ranks))
    assert found[0] == alone[name]
    assert set(asked) == {SMALL["pop"] // 2}


def test_what_is_exchanged_follows_from_the_population():
    most = 8 * ranks_module.PRODUCTS_PER_BYTE
    assert counts_all(most)
    assert not counts_all(most + 1)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (4, 2)])
@pytest.mark.parametrize("name", ["master", "tokens", "feedback"])
def test_a_run_goes_on_with_any_number_of_ranks(
    name: str, before: int, after: int, alone: Any, tmp_path: Any
):
    options = SMALL | RUNS[name]

    def part(ranks: Ranks, given: Mapping[str, Any], until: int) -> None:
        with ExitStack() as stack:
            run = open_run(Config(**given), stack, show=False, ranks=ranks)
            while run.step < until:
                run.update()
            run.save()

    def on(size: int, given: Mapping[str, Any], until: int) -> None:
        if size == 1:
            part(ALONE, given, until)
        else:
            simulated_ranks.run(size, lambda ranks: part(ranks, given, until))

    out = str(tmp_path / "run")
    on(before, options | {"out": out}, 2)
    on(after, options | {"resume": out}, 4)
    kept = load(tmp_path / "run" / CHECKPOINT)
    memory = {name: np.array(leaf).tolist() for name, leaf in kept.memory.items()}
    assert (signature(kept.weights), memory) == alone[name][:2]
    assert np.array(kept.state).tolist() == alone[name][3]


def test_a_flipped_bit_is_found_and_its_rank_named():
    def flipped(ranks: Ranks, at: str) -> None:
        options = Config(**SMALL | RUNS["sign" if at == "weights" else "master"])
        with ExitStack() as stack:
            run = open_run(options, stack, write=False, show=False, ranks=ranks)
            run.update()
            if ranks.rank == 1:
                leaves = getattr(run.learner, at)
                name = next(iter(leaves))
                leaf = np.array(leaves[name])
                leaf.reshape(-1)[0] ^= 1
                leaves[name] = mx.array(leaf)
            run.update()

    for at in ("weights", "memory"):
        with pytest.raises(InputError, match="the weights of rank 1 differ from the others'"):
            simulated_ranks.run(3, lambda ranks, at=at: flipped(ranks, at))
    with pytest.raises(InputError, match="the weights of rank 0 and rank 1 differ:"):
        simulated_ranks.run(2, lambda ranks: flipped(ranks, "weights"))


def test_no_checkpoint_is_made_of_weights_that_differ(tmp_path: Any):
    def saved(ranks: Ranks) -> None:
        with ExitStack() as stack:
            given = Config(**SMALL | {"out": str(tmp_path / "run"), "rank_check": 0})
            run = open_run(given, stack, show=False, ranks=ranks)
            run.update()
            if ranks.rank == 2:
                name = next(iter(run.weights))
                run.weights[name] = run.weights[name] ^ 1
            run.update()
            run.save()

    with pytest.raises(InputError, match="the weights of rank 2 differ"):
        simulated_ranks.run(3, saved)
    assert load(tmp_path / "run" / CHECKPOINT).step == 0


def test_too_many_ranks_are_refused():
    options = SMALL | {"pop": 8, "group_size": 4}
    with pytest.raises(InputError, match="3 ranks are too many for 2 groups of --group-size 4"):
        simulated_ranks.run(3, lambda ranks: made(options, ranks))


@pytest.mark.parametrize("count", [1, 5, 7, 64])
def test_shares_are_even_and_whole(count: int):
    for size in range(1, count + 1):
        ends = [share(count, rank, size) for rank in range(size)]
        assert [a for a, _ in ends] == [0, *(b for _, b in ends)][:-1]
        assert ends[-1][1] == count
        assert {b - a for a, b in ends} <= {count // size, -(-count // size)}


def test_votes_wrap_as_they_do_in_one_process():
    """int8 would wrap at 2^7; int32 does at 2^31, here as in a sum on one machine."""
    high = mx.array(np.array([2**31 - 5, -(2**31), 300], np.int32))

    def summed(ranks: JoinedRanks) -> list[int]:
        found = ranks.sums({"a": high, "b": mx.array(np.full((2, 2), ranks.rank, np.int32))})
        assert np.array(found["b"]).tolist() == [[3, 3], [3, 3]]
        out: list[int] = np.array(found["a"]).tolist()
        return out

    assert simulated_ranks.run(3, summed)[0] == [2**31 - 15, -(2**31), 900]


def test_an_exchange_of_signs_is_a_fifth_of_a_byte_a_pair_and_its_frame():
    def sent(ranks: simulated_ranks.Simulated) -> tuple[list[int], int]:
        mine = np.array([1, -1, 0] * 100, np.int8)[slice(*share(300, ranks.rank, 3))]
        before = ranks.hub.sent
        found = ranks.signs(mine, 300, 1)
        assert found.tolist() == [1, -1, 0] * 100
        return ranks.hub.sent - before, len(mine)

    assert sorted(simulated_ranks.run(3, sent)) == [(36, 100), (72, 100), (108, 100)]


def test_what_nobody_filled_is_not_taken_for_an_answer(monkeypatch: pytest.MonkeyPatch):
    """MLX was seen to return such arrays for the exchange in which a rank is killed."""
    whole = simulated_ranks.Simulated._all_gather

    for broken in (slice(0, 8), slice(-8, None), slice(None)):

        def partly(self: Any, mine: np.ndarray, broken: slice = broken) -> np.ndarray:
            found = whole(self, mine).copy()
            if self.rank == 0:
                found[1, broken] = 0
            return found

        monkeypatch.setattr(simulated_ranks.Simulated, "_all_gather", partly)
        with pytest.raises(RankError, match="not whole"):
            simulated_ranks.run(2, lambda ranks: ranks.table([7]))


def test_streams_of_a_rank_are_a_part_of_all():
    for data in ("count", "stdlib"):
        with ExitStack() as stack:
            given = replace(Config(**SMALL), data=data)
            streams = open_run(given, stack, write=False, show=False).streams
        for step in (0, 7):
            whole, part = streams.batch(step), streams.only(3, 8).batch(step)
            assert all(np.array_equal(a[3:8], b) for a, b in zip(whole[:2], part[:2], strict=True))


@pytest.mark.parametrize("piece", [1, 16, 1 << 24])
def test_rows_of_uneven_shares_arrive_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int):
    monkeypatch.setattr(joined, "PIECE_BYTES", piece)
    rows = np.arange(14, dtype=np.int32).reshape(7, 2)

    def gathered(ranks: JoinedRanks) -> list[list[int]]:
        found: list[list[int]] = ranks.rows(rows[slice(*share(7, ranks.rank, 3))], 7, 1).tolist()
        return found

    assert simulated_ranks.run(3, gathered) == [rows.tolist(), [], []]
