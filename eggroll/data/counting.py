"""A strong model of text by counting alone: modified Kneser-Ney, in integers, frozen when counted.

docs/estimators.md#a-counted-expert states the arithmetic. Letters: V vocabulary, n order, S
streams, G different grams of an order, C different contexts of an order, N predictions, P samples.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from eggroll.files import cache_folder, open_regular, write_whole

UNIT_BITS: Final = 30  # probabilities count in 2^-30
UNIT: Final = 1 << UNIT_BITS
DISCOUNT: Final = 64  # in whose parts discounts are counted
UNIFORM_BITS: Final = 12  # of a probability, a 4,096th is the uniform distribution's
# Tokens that are counted at most, in blocks spread evenly: so no product has 2^63.
MOST_COUNTED: Final = 1 << 24
BLOCK: Final = 1 << 16
BYTES_ORDER, PAIRS_ORDER = 7, 5

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]


def bits_of(vocabulary: int) -> int:
    """Bits of a token in a key."""
    return max((vocabulary - 1).bit_length(), 1)


def usual_order(vocabulary: int) -> int:
    """n for a vocabulary: 7 of bytes, else 5, or as many as fit into 64 bits."""
    wanted = BYTES_ORDER if vocabulary <= 256 else PAIRS_ORDER
    return min(wanted, 64 // bits_of(vocabulary))


class Places(NamedTuple):
    """Places in text where a token is predicted.

    context: uint64 [N], the tokens before, the nearest in the lowest bits; known: int64 [N], how
    many of them belong to the document, its mark included; targets: int64 [N].
    """

    context: Keys
    known: Counts
    targets: Counts


def places(rows: NDArray[Any], bits: int, order: int) -> Places:
    """The places of all tokens of streams [S, T] but the first of each, row by row.

    No context reaches beyond the mark of its document, or beyond the beginning of a stream.
    """
    S, T = rows.shape
    tokens = rows.astype(np.uint64)
    context = np.zeros((S, max(T - 1, 0)), np.uint64)
    for back in range(1, min(order, T)):  # the token so far before the target
        context[:, back - 1 :] |= tokens[:, : T - back] << np.uint64(bits * (back - 1))
    index = np.arange(T, dtype=np.int64)
    begin = np.maximum.accumulate(np.where(rows == 0, index, 0), axis=1)
    known = np.minimum(index[1:] - begin[:, :-1], order - 1)
    return Places(context.reshape(-1), known.reshape(-1), rows[:, 1:].astype(np.int64).reshape(-1))


class GramTable(NamedTuple):
    """The grams of one length, in order of their keys, and their contexts.

    keys: uint64 [G], context and token; counts: int64 [G]; contexts: uint64 [C]; first: int64
    [C + 1], the first gram of each; totals: int64 [C], sums of counts; freed: int64 [C], sums of
    discounts; discounts: int64 [4], of the counts 0, 1, 2 and more, in 64ths.
    """

    keys: Keys
    counts: Counts
    contexts: Keys
    first: Counts
    totals: Counts
    freed: Counts
    discounts: Counts

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self)


def table(keys: Keys, counts: Counts, bits: int) -> GramTable:
    """The table of different grams, in order, with their counts."""
    discounts = discounts_of(counts)
    before = keys >> np.uint64(bits)
    new = np.ones(len(keys), bool)
    new[1:] = before[1:] != before[:-1]
    first = np.flatnonzero(new)
    ends = np.append(first, len(keys)).astype(np.int64)
    freed = discounts[np.minimum(counts, 3)]

    def sums(values: Counts) -> Counts:
        running = np.concatenate([[0], values.cumsum()])
        return np.diff(running[ends]).astype(np.int64)

    return GramTable(keys, counts, before[first], ends, sums(counts), sums(freed), discounts)


def discounts_of(counts: Counts) -> Counts:
    """The discounts of Chen and Goodman (1998) in 64ths, rounded down: of 0, 1, 2 and more."""
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == k)) for k in range(1, 5))
    y = n1 + 2 * n2
    found = (
        DISCOUNT * n1 // y if y else DISCOUNT // 2,
        2 * DISCOUNT - 3 * DISCOUNT * n1 * n3 // (n2 * y) if n2 and y else DISCOUNT,
        3 * DISCOUNT - 4 * DISCOUNT * n1 * n4 // (n3 * y) if n3 and y else 3 * DISCOUNT // 2,
    )
    kept = [min(max(d, 1), DISCOUNT * k - 1) for k, d in enumerate(found, 1)]
    return np.array([0, *kept], np.int64)


def count_equal(keys: Keys) -> tuple[Keys, Counts]:
    """The different keys in order, and the number of each."""
    keys = np.sort(keys)
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    first = np.flatnonzero(new)
    return keys[first], np.diff(np.append(first, len(keys))).astype(np.int64)


class CountedModel:
    """Interpolated modified Kneser-Ney of order n, counted on a text; it learns no more.

    Its probabilities are integers, the same on every machine.
    """

    def __init__(self, text: NDArray[Any], vocabulary: int, order: int = 0) -> None:
        """text: tokens [n], 0 the mark that begins a document; order: 0 takes the usual one."""
        start = time.perf_counter()
        self.vocabulary, self.bits = vocabulary, bits_of(vocabulary)
        self.order = order or usual_order(vocabulary)
        blocks = [places(block[None], self.bits, self.order) for block in _blocks(text)]
        joined = Places(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))
        self.tables = self._count(joined)  # of grams of 1 to n tokens
        self.seconds = max(time.perf_counter() - start, 0.0)

    @property
    def entries(self) -> int:
        """Grams of all lengths."""
        return sum(len(table.keys) for table in self.tables)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(table.size for table in self.tables)

    def _count(self, text: Places) -> list[GramTable]:
        """Grams of n tokens by their number, shorter ones by the different tokens before them.

        Nothing comes before a mark, so what begins with one is counted as often as it occurs.
        """
        bits, n = self.bits, self.order
        whole = (text.context << np.uint64(bits)) | text.targets.astype(np.uint64)
        grams, counts = count_equal(whole[text.known == n - 1])
        tables = [table(grams, counts, bits)]
        for k in range(n - 1, 0, -1):
            shorter = grams & np.uint64((1 << bits * k) - 1)
            if k > 1:
                ends = whole[text.known == k - 1] & np.uint64((1 << bits * k) - 1)
                oldest = ends >> np.uint64(bits * (k - 1))
                shorter = np.concatenate([shorter, ends[oldest == 0]])
            grams, counts = count_equal(shorter)
            tables.append(table(grams, counts, bits))
        return tables[::-1]

    def probabilities(self, at: Places) -> tuple[Counts, Counts]:
        """The probabilities of targets in units, int64 [N], and depths, int64 [N].

        A depth is the length of the longest context that was seen, from 0 to n - 1.
        """
        p = np.full(len(at.targets), UNIT // self.vocabulary, np.int64)
        depth = np.zeros(len(at.targets), np.int64)
        for k, known in enumerate(self.tables):  # k tokens of context
            context = at.context & np.uint64((1 << self.bits * k) - 1)
            gram = (context << np.uint64(self.bits)) | at.targets.astype(np.uint64)
            place, seen = _find(known.contexts, context)
            seen &= at.known >= k
            where = np.flatnonzero(seen)
            place = place[where]
            index, has = _find(known.keys, gram[where])
            count = np.where(has, known.counts[index], 0) if len(known.keys) else index
            own = DISCOUNT * count - known.discounts[np.minimum(count, 3)]
            total = DISCOUNT * known.totals[place]
            p[where] = (own * UNIT + known.freed[place] * p[where]) // total
            depth[where] = k
        return with_uniform(p, self.vocabulary), depth

    def distributions(self, history: NDArray[Any]) -> tuple[Counts, Counts]:
        """The probabilities of all tokens after streams, int64 [P, V], and depths, int64 [P].

        history: [P, T], the last tokens of each, which begin with the mark or a stream.
        """
        beyond = np.pad(history, ((0, 0), (0, 1)))  # a target, which is not looked at
        at = places(beyond, self.bits, self.order)
        last = slice(history.shape[1] - 1, None, history.shape[1])
        contexts, lengths = at.context[last].tolist(), at.known[last].tolist()
        p = np.full((len(history), self.vocabulary), UNIT // self.vocabulary, np.int64)
        depth = np.zeros(len(history), np.int64)
        for i, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
            for k, known in enumerate(self.tables[: length + 1]):
                key = np.uint64(context & ((1 << self.bits * k) - 1))
                c = int(np.searchsorted(known.contexts, key))
                if c == len(known.contexts) or known.contexts[c] != key:
                    break
                grams = slice(int(known.first[c]), int(known.first[c + 1]))
                tokens = (known.keys[grams] & np.uint64((1 << self.bits) - 1)).astype(np.int64)
                counts = known.counts[grams]
                own = np.zeros(self.vocabulary, np.int64)
                own[tokens] = DISCOUNT * counts - known.discounts[np.minimum(counts, 3)]
                total = DISCOUNT * int(known.totals[c])
                p[i] = (own * UNIT + int(known.freed[c]) * p[i]) // total
                depth[i] = k
        return with_uniform(p, self.vocabulary), depth

    def bits_per_token(self, text: NDArray[Any]) -> float:
        """Cross-entropy of all tokens of a text [n] but the first; of a long one, of a sample."""
        bits, count = 0.0, 0
        for block in _blocks(text):
            p, _ = self.probabilities(places(block[None], self.bits, self.order))
            bits, count = bits + float((UNIT_BITS - np.log2(p)).sum()), count + len(p)
        return bits / max(count, 1)


def with_uniform(p: Counts, vocabulary: int) -> Counts:
    """Probabilities of which a 4,096th is the uniform distribution, so that none is 0."""
    share = (UNIT >> UNIFORM_BITS) // vocabulary
    return p - ((p + ((1 << UNIFORM_BITS) - 1)) >> UNIFORM_BITS) + share


def _find(keys: Keys, wanted: Keys) -> tuple[Counts, NDArray[np.bool_]]:
    """Positions of keys in order, int64 [N], and a mask of those that are there; else any."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    order = np.argsort(wanted)  # so that memory is read in its order
    sorted_places = np.minimum(np.searchsorted(keys, wanted[order]), len(keys) - 1)
    place = np.empty(len(wanted), np.int64)
    place[order] = sorted_places
    return place, keys[place] == wanted


def _blocks(text: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The whole text, or of a long one blocks that are spread evenly."""
    if len(text) <= MOST_COUNTED:
        yield text
        return
    stride = -(-len(text) * BLOCK // MOST_COUNTED)
    for start in range(0, len(text) - 1, stride):
        yield text[start : start + BLOCK + 1]


# Its figure as a ruler, which is kept in the cache.

KEPT: Final = "counts-1"  # another number where the arithmetic changes


class FrozenCounts(NamedTuple):
    """A counting model's result: bits per token of the validation split, and its cost."""

    order: int
    bits: float
    seconds: float  # of counting, when it was counted
    entries: int
    size: int  # bytes

    @property
    def sound(self) -> bool:
        """True of figures that can be those of a count, as a cache may hold anything."""
        whole = (self.order, self.entries, self.size)
        return all(type(n) is int and 0 < n < 1 << 63 for n in whole) and all(
            type(v) in (int, float) and 0 <= v < 1e9 for v in (self.bits, self.seconds)
        )

    @property
    def name(self) -> str:
        return f"frozen Kneser-Ney order-{self.order}"

    @property
    def cost(self) -> str:
        """Its seconds and size, in words."""
        return f"{self.seconds:.1f} s, {self.entries:,} entries, {self.size / 1e6:.0f} MB"


def kept_counts(
    key: str, model: Callable[[], CountedModel], text: NDArray[Any], title: str = ""
) -> FrozenCounts:
    """The model's figure on a text [n]: from the cache, or found now and put there.

    key: tells both from others; empty where nothing does, and nothing is kept. A cache that cannot
    be used is none. title: of a text whose counting takes seconds, to be named.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    with contextlib.suppress(OSError, InputError, ValueError, TypeError, RecursionError):
        with open_regular(cache_folder() / KEPT / f"{digest}.json") as file:
            known = FrozenCounts(**json.loads(file.read(1 << 12)))
        if key and known.sound:
            return known
    if title:
        print(f"counting the training text of {title}, once ...", file=sys.stderr, flush=True)
    counted = model()
    bits = counted.bits_per_token(text)
    found = FrozenCounts(
        counted.order, bits, round(counted.seconds, 3), counted.entries, counted.size
    )
    if key:
        with contextlib.suppress(OSError, InputError):
            folder = cache_folder() / KEPT
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / f"{digest}.json", json.dumps(found._asdict()).encode())
    return found
