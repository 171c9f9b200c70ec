"""Two phases of one training: errors of labels first, then evolution of what has no gradient.

    python examples/phases.py --steps 200

One point of seven is to be found. Labels teach the odds, which are seldom above one half; members
that are paid for F1 itself find those that are less certain, too.
"""

import numpy as np

import eggroll as eg


def f1(logits: np.ndarray, right: np.ndarray) -> np.ndarray:
    """2 hits / (found + there), [..] of logits [.., rows, 2]."""
    found = logits[..., 1] > logits[..., 0]
    return 2 * (found & right).sum(-1) / np.maximum(found.sum(-1) + right.sum(-1), 1)


def main(steps: int = 200, seed: int = 0, pop: int = 128, file: str = "phase.safetensors") -> None:
    chance = np.random.default_rng(0)
    points = chance.integers(-60, 60, (4000, 8)).astype(np.int8)
    worth = points[:, :4].astype(int).sum(axis=1) + chance.normal(0, 80, 4000)
    right = worth > np.quantile(worth, 0.85)
    net, rule = eg.networks.mlp(8, [64], 2), {"rule": "adam", "learning_rate": 1.5}
    es = eg.Trainer(net, estimator="feedback", steps=steps, seed=seed, **rule)
    while es.step < steps:
        batch = chance.integers(0, 2000, 64)
        es.learn(points[batch], right[batch].astype(int))
    print(f"by labels: F1 {f1(es.model(points[2000:]), right[2000:]):.3f} of unseen points")
    es.save(file)
    more = eg.control(sigma_shift=4, learning_rate=0.2, weight_decay=0)  # what is learnt stays
    es = eg.Trainer.load(file, estimator="eggroll", pop=pop, steps=2 * steps, **more)
    while es.step < 2 * steps:
        es.tell(f1(es.ask()(points[None, :2000]), right[:2000]))
    print(f"by evolution: F1 {f1(es.model(points[2000:]), right[2000:]):.3f} of unseen points")


if __name__ == "__main__":
    eg.script(main)
