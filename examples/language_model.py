"""Train a language model and sample from it.

python examples/language_model.py --recipe language --steps 300
"""

import eggroll as eg


def main(recipe: str = "feedback", steps: int = 1500, data: str = "stdlib") -> None:
    config = eg.Config(recipe=recipe, data=data, steps=steps)  # data: also a file or a folder
    trained = eg.train(config, show=True)  # with out="runs/mine" it is kept
    print(f"\n{trained.model.loss('import numpy as np'):.3f} bits per byte of a line of code")
    print(trained.model.sample("def ", tokens=300, temperature=0.8))


if __name__ == "__main__":
    eg.script(main)
