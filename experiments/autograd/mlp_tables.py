"""Tables of the MLP: its step with and without a tape, and its backward pass by operation."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eggroll.errors import InputError
from experiments.autograd import networks, nodes, peers
from experiments.autograd.buffers import Workspace
from experiments.autograd.kernels import Kernels
from experiments.autograd.manual import ManualMlp
from experiments.autograd.native import Native
from experiments.autograd.optimisers import Sgd
from experiments.autograd.tape import Profile, Tape, Tensor
from experiments.autograd.timing import Case, Clock, timed

RATE = 0.01
SPLIT = ("dw2", "db2", "d_a1", "relu", "dw1_db1")  # the document's operations


class Problem(NamedTuple):
    """A batch x [B, I], its labels, the first weights, and the clock that times its steps."""

    x: NDArray
    labels: NDArray
    layers: list[NDArray]
    clock: Clock


def problem(rows: int, inputs: int, hidden: int, outputs: int, clock: Clock) -> Problem:
    chance = np.random.default_rng(0)
    x = Workspace().take((rows, inputs))
    x[...] = chance.normal(size=x.shape)
    labels = chance.integers(0, outputs, rows).astype(np.int32)
    return Problem(x, labels, networks.initial(inputs, hidden, outputs), clock)


def tape_step(
    kernels: Kernels, given: Problem, path: str = "two-layer", mask: str = "output",
    workspace: Workspace | None = None, profile: bool = False, whole: bool = False,
    added: bool = False, reuse: str | None = None,
) -> Case:  # fmt: skip
    """A step on the tape: forward and loss, backward, SGD.

    profile: every operation's seconds besides, by "node.part". whole: the input's gradient, too.
    added: gradients are added to zeros instead of written in place. reuse: see nodes.relu.
    """
    tape = Tape(kernels, workspace)
    layers = [tape.parameter(w) for w in given.layers]
    optimiser, x = Sgd(tape, RATE), Tensor(given.x, needs_grad=whole)
    clock = given.clock

    def step() -> dict[str, float]:
        tape.profile = Profile(clock) if profile else None
        began = clock()
        tape.begin()
        x.grad = None
        logits = networks.mlp(tape, x, layers, path, mask, reuse)
        loss = nodes.cross_entropy(tape, logits, given.labels)
        forwards = clock()
        if added:
            for tensor in layers:
                tape.slot(tensor)[0].fill(0)
        tape.backward(loss)
        backwards = clock()
        optimiser.step()
        found = peers.split(began, forwards, backwards, clock())
        if tape.profile is None:
            return found
        return found | by_operation(tape.profile) | {"profiled": tape.profile.total}

    return step


def by_operation(profile: Profile) -> dict[str, float]:
    """Seconds of the parts of a profile by the document's names, whatever path was taken.

    A fused call applies the ReLU and sums db1 as it computes d_a1, so there they are part of it.
    """
    inside = dict(profile.fused.seconds)
    parts = profile.parts
    if inside["dw2"]:
        found = {name: inside[name] for name in ("dw2", "db2", "d_a1")}
        found |= {"relu": 0.0, "dw1_db1": inside["dw1"]}
        if profile.clock is not perf_counter:
            # The call's own clock counts other processes, which the longest part meets most.
            found["dw1_db1"] += parts["two_layer.all"] - sum(found.values())
        return found | {"d_a1_relu": found["d_a1"]}
    names = {"dw2": ["layer2.dw"], "db2": ["layer2.db"], "d_a1": ["layer2.dx"]}
    names |= {"relu": ["relu.dx"], "dw1_db1": ["layer1.dw", "layer1.db", "layer1.all"]}
    names["d_a1_relu"] = names["d_a1"] + names["relu"]
    return {name: sum(parts.get(part, 0.0) for part in wanted) for name, wanted in names.items()}


def manual_step(kernels: Kernels, given: Problem, mask: str = "output") -> Case:
    """The same step without a tape."""
    net = ManualMlp(kernels, given.x, given.labels, given.layers, mask)
    clock = given.clock

    def step() -> dict[str, float]:
        began = clock()
        net.forward()
        forwards = clock()
        net.backward()
        backwards = clock()
        net.descend(RATE)
        return peers.split(began, forwards, backwards, clock())

    return step


def steps(given: Problem, native: Native, torch: Any, compiled: bool) -> dict[str, Case]:
    """Every way to take a step of the MLP."""
    cases = {
        "tape, two-layer node": tape_step(native, given),
        "tape, two-layer node, mask of bits": tape_step(native, given, mask="bits"),
        "tape, linear+relu node": tape_step(native, given, "linear+relu"),
        "tape, plain nodes": tape_step(native, given, "plain"),
        "no tape": manual_step(native, given),
        "no tape, mask of bits": manual_step(native, given, "bits"),
        "NumPy: tape, plain nodes": tape_step(Kernels(), given, "plain"),
    }
    if torch is None:
        return cases
    words = torch, given.x, given.labels, given.layers, RATE, given.clock
    cases |= {"PyTorch": peers.mlp(*words), "PyTorch by hand": peers.mlp_by_hand(*words)}
    if compiled:
        cases["PyTorch, compiled"] = peers.mlp(*words, compiled=True)
    return cases


def isolated(given: Problem, kernels: Kernels) -> dict[str, Case]:
    """Each operation of the backward pass alone, on its own warm buffers, over and over."""
    net = ManualMlp(kernels, given.x, given.labels, given.layers)
    bits = ManualMlp(kernels, given.x, given.labels, given.layers, "bits")
    net.forward(), bits.forward()
    hidden = Workspace().take(net.a1.shape)
    dy, a1, out = net.slopes, net.a1, net.out

    def dw1_db1() -> None:
        kernels.column_sums(hidden, out.db1)
        kernels.matmul(hidden, given.x, out.dw1, "tn")

    calls = {
        "dw2": lambda: kernels.matmul(dy, a1, out.dw2, "tn"),
        "db2": lambda: kernels.column_sums(dy, out.db2),
        "d_a1": lambda: kernels.matmul(dy, net.net.w2, hidden),
        "relu": lambda: kernels.relu_backward(a1, None, hidden, hidden),
        "relu, bits": lambda: kernels.relu_backward(None, bits.bits, hidden, hidden),
        "dw1_db1": dw1_db1,
    }
    return {name: timed(name, call, given.clock) for name, call in calls.items()}


def in_tape(given: Problem, kernels: Kernels) -> dict[str, Case]:
    """The same operations where they run, inside the tape."""
    return {
        "two-layer node": tape_step(kernels, given, profile=True),
        "two-layer node, mask of bits": tape_step(kernels, given, mask="bits", profile=True),
        "plain nodes": tape_step(kernels, given, "plain", profile=True),
        "plain nodes, mask of bits": tape_step(kernels, given, "plain", "bits", profile=True),
        "plain nodes, NumPy": tape_step(Kernels(), given, "plain", profile=True),
    }


def sgemm_cases(given: Problem, native: Native, torch: Any) -> dict[str, Case]:
    """The two products that a step consists of, x w1^T and d^T x, in turn, by each library."""
    (rows, inputs), hidden = given.x.shape, len(given.layers[0])
    space = Workspace()
    arrays = [space.take(s) for s in ((rows, inputs), (hidden, inputs), (rows, hidden))]
    chance = np.random.default_rng(1)
    for array in arrays:
        array[...] = chance.normal(size=array.shape)
    x, w, d = arrays
    y, dw = space.take((rows, hidden)), space.take((hidden, inputs))

    def by(kernels: Kernels) -> Any:
        return lambda: (kernels.matmul(x, w, y, "nt"), kernels.matmul(d, x, dw, "tn"))

    cases = {
        "own": timed("products", by(native), given.clock),
        "NumPy": timed("products", by(Kernels()), given.clock),
    }
    if torch is not None:
        tx, tw, td, ty, tdw = (torch.from_numpy(a) for a in (x, w, d, y, dw))
        cases["PyTorch"] = timed(
            "products",
            lambda: (torch.mm(tx, tw.t(), out=ty), torch.mm(td.t(), tx, out=tdw)),
            given.clock,
        )
    return cases


def largest_error(found: list[NDArray], exact: list[NDArray]) -> float:
    """Of each array by its largest element; the worst.

    Raises:
        InputError: a gradient is missing.
    """
    if len(found) != len(exact):
        raise InputError(f"{len(found)} gradients were found: there must be {len(exact)}.")
    pairs = zip(found, exact, strict=True)
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)


def gradients(given: Problem, kernels: Kernels, mask: str, dtype: type) -> list[NDArray]:
    """Gradients of the two-layer node."""
    tape = Tape(kernels, dtype=dtype)
    layers = [tape.parameter(w) for w in given.layers]
    x = Tensor(given.x.astype(dtype))
    tape.backward(nodes.cross_entropy(tape, networks.mlp(tape, x, layers, mask=mask), given.labels))
    return [tensor.grad for tensor in layers if tensor.grad is not None]
