"""Members of pretrained models against materialised weights, their votes, and what they write."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import lm_models
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from lm_models import Letters, tiny
from mlx.utils import tree_map

from eggroll import InputError
from eggroll.evolution import rules
from eggroll.files import MOST_SMALL
from eggroll.lm import Trainer, learner
from eggroll.lm.adapter import tensors_file
from eggroll.lm.layers import leaf_of, signs, weights_of
from eggroll.lm.learner import DeltaLearner, Options, PairNoise, summed
from experiments.lm import sort_digits

PROMPTS = ["sort 312=", "a", "hello"]
SMALL: dict[str, Any] = {
    "sigma": 0.1,
    "pop": 8,
    "table_bits": 16,
    "raise_sigma": False,
    "rate": 4.0,
}


def trainer(family: str, bits: int, learn: str, **options: Any) -> Trainer:
    return Trainer((tiny(family, bits), Letters()), learn=learn, **(SMALL | options))


def moved(es: Trainer) -> Trainer:
    """The trainer after an update, so that deltas are not zero."""
    es.ask().generate(PROMPTS, tokens=2)
    es.tell(np.random.default_rng(0).normal(size=(es.pop, 3)))
    for delta in es.learner.weights.values():
        assert np.asarray(delta).any()
    return es


def materialised(es: Trainer, member: int) -> Any:
    """A plain model in which every layer has the member's own float32 weights."""
    model = es.model
    noise = es.learner.noise(member // 2, 1)
    plain = []
    for index, (leaf, n) in enumerate(zip(es.learner.leaves, noise, strict=True)):
        linear = dict(model.named_modules())[leaf.name]
        delta = np.asarray(es.learner.weights[leaf.name]).astype(np.float64)
        scale = (-1) ** member * es.sigma_scale * 2.0**learner.NOISE_BITS / 256
        part = n.A[0].astype(np.float64) @ n.B[0].T.astype(np.float64)
        part *= scale / np.sqrt(es.options.rank)
        weight = np.array(weights_of(linear)).astype(np.float64)
        if es.layers.mode.name == "adapter":
            V = signs(es.options.seed, index, leaf.inputs, leaf.columns).T
            weight += leaf.unit * (delta + part) @ V
        elif es.layers.mode.name == "biases":  # the delta is in the layer already
            weight += leaf.unit * np.repeat(part, leaf.inputs // leaf.columns, axis=1)
        else:
            weight += leaf.unit * part
        own = nn.Linear(leaf.inputs, leaf.outputs, bias="bias" in linear)
        own.weight = mx.array(weight.astype(np.float32))
        if "bias" in linear:
            own.bias = linear.bias
        plain.append((leaf.name, own))
    return plain


def logits_of_members(es: Trainer, ids: mx.array) -> Any:
    """Logits of all members [P, G, T, V]."""
    rows = mx.concatenate([ids] * es.pop)
    with es.running(0, es.pop // 2, len(rows)):
        return np.asarray(es.model(rows).astype(mx.float32)).reshape(es.pop, *ids.shape, -1)


MODES = [
    *((family, bits, "adapter:4") for family in lm_models.SIZES for bits in (32, 16, 8, 4)),
    *((family, bits, "biases") for family in lm_models.SIZES for bits in (8, 4)),
    *((family, 32, "dense") for family in lm_models.SIZES),
    ("llama", 2, "adapter:4"), ("llama", 3, "biases"), ("llama", 6, "adapter:1"),
    ("llama", 16, "dense"),
    *((family, 32, "adapter:4") for family in lm_models.OTHERS),
    *((family, 4, "biases") for family in lm_models.OTHERS),
]  # fmt: skip


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("family", "bits", "learn"), MODES)
def test_members_equal_materialised_weights(family: str, bits: int, learn: str, rank: int) -> None:
    from mlx.utils import tree_unflatten

    es = moved(trainer(family, bits, learn, rank=rank, pop=4))
    if bits == 16:  # the weights of 16 bits, with activations that show small differences
        es.layers.reset()
        es.model.update(tree_map(lambda a: a.astype(mx.float32), es.model.parameters()))
        es = moved(
            Trainer((es.model, Letters()), learn=learn, **(SMALL | {"rank": rank, "pop": 4}))
        )
    ids = mx.array([[5, 9, 33, 2, 7, 11], [3, 3, 8, 1, 50, 4]])
    members = logits_of_members(es, ids)
    for member in range(es.pop):
        own = materialised(es, member)
        before = [(name, dict(es.model.named_modules())[name]) for name, _ in own]
        es.model.update_modules(tree_unflatten(own))
        alone = np.asarray(es.model(ids).astype(mx.float32))
        es.model.update_modules(tree_unflatten(before))
        assert abs(members[member] - alone).max() <= 1e-5 * abs(alone).max()
    assert abs(members[0] - members[1]).max() > 1e-3 * abs(members).max()


@pytest.mark.parametrize("family", [*lm_models.SIZES, *lm_models.OTHERS])
def test_chunks_change_nothing(family: str) -> None:
    whole = trainer(family, 32, "adapter:4").ask()
    parts = trainer(family, 32, "adapter:4", chunk=2).ask()
    for temperature in (0.0, 0.8):
        one = whole.generate(PROMPTS, tokens=8, temperature=temperature)
        assert one == parts.generate(PROMPTS, tokens=8, temperature=temperature)
    texts = ["abc", "hello there"]
    np.testing.assert_allclose(whole.loss(texts), parts.loss(texts), rtol=1e-5)


def test_prompts_are_read_in_the_same_pieces_whatever_the_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 tokens of all rows of the call at a time, so that floats add up alike."""
    read, kind = list[int](), type(tiny("llama", 32))
    plain = kind.__call__

    def noted(self: Any, x: mx.array, **options: Any) -> mx.array:
        read.append(x.shape[1])
        return plain(self, x, **options)

    monkeypatch.setattr(kind, "__call__", noted)
    prompt, pieces = [4 + i % 9 for i in range(150)], []
    for chunk in (0, 2):
        members = trainer("llama", 32, "adapter:4", chunk=chunk).ask()
        read.clear()
        members.generate([prompt], tokens=2)
        pieces.append({*read})
    at_once = 256 // members.pop
    assert pieces == [{at_once, 149 % at_once, 1}] * 2


def test_the_model_comes_back_as_it_was() -> None:
    for bits, learn in ((4, "biases"), (32, "dense"), (4, "adapter:2")):
        model, ids = tiny("llama", bits), mx.array([[4, 5, 6]])
        before, modules = np.asarray(model(ids)), dict(model.named_modules())
        with Trainer((model, Letters()), learn=learn, **SMALL) as es:
            moved(es)
            with es.layers.members(None, 1):
                assert (np.asarray(model(ids)) != before).any()
        assert (np.asarray(model(ids)) == before).all()
        assert all(module is modules[name] for name, module in model.named_modules())


def test_left_padding_changes_no_answer() -> None:
    """A prompt among longer ones is answered as alone."""
    for family in lm_models.SIZES:
        es = trainer(family, 32, "adapter:4")
        together = es.generate(PROMPTS, tokens=8)
        assert together == [es.generate([prompt], tokens=8)[0] for prompt in PROMPTS]


def test_a_member_alone_writes_what_it_writes_among_others() -> None:
    es = moved(trainer("llama", 32, "adapter:4"))
    members = es.ask()
    shared = members.generate(PROMPTS, tokens=6)
    each = members.generate([PROMPTS] * (es.pop // 2), tokens=6)
    assert shared == each
    own = [[PROMPTS[pair % 3]] for pair in range(es.pop // 2)]
    assert [row[0] for row in members.generate(own, tokens=6)] == [
        shared[member][member // 2 % 3] for member in range(es.pop)
    ]


def test_generation_against_a_plain_loop() -> None:
    """The tokens that argmax takes of the whole text, again for every token, without a cache."""
    es = trainer("qwen3", 32, "adapter:4")
    ids = Letters().encode(PROMPTS[0])
    start = len(ids)
    while len(ids) < start + 10:
        ids.append(int(mx.argmax(es.model(mx.array([ids]))[0, -1]).item()))
    new = ids[start:]
    new = new[: new.index(1)] if 1 in new else new
    assert es.generate(PROMPTS[:1], tokens=10) == [Letters().decode(new)]


def test_stop_strings_end_a_text() -> None:
    es = trainer("llama", 32, "adapter:4")
    (whole,) = es.generate(["abc"], tokens=24)
    stop = whole[5:7]
    (short,) = es.generate(["abc"], tokens=24, stop=stop)
    assert short == whole[: whole.index(stop)]
    assert es.generate(["abc"], tokens=24, stop=["no such", stop]) == [short]


def test_samples_come_from_seed_update_prompt_and_token() -> None:
    """Members without noise draw the same; another update or prompt draws other words."""
    es = trainer("llama", 32, "adapter:4", sigma=1e-6)
    members = es.ask()
    texts = members.generate(["abc", "abc"], tokens=12, temperature=1.0)
    assert all(row == texts[0] for row in texts)
    assert texts[0][0] != texts[0][1]
    assert members.identical == 1.0
    assert es.generate(["abc", "abc"], tokens=12, temperature=1.0) == texts[0]
    es.tell(np.arange(es.pop))
    assert es.ask().generate(["abc"], tokens=12, temperature=1.0)[0][0] != texts[0][0]


def test_draws_follow_the_probabilities() -> None:
    from eggroll.lm.generation import DrawSettings, _drawer

    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]] * 4000))
    tokens = np.asarray(_drawer(range(4000), DrawSettings(1.0, 3, 0))(logits, 0))
    shares = np.bincount(tokens, minlength=4) / 4000
    assert abs(shares - [0.5, 0.3, 0.15, 0.05]).max() < 0.03


def test_losses_are_those_of_the_model() -> None:
    es = trainer("gemma", 32, "adapter:4")
    text, prompt = "hello", "say "
    ids = Letters().encode(prompt + text)
    logits = es.model(mx.array([ids[:-1]]))[0].astype(mx.float32)
    nats = nn.losses.cross_entropy(logits, mx.array(ids[1:]))
    after = float(nats[len(prompt) - 1 :].mean().item())
    assert es.loss([text], [prompt])[0] == pytest.approx(after, rel=1e-5)
    assert es.loss([prompt + text])[0] == pytest.approx(float(nats.mean().item()), rel=1e-5)
    tiny_noise = trainer("gemma", 32, "adapter:4", sigma=1e-6).ask().loss([text], [prompt])
    assert tiny_noise == pytest.approx(np.full((8, 1), after), rel=1e-4)


# Votes and fitness.


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("fitness", [1, learner.MOST_FITNESS])
def test_votes_are_exact(rank: int, fitness: int) -> None:
    """Against int64 sums, with noise bytes and fitness as large as they can be."""
    pairs = 1500
    options = Options(pop=2 * pairs, rank=rank, table_bits=12,
                      fitness="sign" if fitness == 1 else "z-scores")  # fmt: skip
    made = DeltaLearner([learner.Delta("a", 5, 8, 4, -8, "float32")], options)
    made._table = np.full(1 << 12, 127, np.int8)
    made._table[::7] = -127
    f = np.random.default_rng(1).integers(-fitness, fitness + 1, pairs).astype(np.int8)
    f[:1200] = fitness
    noise = made.noise(0, pairs)[0]
    wide = np.einsum("n,nor,ncr->oc", *(x.astype(np.int64) for x in (f, noise.A, noise.B)))
    assert (np.asarray(dict(made.votes(f))["a"]) == wide).all()


def test_float_sums_stay_within_their_exact_range() -> None:
    """As many products as EXACT allows are exact, whatever their order; more may not be."""
    assert learner.EXACT * 127**2 <= 1 << 24
    n = learner.EXACT
    noise = PairNoise(np.full((n, 2, 1), 127, np.int8), np.full((n, 3, 1), 127, np.int8))
    assert (summed(noise, np.ones(n, np.int8)) == n * 127**2).all()


def test_votes_beyond_int32_are_refused() -> None:
    with pytest.raises(InputError, match="fit int32"):
        Options(pop=1 << 16, rank=8, fitness="z-scores").check()
    Options(pop=1 << 12, rank=4, fitness="z-scores").check()


@pytest.mark.parametrize("name", ["sign", "ranks", "centred", "z-scores"])
def test_the_replay_log_holds_any_fitness(name: Any) -> None:
    values = np.random.default_rng(0).standard_cauchy((64, 8))
    assert 0 < abs(learner.fitness_of(values, name)).max() <= learner.MOST_FITNESS <= MOST_SMALL


def test_z_scores_weigh_prompts_by_their_spread() -> None:
    """A prompt with rewards a hundred times as large counts no more, a solved one not at all."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(64, 4))
    values[:, 3] = 1
    other = values * [1, 100, 1, 1] + [5, 0, 0, 0]
    fitness = learner.fitness_of(values, "z-scores")
    assert (fitness == learner.fitness_of(other, "z-scores")).all()
    assert 2 < abs(fitness).mean() < 4
    assert not learner.fitness_of(np.ones((64, 4)), "z-scores").any()
    assert (learner.fitness_of(values, "sign") == np.sign(
        values.mean(axis=1)[0::2] - values.mean(axis=1)[1::2])).all()  # fmt: skip


# What is refused.


class Strange(nn.Module):
    """A layer with weights of a kind that is not known."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.weight.T


def test_unknown_layers_stay_as_they_are() -> None:
    model = tiny("llama")
    model.layers[0].mlp.up_proj = Strange(model.layers[0].mlp.up_proj)
    es = moved(Trainer((model, Letters()), **SMALL))
    assert es.layers.untouched["Strange"] == 1
    assert es.layers.untouched["RMSNorm"] == 5
    assert len(es.learner.leaves) == 2 * 7 - 1


@pytest.mark.parametrize(
    ("bits", "options", "sentence"),
    [
        (32, {"learn": "biases"}, "needs .they have Embedding, Linear, RMSNorm"),
        (4, {"learn": "dense"}, "no layer of kind Linear"),
        (4, {"learn": "adapter:0"}, "rank 1 to 256"),
        (4, {"learn": "everything"}, "biases or dense"),
        (4, {"pop": 7}, "pop is 7: an even number"),
        (4, {"sigma": 0.0}, "sigma is 0.0"),
        (4, {"sigma": 1e-300}, "sigma is 1e-300: a number from 1e-06 to 16"),
        (4, {"fitness": "best"}, "one of sign, ranks"),
        (4, {"nonsense": 1}, "no option of lm.Trainer"),
        (4, {"pop": "many"}, "int is needed"),
        (4, {"table_bits": 12, "rank": 40}, "noise table"),
    ],
)
def test_bad_options_are_sentences(bits: int, options: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Trainer((tiny("llama", bits), Letters()), **(SMALL | options))


def test_float16_holds_the_last_bit_or_is_refused() -> None:
    model = tiny()
    model.update(tree_map(lambda a: a.astype(mx.float16), model.parameters()))
    es = Trainer((model, Letters()), **SMALL | {"sigma": 1e-4})
    assert min(leaf.exponent for leaf in es.learner.leaves) >= -24
    with pytest.raises(InputError, match=r"float16 holds 2\^-24 at least: give .*e-05 or more"):
        Trainer((model, Letters()), **SMALL | {"sigma": 1e-6})


def test_weights_that_are_no_numbers_are_named() -> None:
    model = tiny()
    model.model.norm.weight[3] = float("nan")
    with pytest.raises(InputError, match=r"'model.norm.weight' of the model holds NaN"):
        Trainer((model, Letters()), **SMALL)


def test_temperatures_near_0_come_near_to_the_likeliest() -> None:
    es = trainer("llama", 32, "adapter:4")
    greedy = es.generate(PROMPTS, tokens=12)
    for temperature in (1e-300, 1e-40, 1e-6):
        assert es.generate(PROMPTS, tokens=12, temperature=temperature) == greedy
    assert es.generate(PROMPTS, tokens=12, temperature=2.0) != greedy


def test_a_model_with_an_adapter_is_refused() -> None:
    from mlx_lm.tuner.utils import linear_to_lora_layers

    model = tiny("llama")
    linear_to_lora_layers(model, 2, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    with pytest.raises(InputError, match="fuse its adapter first"):
        Trainer((model, Letters()), **SMALL)


def test_layers_that_regroup_rows_are_named() -> None:
    model = tiny("llama")
    block = model.layers[1].mlp
    kind = type(block)

    class Flat(kind):  # type: ignore[misc, valid-type]
        def __call__(self, x: mx.array) -> mx.array:
            return super().__call__(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)

    block.__class__ = Flat
    with pytest.raises(InputError, match=r"model.layers.1.mlp.\w+' gets inputs of shape"):
        Trainer((model, Letters()), **SMALL).ask().generate(PROMPTS)


def test_calls_out_of_order() -> None:
    es = trainer("llama", 32, "adapter:4")
    with pytest.raises(InputError, match="tell comes without ask"):
        es.tell(np.zeros(8))
    members = es.ask()
    with pytest.raises(InputError, match="tell comes without a call"):
        es.tell(np.zeros(8))
    members.generate(["a"], tokens=1)
    for wrong in (np.zeros(7), np.zeros((8, 0)), np.zeros((8, 2)), np.zeros((8, 2, 2))):
        with pytest.raises(InputError, match=r"\[8\] is needed"):
            es.tell(wrong)
    with pytest.raises(InputError, match="nan at"):
        es.tell([float("nan")] * 8)
    es.tell(np.arange(8))
    with pytest.raises(InputError, match="update that is over"):
        members.generate(["a"])
    for call, sentence in (
        (lambda m: m.generate([]), r"prompts are \[\]: a list of one or more"),
        (lambda m: m.generate([3.5]), "token ids or messages"),
        (lambda m: m.generate([""]), "no tokens"),
        (lambda m: m.generate(["a"], tokens=0), "tokens is 0"),
        (lambda m: m.generate(["a"], temperature=-1), "temperature is -1"),
        (lambda m: m.generate([["a"]] * 3), "of 3 pairs"),
        (lambda m: m.loss(["a"]), "no token to score"),
        (lambda m: m.generate("hello"), "prompts are 'hello': a list"),
        (lambda m: m.generate(None), "prompts are None: a list"),
        (lambda m: m.generate([["a"], 5]), "prompts of a pair are 5: a list"),
        (lambda m: m.generate(["a"], stop=None), "stop is None"),
        (lambda m: m.generate(["a"], stop=[""]), "stop is"),
        (lambda m: m.generate([[999999]]), r"has the token 999999: the model has 0 to \d+"),
        (lambda m: m.generate([[3, -5]]), "has the token -5"),
        (lambda m: m.loss("ab"), "texts are 'ab': a list"),
        (lambda m: m.loss(["ab"], prompts="a"), "prompts are 'a': a list"),
    ):
        with pytest.raises(InputError, match=sentence):
            call(es.ask())


@pytest.mark.parametrize("learn", ["adapter:4", "dense"])
def test_a_closed_trainer_saves_what_it_learnt_and_writes_no_more(learn: str, tmp_path: Path):
    with moved(trainer("llama", 32, learn)) as es:
        es.save_adapter(tmp_path / "open")
    es.save_adapter(tmp_path / "closed")
    one, other = (tmp_path / name / "adapters.safetensors" for name in ("open", "closed"))
    assert one.read_bytes() == other.read_bytes()
    for call in (es.ask, lambda: es.generate(["a"]), lambda: es.loss(["ab"])):
        with pytest.raises(InputError, match="This trainer is closed"):
            call()


def test_options_of_a_trainer_that_goes_on_have_their_types(tmp_path: Path) -> None:
    es = trainer("llama", 32, "adapter:4")
    es.save(tmp_path / "saved")
    for wrong in ("9", True, 2.0):
        with pytest.raises(InputError, match=r"steps is .*: int is needed"):
            Trainer.load(tmp_path / "saved", (tiny(), Letters()), steps=wrong)


def test_sigma_rises_where_members_write_the_same() -> None:
    es = trainer("llama", 32, "adapter:4", sigma=1e-6, raise_sigma=True)
    for _ in range(5):
        es.ask().generate(["abc"], tokens=2)
        update = es.tell(np.zeros(8))
    assert update.identical == 1
    assert update.nonzero_ratio == 0
    assert es.sigma_scale == 2


@pytest.mark.parametrize(
    "name", ["a", "bc", "def", "ghij", "klmno", "pqrstu", "vwxyzab", "cdefghij"]
)
def test_tensors_begin_where_eight_bytes_do(tmp_path: Path, name: str):
    """As the format of safetensors wants: readers map the file."""
    data = tensors_file({name: mx.arange(3.0)})
    assert int.from_bytes(data[:8], "little") % 8 == 0
    (tmp_path / "a.safetensors").write_bytes(data)
    assert mx.load(str(tmp_path / "a.safetensors"))[name].tolist() == [0, 1, 2]


def test_a_layer_of_zeros_has_a_last_bit_too():
    layer = nn.Linear(8, 8)
    layer.weight = mx.zeros((8, 8))
    assert leaf_of("a", layer, learner.mode_of("adapter:4"), 0.1).exponent == -8


@pytest.mark.parametrize("rule", ["master", "adam"])
@pytest.mark.parametrize("built", [True, False])
def test_decay_takes_its_share_of_a_delta(rule: Any, built: bool, monkeypatch: pytest.MonkeyPatch):
    """Whether the extension is built or not, where votes move nothing."""
    if not built:
        monkeypatch.setattr(rules, "native_module", lambda: None)
    made = learner.rule_of(Options(rule=rule, decay=0.25))
    delta = {"a": mx.array([[40, -40, 3, 0]], mx.int8)}
    memory = {name: mx.zeros((1, 4), mx.int32) for name in ("a/mean", "a/size")}
    memory |= rules.FineCopyRule.start(made, delta)
    after = made(delta, memory, {"a": mx.zeros((1, 4), mx.int32)}, 5)
    fine = np.array(memory["a"])
    left = fine - np.sign(fine) * (abs(fine) >> 2)
    np.testing.assert_array_equal(np.array(after.memory["a"]), left)


def test_options_that_are_not_given_stay_what_they_were():
    """Or the same command would fine-tune otherwise."""
    assert Options() == Options(
        pop=64, learn="adapter:8", sigma=0.02, steps=200, seed=0, fitness="z-scores", rule="master",
        rate=2.0, rate_decay=1.0, decay=0.0, rank=1, table_bits=22, raise_sigma=True, memory=1024,
        chunk=0, checkpoint_every=10,
    )  # fmt: skip


def test_errors_that_pass_later_parts_by_are_those_of_the_same_logits() -> None:
    """sort_digits: only the last part, behind which there is nothing, gets the errors it had."""
    model = sort_digits.new_model(1)
    ids = mx.array([Letters().encode(prompt) for prompt in ("abc=", "cab=")]) % 12

    def errors_by(forward: sort_digits.Forward) -> list[mx.array]:
        step = nn.value_and_grad(
            model, lambda m: nn.losses.cross_entropy(forward(m, ids), ids).sum()
        )
        loss, gradient = step(model)
        layers = gradient["model"]["layers"]
        return [loss, *(layer["mlp"]["down_proj"]["weight"] for layer in layers)]

    same = [mx.allclose(*pair, rtol=1e-5).item() for pair in zip(
        errors_by(operator.call), errors_by(sort_digits.direct), strict=True
    )]  # fmt: skip
    assert same == [True, False, True]
