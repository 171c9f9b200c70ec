"""Modified Kneser-Ney as docs/estimators.md states it, in Python's integers and dictionaries.

Slow, and right by definition: eggroll/data/counting.py is compared with it bit for bit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

UNIT = 1 << 30
Gram = tuple[int, ...]


def contexts(text: Sequence[int], order: int) -> list[Gram]:
    """The context of every token but the first: back to its document's mark, n - 1 at most."""
    found, document = [], [text[0]]
    for token in text[1:]:
        found.append(tuple(document[-(order - 1) :]) if order > 1 else ())
        document = [0] if token == 0 else [*document, token]
    return found


def counted(text: Sequence[int], order: int) -> list[Counter[Gram]]:
    """Adjusted counts of grams of 1 to n tokens."""
    whole = [
        (*context, token)
        for context, token in zip(contexts(text, order), text[1:], strict=True)
    ]  # fmt: skip
    tables: list[Counter[Gram]] = [Counter() for _ in range(order)]
    tables[-1] = Counter(gram for gram in whole if len(gram) == order)
    for k in range(order - 1, 0, -1):
        tables[k - 1] = Counter(gram[1:] for gram in tables[k])
        if k > 1:
            tables[k - 1] += Counter(g for g in whole if len(g) == k and g[0] == 0)
    return tables


def discounts(table: Counter[Gram]) -> list[int]:
    """In 64ths, of the counts 0, 1, 2 and more."""
    n1, n2, n3, n4 = (sum(c == k for c in table.values()) for k in (1, 2, 3, 4))
    y = n1 + 2 * n2
    one = 64 * n1 // y if y else 32
    two = 128 - 192 * n1 * n3 // (n2 * y) if n2 and y else 64
    three = 192 - 256 * n1 * n4 // (n3 * y) if n3 and y else 96
    return [0] + [min(max(d, 1), 64 * k - 1) for k, d in ((1, one), (2, two), (3, three))]


class Model:
    """The model of a text; `probability` is asked with a context back to its document's mark."""

    def __init__(self, text: Sequence[int], vocabulary: int, order: int) -> None:
        self.vocabulary, self.order = vocabulary, order
        self.tables = counted(text, order)
        self.discounts = [discounts(table) for table in self.tables]
        self.followers: list[dict[Gram, list[int]]] = []
        for table in self.tables:
            after = defaultdict(list)
            for gram, count in table.items():
                after[gram[:-1]].append(count)
            self.followers.append(after)

    def probability(self, context: Gram, token: int) -> tuple[int, int]:
        """In units of 2^-30, and the depth of the context that was seen."""
        p, depth = UNIT // self.vocabulary, 0
        for k in range(min(len(context), self.order - 1) + 1):
            h = context[len(context) - k :]
            counts = self.followers[k].get(h, [])
            if not counts:
                continue
            d = self.discounts[k]
            count = self.tables[k][(*h, token)]
            own = 64 * count - d[min(count, 3)]
            freed = sum(d[min(c, 3)] for c in counts)
            p = (own * UNIT + freed * p) // (64 * sum(counts))
            depth = k
        return p - -(-p // 4096) + UNIT // 4096 // self.vocabulary, depth


def exp2(logit: int) -> int:
    """2^(31 + (logit + 128) / 16), as engines sum it: a mantissa rounded down, then shifted."""
    whole, part = divmod(logit + 128, 16)
    return root16(1 << (16 * 31 + part)) << whole


def root16(n: int) -> int:
    """floor(n^(1/16)) by bisection."""
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**16 <= n else (low, middle)
    return low


def network_probability(logits: Sequence[int], token: int) -> int:
    """In units of 2^-30, from a network's logits of all tokens."""
    total = sum(exp2(logit) for logit in logits)
    return (exp2(logits[token]) << 16) // -(-total // (1 << 14))


def weights(told: Sequence[tuple[int, int, int]], most: int) -> list[int]:
    """The network's weight by depth, in 256ths, from (network's p, counted p, depth) of tokens."""
    found = [176] * (most + 1)
    for depth in range(most + 1):
        here = [(p, q) for p, q, d in told if d == depth]
        for _ in range(16 * bool(here)):
            w = found[depth]
            shares = [w * p * 256 // (w * p + (256 - w) * q) for p, q in here]
            found[depth] = min(max(sum(shares) // len(here), 8), 248)
    return found


def mixed_logits(logits: Sequence[int], counted: Sequence[int], weight: int) -> list[int]:
    """Logits of the mixture: 16ths of a bit below its likeliest token, which has 127."""
    both = [
        weight * network_probability(logits, v) + (256 - weight) * q for v, q in enumerate(counted)
    ]
    logs = [log2_16ths(p) for p in both]
    return [max(127 - max(logs) + log, -127) for log in logs]


def log2_16ths(n: int) -> int:
    """floor(16 log2(n))."""
    return (n**16).bit_length() - 1
