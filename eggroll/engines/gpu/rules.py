"""Update rules on a GPU: kernels in integers, the same for all networks, and their launches.

A thread takes a number. Letters: O outputs and K inputs of a leaf; a vector is one row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from eggroll.engines.gpu.dialect import Dialect, KernelSource
from eggroll.engines.gpu.launch import Launcher
from eggroll.engines.gpu.votes import kernel, launch_counts


def move_by_adam(
    launcher: Launcher, dialect: Dialect, leaf: tuple[Any, ...], factor: int
) -> list[mx.array]:
    """A leaf's weights and memory after an update, as of `Engine.adam`."""
    votes, *before, feedback, decay = leaf
    before += [feedback] * (feedback is not None)
    return _launch(
        launcher, adam_kernel(dialect, feedback is not None), [votes, *before], [factor, decay],
        before,
    )  # fmt: skip


def move_by_master(launcher: Launcher, dialect: Dialect, leaf: tuple[Any, ...]) -> list[mx.array]:
    """The same as of `Engine.master`."""
    votes, *before, factor, decay = leaf
    halves = [n - (n >> 31 << 32) for n in (factor & 0xFFFFFFFF, factor >> 32)]
    sizes = [*halves, decay]
    return _launch(launcher, master_kernel(dialect), [votes, *before], sizes, before)


def move_by_whitening(
    launcher: Launcher, dialect: Dialect, leaf: tuple[Any, ...], learns: bool
) -> list[mx.array]:
    """The same as of `Engine.whitened`."""
    votes, *before, feedback, matrices, factor, floor = leaf
    before += [feedback] * (feedback is not None)
    kernels = whitening_kernels(dialect, feedback is not None)
    K = votes.shape[-1]
    z = votes.reshape(-1, K)
    total = mx.abs(z.astype(mx.int64)).sum(axis=1)
    u, size = _launch(launcher, kernels["normal"], [z, total], [K, floor], [z, z[:, 0]])
    step, share = u, mx.full(len(z), int(factor), mx.int64)
    if matrices is not None:
        width = matrices.shape[1]
        (step,) = _launch(launcher, kernels["turned"], [u, matrices], [K, width], [u])
        most = mx.array(int(factor) * K, mx.int64)
        share = most * size // mx.maximum(mx.abs(step).sum(axis=1), 1)
    after = _launch(launcher, kernels["moved"], [step, share, *before], [K], before)
    if matrices is None or not learns:
        return after
    diagonal = u.astype(mx.int64).square().sum() // (256 * K)  # its mean
    sizes, like = [width, K, len(z)], [matrices]
    (m,) = _launch(launcher, kernels["excess"], [step, matrices, diagonal], sizes, like)
    (half,) = _launch(launcher, kernels["half"], [m, matrices], sizes, like)
    return after + _launch(launcher, kernels["next"], [half, m], sizes, like)


def _launch(
    launcher: Launcher, source: KernelSource, arrays: list[mx.array], sizes: list[int],
    like: list[mx.array],
) -> list[mx.array]:  # fmt: skip
    """Results like some arrays. sizes: what the kernel asks for behind the count of numbers."""
    shapes = [(a.shape, a.dtype) for a in like]
    return launch_counts(launcher, source, arrays, [like[0].size, *sizes], shapes, like[0].size)


@cache
def adam_kernel(dialect: Dialect, feedback: bool) -> KernelSource:
    """The kernel of an update by rule adam. sizes: numbers, lr and decay."""
    names = ["weights", "fine", "mean", "size", *["feedback"] * feedback]
    body = ADAM.replace("@", ADAM_FEEDBACK if feedback else "")
    before, after = " ".join(names), " ".join(f"new_{name}" for name in names)
    return kernel(dialect, "egg_adam", f"votes {before} sizes", after, "adam", body)


@cache
def master_kernel(dialect: Dialect) -> KernelSource:
    """The same by rule master. sizes: numbers, the halves of the votes' factor, and decay."""
    names, after = "votes weights fine sizes", "new_weights new_fine"
    return kernel(dialect, "egg_master", names, after, "draws adam", MASTER)


@cache
def whitening_kernels(dialect: Dialect, feedback: bool) -> dict[str, KernelSource]:
    """Those of rule whitened, in order; the last three learn. sizes: numbers, then as they say."""
    names = ["weights", "fine", *["feedback"] * feedback]
    before, after = " ".join(names), " ".join(f"new_{name}" for name in names)
    moved = MOVED.replace("@", MOVED_FEEDBACK if feedback else "")
    return {
        name: kernel(dialect, f"egg_{name}", f"{inputs} sizes", outputs, "adam whiten", body)
        for name, inputs, outputs, body in (
            ("normal", "votes total", "normal size", NORMAL),
            ("turned", "normal whitening", "turned", TURNED),
            ("moved", f"turned share {before}", after, moved),
            ("excess", "turned whitening diagonal", "change", EXCESS),
            ("half", "change whitening", "half_way", HALF),
            ("next", "half_way change", "learnt", NEXT),
        )
    }


# Their bodies, in words that a dialect translates.

ADAM = """\
const $uint at = $thread;
if (at < $uint(sizes[0])) {
  const int64_t vote = int64_t(egg::within(votes[at], 1 << 26)) * 16;
  const int64_t m = egg::scaled(mean[at], 230, 8) + egg::scaled(vote, 26, 8);
  const int s = egg::next_size(size[at], vote);
  const int64_t step = (m < 0 ? -m : m) * sizes[1] / (s < 1 ? 1 : s), change = m < 0 ? -step : step;
  const int copy = egg::moved_copy(fine[at], change, sizes[2]);
  new_mean[at] = int32_t(m);
  new_size[at] = s;
  new_fine[at] = copy;
  new_weights[at] = int8_t(egg::rounded(copy, 16));
@}
"""
ADAM_FEEDBACK = "  new_feedback[at] = egg::moved_copy(feedback[at], change, sizes[2]);\n"
MASTER = """\
const $uint at = $thread;
if (at < $uint(sizes[0])) {
  const uint64_t factor = egg::wide(uint32_t(sizes[2]), uint32_t(sizes[1]));
  const int64_t change = int64_t(uint64_t(int64_t(votes[at])) * factor) >> 24;
  const int copy = egg::moved_copy(fine[at], change, sizes[3]);
  new_fine[at] = copy;
  new_weights[at] = int8_t(egg::rounded(copy, 16));
}
"""
NORMAL = """\
const $uint at = $thread;
if (at < $uint(sizes[0])) {
  const int64_t K = sizes[1], row = at / $uint(sizes[1]), mean = (total[row] + K - 1) / K;
  const int64_t most = mean > sizes[2] ? mean : sizes[2], scale = most < 1 ? 1 : most;
  normal[at] = egg::within(egg::nearest_quotient(int64_t(votes[at]) * 256, scale), 32767);
  if (at % $uint(sizes[1]) == 0) size[row] = int32_t(256 * mean / scale);
}
"""
TURNED = """\
const $uint at = $thread;
if (at < $uint(sizes[0])) {
  const int K = sizes[1], width = sizes[2], column = int(at % $uint(K)), block = column / width;
  const int first = block * width, left = K - first, count = left < width ? left : width;
  const ${device}int32_t* const u = normal + (at - $uint(column - first));
  const ${device}int32_t* const P = whitening + block * width * width + (column - first);
  int64_t sum = 0;
  for (int k = 0; k < count; ++k) sum += int64_t(u[k]) * P[k * width];
  turned[at] = egg::within(egg::nearest(sum), 32767);
}
"""
MOVED = """\
const $uint at = $thread;
if (at < $uint(sizes[0])) {
  const int64_t change = egg::nearest(turned[at] * share[at / $uint(sizes[1])]);
  const int copy = egg::moved_copy(fine[at], change, 0);
  new_fine[at] = copy;
  new_weights[at] = int8_t(egg::rounded(copy, 16));
@}
"""
MOVED_FEEDBACK = "  new_feedback[at] = egg::moved_copy(feedback[at], change, 0);\n"
# Of matrices: which one, its first number, row and column.
PLACED = """\
const $uint at = $thread;
if (at < $uint(sizes[0])) {
  const int width = sizes[1], block = int(at) / (width * width), first = block * width * width;
  const int i = (int(at) - first) / width, j = (int(at) - first) % width;
"""
EXCESS = (
    PLACED
    + """\
  const int one = 1 << 16, K = sizes[2], a = block * width + i, b = block * width + j;
  const int64_t square = egg::nearest(egg::product_of(whitening + first, whitening + first, width,
                                                      i, j));
  int64_t power = 0, excess = one * int64_t(i == j);
  if (a < K && b < K)
    for (int row = 0; row < sizes[3]; ++row)
      power += int64_t(turned[row * K + a]) * turned[row * K + b];
  if (diagonal[0] > 0) {
    excess = egg::floor_quotient(power * 256, diagonal[0]) + egg::floor_quotient(square, 10);
    excess = egg::within(excess, 1 << 22);
  }
  change[at] = int32_t(one * int64_t(i == j) - ((excess - one * int64_t(i == j)) >> 7));
}
"""
)
HALF = (
    PLACED
    + """\
  half_way[at] = int32_t(egg::nearest(egg::product_of(change + first, whitening + first, width,
                                                      i, j)));
}
"""
)
NEXT = (
    PLACED
    + """\
  const int64_t one = egg::nearest(egg::product_of(half_way + first, change + first, width, i, j));
  const int64_t other = egg::nearest(egg::product_of(half_way + first, change + first, width, j,
                                                     i));
  learnt[at] = egg::within((one + other) >> 1, (1 << 19) - 1);
}
"""
)
