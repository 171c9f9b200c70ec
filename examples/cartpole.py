"""CartPole-v1 by the paper's rule and an int8 network: pip install 'eggroll-mlx[gym]'"""

import sys

import eggroll as eg


def main(most=100, seed=0, pop=128):
    """Mean return over 100 unseen episodes, and the updates that it took."""
    train = eg.envs.gym("CartPole-v1", members=pop)
    test = eg.envs.gym("CartPole-v1", members=100)
    es = eg.Trainer(eg.networks.mlp(train.inputs, [32], train.outputs), pop=pop, seed=seed)
    while es.step < most:
        es.tell(train.evaluate(es.ask(), es.keys(1)))  # all members play the same episode
        if test.evaluate(es.model, es.keys(100, purpose=1)).mean() >= 490:
            break
    return test.evaluate(es.model, es.keys(100, purpose=2)).mean(), es.step


if __name__ == "__main__":
    print("mean return {:.1f} after {} updates".format(*main(*map(int, sys.argv[1:]))))
