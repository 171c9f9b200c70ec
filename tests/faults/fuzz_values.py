"""Targets that take values of Python: options, networks, rows, tokens, fitness, prompts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import eggroll as eg
from eggroll.data import codings
from eggroll.data.corpus import token_corpus, token_ids
from eggroll.errors import InputError
from eggroll.evolution.estimators import as_values
from eggroll.library import language as api
from eggroll.library.trainer import TrainerOptions
from eggroll.networks import egg, mlp
from eggroll.spec import fixed_point as quantisation
from eggroll.spec.program import Program, Register, program_of
from eggroll.sweep.plan import SweepOptions
from eggroll.sweep.space import choose_axes
from eggroll.training import config as options
from eggroll.training.config import Config, with_program
from faults.fuzz import Target, hostile, mutated, text_of

SMALL = Config(data="count", pop=8, width=8, table_bits=16, steps=5)


def named_options(chance: random.Random) -> None:
    """Options as a checkpoint or a file has them."""
    values = mutated(SMALL.to_dict(), chance)
    if isinstance(values, dict):  # which those who call it have seen to
        options.from_dict(values, "it").check()


def declared_options(chance: random.Random) -> None:
    kept = with_program(SMALL, egg(16, 8, 1)).to_dict()
    values = mutated(kept, chance)
    if isinstance(values, dict):
        options.from_dict(values, "it").check()


def config_in_python(chance: random.Random) -> None:
    names = chance.sample(list(SMALL.to_dict()), chance.choice([1, 1, 2]))
    api._plain(Config(**{name: hostile(chance) for name in names})).check()


def trainer_options(chance: random.Random) -> None:
    names = chance.sample(list(vars(TrainerOptions())), chance.choice([1, 1, 2]))
    given = {name: hostile(chance) for name in names}
    if chance.random() < 0.2:
        given = {name: np.int64(chance.randint(0, 9)) for name in names}
    TrainerOptions.of(given).check(mlp(3, [4], 2))


def trainer_arguments(chance: random.Random) -> None:
    names = chance.sample([*vars(TrainerOptions()), "out", "net", "bogus"], chance.choice([1, 2]))
    given = {name: hostile(chance) for name in names if name != "pop"}
    if isinstance(given.get("out"), str):
        del given["out"]  # it would write there
    eg.Trainer(given.pop("net", mlp(3, [4], 2)), **{"pop": 8, "table_bits": 16, **given})


NETS = [
    egg(16, 8, 1).declaration(),
    mlp(3, [4], 2).declaration(),
    mlp(3, [4], 2, policy=True).declaration(),
    egg(5, 4, 2, "table").declaration(),
]


def declarations(chance: random.Random) -> None:
    """What a file says a network is; a program that is accepted has a digest and a declaration."""
    net = program_of(mutated(chance.choice(NETS), chance), chance.choice([4, 4, 4, 8, 0, "x"]))
    again = program_of(net.declaration(), net.score_bits)
    assert again.digest() == net.digest()


OPERATIONS = [name for name in vars(Program) if name[0] != "_" and callable(getattr(Program, name))]
PLAIN = ("linear", "relu", "norm", "bias", "add", "lookup", "stage", "output", "score", "policy")


def building(chance: random.Random) -> None:
    """Calls of the language of networks, half of them with something wrong."""
    net = Program(chance.choice([2, 16, 256]), chance.choice([1, 4, 8]))
    registers = [chance.choice([lambda: net.input(3), lambda: net.embed("E")])()]
    for i in range(chance.randint(1, 12)):
        name, given = chance.choice(PLAIN), [chance.choice(registers[-3:])]
        if name == "add":
            given *= 2
        if name in ("linear", "norm", "bias", "score", "output", "policy"):
            given.append(f"leaf{i}")
        if name in ("linear", "policy"):
            given.append(chance.randint(1, 9))
        if name == "lookup":
            given.append("tanh")
        if name == "stage":
            given = [f"stage{i}"]
        if chance.random() < 0.3:
            name = chance.choice([*OPERATIONS, name])
            pool = [f"leaf{i}", chance.randint(1, 9), hostile(chance, deepest=100), *registers[-2:]]
            given = [chance.choice([known, *pool]) for known in (*given, 0)[: chance.randint(0, 4)]]
        try:
            made = getattr(net, name)(*given)
        except InputError:
            continue
        except TypeError as error:
            if "argument" not in str(error):  # too few or too many for the method
                raise
            continue
        if isinstance(made, Register):
            registers.append(made)
        elif isinstance(made, tuple):
            registers.append(made[0])
    net.check()
    again = program_of(net.declaration(), net.score_bits)
    assert again.digest() == net.digest()


def array(chance: random.Random) -> Any:
    """An array, or something that is none."""
    if chance.random() < 0.3:
        return hostile(chance)
    shape = [chance.choice([0, 1, 2, 3, 4, 8]) for _ in range(chance.randint(0, 4))]
    kind = chance.choice(
        ["i1", "i4", "i8", "u8", "u2", "f4", "f8", "?", "O", "U3", "c8", "M8[s]", "f2"]
    )
    made = np.zeros(shape, kind)
    if made.dtype.kind in "iuf" and made.size:
        value = chance.choice(
            [0, 1, -1, 127, -128, 5, 1 << 31, 1 << 62, np.nan, np.inf, 1e30, -1e30]
        )
        with np.errstate(all="ignore"):
            made.reshape(-1)[chance.randrange(made.size)] = np.array(value).astype(made.dtype)
    return made if chance.random() < 0.8 else made.tolist()


def tokens(chance: random.Random) -> None:
    given = array(chance)
    given = (given, array(chance)) if chance.random() < 0.3 else given
    vocabulary = hostile(chance) if chance.random() < 0.3 else chance.choice([None, 2, 16, 256])
    corpus = token_corpus(given, vocabulary)
    corpus.baselines()
    corpus.streams("train", chance.choice([0, 1, 2, -1]), chance.choice([0, 1, 2]), 0)


def token_arrays(chance: random.Random) -> None:
    token_ids(array(chance), chance.choice([None, 2, 16]), "it")


def fitness(chance: random.Random) -> None:
    as_values(array(chance))


def quantised(chance: random.Random) -> None:
    found = quantisation.quantise(array(chance), array(chance) if chance.random() < 0.4 else 16)
    assert found.dtype == np.int8
    assert (found != -128).all()


TRAINERS: dict[str, eg.Trainer] = {}


def trainer(kind: str) -> eg.Trainer:
    """A trainer of a small population, made once."""
    if kind not in TRAINERS:
        net = mlp(3, [4], 2, policy=kind == "policy")
        estimator = "token-credit" if kind == "policy" else "eggroll"
        TRAINERS[kind] = eg.Trainer(
            net, pop=8, table_bits=16, threads=1, engine="cpu", estimator=estimator
        )
    return TRAINERS[kind]


def rows(chance: random.Random) -> None:
    """What members are shown and told; a told update leaves int8 weights in range."""
    es = trainer(chance.choice(["values", "policy"]))
    members = es.ask()
    call = chance.choice([members, members.act, es.model, es.model.act])
    good = np.zeros(chance.choice([(8, 3), (8, 2, 3), (1, 3), (4, 3)]), np.int8)
    given = array(chance) if chance.random() < 0.6 else good
    more = {}
    if chance.random() < 0.2:
        more[chance.choice(["begins", "tokens", "features"])] = array(chance)
    try:
        call(given, **more)
    finally:
        es.tell(array(chance) if chance.random() < 0.7 else np.arange(8.0))


def prompts(chance: random.Random) -> None:
    pieces = ["3", "15", "16", "-1", " ", "\n", "\u0663", "\u00b2", "x", "9" * 5000, "\ud800", "\0"]
    text = "".join(chance.choices(pieces, k=chance.randint(0, 6)))
    text = text if chance.random() < 0.8 else text_of(hostile(chance))
    coding = chance.choice([codings.Bytes(), codings.Numbers(16)])
    assert all(0 <= token < coding.vocabulary for token in coding.tokens(text, "--prompt"))


WORDS = [
    "alpha",
    "width",
    "rule",
    "clt",
    "pop",
    "sigma_shift",
    "--rank",
    "group-size",
    "seed",
    "data",
    "",
]
VALUES = [
    "1",
    "64",
    "0",
    "-1",
    "1e9",
    "nan",
    "inf",
    "x",
    "sign",
    "whitened",
    "true",
    "False",
    "9" * 5000,
    "1.5",
]


def searches(chance: random.Random) -> None:
    words = []
    for _ in range(chance.randint(0, 3)):
        values = [chance.choice(VALUES) for _ in range(chance.randint(1, 3))]
        text = chance.choice([",", ":", ":", ",:"]).join(values) + chance.choice(
            ["", "", ":log", ":"]
        )
        word = chance.choice(WORDS)
        words.append(word if chance.random() < 0.3 else f"{word}={text}")
    if chance.random() < 0.1:
        words.append(text_of(hostile(chance)))
    choose_axes(words, SweepOptions(), strict=chance.random() < 0.5)


TARGETS = (
    Target("options of a file", named_options, cost=3),
    Target("options of a declared network", declared_options, cost=4),
    Target("Config in Python", config_in_python, cost=2),
    Target("options of a Trainer", trainer_options, cost=2),
    Target("arguments of Trainer", trainer_arguments, cost=20),
    Target("declarations", declarations, cost=2),
    Target("building a network", building, cost=2),
    Target("token corpora", tokens, cost=0.3),
    Target("token ids", token_arrays, cost=0.3),
    Target("fitness", fitness, (InputError, ValueError), cost=0.3),
    Target("quantise", quantised, cost=0.3),
    Target("rows of members", rows, cost=5),
    Target("prompts", prompts, cost=0.3),
    Target("--search", searches, cost=2),
)
