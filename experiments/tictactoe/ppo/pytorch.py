"""PPO by self-play in PyTorch, in two stages: games one at a time, or 512 in lockstep.

`Sequential` plays a game to its end before the next, a network call per move, as one writes it
first. `Lockstep` plays all games at once: NumPy moves the stones, and a network answers all boards
on which it is to move in one call. The update is the same: PyTorch's autograd and Adam. The learner
has X in every other game; the opponent of a game is a snapshot of it, drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from experiments.tictactoe.ppo.network import ILLEGAL, initial, multiply_adds, probabilities
from experiments.tictactoe.ppo.policy import TicTacToeNet
from experiments.tictactoe.ppo.settings import Settings
from experiments.tictactoe.ppo.transitions import (
    Collected,
    Iteration,
    Losses,
    Transitions,
    advantages,
    regroup,
)

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
X, O = 1, 2


def observe(boards: NDArray[np.uint8], mover: int) -> NDArray[np.float32]:
    """Observations [B, 27] of boards [B, 9]: cell by cell mine, theirs, 1."""
    mine, theirs = boards == mover, boards == 3 - mover
    return np.stack((mine, theirs, np.ones_like(mine)), -1).reshape(-1, 27).astype(np.float32)


def has_won(boards: NDArray[np.uint8], player: int) -> NDArray[np.bool_]:
    """Whether a player has three in a line, on boards [B, 9]."""
    return (boards[:, LINES] == player).all(axis=2).any(axis=1)


def result(learner: int, winner: int, settings: Settings) -> tuple[int, float]:
    """Index of a game's end in (win, draw, loss), and the reward."""
    end = 1 if not winner else 0 if winner == learner else 2
    return end, (settings.win, settings.draw, settings.loss)[end]


@torch.no_grad()
def choose_one(net: TicTacToeNet, board: list[int], mover: int) -> tuple[int, float, float, list]:
    """A move drawn by a network on one board, its log-probability, the value, the observation."""
    seen = [float(part) for cell in board for part in (cell == mover, cell == 3 - mover, True)]
    logits, value = net(torch.tensor([seen]))
    legal = torch.tensor([[cell == 0 for cell in board]])
    log_probs = torch.log_softmax(torch.where(legal, logits, float(ILLEGAL)), 1)
    move = int(torch.multinomial(log_probs.exp(), 1))
    return move, float(log_probs[0, move]), float(value), seen


def play_one(
    nets: dict[int, TicTacToeNet], learner: int, game: int, settings: Settings
) -> tuple[list[tuple], int, int]:
    """The learner's transitions of one game, its end, and how many moves it had."""
    board, found, winner, mover, moves = [0] * 9, [], 0, X, 0
    while not winner and moves < 9:
        move, log_prob, value, seen = choose_one(nets[mover], board, mover)
        if mover == learner:
            legal = [cell == 0 for cell in board]
            found.append((seen, legal, move, log_prob, value, 0.0, False, game))
        board[move] = mover
        if any(all(board[cell] == mover for cell in line) for line in LINES):
            winner = mover
        mover, moves = 3 - mover, moves + 1
    end, reward = result(learner, winner, settings)
    found[-1] = (*found[-1][:5], reward, True, game)
    return found, end, moves


def sequential(
    learner: TicTacToeNet,
    opponents: list[TicTacToeNet],
    settings: Settings,
    chance: np.random.Generator,
) -> Collected:
    """An iteration's games, one after another."""
    torch.manual_seed(int(chance.integers(1 << 62)))
    found: list[tuple] = []
    results, rows = [0, 0, 0], 0
    for game in range(settings.games):
        side = X if game % 2 == 0 else O
        opponent = opponents[chance.integers(len(opponents))]
        transitions, end, moves = play_one(
            {side: learner, 3 - side: opponent}, side, game, settings
        )
        found += transitions
        results[end] += 1
        rows += moves
    return Collected(_transitions(zip(*found, strict=True)), tuple(results), rows)


def _transitions(parts) -> Transitions:
    kinds = (np.float32, bool, np.int64, np.float32, np.float32, np.float32, bool, np.int64)
    return Transitions(*(np.asarray(p, kind) for p, kind in zip(parts, kinds, strict=True)))


def draw(weights: NDArray, chance: np.random.Generator) -> NDArray[np.int64]:
    """A column for each row, with probabilities [B, 9]; never one of probability 0."""
    reached = weights.cumsum(axis=1)
    below = chance.random(len(weights), np.float32)[:, None] * reached[:, -1:]
    return (reached > below).argmax(axis=1)


def evaluate(net: TicTacToeNet, observations: NDArray) -> tuple[NDArray, NDArray]:
    with torch.no_grad():
        logits, values = net(torch.from_numpy(observations))
    return logits.numpy(), values.numpy()


def lockstep(
    learner: TicTacToeNet,
    opponents: list[TicTacToeNet],
    settings: Settings,
    chance: np.random.Generator,
) -> Collected:
    """An iteration's games, all at once; transitions game by game."""
    boards = np.zeros((settings.games, 9), np.uint8)
    side = np.where(np.arange(settings.games) % 2 == 0, X, O)
    against = chance.integers(len(opponents), size=settings.games)
    going, winner = np.arange(settings.games), np.zeros(settings.games, int)
    found: list[tuple] = []
    rows = 0
    for ply in range(9):
        mover = X if ply % 2 == 0 else O
        for index, net in enumerate([learner, *opponents]):
            own = side[going] == mover
            games = going[own if net is learner else ~own & (against[going] == index - 1)]
            if not len(games):
                continue
            seen, legal = observe(boards[games], mover), boards[games] == 0
            logits, values = evaluate(net, seen)
            chances = probabilities(logits, legal)
            moves = draw(chances, chance)
            if net is learner:
                log_probs = np.log(chances[np.arange(len(games)), moves])
                found.append((seen, legal, moves, log_probs, values, games))
            boards[games, moves] = mover
            rows += len(games)
        winner[going[has_won(boards[going], mover)]] = mover
        going = going[winner[going] == 0]
    return _finish(found, side, winner, rows, settings)


def _finish(
    found: list[tuple], side: NDArray, winner: NDArray, rows: int, settings: Settings
) -> Collected:
    """Regroups lockstep's transitions by game and rewards each game's last."""
    seen, legal, moves, log_probs, values, game = map(np.concatenate, zip(*found, strict=True))
    nothing = np.zeros(len(game))
    found = regroup(_transitions((seen, legal, moves, log_probs, values, nothing, nothing, game)))
    ends = [result(s, w, settings) for s, w in zip(side.tolist(), winner.tolist(), strict=True)]
    last = np.append(found.game[1:] != found.game[:-1], True)
    rewards = np.where(last, np.array([reward for _, reward in ends])[found.game], 0)
    counts = np.bincount([end for end, _ in ends], minlength=3)
    whole = found._replace(rewards=rewards.astype(np.float32), last=last)
    return Collected(whole, tuple(counts.tolist()), rows)


def update(
    net: TicTacToeNet,
    optimiser: torch.optim.Optimizer,
    found: Transitions,
    settings: Settings,
    chance: np.random.Generator,
) -> Losses:
    """Epochs of minibatches of PPO's clipped loss."""
    ahead, returns = advantages(
        found.values, found.rewards, found.last, settings.discount, settings.decay
    )
    if settings.normalise:
        ahead = (ahead - ahead.mean()) / (ahead.std() + np.float32(1e-8))
    parts = [torch.from_numpy(part) for part in (*found[:4], ahead, returns)]
    sums, count = np.zeros(3), 0
    for _ in range(settings.epochs):
        order = torch.from_numpy(chance.permutation(len(returns)))
        mixed = [part[order].split(settings.batch) for part in parts]
        for batch in zip(*mixed, strict=True):
            terms = loss_terms(net, *batch, settings)
            total = terms[0] + settings.value * terms[1] - settings.entropy * terms[2]
            optimiser.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), settings.norm)
            optimiser.step()
            sums += [float(term.detach()) for term in terms]
            count += 1
    return Losses(*(sums / count).tolist())


def loss_terms(
    net: TicTacToeNet,
    seen: torch.Tensor,
    legal: torch.Tensor,
    moves: torch.Tensor,
    before: torch.Tensor,
    ahead: torch.Tensor,
    returns: torch.Tensor,
    settings: Settings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Policy loss, value loss and entropy of a minibatch."""
    logits, values = net(seen)
    log_probs = torch.log_softmax(torch.where(legal, logits, float(ILLEGAL)), 1)
    ratio = (log_probs.gather(1, moves[:, None]).squeeze(1) - before).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy = -torch.min(ratio * ahead, clipped * ahead).mean()
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    return policy, functional.mse_loss(values, returns), entropy


def frozen(flat: NDArray[np.float32]) -> TicTacToeNet:
    """A network of these weights, to play against."""
    net = TicTacToeNet()
    net.load_flat(flat)
    return net.eval()


class TorchPPO:
    """A run in PyTorch: `iterate` plays an iteration's games and learns from them."""

    def __init__(self, collect: Callable[..., Collected], settings: Settings, seed: int) -> None:
        torch.set_flush_denormal(True)  # moments of units without gradient decay into them
        self.collect, self.settings, self.iteration = collect, settings, 0
        self.chance = np.random.default_rng(seed)
        self.net = TicTacToeNet()
        self.net.load_flat(initial(seed))
        self.optimiser = torch.optim.Adam(
            self.net.parameters(),
            settings.learning_rate,
            (settings.beta1, settings.beta2),
            settings.epsilon,
            fused=True,  # of PyTorch's three it is the fastest
        )
        self.pool: list[TicTacToeNet] = []
        self.snapshot()

    def iterate(self) -> Iteration:
        found = self.collect(self.net, self.pool, self.settings, self.chance)
        self.optimiser.param_groups[0]["lr"] = self.settings.rate(self.iteration)
        losses = update(self.net, self.optimiser, found.transitions, self.settings, self.chance)
        self.iteration += 1
        if self.iteration % self.settings.snapshot == 0:
            self.snapshot()
        count = len(found.transitions.moves)
        rows = found.rows + self.settings.epochs * count
        # A backward pass has twice the products of a forward pass.
        work = multiply_adds(found.rows) + 3 * multiply_adds(self.settings.epochs * count)
        return Iteration(losses, found.results, count, rows, work, {})

    def snapshot(self) -> None:
        """Adds the learner to the pool of opponents."""
        self.pool.append(frozen(self.net.flat()))

    def weights(self) -> NDArray[np.float32]:
        return self.net.flat()


STAGES = {"ppo-sequential": sequential, "ppo-lockstep": lockstep}
