"""Tiny random language models in mlx-lm's format, with a tokenizer of single letters."""

from __future__ import annotations

import importlib
import json
import string
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

LETTERS = string.ascii_lowercase + string.digits + ' =.{}":[],'
SPECIAL = ["<pad>", "<end>"]
VOCABULARY = 64

# Sizes of each family; dimensions are multiples of 32, the least group of quantisation.
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1},
    "qwen3": {
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
        "rope_theta": 1e4, "tie_word_embeddings": False,
    },
    "gemma": {"num_key_value_heads": 1, "head_dim": 32},
}  # fmt: skip
# Families that are tried less: biases in attention, windows, fused projections, norms with means,
# and a name that stands for another family's code.
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2": {"num_key_value_heads": 2},
    "gemma3_text": {
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    },
    "phi": {"num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    "phi3": {"num_key_value_heads": 1},
    "mistral": {"num_key_value_heads": 1, "head_dim": 32},
}


class Letters:
    """A tokenizer of single letters, for models that are given in memory."""

    eos_token_id = 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [2 + LETTERS.index(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(
            (LETTERS + "_" * VOCABULARY)[token - 2] if token > 1 else "" for token in ids
        )


def config(family: str) -> dict[str, Any]:
    return {
        "model_type": family, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
        "num_attention_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY,
        **(SIZES | OTHERS)[family],
    }  # fmt: skip


def tiny(family: str = "llama", bits: int = 32, seed: int = 0) -> Any:
    """A random model: bits 32 and 16 are float32 and bfloat16, others quantise to as many."""
    from mlx_lm.utils import MODEL_REMAPPING

    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(family, family)}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config(family)))
    # Larger than at initialisation, so that logits differ clearly.
    wide = tree_map(lambda a: a * 2 if a.ndim == 2 else a, model.parameters())
    model.update(wide if bits != 16 else tree_map(lambda a: a.astype(mx.bfloat16), wide))
    if bits < 16:
        nn.quantize(model, 32, bits)
    mx.eval(model.parameters())
    return model


def save(folder: Path, family: str = "llama", bits: int = 32, seed: int = 0) -> Path:
    """Writes a tiny model as mlx-lm has them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    model = tiny(family, bits, seed)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())),
                        {"format": "mlx"})  # fmt: skip
    facts = config(family) | {"eos_token_id": 1}
    if bits < 16:
        facts["quantization"] = {"group_size": 32, "bits": bits}
    (folder / "config.json").write_text(json.dumps(facts))
    names = [*SPECIAL, *LETTERS]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>"
    ).save_pretrained(folder)
    return folder
