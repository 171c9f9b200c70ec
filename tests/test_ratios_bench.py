"""Instruction sets held against one another: verified, in turns, by whole steps; none is timed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command

from eggroll import _extension
from eggroll.bench import PRESETS
from eggroll.bench.command import BenchStep
from eggroll.engines.cpu import CpuEngine

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import ratios

USABLE = _extension.load().usable_isas()
FAST, SLOW = USABLE[0], "generic"  # every processor that is tested has more than plain C++
TURNS = {FAST: 2.0, SLOW: 5.0}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tiny presets, a clock that knows the set in use, and the sets that steps ran under."""
    ran: list[str] = []
    run = BenchStep.run

    def noted(step: BenchStep) -> tuple[float, float, float]:
        ran.append(os.environ["EGGROLL_ISA"])
        return run(step)

    def seconds(work: Callable[[], object]) -> float:
        work()
        return TURNS[os.environ["EGGROLL_ISA"]] + (len(ran) > 2 * len(TURNS))

    for name in PRESETS:
        monkeypatch.setitem(
            PRESETS, name, {"width": 8, "layers": 1, "vocabulary": 16, "seq_len": 2}
        )
    monkeypatch.setattr(BenchStep, "run", noted)
    monkeypatch.setattr(ratios, "seconds", seconds)
    monkeypatch.setattr(ratios, "REPEATS", 2)
    monkeypatch.setenv("EGGROLL_ISA", "")
    return ran


def test_sets_take_turns(tiny: list[str], call: Command):
    ended = call("--isas", FAST, SLOW, "--pop", "34", main=ratios.main)
    assert ended.code == 0, ended.err
    assert tiny == [FAST, SLOW] * 3 * len(PRESETS)
    said = ended.out.splitlines()
    assert said[0] == "verified: scores equal the portable kernels' for every preset"
    # Of the first preset the second round that counts takes a second longer.
    assert said[1:3] == [
        f"preset {next(iter(PRESETS))}, population 34, {FAST}: {68 / 2.5:,.0f} tokens/s",
        f"preset {next(iter(PRESETS))}, population 34, {SLOW}: {68 / 5.5:,.0f} tokens/s; "
        f"{FAST} / {SLOW}: 2.250 (from 2.000 to 2.500)",
    ]
    assert len(said) == 1 + 2 * len(PRESETS)
    assert os.environ["EGGROLL_ISA"] == ""


def test_one_wrong_score_stops_everything(
    tiny: list[str], call: Command, monkeypatch: pytest.MonkeyPatch
):
    right = CpuEngine.evaluate

    def evaluate(*args: object) -> object:
        scores, state = right(*args)  # type: ignore[arg-type]
        return scores + (os.environ["EGGROLL_ISA"] == FAST), state

    monkeypatch.setattr(CpuEngine, "evaluate", evaluate)
    ended = call("--isas", SLOW, FAST, main=ratios.main)
    assert (ended.code, ended.out, tiny) == (1, "", [])
    assert ended.err == f"error: {FAST} gives other scores than generic for preset seed.\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--isas generic mmx", "--isas has 'mmx': two or more of "),
        ("--isas generic", "--isas is 'generic': two or more of "),
        ("--isas generic generic", "--isas is 'generic generic': two or more of "),
        ("--isas", "--isas is '': two or more of "),
        (f"--isas {FAST} {SLOW} --pop 3", "--pop is 3: an even number"),
        ("--sets avx2", "'--sets' is no option of benchmarks/ratios.py"),
    ],
)
def test_bad_input(call: Command, words: str, says: str):
    ended = call(*words.split(), main=ratios.main)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_the_table_of_findings_has_every_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    from experiments.scaling import findings

    monkeypatch.setattr(findings, "MEMORY", {1: 0.5})
    monkeypatch.setattr(findings, "UPDATES", 3)
    words = ["--populations", "64", "1024", "--repeats", "1", "--seeds", "1", "--threads", "1"]
    file = tmp_path / "found.json"
    assert findings.main([*words, "--json", str(file)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    learners = [*findings.COUNTED]
    head = "members at a time, batch 64, vocabulary 10,000"
    assert names[:6] == ["population", "64", "1,024", "1,024", head, "1"]
    assert names[6:] == ["V 16, to 0.001 nats, one thread", *learners]
    assert rows[2] == "| 1,024 | port | 0.19 | 5.35 | 87,700 | 1.00 | 1,600 | |"
    found = json.loads(file.read_text())
    assert [row["population"] for row in found["steps"]] == [64, 1024]
    assert found["memory_mb"]["1"] > 1
    assert [run[0]["updates"] for run in found["counting"].values()] == [3] * len(learners)


def test_the_table_of_findings_refuses(capsys: pytest.CaptureFixture[str]):
    from experiments.scaling import findings

    for words, said in (
        (["--seeds", "0"], "--seeds: 0 is too few"),
        (["--populations", "3"], "--populations: 3 is no population"),
    ):
        with pytest.raises(SystemExit, match="2"):
            findings.main(words)
        assert said in capsys.readouterr().err
