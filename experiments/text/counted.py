"""Models that only count, frozen and adaptive: `python experiments/text/counted.py`

- *Frozen*: modified Kneser-Ney (eggroll/data/counting.py) of several orders over bytes and byte
  pairs, counted on the training split alone, as every run prints it.
- *Adaptive*: PPMd (package pyppmd) of several orders, which goes on learning from the text that it
  is tested on. Its bits are those by which the compressed training text grows when the whole
  validation split follows. It is no ruler for a frozen network, whose weights stay: it stands here
  so that nobody compares the two unknowingly.

All over the whole validation split, in bits per byte, a mark counted as one.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.cli import command as cli
from eggroll.data.codings import BytePairs
from eggroll.data.corpus import ArrayCorpus, load_corpus
from eggroll.data.counting import CountedModel
from eggroll.errors import InputError

BLOCK = 1 << 20  # bytes that are compressed at a time


def split(corpus: ArrayCorpus, name: str) -> NDArray[Any]:
    """All tokens of a split, [n]."""
    stream = corpus.streams(name, 1, 1, 0)
    whole = corpus.streams(name, 1, stream.length - 1, 0).batch(0)
    return np.append(whole.tokens[0], whole.targets[0, -1])


def frozen(data: str, vocabulary: int, orders: list[int]) -> None:
    """Prints Kneser-Ney's figures over tokens of this vocabulary."""
    corpus = load_corpus(data, vocabulary=vocabulary)
    train, valid = split(corpus, "train"), split(corpus, "valid")
    tokens = corpus.vocabulary
    coding = corpus.coding
    size = int(coding.sizes[valid[1:]].sum()) if isinstance(coding, BytePairs) else len(valid) - 1
    for order in orders:
        if order * (tokens - 1).bit_length() > 64:
            print(f"frozen Kneser-Ney, {tokens} tokens, order {order}: does not fit into 64 bits")
            continue
        model = CountedModel(train, tokens, order)
        bits = model.bits_per_token(valid) * (len(valid) - 1) / size
        print(
            f"frozen Kneser-Ney, {tokens} tokens, order {order}: {bits:.3f} bits per byte, "
            f"{model.seconds:.1f} s, {model.entries:,} entries, {model.size / 1e6:.0f} MB",
            flush=True,
        )


def adaptive(data: str, orders: list[int], memory: int) -> None:
    """Prints PPMd's figures over bytes."""
    try:
        import pyppmd
    except ImportError:
        raise InputError("pyppmd is missing: pip install '.[experiments]' brings it.") from None
    corpus = load_corpus(data)
    train, valid = (split(corpus, name).astype(np.uint8).tobytes() for name in ("train", "valid"))

    def compressed(text: bytes, order: int) -> int:
        encoder = pyppmd.Ppmd7Encoder(order, memory << 20)
        blocks = (text[i : i + BLOCK] for i in range(0, len(text), BLOCK))
        return sum(len(encoder.encode(block)) for block in blocks) + len(encoder.flush())

    for order in orders:
        start = time.perf_counter()
        before = compressed(train, order)
        bits = 8 * (compressed(train + valid, order) - before) / len(valid)
        spent = time.perf_counter() - start
        print(f"adaptive PPMd, order {order}: {bits:.3f} bits per byte, {spent:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[256, 1024, 2048, 4096, 8192])
    parser.add_argument("--frozen", type=int, nargs="*", default=[2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--adaptive", type=int, nargs="*", default=[6, 12, 16])
    parser.add_argument("--memory", type=int, default=1024, help="MiB that PPMd may use")
    args = parser.parse_args()
    for vocabulary in args.vocabulary if args.frozen else ():
        frozen(args.data, vocabulary, args.frozen)
    if args.adaptive:
        adaptive(args.data, args.adaptive, args.memory)
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
