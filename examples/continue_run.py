"""Stop a run, go on with it, and end on the same bits.

    python examples/continue_run.py

A callback stops the run halfway, as Ctrl-C would. It goes on from its checkpoint, also on another
machine or engine.
"""

from dataclasses import replace

import eggroll as eg


def main(steps: int = 200, out: str = "runs/continued") -> None:
    config = eg.Config(recipe="language", pop=512, steps=steps, validate_every=max(1, steps // 4))
    whole = eg.train(config)
    print(f"never stopped:          {whole.signature[:16]}, {whole.val_loss:.3f} bits per byte")

    part = eg.train(config, out=out, callbacks=lambda row: row["step"] == steps // 2)
    print(f"stopped at update {part.step}: {part.signature[:16]}, files in {part.folder}")

    ended = eg.train(replace(config, resume=out))
    print(f"went on to update {ended.step}: {ended.signature[:16]}, {ended.val_loss:.3f}")
    print(f"the same bits: {ended.signature == whole.signature}")


if __name__ == "__main__":
    eg.script(main)
