"""A language model of a folder's text, or of Python's own sources: train, score, sample."""

import sys

import eggroll as eg

steps, *data = sys.argv[1:] or ["300"]
config = eg.Config(
    recipe="language", pop=1024, steps=int(steps), data=data[0] if data else "stdlib"
)


def report(row: dict) -> None:
    if "val_loss" in row:
        print(f"update {row['step']}: {row['val_loss']:.3f} bits per byte")


trained = eg.train(config, callbacks=report)
print(f"{trained.model.loss('import numpy as np'):.3f} bits per byte of a line it never saw")
print(trained.model.sample("def ", tokens=200))
