"""Pendulum-v1, swung up and held by an int8 network, with the settings for returns.

    python examples/pendulum.py --steps 150 --seed 1

It needs Gymnasium: pip install 'eggroll-mlx[gym]'
"""

import eggroll as eg


def main(steps: int = 150, seed: int = 0, pop: int = 32, episodes: int = 1) -> None:
    how = {"span": 64, "squash": "tanh"}
    train = eg.envs.gym("Pendulum-v1", members=pop, episodes=episodes, **how)
    test = eg.envs.gym("Pendulum-v1", members=100, **how)
    net = eg.networks.mlp(train.inputs, [32], train.outputs, bias=False)
    first = eg.networks.small_outputs(net, seed)
    es = eg.Trainer(net, pop=pop, seed=seed, steps=steps, weights=first, **eg.control())
    while es.step < steps:
        es.tell(train.evaluate(es.ask(), es.keys(2)))  # each half from other angles
        if es.step % 15 == 0 or es.step == steps:
            mean = test.evaluate(es.model, es.keys(100, purpose=1)).mean()
            print(f"update {es.step}: mean return {mean:.0f}, {train.steps:,} steps so far")
    print(f"mean return {mean:.0f} in 100 unseen episodes; some -150 is as good as it gets")


if __name__ == "__main__":
    eg.script(main)
