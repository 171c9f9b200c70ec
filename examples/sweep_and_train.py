"""Search for good options, then train the best for longer.

    python examples/sweep_and_train.py

The study is kept in the folder `out`: the same command again goes on with it.
"""

from dataclasses import replace

import eggroll as eg


def main(trials: int = 8, budget_tokens: int = 2_000_000, out: str = "sweeps/example") -> None:
    options = eg.sweep.Options(
        data="count", pop=512, score_bits=8, out=out, trials=trials, budget_tokens=budget_tokens,
        search=("sigma_shift=1:6", "alpha=1:8:log"), confirm=2, confirm_seeds=2,
    )  # fmt: skip
    best = eg.sweep.search(options)  # prints every trial; a Config
    print(f"\nbest: sigma_shift {best.sigma_shift}, alpha {best.alpha:.2f}, {best.steps} updates")

    trained = eg.train(replace(best, steps=4 * best.steps), show=True)
    print(f"{trained.val_loss:.4f} bits per number after {trained.step} updates")
    print(trained.model.sample("3 4 5", tokens=12))


if __name__ == "__main__":
    eg.script(main)
