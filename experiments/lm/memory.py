"""Peak memory of an update, beside plain generation of the same rows and one AdamW step of them.

python -m experiments.lm.memory
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from eggroll import lm
from eggroll.cli import command as cli
from experiments.arguments import check_packages, only_help

with suppress(ModuleNotFoundError):  # `main` says what is missing
    from mlx_lm.models import llama

ROWS, PROMPT, NEW = 64, 16, 16


class Numbers:
    """A tokenizer of numbers, which end nowhere."""

    eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def model_of(width: int, bits: int) -> Any:
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs(
        model_type="llama", hidden_size=width, num_hidden_layers=4, intermediate_size=4 * width,
        num_attention_heads=4, rms_norm_eps=1e-5, vocab_size=1024,
    ))  # fmt: skip
    if bits < 32:
        nn.quantize(model, 32, bits)
    mx.eval(model.parameters())
    return model


def peak(work: Any) -> float:
    """MB at the most while it works."""
    mx.clear_cache()
    mx.reset_peak_memory()
    work()
    return mx.get_peak_memory() / 1e6


def adamw_step(model: Any) -> float:
    optimiser, ids = optim.AdamW(1e-4), mx.random.randint(0, 1024, (ROWS, PROMPT + NEW))

    def loss(model: Any) -> mx.array:
        return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:]).mean()

    step = nn.value_and_grad(model, loss)

    def work() -> None:
        _, gradient = step(model)
        optimiser.update(model, gradient)
        mx.eval(model.parameters(), optimiser.state)

    return peak(work)


def main() -> int:
    check_packages("lm", "mlx-lm")
    prompt = list(range(PROMPT))
    for bits, learn in ((32, "adapter:8"), (32, "dense"), (4, "adapter:8"), (4, "biases")):
        for pop in (64, 16):
            es = lm.Trainer((model_of(256, bits), Numbers()), pop=pop, learn=learn, table_bits=20)

            def update(es: Any = es, pop: int = pop) -> None:
                answers = es.ask().generate([prompt] * (ROWS // pop), tokens=NEW)
                es.tell([float(i) for i in range(len(answers))])

            update()
            plain = peak(lambda es=es: es.generate([prompt] * ROWS, tokens=NEW))
            members = peak(update)
            print(f"{bits} bits, {learn}, P {pop}: plain {plain:.1f} MB, update {members:.1f} MB, "
                  f"ratio {members / plain:.2f}", flush=True)  # fmt: skip
            es.close()
    print(f"AdamW step, 32 bits: {adamw_step(model_of(256, 32)):.1f} MB")
    return cli.DONE


if __name__ == "__main__":
    only_help(__doc__)
    sys.exit(cli.run(main))
