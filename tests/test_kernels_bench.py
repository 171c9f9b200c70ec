"""The kernels' benchmark sees a wrong kernel, and writes what it says; nothing here is timed."""

from __future__ import annotations

import csv
import json
import os
import sys
from math import prod
from pathlib import Path

import mlx.core as mx
import pytest
from conftest import Command

from eggroll import _extension
from eggroll.engines.cpu import CpuEngine
from eggroll.networks import egg
from eggroll.spec import rng

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import kernels
import tiny_programs
from tiny_programs import COPIES, Disagreement, Kernel, verify

ISA = _extension.load().usable_isas()[0]
TINY = ("--widths", "8", "--vocabularies", "16", "--ranks", "0", "1", "--pairs", "32")
TINY = (*TINY, "--repeats", "1", "--seq-len", "2", "--isa", ISA)


@pytest.fixture(scope="module")
def noise() -> mx.array:
    return mx.array(rng.normal_bytes(rng.key(0, rng.TABLE), 1 << 12))


@pytest.mark.parametrize("operation", COPIES)
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_every_operation_is_looked_at(
    operation: str, rank: int, noise: mx.array, monkeypatch: pytest.MonkeyPatch
):
    """An engine that leaves out the last copy of the operation is found out."""
    kernel = Kernel(operation, 12, 20 if operation in ("embed", "head") else tiny_programs.SMALL)
    verify(kernel, [ISA], [rank], noise)
    monkeypatch.setattr(tiny_programs, "LEAST", kernel.vocabulary)
    fewer = 0 if operation == "head" else tiny_programs.OBSERVED - 1
    short = kernel.program(fewer, observed=True)
    monkeypatch.setattr(
        tiny_programs, "CpuEngine", lambda program, threads: CpuEngine(short, threads)
    )
    if kernel.ranks([rank]):
        with pytest.raises(Disagreement, match=f"^{operation} "):
            verify(kernel, [ISA], [rank], noise)


def test_every_operation_of_egg_is_measured():
    kinds = {"linear" if "D" in name else name.replace("head", "score") for name in COPIES}
    stages = egg(4, 4, 1, "table").stages
    assert kinds == {op.kind for stage in stages for op in stage.ops}


@pytest.mark.parametrize("what", ["votes", "state", "scores"])
def test_one_wrong_bit_stops_everything(
    what: str, call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    right_evaluate, right_votes = CpuEngine.evaluate, CpuEngine.votes

    def flip(array: mx.array) -> mx.array:
        last = (mx.arange(array.size) == array.size - 1).reshape(array.shape)
        return array ^ last.astype(array.dtype)

    def evaluate(*args: object) -> tuple[mx.array, mx.array]:
        scores, state = right_evaluate(*args)  # type: ignore[arg-type]
        return (flip(scores), state) if what == "scores" else (scores, flip(state))

    def votes(*args: object) -> dict[str, mx.array]:
        found = right_votes(*args)  # type: ignore[arg-type]
        return found | {name: flip(found[name]) for name in list(found)[-1:]}

    if what == "votes":
        monkeypatch.setattr(CpuEngine, "votes", votes)
    else:
        monkeypatch.setattr(CpuEngine, "evaluate", evaluate)
    ended = call(*TINY, "--json", tmp_path / "out.json", main=kernels.main)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: DxD (8, 8) at rank ")
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_is_written(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "TARGET", 1e-4)
    monkeypatch.setenv("EGGROLL_ISA", "generic")
    out, sheet = tmp_path / "out.json", tmp_path / "out.csv"
    ended = call(*TINY, "--json", out, "--csv", sheet, main=kernels.main)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"verified: every kernel equals the portable engine, with {ISA}\n")
    assert os.environ["EGGROLL_ISA"] == "generic"
    found = json.loads(out.read_text())
    rows, limit = found["kernels"], found["register_loop_gmacs"][ISA]
    assert {row["operation"] for row in rows} == {*COPIES, "votes"}
    assert {row["isa"] for row in rows} == {ISA}
    assert len(list(csv.DictReader(sheet.open()))) == len(rows)
    for row in rows:
        shape = [int(n) for n in row["shape"].split("x")]
        product = len(shape) == 2 and row["operation"] != "embed"
        if product and row["ns"] > 0:
            assert row["gmacs"] == pytest.approx(prod(shape) / row["ns"])
            assert row["of_limit"] == pytest.approx(row["gmacs"] / limit)
        else:
            assert row["gmacs"] is None


def test_the_budget_adds_up(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "TARGET", 1e-4)
    out = tmp_path / "out.json"
    assert call(*TINY, "--json", out, main=kernels.main).code == 0
    shares = {s["part"]: s for s in json.loads(out.read_text())["budget"]}
    counts = {part: s["count"] for part, s in shares.items()}
    assert counts == {
        **{"embed": 1, "norm": 3, "DxD": 4, "add_bias": 2, "forget": 1, "mix": 1, "add": 2},
        **{"4DxD": 1, "Dx4D": 1, "head": 1},
        **{"all kernels": 1, "measured": 1, "dot products alone": 1},
    }
    parts = [s["ns"] for part, s in shares.items() if part in COPIES]
    assert shares["all kernels"]["ns"] == pytest.approx(sum(parts))
    assert shares["measured"]["share"] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--widths 0", "--widths has 0: numbers from 1 to 260 are needed"),
        ("--ranks 65", "--ranks has 65"),
        ("--vocabularies", "--vocabularies"),
        ("--isa mmx", "--isa is 'mmx': one of "),
        ("--repeats 0", "--repeats is 0"),
        ("--json missing/out.json", "'missing/out.json' is no place for a file"),
        ("--sizes 3", "'--sizes' is no option of benchmarks/kernels.py"),
    ],
)
def test_bad_input(call: Command, words: str, says: str):
    ended = call(*words.split(), main=kernels.main)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1
