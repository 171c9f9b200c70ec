"""A language model of mlx-lm learns from a reward, here a tiny random one that is made in the file.

    python examples/tune_language_model.py

The reward counts different vowels. Give lm.Trainer the path of a real model, or its name on the
Hugging Face hub. Needs mlx-lm: pip install 'eggroll-mlx[lm]'
"""

import mlx.core as mx

import eggroll as eg

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
HEADS = {"num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 27}
PROMPTS = ["hello", "world", "evolution", "model"]


class Letters:  # any tokenizer with these will do
    eos_token_id = 0
    encode = staticmethod(lambda text: [ord(letter) - 96 for letter in text])
    decode = staticmethod(lambda tokens: "".join(chr(token + 96) for token in tokens))


def main(steps: int = 40, seed: int = 0, pop: int = 64) -> None:
    try:
        from mlx_lm.models import llama
    except ModuleNotFoundError:
        raise eg.InputError("no mlx-lm here: pip install 'eggroll-mlx[lm]'.") from None
    mx.random.seed(seed % 2**64)
    model = llama.Model(llama.ModelArgs("llama", **SIZES, **HEADS))
    es = eg.lm.Trainer((model, Letters()), pop=pop, steps=steps, seed=seed, sigma=0.3)
    print("before:", es.generate(PROMPTS, tokens=8))
    while es.step < steps:
        answers = es.ask().generate(PROMPTS, tokens=8)
        update = es.tell([[len(set(text) & set("aeiou")) for text in row] for row in answers])
    print("after: ", es.generate(PROMPTS, tokens=8), f"mean reward {update.fitness:.2f}")


if __name__ == "__main__":
    eg.script(main)
