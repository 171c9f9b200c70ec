"""The program's operations in plain MLX, and the pass in which they run, for the portable engine.

Letters: P members, N pairs, D width, V vocabulary, K inputs, O outputs, r rank. All members at
once; sums are int32 in two's complement (they wrap).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from eggroll.spec import fixed_point as fx
from eggroll.spec.noise import Slices
from eggroll.spec.program import Op, Program, Weights


@dataclass
class TokenPass:
    """One row on its way through a program: everything an operation may read, as int32."""

    program: Program
    weights: Weights
    noise: Slices | None
    row: TokenRow
    registers: list[mx.array] = field(default_factory=list)

    @property
    def tokens(self) -> mx.array:
        return self.row.tokens

    def store(self, op: Op, value: mx.array) -> None:
        """Stores the result of an operation, in a register or for the caller."""
        if op.writes:
            self.registers[op.out] = value
        elif op.kind == "score":
            self.row.logits = value
        else:
            self.row.outputs[self.program.outputs[op.numbers[0]].name] = value

    def leaf(self, op: Op) -> mx.array:
        return self.weights[self.program.leaves[op.leaf].name].astype(mx.int32)

    def slice(self, leaf: int, offset: int, shape: tuple[int, ...]) -> mx.array:
        return table_slice(self.noise, leaf, offset, shape)  # type: ignore[arg-type]

    def vector(self, op: Op) -> mx.array:
        """A vector leaf as the members see it: [n], or [P, n] with noise."""
        w = self.leaf(op)
        if self.noise is None:
            return w
        two = self.slice(op.leaf, 0, (w.size, 2))
        return clip(w + (plus_minus(two[..., 0] * two[..., 1]) >> self.noise.shift))

    def noise_on_embedding(self, op: Op) -> mx.array | None:
        """The noise added to the row of each member's token, int32 [P, D]."""
        if self.noise is None:
            return None
        (V, D), r = self.leaf(op).shape, self.noise.rank
        B, A = self.slice(op.leaf, 0, (D, r)), self.slice(op.leaf, r * D, (V, r))
        A = mx.take_along_axis(plus_minus(A), self.tokens[:, None, None], axis=1)  # [P, 1, r]
        return (mx.repeat(B, 2, axis=0) * A).sum(axis=-1) >> self.noise.shift

    def noise_on_features(self, op: Op, indices: mx.array) -> mx.array | None:
        """The noise added to the sums of the rows of a list [P, n] (-1: none), int32 [P, D]."""
        if self.noise is None:
            return None
        D, r = self.leaf(op).shape[1], self.noise.rank
        B, A = self.slice(op.leaf, 0, (D, r)), feature_factors(self.noise, op.leaf, D, indices)
        A = A.sum(axis=1) * signs_of(indices.shape[0])  # [P, r]
        return (mx.repeat(B, 2, axis=0) * A[:, None]).sum(axis=-1) >> self.noise.shift

    def noise_on_list(self, op: Op, place: int, size: int) -> mx.array | None:
        """The noise added to the clipped values of a list, int32 [P, size]."""
        return None

    def noise_on_sums(self, op: Op, x: mx.array) -> mx.array | None:
        """The noise added to the sums of a linear leaf with inputs x [P, K], int32 [P, O]."""
        if self.noise is None:
            return None
        (O, K), r = self.leaf(op).shape, self.noise.rank
        B = mx.repeat(self.slice(op.leaf, 0, (K, r)), 2, axis=0)
        A = plus_minus(self.slice(op.leaf, r * K, (O, r)))
        xB = (x[..., None] * B).sum(axis=1, keepdims=True)  # [P, 1, r]
        return (xB * A).sum(axis=-1) >> self.noise.shift


@dataclass
class TokenRow:
    """One row of all members: the arrays that they read, and their results."""

    tokens: mx.array  # int32 [P]
    inputs: mx.array | None = None  # int8 [P, program.inputs]
    features: mx.array | None = None  # int32 [P, program.indices]
    logits: mx.array = field(init=False)  # int32 [P, V], once there is a score
    outputs: dict[str, mx.array] = field(default_factory=dict)  # int32 [P, size] by name


def embed(run: TokenPass, op: Op) -> mx.array:
    return clip(add_noise(run.leaf(op)[run.tokens], run.noise_on_embedding(op)))


def input_row(run: TokenPass, op: Op) -> mx.array:
    assert run.row.inputs is not None
    return mx.maximum(run.row.inputs.astype(mx.int32), -fx.LIMIT)


def index_lists(op: Op, features: mx.array) -> list[mx.array]:
    """The indices of each list of an operation, out of a row's features [.., program.indices]."""
    lists, active, first, _ = op.numbers
    return [features[..., first + i * active : first + (i + 1) * active] for i in range(lists)]


def features(run: TokenPass, op: Op) -> mx.array:
    E, values = run.leaf(op), []
    assert run.row.features is not None
    for place, indices in enumerate(index_lists(op, run.row.features)):
        total = (E[mx.maximum(indices, 0)] * (indices >= 0)[..., None]).sum(axis=1)
        y = clip(add_noise(total, run.noise_on_features(op, indices)) >> op.numbers[3])
        values.append(clip(add_noise(y, run.noise_on_list(op, place, E.shape[1]))))
    return mx.concatenate(values, axis=1)


def linear(run: TokenPass, op: Op) -> mx.array:
    return clip(sums(run, op) // fx.divisor(run.leaf(op).shape[1]))


def sums(run: TokenPass, op: Op) -> mx.array:
    W, x = run.leaf(op), run.registers[op.inputs[0]]
    return add_noise(exact_matmul(x, W.T), run.noise_on_sums(op, x))


def norm(run: TokenPass, op: Op) -> mx.array:
    x = run.registers[op.inputs[0]]
    mean = mx.maximum(mx.abs(x).sum(axis=1, keepdims=True) // x.shape[1], 1)
    return clip((x * run.vector(op)) // mean)


def add(run: TokenPass, op: Op) -> mx.array:
    a, b = (run.registers[i] for i in op.inputs)
    return clip(a + b)


def add_bias(run: TokenPass, op: Op) -> mx.array:
    a, b = (run.registers[i] for i in op.inputs)
    return clip(a + b + run.vector(op))


def bias(run: TokenPass, op: Op) -> mx.array:
    return clip(run.registers[op.inputs[0]] + run.vector(op))


def relu(run: TokenPass, op: Op) -> mx.array:
    return mx.maximum(run.registers[op.inputs[0]], 0)


def concat(run: TokenPass, op: Op) -> mx.array:
    return mx.concatenate([run.registers[i] for i in op.inputs], axis=1)


def lookup(run: TokenPass, op: Op) -> mx.array:
    table = mx.array(run.program.tables[op.table]).astype(mx.int32)
    return table[run.registers[op.inputs[0]] + fx.LIMIT]


def output(run: TokenPass, op: Op) -> mx.array:
    return run.registers[op.inputs[0]]


def forget(run: TokenPass, op: Op) -> mx.array:
    f, s = (run.registers[i] for i in op.inputs)
    return ((f + fx.LIMIT) * s) >> 8


def mix(run: TokenPass, op: Op) -> mx.array:
    f, h, s = (run.registers[i] for i in op.inputs)
    return s + (((f + fx.LIMIT) * (h - s)) >> 8)


OPERATIONS: dict[str, Callable[[TokenPass, Op], mx.array]] = {
    "embed": embed,
    "linear": linear,
    "norm": norm,
    "add": add,
    "add_bias": add_bias,
    "lookup": lookup,
    "forget": forget,
    "mix": mix,
    "score": linear,
    "input": input_row,
    "features": features,
    "bias": bias,
    "relu": relu,
    "concat": concat,
    "output": output,
    "sums": sums,
}


def scores(logits: mx.array, targets: mx.array, bits: int) -> mx.array:
    """Log-likelihoods int32 [P] of targets [P] by logits [P, V], in 2^-bits bit."""
    u = logits + 128
    total = mx.array(fx.exp2_table(bits))[u].astype(mx.int64).sum(axis=1)
    hit = mx.take_along_axis(u, targets[:, None], axis=1)[:, 0]
    return (hit << (bits - 4)) - log2_score(total, bits)


def log2_score(n: mx.array, bits: int = 4) -> mx.array:
    """int32 floor(S log2(n / S)) of int64 n >= 1, S = 2^bits: leading one by bisection, then
    breakpoints.
    """
    bit, rest = mx.zeros(n.shape, mx.int32), n
    for width in (32, 16, 8, 4, 2, 1):
        large = rest >= (1 << width)
        bit, rest = bit + large * width, mx.where(large, rest >> width, rest)
    scaled = n.astype(mx.uint64) << (63 - bit).astype(mx.uint64)
    breakpoints = mx.array(fx.log2_breakpoints(bits))
    fraction = (scaled[:, None] >= breakpoints[None]).sum(axis=1)
    return (((bit - bits) << bits) + fraction).astype(mx.int32)


def exact_matmul(a: mx.array, b: mx.array) -> mx.array:
    """int32 a [.., n, K] @ b [.., K, m] of int8-valued arrays.

    Exact in float32 because partial products over EXACT_K terms stay below 2^24. On the CPU NumPy's
    BLAS does it: MLX's own there is two orders of magnitude slower.
    """
    total = None
    for k in range(0, a.shape[-1], fx.EXACT_K):
        left, right = a[..., k : k + fx.EXACT_K], b[..., k : k + fx.EXACT_K, :]
        left, right = left.astype(mx.float32), right.astype(mx.float32)
        if mx.default_device().type == mx.DeviceType.cpu:
            partial = mx.array(np.matmul(np.array(left), np.array(right)))
        else:
            partial = left @ right
        partial = partial.astype(mx.int32)
        total = partial if total is None else total + partial
    assert total is not None
    return total


def clip(v: mx.array) -> mx.array:
    return mx.clip(v, -fx.LIMIT, fx.LIMIT)


def plus_minus(v: mx.array) -> mx.array:
    """A value per pair [N, ...] -> per member [2N, ...], the odd one negated."""
    return mx.stack([v, -v], axis=1).reshape(2 * v.shape[0], *v.shape[1:])


def add_noise(v: mx.array, noise: mx.array | None) -> mx.array:
    return v if noise is None else v + noise


def table_slice(noise: Slices, leaf: int, offset: int, shape: tuple[int, ...]) -> mx.array:
    """int32 [N, *shape]: table bytes from `offset` into each pair's slice of the leaf."""
    index = noise.starts[leaf][:, None] + offset + mx.arange(int(np.prod(shape)))[None]
    return noise.table[index].astype(mx.int32).reshape(-1, *shape)


def signs_of(members: int) -> mx.array:
    """int32 [P, 1]: 1 for even members, -1 for odd ones."""
    return 1 - 2 * (mx.arange(members) % 2)[:, None]


def feature_factors(noise: Slices, leaf: int, size: int, indices: mx.array) -> mx.array:
    """A of features, int32 [P, n, r], by the indices [P, n] of members, or [N, n] of pairs.

    A lies behind B in the slice of a leaf [count, size]. Zeros for the index -1.
    """
    r, starts = noise.rank, noise.starts[leaf]
    starts = mx.repeat(starts, indices.shape[0] // starts.size)[:, None, None]
    places = starts + r * (size + mx.maximum(indices, 0))[..., None] + mx.arange(r)
    return noise.table[places].astype(mx.int32) * (indices >= 0)[..., None]
