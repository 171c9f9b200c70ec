"""Actions drawn from int8 logits, and the votes that their success gives."""

from __future__ import annotations

import numpy as np
import pytest

from eggroll.errors import InputError
from eggroll.library.trainer import Trainer
from eggroll.spec.credit import Acted, draw, other_words, readout
from eggroll.spec.program import Program
from eggroll.spec.rng import counters

ESTIMATORS = ("eggroll", "token-votes", "token-credit")


def test_draws_have_the_odds_of_the_logits():
    logits = np.array([0, 16, -16, 32, -127], np.int8)
    words = counters(7, 0, 1 << 16)
    taken = draw(np.broadcast_to(logits, (len(words), 5)), words)
    weights = 2.0 ** (logits / 16)
    expected = weights / weights.sum()
    found = np.bincount(taken, minlength=5) / len(words)
    np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(0.25 / len(words)))
    again = draw(np.broadcast_to(logits, (len(words), 5)), other_words(words))
    both = np.bincount(5 * taken + again, minlength=25).reshape(5, 5) / len(words)
    np.testing.assert_allclose(both, np.outer(expected, expected), atol=0.008)


def test_draw_is_exact_at_its_edges():
    logits = np.array([[0, 0], [127, -127]], np.int8)
    lowest, highest = np.zeros(2, np.uint64), np.full(2, 2**64 - 1, np.uint64)
    np.testing.assert_array_equal(draw(logits, lowest), [0, 0])
    np.testing.assert_array_equal(draw(logits, highest), [1, 1])


@pytest.mark.parametrize("rows", [1, 5, 40_000])
def test_readout_is_the_sum_over_members_and_rows(rows):
    rng, A, K, P = np.random.default_rng(rows), 3, 4, 4
    acted = Acted(
        rng.integers(0, A, (P, rows)).astype(np.int32),
        rng.integers(0, A, (P, rows)).astype(np.int32),
        rng.integers(-127, 128, (P, rows, K)).astype(np.int8),
    )
    worth = rng.integers(-300, 300, (P // 2, rows))
    want = np.zeros((A, K), np.int64)
    for m in range(P):
        credit = np.clip(worth[m // 2], -127, 127) * (1 - 2 * (m % 2))
        np.add.at(want, acted.actions[m], credit[:, None] * acted.inputs[m].astype(np.int64))
        np.add.at(want, acted.others[m], -credit[:, None] * acted.inputs[m].astype(np.int64))
    np.testing.assert_array_equal(np.array(readout(acted, worth, (A, K))), want)


def bandit(estimator: str) -> Trainer:
    """Two signals, three arms."""
    net = Program()
    net.policy(net.input(2), "arm", 3)
    return Trainer(net, pop=64, estimator=estimator, seed=1, alpha=0.3, engine="portable",
                   table_bits=16)  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_policies_learn_from_the_actions_they_drew(estimator):
    """The arm that is best for the signal shown becomes the likeliest; chance is reproducible."""
    signals, best = np.array([[20, -5], [-5, 20]], np.int8), np.array([2, 1])
    signatures = []
    for _ in range(2):
        es = bandit(estimator)
        for _ in range(60):
            members = es.ask()
            arms = members.act(signals[None])
            assert arms.shape == (64, 2)
            assert arms.dtype == np.int32
            es.tell((arms == best).astype(int))
        signatures.append(es.signature)
        logits = es.model(signals[None])[0]
        np.testing.assert_array_equal(logits.argmax(axis=-1), best)
    assert signatures[0] == signatures[1]


def test_rows_one_by_one_draw_what_rows_together_draw():
    signals = np.random.default_rng(0).integers(-9, 9, (64, 40, 2)).astype(np.int8)
    whole = bandit("token-credit").ask().act(signals)
    members = bandit("token-credit").ask()
    single = np.stack([members.act(signals[:, t]) for t in range(40)], axis=1)
    np.testing.assert_array_equal(single, whole)


def test_token_credit_needs_the_actions():
    es = bandit("token-credit")
    members = es.ask()
    members(np.zeros((64, 1, 2), np.int8))
    with pytest.raises(InputError, match=r"^The policy's votes come from the actions that it drew"):
        es.tell(np.zeros(64))
