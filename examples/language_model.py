"""A language model of the source text of Python's own library: train, score, sample."""

import sys

import eggroll as eg

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
config = eg.Config(recipe="language", pop=1024, steps=steps)  # or data="book.txt", a file or folder


def report(row: dict) -> None:
    if "val_loss" in row:
        print(f"update {row['step']}: {row['val_loss']:.3f} bits per byte")


trained = eg.train(config, callbacks=report)
print(f"{trained.model.loss('import numpy as np'):.3f} bits per byte of a line of code")
print(trained.model.sample("def ", tokens=200))
