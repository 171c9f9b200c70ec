"""Linear layers of an mlx-lm model that run a population: the base product is shared by all rows,
and each member adds its low-rank part.

Rows are member-major, so that the rows of a pair are neighbours: first those of its member 2i, then
as many of 2i + 1, whose noise is the opposite. Letters: R rows, T tokens of a row, K inputs,
O outputs, C columns of a delta, r rank of the noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log2, sqrt
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from eggroll.errors import InputError
from eggroll.lm.learner import NOISE_BITS, Delta, Mode, Options, PairNoise, mode_of
from eggroll.spec import rng
from eggroll.spec.program import Leaves

# MLX types its layers not at all.
Linear: Any = nn.Linear  # type: ignore[attr-defined]
QuantizedLinear: Any = nn.QuantizedLinear  # type: ignore[attr-defined]
KINDS: Final = (Linear, QuantizedLinear)
FLAT_EXPONENT: Final = -8  # of a layer whose weights are all zero
LEAST_FLOAT16: Final = -24  # exponent of the smallest number of float16


class NoisyLinear(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer that members share.

    linear: the layer, whose biases or weights are those of the delta in modes biases and dense.
    """

    def __init__(self, linear: Any, leaf: Delta, mode: Mode, seed: int, index: int) -> None:
        super().__init__()
        self.linear = linear
        self.runner = LinearRunner(linear, leaf, mode, seed, index)

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = self.runner(x)
        return y


class LinearRunner:
    """The arrays of a NoisyLinear, which are no parameters of the model.

    fixed: of an adapter V^T [K, C], of ±1; learnt: its U^T [C, O] with the unit; base: in modes
    biases and dense the array that the delta is added to.
    """

    def __init__(self, linear: Any, leaf: Delta, mode: Mode, seed: int, index: int) -> None:
        self.linear, self.leaf, self.mode = linear, leaf, mode
        self.fixed: mx.array | None = None
        self.learnt: Any = None
        self.base: mx.array | None = None
        self.parameter = {"biases": "biases", "dense": "weight"}.get(mode.name, "")
        if mode.name == "adapter":
            dtype = float_of(linear)
            self.fixed = mx.array(signs(seed, index, leaf.inputs, leaf.columns)).astype(dtype)
        else:
            self.base = linear[self.parameter]
        self.pairs = 0  # of the members that run now; 0 for the model itself
        self.rows = 0  # R
        self._A: Any = None  # [pairs, r, O]
        self._B: Any = None  # [pairs, C, r]
        self._scale: Any = None  # [1, 2, 1, 1]: of member 2i, and the opposite

    def set_delta(self, delta: mx.array) -> None:
        """Puts the layer where its delta is, int8 [O, C]."""
        if self.base is None:
            assert self.fixed is not None
            self.learnt = (delta.T * self.leaf.unit).astype(self.fixed.dtype)
            mx.eval(self.learnt)
            return
        moved = self.base.astype(mx.float32) + delta.astype(mx.float32) * self.leaf.unit
        self.linear[self.parameter] = moved.astype(self.base.dtype)
        mx.eval(self.linear[self.parameter])

    def reset(self) -> None:
        """Gives the layer its own array back."""
        if self.base is not None:
            self.linear[self.parameter] = self.base

    def set_noise(self, noise: PairNoise | None, rows: int, scale: float) -> None:
        """Makes the layer run these members, R rows in all; None for the model itself."""
        self.rows = rows
        if noise is None:
            self.pairs, self._A, self._B, self._scale = 0, None, None, None
            return
        pairs, _, rank = noise.A.shape
        self.pairs = pairs
        step = scale * self.leaf.unit * 2.0 ** (NOISE_BITS - 8) / sqrt(rank)
        self._A = mx.array(noise.A.transpose(0, 2, 1)).astype(float_of(self.linear))
        self._B = mx.array(noise.B).astype(mx.float32)
        self._scale = mx.array([step, -step]).reshape(1, 2, 1, 1)

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = self.linear(x)
        z = x
        if self.fixed is not None:
            z = x @ self.fixed
            # The operations of mlx-lm's LoRALinear, so that its results are the same.
            y = y + (z @ self.learnt).astype(x.dtype)
        if not self.pairs:
            return y
        if x.shape[0] != self.rows:
            raise InputError(
                f"Layer {self.leaf.name!r} gets inputs of shape {list(x.shape)} and {self.rows} "
                "rows of members were put in: models whose layers regroup rows, such as experts "
                "of mixtures, cannot run members there."
            )
        if self.mode.name == "biases":
            z = x.reshape(*x.shape[:-1], self.leaf.columns, -1).sum(axis=-1)
        return self._with_noise(z, y)

    def _with_noise(self, z: mx.array, y: mx.array) -> mx.array:
        """y [R, .., O] and every member's noise on z [R, .., C]."""
        A, B = self._A, self._B
        pairs, C, r = B.shape
        wide = y.reshape(pairs, 2, -1, y.shape[-1])
        z = z.reshape(pairs, 2, -1, C)
        if r == 1:  # on a CPU some three times faster than a batch of products
            t = (z * B.reshape(pairs, 1, 1, C)).sum(axis=-1, keepdims=True)
            part = (t * self._scale).astype(y.dtype) * A.reshape(pairs, 1, 1, -1)
        else:
            t = z.astype(mx.float32) @ B[:, None]
            part = (t * self._scale).astype(y.dtype) @ A[:, None]
        noisy: mx.array = (wide + part).reshape(y.shape)
        return noisy


def float_of(linear: Any) -> mx.Dtype:
    """The float type in which a layer computes."""
    dtype: mx.Dtype = linear.scales.dtype if "scales" in linear else linear.weight.dtype
    return dtype if dtype in (mx.float16, mx.bfloat16, mx.float32) else mx.float32


def signs(seed: int, index: int, inputs: int, columns: int) -> Any:
    """The fixed half of an adapter, ±1, int8 [K, C]: bits of the words of (seed, layer)."""
    count = inputs * columns
    words = rng.counters(rng.key(seed, rng.PROJECTION, index), 0, -(-count // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:count]
    return (2 * bits.astype(np.int8) - 1).reshape(inputs, columns)


class Layers:
    """The linear layers in a model's blocks, as members run them.

    leaves: of those that learn; untouched: kinds of modules with parameters that do not, and how
    many there are.
    """

    def __init__(self, model: Any, options: Options) -> None:
        """Finds the layers; the model stays as it is until `installed`.

        Raises:
            InputError: the model has none that can learn so.
        """
        self.model, self.mode = model, mode_of(options.learn)
        found = list(linear_layers(model))
        self.untouched = Counter(
            type(module).__name__ for name, module in model.named_modules()
            if name not in dict(found) and _own_parameters(module)
        )  # fmt: skip
        if wrapped := sorted(kind for kind in self.untouched if kind.startswith(("LoRA", "DoRA"))):
            raise InputError(
                f"The model has layers of kind {wrapped[0]}: fuse its adapter first (mlx_lm.fuse), "
                "or give the model without it."
            )
        usable = [(name, linear) for name, linear in found if _usable(linear, self.mode)]
        if not usable:
            kinds = ", ".join(sorted({type(m).__name__ for _, m in found} | {*self.untouched}))
            needed = {
                "adapter": "Linear or QuantizedLinear", "dense": "Linear",
                "biases": "affine QuantizedLinear",
            }[self.mode.name]  # fmt: skip
            raise InputError(
                f"The model's blocks have no layer of kind {needed}, which mode "
                f"{options.learn} needs (they have {kinds}): use another model or mode."
            )
        self.leaves = [leaf_of(name, linear, self.mode, options.sigma) for name, linear in usable]
        self._layers = [
            NoisyLinear(linear, leaf, self.mode, options.seed, i)
            for i, ((_, linear), leaf) in enumerate(zip(usable, self.leaves, strict=True))
        ]
        self._plain = [linear for _, linear in usable]

    def set_deltas(self, deltas: Leaves) -> None:
        """Moves every layer to its delta."""
        for layer in self._layers:
            layer.runner.set_delta(deltas[layer.runner.leaf.name])

    def reset(self) -> None:
        """Puts the model back as it was given."""
        for layer in self._layers:
            layer.runner.reset()

    @contextmanager
    def members(
        self, noise: Sequence[PairNoise] | None, rows: int, scale: float = 1.0
    ) -> Iterator[None]:
        """Within the block the model runs these members, R rows in all; None for itself."""
        for i, layer in enumerate(self._layers):
            layer.runner.set_noise(noise[i] if noise else None, rows, scale)
        names = [leaf.name for leaf in self.leaves]
        self.model.update_modules(tree_unflatten(list(zip(names, self._layers, strict=True))))
        try:
            yield
        finally:
            self.model.update_modules(tree_unflatten(list(zip(names, self._plain, strict=True))))
            for layer in self._layers:
                layer.runner.set_noise(None, 0, 1.0)

    def changed(self) -> dict[str, mx.array]:
        """The arrays of the model that modes biases and dense have changed, by name."""
        return {
            f"{layer.runner.leaf.name}.{layer.runner.parameter}": layer.runner.linear[
                layer.runner.parameter
            ]
            for layer in self._layers
        }


def linear_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """(name in the model, layer) of the linear layers of all blocks, in order."""
    names = {id(module): name for name, module in model.named_modules()}
    for block in model.layers:
        inner = [m for _, m in block.named_modules() if type(m) in KINDS]
        yield from sorted((names[id(m)], m) for m in inner)


def _own_parameters(module: Any) -> bool:
    return any(isinstance(value, mx.array) for value in module.values())


def _usable(linear: Any, mode: Mode) -> bool:
    if mode.name == "adapter":
        return True
    quantised = isinstance(linear, QuantizedLinear)
    return not quantised if mode.name == "dense" else quantised and "biases" in linear


def leaf_of(name: str, linear: Any, mode: Mode, sigma: float) -> Delta:
    """The delta of a layer, its last bit an eighth of the noise's deviation.

    Raises:
        InputError: the layer computes in float16, which does not hold that bit.
    """
    weights = weights_of(linear)
    outputs, inputs = weights.shape
    mean_square = float(np.asarray(mx.square(weights).mean()))
    columns = {"adapter": mode.rank, "dense": inputs}.get(mode.name, 0)
    columns = columns or inputs // int(linear.group_size)
    exponent = FLAT_EXPONENT
    if mean_square > 0:
        # An adapter's C columns add up.
        spread = mode.rank if mode.name == "adapter" else 1
        exponent = round(log2(sigma * sqrt(mean_square / spread))) - NOISE_BITS
    dtype = str(float_of(linear)).removeprefix("mlx.core.")
    if dtype == "float16" and exponent < LEAST_FLOAT16:
        raise InputError(
            f"sigma is {sigma:g}: the last bit of layer {name!r} would be 2^{exponent}, and its "
            f"float16 holds 2^{LEAST_FLOAT16} at least: give "
            f"{sigma * 2.0 ** (LEAST_FLOAT16 - exponent):.2g} or more, or a bfloat16 model."
        )
    return Delta(name, outputs, inputs, columns, exponent, dtype)


def weights_of(linear: Any) -> mx.array:
    """A layer's weights, float32 [O, K]."""
    if isinstance(linear, QuantizedLinear):
        wide: mx.array = mx.dequantize(
            linear.weight, linear.scales, linear.get("biases"), linear.group_size, linear.bits,
            mode=linear.mode,
        )  # fmt: skip
        return wide.astype(mx.float32)
    plain: mx.array = linear.weight.astype(mx.float32)
    return plain


def load_model(path: str | Path) -> tuple[Any, Any]:
    """Model and tokenizer of a folder or of the Hugging Face hub, by mlx-lm.

    Raises:
        InputError: mlx-lm is missing, or cannot load it.
    """
    try:
        import mlx_lm
    except ImportError as error:
        raise InputError(
            f"eggroll.lm needs mlx-lm ({error}): install it with pip install 'eggroll-mlx[lm]'."
        ) from error
    try:
        loaded: tuple[Any, Any] = mlx_lm.load(str(path))[:2]
    except (
        ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise InputError(
            f"mlx-lm cannot load the model {str(path)!r} ({type(error).__name__}: {error!s:.200}): "
            "give a folder in mlx-lm's format, or the name of a model on the Hugging Face hub."
        ) from error
    return loaded
