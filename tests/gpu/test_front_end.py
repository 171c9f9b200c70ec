"""The script that has Apple's compiler read every kernel, with processes that only say so."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

from gpu import front_end
from gpu.every_kernel import every_kernel, uses_nax

TESTS = Path(__file__).parents[1]
# In place of MLX: what becomes of the kernels, by number.
FAKE = f"""
import os, sys, time
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "metal")!r}]
from gpu import front_end
numbers = iter(range(int(sys.argv[1]), 1000))
def evaluate(kernel):
    number = next(numbers)
    if number == 2:
        name = "custom_kernel_" + kernel.source.name
        raise RuntimeError(f"[metal::Device] Unable to load kernel {{name}}\\nCompiler encountered")
    if number == 4:
        raise RuntimeError("[metal::Device] Unable to build metal library from source\\nan error")
    if number == 5:
        os.kill(os.getpid(), 9)
    if number == 7:
        raise RuntimeError("[metal::Device] Unable to load kernel vn_copy")
    if number == 9:
        time.sleep(60)
front_end.child(int(sys.argv[1]), "26.0", evaluate)
"""


def test_outcomes_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "fake.py").write_text(FAKE)
    kernels = front_end.listed("26.0")[:12]

    def command(first: int) -> list[str]:
        return [sys.executable, str(tmp_path / "fake.py"), str(first)]

    found = front_end.outcomes(command, len(kernels), 2)
    expected = dict.fromkeys(range(12), "runs") | {
        2: "no pipeline",
        4: "[metal::Device] Unable to build metal library from source\nan error",
        5: "the process ended with exit code -9",
        7: "[metal::Device] Unable to load kernel vn_copy",
        9: "no answer in 2 s",
    }
    assert dict(enumerate(found)) == expected
    assert front_end.report(kernels, found) == 1
    said = capsys.readouterr().out
    assert f"{kernels[2].name}: no pipeline\n" in said
    assert f"{kernels[4].name}: FAILED\n" in said
    assert f"=== {kernels[4].name}\n[metal::Device] Unable to build metal library" in said
    assert "12 kernels: 7 runs, 1 no pipeline, 4 failed" in said
    good = ["runs"] * 11 + ["no pipeline"]
    assert front_end.report(kernels, good) == 0


def test_a_process_that_says_nothing_ends():
    found = front_end.outcomes(lambda first: [sys.executable, "-c", ""], 2, 2)
    assert found == ["the process said nothing of it"] * 2


def test_kernels_for_nax_wait_for_their_header():
    for macos, all_of_them in (("14.8", False), ("15.7.1", False), ("26.0", True), ("27.1", True)):
        kernels = front_end.listed(macos)
        assert any(uses_nax(kernel.source) for kernel in kernels) is all_of_them
    assert len(kernels) == len(every_kernel("metal"))


def test_texts_are_written(tmp_path: Path):
    kernels = front_end.listed("15.0")
    front_end.write_texts(kernels, tmp_path)
    assert len(list(tmp_path.glob("*.metal"))) == len(kernels)


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has a Metal GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]):
    assert front_end.main([]) == 2
    assert "no Metal GPU" in capsys.readouterr().out
