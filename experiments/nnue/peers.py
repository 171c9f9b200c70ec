"""The document's trainer in PyTorch: a sparse COO tensor, or EmbeddingBag, and torch's Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.nnue.loader import Batch, Lists
from experiments.nnue.losses import EPSILON, Loss
from experiments.nnue.shape import Shape


def load_torch(threads: int) -> Any:
    """PyTorch, on that many threads.

    Raises:
        InputError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise InputError("torch is missing: pip install '.[experiments]' brings it.") from None
    torch.set_num_threads(threads)
    return torch


class TorchTrainer:
    """The network by autograd. way: "coo" or "bag"."""

    def __init__(
        self, shape: Shape, loss: Loss, seed: int = 0, *, way: str = "bag", threads: int = 1
    ) -> None:
        self.torch = load_torch(threads)
        self.shape, self.loss, self.way = shape, loss.check(), way
        parts = shape.split(shape.first(seed))
        self.parts = {
            name: self.torch.tensor(part, requires_grad=True) for name, part in parts.items()
        }
        self.optimiser = self.torch.optim.Adam(self.parts.values())

    def set(self, weights: NDArray[np.float32]) -> None:
        """Takes other weights, flat."""
        with self.torch.no_grad():
            for name, part in self.shape.split(weights).items():
                self.parts[name].copy_(self.torch.from_numpy(part))

    def _sides(self, batch: Batch) -> list[Any]:
        if self.way == "bag":
            return [self._bag(lists) for lists in (batch.white, batch.black)]
        ft, bias = self.parts["ft"], self.parts["ft.bias"]
        return [self.torch.sparse.mm(side, ft) + bias for side in batch.get_tensors()[:2]]

    def _bag(self, lists: Lists) -> Any:
        ft, bias = self.parts["ft"], self.parts["ft.bias"]
        part = slice(lists.starts[0], lists.starts[-1])
        by = None if lists.count is None else self.torch.from_numpy(lists.count[part]).float()
        return bias + self.torch.nn.functional.embedding_bag(
            self.torch.from_numpy(lists.index[part]), ft,
            self.torch.from_numpy(lists.starts[:-1] - part.start),
            mode="sum", per_sample_weights=by,
        )  # fmt: skip

    def _forward(self, batch: Batch) -> Any:
        torch, parts = self.torch, self.parts
        stm = torch.from_numpy(batch.stm).float()[:, None]
        w, b = self._sides(batch)
        accumulator = stm * torch.cat([w, b], 1) + (1 - stm) * torch.cat([b, w], 1)
        x = torch.clamp(accumulator, 0.0, 1.0)
        h = torch.clamp(torch.nn.functional.linear(x, parts["l1"], parts["l1.bias"]), 0.0, 1.0)
        return torch.nn.functional.linear(h, parts["l2"], parts["l2.bias"])[:, 0]

    def _between(self, p: Any, t: Any) -> Any:
        log, eps = self.torch.log, EPSILON
        if not self.loss.cross_entropy:
            off = p - t
            return off * off if self.loss.exponent == 2 else abs(off) ** self.loss.exponent
        # float32 has no 1 + 1e-12: this differs from double precision where p saturates.
        own = t * log(t + eps) + (1 - t) * log(1 - t + eps)
        return own - (t * log(p + eps) + (1 - t) * log(1 - p + eps))

    def lost(self, y: Any, batch: Batch) -> Any:
        """The mean loss of logits."""
        torch, loss = self.torch, self.loss
        p, q = torch.sigmoid(y), torch.sigmoid(torch.from_numpy(batch.score).float() / loss.scale)
        r = (torch.from_numpy(batch.result).float() + 1) / 2
        if loss.after:
            each = loss.weight * self._between(p, q) + (1 - loss.weight) * self._between(p, r)
        else:
            each = self._between(p, loss.weight * q + (1 - loss.weight) * r)
        return each.mean()

    def differentiate(self, batch: Batch) -> float:
        """The mean loss of a batch; `parts` have its gradient."""
        self.optimiser.zero_grad()
        loss = self.lost(self._forward(batch), batch)
        loss.backward()
        return float(loss.detach())

    def step(self, batch: Batch, rate: float) -> float:
        """A step of Adam; the mean loss before it."""
        lost = self.differentiate(batch)
        self.optimiser.param_groups[0]["lr"] = rate
        self.optimiser.step()
        return lost

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [B]."""
        with self.torch.no_grad():
            y: NDArray[np.float32] = self._forward(batch).numpy()
        return y

    @property
    def weights(self) -> NDArray[np.float32]:
        """Flat, a copy."""
        return np.concatenate([p.detach().numpy().ravel() for p in self.parts.values()])
