"""The network as a torch module, loaded from the files that a run saves. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.tictactoe.ppo.network import HIDDEN, ILLEGAL, INPUTS, LAYERS, MOVES, unflatten

try:
    import torch
    from torch import nn
except ImportError:
    raise InputError("torch is missing: pip install '.[experiments]' brings it.") from None


class TicTacToeNet(nn.Module):
    """27 inputs, hidden layers with ReLU, 9 logits and a value; the parameters of network.py."""

    def __init__(self, hidden_size: int = HIDDEN, num_layers: int = LAYERS) -> None:
        super().__init__()
        widths = [INPUTS, *[hidden_size] * num_layers]
        parts: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.body = nn.Sequential(*parts)
        self.policy = nn.Linear(hidden_size, MOVES)
        self.value = nn.Linear(hidden_size, 1)
        self.size = (hidden_size, num_layers)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, 9] and values [B] of observations [B, 27]."""
        x = self.body(observations)
        return self.policy(x), self.value(x).squeeze(-1)

    def flat(self) -> NDArray[np.float32]:
        """The parameters as one vector, in the order of the state_dict."""
        return torch.cat([p.detach().cpu().reshape(-1) for p in self.parameters()]).numpy()

    def load_flat(self, flat: NDArray[np.float32]) -> None:
        """Takes the parameters from one vector.

        Raises:
            InputError: it has another length than the network.
        """
        self.load_state_dict(state_dict(flat, *self.size))

    def get_policy_fn(
        self, device: str, deterministic: bool = True
    ) -> Callable[[NDArray, NDArray[np.bool_]], NDArray[np.int64]]:
        """A function of observations [..., 27] and legal moves [..., 9] that answers moves [...].

        deterministic: the legal move of the largest logit, else one drawn from the softmax.
        """
        net = self.to(device).eval()

        @torch.no_grad()
        def move(observations: NDArray, legal: NDArray[np.bool_]) -> NDArray[np.int64]:
            shape = np.asarray(legal).shape[:-1]
            seen = torch.as_tensor(np.asarray(observations, np.float32).reshape(-1, INPUTS))
            allowed = torch.as_tensor(np.asarray(legal, bool).reshape(-1, MOVES)).to(device)
            logits = torch.where(allowed, net(seen.to(device))[0], float(ILLEGAL))
            if deterministic:
                return logits.argmax(1).cpu().numpy().reshape(shape)
            drawn = torch.multinomial(torch.softmax(logits, 1), 1)
            return drawn.squeeze(1).cpu().numpy().reshape(shape)

        return move


def state_dict(
    flat: NDArray[np.float32], hidden: int = HIDDEN, layers: int = LAYERS
) -> dict[str, torch.Tensor]:
    """What TicTacToeNet.load_state_dict and torch.save take, of a flat vector."""
    parts = unflatten(np.asarray(flat, np.float32), hidden, layers)
    return {name: torch.from_numpy(part.copy()) for name, part in parts.items()}


def load(path: str, hidden_size: int = HIDDEN, num_layers: int = LAYERS) -> TicTacToeNet:
    """The network of a file that `run` has saved."""
    net = TicTacToeNet(hidden_size, num_layers)
    net.load_state_dict(torch.load(path, weights_only=True))
    return net
