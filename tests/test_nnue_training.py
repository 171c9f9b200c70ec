"""experiments/nnue: losses, trainers, quantised networks, the searcher, commands."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eggroll as eg
from eggroll.errors import InputError
from experiments.nnue import integers, losses, match, native, pictures, quantise, report, training
from experiments.nnue.commands import main
from experiments.nnue.loader import FEATURES, Batch, Lists, Loader, coalesce
from experiments.nnue.losses import Loss
from experiments.nnue.native import NativeTrainer
from experiments.nnue.positions import Positions
from experiments.nnue.shape import Shape

SMALL = Path(__file__).parents[1] / "experiments" / "nnue" / "small.bin"
LOSSES = [
    Loss(weight=0.7), Loss(weight=0.7, after=True), Loss(weight=0.7, exponent=2.6),
    Loss(True, weight=0.7), Loss(True, weight=0.7, after=True),
]  # fmt: skip
pytest.importorskip("float_kernels", reason="the float kernels are not built")


def lists_of(rows: list[list[int]], counts: bool, rng: np.random.Generator) -> Lists:
    index = np.concatenate([np.array(row, np.int32) for row in rows])
    starts = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return Lists(starts, index, rng.integers(1, 5, len(index)).astype(np.int8) if counts else None)


def random_batch(features: int, size: int = 300, *, counts: bool = False, seed: int = 0) -> Batch:
    """Lists of any length, with odd ones among them; sizes that fill no block."""
    rng = np.random.default_rng(seed)

    def side() -> Lists:
        rows = [
            sorted(rng.choice(features, rng.integers(0, min(31, features)), replace=False).tolist())
            for _ in range(size)
        ]
        return lists_of(rows, counts, rng)

    made = Batch(
        rng.integers(0, 2, size).astype(np.int8), rng.integers(-900, 900, size).astype(np.int16),
        rng.integers(-1, 2, size).astype(np.int8), side(), side(),
    )  # fmt: skip
    made.rows = features
    return made


def dense(lists: Lists, features: int) -> np.ndarray:
    found = np.zeros((len(lists.starts) - 1, features))
    rows = np.repeat(np.arange(len(found)), np.diff(lists.starts))
    np.add.at(found, (rows, lists.index), 1 if lists.count is None else lists.count)
    return found


def reference(flat: np.ndarray, shape: Shape, batch: Batch) -> np.ndarray:
    """Logits in double precision: the definition."""
    parts = shape.split(flat)
    w, b = (dense(one, shape.features) @ parts["ft"] for one in (batch.white, batch.black))
    stm = batch.stm[:, None].astype(float)
    both = stm * np.hstack([w, b]) + (1 - stm) * np.hstack([b, w])
    x = np.clip(both + np.tile(parts["ft.bias"], 2), 0, 1)
    h = np.clip(x @ parts["l1"].T + parts["l1.bias"], 0, 1)
    return (h @ parts["l2"].T + parts["l2.bias"])[:, 0]


# Losses.


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_slopes_are_finite_differences(loss: Loss):
    rng = np.random.default_rng(1)
    y = rng.normal(0, 2, 200)
    score = rng.integers(-1500, 1500, 200).astype(np.int16)
    result = rng.integers(-1, 2, 200).astype(np.int8)
    step = 1e-5
    above, below = (losses.lost_by_logit(loss, y + d, score, result)[0] for d in (step, -step))
    value, slope = losses.lost_by_logit(loss, y, score, result)
    np.testing.assert_allclose((above - below) / (2 * step), slope, rtol=1e-4, atol=1e-8)
    assert np.abs(slope).max() > 0.01
    by_native = native.losses(loss, y, score, result)
    np.testing.assert_allclose(by_native[0], value, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(by_native[1], slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_minimum_is_zero_at_the_target(loss: Loss):
    score = np.arange(-1500, 1501, 50).astype(np.int16)
    p = losses.sigmoid(score / loss.scale)
    value, slope = losses.lost(loss, p, p, p)  # label and result agree
    np.testing.assert_allclose(value, 0, atol=1e-10)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    for off in (-0.01, 0.01):
        away = np.clip(p + off, 1e-4, 1 - 1e-4)
        assert (losses.lost(loss, away, p, p)[0] > 0).all()


def test_the_documents_entropy_of_the_result_is_mended():
    """The result's own entropy is taken from its loss: with the label's it is negative."""
    loss = Loss(True, after=True, weight=0.0)
    p, q, r = np.array([1 - 1e-9]), np.array([0.5]), np.array([1.0])
    assert losses.lost(loss, p, q, r)[0] == pytest.approx(0, abs=1e-8)
    eps = losses.EPSILON
    documents = r * np.log(q + eps) + (1 - r) * np.log(1 - q + eps) - r * np.log(p + eps)
    assert documents < -0.6


def test_a_scale_is_fitted_to_results():
    rng = np.random.default_rng(0)
    score = rng.integers(-1200, 1200, 40_000).astype(np.int16)
    result = np.where(rng.random(40_000) < losses.sigmoid(score / 300), 1, -1).astype(np.int8)
    assert losses.fitted_scale(score, result) == pytest.approx(300, rel=0.03)
    with pytest.raises(InputError, match="fix no scale"):
        losses.fitted_scale(score[:0], result[:0])


# Float trainers.


@pytest.mark.parametrize(
    ("features", "width", "hidden"), [(40, 16, 3), (700, 48, 16), (90, 272, 5)]
)
@pytest.mark.parametrize("counts", [False, True])
def test_the_native_network_is_the_reference(features: int, width: int, hidden: int, counts: bool):
    shape = Shape(features, width, hidden)
    trainer = NativeTrainer(shape, Loss(), 3)
    batch = random_batch(features, counts=counts)
    found, right = trainer.logits(batch), reference(trainer.weights, shape, batch)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    assert right.std() > 1e-3


@pytest.mark.parametrize("loss", LOSSES[1:4], ids=lambda loss: loss.name)
@pytest.mark.parametrize("counts", [False, True])
def test_the_native_gradient_is_a_finite_difference(loss: Loss, counts: bool):
    shape = Shape(50, 16, 4)
    trainer = NativeTrainer(shape, loss, 2, reduced=False)
    batch, flat = random_batch(50, counts=counts), trainer.weights.astype(np.float64)
    value = trainer.differentiate(batch)

    def mean(weights: np.ndarray) -> float:
        y = reference(weights, shape, batch)
        return float(losses.lost_by_logit(loss, y, batch.score, batch.result)[0].mean())

    assert value == pytest.approx(mean(flat), rel=1e-4)
    rng, step = np.random.default_rng(0), 1e-6
    for name, part in shape.split(np.arange(len(flat))).items():
        for i in rng.choice(part.ravel(), min(8, part.size), replace=False):
            moved = [flat.copy() for _ in range(2)]
            moved[0][i] += step
            moved[1][i] -= step
            slope = (mean(moved[0]) - mean(moved[1])) / (2 * step)
            assert trainer.gradient[i] == pytest.approx(slope, rel=2e-2, abs=3e-6), (name, i)


def test_the_gradient_of_a_counted_feature_is_reduced():
    """As if its value were 1, though the forward pass has it whole."""
    shape, batch = Shape(30, 16, 4), random_batch(30, counts=True)
    ones = batch._replace(
        white=batch.white._replace(count=None), black=batch.black._replace(count=None)
    )
    whole, reduced = (NativeTrainer(shape, Loss(), reduced=r) for r in (False, True))
    for trainer in (whole, reduced):
        trainer.differentiate(batch)
    parts = [shape.split(t.gradient)["ft"] for t in (whole, reduced)]
    assert not np.allclose(*parts)
    np.testing.assert_array_equal(whole.logits(batch), reduced.logits(batch))
    assert not np.allclose(whole.logits(batch), whole.logits(ones))


@pytest.mark.parametrize("way", ["coo", "bag"])
@pytest.mark.parametrize("loss", [LOSSES[1], LOSSES[2], LOSSES[3]], ids=lambda loss: loss.name)
def test_pytorch_takes_the_same_steps(way: str, loss: Loss):
    pytest.importorskip("torch", reason="torch is not installed")
    from experiments.nnue.peers import TorchTrainer

    shape = Shape(400, 32, 8)
    ours, theirs = NativeTrainer(shape, loss, 5), TorchTrainer(shape, loss, 5, way=way)
    for i in range(5):
        batch = random_batch(400, 256, seed=i)
        assert ours.step(batch, 0.01) == pytest.approx(theirs.step(batch, 0.01), rel=1e-4)
    # Adam divides by the size of a gradient, so roundings of tiny ones show.
    off = np.abs(ours.weights - theirs.weights)
    assert np.quantile(off, 0.999) < 1e-4
    np.testing.assert_allclose(ours.logits(batch), theirs.logits(batch), atol=2e-3)


def positions(features: str, split: Any = "train", batch: int = 512) -> Positions:
    return Positions.read(SMALL, features, split, batch)


@pytest.mark.parametrize("seed", [0, 1])
def test_feedback_does_not_lose_the_units_against_the_mover(seed: int):
    """With seed 1 it did, while no unit began as a constant."""
    train = positions("768", batch=1024)
    trainer = integers.Feedback(Shape(768, 32, 16), "768", Loss(), seed, steps=90)
    for i in range(90):
        trainer.train(train[i])
    lost = trainer.logits(train[0]) < 0
    assert 0.3 < lost.mean() < 0.7


def test_a_coalesced_trainer_takes_the_steps_of_the_factorised_one():
    shape, loss, train = Shape(FEATURES["halfkp+p"], 16, 4), Loss(), positions("halfkp+p")
    plain, short = (NativeTrainer(shape, loss, 1, coalesce=c) for c in (False, True))
    for i in range(4):
        assert plain.step(train[i], 0.003) == pytest.approx(short.step(train[i], 0.003), rel=1e-4)
    np.testing.assert_allclose(plain.logits(train[5]), short.logits(train[5]), atol=1e-4)
    assert np.quantile(np.abs(plain.weights - short.weights), 0.999) < 1e-4


def test_coalesced_rows_evaluate_as_factorised_ones():
    """Within 1e-5, on real positions; and a factoriser that is removed leaves the network equal."""
    for features in ("halfkp+p", "halfkp+p+k", "halfkp+relative"):
        shape, train = Shape(FEATURES[features], 16, 4), positions(features)
        trainer = NativeTrainer(shape, Loss(), 1)
        trainer.step(train[0], 0.01)
        flat, short = quantise.plain(trainer.weights, shape, features)
        other = NativeTrainer(short, Loss())
        other.set(flat)
        found, bare = trainer.logits(train[1]), positions("halfkp")[1]
        np.testing.assert_allclose(other.logits(bare), found, atol=1e-5)
        if features == "halfkp+p":
            trainer.remove_factoriser()
            np.testing.assert_allclose(trainer.logits(train[1]), found, atol=1e-5)
            trainer.step(train[2], 0.01)
            assert not trainer.shape.split(trainer.weights)["ft"][native.REAL :].any()
        assert found.std() > 1e-3


# Positions.


def told(batch: Batch) -> list[tuple[int, int, list[int]]]:
    """Side to move, score and white's rows of every position."""
    starts = batch.white.starts
    rows = np.split(batch.white.index[: starts[-1]], starts[1:-1])
    return [
        (int(a), int(b), row.tolist())
        for a, b, row in zip(batch.stm, batch.score, rows, strict=True)
    ]


def test_batches_are_the_loaders_positions():
    with Loader(SMALL, features="768", batch=100, epochs=1, split="train") as loader:
        remaining = [one for batch in loader for one in told(batch)]
    train = positions("768", batch=256)
    epoch = len(train) // 256
    for k in range(epoch):
        for one in told(train[k]):
            remaining.remove(one)
    assert len(remaining) < 256
    first, second = train[0].score, train[epoch].score
    np.testing.assert_array_equal(train[0].score, first)
    assert not np.array_equal(first, second)  # another epoch, another order


@pytest.mark.parametrize("active", [30, 31, 32, 47, 48, 60])
@pytest.mark.parametrize("end", [40, 25])
def test_lists_are_padded_in_whole_vectors(active: int, end: int):
    """Without counts; to the last list, and as far as `end`."""
    for size in (1, 2, 50):
        batch = random_batch(40, size, seed=active)
        found = native.pad(batch, active, end)
        for i in range(size):
            for second, black in enumerate((not batch.stm[i], bool(batch.stm[i]))):
                lists = batch.black if black else batch.white
                right = lists.index[slice(*lists.starts[i : i + 2])]
                right = right[right < end].tolist()
                assert found[i, second].tolist() == right + [-1] * (active - len(right))


@pytest.mark.parametrize("features", ["768", "halfkp+p", "halfkp+p+k"])
def test_both_sides_lists_have_one_index(features: str):
    """So the library takes them as they lie; with values, or apart, they are filled up."""
    train = Positions.read(SMALL, features, "train", 64)
    batch, rows = train[3], FEATURES[features]
    assert batch.white.index is batch.black.index
    assert batch.black.starts[0] == batch.white.starts[-1]
    assert batch.black.starts[-1] == len(batch.black.index)
    active = integers.active_of(features)
    for end in (rows, rows - native.BLOCK):
        net, padded = integers.program(Shape(end, 32, 16), active), native.pad(batch, active, end)
        found = native.shown(batch, active, end)
        assert isinstance(found, eg.Lists) == (batch.white.count is None)
        lists = found.padded(net) if isinstance(found, eg.Lists) else found
        np.testing.assert_array_equal(lists.reshape(padded.shape), padded)
    apart = batch._replace(black=batch.black._replace(index=batch.black.index.copy()))
    assert isinstance(native.shown(apart, active, rows), np.ndarray)


def test_labels_are_those_of_the_loss():
    batch = random_batch(40, 300)
    batch.score[:2] = -(1 << 15), (1 << 15) - 1
    for loss in (Loss(), Loss(weight=0.3)):
        wanted = np.rint(127 * losses.targets(loss, batch.score, batch.result))
        np.testing.assert_array_equal(
            native.looked_up(integers.table_of_labels(loss), batch), wanted
        )
    batch.result[7] = 2
    with pytest.raises(InputError, match="Position 7 of a batch has the result 2"):
        native.looked_up(integers.table_of_labels(Loss()), batch)


def test_lists_are_padded_mover_first():
    batch = random_batch(20, 50, counts=True)
    found = native.pad(batch, 200, 20)
    for i in range(50):
        for second, black in enumerate((not batch.stm[i], bool(batch.stm[i]))):
            lists = batch.black if black else batch.white
            part = slice(*lists.starts[i : i + 2])
            right = np.repeat(lists.index[part], lists.count[part]).tolist()
            row = found[i, second]
            assert row[: len(right)].tolist() == right
            assert (row[len(right) :] == -1).all()
    with pytest.raises(InputError, match="more than 3 active"):
        native.pad(batch, 3, 20)


# Integers.


def small_settings(**more: Any) -> training.Settings:
    return training.Settings(width=16, hidden=8, seconds=0.6, looks=2, **more)


@pytest.mark.parametrize("way", ["native", "feedback", "token-credit", "eggroll"])
def test_every_way_learns(way: str):
    train, valid = positions("768"), positions("768", "validation", 1)
    start = training.constant([valid.all], Loss())
    looks = training.run([way], small_settings(), train, valid, lambda text: None)[way].looks
    assert looks[-1].positions > 2000
    # Weight noise needs far more rows than fit here; others must be better than a constant.
    assert looks[-1].squares < (looks[0].squares if way == "eggroll" else start)


def test_integer_training_repeats_bit_for_bit():
    train = positions("halfkp+p", batch=256)
    shape = Shape(FEATURES["halfkp+p"], 16, 8)
    for kind in (integers.Feedback, integers.Evolution):
        signatures = set()
        for threads in (1, 2):
            trainer = kind(shape, "halfkp+p", Loss(), steps=6, threads=threads)
            for i in range(3):
                trainer.train(train[i])
            signatures.add(trainer.es.signature)
        assert len(signatures) == 1


def test_integers_go_on_without_their_factoriser():
    train = positions("halfkp+p", batch=256)
    trainer = integers.Feedback(Shape(FEATURES["halfkp+p"], 16, 8), "halfkp+p", Loss(), steps=20)
    for i in range(4):
        trainer.train(train[i])
    before = trainer.logits(train[9])
    trainer.remove_factoriser()
    held = np.abs(coalesce(np.zeros((FEATURES["halfkp+p"], 1), np.int8), "halfkp+p")).max()
    assert held == 0
    np.testing.assert_allclose(trainer.logits(train[9]), before, atol=0.3)  # but for the clip
    trainer.train(train[5])
    assert trainer.es.weights["ft"].shape == (40960, 16)
    with pytest.raises(InputError, match="no factoriser"):
        trainer.remove_factoriser()


# Quantised networks and the searcher.


def trained(features: str, width: int = 16, steps: int = 60) -> tuple[NativeTrainer, Positions]:
    train = positions(features)
    trainer = NativeTrainer(Shape(FEATURES[features], width, 8), Loss(), 1)
    for i in range(steps):
        trainer.step(train[i], 0.003)
    return trainer, train


@pytest.mark.parametrize("features", ["768", "halfkp+p"])
def test_a_quantised_network_loses_little(features: str):
    trainer, _ = trained(features, 32, 120)
    found = quantise.quantise(trainer.weights, trainer.shape, features)
    batch = positions(features.split("+")[0], "validation", 1).all
    y = trainer.logits(positions(features, "validation", 1).all)
    spread = np.abs(found.logits(batch) - y)
    assert spread.mean() < 0.05 * y.std()
    assert max(found.clipped.values()) < 0.02
    judged = [
        losses.lost_by_logit(Loss(), np.asarray(v, float), batch.score, batch.result)[0].mean()
        for v in (y, found.logits(batch))
    ]
    assert judged[1] < 1.02 * judged[0]


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> dict[str, match.Player]:
    folder = tmp_path_factory.mktemp("nets")
    trainer, _ = trained("halfkp+p")
    flat, shape = quantise.plain(trainer.weights, trainer.shape, "halfkp+p")
    found = quantise.quantise(trainer.weights, trainer.shape, "halfkp+p")
    return {
        "material": match.material(),
        "int8": match.integer("int8", found, folder),
        "float": match.floating("float", flat, shape),
    }


@pytest.mark.parametrize(
    ("fen", "counts"),
    [
        (match.START, [20, 400, 8902, 197281]),
        ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", [48, 2039, 97862]),
        ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", [14, 191, 2812, 43238]),
        ("r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", [6, 264, 9467]),
    ],
)
def test_moves_are_counted_as_everywhere(fen: str, counts: list[int], players: Any):
    game = players["material"].game(fen)
    assert [game.perft(depth) for depth in range(1, len(counts) + 1)] == counts


def features_of(board: np.ndarray, black: bool) -> list[int]:
    """Active rows of HalfKP, by the formula of the loader's header."""
    seen = {s ^ 56 if black else s: c ^ int(black) for s, c in enumerate(board.tolist()) if c >= 0}
    king = next(s for s, c in seen.items() if c == 10)
    return sorted(640 * king + 64 * c + s for s, c in seen.items() if c < 10)


def test_a_searcher_evaluates_as_the_engine_does(players: dict[str, match.Player], tmp_path: Path):
    """Along games: kept sums, sums of the whole board, the engine, and the float network."""
    trainer, _ = trained("halfkp+p")
    net = quantise.quantise(trainer.weights, trainer.shape, "halfkp+p")
    flat, shape = quantise.plain(trainer.weights, trainer.shape, "halfkp+p")
    plain = NativeTrainer(shape, Loss())
    plain.set(flat)
    rng, rows, values = np.random.default_rng(4), [], []
    for _ in range(4):
        games = [players[name].game() for name in ("int8", "float")]
        for _ in range(60):
            if games[0].state:
                break
            move = int(rng.choice(games[0].moves()))
            for game in games:
                game.play(move)
            board, black = games[0].board()
            rows.append((1 - black, features_of(board, False), features_of(board, True)))
            values.append((games[0].value(), games[0].value(anew=True), games[1].value()))
    lists = [lists_of([row[i] for row in rows], False, rng) for i in (1, 2)]
    n = len(rows)
    batch = Batch(
        np.array([row[0] for row in rows], np.int8),
        np.zeros(n, np.int16),
        np.zeros(n, np.int8),
        *lists,
    )
    kept, anew, real = np.array(values).T
    np.testing.assert_array_equal(kept, anew)
    np.testing.assert_array_equal(kept, net.values(batch) + net.offset)
    np.testing.assert_allclose(real / 1000, plain.logits(batch), atol=2e-3)
    assert n > 150
    assert len(np.unique(kept)) > n / 2


def test_sums_by_the_difference_are_those_of_the_board(players: dict[str, match.Player]):
    played, different = players["int8"].walk(1, 50, 300)
    assert different == 0
    assert played > 5000


def test_a_searcher_mates_and_takes(players: dict[str, match.Player]):
    mate = players["material"].game("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1")
    mate.play(mate.best(2))
    assert mate.state == match.MATED
    won = players["material"].game("k7/8/8/3q4/4P3/8/8/K7 w - - 0 1")
    won.play(won.best(1))
    assert won.value() == -100  # of the side to move, which has lost its queen
    drawn = players["material"].game("k7/8/8/8/8/8/8/K6B w - - 0 1")
    assert drawn.state == match.DRAW
    with pytest.raises(InputError, match="is no position"):
        players["material"].game("8/8/8/8/8/8/8/K7 w - - 0 1")


def test_a_match_of_equals_is_even(players: dict[str, match.Player]):
    score = match.match(players["material"], players["material"], 3, 1)
    assert score.points == 0.5
    assert score.wins == score.losses
    assert score.wins + score.draws + score.losses == 6


# Commands.


def test_a_run_and_its_report(tmp_path: Path, capsys: Any):
    out = tmp_path / "run"
    assert main(["run", "--data", str(SMALL), "--smoke", "--width", "16", "--out", str(out)]) == 0
    assert "| 768 | feedback | 1 |" in capsys.readouterr().out
    again = ["run", "--data", str(SMALL), "--ways", "native", "--out", str(out)]
    before = (out / "looks.csv").read_bytes()
    assert main(again) == 2
    assert "holds a run already: give another folder" in capsys.readouterr().err
    assert (out / "looks.csv").read_bytes() == before
    looks = training.read_looks(out / "looks.csv")
    assert {look.way for look in looks} == {"native", "feedback", "token-credit"}
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(looks) if a.way == b.way)
    drawn = tmp_path / "pictures"
    assert main(["report", str(out), "--data", str(SMALL), "--out", str(drawn)]) == 0
    ends = [grad + contour for grad in ("", "_grad") for contour in ("", "_contour")]
    kinds = [f"{kind}_loss{end}.png" for kind in ("mse", "cross_entropy") for end in ends]
    others = ["board_0.png", "curves.png", "sigmoid_wdl_fit.png"]
    assert sorted(path.name for path in drawn.iterdir()) == sorted([*kinds, *others])
    assert "scale fitted to" in capsys.readouterr().out
    words = ["match", str(out / "feedback-768-0.safetensors"), "material", "--pairs", "1"]
    assert main([*words, "--depth", "1", "--net-folder", str(tmp_path / "nets")]) == 0
    assert "feedback-768-0 - material, depth 1: +" in capsys.readouterr().out


def test_looks_are_read_as_they_were_written(tmp_path: Path):
    looks = [training.Look("native", "768", 0, 1.25, 123_456_789, 0.0625, 0.5)]
    training.write_looks(tmp_path / "looks.csv", looks)
    assert training.read_looks(tmp_path / "looks.csv") == looks


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("", "it has no look after the first update"),
        ("native,768,0,0,0,0.1,0.2\n", "it has no look after the first update"),
        ("native,768,0,1,9,nan,0.2\n", "a figure is not finite"),
    ],
)
def test_looks_that_cannot_be_drawn_are_named(tmp_path: Path, row: str, said: str):
    path = tmp_path / "looks.csv"
    training.write_looks(path, [])
    with path.open("a") as file:
        file.write(row)
    with pytest.raises(InputError, match=said):
        training.read_looks(path)


def test_tables_say_what_was_not_measured():
    looks = [
        training.Look("native", "768", 0, float(s), 1000 * s, 0.05 / (1 + s), 0.1)
        for s in range(11)
    ]
    text = report.table(looks, {"768": 0.06})
    assert "| 768 | native | 1 | 0.00455 | 0.10000 | not measured | 0.0 M | 1 k |" in text
    torch = [look._replace(way="torch-bag", squares=0.01) for look in looks]
    assert "| 110.9% |" in report.table([*looks, *torch], {"768": 0.06})
    assert report.at_share(looks, 0.1).seconds == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--data", "nowhere.bin"], "nowhere.bin"),
        (["run", "--data", str(SMALL), "--batch", "100000"], "--batch is 100000 and there are"),
        (["run", "--data", str(SMALL), "--ways", "magic", "--batch", "64"], "--ways has 'magic'"),
        (["run", "--data", str(SMALL), "--lambda", "2"], "--lambda is 2.0: 0 (the game's"),
        (["run", "--data", str(SMALL), "--ways", "native@x", "--batch", "64"], "has 'native@x'"),
        (["run", "--data", str(SMALL), "--width", "20", "--batch", "64", "--ways", "native"],
         "--width is 20: native code needs a multiple of 16."),
        (["report", "nowhere", "--out", "{tmp}"], "'nowhere/looks.csv' cannot be read"),
        (["match", "material", "nothing.npz"], "'nothing.npz' is no player"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(words: list[str], said: str, tmp_path: Path, capsys: Any):
    assert main([word.replace("{tmp}", str(tmp_path)) for word in words]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("wrong", ["few", "nan", "shape", "cut"])
def test_networks_that_do_not_fit_their_shape(wrong: str, tmp_path: Path, capsys: Any):
    shape = Shape(768, 8, 4)
    weights = shape.first(0)
    weights = weights[:-1] if wrong == "few" else weights
    if wrong == "nan":
        weights[7] = np.nan
    path = tmp_path / "net.npz"
    np.savez(path, weights=weights, shape=[*shape][: 1 if wrong == "shape" else 3])
    if wrong == "cut":
        path.write_bytes(path.read_bytes()[:500])
    code = main(["match", "material", str(path), "--pairs", "1", "--depth", "1"])
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1)
    assert ("finite numbers are needed" in said) == (wrong in ("few", "nan"))


def test_a_missing_torch_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setitem(sys.modules, "torch", None)
    words = ["run", "--data", str(SMALL), "--ways", "torch-bag", "--batch", "64"]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "error: torch is missing: pip install '.[experiments]' brings it.\n"
    )


def test_an_interrupt_names_the_seed_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    whole = training.run

    def run(ways: Any, settings: Any, *rest: Any) -> Any:
        if settings.seed == 1:
            raise KeyboardInterrupt
        return whole(ways, settings._replace(seconds=0.05, looks=1), *rest)

    monkeypatch.setattr(training, "run", run)
    words = ["run", "--data", str(SMALL), "--ways", "native", "--batch", "64", "--seeds", "2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err == (
        "Interrupted in seed 1 of 768, of which nothing is kept; "
        f"'{tmp_path}/run' has those before it.\n"
    )
    assert {look.seed for look in training.read_looks(tmp_path / "run" / "looks.csv")} == {0}
    assert main(words) == 130
    assert capsys.readouterr().err.endswith("; no seed was written before it.\n")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "is not valid JSON"),
        ("[]", "holds [] where an object is needed"),
        ("{}", "has None as 'variance' where dict is needed"),
        ('{"variance": [["768", 1]]}', "has [['768', 1]] as 'variance' where dict"),
        ('{"variance": {"768": "x"}}', "has 'x' as the variance of '768' where a number from 0"),
        ('{"variance": {"768": null}}', "has None as the variance of '768'"),
        ('{"variance": {"768": NaN}}', "has nan as the variance of '768'"),
        ('{"variance": {"768": 2}}', "has 2 as the variance of '768'"),
    ],
)
def test_a_report_of_a_run_with_an_odd_note(
    about: str | None, said: str, tmp_path: Path, capsys: Any
):
    looks = [training.Look("native", "768", 0, s, 64, 0.1, 0.1) for s in (0.0, 1.0)]
    training.write_looks(tmp_path / "looks.csv", looks)
    if about is not None:
        (tmp_path / "about.json").write_text(about)
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert said in told
    assert len([*tmp_path.iterdir()]) == 1 + (about is not None)


def test_the_losses_of_pictures_are_those_of_training():
    x = np.linspace(-900, 900, 7)
    value, slope = pictures.by_evaluation(Loss(), x, np.full(7, 100.0))
    right, by_logit = losses.lost_by_logit(
        Loss(), x / 410, np.full(7, 100, np.int16), np.zeros(7, np.int8)
    )
    np.testing.assert_allclose(value, right)
    np.testing.assert_allclose(slope, by_logit / 410)
