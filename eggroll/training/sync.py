"""The exchange between the ranks of a run after an update, and before a checkpoint.

Letters: P members, R ranks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.evolution.step import Learner, Step
from eggroll.ranks import Ranks, SharedError

MOST_NAMED = 4  # ranks


class Exchange(NamedTuple):
    """The results that all ranks have in common after an update."""

    total_score: int  # the sum of all members' scores
    stops: bool  # whether a rank was asked to stop
    facts: dict[str, Any]  # of the ranks, for metrics.jsonl; none of a process alone


def exchange_results(
    ranks: Ranks, step: Step, waited: float, asked: bool, weights_digest: int = 0
) -> Exchange:
    """Ends an update on all ranks.

    waited: seconds of it in communication; weights_digest: of the weights after it, where they are
    compared.

    Raises:
        SharedError: the weights are not the same everywhere.
    """
    # On the host, as nothing may fail between an update and its line.
    total_score = int(np.asarray(step.scores).sum(dtype=np.int64))
    if ranks.size == 1:
        return Exchange(total_score, asked, {})
    busy_here, idle_here = (round(s * 1e6) for s in (step.seconds - waited, waited))
    mine = total_score, step.scores.size, busy_here, idle_here, asked, weights_digest
    all_scores, tokens, busy, idle, stops, digests = ranks.table(mine).T.tolist()
    _check(ranks, digests)
    facts = {
        "rank_tokens_per_second": [
            round(n * 1e6 / max(t, 1), 1) for n, t in zip(tokens, busy, strict=True)
        ],
        "rank_communication_seconds": [t / 1e6 for t in idle],
    }
    return Exchange(sum(all_scores), any(stops), facts)


def digest_of(learner: Learner) -> int:
    """64 bits that tell the weights and the memory of one rank from another's."""
    digest = hashlib.blake2b(digest_size=8)
    for leaves in (learner.weights, learner.memory):
        for name in sorted(leaves):
            digest.update(np.asarray(leaves[name]).tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


def check_weights(ranks: Ranks, learner: Learner) -> None:
    """Raises SharedError if the weights are not the same everywhere."""
    if ranks.size > 1:
        _check(ranks, ranks.table([digest_of(learner)])[:, 0].tolist())


def _check(ranks: Ranks, digests: Sequence[int]) -> None:
    counts = Counter(digests)
    if len(counts) == 1:
        return
    usual, most = counts.most_common(1)[0]
    odd = [ranks.name_of(rank) for rank, digest in enumerate(digests) if digest != usual]
    what = f"the weights of {' and '.join(odd[:MOST_NAMED])} differ from the others'"
    if 2 * most <= len(digests):
        what = f"the weights of {ranks.name_of(0)} and {' and '.join(odd[:MOST_NAMED])} differ"
    raise SharedError(
        f"{what}: a bit flipped there, or its machine computes wrongly; the last checkpoint, made "
        "while all were the same, stays."
    )


def gather_state(ranks: Ranks, learner: Learner) -> mx.array:
    """The state of all members, int8 [P, state_size]; of none on ranks other than 0."""
    if ranks.size == 1:
        return learner.state
    population = learner.population
    state = np.array(learner.state)
    return mx.array(ranks.rows(state, population.everyone, population.group))


def broadcast_learner(ranks: Ranks, learner: Learner) -> None:
    """Gives every rank the learner that rank 0 has read, whose state is of all members there."""
    if ranks.size == 1:
        return
    learner.step = ranks.from_first(lambda: learner.step)
    groups = {"weights": learner.weights, "memory": learner.memory}
    for leaves in groups.values():
        given = ranks.arrays_from_first({name: np.array(leaf) for name, leaf in leaves.items()})
        leaves.update({name: mx.array(leaf) for name, leaf in given.items()})
    state = ranks.arrays_from_first({"state": np.array(learner.state)})["state"]
    first = learner.population.before
    learner.state = mx.array(state[first : first + learner.population.members])
