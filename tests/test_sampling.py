"""Draws of tokens: what they weigh, where texts stop, and where prompts come from."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import Command

from eggroll import engines, generate, networks
from eggroll.inference import UNIT, Sampling, Stops, choice_weights, sample
from eggroll.spec.fixed_point import exp2_table
from eggroll.spec.program import Batch

RUN = (
    *("--data", "count", "--vocabulary", "16", "--pop", "8", "--steps", "2", "--seq-len", "3"),
    *("--layers", "1", "--width", "8", "--val-tokens", "64", "--sample-tokens", "0"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from eggroll.training import loop as training

    folder = tmp_path_factory.mktemp("sampling") / "run"
    assert training.main([*RUN, "--out", str(folder)]) == 0
    return folder


def test_temperature_one_takes_the_weights_of_training():
    assert choice_weights(1).tolist() == exp2_table().tolist()
    cold, hot = choice_weights(0.5), choice_weights(2)
    assert cold[255 - 16] == exp2_table()[255 - 32]
    assert hot[255 - 16] == exp2_table()[255 - 8]


def drawn_from(sampling: Sampling, logits: list[int]) -> list[int]:
    """The tokens that can be drawn; those left weigh what they weigh without a choice."""
    given = np.array([logits], np.int8)
    found = sampling.weights(given)[0]
    kept = np.flatnonzero(found)
    everything = Sampling(sampling.temperature).weights(given)[0]
    np.testing.assert_array_equal(found[kept], everything[kept])
    return kept.tolist()


def test_the_likeliest_are_drawn_from():
    logits = [3, 40, 8, 40, -5, 24]  # 16 is a factor of two
    assert drawn_from(Sampling(), logits) == [0, 1, 2, 3, 4, 5]
    assert drawn_from(Sampling(top_k=3), logits) == [1, 3, 5]
    assert drawn_from(Sampling(top_k=1), logits) == [1]  # the first of equals
    assert drawn_from(Sampling(top_k=9), logits) == [0, 1, 2, 3, 4, 5]
    assert drawn_from(Sampling(min_p=0.5), logits) == [1, 3, 5]
    assert drawn_from(Sampling(min_p=0.51), logits) == [1, 3]
    assert drawn_from(Sampling(temperature=2, min_p=0.49), logits) == [1, 2, 3, 5]
    assert drawn_from(Sampling(min_p=1), logits) == [1, 3]
    assert drawn_from(Sampling(top_p=1e-9), logits) == [1]
    # Shares count in 2^-16: one of 1.3 is not below 1.4, which is 1.
    assert drawn_from(Sampling(min_p=1.4 / 65536), [122, -128]) == [0, 1]
    assert drawn_from(Sampling(min_p=1.6 / 65536), [122, -128]) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_top_p_is_the_smallest_set_with_this_probability(seed: int):
    random = np.random.default_rng(seed)
    logits, top_p = random.integers(-60, 60, 30), float(random.uniform(0.05, 1))
    sampling = Sampling(top_k=int(random.choice([0, 12])), top_p=top_p)
    weights = Sampling(top_k=sampling.top_k).weights(logits[None].astype(np.int8))[0]
    kept = drawn_from(sampling, logits.tolist())
    needed = round(top_p * UNIT) * int(weights.sum())
    assert int(weights[kept].sum()) * UNIT >= needed
    least = min(weights[kept])
    assert (int(weights[kept].sum()) - int(least)) * UNIT < needed
    assert all(w <= least for w in np.delete(weights, kept))


def test_draws_follow_the_weights():
    """Frequencies of the first token over many samples, within five standard deviations."""
    program = networks.egg(12, 8, 1)
    engine = engines.choose("portable", program)[0]
    leaves = networks.initial_weights(program, 0)
    sampling, many = Sampling(temperature=4, top_k=5), 4000
    drawn = next(sample(engine, leaves, [1], samples=many, sampling=sampling))
    prepared, state = engine.prepare(leaves), engines.zero_state(program, 1)
    for token in (0, 1):
        logits, state = engine.logits(prepared, Batch(mx.array([[token]]), state=state))
    weights = sampling.weights(np.array(logits))[0]
    p = weights / weights.sum()
    counts = np.bincount(drawn, minlength=12)
    assert np.flatnonzero(counts).tolist() == np.flatnonzero(weights).tolist()
    assert (abs(counts - many * p) <= 5 * np.sqrt(many * p * (1 - p))).all()
    again = islice(sample(engine, leaves, [1], samples=3, sampling=sampling), 1)
    assert next(again).tolist() == drawn[:3].tolist()  # however many are drawn


@pytest.mark.parametrize(
    ("strings", "text", "shown"),
    [
        ((), "abc", "abc"),
        (("cd",), "abcdef", "ab"),
        (("cd",), "abc", "abc"),
        (("aab", "x"), "aaab", "a"),
        (("long stop", "b"), "a long b", "a long "),
        (("nothing",), "not", "not"),
    ],
)
def test_a_text_ends_before_a_stop(strings: tuple[str, ...], text: str, shown: str):
    for size in range(1, len(text) + 1):
        stops, said = Stops(strings), ""
        for at in range(0, len(text), size):
            said += stops(text[at : at + size])
            assert shown.startswith(said)  # nothing is shown that is taken back
            if stops.stopped:
                break
        assert said + stops.end() == shown
        assert stops.stopped == (shown != text)


def said(call: Command, *words: object) -> str:
    ended = call(*words, main=generate.main)
    assert ended.code == 0, ended.err
    return ended.out


def test_samples_stops_and_files(call: Command, run: Path, tmp_path: Path, monkeypatch):
    one = said(call, run, "--prompt", "1 2", "--tokens", 20)
    assert said(call, run / "checkpoint.safetensors", "--prompt", "1 2", "--tokens", 20) == one
    several = said(call, run, "--prompt", "1 2", "--tokens", 20, "--samples", 3)
    parts = several.split("--- sample ")[1:]
    assert parts[0] == f"1 of 3\n{one}"
    assert [part.partition("\n")[0] for part in parts] == ["1 of 3", "2 of 3", "3 of 3"]
    assert len({part.partition("\n")[2] for part in parts}) > 1
    word = one.split()[9]
    cut = said(call, run, "--prompt", "1 2", "--tokens", 20, "--stop", f" {word} ", "no such text")
    new = one.removeprefix("1 2 ")
    assert cut.rstrip("\n") == "1 2 " + new[: new.index(f" {word} ")]
    (tmp_path / "prompt").write_text("1 2")
    assert said(call, run, "--prompt-file", tmp_path / "prompt", "--tokens", 20) == one
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"1 2")))
    assert said(call, run, "--prompt-file", "-", "--tokens", 20) == one
    greedy = said(call, run, "--prompt", "1 2", "--tokens", 20, "--temperature", 0)
    assert said(call, run, "--prompt", "1 2", "--tokens", 20, "--top-k", 1, "--seed", 5) == greedy


def test_a_prompt_from_standard_input(run: Path):
    command = [sys.executable, "-m", "eggroll.generate", str(run), "--prompt-file", "-"]
    done = subprocess.run(
        [*command, "--tokens", "3"], input="17", text=True, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --prompt-file has '17'")


def test_a_closed_standard_input_is_one_sentence(
    call: Command, run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stdin", None)
    ended = call(run, "--prompt-file", "-", main=generate.main)
    assert (ended.code, ended.out) == (2, "")
    assert "--prompt-file '-' cannot be read (it is closed)" in ended.err


def test_a_prompt_that_is_too_long_is_refused(call: Command, run: Path, tmp_path: Path):
    (tmp_path / "prompt").write_bytes(b"1 " * (1 << 19) + b"1")
    ended = call(run, "--prompt-file", tmp_path / "prompt", main=generate.main)
    assert ended.code == 2
    assert "1,048,576 bytes" in ended.err
