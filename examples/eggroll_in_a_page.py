"""The paper in one page of NumPy: an int8 network learns to count, without a gradient.

Members of a population come in pairs: one adds the pair's noise to the weights, the other subtracts
it, and both read the same tokens. A pair votes for the noise of its better member, and a weight
moves by one where the votes are clearer than chance. These two print the same signature:

    python examples/eggroll_in_a_page.py
    python -m eggroll.train --data count --pop 256 --width 32 --seq-len 8 --steps 100 \
        --alpha-decay 100 --table-bits 16

Values are int8 in sixteenths, never -128; arrays are wider, so that no product overflows. Shapes:
P population, N = P/2 pairs, T tokens, D width, V vocabulary, O outputs and K inputs of a matrix.
"""

import hashlib
from functools import partial, reduce
from math import erfc, isqrt, prod, sqrt

import numpy as np

P, N, T, D, V, TABLE_SIZE, ALPHA_DECAY, SIGMA_SHIFT = 256, 128, 8, 32, 16, 1 << 16, 100, 4
SHIFT = 4 + SIGMA_SHIFT  # So that the noise on a weight has the deviation 2^-SIGMA_SHIFT.
# The network is declared by its weights, in the order of the signature; `forward` says their use.
NETWORK = {"embedding": (V, D), "norm1": (D,)}
NETWORK |= {"Wf": (D, D), "Uf": (D, D), "bf": (D,), "Wh": (D, D), "Uh": (D, D), "bh": (D,)}  # GRU
NETWORK |= {"norm2": (D,), "up": (4 * D, D), "down": (D, 4 * D), "norm": (D,), "head": (V, D)}
clip = partial(np.clip, a_min=-127, a_max=127)  # The network has no other activation function.
EXP2 = np.array([16 * 2 ** (i / 16) for i in range(320)])  # [320], exact where it is whole
FOR_TABLE, FOR_SLICES, FOR_WEIGHTS, FOR_COUNT, GOLDEN = 1, 2, 3, 5, 0x9E3779B97F4A7C15


def mix(z):  # uint64 of any shape -> its hash, by the finalizer of SplitMix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def words(key, index):  # Random uint64 of the shape of index; any can be drawn alone.
    stream = reduce(lambda h, number: mix((h ^ number) + GOLDEN), key, np.zeros(1, np.uint64))
    return mix(stream + index.astype(np.uint64) * GOLDEN)


def normal(key, shape):  # round(16 N(0, 1)): 16 random bits are looked up among the quantiles.
    bits = words(key, np.arange(prod(shape) // 4)).astype("<u8").view("<u2")  # [size]
    edges = [erfc(-(k + 0.5) / 16 / sqrt(2)) * 32768 - 0.5 for k in range(-127, 127)]
    return np.searchsorted(edges, bits, "right").reshape(shape) - 127


def batch(seed, step):  # Tokens and targets, [2, P, T]. A document is the mark 0 and 31 numbers.
    key, pair = (seed, FOR_COUNT, 1), np.arange(N)[:, None]  # [N, 1]
    cut = (words(key, 2 * pair + 1) >> 32).astype(int) % 32  # [N, 1], so that marks are spread.
    document, place = np.divmod(step * T + np.arange(T) + cut, 32)  # [N, T]
    place -= cut * (document == 0)  # The first document is shorter by the cut.
    begin = (words(key, (document << 26) + 2 * pair) % (V - 1)).astype(int)  # [N, T]
    counted = 1 + (begin + np.array([place - 1, place])) % (V - 1)  # [2, N, T]; after the mark, 1.
    return np.where(place == 0, [[[0]], [[1]]], counted).repeat(2, axis=1)  # A pair reads the same.


def draw_noise(table, seed, step):  # A [P, O] and B [P, K] of a matrix, both [P, n] of a vector
    noise, sign = {}, np.tile([[1], [-1]], (N, 1))  # [P, 1]
    for leaf, (name, shape) in enumerate(NETWORK.items()):
        size = sum(shape) if len(shape) == 2 else 2 * shape[0]
        upper = words((seed, FOR_SLICES, step, leaf), np.arange(N)) >> 32  # [N]
        start = (upper * (TABLE_SIZE - size + 1) >> 32).astype(int)[:, None]  # [N, 1]
        cut = table[start + np.arange(size)].repeat(2, axis=0)  # [P, size]
        B, A = np.split(cut, [shape[1]], 1) if len(shape) == 2 else (cut[:, 1::2], cut[:, ::2])
        noise[name] = sign * A, B
    return noise


def forward(w, noise, token, s):  # Token [P] and state [P, D] -> logits [P, V] and the new state.
    vectors = {k: clip(w[k] + (A * B >> SHIFT)) for k, (A, B) in noise.items() if w[k].ndim == 1}

    def linear(name, x):  # [P, K] -> [P, O]. (W + A B^T) x = W x + A (B . x): no member has a
        A, B = noise[name]  # matrix of its own, and all members share the product with W.
        added = A * (B * x).sum(1, keepdims=True) >> SHIFT  # [P, O]
        return clip((x @ w[name].T + added) // (16 * isqrt(x.shape[1])))

    def norm(name, x):  # [P, D] -> [P, D]
        return clip(x * vectors[name] // np.maximum(1, abs(x).sum(1, keepdims=True) // D))

    A, B = noise["embedding"]  # [P, V], [P, D]
    x = clip(w["embedding"][token] + (A[range(P), token][:, None] * B >> SHIFT))  # [P, D]
    s = np.where(token[:, None] == 0, 0, s)  # A new document begins without a memory.
    n = norm("norm1", x)
    f = clip(linear("Wf", n) + linear("Uf", s) + vectors["bf"]) + 127  # The gate, 0 to 254 of 256,
    h = clip(linear("Wh", n) + linear("Uh", f * s >> 8) + vectors["bh"])
    s = s + (f * (h - s) >> 8)  # says how far the state goes towards h.
    x = clip(x + s)
    x = clip(x + linear("down", linear("up", norm("norm2", x))))
    return linear("head", norm("norm", x)), s


def train(seed=0, steps=100):  # Prints the members' mean loss, returns the signature.
    table, weights, s = normal((seed, FOR_TABLE), (TABLE_SIZE,)), {}, np.zeros((P, D), int)
    for leaf, (name, shape) in enumerate(NETWORK.items()):
        vector = np.full(shape, 16 if "norm" in name else 0)
        weights[name] = vector if len(shape) == 1 else normal((seed, FOR_WEIGHTS, leaf), shape)
    for step in range(steps):
        noise, scores = draw_noise(table, seed, step), np.zeros(P, int)
        for token, target in batch(seed, step).transpose(2, 0, 1):  # [P] each
            logits, s = forward(weights, noise, token, s)
            total = (EXP2[logits + 128] // 1).sum(1)  # [P], whose log2 is its place in EXP2.
            scores += logits[range(P), target] + 129 - np.searchsorted(EXP2, total, "right")
        fitness = np.sign(scores[::2] - scores[1::2])  # [N]: which member won, not by how much.
        decided = max(1, np.count_nonzero(fitness))  # Once most pairs tie, N counts the others.
        alpha = 1 / (1 + (2**4 - 1) * step / ALPHA_DECAY)  # The share that chance alone would move.
        z = sum(erfc(q / 16 / sqrt(2)) >= alpha for q in range(1, 128))  # in sixteenths of sigma,
        threshold = 16 * z * isqrt(decided if 2 * decided < N else N)  # 256 sqrt(N) for N votes.
        for name, w in weights.items():
            A, B = (factor[::2] for factor in noise[name])  # The very noise that was evaluated.
            votes = (A.T * fitness) @ B if w.ndim == 2 else fitness @ (A * B)  # of w's shape
            weights[name] = clip(w + np.where(votes > 0, 1, -1) * (abs(votes) >= threshold))
        if (step + 1) % 10 == 0:
            print(f"update {step + 1}: {-scores.mean() / 16 / T:.3f} bits per token", flush=True)
    return hashlib.sha256(b"".join(w.astype(np.int8) for w in weights.values())).hexdigest()


if __name__ == "__main__":
    print("signature:", train())
