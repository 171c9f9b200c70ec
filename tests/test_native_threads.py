"""How the engine's threads share work, under the sanitizer that sees two of them at one place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent / "native"
ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "extensions" / "int8_gemm" / "cpu"


def test_every_pair_votes_once_and_alone(tmp_path: Path):
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-g1", "-pthread", "-Wall"]
    compiler += ["-Wextra", "-fsanitize=thread", f"-I{SOURCES}", f"-I{ROOT / 'eggroll' / 'native'}"]
    empty = [*compiler, "-x", "c++", "-", "-o", str(tmp_path / "empty")]
    if subprocess.run(empty, input=b"int main() {}", check=False, capture_output=True).returncode:
        pytest.skip(f"{compiler[0]} has no sanitizer of threads")
    program = tmp_path / "count"
    sources = [NATIVE / "count.cpp", SOURCES / "machine.cpp"]
    subprocess.run([*compiler, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer of threads does not run on this kernel")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "every pair and every item once\n"


def test_a_forked_child_has_threads_of_its_own():
    words = (
        "import os; from eggroll import _extension; native = _extension.load(); native.peak(2)\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    alone = threads() == 1\n"
        "    os._exit(0 if native.peak(2) > 0 and alone and threads() == 2 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0 and native.peak(2) > 0"
    )
    if not Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc")
    subprocess.run([sys.executable, "-c", words], check=True, timeout=60)


@pytest.mark.parametrize("engine", ["cpu", "portable"])
def test_a_child_forked_after_the_first_use_trains_on(engine: str):
    """MLX's thread of a stream does not survive a fork either, and the child waited for it."""
    words = (
        "import os, signal, numpy as np, mlx.core as mx\n"
        "from networks import random_case\n"
        "from eggroll.engines import ENGINES\n"
        f"case = random_case(8); engine = ENGINES[{engine!r}](case.program)\n"
        "def scores(): return np.array(mx.abs(engine.evaluate(engine.prepare(case.leaves), "
        "case.slices, case.batch)[0]))\n"
        "first = scores(); child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(20)\n"
        "    os._exit(0 if (scores() == first).all() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert (scores() == first).all()"
    )
    folder = Path(__file__).parent
    subprocess.run([sys.executable, "-c", words], check=True, timeout=180, cwd=folder)
