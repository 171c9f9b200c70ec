"""PyTorch beside eggroll on the same text: `python experiments/text/peers.py pace`, then `sweep`

A GRU, an LSTM and a small transformer with AdamW or Muon, on the training streams and the
validation tokens of `eggroll train` with the same --data and --vocabulary.

`pace` times an update of every setting of the sweep, which needs an idle machine, and `sweep` gives
each setting as many updates as the time has room for, on any machine and beside other work. It
draws settings at random and trains each for a third of the time, then the best of each kind for all
of it, then the best of these on other seeds. A row is written per run, so that a sweep that was
stopped goes on and all that was tried is recorded. `run gru:rate=0.016,width=128,streams=96`
trains one setting. Needs torch: `pip install '.[experiments]'`; Muon needs torch 2.9 or newer.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from eggroll.cli import command as cli
from eggroll.data.corpus import Corpus
from eggroll.data.expert import probabilities_of
from eggroll.errors import InputError
from eggroll.training.config import Config
from eggroll.training.run import (
    bytes_per_token,
    counted_expert,
    load_run_corpus,
    validation_batches,
)

KINDS, OPTIMISERS = ("gru", "lstm", "transformer"), ("adamw", "muon")
HEAD = 32  # features of a head of attention
# A transformer's positions: tokens of context that it may see, at training and at validation.
LONGEST = 1024


@dataclass(frozen=True)
class Setting:
    """A peer and all that may be tuned of it."""

    kind: str = "gru"
    optimiser: str = "adamw"
    rate: float = 0.01
    width: int = 128
    layers: int = 1
    streams: int = 64
    seq_len: int = 16
    weight_decay: float = 0.01
    warmup: float = 0.02
    tied: int = 1  # 1: the output layer is the embedding
    threads: int = 2


PILOT = 30  # updates that are timed
# Seconds of a run beside its updates: torch's import, the text's coding, validation.
BESIDE = 6.0
SEARCH = 1 / 3  # of the time, for each setting of the search

# The sweep's ranges: a pair is tried evenly by ratio, a tuple otherwise value by value.
RANGES: dict[str, dict[str, Any]] = {
    kind: {
        "rate": (0.002, 0.03) if kind != "transformer" else (0.001, 0.015),
        "width": [96, 128, 160, 192, 256] if kind != "transformer" else [96, 128, 192],
        "layers": [1, 1, 2] if kind != "transformer" else [1, 2, 3],
        "streams": [16, 24, 32, 48, 64, 96] if kind != "transformer" else [8, 12, 16, 24, 32],
        "seq_len": [16, 24, 32] if kind != "transformer" else [32, 48, 64],
        "weight_decay": [0.0, 0.01, 0.1],
        "tied": [0, 1],
        "threads": [2],
    }
    for kind in KINDS
}


# Trial 0 of a sweep: what an earlier search by hand ended with.
KNOWN = {
    "gru": {"rate": 0.016, "width": 128, "streams": 96, "seq_len": 16},
    "lstm": {"rate": 0.016, "width": 128, "streams": 96, "seq_len": 16},
    "transformer": {"rate": 0.003, "width": 128, "streams": 32, "seq_len": 64, "layers": 2},
}


def load_torch(threads: int) -> Any:
    """PyTorch, on that many threads.

    Raises:
        InputError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise InputError("torch is missing: pip install '.[experiments]' brings it.") from None
    torch.set_num_threads(threads)
    return torch


def network(torch: Any, s: Setting, vocabulary: int) -> Any:
    """Embedding, core and output layer; called with tokens [S, T] and a state.

    It returns logits [S, T, V] and the state after them: of a recurrent core its hidden state, of a
    transformer the tokens before.
    """
    nn = torch.nn

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, s.width)
            nn.init.normal_(self.embed.weight, std=s.width**-0.5)
            self.norm = nn.LayerNorm(s.width)
            self.head = nn.Linear(s.width, vocabulary)
            if s.tied:
                self.head.weight = self.embed.weight
            if s.kind == "transformer":
                heads = max(s.width // HEAD, 1)
                layer = nn.TransformerEncoderLayer(
                    s.width, heads, 4 * s.width, dropout=0.0, activation="gelu",
                    batch_first=True, norm_first=True,
                )  # fmt: skip
                self.core = nn.TransformerEncoder(layer, s.layers, enable_nested_tensor=False)
                self.places = nn.Embedding(LONGEST, s.width)
                nn.init.normal_(self.places.weight, std=0.02)
            else:
                core = nn.GRU if s.kind == "gru" else nn.LSTM
                self.core = core(s.width, s.width, s.layers, batch_first=True)

        def forward(self, tokens: Any, state: Any) -> tuple[Any, Any]:
            scale = s.width**0.5
            if s.kind != "transformer":
                values, state = self.core(scale * self.embed(tokens), state)
                return self.head(self.norm(values)), state
            new = tokens.shape[1]
            seen = tokens if state is None else torch.cat([state, tokens], 1)
            seen = seen[:, -(s.seq_len + new) :][:, -LONGEST:]
            length = seen.shape[1]
            x = scale * self.embed(seen) + self.places(torch.arange(length))
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            values = self.core(x, mask=mask, is_causal=True)[:, -new:]
            return self.head(self.norm(values)), seen[:, -s.seq_len :]

    return Peer()


def detached(state: Any) -> Any:
    """A state without its history."""
    if state is None:
        return None
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()


def optimisers(torch: Any, s: Setting, model: Any) -> list[Any]:
    """AdamW for all, or Muon for the core's matrices and AdamW for the rest."""
    core = [p for p in model.core.parameters() if p.ndim == 2] if s.optimiser == "muon" else []
    chosen = {id(p) for p in core}
    decayed = [p for p in model.parameters() if p.ndim > 1 and id(p) not in chosen]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": s.weight_decay},
              {"params": others, "weight_decay": 0.0}]  # fmt: skip
    made = [torch.optim.AdamW(groups, lr=s.rate, betas=(0.9, 0.98))]
    if core:
        if not hasattr(torch.optim, "Muon"):
            raise InputError(f"torch {torch.__version__} has no Muon: install 2.9 or newer.")
        made.append(torch.optim.Muon(core, lr=s.rate, weight_decay=s.weight_decay,
                                     adjust_lr_fn="match_rms_adamw"))  # fmt: skip
    return made


def share_of_rate(progress: float, warmup: float) -> float:
    """The learning rate's share after a share of the updates: it rises, then falls as a cosine."""
    if progress < warmup:
        return progress / warmup
    return (1 + math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1))) / 2


def train(s: Setting, corpus: Corpus, updates: int, seed: int) -> tuple[Any, float]:
    """The network after so many updates, and the median seconds of one."""
    torch = load_torch(s.threads)
    torch.manual_seed(seed)
    model = network(torch, s, corpus.vocabulary)
    made = optimisers(torch, s, model)
    streams = corpus.streams("train", s.streams, s.seq_len, seed)
    state, times = None, [time.perf_counter()]
    for step in range(updates):
        for optimiser in made:
            for group in optimiser.param_groups:
                group["lr"] = s.rate * max(share_of_rate(step / updates, s.warmup), 1e-4)
        batch = streams.batch(step)
        tokens, targets = (torch.from_numpy(a).long() for a in (batch.tokens, batch.targets))
        logits, state = model(tokens, detached(state))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        for optimiser in made:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in made:
            optimiser.step()
        times.append(time.perf_counter())
    return model, statistics.median(b - a for a, b in pairwise(times))


def validate(torch: Any, model: Any, corpus: Corpus) -> Any:
    """Bits of every token that a validation of eggroll.train reads, in its streams: float64
    [S, T]."""
    bits, state = [], None
    with torch.no_grad():
        for batch in validation_batches(corpus, Config()):
            tokens, targets = (torch.from_numpy(a).long() for a in (batch.tokens, batch.targets))
            logits, state = model(tokens, state)
            losses = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), targets, reduction="none"
            )
            bits.append(losses.double() / math.log(2))
    return torch.cat(bits, 1).numpy()


# Settings in words, and the sweep.


def setting_of(words: str) -> Setting:
    """The setting in words such as gru:rate=0.016,width=128,optimiser=muon.

    Raises:
        InputError: it names no peer, or what is no part of a setting.
    """
    kind, _, rest = words.partition(":")
    given = dict(word.partition("=")[::2] for word in rest.split(",") if word)
    types = {field.name: type(getattr(Setting(), field.name)) for field in fields(Setting)}
    unknown = sorted(given.keys() - types.keys())
    if kind not in KINDS or unknown or given.get("optimiser", "adamw") not in OPTIMISERS:
        raise InputError(
            f"{words!r} is no setting: one of {', '.join(KINDS)} is needed, with options among "
            f"{', '.join(types)} as in gru:rate=0.016,width=128; optimisers are "
            f"{' and '.join(OPTIMISERS)}."
        )
    try:
        values = {name: types[name](value) for name, value in given.items()}
    except ValueError as error:
        raise InputError(f"{words!r} has a value of another type ({error}).") from None
    return replace(Setting(kind=kind), **values)


def on_threads(s: Setting, threads: int) -> Setting:
    """The setting on so many threads; on its own where that is 0."""
    return replace(s, threads=threads or s.threads)


def drawn(kind: str, optimiser: str, trial: int) -> Setting:
    """The setting of a trial of a kind's sweep, the same whenever it is asked for."""
    if trial == 0:
        return replace(Setting(kind=kind, optimiser=optimiser), **KNOWN[kind])
    chance, values = random.Random(f"{kind} {optimiser} {trial}"), {}
    for name, choices in RANGES[kind].items():
        if isinstance(choices, tuple):
            low, high = map(math.log, choices)
            values[name] = float(f"{math.exp(chance.uniform(low, high)):.3g}")
        else:
            values[name] = chance.choice(choices)
    return replace(Setting(kind=kind, optimiser=optimiser), **values)


def in_words(s: Setting, vocabulary: int) -> str:
    """A setting and its vocabulary, as paces are known by."""
    words = ",".join(f"{name}={v}" for name, v in asdict(s).items() if name != "kind")
    return f"{s.kind}:{words} V{vocabulary}"


def trials(
    args: argparse.Namespace, kind: str, optimiser: str
) -> Iterator[tuple[str, Setting, int, float]]:
    """(phase, setting, seed, share of the time) of all runs of a kind, in turn."""

    def best_of(phase: str, count: int) -> list[Setting]:
        chosen = {"phase": phase, "kind": kind, "optimiser": optimiser, "data": args.data,
                  "minutes": str(args.minutes), "vocabulary": str(args.vocabulary)}  # fmt: skip
        found = [row for row in rows_in(args.csv) if chosen.items() <= row.items()]
        found.sort(key=lambda row: float(row["bits_per_byte"]))
        return [setting_of(f"{kind}:" + ",".join(
            f"{field.name}={row[field.name]}" for field in fields(Setting) if field.name != "kind"
        )) for row in found[:count]]  # fmt: skip

    for trial in range(args.trials):
        yield "search", drawn(kind, optimiser, trial), 0, SEARCH
    for setting in best_of("search", args.finalists):
        yield "final", setting, 0, 1.0
    for seed in range(1, args.seeds + 1):
        yield "seeds", best_of("final", 1)[0], seed, 1.0


def rows_in(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pace(args: argparse.Namespace, corpus: Corpus) -> None:
    """Times an update of every setting of a sweep; those of the file are not timed again."""
    known = json.loads(args.pace.read_text()) if args.pace.exists() else {}
    for kind in args.kinds:
        for optimiser in args.optimisers:
            for trial in range(args.trials):
                setting = drawn(kind, optimiser, trial)
                words = in_words(setting, args.vocabulary)
                if words not in known:
                    _, known[words] = train(setting, corpus, PILOT, 0)
                    print(f"{words}: {1e3 * known[words]:.1f} ms an update", flush=True)
                    args.pace.write_text(json.dumps(known, indent=1) + "\n")


def sweep(args: argparse.Namespace, corpus: Corpus, size: float) -> None:
    """All kinds' trials, finals and seeds; rows that the file has are not run again.

    Raises:
        InputError: a setting's pace is not known.
    """
    known = json.loads(args.pace.read_text()) if args.pace.exists() else {}
    names = ["phase", "data", "vocabulary", "minutes", "seed",
             *(field.name for field in fields(Setting)), "updates", "bits_per_byte"]  # fmt: skip
    for kind in args.kinds:
        for optimiser in args.optimisers:
            bits = []
            for phase, setting, seed, share in trials(args, kind, optimiser):
                words = in_words(setting, args.vocabulary)
                if words not in known:
                    raise InputError(
                        f"{args.pace} lacks {words}: `peers.py pace` with the same options times "
                        "it on an idle machine."
                    )
                seconds = share * (60 * args.minutes - BESIDE)
                key = {"phase": phase, "data": args.data, "vocabulary": args.vocabulary,
                       "minutes": args.minutes, "seed": seed, **asdict(setting),
                       "updates": round(seconds / known[words])}  # fmt: skip
                texts = {name: str(value) for name, value in key.items()}
                done = [row for row in rows_in(args.csv) if texts.items() <= row.items()]
                if not done:
                    run = on_threads(setting, args.threads)
                    model, _ = train(run, corpus, int(key["updates"]), seed)
                    loss = float(validate(load_torch(run.threads), model, corpus).mean())
                    row = key | {"bits_per_byte": loss / size}
                    new = not args.csv.exists()
                    with args.csv.open("a", newline="") as file:
                        writer = csv.DictWriter(file, names)
                        if new:
                            writer.writeheader()
                        writer.writerow(row)
                    print(f"{phase} {words}: {loss / size:.3f}", flush=True)
                    done = [{name: str(value) for name, value in row.items()}]
                if phase == "seeds":
                    bits.append(float(done[0]["bits_per_byte"]))
            if bits:
                print(
                    f"RESULT {kind} by {optimiser}, {args.minutes:g} min, {args.trials} settings: "
                    f"{statistics.mean(bits):.3f} bits per byte ({min(bits):.3f} to "
                    f"{max(bits):.3f}, {len(bits)} seeds)",
                    flush=True,
                )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    pacing = parts.add_parser("pace", help="time an update of every setting, on an idle machine")
    search = parts.add_parser("sweep", help="search settings, then train the best on other seeds")
    search.add_argument("--minutes", type=float, default=1.0, help="of a whole run")
    search.add_argument("--finalists", type=int, default=4, help="trained for the whole time")
    search.add_argument("--seeds", type=int, default=5, help="seeds of the best setting")
    search.add_argument("--csv", type=Path, default=Path("peers.csv"), help="a row per run")
    for part in (pacing, search):
        part.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
        part.add_argument("--optimisers", nargs="+", default=["adamw"], choices=OPTIMISERS)
        part.add_argument("--trials", type=int, default=20, help="settings of each kind")
        part.add_argument("--pace", type=Path, default=Path("peers.json"), help="the pilots")
    one = parts.add_parser("run", help="train one setting")
    one.add_argument("setting", help="as in gru:rate=0.016,width=128,streams=96")
    one.add_argument("--updates", type=int, default=2000)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--expert", choices=("none", "counts"), default="none", help="beside it")
    for part in (search, one):
        part.add_argument("--threads", type=int, default=0, help="if not the setting's")
    for part in (pacing, search, one):
        part.add_argument("--data", default="stdlib")
        part.add_argument("--vocabulary", type=int, default=4096, help="256: bytes")
    return parser.parse_args()


def main() -> int:
    begin, args = time.perf_counter(), arguments()
    expert = getattr(args, "expert", "none")
    config = Config(data=args.data, vocabulary=args.vocabulary, expert=expert)
    config.check()
    corpus = load_run_corpus(config)
    size = bytes_per_token(corpus, config)
    if args.part == "pace":
        pace(args, corpus)
        return cli.DONE
    if args.part == "sweep":
        if min(args.trials, args.finalists) < 1:
            raise InputError("--trials and --finalists: 1 or more of each are needed.")
        sweep(args, corpus, size)
        return cli.DONE
    if args.updates < 1:
        raise InputError(f"--updates is {args.updates}: 1 or more are needed.")
    setting = on_threads(setting_of(args.setting), args.threads)
    model, update = train(setting, corpus, args.updates, args.seed)
    bits = validate(load_torch(setting.threads), model, corpus)
    wall = time.perf_counter() - begin
    print(f"{args.updates} updates of {1e3 * update:.2f} ms (median); {wall:.1f} s by the wall")
    print(f"validation: {bits.mean() / size:.3f} bits per byte")
    if expert := counted_expert(corpus, config):
        both = expert.beside(probabilities_of(bits)).bits / size
        print(f"with its counted expert: {both:.3f} bits per byte")
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
