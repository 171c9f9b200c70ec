"""Handwritten digits by token credit: pip install 'eggroll-mlx[examples]'"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import eggroll as eg


def main(steps=200, seed=0, pop=256):
    """Share of 397 unseen images that are right."""
    data, chance = load_digits(), np.random.default_rng(seed)
    order = np.random.default_rng(0).permutation(len(data.target))  # writers mixed
    pixels, digits = (7 * data.data[order]).astype(np.int8), data.target[order]
    es = eg.Trainer(
        eg.networks.mlp(64, [256], 10), pop=pop, estimator="token-credit", rule="whitened",
        learning_rate=1, sigma_shift=3, steps=steps, seed=seed,
    )  # fmt: skip
    while es.step < steps:
        batch = chance.integers(0, 1400, (pop // 2, 64))  # every pair sees images of its own
        bits = es.ask()(pixels[batch]) / np.float32(16)
        right = digits[batch].repeat(2, axis=0)[..., None]
        es.tell(np.take_along_axis(bits, right, -1)[..., 0] - np.log2(np.exp2(bits).sum(-1)))
    return (es.model(pixels[1400:]).argmax(-1) == digits[1400:]).mean()


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:])):.2%} right")
