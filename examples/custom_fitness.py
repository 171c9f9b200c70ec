"""A fitness of one's own without a derivative, F1 of a rare class, against plain accuracy.

    python examples/custom_fitness.py

Always to say no is right nine times in ten, so accuracy teaches little. It needs scikit-learn.
"""

import numpy as np

import eggroll as eg


def accuracy(said, true):  # bool [members, images] and [images] -> [members]
    return (said == true).mean(axis=-1)


def f1(said, true):
    return 2 * (said & true).sum(axis=-1) / (said.sum(axis=-1) + true.sum())


def main(steps: int = 150, seed: int = 0, pop: int = 512) -> None:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise eg.InputError("no scikit-learn here: pip install 'eggroll-mlx[examples]'.") from None
    data, net = load_digits(), eg.networks.mlp(64, [32], 1)
    pixels, rare = (7 * data.data).astype(np.int8), data.target == 8
    for fitness in (accuracy, f1):
        chance = np.random.default_rng(seed)
        es = eg.Trainer(net, pop=pop, fitness="ranks", steps=steps, seed=seed)
        while es.step < steps:
            batch = chance.integers(0, 1400, 256)  # the same for all members
            es.tell(fitness(es.ask()(pixels[None, batch])[..., 0] > 0, rare[batch]))
        said, true = es.model(pixels[None, 1400:])[0, :, 0] > 0, rare[1400:]
        scores = f"unseen accuracy {accuracy(said, true):.3f}, F1 {f1(said, true):.3f}"
        print(f"by {fitness.__name__:8}: {scores}, found {(said & true).sum()} of {true.sum()}")


if __name__ == "__main__":
    eg.script(main)
