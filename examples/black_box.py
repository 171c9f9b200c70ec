"""An objective without a derivative: the length of a file that zlib packs.

    python examples/black_box.py --steps 150

The network predicts every sample of a signal from the four before it. Its errors are packed by
zlib, and the fewer bytes come out, the better is the member.
"""

import zlib

import numpy as np

import eggroll as eg

TIME = np.arange(2000)
CHANCE = np.random.default_rng(0)
SIGNAL = 40 * np.sin(TIME / 7) + 30 * np.sin(TIME / 17) + CHANCE.normal(0, 1, len(TIME))
SAMPLES = eg.quantise(SIGNAL, 1)
PAST = np.lib.stride_tricks.sliding_window_view(SAMPLES, 4)[:-1]  # the four before each sample


def packed(predicted: np.ndarray | int) -> int:
    """Bytes that zlib makes of what the prediction misses."""
    return len(zlib.compress(SAMPLES[4:] - predicted, 6))


def main(steps: int = 150, seed: int = 0, pop: int = 128) -> None:
    es = eg.Trainer(eg.networks.mlp(4, [16], 1), pop=pop, seed=seed, steps=steps)
    while es.step < steps:
        predictions = es.ask()(PAST[None])[..., 0]  # all members read the same rows
        update = es.tell([-packed(p) for p in predictions])
        if es.step % 25 == 0:
            print(f"update {es.step}: {-update.fitness_best:.0f} bytes for the best member")
    errors = packed(es.model(PAST[None])[0, :, 0])
    print(f"samples {packed(0)}, differences {packed(SAMPLES[3:-1])}, network {errors} bytes")


if __name__ == "__main__":
    eg.script(main)
