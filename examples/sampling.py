"""Samples of a trained model.

    python examples/sampling.py --run runs/stdlib-000 --prompt "def "

Without --run it trains one that counts.
"""

from collections import Counter

import numpy as np

import eggroll as eg


def main(run: str = "", prompt: str = "3 4 5", steps: int = 150) -> None:
    config = eg.Config(data="count", pop=512, score_bits=8, steps=steps)
    model = eg.load(run) if run else eg.train(config).model
    print(model)
    for temperature in (0.0, 0.5, 1.0):
        text = model.sample(prompt, tokens=16, temperature=temperature)
        print(f"temperature {temperature}: {text!r}")

    last = model.logits(prompt)[-1]  # int8 [V], in sixteenths of a bit
    chance = np.exp2(last / 16) / np.exp2(last / 16).sum()
    likely = {int(v): round(float(chance[v]), 3) for v in np.argsort(-chance)[:3]}
    print("likeliest next tokens:", likely)

    # 1,000 draws of the next token in one call; each has random numbers of its own.
    drawn = model.sample_tokens(model.tokens(prompt)[1:], tokens=1, samples=1000, seed=1)
    print("drawn:", dict(Counter(drawn[:, 0].tolist()).most_common(3)))


if __name__ == "__main__":
    eg.script(main)
