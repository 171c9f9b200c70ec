"""Signs that a run goes wrong, and the sentences that say so: cause and the option to change.

Thresholds are far from what sound runs of every recipe, estimator and rule showed, so that a
warning is worth reading. Letters: N pairs, Z votes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from eggroll.training.config import Config

LASTING = 50  # updates, and at least two records, for which a sign must show itself
TIED = 0.8  # share of pairs that tie; sound runs have below 0.1
SATURATED = 0.6  # share of a gate's values at +-127; sound runs have below 0.4
DEAD = 0.5  # share of a node's units; sound runs have below 0.4
STILL, LATE = 1e-4, 0.8  # share of weights that move; share of the steps after which few may
WILD = 0.8  # share of weights that move; sound runs have that in their first updates alone
NOISE, RECORDS = 1.03, 5  # mean |Z| over that of chance in so many records: no signal to be seen
WINDOW, PART, GAIN = 400, 4, 0.002  # updates or part of the steps in which loss falls by this share
SOLVED = 0.1  # bits per token below which there is nothing left to learn

Record = Mapping[str, Any]


class Watch:
    """Looks at the records of a run, in order, and finds what is to be said of it, once each."""

    def __init__(
        self, config: Config, gates: Collection[str] = (), logits: Collection[str] = ()
    ) -> None:
        """gates: names of the nodes that gate a state; logits: of those of the score, of which a
        token that never occurs keeps one value."""
        self._config, self._gates, self._logits = config, gates, logits
        self._losses = deque[float](maxlen=max(WINDOW, config.steps // PART))
        self._sizes = deque[float](maxlen=RECORDS)  # of votes, over those of chance
        self._since: dict[Callable[..., str], int] = {}  # update of the first record in a row
        self._said: set[Callable[..., str]] = set()

    def loss(self, loss: Any) -> None:
        """Is told the loss of every update, recorded or not."""
        if isinstance(loss, int | float):
            self._losses.append(loss)

    def troubles(self, record: Record) -> list[str]:
        """The sentences that this record gives rise to, most often none."""
        step, sentences = record["step"], []
        for sign in (self._tied, self._gated, self._dead, self._still, self._wild, self._noise):
            sentence = sign(record)
            if not sentence:
                self._since.pop(sign, None)
                continue
            since = self._since.setdefault(sign, step)
            if step - since >= LASTING and sign not in self._said:
                self._said.add(sign)
                sentences.append(f"updates {since} to {step}: {sentence}")
        return sentences

    @property
    def _solved(self) -> bool:
        return bool(self._losses) and self._losses[-1] <= SOLVED

    def _tied(self, record: Record) -> str:
        if record.get("tied", 0) <= TIED or self._solved:
            return ""
        finer = "" if self._config.score_bits == 8 else ", or --score-bits 8"
        return (
            f"{record['tied']:.1%} of the pairs tie, so that few of them vote: the noise is too "
            f"small to change a score, or scores are too coarse; try a smaller --sigma-shift (now "
            f"{self._config.sigma_shift}){finer}."
        )

    def _gated(self, record: Record) -> str:
        nodes = record.get("activations", {})
        found = {name: nodes[name]["saturated"] for name in self._gates if name in nodes}
        name, most = _largest(found)
        if most <= SATURATED:
            return ""
        less = option_for(self._config, more=False)
        return (
            f"{most:.0%} of the values of gate {name} are at their limits, so that it is open or "
            f"closed whatever it reads: weights grew too large; try {less}, in a new run."
        )

    def _dead(self, record: Record) -> str:
        nodes = record.get("activations", {})
        found = {name: nodes[name]["dead"] for name in nodes if name not in self._logits}
        name, most = _largest(found)
        if most <= DEAD:
            return ""
        less = option_for(self._config, more=False)
        return (
            f"{most:.0%} of the units of {name} give the same value at every token, so that they "
            f"say nothing: weights went astray; try {less}, in a new run, or another --seed."
        )

    def _still(self, record: Record) -> str:
        late = record["step"] > LATE * self._config.steps
        moved = update_rate(record)
        if moved is None or moved >= STILL or late or self._solved:
            return ""
        return (
            f"hardly a weight moves ({moved:.2g} of them in an update): the steps are too small "
            f"for weights of int8; try {option_for(self._config, more=True)}."
        )

    def _wild(self, record: Record) -> str:
        config, moved = self._config, update_rate(record)
        # A schedule begins with all of them.
        falls = "alpha" in config.rule_class.reads and config.alpha > 1
        if moved is None or moved <= WILD or (falls and 2 * record["step"] <= config.alpha_decay):
            return ""
        return (
            f"{moved:.0%} of the weights move in every update, also those whose votes are chance: "
            f"the steps are too large; try {option_for(config, more=False)}."
        )

    def _noise(self, record: Record) -> str:
        size = vote_over_noise(record)
        if size is None:
            return ""
        self._sizes.append(size)
        size = sum(self._sizes) / len(self._sizes)
        if size >= NOISE or self._solved or not self._stalled():
            return ""
        return (
            f"votes are as large as chance makes them ({size:.3f} times) and the loss has not "
            f"fallen in {len(self._losses)} updates: too few members to tell what helps, or "
            f"nothing is left to learn; try a "
            f"larger --pop (now {self._config.pop}) or another --sigma-shift (now "
            f"{self._config.sigma_shift})."
        )

    def _stalled(self) -> bool:
        """True if the loss of the window's second half is not below that of its first."""
        count = len(self._losses)
        if count < (self._losses.maxlen or 0):
            return False
        halves = (islice(self._losses, i * count // 2, (i + 1) * count // 2) for i in range(2))
        first, second = (sum(half) for half in halves)
        return second > first * (1 - GAIN)


def _largest(shares: Mapping[str, float]) -> tuple[str, float]:
    """The name and value of the largest; ("", 0) of none."""
    return max(shares.items(), key=lambda item: item[1], default=("", 0.0))


def _mean(record: Record, figure: str) -> float | None:
    """A figure's mean over the weights of all leaves that have it."""
    leaves: Sequence[Any] = [leaf for leaf in record.get("leaves", {}).values() if figure in leaf]
    sizes = [sum(leaf["weights"]) for leaf in leaves]
    pairs = zip(leaves, sizes, strict=True)
    return sum(leaf[figure] * size for leaf, size in pairs) / sum(sizes) if sizes else None


def update_rate(record: Record) -> float | None:
    """The share of all weights that moved."""
    return _mean(record, "update_rate")


def vote_over_noise(record: Record) -> float | None:
    """Mean |Z| over that of chance, of all weights for which it is known."""
    return _mean(record, "vote_over_noise")


def option_for(config: Config, *, more: bool) -> str:
    """Words for the option by which weights move more, or less."""
    towards, away = ("larger", "smaller") if more else ("smaller", "larger")
    if "alpha" not in config.rule_class.reads:
        return f"a {towards} --learning-rate (now {config.learning_rate:g})"
    if config.alpha <= 1:
        return f"a {towards} --alpha (now {config.alpha:g})"
    return (
        f"a {away} --alpha (now {config.alpha:g}, a schedule) or a {towards} --alpha-decay (now "
        f"{config.alpha_decay})"
    )
