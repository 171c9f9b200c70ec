"""The CPU engine: blocks of 32 members run all T tokens through the whole program in C++.

See extensions/int8_gemm. Letters: P members, N pairs, T tokens, V vocabulary, K inputs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from eggroll import _extension
from eggroll.engines.base import Engine, RuleArrays, RuleLeaves
from eggroll.errors import InputError
from eggroll.spec import fixed_point as fx
from eggroll.spec.backward import Backward, Learnt
from eggroll.spec.credit import Crediting, CreditNoise
from eggroll.spec.noise import Slices
from eggroll.spec.program import Batch, Program, Weights

LANES = 32  # members of a block
LOSS_CODES = {"": 0, "softmax": 1, "squared": 2, "sigmoid": 3}  # Loss of plan.h


class CpuEngine(Engine):
    """C++ kernels of the fastest instruction set that is built and detected."""

    name = "cpu"
    plays: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    looks_up: ClassVar[bool] = True
    rules = ("adam", "master", "whitened")

    @classmethod
    def unavailable_because(cls) -> str:
        try:
            _extension.load()
        except InputError as error:
            return str(error)
        return ""

    def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:
        super().__init__(program, threads, block_tokens)
        self._native = _extension.load()
        # Half a core's cache for the activations passed on; shorter blocks gather noise too often.
        self.block_tokens = block_tokens or max(
            64, self._native.cache_bytes() // 2 // (LANES * program.width)
        )
        try:
            self._native.isa()
        except ValueError as error:
            raise InputError(str(error)) from None
        names, by_byte = lookup_tables(program)
        self._program = self._native.Program(
            stages=[
                (
                    [
                        (
                            op.kind,
                            op.out,
                            list(op.inputs),
                            op.leaf,
                            names.index(op.table) if op.table else 0,
                            list(op.numbers),
                        )
                        for op in stage.ops
                    ],
                    stage.registers,
                    stage.state,
                )
                for stage in program.stages
            ],
            leaves=[(leaf.shape[0], (*leaf.shape, 0)[1]) for leaf in program.leaves],
            width=program.width,
            vocabulary=program.vocabulary,
            state_size=program.state_size,
            tables=by_byte,
            exp2_mantissas=fx.exp2_mantissas().tolist(),
            log2_breakpoints=fx.log2_breakpoints(program.score_bits).tolist(),
            inputs=program.inputs,
            indices=program.indices,
            outputs=[(output.size, output.wide) for output in program.outputs],
        )

    @property
    def description(self) -> str:
        threads = self.threads or self._native.default_threads()
        return (
            f"cpu ({self._native.isa()}, {threads} thread{'s' * (threads > 1)}, "
            f"blocks of {LANES} members x {self.block_tokens} tokens)"
        )

    def array(self, shared: NDArray[Any]) -> mx.array:
        view: mx.array = self._native.view(shared)  # without a copy
        return view

    def prepare(self, weights: Weights) -> Any:
        return self._program.pack([weights[leaf.name] for leaf in self.program.leaves])

    def evaluate(
        self, prepared: Any, noise: Slices | None, batch: Batch
    ) -> tuple[mx.array, mx.array]:
        after, scores = self._native.evaluate(
            self._program, prepared, self._noise(noise), batch.tokens, batch.targets, batch.state,
            row_arrays(batch), self.threads, self.block_tokens,
        )  # fmt: skip
        return scores, after

    def outputs(
        self,
        prepared: Any,
        noise: Slices | None,
        batch: Batch,
        credit_noise: CreditNoise | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[dict[str, mx.array], mx.array]:
        after, *values = self._native.outputs(
            self._program, prepared, self._noise(noise), batch.tokens, batch.state,
            row_arrays(batch), credit_noise and credit_noise.signs,
            crediting and self._crediting(crediting), self.threads, self.block_tokens,
        )  # fmt: skip
        names = [output.name for output in self.program.outputs]
        return dict(zip(names, values, strict=True)), after

    def votes(self, fitness: mx.array, noise: Slices, clt: bool) -> dict[str, mx.array]:
        names = [leaf.name for leaf in self.program.leaves]
        Z = self._native.votes(
            self._program, fitness, noise.table, noise.starts, noise.rank, not clt, self.threads
        )
        return dict(zip(names, Z, strict=True))

    def credit(
        self,
        prepared: Any,
        noise: Slices,
        batch: Batch,
        credit_noise: CreditNoise,
        crediting: Crediting,
        values: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        after, scores, *Z = self._native.credit(
            self._program, prepared, self._noise(noise), credit_noise.signs, credit_noise.draws,
            self._crediting(crediting), batch.tokens, batch.targets, batch.state, row_arrays(batch),
            values, self.threads, self.block_tokens,
        )  # fmt: skip
        names = [leaf.name for leaf in self.program.leaves]
        return scores, after, dict(zip(names, Z, strict=True))

    def learn(self, prepared: Any, batch: Batch, words: mx.array, back: Backward) -> Learnt:
        matrices = [back.matrices.get(leaf.name) for leaf in self.program.leaves]
        mx.eval([matrix for matrix in matrices if matrix is not None])  # all at once
        wanted = None
        if back.losses:
            wanted = self._native.Targets([LOSS_CODES[k] for k in back.losses], batch.wanted)
        after, scores, sizes, *made = self._native.learn(
            self._program, prepared, batch.tokens,
            batch.tokens if batch.targets is None else batch.targets, batch.state,
            row_arrays(batch), batch.index, words, back.scales, matrices, batch.errors, wanted,
            self.threads,
        )  # fmt: skip
        names = [leaf.name for leaf in self.program.leaves]
        rated = made[: len(made) - len(names)]
        Z = made[len(rated) :]
        return Learnt(scores, after, dict(zip(names, Z, strict=True)), sizes, *rated)

    def adam(self, leaves: RuleLeaves, factor: int) -> RuleArrays:
        return rule_by_extension(self._native, "adam", leaves, factor, self.threads)

    def master(self, leaves: RuleLeaves) -> RuleArrays:
        return rule_by_extension(self._native, "master", leaves, self.threads)

    def whitened(self, leaves: RuleLeaves, learns: bool) -> RuleArrays:
        return rule_by_extension(self._native, "whitened", leaves, learns, self.threads)

    def play(
        self,
        prepared: Any,
        noise: Slices,
        state: mx.array,
        world: tuple[int, int, mx.array, int],
        scale: float = 0.0,
        signs: mx.array | None = None,
        crediting: Crediting | None = None,
    ) -> tuple[mx.array, mx.array, mx.array, dict[str, mx.array]]:
        after, values, active, *Z = self._native.play(
            self._program, prepared, self._noise(noise), state, *world, scale, signs,
            crediting and self._crediting(crediting), self.threads,
        )  # fmt: skip
        names = [leaf.name for leaf in self.program.leaves] if Z else []
        return values, active, after, dict(zip(names, Z, strict=True))

    def logits(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array]:
        after, logits = self._native.logits(
            self._program, prepared, batch.tokens, batch.state, row_arrays(batch), self.threads,
            self.block_tokens,
        )  # fmt: skip
        return logits[:, 0], after

    def likelihoods(self, prepared: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array]:
        after, totals, hits = self._native.likelihoods(
            self._program, prepared, batch.tokens, batch.targets, batch.state, row_arrays(batch),
            self.threads, self.block_tokens,
        )  # fmt: skip
        return totals, hits, after

    def _noise(self, noise: Slices | None) -> Any:
        table, starts, rank, shift = noise if noise else (mx.zeros(1, mx.int8), None, 1, 0)
        return self._native.Noise(table, starts, rank, shift)

    def _crediting(self, crediting: Crediting) -> Any:
        return self._native.Crediting(
            mode=2 if crediting.nodes else 1,
            shifts=crediting.shifts,
            kinds=[int(kind) for kind in crediting.kinds],
            owners=crediting.owners,
            discounts=crediting.discounts,
            credit_shift=crediting.credit_shift,
            unit_shift=crediting.unit_shift,
            group=crediting.group,
        )


def rule_by_extension(
    native: ModuleType, rule: str, leaves: RuleLeaves, *arguments: int
) -> RuleArrays:
    """`Engine.adam`, `master` or `whitened` without an engine. The last argument: threads.

    What a GPU has is read through NumPy.
    """
    if mx.default_device() != mx.cpu:
        leaves = [
            tuple(native.view(np.asarray(v)) if isinstance(v, mx.array) else v for v in of)
            for of in leaves
        ]
    found: RuleArrays = getattr(native, rule)(leaves, *arguments)
    return found


def row_arrays(batch: Batch) -> tuple[mx.array | None, mx.array | None]:
    """The inputs and features of a batch, as the extension takes them."""
    return batch.inputs, batch.features


def lookup_tables(program: Program) -> tuple[list[str], list[list[int]]]:
    """Names of the tables that a program looks up, and their 256 entries by a register's byte.

    Bytes are unsigned there: 0..127, then -128 (which never occurs) to -1.
    """
    names = sorted({op.table for stage in program.stages for op in stage.ops if op.table})
    tables, values = program.tables, [v - 256 * (v > 127) for v in range(256)]
    return names, [[int(tables[n][max(v, -127) + 127]) for v in values] for n in names]
