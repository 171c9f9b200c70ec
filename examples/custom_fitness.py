"""A fitness of one's own, F1 of a rare class, against plain accuracy.

    python examples/custom_fitness.py

One digit of ten is to be found. Always to say no is right nine times in ten, so accuracy teaches
little; F1, which has no derivative, does. Needs scikit-learn: pip install 'eggroll-mlx[examples]'
"""

import numpy as np
from sklearn.datasets import load_digits

import eggroll as eg

DIGITS, NET = load_digits(), eg.networks.mlp(64, [32], 1)
PIXELS, RARE = (7 * DIGITS.data).astype(np.int8), DIGITS.target == 8


def accuracy(said, true):  # bool [members, images] and [images] -> [members]
    return (said == true).mean(axis=-1)


def f1(said, true):
    return 2 * (said & true).sum(axis=-1) / (said.sum(axis=-1) + true.sum())


def main(steps: int = 150, seed: int = 0, pop: int = 512) -> None:
    for fitness in (accuracy, f1):
        chance = np.random.default_rng(seed)
        es = eg.Trainer(NET, pop=pop, fitness="ranks", steps=steps, seed=seed)
        while es.step < steps:
            batch = chance.integers(0, 1400, 256)  # the same for all members
            said = es.ask()(PIXELS[None, batch])[..., 0] > 0
            es.tell(fitness(said, RARE[batch]))
        said, true = es.model(PIXELS[None, 1400:])[0, :, 0] > 0, RARE[1400:]
        scores = f"unseen accuracy {accuracy(said, true):.3f}, F1 {f1(said, true):.3f}"
        print(f"by {fitness.__name__:8}: {scores}, found {(said & true).sum()} of {true.sum()}")


if __name__ == "__main__":
    eg.script(main)
