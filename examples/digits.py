"""Handwritten digits by token credit.

    python examples/digits.py --steps 200

It needs scikit-learn: pip install 'eggroll-mlx[examples]'
"""

import numpy as np

import eggroll as eg


def main(steps: int = 200, seed: int = 0, pop: int = 256) -> None:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise eg.InputError("no scikit-learn here: pip install 'eggroll-mlx[examples]'.") from None
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
        update = es.tell(
            np.take_along_axis(bits, right, -1)[..., 0] - np.log2(np.exp2(bits).sum(-1))
        )
        if es.step % 25 == 0:
            print(f"update {es.step}: {-update.fitness:.2f} bits per digit")
    found = es.model(pixels[1400:]).argmax(-1)
    print(f"{(found == digits[1400:]).mean():.2%} right of {len(found)} unseen images")


if __name__ == "__main__":
    eg.script(main)
