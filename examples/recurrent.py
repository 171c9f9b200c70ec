"""A network declared here learns token ids made here.

    python examples/recurrent.py --steps 300

They are words whose last letter is the first one again, so the state must remember it.
"""

import numpy as np

import eggroll as eg

V, D = 9, 32  # vocabulary and width; token 0 begins a document, here a word


def cell(net: eg.Program, name: str) -> None:
    """A gated unit: s moves toward a candidate h, as far as the gate f lets it."""
    x, s = net.stage(name, state=True)
    n = net.norm(x, "norm")
    f = net.lookup(net.add_bias(net.linear(n, "Wf", D), net.linear(s, "Uf", D), "bf"), "sigmoid")
    h = net.lookup(net.add_bias(net.linear(n, "Wh", D), net.linear(s, "Uh", D), "bh"), "tanh")
    net.add(x, net.mix(f, h, s, out=s), out=x)


def main(steps: int = 300, seed: int = 0, pop: int = 1024) -> None:
    net = eg.Program(vocabulary=V, width=D)
    net.stage()
    net.embed("embedding")
    cell(net, "cell.")
    x, _ = net.stage()
    net.score(net.norm(x, "norm"), "head")
    words = np.random.default_rng(0).integers(1, V, (20_000, 5), np.uint16)
    words[:, 0], words[:, 4] = 0, words[:, 1]
    config = eg.Config(recipe="language", pop=pop, steps=steps, seed=seed)
    trained = eg.train(config, tokens=words.reshape(-1), network=net, show=True)
    print(f"{trained.val_loss:.3f} bits per token; with memory 1.8 are possible, without 2.4")
    print(trained.model.sample("5 1 2", tokens=7, temperature=0))


if __name__ == "__main__":
    eg.script(main)
