"""Ways of computing that the C-backend report tried and ruled out, as calls to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.tictactoe.ppo.network import HIDDEN, PARAMETERS
from experiments.tictactoe.ppo.policy import TicTacToeNet
from experiments.tictactoe.ppo.settings import SETTINGS

STRICT = SETTINGS["strict"]
BATCH = STRICT.batch
SHAPE = f"{BATCH}x{HIDDEN}x{HIDDEN}"


def calls(compiled: bool) -> dict[str, Callable[[], Any]]:
    """Name -> a call. Products are of the minibatch and a hidden layer."""
    return products() | optimisers() | networks(compiled)


def missing(compiled: bool) -> list[str]:
    """What could not be measured, and why."""
    found = [] if compiled else ["torch.compile (bench --compile measures it)"]
    return [*found, *([] if gpus() else ["GPU (torch reaches none here)"])]


def gpus() -> list[str]:
    """Devices that torch computes on besides the processor."""
    there = {"mps": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    return [name for name, found in there.items() if found]


def products() -> dict[str, Callable[[], Any]]:
    """Our kernels against BLAS, and weights stored the other way round."""
    from float_kernels import best

    chance = np.random.default_rng(0)
    x, w, y = (chance.normal(size=(n, HIDDEN)).astype(np.float32) for n in (BATCH, HIDDEN, BATCH))
    table, at = best(), {id(a): a.ctypes.data for a in (x, w, y)}
    panels = np.empty(table.packed_floats(HIDDEN, HIDDEN), np.float32)
    table.pack(HIDDEN, HIDDEN, at[id(w)], HIDDEN, 1, panels.ctypes.data)
    a, b = torch.from_numpy(x), torch.from_numpy(w)

    def own(call: Callable[..., None]) -> Callable[[], None]:
        sizes = (BATCH, HIDDEN, HIDDEN)
        return lambda: call(*sizes, at[id(x)], HIDDEN, at[id(w)], HIDDEN, at[id(y)], HIDDEN, 0)

    def packed() -> None:
        table.sgemm_packed(BATCH, HIDDEN, HIDDEN, x.ctypes.data, HIDDEN, panels.ctypes.data,
                           y.ctypes.data, HIDDEN, 0, 1)  # fmt: skip

    return {
        f"{SHAPE}: own kernel ({table.isa.decode()}), W [out, in]": own(table.sgemm_nt),
        f"{SHAPE}: own kernel, pre-transposed W [in, out]": own(table.sgemm_nn),
        f"{SHAPE}: own kernel, W packed beforehand": packed,
        f"{SHAPE}: torch.mm (MKL)": lambda: torch.mm(a, b.T),
        f"{SHAPE}: torch.mm, pre-transposed": lambda: torch.mm(a, b),
        f"{SHAPE}: NumPy (OpenBLAS, OPENBLAS_NUM_THREADS)": lambda: np.matmul(x, w.T, out=y),
    }


def optimisers() -> dict[str, Callable[[], Any]]:
    """A step of Adam: by vectors, by what a compiler makes of the loop, by torch."""
    from float_kernels import best, isas

    arrays = [np.full(PARAMETERS, 1e-3, np.float32) for _ in range(4)]
    found = {isa: stepper(best(isa), arrays) for isa in dict.fromkeys((isas()[0], "generic"))}
    whole: dict[str, Callable[[], Any]] = {f"Adam: own, {isa}": f for isa, f in found.items()}
    for name, fused in (("Adam: torch", False), ("Adam: torch, fused", True)):
        net = TicTacToeNet()
        for p in net.parameters():
            p.grad = torch.full_like(p, 1e-3)
        whole[name] = torch.optim.Adam(net.parameters(), 0.003, fused=fused).step
    return whole


def stepper(table: Any, arrays: list[NDArray[np.float32]]) -> Callable[[], None]:
    own = [array.copy() for array in arrays]
    w, g, m, v = (array.ctypes.data for array in own)

    def step(keep: object = own) -> None:
        table.adam(PARAMETERS, w, g, m, v, 1e-3, 0.9, 0.999, 1e-8, 1.0, 10)

    return step


def networks(compiled: bool) -> dict[str, Callable[[], Any]]:
    """Forward and backward of a minibatch by torch, as it is, compiled, and on GPUs."""
    found: dict[str, Callable[[], Any]] = {"forward and backward: torch": passes(TicTacToeNet())}
    for device in gpus():
        found[f"forward and backward: torch, {device}"] = passes(TicTacToeNet(), device)
    if compiled:
        found["forward and backward: torch.compile"] = passes(torch.compile(TicTacToeNet()))
    return found


def passes(net: Any, device: str = "cpu") -> Callable[[], None]:
    """A call that is done when it returns, on a GPU as well."""
    seen, net = torch.ones(BATCH, 27, device=device), net.to(device)
    wait = {"mps": torch.mps, "cuda": torch.cuda}.get(device)

    def both() -> None:
        net.zero_grad()
        logits, values = net(seen)
        (logits.square().mean() + values.square().mean()).backward()
        if wait:
            wait.synchronize()

    return both
