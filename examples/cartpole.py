"""CartPole-v1 by the paper's rule and an int8 network.

    python examples/cartpole.py --seed 1

It needs Gymnasium: pip install 'eggroll-mlx[gym]'
"""

import eggroll as eg


def main(steps: int = 100, seed: int = 0, pop: int = 128) -> None:
    train = eg.envs.gym("CartPole-v1", members=pop)
    test = eg.envs.gym("CartPole-v1", members=100)
    net = eg.networks.mlp(train.inputs, [32], train.outputs)
    es = eg.Trainer(net, pop=pop, seed=seed, steps=steps)
    while es.step < steps:
        es.tell(train.evaluate(es.ask(), es.keys(1)))  # all members play the same episode
        mean = test.evaluate(es.model, es.keys(100, purpose=1)).mean()
        if mean >= 490 or es.step % 5 == 0:
            print(f"update {es.step}: mean return {mean:.1f} of 500")
        if mean >= 490:
            break
    unseen = test.evaluate(es.model, es.keys(100, purpose=2)).mean()
    print(f"mean return {unseen:.1f} in 100 unseen episodes after {es.step} updates")


if __name__ == "__main__":
    eg.script(main)
