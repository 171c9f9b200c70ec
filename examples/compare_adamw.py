"""Evolution, errors carried back, and AdamW on one text.

    python examples/compare_adamw.py

The same network three times; each run reads the same number of tokens. The picture has them over
tokens and over seconds.
"""

from pathlib import Path

import eggroll as eg
from eggroll import adamw
from eggroll.training import curves, pictures


def main(steps: int = 60, data: str = "stdlib", out: str = "runs/compare") -> None:
    folders = [Path(out) / name for name in ("language", "feedback", "adamw")]
    language, feedback, baseline = folders
    often = {"data": data, "validate_every": max(1, steps // 10)}  # 512 x 32 tokens per update
    config = eg.Config(recipe="language", pop=1024, steps=steps, **often)
    eg.train(config, out=language, show=True)
    often["validate_every"] *= 8  # the other two read 128 x 16 tokens per update
    config = eg.Config(recipe="feedback", steps=8 * steps, **often)
    eg.train(config, out=feedback, show=True)
    adamw.train_twin(adamw.AdamwOptions(steps=8 * steps, out=str(baseline), **often))

    print(f"\n{'run':10} {'bits per byte':>13} {'tokens':>11} {'seconds of updates':>19}")
    for folder in folders:
        run = curves.read_run(folder)
        updates, loss = run.curve("val_loss")
        tokens, seconds = run.tokens(updates)[-1], run.elapsed(updates)[-1]
        print(f"{folder.name:10} {loss[-1]:13.3f} {tokens:11,.0f} {seconds:19.1f}")
    print(f"written: {pictures.compare(folders, Path(out) / 'compare.png')}")


if __name__ == "__main__":
    eg.script(main)
