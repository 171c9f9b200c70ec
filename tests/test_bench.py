"""The benchmark measures what it says; nothing here looks at how fast anything is."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path

import pytest
from conftest import Command

from eggroll import _extension, networks
from eggroll.bench import PRESETS, PUBLISHED, command
from eggroll.bench import command as picture
from eggroll.bench import prediction as performance
from eggroll.bench.command import (
    BenchOptions,
    BenchRow,
    LimitSample,
    ProcessorLimits,
    macs_per_token,
    register_loop,
)
from eggroll.training import pictures

TINY = ("--preset", "small", "--seq-len", "2", "--repeats", "2", "--threads", "1")


def test_a_table_and_three_files(call: Command, tmp_path: Path):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "png")}
    ended = call(
        *(*TINY, "--pops", "64", "32", "--json", files["json"], "--csv", files["csv"]),
        *("--picture", files["png"]),
        main=command.main,
    )
    assert ended.code == 0, ended.err
    assert ended.out.startswith("engine: ")
    found = json.loads(files["json"].read_text())
    rows = found["rows"]
    assert [row["population"] for row in rows] == [32, 64]
    assert found["options"]["preset"] == "small"
    predicted = performance.predictions(PRESETS["small"], seq_len=2)
    assert found["predicted"]["population"] == performance.POPULATION
    assert found["predicted"]["tokens_per_second"] == {
        p.chip.name: round(p.tokens_per_second) for p in predicted
    }
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(2 * row["population"] / row["seconds"])
        assert row["gmacs"] == pytest.approx(row["tokens_per_second"] * 65536 / 1e9)
        assert row["evaluation"] > 0
        assert row["votes"] > 0
        assert row["update"] > 0
        assert row["of_limit"] > 0
    assert rows[0]["speed_up"] == 1
    assert f"\nprocessor: {found['processor']}\n" in ended.out
    assert found["processor"]
    limit = found["limits"]["registers"]
    assert 0 < limit["low"] <= limit["median"] <= limit["high"]
    assert (f"warning: {found['warning']}\n" in ended.out) == bool(found["warning"])
    assert [row["population"] for row in csv.DictReader(files["csv"].open())] == ["32", "64"]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seconds", "products"), [(0.2, 1), (0.005, 51)])
def test_a_slow_product_of_torch_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, seconds: float, products: int
):
    clock, calls = [0.0], list[int]()

    class Torch:
        int8 = None

        def __getattr__(self, name: str):
            return lambda *_, **__: None

        def _int_mm(self, *_: object) -> None:
            calls.append(1)
            clock[0] += seconds

    monkeypatch.setitem(sys.modules, "torch", Torch())
    monkeypatch.setattr(command.time, "perf_counter", lambda: clock[0])
    measure = command.torch_loop(1)
    assert measure is not None
    assert measure() == pytest.approx(4096 * 256 * 1024 / seconds / 1e9)
    assert len(calls) == products


def test_json_alone_on_the_screen(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ended = call(*TINY, "--pops", "32", "--json", "-", main=command.main)
    assert [row["population"] for row in json.loads(ended.out)["rows"]] == [32]
    assert "engine: " in ended.err
    assert not list(tmp_path.iterdir())


def test_predictions_are_hollow_and_called_so():
    axes = pictures.new_figure(4, 4).subplots()
    predicted = performance.predictions(PRESETS["seed"])
    picture.mark_predictions(axes, predicted)
    (line,) = axes.get_lines()
    assert line.get_markerfacecolor() == "none"
    assert line.get_linestyle() == "None"
    rates = [p.tokens_per_second for p in predicted if p.chip.name in performance.DRAWN_CHIPS]
    assert list(line.get_ydata()) == rates
    assert {text.get_text() for text in axes.texts} == set(performance.DRAWN_CHIPS)
    assert line.get_label().startswith("predicted, never run")


def limits_with(*samples: LimitSample) -> ProcessorLimits:
    limits = ProcessorLimits(1, on_cpu=True)
    limits.samples = list(samples)
    return limits


IDLE = LimitSample(400.0, 0.99, 380.0)


@pytest.mark.parametrize(
    ("samples", "of_limit", "of_torch", "says"),
    [
        ((IDLE, IDLE._replace(registers=420.0, torch=360.0)), 0.8, 0.9, ""),
        ((IDLE, IDLE._replace(granted=0.5), IDLE._replace(granted=0.6)), 0.8, 0.9, "given 60%"),
        ((IDLE, IDLE._replace(registers=300.0)), 0.8, 0.9, "the register loop did 300 to 400"),
        ((IDLE, IDLE._replace(torch=200.0)), 0.8, 0.9, "torch._int_mm did 200 to 380 GMAC/s"),
        ((IDLE,), 1.25, 0.9, "steps reached 125% of the limit"),
        ((IDLE,), 0.8, 1.5, "steps reached 150% of torch._int_mm"),
        ((IDLE._replace(torch=None),), 0.8, None, ""),
        ((), None, None, ""),
    ],
)
def test_a_busy_machine_is_told(
    samples: tuple[LimitSample, ...], of_limit: float | None, of_torch: float | None, says: str
):
    shares = [[share] if share else [] for share in (of_limit, of_torch)]
    told = limits_with(*samples).warning(*shares)
    assert bool(told) == bool(says)
    assert says in told
    assert told.count("; ") == 0  # one reason each


def test_the_loop_tells_how_much_of_the_processor_it_had(monkeypatch: pytest.MonkeyPatch):
    """A loop that computes has its thread's time, one that waits has none of it."""
    limits = ProcessorLimits(1, on_cpu=True)
    limits.torch = None

    def compute() -> float:
        before = time.process_time()
        while time.process_time() - before < 0.05:
            pass
        return 1.0

    def wait() -> float:
        time.sleep(0.05)
        return 1.0

    for loop in (compute, wait):
        limits.registers = loop
        limits.sample()
    computed, waited = (sample.granted for sample in limits.samples)
    assert waited < 0.5
    assert waited < computed <= 1.1
    assert ProcessorLimits(1, on_cpu=False).sample() is None


ROW = BenchRow(
    1024, 1024, 0.1, 0.0, 10.0, 163840.0, 1.0, 3000, 10.0, 0.9, 0.05, 0.05, 9.0, 0.8, None
)


@pytest.mark.parametrize("warning", ["", "these figures are in doubt."])
@pytest.mark.parametrize(
    ("options", "name"),
    [
        (BenchOptions(preset="seed"), "seed"),
        (BenchOptions(preset="paper", seq_len=16), "paper"),
        (BenchOptions(preset="small"), ""),
        (BenchOptions(preset="seed", seq_len=100), ""),
        (BenchOptions(preset="seed", rank=4), ""),
    ],
)
def test_published_rates_are_of_the_same_work(options: BenchOptions, name: str, warning: str):
    predicted = performance.predictions(PRESETS[options.preset], seq_len=options.seq_len)
    figure = picture.draw(options, [ROW], predicted, "Some CPU, cpu (2 threads)", warning)
    _, right = figure.axes
    words = {text.get_text() for text in right.texts} - set(performance.DRAWN_CHIPS)
    known = PUBLISHED.get(name)
    assert words == ({f"{known.name}: {known.tokens_per_second:,}"} if known else set())
    dashed = [line.get_ydata()[0] for line in right.get_lines() if line.get_linestyle() == "--"]
    assert dashed == ([known.tokens_per_second] if known else [])
    title = figure.get_suptitle()
    assert f"preset {options.preset} (" in title
    assert f"T {options.tokens}, rank {options.rank})\nSome CPU, cpu (2 threads)" in title
    (legend,) = figure.legends
    assert legend.get_title().get_text() == (f"Warning: {warning}" if warning else "")


def test_the_title_of_the_picture_fits():
    where = (
        "AMD EPYC 9R45 96-Core Processor of a machine, cpu (avx512vnni, 192 threads, blocks of 32)"
    )
    figure = picture.draw(BenchOptions(preset="paper", seq_len=100), [ROW], [], where, "")
    figure.draw_without_rendering()
    (title,) = figure.texts
    assert title.get_window_extent().x1 <= figure.bbox.x1
    assert where in " ".join(title.get_text().split())


def test_multiply_adds_of_the_presets():
    """L 12 D^2 + V D: the embedding is a look-up, noise and votes are not counted."""
    page = (Path(__file__).parents[1] / "docs" / "cpu.md").read_text()
    for preset in PRESETS.values():
        D, L, V = preset["width"], preset["layers"], preset["vocabulary"]
        assert f"D {D}, L {L}, V {V}" in page
        assert preset["seq_len"] == 16
        assert macs_per_token(networks.egg(V, D, L)) == 12 * L * D * D + V * D


@pytest.mark.parametrize("isa", _extension.load().usable_isas())
def test_every_instruction_set_has_a_limit(isa: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGGROLL_ISA", isa)
    assert register_loop(1)() > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--pops 7", "--pops has 7"),
        ("--pops 0", "--pops has 0"),
        ("--quick --pops 64", "--quick has its own --pops and --repeats"),
        ("--preset tiny", "'tiny' is given, but one of seed, paper, small, medium is needed"),
        ("--repeats 0", "--repeats is 0"),
        ("--engine cuda", "engine 'cuda'"),
        ("--json missing/out.json", "'missing/out.json' is no place for a file"),
        ("--picture .", "--picture '.' does not end in .png"),
        ("--picture out.xyz", "--picture 'out.xyz' does not end in .png"),
        ("--csv .", "--csv '.' is no place for a file"),
        ("--csv -", "--csv '-' is no place for a file"),
        ("--json a.png --picture ./a.png", "--json and --picture are both 'a.png'"),
        ("--pops", "--pops"),
    ],
)
def test_bad_input(
    call: Command, words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    ended = call(*words.split(), main=command.main)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_files_of_runs_are_not_replaced(call: Command, tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("of a run")
    ended = call("--quick", "--csv", path, main=command.main)
    assert (ended.code, f"{str(path)!r} is a file of a run: give another" in ended.err) == (2, True)
    assert path.read_text() == "of a run"
