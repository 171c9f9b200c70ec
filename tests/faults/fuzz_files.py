"""Targets that read files and command lines: checkpoints, options, metrics, corpora."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import eggroll as eg
from eggroll import adamw, generate, probe
from eggroll.baseline import backprop as reader
from eggroll.bench import command as bench
from eggroll.cli import command as cli
from eggroll.data import counting
from eggroll.data.corpus import load_corpus
from eggroll.engines import trial as verdicts
from eggroll.errors import InputError
from eggroll.files import CHAIN, CHECKPOINT, CONFIG, METRICS, SAMPLES, STATISTICS
from eggroll.networks import mlp
from eggroll.sweep import plan as sweep
from eggroll.training import chain, checkpoint, run, verify
from eggroll.training import config as options
from eggroll.training import folder as runlog
from eggroll.training import loop as training
from eggroll.training.checkpoint import Arrays
from eggroll.training.config import Config
from eggroll.training.learner import engine_for, new_learner
from faults.cases import CREDIT, as_baseline, corpus
from faults.commands import TINY
from faults.fuzz import Target, hostile, mutated, mutated_bytes, text_of

QUIET = [*TINY, "--steps", "3", "--pop", "8"]


@functools.cache
def place() -> Path:
    """A folder, in memory where there is one, as every attempt writes a file."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="eggroll-fuzz-", dir=memory if memory.is_dir() else None))


@functools.cache
def folder(name: str) -> Path:
    """The folder of a finished run."""
    ways = {"sign": [], "whitened": [*CREDIT, "--rule", "whitened"], "master": ["--rule", "master"],
            "feedback": ["--estimator", "feedback", "--rule", "adam"]}  # fmt: skip
    path = place() / name
    if name == "Trainer":
        with eg.Trainer(mlp(3, [4], 2), pop=8, table_bits=16, threads=1, out=path) as es:
            es.ask()(np.zeros((1, 3), np.int8))
            es.tell(np.arange(8.0))
        return path
    with ExitStack() as stack:
        words = [*QUIET, *ways.get(name, []), "--out", str(path)]
        if name == "adamw":
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            made: run.Run = adamw.open_run(adamw.options_from(as_baseline(words)), stack)
        else:
            made = run.open_run(training.options_from(words), stack, show=False)
        with runlog.Metrics(path / METRICS, 0) as metrics:
            while made.step < made.config.steps:
                metrics.append(made.update() | made.validation())
        made.save()
    return path


@functools.cache
def contents(name: str) -> tuple[dict[str, str], Arrays, bytes]:
    """Metadata, tensors and bytes of its checkpoint."""
    path = folder(name) / CHECKPOINT
    data = path.read_bytes()
    kind = next(kind for kind in checkpoint.COMMANDS if f'"{kind}"'.encode() in data)
    metadata, arrays = checkpoint.read(path, kind)
    return metadata, arrays, data


def doctored(name: str, chance: random.Random) -> Path:
    """A checkpoint with something changed and its checksum made to fit."""
    metadata, arrays, data = contents(name)
    metadata, arrays = dict(metadata), dict(arrays)
    for _ in range(chance.choice([1, 1, 2])):
        if chance.random() < 0.7:
            _doctor_metadata(metadata, chance)
        else:
            _doctor_arrays(arrays, chance)
    path = place() / "doctored" / CHECKPOINT
    path.parent.mkdir(exist_ok=True)
    if chance.random() < 0.25:
        path.write_bytes(mutated_bytes(data, chance))
        return path
    with contextlib.suppress(UnicodeEncodeError):
        metadata["sha256"] = checkpoint._digest(metadata, arrays)
        path.write_bytes(safetensors.numpy.save(arrays, metadata))
    return path


def word(chance: random.Random) -> str:
    value = hostile(chance)
    return value if isinstance(value, str) and chance.random() < 0.5 else text_of(value)[:9000]


def _doctor_metadata(metadata: dict[str, str], chance: random.Random) -> None:
    key = chance.choice([*metadata, "config", "config", "step"])
    if key not in metadata:
        return
    how = chance.random()
    try:
        value = json.loads(metadata[key])
    except (ValueError, RecursionError):
        value = None
    if how < 0.6 and isinstance(value, dict | list):
        metadata[key] = text_of(mutated(value, chance))
    elif how < 0.9:
        metadata[key] = word(chance)
    else:
        del metadata[key]


def _doctor_arrays(arrays: Arrays, chance: random.Random) -> None:
    name = chance.choice(list(arrays))
    array, how = arrays[name].copy(), chance.randrange(6)
    if how == 0:
        del arrays[name]
        return
    if how == 1:
        array = array.reshape(-1)[: chance.randint(0, array.size)]
    elif how == 2:
        array = array.astype(chance.choice(["i1", "i2", "i8", "u1", "f4", "f8", "?"]))
    elif how == 3 and array.size:
        limits = np.iinfo(array.dtype) if array.dtype.kind == "i" else np.finfo(array.dtype)
        values = [limits.min, limits.max, -1, 0, 1]
        with np.errstate(all="ignore"):
            array.reshape(-1)[chance.randrange(array.size)] = chance.choice(values)
    elif how == 4:
        name = chance.choice(["", "x", "weights/", f"{name}2", "memory/é"])
    else:
        array = array[None]
    arrays[name] = array


@functools.cache
def _counting() -> Any:
    return load_corpus("count")


def resumed(name: str, chance: random.Random) -> None:
    """A doctored checkpoint; one that is accepted makes an update whose weights are in range."""
    path = doctored(name, chance)
    kept = checkpoint.load(path)
    if kept.config != checkpoint.load(folder(name) / CHECKPOINT).config:
        kept.config.check()  # any options that are possible may be there, also of costly runs
        return
    if chance.random() < 0.9:
        return
    learner = new_learner(kept.config, engine_for(kept.config, kept.config.program())[0])
    learner.step, learner.weights = kept.step, kept.weights
    learner.memory, learner.state = kept.memory, kept.state
    config = kept.config
    streams = _counting().streams("train", config.streams, config.seq_len, config.seed)
    learner.update(streams.batch(kept.step))
    assert all((np.asarray(leaf) != -128).all() for leaf in learner.weights.values())


def loaded_trainer(chance: random.Random) -> None:
    path = doctored("Trainer", chance)
    es = eg.Trainer.load(path, chunk=8)
    es.ask()(np.zeros((1, es.program.inputs or 1), np.int8))


def loaded_adamw(chance: random.Random) -> None:
    reader.load_run(doctored("adamw", chance), 1)


def generated(chance: random.Random) -> None:
    generate.load(doctored(chance.choice(["sign", "adamw", "Trainer"]), chance).parent, "cpu", 1)


def file_of(data: bytes, name: str = "file") -> Path:
    path = place() / name
    path.write_bytes(data)
    return path


def config_files(chance: random.Random) -> None:
    known = Config(data="count").to_dict() | {"about": {"eggroll": "0"}}
    data = text_of(mutated(known, chance) if chance.random() < 0.3 else known).encode()
    kind = chance.choice([Config, adamw.AdamwOptions, sweep.SweepOptions])
    path = file_of(mutated_bytes(data, chance), "config.json")
    options.options_in(kind, str(path)).check()


def metrics_of(name: str, chance: random.Random) -> bytes:
    data = (folder(name) / METRICS).read_bytes()
    if chance.random() < 0.5:
        return mutated_bytes(data, chance)
    lines = [text_of(mutated(json.loads(line), chance)) for line in data.splitlines()]
    return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")


def metrics_files(chance: random.Random) -> None:
    """Read, cut back and gone on with; what is kept is of the updates up to the checkpoint."""
    step = chance.choice([0, 1, 2, 3, 9])
    path = file_of(metrics_of("sign", chance), METRICS)
    with runlog.Metrics(path, step) as metrics:
        metrics.append({"step": step + 1, "loss": 0.5})
    rows = [row for _, row in runlog.read_lines(path)]
    assert rows[-1]["step"] == step + 1
    assert all(row["step"] <= step for row in rows[:-1])


def doctored_run(chance: random.Random) -> Path:
    """A folder whose config.json and metrics.jsonl are doctored."""
    name = chance.choice(["sign", "adamw", "Trainer"])
    path = place() / "drawn"
    path.mkdir(exist_ok=True)
    config = (folder(name) / CONFIG).read_bytes()
    if chance.random() < 0.5:
        config = text_of(mutated(json.loads(config), chance)).encode("utf-8", "surrogatepass")
    elif chance.random() < 0.3:
        config = mutated_bytes(config, chance)
    (path / CONFIG).write_bytes(config)
    (path / METRICS).write_bytes(metrics_of(name, chance))
    return path


def curves_of_runs(chance: random.Random) -> None:
    """What plot reads of a folder."""
    from eggroll.training import curves

    found = curves.read_run(doctored_run(chance))
    for metric in found.metrics:
        found.curve(metric)
    getattr(found, found.over)(found.steps)
    found.without_seed()


def pages_of_runs(chance: random.Random) -> None:
    """A report of a folder whose statistics and samples are doctored too: still one page."""
    from eggroll.report import page, record

    path = doctored_run(chance)
    part = {"update_rate": 0.1, "vote_over_noise": 1.0, "saturated": 0.0, "weights": [1] * 32}
    gate = {"saturated": 0.1, "dead": 0.5, "values": [2] * 32}
    row = {"step": 2, "tied": 0.1, "threshold": 5, "rate": 0.1, "leaves": {"w": part}}
    rows = [row | {"activations": {"f": gate}}, {"step": 3, "warning": "</script>"}]
    lines = [text_of(mutated(row, chance)).encode("utf-8", "surrogatepass") for row in rows * 2]
    data = b"\n".join([*lines, b""])
    (path / STATISTICS).write_bytes(mutated_bytes(data, chance) if chance.random() < 0.3 else data)
    (path / SAMPLES).write_bytes(mutated_bytes(b"=== <pre> </script> \xff", chance))
    whole = page.html_of([record.read_record(path, word(chance)[:300])], word(chance), 0.1)
    text = whole.decode()
    assert text.count("</script>") == 2
    json.loads(text.partition('id="data">')[2].partition("</script>")[0])


@functools.cache
def _text() -> bytes:
    return corpus(place()).read_bytes()


def corpora(chance: random.Random) -> None:
    """Files and folders of bytes."""
    data = mutated_bytes(_text()[: chance.choice([0, 10, 5000, 17_000, 30_000])], chance)
    if chance.random() < 0.6:
        path = file_of(data, "text")
    else:
        path = place() / "texts"
        path.mkdir(exist_ok=True)
        names = [b"a", b".b", b"c\xff", "é\n".encode(), b"-d", b" "]
        for name in names:
            os.unlink(os.fsencode(path) + b"/" + name) if os.path.lexists(
                os.fsencode(path) + b"/" + name
            ) else None
        for name in chance.sample(names, 3):
            with open(os.fsencode(path) + b"/" + name, "wb") as file:
                file.write(mutated_bytes(data[: chance.choice([0, 100, 20_000])], chance))
    found = load_corpus(str(path))
    found.baselines()
    for split in ("train", "valid"):
        found.streams(split, chance.choice([1, 2, 8]), chance.choice([1, 8]), 0).batch(3)  # type: ignore[arg-type]


def names_of_data(chance: random.Random) -> None:
    name = word(chance)
    if name not in ("stdlib", "minipile", "tinystories", "", " ", "../..", "/dev/null"):
        load_corpus(name, vocabulary=chance.choice([16, 2, 1, 1 << 20]), steps=(1,))


@functools.cache
def chain_of_a_run() -> Path:
    """The folder of a run with a chain, and a copy of that for the attempts."""
    path = place() / "chained"
    assert training.main([*QUIET, "--out", str(path), "--sample-tokens", "0"]) == 0
    return path


def chains(chance: random.Random) -> None:
    """chain.bin with anything changed, its header with other facts whose checksum fits."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        path = chain_of_a_run()
        sound = path / "sound.bin"
        if not sound.exists():
            sound.write_bytes((path / CHAIN).read_bytes())
        data = mutated_bytes(sound.read_bytes(), chance)
        if chance.random() < 0.5:
            with open(sound, "rb") as file:
                header = chain.read_header(file, sound)
                records = file.read()
            facts = mutated(header.facts, chance)
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                data = header._replace(facts=facts).data() + records
        (path / CHAIN).write_bytes(data)
        verify.verify(verify.VerifyOptions(str(path), threads=1))


def verdict_files(chance: random.Random) -> None:
    """The file of trials that engines passed: whatever it holds, it only costs another trial."""
    os.environ["EGGROLL_CACHE"] = str(place())
    file_of(mutated_bytes(b'{"k": {"engine": "metal"}}', chance), "trials.json")
    verdicts.read_verdicts()
    verdicts.passed_before({"engine": "metal"})


def kept_figures(chance: random.Random) -> None:
    """The cache of counted rulers: a figure that cannot be one is counted anew."""
    os.environ["EGGROLL_CACHE"] = str(place())
    text = np.arange(40) % 5
    name = hashlib.sha256(b"fuzz").hexdigest()[:24]
    sound = b'{"order": 2, "bits": 1.5, "seconds": 0.1, "entries": 5, "size": 80}'
    (place() / counting.KEPT).mkdir(exist_ok=True)
    file_of(mutated_bytes(sound, chance), f"{counting.KEPT}/{name}.json")
    found = counting.kept_counts("fuzz", lambda: counting.CountedModel(text, 5, 2), text)
    assert min(found.order, found.bits) >= 0
    assert found.name
    assert found.cost
    assert {type(found.order), type(found.entries)} == {int}


def swept(words: Sequence[str]) -> None:
    given = sweep.options_from(words)
    cli.check_ranges(given)
    given.run_options().check()


COMMANDS: dict[str, Callable[[Sequence[str]], Any]] = {
    "train": lambda words: training.options_from(words).check(),
    "adamw": lambda words: adamw.options_from(words).check(),
    "sweep": swept,
}
FLAGS = {
    "train": [f"--{n.replace('_', '-')}" for n in vars(Config())],
    "adamw": [f"--{n.replace('_', '-')}" for n in vars(adamw.AdamwOptions())],
    "sweep": [f"--{n.replace('_', '-')}" for n in vars(sweep.SweepOptions())],
}
SAID = ["1", "2", "64", "0", "-1", "1e3", "nan", "inf", "", "x", "sign", "count", "language",
        "True", "--", "-", "-x", "--no-clt", "9" * 5000, "1" * 20, "\u0663", "\n", "\udc80",
        "--help", "-h", "paper", "feedback", "whitened", "/dev/null", "/"]  # fmt: skip


def command_lines(chance: random.Random) -> None:
    name = chance.choice(list(COMMANDS))
    words: list[str] = []
    for _ in range(chance.choice([0, 1, 2, 3, 5])):
        flag = chance.choice(FLAGS[name]) if chance.random() < 0.85 else chance.choice(SAID)
        value = chance.choice(SAID) if chance.random() < 0.8 else str(folder("sign"))
        words += chance.choice([[flag, value], [flag, value], [f"{flag}={value}"], [flag]])
    with contextlib.redirect_stdout(io.StringIO()):
        COMMANDS[name](words)


def other_command_lines(chance: random.Random) -> None:
    """Commands whose options are looked at by `parse` alone."""
    kinds: list[Any] = [generate.GenerateOptions, probe.ProbeOptions, bench.BenchOptions]
    kind = chance.choice(kinds)
    flags = [f"--{n.replace('_', '-')}" for n in vars(kind())]
    words = []
    for _ in range(chance.choice([0, 1, 2, 3])):
        words += [chance.choice([*flags, *SAID]), chance.choice(SAID)][: chance.choice([1, 2])]
    with contextlib.redirect_stdout(io.StringIO()):
        cli.check_ranges(cli.parse(kind, words, command="it", about=""))


KINDS = ("sign", "master", "whitened", "feedback")
TARGETS = (
    *(Target(f"checkpoints, {n}", functools.partial(resumed, n), cost=10) for n in KINDS),
    Target("checkpoints of a Trainer", loaded_trainer, cost=10),
    Target("checkpoints of adamw", loaded_adamw, cost=5),
    Target("checkpoints for generate", generated, cost=8),
    Target("--config files", config_files, cost=4),
    Target("metrics.jsonl", metrics_files),
    Target("folders for plot", curves_of_runs, cost=3),
    Target("pages of report", pages_of_runs, cost=5),
    Target("corpora", corpora, cost=5),
    Target("names of data", names_of_data),
    Target("trials.json", verdict_files),
    Target("cache of counts", kept_figures),
    Target("chains", chains, cost=10),
    Target("command lines", command_lines, (InputError, SystemExit), cost=30),
    Target("command lines of others", other_command_lines, (InputError, SystemExit), cost=15),
)
