"""The report of runs: one page, the right figures, nothing that a run could slip into it.

What the page does in a browser is in test_report_browser.py.
"""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from reports import made_up, observed, trained

import eggroll as eg
from eggroll.errors import InputError
from eggroll.files import CHECKPOINT
from eggroll.report import command, page
from eggroll.report import page as figures
from eggroll.report.record import VOTES, read_record, read_statistics
from eggroll.training import checkpoint

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e&\0"
VOID = {"meta", "link", "input", "img", "br", "path"}


class Page(HTMLParser):
    """A page taken apart: every tag with its attributes, and the text outside script and style."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.data = ""
        self.feed(path.read_text("utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self.tags[-1][1].get("id") == "data":
            self.data += data
        elif self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def runs(self) -> list[dict]:
        def refuse(word: str) -> float:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.data, parse_constant=refuse)["runs"]


def reported(call: Command, tmp_path: Path, *words: object) -> Page:
    out = tmp_path / "page.html"
    ended = call(*words, "--out", out, main=command.main)
    assert (ended.code, ended.out, ended.err) == (0, f"written: {out}\n", "")
    return Page(out)


def test_one_run_gets_its_page_into_its_folder(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "a")
    ended = call(run, main=command.main)
    assert (ended.code, ended.out) == (0, f"written: {run / 'report.html'}\n")
    assert not list(run.glob(".*"))
    assert Page(run / "report.html").runs[0]["name"] == "a"


def test_several_runs_go_into_the_working_folder(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    runs = [made_up(tmp_path / name) for name in "ab"]
    assert call(*runs, main=command.main).out == "written: report.html\n"


def test_a_folder_of_runs_stands_for_them(call: Command, tmp_path: Path):
    for name in ("trial-2", "trial-1", ".probe-1"):
        made_up(tmp_path / "sweep" / name)
    (tmp_path / "sweep" / "study.db").write_bytes(b"")
    begun = tmp_path / "sweep" / "trial-3"
    begun.mkdir()
    (begun / "config.json").write_text("{}")
    found = reported(call, tmp_path, tmp_path / "sweep")
    assert [run["name"] for run in found.runs] == ["trial-1", "trial-2"]


def test_curves_hold_what_the_run_wrote(call: Command, tmp_path: Path):
    (run,) = reported(call, tmp_path, made_up(tmp_path / "a")).runs
    valid = run["curves"]["valid"]
    assert valid["x"] == [10, 20, 30, 40]
    assert valid["y"] == pytest.approx([5 / (1 + x / 10) + 0.1 for x in valid["x"]], rel=1e-4)
    loss = run["curves"]["loss"]
    assert loss["raw"] == pytest.approx([5 / (1 + x / 10) for x in range(1, 41)], rel=1e-4)
    assert run["time"]["step"][:3] == [0, 1, 2]
    assert run["time"]["counted"][:3] == [0, 256, 512]  # 32 streams of 8 tokens
    assert run["time"]["seconds"][-1] == 10


def test_losses_of_pairs_of_bytes_are_shown_in_both_units(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "a")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "val_loss" in row:
            row["val_bits_per_byte"] = row["val_loss"] / 4
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    curves = reported(call, tmp_path, run).runs[0]["curves"]
    assert curves["valid"]["y"][0] == pytest.approx(2.6 / 4, rel=1e-4)
    assert curves["per_token"]["y"][0] == pytest.approx(2.6, rel=1e-4)


def test_runs_of_a_trainer(call: Command, tmp_path: Path):
    found = reported(call, tmp_path, trained(tmp_path / "a"), made_up(tmp_path / "b"))
    curves = found.runs[0]["curves"]
    assert curves["fitness"]["raw"][:2] == [0.25, 0.5]
    assert curves["fitness_best"]["raw"][-1] == 7
    assert set(curves["nonzero_ratio"]["y"]) == {0.125}
    assert "a Trainer does not record it" in found.text


def test_statistics_are_read(call: Command, tmp_path: Path):
    run = observed(made_up(tmp_path / "a"), steps=(10, 20, 30))
    found = reported(call, tmp_path, run)
    (shown,) = found.runs
    assert shown["curves"]["tied"] == {"x": [10, 20, 30], "y": [0.1, 0.2, 0.3]}
    assert shown["curves"]["threshold"] == {"x": [10, 20, 30], "y": [100, 200, 300]}
    assert "rate" not in shown["curves"]  # null in every line
    assert shown["curves"][VOTES]["y"] == [1.5, 1.5, 1.5]  # mean of 1 and 2
    assert shown["snapshots"] == [10, 20, 30]
    leaf = shown["leaves"]["layer0.Wf"]
    assert leaf["figures"]["update_rate"]["y"] == [0.01, 0.02, 0.03]
    assert [sum(row) for row in leaf["histograms"]] == pytest.approx([100] * 3, rel=1e-2)
    assert leaf["histograms"][0][16] == max(leaf["histograms"][0])
    assert shown["activations"]["layer0.forget"]["figures"]["dead"]["y"] == [0.5] * 3
    assert "update 20: few weights move; try --alpha 2." in found.text
    assert "No statistics.jsonl" not in found.text


def test_older_runs_say_what_is_missing(call: Command, tmp_path: Path):
    text = reported(call, tmp_path, made_up(tmp_path / "a")).text
    assert "No statistics.jsonl" in text
    assert "--statistics-every" in text
    assert "No samples.txt" in text
    assert "No signature: there is no checkpoint." in text


def test_figures_that_are_no_numbers_are_left_out(tmp_path: Path):
    run = made_up(tmp_path / "a")
    lines = [
        '{"step": 1, "tied": NaN, "threshold": Infinity, "rate": "1", "leaves": [1]}',
        '{"step": 2, "tied": 1e999, "leaves": {"w": 3, "v": {"update_rate": -Infinity}}}',
        '{"step": 3, "tied": 0.5, "leaves": {"w": {"weights": [1, NaN], "update_rate": true}}}',
        f'{{"step": 4, "leaves": {{"w": {{"weights": {[0] * 32}}}}}}}',
        f'{{"step": 5, "leaves": {{"w": {{"weights": {[-1, 2] * 16}}}}}}}',
        '{"step": 3, "tied": 0.75}',
        '{"step": -5, "warning": "no"}',
        '{"step": 6, "warning": 7}',
        "no JSON",
    ]
    (run / "statistics.jsonl").write_text("\n".join(lines) + "\n")
    found = read_statistics(run)
    assert found.run == {"tied": [(3, 0.5)]}
    assert found.warnings == []
    assert not found.leaves["w"].figures
    assert not found.leaves["w"].histograms
    (run / "statistics.jsonl").write_text("\n".join([*lines, lines[0]]) + "\n")
    with pytest.raises(InputError, match=r"Line 9 of '.*' is damaged, and whole ones follow"):
        read_statistics(run)


def test_hostile_content_stays_text(call: Command, tmp_path: Path):
    name = HOSTILE.replace("/", "\u2215").replace("\0", "")
    run = observed(made_up(tmp_path / name, data=HOSTILE), leaf=HOSTILE, warning=HOSTILE)
    (run / "samples.txt").write_bytes(b"\xff\xfe" + HOSTILE.encode() * 3)
    stray = made_up(Path(os.fsdecode(os.fsencode(tmp_path) + b"/stray-\xff")))
    found = reported(call, tmp_path, run, stray, "--title", "$x </title>" + HOSTILE[:-1])
    scripts = [facts for tag, facts in found.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert "img" not in {tag for tag, _ in found.tags}
    handlers = [k for _, facts in found.tags for k in facts if k.startswith("on") or k == "style"]
    assert handlers == []
    shown = HOSTILE.translate({0x202E: "\ufffd", 0: "\ufffd"})
    assert found.text.count(shown) >= 4  # warning, samples, option
    assert list(found.runs[0]["leaves"]) == [shown]
    assert found.runs[1]["name"] == "stray-\ufffd"
    assert "\ufffd\ufffd</script>" in found.text  # stray bytes of the samples


def test_the_page_allows_nothing_from_anywhere(call: Command, tmp_path: Path):
    found = reported(call, tmp_path, made_up(tmp_path / "a"))
    (policy,) = [
        facts["content"] for tag, facts in found.tags if tag == "meta" and "http-equiv" in facts
    ]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    addresses = [v for _, facts in found.tags for k, v in facts.items() if k in ("href", "src")]
    assert addresses == ["data:,", "#curves"]
    whole = (tmp_path / "page.html").read_text()
    assert re.findall(r"https?://[^\s\"']+", whole) == ["http://www.w3.org/2000/svg"]


def test_what_differs_between_runs_comes_first(call: Command, tmp_path: Path):
    runs = [made_up(tmp_path / "a", width=32), made_up(tmp_path / "b", seed=5, width=32)]
    text = reported(call, tmp_path, *runs).text
    first = text.split("in which the runs differ")[1].split("All ")[0]
    assert "option a b seed 0 5 about.chunk 0 5" in first
    assert "width" not in first
    assert "width 32 32" in text
    same = reported(call, tmp_path, runs[0], runs[0], "--label", "x", "y")
    assert "The runs have the same options." in same.text


def test_the_signature_is_that_of_the_run(call: Command, tmp_path: Path, finished: Path):
    kept = checkpoint.load_model(finished / CHECKPOINT)
    record = read_record(finished)
    assert record.signature == (checkpoint.signature(kept.weights), kept.step, "")
    assert record.signature.text in reported(call, tmp_path, finished).text


def test_the_signature_of_a_trainer(tmp_path: Path):
    net = eg.Program()
    net.output(net.linear(net.input(2), "w", 1))
    with eg.Trainer(net, pop=4, table_bits=16, out=tmp_path / "run") as es:
        es.ask()(np.ones((4, 1, 2), np.int8))
        es.tell(np.arange(4))
    assert read_record(tmp_path / "run").signature == (es.signature, 1, "")


def test_a_page_of_updates_by_errors(call: Command, tmp_path: Path):
    net = eg.networks.mlp(2, [4], 2)
    with eg.Trainer(net, estimator="feedback", rule="adam", out=tmp_path / "run") as es:
        for _ in range(3):
            es.learn(np.ones((4, 2), np.int8), np.zeros(4, int))
    page = reported(call, tmp_path, tmp_path / "run")
    drawn = page.runs[0]["curves"]
    assert {"loss", "error", "update_rate", "speed"} == drawn.keys()
    assert "training loss" in page.text
    assert "best member" not in page.text


def test_a_damaged_checkpoint_has_no_signature(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "a")
    (run / CHECKPOINT).write_bytes(b"\xff" * 100)
    assert "No signature: checkpoint" in reported(call, tmp_path, run).text


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100, 1000])
def test_thinning_keeps_the_extremes(count: int):
    values = np.random.default_rng(count).normal(size=count)
    kept = figures.thin(values, 16)
    assert len(kept) <= 16
    assert (np.diff(kept) > 0).all()
    if count:
        assert {0, count - 1, values.argmin(), values.argmax()} <= set(kept.tolist())
    if count <= 16:
        assert len(kept) == count


def test_large_runs_are_thinned_until_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = observed(made_up(tmp_path / "a", updates=3000), steps=range(1, 200))
    (run / "samples.txt").write_text("words " * 10_000)
    records = [read_record(run)]
    whole = len(page.html_of(records, "", 1.0))
    monkeypatch.setattr(command, "LARGEST", whole * 2 // 3)
    assert len(command.fitting_page(records, "")) <= whole * 2 // 3


def test_histograms_are_evenly_chosen(tmp_path: Path):
    run = observed(made_up(tmp_path / "a"), steps=range(1, 400))
    steps = figures.figures_of(read_record(run), 1.0)["snapshots"]
    assert (steps[0], steps[-1], len(steps)) == (1, 399, figures.SNAPSHOTS)


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme: int):
    """4.5 to 1 for text, 3 to 1 for lines, as WCAG 2.2 asks for."""
    style = (Path(page.__file__).parent / "assets" / "page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    known = dict(re.findall(r"--([\w-]+): (#\w+)", block))
    for paper in ("paper", "panel"):
        for name, least in [("ink", 7), ("soft", 4.5), ("focus", 3)] + [
            (f"run-{i}", 3) for i in range(8)
        ]:
            pair = sorted((luminance(known[name]), luminance(known[paper])))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, (name, paper)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "no folder is given"),
        (["nowhere"], "'nowhere' holds no run"),
        (["a", "--out", "a.pdf"], "--out 'a.pdf' does not end in .html"),
        (["a", "--label", "x", "y"], "--label has 2 names for 1 runs: give one for each"),
        (["a"] * 65, "65 runs are given: a page has from 1 to 64"),
        (["a", "--out", "none/a.html"], "cannot be written"),
        (["bare"], "has made no update yet"),
    ],
)
def test_refusals(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
):
    monkeypatch.chdir(tmp_path)
    made_up(Path("a"))
    made_up(Path("bare"), updates=0)
    ended = call(*words, main=command.main)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err
    assert ended.err.count("\n") == 1


def test_a_page_that_cannot_be_written_goes_elsewhere(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "run")
    (run / CHECKPOINT).touch()
    (run / "report.html").mkdir()
    ended = call(run, main=command.main)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ", or give another --out; what was" in ended.err


def test_a_pipe_is_not_waited_for(call: Command, tmp_path: Path):
    run = made_up(tmp_path / "a")
    os.mkfifo(run / "samples.txt")
    os.mkfifo(run / CHECKPOINT)
    assert "No signature" in reported(call, tmp_path, run).text
    os.mkfifo(run / "statistics.jsonl")
    ended = call(run, main=command.main)
    assert ended.code == 2
    assert "statistics.jsonl' cannot be read" in ended.err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(119.94, "119.9 s"), (120, "2 min 00 s"), (3599.9, "59 min 59 s"), (7260, "2 h 01 min")],
)
def test_durations_are_told_in_two_units_from_two_minutes_on(seconds: float, words: str):
    assert page._duration(seconds) == words
