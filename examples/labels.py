"""Handwritten digits by their labels, with errors carried back in integers, then as a C header.

    python examples/labels.py --steps 400

It needs scikit-learn: pip install 'eggroll-mlx[examples]'
"""

import numpy as np

import eggroll as eg


def main(steps: int = 400, seed: int = 0, batch: int = 128, to: str = "digits.h") -> None:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise eg.InputError("no scikit-learn here: pip install 'eggroll-mlx[examples]'.") from None
    data, chance = load_digits(), np.random.default_rng(seed)
    order = np.random.default_rng(0).permutation(len(data.target))  # writers mixed
    pixels, digits = (7 * data.data[order]).astype(np.int8), data.target[order]
    es = eg.Trainer(
        eg.networks.mlp(64, [256], 10), estimator="feedback", rule="adam", learning_rate=1.5,
        steps=steps, seed=seed,
    )  # fmt: skip
    while es.step < steps:
        at = chance.integers(0, 1400, batch)
        update = es.learn(pixels[at], digits[at], loss="softmax")
        if es.step % 100 == 0:
            print(f"update {es.step}: {update.loss:.3f} bits per digit")
    found = es.model(pixels[1400:]).argmax(-1)
    print(f"{(found == digits[1400:]).mean():.2%} right of {len(found)} unseen images")
    print(f"written: {es.model.export(to)}")


if __name__ == "__main__":
    eg.script(main)
