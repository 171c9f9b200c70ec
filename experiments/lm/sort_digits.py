"""A small task for tuning by reward: sort three digits, with a llama of 27k weights.

The model is pretrained on answers of which a share is wrong, so it knows the form and not the task.
Evolution (eggroll.lm), GRPO and REINFORCE start from it, with 512 rows an update, and are judged by
greedy answers to prompts that none of them was trained on: `python -m experiments.lm.sort_digits`.
Tokens: 0-9 the digits, 10 "=", 11 the end. Letters: R rows, G answers of a prompt.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

from eggroll.cli import command as cli
from experiments.arguments import check_packages, only_help

with suppress(ModuleNotFoundError):  # `main` says what is missing
    from mlx_lm.models import llama
    from mlx_lm.models.base import create_attention_mask

EQUALS, END, VOCABULARY = 10, 11, 12
ROWS, ANSWER = 512, 4  # rows of an update; new tokens
WRONG = 0.35  # share of wrong answers in pretraining
PROMPT = 4


class Digits:
    """The tokenizer: text is digits, "=" and nothing else."""

    eos_token_id = END

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return ["0123456789=".index(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join("0123456789=."[token] for token in ids)


class Split(NamedTuple):
    """Prompts [n] texts to train on and held out."""

    train: list[str]
    held_out: list[str]


def split(seed: int = 0) -> Split:
    prompts = ["".join(map(str, digits)) + "=" for digits in itertools.product(range(10), repeat=3)]
    order = np.random.default_rng(seed).permutation(len(prompts))
    shuffled = [prompts[i] for i in order]
    return Split(shuffled[512:], shuffled[:512])


def answer(prompt: str) -> str:
    return "".join(sorted(prompt[:-1]))


def reward(prompt: str, text: str) -> float:
    """1 for the digits in order, else 0."""
    return float(text == answer(prompt))


def new_model(seed: int = 0) -> Any:
    mx.random.seed(seed)
    args = llama.ModelArgs(
        model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=96,
        num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5, vocab_size=VOCABULARY,
        rope_theta=100.0,
    )  # fmt: skip
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model


def pretrained(seed: int = 0, share: float = 0.41, folder: Path | None = None) -> Any:
    """A model that answers about this share of the held-out prompts right, greedily."""
    model = new_model(seed)
    path = folder / f"pretrained-{seed}.safetensors" if folder else None
    if path and path.exists():
        model.load_weights(str(path))
        return model
    rng, prompts = np.random.default_rng(seed + 1), split()
    tok, optimiser = Digits(), optim.AdamW(learning_rate=1e-3)

    def loss(model: Any, ids: mx.array) -> mx.array:
        logits = model(ids[:, :-1])
        return nn.losses.cross_entropy(logits, ids[:, 1:])[:, PROMPT - 1 :].mean()

    step = nn.value_and_grad(model, loss)
    for _ in range(8000):
        chosen = rng.choice(prompts.train, 128)
        texts = [
            p + (shuffled(answer(p), rng) if rng.random() < WRONG else answer(p)) for p in chosen
        ]
        ids = mx.array([[*tok.encode(text), END] for text in texts])
        _, gradient = step(model, ids)
        optimiser.update(model, gradient)
        mx.eval(model.parameters(), optimiser.state)
        if accuracy(model, prompts.held_out) >= share:
            break
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save_weights(str(path))
    return model


def shuffled(text: str, rng: np.random.Generator) -> str:
    """The digits in random order."""
    return "".join(rng.permutation(list(text)))


def answers(model: Any, prompts: list[str], temperature: float = 0.0, key: Any = None) -> Any:
    """New tokens, int32 [R, ANSWER], without a cache: prompts are four tokens."""
    ids = mx.array([Digits().encode(prompt) for prompt in prompts])
    for _ in range(ANSWER):
        logits = model(ids)[:, -1]
        if temperature:
            key, now = mx.random.split(key)
            token = mx.random.categorical(logits / temperature, key=now)
        else:
            token = mx.argmax(logits, axis=-1)
        ids = mx.concatenate([ids, token[:, None]], axis=1)
    return ids[:, PROMPT:]


def texts_of(tokens: Any) -> list[str]:
    rows = np.asarray(tokens).tolist()
    return [Digits().decode(row[: row.index(END)] if END in row else row) for row in rows]


def accuracy(model: Any, prompts: list[str]) -> float:
    texts = texts_of(answers(model, prompts))
    return sum(map(reward, prompts, texts)) / len(prompts)


def sampled_accuracy(model: Any, prompts: list[str]) -> float:
    texts = texts_of(answers(model, prompts, 1.0, mx.random.key(7)))
    return sum(map(reward, prompts, texts)) / len(prompts)


TOKENS = ROWS * (PROMPT - 1 + ANSWER)  # that the model reads for the answers of an update
Judge = Callable[[int, Any], None]
Forward = Callable[[Any, mx.array], mx.array]


def evolution(
    model: Any, updates: int, seed: int, judge: Judge, *, pop: int = 64, **options: Any
) -> None:
    """eggroll.lm: greedy answers, ROWS / pop prompts of a pair, each pair its own."""
    from eggroll import lm

    options = {"learn": "adapter:4", "table_bits": 20, "shared": False} | options
    shared, temperature = options.pop("shared"), options.pop("temperature", 0.0)
    rng, train = np.random.default_rng(seed), split().train
    es = lm.Trainer((model, Digits()), pop=pop, steps=updates, seed=seed, **options)
    count = ROWS // pop
    while es.step < updates:
        of = [list(rng.choice(train, count)) for _ in range(1 if shared else pop // 2)]
        members = es.ask()
        texts = members.generate(of[0] if shared else of, tokens=ANSWER, temperature=temperature)
        prompts = [p for p in (of * (pop // 2) if shared else of) for _ in range(2)]
        es.tell([[reward(p, t) for p, t in zip(*row, strict=True)]
                 for row in zip(prompts, texts, strict=True)])  # fmt: skip
        with es.layers.members(None, 0):
            judge(es.step, model)
    es.close()


def direct(model: Any, ids: mx.array) -> mx.array:
    """The model's logits, whose errors reach every part past all that come after it.

    An attention or a feed-forward adds to a stream; it gets the error of the stream's end, as if
    nothing behind it read what it adds.
    """
    net, keep = model.model, mx.stop_gradient
    stream = keep(net.embed_tokens(ids))
    mask = create_attention_mask(stream, None)
    for block in net.layers:
        stream = stream + block.self_attn(block.input_layernorm(keep(stream)), mask, None)
        stream = stream + block.mlp(block.post_attention_layernorm(keep(stream)))
    logits: mx.array = net.embed_tokens.as_linear(net.norm(stream))
    return logits


def policy_gradient(
    model: Any, updates: int, seed: int, judge: Judge, *, group: int = 8, rate: float = 5e-4,
    normalised: bool = True, forward: Forward = operator.call,
) -> None:  # fmt: skip
    """GRPO with one step per batch (so its ratio is 1 and nothing is clipped), AdamW.

    normalised: rewards over their deviation within the group; else REINFORCE with the group's mean
    as baseline. forward: makes the logits whose errors are carried back.
    """
    rng, train = np.random.default_rng(seed), split().train
    optimiser, key = optim.AdamW(learning_rate=rate, weight_decay=0.0), mx.random.key(seed)

    def loss(model: Any, ids: Any, advantages: Any, mask: Any) -> mx.array:
        logits = forward(model, ids[:, :-1])[:, PROMPT - 1 :]
        nats = nn.losses.cross_entropy(logits, ids[:, PROMPT:])
        return (nats * mask * advantages[:, None]).sum() / mask.sum()

    step = nn.value_and_grad(model, loss)
    for update in range(updates):
        prompts = [p for p in rng.choice(train, ROWS // group) for _ in range(group)]
        key, now = mx.random.split(key)
        tokens = answers(model, prompts, 1.0, now)
        texts = texts_of(tokens)
        values = np.array(list(map(reward, prompts, texts))).reshape(-1, group)
        advantage = values - values.mean(axis=1, keepdims=True)
        if normalised:
            advantage = advantage / (values.std(axis=1, keepdims=True) + 1e-4)
        ids = mx.concatenate([mx.array([Digits().encode(p) for p in prompts]), tokens], axis=1)
        ended = mx.cumsum((tokens == END).astype(mx.int32), axis=1)
        mask = (ended - (tokens == END).astype(mx.int32) == 0).astype(mx.float32)
        _, gradient = step(model, ids, mx.array(advantage.reshape(-1).astype(np.float32)), mask)
        optimiser.update(model, gradient)
        mx.eval(model.parameters(), optimiser.state)
        judge(update + 1, model)


WAYS: dict[str, Callable[[Any, int, int, Judge], None]] = {
    "evolution, dense": partial(evolution, learn="dense", sigma=0.2, rate=1.5),
    "GRPO": policy_gradient,
    "GRPO, errors past later parts, rate 5e-4": partial(policy_gradient, forward=direct),
    "GRPO, errors past later parts, rate 1e-3": partial(policy_gradient, forward=direct, rate=1e-3),
}
LOOKS = 35, 70, 280  # updates; the last with the first seed alone


def main() -> int:
    """Prints the greedy accuracy of every way, of three seeds."""
    check_packages("lm", "mlx-lm")
    held_out, first = split().held_out, pretrained()
    for way, learn in WAYS.items():
        for seed in range(3):
            model, found = new_model(), list[str]()
            model.update(first.parameters())

            def judge(update: int, model: Any, found: list[str] = found) -> None:
                if update in LOOKS:
                    found.append(f"{update} {accuracy(model, held_out):.3f}")

            learn(model, LOOKS[1] if seed else LOOKS[2], seed, judge)
            print(f"{way}, seed {seed}: {', '.join(found)}", flush=True)
    return cli.DONE


if __name__ == "__main__":
    only_help(__doc__)
    sys.exit(cli.run(main))
