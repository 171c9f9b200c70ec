"""Tables, gates and pictures of experiments/autograd, and what its command says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from eggroll.errors import InputError
from experiments.autograd import __main__ as command
from experiments.autograd import digits, gates, peers, report, timing


def times(**cases: dict[str, list[float]]) -> timing.Times:
    return {name.replace("_", " "): parts for name, parts in cases.items()}


def test_a_ratio_compares_within_a_round():
    found = timing.ratio(
        times(slow={"total": [2.0, 30.0, 8.0]}, fast={"total": [1.0, 10.0, 2.0]}),
        "slow", "fast", "total",
    )  # fmt: skip
    assert found == timing.Figure(3, 2, 4)


def test_every_round_runs_every_case_and_warms_it_up():
    ran = []

    def case(name: str) -> timing.Case:
        def run() -> dict[str, float]:
            ran.append(name)
            return {"total": float(len(ran))}

        return run

    found = timing.interleave({"a": case("a"), "b": case("b")}, rounds=2, steps=3)
    assert "".join(ran) == "aaaabbbbbbbbaaaa"
    assert found == {"a": {"total": [3.0, 15.0]}, "b": {"total": [7.0, 11.0]}}


@pytest.mark.parametrize(
    ("products", "step", "limit", "met"),
    [(2.0, 1.4, 1.37, True), (2.0, 1.3, 1.37, False), (1.4, 1.3, 1.0, True), (1.4, 0.9, 1, False)],
)
def test_the_step_must_beat_pytorch_by_what_its_products_allow(products, step, limit, met):
    mlp = {"tape, two-layer node": {"total": [1.0]}, "no tape": {"total": [1.0]}}
    mlp["PyTorch"] = {"total": [step]}
    names = ("two-layer node", "two-layer node, mask of bits", "plain nodes")
    split = {name: {"d_a1": [0.2], "relu": [0.2], "profiled": [1.0]} for name in names}
    sgemm = {"own": {"products": [1.0]}, "PyTorch": {"products": [products]}}
    tape, relu, *_, last = gates.of_mlp(mlp, split, sgemm)
    assert (tape.met, relu.met) == (True, False)
    assert (last.wanted, last.met) == (f">= {limit:g}", met)
    assert gates.of_mlp({**mlp, "no tape": {"total": [0.9]}}, split, sgemm)[0].met is False
    del mlp["PyTorch"]
    assert gates.of_mlp(mlp, split, sgemm)[-1].met is None


def test_a_benchmark_without_torch_is_written_read_and_drawn(tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("float_kernels", reason="the native kernels were not built")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    file, folder = tmp_path / "bench.json", tmp_path / "run"
    words = ["bench", "--rounds", "1", "--steps", "1", "--json", str(file)]
    assert command.main(words) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        "torch is missing: pip install '.[experiments]' brings it. Its rows are left out.\n"
    )
    found = json.loads(file.read_text())
    assert max(found["parity"].values()) < gates.PARITY
    assert {gate["name"]: gate["met"] for gate in found["gates"]}["PyTorch ÷ own, MLP step"] is None
    inside = found["in tape"]
    assert all(inside["two-layer node"][part][0] > 0 for part in ("d_a1", "dw1_db1"))
    assert inside["plain nodes"]["relu"][0] > 0
    assert len(found["tried"]) > 15 + 3

    words = ["run", "--seeds", "2", "--updates", "30", "--evolution-updates", "4", "--look", "2"]
    assert command.main([*words, "--out", str(folder)]) == 0
    looks = report.read_looks(folder)
    assert len(looks) == 2 * (15 + 15 + 2)
    assert command.main(["report", str(folder), "--bench", str(file)]) == 0
    assert "| ReLU ÷ backward, plain nodes | <= 0.1 |" in capsys.readouterr().out
    for name in ("seconds.png", "split.png"):
        assert np.ptp(image.imread(folder / name)) > 0.5


def test_a_run_is_a_function_of_its_seed():
    pytest.importorskip("sklearn")
    pytest.importorskip("float_kernels", reason="the native kernels were not built")
    train, valid = digits.load()
    settings = digits.Settings(20, 3, 10, 1, timing.CLOCKS["cpu"])
    for method, train_by in digits.METHODS.items():
        first, second, other = (
            [look[4:] for look in train_by(method, seed, settings, train, valid)]
            for seed in (0, 0, 1)
        )
        assert first == second != other


def test_judging_counts_bits():
    bits = np.array([[1.0, 0, 0, 0], [0, 3, 0, 0], [5, 0, 0, 0]])
    loss, accuracy = digits.judge(bits, np.array([0, 1, 2], np.int32))
    chances = 2**bits / (2**bits).sum(1, keepdims=True)
    assert loss == pytest.approx(-np.log2(chances[[0, 1, 2], [0, 1, 2]]).mean())
    assert accuracy == pytest.approx(200 / 3)


def test_missing_files_are_said(tmp_path: Path, capsys, monkeypatch):
    assert command.main(["report", str(tmp_path)]) == 2
    assert "looks.csv is missing: `python -m experiments.autograd run" in capsys.readouterr().err
    report.write_looks(tmp_path, [digits.Look("sgd", 0, 1, 0.1, 128, 2.0, 50.0)])
    (tmp_path / "other.json").write_text("[]")
    assert command.main(["report", str(tmp_path), "--bench", str(tmp_path / "other.json")]) == 2
    assert "is no benchmark's file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main(["run", "--seeds", "0"])
    assert "0 is too few" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(InputError, match="torch is missing"):
        peers.load_torch(1)
