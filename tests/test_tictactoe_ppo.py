"""PPO for tic-tac-toe: its native code against NumPy and torch, and the three bugs once made."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from experiments.tictactoe import game, metrics
from experiments.tictactoe.ppo import bugs, network, training
from experiments.tictactoe.ppo import transitions as tr
from experiments.tictactoe.ppo.settings import SETTINGS
from experiments.tictactoe.run import main

STRICT = SETTINGS["strict"]
FEW = replace(STRICT, games=128, iterations=16, snapshot=8)


@pytest.fixture(scope="module")
def ppo_native():
    pytest.importorskip("float_kernels", reason="the float kernels are not built")
    from experiments.tictactoe.ppo import native as ppo_native

    ppo_native.library()
    return ppo_native


@pytest.fixture
def ppo_torch():
    torch = pytest.importorskip("torch", reason="torch is missing: '.[experiments]' brings it")
    torch.set_num_threads(1)
    from experiments.tictactoe.ppo import pytorch as ppo_torch

    return ppo_torch


def some_weights(seed: int = 0) -> np.ndarray:
    """Weights whose logits differ more than those of a fresh network."""
    return network.initial(seed) * np.float32(2)


# The first bug: observations grouped by channel instead of cell by cell.


def test_layout_parity(ppo_native):
    native = ppo_native.NativePPO(STRICT, seed=1)
    native.set_weights(some_weights(1))
    seen = game.observations(game.states().boards[:2000])
    expected = network.forward(some_weights(1), seen)
    for found, wanted in zip(native.forward(seen), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-6)
    grouped = seen.reshape(-1, 9, 3).transpose(0, 2, 1).reshape(-1, 27)
    assert abs(native.forward(grouped)[0] - expected[0]).max() > 0.01


def test_layout_parity_with_torch(ppo_native, ppo_torch):
    native, net = ppo_native.NativePPO(STRICT, seed=1), ppo_torch.TicTacToeNet()
    net.load_flat(native.weights())
    seen = game.observations(game.states().boards[:2000])
    for found, wanted in zip(native.forward(seen), ppo_torch.evaluate(net, seen), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_games_are_played_with_the_outputs_of_their_boards(ppo_native):
    """Values and log-probabilities of native games, from observations that NumPy lays out."""
    native = ppo_native.NativePPO(STRICT, seed=2)
    native.set_weights(some_weights(2))
    found = native.collect(some_weights(3)).transitions
    logits, values = network.forward(some_weights(2), found.observations)
    chances = network.probabilities(logits, found.legal)
    taken = np.log(chances[np.arange(len(values)), found.moves])
    np.testing.assert_allclose(found.values, values, atol=2e-6)
    np.testing.assert_allclose(found.log_probs, taken, atol=1e-5)
    mine, theirs = found.observations.reshape(-1, 9, 3)[..., :2].sum(axis=1).T
    np.testing.assert_array_equal((found.game % 2).astype(float), theirs - mine)


# The second bug: advantages over transitions in the order of lockstep.


def test_advantages_need_transitions_game_by_game(ppo_native):
    lockstep = ppo_native.NativePPO(STRICT, seed=3)
    other = some_weights(4)
    interleaved = lockstep.collect(other, regrouped=False).transitions
    grouped = lockstep.collect(other).transitions
    for found, wanted in zip(tr.regroup(interleaved), grouped, strict=True):
        np.testing.assert_array_equal(found, wanted)
    # A stable sort by the number of the move gives the order of lockstep back.
    mark = np.flatnonzero(np.append(True, grouped.game[1:] != grouped.game[:-1]))
    ply = np.arange(len(grouped.game)) - np.repeat(
        mark, np.diff(np.append(mark, len(grouped.game)))
    )
    order = np.argsort(ply, kind="stable")
    by_game = gae(ppo_native, grouped)
    bugged = gae(ppo_native, tr.Transitions(*(part[order] for part in grouped)))
    assert abs(bugged[0] - by_game[0][order]).max() > 0.05
    for found, wanted in zip(by_game, one_game_at_a_time(grouped), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def gae(ppo_native, t: tr.Transitions):
    given = (t.values, t.rewards, t.last, STRICT.discount, STRICT.decay)
    found = ppo_native.advantages(*given)
    for own, wanted in zip(found, tr.advantages(*given), strict=True):
        np.testing.assert_allclose(own, wanted, atol=1e-6)
    return found


def one_game_at_a_time(t: tr.Transitions):
    """Advantages as sequential games have them, by the definition: discounted sums of errors."""
    found = []
    for number in np.unique(t.game):
        rewards, values = t.rewards[t.game == number], t.values[t.game == number].astype(float)
        errors = rewards + STRICT.discount * np.append(values[1:], 0) - values
        weights = (STRICT.discount * STRICT.decay) ** np.arange(len(values))
        found += [(errors[i:] * weights[: len(values) - i]).sum() for i in range(len(values))]
    return np.array(found), np.array(found) + t.values


# The third bug: an arithmetic mask, compiled with -ffast-math.


@pytest.mark.parametrize("flags", bugs.FLAGS.values(), ids=bugs.FLAGS)
def test_reordered_sums_of_the_mask_make_moves_uniform_but_not_the_branch(tmp_path, flags):
    """By any compiler: the branch is right with all flags, the reordering written out is not."""
    calls = bugs.compiled(bugs.found_compilers()[0], flags, tmp_path)
    expected = network.probabilities(bugs.LOGITS[None], bugs.LEGAL[None] > 0)[0]
    uniform = bugs.LEGAL / bugs.LEGAL.sum()
    np.testing.assert_allclose(bugs.shares(calls, "branch"), expected, atol=0.01)
    np.testing.assert_allclose(bugs.shares(calls, "reordered"), uniform, atol=0.01)
    if not flags:
        np.testing.assert_allclose(bugs.shares(calls, "arithmetic"), expected, atol=0.01)
    assert abs(expected - uniform).max() > 0.3


@pytest.mark.skipif(not shutil.which("clang++"), reason="gcc keeps the order of these sums")
def test_a_compiler_reorders_the_arithmetic_mask(tmp_path):
    calls = bugs.compiled("clang++", ["-ffast-math"], tmp_path)
    uniform = bugs.LEGAL / bugs.LEGAL.sum()
    np.testing.assert_allclose(bugs.shares(calls, "arithmetic"), uniform, atol=0.01)


# The five steps that find them.


@pytest.mark.parametrize("step", bugs.STEPS)
def test_each_step_shows_its_bug(ppo_native, step: str, capsys):
    assert main(["bugs", step, "--iterations", "16"]) == 0
    said = capsys.readouterr().out
    table = [line for line in said.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    rows = {row[0]: row[1:] for row in cells[2:]}
    if step == "isolate":
        judged, won = (
            {name: float(row[i].rstrip("%")) for name, row in rows.items()} for i in (1, 2)
        )
        assert judged["right"] > judged["not regrouped"] + 10
        assert judged["every logit 0"] > won["every logit 0"] + 8, "it learns, and plays at random"
    elif step == "compare":
        assert float(rows["cell by cell"][0]) < 1e-5
        assert float(rows["channel by channel"][0]) > 0.01
        assert "in lockstep's order" in said
    elif step == "inspect":
        assert rows["branch, -O3"][4] != rows["reordered, -O3"][4]
        assert rows["softmax over legal moves"][1] == "0.0 %"
    elif step == "bisect":
        assert len(rows) >= 3
        assert all(float(row[0]) < 0.01 for row in rows.values())
    else:
        assert rows["0.05"] == ["0.05", "0"]


# The update, against the definition in float64.


def reference_gradient(flat: np.ndarray, t: tr.Transitions, ahead, returns, s=STRICT):
    """Gradient of PPO's loss over one minibatch, and its policy loss, value loss and entropy."""
    weights, count = network.unflatten(flat), len(ahead)
    layers = [t.observations.astype(float)]
    for i in range(4):
        w, b = weights[f"body.{2 * i}.weight"], weights[f"body.{2 * i}.bias"]
        layers.append(np.maximum(layers[-1] @ w.T + b, 0))
    logits, values = network.forward(flat, t.observations)
    p = network.probabilities(logits, t.legal)
    logs = np.log(np.where(t.legal, p, 1))
    rows = np.arange(count)
    ratio = np.exp(logs[rows, t.moves] - t.log_probs)
    bounded = np.clip(ratio, 1 - s.clip, 1 + s.clip)
    entropy = -(p * logs).sum(axis=1)
    losses = (-np.minimum(ratio * ahead, bounded * ahead), (values - returns) ** 2, entropy)
    slope = np.where(ratio * ahead <= bounded * ahead, -ahead * ratio, 0)
    by_logits = slope[:, None] * (np.eye(9)[t.moves] - p)
    by_logits += s.entropy * p * (logs + entropy[:, None])
    heads = {
        "policy": by_logits / count,
        "value": 2 * s.value * (values - returns)[:, None] / count,
    }
    found, delta = {}, 0
    for name, by in heads.items():
        found |= {f"{name}.weight": by.T @ layers[-1], f"{name}.bias": by.sum(axis=0)}
        delta = delta + by @ weights[f"{name}.weight"]
    for i in reversed(range(4)):
        delta = delta * (layers[i + 1] > 0)
        found |= {f"body.{2 * i}.weight": delta.T @ layers[i]}
        found |= {f"body.{2 * i}.bias": delta.sum(axis=0)}
        delta = delta @ weights[f"body.{2 * i}.weight"]
    gradient = np.concatenate([found[name].ravel() for name in network.layout()])
    return gradient, tuple(float(part.mean()) for part in losses)


def reference_adam(w, gradients, rate, s=STRICT):
    first = second = 0
    for step, gradient in enumerate(gradients, 1):
        g = gradient * min(1, s.norm / (np.sqrt((gradient**2).sum()) + 1e-6))
        first = s.beta1 * first + (1 - s.beta1) * g
        second = s.beta2 * second + (1 - s.beta2) * g * g
        up = first / (1 - s.beta1**step)
        w = w - rate * up / (np.sqrt(second / (1 - s.beta2**step)) + s.epsilon)
    return w


@pytest.fixture(scope="module")
def minibatch(ppo_native):
    """200 transitions of other weights than those that learn from them, so that ratios are cut."""
    native = ppo_native.NativePPO(STRICT, seed=5)
    native.set_weights(some_weights(5))
    found = native.collect(some_weights(6)).transitions
    few = tr.Transitions(*(part[:200].copy() for part in found))
    ahead = np.random.default_rng(0).normal(size=200).astype(np.float32)
    ahead, returns = tr.advantages(few.values, few.rewards + ahead, few.last, 0.99, 0.95)
    return few, ahead, returns


def nearby() -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=network.PARAMETERS).astype(np.float32)
    return some_weights(5) + np.float32(0.005) * noise


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_and_adam(ppo_native, minibatch, distinct: bool, sparse: bool):
    few, ahead, returns = minibatch
    native = ppo_native.NativePPO(STRICT, 0, distinct=distinct, sparse=sparse)
    start = dead_units(nearby())
    native.set_weights(start)
    native.set_transitions(few)
    gradient, losses = native.train_batch(ahead, returns, rate=0.003)
    wanted, terms = reference_gradient(start.astype(float), few, ahead, returns)
    ratio_cut = np.exp(reference_log_probs(start, few) - few.log_probs)
    assert 20 < (abs(ratio_cut - 1) > STRICT.clip).sum() < 180
    assert np.sqrt((wanted**2).sum()) > STRICT.norm  # so that it is bounded
    assert abs(gradient - wanted).max() <= 1e-5 * abs(wanted).max()
    np.testing.assert_allclose(losses, terms, rtol=1e-4, atol=1e-6)
    stepped = reference_adam(start.astype(float), [gradient.astype(float)], 0.003)
    np.testing.assert_allclose(native.weights(), stepped, atol=1e-6)
    second, _ = native.train_batch(ahead, returns, rate=0.003)
    both = [gradient.astype(float), second.astype(float)]
    stepped = reference_adam(start.astype(float), both, 0.003)
    np.testing.assert_allclose(native.weights(), stepped, atol=2e-6)


def dead_units(flat: np.ndarray) -> np.ndarray:
    """Weights whose layers have 156 units that nothing activates."""
    whole = flat.copy()
    for i in range(4):
        network.unflatten(whole)[f"body.{2 * i}.bias"][50:206] = -100
    return whole


def reference_log_probs(flat, t: tr.Transitions):
    logits, _ = network.forward(flat.astype(float), t.observations)
    return np.log(network.probabilities(logits, t.legal)[np.arange(len(t.moves)), t.moves])


def test_gradient_is_that_of_torch(ppo_torch, minibatch):
    torch = pytest.importorskip("torch")
    few, ahead, returns = minibatch
    net = ppo_torch.TicTacToeNet()
    net.load_flat(nearby())
    parts = [torch.from_numpy(part) for part in (*few[:4], ahead, returns)]
    terms = ppo_torch.loss_terms(net, *parts, STRICT)
    (terms[0] + STRICT.value * terms[1] - STRICT.entropy * terms[2]).backward()
    found = np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
    wanted, losses = reference_gradient(nearby().astype(float), few, ahead, returns)
    assert abs(found - wanted).max() <= 1e-5 * abs(wanted).max()
    np.testing.assert_allclose([float(term.detach()) for term in terms], losses, rtol=1e-4)


# Whole runs.


def random_win(flat: np.ndarray) -> float:
    return metrics.judge(training.logits_of(flat))["random_win"]


def test_a_seed_is_a_run(ppo_native):
    runs = [ppo_native.NativePPO(FEW, *given) for given in ((0,), (0, 2), (1,))]  # seed, threads
    for _ in range(3):
        results = [run.iterate() for run in runs]
    same, again, other = (run.weights() for run in runs)
    np.testing.assert_array_equal(same, again)
    assert results[0].losses == results[1].losses
    assert abs(same - other).max() > 0.01


def test_native_collection_and_update_learn(ppo_native):
    native = ppo_native.NativePPO(FEW, seed=0)
    before = random_win(native.weights())
    for _ in range(FEW.iterations):
        native.iterate()
    assert random_win(native.weights()) > before + 0.2


@pytest.mark.parametrize(
    ("native_collects", "native_updates"), [(True, False), (False, True), (False, False)]
)
def test_collection_and_update_of_either_kind_learn(
    ppo_native, ppo_torch, native_collects: bool, native_updates: bool
):
    """Which half is wrong shows where they are crossed."""
    native = ppo_native.NativePPO(FEW, seed=0)
    other = ppo_torch.TorchPPO(ppo_torch.lockstep, FEW, seed=0)
    before = random_win(native.weights())
    for i in range(FEW.iterations):
        opponent = native.pool[i % len(native.pool)]
        if native_collects:
            found = native.collect(opponent).transitions
        else:
            found = ppo_torch.lockstep(
                other.net, [ppo_torch.frozen(opponent)], FEW, other.chance
            ).transitions
        if native_updates:
            native.update(found)
            other.net.load_flat(native.weights())
        else:
            other.optimiser.param_groups[0]["lr"] = FEW.rate(i)
            ppo_torch.update(other.net, other.optimiser, found, FEW, other.chance)
            native.set_weights(other.net.flat())
            native.iteration += 1
    assert random_win(native.weights()) > before + 0.2


def test_sequential_games_are_games(ppo_torch):
    few = replace(STRICT, games=20)
    run = ppo_torch.TorchPPO(ppo_torch.sequential, few, seed=0)
    found = ppo_torch.sequential(run.net, run.pool, few, run.chance)
    t = found.transitions
    assert sum(found.results) == 20
    assert t.last.sum() == 20
    assert (t.rewards[~t.last] == 0).all()
    assert (np.diff(t.game) >= 0).all()
    ends = np.array([STRICT.win, STRICT.draw, STRICT.loss])
    assert (np.bincount((t.rewards[t.last, None] == ends).argmax(axis=1), minlength=3)
            == found.results).all()  # fmt: skip
    run.iterate()


def test_policy_of_saved_weights(ppo_native, ppo_torch, tmp_path):
    from experiments.tictactoe.ppo import policy

    flat = some_weights(7)
    training.save("ppo-native", flat, tmp_path, print)
    np.testing.assert_array_equal(np.load(tmp_path / "c_policy_params.npy"), flat)
    net = policy.load(str(tmp_path / "c_policy.pt"))
    np.testing.assert_array_equal(net.flat(), flat)
    seen, legal = game.observations(game.states().boards), game.legal()
    open_ = legal.any(axis=1)
    moves = net.get_policy_fn("cpu", deterministic=True)(seen[open_], legal[open_])
    np.testing.assert_array_equal(moves, network.greedy(flat, seen[open_], legal[open_]))
    drawn = net.get_policy_fn("cpu", deterministic=False)(seen[open_], legal[open_])
    assert legal[open_][np.arange(len(drawn)), drawn].all()
    assert (drawn != moves).any()
