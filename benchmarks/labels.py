"""An int8 network by labels beside torch's Adam in float32: accuracy at equal CPU seconds.

    python benchmarks/labels.py --data digits --seeds 5 --seconds 4

Data: digits (scikit-learn), made (make_classification, 24,000 rows, 10 classes), or images: 24,000
that are made of the digits, turned, moved, scaled and with noise, other digits in each part. One
thread each.
Rates are swept on validation rows by the first seed, for both sides alike, and the best is used for
all seeds on unseen rows. It needs torch and scikit-learn.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from checks import check_packages

import eggroll as eg
from eggroll.errors import whole_number

RATES = {"eggroll": (0.5, 1.0, 1.5, 2.5, 4.0), "torch": (3e-4, 1e-3, 3e-3, 1e-2)}


@dataclass
class Data:
    """Rows of three parts: real [n, K], int8 [n, K] and classes [n]."""

    real: list[np.ndarray]
    whole: list[np.ndarray]
    classes: list[np.ndarray]


def drawn(images: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """So many rows made of 8 x 8 images, in 0..16, and which image each is of."""
    from scipy.ndimage import affine_transform

    chance = np.random.default_rng(seed)
    of, middle = chance.integers(len(images), size=count), np.array([3.5, 3.5])
    rows = np.empty((count, 64))
    for row, i in zip(rows, of, strict=True):
        angle, size = chance.uniform(-0.45, 0.45), chance.uniform(0.8, 1.25)
        c, s = np.cos(angle) / size, np.sin(angle) / size
        turn = np.array([[c, -s], [s, c]])
        shift = middle - turn @ (middle + chance.uniform(-1, 1, 2))
        image = affine_transform(images[i], turn, shift, order=1)
        row[:] = np.clip(image + chance.normal(0, 2.5, (8, 8)), 0, 16).ravel()
    return rows, of


def parted(
    x: np.ndarray, y: np.ndarray, at: tuple[int, int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and classes of three parts, by chance."""
    order = np.random.default_rng(0).permutation(len(y))
    return list(zip(np.split(x[order], at), np.split(y[order], at), strict=True))


def data_of(name: str) -> Data:
    if name not in ("digits", "made", "images"):
        raise eg.InputError(f"--data is {name!r}: choose digits, made or images.")
    check_packages("experiments", "torch", "scikit-learn", "scipy")
    from sklearn.datasets import load_digits, make_classification

    if name == "made":
        rows = make_classification(
            24_000, 64, n_informative=24, n_redundant=8, n_classes=10, random_state=0
        )
        parts = parted(*rows, (20_000, 22_000))
    else:
        parts = parted(*load_digits(return_X_y=True), (1200, 1400))
    if name == "images":
        for i, count in enumerate((20_000, 2_000, 2_000)):
            x, y = parts[i]
            x, of = drawn(x.reshape(-1, 8, 8), count, i)
            parts[i] = x, y[of]
    mean, spread = parts[0][0].mean(0), parts[0][0].std(0) + 1e-6
    return Data(
        [((x - mean) / spread).astype(np.float32) for x, _ in parts],
        [eg.quantise(x, 16.0) if name == "made" else (7 * x).astype(np.int8) for x, _ in parts],
        [y.astype(np.int64) for _, y in parts],
    )


def batches(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
    chance = np.random.default_rng(seed)
    while True:
        order = chance.permutation(count)
        yield from (order[i : i + size] for i in range(0, count - size + 1, size))


def by_eggroll(
    data: Data, rate: float, seed: int, seconds: float, batch: int, hidden: int, engine: str
) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
    """A classifier of int8 rows, and rows/s. The number of steps follows from a short trial."""
    net = eg.networks.mlp(data.whole[0].shape[1], [hidden], 10)

    def trainer(steps: int) -> eg.Trainer:
        return eg.Trainer(
            net, estimator="feedback", rule="adam", learning_rate=rate, steps=steps, seed=seed,
            engine=engine, threads=1,
        )  # fmt: skip

    def run(steps: int) -> tuple[eg.Trainer, float]:
        es, rows = trainer(steps), batches(len(data.classes[0]), batch, seed)
        began = time.process_time()
        for _ in range(steps):
            at = next(rows)
            es.learn(data.whole[0][at], data.classes[0][at])
        return es, time.process_time() - began

    run(20)
    _, trial = run(100)
    steps = max(int(100 * seconds / trial), 20)
    es, took = run(steps)
    model = es.model
    return (lambda x: model(x).argmax(-1)), steps * batch / took


def by_torch(
    data: Data, rate: float, seed: int, seconds: float, batch: int, hidden: int
) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
    """A classifier of real rows, and rows/s; its rate falls as half a cosine."""
    import torch

    torch.set_num_threads(1)

    def run(steps: int) -> tuple[torch.nn.Module, float]:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Linear(data.real[0].shape[1], hidden), torch.nn.ReLU(),
            torch.nn.Linear(hidden, 10),
        )  # fmt: skip
        optimiser = torch.optim.Adam(net.parameters(), rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        x, y = torch.from_numpy(data.real[0]), torch.from_numpy(data.classes[0])
        rows = batches(len(y), batch, seed)
        began = time.process_time()
        for _ in range(steps):
            at = torch.from_numpy(next(rows))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(x[at]), y[at]).backward()
            optimiser.step()
            falling.step()
        return net, time.process_time() - began

    run(20)
    _, trial = run(100)
    steps = max(int(100 * seconds / trial), 20)
    net, took = run(steps)

    def classify(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return net(torch.from_numpy(x)).argmax(-1).numpy()

    return classify, steps * batch / took


def main(
    data: str = "digits", seeds: int = 5, seconds: float = 4.0, batch: int = 128,
    hidden: int = 256, engine: str = "cpu",
) -> None:  # fmt: skip
    for name, value in (("seeds", seeds), ("hidden", hidden)):
        whole_number(f"--{name}", value, 1)
    if not 0 < seconds < 1e6:
        raise eg.InputError(f"--seconds is {seconds}: a number above 0 and below 1e6 is needed.")
    rows = data_of(data)
    whole_number("--batch", batch, 1, len(rows.classes[0]))
    sides = {
        "eggroll": (lambda *a: by_eggroll(rows, *a, batch, hidden, engine), rows.whole),
        "torch": (lambda *a: by_torch(rows, *a, batch, hidden), rows.real),
    }
    best = {}
    for side, (train, x) in sides.items():
        found = {}
        for rate in RATES[side]:
            classify, _ = train(rate, 0, seconds)
            found[rate] = (classify(x[1]) == rows.classes[1]).mean()
            print(f"{side} rate {rate}: {found[rate]:.2%} of validation rows")
        best[side] = max(found, key=lambda rate: found[rate])
    right, speed = ({side: list[float]() for side in sides} for _ in range(2))
    for seed in range(seeds):  # the sides in turn, so that a busy machine slows both
        for side, (train, x) in sides.items():
            classify, rows_per_second = train(best[side], seed, seconds)
            right[side].append(float((classify(x[2]) == rows.classes[2]).mean()))
            speed[side].append(rows_per_second)
    for side in sides:
        print(
            f"{side} rate {best[side]}: mean {statistics.mean(right[side]):.2%} "
            f"({min(right[side]):.2%} to {max(right[side]):.2%}) of unseen rows, "
            f"{statistics.median(speed[side]):,.0f} rows/s"
        )
    ratios = [a / b for a, b in zip(speed["eggroll"], speed["torch"], strict=True)]
    print(f"rows/s, eggroll / torch: {statistics.median(ratios):.2f}, median of {seeds} seeds")


if __name__ == "__main__":
    eg.script(main)
