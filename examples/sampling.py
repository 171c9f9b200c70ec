"""Samples of a trained model: give its folder and a prompt, or see one that counts."""

import sys
from collections import Counter

import numpy as np

import eggroll as eg

if len(sys.argv) > 2:
    model, prompt = eg.load(sys.argv[1]), sys.argv[2]
else:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    config = eg.Config(data="count", pop=512, score_bits=8, steps=steps)
    model, prompt = eg.train(config).model, "3 4 5"

print(model)
for temperature in (0.0, 0.5, 1.0):
    print(
        f"temperature {temperature}: {model.sample(prompt, tokens=16, temperature=temperature)!r}"
    )

last = model.logits(prompt)[-1]  # int8 [V], in sixteenths of a bit
chance = np.exp2(last / 16) / np.exp2(last / 16).sum()
print(
    "likeliest next tokens:", {int(v): round(float(chance[v]), 3) for v in np.argsort(-chance)[:3]}
)

# 1,000 draws of the next token in one call; each has random numbers of its own, fixed by the seed.
drawn = model.sample_tokens(model.tokens(prompt)[1:], tokens=1, samples=1000, seed=1)
print("drawn:", dict(Counter(drawn[:, 0].tolist()).most_common(3)))
