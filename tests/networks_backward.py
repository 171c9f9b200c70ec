"""Cases of credit carried back: streams, random words, feedback and scales of any program."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import mlx.core as mx
import numpy as np
import oracle_backward
import pytest
from networks import Case, case_of, int8

from eggroll import _extension, engines
from eggroll.engines import Engine
from eggroll.evolution.estimators import Feedback, Local
from eggroll.evolution.rules import feedback_name
from eggroll.spec import rng
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.program import Batch, Program
from eggroll.training.config import Config

ENGINES = [name for name, engine in engines.ENGINES.items() if not engine.unavailable_because()]
ISAS = _extension.load().usable_isas() if "cpu" in ENGINES else []
WAYS = [*ISAS, "numpy"]  # in which a rule is computed
ESTIMATORS = {"local": Local, "feedback": Feedback}


def go(way: str, rules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an instruction set, or as a machine without the extension has the rules of a module."""
    if way == "numpy":
        monkeypatch.setattr(rules, "native_module", lambda: None)
    else:
        monkeypatch.setenv("EGGROLL_ISA", way)


@dataclass
class Carried:
    """One update's credit: feedback int8 [O, K] of every matrix; words uint32 [P, T].

    errors: of a program without a score, int8 [P, T, all outputs side by side].
    """

    case: Case
    estimator: str
    scales: list[int]
    feedback: dict[str, np.ndarray]
    words: np.ndarray
    errors: np.ndarray | None = None

    @property
    def batch(self) -> Batch:
        errors = None if self.errors is None else mx.array(self.errors)
        return self.case.batch._replace(errors=errors)

    @property
    def backward(self) -> Backward:
        """What engines are given, as the estimator has it."""
        case, made = self.case, ESTIMATORS[self.estimator](Config(), self.case.program)
        made.first = {name: mx.array(self.feedback[name]) for name in made.first}
        kept = {feedback_name(k): F.astype(mx.int32) << 16 for k, F in made.first.items()}
        return Backward(tuple(self.scales), made.matrices(case.leaves, kept))

    def run(self, engine: Engine) -> Learnt:
        prepared, words = engine.prepare(self.case.leaves), mx.array(self.words)
        return engine.learn(prepared, self.batch, words, self.backward)

    def oracle(self):
        """Scores, states, votes and sizes."""
        case = self.case
        return oracle_backward.learn(
            case.program, case.weights, case.tokens, case.targets, case.state, self.words,
            self.estimator, self.scales, self.feedback, case.rows, self.errors,
        )  # fmt: skip

    def differing(self, found: Learnt) -> set[str]:
        """What of a result differs from the oracle's, see below."""
        scores, state, votes, sizes = self.oracle()
        return differing(found, Learnt(scores, state, votes, sizes))


def differing(found: Learnt, right: Learnt) -> set[str]:
    """What of two results differs: leaves, "scores", "state" and "sizes"."""
    assert found.votes.keys() == right.votes.keys()
    one, two = (
        {**of.votes, "scores": of.scores, "state": of.state, "sizes": of.sizes}
        for of in (found, right)
    )
    return {name for name in one if not np.array_equal(np.array(one[name]), np.array(two[name]))}


def carried_of(
    case: Case,
    estimator: str,
    *,
    scale: int | None = None,
    marks: float = 0.2,
    extreme: bool = False,
    seed: int = 0,
) -> Carried:
    """scale: of all leaves, None for one of each its own; marks: share of document marks."""
    random = np.random.default_rng(seed)
    (P, T), leaves = case.tokens.shape, case.program.leaves
    read = random.integers(1, case.program.vocabulary, (P, T))
    case.tokens[:] = read * (random.random((P, T)) >= marks)
    scales = [int(random.integers(0, 17)) if scale is None else scale for _ in leaves]
    feedback = {x.name: int8(random, x.shape, extreme) for x in leaves if len(x.shape) == 2}
    words = random.integers(0, 2**32, (P, T), dtype=np.uint32)
    carried = Carried(case, estimator, scales, feedback, words)
    if not case.program.scored:
        size = sum(output.size for output in case.program.outputs)
        carried.errors = int8(random, (P, T, size), extreme)
    return carried


def words_of(seed: int, step: int, members: int, T: int) -> np.ndarray:
    """The random words of an update, uint32 [P, T], as docs/estimators.md has them."""
    stream = rng.key(seed, rng.DRAWS, step)
    upper = rng.counters(stream, 0, members * T) >> np.uint64(32)
    return upper.astype(np.uint32).reshape(members, T)


def many_lists(times: int = 1, P: int = 66, T: int = 16) -> Carried:
    """All lists name the same rows, with credit so large that no 16 bits hold these rows' votes.

    They ascend where an index stands in them once, not several times.
    """
    net = Program(5, 7)
    net.stage()
    net.score(net.relu(net.features("rows", 40, 35, active=20, lists=2, shift=2)), "head")
    case = case_of(net, np.random.default_rng(0), P=P, T=T)
    case.weights["rows"] = np.abs(case.weights["rows"])  # no relu is shut
    case.features[:] = np.tile(np.arange(20 // times).repeat(times), 2)
    case.targets[:] = 0
    return carried_of(case, "feedback", scale=0)


def net_of_outputs(width: int = 6) -> Program:
    """A state, an input, sparse features, a bias on logits, and outputs of both kinds."""
    net = Program(width=width)
    x, s = net.stage("cell.", state=True)
    shown = net.relu(net.bias(net.linear(net.input(3), "in", width), "b"))
    sparse = net.features("sparse", 9, width, active=3)
    both = net.linear(net.concat(shown, sparse), "both", width)
    f = net.lookup(net.linear(s, "gate", width), "sigmoid")
    net.mix(f, both, s, out=s)
    net.add(both, s, out=x)
    x, _ = net.stage("out.")
    h = net.norm(x, "norm")
    net.output(net.bias(net.linear(h, "logits", 4), "prior"), "class")
    net.sums(h, "worth", 2)
    net.policy(h, "act", 3)
    return net
