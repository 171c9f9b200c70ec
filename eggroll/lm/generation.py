"""Texts of many rows side by side: left-padded prompts, fitting caches, sampling, stops.

Letters: R rows, L tokens of the longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np

from eggroll.errors import InputError, shown
from eggroll.spec import rng

Tokens = list[int]
PREFILL: Final = 256  # tokens of prompts that are read at a time, of all rows together
MOST_ROWS: Final = 64  # that share them; with more, each has as many as with these
LOOK: Final = 8  # tokens from one look for stop strings to the next


class DrawSettings(NamedTuple):
    """The way tokens are drawn: temperature 0 takes the likeliest.

    seed, update: those of the fine-tune; a word is drawn from (seed, update, prompt, token), so all
    members of a prompt have the same.
    """

    temperature: float = 0.0
    seed: int = 0
    update: int = 0


class Requests(NamedTuple):
    """Prompts of R rows and where each of them ends.

    prompts: ids of each row; names: the number of a row's prompt in the call; at_once: positions of
    the prompts that are read at a time; limit: most new tokens; stops: strings before which a text
    ends.
    """

    prompts: list[Tokens]
    names: list[int]
    at_once: int
    limit: int
    stops: tuple[str, ...] = ()


class Answer(NamedTuple):
    """A row's new tokens, without the one that ended it, and what they say."""

    text: str
    tokens: Tokens


def encode(tokenizer: Any, prompt: Any) -> Tokens:
    """A prompt as token ids: a text, messages of a chat, or the ids themselves.

    Raises:
        InputError: it is none of these, or empty.
    """
    if isinstance(prompt, str):
        ids = list(tokenizer.encode(prompt))
    elif isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], dict):
        ids = list(tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True))
    elif isinstance(prompt, list | tuple | np.ndarray) and all(
        isinstance(token, int | np.integer) for token in prompt
    ):
        ids = [int(token) for token in prompt]
    else:
        raise InputError(
            f"A prompt is {shown(prompt)}: a text, token ids or messages of a chat are needed."
        )
    if not ids:
        raise InputError("A prompt has no tokens: give it a text.")
    return ids


def ends_of(tokenizer: Any) -> set[int]:
    """Ids of the tokens that end a text."""
    ends = getattr(tokenizer, "eos_token_ids", None) or ()
    one = getattr(tokenizer, "eos_token_id", None)
    return {int(end) for end in ends} | ({int(one)} if one is not None else set())


def at_once(rows: int) -> int:
    """Positions of prompts that are read at a time, of so many rows of a call, of all its chunks.

    Not of a chunk's own rows, as sums of floats would then differ from chunk to chunk.
    """
    return PREFILL // max(min(rows, MOST_ROWS), 1)


def caches(model: Any, padding: Sequence[int], length: int) -> list[Any]:
    """The model's caches for rows with so much padding on the left, of `length` positions.

    Raises:
        InputError: rows are padded and the model has a cache that knows no padding.
    """
    from mlx_lm.models import cache as kinds

    made = kinds.make_prompt_cache(model)
    if any(padding):
        made = [_padded(one, padding, kinds) for one in made]
    for one in made:
        if hasattr(one, "step"):
            one.step = length  # mlx-lm's 256 positions at once would be five times what is needed
    return made


def _padded(one: Any, padding: Sequence[int], kinds: Any) -> Any:
    if type(one) is kinds.KVCache:
        return kinds.BatchKVCache(list(padding))
    if type(one) is kinds.RotatingKVCache and not one.keep:
        return kinds.BatchRotatingKVCache(one.max_size, list(padding))
    raise InputError(
        f"The model has a cache of kind {type(one).__name__}, which takes no padding: give prompts "
        "of equally many tokens in a call."
    )


def generate(
    model: Any, tokenizer: Any, batch: Requests, sampling: DrawSettings, length: int
) -> tuple[list[Answer], int]:
    """Continues every row; the texts, and how many tokens the model read for them.

    length: tokens to which prompts are padded, at least that of the longest.
    """
    ends = ends_of(tokenizer)
    padding = [length - len(prompt) for prompt in batch.prompts]
    rows = mx.array([[0] * pad + ids for pad, ids in zip(padding, batch.prompts, strict=True)])
    cache = caches(model, padding, length + batch.limit)
    for first in range(0, length - 1, batch.at_once):
        model(rows[:, first : min(first + batch.at_once, length - 1)], cache=cache)
        mx.eval([one.state for one in cache])
    draw = _drawer(batch.names, sampling)
    last, columns = rows[:, -1:], list[mx.array]()
    final = mx.array(sorted(ends)) if ends else None
    done = mx.zeros(len(batch.prompts), mx.bool_)
    for number in range(batch.limit):
        logits = model(last, cache=cache)[:, -1]
        token = draw(logits, number)
        columns.append(token)
        last = token[:, None]
        if final is not None:
            done = done | (token[:, None] == final).any(axis=1)
        mx.async_eval(last, done)  # type: ignore[no-untyped-call]
        if number % LOOK == LOOK - 1 and number + 1 < batch.limit:
            ended = np.asarray(done)
            if batch.stops and not ended.all():
                ended = ended | _stopped(tokenizer, columns, ends, batch.stops)
            if ended.all():
                break
    written = np.asarray(mx.stack(columns, axis=1)).tolist()
    texts = [finished(tokenizer, ids, ends, batch.stops) for ids in written]
    return texts, len(batch.prompts) * (length - 1 + len(columns))


def _stopped(tokenizer: Any, columns: list[mx.array], ends: set[int], stops: Any) -> Any:
    """Rows that have a stop string or an ending token by now, bool [R]."""
    written = np.asarray(mx.stack(columns, axis=1)).tolist()
    return np.array(
        [bool(ends & {*ids}) or any(s in tokenizer.decode(ids) for s in stops) for ids in written]
    )


def _drawer(names: Sequence[int], sampling: DrawSettings) -> Callable[[mx.array, int], mx.array]:
    """Draws the tokens [R] of logits [R, V] for the new token of a number."""
    if not sampling.temperature:
        return lambda logits, number: mx.argmax(logits, axis=-1)
    distinct = sorted(set(names))
    at = mx.array([distinct.index(name) for name in names])

    def draw(logits: mx.array, number: int) -> mx.array:
        # The maximum of logits and Gumbel noise is a draw; equal noise makes members' draws alike.
        noise = mx.stack([
            mx.random.gumbel(
                (logits.shape[-1],),
                key=mx.random.key(
                    rng.key(sampling.seed, rng.SAMPLES, sampling.update, name, number)
                ),
            )
            for name in distinct
        ])  # fmt: skip
        # The noise takes the factor, so that a temperature near 0 comes near to the likeliest.
        return mx.argmax(logits.astype(mx.float32) + sampling.temperature * noise[at], axis=-1)

    return draw


def finished(tokenizer: Any, ids: Tokens, ends: set[int], stops: Sequence[str]) -> Answer:
    """A row's text up to its ending token or the first stop string."""
    end = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    ids = ids[:end]
    text = str(tokenizer.decode(ids))
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not cuts:
        return Answer(text, ids)
    # The tokens up to the one that completes the stop string.
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if any(stop in tokenizer.decode(ids[:middle]) for stop in stops):
            high = middle
        else:
            low = middle + 1
    return Answer(text[: min(cuts)], ids[:low])


def losses(model: Any, rows: Sequence[tuple[Tokens, Tokens]]) -> mx.array:
    """Mean nats per token of each row's continuation after its prompt, float32 [R]."""
    length = max(len(prompt) + len(after) for prompt, after in rows)
    ids = np.zeros((len(rows), length), np.int32)
    counted = np.zeros((len(rows), length), np.float32)
    for i, (prompt, after) in enumerate(rows):
        ids[i, : len(prompt) + len(after)] = [*prompt, *after]
        counted[i, len(prompt) : len(prompt) + len(after)] = 1
    tokens, mask = mx.array(ids), mx.array(counted)[:, 1:]
    logits = model(tokens[:, :-1]).astype(mx.float32)
    found = mx.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    nats = mx.logsumexp(logits, axis=-1) - found
    return (nats * mask).sum(axis=1) / mask.sum(axis=1)


def bytes_of_row(model: Any, positions: int, read: int) -> int:
    """Bytes, about, that a row of so many positions takes while it is run, `read` at a time."""
    args = getattr(model, "args", None)

    def number(name: str, default: int) -> int:
        value = getattr(args, name, None)
        return int(value) if isinstance(value, int) else default

    hidden = number("hidden_size", 1024)
    heads = max(number("num_attention_heads", 8), 1)
    cached = number("num_key_value_heads", heads) * number("head_dim", hidden // heads)
    inner, vocabulary = number("intermediate_size", 4 * hidden), number("vocab_size", 1 << 15)
    read = min(positions, read)
    cache = 2 * 4 * cached * len(model.layers) * positions
    return cache + 4 * read * (8 * hidden + 3 * inner) + 12 * vocabulary
