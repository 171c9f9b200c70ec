"""A black box: the network predicts samples, and zlib says how small the errors can be packed."""

import sys
import zlib

import numpy as np

import eggroll as eg

TIME = np.arange(2000)
CHANCE = np.random.default_rng(0)
SIGNAL = 40 * np.sin(TIME / 7) + 30 * np.sin(TIME / 17) + CHANCE.normal(0, 1, len(TIME))
SAMPLES = eg.quantise(SIGNAL, 1)
PAST = np.lib.stride_tricks.sliding_window_view(SAMPLES, 4)[:-1]  # the four before each sample


def packed(predicted):
    """Bytes that zlib makes of what the prediction misses."""
    return len(zlib.compress(SAMPLES[4:] - predicted, 6))


def main(steps=150, seed=0, pop=128):
    """Bytes of the samples themselves, of their differences, and of the network's errors."""
    es = eg.Trainer(eg.networks.mlp(4, [16], 1), pop=pop, seed=seed)
    while es.step < steps:
        predictions = es.ask()(PAST[None])[..., 0]  # all members read the same rows
        es.tell([-packed(p) for p in predictions])
    return packed(0), packed(SAMPLES[3:-1]), packed(es.model(PAST[None])[0, :, 0])


if __name__ == "__main__":
    print("samples {}, differences {}, network {} bytes".format(*main(*map(int, sys.argv[1:]))))
