"""A perturbed core against an exact head, a prototype: `python experiments/text/exact_head.py`

Evolution's members each pay for the whole network, of which the head is four fifths with 4,096
byte pairs. Here a group of G members reads one stream together with an unperturbed one, which alone
runs the head. The head's error, 127 (onehot - p) in int8 rounded by chance, makes the head's votes,
and g = W^T error, what the core's outputs y lack. Members run the core and are scored by g y. All
else is token credit: a pair's difference g (y+ - y-) takes the place of its scores' difference.

A run makes as many updates as a share of a native minute has multiply-adds for: a minute of recipe
evolution is 325 updates of 131,072 member-tokens (two cores, Zen 4), and by its pace with V 256
(1,390 updates) a token of the core costs as much as 58,600 multiply-adds of the head, whatever is
done there. An exact head costs three products of V D: forwards, backwards, votes. The prototype
itself is slower, as it runs the members twice and the head in PyTorch. RESULTS.md has its figures.

--embedding error: the head's error goes on through the last norm's slope to the sum of all blocks,
and there to the embedding's rows, which then have no noise; --core frozen: no votes for the blocks.

Letters: S streams, G members of a stream, P = S G, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import engines
from eggroll.cli import command as cli
from eggroll.data.corpus import Corpus
from eggroll.evolution.estimators import CREDIT, TokenCredit, mean_size, scaled
from eggroll.evolution.population import Population
from eggroll.inference import loss_of, token_likelihoods
from eggroll.networks import egg, initial_weights
from eggroll.spec.credit import Turns, crediting
from eggroll.spec.fixed_point import Q
from eggroll.spec.noise import Noise
from eggroll.spec.program import Batch, Leaves, Program
from eggroll.training.config import Config
from eggroll.training.learner import fitting_chunk
from eggroll.training.run import bytes_per_token, load_run_corpus, validation_batches

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, where it is not installed
from experiments.arguments import check_packages

with suppress(ModuleNotFoundError):  # `main` says what is missing
    import torch

Floats = NDArray[np.float32]

MINUTE = 325 * 131_072  # member-tokens of recipe evolution
CORE = 58_600  # multiply-adds that a token of D 64, L 1 is worth
ERROR = 127  # where a probability is off by one
ROWS = 256  # of logits at a time
SILENT = 27  # a shift that leaves no noise


def core(vocabulary: int, width: int, layers: int, *, sums: bool = False) -> Program:
    """egg without its head: it puts out y, which the head reads; sums: also x, before the norm."""
    net = Program(vocabulary, width)
    net.stage()
    net.embed("embedding")
    for layer in range(layers):
        x, s = net.stage(f"layer{layer}.", state=True)
        n = net.norm(x, "norm1")
        f = net.add_bias(net.linear(n, "Wf", width), net.linear(s, "Uf", width), "bf")
        wh, uh = net.linear(n, "Wh", width), net.linear(net.forget(f, s), "Uh", width)
        h = net.add_bias(wh, uh, "bh")
        net.add(x, net.mix(f, h, s, out=s), out=x)
        up = net.linear(net.norm(x, "norm2"), "up", 4 * width)
        net.add(x, net.linear(up, "down", width), out=x)
    x, _ = net.stage()
    if sums:
        net.output(x, "x")
    net.output(net.norm(x, "norm"), "y")
    return net


class Head:
    """The exact head of unperturbed streams."""

    def __init__(self, vocabulary: int, width: int, seed: int) -> None:
        self.V, self.by = vocabulary, 16 * math.isqrt(width)
        self.random = torch.rand(2 * ROWS * self.V, generator=torch.Generator().manual_seed(seed))
        self.rng = np.random.default_rng(seed)

    def __call__(self, weights: Any, y: Any, targets: Any) -> tuple[float, Floats, NDArray[Any]]:
        """The mean loss in bits, what y lacks float32 [n, D], and votes Z int32 [V, D].

        weights: int8 [V, D]; y: int8 [n, D]; targets: int64 [n].
        """
        W, bits, lacks = torch.from_numpy(weights), 0.0, []
        Z = torch.zeros(W.shape, dtype=torch.int32)
        for first in range(0, len(y), ROWS):
            x, target = y[first : first + ROWS], targets[first : first + ROWS, None]
            u = torch._int_mm(x, W.T.contiguous()).float()
            u.mul_(1 / self.by).floor_().clamp_(-127, 127)
            hit, low = u.gather(1, target), u == -127
            odds = u.mul_(math.log(2) / 16).exp_()
            total = odds.sum(1, keepdim=True)
            bits += float((torch.log2(total) - hit / 16).sum())
            at = int(self.rng.integers(0, ROWS * self.V))
            chance = self.random[at : at + odds.numel()].view(odds.shape)
            error = odds.mul_(-ERROR / total).add_(chance).floor_()
            error.scatter_add_(1, target, torch.full(target.shape, float(ERROR)))
            error.masked_fill_(low & (error < 0), 0)  # no logit is pushed beyond the clip
            error.scatter_(1, target, error.gather(1, target) * (hit < 127))
            e = error.clamp_(-ERROR, ERROR).to(torch.int8)
            lacks.append(torch._int_mm(e, W))
            Z += torch._int_mm(e.T.contiguous(), x)
        return bits / len(y), torch.cat(lacks).numpy().astype(np.float32) / ERROR, Z.numpy()


def through_norm(lacks: Floats, y: NDArray[np.int8], x: NDArray[np.int8], w: Any) -> Floats:
    """What x [n, D] lacks, from what y = norm(x; w) lacks; no value is pushed beyond the clip."""
    wide = x.astype(np.float32)
    c = within(lacks, y) * np.asarray(w).astype(np.float32)
    mean = np.maximum(np.floor(abs(wide).mean(axis=1, keepdims=True)), 1)
    common = (c * wide).mean(axis=1, keepdims=True) / mean**2
    return within(c / mean - np.sign(wide) * common, x)


def within(lacks: Floats, values: NDArray[np.int8]) -> Floats:
    """The same without what would push a value at the clip further out."""
    out = ((values == 127) & (lacks > 0)) | ((values == -127) & (lacks < 0))
    return np.where(out, 0, lacks).astype(np.float32)


def updates(a: argparse.Namespace) -> int:
    """Those that a share of a minute has multiply-adds for."""
    tokens = a.streams * a.seq_len
    by = CORE * a.layers * a.width**2 / 64**2
    members = a.group if a.core == "evolved" else 0
    budget = a.share * MINUTE * (CORE + 4096 * 64)
    return int(budget / (tokens * ((1 + members) * by + 3 * a.vocabulary * a.width)))


class Trial:
    """A run of the prototype."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.P = a, a.streams * a.group
        self.steps = updates(a)
        self.options = Config(
            recipe="evolution", pop=self.P, seq_len=a.seq_len, width=a.width, layers=a.layers,
            vocabulary=a.vocabulary, steps=self.steps, sigma_shift=a.sigma_shift,
            discount=a.discount, data=a.data, seed=a.seed,
            learning_rate=a.learning_rate, threads=1,
        )  # fmt: skip
        self.corpus: Corpus = load_run_corpus(self.options)
        full = egg(a.vocabulary, a.width, a.layers)
        self.full, _ = engines.choose("cpu", full, 1)
        net = core(a.vocabulary, a.width, a.layers)
        estimator = TokenCredit(self.options, full)
        floors = estimator.floors() | {"head": 16 * ERROR}
        if a.embedding == "error":
            floors["embedding"] = 1
        self.rule = self.options.rule_class.make(self.options, full, estimator)
        self.rule.floors = floors
        self.weights = initial_weights(full, a.seed)
        self.memory = self.rule.start(self.weights)
        credited = crediting(
            net, nodes=True, sigma_shift=a.sigma_shift, discount=a.discount, seq_len=a.seq_len
        )
        self.names = [leaf.name for leaf in net.leaves]
        shifts = [
            SILENT if a.embedding == "error" and name == "embedding" else shift
            for name, shift in zip(self.names, credited.shifts, strict=True)
        ]
        self.credited = credited._replace(shifts=tuple(shifts))
        noise = Noise([leaf.shape for leaf in net.leaves], seed=a.seed, rank=1,
                      shift=Q + a.sigma_shift)  # fmt: skip
        engine, _ = engines.choose("cpu", net, 1)
        kept = TokenCredit.inputs_kept(net)
        chunk = fitting_chunk(engine, members=self.P, seq_len=a.seq_len, rank=1, kept=kept)
        self.members = Population(
            engine, noise, crediting=self.credited, members=self.P, group=a.group,
            chunk=max(chunk // a.group, 1) * a.group,
        )  # fmt: skip
        engine, _ = engines.choose("cpu", core(a.vocabulary, a.width, a.layers, sums=True), 1)
        self.plain = Population(engine, noise, members=a.streams, group=1, chunk=a.streams)
        self.state = self.plain.initial_state()
        self.streams = self.corpus.streams("train", a.streams, a.seq_len, a.seed)
        self.head, self.unit = Head(a.vocabulary, a.width, a.seed), 0.0

    def update(self, step: int) -> float:
        """Makes an update; returns the unperturbed members' bits per token."""
        a, batch = self.a, self.streams.batch(step)
        weights = {name: self.weights[name] for name in self.names}
        out, after = self.plain.plain_outputs(weights, Batch(batch.tokens, None, self.state))
        y, x = (np.array(out[name]).reshape(-1, a.width) for name in "yx")
        targets = torch.from_numpy(batch.targets.reshape(-1).astype(np.int64))
        bits, lacks, Z = self.head(np.array(self.weights["head"]), torch.from_numpy(y), targets)
        lacks = within(lacks, y)
        votes = self.votes(weights, step, batch, lacks)
        if a.embedding == "error":
            g = through_norm(lacks, y, x, weights["norm"])
            g *= 64 / max(float(abs(g).mean()), 1e-9)
            rows = torch.zeros(a.vocabulary, a.width)
            tokens = torch.from_numpy(batch.tokens.reshape(-1).astype(np.int64))
            rows.index_add_(0, tokens, torch.from_numpy(g))
            votes["embedding"] = mx.array(rows.round().numpy().astype(np.int32))
        moved = self.rule(self.weights, self.memory, votes | {"head": mx.array(Z)}, step)
        self.weights, self.memory, self.state = moved.weights, moved.memory, after
        mx.eval(self.weights)
        return bits

    def votes(self, weights: Leaves, step: int, batch: Any, lacks: Floats) -> Leaves:
        """Z of the core's leaves, by members that begin where their unperturbed one does."""
        a = self.a
        if a.core == "frozen":
            return {name: mx.zeros(w.shape, mx.int32) for name, w in weights.items()}
        state = mx.array(np.repeat(np.array(self.state), a.group, axis=0))
        batch = Batch(batch.tokens, None, state)
        turns = Turns(self.credited, seed=a.seed, step=step, pairs=self.P // 2)
        signs = turns.window(0, a.seq_len)
        y = np.array(self.members.outputs(weights, step, batch, signs)[0]["y"])
        apart = (y[0::2].astype(np.int16) - y[1::2]).astype(np.float32)
        apart = apart.reshape(a.streams, a.group // 2, a.seq_len, a.width)
        g = lacks.reshape(a.streams, a.seq_len, a.width)
        d = np.einsum("sptd,std->spt", apart, g).reshape(-1, a.seq_len).astype(np.float64)
        mean = mean_size(d)
        values = scaled(d, CREDIT, self.unit or mean).astype(np.int32)
        self.unit = mean
        return self.members.credit_values(weights, step, batch, signs, values)

    def validate(self) -> float:
        """Exact bits per byte of the whole network."""
        batches = validation_batches(self.corpus, self.options)
        likelihoods = token_likelihoods(self.full, self.weights, batches)
        size = bytes_per_token(self.corpus, self.options)
        return loss_of(likelihoods, self.corpus.warmup) / size


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of a minute's multiply-adds")
    parser.add_argument("--group", type=int, default=16, help="members of a stream")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--sigma-shift", type=int, default=2)
    parser.add_argument("--discount", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=1.5)
    parser.add_argument("--embedding", choices=["evolved", "error"], default="evolved")
    parser.add_argument("--core", choices=["evolved", "frozen"], default="evolved")
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main() -> int:
    a = arguments()
    check_packages("experiments", "torch")
    torch.set_num_threads(1)
    trial, begin = Trial(a), time.process_time()
    for step in range(trial.steps):
        bits = trial.update(step)
        if step % 50 == 0:
            print(f"update {step} of {trial.steps}: {bits:.3f} bits per token", flush=True)
    spent, found = time.process_time() - begin, trial.validate()
    words = ", ".join(f"{name} {value}" for name, value in vars(a).items())
    print(f"RESULT {words}: {trial.steps} updates, {found:.3f} bits per byte, {spent:.0f} CPU s")
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
